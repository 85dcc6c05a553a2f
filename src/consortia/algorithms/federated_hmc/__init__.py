r"""Exact federated Hamiltonian Monte Carlo: log-density and gradient are sums over the sites.

.. math::
    v \leftarrow v - \tfrac{\epsilon}{2} M^{-1}\nabla U(\theta), \quad
    \theta \leftarrow \theta + \epsilon v, \quad
    v \leftarrow v - \tfrac{\epsilon}{2} M^{-1}\nabla U(\theta), \qquad
    U = \sum_c U_c, \quad \nabla U = \sum_c \nabla U_c

L times, and then a Metropolis test with :math:`U(\theta) + \tfrac12 v^\top M v`. The server moves
the chain; a site only evaluates its own potential and gradient. One leapfrog step is one
communication round, d + 2 numbers up from each site; all chains share it.

One iteration is

1. ``_begin`` (server): a momentum, a number of steps, half a kick and the first drift;
2. ``_leapfrog``, once for each step: U_c and ∇U_c at every site, their sum, a kick and a drift
   (half a kick and no drift at the end);
3. ``_end`` (server): the Metropolis test, and in the warm-up what is learned from it.

The server keeps v = M⁻¹p and the impulse I = Σ (kick) ∇U, so that the kinetic energy changes by
−½ I·(v₀ + v), a product in which nothing large cancels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from consortia import schedules
from consortia.algorithms.federated_hmc.wire import FullWidth, Quantized
from consortia.core import arguments
from consortia.core.contract import (
    Adaptive,
    Algorithm,
    Claims,
    Cost,
    Draws,
    Info,
    Phase,
    Sum,
)
from consortia.core.prior import normal_at
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import MassMatrix, adaptation, metropolis
from consortia.errors import InputError, wrong
from consortia.runtime.late import Array, PyTree, jax, jnp
from consortia.schedules import Schedule

Vector = Float[Array, " d"]
Scalar = Float[Array, ""]
Count = Int[Array, ""]

LEAST_WARMUP = 20
"""Rounds in which something can be learned."""

LOWEST_RATE = 0.1
"""With a lower acceptance rate at the end of the warm-up a run is not worth its messages."""

MOST_STEPS = 256
"""A learned trajectory has at most this many steps."""

FIRST_STEPS = 10
"""Before anything is learned a trajectory has at most this many."""

FIRST_STEP_SIZE = 0.1

REACH = 5.0
"""Standard deviations of the prior to which trajectories of the warm-up reach from its centre: any
two of their points are then within the 10 that a site's policy proposes."""

FURTHER = 1.5
"""A chain that was beyond the reach may go so many times as far as it was."""


