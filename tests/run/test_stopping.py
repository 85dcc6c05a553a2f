"""A stopping rule looks at all coordinates, and says the worst."""

from __future__ import annotations

import numpy as np
import pytest

from consortia.diagnostics import rhat_and_ess
from consortia.run.stopping import stop_when

DRAWS = np.random.default_rng(0).normal(size=(4, 200, 11))
BAD = 100.0
"""Effective draws that a coordinate which stands still for long never has."""


def with_slow(coordinate: int) -> np.ndarray:
    """Return draws of which one coordinate moves slowly."""
    draws = DRAWS.copy()
    draws[:, :, coordinate] = np.repeat(DRAWS[:, ::40, coordinate], 40, axis=1)
    return draws


@pytest.mark.parametrize("slow", range(DRAWS.shape[2]))
def test_no_coordinate_is_passed_over(slow):
    rule = stop_when(ess=BAD)
    assert rule.reason(lambda: with_slow(slow), 0.0) is None


@pytest.mark.parametrize("dimension", [1, 2, 3, 11])
def test_the_reason_has_the_worst_numbers_of_all_coordinates(dimension):
    draws = DRAWS[:, :, :dimension]
    rule = stop_when(rhat=1.2, ess=BAD)
    worst = rhat_and_ess(draws)
    expected = f"R-hat {worst.max_r_hat:.4g} <= 1.2 and ESS {worst.min_ess:.4g} >= {BAD:g}"
    assert rule.reason(lambda: draws, 0.0) == expected
