"""Letters under faults: nothing wrong is accepted, nothing is lost, and each is refused by name."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import consortia
from consortia.engines.letters import post
from consortia.engines.letters.encryption import decrypt, encrypt, is_encrypted
from consortia.engines.letters.sealing import Letter, LetterError, seal, unfold
from consortia.engines.messages import files
from consortia.engines.messages.envelope import decode
from consortia.engines.messages.identities import (
    FILE,
    TO_COORDINATOR,
    TO_SITE,
    body_of,
    public_of,
    read_identity,
    signed,
)
from consortia.errors import LedgerError, StoreError
from consortia.federation.governance import ledger, verify
from consortia.federation.letters import answering
from consortia.store import checkpoint, runs
from tests.federation.correspondence import Correspondence, as_one_process
from tests.federation.hospitals import NAMES
from tests.refusals import refused

LETTERS = 4
"""Letters to each site, with keys and without."""


class Killed(BaseException):
    """The process ends here."""


DAMAGED = "not a whole letter|encrypted to another key|there is no key"
"""Reasons to refuse a letter that was changed on its way, by the place of the change."""

WRITERS = (
    (post, "replace_file"),
    (answering, "replace_file"),
    (ledger, "replace_file"),
    (ledger, "write_through"),
    (files, "write"),
    (runs, "replace_file"),
    (checkpoint, "replace_file"),
)
"""Functions that write files."""


@contextmanager
def killed_at(number: int, *, after: bool) -> Iterator[None]:
    """End the process in place of the write of this number, or just after it."""
    count = 0
    with pytest.MonkeyPatch.context() as patched:

        def dying(write: Callable[..., None]) -> Callable[..., None]:
            def called(*given: object, **more: object) -> None:
                nonlocal count
                count += 1
                if count == number and not after:
                    raise Killed
                write(*given, **more)
                if count == number:
                    raise Killed

            return called

        for module, name in WRITERS:
            patched.setattr(module, name, dying(getattr(module, name)))
        yield


class Faults:
    """Faults of every kind, drawn at random, against one correspondence in progress."""

    def __init__(self, now: Correspondence, other: Correspondence, seed: int) -> None:
        self.now, self.other = now, other
        self.rng = np.random.default_rng(seed)
        self.done: dict[str, int] = {}
        self.coordinators: list[Path] = []
        self.places: dict[str, list[Path]] = {name: [] for name in NAMES}

    def count(self, kind: str) -> None:
        self.done[kind] = self.done.get(kind, 0) + 1

    # --- letters that are encrypted where there are keys -----------------------------------------

    @property
    def keyed(self) -> bool:
        return (self.now.root / "keys").exists()

    def home(self, name: str) -> Path:
        """Return the folder with the identity of a site, or of the coordinator: ""."""
        return self.now.site(name) if name else self.now.root / "keys"

    def opened(self, data: bytes, reader: str) -> Letter:
        if is_encrypted(data):
            purpose = TO_SITE if reader else TO_COORDINATOR
            data = decrypt(data, read_identity(self.home(reader)), None, purpose)
        return unfold(data)[0]

    def closed(self, letter: Letter, key: bytes, name: str, *, answers: bool) -> bytes:
        """Return a letter as the site sends it, or as it gets it."""
        sealed = seal(letter, key)
        if not self.keyed:
            return sealed
        writer, reader = (name, "") if answers else ("", name)
        public = public_of(read_identity(self.home(reader)))
        purpose = TO_COORDINATOR if answers else TO_SITE
        return encrypt(sealed, name, read_identity(self.home(writer)), public, purpose)

    def key(self, name: str) -> bytes:
        """Return the key with which the answers of a site are sealed."""
        first = self.opened(self.now.question(name, 1).read_bytes(), name)
        return bytes.fromhex(first.values["key"])

    # --- what comes to the coordinator -----------------------------------------------------------

    def false_answer(self, name: str, number: int) -> None:
        """Send the coordinator a file that is not the answer."""
        now, rng = self.now, self.rng
        good = now.reply(name, number).read_bytes()
        key, letter = self.key(name), self.opened(good, "")
        at = int(rng.integers(len(good)))
        other = str(rng.choice([one for one in NAMES if one != name]))

        def sealed(with_key: bytes = key, **changes: object) -> bytes:
            changed = replace(letter, **changes)  # type: ignore[arg-type]
            return self.closed(changed, with_key, name, answers=True)

        kinds: dict[str, tuple[bytes, str]] = {
            "truncated": (good[:at], f"{DAMAGED}|is not encrypted"),
            "changed": (
                good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :],
                f"{DAMAGED}|is not encrypted",
            ),
            "forged": (sealed(rng.bytes(32)), "forged"),
            "from another study": (
                self.other.reply(name, 1).read_bytes(),
                "is not encrypted" if self.keyed else "another run or study",
            ),
            "from the future": (sealed(number=number + 1), "from the future"),
            "of another site": (sealed(site=other), "names two sites" if self.keyed else "forged"),
            "of another letter": (sealed(about=rng.bytes(32).hex()), "another letter"),
            "a question": (
                now.question(name, number).read_bytes(),
                "encrypted to another key" if self.keyed else "not an answer",
            ),
        }
        kind = str(rng.choice(list(kinds)))
        content, reason = kinds[kind]
        path = now.shared / name / "from-mail.letter"
        path.write_bytes(content)
        hidden = now.reply(name, number).read_bytes()
        now.reply(name, number).unlink()
        found = now.proceed()
        assert re.search(reason, found.refused[path]), (kind, found.refused)
        assert found.accepted == []
        path.unlink()
        now.reply(name, number).write_bytes(hidden)
        self.count(kind)

    def late_answer(self, name: str, number: int) -> None:
        """Send an answer again that was accepted, under another name and with other numbers."""
        now = self.now
        good = now.reply(name, number).read_bytes()
        path = now.shared / name / "again.letter"
        path.write_bytes(good)
        found = now.proceed()
        assert "double of" in found.refused[max(path, now.reply(name, number))]
        self.count("doubled")
        late = replace(self.opened(good, ""), values={"late": True})
        path.write_bytes(self.closed(late, self.key(name), name, answers=True))
        assert "answered otherwise before" in now.proceed().refused[path]
        path.unlink()
        self.count("late")

    def useless_answer(self, name: str, number: int) -> None:
        """Send an answer that the site has signed and sealed, and of which nothing can be made."""
        now, path = self.now, self.now.reply(name, number)
        good, signer = path.read_bytes(), now.site(name) / FILE
        letter = self.opened(good, "")
        last = decode(body_of(letter.messages[-1]))
        bad = replace(last, values={**last.values, "facts": {}}, arrays={}).encode()
        if signer.exists():
            bad = signed(bad, read_identity(signer.parent), TO_COORDINATOR)
        sent = replace(letter, messages=(*letter.messages[:-1], bad))
        path.write_bytes(self.closed(sent, self.key(name), name, answers=True))
        assert "malformed" in now.proceed().aside[name][1]
        assert "it was set aside: " in now.proceed().refused[path]
        path.write_bytes(good)
        self.count("of no use")

    # --- what comes to a site --------------------------------------------------------------------

    def false_question(self, name: str, number: int) -> None:
        """Put something else in the place of a letter to a site."""
        now, rng = self.now, self.rng
        path = now.question(name, number)
        good = path.read_bytes()
        letter = self.opened(good, name)
        at = int(rng.integers(len(good)))
        another = replace(letter, run="0" * 32, number=2)
        kinds = {
            "question truncated": (good[:at], f"{DAMAGED}|neither encrypted nor signed"),
            "question forged": (
                self.closed(letter, rng.bytes(32), name, answers=False),
                "forged",
            ),
            "question from another run": (
                self.closed(another, bytes(32), name, answers=False),
                "first letter was not answered",
            ),
        }
        kind = str(rng.choice(list(kinds)))
        content, reason = kinds[kind]
        path.write_bytes(content)
        if kind == "question forged" and number == 1:
            path.write_bytes(good)
            return
        with refused(LetterError, file=str(path), match=reason):
            now.answer(name, number)
        now.proceed()  # the coordinator writes it again
        assert path.read_bytes() == good
        self.count(kind)

    def lost(self, name: str, number: int) -> None:
        """Remove an answer that nobody has read; the same comes again."""
        path = self.now.reply(name, number)
        before = path.read_bytes()
        path.unlink()
        self.now.proceed()
        self.now.answer(name, number)
        assert path.read_bytes() == before
        self.count("lost")

    # --- folders ---------------------------------------------------------------------------------

    def coordinator_changed(self) -> None:
        """Change a file of the coordinator's folder, and put it back."""
        folder = self.now.coordinator
        kept = sorted([*(folder / "sent").iterdir(), *(folder / "received").glob("*")])
        path = kept[int(self.rng.integers(len(kept)))]
        good = path.read_bytes()
        at = int(self.rng.integers(len(good)))
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with refused(StoreError, file=str(path)):
            self.now.proceed()
        path.write_bytes(good)
        self.count("changed file")

    def coordinator_restored(self) -> None:
        """Put an older copy of the coordinator's folder back; nothing is lost."""
        if not self.coordinators:
            return
        older = self.coordinators[int(self.rng.integers(len(self.coordinators)))]
        shutil.rmtree(self.now.coordinator)
        shutil.copytree(older, self.now.coordinator)
        self.now.proceed()
        self.count("coordinator restored")

    def site_restored(self, name: str, number: int) -> None:
        """Put an older copy of a site's folder back; it does not answer."""
        if len(self.places[name]) < number:
            return
        older = self.places[name][number - 2]  # from before the last answer
        folder, aside = self.now.site(name), self.now.root / "aside"
        folder.rename(aside)
        shutil.copytree(older, folder)
        with pytest.raises((LedgerError, LetterError), match=r"older copy|first letter"):
            self.now.answer(name, number)
        shutil.rmtree(folder)
        aside.rename(folder)
        self.count("site restored")

    def killed_answer(self, name: str, number: int) -> None:
        """Kill a site between two steps of its answer; it answers when it is back."""
        reply = self.now.reply(name, number)
        before = reply.read_bytes() if reply.exists() else None
        try:
            with killed_at(int(self.rng.integers(1, 12)), after=bool(self.rng.integers(2))):
                self.now.answer(name, number)
        except Killed:
            self.count("site killed")
        kept = self.now.site(name) / "ledger.jsonl"
        assert not kept.exists() or verify(kept).problem is None
        self.now.answer(name, number)
        assert before is None or reply.read_bytes() == before

    def killed_coordinator(self) -> None:
        """Kill the coordinator between two steps."""
        try:
            with killed_at(int(self.rng.integers(1, 5)), after=bool(self.rng.integers(2))):
                self.now.proceed()
        except Killed:
            self.count("coordinator killed")


