"""HMC with a surrogate's force looks along rays: tails and modes that no chain has visited."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from scipy import stats

import consortia
from consortia import surrogates
from consortia.algorithms.surrogate_hmc import SurrogateHMC, rays
from consortia.algorithms.surrogate_hmc.state import Hub, Rays
from consortia.core.prior import PriorScale
from consortia.diagnostics.verdict import Severity
from consortia.engines.flower.questions import place_of

ALARM = "mass lies beyond all draws: a tail or a mode that no chain has visited"
CENTRE, WIDTH = np.array([0.2, -0.3]), 1.2
"""Mean and standard deviation of the surrogate that is given, which is somewhat off."""


class Watched(SurrogateHMC):
    """Keeps the server's last state."""

    hubs: ClassVar[list[Hub]] = []

    def check_draws(self, hub: Hub) -> Any:
        self.hubs.append(hub)
        return super().check_draws(hub)


class Blind(SurrogateHMC):
    """Compiled anew, where there are no lines."""


OPTIONS: dict[str, Any] = {
    "surrogate": surrogates.Gaussian(CENTRE, WIDTH**2),
    "proposals_per_round": 16,
    "defensive_fraction": 0.0,
}


def log_likelihood(theta: Any, rows: Any) -> Any:
    """Two normal modes, or a t with three degrees of freedom, of the first parameter."""
    one, other = -(theta[0] ** 2) / 2, -((theta[0] - rows["away"]) ** 2) / 2
    tail = -2 * jnp.log1p(theta[0] ** 2 / 3)
    modes = jnp.logaddexp(one, rows["log_odds"] + other)
    return rows["real"] * jnp.where(rows["t"] > 0, tail, modes)


MODEL = consortia.Model(lambda theta: -(theta[1] ** 2) / 2, log_likelihood, jnp.full(2, 0.1))


def posterior(away: float = 0.0, log_odds: float = -1e6, *, t: bool = False) -> consortia.Sites:
    """A site that holds the posterior, and one that holds nothing."""
    row = {"away": away, "log_odds": log_odds, "t": float(t)}
    tables = [{name: np.full(1, one) for name, one in row.items()} | {"real": np.full(1, real)}
              for real in (1.0, 0.0)]  # fmt: skip
    return consortia.Sites.from_list(tables)


GAUSSIAN, TWO_MODES, T = posterior(), posterior(8.0, 0.0), posterior(t=True)


def sampled(
    sites: consortia.Sites, kind: type[SurrogateHMC] = Watched, **more: Any
) -> xarray.DataTree:
    lengths = {"rounds": 100, "warmup": 20} | more
    return consortia.sample(MODEL, sites, kind(**OPTIONS), chains=4, progress=False, **lengths)


def texts(tree: xarray.DataTree) -> list[str]:
    return [one["text"] for one in json.loads(tree.attrs.get("faults", "[]"))]


def severity(tree: xarray.DataTree) -> Severity:
    return consortia.summary(tree).verdict.severity


def assert_equal_draws(one: xarray.DataTree, other: xarray.DataTree) -> None:
    for group in ("posterior", "sample_stats"):
        for name, values in one[group].data_vars.items():
            np.testing.assert_array_equal(values, other[group][name])


# --- what is told, and what is not ---------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_of_a_gaussian_nothing_is_told(seed: int) -> None:
    for rounds in (4, 100):  # warnings are errors
        assert texts(sampled(GAUSSIAN, seed=seed, rounds=rounds)) == []


def test_a_mode_that_no_chain_has_visited_is_told_and_draws_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.warns(UserWarning, match=ALARM):
        tree = sampled(TWO_MODES)
    assert np.abs(np.asarray(tree["posterior"]["theta"])).max() < 5
    (text,) = texts(tree)
    share = float(text.split("centre ")[1].split("%")[0])
    assert 45 < share < 55  # half of the mass lies there
    assert severity(tree) is Severity.WARNING
    monkeypatch.setattr(rays, "MOST_LINES", 0)
    blind = sampled(TWO_MODES, Blind)  # and says nothing
    assert severity(blind) is Severity.GOOD
    assert_equal_draws(blind, tree)


