"""The signature that every gradient oracle has."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Float, PyTree

from consortia.core.contract import Site
from consortia.core.random import RandomStreams

Evaluate = Callable[[PyTree, Float[Array, " d"]], Float[Array, " d"]]


class GradientOracle(NamedTuple):
    """An unbiased estimate of ∇U_c, as the numbers it needs and what it does with them.

    Attributes:
        numbers: ``(rng, stream, shape) -> pytree`` with leading axes ``shape``; the last of them
            counts the independent draws that one evaluation averages.
        prepare: ``(numbers, site) -> numbers``: whatever can be done for all evaluations at once.
        bind: ``site -> evaluate``, with ``evaluate(numbers, position) -> (d,)``, the estimate of
            ∇U_c from the numbers of one evaluation (leading axis: draws).
        deterministic: the estimate is a function of the position alone.
    """

    numbers: Callable[[RandomStreams, str, tuple[int, ...]], PyTree]
    prepare: Callable[[PyTree, Site], PyTree]
    bind: Callable[[Site], Evaluate]
    deterministic: bool = False
