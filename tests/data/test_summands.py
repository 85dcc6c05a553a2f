"""Moments as whole numbers that are added over sites, and what a site shows of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consortia.data.preparation import Moments, moments_of_all
from consortia.data.summands import BITS, coarse, of_names, pooled, summands
from consortia.errors import InputError

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 6))


def added(parts: list[list[object]]) -> Moments:
    totals = [sum(column) % (1 << BITS) for column in zip(*map(summands, parts), strict=True)]
    made = pooled(totals, map(coarse, parts))
    assert made is not None
    Moments.check_plain(made, made[0], None if np.ndim(made[1]) == 0 else len(made[1]))
    return Moments(*made)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(NUMBERS, min_size=1, max_size=9), min_size=1, max_size=4),
    st.sampled_from([1e-25, 1.0, 1e60]),
)
def test_sums_give_the_moments_of_all_rows(sites: list[list[float]], scale: float) -> None:
    parts = [Moments.of(np.array(values) * scale).plain() for values in sites]
    made, wanted = added(parts), moments_of_all(parts)
    assert made.rows == wanted.rows
    largest = scale * max(abs(value) for values in sites for value in values)
    np.testing.assert_allclose(made.centre, wanted.centre, atol=1e-12 * largest)
    np.testing.assert_allclose(made.sd, wanted.sd, rtol=1e-6, atol=1e-7 * largest)


def test_what_is_constant_or_a_level_at_all_sites_stays_so() -> None:
    parts = [Moments.of(np.full(n, 0.1)).plain() for n in (3, 7, 11)]
    made = added(parts)
    assert (bool(made.constant), float(made.centre), float(made.sd)) == (True, 0.1, 0.0)
    codes = [Moments.of(np.array(values, float)).plain() for values in ([0, 1, 1], [1, 1])]
    assert bool(added(codes).levels)
    assert not added([codes[0], Moments.of(np.array([0.5, 1.0])).plain()]).levels


def test_columns_of_a_matrix_are_added_one_by_one() -> None:
    rng = np.random.default_rng(3)
    matrices = [rng.normal([5.0, -2.0, 0.0], [1.0, 9.0, 0.0], (n, 3)) for n in (4, 30, 11)]
    parts = [Moments.of(matrix).plain() for matrix in matrices]
    made, wanted = added(parts), Moments.of(np.concatenate(matrices))
    np.testing.assert_allclose(made.mean, wanted.mean)
    np.testing.assert_allclose(made.sd, wanted.sd)
    assert np.asarray(made.constant).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("values", "mean", "sd"),
    [
        (np.array([120.0, 140.0, 160.3]), 140.0, 20.0),  # sd 16.4
        (np.array([0.011, 0.0153, 0.021]), 0.015, 0.005),
        (np.array([-3.3, 0.1, 3.5]), 0.1, 2.0),  # a mean below the sd is shown as that is
    ],
)
def test_a_site_shows_of_a_measurement_where_it_lies(
    values: np.ndarray, mean: float, sd: float
) -> None:
    seen = Moments(*coarse(Moments.of(values).plain()))
    assert (float(seen.mean), float(seen.sd)) == (pytest.approx(mean), pytest.approx(sd))


def test_a_site_shows_of_codes_which_they_are_and_not_how_many() -> None:
    shown = [
        coarse(Moments.of(np.repeat([1.0, 2.0], counts)).plain()) for counts in ([1, 9], [5, 5])
    ]
    assert shown[0] == shown[1]
    assert Moments(*shown[0]).lower_of_two == 1.0
    for values in ([0.0, 3.0, 7.0], [4.0, 4.0, 4.0]):
        assert Moments(*coarse(Moments.of(np.array(values)).plain())).lower_of_two is None
    several = [coarse(Moments.of(np.array(v)).plain()) for v in ([0.0, 3.0, 7.0], [1.0, 2.0, 5.0])]
    assert several[0] == several[1]
    matrix = [coarse(Moments.of(np.array(v)).plain()) for v in ([[1.5], [2.0]], [[7.5], [9.0]])]
    assert matrix[0] == matrix[1]


def test_a_site_without_a_column_adds_nothing() -> None:
    dose = Moments.of(np.array([1.0, 4.5])).plain()
    made = of_names({"dose": dose}, ("age", "dose"))
    assert made["age"] == [0, 0, 0]
    assert pooled(made["age"], []) is None
    with pytest.raises(ValueError, match="do not add up"):
        pooled([total + 1 for total in made["dose"]], [coarse(dose)])


def test_sums_of_no_numbers_are_refused() -> None:
    plain = Moments.of(np.array([1.0, 4.5, 7.0])).plain()
    rows, total, squares = summands(plain)
    for wrong in ([rows, total << 700, squares], [rows, total, squares // 9]):
        with pytest.raises(ValueError, match="of no numbers"):
            pooled([number % (1 << BITS) for number in wrong], [coarse(plain)])


def test_numbers_without_a_usable_square_are_refused() -> None:
    with pytest.raises(InputError, match="divide it"):
        summands(Moments.of(np.array([1e101, 2.5])).plain())
