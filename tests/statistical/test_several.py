"""No mode is missed under GOOD: shares of the draws at each mode beside those of a grid."""

from __future__ import annotations

import numpy as np
import pytest
from statistical.several import CASES

import consortia
from consortia.diagnostics.verdict import Severity
from consortia.surrogates import local_fits
from consortia.theory.expansion import Expansion

QUICK = ("sites that contradict one another", "a square")


def check(name: str, seed: int) -> None:
    case = CASES[name]()
    tree = case.run(seed)
    # none of these was refused or doubted in any seed tried
    assert consortia.summary(tree).verdict.severity is Severity.GOOD
    assert case.errors(tree).max() < 0.03


@pytest.mark.parametrize("name", QUICK)
def test_a_run_has_every_mode_with_its_mass(name: str) -> None:
    check(name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_every_mode_is_found_whatever_the_seed(name: str, seed: int) -> None:
    check(name, seed)


def test_the_scalar_of_the_sites_says_whether_they_ended_together() -> None:
    """Q of sites at one place is 0, of two a distance apart the square of it in their units."""
    matrix = np.array([[2.0, 0.5], [0.5, 1.0]])
    ends = np.array([[1.0, -1.0], [4.0, 1.0]])
    for away, expected in ((ends[[0, 0]], 0.0), (ends, None)):
        pulls = away @ matrix
        square = float(np.einsum("ni,ni->", pulls, away))
        apart = away - away.mean(axis=0)
        wanted = np.einsum("ni,ij,nj->", apart, matrix, apart) / 2 if expected is None else expected
        found = local_fits.cochran(2 * matrix, pulls.sum(axis=0), square, 2)
        assert found == pytest.approx(wanted, abs=1e-9)


def test_sites_with_few_rows_are_not_compared() -> None:
    """Two of three sites have two rows a parameter: Q has their difference alone."""
    triangle, pulls = np.array([[2.0, 0.0, 2.0]]), np.array([[4.0, 0.0]])
    answer = {"precisions": triangle, "pulls": pulls, "squares": np.array([[16.0]])}
    assert local_fits.disagreement(answer, np.array([9, 4, 3])) == pytest.approx((8.0, 2))
    assert local_fits.disagreement(answer, np.array([9, 3, 3])) is None
    hidden = answer | {"squares": np.array([[7.0]])}  # by rounding below what the mean takes
    assert local_fits.disagreement(hidden, np.array([9, 4, 3])) is None


def test_equal_sites_have_no_disagreement_to_speak_of() -> None:
    """Q of equal sites is 0 or, by rounding, less: nothing divides by it."""
    two, one = np.tile(2 * np.eye(2), (2, 1, 1)), np.eye(2)
    gradients, zero = np.ones((2, 2)), np.zeros(2)
    parts = (
        zero,
        two,
        gradients,
        one,
        zero,
        np.array([9, 9]),
        True,
        np.linalg.inv(4 * np.eye(2) + one),
    )
    assert Expansion(*parts).disagreement is None
    apart = np.array([[3.0, 0.0], [-1.0, 0.0]])
    q, freedom = Expansion(*parts[:2], apart, *parts[3:]).disagreement
    # estimates 4 / 2.5 apart, each with the precision 2.5
    assert (q, freedom) == (pytest.approx((4 / 2.5) ** 2 * 2.5 / 2), 2)
