"""One posterior of several completed data sets: its law, its record, an end before the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.errors import InputError, StoreError
from consortia.run import sampling
from tests.refusals import refused

IMPUTATIONS = 4
OPTIONS: dict[str, Any] = {"rounds": 400, "chains": 4, "progress": False}


def tables() -> dict[str, dict[str, np.ndarray]]:
    """Return three unlike sites; x misses in a third of their rows, one text twice."""
    rng, found = np.random.default_rng(3), {}
    for name, rows in (("oslo", 60), ("lima", 40), ("bern", 20)):
        x, arm = rng.normal(50, 10, rows), rng.choice(["new", "old"], rows)
        y = 0.1 * x + (arm == "old") + rng.standard_normal(rows)
        arm = np.where(np.arange(rows) < 2, None, arm)
        found[name] = {"x": np.where(rng.random(rows) < 1 / 3, np.nan, x), "arm": arm, "y": y}
    return found


def regression(**more: Any) -> consortia.Regression:
    options = {"missing": "impute", "imputations": IMPUTATIONS} | more
    return consortia.regression("y ~ x + arm", tables(), **options)


@pytest.fixture(scope="module")
def made() -> consortia.Regression:
    return regression()


@pytest.fixture(scope="module")
def tree(made: consortia.Regression) -> Any:
    return consortia.sample(
        made.model, made.sites, consortia.few_rounds(), metadata=made.metadata, **OPTIONS
    )


def exact_moments(made: consortia.Regression, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and second moment of (x, arm) given one imputation, by quadrature over sigma."""
    rows = made.imputation(number).sites.pooled()
    X = np.column_stack([np.ones(len(rows["y"])), rows["x"]]).astype(float)
    y = np.asarray(rows["y"], float)
    unit = made.specification.units["response()"]
    basis = np.diag([1 / made.specification.units["x"].sd, 1.0])
    # as documented: normal(0, 2.5 s_y / s_x), normal(m, 2.5 s_y), exponential(1 / s_y)
    prior = np.diag(np.full(3, (2.5 * unit.sd) ** -2.0))
    centre, sigmas = np.array([unit.mean, 0, 0]), np.linspace(0.5, 2, 400)
    logs, means, seconds = [], [], []
    for sigma in sigmas:
        precision = X.T @ X / sigma**2 + prior
        covariance = np.linalg.inv(precision)
        mean = covariance @ (X.T @ y / sigma**2 + prior @ centre)
        rest = y - X @ mean
        energy = rest @ rest / sigma**2 + (mean - centre) @ prior @ (mean - centre)
        half = 0.5 * (energy + np.linalg.slogdet(precision)[1])
        logs.append(-half - len(y) * np.log(sigma) - sigma / unit.sd)
        means.append(basis @ mean[1:])
        seconds.append(basis @ covariance[1:, 1:] @ basis + np.outer(means[-1], means[-1]))
    weight = np.exp(np.array(logs) - max(logs))
    weight /= weight.sum()
    return weight @ np.array(means), np.einsum("s,sij->ij", weight, np.array(seconds))


def test_the_pooled_moments_are_those_of_the_mixture_of_the_exact_posteriors(made, tree):
    means, seconds = zip(*(exact_moments(made, k) for k in range(IMPUTATIONS)), strict=True)
    mean = np.mean(means, axis=0)
    sd = np.sqrt(np.diag(np.mean(seconds, axis=0) - np.outer(mean, mean)))
    draws = np.asarray(made.natural(tree)["coefficients"]).reshape(-1, 2)
    # 6,400 nearly independent draws: √(1/6400) = 0.013 sd in the mean, 0.009 in the sd
    np.testing.assert_allclose((draws.mean(axis=0) - mean) / sd, 0, atol=0.06)
    np.testing.assert_allclose(draws.std(axis=0) / sd, 1, atol=0.05)
    alone = np.sqrt(np.diag(seconds[0] - np.outer(means[0], means[0])))
    assert alone[0] < 0.93 * sd[0]  # one imputation is too sure of the column with gaps


