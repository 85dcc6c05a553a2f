"""A site in a study by letters: it reads a question, asks a person, and writes one answer."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consortia.core.queries import Conversation
from consortia.engines.letters.encryption import decrypt, encrypt, is_encrypted, site_in
from consortia.engines.letters.sealing import (
    ANSWER,
    MAX_LETTER_BYTES,
    QUESTION,
    SUFFIX,
    Letter,
    LetterError,
    check_seal,
    digest,
    seal,
    unfold,
)
from consortia.engines.messages.asking import REFUSAL
from consortia.engines.messages.envelope import Envelope, EnvelopeError, decode
from consortia.engines.messages.identities import TO_COORDINATOR, TO_SITE, body_of, read_identity
from consortia.engines.messages.questions import Leaving, Place, Question
from consortia.engines.messages.site import DESCRIPTION, MessageSite
from consortia.errors import InputError, LedgerError, StoreError
from consortia.federation.app import POLICY, site_of
from consortia.federation.governance import load_policy, terms_of, verify
from consortia.federation.governance.gate import LEDGER, Gate
from consortia.federation.letters.coordinating import check_study
from consortia.store.durable import read_regular, replace_file
from consortia.study.build import Study, load_study, study_of

OPENED, STUDY, KEPT = "opening.json", "study.toml", "letters"

MAX_STUDY_CHARACTERS, MOST_PARTS = 500_000, 5_000
"""Largest study that is parsed: of longer ones, or with more dots and brackets in a line, parsing
alone takes minutes."""


class Declined(BaseException):
    """A person at the site does not permit an answer; nothing is written."""


@dataclass
class Shown:
    """Sentences for a person before an answer."""

    study: Path | None  # the study file, when the first letter has come; else None
    lines: list[str]  # sentences on what the letter requests and what would leave
    folder: Path | None = None  # of the site, with the studies that it has answered
    site: str | None = None  # its name in the study


Permit = Callable[[Shown], bool]


@dataclass(frozen=True)
class Answered:
    """An answer that was written."""

    path: Path  # of the file
    number: int  # of the letter that it answers
    site: str
    bytes: int  # of the file
    left: tuple[str, ...]  # one sentence for each message in it
    # why the site refused, as its own people may read it; None where it did not
    error: BaseException | None


class AskingGate(Gate):
    """The gate of a site, with a person in front of it.

    Args:
        *opened: as of the gate.
        study: the study.
        permit: shows what the letter requests, and returns True if it may be answered.
        request: that is being answered.
    """

    def __init__(self, *opened: Any, study: Study, permit: Permit, request: Envelope) -> None:
        super().__init__(*opened)
        self._study, self._permit, self.request = study, permit, request
        self.left: list[str] = []

    def admit(self, kind: str, question: Question) -> bool:
        """Check the question; ask a person about a description."""
        again = super().admit(kind, question)
        if question.message == DESCRIPTION:
            self._ask(Shown(self._study.path, [], self._folder, self.site))
        return again

    def place(self, where: Place, *, again: bool) -> None:
        """Check where rows would be looked at; ask a person about the query."""
        super().place(where, again=again)
        name = str(self.request.values.get("function"))
        methods = (study.method for study in (self._study, *self._study.besides))
        functions = [method.functions for method in methods if isinstance(method, Conversation)]
        describes = next(known[name].describes for known in functions if name in known)
        lines = [
            f"The coordinator asks for {name.replace('_', ' ')}: {describes}",
            f"{where.numbers:,} numbers that depend on your rows would leave; your rows are looked "
            f"at at {where.points:,} values of the parameters.",
        ]
        if again:
            lines.append("The same was answered before: the same numbers would leave again.")
        self._ask(Shown(None, lines))

    def release(self, leaving: Leaving) -> bytes:
        """Return the message, when it may leave, and note what is in it."""
        data = super().release(leaving)
        numbers = sum(array.size for array in leaving.arrays.values()) + leaving.plain_numbers
        text = f"{leaving.question.message}: {numbers:,} numbers, {len(data):,} bytes"
        if leaving.statement is not None:
            text += f"; all answers so far settle {leaving.statement}"
        self.left.append(text)
        return data

    def _ask(self, shown: Shown) -> None:
        if not self._permit(shown):
            raise Declined


def answer_letter(
    path: Path,
    *,
    permit: Permit,
    data: Path | None = None,
    folder: Path | None = None,
    policy: Path | None = None,
    output: Path | None = None,
) -> Answered:
    """Answer a letter of the coordinator; write one file.

    Args:
        path: of the letter.
        permit: shows a person what the letter requests; nothing leaves if it returns False.
        data: the file of this site; needed for the first letter of a run, and kept from there on.
        folder: where the site keeps what must last, its policy and ledger among it; by default
            ``~/.consortia/sites/NAME``.
        policy: by default ``site-policy.toml`` in that folder.
        output: by default beside the letter.

    Raises:
        LetterError: the letter cannot be accepted.
        InputError: the study, the data or the policy cannot be used.
        PolicyError: the policy forbids the study.
        LedgerError: the ledger is broken, or lacks an answer that the coordinator has.
        Declined: a person did not permit it.
    """
    try:
        content = read_regular(path, MAX_LETTER_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    try:
        name = site_in(content) if is_encrypted(content) else unfold(content)[0].site
        home = Path.home() / ".consortia" / "sites" / name if folder is None else folder
        rules = home / POLICY if policy is None else policy
        sealed_by = load_policy(rules).coordinator if rules.is_file() else None
        plain = _decrypted(content, home, sealed_by)
        letter, given = unfold(plain)
        if letter.site != name:
            raise LetterError("it names two sites")
        if letter.kind != QUESTION:
            raise LetterError("it is an answer, not a question")
        kept = home / KEPT / letter.run
        opened = _opened(letter, given, kept)
    except LetterError as error:
        raise LetterError(f"{path}: {error}.").at(file=str(path)) from None
    _check_ledger(letter, home)
    file = data if data is not None else opened.get("data")
    if file is None:
        raise InputError("the site's rows: give the file with --data; later letters know it.")
    if not rules.is_file():
        _keep_study(letter, kept)  # a policy is proposed from it
        raise InputError(
            f"{rules}: no such file. A site without a policy takes part in nothing: "
            f"`consortia site check --study {kept / STUDY} --data {file} > {rules}` proposes one."
        ).at(file=str(rules))
    study = _study_of(letter, kept)
    load_policy(rules).permits(terms_of(study))
    _keep_study(letter, kept)
    _keep(kept / OPENED, {**opened, "data": str(Path(file).expanduser().resolve())})
    node = {"site": letter.site, "data": str(file), "folder": str(home), "policy": str(rules)}
    key = bytes.fromhex(opened["key"])
    replies, left, refused = _replies(letter, study, node, opened, permit)
    answer = Letter(ANSWER, letter.run, letter.site, letter.number, replies, digest(plain))
    sealed = seal(answer, key)
    if sealed_by is not None:
        reader = bytes.fromhex(sealed_by)
        sealed = encrypt(sealed, letter.site, read_identity(home), reader, TO_COORDINATOR)
    written = path.with_name(f"{ANSWER}-{letter.number:03d}{SUFFIX}") if output is None else output
    replace_file(written, [sealed])
    return Answered(written, letter.number, letter.site, len(sealed), left, refused)


def _decrypted(content: bytes, home: Path, coordinator: str | None) -> bytes:
    """Return a letter whose signature was checked, where the site's policy names a key for it."""
    if is_encrypted(content):
        writer = None if coordinator is None else bytes.fromhex(coordinator)
        return decrypt(content, read_identity(home), writer, TO_SITE)
    if coordinator is not None:
        raise LetterError(
            "it is neither encrypted nor signed, though the site's policy names the coordinator's "
            "key"
        )
    return content


