"""The answers of a conversation, each in a file of its own, from which a run is replayed.

A file is written whole or not at all, and names the query that it answers by a digest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from consortia.core.queries import Query
from consortia.store.container import DIGEST, ContainerError, Format
from consortia.store.durable import read_regular, remove_parts, replace_file, writing

FOLDER = "answers"
ANSWER = Format(b"CONSANSW", 1)
QUERY = Format(b"CONSQURY", 1)
NAME = re.compile(r"(\d{6,})\.bin")

MAX_ANSWER_BYTES = 2**32


class Stored(NamedTuple):
    """A stored answer."""

    query: str  # digest of the query that it answers
    arrays: dict[str, np.ndarray]  # of the answer


def packed(query: Query) -> bytes:
    """Return a query as bytes; equal queries give equal bytes."""
    head = {"function": query.function, "purpose": query.purpose}
    return QUERY.encode(head, query.arrays)


def unpacked(data: bytes) -> Query:
    """Return the query that was packed.

    Raises:
        ContainerError: the bytes are not those of a query.
    """
    head, arrays = QUERY.decode(data)
    return Query(str(head["function"]), arrays, str(head["purpose"]))


def digest_of(query: Query) -> str:
    """Return the SHA-256 of a query."""
    return packed(query)[DIGEST].hex()


class Answers:
    """The folder ``answers`` of a run directory."""

    def __init__(self, directory: Path) -> None:
        self.folder = directory / FOLDER

    def path(self, number: int) -> Path:
        """Return the file of an answer; they are counted from 1."""
        return self.folder / f"{number:06d}.bin"

    @property
    def present(self) -> bool:
        """True if an answer is there, whatever its state."""
        return any(self._numbers())

    def keep(
        self,
        number: int,
        query: str,
        arrays: Mapping[str, np.ndarray],
        progress: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the answer to the query with this digest, and plain values beside it, durably."""
        with writing(self.folder.parent):
            self.folder.mkdir(exist_ok=True)
            replace_file(
                self.path(number),
                ANSWER.pieces({"query": query, "progress": dict(progress or {})}, arrays),
            )

    def read(self, number: int) -> tuple[Stored | None, str | None]:
        """Return an answer, or None and what is wrong; nothing is wrong where answers end."""
        path = self.path(number)
        if self.folder.is_symlink():
            return None, f"{FOLDER} is a link"
        if not os.path.lexists(path):
            later = [answer_number for answer_number in self._numbers() if answer_number > number]
            return None, f"{path.name} of {FOLDER} is missing" if later else None
        try:
            head, arrays = ANSWER.decode(read_regular(path, MAX_ANSWER_BYTES))
            if not isinstance(head.get("query"), str):
                raise ContainerError("it names no query")
        except (ContainerError, OSError) as error:
            return None, f"{path.name} of {FOLDER} is damaged ({error})"
        return Stored(head["query"], arrays), None

    def progress(self) -> dict[str, Any]:
        """Return the plain values beside the last answer that can be read; none where none can."""
        for number in sorted(self._numbers(), reverse=True):
            try:
                head, _ = ANSWER.decode(read_regular(self.path(number), MAX_ANSWER_BYTES))
            except (ContainerError, OSError):
                continue  # `read` says what is wrong with it
            return dict(head.get("progress", {}))
        return {}

    def cut(self, number: int) -> None:
        """Remove the answers from this one on, and what a kill has left of one."""
        with writing(self.folder.parent):
            for answer_number in self._numbers():
                if answer_number >= number:
                    self.path(answer_number).unlink(missing_ok=True)
            if self.folder.is_symlink():
                self.folder.unlink()
            elif self.folder.is_dir():
                remove_parts(self.folder)

    def _numbers(self) -> Iterator[int]:
        if self.folder.is_dir() and not self.folder.is_symlink():
            for path in self.folder.iterdir():
                match = NAME.fullmatch(path.name)
                if match is not None:
                    yield int(match[1])
