"""No small number of rows leaves a site, nor one that follows from what does."""

import itertools
from collections import defaultdict

import numpy as np
import pytest

from consortia.data.cells import merged, minimum_cells, range_of, split, union_range
from consortia.data.followup import put_off
from tests.refusals import refused

LEAST = 3


def pinned(told):
    """Return small numbers that follow from what is told, by whoever knows the rules.

    Args:
        told: of each thing that is told all the hidden numbers with which it is told.
    """
    found = []
    for what, hidden in told.items():
        for place, values in enumerate(zip(*hidden, strict=True)):
            if len({*values}) == 1 and 0 < values[0] < LEAST:
                found.append((what, place, values[0]))
    return found


@pytest.mark.parametrize("labels", [2, 3, 4])
def test_no_small_cell_follows_from_merged_ones(labels):
    told, names = defaultdict(list), "abcd"[:labels]
    for counts in itertools.product(range(9), repeat=labels):
        if sum(counts) > 0:
            found = merged(dict(zip(names, counts, strict=True)), LEAST)
            assert all(one == 0 or one >= LEAST for one in found.counts.values())
            assert found.rest == 0 or found.rest >= LEAST or not found.counts
            shown = (sum(counts), tuple(sorted(found.counts.items())), found.rest)
            told[shown].append(counts)
    # what is cut off here at 8 would be another explanation
    inside = {what: hidden for what, hidden in told.items() if what[2] <= 8}
    assert {what: one for what, one in inside.items() if len(one) > 1}
    assert pinned(inside) == []


def test_a_table_of_large_cells_is_told_as_it_is():
    assert merged({"a": 7, "b": 0, "c": 3}, LEAST) == ({"a": 7, "b": 0, "c": 3}, 0)
    assert merged({"a": 1, "b": 2}, 1) == ({"a": 1, "b": 2}, 0)


def test_cells_of_one_and_two_are_merged_with_the_smallest_large_one():
    found = merged({"a": 40, "b": 10, "c": 1, "d": 2, "e": 0}, LEAST)
    assert found == ({"a": 40}, 13)


def test_no_small_number_of_missing_values_follows_from_ranges():
    told = defaultdict(list)
    for a, b, both in itertools.product(range(9), repeat=3):
        if both > min(a, b):
            continue
        parts = [range_of(a, LEAST), range_of(b, LEAST)]
        union = union_range(a + b - both, parts, LEAST)
        told[tuple(parts), union].append((a, b, both, a - both, b - both))
    assert pinned(told) == []


def test_no_small_number_follows_from_a_range_of_three_columns_that_is_not_told():
    told, refused = defaultdict(list), defaultdict(set)
    for counts in itertools.product(range(9), repeat=3):
        ranges = tuple(range_of(one, LEAST) for one in counts)
        for union in range(max(counts), sum(counts) + 1):
            found = union_range(union, ranges, LEAST)
            told[ranges, found].append(counts)
            refused[ranges].add(found is None)
    assert pinned(told) == []
    # whether it is told says nothing of the rows
    assert all(len(one) == 1 for one in refused.values())
    assert {True, False} == set().union(*refused.values())


def test_a_range_holds_its_number_and_zero_is_told():
    for count in range(1, 40):
        low, high = range_of(count, 5)
        assert low <= count <= high
        assert high - low >= 3
    assert range_of(0, 5) == (0, 0)
    assert range_of(7, 1) == (7, 7)


@pytest.mark.parametrize("most", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_no_small_cell_follows_from_intervals(most):
    told = defaultdict(list)
    for flat in itertools.product(range(most + 1), repeat=6):
        cells, ended = put_off(np.reshape(flat, (3, 1, 2)), LEAST)
        ends = split(cells, LEAST)
        begins = [0, *ends[:-1]]
        sums = [cells[b:e].sum(axis=0).ravel() for b, e in zip(begins, ends, strict=False)]
        assert all(one == 0 or one >= LEAST for row in sums for one in row)
        shown = tuple(tuple(row.tolist()) for row in sums)
        told[tuple(ends), tuple(ended) if ends else (), shown].append(flat)
    small = {what: hidden for what, hidden in told.items() if what[0]}
    assert small
    # larger sums have explanations that are cut off here
    inside = {w: h for w, h in small.items() if all(one <= most for row in w[2] for one in row)}
    assert pinned(inside) == []


def test_a_minimum_of_two_hides_nothing_and_is_refused():
    assert minimum_cells("cells", 1) == 1
    with refused(argument="cells", match="at least 3"):
        minimum_cells("cells", 2)
