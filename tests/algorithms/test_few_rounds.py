"""Independence Metropolis and its proposals have their closed forms; runs end by themselves."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, special, stats
from sparse import sparse
from statistical import bends, regressions

import consortia
from consortia.algorithms.few_rounds import algorithm
from consortia.algorithms.few_rounds.site_functions import FUNCTIONS
from consortia.core.contract import Site
from consortia.core.prior import PriorScale
from consortia.core.queries import Known, Query
from consortia.core.target import Target
from consortia.dynamics.independence import Chains, metropolis_chains
from consortia.dynamics.rank_statistics import rhat_and_ess_of
from consortia.engines import programs
from consortia.engines.conversing import LocalPanel
from consortia.engines.panel import Panel
from consortia.errors import StoreError, WarmupError
from consortia.surrogates import local_fits
from consortia.surrogates.proposals import batches, learning, mixture
from consortia.surrogates.proposals import proposal as proposals
from consortia.surrogates.proposals.flow import Flow, fit_flow
from consortia.surrogates.proposals.learning import Learnt
from consortia.surrogates.proposals.memory import Memory
from consortia.surrogates.proposals.mixture import Mixture
from consortia.surrogates.proposals.proposal import Proposal, effective_share
from consortia.surrogates.proposals.rays import Profile, along_lines, lines_through, points_of
from consortia.surrogates.proposals.regression import Surrogate, fit_surrogate
from consortia.surrogates.proposals.warp import Coordinates, Plain, Warp, fit_warp
from tests.refusals import refused

DIMENSION = 5
FREEDOM = mixture.freedom(DIMENSION)
Heights = Callable[[np.ndarray], np.ndarray]


# --- a t on a Gaussian target --------------------------------------------------------------------


class Exact:
    """What independence Metropolis does with t(0, I) on N(0, I), by integrals over |ζ|²."""

    def __init__(self) -> None:
        self.squares = np.linspace(1e-6, 80, 20_001)
        self.target = stats.chi2(DIMENSION).pdf(self.squares)
        law = stats.f(DIMENSION, FREEDOM)  # of |ζ|² by the dimension
        self.ratio = self.target / (law.pdf(self.squares / DIMENSION) / DIMENSION)
        order = np.argsort(self.ratio)
        step = self.squares[1] - self.squares[0]
        below_target = np.cumsum(self.target[order]) * step
        proposal = self.target / self.ratio
        # Beyond the grid the ratio is smaller still.
        below_proposal = np.cumsum(proposal[order]) * step + law.sf(80 / DIMENSION)
        accepted = (below_target / self.ratio[order]) + (1 - below_proposal)
        self.accepted = np.empty_like(accepted)
        self.accepted[order] = np.minimum(accepted, 1)

    def mean(self, values: np.ndarray) -> float:
        """Return the expectation over the target."""
        return float(integrate.trapezoid(self.target * values, self.squares))


EXACT = Exact()
EXPECTED = {
    "acceptance": EXACT.mean(EXACT.accepted),
    "share": 1 / EXACT.mean(EXACT.ratio),
    # The place is odd and the ratio even, so that only a rejection keeps the two alike.
    "correlation": EXACT.mean(EXACT.squares * (1 - EXACT.accepted)) / DIMENSION,
}
STANDARD = mixture.mixture_of([1.0], [np.zeros(DIMENSION)], [np.eye(DIMENSION)])
RUNS = 64


def gaussian(points: np.ndarray) -> np.ndarray:
    return -(points**2).sum(axis=1) / 2


def chains_of(
    shift: float, reverse: bool = False, seed: int = 5
) -> tuple[Chains, np.ndarray, np.ndarray]:
    """Return many chains, where they began, and the weights; ``shift`` moves the target."""
    rng = np.random.default_rng(seed)
    points = mixture.draw(STANDARD, rng, RUNS * 2048)
    starts = rng.standard_normal((RUNS, DIMENSION))
    starts[:, 0] += shift
    if reverse:
        starts[1:] = starts[:0:-1]
    moved = np.eye(DIMENSION)[0] * shift

    def weighted(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return gaussian(at - moved), gaussian(at - moved) - mixture.log_density(STANDARD, at)

    heights, logs = weighted(points)
    begun = (starts, *weighted(starts))
    return metropolis_chains(points, heights, logs, begun, rng), starts, logs


def z_scores(shift: float = 0.0) -> dict[str, float]:
    """Standard errors between values of independent chains and what is expected."""
    chains, _, logs = chains_of(shift)
    first = chains.draws[:, :, 0]
    values = {
        "acceptance": chains.accepted.mean(axis=1),
        "share": np.array([effective_share(part) for part in logs.reshape(RUNS, -1)]),
        "correlation": (first[:, 1:] * first[:, :-1]).mean(axis=1) / (first**2).mean(axis=1),
    }
    return {
        name: float((part.mean() - EXPECTED[name]) / (part.std() / math.sqrt(RUNS)))
        for name, part in values.items()
    }


def test_a_t_on_a_gaussian_has_its_closed_acceptance_share_and_autocorrelation() -> None:
    # Three gates of 4.5 standard errors: a false alarm in 50,000 seeds.
    found = z_scores()
    assert max(abs(value) for value in found.values()) < 4.5, found
    # Negative control: a target that is moved by two fifths of a standard deviation.
    control = z_scores(shift=0.4)
    assert max(abs(value) for value in control.values()) > 4.5, control


def test_its_draws_are_those_of_the_gaussian_with_their_heights() -> None:
    chains, _, _ = chains_of(0.0)
    np.testing.assert_array_equal(
        chains.heights, gaussian(chains.draws.reshape(-1, DIMENSION)).reshape(RUNS, -1)
    )
    squares = (chains.draws**2).sum(axis=2).mean(axis=1)
    assert abs(squares.mean() - DIMENSION) < 4.5 * squares.std() / math.sqrt(RUNS)


def test_a_chain_depends_on_its_own_start_and_proposals_alone() -> None:
    one, starts, _ = chains_of(0.0)
    other, others, _ = chains_of(0.0, reverse=True)
    assert not np.array_equal(starts, others)
    np.testing.assert_array_equal(one.draws[0], other.draws[0])
    assert not np.array_equal(one.draws, other.draws)


# --- mixtures ------------------------------------------------------------------------------------


def of_two(d: int) -> Mixture:
    """Two unlike components, correlated."""
    rng = np.random.default_rng(d)
    root = np.tril(rng.normal(size=(d, d)) / 3, -1) + np.diag(rng.uniform(0.5, 1.5, d))
    centres = [np.full(d, -1.0), np.full(d, 1.5)]
    return mixture.mixture_of([0.3, 0.7], centres, [root @ root.T, np.eye(d) / 4])


def test_mixtures_are_normalised_and_their_draws_have_their_density() -> None:
    family = of_two(1)
    total = integrate.quad(
        lambda x: math.exp(mixture.log_density(family, np.array([[x]]))[0]),
        -np.inf, np.inf, limit=400,
    )  # fmt: skip
    assert abs(total[0] - 1) < 1e-6
    draws = mixture.draw(family, np.random.default_rng(1), 20_000)[:, 0]

    def below(x: np.ndarray) -> np.ndarray:
        parts = zip(family.shares, family.centres[:, 0], family.roots[:, 0, 0], strict=True)
        return sum(
            share * stats.t(mixture.freedom(1), at, root).cdf(x) for share, at, root in parts
        )

    assert stats.kstest(draws, below).pvalue > 1e-5
    # In several dimensions: densities of scipy, and the expectation of a ratio of densities is 1.
    family, wide = of_two(3), mixture.mixture_of([1.0], [np.zeros(3)], [9 * np.eye(3)])
    points = mixture.draw(wide, np.random.default_rng(2), 40_000)
    parts = zip(family.shares, family.centres, family.roots, strict=True)
    expected = sum(
        share * stats.multivariate_t(at, root @ root.T, mixture.freedom(3)).pdf(points)
        for share, at, root in parts
    )
    density = mixture.log_density(family, points)
    np.testing.assert_allclose(density, np.log(expected), atol=1e-8)
    ratios = np.exp(density - mixture.log_density(wide, points))
    assert abs(ratios.mean() - 1) < 4.5 * ratios.std() / 200


def test_the_points_at_a_site_are_those_of_the_server() -> None:
    rng = np.random.default_rng(3)
    family, words = of_two(4), np.array([3, 0, 5], np.uint32)
    surrogate = spoiled_quadratic(4)
    made = proposals.clipped(surrogate, family, Plain(), rng)
    points, _, accepted = made.sample(words, rng, 9000)
    assert len(points) == 9000
    assert accepted.max() > 2 * mixture.BLOCK
    np.testing.assert_array_equal(mixture.envelope_points(family, words, accepted), points)
    none = mixture.envelope_points(family, words, accepted[:0])
    assert none.shape == (0, 4)


@pytest.mark.parametrize("double", [False, True])
def test_the_points_of_a_message_are_those_of_the_server(double: bool) -> None:
    with jax.enable_x64(double):
        target = Target(MODEL, MODEL.init)
        server = algorithm.Server(
            Known(target, np.zeros(3), np.array([4, 6]), 2, 10, 2**40 + 7),
            1000,
            np.random.default_rng(0),
            np.zeros(3),
            Memory(np.zeros((0, 3))),
        )
        covariance = np.diag([1.0, 2.0, 0.1])
        guesses = [np.zeros(3), np.ones(3)], [covariance, 2 * covariance]
        sent = algorithm._exploration(server, *guesses)
        query = server.query("log_densities", {"reference": np.zeros(3)} | dict(sent.arrays), "")
        complete = FUNCTIONS["log_densities"].complete(query.arrays)
        rays = points_of([*sent.lines, *sent.looks], sent.centre)
        assert complete["points"].dtype == target.dtype
        assert len(complete["points"]) == 1000
        wanted = np.concatenate([sent.points, rays]).astype(target.dtype)
        np.testing.assert_array_equal(complete["points"][: len(wanted)], wanted)
        np.testing.assert_allclose(
            sent.proposal.log_density(sent.points), sent.log_density, atol=1e-3
        )


def test_what_the_server_has_at_hand_is_what_the_sites_would_draw(monkeypatch) -> None:
    seen = []
    asked = LocalPanel.ask

    def ask(panel: LocalPanel, query: Query, number: int = 0) -> Any:
        if "accepted" in query.arrays:
            drawn = FUNCTIONS[query.function].complete(query.arrays)
            assert drawn.keys() == panel.completed(query).keys()
            for name, values in panel.completed(query).items():
                np.testing.assert_array_equal(values, drawn[name])
                assert values.dtype == drawn[name].dtype
            seen.append(query)
        return asked(panel, query, number)

    monkeypatch.setattr(LocalPanel, "ask", ask)
    sampled(MODEL, EMPTY, consortia.few_rounds(effective_size=200.0))
    assert len(seen) == 2
    assert all(query.completed is not None for query in seen)


def test_no_density_is_computed_before_the_points_are_weighted() -> None:
    counts: list[int] = []

    def density(points: np.ndarray) -> np.ndarray:
        counts.append(len(points))
        return np.zeros(len(points))

    memory = Memory(np.zeros((0, 1)))
    for size in (3, 2):
        memory.add(np.zeros((size, 1)), np.zeros(size), size, density)
    assert not counts
    weighted = memory.weighted()
    assert sorted(counts) == [2, 2, 3, 3]  # of each message, under both
    assert memory.weighted() is weighted
    memory.add(np.zeros((1, 1)), np.zeros(1), 1, density)
    assert len(memory.weighted().points) == 6
    assert len(counts) == 9


# --- coordinates ---------------------------------------------------------------------------------


def log_gammas(points: np.ndarray) -> np.ndarray:
    """Log-density of two logarithms of Gamma variables, of opposite tails, and a normal one."""
    first, second, third = points.T
    return 0.7 * first - np.exp(first) - second - np.exp(-second) - (third - first / 2) ** 2 / 2


def profiles_of(heights: Heights, centre: np.ndarray, covariance: np.ndarray) -> list[Profile]:
    lines = lines_through(covariance, 2 * len(centre), [])
    values = heights(points_of(lines, centre))
    return [Profile(line, values[-1] - own) for line, own in along_lines(lines, values)]


def warp() -> Warp:
    centre, covariance = np.array([-0.4, 0.0, -0.2]), np.diag([2.0, 2.0, 1.5]) + 0.5
    found = fit_warp(centre, covariance, profiles_of(log_gammas, centre, covariance))
    assert found is not None
    assert sum(axis is not None for axis in found.axes) >= 2
    return found


def flow() -> Flow:
    rng = np.random.default_rng(8)
    points = rng.normal(size=(2000, 3))
    points[:, 1] += points[:, 0] ** 2
    points[:, 2] *= np.exp(points[:, 0] / 2)
    return fit_flow(points, np.full(2000, 1 / 2000))


@pytest.mark.parametrize("made", [warp, flow])
def test_coordinates_are_inverted_and_their_volumes_are_those_of_differences(
    made: Callable[[], Coordinates],
) -> None:
    coordinates = made()
    z = np.random.default_rng(9).normal(size=(200, 3)) * 1.7
    z[:20] *= 4  # beyond the knots
    points = coordinates.positions(z)
    back, volume = coordinates.white(points)
    np.testing.assert_allclose(back, z, rtol=1e-6, atol=1e-6)
    step = 1e-5 * np.eye(3)
    columns = [
        (coordinates.positions(z + one) - coordinates.positions(z - one)) / 2e-5 for one in step
    ]
    expected = -np.linalg.slogdet(np.stack(columns, axis=2))[1]
    # A difference over a knot, or over a bound of the flow, is that of neither side.
    apart = np.abs(volume - expected)
    assert np.quantile(apart, 0.95) < 1e-4
    assert apart.max() < 0.05


def test_symmetric_lines_are_not_warped() -> None:
    assert fit_warp(np.zeros(3), np.eye(3), profiles_of(gaussian, np.zeros(3), np.eye(3))) is None


def test_the_mass_that_an_exact_proposal_misses_is_0_and_of_a_narrow_one_is_not() -> None:
    lines = lines_through(np.eye(2), 4, [])
    heights = gaussian(points_of(lines, np.zeros(2)))
    for line, own in along_lines(lines, heights):
        profile = Profile(line, heights[-1] - own)
        assert profile.missed(np.zeros(len(own)))[0] == 0
        narrow = own - own * 4 - math.log(2)  # half as wide: log π/q
        # Beyond 1.12 sds it is above 1.2, where a place counts by e^(log π/q - 4), beyond 1.77 sds
        # above 4; the steps of a line are coarse.
        x = np.linspace(1.12, 8, 5000)
        counted = stats.norm.pdf(x) * np.exp(np.minimum(1.5 * x**2 - math.log(2) - 4, 0))
        assert abs(profile.missed(narrow)[0] - 2 * integrate.trapezoid(counted, x)) < 0.03
        assert profile.reach(1) == pytest.approx(math.sqrt(50), rel=0.05)
        assert profile.lopsided < 1e-6


# --- surrogates and proposals --------------------------------------------------------------------

BEND, WIDTH = 1.0, 0.4


def bent(points: np.ndarray) -> np.ndarray:
    return -(points[:, 0] ** 2) / 2 - ((points[:, 1] - points[:, 0] ** 2) / WIDTH) ** 2 / 2


def rough(points: np.ndarray) -> np.ndarray:
    """No polynomial."""
    return gaussian(points) + np.cos(4 * points[:, 0])


def fitted(heights: Heights, d: int, count: int = 2500) -> Surrogate:
    rng = np.random.default_rng(10)
    wide = mixture.mixture_of([1.0], [np.zeros(d)], [6 * np.eye(d)])
    points = mixture.draw(wide, rng, count)
    return fit_surrogate(points, heights(points), rng, np.zeros(len(points)))


def skewed(z: np.ndarray) -> np.ndarray:
    """Return log-densities that are normal but in one direction, as of a log standard deviation."""
    bend = (np.exp(1.2 * z[:, 0]) - 1.2 * z[:, 0] - 1) / 1.44
    return -(z[:, 1:] ** 2).sum(axis=1) / 2 - bend


@pytest.mark.parametrize("seed", range(3))
def test_noise_of_sites_leaves_a_surrogate_its_bulk(seed: int) -> None:
    """Of 495 terms and 4,800 points noise of .3 adds at most .1; it had added .6 to .8."""
    d, rng = 8, np.random.default_rng(seed)
    scales = np.repeat([1.0, 2.2, 4.0], [2000, 2000, 1000])[:, None]
    points = scales * rng.standard_normal((5000, d))
    points = points[skewed(points) > -200]
    heights, added = skewed(points), rng.standard_normal(len(points))
    fresh = np.random.default_rng(100 + seed).standard_normal((2000, d))
    fresh = fresh[skewed(fresh) > -12]
    errors = []
    for noise in (0.0, 0.3):
        given = heights + noise * added, np.random.default_rng(seed)
        surrogate = fit_surrogate(points, *given, np.full(len(points), noise))
        away = surrogate.log_density(fresh) - skewed(fresh)
        errors.append(np.std(away))
        assert surrogate.error < 0.5
    assert errors[1] < errors[0] + 0.1


def spoiled_quadratic(d: int) -> Surrogate:
    """Half a parabola and more: narrower than the envelope and beside its middle."""
    return fitted(lambda points: -((points - 0.3) ** 2).sum(axis=1), d, 1500)


def test_a_surrogate_is_exact_where_the_log_density_is_a_quartic() -> None:
    found = fitted(bent, 2)
    assert found.error < 1e-3
    rng = np.random.default_rng(11)
    first = rng.normal(size=2000)
    points = np.column_stack([first, first**2 + WIDTH * rng.normal(size=2000)])
    np.testing.assert_allclose(found.log_density(points), bent(points), atol=0.02)


@pytest.mark.parametrize("heights", [bent, rough])
def test_the_error_of_a_surrogate_is_that_at_other_points(heights: Heights) -> None:
    found = fitted(heights, 2)
    points = mixture.draw(
        mixture.mixture_of([1.0], [np.zeros(2)], [6 * np.eye(2)]), np.random.default_rng(12), 20_000
    )
    wanted = heights(points)
    bulk = 2 / 2 + 2 * math.sqrt(2) + 6
    near = wanted - wanted.max() > -9 * bulk - 75
    weights = (1 + ((wanted - wanted.max()) / bulk) ** 2) ** -2
    off = np.clip(found.log_density(points) - wanted, -5, 5)
    error = math.sqrt(np.average(off[near] ** 2, weights=weights[near]))
    if heights is rough:
        assert found.error > 0.1
        assert 0.6 < found.error / error < 1.6
    else:
        assert max(error, found.error) < 0.01


def test_a_surrogate_falls_beyond_its_points() -> None:
    found = fitted(bent, 2)
    far = found.log_density(np.array([[1e3, 0.0], [1e5, 1e5], [0.0, -1e8], [1e20, 1e20]]))
    assert np.all(far < found.height - 1000)


GRID = np.linspace(-12, 14, 201)


@pytest.mark.parametrize("kind", ["plain", "warped", "half power", "cut low"])
def test_a_proposal_is_normalised_and_its_draws_have_its_density(kind: str) -> None:
    rng = np.random.default_rng(13)
    coordinates: Coordinates = Plain()
    if kind == "warped":
        z = np.linspace(-5, 5, 120)
        bend = z, 0.5 * np.expm1(0.5 * z)
        coordinates = Warp(np.array([0.5, 0.0]), np.array([[1.0, 0.0], [0.6, 0.8]]), (bend, None))
    surrogate = fitted(lambda points: -((points - 0.6) ** 2).sum(axis=1) * 0.8, 2, 1500)
    family = of_two(2)
    made = proposals.clipped(
        surrogate, family, coordinates, rng, 0.5 if kind == "half power" else 1.0
    )
    if kind == "cut low":
        points = mixture.draw(family, rng, 20_000)
        ratio = surrogate.log_density(points) - mixture.log_density(family, points)
        cap = float(np.quantile(ratio, 0.8))
        inside = np.clip(ratio, made.floor, cap)
        mass = float(special.logsumexp(inside) - math.log(len(inside)))
        made = made._replace(cap=cap, log_mass=mass)
    # Over θ, so that the volume of the coordinates counts.
    places = np.stack(np.meshgrid(GRID, GRID, indexing="ij"), axis=-1).reshape(-1, 2)
    density = np.exp(made.log_density(places))
    cell = (GRID[1] - GRID[0]) ** 2
    inside = np.abs(mixture.draw(family, rng, 10_000)).max(axis=1) < 12
    assert inside.mean() > 0.99
    # log_mass is estimated from 12,000 points, some thousand of them effective.
    assert density.sum() * cell == pytest.approx(1, abs=0.03)
    # By the envelope at other points.
    z = mixture.draw(family, rng, 30_000)
    ratios = np.exp(made.ratio(z) - made.log_mass)
    assert ratios.mean() == pytest.approx(1, abs=0.03)
    draws, logs, _ = made.sample(np.array([1, 2, 3], np.uint32), rng, 8000)
    np.testing.assert_allclose(made.log_density(draws), logs, atol=1e-6)
    for column, sums in enumerate((1, 0)):
        marginal = density.reshape(len(GRID), -1).sum(axis=sums)
        below = (np.cumsum(marginal) - marginal / 2) / marginal.sum()
        law = stats.kstest(draws[:, column], lambda x, below=below: np.interp(x, GRID, below))
        # 8,000 draws: .0252 has a chance of 8e-5; the grid is cut at 12.
        assert law.statistic < 0.0252, (column, law)


# --- whole runs ----------------------------------------------------------------------------------


def nothing(p: Any, rows: Any) -> Any:
    """The log-likelihood of rows that say nothing, in either precision."""
    return 0 * rows["y"].astype(p["x"].dtype) * p["x"][0]


MODEL = consortia.Model(lambda p: -jnp.sum(p["x"] ** 2) / 2, nothing, {"x": jnp.zeros(3)})
EMPTY = consortia.Sites.from_list([{"y": np.zeros(1, np.float32)}] * 2)


def sampled(model: Any, sites: Any, method: Any = None, **options: Any) -> Any:
    options = {"chains": 4, "seed": 3, "progress": False} | options
    return consortia.sample(model, sites, method or consortia.few_rounds(), **options)


def draws_of(tree: Any) -> np.ndarray:
    parts = [np.asarray(tree.posterior[name], float) for name in sorted(tree.posterior.data_vars)]
    return np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=2)


def lines_of(tree: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(tree.attrs["rounds_used"])
    return found


def check(tree: Any, mean: np.ndarray, sd: np.ndarray, peaked: float = 2.0, error: float = 0.0):
    """Assert that means and spreads are right within 4.5 Monte Carlo errors; return their sizes.

    Args:
        tree: of a run.
        mean: expected.
        sd: expected.
        peaked: fourth moment by sd⁴, less 1.
        error: of what is expected, in sds.
    """
    found = draws_of(tree)
    ess = np.asarray(rhat_and_ess_of(np.moveaxis(found, -1, 0))[1])
    shift = np.abs(found.mean((0, 1)) - mean) / sd
    ratio = np.abs(found.std((0, 1)) / sd - 1)
    assert np.all(shift < error + 4.5 / np.sqrt(ess)), shift
    assert np.all(ratio < error + 4.5 * np.sqrt(peaked / 4 / ess)), ratio
    return ess


def weighted_moments(height: Heights, d: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return means, sds, and an error by importance sampling around the mode, pooled rows."""
    low = optimize.minimize(lambda x: -height(x[None])[0], np.zeros(d))
    family = stats.multivariate_t(low.x, low.hess_inv * 1.2, 6, seed=np.random.default_rng(1))
    points = family.rvs(60_000)
    logs = height(points) - family.logpdf(points)
    shares = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    mean = shares @ points
    error = 4.5 * math.sqrt((shares**2).sum())
    return mean, np.sqrt(shares @ (points - mean) ** 2), error


