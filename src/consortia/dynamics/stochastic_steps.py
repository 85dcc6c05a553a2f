"""One step of each stochastic gradient dynamics, and the state that all share.

In all of them θ is the position, q the momentum, h the step size, g an estimate of the gradient ∇U
of the potential U, T the temperature and ζ a vector of standard normal numbers: the target is
exp(−U/T).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float

from consortia.runtime.late import Array, PyTree, jnp

Vector = Float[Array, " d"]
Scalar = Float[Array, ""]


class State(NamedTuple):
    """The state of a chain; () for what a dynamics does not have."""

    position: Vector  # θ, (d,)
    momentum: PyTree[Vector] = ()  # q, (d,)
    thermostat: PyTree[Float[Array, "*d"]] = ()  # ξ, a scalar or (d,)
    squares: PyTree[Float[Array, "*d"]] = ()  # Σ α^k g² over the gradients so far, (d,), and Σ α^k


class Dynamics(ABC):
    """One step of a sampler, cut where a gradient is needed; a value that compares and hashes.

    Whoever computes the gradient, of whatever potential and however old, takes it at `point` and
    hands it to `step`: the same object serves one process, an average over sites and a server.
    """

    def start(self, position: Vector) -> State:
        """Return the state of a chain that starts at ``position``, at rest."""
        return State(position, jnp.zeros_like(position))

    def point(self, state: State, step_size: Scalar) -> Vector:
        """Return the point at which the next step of this size needs its gradient, (d,)."""
        return state.position

    @abstractmethod
    def step(self, state: State, gradient: Vector, normal: Vector, step_size: Scalar) -> State:
        """Return the state after one step.

        Args:
            state: before it.
            gradient: g, an estimate of ∇U at `point`, (d,).
            normal: standard normal numbers, (d,).
            step_size: h, scalar.
        """


@dataclass(frozen=True)
class Langevin(Dynamics):
    r"""One step of Langevin dynamics, as in stochastic gradient Langevin dynamics (SGLD).

    .. math:: \theta' = \theta - h G g + \sqrt{2hTG}\,\zeta

    On a Gaussian target of precision λ and with exact gradients the variance is
    T/(λ(1 − hλ/2)) where G = 1: its bias is O(h). With an adaptation α, in step l, the diagonal
    preconditioner G has the entries

    .. math::
        G_i = \frac{1}{\text{floor} + \sqrt{v_i}}, \qquad
        v = \frac{\sum_k \alpha^k g_{l-k}^2}{\sum_k \alpha^k}
    """

    temperature: float = 1.0  # T
    adaptation: float | None = None  # α in (0, 1]; None has G = 1
    floor: float = 0.0  # added to the root mean square of the gradients, in the units of ∇U

    def start(self, position: Vector) -> State:
        """Return θ, and empty sums of the squared gradients where G adapts."""
        if self.adaptation is None:
            return State(position)
        return State(position, squares=(jnp.zeros_like(position), jnp.zeros((), position.dtype)))

    def step(self, state: State, gradient: Vector, normal: Vector, step_size: Scalar) -> State:
        """Return θ', from the gradient at θ."""
        if self.adaptation is None:
            spread = jnp.sqrt(2 * self.temperature * step_size)
            return State(state.position - step_size * gradient + spread * normal)
        squares, weight = state.squares  # Σ α^k g² and Σ α^k
        squares = self.adaptation * squares + gradient**2
        weight = self.adaptation * weight + 1
        steps = step_size / (self.floor + jnp.sqrt(squares / weight))
        spread = jnp.sqrt(2 * self.temperature * steps)
        moved = state.position - steps * gradient + spread * normal
        return State(moved, squares=(squares, weight))


@dataclass(frozen=True)
class EulerHMC(Dynamics):
    r"""One step of stochastic gradient Hamiltonian Monte Carlo (SGHMC), by Euler's method.

    .. math:: q' = (1 - Bh)\,q - h g + \sqrt{2BhT - h^2 V}\,\zeta, \qquad \theta' = \theta + h q'

    On a Gaussian target with exact, fresh gradients the variance of θ is off by O(h²); with
    gradient noise that V does not take out, or with stale gradients, by O(h).

    Source: Chen et al., "Stochastic gradient MCMC with stale gradients" (2016), algorithm 1, after
    Chen, Fox, Guestrin (2014).
    """

    friction: float  # B, per unit of time
    temperature: float = 1.0  # T
    # V, variance per coordinate of the gradient's noise that is to be taken out of the injected
    # one: a number or a tuple (d,); the result is NaN where hV > 2BT
    gradient_variance: float | tuple[float, ...] = 0.0

    def step(self, state: State, gradient: Vector, normal: Vector, step_size: Scalar) -> State:
        """Return (θ', q'), from the gradient at θ."""
        spread = injected(self.friction * self.temperature, self.gradient_variance, step_size)
        damped = (1 - self.friction * step_size) * state.momentum
        momentum = damped - step_size * gradient + spread * normal
        return State(state.position + step_size * momentum, momentum)


