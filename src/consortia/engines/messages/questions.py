"""Requests to a site, identified and located before it computes anything."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from consortia.engines.messages.envelope import Envelope
from consortia.engines.messages.settled import Statement

LAST = "last"
"""Plain value of an agreement to a run that is resumed: SHA-256 of the last message of the site."""

NOISE = "noise"
"""Plain value of an answer: how many times larger its noise and units are than the study's own."""

FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1024.0)
"""Factors that a site tries; the largest ones are for answers far out, which shape proposals."""

COARSEST = 2.0**20
"""Factor of units with which what is rounded is 0, and says nothing."""

NOWHERE = np.zeros((0, 0))


@dataclass(frozen=True)
class Question:
    """One question of a run; the same one has the same bits, however often it is sent."""

    message: str  # kind of the message
    label: tuple[int, ...]  # stage, iteration, phase and repetition; empty outside of them
    digest: str  # SHA-256 of all that decides the answer

    @property
    def place(self) -> str:
        """The place in the run that has one answer."""
        return " ".join(map(str, (self.message, *self.label)))

    @property
    def round(self) -> int | None:
        """The iteration, or None outside of the stages."""
        return self.label[1] if self.label else None


@dataclass(frozen=True)
class Spending:
    """Cost of an answer in a privacy budget, see `consortia.core.privacy`."""

    question: str  # digest of the question, which costs once however often it is answered
    loss: float  # (Δ/σ)²
    share: float  # of the budget of its run


@dataclass(frozen=True)
class Place:
    """Position at which the rows would be evaluated, in standard deviations of the prior."""

    points: int  # positions of the message, of all chains
    farthest: float  # the largest distance from the prior's centre, over parameters and points
    moved: float  # the same from where the chain was evaluated before, for each round between
    middles: np.ndarray  # the middle of each chain's points, (chains, d)
    numbers: int = 0  # that depend on rows and would leave in the answer, where it is known
    # the most that the method declares of such an answer; None where the answer has the shape
    # that the study's own phases give it
    declared: int | None = None
    spent: Spending | None = None  # of a privacy budget; None where the answer has no guarantee
    chains: np.ndarray | tuple[()] = ()  # indices of the chains of ``middles``; all when empty


Wrap = Callable[[str], bytes]
"""Maker of the message that leaves of a refusal."""


class Leaving(NamedTuple):
    """A message before it leaves the site."""

    kind: str  # of `consortia.federation.governance.terms.KINDS`
    question: Question  # that it answers
    payload: bytes  # the message, as it will be sent
    arrays: Mapping[str, np.ndarray]  # the arrays in it, by name
    plain_numbers: int = 0  # numbers among its plain values that depend on rows
    # what this answer and those before settle of rows, for the ledger
    statement: Statement | None = None
    masked: str = ""  # digest of masked numbers among its plain values


def question_of(request: Envelope) -> Question:
    """Return the question of a message, of which references to what was before are not a part."""
    values = {name: value for name, value in request.values.items() if name not in ("oldest", LAST)}
    head = [request.kind, list(request.label), values]
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name in sorted(request.arrays):
        array = np.ascontiguousarray(request.arrays[name])
        digest.update(f"{name}\0{array.dtype.str}{array.shape}\0".encode())
        digest.update(array.tobytes())
    return Question(request.kind, request.label, digest.hexdigest())


def largest(values: np.ndarray) -> float:
    """Return the largest value; infinity where one is not a number."""
    if not values.size:
        return 0.0
    maximum = float(values.max())
    return maximum if np.isfinite(maximum) else float("inf")
