"""The errors a user can meet; each says what was wrong, where, and what to do."""

from __future__ import annotations

from typing import Any


class ConsortiaError(Exception):
    """Base class of every error that this package raises on purpose."""


class InputError(ConsortiaError, ValueError):
    """An argument, a model or a data set cannot be used; raised before anything is compiled."""


class MissingExtraError(ConsortiaError, ImportError):
    """An optional dependency is needed here; the message names the extra that installs it."""


class NonFiniteError(ConsortiaError, ArithmeticError):
    """A chain left the finite numbers in mid-run.

    Attributes:
        round: first iteration (warm-up included, from 0) after which the chain is not finite.
        chain: index of the chain.
        site: name of the first site whose message was not finite, or None when no site's was.
        position: what the chain would have drawn before that round, (d,).
        tree: the result so far, an `xarray.DataTree` with every draw kept before `round`.
    """

    def __init__(
        self,
        message: str,
        *,
        round: int,
        chain: int,
        site: str | None,
        position: Any = None,
        tree: Any = None,
    ) -> None:
        super().__init__(message)
        self.round = round
        self.chain = chain
        self.site = site
        self.position = position
        self.tree = tree


class WarmupError(ConsortiaError, RuntimeError):
    """What was learned in the warm-up is not worth going on with; the message says what to do.

    Attributes:
        tree: the record of the run, without draws.
    """

    tree: Any = None


class StoreError(ConsortiaError, OSError):
    """A run directory cannot be used as asked (it holds a run already, or holds none)."""


class RankError(ConsortiaError, RuntimeError):
    """A process of a run over several is gone, late or has failed; the message names it.

    Attributes:
        tree: what this process has of the result, with every draw that it kept; None elsewhere.
    """

    tree: Any = None
