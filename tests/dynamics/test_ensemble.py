"""Chains of few messages settle when their starts are forgotten, and then keep the posterior."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import arviz_stats
import numpy as np
import pytest
from scipy import stats

from consortia.algorithms.few_rounds import algorithm
from consortia.core.prior import PriorScale
from consortia.dynamics.ensemble import chains, mixing
from consortia.surrogates.proposals import memory

Potential = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
COUNT, D = 960, 6
BEND, WIDTH = 0.5, 0.5

ROOT = np.linalg.qr(np.random.default_rng(0).normal(size=(D, D)))[0] * np.logspace(-1, 1, D)
PRECISION = np.linalg.inv(ROOT @ ROOT.T)


def gaussian(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """U and its gradient of N(1, ROOT ROOTᵀ), whose scales span a factor of 100."""
    slopes = (points - 1) @ PRECISION
    return ((points - 1) * slopes).sum(axis=1) / 2, slopes


def gaussian_normals(points: np.ndarray) -> np.ndarray:
    """What is N(0, I) if points have the law of `gaussian`."""
    return np.linalg.solve(ROOT, (points - 1).T).T


def banana(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same of pairs (x, y) with x ~ N(0, 1) and y given x ~ N(BEND (x² - 1), WIDTH²)."""
    x, rest = points[:, ::2], banana_normals(points)[:, 1::2]
    slopes = np.empty_like(points)
    slopes[:, ::2] = x - rest / WIDTH * 2 * BEND * x
    slopes[:, 1::2] = rest / WIDTH
    return (x**2 + rest**2).sum(axis=1) / 2, slopes


def banana_normals(points: np.ndarray) -> np.ndarray:
    """What is N(0, I) if points have the law of `banana`."""
    normals = points.copy()
    normals[:, 1::2] = (points[:, 1::2] - BEND * (points[:, ::2] ** 2 - 1)) / WIDTH
    return normals


TARGETS = {
    "Gaussian": (gaussian, gaussian_normals, np.ones(D), np.linalg.cholesky(ROOT @ ROOT.T)),
    "banana": (banana, banana_normals, np.zeros(D), np.eye(D)),
}


FACTORS = {"Gaussian": 1.5, "banana": 2.0}


class Sites:
    """Answers of one site, with the number and the shapes of what it was sent."""

    def __init__(self, potential: Potential) -> None:
        self.potential, self.messages = potential, 0
        self.shapes: set[tuple[int, ...]] = set()

    def answer(self, conversation: Any) -> Any:
        """Return the end of a conversation."""
        try:
            query = next(conversation)
            while True:
                assert query.function == "slopes"
                self.messages += 1
                self.shapes.add(query.arrays["points"].shape)
                values, gradients = self.potential(query.arrays["points"])
                base = self.potential(query.arrays["reference"][None])[0]
                query = conversation.send({"potentials": values - base, "gradients": gradients})
        except StopIteration as end:
            return end.value


def near(name: str, rng: np.random.Generator) -> np.ndarray:
    """Starts near the posterior: a wide proposal's points, resampled by their weights."""
    potential, _, centre, root = TARGETS[name]
    normals = rng.normal(size=(8000, D)) / np.sqrt(rng.chisquare(4, size=(8000, 1)) / 4)
    points = centre + 1.3 * normals @ root.T
    logs = -potential(points)[0] + (4 + D) / 2 * np.log1p((normals**2).sum(axis=1) / 4)
    return mixing.resampled(points, np.exp(logs - logs.max()), COUNT, rng)


def settled(name: str, seed: int, most_messages: int = 40) -> tuple[chains.Ensemble, Sites]:
    """Chains after their warm-up, and the sites that have answered them."""
    rng = np.random.default_rng(seed)
    sites = Sites(TARGETS[name][0])
    _, _, centre, root = TARGETS[name]
    starts = near(name, rng)
    # A root that is wrong by a factor of two to four.
    warmup = chains.settle(starts, centre, 2 * root, centre + 0.1, rng, most_messages)
    return sites.answer(warmup), sites


def standard_errors(normals: np.ndarray) -> np.ndarray:
    """Between independent draws of N(0, I) and its moments, quantiles and correlations."""
    n, d = normals.shape
    levels = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    below = (normals[:, :, None] < stats.norm.ppf(levels)).mean(axis=0)
    upper = np.triu_indices(d, 1)
    parts = [
        normals.mean(axis=0) * np.sqrt(n),
        ((normals**2).mean(axis=0) - 1) * np.sqrt(n / 2),
        ((below - levels) / np.sqrt(levels * (1 - levels) / n)).ravel(),
        (normals.T @ normals / n)[upper] * np.sqrt(n),
        (normals.T @ (normals**2 - 1) / n)[upper] * np.sqrt(n / 2),
    ]
    return np.concatenate(parts)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", list(TARGETS))