def test_equally_many_draws_are_given_each_imputation_and_the_verdict_knows(made, tree):
    numbers = np.asarray(tree["posterior"].coords["imputation"])
    assert np.bincount(numbers).tolist() == [len(numbers) // IMPUTATIONS] * IMPUTATIONS
    assert tree.attrs["imputations"] == IMPUTATIONS
    table = consortia.summary(tree)
    assert table["r_hat"].max() < 1.02
    worst = [one for one in table.verdict.checks if one.title == "How much information is missing?"]
    assert len(worst) == 1
    assert float(tree["diagnostics"]["intercept"].sel(statistic="r_hat")) < 1.02
    assert "drawn 4 times" in " ".join(made.notes)
    assert "odds" not in str(made.estimates(tree))


def test_all_imputations_have_one_specification_and_the_rows_that_are_complete_in_common(made):
    first, second = made.sites[:2]
    assert first.names == second.names
    assert len(set(first.digests) & set(second.digests)) == 0
    table = tables()["oslo"]
    known = ~np.isnan(table["x"]) & (np.arange(60) >= 2)
    one, other = first.site("oslo")["x"], second.site("oslo")["x"]
    np.testing.assert_array_equal(one[known], other[known])
    assert np.any(one != other)
    again = regression()
    np.testing.assert_array_equal(again.sites[1].site("oslo")["x"], other)
    assert np.any(regression(imputation_seed=1).sites[1].site("oslo")["x"] != other)


def test_without_gaps_there_is_one_data_set():
    full = {name: one | {"x": np.nan_to_num(one["x"], nan=50.0)} for name, one in tables().items()}
    found = consortia.regression("y ~ x", full, missing="impute")
    assert isinstance(found.sites, consortia.Sites)


def test_a_run_that_ended_before_the_last_imputation_is_resumed_to_the_same_draws(
    made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options = OPTIONS | {"rounds": 20}  # as many chains as above: the programs are those
    parts = (made.model, made.sites, consortia.few_rounds())
    whole = consortia.sample(*parts, store=tmp_path / "whole", **options)
    once, count = sampling.execute, iter(range(IMPUTATIONS))

    def dying(*given: Any, **more: Any) -> Any:
        if next(count) == 2:
            raise MemoryError("killed")
        return once(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(sampling, "execute", dying)
        with pytest.raises(MemoryError):
            consortia.sample(*parts, store=tmp_path / "cut", **options)
    assert consortia.open_run(tmp_path / "cut").attrs["state"] == "running"
    with refused(StoreError, argument="store", match="holds a run"):
        consortia.sample(*parts, store=tmp_path / "cut", **options)
    with refused(StoreError, argument="sites", match="several imputations"):
        consortia.resume(tmp_path / "cut", made.model, made.sites[0], consortia.few_rounds())
    resumed = consortia.resume(tmp_path / "cut", *parts, progress=False)
    assert resumed.attrs["state"] == "finished"
    for name in whole["posterior"].data_vars:
        np.testing.assert_array_equal(whole["posterior"][name], resumed["posterior"][name])
    numbers = resumed["posterior"].coords["imputation"]
    np.testing.assert_array_equal(numbers, whole["posterior"].coords["imputation"])
    assert np.unique(numbers).tolist() == list(range(IMPUTATIONS))
    stored = consortia.open_run(tmp_path / "cut")
    np.testing.assert_array_equal(stored["posterior"].coords["imputation"], numbers)


@pytest.mark.parametrize(
    ("more", "argument", "match"),
    [
        ({"imputations": 1}, "imputations", "imputations is 1"),
        ({"imputation_seed": -1}, "imputation_seed", "is -1"),
        ({"missing": "imput"}, "missing", "'imput'"),
    ],
)
def test_bad_arguments_are_refused(more: dict[str, Any], argument: str, match: str):
    with refused(argument=argument, match=match):
        regression(**more)


def test_what_needs_one_data_set_says_so(made, tree):
    exact = consortia.few_rounds()
    with refused(argument="missing", match="integrated out"):
        consortia.regression(
            "y ~ x + (1 | site)", tables(), family="gaussian", missing="impute", integrate=True
        )
    with refused(argument="tree", match=r"imputation\(0\)"):
        made.predictive_check(tree)
    with refused(argument="sites", match="one data set"):
        consortia.loo({"one": (tree, made.model, made.sites)})
    with refused(argument="sites", match="several imputations"):
        consortia.loo({"one": (tree, made.model, made.sites[0])})
    with refused(argument="keep"):
        consortia.sample(made.model, made.sites, exact, keep="moments", **OPTIONS)
    with refused(argument="sites", match="tuple"):
        consortia.sample(made.model, (made.sites[0],), exact, **OPTIONS)
    with pytest.raises(InputError, match="imputed"):
        consortia.sbc(made, exact, simulations=2)


def test_products_of_what_is_imputed_are_spoken_of():
    found = consortia.regression("y ~ x * arm", tables(), missing="impute", imputations=2)
    assert any(note.startswith("x:arm: the imputation ignores products") for note in found.notes)
