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


class Normal(NamedTuple):
    """A normal law.

    Attributes:
        mean: (d,), in the order of the flattened parameters.
        root: (d, d), whose product with its transpose is the covariance.
    """

    mean: np.ndarray
    root: np.ndarray


class _State(NamedTuple):
    """A position with its potential and gradient, so that no trajectory computes them again."""

    position: jax.Array
    potential: jax.Array
    gradient: jax.Array


def reference_draws(
    model: consortia.Model,
    rows: Any,
    *,
    draws: int,
    step_size: float,
    chains: int = 4,
    leapfrog_steps: int = 8,
    warmup: int | None = None,
    near: Normal | None = None,
    seed: int = 0,
) -> Reference:
    r"""Draws of π ∝ p(θ) Π_i p(z_i | θ) by HMC with a Metropolis test.

    Each trajectory has between half of ``leapfrog_steps`` and all of them, so that no direction
    of the posterior returns to its start; those of all chains are as long, so that none waits.

    Args:
        model: whose ``init`` is a pytree of arrays.
        rows: all rows, one pytree.
        draws: kept draws of a chain.
        step_size: of a leapfrog step.
        chains: independent chains.
        leapfrog_steps: of the longest trajectory.
        warmup: draws of a chain that are left out at the beginning; by default as many as are kept.
        near: a normal law like the posterior: chains move in its coordinates, and start at its
            draws in the place of the model's ``init``. At its mean all coordinates would have the
            same error of energy, too large in many dimensions.
        seed: of the proposals.

    Raises:
        ValueError: the model has no prior.
    """
    if model.log_prior is None:
        raise ValueError("reference_draws: the model has no prior")
    key, own = jax.random.split(jax.random.key(seed))
    counts = draws if warmup is None else warmup, draws
    shortest = leapfrog_steps // 2
    lengths = jax.random.randint(key, (sum(counts),), shortest, leapfrog_steps + 1)
    keys = jax.random.split(own, chains)
    kept, accepted = _run(model, counts[1], step_size, rows, near, lengths, keys)
    result = np.asarray(kept)
    verdict = rhat_and_ess(result, max_coordinates="all")
    return Reference(result, float(accepted.mean()), verdict.max_r_hat, verdict.min_ess)


@partial(jax.jit, static_argnums=(0, 1))
def _run(
    model: Any,
    kept: int,
    step_size: float,
    rows: Any,
    near: Normal | None,
    lengths: jax.Array,
    keys: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Positions (chains, draws, d) and whether each was accepted (chains, draws)."""
    init, unravel = ravel_pytree(jax.tree.map(jnp.asarray, model.init))

    def place(position: jax.Array) -> jax.Array:
        return position if near is None else near.mean + near.root @ position

    def potential(position: jax.Array) -> jax.Array:
        parameters = unravel(place(position))
        return -jnp.sum(model.log_likelihood(parameters, rows)) - model.log_prior(parameters)

    evaluate = jax.value_and_grad(potential)

    def step(
        state: _State, drawn: tuple[jax.Array, jax.Array]
    ) -> tuple[_State, tuple[jax.Array, jax.Array]]:
        key, length = drawn
        momentum_key, accept_key = jax.random.split(key)
        momentum = jax.random.normal(momentum_key, init.shape, init.dtype)

        def leapfrog(_: Any, at: tuple[_State, jax.Array]) -> tuple[_State, jax.Array]:
            here, moving = at
            moving = moving - step_size / 2 * here.gradient
            position = here.position + step_size * moving
            there = _State(position, *evaluate(position))
            return there, moving - step_size / 2 * there.gradient

        proposal, final = jax.lax.fori_loop(0, length, leapfrog, (state, momentum))
        loss = proposal.potential - state.potential
        loss = loss + (jnp.sum(final**2) - jnp.sum(momentum**2)) / 2
        accepted = jnp.log(jax.random.uniform(accept_key)) < -loss
        state = jax.tree.map(partial(jnp.where, accepted), proposal, state)
        return state, (place(state.position), accepted)

    def chain(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        start = init
        if near is not None:
            start_key, key = jax.random.split(key)
            start = jax.random.normal(start_key, init.shape, init.dtype)
        first = _State(start, *evaluate(start))
        return jax.lax.scan(step, first, (jax.random.split(key, len(lengths)), lengths))[1]

    positions, accepted = jax.vmap(chain)(keys)
    return positions[:, -kept:], accepted[:, -kept:]