def regression(d: int, seed: int, poisson: bool) -> tuple[Any, Any, Heights]:
    """Return a model of d coefficients at three unlike sites, and its log-density by NumPy."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(150), rng.normal(size=(150, d - 1))]).astype(np.float32)
    eta = x @ np.linspace(-0.5, 0.8, d)
    y = rng.poisson(np.exp(eta)) if poisson else rng.random(150) < 1 / (1 + np.exp(-eta))
    y = np.asarray(y, np.float32)
    parts = np.split(np.argsort(x[:, 1] + y), [9, 60])

    def likelihood(eta: Any, y: Any, of: Any) -> Any:
        return y * eta - (of.exp(eta) if poisson else of.logaddexp(0.0, eta))

    model = consortia.Model(
        lambda p: -jnp.sum(p["x"] ** 2) / 8,
        lambda p, rows: likelihood(rows["x"] @ p["x"], rows["y"], jnp),
        {"x": jnp.zeros(d)},
    )

    def height(at: np.ndarray) -> np.ndarray:
        eta = at @ np.asarray(x, float).T
        return likelihood(eta, y, np).sum(axis=1) - (at**2).sum(axis=1) / 8

    return model, consortia.Sites.from_list([{"x": x[p], "y": y[p]} for p in parts]), height


@pytest.mark.parametrize("poisson", [False, True])
def test_a_regression_is_right_after_three_messages(poisson: bool) -> None:
    model, sites, height = regression(5, 4, poisson)
    tree = sampled(model, sites)
    assert [line["for"] for line in lines_of(tree)] == ["local fits", "exploration", "draws"]
    assert tree.attrs["communication_rounds"] == 3
    mean, sd, error = weighted_moments(height, 5)
    assert check(tree, mean, sd, error=error).min() >= 1000
    assert consortia.summary(tree).verdict.word == "good"
    assert "faults" not in tree.attrs


@cache
def banana() -> consortia.Model:
    def log_prior(p: Any) -> Any:
        x, y = p["x"][0], p["x"][1]
        return -(x**2) / 2 - ((y - BEND * x**2) / WIDTH) ** 2 / 2

    return consortia.Model(log_prior, nothing, {"x": jnp.ones(2)})


BENT_MEAN = np.array([0, BEND])
BENT_SD = np.array([1, math.sqrt(2 * BEND**2 + WIDTH**2)])


def test_a_bent_posterior_is_right_after_three_or_four_messages() -> None:
    tree = sampled(banana(), EMPTY)
    assert tree.attrs["communication_rounds"] in (3, 4)
    # The square of a normal number has a fourth moment of 15.
    assert check(tree, BENT_MEAN, BENT_SD, peaked=14.0).min() >= 1000
    assert consortia.summary(tree).verdict.word == "good"


def test_equal_seeds_have_equal_draws_and_others_have_others() -> None:
    model, sites, _ = regression(3, 5, poisson=False)
    method = consortia.few_rounds(effective_size=100, proposals=600)
    one, same, other = (draws_of(sampled(model, sites, method, seed=s)) for s in (8, 8, 2**40 + 8))
    np.testing.assert_array_equal(one, same)
    assert one.shape[1:] != other.shape[1:] or not np.any(one == other)


# --- a surrogate that is wrong -------------------------------------------------------------------


@pytest.mark.parametrize("spoiled", [False, True])
def test_a_spoiled_surrogate_slows_the_chains_and_does_not_move_their_law(
    spoiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Surrogate.log_density

    def log_density(self: Surrogate, points: np.ndarray) -> np.ndarray:
        return plain(self, points) + 3.0 * np.all(points[:, :2] > 1.0, axis=1)

    if spoiled:
        monkeypatch.setattr(Surrogate, "log_density", log_density)
    tree = sampled(MODEL, EMPTY, consortia.few_rounds(effective_size=2000), rounds=20)
    check(tree, np.zeros(3), np.ones(3))
    last = lines_of(tree)[-1]
    if spoiled:
        assert last["acceptance"] < 0.85
        assert last["effective_share"] < 0.85
    else:
        assert last["acceptance"] > 0.95


# --- the depth guard -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "against",
    [
        *({"depth": depth} for depth in (17.0, 1e2, 1e10, 1e30, math.inf, math.nan)),
        *({"share": share} for share in (0.05, 0.0, math.nan)),
        *({"heaviest": share} for share in (0.01, 1.0, math.nan)),
        *({"effective": size} for size in (0.5, math.nan)),
        {"not_covered": [np.ones(3)]},
    ],
)
def test_a_batch_that_something_speaks_against_does_not_count(against: dict[str, Any]) -> None:
    chains = Chains(np.zeros((2, 5, 3)), np.zeros((2, 5)), np.ones((2, 5), bool))
    sound = algorithm.Judged(chains, 0.9, 0.0, 0.0, [], 1.5, 1e-3, 5.0)
    assert sound.counts
    assert not sound._replace(**against).counts


@pytest.mark.parametrize(
    ("shares", "errors", "searched", "step"),
    [
        # Eight schools and a funnel, whose surrogates never predict.
        ([5e-4, 4e-3, 0.022], [2.1, 1.9, 1.1], False, "walk"),
        ([0.02, 0.03, 0.01], [1.4, 1.5, 1.3], False, "walk"),
        # A linear regression with few rows, of which the next batch counts.
        ([7e-4, 0.014, 0.32], [0.56, 1.9, 0.63], False, "draw"),
        ([0.01, 0.01], [2.8, 0.8], False, "draw"),
        # A product of parameters, which predicts at the third.
        ([0.09, 0.29], [0.79, 0.69, 0.12], False, "draw"),
        ([0.09, 0.29, 0.4], [0.79, 0.69, 0.12], False, "draw"),
        # Surrogates that predict, and proposals that do not come near.
        ([0.01, 0.01, 0.01], [0.1, 2.0, 2.0], False, "search"),
        ([0.01, 0.01, 0.01], [0.0, 0.0, 0.0], True, "walk"),
        ([0.05] * 6, [0.1] * 6, True, "draw"),
        ([0.05] * 7, [0.1] * 7, False, "walk"),
    ],
)
def test_chains_take_over_where_no_surrogate_predicts(
    shares: list[float], errors: list[float], searched: bool, step: str
) -> None:
    assert algorithm._next_step(shares, errors, searched=searched) == step


@pytest.mark.slow  # the next one ends likewise, with sites that answer as between institutions
def test_a_funnel_is_left_to_chains_after_few_batches_and_refused() -> None:
    case = bends.CASES["funnel"]()
    with pytest.raises(WarmupError) as refused:
        sampled(case.model, case.sites, consortia.few_rounds())
    attributes = refused.value.tree.attrs
    purposes = [one["for"] for one in json.loads(attributes["messages"])]
    assert purposes.count("draws") <= algorithm.HOPELESS
    assert len(purposes) <= algorithm.MOST_ROUGH
    # No site has rows, and its local fits differ: the mode is sought once, before the exploration.
    assert "mode" not in purposes[purposes.index("exploration") :]
    assert purposes.count("mode") <= 2


def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that answer as between institutions: no farther than 16 sds of the prior."""
    monkeypatch.setattr(Panel, "farthest", 16.0)


