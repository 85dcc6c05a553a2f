"""The coordinates in which a lopsided tail is that of a Gaussian."""

from __future__ import annotations

import numpy as np
import pytest

from consortia.surrogates.proposals.warp import Warp


@pytest.mark.parametrize("shape", [0.3, 3.0])
def test_the_map_is_inverted_within_its_knots_and_beyond(shape: float) -> None:
    rng = np.random.default_rng(0)
    knots = np.linspace(-6, 9, 120), np.cumsum(rng.gamma(shape, size=120) * 0.1 + 1e-3)
    warp = Warp(np.array([1.0, -2.0]), np.array([[0.5, 0], [0.2, 2]]), (knots, None))
    z = rng.uniform(-9, 12, (2000, 2))
    found, volume = warp.white(warp.positions(z))
    np.testing.assert_allclose(found, z, atol=1e-9)  # rounding of θ over a slope of 1e-3
    step = np.array([1e-6, 0.0])
    slope = (warp.positions(z + step) - warp.positions(z - step)) @ np.linalg.inv(warp.root).T
    away = np.min(np.abs(z[:, :1] - knots[0]), axis=1) > 1e-5  # G has kinks at knots
    expected = -np.log(slope[:, 0] / 2e-6) - np.log(np.linalg.det(warp.root))
    np.testing.assert_allclose(volume[away], expected[away], atol=1e-5)
