"""Sentences of the server about its sites in plans, records and while it waits."""

from __future__ import annotations

import time
from typing import Any

from consortia.core.words import duration
from consortia.engines.messages.asking import RequestChannel
from consortia.engines.panel import Prepared

SUMS = (
    "secure sums: of all answers the server learns the sum over the {sites} sites, unless all "
    "sites but one help it. Given up: a site that sends what cannot be honest is not named, "
    "nothing is known of one site alone, and where a site is missing there is no answer. "
    "run.secure_sums = false of the study has each site's answers plain, where every policy "
    "permits that."
)
"""Effects of secure sums, for the plan."""

NO_SUMS = "no secure sums: {why}. The server receives the messages of each site by themselves."
"""Reason for messages that leave plain, for the plan."""


class Remote(Prepared):
    """A run or a panel whose sites answer messages: what it says of them while they do."""

    _channel: RequestChannel

    def answering(self) -> dict[str, tuple[float | None, float | None]]:
        """Return of each site the seconds of its last answer, and those waited for one so far."""
        channel = self._channel
        now, since, took = time.monotonic(), dict(channel.since), dict(channel.took)
        return {
            name: (took.get(site), now - since[site] if site in since else None)
            for site, name in enumerate(channel.names)
        }

    def expected(self, messages: int) -> str:
        """Predict the time of so many messages from the messages so far."""
        channel = self._channel
        each, how = channel.transport.seconds, channel.transport.kind
        if channel.messages:
            each, how = channel.seconds / channel.messages, f"{how}, as measured"
        return (
            f"about {duration(each * messages)}: {messages} messages to each "
            f"site, one after the other, {each:.2g} s each ({how}), and "
            "the sites' own work"
        )

    @property
    def where(self) -> list[str]:
        """Sites that each process holds, one line each."""
        channel = self._channel
        nodes = [channel.node.get(site) for site in range(len(channel.names))]
        sites = [
            f"{'not joined yet' if node is None else f'node {node}'}: {name}"
            for node, name in zip(nodes, channel.names, strict=True)
        ]
        return [f"server ({channel.transport.kind}): no site", *sites]


def facts_of(channel: RequestChannel) -> dict[str, Any]:
    """Return the attributes of a run's record on its messages."""
    received = {
        name: list(channel.received.get(channel.node[site], (0, 0)))
        for site, name in enumerate(channel.names)
    }
    private = ", ".join(channel.names[site] for site in sorted(channel.private))
    return {
        "private_numbers": f"from secrets of {private}" if private else "none: from the seed",
        "flower_run": channel.run,
        "messages_before": channel.before - channel.transport.riding,
        "rejected_replies": channel.rejected.count,
        "rejected": channel.rejected.lines,
        "received": received,
        "last_messages": {
            name: channel.last.get(channel.node[site], "")
            for site, name in enumerate(channel.names)
        },
        "seconds_per_message": channel.seconds / max(channel.messages, 1),
    }
