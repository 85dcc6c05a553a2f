r"""Exact federated Hamiltonian Monte Carlo: log-density and gradient are sums over the sites.

.. math::
    v \leftarrow v - \tfrac{\epsilon}{2} M^{-1}\nabla U(\theta), \quad
    \theta \leftarrow \theta + \epsilon v, \quad
    v \leftarrow v - \tfrac{\epsilon}{2} M^{-1}\nabla U(\theta), \qquad
    U = \sum_c U_c, \quad \nabla U = \sum_c \nabla U_c

L times, and then a Metropolis test with :math:`U(\theta) + \tfrac12 v^\top M v`. The server moves
the chain; a site only evaluates its own potential and gradient. One leapfrog step is one
communication round, d + 2 numbers up from each site; all chains share it.
"""

from __future__ import annotations

import math
from typing import Any

from consortia import schedules
from consortia.algorithms.federated_hmc_method import FederatedHMC
from consortia.algorithms.federated_hmc_surrogate import SurrogateHMC
from consortia.algorithms.federated_hmc_surrogate_fit import QUARTER
from consortia.algorithms.federated_hmc_wire import FullWidth, Quantised
from consortia.core import arguments
from consortia.dynamics import MassMatrix
from consortia.errors import InputError
from consortia.surrogates import Gaussian

FORCES = ("exact", "surrogate", "quantized")

SHORTER_TURNS = (0.9, 0.5)
"""What a surrogate's quarter turn is measured against in the warm-up, in radians."""


def federated_hmc(
    *,
    step_size: Any = None,
    leapfrog_steps: int | None = None,
    mass_matrix: Any = "diagonal",
    force: str = "exact",
    proposals_per_round: int = 1,
    turn: float | None = None,
    surrogate: Gaussian | None = None,
    widening: float = 1.04,
    guard: float = 0.1,
    bits: int = 8,
    dither: bool = False,
    jitter: float = 0.3,
    target_acceptance: float = 0.8,
) -> FederatedHMC | SurrogateHMC:
    r"""Hamiltonian Monte Carlo on data that stay at their sites.

    **Samples** exp(−U), U = Σ_c U_c, exactly: every draw passes a Metropolis test on the summed
    log-density. However unlike the sites are, there is no bias but that of a finite chain, so that
    this is the answer which the approximate methods can be measured against. It needs every site in
    every round: a missing one would change the target, so that none is ever left out.

    **Draw**: θ after the Metropolis test, one a trajectory.

    **Step size**: ε of the leapfrog; with one step drift ε²/2, noise variance ε², h' = ε²/2.

    What is not given is learned in the warm-up rounds of `consortia.sample`, by each chain for
    itself, and then kept: the step size by dual averaging, a diagonal mass matrix from draws and
    gradients, the length of trajectories from the widest direction. 200 to 500 warm-up rounds are
    usual.

    Log-densities are summed in double precision where JAX runs in it, and else with compensation:
    plain single-precision sums over 10⁶ rows would decide many tests wrongly.

    ``sample_stats`` of the result holds acceptance_rate, energy, energy_error, step_size, diverging
    (an energy error above 1000) and n_steps, the communication rounds of each trajectory.

    **With a surrogate**, ``force="surrogate"``, an exact draw costs one communication round, or
    less. Along a trajectory the force may be that of any fixed function, as long as the Metropolis
    test is on the true log-density. With a Gaussian surrogate of the posterior and its precision as
    the mass matrix the trajectory is known in advance, and only its end is evaluated at the sites.
    After a quarter turn (the default) it does not depend on where it started, so that K =
    ``proposals_per_round`` of them go out in one message, d K numbers down and 2 K up, and the
    server makes K Metropolis steps, K draws a round. The surrogate is sought before the first
    round, in eighteen messages: the mode by Newton steps, from there the Gaussian q with
    E_q ∇U = 0 and precision E_q ∇²U. It is fitted anew in the warm-up, from all proposals weighted
    by π/q (after a shorter turn from the draws); then it stands still. A surrogate with lighter
    tails than the posterior makes chains stand still in the tails; ``sample_stats`` has
    longest_rejection and largest_weight_share to see it, a warning says so where it matters, and
    a larger ``guard`` or ``widening``, or a shorter turn, helps against it.

    Args:
        step_size: ε > 0: a number, an array over rounds (warm-up included) or a function of the
            round's index; learned when None.
        leapfrog_steps: L ≥ 1, the most steps of a trajectory; when None its length is learned.
        mass_matrix: M: ``"diagonal"`` (learned), ``"identity"``, the diagonal (d,) or a dense
            matrix (d, d) in the order of the flat parameters.
        force: ``"exact"``; ``"surrogate"``, which sets the three above itself; or ``"quantized"``,
            each site's gradients in ``bits`` bits on a grid that is learned in the warm-up.
        proposals_per_round: K ≥ 1 of ``"surrogate"``; more than one need a quarter turn.
        turn: length of a trajectory in radians of the slowest oscillation, π/2 when None: there
            the widest direction is refreshed completely. Only with ``leapfrog_steps=None``. Of a
            surrogate's single proposals it is chosen when None: π/2, 0.9 or 0.5, whichever has
            the largest bulk effective sample size a round, the smallest over the parameters, in
            trials in the last two fifths of the warm-up (of at least 40 draws each, 300 warm-up
            rounds in all; else π/2). Each fourth turn is then at most 0.9, which leads a chain out
            of a tail.
        surrogate: the Gaussian of the whole posterior to begin with, not of one site's likelihood;
            sought as above when None.
        widening: factor of the surrogate's standard deviations, at least 1.
        guard: share of a quarter turn's proposals that are drawn with standard deviations wider by
            the factor 1 + 2/√d, in [0, 0.9]; not where the turn is chosen.
        bits: 8 or 16, of ``"quantized"``: d bits/8 + 9 bytes up a round instead of 4 d + 8, and d
            more bytes down; 16 where sites are so unlike that their gradients nearly cancel.
        dither: of ``"quantized"``: uniform noise before rounding, which takes the pattern out of
            the rounding errors and costs one more round a trajectory.
        jitter: in [0, 1): trajectories have between (1 − jitter) and 1 times the most steps, in an
            even sequence that all chains share; it breaks resonances.
        target_acceptance: rate that the step size is adapted to, in (0, 1).

    Returns:
        A value that `consortia.sample` takes; equal arguments give equal values.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> federated_hmc(step_size=0.1, leapfrog_steps=8).leapfrog_steps
        8

    Source: Duane, Kennedy, Pendleton, Roweth (1987); Neal, "MCMC using Hamiltonian dynamics"
    (2011). The federated form is ours.
    """
    if force not in FORCES:
        raise InputError(f"force is {force!r}: use {' or '.join(map(repr, FORCES))}.")
    if force == "surrogate":
        given = {"step_size": step_size, "leapfrog_steps": leapfrog_steps}
        given["mass_matrix"] = (
            None if isinstance(mass_matrix, str) and mass_matrix == "diagonal" else mass_matrix
        )
        return _with_surrogate(given, proposals_per_round, turn, surrogate, widening, guard)
    if proposals_per_round != 1 or surrogate is not None:
        raise InputError("proposals_per_round and surrogate are for force='surrogate'.")
    if turn is not None and leapfrog_steps is not None:
        raise InputError(
            "turn and leapfrog_steps both fix the length of a trajectory: give one of them."
        )
    return FederatedHMC(
        name="federated_hmc",
        step_size=None if step_size is None else schedules.as_schedule(step_size),
        leapfrog_steps=arguments.optional_whole("leapfrog_steps", leapfrog_steps, 1),
        mass_matrix=_mass_matrix(mass_matrix),
        turn=math.pi / 2 if turn is None else _inside("turn", turn, 100.0),
        jitter=_jitter(jitter),
        target_acceptance=_inside("target_acceptance", target_acceptance, 1.0),
        wire=_wire(force, bits, dither),
    )