def test_a_tail_that_no_chain_has_visited_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match=ALARM):
        tree = sampled(T, seed=1, warmup=0)
    reached = np.asarray(tree["posterior"]["theta"])[..., 0]
    missed = stats.t.cdf(reached.min(), 3) + stats.t.sf(reached.max(), 3)
    (text,) = texts(tree)
    share = float(text.split("centre ")[1].split("%")[0]) / 100
    # A line ends after nine standard deviations; in between are 57 points.
    assert share == pytest.approx(missed, rel=0.15)
    assert severity(tree) is not Severity.GOOD
    monkeypatch.setattr(rays, "MOST_BEYOND", 1.0)
    assert severity(sampled(T, seed=1, warmup=0)) is Severity.GOOD  # as before


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_of_a_logistic_regression_nothing_is_told(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = []
    for rows in (8, 15, 30):
        x = rng.normal(rng.normal(size=3), 1.0, size=(rows, 3))
        y = rng.uniform(size=rows) < 1 / (1 + np.exp(-x @ rng.normal(size=3)))
        tables.append({"x": x, "y": y.astype(np.int32)})
    model = consortia.models.logistic_regression(3, intercept=False)
    for more in ({}, {"proposals_per_round": 16}):
        tree = consortia.sample(
            model, consortia.Sites.from_list(tables), consortia.surrogate_hmc(**more),
            rounds=300, warmup=300, chains=4, seed=seed, progress=False,
        )  # fmt: skip
        assert not [text for text in texts(tree) if "on a line" in text]


# --- the parts of it -----------------------------------------------------------------------------


def test_lines_stay_where_they_are_and_draws_lie_on_them_as_in_a_regression() -> None:
    tree = sampled(GAUSSIAN)
    hub = jax.tree.map(lambda leaf: np.asarray(leaf, float), Watched.hubs[-1])
    assert np.all(np.abs(hub.root[:, 0, 0] / WIDTH - 1.04) > 0.02)  # the warm-up has changed it
    lines = hub.rays
    for chain in range(4):
        mean, root = hub.mean[chain], hub.root[chain]
        np.testing.assert_allclose(mean + root @ lines.centre[chain], CENTRE, atol=1e-5)
        directions = lines.towards[chain] @ root.T
        scaled = directions / (1.04 * WIDTH)
        np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose(scaled[:2], np.eye(2), atol=1e-5)
        points = CENTRE + lines.steps[chain][:, None, None] * directions
        height = -(points**2).sum(axis=-1) / 2 + (CENTRE**2).sum() / 2
        np.testing.assert_allclose(lines.rises[chain], -height.T, rtol=1e-5, atol=1e-4)
        # (v'Λ(θ - c)) / (v'Λv), with the precision of the last surrogate
        across = np.linalg.solve(root @ root.T, directions.T)
        draws = np.asarray(tree["posterior"]["theta"], float)[chain]
        along = (draws - CENTRE) @ across / (directions.T * across).sum(axis=0)
        middle = lines.towards[chain] @ lines.centre[chain]
        squares = (lines.towards[chain] ** 2).sum(axis=1)
        for reached, extreme in ((lines.lowest, along.min(0)), (lines.highest, along.max(0))):
            np.testing.assert_allclose((reached[chain] - middle) / squares, extreme, atol=1e-4)
    assert len(np.unique(lines.steps)) == 4 * 12 + 2  # chains share the work; all see both ends


def by_hand(lowest: list[float], highest: list[float], rises: np.ndarray) -> Rays:
    """One line in two chains, in coordinates of half the size: a step of t is 2t."""
    steps = np.linspace(-6, 6, 60)
    return Rays(
        towards=np.full((2, 1, 1), 2.0),
        centre=np.full((2, 1), 1.0),
        steps=np.stack([steps, steps]),
        rises=np.stack([rises[None], rises[None]]),
        lowest=2.0 + 4.0 * np.array(lowest)[:, None],
        highest=2.0 + 4.0 * np.array(highest)[:, None],
    )  # type: ignore[arg-type]


def test_the_mass_beyond_is_that_beyond_all_chains() -> None:
    steps = np.linspace(-6, 6, 60)
    gaussian = by_hand([-1.0, -5.9], [2.0, 0.0], steps**2 / 2)
    # Linear between 60 points, in logarithms.
    assert rays.mass_beyond(gaussian) == pytest.approx(stats.norm.sf(2.0), rel=0.05)
    bounded = np.where(steps > 1.9, np.inf, np.where(steps < -5, np.nan, steps**2 / 2))
    assert rays.mass_beyond(by_hand([-5.9, -1.0], [0.0, 2.0], bounded)) < 1e-4
    nowhere = by_hand([-1.0, -5.9], [2.0, 0.0], np.full(60, np.nan))
    assert rays.mass_beyond(nowhere) < 1e-4
    alone = Rays(*(leaf[0] for leaf in gaussian))  # of one chain, which has no axis
    expected = stats.norm.sf(1.0) + stats.norm.sf(2.0)
    assert rays.mass_beyond(alone) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("widest", "farthest"), [(1.0, 4.5), (1.2, 5.4), (1.9, 6.0)])
