r"""Levels of groups of rows, integrated out where the rows are by an adaptive Gauss-Hermite rule.

.. math::
    L_g = \int \prod_{i\in g} p(y_i \mid \eta_i + s_i^T A z)\, \varphi(z)\, dz
        \approx 2^{K/2}\,|S| \sum_k w_k e^{|x_k|^2} e^{h_g(\hat z + \sqrt2 S x_k)}, \qquad
    h_g(z) = \sum_{i\in g} \log p(y_i \mid \eta_i + s_i^T A z) + \log\varphi(z)

with ẑ the mode of h_g and (SSᵀ)⁻¹ = −∇²h_g(ẑ), held fixed when L is differentiated: the rule is
then as good for the gradient as it is for L. All groups of a site are integrated at once, at all
points (...): what belongs to different groups depends on different z. It is written over an array
namespace, see `consortia.core.arrays`.

Source: Pinheiro, Bates, "Approximations to the log-likelihood function in the nonlinear
mixed-effects model" (1995).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from consortia.core.arrays import (
    VALUES_AT_ONCE,
    Array,
    at_each,
    constant,
    is_host,
    logsumexp,
    namespace,
    one_by_one,
    repeat,
)
from consortia.core.model import Integration
from consortia.runtime.late import jax, jnp

PyTree = Any

NODES = {1: 15, 2: 9, 3: 7}
"""Nodes of a rule along each of K dimensions; products of more dimensions have too many."""

CHOICES = {1: (7, 15, 30, 60, 120), 2: (3, 5, 9, 18, 36), 3: (3, 5, 7, 11)}
"""Nodes that a run may take in their place: the first that are enough for its posterior. Groups
within sites have few rows each, and begin with the second: with 30 rows a site three nodes along
each of two dimensions were off by up to .2 between the points of an exploration."""

AGAINST = {1: (240,), 2: (20, 36, 72), 3: (15,)}
"""Nodes that a rule in use is measured against: the first at least four times as many, else the
last. The finer ones that may take its place are measured against the same."""

NODES_AT_ONCE = 256
"""Nodes that are computed side by side; more would take too much memory."""

NEWTON_STEPS, STAGES = 24, (3, 4, 6, 12, 24)
"""Newton steps to a mode, at most, and those after which NumPy continues with the rest alone."""

STEP_MOST, STEP_LEAST = 2.0, {4: 1e-2, 8: 1e-5}
"""Longest Newton step, in standard deviations of the level; and that of the last, in those of it
given its rows, by the bytes of a number. It leaves an error of its square: a rule of quadrature is
as good around any point so near, but what is differentiated by differences must not see that the
steps end at one or another.
"""


class GroupDensity(NamedTuple):
    """The log-likelihoods of a site's groups given z, (..., groups, K)."""

    log_likelihoods: Callable[[Array], Array]  # of every group's rows, (..., groups)
    values: int  # numbers that they are sums of
    # gradient by z (..., groups, K), and second derivatives (..., groups, K, K)
    derivatives: Callable[[Array], tuple[Array, Array]]

    def with_normal(self, z: Array) -> Array:
        """Return the log-likelihoods with log φ(z)."""
        volume = 0.5 * z.shape[-1] * math.log(2 * math.pi)
        return self.log_likelihoods(z) - 0.5 * (z**2).sum(axis=-1) - volume


def differentiated(log_likelihoods: Callable[[Array], Array]) -> GroupDensity:
    """Return the density of groups whose derivatives JAX finds; z is (groups, K)."""
    slope = jax.grad(lambda at: jnp.sum(log_likelihoods(at)))

    def derivatives(z: Array) -> tuple[Array, Array]:
        gradient, along = jax.linearize(slope, z)
        size = z.shape[1]
        units = jnp.broadcast_to(jnp.eye(size, dtype=z.dtype)[:, None], (size, *z.shape))
        return gradient, jax.vmap(along, out_axes=2)(units)

    return GroupDensity(log_likelihoods, 1, derivatives)


