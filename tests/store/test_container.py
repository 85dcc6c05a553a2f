"""Bytes with a right checksum that are no container are refused, each for its own reason."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortia.store.container import ContainerError, Format, VersionError

FORMAT = Format(b"TESTTEST", 5)


def made(text: bytes, content: bytes = b"", length: int | None = None) -> bytes:
    """Return a container of any header with a right checksum."""
    start = FORMAT.magic + (5).to_bytes(4, "little")
    size = (len(text) if length is None else length).to_bytes(8, "little")
    rest = size + text + content
    return start + hashlib.sha256(start + rest).digest() + rest


def with_table(table: Any, content: bytes = b"") -> bytes:
    return made(json.dumps([{}, table]).encode(), content)


def test_values_and_arrays_of_each_type_come_back_writable_and_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    arrays = {
        f"{kind} {name}": rng.integers(0, 2, shape).astype(kind)
        for kind in ("f2", "f4", ">f8", "i1", "i2", ">i4", "i8", "u1", "u2", "u4", "u8", "bool")
        for name, shape in {"scalar": (), "empty": (2, 0), "odd": (3,), "matrix": (2, 3)}.items()
    }
    header = {"b": [1, None, "é"], "a": {"c": 0.1}}
    data = FORMAT.encode(header, arrays)
    values, found = FORMAT.decode(data)
    assert values == header
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype.newbyteorder("=")
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable
        assert found[name].flags.aligned
    assert FORMAT.encode(values, found) == data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "too short"),
        (made(b"{}")[:-1], "checksum"),
        (made(b"[{}, []]", length=2**62), "header is too long"),
        (made(b"[{}, []]", length=9), "header is too long"),
        (made(b"\xff"), "not JSON"),
        (made(b"[" * 100_000), "not JSON"),
        (made(b'[{"a": NaN}, []]'), "not JSON"),
        (made(b"{}"), "not values and a list"),
        (made(b"[[], []]"), "not values and a list"),
        (with_table({}), "of another type"),
        (with_table([["a", "f4"]]), "not name, type and shape"),
        (with_table([[1, "f4", []]], bytes(4)), "not a string"),
        (with_table([["a", "u1", [1]], ["a", "u1", [1]]], bytes(2)), "stands twice"),
        (with_table([["a", "O8", [1]]], bytes(8)), "cannot travel"),
        (with_table([["a", ["f4"], [1]]], bytes(8)), "cannot travel"),
        (with_table([["a", "f4", [-1]]], bytes(8)), "list of lengths"),
        (with_table([["a", "f4", [True]]], bytes(4)), "list of lengths"),
        (with_table([["a", "f4", 1]], bytes(4)), "list of lengths"),
        (with_table([["a", "f4", [1] * 17]], bytes(4)), "list of lengths"),
        (with_table([["a", "f4", [2]]], bytes(7)), "longer than the content"),
        (with_table([["a", "f4", [2**62, 2**62]]], bytes(8)), "longer than the content"),
        (with_table([["a", "f4", [1]]], bytes(5)), "longer than its arrays"),
        (with_table([["a", "b1", [1]]], b"\x02"), "an array of bools"),
    ],
)
def test_malformed_content_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ContainerError, match=reason):
        FORMAT.decode(data)


@given(text=st.binary(max_size=80), content=st.binary(max_size=40))
def test_any_content_with_a_right_checksum_is_read_or_refused(text: bytes, content: bytes) -> None:
    try:
        FORMAT.decode(made(text, content))
    except ContainerError:
        return


def test_other_formats_and_versions_are_refused_and_named() -> None:
    data = Format(b"OTHEROTH", 5).encode({}, {})
    with pytest.raises(ContainerError, match="begins otherwise"):
        FORMAT.decode(data)
    with pytest.raises(VersionError, match="format 6, this version reads 5") as caught:
        FORMAT.decode(Format(FORMAT.magic, 6).encode({}, {}))
    assert caught.value.version == 6


def test_arrays_that_are_no_numbers_and_values_that_are_not_finite_do_not_travel() -> None:
    with pytest.raises(ContainerError, match="'a': <U1 cannot travel"):
        FORMAT.encode({}, {"a": np.array(["x"])})
    loose = Format(FORMAT.magic, 5, nonfinite=True)
    assert loose.decode(loose.encode({"a": float("inf")}, {}))[0] == {"a": float("inf")}
