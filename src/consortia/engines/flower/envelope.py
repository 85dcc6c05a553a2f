"""A message between the server and a site, as one string of bytes.

Layout: eight bytes ``CONSFLWR``, the format version (4 bytes, little endian), the SHA-256 of
everything behind it (32 bytes), the length of the header (8 bytes), the header as JSON, then the
arrays one after the other, little endian, in the order of the header's list. Nothing is pickled,
nothing is padded, and nothing may follow the last array.

Whoever decodes such a string gets a whole message or an `EnvelopeError` that says what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consortia.errors import ConsortiaError

MAGIC = b"CONSFLWR"
FORMAT = 1
PREAMBLE = len(MAGIC) + 4 + 32 + 8
LARGEST_HEADER = 2**26
MOST_AXES = 16
KINDS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
"""Types of number that may travel."""

FIELDS = {"kind": str, "run": str, "site": str, "study": str, "label": list, "values": dict}
"""The header's entries beside the list of arrays, all needed."""


class EnvelopeError(ConsortiaError, ValueError):
    """Some bytes are not a message of this format; the text says why, and holds none of them."""


@dataclass(frozen=True)
class Envelope:
    """One message.

    Attributes:
        kind: what it asks or answers.
        run: identity of the run.
        site: name of the site that it goes to, or comes from.
        study: fingerprint of the study that the sender runs.
        label: where in the run: stage, iteration, phase, repetition; empty outside of it.
        values: plain values, as in JSON.
        arrays: by name.
    """

    kind: str
    run: str
    site: str
    study: str
    label: tuple[int, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The message as bytes; equal messages give equal bytes.

        Raises:
            EnvelopeError: an array is of a type that does not travel.
        """
        table, parts = [], []
        for name, value in self.arrays.items():
            array = np.asarray(value)
            kind = f"{array.dtype.kind}{array.dtype.itemsize}"
            if kind not in KINDS:
                raise EnvelopeError(f"array {name!r} is of type {array.dtype}, which cannot travel")
            table.append([name, kind, list(array.shape)])
            parts.append(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
        content = {
            "kind": self.kind,
            "run": self.run,
            "site": self.site,
            "study": self.study,
            "label": list(self.label),
            "values": dict(self.values),
            "arrays": table,
        }
        header = _ENCODER.encode(content).encode()
        rest = b"".join((len(header).to_bytes(8, "little"), header, *parts))
        return b"".join((MAGIC, FORMAT.to_bytes(4, "little"), _digest(rest), rest))


def decode(data: bytes) -> Envelope:
    """The message that these bytes are.

    Raises:
        EnvelopeError: they are none.
    """
    if not isinstance(data, bytes) or len(data) < PREAMBLE:
        raise EnvelopeError("the message is too short")
    if data[: len(MAGIC)] != MAGIC:
        raise EnvelopeError("the message is not one of consortia's")
    version = int.from_bytes(data[8:12], "little")
    if version != FORMAT:
        raise EnvelopeError(f"the message is of format {version}, this version reads {FORMAT}")
    if _digest(memoryview(data)[44:]) != data[12:44]:
        raise EnvelopeError("the message is damaged: its checksum differs")
    length = int.from_bytes(data[44:PREAMBLE], "little")
    if length > min(LARGEST_HEADER, len(data) - PREAMBLE):
        raise EnvelopeError("the header is longer than the message")
    try:
        content = _DECODER.decode(data[PREAMBLE : PREAMBLE + length].decode())
    except (ValueError, RecursionError):
        raise EnvelopeError("the header is not JSON") from None
    if not isinstance(content, dict) or content.keys() != {*FIELDS, "arrays"}:
        raise EnvelopeError("the header has other entries than a message has")
    for name, kind in FIELDS.items():
        if not isinstance(content[name], kind):
            raise EnvelopeError(f"the header's {name} is of another type")
    label = content["label"]
    if len(label) not in (0, 4) or not _whole(label):
        raise EnvelopeError("the label is not four whole numbers")
    arrays = _arrays(content["arrays"], memoryview(data)[PREAMBLE + length :])
    texts = {name: content[name] for name in ("kind", "run", "site", "study")}
    return Envelope(**texts, label=tuple(label), values=content["values"], arrays=arrays)


def digest(data: bytes) -> str:
    """By which a reply names its request: the SHA-256 in a message that is known to be whole."""
    return data[12:44].hex()


def digest_of_any(data: bytes) -> str:
    """The same of bytes that may be no message; a damaged one has not the name of the whole."""
    try:
        decode(data)
    except EnvelopeError:
        return hashlib.sha256(data).hexdigest()
    return digest(data)


# --- helpers -------------------------------------------------------------------------------------


def _arrays(table: Any, data: memoryview) -> dict[str, np.ndarray]:
    if not isinstance(table, list):
        raise EnvelopeError("the list of arrays is of another type")
    arrays: dict[str, np.ndarray] = {}
    place = 0
    for entry in table:
        if not (isinstance(entry, list) and len(entry) == 3):
            raise EnvelopeError("an entry of the list of arrays is not name, type and shape")
        name, kind, shape = entry
        if not isinstance(name, str) or name in arrays:
            raise EnvelopeError("the name of an array is no text, or stands twice")
        if kind not in KINDS:
            raise EnvelopeError("an array is of a type that does not travel")
        if not isinstance(shape, list) or len(shape) > MOST_AXES or not _whole(shape):
            raise EnvelopeError("the shape of an array is not a list of lengths")
        dtype = np.dtype(kind).newbyteorder("<")
        size = math.prod(shape) * dtype.itemsize
        if size > len(data) - place:
            raise EnvelopeError("an array is longer than the message")
        array = np.frombuffer(data[place : place + size], dtype).reshape(shape)
        if kind == "b1" and array.view(np.uint8).max(initial=0) > 1:
            raise EnvelopeError("an array of truth values holds something else")
        arrays[name] = array.astype(np.dtype(kind), copy=False)
        place += size
    if place != len(data):
        raise EnvelopeError("the message is longer than its arrays")
    return arrays


def _whole(values: list[Any]) -> bool:
    """Whether all are whole numbers, and none is negative."""
    return all(type(one) is int and one >= 0 for one in values)


def _constant(text: str) -> float:
    """NaN and the infinities, which JSON has no words for, travel in arrays only."""
    raise ValueError(text)


_ENCODER = json.JSONEncoder(sort_keys=True)
_DECODER = json.JSONDecoder(parse_constant=_constant)
"""Made once: each takes longer to make than a header to read."""


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()