def _replies(
    letter: Letter, study: Study, node: dict[str, str], opened: dict[str, Any], permit: Permit
) -> tuple[tuple[bytes, ...], tuple[str, ...], BaseException | None]:
    """Return the replies to the requests of a letter up to the first refusal, and what left."""
    replies: list[bytes] = []
    gates: list[AskingGate] = []
    requests = [decode(body_of(message)) for message in letter.messages]

    def asking(*opened: Any) -> Gate:
        gates.append(AskingGate(*opened, study=study, permit=permit, request=requests[0]))
        return gates[-1]

    sites: dict[str, MessageSite] = {}
    for part in (study, *study.besides):
        site = site_of(part, node, {"x64": opened["x64"]}, made=asking)
        sites[site.study] = site
    for request, message in zip(requests, letter.messages, strict=True):
        for gate in gates:
            gate.request = request
        site = sites.get(request.study, next(iter(sites.values())))
        replies.append(site.answer(message))
        if decode(body_of(replies[-1])).kind == REFUSAL:
            break
    left = tuple(text for gate in gates for text in gate.left)
    refused = next((answer.error for answer in sites.values() if answer.error is not None), None)
    return tuple(replies), left, refused


# --- what a site has kept of a run ---------------------------------------------------------------


def _opened(letter: Letter, given: str, kept: Path) -> dict[str, Any]:
    """Return the terms in the run's first letter, once the seal of this one is checked."""
    path = kept / OPENED
    if path.exists():
        try:
            opened = dict.fromkeys(("site", "key", "x64"), "")
            opened |= json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, TypeError):
            raise StoreError(f"{path} was changed: put an intact copy back.") from None
        if opened["site"] != letter.site:
            raise LetterError(f"it is for {letter.site!r}, not this folder's").at(site=letter.site)
    elif letter.number > 1:
        raise LetterError(
            f"it is letter {letter.number} of a run whose first letter was not answered from this "
            "folder: answer that first, or give the folder that has its ledger"
        )
    else:
        values = letter.values
        typed = {"study": str, "key": str, "x64": bool}
        if any(type(values.get(name)) is not kind for name, kind in typed.items()):
            raise LetterError("it is a first letter without a study")
        opened = {name: values[name] for name in ("key", "x64")} | {"site": letter.site}
    try:
        key = bytes.fromhex(opened["key"])
    except ValueError:
        raise LetterError("its key is none") from None
    check_seal(letter, given, key)
    for message in letter.messages:
        try:
            decode(body_of(message))
        except EnvelopeError as error:
            raise LetterError(str(error)) from None
    return opened