@dataclass(frozen=True, kw_only=True)
class FederatedHMC(Adaptive):
    r"""Hamiltonian Monte Carlo on data that stay at their sites.

    **Samples** exp(−U), U = Σ_c U_c, exactly: every draw passes a Metropolis test on the summed
    log-density. However different the sites are, the only error is that of a finite chain, so that
    approximate methods can be compared with it. Every site has to answer in every round: leaving
    one out would change the target, so none ever is.

    **Draw**: θ after the Metropolis test, one a trajectory.

    **Step size**: ε of the leapfrog; with one step drift ε²/2, noise variance ε², h' = ε²/2.

    What is not given is learned in the warm-up rounds of `consortia.sample`, by each chain
    separately, and then kept: the step size by dual averaging, a diagonal mass matrix from draws
    and gradients, the length of trajectories from the widest direction. 200 to 500 warm-up rounds
    are usual. While something is learned, a trajectory ends before it would go beyond five standard
    deviations of the prior from its centre, or 1.5 times as far as the chain has been: steps that
    are still too large could go anywhere, and sites refuse positions far out.

    Log-densities are summed in double precision if JAX runs in it, and else with compensation:
    plain single-precision sums over 10⁶ rows would decide many tests wrongly.

    ``sample_stats`` of the result holds acceptance_rate, energy, energy_error, step_size, diverging
    (an energy error above 1000) and n_steps, the communication rounds of each trajectory.

    `consortia.few_rounds` gives exact draws for far fewer messages.

    Args:
        step_size: ε > 0: a number, an array over rounds (warm-up included) or a function of the
            round's index; learned when None.
        leapfrog_steps: L ≥ 1, the most steps of a trajectory; when None its length is learned.
        mass_matrix: M: ``"diagonal"`` (learned), ``"identity"``, the diagonal (d,) or a dense
            matrix (d, d) in the order of the flat parameters.
        force: ``"exact"``; or ``"quantized"``, each site's gradients in ``bits`` bits on a grid
            that is learned in the warm-up.
        trajectory_angle: length of a trajectory in radians of the slowest oscillation, π/2 when
            None: there the widest direction is refreshed completely. Only with
            ``leapfrog_steps=None``.
        bits: 8 or 16, of ``"quantized"``: d bits/8 + 9 bytes up a round instead of 4 d + 8, and d
            more bytes down; 16 where sites differ so much that their gradients nearly cancel.
        dither: of ``"quantized"``: uniform noise before rounding, which makes the rounding errors
            random and costs one more round a trajectory.
        jitter: in [0, 1): trajectories have between (1 − jitter) and 1 times the most steps, in a
            low-discrepancy sequence that all chains share; it avoids resonances.
        target_acceptance: rate that the step size is adapted to, in (0, 1).

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> FederatedHMC(step_size=0.1, leapfrog_steps=8).leapfrog_steps
        8

    Source: Duane, Kennedy, Pendleton, Roweth (1987); Neal, "MCMC using Hamiltonian dynamics"
    (2011). The federated form is ours.
    """

    step_size: Schedule | Any = None
    leapfrog_steps: int | None = None
    mass_matrix: MassMatrix | Any = "diagonal"
    force: str = "exact"
    trajectory_angle: float | None = None
    bits: int = 8
    dither: bool = False
    jitter: float = 0.3
    target_acceptance: float = 0.8

    name = "federated_hmc"
    lightly_compiled = True
    claims = Claims(
        samples="the posterior (Metropolis test on the summed log-density)",
        bias="none, however different the sites are; every site answers in every round",
        draw="the position after a trajectory",
        step_size="epsilon of the leapfrog, learned when left out; with one step drift "
        "epsilon^2/2, noise variance epsilon^2, h' = epsilon^2/2",
        source="Duane, Kennedy, Pendleton, Roweth (1987); the federated form is ours",
    )

    def __post_init__(self) -> None:
        arguments.one_of("force", self.force, ("exact", "quantized"))
        arguments.one_of("bits", self.bits, (8, 16))
        dither = arguments.flag("dither", self.dither)
        if self.force == "exact" and (self.bits != 8 or dither):
            raise InputError("bits and dither are for force='quantized'.")
        if self.trajectory_angle is not None:
            arguments.positive("trajectory_angle", self.trajectory_angle, 100.0)
            if self.leapfrog_steps is not None:
                raise InputError(
                    "trajectory_angle and leapfrog_steps both fix the length of a trajectory: give "
                    "one of them."
                ).at("trajectory_angle")
        jitter = arguments.number("jitter", self.jitter, 0.0, 1.0)
        if jitter == 1:
            raise wrong("jitter", " is 1: it must be less, or trajectories have no steps.")
        given = None if self.step_size is None else schedules.as_schedule(self.step_size)
        arguments.keep(
            self,
            step_size=given,
            leapfrog_steps=arguments.optional_whole("leapfrog_steps", self.leapfrog_steps, 1),
            mass_matrix=_mass_matrix(self.mass_matrix),
            dither=dither,
            jitter=jitter,
            target_acceptance=arguments.positive("target_acceptance", self.target_acceptance, 1.0),
        )

    @property
    def wire(self) -> FullWidth:
        """The form in which positions and gradients are sent."""
        if self.force == "exact":
            return FullWidth()
        return Quantized(fresh_start=self.dither, bits=self.bits, dither=self.dither)

    @property
    def most_steps(self) -> int:
        """The most evaluations, that is communication rounds, of one trajectory."""
        most = MOST_STEPS if self.leapfrog_steps is None else self.leapfrog_steps
        return most + int(self.wire.fresh_start)

    @property
    def learns(self) -> tuple[str, ...]:
        """The arguments that only a warm-up can settle."""
        values = {
            "step_size": self.step_size is None,
            "leapfrog_steps": self.leapfrog_steps is None,
            "mass_matrix": self.mass_matrix == "diagonal",
        }
        return tuple(name for name, learned in values.items() if learned)

    @property
    def adapts(self) -> bool:
        """True where an argument is left to the warm-up."""
        return bool(self.learns)

    @property
    def dimension(self) -> int | None:
        """The dimension of a given mass matrix."""
        return None if self.mass_matrix == "diagonal" else self.mass_matrix.dimension

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a mass matrix for another number of parameters."""
        if self.mass_matrix != "diagonal":
            self.mass_matrix.check(dimension)

    def check_warmup(self, warmup: int) -> None:
        """Refuse a run in which nothing can be learned although something must be."""
        if self.learns and warmup < LEAST_WARMUP:
            given = {"step_size": "a number", "leapfrog_steps": "a number"}
            remedy = " and ".join(
                f"{name}={given.get(name, repr('identity'))}" for name in self.learns
            )
            raise InputError(
                f"warmup is {warmup}, but {' and '.join(self.learns)} must be learned in the "
                f"warm-up: give warmup=500 (in a study run.warmup = 500), at least "
                f"{LEAST_WARMUP}, or {remedy}."
            ).at("warmup")

    def check_learned(self, hub: Hub) -> str | None:
        """Find a reason to end a run after its warm-up; None where there is none."""
        if hub.learned is None:
            return None
        rate = float(np.min(np.asarray(hub.learned.rate)))
        if rate >= LOWEST_RATE:
            return None
        return (
            f"only {100 * rate:.2g} % of the trajectories were accepted at the end of the warm-up: "
            "give a longer warm-up, init nearer to the posterior, or a smaller step_size."
        )

    def full_iterations(self, hub: Hub, done: int) -> float:
        """Return the run so far in trajectories of the most steps, of the chain that made most."""
        return int(np.max(np.asarray(hub.evaluations))) / self.most_steps

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """Return one gradient a site in each step; the most that a trajectory can have."""
        return Cost(self.most_steps * len(sizes), self.most_steps * int(sizes.sum()))

    def build(self, target: Target) -> Algorithm:
        """Return a beginning, leapfrog steps with a sum over the sites each, and an end."""
        wire = self.wire
        begin = Phase(
            None, hub=partial(_begin, self), shared=partial(_begin_randomness, self, target)
        )
        leapfrog = Phase(
            partial(wire.evaluate, target),
            Sum(),
            hub=partial(_leapfrog, self),
            noise=partial(wire.noise, target),
            repeat=self.most_steps,
            repeats=partial(_evaluations, self),
            evaluation=wire.evaluation,
            disclosure=wire.disclosure,
        )
        end = Phase(
            None,
            hub=partial(_end, self),
            shared=lambda rng: End(rng.uniform("accept"), _time(rng)),
        )
        setup = Phase(
            partial(wire.evaluate_start, target),
            Sum(),
            hub=partial(_setup, self),
            evaluation=wire.evaluation,
        )
        draws = Draws(hub=lambda hub, inbox: hub.here.position)
        init = partial(_init, self, target)
        return Algorithm(init, (begin, leapfrog, end), draws, setup=(setup,))


federated_hmc = FederatedHMC


# --- the server's state --------------------------------------------------------------------------


class Point(NamedTuple):
    """A position with U and ∇U there."""

    position: Vector
    potential: metropolis.Potential
    gradient: Vector


class Trajectory(NamedTuple):
    """A trajectory: the point that it has reached, v₀, v, I, ε, evaluations so far, and L."""

    end: Point
    start_velocity: Vector
    velocity: Vector
    impulse: Vector
    step_size: Scalar
    step: Count
    steps: Count


class Reach(NamedTuple):
    """Bounds of trajectories; none after the warm-up, and where the prior is flat."""

    centre: Vector  # of the prior, (d,)
    radius: Vector  # from it, in each coordinate, (d,)

    def holds(self, position: Vector) -> Bool[Array, ""]:
        """Return True if a position is within the reach."""
        return jnp.all(jnp.abs(position - self.centre) <= self.radius)

    def after(self, time: Time, position: Vector) -> Reach:
        """Return the reach after an iteration that ended at this position."""
        radius = jnp.maximum(self.radius, FURTHER * jnp.abs(position - self.centre))
        radius = jnp.where(time.iteration + 1 < time.warmup, radius, jnp.inf)
        return self._replace(radius=radius)


class Hub(NamedTuple):
    """The state of the server."""

    here: Point  # the chain's point
    trial: Trajectory  # the trajectory from it
    kinetic: Scalar  # energy at the trajectory's start
    evaluations: Count  # of all sites so far, communication rounds
    learned: adaptation.Adaptation | None  # None when all is given
    reach: Reach | None  # of trajectories while something is learned; None when all is given
    wire: PyTree  # what the wire keeps


Reply = tuple[Hub, PyTree, Info]
"""The server's state after a message, where the sites evaluate next, and the infos."""


