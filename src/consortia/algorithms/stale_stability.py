"""Whether a sampler with stale gradients will diverge, asked before it starts."""

from __future__ import annotations

from typing import Any

from consortia import schedules
from consortia.algorithms.stale_phases import Settings
from consortia.dynamics.langevin import Langevin
from consortia.dynamics.stochastic_gradient_hmc import EulerHMC
from consortia.errors import InputError
from consortia.theory.estimates import largest_curvature

CERTAIN = 2.0
"""A step so many times the limit is refused; below, the user is warned: elsewhere than at the start
the curvature may be smaller."""

TOLERANCE = 1e-3
"""Relative change of the curvature at which its search ends."""


def reason_against(method: Settings, model: Any, sites: Any, parameters: Any) -> str | None:
    """Why the chain diverges by the curvature at the start; None when it settles.

    None too where the step size varies or the potential is flat there. With workers that take
    turns the staleness is W − 1; other latencies have the same average.

    Raises:
        InputError: the step is far beyond the limit.
    """
    steps = [s.value for s in method.step_sizes if isinstance(s, schedules.Constant)]
    if not steps:
        return None
    step = max(steps)
    curvature = largest_curvature(model, sites, parameters, tolerance=TOLERANCE)
    late = method.workers - 1
    if method.max_staleness is not None:
        late = min(late, method.max_staleness)
    if not 0 < curvature < float("inf") or _settles(method, step, curvature, late):
        return None
    limit = _limit(method, step, curvature, late)
    text = (
        f"step_size {step:g} diverges: by the curvature at the start, {curvature:.4g}, and with "
        f"staleness {late} on average the largest stable step_size is {limit:.3g}. Lower "
        "step_size, take fewer workers, or start where the posterior is less curved."
    )
    if step >= CERTAIN * limit:
        raise InputError(text)
    return text


def _settles(method: Settings, step: float, curvature: float, late: int) -> bool:
    """Whether the linear recursion on a Gaussian target of this precision is stable."""
    from consortia.theory.staleness import stale_stability_limit
    from consortia.theory.staleness_momentum import sghmc_server, stale_server_radius

    dynamics: Any = method.dynamics
    if isinstance(dynamics, Langevin):
        return step * curvature < stale_stability_limit(late)
    integrator = "euler" if isinstance(dynamics, EulerHMC) else "splitting"
    server = sghmc_server(
        step, dynamics.friction, integrator=integrator, extrapolate=method.extrapolate
    )
    return stale_server_radius(server, curvature, late) < 1


def _limit(method: Settings, step: float, curvature: float, late: int) -> float:
    """The largest stable step below one that is not, to a thousandth, by bisection."""
    low, high = 0.0, step
    while high - low > 1e-3 * high and high > 1e-12 * step:
        middle = (low + high) / 2 if low else high / 2
        if _settles(method, middle, curvature, late):
            low = middle
        else:
            high = middle
    return low
