"""`consortia.from_flax` and `consortia.from_equinox`: a network as the predictor of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core.model import Model
from consortia.data.sites import Sites
from consortia.errors import InputError
from consortia.models._shared import Array, PyTree, as_features
from consortia.models.networks.outputs import SIGMA, likelihood_of
from consortia.models.networks.weights import log_prior_of

ROWS = 3
"""Rows of the example by which dependence between rows is found."""

TOLERANCE = 1e-3
"""Tolerance of outputs in single precision, as a share of the largest."""


class Network(NamedTuple):
    """A network as functions of its weights."""

    start: Callable[[Array], dict[str, Array]]  # from a JAX key to weights, by name
    # of weights and inputs (rows, ...), (rows, ...)
    outputs: Callable[[Mapping[str, Array], Array], Array]
    source: str  # the function that made it, for the messages
    fan_in: Callable[[tuple[int, ...]], int]  # inputs of a weight with several axes, from its shape


def network_model(
    network: Network, rows: Any, likelihood: Any, prior: Any, inputs: str, target: str
) -> Model:
    """Return the model of a network; see `consortia.from_flax`."""
    example = example_of(rows, inputs, network.source)
    judged = likelihood_of(likelihood)
    shapes = jax.eval_shape(network.start, jax.random.key(0))
    for name, shape in shapes.items():
        if not jnp.issubdtype(shape.dtype, jnp.floating):
            raise InputError(f"{network.source}: the weight {name!r} is of type {shape.dtype}.")
    likelihood_parameters = judged.extra
    log_prior = log_prior_of(
        prior, {name: weight.shape for name, weight in shapes.items()}, network.fan_in
    )

    def forward(params: PyTree, x: Any) -> Array:
        weights = {name: params[name] for name in shapes}
        like = next(iter(weights.values()))
        outputs = network.outputs(weights, as_features(x, like))
        return outputs.reshape(outputs.shape[0], -1) if judged.width is None else outputs

    def own(params: PyTree) -> dict[str, Array]:
        return {name: params[name] for name in likelihood_parameters}

    def start(key: Array) -> dict[str, Array]:
        return network.start(key) | {name: jnp.zeros(()) for name in likelihood_parameters}

    shape = _check_rows(network, example[inputs])
    width = math.prod(shape)
    if judged.width is None and not callable(likelihood) and width != max(shape, default=1):
        raise InputError(
            f"{network.source}: the network returns an array {shape} for a row of shape "
            f"{example[inputs].shape[1:]}; the likelihood {likelihood!r} takes one axis of scores: "
            "flatten the inputs, or the outputs, in the network."
        ).at("likelihood")
    if judged.width is not None and width != judged.width:
        raise InputError(
            f"{network.source}: the network returns {width} numbers a row, the likelihood "
            f"{likelihood!r} takes {judged.width}."
        ).at("likelihood")

    def log_prior_of_all(params: PyTree) -> Array:
        total = log_prior({name: params[name] for name in shapes})
        if SIGMA in likelihood_parameters:  # exponential(1), with the Jacobian of the logarithm
            total = total - jnp.exp(params[SIGMA]) + params[SIGMA]
        return total

    def log_likelihood(params: PyTree, batch: PyTree) -> Array:
        return judged.log_density(forward(params, batch[inputs]), batch[target], own(params))

    def predict(params: PyTree, batch: PyTree) -> Array:
        assert judged.predict is not None
        return judged.predict(forward(params, batch[inputs]), own(params))

    def check(batch: PyTree) -> str | None:
        if not isinstance(batch, Mapping) or inputs not in batch or target not in batch:
            return f"give dict({inputs}=(rows, ...), {target}=(rows,))"
        shape, wanted = np.shape(batch[inputs])[1:], np.shape(example[inputs])[1:]
        if shape != wanted:
            return f"{inputs} has rows of shape {shape}, the network was made for {wanted}"
        if np.shape(batch[target]) != np.shape(batch[inputs])[:1]:
            return f"{target} has shape {np.shape(batch[target])}: give one number a row"
        return judged.wrong(np.asarray(batch[target]), width)

    return Model(
        log_prior_of_all,
        log_likelihood,
        start,
        predict=None if judged.predict is None else predict,
        check=check,
    )


def named_weights(tree: PyTree) -> dict[str, Array]:
    """Return the leaves of a pytree of weights by their paths, joined with dots."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_name(path): leaf for path, leaf in leaves}


def with_weights(weights: Mapping[str, Array], like: PyTree) -> PyTree:
    """Return the pytree whose leaves `named_weights` has given."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: weights[_name(path)], like)


def _name(path: Any) -> str:
    parts = [jax.tree_util.keystr((key,), simple=True) for key in path]
    return ".".join(part for part in parts if part)


def example_of(rows: Any, inputs: str, source: str) -> Mapping[str, np.ndarray]:
    """Return a few rows of inputs of the shape of the data's."""
    table = rows.first if isinstance(rows, Sites) else rows
    if not isinstance(table, Mapping) or inputs not in table:
        raise InputError(
            f"{source}: give sites, or a dict of arrays like a site's, with the key {inputs!r}; "
            "inputs= and target= name others."
        ).at("rows")
    x = np.asarray(table[inputs])[:1]
    if not len(x):
        raise InputError(f"{source}: {inputs} has no rows.")
    # rows that differ, whatever the data are like
    spread = np.random.default_rng(0).normal(size=(ROWS, *x.shape[1:])).astype(np.float32)
    return {inputs: spread}


def _check_rows(network: Network, x: np.ndarray) -> tuple[int, ...]:
    """Return the shape of what the network returns for a row; refuse one that mixes rows."""
    params = jax.jit(network.start)(jax.random.key(0))

    @jax.jit
    def both(params: PyTree, x: Array) -> tuple[Array, Array]:
        x = as_features(x, next(iter(params.values())))
        singles = [network.outputs(params, x[i : i + 1]) for i in range(ROWS)]
        return network.outputs(params, x), jnp.concatenate(singles)

    whole, singles = (np.asarray(output, np.float64) for output in both(params, jnp.asarray(x)))
    if whole.shape[:1] != (ROWS,):
        raise InputError(
            f"{network.source}: of {ROWS} rows the network returns shape {whole.shape}: the first "
            "axis must be the rows."
        )
    gap = np.abs(whole - singles).max(initial=0.0)
    if not gap <= TOLERANCE * (np.abs(singles).max(initial=0.0) + 1e-6):
        raise InputError(
            f"{network.source}: what the network returns for a row depends on the other rows "
            f"(by {gap:.3g}), as with batch normalisation: single rows then have no likelihood. "
            "Normalise within a row, by LayerNorm or GroupNorm."
        ).at("module")
    return whole.shape[1:]