class Time(NamedTuple):
    """The iteration's index and the length of the warm-up."""

    iteration: Count
    warmup: Count


class Begin(NamedTuple):
    """ξ of the momentum; ε where it is given, else ()."""

    momentum: Vector
    step_size: PyTree[Scalar]
    time: Time


class End(NamedTuple):
    """u of the Metropolis test."""

    level: Scalar
    time: Time


def _init(method: FederatedHMC, target: Target, position: Vector) -> tuple[tuple[()], Hub, PyTree]:
    zero, vector = jnp.zeros((), position.dtype), jnp.zeros_like(position)
    count = jnp.zeros((), jnp.int32)
    here = Point(position, metropolis.Potential(zero, zero), vector)
    trial = Trajectory(here, vector, vector, vector, zero, count, count)
    wire = method.wire.state(position)
    learned, reach = _nothing_learned(method, position), None
    if learned is not None:
        centre, sd = normal_at(target, position)
        reach = Reach(centre, jnp.maximum(REACH * sd, FURTHER * jnp.abs(position - centre)))
    hub = Hub(here, trial, zero, count, learned, reach, wire)
    return (), hub, method.wire.down(wire, position)


def _setup(method: FederatedHMC, shared: tuple[()], hub: Hub, message: PyTree) -> Reply:
    """Keep U and ∇U at the starting point."""
    potential, gradient, largest = message
    here = hub.here._replace(potential=potential, gradient=gradient)
    wire = method.wire.started(hub.wire, largest, hub.learned)
    return _reply(method, hub._replace(here=here, wire=wire), here)


