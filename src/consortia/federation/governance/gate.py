"""The one gate through which everything leaves a site.

A message is checked against the policy, written into the ledger, and only then handed out. Of an
error at the site nothing leaves but a fixed phrase and a number, under which its text lies at the
site.
"""

from __future__ import annotations

import os
import secrets
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from consortia.core.printable import printable
from consortia.errors import (
    InputError,
    LedgerError,
    MissingExtraError,
    NonFiniteError,
    PolicyError,
    StoreError,
)
from consortia.federation.governance.ledger import Ledger
from consortia.federation.governance.policy import Policy, forbidden, load_policy
from consortia.federation.governance.terms import StudyTerms
from consortia.store.durable import private

LEDGER = "ledger.jsonl"
ERRORS = "errors.log"

OVERHEAD = 4096
OVERHEAD_OF_ARRAY = 512
"""Bytes of a message beyond its arrays: names, types, shapes and what else the engine writes."""

UNRECORDED = "the site's ledger cannot be written"
"""Text that may leave without a line in the ledger, because there can be none."""

PHRASES: tuple[tuple[type[BaseException], str], ...] = (
    (PolicyError, "the site's policy does not permit this"),
    (LedgerError, UNRECORDED),
    (MissingExtraError, "something is not installed at the site"),
    (NonFiniteError, "a number at the site is not finite"),
    (StoreError, "the site's folder cannot be used"),
    (InputError, "the site's data or settings cannot be used"),
    (MemoryError, "the site has not enough memory"),
    (TimeoutError, "the site was too late"),
    (OSError, "a file of the site cannot be used"),
    (BaseException, "the site met an error"),
)
"""All that may be said elsewhere of an error, by its class; the first that fits."""


class Gate:
    """The way of a site's messages out; made by `open_gate`.

    Attributes:
        policy: what is permitted.
        terms: what the study requires.
        site: the site's name.
    """

    def __init__(
        self, folder: Path, policy: Policy, ledger: Ledger, site: str, terms: StudyTerms
    ) -> None:
        self.policy = policy
        self.terms = terms
        self.site = site
        self._folder = folder
        self._ledger = ledger

    def rows(self, count: int) -> None:
        """Check the count of the site's rows, as soon as they are read.

        Raises:
            PolicyError: they are too few.
        """
        self.policy.permits_rows(count)

    def release(
        self, kind: str, round: int | None, payload: bytes, arrays: Mapping[str, np.ndarray]
    ) -> bytes:
        """Return the message once it may leave and its line is in the ledger.

        Args:
            kind: of `consortia.federation.governance.terms.KINDS`.
            round: the iteration, from 0; of other kinds whatever tells their messages apart.
            payload: the message, as it will be sent.
            arrays: the arrays in it, by name.

        Raises:
            PolicyError: it may not leave; the message has every reason.
            LedgerError: the ledger is broken, or cannot be written.
        """

        def check() -> None:
            found = [*self._of_message(kind, round, payload), *self._of_arrays(payload, arrays)]
            if found:
                raise forbidden(f"the message {kind!r} of round {round}", found)

        shapes = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
        self._ledger.append(
            "released",
            run=self.terms.run,
            site=self.site,
            kind=kind,
            round=round,
            payload=payload,
            arrays=shapes,
            check=check,
        )
        return payload

    def refusal(self, error: BaseException, wrap: Callable[[str], bytes] = str.encode) -> bytes:
        """Return what may leave of an error; see `refusal`."""
        folder, run = self._folder, self.terms.run
        return refusal(error, folder=folder, site=self.site, run=run, wrap=wrap)

    def _of_message(self, kind: str, round: int | None, payload: bytes) -> list[tuple[str, str]]:
        policy, found = self.policy, []
        if kind not in policy.messages or kind not in self.terms.messages:
            found.append(("messages", f"no message of the kind {kind!r} may leave"))
        most = min(policy.maximum_rounds, self.terms.rounds)
        if kind == "round" and not (round is not None and 0 <= round < most):
            found.append(("maximum_rounds", f"there are the rounds 0 to {most - 1}"))
        if policy.maximum_bytes is not None and len(payload) > policy.maximum_bytes:
            found.append(
                ("maximum_bytes", f"it has {len(payload)} bytes, more than {policy.maximum_bytes}")
            )
        sent = self._ledger.messages[self.terms.run]
        if policy.maximum_messages is not None and sent >= policy.maximum_messages:
            found.append(("maximum_messages", f"{sent} messages of this run have left"))
        return found

    def _of_arrays(self, payload: bytes, arrays: Mapping[str, np.ndarray]) -> list[tuple[str, str]]:
        found = []
        for name, array in arrays.items():
            if array.dtype.kind not in "biuf":
                found.append(("messages", f"the array {name!r} holds no numbers"))
            elif array.dtype.kind == "f" and not np.isfinite(array).all():
                found.append(("messages", f"the array {name!r} holds a number that is not finite"))
            elif self.policy.maximum_norm is not None:
                norm = float(np.linalg.norm(array.astype(np.float64).ravel()))
                if norm > self.policy.maximum_norm:
                    found.append(("maximum_norm", f"the norm of the array {name!r} is {norm:g}"))
        known = sum(array.nbytes for array in arrays.values())
        most = known + OVERHEAD + OVERHEAD_OF_ARRAY * len(arrays)
        if arrays and len(payload) > most:
            found.append(
                ("messages", f"it has {len(payload)} bytes, but only {known} in its arrays")
            )
        return found