def integration(
    of: Callable[..., Array], size: int, nodes: int | None = None, within: bool = False
) -> Integration:
    """Return the rules of a likelihood of a site, for `consortia.core.model.Model`.

    Args:
        of: the likelihood, which takes ``nodes`` as `log_integrals` does.
        size: K, 1 to 3.
        nodes: the number that the user insists on; None: a run chooses.
        within: whether the groups lie within sites.
    """
    choices = CHOICES[size][within:] if nodes is None else (nodes,)

    def measured(used: int) -> tuple[int, ...]:
        finer = next((count for count in AGAINST[size] if count >= 4 * used), AGAINST[size][-1])
        finer = max(finer, 2 * used)
        return (*(count for count in choices if count < finer), finer)

    def with_nodes(count: int | tuple[int, ...]) -> Callable[..., Array]:
        return partial(of, nodes=count)

    return Integration(nodes or NODES[size], choices, measured, with_nodes)


def log_integrals(
    given: Callable[[PyTree], GroupDensity],
    params: PyTree,
    shape: tuple[tuple[int, ...], int, int],
    like: Array,
    nodes: int | tuple[int, ...] | None = None,
) -> Array:
    """Return the logarithms of the integrals, (..., groups); 0 of a group without rows.

    Args:
        given: the density of the groups given z, as a function of the parameters.
        params: the parameters.
        shape: the axes of the points, the number of groups, and K, 1 to 3.
        like: array whose library and type z has.
        nodes: of the rule, along each dimension; `NODES` when None. Of several the result is how
            far each rule is from the last, (rules, ..., groups).
    """
    lead, groups, size = shape
    density = given(params)
    # The search for the mode is not differentiated, and must not be traced as if it were.
    mode, spread = _modes(given, constant(params), (*lead, groups, size), like)
    counts = nodes if isinstance(nodes, tuple) else (NODES[size] if nodes is None else nodes,)
    rules = [_rule(size, count) for count in counts]
    points, weights = (np.concatenate(parts) for parts in zip(*rules, strict=True))
    values, xp = _at_nodes(density, (mode, spread), points, weights), namespace(like)
    if isinstance(nodes, tuple):
        ends = np.cumsum([len(points) for points, _ in rules])[:-1]
        each = [logsumexp(part, axis=0) for part in xp.split(values, ends)]
        return xp.stack([values - each[-1] for values in each])
    volume = xp.log(xp.prod(xp.diagonal(spread, axis1=-2, axis2=-1), axis=-1))
    return logsumexp(values, axis=0) + volume


def _at_nodes(
    density: GroupDensity, law: tuple[Array, Array], points: np.ndarray, weights: np.ndarray
) -> Array:
    """Return the logarithms of a rule's summands around mode and spread, (nodes, ..., groups)."""
    mode, spread = law

    def at(node: Array) -> Array:
        return density.with_normal(mode + (spread @ node[..., None])[..., 0])

    values = at_each(at, points, mode, NODES_AT_ONCE, density.values)
    weights = namespace(mode).asarray(weights, values.dtype)
    return values + weights.reshape(-1, *[1] * (values.ndim - 1))