@pytest.mark.slow
def test_between_institutions_a_funnel_ends_without_gradients_and_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounded(monkeypatch)
    case = bends.CASES["funnel"]()
    with pytest.raises(WarmupError, match="gradients = true") as refused:
        sampled(case.model, case.sites, consortia.few_rounds())
    attributes = refused.value.tree.attrs
    purposes = {one["for"] for one in json.loads(attributes["messages"])}
    assert purposes == {"local fits", "exploration", "draws"}
    with pytest.raises(WarmupError, match="chains did not settle") as refused:
        sampled(case.model, case.sites, consortia.few_rounds(gradients=True))
    attributes = refused.value.tree.attrs
    assert {"mode", "chains"} & {one["for"] for one in json.loads(attributes["messages"])}


def test_between_institutions_many_parameters_end_before_the_first_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounded(monkeypatch)
    wide = consortia.Model(lambda p: -(p["x"] ** 2).sum() / 2, nothing, {"x": jnp.zeros(201)})
    with pytest.raises(WarmupError, match="more than 200 parameters draws need gradients"):
        sampled(wide, EMPTY, consortia.few_rounds())


def test_batches_of_a_proposal_that_a_later_batch_speaks_against_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge, judged = algorithm._judged, []

    def judging(*args: Any) -> algorithm.Judged:
        one = judge(*args)
        if not judged:
            one = one._replace(effective=0.2 * one.effective)  # more is wanted
        if len(judged) == 1:
            one = one._replace(not_covered=[np.ones(3)])
        judged.append(one)
        return one

    monkeypatch.setattr(algorithm, "_judged", judging)
    tree = sampled(MODEL, EMPTY, consortia.few_rounds(effective_size=2500), rounds=20)
    assert len(judged) == 3
    np.testing.assert_array_equal(draws_of(tree), judged[2].chains.draws.astype(np.float32))


