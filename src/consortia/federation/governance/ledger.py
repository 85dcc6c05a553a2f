"""The ledger of a site: one line for every message that left it, each chained to the one before.

A line says when, in which run and round, what kind of message, how many bytes, their SHA-256, and
the names, shapes and types of the arrays in them. It never holds the message, nor anything computed
from its numbers but that hash: already the norm of a message of one number would be the number.

A line is on the disk before its message is handed out, so a crash can leave a line without a
message, and never a message without a line. Lines are JSON objects in one canonical form. ``hash``
is the SHA-256 of the line without it, and the line holds the ``previous`` one's; so a line that was
changed, removed, inserted or moved is found, and named, by `verify`.

Lines taken off the *end* leave a chain that is whole. Beside the ledger lies its head, the number
and hash of the last line, which shows that, and another copy of it lies among the files of the
runs: a backup of the ledger that is put back without them, or a ledger that was removed, is found.
Who can write one of these files can write all of them, though. Whoever notes a head elsewhere
(``consortia site ledger`` prints it) can check later whether the ledger continues from there; and
whoever received the messages knows the hash of each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from consortia.errors import LedgerError
from consortia.store.durable import private, replace_file, sync_directory, write_through

FIRST = "0" * 64
"""Hash that the first line names as the one before it."""

EVENTS = ("opened", "held", "spent", "released", "refused", "recovered")
"""A run was permitted; its rows are of these data; an answer costs a part of their privacy budget,
which is written before it is computed; a message left; a refusal left; a line that a
crash cut short was removed.