@dataclass(frozen=True)
class SplittingHMC(Dynamics):
    r"""One symmetric step (drift, friction, force and noise, friction, drift: ABOBA).

    .. math::
        \hat\theta = \theta + \tfrac h2 q, \quad
        q' = e^{-Bh/2}\bigl(e^{-Bh/2} q - h g(\hat\theta) + \sqrt{2BhT - h^2 V}\,\zeta\bigr), \quad
        \theta' = \hat\theta + \tfrac h2 q'

    The gradient belongs to the half-step point θ̂ of the step that will use it, which is `point`;
    taken at θ instead, the order falls to one.

    Source: the symmetric splitting of Chen, Ding, Carin (2015), which Chen et al. (2016) use.
    """

    friction: float  # B, per unit of time
    temperature: float = 1.0  # T
    gradient_variance: float | tuple[float, ...] = 0.0  # V, as in `EulerHMC`

    def point(self, state: State, step_size: Scalar) -> Vector:
        """Return θ̂ = θ + hq/2."""
        return state.position + step_size / 2 * state.momentum

    def step(self, state: State, gradient: Vector, normal: Vector, step_size: Scalar) -> State:
        """Return (θ', q'), from the gradient at θ̂."""
        decay = jnp.exp(-self.friction * step_size / 2)
        spread = injected(self.friction * self.temperature, self.gradient_variance, step_size)
        half = self.point(state, step_size)
        kicked = decay * state.momentum - step_size * gradient + spread * normal
        momentum = decay * kicked
        return State(half + step_size / 2 * momentum, momentum)


@dataclass(frozen=True)
class Thermostat(Dynamics):
    r"""One step of the stochastic gradient Nosé–Hoover thermostat (SGNHT), symmetrically split.

    .. math::
        \text{A:}\quad & \theta \mathrel{+}= \tfrac h2 q, \quad
            \xi \mathrel{+}= \tfrac h2\Bigl(\tfrac{q\cdot q}{d} - T\Bigr) \\
        \text{B:}\quad & q \mathrel{*}= e^{-\xi h/2} \qquad
        \text{O:}\quad q \mathrel{+}= -h g + \sqrt{2DhT}\,\zeta

    in the order A, B, O, B, A; element-wise, ξ is a vector and A adds (h/2)(q∘q − T). The friction
    ξ starts at D and settles where the momentum has variance T, whatever the noise of the gradient
    and, element-wise, much of the energy that stale gradients feed in; d is the dimension of θ.

    Source: Ding et al. (2014), as Chen et al. (2016) use it; element-wise after Gan et al. (2015).
    """

    friction: float  # D
    elementwise: bool = False  # one ξ for each coordinate
    temperature: float = 1.0  # T

    def start(self, position: Vector) -> State:
        """Return θ at rest, with ξ = D."""
        shape = position.shape if self.elementwise else ()
        thermostat = jnp.full(shape, self.friction, position.dtype)
        return State(position, jnp.zeros_like(position), thermostat)

    def point(self, state: State, step_size: Scalar) -> Vector:
        """Return θ + hq/2."""
        return state.position + step_size / 2 * state.momentum

    def step(self, state: State, gradient: Vector, normal: Vector, step_size: Scalar) -> State:
        """Return (θ', q', ξ'), from the gradient at the half-step point."""
        half = self.point(state, step_size)
        thermostat = state.thermostat + step_size / 2 * self._excess(state.momentum)
        decay = jnp.exp(-thermostat * step_size / 2)
        spread = jnp.sqrt(2 * self.friction * self.temperature * step_size)
        kicked = decay * state.momentum - step_size * gradient + spread * normal
        momentum = decay * kicked
        return State(
            half + step_size / 2 * momentum,
            momentum,
            thermostat + step_size / 2 * self._excess(momentum),
        )

    def _excess(self, momentum: Vector) -> Float[Array, "*d"]:
        """Return the excess of the squared momentum over its mean T, per coordinate or averaged."""
        squares = momentum**2
        return (squares if self.elementwise else jnp.mean(squares)) - self.temperature


def injected(
    strength: float, gradient_variance: float | tuple[float, ...], step_size: Scalar
) -> Float[Array, "*d"]:
    """Return √(2 · strength · h − h²V), the standard deviation of the injected noise.

    The strength is the friction times the temperature, BT.
    """
    if gradient_variance == 0.0:
        return jnp.sqrt(2 * strength * step_size)
    variance = jnp.asarray(gradient_variance, step_size.dtype)
    return jnp.sqrt(2 * strength * step_size - step_size**2 * variance)