def test_where_nothing_better_comes_the_draws_that_were_set_aside_are_kept_with_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As under a policy whose noise becomes too loud: a run had ended without a posterior."""
    bounded(monkeypatch)
    judge, judged = algorithm._judged, []

    def judging(*args: Any) -> algorithm.Judged:
        one = judge(*args)
        if not judged:
            one = one._replace(effective=0.2 * one.effective)  # more is wanted
        elif len(judged) == 1:
            one = one._replace(not_covered=[np.ones(3)], missed=0.011)
        else:
            one = one._replace(share=1e-3)
        judged.append(one)
        return one

    monkeypatch.setattr(algorithm, "_judged", judging)
    with pytest.warns(UserWarning, match="nothing can be drawn"):
        tree = sampled(MODEL, EMPTY, consortia.few_rounds(effective_size=2500), rounds=20)
    np.testing.assert_array_equal(draws_of(tree), judged[0].chains.draws.astype(np.float32))
    assert tree.attrs["stopped"] == algorithm.NOISE
    made = consortia.summary(tree).verdict
    assert made.word != "good"
    assert "hardly cover 1.1% of the mass along a line" in str(made)


RAN_OFF = sparse(
    itertools.product([1e2, 1e10, 1e30], [False, True]), [(1e2, True), (1e10, False), (1e30, False)]
)
"""Places of proposals, in single and double precision: each of both is quick."""


@pytest.mark.parametrize(("scale", "double"), RAN_OFF)
def test_a_proposal_that_ran_off_is_refused(
    scale: float, double: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, asked = algorithm.learn, []

    def learn(memory: Memory, *given: Any, **more: Any) -> Learnt:
        found = plain(memory, *given, **more)
        asked.append(found)
        if len(asked) > 1:
            return found
        # Far from the posterior, and so narrow that the densities there are equal after rounding.
        far = np.full(3, scale)
        away = mixture.mixture_of([1.0], [far], [1e-6 * np.eye(3)])
        return found._replace(proposal=Proposal(away, None, Plain()))

    monkeypatch.setattr(algorithm, "learn", learn)
    with jax.enable_x64(double):
        tree = sampled(MODEL, EMPTY)
    lines = lines_of(tree)
    assert len(asked) > 1
    assert "effective_size" not in lines[2]
    check(tree, np.zeros(3), np.ones(3))


class Stretched(Plain):
    """Coordinates that are far too long."""

    scale = 1.0

    def positions(self, z: np.ndarray) -> np.ndarray:
        return self.scale * z

    def white(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return points / self.scale, np.full(len(points), -3 * math.log(self.scale))


@pytest.mark.parametrize(("scale", "double"), RAN_OFF)
def test_coordinates_that_ran_off_are_refused(
    scale: float, double: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, asked = algorithm.learn, []
    monkeypatch.setattr(Stretched, "scale", scale)
    # Plain coordinates are drawn at the sites: these have to travel.
    monkeypatch.setattr(algorithm, "Plain", type("Other", (Plain,), {}))

    def learn(memory: Memory, *given: Any, **more: Any) -> Learnt:
        found = plain(memory, *given, **more)
        asked.append(found)
        if len(asked) > 1 or found.proposal is None:
            return found
        return found._replace(proposal=found.proposal._replace(coordinates=Stretched()))

    monkeypatch.setattr(algorithm, "learn", learn)
    known_plain = algorithm._exploration

    def exploration(*given: Any, **options: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(algorithm, "Plain", Plain)
            return known_plain(*given, **options)

    monkeypatch.setattr(algorithm, "_exploration", exploration)
    with jax.enable_x64(double):
        tree = sampled(MODEL, EMPTY)
    assert len(asked) > 1
    assert "effective_size" not in lines_of(tree)[2]
    check(tree, np.zeros(3), np.ones(3))


# --- evidence, ends, errors ----------------------------------------------------------------------


def test_the_log_evidence_of_a_gaussian_model_is_the_exact_one() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(40, 3)) * [1.0, 5.0, 0.2]
    y = x @ [1.0, -2.0, 0.5] + 2 + 0.5 * rng.normal(size=40)
    half = math.log(2 * math.pi) / 2

    def log_prior(p: Any) -> Any:
        return jnp.sum(-(p**2) / 8 - math.log(2) - half)

    def log_likelihood(p: Any, rows: Any) -> Any:
        return -2 * (rows["y"] - rows["x"] @ p) ** 2 + math.log(2) - half

    rows = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    sites = [{name: a[at] for name, a in rows.items()} for at in np.split(np.arange(40), [1, 15])]
    model = consortia.Model(log_prior, log_likelihood, jnp.zeros(3))
    tree = sampled(model, consortia.Sites.from_list(sites))
    exact = stats.multivariate_normal(cov=4 * x @ x.T + 0.25 * np.eye(40)).logpdf(y)
    assert 0 < tree.attrs["log_evidence_error"] < 0.02
    # U is some 300 and is summed with compensation: rounding of rows is below .001. The constant of
    # a proposal is known from 12,000 points.
    found = tree.attrs["log_evidence"]
    assert abs(found - exact) < 4 * tree.attrs["log_evidence_error"] + 0.001, found - exact


@pytest.fixture(scope="module")
def problem() -> tuple[consortia.Model, consortia.Sites]:
    """Logistic regression on 60 rows at three unlike sites, one of a single row."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(60, 2)).astype(np.float32)
    y = (rng.uniform(size=60) < 1 / (1 + np.exp(-x[:, 0]))).astype(np.int32)
    order = np.argsort(x[:, 1])
    parts = np.split(order, [1, 20])
    sites = consortia.Sites.from_list([{"x": x[p], "y": y[p]} for p in parts])
    return consortia.models.logistic_regression(2, intercept=True), sites


