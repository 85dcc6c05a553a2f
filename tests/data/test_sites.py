"""The container of the sites' data."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

import consortia
from consortia.data.sites import Sites
from tests.refusals import refused


def shard(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {"x": generator.normal(size=(rows, 3)), "y": generator.integers(0, 2, rows)}


def three() -> Sites:
    return Sites.from_list([shard(4, 1), shard(7, 2), shard(1, 3)])


def test_sites_is_public() -> None:
    assert consortia.Sites is Sites


def test_sizes_names_and_rows_describe_the_shards() -> None:
    sites = three()
    assert len(sites) == 3
    assert sites.rows == 12
    assert sites.sizes.dtype == np.int32
    np.testing.assert_array_equal(sites.sizes, [4, 7, 1])
    assert sites.names == ("site 0", "site 1", "site 2")
    assert sites.structure == jax.tree.structure(shard(1))
    assert repr(sites) == "Sites(3 sites, 12 rows; site 0: 4, site 1: 7, site 2: 1)"


def test_a_site_is_found_by_index_and_by_name() -> None:
    sites = Sites.from_list([shard(4, 1), shard(7, 2)], names=["Bern", "Basel"])
    np.testing.assert_array_equal(sites.site(1)["x"], shard(7, 2)["x"])
    np.testing.assert_array_equal(sites.site("Basel")["x"], shard(7, 2)["x"])
    with refused(argument="which", match="'Genf'"):
        sites.site("Genf")
    with refused(argument="which", match="Site 2"):
        sites.site(2)


def test_arrays_that_nobody_can_change_are_not_copied() -> None:
    data = shard(5)
    for leaf in data.values():
        leaf.flags.writeable = False
    sites = Sites.from_list([data])
    assert np.shares_memory(sites.site(0)["x"], data["x"])
    assert sites.pooled() is sites.site(0)


def test_arrays_that_are_changed_later_change_no_site() -> None:
    data, other = shard(5), shard(5)
    views = {name: leaf[:] for name, leaf in other.items()}
    for leaf in views.values():
        leaf.flags.writeable = False  # but what they are views of can be changed
    sites = Sites.from_list([data, views])
    before = [site["x"].copy() for site in sites]
    data["x"][0] = other["x"][0] = 99
    for site, was in zip(sites, before, strict=True):
        np.testing.assert_array_equal(site["x"], was)


def test_the_arrays_are_read_only_and_the_given_ones_stay_writable() -> None:
    data = shard(5)
    sites = Sites.from_list([data, shard(3)])
    for array in (sites.site(0)["x"], sites.sizes, sites.padded()["x"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    data["x"][0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        sites.names = ("other",)  # type: ignore[misc]


def test_narrow_types_are_kept_and_float_widths_are_promoted_together() -> None:
    first = {"x": np.ones((2, 3), np.uint8), "z": np.ones(2, np.float32)}
    second = {"x": np.ones((4, 3), np.uint8), "z": np.ones(4, np.float64)}
    sites = Sites.from_list([first, second])
    for part in (*sites.shards, sites.pooled(), sites.padded()):
        assert part["x"].dtype == np.uint8
        assert part["z"].dtype == np.float64


def test_pooled_rows_are_the_sites_one_after_the_other() -> None:
    pooled = three().pooled()
    expected = np.concatenate([shard(4, 1)["x"], shard(7, 2)["x"], shard(1, 3)["x"]])
    np.testing.assert_array_equal(pooled["x"], expected)
    assert pooled["y"].shape == (12,)


def test_padding_repeats_each_sites_own_first_row() -> None:
    sites = three()
    padded = sites.padded()
    assert padded["x"].shape == (3, 7, 3)
    assert padded["y"].shape == (3, 7)
    for i, rows in enumerate([4, 7, 1]):
        own = sites.site(i)
        np.testing.assert_array_equal(padded["x"][i, :rows], own["x"])
        np.testing.assert_array_equal(
            padded["x"][i, rows:], np.broadcast_to(own["x"][0], (7 - rows, 3))
        )
    assert sites.padded() is padded
    assert sites.padding_factor == 21 / 12


def test_map_applies_to_every_site_and_keeps_the_names() -> None:
    sites = Sites.from_list([shard(4), shard(2)], names=["a", "b"])
    doubled = sites.map(lambda data: {"x": 2 * data["x"]})
    assert doubled.names == ("a", "b")
    np.testing.assert_array_equal(doubled.site(1)["x"], 2 * sites.site(1)["x"])


def test_any_pytree_and_jax_arrays_are_taken() -> None:
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Table:
        left: np.ndarray
        right: tuple[np.ndarray, np.ndarray]

    sites = Sites.from_list(
        [Table(np.ones(n), (jax.numpy.ones((n, 2)), np.zeros(n, bool))) for n in (2, 3)]
    )
    assert isinstance(sites.padded(), Table)
    assert isinstance(sites.site(0).right[0], np.ndarray)
    assert sites.pooled().right[1].dtype == bool
    assert Sites.from_list([np.ones((4, 2))]).padded().shape == (1, 4, 2)


def test_sites_compare_and_hash_by_identity() -> None:
    data = [shard(2)]
    first, second = Sites.from_list(data), Sites.from_list(data)
    assert first == first
    assert first != second
    assert len({first, second}) == 2


def bad(change: dict) -> list[dict]:
    return [shard(4), {**shard(3), **change}]


NAN_ROWS = np.array([[0.0, np.nan, 0.0], [0.0, 0.0, 0.0], [np.inf, np.nan, 0.0]])


@pytest.mark.parametrize(
    ("shards", "site", "match"),
    [
        ([], None, "at least one site"),
        ([shard(4), shard(0)], "site 1", "is empty"),
        ([shard(4), {}], "site 1", "holds no array"),
        ([shard(4), {"x": np.ones((3, 3))}], "site 1", ".* leaves x against x, y"),
        ([(np.ones(2),), [np.ones(2)]], "site 1", "differs in structure"),
        (bad({"x": np.ones((3, 2))}), "site 1", r"'x'.*\(2,\)"),
        (bad({"x": np.ones((2, 3))}), "site 1", "'y'.*3.*'x'.*has 2"),
        (bad({"x": np.ones((3, 3), int)}), "site 1", "'x'.*type is int64"),
        (bad({"y": np.ones(3, bool)}), "site 1", "'y'.*but int64"),
        (bad({"y": np.ones(3, np.uint64)}), "site 1", "'y'.*type is uint64"),
        (
            bad({"y": np.float64(1)}),
            "site 1",
            "leaf 'y': a single number",
        ),
        (bad({"y": np.array(["a", "b", "c"])}), "site 1", "'y'.*U1"),
        (
            bad({"y": np.array([1, None, 2])}),
            "site 1",
            "leaf 'y': .* object",
        ),
        (
            bad({"x": NAN_ROWS}),
            "site 1",
            "leaf 'x': 2 of 3 rows",
        ),
    ],
)
def test_unusable_shards_are_refused_with_the_site_and_the_leaf(
    shards: list, site: str | None, match: str
) -> None:
    with refused(site=site, match=match):
        Sites.from_list(shards)


def test_a_dict_is_no_list_of_sites() -> None:
    with refused(argument="shards"):
        Sites.from_list({"oslo": {"x": np.ones((3, 2))}})  # type: ignore[arg-type]


def test_a_list_of_numbers_is_refused_as_a_container_of_leaves() -> None:
    with refused(site="site 0", match=r"leaf 'x/0': .* np\.asarray"):
        Sites.from_list([{"x": [1.0, 2.0]}])


def test_three_integer_types_without_a_common_one_are_refused() -> None:
    types = [np.uint8, np.int64, np.uint64]
    with refused(site="site 2", match=r"site 2.*uint64"):
        Sites.from_list([np.ones(2, t) for t in types])


def test_a_non_finite_row_is_found_in_any_block_of_a_long_leaf() -> None:
    x = np.zeros((3, 2**20), np.float32)  # one row fills a block of the check
    x[2, 5] = np.nan
    with refused(argument="data", site="site 0", match="1 of 3 rows"):
        Sites.from_list([x])


@pytest.mark.parametrize(
    ("names", "argument", "match"),
    [
        (["a"], "names", "1.*for 2"),
        (["a", "a"], "names", "'a' more than once"),
        (["a", ""], "names", "non-empty"),
        (["a", 3], "names", "holds 3"),
        ("ab", "names", "single string"),
    ],
)
def test_unusable_names_are_refused(names: list, argument: str, match: str) -> None:
    with refused(argument=argument, match=match):
        Sites.from_list([shard(2), shard(3)], names)


def test_rows_are_held_once_when_they_have_been_padded():
    sites = Sites.from_list([{"x": np.ones((5, 2))}, {"x": np.zeros((4, 2))}])
    padded = sites.padded()["x"]
    assert all(np.shares_memory(padded, shard["x"]) for shard in sites)
    assert [shard["x"].shape for shard in sites] == [(5, 2), (4, 2)]
    assert not any(shard["x"].flags.writeable for shard in sites)
    again = Sites.from_list(list(sites))  # nothing that could be changed: nothing is copied
    assert all(np.shares_memory(padded, shard["x"]) for shard in again)


def test_the_rows_of_one_site_are_not_copied_for_the_device():
    sites = Sites.from_list([{"x": np.ones((100, 7), np.float32)}])
    assert np.shares_memory(sites.padded()["x"], sites.first["x"])
    assert sites.first["x"].ctypes.data % 64 == 0


def test_sites_of_unlike_sizes_keep_their_own_rows():
    sites = Sites.from_list([{"x": np.ones((50, 2))}, {"x": np.zeros((4, 2))}])
    padded = sites.padded()["x"]
    assert not any(np.shares_memory(padded, shard["x"]) for shard in sites)
