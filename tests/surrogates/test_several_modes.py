"""Other modes: what rises along lines lead to, and what is said of those without draws."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core.prior import PriorScale
from consortia.surrogates import several_modes
from consortia.surrogates.proposals.memory import Memory, Weighted
from consortia.surrogates.proposals.rays import Line, along_lines, points_of, profile_of, within
from consortia.surrogates.several_modes import Mode


def of_direction() -> tuple[consortia.Model, consortia.Sites, np.ndarray]:
    """Return a direction with a wide prior, of which every turn is a mode, and each one's mass."""
    y = np.random.default_rng(2).vonmises(2.0, 2.0, 60).astype(np.float32)
    model = consortia.Model(
        lambda p: -((p["m"] / 3) ** 2) / 2,
        lambda p, rows: 2 * jnp.cos(rows["y"] - p["m"]),
        {"m": jnp.zeros(())},
    )
    grid = np.linspace(-20, 20, 100_001)
    heights = -((grid / 3) ** 2) / 2 + 2 * np.cos(y[:, None] - grid).sum(axis=0)
    mass = np.exp(heights - heights.max())
    turn = np.round((grid - 2.0) / (2 * np.pi))
    shares = np.array([mass[turn == k].sum() for k in (-1, 0, 1)]) / mass.sum()
    sites = consortia.Sites.from_list([{"y": part} for part in np.split(y, [15, 40])])
    return model, sites, shares


@pytest.mark.parametrize("seed", range(2))
def test_a_mode_that_fits_do_not_lead_to_has_its_share(seed: int) -> None:
    model, sites, shares = of_direction()
    tree = consortia.sample(
        model, sites, consortia.few_rounds(), chains=4, seed=seed, progress=False
    )
    draws = np.asarray(tree["posterior"]["m"]).ravel()
    turn = np.round((draws - 2.0) / (2 * np.pi))
    assert shares[0] > 0.2
    for k, share in zip((-1, 0, 1), shares, strict=True):
        error = np.sqrt(share * (1 - share) / 500)
        assert abs((turn == k).mean() - share) < 4 * error
    assert consortia.summary(tree).verdict.word == "good"
    assert [one["for"] for one in json.loads(tree.attrs["messages"])].count("modes") >= 1


def test_lines_reach_to_where_the_prior_does() -> None:
    scale = PriorScale(np.array([12.5, 0.0]), np.array([20.0, 1.0]))
    centre = np.array([0.0, 0.3])
    lines = several_modes.lines_to_prior(centre, scale, np.random.default_rng(0))
    points = np.concatenate([line.at(centre) for line in lines])
    assert len(points) == (several_modes.LINES + 4) * len(several_modes.SHARES)
    assert (points.min(axis=0) < [-30, -2]).all()
    assert (points.max(axis=0) > [55, 2]).all()


def test_a_rise_is_the_highest_place_behind_a_valley() -> None:
    centre = np.zeros(1)
    line = Line(np.ones(1), np.array([-3.0, -2, -1, 0, 1, 2, 3, 4]))
    heights = np.array([-90.0, -40, -10, 0, -10, -20, -5, -9])
    found = several_modes.rises([profile_of(line, heights)], centre)
    np.testing.assert_array_equal(found, [[3.0]])
    falling = np.array([-90.0, -40, -10, 0, -10, -20, -19, -30])
    assert several_modes.rises([profile_of(line, falling)], centre) == []