def _wire(force: str, bits: Any, dither: Any) -> FullWidth:
    if force == "exact":
        if bits != 8 or dither:
            raise InputError("bits and dither are for force='quantized'.")
        return FullWidth()
    if bits not in (8, 16):
        raise InputError(f"bits is {bits!r}: use 8 or 16.")
    return Quantised(fresh_start=bool(dither), bits=bits, dither=bool(dither))


def _with_surrogate(
    given: dict[str, Any],
    proposals: Any,
    turn: Any,
    surrogate: Any,
    widening: Any,
    guard: Any,
) -> SurrogateHMC:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is for force='exact': a surrogate's trajectory is known.")
    if surrogate is not None and not isinstance(surrogate, Gaussian):
        raise InputError(
            f"surrogate is {surrogate!r}: give consortia.surrogates.Gaussian(mean, covariance) of "
            "the whole posterior, or leave it out."
        )
    method = SurrogateHMC(
        name="federated_hmc",
        surrogate=surrogate,
        proposals=arguments.whole("proposals_per_round", proposals, 1),
        turns=_turns(turn, proposals),
        widening=arguments.number("widening", widening, 1.0, 10.0),
        guard=arguments.number("guard", guard, 0.0, 0.9),
    )
    if method.proposals > 1 and not method.independent:
        raise InputError(
            f"turn={turn:g} with proposals_per_round={proposals}: after less than a quarter turn "
            "(π/2) a proposal depends on the state, so that each needs a round of its own; leave "
            "one of them out."
        )
    return method


def _turns(turn: Any, proposals: Any) -> tuple[float, ...]:
    if turn is None:
        return (QUARTER,) if proposals != 1 else (QUARTER, *SHORTER_TURNS)
    return (_inside("turn", turn, math.pi),)


def _mass_matrix(value: Any) -> MassMatrix | None:
    """None when it is to be learned."""
    if isinstance(value, str):
        if value not in ("identity", "diagonal"):
            raise InputError(
                f"mass_matrix is {value!r}: use 'diagonal', 'identity', the diagonal (d,) or a "
                "matrix (d, d)."
            )
        return MassMatrix() if value == "identity" else None
    return MassMatrix.of(value)


def _inside(name: str, value: Any, most: float) -> float:
    result = arguments.number(name, value, 0.0, most)
    if result == 0 or result == most:
        raise InputError(f"{name} is {result:g}: it must be strictly between 0 and {most:g}.")
    return result


def _jitter(value: Any) -> float:
    result = arguments.number("jitter", value, 0.0, 1.0)
    if result == 1:
        raise InputError("jitter is 1: it must be less, or trajectories have no steps.")
    return result
