"""Networks of Flax: modules of Linen, and of NNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from consortia.core.arguments import hinted
from consortia.core.model import Model
from consortia.errors import InputError, require_extra
from consortia.models._shared import Array
from consortia.models.networks.model import (
    Network,
    example_of,
    named_weights,
    network_model,
    with_weights,
)

SOURCE = "from_flax"
"""Function that messages name; the braces of those below take names in the module."""

BATCH_STATISTICS = (
    f"{SOURCE}: the module keeps statistics of batches ({{}}): with batch normalisation a row's "
    "likelihood depends on the other rows, and a site's on its minibatch. Use LayerNorm or "
    "GroupNorm."
)
DROPOUT = (
    f"{SOURCE}: the module draws random numbers ({{}}), as Dropout does: leave it out; the spread "
    "of the posterior replaces it."
)


@hinted
def from_flax(
    module: Any,
    rows: Any,
    *,
    likelihood: str | Callable[[Array, Any], Any] = "categorical",
    prior: str | Mapping[str, str] | Callable[[Mapping[str, Array]], Any] = "normal(0, 1)",
    inputs: str = "x",
    target: str = "y",
) -> Model:
    r"""Return the model whose predictor is a module of Flax, of Linen or of NNX.

    .. math:: \log p(\theta, z) = \log p(\theta) + \sum_i \log p(y_i \mid f_\theta(x_i))

    The weights are a dict by their names, joined with dots ("Dense_0.kernel"). The posterior has
    very many modes of equal predictions: R-hat and ESS belong to predictions, not to weights.

    Args:
        module: of Linen; or of NNX a function of `flax.nnx.Rngs` that makes it, so that each chain
            starts at weights of its own, or a module, at whose weights all chains start.
        rows: the sites, or a dict of arrays like a site's: what shape an input has.
        likelihood: "categorical" (of scores, labels 0, 1, ...), "bernoulli" (of log-odds),
            "gaussian" (of a mean; its standard deviation is sampled, exponential(1)), "poisson" (of
            a log-rate), or a function of outputs and targets that returns (rows,).
        prior: of all weights, "normal(0, 1)", "student_t(4, 0, 1)", "laplace(0, 1)", or
            "fan_in(s)", N(0, s²/inputs); by patterns of names,
            ``{"*bias": "normal(0, 1)", "*": "fan_in(1.4)"}``; or a function of the dict of weights.
        inputs: the key of a site's inputs, (rows, ...).
        target: the key of its targets, (rows,).

    Returns:
        The model; chains start where the module initialises its weights.

    Raises:
        InputError: the module depends on other rows of a batch (batch normalisation), draws random
            numbers (dropout), or returns what the likelihood cannot take.
        MissingExtraError: Flax is not installed.

    Example:
        >>> import flax.linen, jax, numpy as np
        >>> rows = {"x": np.ones((4, 3), np.float32), "y": np.zeros(4, np.int32)}
        >>> model = from_flax(flax.linen.Dense(2), rows)
        >>> sorted(model.init(jax.random.key(0)))
        ['bias', 'kernel']
    """
    with require_extra("flax", "from_flax needs Flax"):
        from flax import linen, nnx  # optional

    if isinstance(module, linen.Module):
        network = _linen(module, rows, inputs)
    elif isinstance(module, nnx.Module) or callable(module):
        network = _nnx(module)
    else:
        raise InputError(
            f"{SOURCE}: {type(module).__name__} is neither a module of Linen or NNX nor a function "
            "of flax.nnx.Rngs that makes one."
        ).at("module")
    return network_model(network, rows, likelihood, prior, inputs, target)


def _linen(module: Any, rows: Any, inputs: str) -> Network:
    from flax import errors

    example = example_of(rows, inputs, SOURCE)[inputs]
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.asarray(example))
    collections = [name for name in shapes if name != "params"]  # of variables that are no weights
    if collections:
        raise InputError(BATCH_STATISTICS.format(", ".join(collections))).at("module")
    try:
        jax.eval_shape(module.apply, shapes, jnp.asarray(example))
    except errors.InvalidRngError as error:
        # the message ends with a link in brackets
        raise InputError(DROPOUT.format(str(error).split(" (")[0])).at("module") from error

    def start(key: Array) -> dict[str, Array]:
        return named_weights(module.init(key, jnp.asarray(example))["params"])

    def outputs(weights: Mapping[str, Array], x: Array) -> Array:
        return module.apply({"params": with_weights(weights, shapes["params"])}, x)

    return Network(start, outputs, SOURCE, _fan_in)


def _nnx(module: Any) -> Network:
    from flax import nnx

    def module_of(key: Array) -> Any:
        return module(nnx.Rngs(key)) if not isinstance(module, nnx.Module) else module

    def weights_of(key: Array) -> dict[str, Array]:
        return named_weights(nnx.to_pure_dict(nnx.state(module_of(key), nnx.Param)))

    example = module if isinstance(module, nnx.Module) else module(nnx.Rngs(0))
    if not isinstance(example, nnx.Module):
        raise InputError(
            f"{SOURCE}: the function returns a {type(example).__name__}, no module of NNX."
        ).at("module")
    # the static graph; then weights, statistics of batches, random keys and counts, and the rest
    parts: Any = nnx.split(example, nnx.Param, nnx.BatchStat, nnx.RngState, ...)
    statistics, random_states, others = (
        ", ".join(named_weights(nnx.to_pure_dict(part))) for part in parts[2:]
    )
    if statistics:
        raise InputError(BATCH_STATISTICS.format(statistics)).at("module")
    if random_states:
        raise InputError(DROPOUT.format(random_states)).at("module")
    if others:
        raise InputError(f"{SOURCE}: the module has a state in addition to its weights: {others}.")
    structure = nnx.to_pure_dict(nnx.state(example, nnx.Param))

    def outputs(weights: Mapping[str, Array], x: Array) -> Array:
        state = nnx.state(example, nnx.Param)
        nnx.replace_by_pure_dict(state, with_weights(weights, structure))
        return nnx.merge(parts[0], state)(x)

    return Network(weights_of, outputs, SOURCE, _fan_in)


def _fan_in(shape: tuple[int, ...]) -> int:
    """Return the number of inputs of a kernel, whose shape is (..., inputs, outputs)."""
    return math.prod(shape[:-1])
