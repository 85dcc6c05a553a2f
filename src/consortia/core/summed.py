"""Algorithms of whose messages a server needs the sums over the sites, and nothing of one site."""

from __future__ import annotations

from consortia.core.contract import Algorithm, Mean, Sum

AVERAGED = (
    "its server averages positions to which the sites have moved by themselves, compares each with "
    "the others, and may continue without a site"
)
ONE_SITE = "its messages come from one site at a time"
GATHERED = "its server gathers what each site has computed for itself"


def unsummed(algorithm: Algorithm) -> str | None:
    """Find what makes a server need messages of single sites; None where sums are enough.

    They are where each message is a `Sum`, or an average of what was not computed from rows.
    """
    for phase in (*algorithm.fit, *algorithm.setup, *algorithm.phases):
        if phase.local is None or isinstance(phase.exchange, Sum):
            continue
        if not isinstance(phase.exchange, Mean):
            return ONE_SITE
        if phase.evaluation is not None:
            return AVERAGED
    return GATHERED if algorithm.fit else None
