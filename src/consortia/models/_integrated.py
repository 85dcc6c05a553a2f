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
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core.model import Integration
from consortia.models._shared import Array, PyTree
from consortia.runtime.compiler import map_in_blocks

NODES = {1: 15, 2: 9}
"""Nodes of a rule along each of K dimensions; products of more dimensions have too many."""

CHOICES = {1: (15, 30, 60, 120), 2: (5, 9, 18, 36)}
"""Nodes that a run may take in their place: the first that are enough for its posterior."""

AGAINST = {1: (240,), 2: (36, 72)}
"""Nodes that a rule in use is measured against: the first at least four times as many, else the
last. The finer ones that may take its place are measured against the same."""

NODES_AT_ONCE = 256
"""Nodes that are computed side by side; more would take too much memory."""

NEWTON_STEPS = 12
STEP_MOST, STEP_LEAST = 2.0, 1e-3
"""Longest Newton step, in standard deviations of the level; and that of the last, which leaves an
error of its square: a rule of quadrature is as good around any point so near."""

LINE = 3 * np.sinh(np.linspace(-1, 1, 25) * math.asinh(8 / 3))
"""Points at which log p is computed, in standard deviations from the mode. Of 24 unimodal ones
quantiles .01 to .99 are off by .016 sd at most, of 200 Poisson rows without an event."""

FINE = np.linspace(-8, 8, 513)
"""Points of its cubic spline, from which a level is drawn."""

OTHERS = 9
"""Nodes of the rule for what is drawn after it."""

LOWEST = 30.0
"""Below the largest log p on the line nothing counts, and a spline would swing."""

OfGroups = Callable[[Array], Array]
"""Function from z, (groups, K), to the log-likelihood of every group's rows, (groups,)."""


def integration(of: Callable[..., Array], size: int, nodes: int | None = None) -> Integration:
    """Return the rules of a likelihood of a site, for `consortia.core.model.Model`.

    Args:
        of: the likelihood, which takes ``nodes`` as `log_integrals` does.
        size: K, 1 or 2.
        nodes: the number that the user insists on; None: a run chooses.
    """
    own, choices = (NODES[size], CHOICES[size]) if nodes is None else (nodes, (nodes,))

    def measured(used: int) -> tuple[int, ...]:
        finer = next((one for one in AGAINST[size] if one >= 4 * used), AGAINST[size][-1])
        finer = max(finer, 2 * used)
        return (*(one for one in choices if one < finer), finer)

    def with_nodes(count: int | tuple[int, ...]) -> Callable[..., Array]:
        return partial(of, nodes=count)

    return Integration(own, choices, measured, with_nodes)


def log_integrals(
    given: Callable[[PyTree], OfGroups],
    params: PyTree,
    groups: int,
    size: int,
    dtype: np.dtype,
    nodes: int | tuple[int, ...] | None = None,
) -> Array:
    """Return the logarithms of the integrals, (groups,); 0 of a group without rows.

    Args:
        given: the log-likelihoods, as a function of z, given the parameters.
        params: the parameters.
        groups: how many.
        size: K, 1 or 2.
        dtype: of z.
        nodes: of the rule, along each dimension; `NODES` when None. Of several the result is how
            far each rule is from the last, (rules, groups).
    """
    density = _with_normal(given(params))
    # The search for the mode is not differentiated, and must not be traced as if it were.
    held = jax.tree.map(jax.lax.stop_gradient, params)
    mode, spread = _mode(_with_normal(given(held)), groups, size, dtype)
    counts = nodes if isinstance(nodes, tuple) else (NODES[size] if nodes is None else nodes,)
    rules = [_rule(size, dtype, count) for count in counts]
    points, weights = (jnp.concatenate(parts) for parts in zip(*rules, strict=True))

    def at(node: Array) -> Array:
        return density(mode + spread @ node)

    if len(points) > NODES_AT_ONCE:
        values = map_in_blocks(at, points, NODES_AT_ONCE) + weights[:, None]
    else:
        values = jax.vmap(at)(points) + weights[:, None]
    if isinstance(nodes, tuple):
        ends = np.cumsum([len(points) for points, _ in rules])[:-1]
        each = [jax.nn.logsumexp(part, axis=0) for part in jnp.split(values, ends)]
        return jnp.stack([one - each[-1] for one in each])
    volume = jnp.log(jnp.prod(jnp.diagonal(spread, axis1=1, axis2=2), axis=1))
    return jax.nn.logsumexp(values, axis=0) + volume


