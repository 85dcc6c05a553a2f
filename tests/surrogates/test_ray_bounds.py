"""Rays end where sites do not answer."""

from __future__ import annotations

import numpy as np
import pytest

from consortia.core.prior import PriorScale
from consortia.surrogates.proposals.rays import STEPS, lines_through, points_of, within

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
