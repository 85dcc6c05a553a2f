r"""The Metropolis test: potentials that can be subtracted, and the decision.

A log-ratio is a small difference of large sums. In single precision the sum over a million rows is
off by tenths, enough to decide wrongly, so a potential is kept there as two numbers, and its parts
are added with compensation. In double precision plain sums are good to 1e-9 and are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from jaxtyping import Bool, Float, Int

from consortia.core import blocks
from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.runtime import compiler
from consortia.runtime.late import Array, PyTree, jax, jnp

COARSE = 64.0
"""Unit of the coarse parts in single precision: their sum over sites is exact up to 1e9."""

VALUES_AT_ONCE = 2**22
"""Row values that a site holds at once when it evaluates many points: 32 MiB in double precision.
Chosen, not measured."""

VALUES_IN_CACHE, FEWEST_AT_ONCE = 2**15, 192
"""The same on a processor, where more leave its cache, and points for which a product is still
fast: 1,000 rows of 32 columns at 8,000 points take 39 ms in place of 70 (measured)."""

ROWS_TOGETHER, POINTS_TOGETHER = 2**13, 64
"""Rows of a block, on a processor, and points that are evaluated there at once where a site has
more rows than whole ones of so many points may be held: 10⁶ rows of 10 columns take 1.5 ms a point
in place of 4 (measured)."""

NUMBERS_AT_ONCE, NUMBERS_OF_ROW = 2**19, 128
"""The same of a model with a likelihood of each site, which may hold many numbers a row, such as
the nodes of a rule; and how many."""

FEW = 128
"""Values that are cut and added at once: the compensation is then good to 1e-10 of the largest."""

DIVERGENT = 1000.0
"""An energy error above this is called a divergence."""


class Potential(NamedTuple):
    """U as coarse + fine, so that sums over sites and differences lose nothing."""

    # in single precision a multiple of `COARSE`; in double precision U itself; at each of several
    # points, where it is of several
    coarse: Float[Array, "*points"]
    fine: Float[Array, "*points"]  # the rest

    @classmethod
    def of(cls, total: Float[Array, "*points"], error: Float[Array, "*points"]) -> Potential:
        """Return a potential from a sum and the compensation that belongs to it."""
        if total.dtype == jnp.float64:
            return cls(total + error, jnp.zeros_like(total))
        coarse = COARSE * jnp.round(total / COARSE)
        return cls(coarse, (total - coarse) + error)

    def above(self, other: Potential) -> Float[Array, "*points"]:
        """Return this potential minus another."""
        return (self.coarse - other.coarse) + (self.fine - other.fine)

    @property
    def value(self) -> Float[Array, "*points"]:
        """U, rounded."""
        return self.coarse + self.fine


def two_sum(first: Float[Array, "*n"], second: Float[Array, "*n"]) -> tuple[Array, Array]:
    """Return first + second as the rounded sum and its exact rounding error (Knuth)."""
    total = first + second
    part = total - first
    return total, (first - (total - part)) + (second - part)


def add_in_pairs(
    values: Float[Array, "n ..."], most: int
) -> tuple[Float[Array, "k ..."], Float[Array, "k ..."]]:
    """Add values over the first axis, pair by pair, until at most ``most`` are left.

    Return the partial sums and their compensations.
    """
    errors = jnp.zeros_like(values)
    while values.shape[0] > most:
        half, odd = divmod(values.shape[0], 2)
        total, lost = two_sum(values[:half], values[half : 2 * half])
        error = errors[:half] + errors[half : 2 * half] + lost
        if odd:
            total = jnp.concatenate([total, values[-1:]])
            error = jnp.concatenate([error, errors[-1:]])
        values, errors = total, error
    return values, errors


def compensated_sum(values: Float[Array, " n"]) -> tuple[Array, Array]:
    """Return the sum of (n,) and its compensation.

    Many values are added pair by pair. Few are cut where the sum of what is kept is exact, and what
    is cut off is the compensation. In double precision that is zero and the sum a plain one.
    Source: Rump, Ogita, Oishi, "Accurate floating-point summation" (2008).
    """
    if values.dtype == jnp.float64:
        return jnp.sum(values), jnp.zeros((), values.dtype)
    values, errors = add_in_pairs(values, FEW)
    most = values.shape[0] * jnp.max(jnp.abs(values))
    shift = 3 * jnp.exp2(jnp.ceil(jnp.log2(most)))
    rounded = (values + shift) - shift
    # Products add faster; accelerators round their factors by default.
    ones, exact = jnp.ones_like(values), jax.lax.Precision.HIGHEST
    total = jnp.dot(rounded, ones, precision=exact)
    return total, jnp.dot(values - rounded + errors, ones, precision=exact)


def potential_and_gradient(
    target: Target, position: Float[Array, " d"], site: Site
) -> tuple[Potential, Float[Array, " d"]]:
    """Return U_c(θ) and ∇U_c(θ) from all rows of a site, with one pass over them."""
    rows, mask = site.all()
    share = jnp.asarray(site.prior_share, target.dtype)

    if target.model.by_site:
        return _of_site(target, position, rows, mask, share)
    if blocks.are_many(mask):
        return _of_blocks(target, position, site)

    def pieces(theta: Float[Array, " d"]) -> tuple[Array, Array]:
        return target.log_likelihood(theta, rows), target.log_prior(theta)

    (values, prior), pull_back = jax.vjp(pieces, position)
    (gradient,) = pull_back((-mask.astype(target.dtype), -share))
    return _potential(values, mask, share * prior), gradient


def potential(target: Target, position: Float[Array, " d"], site: Site) -> Potential:
    """Return U_c(θ) alone."""
    rows, mask = site.all()
    share = jnp.asarray(site.prior_share, target.dtype)
    if target.model.by_site:
        values, real = target.summands(position, rows, mask), jnp.ones(1, bool)
    elif blocks.are_many(mask):
        return _of_blocks(target, position, site)[0]
    else:
        values, real = target.log_likelihood(position, rows), mask
    return _potential(values, real, share * target.log_prior(position))


def potentials(target: Target, positions: Float[Array, "n d"], site: Site) -> Potential:
    """Return U_c(θ) alone at each of the positions."""
    rows, _ = site.all()
    many = jax.tree.leaves(rows)[0].shape[0] > VALUES_AT_ONCE // POINTS_TOGETHER
    if not many or target.model.by_site or jax.default_backend() != "cpu":
        return at_all(target, partial(potential, target, site=site), positions, site)

    def at(position: Float[Array, " d"]) -> Potential:
        return _of_blocks(target, position, site, ROWS_TOGETHER)[0]

    values: Potential = compiler.map_in_blocks(at, positions, POINTS_TOGETHER)
    return values


def _of_site(
    target: Target,
    position: Float[Array, " d"],
    rows: PyTree,
    mask: Bool[Array, " n"],
    share: Float[Array, ""],
) -> tuple[Potential, Float[Array, " d"]]:
    """Return U_c(θ) and ∇U_c(θ) of a model with a likelihood of each site."""

    def pieces(theta: Float[Array, " d"]) -> tuple[Array, Array]:
        return target.summands(theta, rows, mask), target.log_prior(theta)

    (values, prior), pull_back = jax.vjp(pieces, position)
    (gradient,) = pull_back((-jnp.ones_like(values), -share))
    return _potential(values, jnp.ones(values.shape, bool), share * prior), gradient


def _of_blocks(
    target: Target, position: Float[Array, " d"], site: Site, block: int | None = None
) -> tuple[Potential, Float[Array, " d"]]:
    """Return U_c(θ) and ∇U_c(θ) from many rows; XLA drops the gradient where it is not used."""
    share = jnp.asarray(site.prior_share, target.dtype)

    def of_block(rows: PyTree, mask: Bool[Array, " b"]) -> tuple[Array, Array, Array]:
        values, pull_back = jax.vjp(lambda theta: target.log_likelihood(theta, rows), position)
        (gradient,) = pull_back(-mask.astype(target.dtype))
        return *compensated_sum(jnp.where(mask, -values, 0)), gradient

    totals, errors, gradients = blocks.map_blocks(of_block, *site.all(), block)
    prior, prior_gradient = jax.value_and_grad(target.log_prior)(position)
    total, error = compensated_sum(totals)
    total, lost = two_sum(total, -share * prior)
    gradient = jnp.sum(gradients, axis=0) - share * prior_gradient
    return Potential.of(total, error + jnp.sum(errors) + lost), gradient


def at_all(
    target: Target, function: Callable[[Array], PyTree], positions: Float[Array, "n d"], site: Site
) -> PyTree:
    """Evaluate a function of U_c at each of the positions, as many at once as memory allows."""
    rows, _ = site.all()
    length = jax.tree.leaves(rows)[0].shape[0]
    most = VALUES_AT_ONCE // length
    if jax.default_backend() == "cpu":
        most = min(most, max(VALUES_IN_CACHE // length, FEWEST_AT_ONCE))
    if target.model.by_site:
        most = NUMBERS_AT_ONCE // (NUMBERS_OF_ROW * length)
    return compiler.map_in_blocks(function, positions, max(most, 1))


def _potential(
    values: Float[Array, " n"], mask: Bool[Array, " n"], prior: Float[Array, ""]
) -> Potential:
    total, error = compensated_sum(jnp.where(mask, -values, 0))
    total, lost = two_sum(total, -prior)
    return Potential.of(total, error + lost)


def acceptance(energy_error: Float[Array, "*chains"]) -> Float[Array, "*chains"]:
    """Return min(1, exp(−ΔH)), 0 where ΔH is not finite."""
    rate = jnp.exp(jnp.minimum(-energy_error, 0))
    return jnp.where(jnp.isfinite(energy_error), rate, 0)


def jittered_steps(
    iteration: Int[Array, ""], most: Float[Array, ""], jitter: float
) -> Int[Array, ""]:
    r"""Return the steps of an iteration's trajectory, ⌈most (1 − jitter u)⌉, int32.

    u is a Weyl sequence of the iteration's number, which fills [0, 1) evenly and is the same for
    all chains, so that they end their trajectories together and share their messages. It depends on
    no state, so that every trajectory leaves the target as it is.
    """
    word = (iteration.astype(jnp.uint32) + jnp.uint32(1)) * jnp.uint32(2654435769)
    level = word.astype(most.dtype) * math.ldexp(1.0, -32)
    return jnp.maximum(jnp.ceil(most * (1 - jitter * level)), 1).astype(jnp.int32)
