"""Predicted divergence: a constant step size against the curvatures at a run's start.

What is said is exact where the posterior is Gaussian and the start does not matter; elsewhere it is
a statement on the neighbourhood of the start. A method of one's own joins in by
``predict_divergence.register``.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any

import jax
import numpy as np

from consortia import graphs, schedules
from consortia.algorithms.decentralized_hmc import DecentralizedHMC
from consortia.algorithms.gossip_method import Gossip
from consortia.algorithms.stale import StaleGradients
from consortia.core.contract import Method
from consortia.core.model import Model
from consortia.data.sites import Sites
from consortia.dynamics.langevin import Langevin
from consortia.dynamics.stochastic_gradient_hmc import EulerHMC
from consortia.errors import InputError
from consortia.theory.estimates import largest_curvature
from consortia.theory.gossip import de_sghmc_law, de_sgld_law
from consortia.theory.gossip_agents import GaussianAgents
from consortia.theory.gossip_stability import largest_stable_step, mean_limit, step_bounds
from consortia.theory.staleness import stale_stability_limit
from consortia.theory.staleness_momentum import sghmc_server, stale_server_radius

PyTree = Any

MOST_COORDINATES = 1000
"""Agents times parameters up to which the mean's limit is computed, in some tenths of a second."""

LARGEST_SYSTEM = 600
"""Rows of an iteration's matrix up to which its modes are computed, in about a second."""

MOST_CURVATURES = 2_000_000
"""Entries of the Hessians of all sites, or of all rows where minibatches are drawn."""

MOST_OPERATIONS = 2_000_000_000
"""Rows times squared parameters, about a second of work."""

ROUNDING = 1e-6
"""A radius of one within single precision: a direction in which an agent has no curvature."""

REFUSED_BEYOND = 2.0
"""A step of a stale sampler this many times the limit is refused; below, the user is warned:
elsewhere than at the start the curvature may be smaller."""

CURVATURE_TOLERANCE = 1e-3
"""Relative change of the largest curvature at which its search ends."""


@singledispatch
def predict_divergence(
    method: Method, model: Model, sites: Sites, parameters: PyTree
) -> str | None:
    """Return why a method diverges and which step size does not; None without a reason.

    By the curvatures of the sites' potentials at a point, which decide for Gaussian ones. None too
    where nothing is known: a step size that varies, a network that changes, potentials that are
    not convex, a method without a stability limit.

    Args:
        method: what `consortia.de_sgld` or another factory returns.
        model: the model.
        sites: the data, all rows in this process.
        parameters: the point, like the model's parameters.

    Raises:
        InputError: the step size of a method with stale gradients is far beyond its limit.
    """
    return None


def has_prediction(method: Method) -> bool:
    """Return True if `predict_divergence` knows a stability limit for this kind of method."""
    return predict_divergence.dispatch(type(method)) is not predict_divergence.dispatch(object)


def _dimension(parameters: PyTree) -> int:
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(parameters))


# --- gossip --------------------------------------------------------------------------------------


@predict_divergence.register
def _of_gossip(method: Gossip, model: Model, sites: Sites, parameters: PyTree) -> str | None:
    """Judge by all modes of an iteration; by the mean alone where the network is too large."""
    if isinstance(method.mixing, graphs.MixingSchedule):
        return None
    if not isinstance(method.step_size, schedules.Constant):
        return None
    dimension = _dimension(parameters)
    coordinates = len(sites) * dimension
    copies = 1 + method.corrected + (method.friction is not None)
    small = copies * coordinates <= LARGEST_SYSTEM
    each = int(np.max(sites.sizes)) * dimension
    rows = small and method.batch_size is not None and coordinates * each <= MOST_CURVATURES
    if coordinates * dimension > MOST_CURVATURES or sites.rows * dimension**2 > MOST_OPERATIONS:
        return None
    try:
        agents = GaussianAgents.near(model, sites, parameters, rows=rows)
    except InputError:  # not convex there: this theory has nothing to say
        return None
    step = method.step_size.value
    by_modes = rows or copies == 3
    if copies < 3 and graphs.resolve(method.mixing, agents.count).symmetric:
        found = _by_the_mean(method, step, agents, exactly=coordinates <= MOST_COORDINATES)
        if found or not by_modes:
            return found
    return _by_modes(method, step, agents) if small else None


