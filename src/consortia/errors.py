"""The errors a user can meet; each says what was wrong, where, and what to do."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

__all__ = [
    "ConsortiaError",
    "DeploymentError",
    "DivergenceError",
    "InputError",
    "KeywordError",
    "LedgerError",
    "MissingExtraError",
    "NonFiniteError",
    "PolicyError",
    "RankError",
    "RunClosedError",
    "SiteImplausibleError",
    "SiteMissingError",
    "SiteRefusedError",
    "StoreError",
    "WarmupError",
]


def warn(text: str) -> None:
    """Give a `UserWarning` at the nearest line of the caller that is outside of this package."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "consortia":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


class ConsortiaError(Exception):
    """Base class of every error that this package raises on purpose.

    Attributes:
        argument: name of the argument, or dotted key of the file, that is wrong; None where there
            is none, as of the next three.
        site: name of the site.
        file: path of the file, as it was given.
        line: of the file, from 1.

    Example:
        >>> issubclass(InputError, ConsortiaError)
        True
    """

    argument: str | None = None
    site: str | None = None
    file: str | None = None
    line: int | None = None

    def at(self, argument: str | None = None, **places: Any) -> Self:
        """Note places that are not known yet, by the names of the attributes; return the error."""
        for name, value in {"argument": argument, **places}.items():
            if getattr(self, name) is None and value not in (None, ""):
                setattr(self, name, value)
        return self


class InputError(ConsortiaError, ValueError):
    """An argument, a model or a data set cannot be used; raised before anything is compiled.

    Attributes:
        faults: the errors that this one lists, each with a place of its own; empty of a single one.

    Example:
        >>> issubclass(InputError, ValueError)
        True
    """

    faults: tuple[InputError, ...] = ()

    def at(self, argument: str | None = None, **places: Any) -> Self:
        """Note places also in the faults."""
        for fault in self.faults:
            fault.at(argument, **places)
        return super().at(argument, **places)


def wrong(argument: str, text: str) -> InputError:
    """Return the error about an argument, whose name and the text are the message."""
    return InputError(f"{argument}{text}").at(argument)


@contextlib.contextmanager
def located(**places: Any) -> Iterator[None]:
    """Note the place in errors that pass, see `ConsortiaError.at`."""
    try:
        yield
    except ConsortiaError as error:
        error.at(**places)
        raise


class KeywordError(InputError, TypeError):
    """A function was called with an argument that it does not have.

    Example:
        >>> issubclass(KeywordError, TypeError)
        True
    """


class MissingExtraError(ConsortiaError, ImportError):
    """An optional dependency is needed here; the message names the extra that installs it.

    Example:
        >>> issubclass(MissingExtraError, ImportError)
        True
    """


@contextlib.contextmanager
def require_extra(extra: str, why: str) -> Iterator[None]:
    """Refuse, with why and what to install, where an import within the context fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f'{why}: pip install "consortia[{extra}]".') from error


class NonFiniteError(ConsortiaError, ArithmeticError):
    """A chain left the finite numbers in mid-run.

    Attributes:
        round: first iteration (warm-up included, from 0) after which the chain is not finite.
        chain: index of the chain.
        site: name of the first site whose message was not finite, or None when no site's was.
        position: what the chain would have drawn before that round, (d,).
        tree: the result so far, an `xarray.DataTree` with every draw kept before `round`.

    Example:
        >>> NonFiniteError("it is infinite", round=3, chain=0, site="oslo").site
        'oslo'
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


class DivergenceError(ConsortiaError, ArithmeticError):
    """The settings are predicted to diverge, and the run was to be refused then.

    Example:
        >>> issubclass(DivergenceError, ArithmeticError)
        True
    """


class WarmupError(ConsortiaError, RuntimeError):
    """The warm-up did not converge; the message says what to do.

    Attributes:
        tree: the record of the run, without draws.

    Example:
        >>> WarmupError("too short").tree is None
        True
    """

    tree: Any = None


