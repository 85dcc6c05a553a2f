"""The rule of quadrature inside the model: measured where the log-densities are.

A query of points wants beside them the errors of all rules around its proposals. Where the
rule in use is not fine enough there, the message is sent again with the first that is, which later
queries keep; they name it by the length of an array. Draws that lie elsewhere, as those of chains
may, cost a message of their own. Where the last rule is finer than that of draws before, the
conversation begins again: all batches have one rule.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.model import Integration
from consortia.core.prior import prior_scale
from consortia.core.queries import Arrays, Batch, Conversing, Known, Outcome, Query
from consortia.surrogates.local_fits import Law
from consortia.surrogates.quadrature import REACH, points_around, report_of

ELSEWHERE, WIDER = 1.0, 1.5
"""Standard deviations between where the rule was measured and draws, and their ratio, beyond which
it is measured again."""

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
    conversing, answer, drawn, coarsest = make(), None, False, rules.finest
    while True:
        try:
            item = conversing.send(answer)
        except StopIteration as end:
            return end.value
        if isinstance(item, Query):
            answer = yield _with_nodes(item, nodes, rules)
            while "errors" in answer:
                around, report = item.arrays["measured"], _report(answer, rules, nodes)
                if report["nodes"] == nodes:
                    break
                nodes = report["nodes"]
                answer = yield _with_nodes(item, nodes, rules)
            if item.function == "slopes":  # chains: earlier draws are dropped
                coarsest = rules.finest
            elif item.purpose == "draws":
                coarsest = min(coarsest, nodes)
            continue
        if not drawn:
            drawn, flat = True, item.draws.reshape(-1, item.draws.shape[-1])
            law = flat.mean(axis=0), np.atleast_2d(np.cov(flat.T))
            if around is None or _elsewhere(around, law):
                around = points_to_measure(known, law).astype(known.target.dtype)
                arrays = {"reference": around[0], "points": around, "measured": around}
                answer = yield Query("log_densities", arrays, "quadrature")
                report = _report(answer, rules, nodes)
            if report["nodes"] > min(nodes, coarsest):
                nodes, drawn, answer, coarsest = report["nodes"], False, None, rules.finest
                conversing.close()
                conversing = make()
                continue
        answer = yield item._replace(report={**item.report, "quadrature": report})


def points_to_measure(known: Known, law: Law) -> Float[np.ndarray, "m d"]:
    """Return points around a law, drawn towards the prior's centre where sites would not answer."""
    points, scale = points_around(*law), prior_scale(known.target, known.start)
    distance = np.maximum(scale.distance(points).max(axis=1, keepdims=True), 1)
    nearer = np.minimum(1, WITHIN * known.farthest / distance)
    return scale.centre + (points - scale.centre) * nearer


def _with_nodes(query: Query, nodes: int, rules: Integration) -> Query:
    """Return a query that names a rule, if it is not the first."""
    if nodes == rules.choices[0]:
        return query
    arrays = {**query.arrays, "rule": np.zeros(nodes, np.int8)}
    return query._replace(arrays=arrays, completed=None)


def _report(answer: Arrays, rules: Integration, least: int) -> dict[str, Any]:
    """Return the report on the first rule of so many nodes or more that is fine enough."""
    return report_of(answer["errors"], rules, [one for one in rules.choices if one >= least])


def _elsewhere(around: Float[np.ndarray, "m d"], found: Law) -> bool:
    """Return True if draws are not where the rule was measured."""
    wide, sd = np.diagonal(around[1:] - around[0]) / REACH, np.sqrt(np.diagonal(found[1]))
    apart = np.abs(around[0] - found[0]) / np.minimum(wide, sd)
    return bool((apart > ELSEWHERE).any() or (sd / wide > WIDER).any())
