"""Networks of PyTorch, whose operations torchax carries out in JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core.arguments import hinted
from consortia.core.model import Model
from consortia.errors import InputError, require_extra
from consortia.models._shared import Array
from consortia.models.networks.model import Network, network_model

SOURCE = "from_torch"


@hinted
def from_torch(
    module: Any,
    rows: Any,
    *,
    likelihood: str | Callable[[Array, Any], Any] = "categorical",
    prior: str | Mapping[str, str] | Callable[[Mapping[str, Array]], Any] = "normal(0, 1)",
    inputs: str = "x",
    target: str = "y",
) -> Model:
    r"""Return the model whose predictor is a `torch.nn.Module`.

    .. math:: \log p(\theta, z) = \log p(\theta) + \sum_i \log p(y_i \mid f_\theta(x_i))

    The module is called with rows, x (rows, ...), as PyTorch does. torchax translates its
    operations to JAX: nothing of PyTorch runs while draws are made. The weights are a dict by the
    names of `torch.nn.Module.named_parameters` ("0.weight").

    Args:
        module: a function without arguments that makes one, so that each chain starts at weights
            of its own; or a module, at whose weights all chains start.
        rows: the sites, or a dict of arrays like a site's: what shape an input has.
        likelihood: as of `consortia.from_flax`.
        prior: likewise.
        inputs: the key of a site's inputs, (rows, ...).
        target: the key of its targets, (rows,).

    Returns:
        The model.

    Raises:
        InputError: the module keeps statistics (batch normalisation), draws random numbers
            (dropout), or returns what the likelihood cannot take.
        MissingExtraError: PyTorch or torchax is not installed.

    Example:
        >>> import numpy as np, torch  # doctest: +SKIP
        >>> rows = {"x": np.ones((4, 3), np.float32), "y": np.zeros(4, np.int32)}
        >>> model = from_torch(lambda: torch.nn.Linear(3, 2), rows)  # doctest: +SKIP
    """
    with require_extra("torch", "from_torch needs PyTorch and torchax"):
        import torch  # optional
        import torchax

    given = isinstance(module, torch.nn.Module)
    example = module if given or not callable(module) else module()
    if not isinstance(example, torch.nn.Module):
        raise InputError(
            f"{SOURCE}: {type(example).__name__} is neither a torch.nn.Module nor a function "
            "without arguments that makes one."
        )
    _check(example)
    of_example, apply = torchax.extract_jax(example, dedup_parameters=False)
    names = [name for name, _ in example.named_parameters(remove_duplicate=False)]
    fixed = {name: value for name, value in of_example.items() if name not in names}
    shapes = {name: jax.ShapeDtypeStruct(of_example[name].shape, jnp.float32) for name in names}

    def made(key_data: np.ndarray) -> dict[str, np.ndarray]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(np.asarray(key_data, np.uint64).ravel() @ (1, 2**16)) % 2**63)
            weights = dict(module().named_parameters(remove_duplicate=False))
        return {name: weights[name].detach().numpy().astype(np.float32) for name in names}

    def start(key: Array) -> dict[str, Array]:
        if given:
            return {name: of_example[name] for name in names}
        return jax.pure_callback(made, shapes, jax.random.key_data(key), vmap_method="sequential")

    def outputs(weights: Mapping[str, Array], x: Array) -> Array:
        # PyTorch's rules of shapes and types, whatever JAX is set to
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return apply(fixed | dict(weights), (x,))

    network = Network(start, outputs, SOURCE, lambda shape: math.prod(shape[1:]))
    return network_model(network, rows, likelihood, prior, inputs, target)


def _check(module: Any) -> None:
    """Refuse modules whose outputs depend on other rows or on random numbers."""
    import torch

    for name, part in module.named_modules():
        if isinstance(part, torch.nn.modules.batchnorm._NormBase) and part.track_running_stats:
            raise InputError(
                f"{SOURCE}: {name or 'the module'} is a {type(part).__name__}, which keeps "
                "statistics of batches: a row's likelihood would depend on the other rows. Use "
                "LayerNorm or GroupNorm."
            )
        if isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.p > 0:
            raise InputError(
                f"{SOURCE}: {name or 'the module'} is a {type(part).__name__}, which draws random "
                "numbers: leave it out; the spread of the posterior replaces it."
            )
