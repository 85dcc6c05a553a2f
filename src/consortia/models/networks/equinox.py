"""Networks of Equinox, which take one row at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from consortia.core.arguments import hinted
from consortia.core.model import Model
from consortia.errors import InputError, require_extra
from consortia.models._shared import Array
from consortia.models.networks.model import Network, named_weights, network_model, with_weights

SOURCE = "from_equinox"


@hinted
def from_equinox(
    module: Any,
    rows: Any,
    *,
    likelihood: str | Callable[[Array, Any], Any] = "categorical",
    prior: str | Mapping[str, str] | Callable[[Mapping[str, Array]], Any] = "normal(0, 1)",
    inputs: str = "x",
    target: str = "y",
) -> Model:
    r"""Return the model whose predictor is a module of Equinox.

    .. math:: \log p(\theta, z) = \log p(\theta) + \sum_i \log p(y_i \mid f_\theta(x_i))

    The module is called with one row, x (...), and no key. The weights are its floating arrays, a
    dict by their names, joined with dots ("layers.0.weight").

    Args:
        module: a function of a JAX key that makes one, so that each chain starts at weights of its
            own; or a module, at whose weights all chains start.
        rows: the sites, or a dict of arrays like a site's: what shape an input has.
        likelihood: as of `consortia.from_flax`.
        prior: likewise.
        inputs: the key of a site's inputs, (rows, ...).
        target: the key of its targets, (rows,).

    Returns:
        The model.

    Raises:
        InputError: the module keeps a state (batch normalisation), needs a key (dropout), or
            returns what the likelihood cannot take.
        MissingExtraError: Equinox is not installed.

    Example:
        >>> import equinox, jax, numpy as np
        >>> rows = {"x": np.ones((4, 3), np.float32), "y": np.zeros(4, np.int32)}
        >>> model = from_equinox(lambda key: equinox.nn.Linear(3, 2, key=key), rows)
        >>> sorted(model.init(jax.random.key(0)))
        ['bias', 'weight']
    """
    with require_extra("equinox", "from_equinox needs Equinox"):
        import equinox as eqx  # optional

    given = isinstance(module, eqx.Module)
    example = module if given or not callable(module) else module(jax.random.key(0))
    if not isinstance(example, eqx.Module):
        raise InputError(
            f"{SOURCE}: {type(example).__name__} is neither a module of Equinox nor a function of "
            "a key that makes one."
        ).at("module")
    parts = jax.tree.leaves(example, is_leaf=lambda leaf: isinstance(leaf, eqx.nn.StateIndex))
    if any(isinstance(leaf, eqx.nn.StateIndex) for leaf in parts):
        raise InputError(
            f"{SOURCE}: the module keeps a state, as batch normalisation does: a row's likelihood "
            "would depend on the other rows. Use LayerNorm or GroupNorm."
        ).at("module")
    dropouts = jax.tree.leaves(example, is_leaf=lambda leaf: isinstance(leaf, eqx.nn.Dropout))
    if any(isinstance(leaf, eqx.nn.Dropout) and not leaf.inference for leaf in dropouts):
        raise InputError(
            f"{SOURCE}: the module has a Dropout, which draws random numbers: leave it out; the "
            "spread of the posterior replaces it."
        ).at("module")
    arrays, static = eqx.partition(example, eqx.is_inexact_array)

    def start(key: Array) -> dict[str, Array]:
        start_arrays = arrays if given else eqx.filter(module(key), eqx.is_inexact_array)
        return named_weights(start_arrays)

    def outputs(weights: Mapping[str, Array], x: Array) -> Array:
        return jax.vmap(eqx.combine(with_weights(weights, arrays), static))(x)

    network = Network(start, outputs, SOURCE, lambda shape: math.prod(shape[1:]))
    return network_model(network, rows, likelihood, prior, inputs, target)
