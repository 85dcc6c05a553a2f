"""Draws of a formula's parameters on their natural scale, in double precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from consortia.core.parameters import PyTree
from consortia.diagnostics.units import turned
from consortia.store.metadata import Scaling, with_labels

THRESHOLDS = "thresholds"


class Recipe(NamedTuple):
    """Transform from the parameters of a formula to natural ones."""

    # lower bound of each parameter of the family, sampled by its logarithm above it
    bounded: Mapping[str, float]
    cuts: str  # what stands in the place of the intercept, "" for nothing
    # first block and the one after the last, of blocks that are correlated
    bundles: list[list[int]]
    # takes levels and slopes at the means of the columns to those at zero
    to_zero: list[list[float]]
    block_of: list[int]  # of each level or slope that is a parameter, the index of its block
    labels: Mapping[str, Any]  # by natural parameter, the names along its axes
    scaling: Scaling | None  # of the columns


@dataclass(frozen=True, eq=False)
class NaturalOfFormula:
    """`Model.natural` of a formula: of one draw, and of all together in double precision."""

    of_one: Callable[[PyTree], dict[str, Array]]  # parameters of one draw to natural ones
    recipe: Recipe  # of the same transform

    def __call__(self, params: PyTree) -> dict[str, Array]:
        """Return the natural parameters of one draw."""
        return self.of_one(params)

    def of_all(self, sampled: Any) -> Any:
        """Return those of a dataset of coordinates (chain, draw, ...), at zero of the columns."""
        return in_natural_units(sampled, self.recipe)


def in_natural_units(sampled: Any, recipe: Recipe) -> Any:
    """Return a dataset of the natural parameters, at zero of all columns, from the sampled ones."""
    posterior = sampled.assign(turned(sampled, recipe.scaling))
    values = {str(name): np.asarray(sampled[name], np.float64) for name in sampled.data_vars}
    found: dict[str, np.ndarray] = {}
    for name, lower in recipe.bounded.items():
        found[name] = lower + np.exp(values[f"log_{name}"])
    if recipe.cuts:
        found[recipe.cuts] = _cuts(recipe.cuts, values, recipe.scaling)
    if "log_sd" in values:
        found |= _groups(recipe, values)
    gone = {f"log_{name}" for name in recipe.bounded}
    gone |= {"log_sd", "correlation_score", "effects_in_sd", *found}
    kept = posterior.drop_vars([name for name in posterior.data_vars if name in gone])
    dims = {
        name: ("chain", "draw", *(f"{name}_dim_{place}" for place in range(a.ndim - 2)))
        for name, a in found.items()
    }
    made = kept.assign({name: (dims[name], a) for name, a in found.items()})
    lonely = [dim for dim in made.dims if not any(dim in a.dims for a in made.data_vars.values())]
    return with_labels(made.drop_dims(lonely), recipe.labels)


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
        free = values["correlation_score"][..., place : place + count]
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
    """Return L of correlations, (..., size, size), from the normal scores of partial ones."""
    from scipy import special  # heavy, and only wanted here

    below, above = special.ndtr(free), special.ndtr(-free)
    partial, rest, place = below - above, 4 * below * above, 0
    L = np.zeros((*free.shape[:-1], size, size))
    L[..., 0, 0] = 1
    for row in range(1, size):
        left = np.ones(free.shape[:-1])
        for column in range(row):
            L[..., row, column] = partial[..., place] * np.sqrt(left)
            left, place = left * rest[..., place], place + 1
        L[..., row, row] = np.sqrt(left)
    return L
