"""The coordinator's side of all letters: what was written, what has come, what is open.

Everything lasts in one folder. A letter is kept there before it is put where a site finds it, and
an answer before anything is computed from it, so that after a kill between any two steps the same
letters are written again, byte for byte.

    coordinator/sent/0-001.letter        the first letter to the first site
    coordinator/received/0-001.letter    its answer
    post/north/question-001.letter       a copy, for the site named north
    post/north/answer-001.letter         where its answer is looked for, under any name
    coordinator/aside/                   answers that could not be used, each beside the reason
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from consortia.core.printable import printable
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
from consortia.engines.messages.asking import REFUSAL, REQUEST
from consortia.engines.messages.envelope import Envelope, EnvelopeError, decode
from consortia.engines.messages.envelope import digest as message_digest
from consortia.engines.messages.identities import (
    TO_COORDINATOR,
    TO_SITE,
    KeyRing,
    body_of,
    is_signed,
)
from consortia.errors import StoreError
from consortia.store.durable import read_regular, remove_parts, replace_file

SENT, RECEIVED, ASIDE = "sent", "received", "aside"

LONGEST_REASON = 500
"""Characters of the reason for which an answer was set aside."""


USED = "the last answer of {name!r} has been used: open the study again if it was wrong."


@dataclass
class Exchange:
    """A letter to a site and its answer."""

    question: Letter  # the letter
    digest: str  # of the letter
    data: bytes | None = None  # bytes of the answer, or None while it is awaited
    # by the digest of each request, the site's reply to it
    replies: dict[str, bytes] = field(default_factory=dict)
    refused: bool = False  # the last reply is a refusal, which a later answer may replace


class Post:
    """All letters of one run.

    Args:
        folder: where they last.
        shared: where sites find their letters, in a folder of each.
        names: of the sites.
        run: identity of the run.
        secret: of the coordinator, from which the keys of the sites follow.
        opening: values of the first letter to each site, beside its key.
        ring: keys by which letters are signed and encrypted; None: none is.
    """

    def __init__(
        self,
        folder: Path,
        shared: Path,
        names: Sequence[str],
        run: str,
        secret: bytes,
        opening: Mapping[str, Any],
        *,
        ring: KeyRing | None = None,
    ) -> None:
        self.names, self.shared, self.ring = tuple(names), shared, ring
        self._folder, self._run, self._secret, self._opening = folder, run, secret, opening
        reasons = (folder / ASIDE).glob("*.txt")
        self._reasons = {path.stem: path.read_text(encoding="utf-8") for path in reasons}
        self._finish_putting_aside()
        self._exchanges: list[list[Exchange]] = [self._kept(site) for site in range(len(names))]

    def key(self, site: int) -> bytes:
        """Return the key that seals the letters to and from a site."""
        text = f"{self._run}\0{self.names[site]}"
        return hmac.new(self._secret, text.encode(), hashlib.sha256).digest()

    def place(self, site: int) -> Path:
        """Return the folder in which a site finds its letters."""
        return self.shared / quote(self.names[site], safe=" ")

    # --- questions ------------------------------------------------------------------------------

    def reply(self, site: int, request: bytes) -> bytes | None:
        """Return a site's reply to a request, or None where it has not come."""
        wanted = message_digest(body_of(request))
        return next((x.replies[wanted] for x in self._exchanges[site] if wanted in x.replies), None)

    def write(self, site: int, requests: Sequence[bytes]) -> Path:
        """Write the letter with these requests, unless it was written before; return its path.

        Raises:
            StoreError: the letter that is open holds others: the folder is that of another run, or
                the same run was continued elsewhere.
        """
        exchanges = self._exchanges[site]
        last = exchanges[-1] if exchanges else None
        if last is not None and (last.data is None or last.refused):
            if last.question.messages != tuple(requests):
                raise StoreError(
                    f"letter {last.question.number} to {self.names[site]!r} asks something else "
                    "than this run asks now: the study, the library or the coordinator's folder "
                    "was changed. Continue with what the letter was written with, or open the "
                    "study again."
                )
        else:
            last = self._appended(site, tuple(requests))
        path = self._copy_of(site, last.question.number)
        data = self._closed(site, self._path(SENT, site, last.question.number).read_bytes())
        if not path.is_file() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, [data])
        return path

    def _closed(self, site: int, data: bytes) -> bytes:
        """Return a letter as it leaves: where there are keys, encrypted to its site and signed."""
        if self.ring is None:
            return data
        name = self.names[site]
        reader = self.ring.sites.get(name)
        if reader is None:
            raise StoreError(f"there is no key of {name!r}: add it to the coordinator's keys.")
        return encrypt(data, name, self.ring.private, reader, TO_SITE)

    def _opened(self, data: bytes) -> bytes:
        """Return an answer as its site has sealed it.

        Raises:
            LetterError: it is not encrypted where there are keys, or not signed by its site.
        """
        if self.ring is None:
            return data
        if not is_encrypted(data):
            raise LetterError("it is not encrypted, though this study has keys: have it sent again")
        writer = self.ring.sites.get(name := site_in(data))
        if writer is None:
            raise LetterError("it is from a site of which there is no key")
        opened = decrypt(data, self.ring.private, writer, TO_COORDINATOR)
        if unfold(opened)[0].site != name:
            raise LetterError("it names two sites")
        return opened

    def _appended(self, site: int, requests: tuple[bytes, ...]) -> Exchange:
        exchanges = self._exchanges[site]
        seen, values = "", {}
        if exchanges:
            seen = hashlib.sha256([*exchanges[-1].replies.values()][-1]).hexdigest()
        else:
            values = {**self._opening, "key": self.key(site).hex()}
        name, number = self.names[site], len(exchanges) + 1
        letter = Letter(QUESTION, self._run, name, number, requests, seen, values)
        data = seal(letter, self.key(site))
        path = self._path(SENT, site, number)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        replace_file(path, [data], private=True)
        exchanges.append(Exchange(letter, digest(data)))
        return exchanges[-1]

    @property
    def awaited(self) -> dict[str, int]:
        """The number of the letter that each site has not answered, by the site's name."""
        last = ((name, x[-1]) for name, x in zip(self.names, self._exchanges, strict=True) if x)
        return {name: x.question.number for name, x in last if x.data is None}

    # --- what has come --------------------------------------------------------------------------

    def arrivals(self, more: Iterable[Path] = ()) -> list[Path]:
        """Return the files in the folders of all sites that are not letters from here, and more."""
        arrived = []
        for site in range(len(self.names)):
            copies = {self._copy_of(site, x.question.number) for x in self._exchanges[site]}
            folder = self.place(site)
            if folder.is_dir():
                arrived += sorted(path for path in folder.glob(f"*{SUFFIX}") if path not in copies)
        return [*arrived, *more]

    def accept(self, path: Path) -> tuple[str, int] | None:
        """Keep the answer in a file; return site and number, or None where it is kept already.

        Raises:
            LetterError: it is not accepted; the message says why.
        """
        try:
            data = read_regular(path, MAX_LETTER_BYTES)
        except OSError as error:
            raise LetterError(f"it cannot be read: {error}") from None
        data = self._opened(data)
        letter, given = unfold(data)
        site, exchange = self._about(letter, given)
        if exchange.data == data:
            return None
        stem = _aside(site, letter.number, data)
        if stem in self._reasons:
            kept = self._folder / ASIDE / f"{stem}.txt"
            raise LetterError(
                f"it was set aside: {self._reasons[stem]}. If the site cannot answer otherwise, "
                f"open the study again; if it was set aside by mistake, remove {kept}"
            )
        replies = self._replies(letter, exchange)
        refused = len(replies) < len(exchange.question.messages) or _is_refusal(letter.messages[-1])
        if exchange.data is not None and not exchange.refused:
            raise LetterError(f"letter {letter.number} was answered otherwise before: it is late")
        kept = self._path(RECEIVED, site, letter.number)
        kept.parent.mkdir(exist_ok=True, mode=0o700)
        replace_file(kept, [data], private=True)
        exchange.data, exchange.replies, exchange.refused = data, replies, refused
        return self.names[site], letter.number

    def asked(self, name: str) -> list[Envelope]:
        """Return the requests in the last letter to a site."""
        last = self._exchanges[self.names.index(name)][-1:]
        return [decode(body_of(sent)) for exchange in last for sent in exchange.question.messages]

    def answered(self, name: str) -> Exchange:
        """Return the last letter to a site, whose answer may be set aside.

        Raises:
            StoreError: the site has not answered its last letter, it has refused (which any later
                answer replaces), or letters were written with what it has answered.
        """
        site = self.names.index(name)
        last = self._exchanges[site][-1] if self._exchanges[site] else None
        if last is None or last.data is None or last.refused:
            raise StoreError(f"{name!r} has no open letter with an answer.").at(site=name)
        if max(map(len, self._exchanges)) > last.question.number:
            raise StoreError(USED.format(name=name)).at(site=name)
        return last

    def put_aside(self, name: str, reason: str) -> int:
        """Put the last answer of a site aside, so that the site may answer the letter again.

        The letter stays as it is: the site's ledger and gate decide what another answer may be.
        Return its number.

        Raises:
            StoreError: as `answered`.
        """
        site, last = self.names.index(name), self.answered(name)
        assert last.data is not None
        number = last.question.number
        stem = _aside(site, number, last.data)
        folder = self._folder / ASIDE
        folder.mkdir(exist_ok=True, mode=0o700)
        self._reasons[stem] = printable(reason, most=LONGEST_REASON)
        replace_file(folder / f"{stem}.txt", [self._reasons[stem].encode()], private=True)
        self._path(RECEIVED, site, number).replace(folder / f"{stem}{SUFFIX}")
        last.data, last.replies = None, {}
        return number

    def _finish_putting_aside(self) -> None:
        """Move answers whose reason was written before the process ended."""
        remove_parts(self._folder / ASIDE)
        for stem in self._reasons:
            site, number, _ = stem.split("-")
            path = self._path(RECEIVED, int(site), int(number))
            if path.exists() and _aside(int(site), int(number), path.read_bytes()) == stem:
                path.replace(self._folder / ASIDE / f"{stem}{SUFFIX}")

    def _about(self, letter: Letter, given: str) -> tuple[int, Exchange]:
        """Return the site and the exchange that a letter belongs to."""
        if letter.run != self._run:
            raise LetterError("it is of another run or study")
        if letter.site not in self.names:
            raise LetterError("it is from a site that the study does not have")
        site = self.names.index(letter.site)
        check_seal(letter, given, self.key(site))
        if letter.kind != ANSWER:
            raise LetterError("it is a question, not an answer")
        if letter.number > len(self._exchanges[site]):
            raise LetterError(
                f"it answers letter {letter.number}, which was not written here yet: it is from "
                "the future, and is accepted once that letter is written"
            )
        exchange = self._exchanges[site][letter.number - 1]
        if letter.about != exchange.digest:
            raise LetterError(f"it answers another letter than number {letter.number} from here")
        return site, exchange

    def _replies(self, letter: Letter, exchange: Exchange) -> dict[str, bytes]:
        """Return the replies in an answer, by the digests of their requests."""
        requests = exchange.question.messages
        if len(letter.messages) > len(requests):
            raise LetterError("it holds more replies than the letter has requests")
        replies = {}
        for request, data in zip(requests, letter.messages, strict=False):
            try:
                reply = decode(body_of(data))
            except EnvelopeError as error:
                raise LetterError(str(error)) from None
            if not self._is_genuine(data, letter.site):
                raise LetterError("a reply in it is not signed by the site's key")
            named, asked = message_digest(body_of(request)), decode(body_of(request))
            equal = reply.values.get(REQUEST) == named and reply.site == letter.site
            if reply.kind != REFUSAL:
                parts = ("kind", "run", "study", "label")
                equal &= all(getattr(reply, part) == getattr(asked, part) for part in parts)
            if not equal:
                raise LetterError("a reply in it answers something else than the letter asks")
            replies[named] = data
        if len(replies) < len(requests) and not _is_refusal(letter.messages[-1]):
            raise LetterError("it holds fewer replies than the letter has requests")
        return replies

    def _is_genuine(self, reply: bytes, site: str) -> bool:
        """Return True if a reply is signed by its site; a refusal need not be."""
        if self.ring is None or _is_refusal(reply):
            return True
        return is_signed(reply, self.ring.sites.get(site), TO_COORDINATOR)

    # --- what lasts -----------------------------------------------------------------------------

    def _kept(self, site: int) -> list[Exchange]:
        """Return the letters to a site and their answers, as they were kept."""
        for name in (SENT, RECEIVED):
            remove_parts(self._folder / name)
        exchanges: list[Exchange] = []
        while (path := self._path(SENT, site, len(exchanges) + 1)).exists():
            try:
                data = path.read_bytes()
                question, given = unfold(data)
                check_seal(question, given, self.key(site))
                exchange = Exchange(question, digest(data))
                answer = self._path(RECEIVED, site, question.number)
                if answer.exists():
                    exchange.data, path = answer.read_bytes(), answer
                    letter, given = unfold(exchange.data)
                    check_seal(letter, given, self.key(site))
                    exchange.replies = self._replies(letter, exchange)
                    exchange.refused = _is_refusal(letter.messages[-1])
            except LetterError as error:
                raise StoreError(
                    f"{path}: {error}. The coordinator's folder was changed: put an intact copy "
                    "of it back."
                ).at(file=str(path)) from None
            if exchanges and not exchanges[-1].replies:
                missing = self._path(RECEIVED, site, len(exchanges))
                raise StoreError(f"{missing} is missing: put an intact copy of the folder back.")
            exchanges.append(exchange)
        return exchanges

    def _path(self, what: str, site: int, number: int) -> Path:
        return self._folder / what / f"{site}-{number:03d}{SUFFIX}"

    def _copy_of(self, site: int, number: int) -> Path:
        return self.place(site) / f"{QUESTION}-{number:03d}{SUFFIX}"


def _aside(site: int, number: int, data: bytes) -> str:
    """Return the name under which an answer is set aside."""
    return f"{site}-{number:03d}-{digest(data)[:16]}"


def _is_refusal(message: bytes) -> bool:
    return decode(body_of(message)).kind == REFUSAL


def reply_to(request: bytes, arrays: Mapping[str, Any], *, site: str, **values: Any) -> bytes:
    """Return a site's reply to a request with these arrays."""
    envelope = decode(body_of(request))
    named = {REQUEST: message_digest(body_of(request)), **values}
    parts = envelope.kind, envelope.run, site, envelope.study, envelope.label
    return Envelope(*parts, named, dict(arrays)).encode()