def test_a_site_counts_points_on_rays_no_farther_than_proposals_reach(
    widest: float, farthest: float
) -> None:
    """In standard deviations of the surrogate; the middle of the points is its mean."""
    rng = np.random.default_rng(0)
    mean, root = rng.normal(size=5), np.linalg.cholesky(np.cov(rng.normal(size=(5, 40))))
    given = jnp.asarray(mean), jnp.asarray(root)
    points = rays.points_on(rays.drawn_through(*given, jnp.asarray(0.4), widest), *given)
    assert len(points) == 1 + 15 * 14
    sd = np.sqrt(np.diag(root @ root.T))
    inbox = np.stack([points, points])  # of two chains
    place = place_of(
        rays.evaluation(inbox), 2, PriorScale(mean, sd), np.stack([mean, mean]), np.ones(2)
    )
    assert place.points == 2 * len(points)
    assert place.farthest == pytest.approx(farthest, rel=1e-5)
    assert place.moved < 1e-5


def test_many_parameters_have_no_more_lines_than_are_allowed() -> None:
    for dimension, lines in ((1, 3), (5, 15), (40, 32)):
        given = jnp.zeros(dimension), jnp.eye(dimension), jnp.zeros(())
        through = jax.eval_shape(partial(rays.drawn_through, widest=1.0), *given)
        assert through.towards.shape == (lines, dimension)
        assert through.rises.shape == (lines, 14)


# --- runs ----------------------------------------------------------------------------------------


def test_a_resumed_run_tells_what_one_without_a_stop_tells(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=ALARM):
        whole = sampled(TWO_MODES)
    with pytest.warns(UserWarning, match=ALARM):
        sampled(TWO_MODES, rounds=40, store=tmp_path / "run")
    with pytest.warns(UserWarning, match=ALARM):
        resumed = consortia.resume(
            tmp_path / "run", MODEL, TWO_MODES, Watched(**OPTIONS), rounds=100, progress=False
        )
    assert texts(resumed) == texts(whole)
    assert_equal_draws(resumed, whole)


def test_a_surrogate_far_too_wide_makes_no_tail() -> None:
    """Its lines have no point near the posterior: they are not judged."""
    model = consortia.Model(
        lambda p: -(p @ p) / 200.0,
        lambda p, rows: rows["weight"] * -jnp.sum((p - 0.3) ** 2) / 2 / 0.05**2,
        jnp.zeros(1),
    )
    rows = consortia.Sites.from_list([{"weight": np.ones(1)}, {"weight": np.zeros(1)}])
    wide = consortia.surrogates.Gaussian(np.zeros(1), 1.0)
    method = consortia.surrogate_hmc(surrogate=wide)
    tree = consortia.sample(
        model, rows, method, rounds=400, warmup=400, chains=4, seed=0, progress=False
    )
    assert json.loads(tree.attrs.get("faults", "[]")) == []
    assert float(tree["posterior"]["theta"].std()) == pytest.approx(0.05, rel=0.1)