Only ``released`` and ``refused`` are messages.
"""

BY_ROWS = "by"
"""Detail of a refusal that depends on rows."""

CONTENT = "content"
"""Detail of a message of masked numbers: the SHA-256 of these alone."""

NUMBERS, SETTLED = "numbers", "settled"
"""Details of a message: numbers that depend on rows among its plain values, beside its arrays; and
how many rows are settled by all answers so far."""

REFUSED_BY_ROWS = 3
"""So many others a refusal counts for that depends on rows."""

NOT_FINITE = "not finite: "
"""Prefix of the name of an array of marks, see `consortia.engines.messages.nonfinite`."""

MASKED = "masked"
"""Begin of the names of arrays that are masked, see `consortia.engines.messages.masked`."""

WITNESS = Path("runs") / "ledger.head"
"""Second copy of the head, relative to the folder of the ledger."""

LOCK_SECONDS = 60.0
"""Seconds that a process waits for another that writes a line."""


@dataclass(frozen=True)
class Entry:
    """One line."""

    index: int  # from 0
    time: str  # UTC, by the clock of the site
    event: str  # one of `EVENTS`
    run: str  # which run
    site: str  # the site's name
    # what the message is (`consortia.federation.governance.policy.KINDS`), "" without one
    kind: str
    round: int | None  # the iteration that it belongs to, None outside of the iterations
    bytes: int  # length of the message
    sha256: str  # of the message
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, type and shape of each array in it
    # further words: of a run the hashes of its policy, study and model; of a message its place in
    # the run, and the SHA-256 of the question that it answers
    details: Mapping[str, str]
    previous: str  # the hash of the line before
    hash: str  # SHA-256 of all of this

    @property
    def left(self) -> bool:
        """True if the entry released bytes."""
        return self.event in ("released", "refused")


@dataclass(frozen=True)
class Verification:
    """The state of a ledger."""

    entries: tuple[Entry, ...]  # the lines up to the first that is wrong
    problem: str | None  # what is wrong with ``line``, or None
    line: int | None  # the first wrong line, from 1 as editors count, or None
    notes: tuple[str, ...]  # what cannot be known, and what a crash has left

    @property
    def head(self) -> str:
        """The hash of the last line that is right."""
        return self.entries[-1].hash if self.entries else FIRST


class Ledger:
    """A ledger that is written; several processes may write one.

    Args:
        path: the file; its folder must exist. Beside it lie ``.head`` and ``.lock``.

    Attributes:
        runs: of each run that was opened the details of its last ``opened`` line.
        messages: of each run, the messages that left and were no refusals.
        answers: of each run, the questions that they answered, each counted once.
        numbers: of each run, how many row-dependent numbers the messages held, of every kind, each
            question counted once.
        data: of each run the name of its data and how many values these hold.
        losses: of each run and question the loss and the share of the run's budget that its answer
            costs, see `consortia.core.privacy`.
        refusals: of each run, how much was refused; one that depends on rows counts
            `REFUSED_BY_ROWS` times.
        answered: by run and place in it, of the questions that were answered their digest and the
            SHA-256 of the first answer; of masked numbers that of the numbers, because the message
            around them names what else was known then.
        left: of each run the SHA-256 of all answers.
        strangers: refusals since the last run was opened that were of none that is.

    Raises:
        LedgerError: the file cannot be read or is broken.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.runs: dict[str, Mapping[str, str]] = {}
        self.messages: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.numbers: Counter[str] = Counter()
        self.data: dict[str, tuple[str, int]] = {}
        self.losses: dict[tuple[str, str], tuple[float, float]] = {}
        self.refusals: Counter[str] = Counter()
        self.answered: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        self.left: defaultdict[str, set[str]] = defaultdict(set)
        self.strangers = 0
        self._offset = 0
        self._last: Entry | None = None
        self._witness = self.path.parent / WITNESS
        self._lock = FileLock(f"{self.path}.lock", timeout=LOCK_SECONDS)
        self.refresh()

    def refresh(self) -> None:
        """Read the lines that other processes have written.

        Raises:
            LedgerError: the file cannot be read or is broken.
        """
        if self._offset and self.path.exists() and self.path.stat().st_size == self._offset:
            return
        with self._locked():
            self._catch_up()

    def numbers_of_data(self, data: str) -> int:
        """Count the row-dependent numbers that left in all runs of the same data."""
        return sum(self.numbers[run] for run, (name, _) in self.data.items() if name == data)

    def loss_of_data(self, data: str) -> float:
        """Return the sum of the losses of all runs of the same data."""
        runs = {run for run, (name, _) in self.data.items() if name == data}
        return sum(loss for (run, _), (loss, _) in self.losses.items() if run in runs)

    def share_of_run(self, run: str) -> float:
        """Return the spent share of a run's own budget."""
        return sum(share for (name, _), (_, share) in self.losses.items() if name == run)

    def append(
        self,
        event: str,
        *,
        run: str,
        site: str,
        kind: str = "",
        round: int | None = None,
        payload: bytes = b"",
        arrays: Sequence[tuple[str, str, tuple[int, ...]]] = (),
        details: Mapping[str, str] | None = None,
        check: Callable[[], None] | None = None,
    ) -> Entry:
        """Write a line and have it on the disk before it returns.

        ``check`` is called when the lines of all other processes are known and none can come
        between; what it raises leaves the ledger as it is.

        Raises:
            LedgerError: the file cannot be written, or is broken.
        """
        with self._locked():
            torn = self._catch_up()
            if check is not None:
                check()
            if torn:
                cut = self._cut(torn)
                self.append("recovered", run=run, site=site, details=cut)
            last, new = self._last, not self.path.exists()
            record: dict[str, Any] = {
                "index": 0 if last is None else last.index + 1,
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "event": event,
                "run": run,
                "site": site,
                "kind": kind,
                "round": round,
                "bytes": len(payload),
                "sha256": hashlib.sha256(payload).hexdigest(),
                "arrays": [[name, dtype, list(shape)] for name, dtype, shape in arrays],
                "details": dict(details or {}),
                "previous": FIRST if last is None else last.hash,
            }
            record["hash"] = hashlib.sha256(_canonical(record)).hexdigest()
            line = _canonical(record)
            with open(self.path, "ab", opener=private) as file:
                write_through(file, line + b"\n")
            if new:
                sync_directory(self.path.parent)
            record["arrays"] = tuple((name, dtype, tuple(shape)) for name, dtype, shape in arrays)
            entry = Entry(**record)
            self._take(entry)
            self._offset += len(line) + 1
            head = f"{entry.index} {entry.hash}\n".encode()
            replace_file(_head_of(self.path), [head], private=True)
            self._witness.parent.mkdir(exist_ok=True, mode=0o700)
            replace_file(self._witness, [head], private=True)
            return entry

    # --- under the lock --------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except Timeout:
            raise LedgerError(
                f"{self.path}: another process has held its lock for {LOCK_SECONDS:g} s. End it."
            ).at(file=str(self.path)) from None
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be used: {error}") from error

    def _catch_up(self) -> bytes:
        """Read the lines since the last time; return what a crash left of another."""
        data = b""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._offset:
            raise LedgerError(f"{self.path} became shorter in use.").at(file=str(self.path))
        if size > self._offset:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        *lines, torn = data.split(b"\n")
        seen = _read_head(self._witness)
        for line in lines:
            try:
                entry = _parse(line, self._last)
                _check_seen(seen, entry)
            except ValueError as error:
                line_number = 1 if self._last is None else self._last.index + 2
                raise _broken(self.path, line_number, str(error)) from None
            self._take(entry)
            self._offset += len(line) + 1
        head = _read_head(_head_of(self.path))
        older = _older_than(seen, self._last)
        problem = older or _head_problem(head, self.path, self._last)
        if older is None and self._last is not None and self._last.index and head is None:
            problem = f"{self.path.name}.head is gone, which would tell of lines that were removed"
        if problem is not None:
            line_number = 1 if self._last is None else self._last.index + 1
            raise _broken(self.path, line_number, problem)
        return torn

    def _take(self, entry: Entry) -> None:
        self._last = entry
        if entry.event == "opened":
            self.runs[entry.run] = entry.details
            self.strangers = 0
        if entry.event == "held":
            self.data[entry.run] = entry.details["data"], int(entry.details["values"])
        if entry.event == "spent":
            spent = float(entry.details["loss"]), float(entry.details["share"])
            self.losses[entry.run, entry.details["question"]] = spent
        if entry.event == "released":
            self.messages[entry.run] += 1
            self.left[entry.run].add(entry.sha256)
            if "place" in entry.details:
                known = self.answered[entry.run, entry.details["place"]]
                new = entry.details["question"] not in known
                self.answers[entry.run] += new
                if new:
                    plain = int(entry.details.get(NUMBERS, "0"))  # among its plain values
                    self.numbers[entry.run] += numbers_of(entry.arrays) + plain
                known.setdefault(
                    entry.details["question"], entry.details.get(CONTENT, entry.sha256)
                )
        if entry.event == "refused":
            by_rows = BY_ROWS in entry.details
            self.refusals[entry.run] += REFUSED_BY_ROWS if by_rows else 1
            self.strangers += entry.run not in self.runs

    def _cut(self, torn: bytes) -> dict[str, str]:
        """Remove a line that was never finished; return the details of the line that says so."""
        with self.path.open("r+b") as file:
            file.truncate(self._offset)
            os.fsync(file.fileno())
        return {"cut_bytes": str(len(torn)), "cut_sha256": hashlib.sha256(torn).hexdigest()}