def drawn(log_likelihoods: OfGroups, uniforms: Array) -> Array:
    """Return z of every group given its rows, (groups, K), one coordinate after the other.

    Each is drawn on a line by one of the ``uniforms`` (groups, K) in (0, 1), given those before
    it; those after it are integrated out.
    """
    from scipy.interpolate import CubicSpline  # heavy, and only wanted here

    groups, size = uniforms.shape
    density = _with_normal(log_likelihoods)
    mode, spread = _mode(density, groups, size, uniforms.dtype)
    line, fine, to_spline = (
        jnp.asarray(values, uniforms.dtype)
        for values in (LINE, FINE, CubicSpline(LINE, np.eye(len(LINE)))(FINE))
    )

    def heights(before: Array, nodes: Array, weights: Array, point: Array) -> Array:
        """Return log p of every group at a point, up to a constant."""

        def at(node: Array) -> Array:
            rest = jnp.broadcast_to(jnp.append(point, node), (groups, node.size + 1))
            white = jnp.concatenate([before, rest], axis=1)
            return density(mode + jnp.einsum("gij,gj->gi", spread, white))

        return jax.nn.logsumexp(jax.vmap(at)(nodes) + weights[:, None], axis=0)

    white = jnp.zeros((groups, 0), uniforms.dtype)
    for place in range(size):
        rule = _rule(size - place - 1, uniforms.dtype, OTHERS)
        values = jax.lax.map(partial(heights, white, *rule), line)
        values = jnp.maximum(values - jnp.max(values, axis=0, keepdims=True), -LOWEST)
        share = jax.nn.softmax(to_spline @ values, axis=0)
        below = jnp.cumsum(share, axis=0) - 0.5 * share
        value = jax.vmap(jnp.interp, (0, 1, None))(uniforms[:, place], below, fine)
        white = jnp.concatenate([white, value[:, None]], axis=1)
    return mode + jnp.einsum("gij,gj->gi", spread, white)


def _rule(size: int, dtype: np.dtype, nodes: int) -> tuple[Array, Array]:
    """Return the points x of a rule in K dimensions, (n, K), and log w + |x|²/2 + K log 2 / 2."""
    one, weight = np.polynomial.hermite.hermgauss(nodes)
    points = np.array(list(itertools.product(one, repeat=size)))
    weights = np.log(np.array(list(itertools.product(weight, repeat=size))))
    constants = (weights + points**2).sum(axis=1) + 0.5 * size * math.log(2)
    return jnp.asarray(math.sqrt(2) * points, dtype), jnp.asarray(constants, dtype)


def _with_normal(log_likelihoods: OfGroups) -> OfGroups:
    """Return the log-likelihoods with log φ(z)."""

    def density(z: Array) -> Array:
        constant = 0.5 * z.shape[1] * math.log(2 * math.pi)
        return log_likelihoods(z) - 0.5 * jnp.sum(z**2, axis=1) - constant

    return density


def _mode(density: OfGroups, groups: int, size: int, dtype: np.dtype) -> tuple[Array, Array]:
    """Return ẑ (groups, K) and S (groups, K, K), lower."""
    slope = jax.grad(lambda at: jnp.sum(density(at)))

    def step(so_far: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        count, z, _, _ = so_far
        gradient, along = jax.linearize(slope, z)
        units = jnp.broadcast_to(jnp.eye(size, dtype=dtype)[:, None], (size, *z.shape))
        precision = -jax.vmap(along, out_axes=2)(units)
        # where h is convex, a step of the prior's length uphill
        move = jnp.einsum("gij,gj->gi", _inverse(_at_least(1.0, precision)), gradient)
        move = jnp.clip(move, -STEP_MOST, STEP_MOST)
        return count + 1, z + move, precision, jnp.max(jnp.abs(move))

    def goes_on(so_far: tuple[Array, Array, Array, Array]) -> Array:
        return (so_far[0] < NEWTON_STEPS) & (so_far[3] > STEP_LEAST)

    start, nothing = jnp.zeros((groups, size), dtype), jnp.zeros((groups, size, size), dtype)
    begun = jnp.int32(0), start, nothing, jnp.asarray(jnp.inf, dtype)
    _, mode, precision, _ = jax.lax.while_loop(goes_on, step, begun)
    return mode, _lower(_inverse(_at_least(0.25, precision)))


def _at_least(least: float, matrix: Array) -> Array:
    """Return matrices (groups, K, K) whose eigenvalues are moved so that none is smaller."""
    short = jnp.maximum(least - _smallest(matrix), 0)
    return matrix + short[:, None, None] * jnp.eye(matrix.shape[1], dtype=matrix.dtype)[None]


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
