"""What server and sites tell each other before a run: plain values, as over the ranks of MPI.

A site answers one message and forgets. It therefore makes the study from its beginning each time,
with what has been told before, up to the first value that it needs and does not know.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from consortia.core.contract import Method
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.engines.contract import Engine, Run
from consortia.errors import InputError

PyTree = Any


class NeedsOthersError(Exception):
    """A site has told all that it can before it hears what the others have told."""


class SiteEngine(Engine):
    """The engine with which a site makes its study: it holds one site, and judges nothing.

    Args:
        number: of the site.
        told: what all have told so far, the server first, of each call of `allgather`.
        digest: of rows, in the place of their plain hash.
        rows: is called with the number of rows of a file as soon as it is read, before anything is
            told of it; it may refuse them.

    Attributes:
        made: what this site has told in the calls of `allgather` behind those.
    """

    name = "flower"
    compares = False

    def __init__(
        self,
        number: int,
        told: Sequence[list[Any]],
        digest: Callable[[PyTree], str] | None = None,
        rows: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.made: list[Any] = []
        self._number, self._told, self._calls = number, told, 0
        self._digest, self._check_rows = digest, rows

    @property
    def root(self) -> bool:
        """False: the server keeps the draws."""
        return False

    def digest(self, rows: PyTree) -> str:
        """Return the digest of the rows under a key of this site, where one was given."""
        return super().digest(rows) if self._digest is None else self._digest(rows)

    def check_rows(self, count: int) -> None:
        """Refuse to take part with so few rows, where the site's policy says so."""
        self._check_rows(count)

    def prepare(self, target: Target, sites: Sites, method: Method, chains: int) -> Run:
        """Refuse: the server prepares the run."""
        raise InputError("a site of a Flower run prepares no run of its own: its server does.")

    def local_sites(self, nodes: int, method: Method) -> np.ndarray:
        """Return the index of this site."""
        return np.array([self._number])

    def allgather(self, make: Callable[[], Any]) -> Any:
        """Return what all have made, the server first; of a new call the values must not be read.

        Raises:
            NeedsOthersError: when it is looked at.
        """
        made = json.loads(json.dumps(make()))
        self._calls += 1
        if self._calls <= len(self._told):
            return self._told[self._calls - 1]
        self.made.append(made)
        return Unknown()


class Unknown(Sequence[Any]):
    """What others have told and this site does not know yet."""

    def __getitem__(self, index: Any) -> Any:
        raise NeedsOthersError

    def __len__(self) -> int:
        raise NeedsOthersError

    def __iter__(self) -> Iterator[Any]:
        raise NeedsOthersError
