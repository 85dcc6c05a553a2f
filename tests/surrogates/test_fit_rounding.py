"""Local fits as they leave a site: with about two digits, right on average, equal where equal."""

from __future__ import annotations

import numpy as np
import pytest
from sparse import sparse

from consortia.engines.messages.questions import COARSEST
from consortia.surrogates.fit_rounding import rounded_fits
from consortia.surrogates.heterogeneity import moments, widened


def fits(d: int = 4, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Two fits, the first of them once more at the end; and the precisions."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(2, d, 3 * d))
    precisions = 20 * roots @ roots.transpose(0, 2, 1)
    triangles = np.stack([one[np.triu_indices(d)] for one in precisions])
    pulls = 30 * rng.normal(size=(2, d))
    answer = {"precisions": triangles[[0, 1, 0]], "pulls": pulls[[0, 1, 0]]}
    return answer, precisions


@pytest.mark.parametrize(
    ("rows", "count"),
    sparse(
        [(60, 300), (60, 3000), (280, 1000), (280, 3000), (10_000, 300), (10_000, 3000)],
        [(60, 300), (280, 1000), (10_000, 300)],
    ),
)
def test_the_error_is_half_a_sampling_error_at_most_and_as_it_is_stated(
    rows: int, count: int
) -> None:
    answer, precisions = fits()
    root = np.sqrt(np.diagonal(precisions[0]))
    first, second = np.triu_indices(4)
    made = [rounded_fits(answer, rows, np.random.default_rng(seed), 1.0) for seed in range(count)]
    moved = np.stack([one.arrays["precisions"][0] for one in made]) - answer["precisions"][0]
    scale = np.maximum(root[first] * root[second], np.abs(answer["precisions"][0]))
    assert (np.abs(moved) <= 0.5 / np.sqrt(rows) * scale).all()
    # A quarter of a standard deviation of the mode, wherever the reference is.
    mode = np.linalg.solve(precisions[0], answer["pulls"][0])
    triangles = np.stack([one.arrays["precisions"][0] for one in made])
    rounded = np.zeros((len(made), 4, 4))
    rounded[:, first, second] = rounded[:, second, first] = triangles
    pulls = np.stack([one.arrays["pulls"][0] for one in made]) - rounded @ mode
    assert (np.abs(pulls) <= 0.25 * root).all()
    for name, errors in (("precisions", moved), ("pulls", pulls)):
        stated = made[0].errors[name][0]
        assert (np.abs(errors.mean(axis=0)) < 5 * stated / np.sqrt(count)).all()
        # sqrt(6) is that of a number which lies anywhere between two multiples of its unit
        over = 1 + 0.03 * np.sqrt(3000 / count)  # as many standard errors of any count
        assert (errors.std(axis=0) <= over * np.sqrt(6) / 2 * stated).all()


def test_numbers_have_few_bits() -> None:
    answer, _ = fits()
    made = rounded_fits(answer, 280, np.random.default_rng(1), 1.0)
    for name, errors in made.errors.items():
        multiples = made.arrays[name] / (np.sqrt(6) * errors)
        np.testing.assert_allclose(multiples, np.rint(multiples), atol=1e-9)
    diagonal = np.abs(made.arrays["precisions"] / made.errors["precisions"] / np.sqrt(6))
    assert diagonal.max() < 2**7


@pytest.mark.parametrize("collinear", [1e-1, 1e-3])
@pytest.mark.parametrize("away", [1.0, 1e4])
def test_a_fit_of_collinear_columns_is_right_in_every_direction(
    collinear: float, away: float
) -> None:
    """By the posterior's own sds, from a far reference and in any units, too."""
    rng, d, rows = np.random.default_rng(1), 5, 200
    factors = rng.normal(size=(rows, d)) @ np.linalg.qr(rng.normal(size=(d, d)))[0]
    x = factors * np.logspace(0, np.log10(collinear), d) @ np.linalg.qr(rng.normal(size=(d, d)))[0]
    precision = (x * np.logspace(-3, 3, d)).T @ (x * np.logspace(-3, 3, d))
    white = np.linalg.inv(np.linalg.cholesky(precision))
    mode = white.T @ (away * rng.normal(size=d))
    upper = np.triu_indices(d)
    answer = {"precisions": precision[upper][None], "pulls": (precision @ mode)[None]}
    for seed in range(20):
        made = rounded_fits(answer, rows, np.random.default_rng(seed), 1.0)
        rounded = np.zeros((d, d))
        rounded[upper] = made.arrays["precisions"][0]
        rounded += np.triu(rounded, 1).T
        sizes = np.linalg.eigvalsh(white @ rounded @ white.T)
        assert 0.4 < sizes[0] <= sizes[-1] < 2.0
        shift = np.linalg.solve(rounded, made.arrays["pulls"][0]) - mode
        assert np.sqrt(shift @ precision @ shift) < 0.25 * np.sqrt(d) / 0.4


def test_equal_fits_stay_equal_and_the_same_secret_gives_the_same_numbers() -> None:
    answer, _ = fits()
    first, again, other = (
        rounded_fits(answer, 280, np.random.default_rng(seed), 1.0).arrays for seed in (1, 1, 2)
    )
    for name, values in first.items():
        np.testing.assert_array_equal(values[0], values[2])
        np.testing.assert_array_equal(values, again[name])
        assert (values != other[name]).any()


def test_of_fits_that_end_in_one_mode_the_numbers_of_the_first_leave_once() -> None:
    answer, _ = fits()
    near, _ = fits()
    for name, values in near.items():
        values[2] = values[0] * (1 + 1e-5)  # where the search stopped, seen from another start
        assert (values[2] != answer[name][0]).any()
    made = rounded_fits(near, 280, np.random.default_rng(1), 1.0)
    for name in near:
        np.testing.assert_array_equal(made.arrays[name][2], made.arrays[name][0])
        assert (made.arrays[name][1] != made.arrays[name][0]).any()
        assert np.isinf(made.errors[name][2]).all()
        assert np.isfinite(made.errors[name][:2]).all()
    away = {name: values * np.array([[1], [1], [1.2]]) for name, values in answer.items()}
    apart = rounded_fits(away, 280, np.random.default_rng(1), 1.0)
    assert all(np.isfinite(errors).all() for errors in apart.errors.values())


def test_coarser_units_are_as_much_larger() -> None:
    answer, _ = fits()
    plain, coarse = (rounded_fits(answer, 10_000, np.random.default_rng(1), f) for f in (1.0, 4.0))
    for name, errors in plain.errors.items():
        np.testing.assert_allclose(coarse.errors[name], 4 * errors)


def test_the_coarsest_units_leave_nothing_of_a_fit() -> None:
    answer, _ = fits()
    made = rounded_fits(answer, 280, np.random.default_rng(1), COARSEST)
    assert not any(values.any() for values in made.arrays.values())


def test_what_is_no_fit_stays_what_it_is() -> None:
    answer, _ = fits()
    answer["precisions"][2] = answer["pulls"][2] = 0  # of a site with few rows
    answer["precisions"][1, 3] = np.nan
    answer["pulls"][1, 0] = np.inf
    made = rounded_fits(answer, 280, np.random.default_rng(1), 1.0).arrays
    assert not made["precisions"][2].any()
    assert not made["pulls"][2].any()
    assert np.isnan(made["precisions"][1, 3])
    assert made["pulls"][1, 0] == np.inf


def test_two_fits_that_overflow_are_not_compared() -> None:
    """Where two starts climb out of range a difference of infinities was taken."""
    answer, _ = fits()
    answer["precisions"][:2, 0] = np.inf
    made = rounded_fits(answer, 280, np.random.default_rng(1), 1.0).arrays
    assert np.isinf(made["precisions"][:2, 0]).all()
    assert np.isfinite(made["precisions"][2]).all()


def test_sums_of_a_spread_between_sites_are_those_of_the_rounded_fit() -> None:
    """Each number within what rounding moves it, and all of them by the same w, b and v."""
    answer, precisions = fits(3)
    between = np.array([1.0, 0.0, 0.3])
    exact = moments(np.linalg.solve(precisions[0], answer["pulls"][0]), precisions[0], between)
    answer["between"] = between
    made = rounded_fits(answer, 280, np.random.default_rng(1), 1.0).arrays["spread"]
    w, centre, variance = made[0], made[1] / made[0], made[3] / made[0]
    np.testing.assert_allclose(w, exact[0], rtol=0.1)
    sd = np.sqrt(exact[3] / exact[0])
    assert (np.abs(centre - exact[1] / exact[0]) <= 0.75 * sd).all()
    np.testing.assert_allclose(variance, exact[3] / exact[0], rtol=0.2)
    np.testing.assert_allclose(made[2], w * centre**2)
    np.testing.assert_allclose(made[4], w**2 * variance)
    np.testing.assert_allclose(made[5], w**2)


def hierarchical(seed: int, between: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The fits of a site of a hierarchical model, two directions of which are hardly told apart."""
    answer, precisions = fits(4, seed)
    alike = np.eye(4) + 30 * np.outer([1, -1, 0, 0], [1, -1, 0, 0])
    precisions = alike @ precisions @ alike
    upper = np.triu_indices(4)
    answer["precisions"] = np.stack([one[upper] for one in precisions])[[0, 1, 0]]
    return answer | {"between": between}, precisions


def test_without_rounding_what_leaves_is_the_fit_of_what_is_common() -> None:
    between = np.array([1.0, 0.5, 0.0, 0.0])
    answer, precisions = hierarchical(4, between)
    made = rounded_fits(answer, 10**12, np.random.default_rng(1), 1e-4).arrays
    upper = np.triu_indices(4)
    for precision, pull, found, away in zip(
        precisions, answer["pulls"], made["precisions"], made["pulls"], strict=False
    ):
        wide = widened(precision, between)
        np.testing.assert_allclose(found, wide[upper], rtol=1e-3, atol=1e-5 * np.abs(wide).max())
        exact = wide @ np.linalg.solve(precision, pull)
        np.testing.assert_allclose(away, exact, rtol=1e-3, atol=1e-3 * np.abs(exact).max())


def test_rounding_moves_a_fit_widened_by_the_spread_by_little() -> None:
    """Directions that the rows leave open stay in their place where the spread is larger."""
    between, worst = np.array([1.0, 0.5, 0.0, 0.0]), list[float]()
    for seed in range(50):
        answer, precisions = hierarchical(seed, between)
        made = rounded_fits(answer, 100, np.random.default_rng(seed), 1.0).arrays
        root = np.linalg.cholesky(np.linalg.inv(widened(precisions[0], between)))
        found = np.zeros((4, 4))
        found[np.triu_indices(4)] = made["precisions"][0]
        found = found + np.triu(found, 1).T
        worst.append(np.abs(np.linalg.eigvalsh(root.T @ found @ root) - 1).max())
    assert np.median(worst) < 0.1
    assert max(worst) < 0.35


def test_the_coarsest_units_leave_nothing_of_a_fit_of_a_hierarchical_model() -> None:
    answer, _ = hierarchical(1, np.array([1.0, 0.5, 0.0, 0.0]))
    made = rounded_fits(answer, 280, np.random.default_rng(1), COARSEST).arrays
    assert not made["pulls"].any()
    assert np.abs(made["precisions"]).max() < 1e-30