def verify(path: str | os.PathLike[str]) -> Verification:
    """Read a ledger and find the first line that was changed, removed, inserted or moved.

    Raises:
        LedgerError: there is no such file, or it cannot be read.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            raise LedgerError(f"{path} is not a file; give the path of a ledger.")
        seen = _read_head(path.parent / WITNESS)  # before the ledger: a line may come in between
        data = path.read_bytes()
    except FileNotFoundError:
        raise LedgerError(f"{path}: no such file; give a ledger.").at(file=str(path)) from None
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error}") from error
    *lines, torn = data.split(b"\n")
    entries: list[Entry] = []
    for line_number, line in enumerate(lines, 1):
        try:
            entries.append(_parse(line, entries[-1] if entries else None))
            _check_seen(seen, entries[-1])
        except ValueError as error:
            return Verification(tuple(entries), str(error), line_number, ())
    last = entries[-1] if entries else None
    head = _read_head(_head_of(path))
    problem = _head_problem(head, path, last) or _older_than(seen, last)
    if problem is not None:
        return Verification(tuple(entries), problem, len(lines) + bool(torn), ())
    notes = []
    if torn:
        notes.append(
            f"line {len(lines) + 1} was never finished ({len(torn)} bytes): the process ended "
            "while it wrote it, and no message left for it. The next message removes it and says "
            "so."
        )
    if last is not None and head is None:
        notes.append(
            f"there is no {path.name}.head: lines removed from the end would not be noticed."
        )
    return Verification(tuple(entries), None, None, tuple(notes))


# --- lines ---------------------------------------------------------------------------------------


def numbers_of(arrays: Sequence[tuple[str, str, tuple[int, ...]]]) -> int:
    """Count the numbers in arrays; marks of those that are not finite are none.

    One that is masked has two entries; packed ones are counted beside the arrays.
    """
    return sum(
        math.prod(shape) // (2 if name == MASKED else 1)
        for name, _, shape in arrays
        if not name.startswith((NOT_FINITE, f"{MASKED}, "))
    )


def _canonical(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _parse(line: bytes, last: Entry | None) -> Entry:
    """Return a line that follows ``last``; a `ValueError` says what is wrong with it."""
    wanted = [field.name for field in fields(Entry)]
    try:
        record = json.loads(line)
        same = isinstance(record, dict) and _canonical(record) == line
    except (ValueError, RecursionError):
        raise ValueError("it is not a line of a ledger") from None
    if not same or sorted(record) != sorted(wanted):
        raise ValueError("it is not in the form in which lines are written: it was changed")
    content = {name: value for name, value in record.items() if name != "hash"}
    if hashlib.sha256(_canonical(content)).hexdigest() != record["hash"]:
        raise ValueError("its hash is not that of its content: it was changed")
    index = 0 if last is None else last.index + 1
    if record["index"] != index:
        raise ValueError(
            f"it is number {record['index']} where number {index} belongs: lines were removed, "
            "inserted or moved"
        )
    if record["previous"] != (FIRST if last is None else last.hash):
        raise ValueError("it does not go on from the line before: one of the two was changed")
    record["arrays"] = tuple((name, dtype, tuple(shape)) for name, dtype, shape in record["arrays"])
    return Entry(**record)


def _broken(path: Path, line_number: int, problem: str) -> LedgerError:
    return LedgerError(
        f"{path}, line {line_number}: {problem}. Nothing leaves the site while its ledger is "
        "broken: find out who wrote there, keep the file, and begin in a new folder."
    ).at(file=str(path), line=line_number)


# --- the head ------------------------------------------------------------------------------------


def _head_of(path: Path) -> Path:
    return Path(f"{path}.head")


def _read_head(path: Path) -> tuple[int, str] | None:
    try:
        words = path.read_text(encoding="ascii").split()
        return int(words[0]), words[1]
    except FileNotFoundError:
        return None
    except (ValueError, IndexError):
        return -1, ""


def _head_problem(head: tuple[int, str] | None, path: Path, last: Entry | None) -> str | None:
    """Compare the head with the last line; a crash may leave it one line behind."""
    if head is None:
        return None
    index = -1 if last is None else last.index
    if head[0] > index:
        missing = head[0] - index
        lines = "line that had been here is" if missing == 1 else "lines that had been here are"
        return f"{missing} {lines} gone"
    if last is not None and head in ((index, last.hash), (index - 1, last.previous)):
        return None
    return f"it is not the last line that {path.name}.head names: one of the two was changed"


def _check_seen(seen: tuple[int, str] | None, entry: Entry) -> None:
    """Refuse a line that is another than the one of that number which the runs have seen."""
    if seen is not None and seen[0] == entry.index and seen[1] != entry.hash:
        raise ValueError(
            f"{WITNESS} names another line of this number: the ledger was written anew"
        )


def _older_than(seen: tuple[int, str] | None, last: Entry | None) -> str | None:
    """Report runs that have seen lines that are not there; else None."""
    index = -1 if last is None else last.index
    if seen is None or 0 <= seen[0] <= index:
        return None
    if seen[0] < 0:
        return f"{WITNESS} cannot be read: it was changed"
    return (
        f"{WITNESS} names line {seen[0] + 1}, and the ledger ends before: an older copy of it was "
        "put back, or it was removed"
    )
