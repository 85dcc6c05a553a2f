"""Rays end where sites do not answer, and bend where the posterior does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from consortia.algorithms.few_rounds.limits import FIRST_REACH
from consortia.core.prior import PriorScale
from consortia.surrogates import several_modes
from consortia.surrogates.proposals.rays import (
    FAR,
    MOST_MISSED,
    MOST_MISSED_BENT,
    STEPS,
    Line,
    Profile,
    along_lines,
    far_lines,
    lines_through,
    not_covered,
    outward_lines,
    parabolas_through,
    points_of,
    profile_of,
    to_prior_end,
    within,
)

SCALE = PriorScale(np.array([1.0, 0.0]), np.array([2.0, 0.5]))
CENTRE = np.array([2.0, -1.0])


@pytest.mark.parametrize("farthest", [3.0, 10.0])
def test_no_point_of_a_ray_is_farther_out_than_sites_answer(farthest: float) -> None:
    lines = lines_through(np.array([[1.0, 0.3], [0.3, 0.4]]), 4, [])
    assert SCALE.distance(points_of(lines, CENTRE)).max() > farthest
    shorter = within(lines, CENTRE, SCALE, farthest)
    assert SCALE.distance(points_of(shorter, CENTRE)).max() == pytest.approx(farthest)
    for line, before in zip(shorter, lines, strict=True):
        assert (np.diff(line.steps) > 0).all()
        assert (np.sign(line.steps) == np.sign(before.steps)).all()


def test_without_a_bound_rays_stay_what_they_are() -> None:
    lines = lines_through(np.eye(2), 2, [])
    for line, before in zip(within(lines, CENTRE, SCALE, np.inf), lines, strict=True):
        np.testing.assert_array_equal(line.steps, before.steps)
    assert np.abs(lines[0].steps).max() == STEPS.max()


FALLS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], bool]] = {
    "a cauchy law": (lambda s: np.log1p(s**2), True),
    "a t of three degrees": (lambda s: 2 * np.log1p(s**2 / 3), True),
    "a cauchy law on one side": (lambda s: np.where(s > 0, np.log1p(s**2), s**2 / 2), True),
    "an exponential law": (lambda s: 0.3 * np.abs(s), False),
    "a normal law": (lambda s: s**2 / 200, False),
    "rows of a t": (lambda s: 40 * np.log1p(s**2 / 3), False),  # nothing is out there
    "a plateau before an exponential law": (
        lambda s: 6 * (1 - np.exp(-(s**2) / 9)) + 0.2 * np.abs(s),
        False,
    ),
    "another mode": (lambda s: np.abs(s) * np.abs(s - 40) / 50, False),
}


@pytest.mark.parametrize("name", FALLS)
def test_a_tail_like_a_power_is_seen_on_a_ray(name: str) -> None:
    fall, heavy = FALLS[name]
    steps = np.concatenate([-STEPS[::-1], [0.0], STEPS])
    assert Profile(Line(np.ones(1), steps), fall(steps)).heavy is heavy


@pytest.mark.parametrize(
    ("fall", "share"),
    [
        (lambda s: np.log1p(s**2), 0.08),  # of a Cauchy law .08 lies beyond 8, on a side
        (lambda s: s**2 / 2, 0.0),
        (np.abs, 0.0),
        (lambda s: np.where(s > 0, 30 + np.log1p(s**2), 0.0), 0.0),  # rows have ended it
    ],
)
def test_a_slow_tail_is_seen_far_out_with_its_share(
    fall: Callable[[np.ndarray], np.ndarray], share: float
) -> None:
    line = far_lines(PriorScale(np.zeros(1), np.full(1, 2.0)))[1]
    steps = np.concatenate([[0.0], line.steps])
    profile = Profile(line._replace(steps=steps), fall(2 * steps))
    assert profile.far_share(np.ones(1), 0.0) == pytest.approx(share, abs=0.05)
    assert (profile.far_share(np.ones(1), 0.0) > MOST_MISSED) == (share > 0)


def banana(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return draws with the bend .8 x² and the right weights of half of them."""
    first = rng.normal(size=count)
    points = np.stack([first, 0.8 * first**2 + 0.05 * rng.normal(size=count)], axis=1)
    return points, np.where(first < 0, 2.0, 0.0) / np.sum(2.0 * (first < 0))


