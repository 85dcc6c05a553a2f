"""The rule of quadrature inside the model of a run of phases, measured where its draws are."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.target import Target, in_jax_width
from consortia.data.sites import Sites
from consortia.runtime.late import Array, jax, jnp
from consortia.surrogates.quadrature import points_among, report_of

MORE_MESSAGES = 2
"""Messages beside the usual ones, at most as a rule: batches of draws, since posteriors of standard
deviations between sites have long tails. Of 45 regressions, of three families at 3 to 25 sites, 31
took 3 messages, 9 took 4, two 5, one each 6, 7 and 13."""

LEAST_DRAWS = 10
"""Draws by a parameter below which their covariance says too little."""


def unmeasured(target: Target) -> dict[str, Any]:
    """Return the record's entry on the model's rule before its measurement; empty without one."""
    rules = target.model.integration
    return {} if rules is None else {"quadrature": {"nodes": rules.default}}


def bias_of(claim: str, target: Target, *, exact: bool = False) -> str:
    """Return the line of a plan on the bias, of a method and of quadrature, unless it is exact."""
    if target.model.integration is None or exact:
        return claim
    return f"{claim}; what quadrature inside the model adds is measured, see the verdict"


def measured(
    target: Target, sites: Sites, draws: Float[np.ndarray, "chains draws d"]
) -> dict[str, Any]:
    """Return the record's entry on the model's rule around the draws; empty where it has none.

    It cannot where rows of a site are not in this process, or with few draws.
    """
    rules, d = target.model.integration, target.dimension
    flat = np.asarray(draws, np.float64).reshape(-1, d)
    few = sites.elsewhere or len(flat) < LEAST_DRAWS * d or not np.isfinite(flat).all()
    if rules is None or few:
        return {}
    points = points_among(flat)
    compared = rules.measured(rules.default)
    errors_of = rules.with_nodes(compared)

    @jax.jit
    def errors(at: Array, rows: Any, mask: Array) -> Array:
        return jax.lax.map(lambda position: errors_of(target.unravel(position), rows, mask), at)

    total, longest = np.zeros(()), int(sites.sizes.max())
    for shard, size in zip(sites.shards, sites.sizes, strict=True):
        take = np.minimum(np.arange(longest), size - 1)
        rows = jax.tree.map(lambda leaf, take=take: in_jax_width(np.asarray(leaf)[take]), shard)
        mask = np.arange(longest) < size
        total = total + np.asarray(errors(jnp.asarray(points, target.dtype), rows, mask), float)
    return {"quadrature": report_of(total, compared, (rules.default,))}