SMALL = consortia.few_rounds(effective_size=900, proposals=600)


def test_a_run_that_is_cut_at_any_message_and_resumed_has_the_same_draws(
    problem: Any, tmp_path: Any
) -> None:
    whole = sampled(*problem, SMALL)
    messages = whole.attrs["communication_rounds"]
    assert messages >= 4
    plain = LocalPanel.ask
    for cut in range(1, messages + 1):
        asked: list[str] = []

        def ask(self: Any, query: Any, number: int, cut: int = cut, asked: Any = asked) -> Any:
            asked.append(query.purpose)
            if len(asked) == cut:
                raise KeyboardInterrupt
            return plain(self, query, number)

        path = tmp_path / str(cut)
        with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            patched.setattr(LocalPanel, "ask", ask)
            with contextlib.suppress(KeyboardInterrupt):
                sampled(*problem, SMALL, store=path)
            assert len(asked) == cut
            asked.clear()
            patched.setattr(
                LocalPanel,
                "ask",
                lambda self, query, number, asked=asked: (
                    asked.append(query.purpose), plain(self, query, number)
                )[1],
            )  # fmt: skip
            tree = consortia.resume(path, *problem, SMALL, progress=False)
        assert len(asked) == messages - cut + 1
        np.testing.assert_array_equal(draws_of(tree), draws_of(whole))
        for name in ("lp", "acceptance_rate", "effective_share"):
            np.testing.assert_array_equal(tree.sample_stats[name], whole.sample_stats[name])
        for fact in ("rounds_used", "log_evidence", "log_evidence_error", "stopped"):
            assert tree.attrs[fact] == whole.attrs[fact]


