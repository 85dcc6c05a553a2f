"""What the settings of a sampler with stale gradients depend on, measured at one point.

Both functions read the rows of all sites in one place, as a simulation can.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia import checks
from consortia.model import Model
from consortia.sites import Sites, in_jax_width
from consortia.target import Target

Array = jax.Array

MOST_ROWS = 2000
"""Rows of a site that are read, evenly spaced where it has more."""


def gradient_noise_variance(
    model: Model,
    sites: Sites,
    position: Any,
    batch_size: int | None,
    *,
    replace: bool = True,
    shares: Any = None,
    rows: int = MOST_ROWS,
) -> np.ndarray:
    r"""V, the variance per coordinate of the gradients that reach the server, at one position.

    .. math:: V = \sum_c f_c \Bigl[\frac{1}{f_c^2}\Bigl(\frac{n_c^2}{B}\operatorname{Var}_{i \in c}
              \nabla\log p(z_i|\theta) + (\nabla U_c)^2\Bigr)\Bigr] - (\nabla U)^2

    with one site n²/B times the variance over the rows; times (n − B)/(n − 1) without replacement.

    Args:
        model: log-prior and per-row log-likelihood.
        sites: the data.
        position: θ, parameters like the model's; best near the mode.
        batch_size: B; None for full gradients, of which only the sites' differences are left.
        replace: minibatches with replacement.
        shares: f_c of the updates, equal ones when None.
        rows: how many rows of a site are read, at most.

    Returns:
        V, (d,), in the scale of ∇U, float64.

    Raises:
        InputError: an argument is out of its range.
    """
    batch = checks.optional_whole("batch_size", batch_size, 1)
    if not replace:
        checks.batch_fits(batch, np.asarray(sites.sizes), sites.names)
    given = checks.site_weights(shares)
    checks.weights_fit(given, sites.names)
    f = np.full(len(sites), 1 / len(sites)) if given is None else np.asarray(given)
    target, theta = _at(model, position)
    sizes = np.asarray(sites.sizes, np.float64)
    moments = jax.jit(_row_moments, static_argnums=0)
    noise = np.zeros(target.dimension)
    pulls = np.empty((len(sites), target.dimension))
    prior_part = np.asarray(jax.grad(target.log_prior)(theta), np.float64)
    for c, size in enumerate(sizes):
        mean, second = (
            np.asarray(moment, np.float64)
            for moment in moments(target, theta, _rows(sites.shards[c], rows))
        )
        pulls[c] = -size * mean - size / sizes.sum() * prior_part
        if batch is not None:
            own = size**2 / batch * np.maximum(second - mean**2, 0)
            noise += own / f[c] * (1 if replace else (size - batch) / max(size - 1, 1))
    if len(sites) == 1:
        return noise
    return noise + np.maximum((pulls**2 / f[:, None]).sum(axis=0) - pulls.sum(axis=0) ** 2, 0)


def largest_curvature(
    model: Model, sites: Sites, position: Any, *, iterations: int = 30, rows: int = MOST_ROWS
) -> float:
    """The largest eigenvalue of ∇²U at a position, in size, by the power method.

    Args:
        model: log-prior and per-row log-likelihood.
        sites: the data.
        position: θ, parameters like the model's.
        iterations: products with the Hessian.
        rows: how many rows of a site are read, at most; their part is scaled up to the site's.

    Returns:
        |λ|; from below, so that a step size that it refuses is too large.
    """
    parameters = jax.tree.map(jnp.asarray, position)
    parts = [_rows(shard, rows) for shard in sites.shards]
    sizes = jnp.asarray(np.asarray(sites.sizes), jnp.result_type(float))
    return float(_power(model, iterations, parameters, parts, sizes))


@partial(jax.jit, static_argnums=(0, 1))
def _power(model: Model, iterations: int, parameters: Any, parts: Any, sizes: Array) -> Array:
    """The power method; compiled once for a model and shapes."""
    target = Target(model, parameters)
    theta = target.ravel(parameters)

    def potential(at: Array) -> Array:
        value = -target.log_prior(at)
        for part, size in zip(parts, sizes, strict=True):
            value = value - size * jnp.mean(target.log_likelihood(at, part))
        return value

    def once(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        vector, _ = state
        vector = vector / jnp.linalg.norm(vector)
        image = jax.jvp(jax.grad(potential), (theta,), (vector,))[1]
        flat = jnp.linalg.norm(image) == 0
        return jnp.where(flat, vector, image), jnp.abs(jnp.vdot(vector, image))

    start = jax.random.normal(jax.random.key(0), (target.dimension,), target.dtype)
    return jax.lax.fori_loop(0, iterations, once, (start, jnp.zeros((), target.dtype)))[1]


def _at(model: Model, position: Any) -> tuple[Target, Array]:
    parameters = jax.tree.map(jnp.asarray, position)
    target = Target(model, parameters)
    return target, target.ravel(parameters)


def _rows(shard: Any, most: int) -> Any:
    length = jax.tree.leaves(shard)[0].shape[0]
    chosen = np.unique(np.linspace(0, length - 1, min(most, length)).round().astype(int))
    return jax.tree.map(lambda leaf: jnp.asarray(in_jax_width(leaf[chosen])), shard)


def _row_moments(target: Target, theta: Array, rows: Any) -> tuple[Array, Array]:
    """Mean and mean square over the rows of ∇log p(z_i|θ), (d,) each."""

    def one(carry: tuple[Array, Array], row: Any) -> tuple[tuple[Array, Array], None]:
        single = jax.tree.map(lambda leaf: leaf[None], row)
        gradient = jax.grad(lambda at: jnp.sum(target.log_likelihood(at, single)))(theta)
        return (carry[0] + gradient, carry[1] + gradient**2), None

    zero = jnp.zeros_like(theta)
    (first, second), _ = jax.lax.scan(one, (zero, zero), rows)
    count = jax.tree.leaves(rows)[0].shape[0]
    return first / count, second / count