def weighted_nodes(
    density: GroupDensity, shape: tuple[int, ...], like: np.ndarray, nodes: int | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield z (n, ..., groups, K) of some nodes, and their shares of the integral."""
    mode, spread = _mode(density, shape, like)
    points, weights = _rule(shape[-1], NODES[shape[-1]] if nodes is None else nodes)
    values = _at_nodes(density, (mode, spread), points, weights)
    shares = np.exp(values - logsumexp(values, axis=0))
    width = max(VALUES_AT_ONCE // density.values, 1)
    for at in range(0, len(points), width):
        apart = points[at : at + width].reshape(-1, *[1] * (len(shape) - 1), shape[-1])
        yield mode + (spread @ apart[..., None])[..., 0], shares[at : at + width]


def resampled(
    density: GroupDensity, shape: tuple[int, ...], like: Array, noise: Iterable[Noise]
) -> Array:
    r"""Return z of every group given its rows, (..., groups, K).

    A draw is one of its last value and `CANDIDATES` of a t law around the mode, with probabilities
    :math:`\propto p(z)/q(z)`, which leaves p as it is; after `SWEEPS` nothing is left of where it
    began. The noise is that of `host_noise` or `noise_of_key`.

    Source: Tjelmeland, "Using all Metropolis-Hastings proposals to estimate mean values" (2004).
    """
    mode, spread = _mode(density, shape, like)
    xp, size = namespace(like), shape[-1]
    last, last_weight = mode, xp.full(shape[:-1], -xp.inf, like.dtype)
    for normals, squares, gumbels in noise:
        white = WIDER * normals / xp.sqrt(squares / FREEDOM)
        points = mode[None] + (spread[None] @ white[..., None].astype(like.dtype))[..., 0]
        log_q = -(FREEDOM + size) / 2 * xp.log1p((white**2).sum(axis=-1) / (FREEDOM * WIDER**2))
        log_p = one_by_one(density.with_normal, points, like)
        weights = xp.concatenate([last_weight[None], log_p - log_q])
        weights = xp.where(xp.isfinite(weights), weights, -xp.inf)
        chosen = (weights + gumbels).argmax(axis=0)[None]
        every = xp.concatenate([last[None], points])
        last = xp.take_along_axis(every, chosen[..., None], axis=0)[0]
        last_weight = xp.take_along_axis(weights, chosen, axis=0)[0]
    return last


Noise = tuple[Array, Array, Array]
"""Normal, chi-squared and Gumbel's numbers of a sweep."""


def host_noise(rng: np.random.Generator, shape: tuple[int, ...]) -> Iterator[Noise]:
    """Draw the noise of z (..., groups, K) by NumPy."""
    for _ in range(SWEEPS):
        normals = rng.standard_normal((CANDIDATES, *shape))
        squares = rng.chisquare(FREEDOM, (CANDIDATES, *shape[:-1], 1))
        yield normals, squares, rng.gumbel(size=(CANDIDATES + 1, *shape[:-1]))


def noise_of_key(key: Array, shape: tuple[int, ...], dtype: Any) -> Iterator[Noise]:
    """Draw the noise of z (groups, K) by JAX."""
    for sweep in jax.random.split(key, SWEEPS):
        first, second, third = jax.random.split(sweep, 3)
        # of whole degrees of freedom: JAX draws gamma numbers one after the other
        some = jax.random.normal(second, (int(FREEDOM), CANDIDATES, *shape[:-1], 1), dtype)
        gumbels = jax.random.gumbel(third, (CANDIDATES + 1, *shape[:-1]), dtype)
        normals = jax.random.normal(first, (CANDIDATES, *shape), dtype)
        yield normals, (some**2).sum(axis=0), gumbels


CANDIDATES, SWEEPS = 10, 2
FREEDOM, WIDER = 5.0, 1.2
"""Degrees of freedom of the candidates' t law, and its scale by that of the curvature: lopsided
densities are wider on one side. Of 200 Poisson rows without an event 2,000,000 draws have the
quantiles .001 to .999 of a grid up to their Monte Carlo error."""


@cache
def _rule(size: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the points x of a rule in K dimensions, (n, K), and log w + |x|²/2 + K log 2 / 2."""
    line, weight = np.polynomial.hermite.hermgauss(nodes)
    points = np.array(list(itertools.product(line, repeat=size)))
    weights = np.log(np.array(list(itertools.product(weight, repeat=size))))
    constants = (weights + points**2).sum(axis=1) + 0.5 * size * math.log(2)
    return math.sqrt(2) * points, constants


def _modes(
    given: Callable[[PyTree], GroupDensity], params: PyTree, shape: tuple[int, ...], like: Array
) -> tuple[Array, Array]:
    """Find the same; of NumPy, few points with far modes do not keep all others waiting."""
    if not is_host(like) or len(shape) != 3:
        return _mode(given(params), shape, like)
    whole, late = _begun(shape, like), np.arange(len(like))
    count = whole.count
    for most in STAGES:
        some = {name: values[late] for name, values in params.items()}
        begun = _State(count, *(part[late] for part in whole[1:]))
        count, *parts = state = _stepped(given(some), begun, like[late], most)
        for part, values in zip(whole[1:], parts, strict=True):
            part[late] = values
        late = late[_moves(state).reshape(len(late), -1).any(axis=1)]
        if not len(late):
            break
    return whole.z, lower(_inverse(_at_least(0.25, whole.precision)))


def _mode(density: GroupDensity, shape: tuple[int, ...], like: Array) -> tuple[Array, Array]:
    """Find ẑ (..., groups, K) and S (..., groups, K, K), lower."""
    state = _stepped(density, _begun(shape, like), like, NEWTON_STEPS)
    return state.z, lower(_inverse(_at_least(0.25, state.precision)))


class _State(NamedTuple):
    """The search for ẑ after some Newton steps, with the last of them."""

    count: Any
    z: Array
    precision: Array
    move: Array
    low: Array  # the largest z from which h was seen to rise, and the smallest from which to fall
    high: Array


def _begun(shape: tuple[int, ...], like: Array) -> _State:
    xp, dtype = namespace(like), like.dtype
    zeros, everywhere = xp.zeros(shape, dtype), xp.full(shape, xp.inf, dtype)
    precision = xp.zeros((*shape, shape[-1]), dtype)
    return _State(xp.int32(0), zeros, precision, everywhere, -everywhere, everywhere)


@np.errstate(all="ignore")  # of NumPy: a step of NaN is not taken
def _stepped(density: GroupDensity, begun: _State, like: Array, most: int) -> _State:
    """Take Newton steps until they are short, up to the ``most``-th."""
    xp, unit = namespace(like), _unit(begun.precision)

    def step(state: _State) -> _State:
        gradient, second = density.derivatives(state.z)
        gradient = gradient - state.z
        precision = (unit - second).astype(unit.dtype)
        # where h is convex, a step of the prior's length uphill
        move = (_inverse(_at_least(1.0, precision)) @ gradient[..., None])[..., 0]
        low = xp.where(gradient > 0, state.z, state.low)
        high = xp.where(gradient < 0, state.z, state.high)
        if unit.size == 1:
            state = state._replace(low=low, high=high)
            move = _bracketed(move, gradient, precision[..., 0], state)
        move = xp.clip(move, -STEP_MOST, STEP_MOST).astype(state.z.dtype)
        return _State(state.count + 1, state.z + move, precision, xp.abs(move), low, high)

    def goes_on(state: _State) -> Any:
        # a level whose likelihood is not a number ends its own search alone
        return (state.count < most) & xp.any(_moves(state))

    return repeat(step, goes_on, begun, like)


def _moves(state: _State) -> Array:
    """Return True where the last step was not short beside a level's spread."""
    xp = namespace(state.z)
    spread = 1 / xp.sqrt(xp.maximum(xp.diagonal(state.precision, axis1=-2, axis2=-1), 1))
    return state.move > STEP_LEAST[state.z.dtype.itemsize] * spread


def _bracketed(move: Array, gradient: Array, precision: Array, state: _State) -> Array:
    r"""Return a Newton step where it is good, else one to where the mode may be.

    Where a rate e^{κz} is far too large, Newton's step is 1/κ however far the mode is. There the
    fall of the precision P by the last step gives κ, and with h' = C − (P − 1)/κ the step to the
    mode. What is not between the places of which h rises and falls is halved into the middle.
    """
    xp, before = namespace(move), state.precision[..., 0]
    kappa = xp.log(before / precision) / state.move
    excess = (precision - 1) / kappa
    rest = xp.maximum(excess - xp.abs(gradient), 0) + 1 / kappa
    far = xp.log(excess / rest) / kappa
    slow = (precision < before / 2) & (far > xp.abs(move))
    move = xp.where(slow, xp.sign(gradient) * far, move)
    to = state.z + xp.clip(move, -STEP_MOST, STEP_MOST)
    middle = (state.low + state.high) / 2 - state.z
    middle = xp.where(xp.isfinite(middle), middle, xp.sign(gradient) * STEP_MOST)
    within = (to >= state.low) & (to <= state.high) & xp.isfinite(precision)
    return xp.where(within, move, middle)


def _at_least(least: float, matrix: Array) -> Array:
    """Return matrices (..., K, K) whose eigenvalues are moved so that none is smaller."""
    xp = namespace(matrix)
    short = xp.maximum(least - _smallest(matrix), 0)
    return matrix + short[..., None, None] * _unit(matrix)


def _unit(like: Array) -> Array:
    """Return the unit matrix with as many axes as others have."""
    return namespace(like).eye(like.shape[-1], dtype=like.dtype)[(None,) * (like.ndim - 2)]


# --- symmetric matrices (..., K, K) with K = 1 to 3, written out: a library call a group is slow,
# and refuses all of them where one is not finite


def _inverse(matrix: Array) -> Array:
    if matrix.shape[-1] == 1:
        return 1 / matrix
    xp = namespace(matrix)
    if matrix.shape[-1] == 2:
        a, b, c = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 1]
        adjugate = xp.stack([c, -b, -b, a], axis=-1).reshape(matrix.shape)
        return adjugate / (a * c - b**2)[..., None, None]
    a, b, c = (matrix[..., row, :] for row in range(3))
    adjugate = xp.stack([xp.cross(b, c), xp.cross(c, a), xp.cross(a, b)], axis=-1)
    return adjugate / (a * adjugate[..., 0]).sum(axis=-1)[..., None, None]


def lower(matrix: Array, least: float = 0.0) -> Array:
    """Return the Cholesky factors of matrices whose eigenvalues are at least ``least``."""
    xp, size = namespace(matrix), matrix.shape[-1]
    L = [[xp.zeros_like(matrix[..., 0, 0])] * size for _ in range(size)]
    for i, j in itertools.product(range(size), repeat=2):
        rest = matrix[..., i, j] - sum(L[i][k] * L[j][k] for k in range(j))
        if i == j:
            L[i][i] = xp.sqrt(xp.maximum(rest, least))
        elif i > j:
            L[i][j] = rest / L[j][j]
    return xp.stack([xp.stack(row, axis=-1) for row in L], axis=-2)


def _smallest(matrix: Array) -> Array:
    """Return the smallest eigenvalues."""
    xp, size = namespace(matrix), matrix.shape[-1]
    if size == 1:
        return matrix[..., 0, 0]
    if size == 2:
        a, c = matrix[..., 0, 0], matrix[..., 1, 1]
        return (a + c) / 2 - xp.sqrt(((a - c) / 2) ** 2 + matrix[..., 0, 1] ** 2)
    middle = xp.trace(matrix, axis1=-2, axis2=-1) / size
    apart = matrix - middle[..., None, None] * _unit(matrix)
    spread = xp.sqrt((apart**2).sum(axis=(-2, -1)) / (size * (size - 1)))
    a, b, c = (apart[..., row, :] for row in range(3))
    cosine = (a * xp.cross(b, c)).sum(axis=-1) / (2 * xp.where(spread > 0, spread, 1.0) ** 3)
    angle = xp.arccos(xp.clip(cosine, -1, 1)) / 3
    return middle + 2 * spread * xp.cos(angle + 2 * math.pi / 3)