def test_a_run_that_uses_up_its_batches_says_so_and_is_not_good(problem: Any) -> None:
    method = consortia.few_rounds(effective_size=50_000, proposals=600)
    with pytest.warns(UserWarning, match="effective draws of the 50000 that were requested"):
        tree = sampled(*problem, method, rounds=2)
    assert tree.attrs["iterations_run"] == 2
    (fault,) = json.loads(tree.attrs["faults"])
    assert "give more rounds" in fault["text"]
    assert consortia.summary(tree).verdict.word != "good"


def test_without_an_effective_size_all_batches_are_drawn_and_nothing_is_said(problem: Any) -> None:
    method = consortia.few_rounds(effective_size=None, proposals=600)
    tree = sampled(*problem, method, rounds=3)
    assert tree.attrs["iterations_run"] == 3
    assert "faults" not in tree.attrs


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"effective_size": 0.5}, "effective_size"),
        ({"effective_size": math.nan}, "effective_size"),
        ({"effective_size": "many"}, "effective_size"),
        ({"proposals": 63}, "proposals"),
        ({"proposals": 100.5}, "proposals"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], argument: str) -> None:
    with refused(argument=argument):
        consortia.few_rounds(**arguments)


def test_too_many_parameters_are_refused_and_told_where_to_go() -> None:
    with refused(argument="model", match="federated_hmc"):
        SMALL.check(np.array([3, 4]), ("a", "b"), 20_001)
    SMALL.check(np.array([3, 4]), ("a", "b"), 20_000)


def test_points_follow_the_effective_size_the_parameters_and_the_rows() -> None:
    few = consortia.few_rounds
    assert few().points_of(5, 1000) == 4000
    assert few().points_of(24, 1000) == 16_000
    assert few().points_of(32, 1000) == 20_000
    assert few(effective_size=10).points_of(5, 1000) == 1000
    assert few(effective_size=1e6).points_of(5, 1000) == 20_000
    assert few().points_of(5, 10**9) == 1000
    assert few(proposals=70).points_of(5, 10**9) == 70


def test_a_start_without_a_density_is_refused_with_the_site() -> None:
    model = consortia.Model(
        lambda p: -(p["s"] ** 2) / 2,
        lambda p, r: -jnp.log(p["s"]) - (r["y"] / p["s"]) ** 2 / 2,
        {"s": jnp.zeros(())},
    )
    sites = consortia.Sites.from_list([{"y": np.ones(3, np.float32)}] * 2)
    with refused(argument="init", site="site 0", match="is nan"):
        sampled(model, sites, SMALL)


def test_a_flat_direction_is_refused_with_what_to_do() -> None:
    rows = [{"y": np.zeros(2, np.float32)}]
    init = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    model = consortia.Model(
        lambda p: -((p["a"] + p["b"]) ** 2), lambda p, r: -((p["a"] + p["b"] - r["y"]) ** 2), init
    )
    with pytest.raises(WarmupError, match="proper prior"):
        sampled(model, consortia.Sites.from_list(rows), SMALL, chains=1)


@cache
def separated() -> tuple[consortia.Model, consortia.Sites]:
    """Logistic regression without a prior on rows that a line tells apart."""
    x = np.random.default_rng(0).normal(size=20).astype(np.float32)
    rows = {"x": x, "y": (x > 0).astype(np.float32)}

    def log_likelihood(p: Any, row: Any) -> Any:
        odds = p["a"] + p["b"] * row["x"]
        return row["y"] * odds - jax.nn.softplus(odds)

    init = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    model = consortia.Model(None, log_likelihood, init)
    parts = (slice(8), slice(8, 20))
    sites = consortia.Sites.from_list([{n: v[part] for n, v in rows.items()} for part in parts])
    return model, sites


def test_separated_data_without_a_prior_are_refused_or_called_bad() -> None:
    with pytest.warns(UserWarning, match="the posterior may be improper"):
        said = refusal_or_verdict(*separated())
    assert said.startswith(("few_rounds: no proposals", "BAD"))
    assert "ive every parameter a proper prior" in said


def refusal_or_verdict(model: consortia.Model, sites: consortia.Sites) -> str:
    """Return the text of the refusal, or of the verdict where there are draws."""
    try:
        tree = sampled(model, sites, chains=2)
    except WarmupError as error:
        return str(error)
    return "\n".join(consortia.summary(tree).verdict.lines())


