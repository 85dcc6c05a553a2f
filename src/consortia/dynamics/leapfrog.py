"""The leapfrog integrator with stochastic gradients."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float

from consortia.runtime.late import Array, PyTree, jax


def leapfrog(
    force: Callable[[PyTree, Array], Array],
    position: Float[Array, " d"],
    velocity: Float[Array, " d"],
    step_size: Float[Array, ""],
    first: PyTree,
    inner: PyTree,
    inner_steps: int,
) -> Float[Array, " d"]:
    r"""Make K = ``inner_steps`` + 1 leapfrog steps without a Metropolis test.

    .. math::
        \theta' = \theta + \eta v - \tfrac{\eta^2}{2} M^{-1}g(\theta, \xi_k), \qquad
        v' = v - \tfrac{\eta}{2} M^{-1}[g(\theta, \xi_k) + g(\theta', \xi_{k+1/2})]

    in terms of the velocity v = M⁻¹p. The two half kicks between two drifts act at one point and
    are taken together, as η times the average of the two draws of the gradient; the last half kick
    never reaches the position and is left out. With one draw a point, or with exact gradients,
    nothing else changes: K exact gradients, or 2K − 1 stochastic ones, per call.

    Args:
        force: ``(numbers, position) -> (d,)``, M⁻¹g; averages the draws in ``numbers``.
        position: θ, (d,).
        velocity: v = M⁻¹p, (d,).
        step_size: η.
        first: numbers of the first half kick.
        inner: numbers of the full kicks, leading axis ``inner_steps``.
        inner_steps: K − 1.

    Returns:
        θ after K steps, (d,).

    Source: Liang et al. (2024), algorithm 1, with k < K (its ``k <= K`` does K + 1 steps).
    """
    velocity = velocity - step_size / 2 * force(first, position)

    def step(carry: tuple[Array, Array], numbers: PyTree) -> tuple[tuple[Array, Array], None]:
        theta, v = carry
        theta = theta + step_size * v
        return (theta, v - step_size * force(numbers, theta)), None

    if inner_steps:
        (position, velocity), _ = jax.lax.scan(
            step, (position, velocity), inner, length=inner_steps
        )
    return position + step_size * velocity
