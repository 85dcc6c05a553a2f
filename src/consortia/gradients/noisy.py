"""A gradient with Gaussian noise of a stated variance."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from consortia.core.contract import Site
from consortia.core.random import RandomStreams
from consortia.gradients.base import Evaluate, GradientOracle


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