def ways_left(
    places: list[np.ndarray], centre: np.ndarray, potential: Callable[[np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Return the places without a way uphill, with a proposal that predicts the centre alone."""
    profiles = [
        profile_of(*pair)
        for line in several_modes.ways_to(places, centre, 4000)
        for pair in along_lines([line], -potential(points_of([line], centre)))
    ]
    ratios = [np.where(profile.line.steps == 0, 0.0, 50.0) for profile in profiles]
    return several_modes.not_uphill(places, list(zip(profiles, ratios, strict=True)))


def test_a_rise_that_bends_lies_below_the_mode_by_one_way() -> None:
    """A coefficient far off beside a large scale: the straight line has a valley."""

    def potential(x: np.ndarray) -> np.ndarray:
        b, s = x.T
        return 20 * s + 10 * (b**2 + 1) * np.exp(-2 * s)

    centre, rise = np.zeros(2), np.array([-18.0, 2.3])
    line = Line(rise, np.linspace(0.1, 1.0, 10))
    falls = potential(points_of([line], centre))
    assert falls.max() > falls[-2] + 20
    assert ways_left([rise], centre, potential) == []


@pytest.mark.parametrize("other", [(20.0, 0.0), (20.0, 20.0)])
def test_a_rise_at_another_mode_has_no_way_uphill(other: tuple[float, float]) -> None:
    def potential(x: np.ndarray) -> np.ndarray:
        away = [((x - at) ** 2).sum(axis=1) / 2 for at in (np.zeros(2), np.array(other))]
        return -np.logaddexp(-away[0], -away[1])

    for rise in (np.array(other), np.array(other) + 2.0):
        (left,) = ways_left([rise], np.zeros(2), potential)
        np.testing.assert_array_equal(left, rise)


def test_a_place_without_ways_is_climbed_from() -> None:
    """A message has room for the ways to a few places."""
    places = [np.full(14, 5.0)] * 7
    lines = several_modes.ways_to(places, np.zeros(14), 4000)
    points = sum(line.steps.size for line in lines)
    assert 0 < points <= several_modes.OF_WAYS * 4000
    left = ways_left(places, np.zeros(14), lambda x: (x**2).sum(axis=1))
    assert len(left) == 7 - len(lines) // 28


def climbed(asking: Any, answer: Callable[[np.ndarray], dict[str, np.ndarray]]) -> tuple[Any, int]:
    """Return the ends of climbs, and how many messages they took."""
    query, messages = next(asking), 1
    while True:
        try:
            query, messages = asking.send(answer(query.arrays["points"])), messages + 1
        except StopIteration as end:
            return end.value, messages


def test_a_climb_alone_tries_several_steps_in_a_message() -> None:
    """Beside modes that have ended, eight steps are tried at once; one took 9 messages."""

    def answer(points: np.ndarray) -> dict[str, np.ndarray]:
        b, s = points.T  # a coefficient, and the logarithm of a scale, of 20 rows
        flat, square = 20 * np.exp(-2 * s), b**2 + 1
        curvature = [flat + 0.01, -2 * b * flat, 2 * square * flat]
        return {
            "potentials": square * flat / 2 + 20 * s + 0.005 * b**2,
            "gradients": np.stack([b * flat + 0.01 * b, 20 - square * flat], axis=1),
            "curvatures": np.stack(curvature, axis=1),
        }

    starts = np.array([[0.0, 0.0], [-18.0, 2.3]])
    asking = several_modes.climb(starts, np.zeros(2), lambda best, points: points)
    ended, messages = climbed(asking, answer)
    assert [mode.reached for mode in ended] == [True, True]
    np.testing.assert_allclose(ended[1].position, [0, 0], atol=0.02)
    assert messages <= 7


def test_climbs_share_their_messages_and_end_at_unlike_modes() -> None:
    def answer(points: np.ndarray) -> dict[str, np.ndarray]:
        x = points[:, 0]  # U = 3 (x² − 4)² / 16, modes ±2, curvature 6
        curvature = (9 * x**2 - 12) / 4
        gradient = 3 * (x**2 - 4) * x / 4
        potential = 3 * (x**2 - 4) ** 2 / 16
        return {
            "potentials": potential,
            "gradients": gradient[:, None],
            "curvatures": curvature[:, None],
        }

    asking = several_modes.climb(
        np.array([[0.3], [-5.0], [2.2]]), np.zeros(1), lambda best, points: points
    )
    ended, messages = climbed(asking, answer)
    modes = several_modes.distinct(ended)
    assert messages < several_modes.MOST_CLIMBED
    assert all(mode.reached for mode in modes)
    np.testing.assert_allclose(sorted(float(m.position[0]) for m in modes), [-2, 2], atol=0.02)


def test_a_mode_without_draws_is_unknown_with_its_place() -> None:
    modes = [Mode(np.array([at, 1.0]), np.eye(2) / 4, 0.0, True) for at in (0.0, 20.0)]
    draws = np.random.default_rng(0).normal([0, 1], 0.5, (200, 2))
    both, none = np.concatenate([draws, draws + np.array([20, 0])]), Memory(np.zeros((0, 2)))
    (fault,) = several_modes.unseen(modes, [], none, draws)
    assert "near (20, 1)" in fault.text
    assert fault.unseen
    assert several_modes.unseen(modes, [], none, both) == ()
    low = modes[1]._replace(potential=9.0)  # e⁻⁹ of the mass
    assert several_modes.unseen([modes[0], low], [], none, draws) == ()


def test_a_guess_with_high_points_and_no_draws_is_unknown() -> None:
    guess = (np.array([20.0, 1.0]), np.eye(2) / 4)
    draws = np.random.default_rng(0).normal([0, 1], 0.5, (200, 2))
    points = np.array([[0.0, 1.0], [20.0, 1.2]])
    high = Memory(points, np.array([0.0, -3.0]))
    (fault,) = several_modes.unseen([], [guess], high, draws)
    assert "near (20, 1)" in fault.text
    low = Memory(points, np.array([0.0, -30.0]))  # nothing is there
    assert several_modes.unseen([], [guess], low, draws) == ()


def normal(points: np.ndarray, mean: float) -> np.ndarray:
    return -((points[:, 0] - mean) ** 2) / 2


def test_points_that_a_proposal_does_not_reach_are_uncovered_with_their_mass() -> None:
    """A fifth of the mass lies around 20, where the proposal is not."""
    points = np.concatenate([np.linspace(-3, 3, 61), 20 + np.linspace(-3, 3, 61)])[:, None]
    heights = np.logaddexp(normal(points, 0.0), normal(points, 20.0) + np.log(0.25))
    before = Weighted(points, heights, heights)  # drawn evenly
    mass, beyond = several_modes.uncovered(before, lambda x: normal(x, 0.0), 0.0)
    assert mass == pytest.approx(0.2, rel=1e-3)
    assert beyond.shape == (61, 1)
    assert beyond[0, 0] == pytest.approx(20.0)

    def of_both(x: np.ndarray) -> np.ndarray:
        return np.logaddexp(normal(x, 0.0), normal(x, 20.0) - 2)

    mass, beyond = several_modes.uncovered(before, of_both, 0.0)
    assert mass == 0.0
    assert not len(beyond)


def test_places_to_climb_from_are_spread_and_apart_from_known_modes() -> None:
    known = Mode(np.zeros(1), np.eye(1), 0.0, True)
    points = np.array([[20.0], [20.1], [19.9], [3.0], [-30.0], [40.0]])
    chosen = several_modes.spread_out([*points], [known], np.array([10.0]))
    assert [float(one[0]) for one in chosen[:3]] == [20.0, -30.0, 40.0]
    assert 3.0 not in [float(one[0]) for one in chosen]


def test_lines_without_steps_on_a_side_stay_within() -> None:
    scale = PriorScale(np.zeros(1), np.ones(1))
    (line,) = within([Line(np.ones(1), np.array([1.0, 4.0]))], np.zeros(1), scale, 2.0)
    np.testing.assert_allclose(line.steps, [0.5, 2.0])
    (none,) = within([Line(np.ones(1), np.zeros(0))], np.zeros(1), scale, 2.0)
    assert not none.steps.size
