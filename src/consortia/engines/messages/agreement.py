"""The first message of a run: sites agree to it, and say whether its start can be evaluated."""

from __future__ import annotations

from collections.abc import Mapping
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

    def digest(self, channel: RequestChannel) -> str:
        """Return the digest by which sites know again what their run began with."""
        values, arrays = self.values, self.arrays
        request = channel.request(AGREEMENT, 0, values=values, arrays=arrays)
        return question_of(request).digest

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


def agreed(channel: RequestChannel, begin: Beginning) -> None:
    """Send all sites what the run begins with; take their flags.

    Raises:
        SiteMissingError: a site did not answer, or refused.
        SiteRefusedError: the ledger of a site lacks what it answered last in this run.
    """
    requests = {}
    for site in range(len(channel.names)):
        last = {LAST: channel.answered[site]} if site in channel.answered else {}
        values = {**begin.values, **last}  # the last answer, where the run is resumed
        requests[site] = channel.request(AGREEMENT, site, values=values, arrays=begin.arrays)
    channel.ask(requests, lambda site, answer: begin.take(channel, site, answer))
    channel.before += 1


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
