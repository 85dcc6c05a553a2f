"""The transport of the message engine with letters in place of a network.

The server runs from its beginning each time: every request that was answered has its reply at once,
from the letters that were kept, and the run stops at the first that was not.

The last request before the first query is whether the start can be evaluated. That is taken for
granted while its answer is awaited, so that the first query travels in the same letter; a start
that cannot be evaluated ends the run when the answer has come, before anything else is read. In a
registered study it is the first request of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consortia.data.facts import UNREAD
from consortia.engines.flower.envelope import decode
from consortia.engines.flower.identities import body_of
from consortia.engines.flower.site import AGREEMENT, DESCRIPTION, description
from consortia.engines.flower.transport import LETTERS, Arrival
from consortia.engines.letters.post import Post, reply_to
from consortia.errors import ConsortiaError, SiteImplausibleError

DAY = 86400.0
"""Seconds that a letter and its answer take, as a first guess."""


class AwaitedError(ConsortiaError):
    """The run waits for answers to letters; not an error of anybody.

    Attributes:
        awaited: number of the letter that is open, by the name of the site.
    """

    def __init__(self, awaited: dict[str, int]) -> None:
        names = ", ".join(f"{name} (letter {number})" for name, number in awaited.items())
        super().__init__(f"answers are awaited from: {names}")
        self.awaited = awaited


class LetterTransport:
    """Sites that answer letters; their nodes are their numbers.

    Args:
        post: all letters of the run.
    """

    kind = LETTERS
    seconds = DAY

    def __init__(self, post: Post) -> None:
        self._post = post
        self._open: dict[int, list[bytes]] = {}
        self._granted: dict[int, list[bytes]] = {}
        self._delivered: set[tuple[int, bytes]] = set()
        self._arrived: list[Arrival] = []
        self._count = 0
        self.riding = int(post.ring is None)

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
        reply = self._post.reply(site, request)
        if reply is None:
            reply = self._taken_for_granted(site, request)
        elif (site, request) in self._delivered:  # it was not used, and will be no other
            reason = "its kept answer cannot be used: it must answer anew, in a new study"
            raise SiteImplausibleError((self._post.names[site],), reason=reason, waited=0.0)
        if reply is None:
            self._open.setdefault(site, []).append(request)
        else:
            self._delivered.add((site, request))
            self._arrived.append(Arrival(message, site, reply))
        return message

    def _taken_for_granted(self, site: int, request: bytes) -> bytes | None:
        """Return the reply of a site whose start can be evaluated, to what a run begins with."""
        envelope = decode(body_of(request))
        begins = "positions" in envelope.arrays and envelope.kind in (DESCRIPTION, AGREEMENT)
        if not (self.riding and begins):
            return None
        self._granted.setdefault(site, []).append(request)
        chains = len(envelope.arrays["positions"])
        flags = {"potential": np.zeros(chains, np.uint8), "gradient": np.ones(chains, bool)}
        values = {}
        if envelope.kind == DESCRIPTION:
            values = description() | {"facts": UNREAD.plain(), "private": True, "sums": False}
        return reply_to(request, flags, site=self._post.names[site], **values)

    def replies(self, messages: Sequence[str]) -> list[Arrival]:
        """Return what has come; where nothing has, write the letters that are open.

        Raises:
            AwaitedError: they are written, and their answers are awaited.
        """
        if not self._arrived and self._open:
            for site, requests in self._open.items():
                self._post.write(site, [*self._granted.get(site, ()), *requests])
            raise AwaitedError(self._post.awaited)
        arrived, self._arrived = self._arrived, []
        return arrived
