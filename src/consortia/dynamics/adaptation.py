r"""The adaptation of Hamiltonian Monte Carlo in its warm-up.

- The step size, by dual averaging of the acceptance rate.
- The scale of each coordinate, from draws and gradients: :math:`\sqrt{\operatorname{Var}\theta_i /
  \operatorname{Var} g_i}`, which is the variance where coordinates are independent, in any units
  and from few draws.
- The spread λ of the widest direction in these units, by an incremental principal component; a
  quarter turn of that direction takes the time :math:`\tfrac\pi2\sqrt\lambda`.

The warm-up is cut at fixed shares of its length, so that one program serves any length.

Sources: Nesterov (2009) as in Hoffman, Gelman, "The No-U-Turn Sampler" (2014), section 3.2, for the
step size; the sampler nutpie (Seyboldt and others) for the scales; Sountsov, Hoffman, "Focusing on
difficult directions for learning HMC trajectory lengths" (2021) for the principal component.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jaxtyping import Bool, Float, Int

from consortia.runtime.late import Array, PyTree, jax, jnp

SHARES = (0.075, 0.15, 0.3, 0.55, 0.9)
"""Ends of the windows: the first is for the way to the target; after the last only the step size
is learned."""

LEAST_DRAWS = 4
"""A shorter window changes no scale."""

SHRINKAGE, SOON, FORGETTING = 0.1, 10.0, 0.75
"""γ, t₀ and κ of dual averaging. The published γ = 0.05 leaves steps too small in short windows."""

WIDEST = 1e6
"""λ is at most this."""


class StepSize(NamedTuple):
    """Dual averaging of the logarithm of the step size."""

    logarithm: Float[Array, ""]  # of the step size in use
    average: Float[Array, ""]  # of the one to be kept
    shrink_to: Float[Array, ""]  # μ
    error: Float[Array, ""]  # average shortfall of the acceptance rate
    updates: Float[Array, ""]  # since the last restart

    @classmethod
    def start(cls, logarithm: Float[Array, ""]) -> StepSize:
        """Return the state at a first guess; dual averaging then tries larger steps first."""
        zero = jnp.zeros_like(logarithm)
        return cls(logarithm, logarithm, logarithm + math.log(10), zero, zero)

    def update(self, rate: Float[Array, ""], wanted: float) -> StepSize:
        """Return the step size after a trajectory with this acceptance rate."""
        updates = self.updates + 1
        weight = 1 / (updates + SOON)
        error = (1 - weight) * self.error + weight * (wanted - rate)
        logarithm = self.shrink_to - jnp.sqrt(updates) / SHRINKAGE * error
        share = updates**-FORGETTING
        average = share * logarithm + (1 - share) * self.average
        return StepSize(logarithm, average, self.shrink_to, error, updates)


class Scales(NamedTuple):
    """Running moments of one window, and what the windows before have taught."""

    # of each coordinate in use, the inverse of a diagonal mass matrix, (d,)
    variance: Float[Array, " d"]
    widest: Float[Array, ""]  # λ in use
    draws: Float[Array, ""]  # in this window
    mean: Float[Array, " d"]  # of the draws, (d,)
    squares: Float[Array, " d"]  # sum of their squared deviations, (d,)
    gradient_mean: Float[Array, " d"]  # of ∇U, (d,)
    gradient_squares: Float[Array, " d"]  # (d,)
    component: Float[Array, " d"]  # λ times the widest direction, in units of ``variance``, (d,)

    @classmethod
    def start(cls, like: Float[Array, " d"]) -> Scales:
        """Return unit scales and an empty window."""
        unit, zero = jnp.ones((), like.dtype), jnp.zeros_like(like)
        return cls(jnp.ones_like(like), unit, jnp.zeros_like(unit), zero, zero, zero, zero, zero)

    def add(self, position: Float[Array, " d"], gradient: Float[Array, " d"]) -> Scales:
        """Add one more draw of the window."""
        draws = self.draws + 1
        deviation = position - self.mean
        mean = self.mean + deviation / draws
        pull = gradient - self.gradient_mean
        gradient_mean = self.gradient_mean + pull / draws
        # From the mean with this draw in it: the first draw says nothing of directions.
        scaled = (position - mean) / jnp.sqrt(self.variance)
        length = jnp.sqrt(jnp.sum(self.component**2))
        along = jnp.where(length > 0, jnp.sum(scaled * self.component) / length, 0)
        grown = self.component * (1 - 1 / draws) + scaled * along / draws
        first = scaled * jnp.sqrt(jnp.sum(scaled**2))
        return self._replace(
            draws=draws,
            mean=mean,
            squares=self.squares + deviation * (position - mean),
            gradient_mean=gradient_mean,
            gradient_squares=self.gradient_squares + pull * (gradient - gradient_mean),
            component=jnp.where(length > 0, grown, first),
        )

    def closed(self, *, learn_variance: bool) -> Scales:
        """Close a window: use what was learned in it and begin the next one."""
        enough = self.draws >= LEAST_DRAWS
        ratio = jnp.sqrt(self.squares / self.gradient_squares)
        usable = enough & jnp.isfinite(ratio) & (ratio > 0)
        variance = jnp.where(usable, ratio, self.variance) if learn_variance else self.variance
        length = jnp.sqrt(jnp.sum(self.component**2))
        # The widest direction, in the units that hold from now on.
        turned = self.component * jnp.sqrt(self.variance / variance)
        widest = jnp.sum(turned**2) / length
        widest = jnp.where(enough & jnp.isfinite(widest), jnp.clip(widest, 1, WIDEST), self.widest)
        return Scales.start(variance)._replace(variance=variance, widest=widest)


class Adaptation(NamedTuple):
    """Everything that a chain learns."""

    step: StepSize | None  # None when the step size is given
    scales: Scales | None  # None when neither scales nor trajectory lengths are learned
    rate: Float[Array, ""]  # average acceptance rate since the last window closed
    trajectories: Float[Array, ""]  # over which ``rate`` was averaged


def edges(warmup: Int[Array, ""]) -> Array:
    """Return the iterations at which windows close, int32 (5,), of a warm-up of this length."""
    shares = jnp.asarray(SHARES, jnp.result_type(float))
    return jnp.floor(shares * warmup.astype(shares.dtype)).astype(jnp.int32)


def learned(
    state: Adaptation,
    iteration: Int[Array, ""],
    warmup: Int[Array, ""],
    rate: Float[Array, ""],
    position: Float[Array, " d"],
    gradient: Float[Array, " d"],
    *,
    wanted: float,
    learn_variance: bool,
) -> Adaptation:
    """Return the state after iteration ``iteration``; unchanged once the warm-up is over.

    Args:
        state: before.
        iteration: from 0, int32.
        warmup: its length, int32.
        rate: acceptance rate of the trajectory.
        position: where the chain is now, (d,).
        gradient: ∇U there.
        wanted: acceptance rate to aim at.
        learn_variance: learn scales too, not only the widest direction.
    """
    ends = edges(warmup)
    closing = jnp.any(iteration + 1 == ends)
    inside = (iteration >= ends[0]) & (iteration < ends[-1])
    trajectories = state.trajectories + 1
    average = state.rate + (rate - state.rate) / trajectories
    shift = jnp.zeros_like(rate)
    new = state._replace(
        rate=jnp.where(closing, 0, average), trajectories=jnp.where(closing, 0, trajectories)
    )
    if state.scales is not None:
        scales = _chosen(inside, state.scales.add(position, gradient), state.scales)
        closed = scales.closed(learn_variance=learn_variance)
        shift = jnp.mean(jnp.log(scales.variance / closed.variance)) / 2
        new = new._replace(scales=_chosen(closing, closed, scales))
    if state.step is not None:
        step = state.step.update(rate, wanted)
        # A step of the same length, in the scales that hold from now on.
        new = new._replace(step=_chosen(closing, StepSize.start(step.average + shift), step))
    return _chosen(iteration < warmup, new, state)


def _chosen(condition: Bool[Array, ""], yes: PyTree, no: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
