"""Whether a gossip sampler will diverge, asked before it starts."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from consortia import schedules
from consortia.algorithms.gossip_phases import Settings
from consortia.errors import InputError

LARGEST_SYSTEM = 600
"""Rows of the matrix of an iteration up to which its eigenvalues are computed, within a second."""

MOST_NUMBERS = 10_000_000
"""Of the curvatures of all sites, or of all rows where minibatches are drawn."""

ROUNDING = 1e-6
"""A radius of one within single precision: a direction in which an agent has no curvature."""


def reason_against(method: Settings, model: Any, sites: Any, parameters: Any) -> str | None:
    """Why a constant step size diverges, and what to give instead; None without a reason.

    The whole iteration is judged where it is small enough, else the necessary condition of
    `consortia.oracles.step_bounds`, which plain DE-SGLD has.
    """
    from consortia.oracles.gossip_agents import GaussianAgents

    if not isinstance(method.step_size, schedules.Constant):
        return None
    step = method.step_size.value
    dimension = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(parameters))
    copies = 1 + method.corrected + (method.friction is not None)
    whole = copies * len(sites) * dimension <= LARGEST_SYSTEM
    rows = whole and method.batch_size is not None
    each = int(np.max(sites.sizes)) if rows else 1
    if len(sites) * each * dimension**2 > MOST_NUMBERS or not (whole or copies == 1):
        return None
    try:
        agents = GaussianAgents.near(model, sites, parameters, rows=rows)
    except InputError:  # not convex there: this theory has nothing to say
        return None
    return _by_whole(method, step, agents) if whole else _by_bounds(method, step, agents)


def _by_whole(method: Settings, step: float, agents: Any) -> str | None:
    from consortia.oracles.gossip import de_sghmc_law, de_sgld_law
    from consortia.oracles.gossip_stability import largest_stable_step

    options: dict[str, Any] = {
        "correction": method.correction,
        "batch_size": method.batch_size,
        "replace": method.replace,
    }
    if method.friction is None:
        law = de_sgld_law(agents, method.mixing, step_size=step, **options)
    else:
        options["friction"] = method.friction
        law = de_sghmc_law(agents, method.mixing, step_size=step, **options)
    if law.spectral_radius < 1 + ROUNDING and law.mean_square_radius < 1 + ROUNDING:
        return None
    try:
        largest = largest_stable_step(agents, method.mixing, tolerance=1e-2, **options)
        remedy = f"the largest stable step_size is {largest:.3g}."
    except InputError as error:  # no step size is stable, and why
        remedy = str(error)
    return _text(step, law.instability, remedy)


def _by_bounds(method: Settings, step: float, agents: Any) -> str | None:
    from consortia import graphs
    from consortia.oracles.gossip_stability import step_bounds

    if not graphs.resolve(method.mixing, agents.count).symmetric:
        return None
    below, beyond = step_bounds(agents, method.mixing)
    if step <= beyond * (1 + ROUNDING):
        return None
    remedy = f"the largest stable step_size is between {below:.3g} and {beyond:.3g}"
    if method.batch_size is not None:
        remedy = f"no step_size above {beyond:.3g} is stable, and minibatches allow less"
    return _text(step, "the mean grows in every iteration", remedy + ".")


def _text(step: float, why: str, remedy: str) -> str:
    return (
        f"step_size {step:g} is unstable by the curvatures at the start: {why}; {remedy} (Exact "
        "where the posterior is Gaussian, elsewhere a statement on the neighbourhood of the start.)"
    )