def _by_the_mean(
    method: Gossip, step: float, agents: GaussianAgents, *, exactly: bool
) -> str | None:
    """Judge by the closed forms for exact gradients; minibatches may allow less."""
    options: dict[str, Any] = {"friction": method.friction, "correction": method.correction}
    below, beyond = step_bounds(agents, method.mixing, **options)
    if step < below:
        return None
    text, limit = f"between {below:.3g} and {beyond:.3g}", beyond
    if exactly:
        try:
            limit = mean_limit(agents, method.mixing, **options) or beyond
        except InputError as error:  # no step size is stable, and why
            return _unstable(step, str(error))
        text = f"{limit:.3g}"
    if step < limit * (1 + ROUNDING):
        return None
    more = "" if method.batch_size is None else ", and minibatches allow less"
    return _unstable(step, f"the largest stable step_size is {text}{more}.")


def _by_modes(method: Gossip, step: float, agents: GaussianAgents) -> str | None:
    """Judge by all modes of the iteration, minibatch noise included."""
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
        return _unstable(step, f"{law.instability}; {error}")
    return _unstable(step, f"{law.instability}; the largest stable step_size is {largest:.3g}.")


def _unstable(step: float, why: str) -> str:
    return (
        f"step_size {step:g} is unstable by the curvatures at the start: {why} (Exact where the "
        "posterior is Gaussian, elsewhere a statement on the neighbourhood of the start.)"
    )


# --- decentralized HMC ---------------------------------------------------------------------------


@predict_divergence.register
def _of_tracked_gradients(
    method: DecentralizedHMC, model: Model, sites: Sites, parameters: PyTree
) -> str | None:
    """Judge by the largest curvature of the sum; where proposals are tested, acceptance tells."""
    if not isinstance(method.step_size, schedules.Constant):
        return None
    dimension = _dimension(parameters)
    entries, operations = len(sites) * dimension**2, sites.rows * dimension**2
    if entries > MOST_CURVATURES or operations > MOST_OPERATIONS:
        return None
    try:
        agents = GaussianAgents.near(model, sites, parameters, rows=False)
    except InputError:  # not convex there: nothing can be said
        return None
    steepest = float(np.linalg.eigvalsh(agents.curvatures.sum(axis=0))[-1])
    # A step along λ multiplies by 1 − ε²λ/(2m), with twice the drift when published.
    limit = math.sqrt((2 if method.published else 4) * len(sites) / steepest)
    if method.step_size.value < limit:
        return None
    return (
        f"step_size {method.step_size.value:g} is unstable by the curvatures at the start: give "
        f"less than {limit:.3g}. (Exact where the posterior is Gaussian and the agents agree.)"
    )


# --- stale gradients -----------------------------------------------------------------------------


@predict_divergence.register
def _of_stale_gradients(
    method: StaleGradients, model: Model, sites: Sites, parameters: PyTree
) -> str | None:
    """Judge by the largest curvature and the average staleness, that of workers in turn."""
    steps = [s.value for s in method.step_schedules if isinstance(s, schedules.Constant)]
    if not steps:
        return None
    step = max(steps)
    curvature = largest_curvature(model, sites, parameters, tolerance=CURVATURE_TOLERANCE)
    staleness = method.workers - 1
    if method.max_staleness is not None:
        staleness = min(staleness, method.max_staleness)
    if not 0 < curvature < float("inf") or _settles(method, step, curvature, staleness):
        return None
    limit = _largest_settling(method, step, curvature, staleness)
    text = (
        f"step_size {step:g} diverges: by the curvature at the start, {curvature:.4g}, and with "
        f"staleness {staleness} on average the largest stable step_size is {limit:.3g}. Lower "
        "step_size, take fewer workers, or start where the posterior is less curved."
    )
    if step >= REFUSED_BEYOND * limit:
        raise InputError(text)
    return text


def _settles(method: StaleGradients, step: float, curvature: float, staleness: int) -> bool:
    """Return True if the linear recursion on a Gaussian target of this precision is stable."""
    dynamics: Any = method.dynamics
    if isinstance(dynamics, Langevin):
        return step * curvature < stale_stability_limit(staleness)
    integrator = "euler" if isinstance(dynamics, EulerHMC) else "splitting"
    server = sghmc_server(
        step, dynamics.friction, integrator=integrator, extrapolate=method.steps_ahead
    )
    return stale_server_radius(server, curvature, staleness) < 1


def _largest_settling(
    method: StaleGradients, step: float, curvature: float, staleness: int
) -> float:
    """Return the largest stable step below one that is not, to a thousandth, by bisection."""
    low, high = 0.0, step
    while high - low > 1e-3 * high and high > 1e-12 * step:
        middle = (low + high) / 2 if low else high / 2
        if _settles(method, middle, curvature, staleness):
            low = middle
        else:
            high = middle
    return low
