"""What an answer of sums over rows cannot be, and what it may be."""

from __future__ import annotations

import numpy as np

from consortia.engines.messages import nonfinite
from consortia.engines.messages.plausible import unlike_sums


def test_equal_numbers_about_different_points_are_no_sums() -> None:
    equal = {"potentials": np.full(20, 3.5, np.float32)}
    assert "all 20 numbers of 'potentials' are 3.5" in str(unlike_sums(equal, distinct=True))
    assert unlike_sums(equal, distinct=False) is None


def test_sums_that_are_not_finite_or_constant_curvatures_accuse_nobody() -> None:
    unknown = nonfinite.marked({"potentials": np.full(20, np.nan, np.float32)})
    assert unlike_sums(unknown, distinct=True) is None
    assert unlike_sums({"curvatures": np.full((8, 1), 3.5)}, distinct=True) is None
