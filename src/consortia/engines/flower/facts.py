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


class NeedsOthersError(Exception):
    """A site has told all that it can before it hears what the others have told."""


class SiteEngine:
    """The engine with which a site makes its study: it holds one site, and judges nothing.

    Args:
        number: of the site.
        told: what all have told so far, the server first, of each call of `shared`.
        digest: of rows, in the place of their plain hash.
        rows: is called with the number of rows of a file as soon as it is read, before anything is
            told of it; it may refuse them.

    Attributes:
        made: what this site has told in the calls of `shared` behind those.
    """

    name = "flower"
    root = False
    compares = False
    """Whether all tell the same is for the server to say."""

    def __init__(
        self,
        number: int,
        told: Sequence[list[Any]],
        digest: Any = None,
        rows: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.made: list[Any] = []
        self._number, self._told, self._calls = number, told, 0
        self.rows = rows
        if digest is not None:
            self.digest = digest

    def held(self, nodes: int, method: Method) -> np.ndarray:
        """Its own number."""
        return np.array([self._number])

    def shared(self, make: Callable[[], Any]) -> Sequence[Any]:
        """What all tell, the server first; of a call that is new to them it must not be looked at.

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
