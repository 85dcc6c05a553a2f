"""The table of effects, from given draws."""

from __future__ import annotations

import numpy as np
import pytest

from consortia.models.regression.estimates import estimates_of


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_ratio_whose_exponential_is_no_number_has_finite_ends_and_no_warning(dtype: type) -> None:
    draws = np.random.default_rng(0).normal(0, (1, 2000), (4, 500, 2)).astype(dtype)
    table = estimates_of(
        {"coefficients": draws}, {"coefficients": [["x", "y"]]}, "odds ratio", 0.95
    )
    assert np.isfinite([table.lower, table.upper, table.median]).all()
    assert np.log(table.upper[0]) == pytest.approx(np.quantile(draws[..., 0], 0.975), rel=1e-3)
    assert table.above[1] == pytest.approx((draws[..., 1] > 0).mean())
