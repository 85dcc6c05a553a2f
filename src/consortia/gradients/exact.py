"""The exact gradient of a site's potential."""

from __future__ import annotations

import jax

from consortia.base import Site
from consortia.gradients.base import Array, Evaluate, GradientOracle, PyTree
from consortia.numbers import Numbers
from consortia.target import Target


def exact(target: Target) -> GradientOracle:
    """∇U_c(θ) = −Σ_{i∈c} ∇log p(z_i|θ) − λ_c ∇log p(θ) over all rows; needs no numbers."""

    def bind(site: Site) -> Evaluate:
        rows, mask = site.all()

        def evaluate(numbers: PyTree, position: Array) -> Array:
            return jax.grad(target.potential)(position, rows, mask, site)

        return evaluate

    def declare(rng: Numbers, stream: str, shape: tuple[int, ...]) -> PyTree:
        return ()

    def prepare(numbers: PyTree, site: Site) -> PyTree:
        return numbers

    return GradientOracle(declare, prepare, bind, deterministic=True)
