"""An earlier posterior as a prior: two halves one after the other, against both at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import consortia
from consortia.models.regression.construction import _read_sites, assembled, question_of
from consortia.models.regression.earlier import Earlier, _fitted
from consortia.models.regression.registration import Registration
from tests.refusals import refused

DRAWS = 20_000
QUANTILES = (0.025, 0.25, 0.5, 0.75, 0.975)


def tables(seed: int, count: int, rows: int) -> dict[str, dict[str, np.ndarray]]:
    """Return sites with responses of every kind that the formulas below take."""
    rng, found = np.random.default_rng(seed), {}
    for place in range(count):
        x, z = rng.normal(1, 2, rows), rng.integers(0, 2, rows)
        eta = 0.3 * x - 0.5 * z + 0.3 * rng.normal()
        time = rng.exponential(np.exp(-eta)) + 1e-3
        found[f"s{place}"] = {
            "x": x,
            "z": z,
            "y": eta + rng.normal(size=rows),
            "died": rng.binomial(1, 1 / (1 + np.exp(-eta))),
            "n": rng.poisson(np.exp(eta)),
            "over": rng.poisson(np.exp(eta) * rng.gamma(2, 0.5, rows)),
            "cost": rng.gamma(2.0, np.exp(eta) / 2),
            "grade": np.digitize(eta + rng.logistic(size=rows), [-1.0, 1.0]).astype(str),
            "time": np.minimum(time, 3.0),
            "seen": (time < 3.0).astype(int),
        }
    return found


REGRESSIONS: list[tuple[str, dict[str, Any]]] = [
    ("y ~ x + z", {"family": "gaussian"}),
    ("died ~ x + z", {"family": "bernoulli"}),
    ("died ~ x * z", {"family": "bernoulli(probit)"}),
    ("n ~ x + z", {"family": "poisson"}),
    ("over ~ x + z", {"family": "negative_binomial"}),
    ("cost ~ x + z", {"family": "gamma"}),
    ("grade ~ x + z", {"family": "ordinal", "levels": {"grade": ["0", "1", "2"]}}),
    ("Surv(time, seen) ~ x + z", {"family": "weibull"}),
    ("Surv(time, seen) ~ x + z", {"family": "cox"}),
    ("died ~ x + z + (1 | site)", {"family": "bernoulli", "integrate": True}),
]


def sampled(made: Any, size: int, seed: int) -> Any:
    method = consortia.few_rounds(effective_size=size)
    given = {"progress": False, "metadata": made.metadata}
    return consortia.sample(made.model, made.sites, method, seed=seed, **given)


def flat(made: Any, tree: Any) -> np.ndarray:
    """Return draws in the units of the columns."""
    natural, parts = made.natural(tree), []
    for name in sorted(natural.data_vars):
        values = np.asarray(natural[name], float)
        values = values.reshape(values.shape[0] * values.shape[1], -1)
        parts.append(values)
    return np.concatenate(parts, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(("formula", "more"), REGRESSIONS)
def test_two_halves_give_what_both_at_once_give(formula: str, more: dict[str, Any]) -> None:
    count = 12 if "site" in formula else 4
    every = tables(3, count, 100)
    names = list(every)
    halves = [{n: every[n] for n in part} for part in (names[: count // 2], names[count // 2 :])]
    first = consortia.regression(formula, halves[0], **more)
    earlier = sampled(first, DRAWS, 1)
    second = consortia.regression(formula, halves[1], prior_from=earlier, **more)
    check_equal(flat(second, sampled(second, DRAWS, 2)), from_the_start(every, first, more))


def from_the_start(every: Any, first: Any, more: dict[str, Any]) -> np.ndarray:
    """Return draws of all sites, with the prior of a first regression, in whose units it is."""
    question = question_of(first.specification.question.parsed.text, **more)
    read = _read_sites(question, every, None, None, None)
    whole = assembled(read, None, None, registered=Registration.of(first.specification))
    return np.concatenate([flat(whole, sampled(whole, DRAWS, seed)) for seed in (3, 7)])


def check_equal(found: np.ndarray, wanted: np.ndarray) -> None:
    """Compare means and quantiles, in standard deviations."""
    sd = wanted.std(axis=0)
    means = np.abs(found.mean(axis=0) - wanted.mean(axis=0)) / sd
    ends = np.abs(np.quantile(found, QUANTILES, axis=0) - np.quantile(wanted, QUANTILES, axis=0))
    assert means.max() < 0.05
    assert (ends / sd).max() < 0.1


def test_a_long_tail_is_followed() -> None:
    # of a logarithm of a standard deviation between few sites
    rng = np.random.default_rng(4)
    points = rng.normal(size=(10_000, 2))
    points[:, 1] = 0.3 * points[:, 0] + np.log(rng.gamma(1.0, size=10_000))
    fitted = Earlier("a run", 10_000, None, ("a", "b"), *_fitted(points))
    drawn, sd = fitted.draw(rng, 200_000), points.std(axis=0)
    apart = np.quantile(drawn, QUANTILES, axis=0) - np.quantile(points, QUANTILES, axis=0)
    assert np.abs(apart / sd).max() < 0.05
    np.testing.assert_allclose(drawn.mean(axis=0), points.mean(axis=0), atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("which", [1, 4, 8, 9])
def test_a_site_that_comes_later_is_as_if_it_had_been_there(which: int) -> None:
    formula, more = REGRESSIONS[which]
    every = tables(4, 8 if "site" in formula else 4, 100)
    *names, late = every
    first = consortia.regression(formula, {name: every[name] for name in names}, **more)
    earlier = sampled(first, DRAWS, 1)
    # its rows alone answer
    second = consortia.regression(formula, {late: every[late]}, prior_from=earlier, **more)
    assert second.specification.sites == (late,)
    check_equal(flat(second, sampled(second, DRAWS, 2)), from_the_start(every, first, more))


def small(prior_from: Any = None, **more: Any) -> Any:
    formula, given = "died ~ x + z", {"family": "bernoulli", "prior_from": prior_from}
    return consortia.regression(formula, tables(5, 3, 80), **(given | more))


def test_it_is_named_and_stands_beside_the_posterior() -> None:
    tree = sampled(small(), 1000, 1)
    later = small(tree)
    spread = np.asarray(later.natural(tree)["coefficients"]).reshape(-1, 2)
    for name, values in zip(later.names, spread.T, strict=True):
        prior = later.priors[name]
        np.testing.assert_allclose(prior.arguments, (values.mean(), values.std()), rtol=0.1)
    assert "the prior is the posterior of died ~ x + z" in later.metadata.settings["notes"][-1]
    # three sites twice: the spread of twice as many rows
    again = np.asarray(later.natural(sampled(later, 1000, 2))["coefficients"]).reshape(-1, 2)
    np.testing.assert_allclose(again.std(axis=0) * np.sqrt(2), spread.std(axis=0), rtol=0.12)


def test_a_weight_counts_rows_by_parts_and_a_robust_prior_gives_way() -> None:
    tree, rng = sampled(small(), 1000, 1), np.random.default_rng(0)
    full, half = small(tree), small({"run": tree, "weight": 0.5})
    robust, plain = small({"run": tree, "robust": 0.2}), small()
    at = {
        name: 0.3 * rng.normal(size=(50, *np.shape(values)))
        for name, values in plain.density.start.items()
    }
    # the plain prior in the units of the earlier run
    words = half.density._log_prior_in_words(at)
    own = full.density.log_prior(at)
    np.testing.assert_allclose(half.density.log_prior(at), 0.5 * own + 0.5 * words)
    wanted = np.logaddexp(np.log(0.8) + own, np.log(0.2) + words)
    np.testing.assert_allclose(robust.density.log_prior(at), wanted)
    drawn = full.density.draw(rng, 4000)["coefficients"]
    found = np.asarray(full.density.earlier.shares @ full.density.earlier.centres)[:2]
    np.testing.assert_allclose(drawn.mean(axis=0), found, atol=0.02)


@pytest.mark.parametrize(
    ("formula", "given", "argument", "match"),
    [
        ("died ~ x", {}, "prior_from", "'died ~ x . z'"),
        ("died ~ x + z", {"weight": 0.5, "robust": 0.1}, "prior_from", "not both"),
        ("died ~ x + z", {"wait": 0.5}, "prior_from", "'wait'"),
    ],
)
def test_what_cannot_be_a_prior_is_refused(
    formula: str, given: dict[str, float], argument: str, match: str
) -> None:
    tree = sampled(small(), 200, 1)
    with refused(argument=argument, match=match):
        consortia.regression(
            formula, tables(5, 3, 80), family="bernoulli", prior_from={"run": tree, **given}
        )
