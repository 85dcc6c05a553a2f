"""A message between the server and a site, as one string of bytes (`consortia.store.container`).

Whoever decodes such a string gets a whole message or an `EnvelopeError` that says what is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consortia.errors import ConsortiaError
from consortia.store.container import DIGEST, ContainerError, Format, are_counts

HEADER_BYTES = 2**20
"""Most bytes of a header; plain values are few, numbers travel as arrays."""

FORMAT = Format(b"CONSFLWR", 2, header_bytes=HEADER_BYTES)
FIELDS = {"kind": str, "run": str, "site": str, "study": str, "label": list, "values": dict}
"""The entries of the header, all needed."""

LONGEST_TEXT = 1000
"""Characters of a text of the header."""

LARGEST_COUNT = 2**31 - 1
"""Iterations, phases and repetitions are int32."""


class EnvelopeError(ConsortiaError, ValueError):
    """Some bytes are not a message of this format; the text says why, and holds none of them."""


@dataclass(frozen=True)
class Envelope:
    """One message."""

    kind: str  # what it requests or answers
    run: str  # identity of the run
    site: str  # name of the site that it goes to, or comes from
    study: str  # fingerprint of the study that the sender runs
    # where in the run: stage, iteration, phase, repetition; empty outside of it
    label: tuple[int, ...] = ()
    # plain values, as in JSON; NaN and infinities travel in arrays only
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)  # by name

    def encode(self) -> bytes:
        """Return the message as bytes; equal messages give equal bytes.

        Raises:
            EnvelopeError: an array is of a type that does not travel, or the plain values are too
                long.
        """
        header = {name: kind(getattr(self, name)) for name, kind in FIELDS.items()}
        try:
            return FORMAT.encode(header, self.arrays)
        except ContainerError as error:
            raise EnvelopeError(str(error)) from None


def decode(data: bytes) -> Envelope:
    """Return the message that these bytes are.

    Raises:
        EnvelopeError: they are none.
    """
    if not isinstance(data, bytes):
        raise EnvelopeError("the message is not bytes")
    try:
        header, arrays = FORMAT.decode(data)
    except ContainerError as error:
        raise EnvelopeError(f"the message cannot be read: {error}") from None
    if header.keys() != FIELDS.keys():
        raise EnvelopeError("the header has other entries than a message has")
    for name, kind in FIELDS.items():
        if not isinstance(header[name], kind):
            raise EnvelopeError(f"the header's {name} is of another type")
        if kind is str and len(header[name]) > LONGEST_TEXT:
            raise EnvelopeError(f"the header's {name} is too long")
    label = header.pop("label")
    few = len(label) in (0, 4) and are_counts(label)
    if not few or max(label, default=0) > LARGEST_COUNT:
        raise EnvelopeError("the label is not four integers")
    return Envelope(**header, label=tuple(label), arrays=arrays)


def digest(data: bytes) -> str:
    """Return the SHA-256 in a message that is known to be whole, by which a reply names it."""
    return data[DIGEST].hex()


def digest_of_any(data: bytes) -> str:
    """Return `digest`, or the SHA-256 of bytes that are no message."""
    try:
        decode(data)
    except EnvelopeError:
        return hashlib.sha256(data).hexdigest()
    return digest(data)
