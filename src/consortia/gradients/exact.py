"""The exact gradient of a site's potential."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float, PyTree

from consortia.core.contract import Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.gradients.base import Evaluate, GradientOracle


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
