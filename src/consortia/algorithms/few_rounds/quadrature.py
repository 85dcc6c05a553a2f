"""The rule of quadrature inside the model: measured where the log-densities are.

A query of points wants beside them the errors of rules around its proposals. Where the rule in
use is not fine enough there, the message is sent again, unless a surrogate is all it is for; later
queries keep the first rule that is, and name it by the length of an array. Draws elsewhere, as of
chains, or a rule that is too coarse around the proposals, cost a message of their own: it measures
among the draws. Where the last rule is finer than that of draws before, the
conversation begins again: all batches have one rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.model import Integration
from consortia.core.prior import prior_scale
from consortia.core.queries import Batch, Conversing, Known, Outcome, Query
from consortia.surrogates.local_fits import Law
from consortia.surrogates.quadrature import REACH, TOLERANCE, chosen, is_near, points_among

ELSEWHERE, WIDER = 1.0, 1.5
"""Standard deviations between where the rule was measured and draws, and their ratio, beyond which
it is measured again."""

WITHIN = 0.9
"""Share of the distance to which sites answer that points may be from the prior's centre."""


def with_rule(
    make: Callable[[], Conversing], known: Known, rules: Integration
) -> Generator[Query | Batch, Any, Outcome]:
    """Yield what a conversation does, with a measured rule; its batches have the measurement."""
    nodes, around, report = rules.choices[0], np.zeros(0), None
    conversing, answer, drawn, coarsest = make(), None, False, math.inf
    while True:
        try:
            item = conversing.send(answer)
        except StopIteration as end:
            return end.value
        if isinstance(item, Query):
            if item.function == "slopes" and nodes < rules.default:  # chains are long, go elsewhere
                nodes, report = rules.default, None
            answer = yield _with_nodes(item, nodes, rules)
            while "errors" in answer:
                around, used = item.arrays["measured"], nodes
                nodes, report = chosen(answer["errors"], rules, used)
                exploring = item.purpose == "exploration" and is_near(answer["errors"], rules, used)
                if nodes == used or exploring:
                    break
                answer = yield _with_nodes(item, nodes, rules)
            if item.function == "slopes":  # chains: earlier draws are dropped
                coarsest = math.inf
            elif item.purpose == "draws":
                coarsest = min(coarsest, nodes)
            continue
        if not drawn:
            drawn, flat = True, item.draws.reshape(-1, item.draws.shape[-1])
            law, finer = (flat.mean(axis=0), np.atleast_2d(np.cov(flat.T))), nodes
            if report is None or report["error"] > TOLERANCE or _elsewhere(around, law):
                around = points_to_measure(known, points_among(flat)).astype(known.target.dtype)
                report = None
            while report is None:
                arrays = {"reference": around[0], "points": around, "measured": around}
                query = Query("log_densities", arrays, "quadrature")
                answer = yield _with_nodes(query, finer, rules)
                finer, report = chosen(answer["errors"], rules, finer)
            if finer > min(nodes, coarsest):
                nodes, drawn, answer, coarsest = finer, False, None, math.inf
                conversing.close()
                conversing = make()
                continue
        answer = yield item._replace(report={**item.report, "quadrature": report})


def points_to_measure(known: Known, points: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m d"]:
    """Draw points towards the prior's centre where sites would not answer."""
    scale = prior_scale(known.target, known.start)
    distance = np.maximum(scale.distance(points).max(axis=1, keepdims=True), 1)
    nearer = np.minimum(1, WITHIN * known.farthest / distance)
    return scale.centre + (points - scale.centre) * nearer


def _with_nodes(query: Query, nodes: int, rules: Integration) -> Query:
    """Return a query that names a rule, if it is not the model's own."""
    if nodes == rules.default:
        return query
    rule, completed = np.zeros(nodes, np.int8), query.completed
    if completed is not None:
        completed = {**completed, "rule": rule}
    return query._replace(arrays={**query.arrays, "rule": rule}, completed=completed)


def _elsewhere(around: Float[np.ndarray, "m d"], law: Law) -> bool:
    """Return True if draws are not where the rule was measured."""
    wide, sd = np.diagonal(around[1:] - around[0]) / REACH, np.sqrt(np.diagonal(law[1]))
    apart = np.abs(around[0] - law[0]) / np.minimum(wide, sd)
    return bool((apart > ELSEWHERE).any() or (sd / wide > WIDER).any())