def test_chains_have_the_law_of_the_posterior_unless_all_is_accepted(
    name: str, exact: bool, monkeypatch: Any
) -> None:
    ensemble, sites = settled(name, seed=3)
    assert ensemble.settled
    if not exact:
        monkeypatch.setattr(chains, "_accepted", lambda rates, rng: rates > 0)
    # Larger steps than usual, so that the Metropolis test has much to reject.
    ensemble = replace(ensemble, step_size=FACTORS[name] * ensemble.step_size)
    rng = np.random.default_rng(4)
    # So many that copies of one start are independent.
    for _ in range(20):
        ensemble = sites.answer(chains.trajectory(ensemble, rng))
    found = np.abs(standard_errors(TARGETS[name][1](ensemble.positions))).max()
    # 93 gates of 4.5 standard errors, a false alarm in 1,500 seeds.
    assert (found < 4.5) == exact, found
    assert 0.4 < ensemble.acceptance < 0.85
    assert abs(ensemble.correlation) < 0.8


@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize("seed", range(4))
def test_chains_that_start_near_the_posterior_settle_in_a_few_messages(
    name: str, seed: int
) -> None:
    ensemble, sites = settled(name, seed)
    assert ensemble.settled
    assert ensemble.obstacles() == []
    assert ensemble.trajectories <= 5
    assert sites.messages == ensemble.messages <= {"Gaussian": 20, "banana": 40}[name]
    assert sites.shapes == {(COUNT, D)}


@pytest.mark.parametrize("most", [1, 2, 6, 11])
def test_no_more_messages_are_used_than_allowed(most: int) -> None:
    ensemble, sites = settled("banana", 1, most_messages=most)
    assert sites.messages == ensemble.messages <= most
    assert not ensemble.settled
    assert ensemble.obstacles()
    assert ensemble.positions.shape == (COUNT, D)


def test_a_frozen_kernel_does_not_change_and_counts_its_messages() -> None:
    ensemble, sites = settled("banana", 2)
    after = sites.answer(chains.trajectory(ensemble, np.random.default_rng(0)))
    again = sites.answer(chains.trajectory(ensemble, np.random.default_rng(0)))
    np.testing.assert_array_equal(after.positions, again.positions)
    assert after.step_size == ensemble.step_size
    assert after.length == ensemble.length
    assert after.metric is ensemble.metric
    assert after.messages == ensemble.messages + ensemble.steps


