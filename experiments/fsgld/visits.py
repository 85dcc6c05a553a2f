"""The shards that a single travelling chain visits, drawn again as the run draws them."""

from __future__ import annotations

import jax
import numpy as np

from consortia.core import random
from consortia.engines import rng


def visited(probabilities: np.ndarray, visits: int, warmup: int, seed: int) -> np.ndarray:
    """Return the index of the shard of each visit after the warm-up, (visits,).

    Args:
        probabilities: f_s, (S,).
        visits: rounds of the run after its warm-up.
        warmup: rounds before them.
        seed: of the run.
    """
    root = random.phase_key(random.base_key(seed), 0, rng.ROUND * 65536)
    key = random.shared_key(root)

    def level(iteration: jax.Array) -> jax.Array:
        return random.declared(
            lambda streams: streams.uniform(rng.ROUTE_STREAM), key, iteration, warmup, None
        )

    levels = np.asarray(jax.vmap(level)(np.arange(warmup, warmup + visits)))
    bounds = np.cumsum(np.asarray(probabilities, levels.dtype))
    found = np.searchsorted(bounds, levels * bounds[-1], side="right")
    return np.minimum(found, len(bounds) - 1)
