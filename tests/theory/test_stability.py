"""The step that stale Langevin steps bear is that of their law, at any number of workers."""

from __future__ import annotations

import math

import insides
import pytest

import consortia
from consortia.theory import staleness as oracles

CURVATURE = 11.0


@pytest.mark.parametrize("staleness", [0, 1, 7, 31])
@pytest.mark.parametrize("share", [0.99, 1.01])
def test_a_stale_step_is_refused_where_its_law_is_not_stable(staleness: int, share: float) -> None:
    limit = 2 * math.sin(math.pi / (4 * staleness + 2))
    method = consortia.stale_sgld(share * limit / CURVATURE, workers=staleness + 1)
    found = insides.stale_step_settles(method, share * limit / CURVATURE, CURVATURE, staleness)
    assert found == oracles.stale_sgld_law(share * limit, 1.0, staleness).stable == (share < 1)


def test_neither_the_smallest_nor_the_largest_steps_are_rounded() -> None:
    method = consortia.stale_sgld(0.1, workers=600)
    assert insides.stale_step_settles(method, 1e-18, CURVATURE, 599)
    assert not insides.stale_step_settles(method, 1e200, CURVATURE, 599)
