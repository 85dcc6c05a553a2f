"""A control variate: the difference of one oracle at two points, with the same numbers."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from consortia.core.contract import Site
from consortia.gradients.base import Evaluate, GradientOracle


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
