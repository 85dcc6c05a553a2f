"""The one gate of a site, through which questions enter and answers leave.

A question is checked against policy and ledger before anything is computed; a message is checked
again, written into the ledger, and only then handed out. Of an error at the site nothing leaves but
a fixed phrase and a number, under which its text lies at the site; of a rule that depends on rows
not even its name. A run of which too much was refused is closed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from consortia.core.printable import printable
from consortia.core.privacy import epsilon_of
from consortia.data.digest import RowDigests
from consortia.data.mending import rows_text
from consortia.errors import (
    InputError,
    LedgerError,
    MissingExtraError,
    NonFiniteError,
    PolicyError,
    RunClosedError,
    StoreError,
)
from consortia.federation.governance.holdings import Holdings
from consortia.federation.governance.ledger import (
    BY_ROWS,
    CONTENT,
    MASKED,
    NUMBERS,
    SETTLED,
    Ledger,
    numbers_of,
)
from consortia.federation.governance.policy import forbidden, load_policy
from consortia.federation.governance.terms import BEFORE_PHASES, StudyTerms
from consortia.store.durable import private

if TYPE_CHECKING:
    from consortia.engines.messages.questions import Leaving, Place, Question, Spending, Wrap
    from consortia.engines.messages.settled import Statement

LEDGER, HELD_LOCK = "ledger.jsonl", "held.lock"
ERRORS = "errors.log"

OVERHEAD = 4096
OVERHEAD_OF_ARRAY = 512
"""Bytes of a message beyond its arrays: names, types, shapes and what else the engine writes."""

UNRECORDED = "the site's ledger cannot be written"
"""Text that may leave without a line in the ledger, because there can be none."""

SAME_ROWS = (
    "Use the same rows in all studies: name the columns that any of them needs in data.require, as "
    'in [data] require = ["crp"], before the first one runs, or draw missing values at the sites '
    '(model.missing = "impute")'
)
"""Remedies where two studies use almost the same rows."""

TOLD = ("maximum_settled_rows", "minimum_rows_changed")
"""Rules that depend on rows of which a policy may permit to tell the name."""

CLOSED = "the run is closed at the site"
"""Text that leaves without a line: it says nothing new, and lines without end would fill a disk."""

MOST_REPEATS = 100
"""So often, over all messages of a run, the same answer may be sent again: after a restart a site
finds all requests that came meanwhile."""

SHARES = 1e-6
"""Relative error of sums of a budget's shares, and of its accountant."""

