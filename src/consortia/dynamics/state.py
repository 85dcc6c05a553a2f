"""The state that all stochastic dynamics share, and the form of one step."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float, PyTree


class State(NamedTuple):
    """The state of a chain; () for what a dynamics does not have.

    Attributes:
        position: θ, (d,).
        momentum: q, (d,).
        thermostat: ξ, a scalar or (d,).
        squares: Σ α^k g² over the gradients so far, (d,), and Σ α^k.
    """

    position: Float[Array, " d"]
    momentum: PyTree[Float[Array, " d"]] = ()
    thermostat: PyTree[Float[Array, "*d"]] = ()
    squares: PyTree[Float[Array, "*d"]] = ()


@runtime_checkable
class Dynamics(Protocol):
    """One step of a sampler, cut where a gradient is needed; a value that compares and hashes.

    Whoever computes the gradient, of whatever potential and however old, takes it at `point` and
    hands it to `step`: the same object serves one process, an average over sites and a server.
    """

    def start(self, position: Float[Array, " d"]) -> State:
        """Return the state of a chain that starts at ``position``, at rest."""
        ...

    def point(self, state: State, step_size: Float[Array, ""]) -> Float[Array, " d"]:
        """Return the point at which the next step of this size needs its gradient, (d,)."""
        ...

    def step(
        self,
        state: State,
        gradient: Float[Array, " d"],
        normal: Float[Array, " d"],
        step_size: Float[Array, ""],
    ) -> State:
        """Return the state after one step.

        Args:
            state: before it.
            gradient: g, an estimate of ∇U at `point`, (d,).
            normal: standard normal numbers, (d,).
            step_size: h, scalar.
        """
        ...
