"""What federated HMC is given, and in its place what each chain has learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from consortia.algorithms.federated_hmc_wire import FullWidth
from consortia.dynamics import MassMatrix, adaptation, metropolis
from consortia.schedules import Schedule

Array = jax.Array
Learned = adaptation.Adaptation | None

MOST_STEPS = 256
"""A learned trajectory has at most this many steps."""

FIRST_STEPS = 10
"""Before anything is learned a trajectory has at most this many."""

FIRST_STEP_SIZE = 0.1


@dataclass(frozen=True)
class Settings:
    """The parameters of federated HMC; see `consortia.federated_hmc`.

    Attributes:
        step_size: None when it is learned.
        leapfrog_steps: None when the length of trajectories is learned.
        mass_matrix: None when its diagonal is learned.
        wire: how gradients are sent.
    """

    name: str
    step_size: Schedule | None
    leapfrog_steps: int | None
    mass_matrix: MassMatrix | None
    turn: float
    jitter: float
    target_acceptance: float
    wire: FullWidth

    @property
    def most_steps(self) -> int:
        """The most evaluations, that is communication rounds, of one trajectory."""
        most = MOST_STEPS if self.leapfrog_steps is None else self.leapfrog_steps
        return most + int(self.wire.fresh_start)

    @property
    def learns(self) -> tuple[str, ...]:
        """The arguments that only a warm-up can settle."""
        values = {
            "step_size": self.step_size,
            "leapfrog_steps": self.leapfrog_steps,
            "mass_matrix": self.mass_matrix,
        }
        return tuple(name for name, value in values.items() if value is None)

    def nothing_learned(self, position: Array) -> Learned:
        """The state of the adaptation before the first iteration; None when all is given."""
        if not self.learns:
            return None
        zero = jnp.zeros((), position.dtype)
        step = None
        if self.step_size is None:
            step = adaptation.StepSize.start(zero + math.log(FIRST_STEP_SIZE))
        scales = None
        if self.mass_matrix is None or self.leapfrog_steps is None:
            scales = adaptation.Scales.start(position)
        return adaptation.Adaptation(step, scales, zero, zero)

    def step_size_in_use(self, shared: Any, learned: Learned) -> Array:
        """ε of this iteration."""
        if learned is None or learned.step is None:
            return shared["step_size"]
        warming = shared["iteration"] < shared["warmup"]
        return jnp.exp(jnp.where(warming, learned.step.logarithm, learned.step.average))

    def steps(self, shared: Any, learned: Learned, step_size: Array) -> Array:
        """Leapfrog steps of this iteration's trajectory, int32."""
        if self.leapfrog_steps is not None:
            most = jnp.full((), self.leapfrog_steps, step_size.dtype)
        else:
            assert learned is not None
            assert learned.scales is not None
            unlearned = shared["iteration"] < adaptation.edges(shared["warmup"])[1]
            bound = jnp.where(unlearned, FIRST_STEPS, MOST_STEPS).astype(step_size.dtype)
            length = self.turn * jnp.sqrt(learned.scales.widest)
            most = jnp.minimum(length / step_size, bound)
        return metropolis.jittered_steps(shared["iteration"], most, self.jitter)

    def velocity(self, learned: Learned, normal: Array) -> Array:
        """v = M⁻¹p ~ N(0, M⁻¹) from standard normal numbers (d,)."""
        if self.mass_matrix is not None:
            return self.mass_matrix.velocity(normal)
        assert learned is not None
        assert learned.scales is not None
        return normal * jnp.sqrt(learned.scales.variance)

    def solve(self, learned: Learned, impulse: Array) -> Array:
        """M⁻¹ times a change of momentum (d,)."""
        if self.mass_matrix is not None:
            return self.mass_matrix.solve(impulse)
        assert learned is not None
        assert learned.scales is not None
        return learned.scales.variance * impulse
