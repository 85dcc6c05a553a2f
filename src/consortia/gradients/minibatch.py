"""The minibatch gradient of a site's potential."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float, PyTree

from consortia.core.contract import Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.gradients.base import Evaluate, GradientOracle
from consortia.gradients.exact import exact


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
