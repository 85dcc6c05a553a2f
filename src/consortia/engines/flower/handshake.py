"""Who is there: which node is which site, before the first message of a run."""

from __future__ import annotations

import time
from typing import Any

from consortia.engines.flower.asking import POLLS, REFUSAL, REQUEST, Post, refused
from consortia.engines.flower.envelope import Envelope, EnvelopeError, decode, digest
from consortia.engines.flower.site import HELLO, description
from consortia.engines.flower.transport import Arrival
from consortia.errors import SiteMissingError, SiteRefusedError

AGAIN = 30.0
"""Seconds after which a node that has not said who it is is asked again."""


def joined(post: Post, deadline: float) -> None:
    """Asks every node who it is, until all sites are there; fills ``post.node``.

    Raises:
        SiteMissingError: not all sites came in time.
        SiteRefusedError: a site does not take part, or runs something else than the server.
    """
    hello = Envelope(HELLO, post.run, "", post.study).encode()
    named, own = digest(hello), description()
    asked: dict[int, float] = {}
    waiting: list[str] = []
    began, polls = time.monotonic(), 0
    while len(post.node) < len(post.names):
        now = time.monotonic()
        left = began + deadline - now
        if left <= 0:
            missing = tuple(n for i, n in enumerate(post.names) if i not in post.node)
            raise SiteMissingError(missing, waited=deadline)
        known = set(post.node.values())
        due = [
            node
            for node in post.transport.nodes()
            if node not in known and now - asked.get(node, -AGAIN) >= AGAIN
        ]
        if due:
            waiting += post.transport.push([(node, hello) for node in due], left)
            asked.update(dict.fromkeys(due, now))
        arrivals = post.transport.replies(waiting)
        for arrival in arrivals:
            post.count(arrival)
            if arrival.message in waiting:
                waiting.remove(arrival.message)
                _take(post, arrival, named, own)
        polls = 0 if arrivals else min(polls + 1, len(POLLS) - 1)
        if len(post.node) < len(post.names):
            time.sleep(POLLS[polls])
    post.messages += 1
    post.seconds += time.monotonic() - began


def _take(post: Post, arrival: Arrival, named: str, own: dict[str, Any]) -> None:
    """A node that says which site it is, and runs what the server runs."""
    if arrival.payload is None:
        post.rejected.add(f"before the run: a node: no answer: {arrival.error}")
        return
    try:
        answer = decode(arrival.payload)
    except EnvelopeError as error:
        post.rejected.add(f"before the run: a node: malformed: {error}")
        return
    if answer.run != post.run or answer.values.get(REQUEST) != named:
        post.rejected.add("before the run: a node: it answers no request of this run")
        return
    if answer.kind == REFUSAL and answer.site in post.names:
        raise refused(answer.site[:60], answer, 0)
    if answer.site not in post.names or answer.kind != HELLO:
        post.rejected.add(f"before the run: {answer.site[:60]!r} is no site of this study")
        return
    site = post.names.index(answer.site)
    if post.node.get(site) == arrival.sender:
        return  # it was asked twice, being slow
    if site in post.node:
        post.rejected.add(f"before the run: a second node says that it is {answer.site!r}")
        return
    difference = _difference(answer.values, own)
    if difference is not None:
        raise SiteRefusedError((answer.site,), reason=difference, waited=0.0)
    post.node[site] = arrival.sender


def _difference(there: Any, here: dict[str, Any]) -> str | None:
    """What a site runs that the server does not, or None."""
    versions = there.get("versions")
    if not isinstance(versions, dict):
        return "it does not say which versions it runs"
    for name, version in here["versions"].items():
        if versions.get(name) != version:
            found = str(versions.get(name))[:30]
            return f"it runs {name} {found}, the server {version}: install the same everywhere"
    if there.get("x64") is not here["x64"]:
        return "it computes with other numbers (32 or 64 bits): set JAX_ENABLE_X64 alike everywhere"
    return None