def _reply(method: FederatedHMC, hub: Hub, at: Point, info: Info | None = None) -> Reply:
    return hub, method.wire.down(hub.wire, at.position), info or {}


# --- a trajectory --------------------------------------------------------------------------------


def _begin_randomness(method: FederatedHMC, target: Target, rng: RandomStreams) -> Begin:
    given: PyTree = ()
    if method.step_size is not None:
        given = jnp.asarray(method.step_size(rng.iteration), target.dtype)
    return Begin(rng.normal("momentum", (target.dimension,)), given, _time(rng))


def _time(rng: RandomStreams) -> Time:
    return Time(jnp.asarray(rng.iteration), jnp.asarray(rng.warmup))


def _begin(method: FederatedHMC, shared: Begin, hub: Hub, message: PyTree) -> Reply:
    """Draw a momentum, make half a kick and the first drift; the reply is the new θ.

    Where the gradient at the start has to be evaluated anew, the reply is the old θ.
    """
    normal = shared.momentum
    step_size = _step_size(shared, hub.learned)
    if method.mass_matrix == "diagonal":  # v = M⁻¹p ~ N(0, M⁻¹)
        velocity = normal * jnp.sqrt(_scales(hub.learned).variance)
    else:
        velocity = method.mass_matrix.velocity(normal)
    trial = Trajectory(
        hub.here,
        velocity,
        velocity,
        jnp.zeros_like(velocity),
        step_size,
        jnp.zeros((), jnp.int32),
        _steps(method, shared.time, hub.learned, step_size),
    )
    if not method.wire.fresh_start:
        trial = _kicked(method, hub.learned, trial, step_size / 2)
        inside = _inside(hub, trial)
        steps = jnp.where(inside, trial.steps, 0)
        trial = _moved(inside, trial)._replace(steps=steps)
    return _reply(method, hub._replace(trial=trial, kinetic=jnp.sum(normal**2) / 2), trial.end)


