"""Starts of chains: starting parameters, and the densities there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from consortia.core import random, trees
from consortia.core.model import Model
from consortia.core.parameters import is_function
from consortia.core.target import Target
from consortia.errors import InputError, wrong
from consortia.runtime.late import Array, PyTree, jax, jnp

AT_ONCE = 100_000
"""Numbers in the data of all sites, times chains, up to which starts are looked at side by side:
that is compiled in two thirds of the time of a loop."""


def starting_parameters(model: Model, init: Any, seed: int, chains: int) -> list[PyTree]:
    """Return the parameters each chain starts from, checked against the model's own structure."""
    structure = model.init(jax.random.key(0)) if is_function(model.init) else model.init
    _check_leaves("Model.init", structure)
    source, argument = (model.init, "Model.init") if init is None else (init, "init")
    if not is_function(source):
        _check_start(argument, source, structure)
        return [source] * chains
    result = []
    for chain in range(chains):
        parameters = source(random.user_key(seed, chain))
        _check_start(argument, parameters, structure)
        result.append(parameters)
    return result


def _check_leaves(argument: str, parameters: PyTree) -> None:
    leaves = trees.leaves_of(parameters)
    if not leaves:
        raise wrong(argument, " has no parameters: give at least one floating array.")
    for path, _, leaf in leaves:
        where = f"{argument}{path}"
        if callable(leaf):
            raise InputError(
                f"{where} is a function: give the arrays of the module alone, e.g. of "
                "equinox.partition(module, equinox.is_array)."
            ).at(argument.rpartition(".")[2])
        dtype = getattr(leaf, "dtype", np.asarray(leaf).dtype)
        if not is_floating(dtype):
            raise InputError(
                f"{where} is of type {dtype}: parameters must be floating (write 0.0, not 0)."
            ).at(argument.rpartition(".")[2])


def is_floating(dtype: Any) -> bool:
    """Return True for a type of floating numbers, those included that only JAX has."""
    return np.issubdtype(dtype, np.floating) or bool(jnp.issubdtype(dtype, jnp.floating))


def _check_start(argument: str, parameters: PyTree, wanted_parameters: PyTree) -> None:
    _check_leaves(argument, parameters)
    structure, wanted = trees.structure_of(parameters), trees.structure_of(wanted_parameters)
    if not trees.are_same(structure, wanted):
        raise InputError(
            f"{argument} has the structure {structure}, the model's parameters have {wanted}."
        ).at(argument)
    pairs = zip(trees.leaves_of(parameters), trees.leaves_of(wanted_parameters), strict=True)
    for (_, _, leaf), (path, _, example) in pairs:
        where = f"{argument}{path}"
        if np.shape(leaf) != np.shape(example):
            raise InputError(
                f"{where} has shape {np.shape(leaf)}, the model's parameter {np.shape(example)}."
            ).at(argument)
        if not np.all(np.isfinite(np.asarray(leaf))):
            raise InputError(f"{where} holds a value that is not finite.").at(argument)


def start_values(
    target: Target, arrays: Any, positions: Array, *, most: int | None = None
) -> tuple[Array, Array, Array]:
    """Return log-prior, U_c, and whether its gradient is finite, at every start; jit this.

    Args:
        target: the posterior.
        arrays: the engine's `SiteArrays`.
        positions: (chains, d).
        most: rows of a site to look at, evenly spaced, as many as the method's gradients read;
            all when None. U_c is estimated from them.

    Returns:
        log-prior (chains,), U_c (nodes, chains) and finite gradient (nodes, chains).
    """
    numbers = sum(leaf.size for leaf in jax.tree.leaves(arrays.data)) * len(positions)

    def of_each(function: Callable[[Array], Any], values: Array) -> Any:
        return jax.vmap(function)(values) if numbers <= AT_ONCE else jax.lax.map(function, values)

    def at_node(node: Array) -> tuple[Array, Array]:
        site = arrays.site(node)
        rows, mask = site.all()
        few = most is not None and most < mask.shape[0]
        if most is not None and few:
            places = jnp.linspace(0, site.size - 1, most).astype(jnp.int32)
            places = jnp.minimum(places, site.size - 1)
            rows = jax.tree.map(lambda leaf: leaf[places], rows)

        def potential(position: Array) -> Array:
            if few:
                return target.batch_potential(position, rows, site)
            return target.potential(position, rows, mask, site)

        def at(position: Array) -> tuple[Array, Array]:
            value, gradient = jax.value_and_grad(potential)(position)
            return value, jnp.all(jnp.isfinite(gradient))

        return of_each(at, positions)

    nodes = jnp.arange(arrays.sizes.shape[0], dtype=jnp.int32)
    values, finite = of_each(at_node, nodes)
    return of_each(target.log_prior, positions), values, finite


def check_start_values(values: tuple[Any, Any, Any], names: tuple[str, ...]) -> None:
    """Refuse a start at which the density or its gradient is not finite."""
    prior, potential, finite = (np.asarray(value) for value in values)
    for chain, value in enumerate(prior):
        if not np.isfinite(value):
            raise InputError(
                f"Model.log_prior is {value} at the start of chain {chain}: choose init inside "
                "the support of the prior."
            ).at("init")
    bad = np.argwhere(~np.isfinite(potential))
    if bad.size:
        node, chain = bad[0]
        raise InputError(
            f"the log-density of site {names[node]!r} is {-potential[node, chain]} at the start of "
            f"chain {chain}: choose another init, or look at the data of this site."
        ).at("init", site=names[node])
    bad = np.argwhere(~finite)
    if bad.size:
        node, chain = bad[0]
        raise InputError(
            f"the gradient of the log-density of site {names[node]!r} is not finite at the start "
            f"of chain {chain} (the density itself is): look for sqrt, log or a division at 0 in "
            "Model.log_likelihood or Model.log_prior, or choose another init."
        ).at("init", site=names[node])
