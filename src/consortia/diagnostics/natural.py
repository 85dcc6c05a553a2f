"""Draws on the scale on which a model was written, where it is sampled on another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from consortia.core.arguments import hinted
from consortia.core.model import Model
from consortia.core.parameters import draws_to_pytree, posterior_draws, structure_of
from consortia.errors import InputError


@hinted
def natural(
    tree: Any,
    model: Model,
    labels: Mapping[str, Sequence[Sequence[str] | None]] | None = None,
) -> Any:
    """Return the draws of a result on the model's own scale (`Model.natural`).

    Constrained parameters lie in their support, and deterministic ones are there; log-densities
    need no Jacobian any more.

    Args:
        tree: result of a run.
        model: the model that was sampled.
        labels: names along the axes of variables, the last axis last.

    Returns:
        `xarray.Dataset` of (chain, draw, ...).

    Raises:
        InputError: the model has no other scale, or the result is of another model.

    Example:
        >>> import consortia, numpy as np
        >>> table = {"sick": np.array([0, 1, 1, 0]), "age": np.array([40.0, 60.0, 70.0, 50.0])}
        >>> made = consortia.regression("sick ~ age", {"a": table, "b": table}, family="bernoulli")
        >>> draws = {"coefficients": np.zeros((1, 2, 1)), "intercept": np.zeros((1, 2))}
        >>> sorted(natural(draws, made.model).data_vars)
        ['coefficients', 'intercept']
    """
    import xarray  # heavy, and only wanted here

    if model.natural is None:
        raise InputError("Model.natural is None: the draws are on the model's own scale already.")
    parameters = draws_to_pytree(structure_of(model.init), posterior_draws(tree))
    turned = jax.jit(jax.vmap(jax.vmap(model.natural)))(jax.tree.map(np.asarray, parameters))
    found = {}
    for name, values in turned.items():
        array = np.asarray(values)
        dims = [f"{name}_dim_{place}" for place in range(array.ndim - 2)]
        axes = (labels or {}).get(name, ())
        coords = {
            dim: np.array(axis, dtype=object)
            for dim, axis in zip(dims, axes, strict=False)
            if axis is not None
        }
        found[name] = xarray.DataArray(array, dims=("chain", "draw", *dims), coords=coords)
    return xarray.Dataset(found)