def _study_of(letter: Letter, kept: Path) -> Study:
    """Return the study of a run: that in its first letter, and later the one that was kept."""
    if letter.number > 1:
        study = load_study(kept / STUDY)
    else:
        try:
            content = tomllib.loads(_study_text(letter))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InputError(f"the study in the first letter is not TOML: {error}.") from None
        study = study_of(content, kept / STUDY)
    check_study(study)
    return study


def _study_text(letter: Letter) -> str:
    """Return the text of the study in a first letter, before it is parsed.

    Raises:
        LetterError: it is longer than a study is, or nests deeper.
    """
    text = str(letter.values["study"])
    deepest = max((sum(map(line.count, ".[{")) for line in text.splitlines()), default=0)
    if len(text) > MAX_STUDY_CHARACTERS or deepest > MOST_PARTS:
        raise LetterError(
            f"the study in it has {len(text):,} characters and up to {deepest} parts a line; a "
            f"study has at most {MAX_STUDY_CHARACTERS:,} and {MOST_PARTS:,}"
        )
    return text


def _keep_study(letter: Letter, kept: Path) -> None:
    """Write the study that a first letter holds."""
    if letter.number == 1:
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(kept / STUDY, [_study_text(letter).encode()], private=True)


def _keep(path: Path, values: dict[str, Any]) -> None:
    replace_file(path, [json.dumps(values, indent=1).encode()], private=True)


def _check_ledger(letter: Letter, folder: Path) -> None:
    """Refuse a letter of a coordinator who has an answer that the ledger does not have."""
    if not letter.about:
        return
    path = folder / LEDGER
    entries = verify(path).entries if path.exists() else ()
    if letter.about not in {entry.sha256 for entry in entries if entry.event == "released"}:
        raise LedgerError(
            f"letter {letter.number} names an answer of this site that its ledger {path} does not "
            "have: an older copy of the folder was put back, or the letter before was answered "
            "from another folder. Nothing was answered: what has left would be counted wrongly."
        ).at(file=str(path))
