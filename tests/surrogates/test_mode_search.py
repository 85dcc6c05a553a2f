"""The search reaches modes in a few messages, and asks for nothing that sites would refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from scipy import special

from consortia.engines.messages.plausible import MAXIMUM_POSITION
from consortia.surrogates import mode_search as search

Derivatives = Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]
SHRUNK = np.array([1.0, 0.5, 0.2, 0.0])[:, None]


def anywhere(best: np.ndarray, points: np.ndarray) -> np.ndarray:
    """No bound."""
    return points


def answered(
    conversation: search.Search, target: Derivatives, seen: list[np.ndarray] | None = None
) -> search.Found:
    """The end of a search whose queries one site answers; ``seen`` takes the points."""
    messages = 0
    try:
        query = next(conversation)
        while True:
            messages += 1
            points = query.arrays["points"]
            assert points.shape == (search.CANDIDATES, points.shape[1])
            if seen is not None:
                seen.append(points)
            base = target(query.arrays["reference"])[0]
            values, gradients, curvatures = zip(*map(target, points), strict=True)
            reply = {"potentials": np.array(values) - base, "gradients": np.stack(gradients)}
            if query.function == "derivatives":
                upper = np.triu_indices(points.shape[1])
                reply["curvatures"] = np.stack(curvatures)[:, *upper]
            else:
                assert query.function == "slopes"
            query = conversation.send(reply)
    except StopIteration as end:
        found: search.Found = end.value
    assert found.messages == messages
    return found


def regression() -> Derivatives:
    """Linear regression with log σ and columns of scale 1e-4, 1 and 1e4."""
    rng = np.random.default_rng(2)
    x = np.column_stack([np.ones(120), rng.normal(size=(120, 3)) * [1e-4, 1, 1e4]])
    y = 2 + x[:, 1:] @ [1e4, 1, 1e-4] + rng.normal(size=120)
    precision = 1 / np.array([10, 1e5, 10, 1e-3, 2]) ** 2

    def target(at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        rest, weight = y - x @ at[:4], math.exp(-2 * at[4])
        squares, pulls = (rest @ rest) * weight, x.T @ rest * weight
        value = 120 * at[4] + squares / 2 + precision @ at**2 / 2
        gradient = np.append(-pulls, 120 - squares) + precision * at
        curvature = np.diag(precision)
        curvature[:4, :4] += x.T @ x * weight
        curvature[4, :4] = curvature[:4, 4] = 2 * pulls
        curvature[4, 4] += 2 * squares
        return value, gradient, curvature

    return target


def test_the_mode_of_a_regression_is_reached_from_anywhere_in_a_few_messages() -> None:
    target, rng = regression(), np.random.default_rng(3)
    bound = search.within(np.zeros(5), np.array([10, 1e5, 10, 1e-3, 2]))
    modes = []
    for start in (np.zeros(5), *rng.normal(size=(10, 5)) * 2):
        found = answered(search.find_mode(SHRUNK * start, start, bound, 20), target)
        assert found.converged
        assert found.messages <= 8
        # Without points between it and the centre of the prior a start takes longer.
        alone = answered(search.find_mode(start[None], start, bound, 20), target)
        assert alone.converged
        modes.append(alone)
        np.testing.assert_allclose(
            found.potential, target(found.best)[0] - target(start)[0], rtol=1e-9
        )
        modes.append(found)
    for other in modes:
        # Within a quarter of a standard deviation.
        away = np.linalg.solve(modes[0].root, other.position - modes[0].position)
        assert np.linalg.norm(away) < 0.25
    wanted = np.linalg.inv(target(modes[0].best)[2])
    scale = np.sqrt(np.diag(wanted))
    found_scale = np.sqrt((modes[0].root ** 2).sum(axis=1))
    np.testing.assert_allclose(found_scale, scale, rtol=1e-4)


def logistic() -> Derivatives:
    """Logistic regression on columns that measure nearly the same, with a prior N(0, 1)."""
    rng = np.random.default_rng(8)
    x = 3 * rng.normal(size=(300, 1)) + 0.3 * rng.normal(size=(300, 4))
    y = (x[:, 0] > rng.logistic(size=300)).astype(float)

    def target(at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        logits = x @ at
        chance = special.expit(logits)
        value = np.logaddexp(0, logits).sum() - y @ logits + at @ at / 2
        curvature = (x.T * (chance * (1 - chance))) @ x + np.eye(4)
        return value, x.T @ (chance - y) + at, curvature

    return target


@pytest.mark.parametrize("bounded", [True, False])
def test_no_candidate_is_farther_than_sites_answer(bounded: bool) -> None:
    """A policy refuses positions 10 standard deviations of the prior away, unless it says more."""
    assert search.FAR < MAXIMUM_POSITION
    target, rng, seen = logistic(), np.random.default_rng(8), list[np.ndarray]()
    bound = search.within(np.zeros(4), np.ones(4)) if bounded else anywhere
    for start in rng.normal(size=(10, 4)):
        # Where all predictions are sure the curvature is that of the prior: steps are long.
        found = answered(search.find_mode(start[None], start, bound, 20), target, seen)
        assert found.converged
        assert found.messages <= 10
    farthest = np.abs(np.concatenate(seen)).max()
    assert (farthest <= search.FAR + 1e-9) == bounded
    assert (farthest > MAXIMUM_POSITION) == (not bounded)


def test_a_mode_far_out_in_the_prior_is_still_reached() -> None:
    """Thirty standard deviations from its centre: the prior is wrong, but the posterior proper."""

    def target(at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        value = at @ at / 2 + 1000 * ((at - 29) ** 2 + (at - 31) ** 2).sum() / 2
        return value, 2001 * at - 60_000, 2001 * np.eye(2)

    seen: list[np.ndarray] = []
    bound = search.within(np.zeros(2), np.ones(2))
    found = answered(search.find_mode(np.zeros((1, 2)), np.zeros(2), bound, 20), target, seen)
    assert found.messages <= 6
    np.testing.assert_allclose(found.position, 30 * 2000 / 2001, rtol=1e-9)
    # Twice as far out with each message, and no farther.
    reached = [np.abs(points).max() for points in seen]
    assert max(reached[:2]) <= search.FAR
    assert all(b <= 2 * max(a, search.FAR) for a, b in pairwise(reached))


def test_a_saddle_is_left() -> None:
    def target(at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        a, b = at
        rest = a * b - 2
        gradient = np.array([2 * rest * b + a / 5, 2 * rest * a + b / 5])
        cross = 2 * rest + 2 * a * b
        curvature = np.array([[2 * b**2 + 0.2, cross], [cross, 2 * a**2 + 0.2]])
        return rest**2 + at @ at / 10, gradient, curvature

    conversation = search.find_mode(np.zeros((1, 2)), np.zeros(2), anywhere, 20)
    found = answered(conversation, target)
    assert found.converged
    assert found.messages < 15
    assert abs(found.position[0]) > 1


def barrier(at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Σ (x - log x), which is not defined below zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float((at - np.log(at)).sum()), 1 - 1 / at, np.diag(1 / at**2)


@pytest.mark.parametrize("start", [0.01, 1.9, 50.0])
def test_candidates_that_are_not_finite_do_not_count(start: float) -> None:
    at = np.full(3, start)
    found = answered(search.find_mode(at[None], at, anywhere, 20), barrier)
    assert found.converged
    np.testing.assert_allclose(found.position, 1, atol=0.1)


def test_a_search_without_a_finite_start_ends_at_once() -> None:
    at = np.full(3, -1.0)
    found = answered(search.find_mode(at[None], np.ones(3), anywhere, 20), barrier)
    assert not found.converged
    assert found.messages == 1
    assert "finite" in found.reason
    # One of several is enough.
    starts = np.stack([at, np.full(3, 2.0)])
    assert answered(search.find_mode(starts, np.ones(3), anywhere, 20), barrier).converged


def test_a_flat_direction_is_no_mode() -> None:
    def target(at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        return at[0] ** 2, np.array([2 * at[0], 0.0]), np.diag([2.0, 0.0])

    found = answered(search.find_mode(np.ones((1, 2)), np.ones(2), anywhere, 30), target)
    assert not found.converged
    assert found.messages <= 3 + search.MOST_IDLE
    assert "no step" in found.reason


def test_a_search_ends_where_the_rest_is_rounding() -> None:
    def target(at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        # Single precision far from zero, and gradients that are off by half a standard deviation.
        return round(float(at @ at)) / 2, at + 0.6, np.eye(1)

    found = answered(search.find_mode(np.zeros((1, 1)), np.zeros(1), anywhere, 20), target)
    assert found.converged
    assert found.decrement > search.CONVERGED
    assert found.messages <= 2


@pytest.mark.parametrize("most", [0, 1, 2])
def test_no_more_messages_are_used_than_allowed(most: int) -> None:
    start = np.full(5, 2.0)
    found = answered(search.find_mode(start[None], start, anywhere, most), regression())
    assert found.messages == most
    assert not found.converged
    assert f"within {most} messages" in found.reason
    assert found.root.shape == (5, 5)


def test_too_many_starts_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 8 starts, got 9"):
        search.find_mode(np.zeros((9, 2)), np.zeros(2), anywhere, 3)


# --- by gradients alone --------------------------------------------------------------------------


def many(at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """300 parameters with scales from 1 to 10, rows with heavy tails, and a prior N(0, 1)."""
    scales = np.logspace(0, 1, 300)
    rows = np.random.default_rng(5).normal(size=(8, 300))
    away = scales * (at - rows)
    roots = np.sqrt(1 + away**2)
    gradient = at + scales * (away / roots).sum(axis=0)
    return roots.sum() + at @ at / 2, gradient, 1 + scales**2 * (roots**-3).sum(axis=0)


def test_the_mode_of_300_parameters_is_reached_by_gradients_in_a_few_messages() -> None:
    start, seen = np.full(300, 3.0), list[np.ndarray]()
    bound = search.within(np.zeros(300), np.ones(300))
    conversation = search.find_mode_by_gradients(start, np.zeros(300), bound, 40)
    found = answered(conversation, many, seen)
    assert found.converged
    assert found.messages <= 20
    _, gradient, curvature = many(found.position)
    # Squared distance to the mode, in standard deviations; a point of the posterior has 300.
    assert np.sum(gradient**2 / curvature) < 0.05 * 300
    assert np.abs(np.concatenate(seen)).max() <= search.FAR + 1e-9
    assert found.root.shape == (300,)
    # One scale between the smallest and the largest.
    sd = 1 / np.sqrt(curvature)
    assert sd.min() < found.root[0] < sd.max()


def test_a_search_by_gradients_that_may_not_go_on_says_so() -> None:
    def rising(at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        # A gradient of the wrong sign: no step leads to a better point.
        return float(at @ at), -at, np.zeros(0)

    start = np.ones(250)
    found = answered(search.find_mode_by_gradients(start, start, anywhere, 30), rising)
    assert not found.converged
    assert found.messages == 1 + search.MOST_IDLE
    assert "no step" in found.reason