def open_gate(
    folder: str | os.PathLike[str],
    policy: str | os.PathLike[str],
    *,
    site: str,
    terms: StudyTerms,
) -> Gate:
    """Check the policy before any data are read; then open the ledger.

    Args:
        folder: of the site, made if it is not there; holds the ledger and the log of errors.
        policy: the site's ``site-policy.toml``.
        site: the site's name, for the ledger.
        terms: what the study requires, of files at the site.

    Raises:
        InputError: the policy cannot be read.
        PolicyError: it forbids the study; the message has every reason.
        LedgerError: the ledger is broken, or cannot be written.
    """
    folder = _made(folder)
    found = load_policy(policy)
    found.permits(terms)
    ledger = Ledger(folder / LEDGER)
    details = {"policy": found.digest, "study": terms.study, "model": terms.model}

    def check() -> None:
        runs = {**ledger.runs, terms.run: details}
        if found.maximum_runs is not None and len(runs) > found.maximum_runs:
            raise forbidden(
                "this study", [("maximum_runs", f"{len(ledger.runs)} runs are in the ledger")]
            )

    if ledger.runs.get(terms.run) != details:
        ledger.append("opened", run=terms.run, site=site, details=details, check=check)
    return Gate(folder, found, ledger, site, terms)


def refusal(
    error: BaseException,
    *,
    folder: str | os.PathLike[str],
    site: str,
    run: str,
    wrap: Callable[[str], bytes] = str.encode,
) -> bytes:
    """Return what may leave of an error, also where no gate could be opened.

    Its text goes into ``errors.log`` in the site's folder, which may hold data and never leaves;
    the refusal, a fixed phrase for the class of the error, the keys of a policy that forbade
    something, and a random number, goes into the ledger.

    Args:
        error: what was raised.
        folder: of the site.
        site: its name.
        run: the run.
        wrap: makes a message of the refusal; it is the message that the ledger counts.

    Raises:
        LedgerError: neither can be written. Then nothing may leave but `UNRECORDED`.
    """
    number = secrets.token_hex(4)
    phrase = next(text for kind, text in PHRASES if isinstance(error, kind))
    rules = f" ({', '.join(error.rules)})" if isinstance(error, PolicyError) else ""
    payload = wrap(f"{phrase}{rules}; the site has the details under number {number}")
    folder = _made(folder)
    details = "".join(traceback.format_exception(error))
    _log(folder / ERRORS, f"{number} {datetime.now(UTC).isoformat()} run {run}\n{details}\n")
    Ledger(folder / LEDGER).append(
        "refused", run=run, site=site, payload=payload, details={"number": number}
    )
    return payload


def _made(folder: str | os.PathLike[str]) -> Path:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LedgerError(f"the site's folder {str(folder)!r} cannot be made: {error}") from error
    return Path(folder)


def _log(path: Path, text: str) -> None:
    try:
        with open(path, "ab", opener=private) as file:
            file.write(printable(text, lines=True).encode())
    except OSError as error:
        raise LedgerError(f"{path} cannot be written: {error}") from error
