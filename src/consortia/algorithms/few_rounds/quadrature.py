"""The rule of quadrature inside the model: chosen after the local fits, and measured.

One query asks for the errors of all rules around the guess that the local fits give. The first rule
that is fine enough there is that of all later queries, which name it by the length of an array.
Where the first draws lie elsewhere, one more query measures around them; if a finer rule is needed
there, the conversation begins again with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.model import Integration
from consortia.core.prior import prior_scale
from consortia.core.queries import Arrays, Batch, Conversing, Known, Outcome, Query
from consortia.surrogates.local_fits import Law, guess_of
from consortia.surrogates.quadrature import points_around, report_of

ELSEWHERE, WIDER = 1.0, 1.5
"""Standard deviations between guess and draws, and their ratio, beyond which the rule is measured
again."""

WITHIN = 0.9
"""Share of the distance to which sites answer that points may be from the prior's centre."""


def with_rule(
    make: Callable[[], Conversing], known: Known, rules: Integration
) -> Generator[Query | Batch, Any, Outcome]:
    """Yield what a conversation does, with a measured rule; its batches have the measurement.

    Args:
        make: begins the conversation.
        known: what it knows.
        rules: those of the model.
    """
    nodes, around, report = rules.choices[0], None, dict[str, Any]()
    conversing, answer, drawn = make(), None, False
    while True:
        try:
            item = conversing.send(answer)
        except StopIteration as end:
            return end.value
        if isinstance(item, Query):
            sent = item.arrays
            if nodes != rules.choices[0]:
                sent = {**sent, "rule": np.zeros(nodes, np.int8)}
            answer = yield item._replace(arrays=sent, completed=None)
            if item.function == "local_fits" and around is None:
                around = guess_of(answer, item.arrays["reference"])
                if around is not None:
                    report = yield from _measured(known, rules, around)
                    nodes = report["nodes"]
            continue
        if not drawn:
            drawn, found = True, _law_of(item.draws)
            if around is None or _elsewhere(around, found):
                around = found
                report = yield from _measured(known, rules, found, nodes)
                if report["nodes"] > nodes:
                    nodes, drawn, answer = report["nodes"], False, None
                    conversing.close()
                    conversing = make()
                    continue
        answer = yield item._replace(report={**item.report, "quadrature": report})


def _law_of(draws: Float[np.ndarray, "chains draws d"]) -> Law:
    """Return mean and covariance of draws."""
    flat = draws.reshape(-1, draws.shape[-1])
    return flat.mean(axis=0), np.atleast_2d(np.cov(flat.T))


def _measured(
    known: Known, rules: Integration, around: Law, least: int = 0
) -> Generator[Query, Arrays, dict[str, Any]]:
    """Ask for the errors of all rules; return the report on the first that is fine enough.

    Args:
        known: the posterior.
        rules: those of its likelihood.
        around: mean and covariance.
        least: nodes that the rule has at least.
    """
    points = _within(known, points_around(*around)).astype(known.target.dtype)
    answer = yield Query("quadrature", {"points": points}, "quadrature")
    return report_of(answer["errors"], rules, [one for one in rules.choices if one >= least])


def _within(known: Known, points: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m d"]:
    """Return the points, drawn towards the prior's centre where sites would not answer."""
    scale = prior_scale(known.target, known.start)
    most = WITHIN * known.farthest
    distance = scale.distance(points).max(axis=1, keepdims=True)
    if not np.isfinite(most):
        return points
    return scale.centre + (points - scale.centre) * np.minimum(1, most / distance)


def _elsewhere(guess: Law, found: Law) -> bool:
    """Return True if draws are not where the rule was measured."""
    wide, sd = (np.sqrt(np.diagonal(one[1])) for one in (guess, found))
    apart = np.abs(guess[0] - found[0]) / np.minimum(wide, sd)
    return bool((apart > ELSEWHERE).any() or (sd / wide > WIDER).any())
