"""Draws with the spread of a sandwich, for rows with weights of a sample.

After the local fits the mode is sought, and one query asks for the sum of products of scores there,
from which the map of the draws follows; see `consortia.surrogates.sandwich`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from consortia.algorithms.few_rounds.limits import MOST_CURVED
from consortia.core.prior import prior_scale
from consortia.core.queries import Arrays, Batch, Conversing, Known, Outcome, Query
from consortia.errors import InputError
from consortia.surrogates import mode_search as search
from consortia.surrogates.local_fits import guess_of
from consortia.surrogates.sandwich import Adjustment, adjustment

MOST_SEARCHED = 16
"""Messages of the search for the mode."""

LOST = (
    f"few_rounds: the mode of the weighted log-posterior was not found in {MOST_SEARCHED} "
    "messages, so that there is no sandwich: give coefficients tighter priors, or leave terms out "
    "whose coefficients the rows do not know"
)


def with_sandwich(
    make: Callable[[], Conversing], known: Known
) -> Generator[Query | Batch, Any, Outcome]:
    """Yield what a conversation does, its draws moved; its batches have the measured ratios.

    Args:
        make: begins the conversation.
        known: what it knows.

    Raises:
        InputError: there are too many parameters to send a curvature.
    """
    if known.target.dimension > MOST_CURVED:
        raise InputError(
            f"weights_are='sampling', cluster(...): the model has {known.target.dimension} "
            f"parameters; sites send sums of products of scores of at most {MOST_CURVED}. Leave "
            "terms out."
        ).at("weights_are")
    conversing, answer, move = make(), None, None
    while True:
        try:
            item = conversing.send(answer)
        except StopIteration as end:
            return _without_evidence(end.value)
        if isinstance(item, Query):
            answer = yield item
            if item.function == "local_fits" and move is None:
                move = yield from _adjustment(known, item.arrays, answer)
                if move is None:
                    conversing.close()
                    return Outcome("no draws", failure=LOST)
            continue
        assert move is not None
        draws = move.mode + (item.draws - move.mode) @ move.matrix.T
        stats = {name: values for name, values in item.stats.items() if name != "lp"}
        low, high = (float(f"{ratio:.4g}") for ratio in (move.ratios.min(), move.ratios.max()))
        answer = yield Batch(draws, stats, {"sandwich": {"low": low, "high": high}})


def _adjustment(
    known: Known, sent: Arrays, answer: Arrays
) -> Generator[Query, Arrays, Adjustment | None]:
    """Find the mode from the guess of the local fits, and query the products there; or None."""
    target, d = known.target, known.target.dimension
    law = guess_of(answer, sent["reference"])
    start = known.start if law is None else law[0]
    scale = prior_scale(target, known.start)
    bound = search.within(scale.centre, scale.sd)
    asking = search.find_mode(start[None], start, bound, MOST_SEARCHED)
    sums: Any = None
    while True:
        try:
            query = asking.send(sums)
        except StopIteration as end:
            mode: search.Found = end.value
            break
        arrays = {name: np.asarray(array, target.dtype) for name, array in query.arrays.items()}
        sums = yield query._replace(arrays=arrays)
    if not mode.converged:
        return None
    points = mode.position[None].astype(target.dtype)
    products = (yield Query("scores", {"points": points}, "scores"))["products"]
    prior = -target.prior_hessian(points[0])
    root = np.asarray(mode.root, float)
    return adjustment(mode.position, root, search.symmetric(products, d), prior)


def _without_evidence(outcome: Outcome) -> Outcome:
    """Return an outcome without the evidence, which only a likelihood has."""
    kept = {name: entry for name, entry in outcome.report.items() if "log_evidence" not in name}
    return outcome._replace(report=kept)
