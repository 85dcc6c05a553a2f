"""Whether a gossip sampler will diverge, asked before it starts."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from consortia import graphs, schedules
from consortia.algorithms.gossip_phases import Settings
from consortia.errors import InputError

MOST_COORDINATES = 1000
"""Agents times parameters up to which the mean's limit is computed, in some tenths of a second."""

LARGEST_SYSTEM = 600
"""Rows of an iteration's matrix up to which its modes are computed, in about a second."""

MOST_NUMBERS = 2_000_000
"""Of the curvatures of all sites, or of all rows where minibatches are drawn."""

MOST_PRODUCTS = 2_000_000_000
"""Rows times squared parameters, about a second of work."""

ROUNDING = 1e-6
"""A radius of one within single precision: a direction in which an agent has no curvature."""


def reason_against(method: Settings, model: Any, sites: Any, parameters: Any) -> str | None:
    """Why a constant step size diverges, and what to give instead; None without a reason.

    Where the network is too large for its modes, what can be said of the mean is said.
    """
    from consortia.theory.gossip_agents import GaussianAgents

    if not isinstance(method.step_size, schedules.Constant):
        return None
    dimension = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(parameters))
    coordinates = len(sites) * dimension
    copies = 1 + method.corrected + (method.friction is not None)
    small = copies * coordinates <= LARGEST_SYSTEM
    each = int(np.max(sites.sizes)) * dimension
    rows = small and method.batch_size is not None and coordinates * each <= MOST_NUMBERS
    if coordinates * dimension > MOST_NUMBERS or sites.rows * dimension**2 > MOST_PRODUCTS:
        return None
    try:
        agents = GaussianAgents.near(model, sites, parameters, rows=rows)
    except InputError:  # not convex there: this theory has nothing to say
        return None
    step = method.step_size.value
    by_modes = rows or copies == 3
    if copies < 3 and graphs.resolve(method.mixing, agents.count).symmetric:
        found = _of_the_mean(method, step, agents, exactly=coordinates <= MOST_COORDINATES)
        if found or not by_modes:
            return found
    return _of_modes(method, step, agents) if small else None


def _of_the_mean(method: Settings, step: float, agents: Any, *, exactly: bool) -> str | None:
    """What the closed forms say against the step; minibatches may say more."""
    from consortia.theory.gossip_stability import mean_limit, step_bounds

    options: dict[str, Any] = {"friction": method.friction, "correction": method.correction}
    below, beyond = step_bounds(agents, method.mixing, **options)
    if step < below:
        return None
    text, limit = f"between {below:.3g} and {beyond:.3g}", beyond
    if exactly:
        try:
            limit = mean_limit(agents, method.mixing, **options) or beyond
        except InputError as error:  # no step size is stable, and why
            return _text(step, str(error))
        text = f"{limit:.3g}"
    if step < limit * (1 + ROUNDING):
        return None
    more = "" if method.batch_size is None else ", and minibatches allow less"
    return _text(step, f"the largest stable step_size is {text}{more}.")


def _of_modes(method: Settings, step: float, agents: Any) -> str | None:
    """What all modes of the iteration say against the step, minibatch noise included."""
    from consortia.theory.gossip import de_sghmc_law, de_sgld_law
    from consortia.theory.gossip_stability import largest_stable_step

    options: dict[str, Any] = {"correction": method.correction}
    if agents.rows is not None:
        options |= {"batch_size": method.batch_size, "replace": method.replace}
    if method.friction is None:
        law = de_sgld_law(agents, method.mixing, step_size=step, **options)
    else:
        options["friction"] = method.friction
        law = de_sghmc_law(agents, method.mixing, step_size=step, **options)
    if law.stable or 1.0 <= law.spectral_radius < 1.0 + ROUNDING:
        return None
    try:
        largest = largest_stable_step(agents, method.mixing, tolerance=1e-2, **options)
    except InputError as error:  # no step size is stable, and why
        return _text(step, f"{law.instability}; {error}")
    return _text(step, f"{law.instability}; the largest stable step_size is {largest:.3g}.")


def _text(step: float, why: str) -> str:
    return (
        f"step_size {step:g} is unstable by the curvatures at the start: {why} (Exact where the "
        "posterior is Gaussian, elsewhere a statement on the neighbourhood of the start.)"
    )
