"""Metropolis-adjusted HMC on pooled rows: the reference that approximate draws are judged by."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import consortia
from consortia.diagnostics import rhat_and_ess


class Reference(NamedTuple):
    """Draws of the posterior, and how good they are.

    Attributes:
        draws: (chains, draws, d), in the order of the flattened parameters.
        acceptance: share of the proposals that were accepted.
        r_hat: the largest over the coordinates.
        ess: the smallest over the coordinates, bulk and tail.
    """

    draws: np.ndarray
    acceptance: float
    r_hat: float
    ess: float


def reference_draws(
    model: consortia.Model,
    rows: Any,
    *,
    draws: int,
    step_size: float,
    chains: int = 4,
    leapfrog_steps: int = 8,
    seed: int = 0,
) -> Reference:
    r"""Draws of π ∝ p(θ) Π_i p(z_i | θ) by HMC with a Metropolis test.

    Each trajectory has between half of ``leapfrog_steps`` and all of them, so that no direction
    of the posterior returns to its start. As many draws are left out at the beginning as are kept.

    Args:
        model: whose ``init`` is a pytree of arrays.
        rows: all rows, one pytree.
        draws: kept draws of a chain.
        step_size: of a leapfrog step.
        chains: independent chains.
        leapfrog_steps: of the longest trajectory.
        seed: of the proposals.

    Raises:
        ValueError: the model has no prior.
    """
    if model.log_prior is None:
        raise ValueError("reference_draws: the model has no prior")
    keys = jax.random.split(jax.random.key(seed), chains)
    kept, accepted = _run(model, draws, leapfrog_steps, step_size, rows, keys)
    result = np.asarray(kept)
    verdict = rhat_and_ess(result)
    return Reference(result, float(accepted.mean()), verdict.max_r_hat, verdict.min_ess)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _run(
    model: Any, draws: int, leapfrog_steps: int, step_size: float, rows: Any, keys: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Positions (chains, draws, d) and whether each was accepted (chains, draws)."""
    start, unravel = ravel_pytree(jax.tree.map(jnp.asarray, model.init))

    def potential(position: jax.Array) -> jax.Array:
        parameters = unravel(position)
        return -jnp.sum(model.log_likelihood(parameters, rows)) - model.log_prior(parameters)

    gradient = jax.grad(potential)

    def step(position: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        momentum_key, length_key, accept_key = jax.random.split(key, 3)
        momentum = jax.random.normal(momentum_key, position.shape, position.dtype)
        length = jax.random.randint(length_key, (), leapfrog_steps // 2, leapfrog_steps + 1)

        def leapfrog(_: Any, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            here, moving = state
            moving = moving - step_size / 2 * gradient(here)
            here = here + step_size * moving
            return here, moving - step_size / 2 * gradient(here)

        proposal, final = jax.lax.fori_loop(0, length, leapfrog, (position, momentum))
        loss = potential(proposal) - potential(position)
        loss = loss + (jnp.sum(final**2) - jnp.sum(momentum**2)) / 2
        accepted = jnp.log(jax.random.uniform(accept_key)) < -loss
        position = jnp.where(accepted, proposal, position)
        return position, (position, accepted)

    def chain(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.scan(step, start, jax.random.split(key, 2 * draws))[1]

    positions, accepted = jax.vmap(chain)(keys)
    return positions[:, draws:], accepted[:, draws:]
