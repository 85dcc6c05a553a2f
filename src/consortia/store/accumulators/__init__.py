"""What is kept of the draws of models that are too large, or runs too long, to keep them all."""

from __future__ import annotations

from typing import Any

from consortia.errors import InputError
from consortia.store.accumulators.kinds import Keep, Kept
from consortia.store.accumulators.moments import keep_moments
from consortia.store.accumulators.predictions import keep_predictions

__all__ = ["Keep", "Kept", "keep_moments", "keep_predictions", "read_keep"]


def read_keep(keep: Any) -> Keep | None:
    """None for all draws; "moments" stands for `keep_moments` with its defaults."""
    if keep == "draws":
        return None
    if keep == "moments":
        return keep_moments()
    if hasattr(keep, "describe") and hasattr(keep, "start"):
        return keep
    raise InputError(
        f"keep is {keep!r}: use 'draws', 'moments', consortia.keep_moments(...) or "
        "consortia.keep_predictions(rows)."
    )
