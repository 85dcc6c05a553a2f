"""Ways to deal rows out to sites."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from consortia.data import partition
from consortia.data.sites import Sites
from tests.refusals import refused

ROWS = 503
GENERATOR = np.random.default_rng(0)
ARRAYS = {
    "x": GENERATOR.normal(size=(ROWS, 2)),
    "y": GENERATOR.choice(5, ROWS, p=[0.5, 0.2, 0.15, 0.1, 0.05]),
    "row": np.arange(ROWS),
    "age": GENERATOR.uniform(20, 90, ROWS),
}

PARTITIONS: dict[str, Callable[[int], Sites]] = {
    "iid": lambda seed: partition.iid(ARRAYS, 7, seed=seed),
    "dirichlet": lambda seed: partition.dirichlet(ARRAYS, 7, concentration=0.5, seed=seed),
    "label_shards": lambda seed: partition.label_shards(ARRAYS, 7, seed=seed),
    "quantity": lambda seed: partition.quantity(ARRAYS, 7, concentration=0.5, seed=seed),
    "power law": lambda seed: partition.quantity(ARRAYS, 7, exponent=1.5, seed=seed),
    "by label": lambda seed: partition.by_column(ARRAYS, "y", seed=seed),
    "by age": lambda seed: partition.by_column(ARRAYS, "age", sites=7, seed=seed),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_row_lands_at_exactly_one_site_with_all_its_leaves(name: str) -> None:
    sites = PARTITIONS[name](3)
    pooled = sites.pooled()
    assert sorted(pooled["row"]) == list(range(ROWS))
    for key in ARRAYS:
        np.testing.assert_array_equal(pooled[key], ARRAYS[key][pooled["row"]])


@pytest.mark.parametrize("name", PARTITIONS)
def test_rows_keep_their_order_within_a_site(name: str) -> None:
    assert all((np.diff(shard["row"]) > 0).all() for shard in PARTITIONS[name](3).shards)


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_same_seed_gives_the_same_partition(name: str) -> None:
    first, second = PARTITIONS[name](3), PARTITIONS[name](3)
    np.testing.assert_array_equal(first.sizes, second.sizes)
    np.testing.assert_array_equal(first.pooled()["row"], second.pooled()["row"])


@pytest.mark.parametrize("name", ["iid", "dirichlet", "label_shards", "quantity", "power law"])
def test_another_seed_gives_another_partition(name: str) -> None:
    first, second = PARTITIONS[name](3), PARTITIONS[name](4)
    assert not np.array_equal(first.pooled()["row"], second.pooled()["row"])


def test_iid_sizes_differ_by_one_at_most() -> None:
    assert sorted(PARTITIONS["iid"](0).sizes) == [71] + [72] * 6


def test_dirichlet_skews_labels_the_more_the_smaller_the_concentration() -> None:
    def skew(concentration: float) -> float:
        sites = partition.dirichlet(ARRAYS, 4, concentration=concentration, seed=1)
        shares = [np.bincount(s["y"], minlength=5) / len(s["y"]) for s in sites.shards]
        return float(np.std(shares, axis=0).mean())

    assert skew(0.1) > 2 * skew(10.0) > 2 * skew(1000.0)


def test_dirichlet_shares_have_the_moments_of_the_law() -> None:
    # One label, two sites, α = 2: the first site's share is Beta(2, 2), mean 1/2, variance 1/20.
    # minimum_rows = 1 of 503 rows bends this by less than 1e-4.
    arrays = {"y": np.zeros(ROWS, int)}
    shares = np.array(
        [
            partition.dirichlet(arrays, 2, concentration=2.0, seed=seed).sizes[0] / ROWS
            for seed in range(400)
        ]
    )
    # Standard errors: mean sqrt(.05/400) = .0112; variance .05 sqrt((2.14 - 1)/400) = .0027.
    assert abs(shares.mean() - 0.5) < 4 * 0.0112
    assert abs(shares.var() - 0.05) < 4 * 0.0027


def test_dirichlet_reaches_the_minimum_number_of_rows() -> None:
    sites = partition.dirichlet(ARRAYS, 7, concentration=0.5, seed=0, minimum_rows=40)
    assert sites.sizes.min() >= 40
    assert partition.dirichlet(ARRAYS, 7, concentration=0.5, seed=0).sizes.min() < 40


def test_label_shards_give_a_site_few_labels() -> None:
    arrays = {"y": np.repeat(np.arange(10), 50)}
    sites = partition.label_shards(arrays, 10, shards_per_site=2, seed=0)
    assert (sites.sizes == 50).all()
    assert max(len(np.unique(shard["y"])) for shard in sites.shards) <= 2


def test_labels_may_be_given_as_an_array_of_texts() -> None:
    labels = np.array(["benign", "malignant"])[(ARRAYS["y"] > 0).astype(int)]
    named = partition.label_shards(ARRAYS["x"], 2, shards_per_site=1, seed=0, label=labels)
    coded = partition.label_shards(
        ARRAYS["x"], 2, shards_per_site=1, seed=0, label=(ARRAYS["y"] > 0)
    )
    np.testing.assert_array_equal(named.pooled(), coded.pooled())


def test_power_law_sizes_fall_with_the_site() -> None:
    sizes = partition.quantity(ARRAYS, 4, exponent=1.0, seed=0, minimum_rows=10).sizes
    # (503 - 40) · (1, 1/2, 1/3, 1/4) / (25/12) + 10, ends rounded.
    expected = 463 * 12 / 25 / np.arange(1, 5) + 10
    assert np.abs(sizes - expected).max() <= 1
    equal = partition.quantity(ARRAYS, 4, exponent=0.0, seed=0).sizes
    assert np.ptp(equal) <= 1


@pytest.mark.parametrize("concentration", [0.01, 0.5, 100.0])
def test_quantity_skew_reaches_the_minimum_whatever_the_concentration(concentration: float) -> None:
    sizes = partition.quantity(
        ARRAYS, 20, concentration=concentration, seed=5, minimum_rows=25
    ).sizes
    assert sizes.min() >= 25
    assert sizes.sum() == ROWS


def test_a_column_of_integers_gives_one_site_per_value() -> None:
    sites = partition.by_column(ARRAYS, "y")
    assert sites.names == ("y=0", "y=1", "y=2", "y=3", "y=4")
    assert all((shard["y"] == i).all() for i, shard in enumerate(sites.shards))


def test_a_column_beside_the_arrays_may_hold_texts_and_be_named() -> None:
    cities = np.array(["Bern", "Basel"], dtype=object)[ARRAYS["row"] % 2]
    sites = partition.by_column(ARRAYS, cities, name="city")
    assert sites.names == ("city=Basel", "city=Bern")
    assert (sites.site("city=Bern")["row"] % 2 == 0).all()


def test_whole_floats_and_bools_count_as_categories() -> None:
    whole = partition.by_column(ARRAYS, ARRAYS["y"].astype(float), name="ward")
    assert whole.names[:2] == ("ward=0", "ward=1")
    flags = partition.by_column(ARRAYS, ARRAYS["y"] > 0, name="ill")
    assert flags.names == ("ill=False", "ill=True")


def test_a_continuous_column_is_cut_at_its_quantiles() -> None:
    sites = partition.by_column(ARRAYS, "age", sites=4)
    assert np.ptp(sites.sizes) <= 1
    ends = [(shard["age"].min(), shard["age"].max()) for shard in sites.shards]
    assert all(low[1] < high[0] for low, high in pairwise(ends))
    assert sites.names[0].startswith("age<")
    assert "<=age<" in sites.names[1]
    assert sites.names[3].startswith("age>=")


def test_equal_values_stay_together_and_names_state_the_cut() -> None:
    column = np.array([1, 1, 1, 2, 3, 3, 4, 4])
    sites = partition.by_column(np.arange(8), column, sites=2, name="stage")
    assert sites.names == ("stage<3", "stage>=3")
    np.testing.assert_array_equal(sites.sizes, [4, 4])


def test_as_many_sites_as_values_gives_one_site_per_value() -> None:
    column = np.array([0] * 6 + [1] + [2])
    sites = partition.by_column(np.arange(8), column, sites=3, name="hospital")
    assert sites.names == ("hospital=0", "hospital=1", "hospital=2")


def test_names_of_close_cuts_stay_distinct() -> None:
    column = 1.0 + 1e-9 * np.arange(9)
    assert len(set(partition.by_column(np.arange(9), column, sites=3).names)) == 3


def test_one_site_takes_everything() -> None:
    for sites in (
        partition.iid(ARRAYS, 1, seed=0),
        partition.dirichlet(ARRAYS, 1, concentration=1.0, seed=0),
        partition.label_shards(ARRAYS, 1, seed=0),
        partition.quantity(ARRAYS, 1, concentration=1.0, seed=0),
        partition.by_column(ARRAYS, "age", sites=1),
    ):
        np.testing.assert_array_equal(sites.site(0)["row"], ARRAYS["row"])


FEW = {"x": np.ones((3, 2)), "y": np.array([0, 1, 1])}


@pytest.mark.parametrize(
    ("call", "argument", "match"),
    [
        (lambda: partition.iid(FEW, 4, seed=0), "sites", "sites is 4.*are 3"),
        (lambda: partition.iid(FEW, 0, seed=0), "sites", "sites is 0"),
        (lambda: partition.iid(FEW, 2.5, seed=0), "sites", "sites is 2.5"),
        (lambda: partition.iid(FEW, True, seed=0), "sites", "sites is True: it must be an integer"),
        (lambda: partition.iid(FEW, 2, seed=-1), "seed", "seed is -1"),
        (lambda: partition.iid(FEW, 2, seed=None), "seed", "seed is None: it must be an integer"),
        (
            lambda: partition.iid({"x": np.ones(3), "y": np.ones(2)}, 2, seed=0),
            "y",
            "leaf 'y': 2 rows",
        ),
        (
            lambda: partition.dirichlet(FEW, 2, concentration=0.0, seed=0),
            "concentration",
            "concentration is 0",
        ),
        (
            lambda: partition.dirichlet(FEW, 2, concentration=1.0, seed=0, label="z"),
            "label",
            "'z' .* x, y",
        ),
        (
            lambda: partition.dirichlet(FEW, 2, concentration=1.0, seed=0, label="x"),
            "label",
            r"='x' .*\(3, 2\)",
        ),
        (
            lambda: partition.dirichlet(FEW["x"], 2, concentration=1.0, seed=0),
            "label",
            "'y' .* ndarray",
        ),
        (
            lambda: partition.dirichlet(
                {"y": np.array([0.5, 1.2, 3.0])}, 2, concentration=1.0, seed=0
            ),
            "label",
            "label is continuous",
        ),
        (
            lambda: partition.dirichlet(FEW, 2, concentration=1.0, seed=0, minimum_rows=2),
            "minimum_rows",
            "minimum_rows=2.*at 2.*needs 4.*are 3",
        ),
        (
            lambda: partition.dirichlet(ARRAYS, 20, concentration=1e-3, seed=0, minimum_rows=10),
            "minimum_rows",
            "minimum_rows=10",
        ),
        (lambda: partition.label_shards(FEW, 2, seed=0), "shards_per_site", "2.*of 2.*need 4"),
        (
            lambda: partition.label_shards(FEW, 2, shards_per_site=0, seed=0),
            "shards_per_site",
            "shards_per_site is 0",
        ),
        (lambda: partition.quantity(FEW, 2, seed=0), "concentration", "exactly one of"),
        (
            lambda: partition.quantity(FEW, 2, concentration=1, exponent=1, seed=0),
            "concentration",
            "exactly one",
        ),
        (
            lambda: partition.quantity(FEW, 2, concentration=-1, seed=0),
            "concentration",
            "concentration is -1",
        ),
        (lambda: partition.quantity(FEW, 2, exponent=-1, seed=0), "exponent", "exponent is -1"),
        (lambda: partition.by_column(ARRAYS, "age"), "column", "continuous, .* give sites="),
        (lambda: partition.by_column(ARRAYS, "sex"), "column", "column='sex'"),
        (lambda: partition.by_column(ARRAYS, np.ones(2)), "column", r"\(2,\)"),
        (
            lambda: partition.by_column(FEW, np.array([1.0, np.nan, 2.0]), sites=2, name="age"),
            "column",
            "'age'",
        ),
        (
            lambda: partition.by_column(ARRAYS, "y", sites=4),
            "column",
            "'y'.*for 4",
        ),
        (
            lambda: partition.by_column(FEW, np.array(["a", "b", "c"]), sites=2),
            "column",
            "have no quantiles",
        ),
    ],
)
def test_what_cannot_be_dealt_out_is_refused_with_the_argument(
    call: Callable, argument: str, match: str
) -> None:
    with refused(argument=argument, match=match):
        call()
