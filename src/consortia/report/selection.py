"""Some coordinates of a posterior, as ArviZ's plots take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from consortia.core import parameters


def selected(tree: Any, rows: Sequence[int] | np.ndarray, names: Sequence[str]) -> Any:
    """Some coordinates of a posterior as one variable (chain, draw, parameter) without a name."""
    import xarray

    parts, start = [], 0
    wanted = np.asarray(rows)
    places: list[np.ndarray] = []
    for array in parameters.posterior_draws(tree).values():
        flat = array.reshape(*array.shape[:2], -1)
        here = (wanted >= start) & (wanted < start + flat.shape[2])
        places.append(np.flatnonzero(here))
        parts.append(flat[:, :, wanted[here] - start])
        start += flat.shape[2]
    values = np.concatenate(parts, axis=2)
    order = np.argsort(np.concatenate(places), kind="stable")
    values = _by_weight(values[:, :, order], parameters.draw_weights(tree))
    posterior = xarray.Dataset(
        {"value": (("chain", "draw", "parameter"), values)},
        coords={
            "chain": np.arange(values.shape[0]),
            "draw": np.arange(values.shape[1]),
            "parameter": list(names),
        },
    )
    return xarray.DataTree.from_dict({"/posterior": posterior})


def pooled(tree: Any, count: int) -> Any:
    """All draws as one chain of so many, some of them more than once: ArviZ aligns the draws."""
    stacked = tree["posterior"].to_dataset().stack(one=("chain", "draw"))
    take = np.arange(count) * stacked.sizes["one"] // count
    values = stacked["value"].transpose("one", "parameter").to_numpy()[take]
    import xarray

    posterior = xarray.Dataset(
        {"value": (("chain", "draw", "parameter"), values[None])},
        coords={"chain": [0], "draw": np.arange(count), "parameter": stacked["parameter"].values},
    )
    return xarray.DataTree.from_dict({"/posterior": posterior})


def _by_weight(values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Draws repeated in proportion to their step weights, their order kept."""
    if weights is None:
        return values
    weights = np.broadcast_to(weights, values.shape[:2])
    count = values.shape[1]
    out = np.empty_like(values)
    for chain, own in enumerate(weights):
        ends = np.cumsum(own) / own.sum()
        take = np.searchsorted(ends, (np.arange(count) + 0.5) / count)
        out[chain] = values[chain, np.minimum(take, count - 1)]
    return out
