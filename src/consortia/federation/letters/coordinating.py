"""The coordinator of a study by letters: one folder that survives whatever ends the process."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from consortia.core.queries import Conversation
from consortia.engines.flower.files import secret_of
from consortia.engines.flower.identities import coordinator_ring
from consortia.engines.letters.post import Post
from consortia.engines.letters.sealing import LetterError
from consortia.engines.letters.transport import AwaitedError, LetterTransport
from consortia.errors import InputError, StoreError
from consortia.federation.app import NEEDS_KEYS, serve
from consortia.federation.governance import terms_of
from consortia.federation.governance.terms import MASKED
from consortia.store.durable import replace_file
from consortia.study.build import Study, load_study
from consortia.study.files import names_of

STATE, STUDY, RUN, LOCK = "letters.json", "study.toml", "run", "letters.lock"
FORMAT_VERSION = 1


@dataclass
class Progress:
    """Outcome of one look at the letters.

    Attributes:
        accepted: site and number of each answer that was taken.
        refused: each file that was not accepted, with the reason.
        awaited: number of the letter that is open, by the name of the site; empty at the end.
        result: directory of the finished run, or None.
    """

    accepted: list[tuple[str, int]] = field(default_factory=list)
    refused: dict[Path, str] = field(default_factory=dict)
    awaited: dict[str, int] = field(default_factory=dict)
    result: Path | None = None


def check_study(study: Study) -> None:
    """Refuse a study that letters cannot carry.

    Raises:
        InputError: with the reason.
    """
    if not isinstance(study.method, Conversation):
        raise InputError(
            f"letters: {study.method.name} sends thousands of messages: take algorithm.name = "
            "'few_rounds', which sends four as a rule."
        )
    if study.data.files is None:
        raise InputError("letters: the study has no sites: give data.files, one a site.")
    if study.model.factory is not None or (study.compare and study.compare.factory):
        raise InputError("letters carry no code: give model.formula or model.kind, not a factory.")
    hidden = [name for name in names_of(study.data.files) if name.startswith(".")]
    if hidden:
        raise InputError(f"letters: a site cannot be named {hidden[0]!r}, as a hidden file.")


def open_study(
    path: Path, folder: Path, shared: Path, *, x64: bool = False, keys: Path | None = None
) -> None:
    """Make the coordinator's folder of a study; the letters are written by `Coordinator.proceed`.

    Args:
        path: the study file.
        folder: of the coordinator; new or empty. Nobody else needs to read it.
        shared: where the sites find their letters.
        x64: compute with 64 bits, at all sites.
        keys: folder with the coordinator's key and the public keys of all, by which messages are
            signed and sums masked.

    Raises:
        InputError: letters cannot carry the study, or keys are missing.
        StoreError: the folder holds something.
    """
    study = load_study(path)
    check_study(study)
    if keys is not None:
        coordinator_ring(keys)
    elif terms_of(study).sums == MASKED:
        raise InputError(NEEDS_KEYS)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreError(f"{folder} is not empty: give another folder, or `consortia letter next`.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret_of(folder)
    replace_file(folder / STUDY, [path.read_bytes()], own=True)
    state = {
        "format": FORMAT_VERSION,
        "run": secrets.token_hex(16),
        "study": terms_of(study).study,
        "shared": str(shared.resolve()),
        "x64": x64,
        "keys": "" if keys is None else str(keys.resolve()),
    }
    replace_file(folder / STATE, [json.dumps(state, indent=1).encode()], own=True)


class Coordinator:
    """A study by letters in the folder that `open_study` has made.

    Args:
        folder: the coordinator's folder.

    Attributes:
        run: directory of the run, which holds the result at the end.
        shared: folder in which the sites find their letters.

    Raises:
        StoreError: there is no such folder, or it was changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / RUN
        self._state = _state_of(folder)
        self.shared = Path(self._state["shared"])
        self.study = load_study(folder / STUDY)
        if terms_of(self.study).study != self._state["study"]:
            raise StoreError(
                f"{folder / STUDY} is another study than the letters are about: put the file back, "
                "or open the study anew."
            )

    def proceed(self, more: Iterable[Path] = ()) -> Progress:
        """Read what has come, and write the next letters or the result.

        Args:
            more: files of answers that lie elsewhere than in the shared folder.

        Raises:
            StoreError: the folder was changed, or another process is at it.
            SiteRefusedError: a site has refused; `proceed` again when it has answered.
            ConsortiaError: as `consortia.sample`.
        """
        try:
            with FileLock(self.folder / LOCK, timeout=0):
                return self._proceed(list(more))
        except Timeout:
            raise StoreError(f"{self.folder} is in use by another process: wait for it.") from None

    def _proceed(self, more: list[Path]) -> Progress:
        state, found = self._state, Progress()
        opening = {"study": (self.folder / STUDY).read_text(encoding="utf-8"), "x64": state["x64"]}
        names = names_of(self.study.data.files or [])
        secret = secret_of(self.folder)
        ring = coordinator_ring(Path(state["keys"])) if state["keys"] else None
        post = Post(self.folder, self.shared, names, state["run"], secret, opening, ring=ring)
        config = {"output": str(self.run), "quiet": True}
        config |= {name: state[name] for name in ("run", "x64", "keys")}
        while True:
            before = len(found.accepted)
            _collect(post, more, found)
            if found.awaited and len(found.accepted) == before:
                return found
            try:
                serve(self.folder / STUDY, LetterTransport(post), config)
            except AwaitedError as error:
                found.awaited = error.awaited
            else:
                found.awaited, found.result = {}, self.run
                return found


def _collect(post: Post, more: Iterable[Path], found: Progress) -> None:
    """Accept all that can be; name the reason of each file that cannot."""
    seen: dict[bytes, Path] = {}
    found.refused.clear()
    for path in post.arrivals(more):
        try:
            taken = post.accept(path)
            content = path.read_bytes()
            if content in seen:
                raise LetterError(f"it is a double of {seen[content].name}")
            seen[content] = path
        except LetterError as error:
            found.refused[path] = str(error)
            continue
        if taken is not None:
            found.accepted.append(taken)


def _state_of(folder: Path) -> dict[str, Any]:
    path = folder / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        known = isinstance(state, dict) and state["format"] == FORMAT_VERSION
        known = known and {"run", "study", "shared", "x64", "keys"} <= state.keys()
    except FileNotFoundError:
        raise StoreError(
            f"{folder} holds no study by letters: `consortia letter open STUDY.toml` makes one."
        ) from None
    except (ValueError, KeyError):
        known = False
    if not known:
        raise StoreError(f"{path} was changed, or is of another version: put an intact copy back.")
    return state
