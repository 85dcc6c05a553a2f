"""Modes without draws, of chains that begin together: sought on lines to where the prior reaches.

R-hat compares chains that may all be at one mode. Where the rows are in this process, points on
lines from the draws cost no more than a trajectory; from a rise behind a valley climbs start, and a
mode that holds something has to have draws.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.algorithms.few_rounds import few_rounds
from consortia.algorithms.few_rounds.limits import MOST_CURVED
from consortia.core.contract import Fault
from consortia.core.parameters import spaced
from consortia.core.prior import prior_scale
from consortia.core.queries import Query
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.diagnostics.prediction import DISAGREEMENT, FEWEST_DRAWS, MODES_SOUGHT
from consortia.engines.local import LocalEngine
from consortia.engines.panel import Answer
from consortia.runtime.late import jax
from consortia.surrogates import several_modes
from consortia.surrogates.local_fits import disagreement
from consortia.surrogates.mode_search import CANDIDATES, within
from consortia.surrogates.proposals.memory import Memory
from consortia.surrogates.proposals.rays import along_lines, points_of, profile_of

MOST_DRAWS = 20_000
"""Draws that are looked at, evenly spaced."""


def record_of(
    target: Target,
    sites: Sites,
    start: Float[np.ndarray, " d"],
    draws: Float[np.ndarray, "chains draws d"],
) -> dict[str, Any]:
    """Return the record's entries on modes without draws and the sites' differences.

    They are found where one process has all rows, and draws are kept. Nobody asks of fewer draws
    than a good verdict needs.
    """
    flat = draws.reshape(-1, target.dimension)
    if 0 < len(flat) < FEWEST_DRAWS:
        return {}
    seen = len(flat) > 0 and bool(np.isfinite(flat).all())
    # other processes have ended, and answer nothing
    alone = not sites.elsewhere and jax.process_count() == 1
    if not seen or target.dimension > MOST_CURVED or not alone:
        return {MODES_SOUGHT: False}
    ask = LocalEngine().panel(target, sites, few_rounds()).ask
    faults = unvisited_modes(target, ask, start, flat)
    record: dict[str, Any] = {MODES_SOUGHT: True, "faults": [fault._asdict() for fault in faults]}
    centre = np.median(flat, axis=0).astype(target.dtype)
    share = np.array(1 / len(sites), target.dtype)
    arrays = {"reference": centre, "starts": centre[None], "share": share}
    if apart := disagreement(ask(Query("local_fits", arrays, "local fits")), sites.sizes):
        record[DISAGREEMENT] = apart
    return record


def unvisited_modes(
    target: Target,
    ask: Callable[[Query], Answer],
    start: Float[np.ndarray, " d"],
    draws: Float[np.ndarray, "n d"],
) -> tuple[Fault, ...]:
    """Describe the modes that the draws of a run have not visited.

    Args:
        target: the posterior.
        ask: answers of all sites together.
        start: of the chains, where the prior's scale is taken.
        draws: of the run.
    """
    draws = draws[spaced(len(draws), MOST_DRAWS)]
    scale, rng = prior_scale(target, start), np.random.default_rng(0)
    middle = np.median(draws, axis=0)
    centre = draws[np.argmin(scale.distance(draws, middle).max(axis=1))]
    lines = several_modes.lines_to_prior(centre, scale, rng)
    typed = partial(np.asarray, dtype=target.dtype)
    arrays = {"reference": typed(centre), "points": typed(points_of(lines, centre))}
    heights = -ask(Query("log_densities", arrays, "modes"))["potentials"]
    profiles = [profile_of(*pair) for pair in along_lines(lines, heights)]
    rises = several_modes.rises(profiles, centre)
    if not rises:
        return ()
    starts = np.stack([centre, *rises])[:CANDIDATES]
    climbing, answer = several_modes.climb(starts, centre, within(*scale)), None
    while True:
        try:
            query = climbing.send(answer)  # type: ignore[arg-type]
        except StopIteration as end:
            modes = several_modes.distinct(end.value)
            break
        arrays = {name: typed(values) for name, values in query.arrays.items()}
        answer = ask(query._replace(arrays=arrays))
    return several_modes.unseen(modes, [], Memory(draws[:0]), draws)
