"""A letter between the coordinator and a site: messages of the engine in one sealed file.

A question holds one request or several, an answer their replies. The seal is a keyed digest of all
that is in the letter; the key of a site stands in its first letter, and in no other. So nobody who
has not read that letter can change or forge a later one, in either direction. Who can read it can:
it takes a signature to tell a site from one who reads its mail. `seal` and `check_seal` are the
only places that know how a letter is sealed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consortia.engines.messages.files import IDENTITY
from consortia.errors import ConsortiaError
from consortia.store.container import DIGEST, ContainerError, Format

QUESTION, ANSWER = "question", "answer"
SUFFIX = ".letter"

FORMAT = Format(b"CONSLETR", 1)
FIELDS = {"kind": str, "run": str, "site": str, "number": int, "about": str, "values": dict}
"""The entries of the header, all needed, beside the seal."""

SEAL = "seal"
MAX_LETTER_BYTES = 2**28
MAX_MESSAGES = 8


class LetterError(ConsortiaError, ValueError):
    """A file is not a letter that can be accepted; the text says why and holds none of it."""


@dataclass(frozen=True)
class Letter:
    """One letter."""

    kind: str  # `QUESTION` or `ANSWER`
    run: str  # identity of the correspondence
    site: str  # name of the site that it goes to, or comes from
    number: int  # of the question, from 1; an answer has that of its question
    messages: tuple[bytes, ...]  # envelopes as bytes, see `consortia.engines.messages.envelope`
    # of an answer the digest of the question; of a question the SHA-256 of the last reply of the
    # site that the coordinator has accepted, or ""
    about: str = ""
    # plain values; the first question of a site has the study and the key of the seal
    values: Mapping[str, Any] = field(default_factory=dict)

    def _encoded(self, **more: str) -> bytes:
        header = {name: kind(getattr(self, name)) for name, kind in FIELDS.items()}
        arrays = {
            f"message {index}": np.frombuffer(message, np.uint8)
            for index, message in enumerate(self.messages)
        }
        return FORMAT.encode(header | more, arrays)


def seal(letter: Letter, key: bytes) -> bytes:
    """Return the letter as the bytes of a file; equal letters give equal bytes."""
    return letter._encoded(**{SEAL: _seal_of(letter, key)})


def check_seal(letter: Letter, given: str, key: bytes) -> None:
    """Refuse a letter that was not sealed with this key.

    Raises:
        LetterError: it was not.
    """
    if not hmac.compare_digest(given.encode(), _seal_of(letter, key).encode()):
        raise LetterError("it is forged, or was changed: its seal is not that of this run and site")


def _seal_of(letter: Letter, key: bytes) -> str:
    return hmac.new(key, letter._encoded(), hashlib.sha256).hexdigest()


def unfold(data: bytes) -> tuple[Letter, str]:
    """Return the letter in the bytes of a file, and its seal, which is not checked.

    Raises:
        LetterError: the file is not a whole letter.
    """
    try:
        header, arrays = FORMAT.decode(data)
    except ContainerError as error:
        raise LetterError(f"it is not a whole letter ({error}): have it sent again") from None
    given = header.pop(SEAL, None)
    typed = header.keys() == FIELDS.keys() and all(
        type(header[name]) is kind for name, kind in FIELDS.items()
    )
    if not typed or not isinstance(given, str):
        raise LetterError("its header has other entries than a letter has")
    few = 0 < len(arrays) <= MAX_MESSAGES
    names = [f"message {index}" for index in range(len(arrays))]
    if not few or list(arrays) != names or header["kind"] not in (QUESTION, ANSWER):
        raise LetterError("it holds something else than messages")
    if not IDENTITY.fullmatch(header["run"]) or header["number"] < 1:
        raise LetterError("it names no run, or no number")
    if not is_site_name(header["site"]):
        raise LetterError("it names a site as no site can be named")
    return Letter(**header, messages=tuple(array.tobytes() for array in arrays.values())), given


RESERVED = {"con", "prn", "aux", "nul"} | {
    f"{port}{n}" for port in ("com", "lpt") for n in "123456789"
}
"""Names that a file cannot have everywhere."""


def is_site_name(name: str) -> bool:
    """Return True if a site can be named so, and its folder everywhere."""
    plain = name.isprintable() and not any(mark in name for mark in '/\\:*?"<>|')
    edges = name.strip(" .") == name
    return bool(name) and plain and edges and name.partition(".")[0].lower() not in RESERVED


def digest(data: bytes) -> str:
    """Return the SHA-256 in a letter that is known to be whole, by which an answer names it."""
    return data[DIGEST].hex()
