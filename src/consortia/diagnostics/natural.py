"""Draws on the scale on which a model was written, and of what sites had integrated out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from consortia.core.arguments import hinted
from consortia.core.model import Model
from consortia.core.parameters import (
    NATURAL,
    POSTERIOR,
    SCALE,
    UNCONSTRAINED,
    draws_to_pytree,
    sampled_draws,
    structure_of,
    variables,
)
from consortia.data.sites import Sites
from consortia.errors import InputError
from consortia.runtime.compiler import map_in_blocks
from consortia.runtime.late import Array, PyTree, jax
from consortia.store.metadata import Labels, with_labels
from consortia.store.results import MOMENTS, dataset_of

AT_ONCE = 64
"""Draws of which a site's own parameters are drawn together."""

TOGETHER = 2**22
"""Natural quantities that are computed together."""


@hinted
def natural(tree: Any, model: Model, labels: Labels | None = None) -> Any:
    """Return the draws of a result on the model's own scale (`Model.natural`).

    Constrained parameters lie in their support, and deterministic ones are there; log-densities
    need no Jacobian any more. The group ``posterior`` of a run's result has them already; this is
    for coordinates from elsewhere.

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
    if model.natural is None:
        raise InputError("Model.natural is None: the draws are on the model's own scale already.")
    sampled = dataset_of(sampled_draws(tree), {}, ("chain", "draw"))
    return with_labels(Quantities(model).of_all(sampled), labels or {})


@dataclass(frozen=True, eq=False)
class Quantities:
    """The natural quantities of a model, as the group ``posterior`` of its results holds them."""

    model: Model

    @cached_property
    def _compiled(self) -> Callable[[PyTree], Mapping[str, Array]]:
        assert self.model.natural is not None
        return jax.jit(jax.vmap(self.model.natural))

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each quantity, by name; none where the model has no natural quantities.

        Raises:
            InputError: a result cannot hold a quantity of this name.
        """
        if self.model.natural is None:
            return {}
        structure = structure_of(self.model.init)
        if self.model.host is not None:
            made = dict(self.model.natural(structure))
        else:
            made = dict(jax.eval_shape(self.model.natural, structure))
        return {variable.name: variable.shape for variable in variables(made, "Model.natural")}

    def of_arrays(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return them of coordinates by name, (chain, draw, ...)."""
        parameters = draws_to_pytree(structure_of(self.model.init), given)
        if self.model.host is None:
            return self._of(parameters)
        assert self.model.natural is not None
        wide = {name: np.asarray(values, np.float64) for name, values in parameters.items()}
        return dict(self.model.natural(wide))

    def of_all(self, sampled: Any) -> Any:
        """Return a dataset of them, of one of coordinates (chain, draw, ...)."""
        given = {str(name): np.asarray(variable) for name, variable in sampled.data_vars.items()}
        # labels, too: a quantity with the name and shape of a coordinate has its labels
        coordinates = {str(name): np.asarray(values) for name, values in sampled.coords.items()}
        host, dataset = self.model.host, dataset_of(self.of_arrays(given), {}, ("chain", "draw"))
        kept = {n: c for n, c in coordinates.items() if dataset.sizes.get(n) == len(c)}
        return with_labels(dataset.assign_coords(kept), {} if host is None else host.labels)

    def _of(self, parameters: PyTree) -> dict[str, np.ndarray]:
        """Return them as arrays; integers and bools are of the coordinates' type."""
        leaves = jax.tree.leaves(parameters)
        dtype, lead = np.result_type(*leaves), np.shape(leaves[0])[:2]
        flat = jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *np.shape(leaf)[2:])), parameters)
        numbers = sum(math.prod(shape) for shape in self.shapes.values())
        most = max(1, TOGETHER // max(numbers, 1))
        parts = [
            self._compiled(jax.tree.map(lambda leaf, at=first: leaf[at : at + most], flat))
            for first in range(0, max(math.prod(lead), 1), most)
        ]
        arrays = {
            name: np.concatenate([np.asarray(part[name]) for part in parts]).reshape(*lead, *shape)
            for name, shape in self.shapes.items()
        }
        return {n: x if x.dtype.kind == "f" else x.astype(dtype) for n, x in arrays.items()}

    def beside(self, groups: Mapping[str, Any]) -> dict[str, Any]:
        """Return groups of a result with them in ``posterior``, beside the coordinates.

        Draws and moments of the coordinates come to ``unconstrained_posterior`` and
        ``unconstrained_moments``. The groups stay as they are where the model has no natural
        quantities.
        """
        results = dict(groups)
        if self.model.natural is None:
            return results
        if MOMENTS in results:
            results[f"unconstrained_{MOMENTS}"] = results.pop(MOMENTS)
        if POSTERIOR not in results:
            return results
        sampled = results.pop(POSTERIOR)
        natural = self.of_all(sampled).assign_attrs({SCALE: NATURAL})
        return {POSTERIOR: natural, UNCONSTRAINED: sampled} | results


@hinted
def recover(tree: Any, model: Model, sites: Sites, site: int | str, *, seed: int = 0) -> Any:
    r"""Return draws of a site's own parameters, which the model integrates out (`Model.recover`).

    .. math:: u^{(k)} \sim p(u \mid \theta^{(k)}, z_s)

    one for each draw of the result, at the site: nobody else has the rows.

    Args:
        tree: result of a run.
        model: the model that was sampled.
        sites: with the rows of this site, the others may be elsewhere.
        site: its name or number.
        seed: equal seeds give equal draws.

    Returns:
        `xarray.Dataset` of (chain, draw, ...).

    Raises:
        InputError: the model integrates nothing out, the rows of the site are not here, or the
            result is of another model.

    Example:
        >>> import consortia, jax, jax.numpy as jnp, numpy as np
        >>> def fit(p, rows, mask):  # y ~ N(u, 1) with a level u ~ N(mu, 1) of the site
        ...     n, rest = mask.sum(), jnp.where(mask, rows["y"] - p["mu"], 0.0)
        ...     return -0.5 * (jnp.sum(rest**2) - jnp.sum(rest) ** 2 / (n + 1) + jnp.log(n + 1))
        >>> def level(p, rows, key):
        ...     n = rows["y"].size
        ...     mean = (p["mu"] + jnp.sum(rows["y"])) / (n + 1)
        ...     return {"level": mean + jax.random.normal(key) / jnp.sqrt(n + 1.0)}
        >>> model = consortia.Model(None, None, {"mu": jnp.zeros(())},
        ...     site_log_likelihood=fit, recover=level)
        >>> sites = consortia.Sites.from_list([{"y": np.ones(3, np.float32)}] * 2)
        >>> draws = {"mu": np.zeros((4, 500), np.float32)}
        >>> found = recover(draws, model, sites, 0)["level"]
        >>> abs(float(found.mean()) - 3 / 4) < 0.05
        True
    """
    if model.recover is None:
        raise InputError(
            "recover: Model.recover is None: give the model a recover function that draws the "
            "sites' own parameters. For a formula with integrate=True, made.levels_of has the "
            "levels."
        ).at("recover")
    draw, rows = model.recover, sites.site(site)
    site_index = sites.names.index(site) if isinstance(site, str) else site
    parameters = draws_to_pytree(structure_of(model.init), sampled_draws(tree))
    chains, draws = np.shape(jax.tree.leaves(parameters)[0])[:2]
    key = jax.random.fold_in(jax.random.key(seed), site_index)

    @jax.jit
    def at_all(flat: Any, rows: Any, keys: Any) -> Any:
        return map_in_blocks(lambda point: draw(point[0], rows, point[1]), (flat, keys), AT_ONCE)

    flat = jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *np.shape(leaf)[2:])), parameters)
    quantities = at_all(flat, rows, jax.random.split(key, chains * draws))
    shaped = {name: np.reshape(v, (chains, draws, *v.shape[1:])) for name, v in quantities.items()}
    return dataset_of(shaped, {}, ("chain", "draw"))
