"""Who is there, and with what data: which node is which site; the first message of a run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from consortia.core.printable import printable
from consortia.data.facts import SiteFacts
from consortia.engines.messages.agreement import Beginning
from consortia.engines.messages.asking import REFUSAL, REQUEST, RequestChannel, refused
from consortia.engines.messages.envelope import Envelope, EnvelopeError, decode, digest
from consortia.engines.messages.identities import body_of
from consortia.engines.messages.pooled import MOMENTS, check_masked
from consortia.engines.messages.secure_sums import SUM_KEYS, Key, is_key_of, key_of
from consortia.engines.messages.site import DESCRIPTION, description
from consortia.engines.messages.transport import Arrival
from consortia.errors import SiteMissingError, SiteRefusedError


def joined(channel: RequestChannel, deadline: float, begin: Beginning | None = None) -> None:
    """Ask every node who it is, until all sites are there; fill ``channel.node`` and its facts.

    Args:
        channel: to the sites.
        deadline: seconds that they have to come.
        begin: what the run begins with, where that needs no facts: they agree to it at once.

    Raises:
        SiteMissingError: not all sites came in time.
        SiteRefusedError: a site does not take part, or runs something else than the server.
    """
    asked = Envelope(DESCRIPTION, channel.run, "", channel.study)
    if begin is not None:
        asked = replace(asked, values=begin.values, arrays=begin.arrays)
    question = asked.encode()
    named, described = digest(question), description()
    sent: dict[str, int] = {}
    sealed = channel.sealed(question)

    def strangers(left: float) -> list[int] | None:
        missing = tuple(n for i, n in enumerate(channel.names) if i not in channel.node)
        if left <= 0 and missing:
            unused = "; ".join(channel.unused.values())
            raise SiteMissingError(missing, waited=deadline, rejected=unused)
        if left == math.inf or not missing:  # nodes are looked for while sites are missing
            return [] if missing else None
        known = set(channel.node.values())
        return [n for n in channel.transport.nodes() if n not in known]

    def take(arrival: Arrival) -> int | None:
        node = sent.pop(arrival.message, None)
        if node is None or not _failed(channel, arrival, named, described, begin):
            return None
        channel.check_lasting(node)
        return node

    channel.deliver(sent, lambda node: (node, sealed), strangers, take, deadline)
    channel.before += 1


def _failed(
    channel: RequestChannel,
    arrival: Arrival,
    named: str,
    facts_of: dict[str, Any],
    begin: Beginning | None,
) -> bool:
    """Take what a node says of itself, or refuse it; return True if it is to be queried again."""
    if arrival.payload is None:
        channel.rejected.add(f"before the run: a node: no answer: {arrival.error}")
        return True
    try:
        answer = decode(body_of(arrival.payload))
    except EnvelopeError as error:
        channel.rejected.add(f"before the run: a node: malformed: {error}")
        return True
    if answer.run != channel.run or answer.values.get(REQUEST) != named:
        channel.rejected.add("before the run: a node: it answers no request of this run")
        return False
    if answer.kind == REFUSAL and answer.site in channel.names:
        raise refused(answer.site[:60], answer, 0)
    forged = channel.forged(arrival, answer.site)
    if answer.site in channel.names and forged is not None:
        raise SiteRefusedError((answer.site,), reason=forged, waited=0.0)
    if answer.site not in channel.names or answer.kind != DESCRIPTION:
        channel.rejected.add(f"before the run: {answer.site[:60]!r} is not a site of this study")
        return False
    site = channel.names.index(answer.site)
    if channel.node.get(site) == arrival.sender:
        return False  # it received two requests, being slow
    if site in channel.node:
        channel.rejected.add(f"before the run: a second node says that it is {answer.site!r}")
        return False
    difference = _difference(answer.values, facts_of)
    if difference is not None:
        raise SiteRefusedError((answer.site,), reason=difference, waited=0.0)
    try:
        facts = SiteFacts.read(answer.values.get("facts"))
        if facts.pooled or (facts.beside is not None and facts.beside.pooled):
            raise EnvelopeError("it sends moments of all sites, of which it knows its own only")
        if answer.values.get("sums") is True:
            channel.sum_keys[answer.site] = _sum_key(channel, answer)
        if MOMENTS in answer.values:
            channel.moments[site] = check_masked(answer.values[MOMENTS], facts)
        if begin is not None:
            begin.take(channel, site, answer)
    except ValueError as error:
        channel.rejected.add(f"before the run: {answer.site[:60]!r}: malformed: {error}")
        channel.unused[site] = printable(f"site {answer.site!r}: malformed: {error}", most=200)
        return True
    channel.node[site], channel.facts[site] = arrival.sender, facts
    if answer.values.get("private") is True:
        channel.private.add(site)
    if answer.values.get("sums") is True:
        channel.masking.add(site)
    return False


def _sum_key(channel: RequestChannel, answer: Envelope) -> Key:
    """Return the key of secure sums with which a site describes itself."""
    key = key_of(answer.values.get(SUM_KEYS))
    known = None if channel.keys is None else channel.keys.sites.get(answer.site)
    if known is not None and not is_key_of(key, answer.site, channel.study, known):
        raise EnvelopeError("its key of the sums is not signed by it for this study")
    return key


def _difference(there: Any, here: dict[str, Any]) -> str | None:
    """Find a difference between the site's run and the server's, or return None."""
    versions = there.get("versions")
    if not isinstance(versions, dict):
        return "it does not say which versions it runs"
    for name, version in here["versions"].items():
        if name == "jax" and versions.get(name, "") is None:
            continue  # consortia-site, which refuses what it would have to compile
        if versions.get(name) != version:
            installed = printable(str(versions.get(name)), most=30)
            return f"it runs {name} {installed}, the server {version}: install the same everywhere"
    if there.get("x64") is not here["x64"]:
        return "it computes with other numbers (32 or 64 bits): give JAX_ENABLE_X64 one value"
    return None