class SiteMissingError(ConsortiaError, ConnectionError):
    """A site that must answer did not, until the engine's deadline; it is never left out silently.

    An engine raises it out of ``advance``, with the carry and the buffers after the last finished
    round; `consortia.sample` then keeps the draws up to there, and raises it again.

    Attributes:
        sites: names of the sites that did not answer.
        round: first iteration (warm-up included, from 0) that is not finished.
        waited: seconds until the deadline.
        rejected: the last answer of these sites that was not used, and why; empty where none came.
        reached: (carry, buffers) after the iterations before ``round``; None where the engine has
            none but those that ``advance`` was given, still whole.
        tree: the result so far, an `xarray.DataTree` with every draw kept before.

    Example:
        >>> SiteMissingError(("oslo",), waited=60.0, round=3).sites
        ('oslo',)
    """

    def __init__(
        self,
        sites: tuple[str, ...],
        *,
        waited: float,
        round: int = 0,
        rejected: str = "",
        reached: Any = None,
        tree: Any = None,
    ) -> None:
        super().__init__(sites)
        self.sites = sites
        self.waited = waited
        self.rejected = rejected
        self.round = round
        self.reached = reached
        self.tree = tree

    def __str__(self) -> str:
        single = len(self.sites) == 1
        names = ", ".join(map(repr, self.sites))
        last = f" The last answer was not used: {self.rejected}." if self.rejected else ""
        return (
            f"site{'' if single else 's'} {names} did not answer within {self.waited:g} s in round "
            f"{self.round} (counted from 0).{last} Without {'it' if single else 'them'} another "
            "posterior would be sampled, so the run has stopped; the draws before are kept. "
            f"Start the site{'' if single else 's'} again and resume, or give a longer deadline."
        )


class SiteRefusedError(SiteMissingError):
    """A site refuses a request.

    Attributes:
        reason: a fixed phrase, and where the site's own log has more: nothing else leaves it.

    Example:
        >>> SiteRefusedError(("oslo",), waited=0.0, reason="its policy forbids it").reason
        'its policy forbids it'
    """

    def __init__(self, sites: tuple[str, ...], *, reason: str, **more: Any) -> None:
        super().__init__(sites, **more)
        self.reason = reason

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.sites))
        return f"site {names} refused in round {self.round} (counted from 0): {self.reason}."


class SiteImplausibleError(SiteMissingError):
    """A site's message cannot be that of an honest site; nothing of it was used.

    Attributes:
        reason: what is implausible of it.

    Example:
        >>> SiteImplausibleError(("oslo",), waited=0.0, reason="it is infinite").reason
        'it is infinite'
    """

    def __init__(self, sites: tuple[str, ...], *, reason: str, **more: Any) -> None:
        super().__init__(sites, **more)
        self.reason = reason

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.sites))
        return (
            f"site {names} sent an implausible message in round {self.round} (counted from 0): "
            f"{self.reason}. Nothing of it was used; the draws before are kept. Look at that site "
            "first: its file, its units, who runs it."
        )


class StoreError(ConsortiaError, OSError):
    """A run directory cannot be used so (it holds a run already, or holds none).

    Example:
        >>> issubclass(StoreError, OSError)
        True
    """


class RankError(ConsortiaError, RuntimeError):
    """A process of a run over several is gone, late or has failed; the message names it.

    Attributes:
        tree: what this process has of the result, with every draw that it kept; None elsewhere.

    Example:
        >>> RankError("rank 1 is late").tree is None
        True
    """

    tree: Any = None


class PolicyError(ConsortiaError, RuntimeError):
    """A site's policy forbids a study or a message; the message says every reason.

    Attributes:
        rules: the keys of the policy that forbid it; they alone may leave the site.
        of_rows: what is forbidden depends on rows: not even the keys may leave then.

    Example:
        >>> PolicyError("too many rounds", rules=("maximum_rounds",)).rules
        ('maximum_rounds',)
    """

    def __init__(self, message: str, *, rules: tuple[str, ...] = (), of_rows: bool = False) -> None:
        super().__init__(message)
        self.rules = rules
        self.of_rows = of_rows


class RunClosedError(PolicyError):
    """A site answers nothing more of a run: too much of it was refused.

    Example:
        >>> issubclass(RunClosedError, PolicyError)
        True
    """


class LedgerError(ConsortiaError, RuntimeError):
    """A site's ledger is broken or cannot be written: nothing leaves the site.

    Example:
        >>> issubclass(LedgerError, ConsortiaError)
        True
    """


class DeploymentError(ConsortiaError, RuntimeError):
    """A program of Flower could not be started, or has ended; the message has its last lines.

    Example:
        >>> issubclass(DeploymentError, ConsortiaError)
        True
    """
