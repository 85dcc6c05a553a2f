"""The transport of the message engine with letters in place of a network.

The server runs from its beginning each time: every request that was answered has its reply at once,
from the letters that were kept, and the run stops at the first that was not.

The last request before the first query is whether the start can be evaluated. That is taken for
granted while its answer is awaited, so that the first query travels in the same letter; a start
that cannot be evaluated ends the run when the answer has come, before anything else is read. In a
registered study it is the first request of all: where answers leave masked it is taken for granted
if the sites have prepared the keys of their masks before the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from consortia.data.facts import UNREAD
from consortia.engines.letters.post import Post, reply_to
from consortia.engines.messages.envelope import Envelope, decode
from consortia.engines.messages.identities import body_of
from consortia.engines.messages.secure_sums import SUM_KEYS, Key, plain_key
from consortia.engines.messages.site import AGREEMENT, DESCRIPTION, description
from consortia.engines.messages.transport import Arrival, Transport
from consortia.errors import ConsortiaError, SiteRefusedError

DAY = 86400.0
"""Seconds that a letter and its answer take, as a first guess."""

OTHER_KEY = (
    "it has another key of secure sums than the one prepared for this study: its rows or its "
    "folder have changed since. Let it put them back and answer again, or prepare another key "
    "with `consortia site key --study`, and open the study again"
)
"""Reason for the end of a run that began with a key that the site does not have."""


class AwaitedError(ConsortiaError):
    """The run waits for answers to letters; not an error of anybody.

    Attributes:
        awaited: number of the letter that is open, by the name of the site.
    """

    def __init__(self, awaited: dict[str, int]) -> None:
        names = ", ".join(f"{name} (letter {number})" for name, number in awaited.items())
        super().__init__(f"answers are awaited from: {names}")
        self.awaited = awaited


class LetterTransport(Transport):
    """Sites that answer letters; their nodes are their numbers.

    Args:
        post: all letters of the run.
        known: of each registered study whose first request can be taken for granted the keys of
            secure sums that the sites have prepared, by their names; none where answers leave
            plain.
        riding: messages before the first query that travel with it.
    """

    kind = "letters"
    seconds = DAY
    remote, stored = False, True

    def __init__(
        self, post: Post, known: Mapping[str, Mapping[str, Key]] | None = None, riding: int = 1
    ) -> None:
        self._post, self._known, self.riding = post, known or {}, riding
        self._open: dict[int, list[bytes]] = {}
        self._granted: dict[int, list[bytes]] = {}
        self._arrived: list[Arrival] = []
        self._count = 0

    def nodes(self) -> list[int]:
        """Return the nodes that are connected now."""
        return list(range(len(self._post.names)))

    def push(self, messages: Sequence[tuple[int, bytes]], ttl: float) -> list[str]:
        """Take requests into the letters to the sites, unless their replies are here.

        Return the names of the messages, in order.
        """
        return [self._pushed(site, request) for site, request in messages]

    def _pushed(self, site: int, request: bytes) -> str:
        self._count += 1
        message = f"letter {self._count}"
        reply, envelope = self._post.reply(site, request), decode(body_of(request))
        granted = reply is None
        if reply is None:
            reply = self._taken_for_granted(site, request, envelope)
        elif envelope.kind == DESCRIPTION:
            self._check_key(site, envelope.study, decode(body_of(reply)))
        if reply is None:
            self._open.setdefault(site, []).append(request)
        else:
            self._arrived.append(Arrival(message, site, reply, granted=granted))
        return message

    def _check_key(self, site: int, study: str, reply: Envelope) -> None:
        """Check that a site has the key that it has prepared."""
        name = self._post.names[site]
        prepared = self._known.get(study, {}).get(name)
        if prepared is None or reply.kind != DESCRIPTION:
            return
        if reply.values.get(SUM_KEYS) != plain_key(prepared):
            raise SiteRefusedError((name,), reason=OTHER_KEY, waited=0.0)

    def _taken_for_granted(self, site: int, request: bytes, envelope: Envelope) -> bytes | None:
        """Return the reply of a site whose start can be evaluated, to what a run begins with."""
        described = envelope.kind == DESCRIPTION and envelope.study in self._known
        begins = "positions" in envelope.arrays and (described or envelope.kind == AGREEMENT)
        if not begins:
            return None
        self._granted.setdefault(site, []).append(request)
        chains, name = len(envelope.arrays["positions"]), self._post.names[site]
        flags = {"potential": np.zeros(chains, np.uint8), "gradient": np.ones(chains, bool)}
        values = {}
        if described:
            keys = self._known[envelope.study]
            values = description() | {"facts": UNREAD.plain(), "private": True, "sums": bool(keys)}
            values |= {SUM_KEYS: plain_key(keys[name])} if keys else {}
        return reply_to(request, flags, site=name, **values)

    def replies(self, messages: Sequence[str]) -> list[Arrival]:
        """Return the replies so far; where there are none, write the letters that are open.

        Raises:
            AwaitedError: they are written, and their answers are awaited.
        """
        if not self._arrived and self._open:
            for site, requests in self._open.items():
                self._post.write(site, [*self._granted.get(site, ()), *requests])
            raise AwaitedError(self._post.awaited)
        arrived, self._arrived = self._arrived, []
        return arrived
