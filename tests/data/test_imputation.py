"""Values that miss, drawn at a site: by exact laws, and what must never happen to a table."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 - the import is the switch
from sklearn.impute import IterativeImputer

from consortia.data.columns import Column, Table
from consortia.data.imputation import cumulative_hazard, imputed
from tests.refusals import refused

ROWS, IMPUTATIONS, DRAWS = 300, 120, 60


def table_of(missing: np.ndarray, **columns: np.ndarray) -> Table:
    """Return columns, the first of which has gaps."""
    kinds = {name: "text" if one.dtype.kind == "U" else "number" for name, one in columns.items()}
    gaps = dict.fromkeys(columns, np.zeros(len(missing), bool)) | {next(iter(columns)): missing}
    return {name: Column(kinds[name], one, gaps[name]) for name, one in columns.items()}


def completed(
    table: Table, number: int, levels: tuple[str, ...] = (), **fixed: np.ndarray
) -> Table:
    rng = np.random.default_rng((0, number))
    return imputed(table, tuple(table), levels, fixed, rng, "site 'oslo'")


# --- exact laws ----------------------------------------------------------------------------------


def slopes(x: np.ndarray, y: np.ndarray, rng: np.random.Generator, draws: int) -> np.ndarray:
    """Return slope, intercept and variance of y on x with a flat prior, (draws, 3)."""
    n, centred = len(x), x - x.mean()
    slope = centred @ y / (centred @ centred)
    scatter = np.sum((y - y.mean() - slope * centred) ** 2)
    variance = scatter / rng.chisquare(n - 2, draws)
    b = slope + np.sqrt(variance / (centred @ centred)) * rng.standard_normal(draws)
    a = y.mean() - b * x.mean() + np.sqrt(variance / n) * rng.standard_normal(draws)
    return np.column_stack([b, a, variance])


@pytest.fixture(scope="module")
def gaps() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x of a pair of normal variables misses, completely at random, in half of the rows."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(ROWS)
    return x, 1 + x + rng.standard_normal(ROWS), rng.random(ROWS) < 0.5


@pytest.fixture(scope="module")
def exact(gaps) -> tuple[float, float]:
    """Mean and sd of the slope of y on x given what is known: that of x on y, and y of all rows."""
    x, y, missing = gaps
    rng, draws = np.random.default_rng(6), 100_000
    b, _, rest = slopes(y[~missing], x[~missing], rng, draws).T
    spread = np.sum((y - y.mean()) ** 2) / rng.chisquare(ROWS - 1, draws)
    beta = b * spread / (b**2 * spread + rest)
    return float(beta.mean()), float(beta.std())


def pooled(gaps, fill) -> tuple[float, float]:
    """Return mean and sd of the slope over the posteriors of several completed tables."""
    _, y, _ = gaps
    rng = np.random.default_rng(7)
    found = np.stack([slopes(fill(k), y, rng, DRAWS)[:, 0] for k in range(IMPUTATIONS)])
    return float(found.mean()), float(found.std())


def test_the_pooled_posterior_is_the_one_given_what_is_known(gaps, exact):
    x, y, missing = gaps
    table = table_of(missing, x=np.where(missing, 0, x))
    mean, sd = pooled(gaps, lambda k: completed(table, k, outcome=y)["x"].values)
    print(mean, sd, exact)
    # √(FMI/m) = 0.07 sd for the number of imputations; half of the variance is between them, and
    # its relative error is √(2/m) = 0.13, so 3 % of the sd; nearest rows cost a little of both
    assert abs(mean - exact[0]) < 0.25 * exact[1]
    assert abs(sd / exact[1] - 1) < 0.1


def test_one_value_for_all_that_miss_makes_it_too_narrow_and_so_do_draws_that_share_nothing(
    gaps, exact
):
    x, y, missing = gaps
    known = np.where(missing, np.nan, x)

    def by_mean(_: int) -> np.ndarray:
        on_y = np.polyfit(y[~missing], x[~missing], 1)
        return np.where(missing, np.polyval(on_y, y), x)

    def by_rows(k: int) -> np.ndarray:
        drawn = IterativeImputer(sample_posterior=True, max_iter=1, random_state=k)
        return drawn.fit_transform(np.column_stack([known, y]))[:, 0]

    _, once = pooled(gaps, by_mean)
    _, apart = pooled(gaps, by_rows)
    print(once / exact[1], apart / exact[1])
    assert once < 0.75 * exact[1]
    assert apart < 0.93 * exact[1]


def test_levels_that_miss_leave_the_odds_ratio_of_the_rows_that_are_known():
    rng = np.random.default_rng(8)
    y = rng.random(ROWS) < 0.4
    x = np.where(rng.random(ROWS) < np.where(y, 0.6, 0.3), "new", "old")
    missing = rng.random(ROWS) < 0.5
    table = table_of(missing, x=np.where(missing, "", x))

    def log_odds(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        counts = [[np.sum((x == a) & (y == b)) for a in ("new", "old")] for b in (True, False)]
        (a, b), (c, d) = counts
        return float(np.log(a * d / (b * c))), float(1 / a + 1 / b + 1 / c + 1 / d)

    found = np.array(
        [
            log_odds(completed(table, k, ("x",), y=y.astype(float))["x"].values, y)
            for k in range(IMPUTATIONS)
        ]
    )
    mean, variance = log_odds(x[~missing], y[~missing])
    sd = np.sqrt(found[:, 1].mean() + found[:, 0].var())
    print(found[:, 0].mean(), mean, sd, np.sqrt(variance))
    assert abs(found[:, 0].mean() - mean) < 0.25 * np.sqrt(variance)
    assert abs(sd / np.sqrt(variance) - 1) < 0.1  # as above


def test_two_columns_that_go_with_each_other_keep_their_correlation():
    rng = np.random.default_rng(9)
    a = rng.standard_normal(600)
    b, y = 0.8 * a + 0.6 * rng.standard_normal(600), rng.standard_normal(600)
    gone = rng.random((2, 600)) < 0.3
    table: Table = {
        "a": Column("number", np.where(gone[0], 0, a), gone[0]),
        "b": Column("number", np.where(gone[1], 0, b), gone[1]),
    }
    found = []
    for number in range(20):
        one = completed(table, number, y=y)
        found.append(np.corrcoef(one["a"].values, one["b"].values)[0, 1])
    alone = np.corrcoef(np.where(gone[0], a.mean(), a), np.where(gone[1], b.mean(), b))[0, 1]
    # that of the known rows is 0.8 with an error of (1 − 0.8²)/√300 = 0.02
    assert abs(np.mean(found) - 0.8) < 0.06
    assert alone < 0.7


# --- what a completed table is -------------------------------------------------------------------


def test_what_is_known_stays_and_what_is_drawn_is_a_value_that_there_is():
    rng = np.random.default_rng(10)
    missing = rng.random(40) < 0.4
    crp = rng.gamma(1.0, 5.0, 40)
    arm = np.where(rng.random(40) < 0.5, "a", "b")
    for name, column in (("crp", crp), ("arm", arm)):
        table = table_of(missing, **{name: column})
        one = completed(table, 0, ("arm",), y=rng.standard_normal(40))[name]
        np.testing.assert_array_equal(one.values[~missing], column[~missing])
        assert set(one.values[missing]) <= set(column[~missing])
        assert not one.missing.any()
        assert one.kind == table[name].kind


def test_an_imputation_is_the_same_again_and_another_one_is_not():
    rng = np.random.default_rng(11)
    missing = rng.random(60) < 0.4
    table = table_of(missing, x=rng.standard_normal(60))
    first, again, other = (
        completed(table, number, y=np.arange(60.0))["x"].values for number in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@pytest.mark.parametrize("rows", [3, 9])
def test_a_site_of_few_rows_and_many_columns_can_be_completed(rows: int):
    rng = np.random.default_rng(rows)
    missing = np.zeros(rows, bool)
    missing[1] = True
    columns = {f"x{place}": rng.standard_normal(rows) for place in range(8)}
    table = table_of(missing, **columns, arm=np.array((["a", "b"] * rows)[:rows]))
    table["arm"] = table["arm"]._replace(missing=np.roll(missing, 1))
    one = completed(table, 0, ("arm",), y=rng.standard_normal(rows))
    assert not any(column.missing.any() for column in one.values())


def test_a_column_of_which_nothing_is_known_at_the_site_is_refused():
    table = table_of(np.ones(5, bool), crp=np.zeros(5))
    with refused(argument="crp", match="'oslo': no value"):
        completed(table, 0, y=np.arange(5.0))


def test_the_cumulative_hazard_is_that_of_nelson_and_aalen():
    time, event = np.array([3.0, 1.0, 2.0, 2.0]), np.array([1.0, 0.0, 1.0, 1.0])
    # at 2 two of three that are left, at 3 the last one
    np.testing.assert_allclose(cumulative_hazard(time, event), [2 / 3 + 1, 0, 2 / 3, 2 / 3])