MOST_STRANGERS = 100
"""Refusals of runs that were never opened that the ledger has one after the other; of further ones
no line is written."""

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
    """Entrance of questions to a site, and the exit of its messages; made by `open_gate`.

    Attributes:
        policy: what is permitted.
        terms: what the study requires.
        site: the site's name.
    """

    def __init__(
        self, folder: Path, policy: Path, ledger: Ledger, site: str, terms: StudyTerms
    ) -> None:
        self.policy = load_policy(policy)
        self.terms = terms
        self.site = site
        self._folder, self._path = folder, policy
        self._ledger = ledger
        self._opened()

    def _opened(self) -> None:
        """Check the study against the policy, and have both in the ledger."""
        policy, terms, ledger = self.policy, self.terms, self._ledger
        policy.permits(terms)
        details = {"policy": policy.digest, "study": terms.study, "model": terms.model}
        known = ledger.runs.get(terms.run)
        if known is not None and known["study"] != terms.study:
            text = "its run is that of another study in the ledger"
            raise forbidden("this study", [("studies", text)])

        def check() -> None:
            runs = {**ledger.runs, terms.run: details}
            if policy.maximum_runs is not None and len(runs) > policy.maximum_runs:
                raise forbidden(
                    "this study", [("maximum_runs", f"{len(ledger.runs)} runs are in the ledger")]
                )

        if ledger.runs.get(terms.run) != details:
            ledger.append("opened", run=terms.run, site=self.site, details=details, check=check)

    def admit(self, kind: str, question: Question) -> bool:
        """Check a request before anything is read or computed; a policy that changed is read.

        Args:
            kind: of what would leave, of `consortia.federation.governance.terms.KINDS`.
            question: which one, and where in the run.

        Returns:
            True if the same was answered before.

        Raises:
            PolicyError: it is not answered; the message has every reason.
            InputError: the policy cannot be read.
        """
        if hashlib.sha256(self._path.read_bytes()).hexdigest() != self.policy.digest:
            self.policy = load_policy(self._path)
            self._opened()
        self._ledger.refresh()
        refused = self._ledger.refusals[self.terms.run]
        if refused >= self.policy.maximum_refusals:
            text = f"{refused} refusals count of this run; it is closed until this key is larger"
            raise RunClosedError(f"maximum_refusals: {text}.", rules=("maximum_refusals",))
        self._check(kind, question)
        return question.digest in self._answers(question)

    def rows(self, number: int, parameters: int | None = None, cell: int | None = None) -> None:
        """Check the number of the site's rows, as soon as they are read, and of the parameters.

        Args:
            number: of rows.
            parameters: of the model, once it is built.
            cell: rows that share the rarest pattern of covariates, once they are known.

        Raises:
            PolicyError: the rows are too few.
        """
        self.policy.permits_rows(number, parameters, cell)

    def holds(self) -> str:
        """Return the name that the run's data have in the ledger; "" where they have none."""
        return self._ledger.data.get(self.terms.run, ("", 0))[0]

    def data(self, rows: Sequence[RowDigests], values: int) -> None:
        """Check which data a run is about, and have that in the ledger.

        Args:
            rows: digests of the rows that each model of the study uses.
            values: that the rows hold, of the columns of the study.

        Raises:
            PolicyError: a few rows came or went since another run.
        """
        run, holdings = self.terms.run, Holdings(self._folder)
        with FileLock(self._folder / HELD_LOCK):  # runs that begin at once know of one another
            first, *others = rows
            least = self.policy.minimum_rows_changed
            facts = holdings.known(first, others, least)
            more = [holdings.known(other, (), least) for other in others]
            changes = [known.changed for known in (facts, *more)]
            changed = min((count for count in changes if count is not None), default=None)
            if changed is not None and changed < least:
                text = f"{rows_text(changed)} came or went since an earlier run, or between two "
                text += "models of this one, or are taken for other values, or several runs differ "
                text += f"by them; fewer than {least}: the difference tells them. {SAME_ROWS}"
                raise forbidden("this study", [("minimum_rows_changed", text)], of_rows=True)
            if self._ledger.data.get(run) != (facts.data, values):
                for used in rows:
                    holdings.keep(facts.data, used)
                details = {"data": facts.data, "values": str(values)}
                self._ledger.append("held", run=run, site=self.site, details=details)

    def place(self, where: Place, *, again: bool) -> None:
        """Check where rows would be looked at, before they are.

        Args:
            where: in standard deviations of the prior, and how many numbers an answer would hold.
            again: the question was answered before, so that the chain has not moved.

        Raises:
            PolicyError: too far out, too far from the last time, at too many points, with too
                many numbers in the messages of the run, or with more in this one than the method
                declares.
        """
        if rules := [*self._of_place(where, again=again)]:
            raise forbidden("this question", rules)

    def _of_place(self, where: Place, *, again: bool) -> Iterator[tuple[str, str]]:
        policy = self.policy
        if policy.maximum_points is not None and where.points > policy.maximum_points:
            yield "maximum_points", f"{where.points} positions, more than {policy.maximum_points}"
        if not again:
            yield from self._too_many_numbers(where.numbers)
        if where.declared is not None and where.numbers > where.declared:
            text = f"the answer would hold {where.numbers} numbers that depend on rows, more than "
            yield "messages", f"{text}the {where.declared} that the method declares"
        for rule, distance, most in (
            ("maximum_position", where.farthest, policy.maximum_position),
            ("maximum_step", 0.0 if again else where.moved, policy.maximum_step),
        ):
            if not distance <= most:
                yield rule, f"{distance:.4g} standard deviations of the prior, more than {most:g}"

    def knows(self, message: str) -> bool:
        """Return True if the ledger has a message with this SHA-256 among those of the run."""
        self._ledger.refresh()
        return message in self._ledger.left[self.terms.run]

    def spend(self, spent: Spending) -> None:
        """Write down what an answer costs of the privacy budget, before it is computed.

        Raises:
            PolicyError: it is more than the run, or the data in all runs, may lose.
        """
        policy, ledger, run = self.policy, self._ledger, self.terms.run
        known = run, spent.question

        def check() -> None:
            if known in ledger.losses:
                return
            rules, data = [], ledger.data.get(run)
            share = ledger.share_of_run(run) + spent.share
            if share > 1 + SHARES:
                text = f"the answers of this run would cost {share:.2f} times its privacy budget"
                rules.append(("messages", text))
            if policy.maximum_epsilon is not None:
                if data is None:
                    text = "it is not known which rows the run is about"
                    rules.append(("maximum_epsilon", text))
                else:
                    loss = ledger.loss_of_data(data[0]) + spent.loss
                    epsilon = epsilon_of(loss, policy.delta)
                    if epsilon > policy.maximum_epsilon * (1 + SHARES):
                        text = f"all runs of these rows together would cost {epsilon:.3g} at delta "
                        text += f"{policy.delta:g}, more than {policy.maximum_epsilon:g}"
                        rules.append(("maximum_epsilon", text))
            if rules:
                raise forbidden("this question", rules)

        ledger.refresh()
        check()
        if known not in ledger.losses:
            details = {"question": spent.question}
            details |= {"loss": repr(spent.loss), "share": repr(spent.share)}
            ledger.append("spent", run=run, site=self.site, details=details, check=check)

    def settled(self, statement: Statement | None) -> None:
        """Check how many rows an answer and those before would settle, before it leaves.

        Args:
            statement: None where that is not known.

        Raises:
            PolicyError: they are too many, or may be.
        """
        most = self.policy.maximum_settled_rows
        if most is None:
            return
        if statement is None:
            if self.terms.algorithm not in self.policy.unmeasured:
                text = "how many rows the answers of this model settle is not known"
                raise forbidden("this question", [("unmeasured", text)])
        elif statement.settled > most:
            text = f"the answers of this run, this one included, would settle {statement}, more "
            text += f"than {most}: a value in each would be known to the server"
            raise forbidden("this question", [("maximum_settled_rows", text)], of_rows=True)

    def before_masks(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Check the numbers of an answer before masks hide what they are.

        Raises:
            PolicyError: one is not finite, or they are larger than the policy permits.
        """
        rules = [rule for name, array in arrays.items() for rule in self._of_array(name, array)]
        if rules:
            raise forbidden("this question", rules, of_rows=True)

    def release(self, leaving: Leaving) -> bytes:
        """Return the message once it may leave and its line is in the ledger.

        Raises:
            PolicyError: it may not leave; the message has every reason.
            LedgerError: the ledger is broken, or cannot be written.
        """
        kind, question, payload, arrays, numbers, statement, content = leaving
        shapes = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
        what = f"the message {kind!r} of {question.place}"
        if any(name.startswith(MASKED) for name in arrays):
            content = _digest_of(arrays)
        details = {"place": question.place, "question": question.digest}
        if content:
            details[CONTENT] = content

        def check() -> None:
            self._check(kind, question)  # other processes may have answered meanwhile
            first = self._answers(question).get(question.digest)
            if content and first not in (None, content):
                text = "it was answered before with other numbers: the two would tell what changed"
                raise forbidden(what, [("secure_sums", text)], of_rows=True)
            more = numbers_of(shapes) + numbers
            if first is None and (rules := [*self._too_many_numbers(more)]):
                raise forbidden(what, rules)
            if rules := [*self._of_arrays(payload, arrays)]:
                raise forbidden(what, rules, of_rows=True)

        if numbers:
            details[NUMBERS] = str(numbers)
        if statement is not None:
            details[SETTLED] = str(statement)
        self._ledger.append(
            "released",
            run=self.terms.run,
            site=self.site,
            kind=kind,
            round=question.round,
            payload=payload,
            arrays=shapes,
            details=details,
            check=check,
        )
        return payload

    def refusal(
        self, error: BaseException, wrap: Wrap = str.encode, question: Question | None = None
    ) -> bytes:
        """Return the part of an error that may leave; see the module's `refusal`."""
        folder, run = self._folder, self.terms.run
        where = "" if question is None else question.place
        tells = TOLD if self.policy.tell_refusals else ()
        more: dict[str, Any] = {"wrap": wrap, "label": where, "tells": tells}
        return refusal(error, folder=folder, site=self.site, run=run, **more)

    def _answers(self, question: Question) -> Mapping[str, str]:
        return self._ledger.answered.get((self.terms.run, question.place), {})

    def _too_many_numbers(self, more: int) -> Iterator[tuple[str, str]]:
        """Yield the rules against so many more numbers in the messages of the run."""
        policy, ledger, run = self.policy, self._ledger, self.terms.run
        numbers = ledger.numbers[run] + more
        if policy.maximum_numbers is not None and numbers > policy.maximum_numbers:
            text = f"the messages of this run would hold {numbers} numbers that depend on rows"
            yield "maximum_numbers", f"{text}, more than {policy.maximum_numbers}"
        if policy.maximum_numbers_per_value is not None and run in ledger.data:
            data, values = ledger.data[run]
            numbers = ledger.numbers_of_data(data) + more
            if numbers > policy.maximum_numbers_per_value * values:
                text = f"all runs of these rows together would release {numbers} numbers, more than"
                text += f" {policy.maximum_numbers_per_value:g} for each of {values} values"
                yield "maximum_numbers_per_value", text

    def _check(self, kind: str, question: Question) -> None:
        """Check all that does not depend on rows."""
        if rules := [*self._of_question(kind, question)]:
            raise forbidden(f"the message {kind!r} of {question.place}", rules)

    def _of_question(self, kind: str, question: Question) -> Iterator[tuple[str, str]]:
        policy = self.policy
        if kind not in policy.messages or kind not in self.terms.messages:
            yield "messages", f"no message of the kind {kind!r} may leave"
        most = min(policy.maximum_rounds, self.terms.rounds)
        at = question.round
        if kind == "round" and not (at is not None and 0 <= at < most):
            yield "maximum_rounds", f"there are the rounds 0 to {most - 1}"
        most = self.terms.exchanges - BEFORE_PHASES
        if kind == "query" and not (at is not None and 0 <= at < most):
            yield "maximum_messages", f"there are the questions 0 to {most - 1}"
        again = question.digest in self._answers(question)
        if kind == "query":
            yield from self._of_function(question, again=again)
        answered, sent = (
            count[self.terms.run] for count in (self._ledger.answers, self._ledger.messages)
        )
        if policy.maximum_messages is not None:
            most = policy.maximum_messages
            if not again and answered >= most:
                yield "maximum_messages", f"{answered} questions of this run are answered"
            elif sent >= MOST_REPEATS * most:
                yield "maximum_messages", f"{sent} messages of this run have left"
        others = self._answers(question).keys() - {question.digest}
        if len(others) >= policy.maximum_answers:
            yield "maximum_answers", f"{question.place} was answered already, to another question"

    def _of_function(self, question: Question, *, again: bool) -> Iterator[tuple[str, str]]:
        """Yield the rule against one more answer of the function that a query names."""
        terms, index = self.terms, question.label[2]
        name = terms.functions[index] if index < len(terms.functions) else f"number {index}"
        if name not in terms.queried:
            yield "functions", f"the study does not query the function {name}"
        elif not again and self.policy.functions is not None:
            labels = [text.split() for run, text in self._ledger.answered if run == terms.run]
            answered = sum(label[0] == "query" and label[3] == str(index) for label in labels)
            most = self.policy.functions.get(name, 0)
            if answered >= most:
                text = f"{name} was answered {answered} times in this run, at most {most}"
                yield "functions", text

    def _of_arrays(
        self, payload: bytes, arrays: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, str]]:
        most = self.policy.maximum_bytes
        if most is not None and len(payload) > most:
            yield "maximum_bytes", f"it has {len(payload)} bytes, more than {most}"
        for name, array in arrays.items():
            if not name.startswith(MASKED):  # these were looked at before
                yield from self._of_array(name, array)
        known = sum(array.nbytes for array in arrays.values())
        if arrays and len(payload) > known + OVERHEAD + OVERHEAD_OF_ARRAY * len(arrays):
            yield "messages", f"it has {len(payload)} bytes, but only {known} in its arrays"

    def _of_array(self, name: str, array: np.ndarray) -> Iterator[tuple[str, str]]:
        if array.dtype.kind not in "biuf":
            yield "messages", f"the array {name!r} holds no numbers"
        elif array.dtype.kind == "f" and not np.isfinite(array).all():
            yield "messages", f"the array {name!r} holds a number that is not finite"
        elif self.policy.maximum_norm is not None:
            norm = float(np.linalg.norm(array.astype(np.float64).ravel()))
            if norm > self.policy.maximum_norm:
                yield "maximum_norm", f"the norm of the array {name!r} is {norm:g}"


