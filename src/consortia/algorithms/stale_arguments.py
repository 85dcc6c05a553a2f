"""Arguments of the samplers with stale gradients: read, checked, made into values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from consortia import schedules
from consortia.algorithms.stale_method import StaleGradients
from consortia.core import arguments
from consortia.errors import InputError
from consortia.latency import lognormal
from consortia.schedules import Schedule


def method_of(
    name: str,
    step_size: Any,
    batch_size: Any,
    dynamics: Any,
    ahead: float,
    *,
    workers: int,
    servers: int = 1,
    max_staleness: int | None = None,
    latency: Any = None,
    replace: bool = True,
    shares: Any = None,
    aggregate: str = "each",
    weighting: str = "time",
) -> StaleGradients:
    """The checked arguments that all methods have, and what they differ in."""
    for argument, value, allowed in (
        ("aggregate", aggregate, ("each", "latest")),
        ("weighting", weighting, ("time", "equal")),
    ):
        if value not in allowed:
            raise InputError(f"{argument} is {value!r}: use {allowed[0]!r} or {allowed[1]!r}.")
    if latency is not None and not hasattr(latency, "durations"):
        raise InputError(f"latency is {latency!r}: give a model of consortia.latency.")
    servers = arguments.whole("servers", servers, 1)
    steps = step_sizes(step_size, servers)
    varying = not all(isinstance(schedule, schedules.Constant) for schedule in steps)
    if weighting == "equal" and len(steps) > 1 and varying:
        raise InputError(
            "weighting='equal' needs step sizes that are constant at each server: within a server "
            "draws are weighted by the step, and its sum over the run is not known beforehand."
        )
    return StaleGradients(
        name=name,
        step_sizes=steps,
        dynamics=dynamics,
        batch_size=arguments.optional_whole("batch_size", batch_size, 1),
        replace=bool(replace),
        workers=arguments.whole("workers", workers, 1),
        servers=servers,
        max_staleness=arguments.optional_whole("max_staleness", max_staleness, 0),
        latency=lognormal() if latency is None else latency,
        extrapolate=ahead,
        given_shares=read_shares(shares),
        aggregate=aggregate,
        weighting=weighting,
    )


def step_sizes(step_size: Any, servers: int) -> tuple[Schedule, ...]:
    """A list or tuple is one step size for each of several servers, else an array over updates."""
    if servers == 1 or not isinstance(step_size, (list, tuple)):
        return (schedules.as_schedule(step_size),)
    if len(step_size) != servers:
        raise InputError(
            f"step_size has {len(step_size)} values for servers={servers}: give one number, or a "
            "list with one for each server (values over updates go into a NumPy array)."
        )
    each = tuple(schedules.as_schedule(value) for value in step_size)
    return each[:1] if len(set(each)) == 1 else each


def largest_step(schedule: Schedule) -> float:
    """The largest step size where it is known beforehand, else 0."""
    if isinstance(schedule, schedules.Constant):
        return schedule.value
    if isinstance(schedule, schedules.Tabulated):
        return max(schedule.values)
    if isinstance(schedule, (schedules.Polynomial, schedules.Stages)):
        return schedule.initial
    return 0.0


def positive_friction(friction: Any) -> float:
    """B > 0."""
    value = arguments.number("friction", friction, 0.0, math.inf)
    if value == 0:
        raise InputError("friction is 0: it must be positive.")
    return value


def read_temperature(temperature: Any) -> float:
    """T ≥ 0."""
    return arguments.number("temperature", temperature, 0.0, math.inf)


def steps_ahead(extrapolate: Any, workers: Any) -> float:
    """How many steps a broadcast looks ahead; W − 1 for True."""
    if isinstance(extrapolate, bool):
        return float(arguments.whole("workers", workers, 1) - 1) if extrapolate else 0.0
    return arguments.number("extrapolate", extrapolate, 0.0, math.inf)


def noise_variance(subtract_noise: Any) -> float | tuple[float, ...]:
    """V, 0 for False."""
    if subtract_noise is False or subtract_noise is None:
        return 0.0
    if subtract_noise is True:
        raise InputError(
            "subtract_noise is True: give V, the variance of the gradient's noise per coordinate, "
            "a number or an array; consortia.gradient_noise_variance estimates it at a point."
        )
    try:
        values = np.asarray(subtract_noise, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"subtract_noise must be variances, not {subtract_noise!r}.") from None
    if values.ndim > 1 or not values.size or not np.all(np.isfinite(values) & (values >= 0)):
        raise InputError(
            f"subtract_noise is {subtract_noise!r}: give one variance, or one for each parameter, "
            "finite and not negative."
        )
    return float(values) if values.ndim == 0 else tuple(values.tolist())


def read_shares(shares: Any) -> tuple[float, ...] | None:
    """f_c, or None."""
    try:
        return arguments.site_weights(shares)
    except InputError as error:
        raise InputError(
            str(error).replace("weights", "shares").replace("weight", "share")
        ) from None
