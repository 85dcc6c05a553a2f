"""The first message of a run: sites agree to it, and say whether its start can be evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from consortia.core.target import Target
from consortia.engines.flower import nonfinite
from consortia.engines.flower.asking import RequestChannel
from consortia.engines.flower.envelope import Envelope, EnvelopeError
from consortia.engines.flower.questions import LAST
from consortia.engines.flower.secure_sums import SUM_KEYS, key_of
from consortia.engines.flower.site import AGREEMENT, KNOWN
from consortia.engines.flower.stages import from_arrays
from consortia.errors import SiteRefusedError

Flags = Mapping[str, np.ndarray]

PUT_BACK = (
    "its ledger lacks the last message that this run has of it: the site's folder was put back "
    "from a backup, or is another one. Let the site put its newest folder back, or begin a new run"
)
"""Reason for the end of a run that is resumed with a site of another past."""


def agreed(
    channel: RequestChannel, begin: Mapping[str, Any], positions: Float[Array, "chains d"]
) -> list[Flags]:
    """Send all sites what the run begins with; return their flags, in the order of the sites.

    Where the run is resumed each site is to have in its ledger what it answered last.

    Raises:
        SiteMissingError: a site did not answer, or refused.
        SiteRefusedError: its ledger lacks that message.
    """
    like = {
        "potential": jax.ShapeDtypeStruct((len(positions),), np.uint8),
        "gradient": jax.ShapeDtypeStruct((len(positions),), bool),
    }

    def read(site: int, answer: Envelope) -> Flags:
        if answer.values.get(KNOWN) is False:
            raise SiteRefusedError((channel.names[site],), reason=PUT_BACK, waited=0.0)
        found = {name: from_arrays(answer.arrays, like[name], name) for name in like}
        if found["potential"].max(initial=0) >= len(nonfinite.VALUES):
            raise EnvelopeError("a flag is none")
        if SUM_KEYS in answer.values:
            channel.sum_keys[channel.names[site]] = key_of(answer.values[SUM_KEYS])
        return found

    arrays = {"positions": np.asarray(positions)}
    sites = range(len(channel.names))
    answers = channel.ask(
        {
            site: channel.request(
                AGREEMENT,
                site,
                values={**begin, LAST: channel.answered[site]}
                if site in channel.answered
                else begin,
                arrays=arrays,
            )
            for site in sites
        },
        read,
    )
    return [answers[site] for site in sites]


def values_of(
    target: Target, positions: Float[Array, "chains d"], flags: list[Flags]
) -> tuple[Any, Any, Any]:
    """Return log-prior (chains,), U_c and whether its gradient is finite, both (nodes, chains).

    Of U_c the sites tell no more than whether it is finite; it is 0 here where it is.
    """
    prior = jax.lax.map(target.log_prior, positions)
    potential = np.stack([np.asarray(nonfinite.VALUES)[one["potential"]] for one in flags])
    return prior, potential, np.stack([one["gradient"] for one in flags])
