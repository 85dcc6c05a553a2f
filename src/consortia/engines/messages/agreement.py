"""The first message of a run: sites agree to it, and say whether its start can be evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.target import Target
from consortia.engines.messages import nonfinite
from consortia.engines.messages.asking import RequestChannel
from consortia.engines.messages.envelope import Envelope, EnvelopeError
from consortia.engines.messages.questions import LAST, question_of
from consortia.engines.messages.site import AGREEMENT, KNOWN
from consortia.engines.messages.stages import check_shapes
from consortia.errors import SiteRefusedError
from consortia.runtime.late import Array

Flags = Mapping[str, np.ndarray]

PUT_BACK = (
    "its ledger lacks the last message that this run has of it: the site's folder was put back "
    "from a backup, or is another one. Let the site put its newest folder back, or begin a new run"
)
"""Reason for the end of a run that is resumed with a site of another past."""


@dataclass(frozen=True)
class Beginning:
    """Values with which a run begins, and the flags of the sites."""

    values: Mapping[str, Any]  # facts of all sites, and the fingerprint of the model
    arrays: Mapping[str, np.ndarray]  # the positions (chains, d)
    # of each site, by its index, once it has answered
    flags: dict[int, Flags] = field(default_factory=dict)

    def take(self, channel: RequestChannel, site: int, answer: Envelope) -> Flags:
        """Take what a site says of the start.

        Raises:
            EnvelopeError: they are not as they must be.
            SiteRefusedError: its ledger lacks what it answered last in this run.
        """
        if answer.values.get(KNOWN) is False:
            raise SiteRefusedError((channel.names[site],), reason=PUT_BACK, waited=0.0)
        chains = len(self.arrays["positions"])
        like = {"potential": np.empty(chains, np.uint8), "gradient": np.empty(chains, bool)}
        flags = {n: array for n, array in answer.arrays.items() if n.startswith(tuple(like))}
        if flags.keys() != like.keys():
            raise EnvelopeError("it holds other arrays of the start than this step has")
        check_shapes(flags, like)
        if flags["potential"].max(initial=0) >= len(nonfinite.VALUES):
            raise EnvelopeError("a flag is none")
        self.flags[site] = flags
        return flags


def begun(
    channel: RequestChannel,
    values: Mapping[str, Any],
    positions: Float[Array, "chains d"],
    join: Callable[[Beginning], None] | None = None,
) -> Beginning:
    """Send all sites what the run begins with; return it with their flags.

    Args:
        channel: to the sites.
        values: as of `Beginning`.
        positions: at which the chains start.
        join: asks the nodes who they are in the same message, where they have not joined before.

    Raises:
        SiteMissingError: a site did not answer, or refused.
        SiteRefusedError: the ledger of a site lacks what it answered last in this run.
    """
    begin = Beginning(values, {"positions": np.asarray(positions)})
    parts = {"values": values, "arrays": begin.arrays}
    channel.begun = question_of(channel.request(AGREEMENT, 0, **parts)).digest
    if join is not None and len(channel.node) < len(channel.names):
        join(begin)
        if not channel.answered:
            return begin
    requests = {}  # of a resumed run: each site compares with its own ledger
    for site in range(len(channel.names)):
        last = {LAST: channel.answered[site]} if site in channel.answered else {}
        parts["values"] = {**values, **last}
        requests[site] = channel.request(AGREEMENT, site, **parts)
    channel.ask(requests, lambda site, answer: begin.take(channel, site, answer))
    channel.before += 1
    return begin


def values_of(
    target: Target, positions: Float[Array, "chains d"], begun: Beginning
) -> tuple[Any, Any, Any]:
    """Return log-prior (chains,), U_c and whether its gradient is finite, both (nodes, chains).

    Of U_c the sites tell no more than whether it is finite; it is 0 here where it is.
    """
    flags = [begun.flags[site] for site in sorted(begun.flags)]
    prior = target.log_priors(np.asarray(positions))
    potential = np.stack([np.asarray(nonfinite.VALUES)[answer["potential"]] for answer in flags])
    return prior, potential, np.stack([answer["gradient"] for answer in flags])
