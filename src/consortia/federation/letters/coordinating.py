"""The coordinator of a study by letters: one folder that survives whatever ends the process."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from consortia.core.arguments import read_toml
from consortia.core.queries import Conversation
from consortia.engines.letters.post import USED, Post
from consortia.engines.letters.sealing import LetterError, is_site_name
from consortia.engines.letters.transport import AwaitedError, LetterTransport
from consortia.engines.messages.envelope import EnvelopeError
from consortia.engines.messages.files import secret_of
from consortia.engines.messages.identities import RING, SUMS, KeyRing, coordinator_ring
from consortia.engines.messages.secure_sums import PUBLIC_BYTES, Key, is_key_of, key_of, plain_key
from consortia.errors import (
    InputError,
    SiteImplausibleError,
    SiteRefusedError,
    StoreError,
    warn,
)
from consortia.federation.app import NEEDS_KEYS, serve
from consortia.federation.governance import terms_of
from consortia.federation.governance.terms import MASKED
from consortia.store.answers import Answers
from consortia.store.durable import replace_file
from consortia.study.build import Study, load_study

STATE, STUDY, RUN, LOCK = "letters.json", "study.toml", "run", "letters.lock"
FORMAT_VERSION = 2

REQUESTED = "the coordinator wants another one"
"""Reason for which an answer is put aside that nothing is known to be wrong with."""


@dataclass
class Progress:
    """Outcome of one look at the letters.

    Attributes:
        accepted: site and number of each answer that was taken.
        refused: each file that was not accepted, with the reason.
        aside: number of each answer that was put aside, with the reason, by the name of the site.
        awaited: number of the letter that is open, by the name of the site; empty at the end.
        result: directory of the finished run, or None.
    """

    accepted: list[tuple[str, int]] = field(default_factory=list)
    refused: dict[Path, str] = field(default_factory=dict)
    aside: dict[str, tuple[int, str]] = field(default_factory=dict)
    awaited: dict[str, int] = field(default_factory=dict)
    result: Path | None = None


def check_study(study: Study, carrier: str = "letters") -> None:
    """Refuse a study that letters, or other carriers of few messages, cannot carry.

    Raises:
        InputError: with the reason.
    """
    if not isinstance(study.method, Conversation):
        raise InputError(
            f"{carrier}: {study.method.name} sends thousands of messages: set algorithm.name = "
            "'few_rounds', which usually sends four."
        ).at("algorithm.name")
    if study.data.files is None:
        raise InputError(f"{carrier}: the study has no sites: give data.files, one a site.")
    if study.model.factory is not None or (study.compare and study.compare.factory):
        raise InputError(
            f"{carrier} carry no code: give model.formula or model.kind, not a factory."
        )
    odd = [name for name in study.data.site_names if not is_site_name(name)]
    if odd:
        raise InputError(
            f"{carrier}: a site cannot be named {odd[0]!r}, which some systems do not accept "
            "as a folder's name: rename its file."
        )


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
        InputError: letters cannot carry the study, keys are missing, or a key of secure sums was
            prepared for another study.
        StoreError: the folder holds something.
    """
    study = load_study(path)
    check_study(study)
    terms, sums = terms_of(study), {}
    if keys is not None:
        ring = coordinator_ring(keys)
        if study.registered is not None and terms.sums == MASKED:
            sums = _prepared(keys / RING, terms.study, study.data.site_names, ring)
    elif terms.sums == MASKED:
        raise InputError(NEEDS_KEYS).at("keys")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreError(f"{folder} is not empty: give another folder, or `consortia letter next`.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret_of(folder)
    replace_file(folder / STUDY, [path.read_bytes()], private=True)
    state = {
        "format": FORMAT_VERSION,
        "run": secrets.token_hex(16),
        "study": terms.study,
        "shared": str(shared.resolve()),
        "x64": x64,
        "keys": "" if keys is None else str(keys.resolve()),
        "sums": sums,
    }
    replace_file(folder / STATE, [json.dumps(state, indent=1).encode()], private=True)


def _prepared(path: Path, study: str, names: Sequence[str], ring: KeyRing) -> dict[str, list[str]]:
    """Return the keys of secure sums that all sites have prepared; none where one has not."""
    _, given = read_toml(path, "file of identities")
    lines, prepared = given.get(SUMS, {}), {}
    strange = sorted(set(lines) - set(names)) if isinstance(lines, dict) else [lines]
    if strange:
        raise InputError(
            f"{path}: [{SUMS}]: expected lines SITE = KEY of {', '.join(names)}, "
            f"got {strange[0]!r}."
        ).at(SUMS, file=str(path))
    for name in names:
        if name not in lines:
            continue
        text, cut = str(lines[name]), 2 * PUBLIC_BYTES
        try:
            key = key_of([text[:cut], text[cut:]])
        except EnvelopeError as error:
            raise InputError(f"{path}: [{SUMS}], {name!r}: {error}.").at(SUMS, site=name) from None
        known = ring.sites.get(name)
        if known is None or not is_key_of(key, name, study, known):
            raise InputError(
                f"{path}: [{SUMS}]: the key of {name!r} is not one that this site has made for "
                "this study: it is of another study, or was changed. Let the site make it with "
                "`consortia site key --study`, or leave the table out: that takes one more letter."
            ).at(SUMS, site=name, file=str(path))
        prepared[name] = plain_key(key)
    missing = [name for name in names if name not in prepared]
    if lines and missing:
        warn(
            f"{path}: [{SUMS}] has no key of {', '.join(missing)}: the study takes one more "
            "letter, in which all sites give theirs."
        )
    return {} if missing else prepared


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
                f"{folder / STUDY} is not the study of the letters: put the file back, "
                "or open the study again."
            ).at(file=str(folder / STUDY))

    def proceed(self, more: Iterable[Path] = (), again: Iterable[str] = ()) -> Progress:
        """Read what has come, and write the next letters or the result.

        An answer that was accepted and cannot be used is put aside; its site may answer again.

        Args:
            more: files of answers that lie elsewhere than in the shared folder.
            again: sites whose last answer is to be put aside, whatever it is.

        Raises:
            InputError: a site is to answer again that the study does not have.
            StoreError: the folder was changed, another process is at it, or a site has not sent an
                answer that could be put aside.
            SiteRefusedError: a site has refused; `proceed` again when it has answered.
            ConsortiaError: as `consortia.sample`.
        """
        try:
            with FileLock(self.folder / LOCK, timeout=0):
                return self._proceed(list(more), list(dict.fromkeys(again)))
        except Timeout:
            raise StoreError(f"{self.folder} is in use by another process: wait for it.") from None

    def _proceed(self, more: list[Path], again: list[str]) -> Progress:
        state, progress = self._state, Progress()
        opening = {"study": (self.folder / STUDY).read_text(encoding="utf-8"), "x64": state["x64"]}
        names = self.study.data.site_names
        secret = secret_of(self.folder)
        ring = coordinator_ring(Path(state["keys"])) if state["keys"] else None
        post = Post(self.folder, self.shared, names, state["run"], secret, opening, ring=ring)
        config = {"output": str(self.run), "quiet": True}
        config |= {name: state[name] for name in ("run", "x64", "keys")}
        known = self._known()
        registered = self.study.registered is not None
        riding = int(not registered or state["study"] in known)
        for name in again:  # all or none
            self._check_unused(post, name)
        for name in again:
            progress.aside[name] = post.put_aside(name, REQUESTED), REQUESTED
        while True:
            before = len(progress.accepted)
            _collect(post, more, progress)
            if progress.awaited and len(progress.accepted) == before:
                return progress
            try:
                serve(self.folder / STUDY, LetterTransport(post, known, riding), config)
            except AwaitedError as error:
                progress.awaited = error.awaited
            except (SiteImplausibleError, SiteRefusedError) as error:
                if len(error.sites) != 1:  # of a sum nobody knows whose part is wrong
                    raise
                (name,), reason = error.sites, error.reason
                try:
                    self._check_unused(post, name)
                    progress.aside[name] = post.put_aside(name, reason), reason
                except StoreError:  # it has refused, or what it sent was of use before
                    raise error from None
            else:
                progress.awaited, progress.result = {}, self.run
                return progress

    def _check_unused(self, post: Post, name: str) -> None:
        """Check that nothing was computed from what a site has answered last."""
        if name not in post.names:
            raise InputError(f"the study has the sites {', '.join(post.names)}, not {name!r}.")
        post.answered(name)
        kept, study = Answers(self.run), self._state["study"]
        queries = [query for query in post.asked(name) if query.label]
        # Of a study beside this one it is not known here which answers were of use.
        if any(query.study != study or kept.path(query.label[1] + 1).exists() for query in queries):
            raise StoreError(USED.format(name=name)).at(site=name)

    def _known(self) -> dict[str, dict[str, Key]]:
        """Return the studies of which the first request can be taken for granted, with keys."""
        terms = terms_of(self.study)
        known: dict[str, dict[str, Key]] = {o.study: {} for o in terms.every if o.sums != MASKED}
        if sums := self._state["sums"]:
            known[terms.study] = {name: key_of(plain) for name, plain in sums.items()}
        return known


def _collect(post: Post, more: Iterable[Path], progress: Progress) -> None:
    """Accept all that can be; name the reason of each file that cannot."""
    seen: dict[bytes, Path] = {}
    progress.refused.clear()
    for path in post.arrivals(more):
        try:
            taken = post.accept(path)
            content = path.read_bytes()
            if content in seen:
                raise LetterError(f"it is a double of {seen[content].name}")
            seen[content] = path
        except LetterError as error:
            progress.refused[path] = str(error)
            continue
        if taken is not None:
            progress.accepted.append(taken)


def _state_of(folder: Path) -> dict[str, Any]:
    path = folder / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        known = isinstance(state, dict) and state["format"] == FORMAT_VERSION
        known = known and {"run", "study", "shared", "x64", "keys", "sums"} <= state.keys()
    except FileNotFoundError:
        raise StoreError(
            f"{folder} holds no study by letters: `consortia letter open STUDY.toml` makes one."
        ) from None
    except (ValueError, KeyError):
        known = False
    if not known:
        raise StoreError(f"{path} was changed, or is of another version: put an intact copy back.")
    return state