def course(root: Path, other: Correspondence, seed: int, faults: int, *, keys: bool) -> Faults:
    """Run a study with faults between all of its steps to its end, and list the events."""
    now = Correspondence(root, keys=keys)
    found = Faults(now, other, seed)
    rng = found.rng
    found.killed_coordinator()
    now.proceed()
    for number in range(1, LETTERS + 1):
        shutil.copytree(now.coordinator, root / f"coordinator-{number}")
        found.coordinators.append(root / f"coordinator-{number}")
        for name in rng.permutation(NAMES):
            shutil.copytree(now.site(name), root / "older" / f"{name}-{number}")
            found.places[name].append(root / "older" / f"{name}-{number}")
            for _ in range(faults):
                found.false_question(name, number)
            if number > 1:
                found.site_restored(name, number)
            found.killed_answer(name, number)
            found.lost(name, number)
            for _ in range(faults):
                found.false_answer(name, number)
            found.useless_answer(name, number)
            found.killed_answer(name, number)
            found.killed_coordinator()
            now.proceed()
            found.late_answer(name, number)
            found.coordinator_changed()
        found.coordinator_restored()
        now.proceed()
    return found


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Correspondence:
    """Return another study whose first letters are answered."""
    found = Correspondence(tmp_path_factory.mktemp("other") / "now")
    found.proceed()
    for name in NAMES:
        found.answer(name, 1)
    return found


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "keys"])
def calm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bool, np.ndarray]:
    """Run a study by letters, with keys or without, and without a fault."""
    now = Correspondence(tmp_path_factory.mktemp("calm") / "now", keys=request.param)
    with pytest.MonkeyPatch.context() as patched:
        as_one_process(patched)
        return request.param, ended(now)