def test_rounding_of_an_answer_moves_draws_by_as_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters of equal variance leave the principal axes, and their signs, to rounding.

    It is that of the exploration: the local fits before leave in two digits, of which rounding can
    move one, and with it all that follows.
    """
    rows = {"y": np.arange(12.0) / 2}
    sites = consortia.Sites.from_list([rows, rows])

    def log_likelihood(p: Any, rows: Any) -> Any:
        return -((rows["y"] - p[0] - p[1] ** 2) ** 2) / 4

    plain, count = programs.SitePrograms.answer, 0
    made = []
    with jax.enable_x64(True):
        model = consortia.Model(lambda p: -jnp.sum(p**2) / 2, log_likelihood, jnp.full(5, 0.1))
        for size in (0.0, 1e-13):

            def answer(self: Any, *given: Any, size: float = size, **more: Any) -> Any:
                nonlocal count
                count += 1
                rng, own = np.random.default_rng(7), size * (count == 2)
                found = plain(self, *given, **more)
                return {n: v * (1 + own * rng.normal(size=v.shape)) for n, v in found.items()}

            count = 0
            monkeypatch.setattr(programs.SitePrograms, "answer", answer)
            made.append(sampled(model, sites)["posterior"]["theta"].to_numpy())
    # A choice that flips moves draws by a standard deviation.
    np.testing.assert_allclose(*made, atol=1e-8)


def test_curvatures_that_are_not_positive_make_guesses_too() -> None:
    model = SimpleNamespace(host=None)
    target = SimpleNamespace(dimension=2, dtype=np.float32, model=model)
    known = SimpleNamespace(target=target, sizes=np.array([5, 5]), start=np.zeros(2), seed=1)
    memory = Memory(np.zeros((0, 2)))
    server = algorithm.Server(known, 1000, np.random.default_rng(0), known.start, memory)  # type: ignore[arg-type]
    vars(server)["scale"] = PriorScale(np.zeros(2), np.ones(2))
    asking = algorithm._local_fits(server)
    assert next(asking).function == "local_fits"
    saddle = np.array([1.0, 0.0, -1.0])  # upper triangles of curvatures
    precisions = np.stack([saddle, 4 * saddle, 0.01 * saddle])
    answer = {"precisions": precisions, "pulls": np.array([[1.0, 2], [90, 80], [0.03, 0.0]])}
    answer["squares"] = np.full((3, 1), np.nan)  # nothing is known of how far apart the sites ended
    with pytest.raises(StopIteration) as end:
        asking.send(answer)
    centres, covariances, serve, *_ = end.value.value
    assert serve
    # Eigenvalues by absolute value; the sites with enough rows first.
    np.testing.assert_allclose(centres, [[3, 0], [1, 2], [22.5, 20]])
    wanted = [100 * np.eye(2), np.eye(2), np.eye(2) / 4]
    np.testing.assert_allclose(covariances, wanted, atol=1e-10)
    precisions[-1] = 0  # no site has rows enough
    asking = algorithm._local_fits(server)
    next(asking)
    with pytest.raises(StopIteration) as end:
        asking.send(answer | {"precisions": precisions})
    assert not end.value.value[2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:few_rounds. the draws of a chain")
def test_a_longer_run_of_chains_goes_on_where_a_shorter_one_has_ended(
    tmp_path, monkeypatch
) -> None:
    for module in (algorithm, batches):  # no batch counts
        monkeypatch.setattr(module, "LEAST_SHARE", 2.0)
    monkeypatch.setattr(algorithm, "MOST_POOR", 1)
    monkeypatch.setattr(algorithm, "MOST_STANDING", 1)
    rng = np.random.default_rng(0)
    model = consortia.Model(
        lambda p: -jnp.sum(p["x"] ** 2) / 2,
        lambda p, rows: -((rows["y"] - p["x"][0] - p["x"][1] * rows["x"]) ** 2) / 2,
        {"x": jnp.zeros(2)},
    )
    sites = consortia.Sites.from_list(
        [{name: rng.normal(size=9).astype(np.float32) for name in "xy"} for _ in range(2)]
    )
    method = consortia.few_rounds(effective_size=None, proposals=1000)
    options = {"chains": 2, "seed": 1, "progress": False}
    short = consortia.sample(model, sites, method, rounds=1, store=tmp_path / "a", **options)
    long = consortia.resume(tmp_path / "a", model, sites, method, rounds=2, progress=False)
    whole = consortia.sample(model, sites, method, rounds=2, store=tmp_path / "b", **options)
    assert "handed_over" in whole.attrs
    assert any(one["for"] == "rays" for one in json.loads(whole.attrs["messages"]))
    assert long["posterior"].sizes["draw"] == 2 * short["posterior"].sizes["draw"]
    np.testing.assert_array_equal(long["posterior"]["x"], whole["posterior"]["x"])


# --- sites with few rows -------------------------------------------------------------------------


def test_a_site_that_fits_its_rows_exactly_does_not_mislead_the_others() -> None:
    case = regressions.CASES["linear, 12 sites"]()  # the smallest have 4, 4 and 5 rows for d = 8
    tree = sampled(case.model, case.sites, consortia.few_rounds())
    assert tree.attrs["communication_rounds"] == 3
    mean, sd, _ = case.law()
    # 3,000 effective draws; the reference has an error of .02 sd
    assert np.all(np.abs(draws_of(tree).mean((0, 1)) - mean) < 0.12 * sd)


def test_a_covariance_of_one_point_does_not_replace_the_one_before() -> None:
    assert learning._definite(np.diag([1.0, 1e-8]))
    assert not learning._definite(np.zeros((2, 2)))
    assert not learning._definite(np.ones((2, 2)))


def test_a_fit_of_few_rows_that_ran_off_is_no_guess() -> None:
    scale, start = PriorScale(np.zeros(2), np.array([1.0, 2.0])), np.array([0.3, 0.4])
    one = np.array([1.0, 0.0, 1.0])  # upper triangle of the precision

    def found(away: float, enough: bool) -> Any:
        answer = {"precisions": np.stack([one, enough * one])}
        answer["pulls"] = np.array([[0, away], [0, enough * away]])
        answer["squares"] = np.array([[away**2], [enough * away**2]])
        return local_fits.guesses(answer, start, scale, np.ones(2), 1e-7, 3)

    near, far, many = found(190.0, False), found(210.0, False), found(210.0, True)
    assert [list(one) for one in near.centres] == [[0.3, 190.4], [0.3, 0.4]]
    assert near.agree
    assert [list(one) for one in far.centres] == [[0.3, 0.4]]
    assert not far.agree  # so that the mode is sought first
    assert [list(one) for one in many.centres] == [[0.3, 210.4]]  # many rows may know better
    assert many.agree


# --- starts from which nothing is found ----------------------------------------------------------


def test_the_best_point_of_a_search_that_ends_early_is_explored(monkeypatch) -> None:
    """Guesses without a density, and a search that reaches no mode: a point of it is known."""

    def lost(*_: Any) -> local_fits.Guesses:
        return local_fits.Guesses([np.full(3, 1e3)], [1e-4 * np.eye(3)], True)

    search = algorithm._search

    def unfinished(*arguments: Any) -> Any:
        found = yield from search(*arguments)
        return found._replace(converged=False, position=found.best)

    def log_prior(p: Any) -> Any:
        return jnp.where(jnp.abs(p["x"]).max() > 50, -jnp.inf, -jnp.sum(p["x"] ** 2) / 2)

    model = consortia.Model(log_prior, nothing, {"x": jnp.zeros(3)})
    monkeypatch.setattr(local_fits, "guesses", lost)
    monkeypatch.setattr(algorithm, "_search", unfinished)
    tree = sampled(model, EMPTY)
    assert [one["for"] for one in json.loads(tree.attrs["messages"])][2] == "mode"
    check(tree, np.zeros(3), np.ones(3))


FAR_STARTS = {  # below the mode, as exp of exp is
    "1e10": (1.25, 4.33, 1.91, -2.16, -1.19, 1.72),
    "1e24": (1.51, 2.81, -0.78, 0.72, -2.78, 2.16),
}


@pytest.mark.parametrize("below", sparse(FAR_STARTS, ("1e24",)))
def test_a_start_from_which_no_fit_ends_costs_no_message(below: str) -> None:
    case = regressions.CASES["Weibull, censored"]()
    mean, sd, _ = case.law()
    tree = sampled(case.model, case.sites, init={"x": np.array(FAR_STARTS[below], np.float32)})
    assert tree.attrs["communication_rounds"] == 3
    # 3,000 effective draws; the reference has an error of .02 sd
    assert np.all(np.abs(draws_of(tree).mean((0, 1)) - mean) < 0.12 * sd)


def test_no_local_fit_begins_at_an_absurd_spread_of_levels() -> None:
    """The normal law of a prior on a logarithm of a small spread has its centre at e^25."""
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(size=60), "y": rng.poisson(1.0, 60), "ward": np.arange(60) // 3}
    made = consortia.regression("y ~ x + (1 | site:ward)", {"a": table}, family="poisson")
    start = np.asarray(made.model.init["log_sd"], float)
    target = Target(made.model, made.model.init)
    at = np.array(target.ravel(made.model.init), float)
    first = next(consortia.few_rounds().converse(Known(target, at, np.array([60]), 2, 10, 1)))
    starts = first.arrays["starts"][:, target.layout.places["log_sd"][0]]
    assert len(starts) > 1
    assert np.abs(starts - start).max() <= 1


def test_fits_stay_those_of_their_starts_where_the_first_reaches_no_mode() -> None:
    def log_likelihood(x: Any, rows: Any) -> Any:  # modes at -1.5 and 1.5; exp of exp
        return -0.5 * (rows["y"] - x[0] ** 2) ** 2 - jnp.exp(jnp.exp(x[1])) / 10 + x[1]

    y = jnp.asarray(1.5**2 + np.random.default_rng(0).normal(size=60), jnp.float32)
    model = consortia.Model(lambda x: -x @ x / 8, log_likelihood, jnp.zeros(2))
    site = Site({"y": y}, jnp.asarray(60), jnp.ones(()), jnp.ones(()))

    @jax.jit
    def fits(starts: Any) -> Any:
        arrays = {"reference": jnp.zeros(2), "starts": starts, "share": jnp.asarray(0.5)}
        return FUNCTIONS["local_fits"].answer(Target(model, model.init), arrays, site)

    def precisions_and_pulls(first: list[float]) -> tuple[Any, Any]:
        answer = fits(jnp.array([first, [2.0, 0.5], [-2.0, 0.5]]))
        return answer["precisions"], answer["pulls"]

    good, lost = precisions_and_pulls([1.0, 0.0]), precisions_and_pulls([1.0, 4.4])
    for known, found in zip(good, lost, strict=True):
        np.testing.assert_array_equal(found[1:3], known[1:3])
        np.testing.assert_array_equal(found[0], known[1])  # the first that reached a mode


@pytest.mark.parametrize("seed", sparse([1, 8], [8]))
def test_modes_to_either_side_of_the_centre_of_the_prior_are_both_found(seed: int) -> None:
    """Starts that were drawn from a normal around the centre lost a mode with these seeds."""

    def log_likelihood(x: Any, rows: Any) -> Any:
        hazard = jnp.exp(jnp.exp(rows["z"] * x[1])) / 10 - rows["z"] * x[1]
        return -0.5 * (rows["y"] - x[0] ** 2) ** 2 - hazard

    rng = np.random.default_rng(0)
    shards = [
        {"y": (1.5**2 + rng.normal(size=60)).astype(np.float32), "z": np.full(60, z, np.float32)}
        for z in (1.0, 0.2)
    ]
    start = np.array([1.0, 4.4], np.float32)  # no fit of the first site ends from here
    model = consortia.Model(lambda x: -x @ x / 8, log_likelihood, start)
    found = draws_of(sampled(model, consortia.Sites.from_list(shards), seed=seed))[..., 0]
    assert 0.4 < (found > 0).mean() < 0.6  # of 2,000 effective draws: 9 standard errors
    assert np.abs(found).mean() == pytest.approx(1.525, abs=0.01)


def test_points_are_sent_again_where_the_reference_is_too_low_for_the_precision() -> None:
    def potential(x: np.ndarray) -> np.ndarray:
        return 0.5 * np.asarray(x, float)[..., 0] ** 2

    known = SimpleNamespace(target=SimpleNamespace(dtype=np.dtype(np.float32), dimension=1))
    rng, points = np.random.default_rng(0), np.linspace(-3, 3, 101)[:, None]
    server = algorithm.Server(known, 101, rng, np.array([1e6]), Memory(np.zeros((0, 1))))  # type: ignore[arg-type]
    proposal = Proposal(Mixture(*[np.zeros(0)] * 3), None, Plain())  # type: ignore[call-arg]
    sent = algorithm.Sent(
        points, points[:, 0], proposal, True, [], points[0], {"points": points}, 1, []
    )
    asking = algorithm._heights(server, sent)
    query, heights = next(asking), None
    while heights is None:
        at, base = query.arrays["points"], potential(query.arrays["reference"])
        answer = (potential(at) - base).astype(np.float32).astype(float)
        try:
            query = asking.send({"potentials": answer, "height": np.array([base])})
        except StopIteration as end:
            heights = end.value
    assert server.messages == 2
    np.testing.assert_allclose(heights - heights.max(), -potential(points), atol=1e-5)


# --- what a site can measure, and what a longer run drops ----------------------------------------


def test_it_is_known_of_every_answer_what_it_says_of_rows() -> None:
    assert [name for name, function in FUNCTIONS.items() if function.reveals is None] == []


def test_a_longer_run_that_drops_a_stored_batch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, judged = algorithm._judged, []

    def judging(*args: Any) -> algorithm.Judged:
        judged.append(judge(*args))
        bad = len(judged) == 3  # the first is judged again as its answer is replayed
        return judged[-1]._replace(not_covered=[np.ones(3)]) if bad else judged[-1]

    monkeypatch.setattr(algorithm, "_judged", judging)
    method = consortia.few_rounds(effective_size=None)
    sampled(MODEL, EMPTY, method, rounds=1, store=tmp_path / "run")
    with pytest.raises(StoreError, match="batch 0 of the draws that are stored"):
        consortia.resume(tmp_path / "run", MODEL, EMPTY, method, rounds=2, progress=False)


@pytest.mark.parametrize("terms", ["x + (1 | site)", "x"])
@pytest.mark.parametrize("function", ["log_densities", "derivatives", "local_fits"])
def test_a_formula_refuses_a_rule_that_it_does_not_have(terms: str, function: str) -> None:
    rng = np.random.default_rng(0)
    tables = {name: {"x": rng.normal(size=9), "y": rng.integers(0, 2, 9)} for name in "abc"}
    made = consortia.regression(f"y ~ {terms}", tables, family="bernoulli")
    target = Target(made.model, made.model.init)
    site = target.host_site(made.sites.site(0), 9, 1 / 3)
    at = np.zeros((1, target.dimension))
    arrays = {"reference": at[0], "points": at, "starts": at, "share": np.array(1 / 3)}
    with refused(argument="nodes", match="with 500"):
        FUNCTIONS[function].evaluate(target, arrays | {"rule": np.zeros(500)}, site)


@pytest.mark.parametrize(
    ("wanted", "of"), [(1000.0, " of the 1000 that were requested"), (None, "")]
)
def test_an_end_by_noise_is_named_and_no_end_of_all_batches(wanted: float | None, of: str) -> None:
    server: Any = SimpleNamespace(wanted=wanted, known=SimpleNamespace(batches=9))
    reason, (fault,) = algorithm.Server.ending(server, 300.0, 9, algorithm.LOUDER)
    assert reason == "noise that keeps rows from being settled"
    assert fault.text.startswith(f"few_rounds: 300 effective draws{of}, as further answers")
    reason, faults = algorithm.Server.ending(server, 300.0, 9)
    assert (reason, len(faults)) == ("all batches of draws", int(wanted is not None))
    assert algorithm.Server.ending(server, 300.0, 8) is None


@pytest.mark.parametrize(
    ("reached", "batches", "wanted", "nearly"),
    [(500, 1, 1000, True), (499, 1, 1000, False), (958, 2, 1000, True), (600, 2, 1000, False),
     (900, 1, None, False)],
)  # fmt: skip
def test_proposals_are_kept_where_one_more_batch_is_enough(
    reached, batches, wanted, nearly
) -> None:
    server = SimpleNamespace(wanted=wanted)
    assert algorithm.Server.nearly(server, reached, batches) == nearly