def two_modes(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """U and its gradient of two normal densities that are 20 standard deviations apart."""
    side = np.sign(points[:, :1])
    away = points.copy()
    away[:, :1] -= 10 * side
    return (away**2).sum(axis=1) / 2, away


def test_superchains_in_different_modes_are_not_called_settled() -> None:
    rng = np.random.default_rng(5)
    starts = rng.normal(size=(COUNT, 2))
    starts[:, 0] += np.where(np.arange(COUNT) < 0.7 * COUNT, 10, -10)
    centre, root = starts.mean(axis=0), np.linalg.cholesky(np.cov(starts.T))
    found = Sites(two_modes).answer(chains.settle(starts, centre, root, centre, rng, 100))
    assert not found.settled
    assert any("R-hat" in text for text in found.obstacles())
    # Negative control: modes that are dealt to all superchains alike cannot be seen.
    mixed = rng.permutation(starts)
    found = Sites(two_modes).answer(chains.settle(mixed, centre, root, centre, rng, 100))
    assert not any("R-hat" in text for text in found.obstacles())


@pytest.mark.parametrize("most", [8, 24, 40])
def test_superchains_that_agree_but_move_together_are_not_called_settled(most: int) -> None:
    rng = np.random.default_rng(6)
    # All begin six standard deviations out, with a root that is ten times too narrow.
    root = 0.1 * TARGETS["Gaussian"][3]
    starts = 1 + 6 * ROOT[:, -1] + rng.normal(size=(COUNT, D)) @ root.T
    found = Sites(gaussian).answer(chains.settle(starts, np.ones(D), root, np.ones(D), rng, most))
    assert found.trajectories > chains.MIN_TRAJECTORIES
    assert not found.settled
    assert any("drift" in text for text in found.obstacles())
    assert not any("R-hat" in text for text in found.obstacles())


def test_what_time_can_mend_is_not_called_rough() -> None:
    sound = mixing.Measured(0.8, 1.0, 0.0, 0.0, 0.1, 0.0, 0.0, 1.0)
    assert not sound._replace(nested_r_hat=2.0, excess=1.0, drift=1.0).roughness()
    for name in ("idle", "divergent", "bfmi"):
        assert sound._replace(**{name: 0.01}).roughness()
        assert sound._replace(**{name: math.nan}).roughness()


def test_shares_of_few_chains_may_be_above_their_bounds_by_chance() -> None:
    sound = mixing.Measured(0.8, 1.0, 0.0, 0.0, 0.1, 0.0, 0.0, 1.0)
    for name in ("idle", "divergent"):
        by_chance = sound._replace(**{name: 0.004})
        assert by_chance.roughness()
        assert not by_chance.roughness(1024)  # four, where two are allowed
        assert sound._replace(**{name: 0.008}).roughness(1024)
    assert sound._replace(bfmi=0.2).roughness(1024)
    assert sound._replace(bfmi=0.4, steepness=20.0).roughness(1024)


def test_energies_of_long_tails_are_not_those_of_a_neck() -> None:
    sound = mixing.Measured(0.8, 1.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.4)
    assert not sound._replace(steepness=2.0).roughness()
    for steepness in (20.0, math.inf, math.nan):
        assert sound._replace(steepness=steepness).roughness()

    def student(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        squares = (points**2).sum(axis=1)
        return (3 + D) / 2 * np.log1p(squares / 3), (3 + D) * points / (3 + squares)[:, None]

    rng = np.random.default_rng(5)
    starts = rng.normal(size=(COUNT, D)) / np.sqrt(rng.chisquare(3, (COUNT, 1)) / 3)
    settle = chains.settle(starts, np.zeros(D), np.eye(D), np.zeros(D), rng, 60)
    found = Sites(student).answer(settle)
    assert found.settled
    assert found.measured.bfmi < mixing.MIN_BFMI_OF_STEEP


def test_a_metric_that_is_not_adapted_yet_is_not_taken_for_a_funnel() -> None:
    scales = np.geomspace(0.1, 3, D)

    def gaussian(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (points**2 / scales**2).sum(axis=1) / 2, points / scales**2

    rng = np.random.default_rng(3)
    starts = np.repeat(rng.normal(size=(16, D)), COUNT // 16, axis=0)
    settle = chains.settle(starts, np.zeros(D), np.eye(D), np.zeros(D), rng, 60, most_rough=20)
    found = Sites(gaussian).answer(settle)
    assert found.settled
    assert found.messages > 20


def test_a_funnel_whose_neck_is_not_reached_is_not_called_settled() -> None:
    def funnel(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scale, rest = points[:, :1], points[:, 1:]
        squares = (rest**2).sum(axis=1, keepdims=True) * np.exp(-2 * scale)
        slopes = scale / 4 - squares + D - 1
        values = scale**2 / 8 + squares / 2 + (D - 1) * scale
        return values[:, 0], np.concatenate([slopes, rest * np.exp(-2 * scale)], axis=1)

    rng = np.random.default_rng(7)
    scale = 2 * rng.normal(size=(COUNT, 1))
    starts = np.concatenate([scale, np.exp(scale) * rng.normal(size=(COUNT, D - 1))], axis=1)
    root = np.linalg.cholesky(np.cov(starts.T))
    found = Sites(funnel).answer(chains.settle(starts, np.zeros(D), root, np.zeros(D), rng, 60))
    assert not found.settled
    assert any("BFMI" in text or "move" in text for text in found.obstacles())
    early = Sites(funnel).answer(
        chains.settle(starts, np.zeros(D), root, np.zeros(D), rng, 60, most_rough=30)
    )
    assert early.rough
    assert early.trajectories >= chains.MIN_TRAJECTORIES
    assert early.messages <= 30 < found.messages


def test_what_is_not_finite_is_rejected() -> None:
    """Exponential variables: their density is not defined below zero."""

    def wall(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outside = (points < 0).any(axis=1)
        return np.where(outside, np.nan, points.sum(axis=1)), np.ones_like(points)

    rng, sites = np.random.default_rng(8), Sites(wall)
    starts = rng.exponential(size=(COUNT, 2))
    # One that begins where there is no density comes back.
    starts[0] = -0.01
    found = sites.answer(chains.settle(starts, np.ones(2), np.eye(2), np.ones(2), rng, 60))
    for _ in range(10):
        found = sites.answer(chains.trajectory(found, rng))
    positions = found.positions
    assert (positions > 0).all()
    normals = stats.norm.ppf(stats.expon.cdf(positions))
    # 16 gates of 4.5 standard errors.
    assert np.abs(standard_errors(normals)).max() < 4.5


def test_a_diagonal_metric_learns_scales() -> None:
    scales = np.logspace(-1, 1, 40)

    def independent(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slopes = points / scales**2
        return (points * slopes).sum(axis=1) / 2, slopes

    rng, sites = np.random.default_rng(9), Sites(independent)
    starts = scales * rng.normal(size=(COUNT, 40)) * 0.8
    found = sites.answer(chains.settle(starts, np.zeros(40), np.ones(40), np.zeros(40), rng, 60))
    assert found.settled
    assert found.metric.shape == (40,)
    np.testing.assert_allclose(found.metric / scales, 1, atol=0.15)
    for _ in range(6):
        found = sites.answer(chains.trajectory(found, rng))
    assert np.abs(standard_errors(found.positions / scales)).max() < 4.5


def test_nested_r_hat_is_that_of_arviz() -> None:
    rng = np.random.default_rng(0)
    count = 20 * mixing.MAX_SUPERCHAINS
    own = np.arange(count) // 20
    values = rng.normal(size=(count, 2)) + [0.0, 0.5] * rng.normal(size=own.max() + 1)[own, None]
    between, within, groups, size = mixing.nested_variances(values)
    assert (groups, size) == (mixing.MAX_SUPERCHAINS, 20)
    # ArviZ wants four draws of a chain; of equal ones the variance within it is none.
    wanted = [
        arviz_stats.rhat_nested(
            np.repeat(values[:, [place]], 4, axis=1),
            superchain_ids=own,
            method="identity",
            chain_axis=0,
            draw_axis=1,
        )
        for place in range(2)
    ]
    found = np.sqrt(1 + between / within)
    np.testing.assert_allclose(found, np.ravel(wanted), rtol=1e-9)
    assert found[0] < 1.05 < found[1]


def test_copies_of_a_resampled_point_are_neighbours() -> None:
    rng = np.random.default_rng(1)
    weights = rng.exponential(size=50)
    found = mixing.resampled(np.arange(50.0)[:, None], weights, 400, rng)[:, 0]
    assert (np.diff(found) != 0).sum() == len(np.unique(found)) - 1
    counts = np.bincount(found.astype(int), minlength=50)
    assert (np.abs(counts - 400 * weights / weights.sum()) < 1).all()


def test_too_few_chains_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="at least 16 chains, got 8"):
        next(chains.settle(np.ones((8, 2)), np.zeros(2), np.eye(2), np.zeros(2), rng, 9))


# --- what no chain has visited -------------------------------------------------------------------


def faults_of(
    log_density: Callable[[np.ndarray], np.ndarray], places: np.ndarray, farthest: float = np.inf
) -> Any:
    """What the algorithm says of where chains are, given a log-density."""
    d = places.shape[1]
    target = SimpleNamespace(dimension=d, dtype=np.float32)
    server = algorithm.Server(
        SimpleNamespace(target=target, farthest=farthest),  # type: ignore[arg-type]
        4000,
        np.random.default_rng(0),
        np.zeros(d),
        memory.Memory(np.zeros((0, d))),
    )
    server.scale = PriorScale(np.zeros(d), np.ones(d))
    asking = algorithm._unvisited(server, places)
    query = next(asking)
    assert query.function == "log_densities"
    assert np.abs(query.arrays["points"]).max() <= min(farthest, 1e6) * (1 + 1e-6)
    with pytest.raises(StopIteration) as end:
        asking.send({"potentials": -log_density(np.asarray(query.arrays["points"], float))})
    return end.value.value


def test_a_mode_that_no_chain_has_visited_is_told() -> None:
    places = np.random.default_rng(1).normal(size=(2000, 3))

    def one(points: np.ndarray) -> np.ndarray:
        return -0.5 * (points**2).sum(axis=1)

    def two(points: np.ndarray) -> np.ndarray:
        other = -0.5 * (((points - [12.0, 0, 0]) / 3) ** 2).sum(axis=1)
        return np.logaddexp(one(points), other)

    assert faults_of(one, places) == ()
    faults_of(two, places, farthest=5)  # looks no farther
    (fault,) = faults_of(two, places)
    assert "beyond all of them" in str(fault)


def test_a_trough_between_the_chains_hides_no_mode() -> None:
    sides = np.where(np.arange(2000) % 2, -4.0, 4.0)
    places = sides[:, None] + np.random.default_rng(3).normal(size=(2000, 1)) / 10

    def three(points: np.ndarray) -> np.ndarray:
        each = [-50.0 * (points[:, 0] - middle) ** 2 for middle in (-4.0, 4.0, 34.0)]
        wide = -0.5 * ((points[:, 0] - 30) / 5) ** 2
        return np.logaddexp.reduce([*each, wide])

    assert len(faults_of(three, places)) == 1


def test_a_tail_that_no_chain_has_visited_is_told() -> None:
    places = np.random.default_rng(2).normal(size=(2000, 2))

    def long(points: np.ndarray) -> np.ndarray:
        right = np.where(points[:, 0] > 0, 12.0, 1.0)
        return -0.5 * (points[:, 0] / right) ** 2 - 0.5 * points[:, 1] ** 2

    assert len(faults_of(long, places)) == 1
