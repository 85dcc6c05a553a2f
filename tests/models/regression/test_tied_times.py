"""Times that rounding sets apart are tied, as in R's survival."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import consortia
from consortia.data.followup import tied_times
from tests.refusals import refused

ROWS = 120
RNG = np.random.default_rng(5)
DAYS = RNG.integers(1, 40, ROWS).astype(float)
OTHER_WAY = RNG.random(ROWS) < 0.5
EVENT, X = RNG.integers(0, 2, ROWS), RNG.normal(size=ROWS)


def years(days: np.ndarray) -> np.ndarray:
    """Return days in years, half of them by another arithmetic."""
    first, second = days / 365.25, (days / 7) * (7 / 365.25)
    assert (first != second).any()
    return np.where(OTHER_WAY, first, second)


def rows_of(formula: str, table: dict[str, Any], family: str) -> Any:
    return consortia.regression(formula, {"a": table}, family=family).sites.site("a")


def test_ties_are_those_of_days_where_years_are_computed_in_two_ways() -> None:
    assert len(np.unique(years(DAYS))) > len(np.unique(DAYS))
    wanted = rows_of("Surv(t, e) ~ x", {"t": DAYS, "e": EVENT, "x": X}, "cox")
    found = rows_of("Surv(t, e) ~ x", {"t": years(DAYS), "e": EVENT, "x": X}, "cox")
    assert np.max(wanted["tie_share"]) > 0
    for name in ("last", "tie_share", "event", "x"):
        np.testing.assert_array_equal(found[name], wanted[name])


def test_a_row_that_starts_when_another_stops_is_not_yet_at_risk() -> None:
    start = np.where(DAYS > 17, 17.0, 0.0)
    made = {"s": start, "t": DAYS, "e": EVENT, "x": X}
    wanted = rows_of("Surv(s, t, e) ~ x", made, "cox")
    made |= {"s": years(start[::-1])[::-1], "t": years(DAYS)}
    found = rows_of("Surv(s, t, e) ~ x", made, "cox")
    for name in ("last", "tie_share", "first", "late", "later"):
        np.testing.assert_array_equal(found[name], wanted[name])


def test_a_start_that_is_the_stop_but_for_rounding_is_refused() -> None:
    made = {"s": 0 * DAYS, "t": DAYS / 365.25, "e": EVENT, "x": X}
    made["s"][7] = np.nextafter(made["t"][7], 0)
    with refused(site="a", match="start and stop are one day"):
        rows_of("Surv(s, t, e) ~ x", made, "cox")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([1.0, 1.0 + 1e-12, 2.0], [1.0, 1.0, 2.0]),
        ([1.0, 1.0 + 1e-6, 2.0], [1.0, 1.0 + 1e-6, 2.0]),
        ([1e-7, 2e-7, 3e-7], [1e-7, 2e-7, 3e-7]),
        ([5e9, 5e9 + 0.5, 1.0], [5e9, 5e9, 1.0]),
        ([3.0], [3.0]),
    ],
)
def test_times_are_equal_by_their_share_of_the_mean(
    given: list[float], wanted: list[float]
) -> None:
    np.testing.assert_array_equal(tied_times(np.array(given)), wanted)