def _leapfrog(method: FederatedHMC, shared: tuple[()], hub: Hub, message: PyTree) -> Reply:
    """Kick with the summed gradient, and drift unless this was the last step.

    It is the last where the next would go beyond the reach of the warm-up.
    """
    potential, gradient, wire = method.wire.up(hub.wire, message)
    trial = hub.trial._replace(end=Point(hub.trial.end.position, potential, gradient))
    step_size, step = trial.step_size, trial.step + 1
    last = step >= _evaluations(method, hub)
    half = last | (trial.step == 0) if method.wire.fresh_start else last

    def kicked_by(half: Bool[Array, ""]) -> Trajectory:
        time = jnp.where(half, step_size / 2, step_size)
        return _kicked(method, hub.learned, trial, time)

    kicked = kicked_by(half)
    ends = last | ~_inside(hub, kicked)
    if hub.reach is not None:  # a trajectory that would go outside ends here
        kicked = kicked_by(half | ends)
    steps = jnp.where(ends, step - int(method.wire.fresh_start), trial.steps)
    trial = _moved(~ends, kicked)._replace(step=step, steps=steps)
    return _reply(method, hub._replace(trial=trial, wire=wire), trial.end)


def _evaluations(method: FederatedHMC, hub: Hub) -> Count:
    """Count the sites' evaluations: one a step, and one more at a fresh start."""
    return hub.trial.steps + int(method.wire.fresh_start)


def _kicked(
    method: FederatedHMC, learned: adaptation.Adaptation | None, trial: Trajectory, time: Scalar
) -> Trajectory:
    """Return the trajectory after the force has acted for some time."""
    impulse = time * trial.end.gradient
    if method.mass_matrix == "diagonal":
        change = _scales(learned).variance * impulse
    else:
        change = method.mass_matrix.solve(impulse)
    return trial._replace(velocity=trial.velocity - change, impulse=trial.impulse + impulse)


def _moved(goes_on: Bool[Array, ""], trial: Trajectory) -> Trajectory:
    """Return the trajectory after a drift, if it continues."""
    position = jnp.where(goes_on, _drifted(trial), trial.end.position)
    return trial._replace(end=trial.end._replace(position=position))


def _drifted(trial: Trajectory) -> Vector:
    return trial.end.position + trial.step_size * trial.velocity


def _inside(hub: Hub, trial: Trajectory) -> Bool[Array, ""]:
    """Return True if a drift stays within the reach."""
    return jnp.array(True) if hub.reach is None else hub.reach.holds(_drifted(trial))


