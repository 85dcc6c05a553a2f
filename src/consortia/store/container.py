"""Plain values and named arrays as bytes with a checksum: the form of checkpoints and of messages.

Layout: eight bytes that name the format, its version (4 bytes, little endian), the SHA-256 of
everything else (32 bytes), the length of the header (8 bytes), the header as JSON, then the arrays
one after the other, little endian, in the order of the header's list. Nothing is pickled, nothing
is padded, and nothing may follow the last array. The first 44 bytes mean the same in every version,
which distinguishes another version from damage.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.errors import ConsortiaError

DIGEST = slice(12, 44)
PREAMBLE_BYTES = 52
HEADER_BYTES_MAX = 2**26
AXES_MAX = 16
LENGTH_MAX = 2**40
"""Largest length of an axis, also of an array without content."""

TYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
"""Types of the arrays' entries."""


class ContainerError(ConsortiaError, ValueError):
    """Bytes are not what a format wrote; the text says why, and holds none of them."""


class VersionError(ContainerError):
    """Bytes are whole, but of another version of the format: ``version``."""

    def __init__(self, version: int, expected: int) -> None:
        super().__init__(f"it is of format {version}, this version reads {expected}")
        self.version = version


@dataclass(frozen=True)
class Format:
    """One use of the layout."""

    magic: bytes  # eight bytes that name it
    version: int  # of what stands in the header and the arrays
    nonfinite: bool = False  # the header may hold NaN and infinities, for which JSON has no words
    header_bytes: int = HEADER_BYTES_MAX  # the longest header

    def pieces(self, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[Any]:
        """Return the bytes in pieces, without a copy of the arrays; equal content, equal bytes.

        Raises:
            ContainerError: an array is of a type that cannot travel, or the header is too long.
        """
        table, parts = [], []
        for name, value in arrays.items():
            array = np.asarray(value)
            kind = f"{array.dtype.kind}{array.dtype.itemsize}"
            if kind not in TYPES:
                raise ContainerError(f"array {name!r}: {array.dtype} cannot travel")
            table.append([name, kind, list(array.shape)])
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            parts.append(little.reshape(-1).view(np.uint8))
        text = _ENCODER.encode([dict(header), table]).encode()
        if len(text) > self.header_bytes:
            raise ContainerError(
                f"its header has {len(text)} bytes, the most is {self.header_bytes}"
            )
        start = self.magic + self.version.to_bytes(4, "little")
        rest = [len(text).to_bytes(8, "little"), text, *parts]
        return [start, _digest([start, *rest]), *rest]

    def encode(self, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
        """Return `pieces` as one string of bytes."""
        return b"".join(self.pieces(header, arrays))

    def decode(self, data: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the header and the arrays, which share no memory with ``data`` (bytes, mmap).

        Raises:
            VersionError: the content is whole, but of another version.
            ContainerError: the content is not what was written.
        """
        view = memoryview(data)
        if len(view) < PREAMBLE_BYTES:
            raise ContainerError("it is too short")
        if view[: DIGEST.start - 4] != self.magic:
            raise ContainerError("it begins otherwise")
        if _digest([view[: DIGEST.start], view[DIGEST.stop :]]) != view[DIGEST]:
            raise ContainerError("its checksum differs")
        version = int.from_bytes(view[DIGEST.start - 4 : DIGEST.start], "little")
        if version != self.version:
            raise VersionError(version, self.version)
        length = int.from_bytes(view[DIGEST.stop : PREAMBLE_BYTES], "little")
        if length > min(self.header_bytes, len(view) - PREAMBLE_BYTES):
            raise ContainerError("its header is too long")
        text = bytes(view[PREAMBLE_BYTES : PREAMBLE_BYTES + length])
        try:
            content = (_DECODER if self.nonfinite else _FINITE_DECODER).decode(text.decode())
        except (ValueError, RecursionError):
            raise ContainerError("its header is not JSON") from None
        if not (isinstance(content, list) and len(content) == 2 and isinstance(content[0], dict)):
            raise ContainerError("its header is not values and a list of arrays")
        return content[0], _arrays(content[1], view[PREAMBLE_BYTES + length :])


def are_counts(values: Any) -> bool:
    """Return True for a list of integers none of which is negative."""
    return isinstance(values, list) and all(type(count) is int and count >= 0 for count in values)


def _arrays(table: Any, data: memoryview) -> dict[str, np.ndarray]:
    if not isinstance(table, list):
        raise ContainerError("its list of arrays is of another type")
    arrays: dict[str, np.ndarray] = {}
    first = 0
    for entry in table:
        if not (isinstance(entry, list) and len(entry) == 3):
            raise ContainerError("an entry of its list of arrays is not name, type and shape")
        name, kind, shape = entry
        if not isinstance(name, str) or name in arrays:
            raise ContainerError("the name of an array is not a string, or stands twice")
        if kind not in TYPES:
            raise ContainerError("an array is of a type that cannot travel")
        if not are_counts(shape) or len(shape) > AXES_MAX:
            raise ContainerError("the shape of an array is not a list of lengths")
        dtype = np.dtype(kind).newbyteorder("<")
        size = math.prod(shape) * dtype.itemsize
        if size > len(data) - first:
            raise ContainerError("an array is longer than the content")
        if max(shape, default=0) > LENGTH_MAX:
            raise ContainerError("an axis of an array is too long")
        try:
            array = np.frombuffer(data[first : first + size], dtype).reshape(shape)
        except ValueError:  # no content, and lengths that no array has
            raise ContainerError("the shape of an array is not that of an array") from None
        if kind == "b1" and array.view(np.uint8).max(initial=0) > 1:
            raise ContainerError("an array of bools holds something else")
        arrays[name] = array.astype(np.dtype(kind))  # a copy, aligned and writable
        first += size
    if first != len(data):
        raise ContainerError("it is longer than its arrays")
    return arrays


def _digest(parts: Iterable[Any]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _refuse(text: str) -> float:
    raise ValueError(text)


_ENCODER = json.JSONEncoder(sort_keys=True)
_DECODER = json.JSONDecoder()
_FINITE_DECODER = json.JSONDecoder(parse_constant=_refuse)
"""Made once: each takes longer to make than a header to read."""
