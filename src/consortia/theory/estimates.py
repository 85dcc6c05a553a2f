"""Curvature and gradient noise at one position, from the rows of all sites in one place.

What step sizes and injected noise are chosen by, above all with stale gradients.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consortia.core import arguments
from consortia.core.model import Model
from consortia.core.parameters import spaced
from consortia.core.target import Target, in_jax_width
from consortia.data.sites import Sites
from consortia.errors import wrong
from consortia.runtime import compiler
from consortia.runtime.late import Array, jax, jnp
from consortia.theory.arguments import floats

SITE_ROWS = 2000
"""Rows of a site that are read, evenly spaced where it has more."""

LEAST_ROWS, AFFORDABLE_FLOPS = 200, 2e11
"""Fewer are read for the curvature where that is more than so many floating-point operations."""


def gradient_noise_variance(
    model: Model,
    sites: Sites,
    position: Any,
    batch_size: int | None,
    *,
    replace: bool = True,
    shares: Any = None,
    rows: int = SITE_ROWS,
) -> np.ndarray:
    r"""Estimate V, the variance per coordinate of the gradients that reach the server.

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

    Example:
        >>> import consortia, numpy as np
        >>> model = consortia.models.linear_regression(1)
        >>> rows = {"x": np.ones((4, 1), np.float32), "y": np.float32([1, 2, 3, 2])}
        >>> sites = consortia.Sites.from_list([rows, rows])
        >>> consortia.gradient_noise_variance(model, sites, model.init, batch_size=2).shape
        (1,)
    """
    batch = arguments.optional_whole("batch_size", batch_size, 1)
    if not replace:
        arguments.batch_fits(batch, np.asarray(sites.sizes), sites.names)
    given = arguments.site_weights(shares)
    arguments.weights_fit(given, sites.names)
    f = np.full(len(sites), 1 / len(sites)) if given is None else np.asarray(given)
    target, theta = _at(model, position)
    sizes = np.asarray(sites.sizes, np.float64)
    moments = jax.jit(_row_moments, static_argnums=0)
    noise = np.zeros(target.dimension)
    gradients = np.empty((len(sites), target.dimension))
    prior_part = np.asarray(jax.grad(target.log_prior)(theta), np.float64)
    for c, size in enumerate(sizes):
        mean, second = (
            np.asarray(moment, np.float64)
            for moment in moments(target, theta, _rows(sites.site(c), rows))
        )
        gradients[c] = -size * mean - size / sizes.sum() * prior_part
        variance = np.maximum(second - mean**2, 0)
        noise += minibatch_noise(variance, int(size), batch, replace=replace) / f[c]
    if len(sites) == 1:
        return noise
    return noise + np.maximum(
        (gradients**2 / f[:, None]).sum(axis=0) - gradients.sum(axis=0) ** 2, 0
    )


def largest_curvature(
    model: Model,
    sites: Sites,
    position: Any,
    *,
    iterations: int = 30,
    rows: int | None = None,
    tolerance: float = 0.0,
) -> float:
    """Estimate the largest eigenvalue of ∇²U at a position, in size, by the power method.

    Args:
        model: log-prior and per-row log-likelihood.
        sites: the data.
        position: θ, parameters like the model's.
        iterations: products with the Hessian, at most.
        rows: how many rows of a site are read, at most; their part is scaled up to the site's.
            When None 2,000, of models with costly gradients fewer, down to 200.
        tolerance: relative change at which the iteration ends.

    Returns:
        Its size; the power method comes from below, so that a step size that it refuses is too
        large.

    Raises:
        InputError: the model or the data cannot be used.

    Example:
        >>> import consortia, numpy as np
        >>> model = consortia.models.linear_regression(1)
        >>> rows = {"x": np.ones((4, 1), np.float32), "y": np.float32([1, 2, 3, 2])}
        >>> sites = consortia.Sites.from_list([rows, rows])
        >>> round(consortia.largest_curvature(model, sites, model.init), 2)
        9.0
    """
    parameters = jax.tree.map(lambda leaf: in_jax_width(np.asarray(leaf)), position)
    if rows is None:
        rows = _affordable_rows(model, parameters, sites, iterations)
    parts = [_picked(shard, rows) for shard in sites]
    counts = np.array([len(jax.tree.leaves(part)[0]) for part in parts])
    picked = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    each = np.repeat(np.asarray(sites.sizes) / counts, counts)
    weights = in_jax_width(each)
    dimension = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    start = np.random.default_rng(0).normal(size=dimension).astype(weights.dtype)
    limit = weights.dtype.type(tolerance)
    return float(_power(model, iterations, parameters, picked, weights, start, limit))


def _affordable_rows(model: Model, parameters: Any, sites: Sites, iterations: int) -> int:
    """Return a number of rows whose products with the Hessian take some seconds at most."""
    row = jax.tree.map(lambda leaf: in_jax_width(leaf[:1]), sites.first)

    def value(params: Any, row: Any) -> Array:
        return jnp.sum(jnp.asarray(model.log_likelihood(params, row)))

    cost = jax.jit(jax.grad(value)).lower(parameters, row).cost_analysis() or {}
    # A product with the Hessian takes about three gradients.
    work = 3 * iterations * max(float(cost.get("flops", 0.0)), 1.0)
    return int(np.clip(AFFORDABLE_FLOPS / work, LEAST_ROWS, SITE_ROWS))


@partial(compiler.jit, options=compiler.lightly, static_argnums=(0, 1))
def _power(
    model: Model,
    iterations: int,
    parameters: Any,
    rows: Any,
    weights: Array,
    start: Array,
    tolerance: Array,
) -> Array:
    """Run the power method on weighted rows; compiled once for a model and shapes."""
    target = Target(model, parameters)
    theta = target.ravel(parameters)

    def potential(at: Array) -> Array:
        return -target.log_prior(at) - jnp.vdot(weights, target.log_likelihood(at, rows))

    def once(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        count, vector, before, _ = state
        vector = vector / jnp.linalg.norm(vector)
        image = jax.jvp(jax.grad(potential), (theta,), (vector,))[1]
        flat = jnp.linalg.norm(image) == 0
        now = jnp.abs(jnp.vdot(vector, image))
        return count + 1, jnp.where(flat, vector, image), now, jnp.abs(now - before)

    def unsettled(state: tuple[Array, Array, Array, Array]) -> Array:
        count, _, now, change = state
        return (count < iterations) & ((count < 3) | (change > tolerance * now))

    zero = jnp.zeros((), target.dtype)
    return jax.lax.while_loop(unsettled, once, (jnp.zeros((), int), start, zero, zero))[2]


def _at(model: Model, position: Any) -> tuple[Target, Array]:
    parameters = jax.tree.map(jnp.asarray, position)
    target = Target(model, parameters)
    return target, target.ravel(parameters)


def _rows(shard: Any, most: int) -> Any:
    return jax.tree.map(jnp.asarray, _picked(shard, most))


def _picked(shard: Any, most: int) -> Any:
    """Return evenly spaced rows of a site on the host."""
    chosen = spaced(len(jax.tree.leaves(shard)[0]), most)
    return jax.tree.map(lambda leaf: in_jax_width(leaf[chosen]), shard)


def _row_moments(target: Target, theta: Array, rows: Any) -> tuple[Array, Array]:
    """Return the mean and mean square over the rows of ∇log p(z_i|θ), (d,) each."""

    def one(carry: tuple[Array, Array], row: Any) -> tuple[tuple[Array, Array], None]:
        single = jax.tree.map(lambda leaf: leaf[None], row)
        gradient = jax.grad(lambda at: jnp.sum(target.log_likelihood(at, single)))(theta)
        return (carry[0] + gradient, carry[1] + gradient**2), None

    zero = jnp.zeros_like(theta)
    (first, second), _ = jax.lax.scan(one, (zero, zero), rows)
    count = jax.tree.leaves(rows)[0].shape[0]
    return first / count, second / count


def minibatch_noise(
    row_variance: ArrayLike, rows: int, batch_size: int | None, *, replace: bool = True
) -> np.ndarray:
    r"""Return V, the variance of a minibatch gradient of U, from that of single rows' gradients.

    .. math:: V = \frac{n^2}{B}\operatorname{Var}_i, \quad
              \text{without replacement times } \frac{n - B}{n - 1}

    Args:
        row_variance: variance over the rows, or covariance, divided by n and not n − 1.
        rows: n.
        batch_size: B; None is the full batch, without noise.
        replace: rows with replacement.

    Returns:
        V, of the shape of ``row_variance``.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> float(minibatch_noise(2.0, 100, 10))
        2000.0
    """
    given, n = floats(row_variance, "row_variance"), arguments.whole("rows", rows, 1)
    if batch_size is None:
        return np.zeros_like(given)
    b = arguments.whole("batch_size", batch_size, 1)
    variance = given * n**2 / b
    if replace:
        return variance
    if b > n:
        raise wrong("batch_size", f": {b} rows without replacement of only {n}")
    return variance * (n - b) / max(n - 1, 1)
