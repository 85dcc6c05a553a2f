"""Statements on draws that have the spread of a sandwich, in the place of a method's claims."""

from __future__ import annotations

from consortia.core.target import Target

SAMPLES = "around the mode of the log-posterior, weighted or not, with the spread of a sandwich"
BIAS = (
    "rows have weights of a sample, or are in clusters: no posterior, widths are those of "
    "estimates over samples of independent rows or clusters, from sums of products of scores"
)

MORE_MESSAGES = 2
"""Messages beside the usual ones, as a rule: the search of the mode, and the scores there."""


def claims_in_place(target: Target) -> dict[str, str]:
    """Return the record's claims on the draws, where their spread is a sandwich's."""
    return {"samples": SAMPLES, "bias": BIAS} if target.model.sandwich else {}
