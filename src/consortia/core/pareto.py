"""The shape of a tail, from draws."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

RELIABLE = 0.7
"""k-hat up to which a mean over draws tells that of their law."""


def shape_of(log_ratios: Float[np.ndarray, " K"], share: float = 1.0) -> float:
    """Return k-hat, the shape of the generalised Pareto law of the largest min(K/5, 3√(K/r)).

    Of correlated ratios r is the ``share`` that is effective: one excursion of a chain has many.

    Source: Zhang, Stephens (2009); Vehtari, Simpson, Gelman, Yao, Gabry (2024), with its prior.
    """
    ordered = np.exp(np.sort(log_ratios) - np.max(log_ratios))
    size = min(ordered.size // 5, math.ceil(3 * math.sqrt(ordered.size / share)))
    cutoff = ordered[-size - 1]
    grid = 30 + int(math.sqrt(size))
    with np.errstate(all="ignore"):  # of ratios that are all but equal
        tail = (ordered[-size:] - cutoff) / max(ordered[-1] - cutoff, 1e-30)
        quartile = max(tail[int(size / 4 + 0.5) - 1], 1e-30)
        bounds = 1 + (1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3 * quartile)
        shapes = np.mean(np.log1p(-bounds[:, None] * tail[None]), axis=1)
        profile = np.nan_to_num(size * (np.log(-bounds / shapes) - shapes - 1), nan=-np.inf)
        shares = np.exp(profile - np.max(profile))
        shape = np.mean(np.log1p(-(bounds @ shares / np.sum(shares)) * tail))
    return float((size * shape + 10 * 0.5) / (size + 10))