def ended(now: Correspondence) -> np.ndarray:
    """Return the draws at the end of a study."""
    for number in range(1, LETTERS + 1):
        now.proceed()
        for name in NAMES:
            if not now.reply(name, number).exists():
                now.answer(name, number)
    found = now.proceed()
    assert found.result is not None
    return consortia.open_run(found.result).posterior["coefficients"].values


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_three_hundred_faults_change_no_draw(
    tmp_path: Path, other: Correspondence, calm: tuple[bool, np.ndarray], seed: int, monkeypatch
) -> None:
    keys, draws = calm
    as_one_process(monkeypatch)
    found = course(tmp_path / "now", other, seed, faults=3, keys=keys)
    assert sum(found.done.values()) >= 100, found.done
    assert min(found.done.values()) >= 1
    np.testing.assert_array_equal(ended(found.now), draws)


@pytest.mark.slow
def test_processes_that_are_killed_at_any_time_go_on(tmp_path: Path) -> None:
    now = Correspondence(tmp_path / "now")
    rng = np.random.default_rng(0)
    killed = 0

    def command(*words: str | Path) -> None:
        nonlocal killed
        line = [sys.executable, "-m", "consortia", "letter", *map(str, words)]
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as one:
            try:
                one.wait(rng.uniform(0.5, 3.0))
            except subprocess.TimeoutExpired:
                one.kill()
                killed += 1
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)

    for number in range(1, LETTERS + 1):
        command("next", now.coordinator)
        for name in NAMES:
            folder = now.site(name)
            more = ("--folder", folder, "--data", folder / "rows.csv", "--yes")
            command("answer", now.question(name, number), *more)
            assert verify(folder / "ledger.jsonl").problem is None
    command("next", now.coordinator)
    assert killed >= 4
    assert consortia.open_run(now.coordinator / "run").attrs["state"] == "finished"