def open_gate(
    folder: str | os.PathLike[str],
    policy: str | os.PathLike[str],
    *,
    site: str,
    terms: StudyTerms,
    gate: Callable[..., Gate] = Gate,
) -> Gate:
    """Check the policy before any data are read; then open the ledger.

    Args:
        folder: of the site, made if it is not there; holds the ledger and the log of errors.
        policy: the site's ``site-policy.toml``.
        site: the site's name, for the ledger.
        terms: what the study requires, of files at the site.
        gate: makes the gate, such as one with a person in front of it.

    Raises:
        InputError: the policy cannot be read.
        PolicyError: it forbids the study; the message has every reason.
        LedgerError: the ledger is broken, or cannot be written.
    """
    load_policy(policy).permits(terms)
    folder = _made(folder)
    return gate(folder, Path(policy), Ledger(folder / LEDGER), site, terms)


def refusal(
    error: BaseException,
    *,
    folder: str | os.PathLike[str],
    site: str,
    run: str,
    wrap: Wrap = str.encode,
    label: str = "",
    tells: Sequence[str] = (),
) -> bytes:
    """Return the part of an error that may leave, also where no gate could be opened.

    Its text goes into ``errors.log`` in the site's folder, which may hold data and never leaves;
    the refusal, a fixed phrase for the class of the error, the keys of a policy that forbade
    something unless they depend on rows, and a random number, goes into the ledger. Of a closed
    run, and of further strangers (`MOST_STRANGERS`), nothing is written.

    Args:
        error: what was raised.
        folder: of the site.
        site: its name.
        run: the run.
        wrap: makes a message of the refusal; it is the message that the ledger counts.
        label: where in the run the question stood.
        tells: rules that depend on rows and are named all the same.

    Raises:
        LedgerError: neither can be written. Then nothing may leave but `UNRECORDED`.
    """
    if isinstance(error, RunClosedError):
        return wrap(CLOSED)
    folder = _made(folder)
    ledger = Ledger(folder / LEDGER)
    phrase = next(text for kind, text in PHRASES if isinstance(error, kind))
    if run not in ledger.runs and ledger.strangers >= MOST_STRANGERS:
        return wrap(phrase)
    number = secrets.token_hex(4)
    by_rows = error.of_rows if isinstance(error, PolicyError) else isinstance(error, NonFiniteError)
    rules = ""
    if isinstance(error, PolicyError):
        named = [rule for rule in error.rules if rule in tells or not error.of_rows]
        rules = f" ({', '.join(named)})" if named else ""
    payload = wrap(f"{phrase}{rules}; the site has the details under number {number}")
    details = {"number": number} | ({"place": label} if label else {})
    if by_rows:
        details[BY_ROWS] = "rows"
    text = "".join(traceback.format_exception(error))
    _log(folder / ERRORS, f"{number} {datetime.now(UTC).isoformat()} run {run}\n{text}\n")
    ledger.append("refused", run=run, site=site, payload=payload, details=details)
    return payload


def _made(folder: str | os.PathLike[str]) -> Path:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LedgerError(f"{folder} cannot be made: {error}").at(file=str(folder)) from error
    return Path(folder)


def _log(path: Path, text: str) -> None:
    try:
        with open(path, "ab", opener=private) as file:
            file.write(printable(text, lines=True).encode())
    except OSError as error:
        raise LedgerError(f"{path} cannot be written: {error}") from error


def _digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the arrays of a message, without what stands around them."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name}\0{arrays[name].dtype.str}{arrays[name].shape}\0".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
