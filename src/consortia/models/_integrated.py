r"""Levels of groups of rows, integrated out where the rows are by an adaptive Gauss-Hermite rule.

.. math::
    L_g = \int \prod_{i\in g} p(y_i \mid \eta_i + s_i^T A z)\, \varphi(z)\, dz
        \approx 2^{K/2}\,|S| \sum_k w_k e^{|x_k|^2} e^{h_g(\hat z + \sqrt2 S x_k)}, \qquad
    h_g(z) = \sum_{i\in g} \log p(y_i \mid \eta_i + s_i^T A z) + \log\varphi(z)

with ẑ the mode of h_g and (SSᵀ)⁻¹ = −∇²h_g(ẑ), held fixed when L is differentiated: the rule is
then as good for the gradient as it is for L. All groups of a site are integrated at once: what
belongs to different groups depends on different z.

Source: Pinheiro, Bates, "Approximations to the log-likelihood function in the nonlinear
mixed-effects model" (1995).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from consortia.models._shared import Array

NODES = {1: 15, 2: 9}
"""Of a rule along each of K dimensions; products of more dimensions have too many."""

NEWTON_STEPS = 12
STEP_MOST = 2.0
"""Of a Newton step, in standard deviations of the level."""

GRID, REACH = {1: 401, 2: 41}, {1: 8.0, 2: 5.0}
"""Points and standard deviations to both sides of the mode, where a level is drawn."""

OfGroups = Callable[[Array], Array]
"""From z, (groups, K), to the log-likelihood of every group's rows, (groups,)."""


def log_integrals(log_likelihoods: OfGroups, groups: int, size: int, dtype: np.dtype) -> Array:
    """Return the logarithms of the integrals, (groups,); 0 of a group without rows.

    Args:
        log_likelihoods: of z.
        groups: how many.
        size: K, 1 or 2.
        dtype: of z.
    """
    density = _with_normal(log_likelihoods)
    mode, spread = _mode(density, groups, size, dtype)
    one, weight = np.polynomial.hermite.hermgauss(NODES[size])
    nodes = np.array(list(itertools.product(one, repeat=size)))
    weights = np.log(np.array(list(itertools.product(weight, repeat=size)))).sum(axis=1)
    constants = jnp.asarray(weights + (nodes**2).sum(axis=1), dtype)

    def at(node: Array) -> Array:
        return density(mode + math.sqrt(2) * spread @ node)

    values = jax.vmap(at)(jnp.asarray(nodes, dtype)) + constants[:, None]
    volume = jnp.log(jnp.prod(jnp.diagonal(spread, axis1=1, axis2=2), axis=1))
    return jax.nn.logsumexp(values, axis=0) + volume + 0.5 * size * math.log(2)


def drawn(log_likelihoods: OfGroups, uniforms: Array) -> Array:
    """Return z of every group given its rows, (groups, K), on a grid.

    Args:
        log_likelihoods: of z.
        uniforms: in (0, 1), (groups, K).
    """
    groups, size = uniforms.shape
    density = _with_normal(log_likelihoods)
    mode, spread = _mode(density, groups, size, uniforms.dtype)
    line = jnp.linspace(-REACH[size], REACH[size], GRID[size], dtype=uniforms.dtype)
    points = jnp.stack(jnp.meshgrid(*[line] * size, indexing="ij"), axis=-1).reshape(-1, size)
    values = jax.lax.map(lambda point: density(mode + spread @ point), points)
    shares = jax.nn.softmax(values, axis=0).T.reshape(groups, *[GRID[size]] * size)

    def of_group(share: Array, uniform: Array) -> Array:
        """Return whitened coordinates: the first by its marginal, the next given the nearest."""
        found = []
        for place in range(size):
            marginal = share.reshape(share.shape[0], -1).sum(axis=1)
            below = jnp.cumsum(marginal) - 0.5 * marginal
            value = jnp.interp(uniform[place], below / jnp.sum(marginal), line)
            found.append(value)
            share = share[jnp.argmin(jnp.abs(line - value))]
        return jnp.stack(found)

    return mode + jnp.einsum("gij,gj->gi", spread, jax.vmap(of_group)(shares, uniforms))


def _with_normal(log_likelihoods: OfGroups) -> OfGroups:
    """Return the log-likelihoods with log φ(z)."""

    def density(z: Array) -> Array:
        constant = 0.5 * z.shape[1] * math.log(2 * math.pi)
        return log_likelihoods(z) - 0.5 * jnp.sum(z**2, axis=1) - constant

    return density


def _mode(density: OfGroups, groups: int, size: int, dtype: np.dtype) -> tuple[Array, Array]:
    """Return ẑ (groups, K) and S (groups, K, K), lower; no derivative passes through them."""

    def slope(z: Array) -> Array:
        return jax.grad(lambda at: jnp.sum(density(at)))(z)

    def precision(z: Array, least: float) -> Array:
        """Return −∇²h with its eigenvalues moved so that none is below ``least``."""

        def along(unit: Array) -> Array:
            return -jax.jvp(slope, (z,), (jnp.broadcast_to(unit, z.shape),))[1]

        matrix = jax.vmap(along, out_axes=2)(jnp.eye(size, dtype=dtype))
        short = jnp.maximum(least - _smallest(matrix), 0)
        return matrix + short[:, None, None] * jnp.eye(size, dtype=dtype)[None]

    def step(z: Array, _: None) -> tuple[Array, None]:
        # where h is convex, a step of the prior's length uphill
        move = jnp.einsum("gij,gj->gi", _inverse(precision(z, 1.0)), slope(z))
        return z + jnp.clip(move, -STEP_MOST, STEP_MOST), None

    start = jnp.zeros((groups, size), dtype)
    mode = jax.lax.stop_gradient(jax.lax.scan(step, start, length=NEWTON_STEPS)[0])
    at_mode = jax.lax.stop_gradient(precision(mode, 0.25))
    spread = _lower(_inverse(at_mode))
    return mode, jax.lax.stop_gradient(spread)


# --- symmetric matrices (groups, K, K) with K = 1 or 2, written out: a library call a group is slow


def _inverse(matrix: Array) -> Array:
    if matrix.shape[1] == 1:
        return 1 / matrix
    a, b, c = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 1]
    determinant = (a * c - b**2)[:, None, None]
    rows = [jnp.stack([c, -b], axis=1), jnp.stack([-b, a], axis=1)]
    return jnp.stack(rows, axis=1) / determinant


def _lower(matrix: Array) -> Array:
    """Return the Cholesky factors."""
    if matrix.shape[1] == 1:
        return jnp.sqrt(matrix)
    first = jnp.sqrt(matrix[:, 0, 0])
    below = matrix[:, 0, 1] / first
    last = jnp.sqrt(matrix[:, 1, 1] - below**2)
    rows = [jnp.stack([first, jnp.zeros_like(first)], axis=1), jnp.stack([below, last], axis=1)]
    return jnp.stack(rows, axis=1)


def _smallest(matrix: Array) -> Array:
    """Return the smallest eigenvalues."""
    if matrix.shape[1] == 1:
        return matrix[:, 0, 0]
    a, b, c = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 1]
    return (a + c) / 2 - jnp.sqrt(((a - c) / 2) ** 2 + b**2)