def _end(method: FederatedHMC, shared: End, hub: Hub, message: PyTree) -> Reply:
    """Make the Metropolis test on the summed log-density; the reply is θ after it."""
    here, trial, made = hub.here, hub.trial, _evaluations(method, hub)
    gained = jnp.sum(trial.impulse * (trial.start_velocity + trial.velocity)) / 2
    energy_error = trial.end.potential.above(here.potential) - gained
    # A point whose gradient is not finite could not be left again.
    usable = jnp.all(jnp.isfinite(trial.end.gradient))
    if hub.reach is not None:  # whose first drift was too long, it has gone nowhere
        usable = usable & (trial.steps > 0)
    energy_error = jnp.where(usable, energy_error, jnp.nan)
    rate = metropolis.acceptance(energy_error)
    accepted = shared.level < rate
    info = {
        "acceptance_rate": rate,
        "diverging": ~(energy_error <= metropolis.DIVERGENT),
        "energy": here.potential.value + hub.kinetic + jnp.where(accepted, energy_error, 0),
        "energy_error": jnp.where(jnp.isfinite(energy_error), energy_error, jnp.inf),
        "n_steps": made,
        "step_size": trial.step_size,
    }
    here = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), trial.end, here)
    learned = hub.learned
    if learned is not None:
        learned = adaptation.learned(
            learned,
            shared.time.iteration,
            shared.time.warmup,
            rate,
            here.position,
            here.gradient,
            wanted=method.target_acceptance,
            learn_variance=method.mass_matrix == "diagonal",
        )
    wire = method.wire.adapted(hub.wire, *shared.time, learned)
    reach = None if hub.reach is None else hub.reach.after(shared.time, here.position)
    hub = hub._replace(
        here=here, evaluations=hub.evaluations + made, learned=learned, reach=reach, wire=wire
    )
    return _reply(method, hub, here, info)


# --- what is given, and in its place what each chain has learned ---------------------------------


def _nothing_learned(method: FederatedHMC, position: Vector) -> adaptation.Adaptation | None:
    """Return the state of the adaptation before the first iteration; None when all is given."""
    if not method.learns:
        return None
    zero = jnp.zeros((), position.dtype)
    step = scales = None
    if "step_size" in method.learns:
        step = adaptation.StepSize.start(zero + math.log(FIRST_STEP_SIZE))
    if "mass_matrix" in method.learns or "leapfrog_steps" in method.learns:
        scales = adaptation.Scales.start(position)
    return adaptation.Adaptation(step, scales, zero, zero)


def _scales(learned: adaptation.Adaptation | None) -> adaptation.Scales:
    assert learned is not None
    assert learned.scales is not None
    return learned.scales


def _step_size(shared: Begin, learned: adaptation.Adaptation | None) -> Scalar:
    """Return ε of this iteration."""
    if learned is None or learned.step is None:
        return shared.step_size
    warming = shared.time.iteration < shared.time.warmup
    return jnp.exp(jnp.where(warming, learned.step.logarithm, learned.step.average))


def _steps(
    method: FederatedHMC, time: Time, learned: adaptation.Adaptation | None, step_size: Scalar
) -> Count:
    """Return the leapfrog steps of this iteration's trajectory."""
    if method.leapfrog_steps is not None:
        most = jnp.full((), method.leapfrog_steps, step_size.dtype)
    else:
        unlearned = time.iteration < adaptation.edges(time.warmup)[1]
        bound = jnp.where(unlearned, FIRST_STEPS, MOST_STEPS).astype(step_size.dtype)
        angle = math.pi / 2 if method.trajectory_angle is None else method.trajectory_angle
        most = jnp.minimum(angle * jnp.sqrt(_scales(learned).widest) / step_size, bound)
    return metropolis.jittered_steps(time.iteration, most, method.jitter)


def _mass_matrix(value: Any) -> MassMatrix | str:
    """Return the matrix, or "diagonal" where it is learned."""
    if not isinstance(value, str):
        return MassMatrix.of(value)
    if value not in ("identity", "diagonal"):
        raise InputError(
            f"mass_matrix is {value!r}: use 'diagonal', 'identity', the diagonal (d,) or a "
            "matrix (d, d)."
        ).at("mass_matrix")
    return MassMatrix() if value == "identity" else value
