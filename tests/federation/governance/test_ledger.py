"""The ledger: whatever is done to its lines is found, and a crash is told from a change."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consortia.errors import LedgerError
from consortia.federation.governance import Ledger, verify
from consortia.federation.governance import ledger as module
from tests.refusals import refused

LINES = 6


def filled(folder: Path, lines: int = LINES) -> Path:
    """A ledger of some lines."""
    path = folder / "ledger.jsonl"
    ledger = Ledger(path)
    for number in range(lines):
        payload = bytes([number]) * (number + 1)
        arrays = [("θ", "<f8", (2, number))]
        ledger.append(
            "released", run="r", site="s", kind="round", round=number, payload=payload,
            arrays=arrays,
        )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """The bytes of a ledger and of its head."""
    path = filled(tmp_path_factory.mktemp("whole"))
    return path.read_bytes(), Path(f"{path}.head").read_bytes()


def written(folder: Path, content: bytes, head: bytes | None) -> Path:
    path = folder / "ledger.jsonl"
    path.write_bytes(content)
    if head is not None:
        Path(f"{path}.head").write_bytes(head)
    return path


def test_a_line_tells_size_hash_and_shapes_and_nothing_of_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    entry = Ledger(path).append(
        "released",
        run="7",
        site="north",
        kind="round",
        round=3,
        payload=b"secret",
        arrays=[("a", "<f8", (2, 3))],
    )
    record = json.loads(path.read_text())
    assert record.pop("hash") == entry.hash
    assert record.pop("time").endswith("+00:00")
    assert record == {
        "index": 0,
        "event": "released",
        "run": "7",
        "site": "north",
        "kind": "round",
        "round": 3,
        "bytes": 6,
        "sha256": hashlib.sha256(b"secret").hexdigest(),
        "arrays": [["a", "<f8", [2, 3]]],
        "details": {},
        "previous": "0" * 64,
    }
    assert path.stat().st_mode & 0o077 == 0


def test_a_ledger_that_nobody_touched_is_whole(tmp_path: Path) -> None:
    found = verify(filled(tmp_path))
    assert (found.problem, found.line, found.notes) == (None, None, ())
    assert [entry.index for entry in found.entries] == list(range(LINES))
    assert found.head == found.entries[-1].hash


@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
@settings(max_examples=400, deadline=None)
def test_a_changed_byte_is_found_and_its_line_named(
    whole: tuple[bytes, bytes],
    tmp_path_factory: pytest.TempPathFactory,
    place: int,
    value: int,
) -> None:
    content = bytearray(whole[0])
    place %= len(content)
    line = content[:place].count(b"\n") + 1
    if content[place] == value:
        value = (value + 1) % 256
    content[place] = value
    path = written(tmp_path_factory.getbasetemp(), bytes(content), whole[1])
    found = verify(path)
    assert found.problem is not None
    assert found.line == line
    with pytest.raises(LedgerError) as caught:
        Ledger(path)
    assert caught.value.line == line if line < LINES else caught.value.line


@given(place=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_changed_byte_of_the_head_is_found(
    whole: tuple[bytes, bytes], tmp_path_factory: pytest.TempPathFactory, place: int
) -> None:
    head = bytearray(whole[1])
    place %= len(head) - 1  # the last byte is the line's end
    head[place] ^= 1
    path = written(tmp_path_factory.getbasetemp(), whole[0], bytes(head))
    assert verify(path).problem is not None


@pytest.mark.parametrize("removed", range(LINES))
def test_a_removed_line_is_found(whole: tuple[bytes, bytes], tmp_path: Path, removed: int) -> None:
    lines = whole[0].splitlines(keepends=True)
    del lines[removed]
    found = verify(written(tmp_path, b"".join(lines), whole[1]))
    assert found.problem is not None
    assert found.line == min(removed + 1, LINES - 1)


def test_exchanged_repeated_and_inserted_lines_are_found(
    whole: tuple[bytes, bytes], tmp_path: Path
) -> None:
    lines = whole[0].splitlines(keepends=True)
    exchanged = [*lines[:1], lines[2], lines[1], *lines[3:]]
    repeated = [*lines[:3], lines[2], *lines[3:]]
    other = filled(tmp_path, 4).read_bytes().splitlines(keepends=True)
    inserted = [*lines[:3], other[3], *lines[4:]]
    for changed, line in ((exchanged, 2), (repeated, 4), (inserted, 4)):
        assert verify(written(tmp_path, b"".join(changed), whole[1])).line == line


def rewritten(lines: list[bytes], number: int, **changes: Any) -> list[bytes]:
    """Lines of which one was changed, with a hash that fits."""
    record = json.loads(lines[number])
    record |= changes
    record.pop("hash")
    record["hash"] = hashlib.sha256(module._canonical(record)).hexdigest()
    return [*lines[:number], module._canonical(record) + b"\n", *lines[number + 1 :]]


def test_a_line_that_was_changed_with_its_hash_is_found_by_the_next(
    whole: tuple[bytes, bytes], tmp_path: Path
) -> None:
    lines = whole[0].splitlines(keepends=True)
    for number in range(LINES):
        changed = rewritten(lines, number, bytes=10**9)
        found = verify(written(tmp_path, b"".join(changed), whole[1]))
        assert found.problem is not None
        assert found.line == min(number + 2, LINES)


def test_lines_cut_off_the_end_are_found_by_the_head_and_only_by_it(
    whole: tuple[bytes, bytes], tmp_path: Path
) -> None:
    lines = whole[0].splitlines(keepends=True)
    path = written(tmp_path, b"".join(lines[:-2]), whole[1])
    found = verify(path)
    assert found.problem is not None
    assert "2 lines" in found.problem
    Path(f"{path}.head").unlink()
    found = verify(path)
    assert found.problem is None
    assert "would not be noticed" in found.notes[0]
    with refused(LedgerError, line=4, match="head is gone"):
        Ledger(path)


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_line_that_a_crash_cut_short_is_told_and_removed_by_the_next(
    tmp_path: Path, kept: int
) -> None:
    path = filled(tmp_path, 3)
    before, head = path.read_bytes(), Path(f"{path}.head").read_bytes()
    Ledger(path).append("released", run="r", site="s", kind="round", round=3, payload=b"x")
    torn = path.read_bytes()[len(before) :][:kept]
    # As if the power had failed within the write: neither copy of the head was written yet.
    written(tmp_path, before + torn, head)
    (tmp_path / module.WITNESS).write_bytes(head)
    found = verify(path)
    assert found.problem is None
    assert f"line 4 was never finished ({len(torn)} bytes)" in found.notes[0]
    Ledger(path).append("released", run="r", site="s", kind="round", round=3, payload=b"x")
    found = verify(path)
    assert (found.problem, found.notes) == (None, ())
    assert [entry.event for entry in found.entries[3:]] == ["recovered", "released"]
    assert found.entries[3].details == {
        "cut_bytes": str(len(torn)),
        "cut_sha256": hashlib.sha256(torn).hexdigest(),
    }


def test_a_crash_between_line_and_head_leaves_a_ledger_to_go_on_with(tmp_path: Path) -> None:
    path = filled(tmp_path, 3)
    head = Path(f"{path}.head").read_bytes()
    Ledger(path).append("released", run="r", site="s", kind="round", round=3, payload=b"x")
    Path(f"{path}.head").write_bytes(head)
    assert verify(path).problem is None
    Ledger(path).append("released", run="r", site="s", kind="round", round=4, payload=b"x")
    assert len(verify(path).entries) == 5
    first = tmp_path / "first"
    first.mkdir()
    path = filled(first, 1)
    Path(f"{path}.head").unlink()
    Ledger(path).append("released", run="r", site="s", kind="round", round=1, payload=b"x")
    assert len(verify(path).entries) == 2


def test_a_failed_check_writes_no_line(tmp_path: Path) -> None:
    path = filled(tmp_path, 2)
    before = path.read_bytes()

    def check() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Ledger(path).append("released", run="r", site="s", check=check)
    assert path.read_bytes() == before


def _appends(path: str, name: str, count: int) -> None:
    ledger = Ledger(path)
    for number in range(count):
        ledger.append("released", run=name, site="s", kind="round", round=number, payload=b"1")


def test_processes_that_write_at_once_make_one_chain(tmp_path: Path) -> None:
    path, count = tmp_path / "ledger.jsonl", 25
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_appends, args=(str(path), name, count)) for name in ("a", "b")
    ]
    for worker in workers:
        worker.start()
    _appends(str(path), "c", count)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    found = verify(path)
    assert (found.problem, found.notes) == (None, ())
    for name in "abc":
        rounds = [entry.round for entry in found.entries if entry.run == name]
        assert rounds == list(range(count))
    assert Ledger(path).messages == {"a": count, "b": count, "c": count}


def test_a_ledger_that_was_cut_while_it_is_open_is_no_longer_written(tmp_path: Path) -> None:
    path = filled(tmp_path)
    ledger = Ledger(path)
    os.truncate(path, 100)
    with refused(LedgerError, file=str(path), match="shorter"):
        ledger.append("released", run="r", site="s")


def test_a_backup_of_the_ledger_that_is_put_back_is_refused_by_name(tmp_path: Path) -> None:
    path = filled(tmp_path, 3)
    backup = {name: Path(name).read_bytes() for name in (str(path), f"{path}.head")}
    Ledger(path).append("released", run="r", site="s", kind="round", round=3, payload=b"x")
    for name, content in backup.items():
        Path(name).write_bytes(content)
    with refused(LedgerError, line=3, match="older copy"):
        Ledger(path)
    assert "names line 4" in str(verify(path).problem)


def test_a_removed_ledger_and_one_written_anew_are_refused_by_name(tmp_path: Path) -> None:
    path = filled(tmp_path, 3)
    for name in (path, Path(f"{path}.head")):
        name.unlink()
    with refused(LedgerError, line=1, match="or it was removed"):
        Ledger(path)
    other = tmp_path / "other"
    other.mkdir()
    anew = filled(other, 3)
    path.write_bytes(anew.read_bytes())
    Path(f"{path}.head").write_bytes(Path(f"{anew}.head").read_bytes())
    with refused(LedgerError, line=3, match="written anew"):
        Ledger(path)
    assert verify(path).line == 3


def test_a_lock_that_stays_held_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    from filelock import FileLock

    path = filled(tmp_path)
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.05)
    with FileLock(f"{path}.lock"), refused(LedgerError, file=str(path), match="0.05 s"):
        Ledger(path)


@given(content=st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_judged_and_never_crash(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "other.jsonl"
    path.write_bytes(content)
    found = verify(path)
    assert (found.problem is not None) == (b"\n" in content)
    assert not found.entries


def test_an_absent_ledger_is_named(tmp_path: Path) -> None:
    with refused(LedgerError, file=str(tmp_path / "none.jsonl"), match="no such file"):
        verify(tmp_path / "none.jsonl")
