"""Gradient oracles: exact, minibatch, noisy; each may wrap another and has one signature."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Bool, Float

from consortia.core.contract import Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.runtime.late import Array, PyTree, jax, jnp

__all__ = [
    "GradientOracle",
    "control_variate",
    "estimate",
    "exact",
    "minibatch",
    "noisy",
]

Evaluate = Callable[[PyTree, Float[Array, " d"]], Float[Array, " d"]]


class GradientOracle(NamedTuple):
    """An unbiased estimate of ∇U_c, as the numbers it needs and what it does with them.

    Attributes:
        numbers: ``(rng, stream, shape) -> pytree`` with leading axes ``shape``; the last of them
            counts the independent draws that one evaluation averages.
        prepare: ``(numbers, site) -> numbers``: whatever can be done for all evaluations at once.
        bind: ``site -> evaluate``, with ``evaluate(numbers, position) -> (d,)``, the estimate of
            ∇U_c from the numbers of one evaluation (leading axis: draws).
        deterministic: the estimate is a function of the position alone.
    """

    numbers: Callable[[RandomStreams, str, tuple[int, ...]], PyTree]
    prepare: Callable[[PyTree, Site], PyTree]
    bind: Callable[[Site], Evaluate]
    deterministic: bool = False


def exact(target: Target) -> GradientOracle:
    """Return ∇U_c(θ) = −Σ_{i∈c} ∇log p(z_i|θ) − λ_c ∇log p(θ) over all rows; no noise."""

    def bind(site: Site) -> Evaluate:
        rows, mask = site.all()

        def evaluate(numbers: PyTree, position: Float[Array, " d"]) -> Float[Array, " d"]:
            return jax.grad(target.potential)(position, rows, mask, site)

        return evaluate

    def declare(rng: RandomStreams, stream: str, shape: tuple[int, ...]) -> PyTree:
        return ()

    def prepare(numbers: PyTree, site: Site) -> PyTree:
        return numbers

    return GradientOracle(declare, prepare, bind, deterministic=True)


def estimate(target: Target, batch_size: int | None, *, replace: bool = True) -> GradientOracle:
    """Return `minibatch`, or `exact` where ``batch_size`` is None: all rows."""
    if batch_size is None:
        return exact(target)
    return minibatch(target, batch_size, replace=replace)


def minibatch(target: Target, batch_size: int, *, replace: bool = True) -> GradientOracle:
    """Return −(n_c/B) Σ_{i∈batch} ∇log p(z_i|θ) − λ_c ∇log p(θ), unbiased for ∇U_c(θ).

    Several draws of one evaluation are one batch of draws × B rows, which is their average.

    Args:
        target: the posterior.
        batch_size: B, rows a draw.
        replace: draw the B rows with replacement (fast) or as a uniform subset of the site.
    """

    def declare(rng: RandomStreams, stream: str, shape: tuple[int, ...]) -> Array:
        return rng.bits(f"{stream}/rows", (*shape, batch_size))

    def prepare(numbers: PyTree, site: Site) -> PyTree:
        return site.index(numbers, replace=replace)

    def bind(site: Site) -> Evaluate:
        def evaluate(numbers: PyTree, position: Float[Array, " d"]) -> Float[Array, " d"]:
            rows = site.rows(numbers.reshape(-1))
            return jax.grad(target.batch_potential)(position, rows, site)

        return evaluate

    return GradientOracle(declare, prepare, bind)


def control_variate(
    oracle: GradientOracle,
    anchor: Float[Array, " d"],
    exact_at_anchor: Float[Array, " d"],
    replacement: Float[Array, " d"],
    active: Bool[Array, ""],
) -> GradientOracle:
    """Return ∇U_c(θ) − ∇U_c(a) + G, with the same rows at θ and at the anchor a.

    Args:
        oracle: the estimate of ∇U_c.
        anchor: a, (d,).
        exact_at_anchor: ∇U_c(a), (d,); saves an evaluation when the oracle is deterministic.
        replacement: G, (d,), what the difference is added to: the exact ∇U_c(a) for a plain
            control variate, w_c ∇U(a) for the de-biased federated force.
        active: boolean scalar; False leaves the oracle as it is (there is no anchor yet).
    """

    def bind(site: Site) -> Evaluate:
        inner = oracle.bind(site)

        def evaluate(numbers: PyTree, position: Float[Array, " d"]) -> Float[Array, " d"]:
            at_anchor = exact_at_anchor if oracle.deterministic else inner(numbers, anchor)
            return inner(numbers, position) + jnp.where(active, replacement - at_anchor, 0)

        return evaluate

    return oracle._replace(bind=bind)


def noisy(oracle: GradientOracle, variance: float, dimension: int) -> GradientOracle:
    """Add N(0, variance · w_c² I) to each draw of an estimate of ∇U_c.

    In units of ∇f_c = ∇U_c / w_c, the scale in which federated averaging states it, the noise has
    ``variance`` per coordinate.
    """
    scale = math.sqrt(variance)

    def declare(rng: RandomStreams, stream: str, shape: tuple[int, ...]) -> PyTree:
        return oracle.numbers(rng, stream, shape), rng.normal(
            f"{stream}/noise", (*shape, dimension)
        )

    def prepare(numbers: PyTree, site: Site) -> PyTree:
        inner, noise = numbers
        weight = jnp.asarray(site.weight, noise.dtype)
        return oracle.prepare(inner, site), scale * weight * noise

    def bind(site: Site) -> Evaluate:
        inner_evaluate = oracle.bind(site)

        def evaluate(numbers: PyTree, position: Float[Array, " d"]) -> Float[Array, " d"]:
            inner, noise = numbers
            return inner_evaluate(inner, position) + jnp.mean(noise, axis=0)

        return evaluate

    return GradientOracle(declare, prepare, bind)
