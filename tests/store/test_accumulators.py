"""What is kept in the place of all draws equals what all draws give, and survives a cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.errors import StoreError
from consortia.run import loop
from consortia.store import accumulators
from tests.refusals import refused

OPTIONS: dict[str, Any] = {
    "rounds": 301,
    "chains": 2,
    "warmup": 3,
    "thin": 2,
    "seed": 4,
    "progress": False,
}


@pytest.fixture(scope="module")
def model() -> consortia.Model:
    return consortia.models.logistic_regression(2, intercept=True)


@pytest.fixture(scope="module")
def sites() -> consortia.Sites:
    rng = np.random.default_rng(3)
    shards = [
        {
            "x": rng.normal(size=(rows, 2)).astype(np.float32),
            "y": rng.integers(0, 2, rows).astype(np.int32),
        }
        for rows in (4, 9)
    ]
    return consortia.Sites.from_list(shards)


STEPS = consortia.schedules.polynomial(0.1, 20.0, 0.4)
METHODS = {"constant": consortia.fa_ld(0.05, 2), "varying": consortia.fa_ld(STEPS, 2)}


@pytest.fixture(params=METHODS)
def method(request: Any) -> Any:
    return METHODS[request.param]


def flat(tree: Any) -> np.ndarray:
    """(chains, draws, d)."""
    posterior = tree["posterior"]
    parts = [np.asarray(posterior[name], np.float64) for name in ("coefficients", "intercept")]
    return np.concatenate([p.reshape(*p.shape[:2], -1) for p in parts], axis=-1)


def weights_of(tree: Any) -> np.ndarray:
    if "sample_stats" not in tree.children:
        return np.ones(tree["posterior"].sizes["draw"])
    return np.asarray(tree["sample_stats"]["weight"], np.float64)


def test_moments_are_those_of_all_draws_weighted_where_the_step_varies(
    model: Any, sites: Any, method: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(accumulators, "BLOCK_BYTES", 8 * 2 * 3 * 16)  # 150 draws in blocks of 16
    whole = consortia.sample(model, sites, method, **OPTIONS)
    keep = consortia.keep_moments(covariance="full", draws=40)
    tree = consortia.sample(model, sites, method, keep=keep, **OPTIONS)
    draws, weights = flat(whole), weights_of(whole)
    moments = tree["moments"]
    assert moments.attrs["draws"] == draws.shape[1] == 150
    for chain in range(2):
        mean = np.average(draws[chain], axis=0, weights=weights)
        away = draws[chain] - mean
        covariance = (weights[:, None] * away).T @ away / weights.sum() * 150 / 149
        found = np.append(moments["coefficients_mean"][chain], moments["intercept_mean"][chain])
        # Double precision on numbers of order one: some units in the last place a block.
        np.testing.assert_allclose(found, mean, rtol=0, atol=1e-13)
        np.testing.assert_allclose(moments["covariance"][chain], covariance, rtol=0, atol=1e-13)
        spread = np.diag(covariance)[:2]
        np.testing.assert_allclose(moments["coefficients_variance"][chain], spread, atol=1e-13)
    if weights[0] == weights[-1]:
        np.testing.assert_allclose(
            moments["coefficients_variance"], draws[:, :, :2].var(axis=1, ddof=1), atol=1e-13
        )

    # 150 draws, at most 40: every fourth.
    places = np.asarray(tree["posterior"]["draw"])
    np.testing.assert_array_equal(places, np.arange(3, 150, 4))
    np.testing.assert_array_equal(flat(tree), draws[:, places])
    kept = np.broadcast_to(weights_of(tree), (2, len(places)))
    np.testing.assert_array_equal(kept, np.broadcast_to(weights[places], (2, len(places))))


def test_predictions_are_those_of_all_draws(model: Any, sites: Any, method: Any) -> None:
    rows = sites.pooled()
    whole = consortia.sample(model, sites, method, **OPTIONS)
    keep = consortia.keep_predictions(rows)
    tree = consortia.sample(model, sites, method, keep=keep, **OPTIONS)
    assert "posterior" not in tree.children
    # Single precision: 300 terms are added up, with an error of 6e-8 of the sum each at most; the
    # sum of the mean is compensated.
    expected = consortia.predict(whole, model, rows)
    np.testing.assert_allclose(tree["predictions"]["mean"], expected, rtol=2e-6)
    density = consortia.diagnostics.predictive.log_predictive_density(whole, model, rows)
    np.testing.assert_allclose(tree["predictions"]["log_density"], density, atol=300 * 6e-8)
    assert (tree["predictions"]["sd"] > 0.01).all()


class Cut(Exception):  # noqa: N818 - no error, a cut
    """Stands for a kill."""


@pytest.mark.parametrize("kind", ["moments", "predictions"])
def test_what_is_kept_survives_a_cut_bit_by_bit(
    kind: str, model: Any, sites: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    keep: Any = consortia.keep_moments(covariance="full", draws=16)
    if kind == "predictions":
        keep = consortia.keep_predictions(sites.pooled())
    monkeypatch.setattr(accumulators, "BLOCK_BYTES", 8 * 2 * 3 * 16)
    method = METHODS["varying"]
    whole = consortia.sample(model, sites, method, keep=keep, **OPTIONS)
    path, call = tmp_path / "run", loop.RunLoop._call

    def cut(self: Any, end: int, thin: int) -> None:
        if self.done >= 100:
            raise Cut
        call(self, min(end, self.done + 7), thin)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "SECONDS_PER_CHUNK", -1.0)
        patch.setattr(loop.RunLoop, "_call", cut)
        with pytest.raises(Cut):
            consortia.sample(model, sites, method, keep=keep, store=path, **OPTIONS)
    if kind == "predictions":
        with refused(argument="keep", match="keep_predictions"):
            consortia.resume(path, model, sites, method, progress=False)
        other = consortia.keep_predictions(sites.shards[0])
        with refused(StoreError, argument="keep"):
            consortia.resume(path, model, sites, method, keep=other, progress=False)
    options: dict[str, Any] = {"keep": keep} if kind == "predictions" else {}
    tree = consortia.resume(path, model, sites, method, progress=False, **options)
    assert set(tree.children) == set(whole.children)
    for group in set(tree.children) - {"diagnostics"}:
        for name, array in whole[group].data_vars.items():
            np.testing.assert_array_equal(tree[group][name], array, err_msg=str(name))


def test_a_rule_that_needs_all_draws_is_refused(model: Any, sites: Any) -> None:
    with refused(argument="stop", match="keep='draws'"):
        consortia.sample(
            model,
            sites,
            METHODS["constant"],
            keep="moments",
            stop=consortia.stop_when(rhat=1.01),
            **OPTIONS,
        )
    with refused(argument="keep", match="'moments'"):
        consortia.sample(model, sites, METHODS["constant"], keep="means", **OPTIONS)
