"""Draws of a formula's parameters on their natural scale, by what the run's record says of them.

The draws alone and their record are enough: a summary needs neither the model nor its tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from consortia.diagnostics.units import in_column_units, scaling_in
from consortia.store.metadata import recorded, with_labels

THRESHOLDS = "thresholds"


class Recipe(NamedTuple):
    """Transform from the parameters of a formula to natural ones, as a record keeps it.

    Attributes:
        bounded: lower bound of each parameter of the family, sampled by its logarithm above it.
        cuts: what stands in the place of the intercept, "" for nothing.
        bundles: first block and the one after the last, of blocks that are correlated.
        to_zero: takes levels and slopes at the means of the columns to those at zero.
        block_of: of each level or slope that is a parameter, the index of its block.
        labels: by natural parameter, the names along its axes.
    """

    bounded: Mapping[str, float]
    cuts: str
    bundles: list[list[int]]
    to_zero: list[list[float]]
    block_of: list[int]
    labels: Mapping[str, Any]


def recipe_in(tree: Any) -> Recipe | None:
    """Return the recipe that a result's record keeps, or None."""
    settings = recorded(tree, "settings")
    if not isinstance(settings, Mapping):
        return None
    of_formula = settings.get("regression", settings)
    kept = of_formula.get("natural") if isinstance(of_formula, Mapping) else None
    return None if kept is None else Recipe(**kept)


def in_natural_units(tree: Any, recipe: Recipe, scaling: Any = None) -> Any:
    """Return a result with the natural parameters, at zero of the columns, in its posterior.

    Args:
        tree: result of a run of a formula.
        recipe: of its parameters.
        scaling: of its columns; that of its record when None.
    """
    import xarray

    scaling = scaling_in(tree) if scaling is None else scaling
    turned = in_column_units(tree, scaling)
    sampled = tree["posterior"].to_dataset()
    posterior = turned["posterior"].to_dataset()
    values = {str(name): np.asarray(sampled[name], np.float64) for name in sampled.data_vars}
    found: dict[str, np.ndarray] = {}
    for name, lower in recipe.bounded.items():
        found[name] = lower + np.exp(values[f"log_{name}"])
    if recipe.cuts:
        found[recipe.cuts] = _cuts(recipe.cuts, values, scaling)
    if "log_sd" in values:
        found |= _groups(recipe, values)
    gone = {f"log_{name}" for name in recipe.bounded}
    gone |= {"log_sd", "atanh_correlation", "effects_in_sd", *found}
    kept = posterior.drop_vars([name for name in posterior.data_vars if name in gone])
    dims = {
        name: ("chain", "draw", *(f"{name}_dim_{place}" for place in range(a.ndim - 2)))
        for name, a in found.items()
    }
    made = kept.assign({name: (dims[name], a) for name, a in found.items()})
    lonely = [dim for dim in made.dims if not any(dim in a.dims for a in made.data_vars.values())]
    made = with_labels(made.drop_dims(lonely), recipe.labels)
    groups = {"/posterior": made}
    if "sample_stats" in tree.children:
        groups["/sample_stats"] = tree["sample_stats"].to_dataset()
    result = xarray.DataTree.from_dict(groups)
    result.attrs.update({key: value for key, value in tree.attrs.items() if key != "scaling"})
    return result


def _cuts(name: str, values: Mapping[str, np.ndarray], scaling: Any) -> np.ndarray:
    """Return thresholds, or the logarithms of a hazard, where all columns are 0."""
    cuts = values[name]
    shift = np.zeros(cuts.shape[:2])
    if scaling is not None:
        shift = values["coefficients"] @ np.asarray(scaling.basis)[0, 1:]
    if name != THRESHOLDS:
        return cuts + shift[..., None]
    steps = np.concatenate([cuts[..., :1], np.exp(cuts[..., 1:])], axis=-1)
    return np.cumsum(steps, axis=-1) - shift[..., None]


def _groups(recipe: Recipe, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return standard deviations, correlations and effects of groups."""
    tau = np.exp(values["log_sd"])
    size, T = tau.shape[-1], np.asarray(recipe.to_zero)
    L, place = np.broadcast_to(np.eye(size), (*tau.shape, size)).copy(), 0
    for first, end in recipe.bundles:
        count = (end - first) * (end - first - 1) // 2
        free = values["atanh_correlation"][..., place : place + count]
        L[..., first:end, first:end] = _cholesky(free, end - first)
        place += count
    scale = T @ (tau[..., None] * L)
    covariance = scale @ np.swapaxes(scale, -1, -2)
    sd = np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1))
    found = {"sd": sd}
    if recipe.bundles:
        R = covariance / (sd[..., :, None] * sd[..., None, :])
        below = [np.tril_indices(end - first, -1) for first, end in recipe.bundles]
        found["correlation"] = np.concatenate(
            [
                R[..., first + row, first + column]
                for (first, _), (row, column) in zip(recipe.bundles, below, strict=True)
            ],
            axis=-1,
        )
    if recipe.block_of:
        found["effects"] = _effects(values["effects_in_sd"], scale, np.asarray(recipe.block_of))
    return found


def _effects(z: np.ndarray, scale: np.ndarray, block_of: np.ndarray) -> np.ndarray:
    """Return levels, slopes and curves, (chain, draw, ..., columns), as scale times z."""
    found = np.zeros_like(z)
    blocks = [np.flatnonzero(block_of == place) for place in range(scale.shape[-1])]
    for to, own in enumerate(blocks):
        for of, other in enumerate(blocks):
            if len(own) and len(own) == len(other) and (scale[..., to, of] != 0).any():
                factor = scale[..., to, of].reshape(*z.shape[:2], *[1] * (z.ndim - 2))
                found[..., own] += factor * z[..., other]
    return found


def _cholesky(free: np.ndarray, size: int) -> np.ndarray:
    """Return L of correlations, (..., size, size), from hyperbolic arc tangents of partial ones."""
    partial, place = np.tanh(free), 0
    L = np.zeros((*free.shape[:-1], size, size))
    L[..., 0, 0] = 1
    for row in range(1, size):
        left = np.ones(free.shape[:-1])
        for column in range(row):
            L[..., row, column] = partial[..., place] * np.sqrt(left)
            left, place = left * (1 - partial[..., place] ** 2), place + 1
        L[..., row, row] = np.sqrt(left)
    return L
