r"""Asynchronous samplers with stale gradients: a parameter server and its workers.

A worker computes a gradient at the parameters that it last fetched and sends it; the server does
one step with it and answers that worker alone. By the time a gradient arrives the server has done
τ other updates:

.. math:: \theta_{l+1} = \text{step}\bigl(\theta_l, \; g(\hat\theta_{l-\tau_l})\bigr)

with θ̂ what the server broadcast then. With W workers τ is W − 1 on average, whatever their speeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from consortia.algorithms import stale_arguments as arguments
from consortia.algorithms.stale_method import StaleGradients
from consortia.dynamics.langevin import Langevin
from consortia.dynamics.splitting import SplittingHMC
from consortia.dynamics.stochastic_gradient_hmc import EulerHMC
from consortia.dynamics.thermostat import Thermostat
from consortia.errors import InputError


def stale_sgld(
    step_size: Any,
    batch_size: int | None = None,
    *,
    workers: int,
    servers: int = 1,
    max_staleness: int | None = None,
    latency: Any = None,
    temperature: float = 1.0,
    replace: bool = True,
    shares: Any = None,
    aggregate: str = "each",
    weighting: str = "time",
) -> StaleGradients:
    r"""Stochastic gradient Langevin dynamics with stale gradients (S²G-SGLD).

    .. math:: \theta_{l+1} = \theta_l - h g(\theta_{l-\tau_l}) + \sqrt{2hT}\,\zeta

    **Samples** a law near exp(−U/T), and one that is too wide: on a Gaussian target of precision λ
    the variance is too large by the factor 1 + hλ(τ + ½) to leading order in hλ, and minibatches
    add to it. `consortia.oracles.stale_sgld_variance` gives it exactly, and the limit beyond which
    the chain diverges, hλ = 2 sin(π/(4τ + 2)). More workers give more updates in the same time and
    so less variance of an estimate; its bias they raise in proportion to W − 1.

    **Draw**: θ after each accepted update. Each server is a chain of its own.

    **Step size**: h, drift h, noise variance 2h: h' = h.

    Args:
        step_size: h > 0: a number, an array over updates (warm-up included) or a function of the
            update's index; with several servers also a list or tuple of one of these for each.
        batch_size: rows a gradient; None takes all rows that the worker sees.
        workers: W, workers per server. With one site all of them draw from it; with W sites worker
            c holds site c and sends ∇U_c/f_c, f_c being its share of the accepted updates.
        servers: S independent servers with W workers each.
        max_staleness: gradients with a larger τ are dropped: the server's state and count stay and
            the worker fetches anew. A slow site is then heard less often, or not at all, in which
            case the run is refused. None keeps every gradient.
        latency: durations of tasks in simulated time, or a recorded trace, see
            `consortia.latency`; log-normal when None.
        temperature: T ≥ 0, factor of the noise's variance.
        replace: minibatches with replacement; without costs more and bounds their size.
        shares: f_c, positive and summing to one, where workers are real processes; when None they
            are counted in the simulated trace, after the warm-up.
        aggregate: ``"each"``: every gradient by itself, divided by f_c. ``"latest"``: the sum of
            the last gradient of every site (zero before the first), which needs no shares.
        weighting: of the servers' estimates, ``"time"`` (Σh) or ``"equal"``.

    Returns:
        A value that `consortia.sample` takes; equal arguments give equal values.

    Raises:
        InputError: an argument is out of its range.

    Source: Chen, Ding, Li, Zhang, Carin, "Stochastic gradient MCMC with stale gradients" (2016),
    sections 3 and 4; sites with data of their own are an addition.
    """
    return arguments.method_of(
        "stale_sgld",
        step_size,
        batch_size,
        Langevin(arguments.read_temperature(temperature)),
        0.0,
        workers=workers,
        servers=servers,
        max_staleness=max_staleness,
        latency=latency,
        replace=replace,
        shares=shares,
        aggregate=aggregate,
        weighting=weighting,
    )


def stale_sghmc(
    step_size: Any,
    friction: float,
    batch_size: int | None = None,
    *,
    workers: int,
    integrator: str = "euler",
    extrapolate: bool | float = False,
    subtract_noise: Any = False,
    temperature: float = 1.0,
    **options: Any,
) -> StaleGradients:
    r"""Stochastic gradient Hamiltonian Monte Carlo with stale gradients (S²G-SGHMC).

    .. math:: q' = (1 - Bh)\,q - h g + \sqrt{2BhT}\,\zeta, \qquad \theta' = \theta + h q'

    or its symmetric splitting, in which the server broadcasts θ + hq/2, the point at which the next
    step wants its gradient.

    **Samples** a law near exp(−U/T). With exact and fresh gradients the variance on a Gaussian
    target is off by O(h²), about six times less with the splitting; stale gradients add a relative
    error of λτh/B, minibatches of variance V one of hV/(2B). ``extrapolate`` removes most of the
    former on Gaussian targets (on stiff, non-convex ones it may do harm), ``subtract_noise`` the
    latter. `consortia.oracles.stale_sghmc_law` gives all of it exactly.

    **Draw**: θ after each accepted update (after its last half drift), not what was broadcast.

    **Step size**: h, a step in time: noise of q 2Bh, and θ moves by h q'.

    Args:
        step_size: h > 0, as in `stale_sgld`.
        friction: B > 0 per unit of time; Euler's step wants Bh ≤ 1. A momentum factor m as in
            optimisers is 1 − Bh.
        batch_size: as in `stale_sgld`.
        workers: as in `stale_sgld`.
        integrator: ``"euler"`` or ``"splitting"``.
        extrapolate: broadcast the point moved on by (W − 1) h q, where the server will be when the
            gradient arrives; a number moves it by so many steps instead of W − 1.
        subtract_noise: V, the variance per coordinate of the gradient's noise (of ∇U in full
            scale), a number or an array (d,): 2BhT − h²V is injected in place of 2BhT.
        temperature: T, as in `stale_sgld`.
        **options: ``servers``, ``max_staleness``, ``latency``, ``replace``, ``shares``,
            ``aggregate``, ``weighting`` as in `stale_sgld`.

    Returns:
        A value that `consortia.sample` takes.

    Raises:
        InputError: an argument is out of its range, or hV > 2BT.

    Source: Chen et al. (2016), algorithm 1; the splitting of Chen, Ding, Carin (2015).
    """
    B, T = arguments.positive_friction(friction), arguments.read_temperature(temperature)
    if integrator not in ("euler", "splitting"):
        raise InputError(f"integrator is {integrator!r}: use 'euler' or 'splitting'.")
    variance = arguments.noise_variance(subtract_noise)
    kind = EulerHMC if integrator == "euler" else SplittingHMC
    method = arguments.method_of(
        "stale_sghmc",
        step_size,
        batch_size,
        kind(B, T, variance),
        arguments.steps_ahead(extrapolate, workers),
        workers=workers,
        **options,
    )
    for schedule in method.step_sizes:
        largest = arguments.largest_step(schedule)
        if integrator == "euler" and largest * B > 1:
            raise InputError(
                f"friction * step_size is {largest * B:g}: it must be at most 1 with "
                "integrator='euler', or momenta change their sign in every step."
            )
        if largest * np.max(variance) > 2 * B * T:
            raise InputError(
                f"subtract_noise: step_size * V is {largest * np.max(variance):.4g}, more than "
                f"2 * friction * temperature = {2 * B * T:.4g}: the gradient's own noise is "
                "already too much; lower step_size, or raise friction or batch_size."
            )
    return method


def stale_sgnht(
    step_size: Any,
    friction: float,
    batch_size: int | None = None,
    *,
    workers: int,
    thermostat: str = "scalar",
    extrapolate: bool | float = False,
    temperature: float = 1.0,
    **options: Any,
) -> StaleGradients:
    r"""The stochastic gradient Nosé–Hoover thermostat with stale gradients (S²G-SGNHT).

    The friction ξ of `stale_sghmc` becomes a variable that rises while the momenta are too hot,
    :math:`\dot\xi = q\cdot q/d - T`, and so takes up noise of unknown variance; element-wise,
    :math:`\dot\xi_i = q_i^2 - T`, it also takes up most of what staleness adds to each coordinate.

    **Samples** a law near exp(−U/T) whose momentum has the right temperature; what is left of the
    bias has no closed form.

    **Draw**: θ after each accepted update. **Step size**: h, as in `stale_sghmc`; the splitting is
    symmetric and the server broadcasts θ + hq/2.

    Args:
        step_size: h > 0, as in `stale_sgld`.
        friction: D > 0, the strength of the injected noise and the start of ξ.
        batch_size: as in `stale_sgld`.
        workers: as in `stale_sgld`.
        thermostat: ``"scalar"`` or ``"elementwise"``.
        extrapolate: as in `stale_sghmc`.
        temperature: as in `stale_sgld`.
        **options: as in `stale_sghmc`.

    Returns:
        A value that `consortia.sample` takes.

    Raises:
        InputError: an argument is out of its range.

    Source: Ding et al. (2014) with stale gradients as in Chen et al. (2016).
    """
    if thermostat not in ("scalar", "elementwise"):
        raise InputError(f"thermostat is {thermostat!r}: use 'scalar' or 'elementwise'.")
    dynamics = Thermostat(
        arguments.positive_friction(friction),
        thermostat == "elementwise",
        arguments.read_temperature(temperature),
    )
    return arguments.method_of(
        "stale_sgnht",
        step_size,
        batch_size,
        dynamics,
        arguments.steps_ahead(extrapolate, workers),
        workers=workers,
        **options,
    )