def test_a_parabola_through_one_half_of_a_banana_lies_in_the_other() -> None:
    points, weights = banana(np.random.default_rng(0), 4000)
    curve, _ = parabolas_through(points, weights, np.zeros(2), 2)
    x, y = curve.at(np.zeros(2)).T
    near = np.abs(x) < 4
    assert x[near].max() > 2  # where no point has a weight
    np.testing.assert_allclose(y[near], 0.8 * x[near] ** 2, atol=0.1)


def test_what_a_proposal_lacks_of_a_bent_tail_is_seen_on_a_parabola_alone() -> None:
    """The proposal ends at x = 1.5; there the banana is 1.8 above its centre."""
    points, weights = banana(np.random.default_rng(0), 4000)

    def log_density(at: np.ndarray) -> np.ndarray:
        return -(at[:, 0] ** 2) / 2 - (at[:, 1] - 0.8 * at[:, 0] ** 2) ** 2 / 2 / 0.05**2

    straight = lines_through(np.cov(points.T), 4, [])
    curves = parabolas_through(points, weights, np.zeros(2), 2)
    missed = []
    for lines in (straight, curves):
        at = points_of(lines, np.zeros(2))
        ratio = np.where(at[:, 0] > 1.5, 50.0, 0.0)
        profiles = [profile_of(*one) for one in along_lines(lines, log_density(at))]
        values = [one for _, one in along_lines(lines, ratio)]
        missed.append([p.missed(v) for p, v in zip(profiles, values, strict=True)])
    assert max(mass for mass, _ in missed[0]) < 1e-3
    mass, ways = missed[1][0]  # of all points
    assert mass == pytest.approx(0.067, abs=0.04)  # P(x > 1.5)
    assert len(ways) == 1
    assert ways[0][1] / ways[0][0] == pytest.approx(1.5, abs=0.4)  # of a chord: .8 x


def test_where_both_tails_are_lacking_there_is_a_way_to_each() -> None:
    curve = Line(np.array([1.0, 0.0]), np.linspace(-4, 4, 801), np.array([0.0, 0.8]))
    profile = Profile(curve, curve.steps**2 / 2)
    mass, ways = profile.missed(np.where(np.abs(curve.steps) > 1.5, 50.0, 0.0))
    assert mass == pytest.approx(0.134, abs=0.02)
    np.testing.assert_allclose(ways, [[1.0, -1.55], [1.0, 1.55]], atol=0.1)


@pytest.mark.parametrize(("ratio", "share"), [(1.1, 0), (2.0, np.exp(-2)), (4.0, 1), (50.0, 1)])
def test_mass_is_missed_in_proportion_to_what_a_proposal_there_weighs(
    ratio: float, share: float
) -> None:
    line = Line(np.array([1.0, 0.0]), np.linspace(-6, 6, 1201))
    profile = Profile(line, line.steps**2 / 2)
    mass, _ = profile.missed(np.where(line.steps > 2, ratio, 0.0))
    assert mass == pytest.approx(share * stats.norm.sf(2), rel=0.02)


@pytest.mark.parametrize(("bend", "bound"), [(0.0, MOST_MISSED), (0.8, MOST_MISSED_BENT)])
@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_more_may_be_lacking_along_a_parabola(bend: float, bound: float, factor: float) -> None:
    curve = Line(np.array([1.0, 0.0]), np.linspace(-6, 6, 1201), np.array([0.0, bend]))
    profile = Profile(curve, curve.steps**2 / 2)
    beyond = stats.norm.isf(factor * bound)
    mass, ways = not_covered([profile], [np.where(curve.steps > beyond, 50.0, 0.0)])
    assert mass == pytest.approx(factor * bound, rel=0.1)
    assert bool(ways) == (factor > 1)


@pytest.mark.parametrize(("ratio", "noise", "seen"), [(1.5, 0.0, 1), (1.5, 0.4, 0), (2.5, 0.4, 1)])
def test_noise_of_sites_is_not_taken_for_what_is_not_covered(
    ratio: float, noise: float, seen: int
) -> None:
    line = Line(np.array([1.0, 0.0]), np.linspace(-6, 6, 25))
    ratios = np.where(line.steps == 1, ratio, 0.0)
    _, ways = not_covered([Profile(line, line.steps**2 / 2)], [ratios], noise)
    assert len(ways) == seen


def test_first_rays_of_sites_that_protect_rows_are_short() -> None:
    steps = np.array([-48.0, -12.0, -0.7, 0.7, 8.5, 17.0])
    assert Line(np.ones(1), steps).up_to(FIRST_REACH).steps.tolist() == [-12.0, -0.7, 0.7, 8.5]


