"""Where chains start: a mode by federated averaging, for which no rows were pooled."""

from __future__ import annotations

from typing import Any

import numpy as np

import consortia
from consortia.core.contract import Method


def positions(tree: Any, chain: int = 0) -> dict[str, np.ndarray]:
    """The draws of a chain by parameter, (draws, ...)."""
    return {name: np.asarray(value)[chain] for name, value in tree["posterior"].data_vars.items()}


def federated_average(
    model: consortia.Model, sites: consortia.Sites, method: Method, rounds: int, seed: int
) -> dict[str, np.ndarray]:
    """Return where FA-LD at temperature zero ends."""
    options: dict[str, Any] = {"progress": False, "on_divergence": "ignore", "chains": 1}
    tree = consortia.sample(model, sites, method, rounds=rounds, seed=seed, **options)
    return {name: value[-1] for name, value in positions(tree).items()}