def test_a_ridge_that_is_no_parabola_is_followed_on_each_side() -> None:
    x = np.random.default_rng(0).normal(size=20_000)
    points = np.stack([x, np.exp(x) - 1], axis=1)
    weights = np.full(len(x), 1 / len(x))
    whole, _, upper, _, lower, _ = parabolas_through(points, weights, np.zeros(2), 6)
    for curve, place in ((upper, 2.5), (lower, -2.5)):
        errors = []
        for one in (whole, curve):
            at = one._replace(steps=np.array([place / one.direction[0]])).at(np.zeros(2))
            errors.append(abs(at[0, 1] - np.expm1(at[0, 0])))
        assert errors[1] < errors[0]
    assert upper.steps.min() > 0 > lower.steps.max()


@pytest.mark.parametrize("farthest", [3.0, 10.0])
def test_a_parabola_ends_where_sites_do_not_answer(farthest: float) -> None:
    points, weights = banana(np.random.default_rng(0), 400)
    curves = within(parabolas_through(points, weights, CENTRE, 2), CENTRE, SCALE, farthest)
    assert SCALE.distance(points_of(curves, CENTRE)).max() <= farthest
    assert np.abs(curves[0].steps).max() > 0.5


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_a_heavy_combination_of_parameters_has_a_line_that_shows_it(scale: float) -> None:
    """A Cauchy law along (1, 2, -1): on every column and axis it ends as a normal one does."""
    rng, size = np.random.default_rng(4), 2000
    direction = np.array([1.0, 2.0, -1.0]) / np.sqrt(6)
    far = stats.cauchy.rvs(size=size, random_state=rng)
    points = rng.standard_normal((size, 3))
    points += np.outer(far - points @ direction, direction)
    units = np.array([1.0, 1.0, scale])
    line = outward_lines(points * units, np.full(size, 1 / size), np.zeros(3))[0]
    along = line.direction / units
    assert abs(along @ direction) == pytest.approx(np.linalg.norm(along), rel=1e-3)

    def height(x: np.ndarray) -> np.ndarray:
        t = x @ direction
        return -np.log1p(t**2) - ((x**2).sum(axis=1) - t**2) / 2

    (pair,) = along_lines([line], height(points_of([line], np.zeros(3)) / units))
    assert profile_of(*pair).heavy
    normal = outward_lines(rng.standard_normal((size, 3)), np.full(size, 1 / size), np.zeros(3))
    pairs = along_lines(normal, -(points_of(normal, np.zeros(3)) ** 2).sum(axis=1) / 2)
    assert not any(profile_of(*pair).heavy for pair in pairs)


def test_first_rays_end_with_the_prior_and_half_lines_have_no_points_beyond() -> None:
    """At 17 standard deviations 64 bits rounded gammaln(y + k) - gammaln(k) to a peak of 1,000."""
    centre = np.array([1.0, 0.0])
    through = [Line(axis, np.concatenate([-STEPS[::-1], STEPS])) for axis in np.eye(2)]
    lines = [*through, *far_lines(PriorScale(np.zeros(2), np.ones(2)))]
    points = points_of(lines, centre)
    log_prior = -(points[:, 0] ** 2) / 2 - np.log1p(points[:, 1] ** 2)  # normal and Cauchy
    normal, cauchy, *far = to_prior_end(lines, centre, log_prior)
    ends = normal.steps[[0, -1]] + 1
    # between the places of a ray a parabola is taken for a line
    np.testing.assert_allclose(ends, [-np.sqrt(201), np.sqrt(201)], rtol=0.04)
    assert len(normal.steps) == 2 * len(STEPS)
    np.testing.assert_array_equal(cauchy.steps, through[1].steps)
    assert [len(line.steps) for line in far] == [0, 0, len(FAR), len(FAR)]
    flat = to_prior_end(lines, centre, np.zeros(len(points)))
    for line, before in zip(flat, lines, strict=True):
        np.testing.assert_array_equal(line.steps, before.steps)


def test_an_empty_half_line_says_nothing_of_a_tail() -> None:
    half = Line(np.ones(1), FAR[:0])
    profile = profile_of(*along_lines([half], np.array([-3.0]))[0])
    assert profile.far_share(np.ones(1), 0.0) == 0
    assert not profile.heavy
    assert several_modes.rises([profile], np.zeros(1)) == []
