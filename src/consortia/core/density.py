"""Checks of a model's densities on its first rows, made before the sampler is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from consortia.core import trees
from consortia.core.model import Model
from consortia.core.target import Target, in_jax_width
from consortia.errors import InputError, located, warn
from consortia.runtime import compiler
from consortia.runtime.late import Array, PyTree, jax, jnp, width_of


def check_data(model: Model, held: Mapping[str, PyTree]) -> None:
    """Check that numbers fit JAX's types, and apply the model's own check, at each site here.

    Args:
        model: the model.
        held: the rows of the sites that are here, by the site's name.

    Raises:
        InputError: an integer does not fit, or the model cannot use the rows; with the site.
    """
    for name, rows in held.items():
        for leaf in trees.leaves_of(rows):
            key = ".".join(leaf.keys)
            with located(argument=key, site=name):
                check_fits(leaf.value, f"site {name!r}, {key!r}")
    if model.check is None:
        return
    for name, rows in held.items():
        problem = model.check(rows)
        if problem:
            raise InputError(f"site {name!r}: {problem}").at(site=name)


def check_fits(leaf: np.ndarray, where: str) -> None:
    """Refuse integers beyond the type that JAX has for them, in which they would wrap."""
    width = width_of(leaf.dtype)
    if leaf.dtype.kind not in "iu" or width == leaf.dtype or not leaf.size:
        return
    limits = np.iinfo(width)
    low, high = int(leaf.min()), int(leaf.max())
    if limits.min <= low and high <= limits.max:
        return
    beyond = np.argwhere((leaf < limits.min) | (leaf > limits.max))[0]
    column = "" if leaf.ndim == 1 else f", column {', '.join(map(str, beyond[1:]))}"
    raise InputError(
        f"{where}{column}: it holds integers from {low} to {high}, {leaf.dtype}, and JAX runs "
        f"in 32 bits, where {limits.min} to {limits.max} fit. Cast the column to float (of large "
        "numbers seven digits are kept) or take a smaller unit, or set JAX_ENABLE_X64=1 before the "
        "start."
    )


def check_density(target: Target, shard: PyTree) -> None:
    """Check the shapes of both densities, one value per row; nothing is compiled."""
    position = jax.ShapeDtypeStruct((target.dimension,), target.dtype)
    log_prior = target.model.log_prior
    if log_prior is not None:
        shape = _shape("log_prior", lambda p: log_prior(target.unravel(p)), position)
        if shape != ():
            raise InputError(
                f"Model.log_prior returns shape {shape}: it must be a scalar (sum over the "
                "parameters)."
            ).at("log_prior")
    of_site = target.model.site_log_likelihood
    for rows in (3, 2) if of_site is None else (3,):
        index = np.zeros(rows, int)
        batch = jax.tree.map(lambda leaf, index=index: leaf[index], shard)
        if of_site is not None:
            name, mask = "site_log_likelihood", jax.ShapeDtypeStruct((rows,), bool)
            of = partial(_of_site, target, of_site)
            if (shape := _shape(name, of, position, batch, mask)) != ():
                raise InputError(
                    f"Model.{name} returns shape {shape}: it must be a scalar, the log-likelihood "
                    "of all rows where mask is True."
                ).at(name)
            continue
        shape = _shape("log_likelihood", target.log_likelihood, position, batch)
        if shape == (rows,):
            continue
        if shape == ():
            raise InputError(
                "Model.log_likelihood returns a scalar: it must return one value per row, shape "
                "(rows,). Leave out the sum or mean; the library sums the rows itself, and a sum "
                "would scale minibatches wrongly, without an error."
            ).at("log_likelihood")
        raise InputError(
            f"Model.log_likelihood returns shape {shape} for a batch of {rows} rows: it must "
            f"return one value per row, shape ({rows},)."
        ).at("log_likelihood")


def _of_site(target: Target, of_site: Any, position: Array, rows: PyTree, mask: Array) -> Any:
    return of_site(target.unravel(position), rows, mask)


def _shape(name: str, function: Callable[..., Any], *arguments: Any) -> tuple[int, ...]:
    try:
        return tuple(jax.eval_shape(function, *arguments).shape)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        traced = "Tracer" in type(error).__name__ or "traced" in first_line.lower()
        if traced:
            first_line += " (It is compiled by JAX: use jax.numpy for numpy, and jnp.where for if.)"
        raise InputError(
            f"Model.{name} cannot be evaluated on the model's parameters"
            f"{' and a batch of the first site' if len(arguments) > 1 else ''}: "
            f"{type(error).__name__}: {first_line}"
        ).at(name) from error


def check_values(target: Target, shard: PyTree, parameters: PyTree) -> None:
    """Check what both densities return at one point; they are compiled together.

    Refuse a density whose value of a row depends on the other rows of its batch; warn when the
    posterior has no prior at all.
    """
    length = len(jax.tree.leaves(shard)[0])
    take = [np.array([0, length - 1]), np.array([length - 1, length - 1])]
    batches = [jax.tree.map(lambda leaf, i=i: in_jax_width(leaf[i]), shard) for i in take]
    point = jax.tree.map(lambda leaf: np.asarray(leaf).astype(target.dtype), parameters)
    of_rows = length > 1 and not target.model.by_site
    values, priors = _values(target.model, point, batches if of_rows else [])
    _check_rows_independent(np.asarray(values))
    _check_prior(None if priors is None else np.asarray(priors))


@partial(compiler.jit, options=compiler.for_once, static_argnums=0)
def _values(
    model: Model, parameters: PyTree, batches: list[PyTree]
) -> tuple[list[Array], Array | None]:
    """Return the rows' log-likelihoods of each batch, and the log-prior here and there.

    A prior on a box is constant near the start, and proper.
    """
    target = Target(model, parameters)
    position = target.ravel(parameters)
    values = [target.log_likelihood(position, batch) for batch in batches]
    if model.log_prior is None:
        return values, None
    points = (position, position + 1, 2 * position - 3, position + 1e9, position - 1e9)
    return values, jnp.stack([target.log_prior(point) for point in points])


def _check_rows_independent(values: np.ndarray) -> None:
    """Refuse values (batches, 2) in which the last row's differ between two batches."""
    if not values.size or not np.all(np.isfinite(values)):
        return
    if not np.allclose(values[0][1], values[1][1], rtol=1e-3):
        raise InputError(
            "Model.log_likelihood gives a row another value when the other rows of the batch "
            "change: it must return each row's own log-likelihood (no sum, mean or normalisation "
            "over the batch)."
        ).at("log_likelihood")


def _check_prior(values: np.ndarray | None) -> None:
    """Warn when there is no log-prior, or these values of it (points,) are all the same."""
    if values is None or (np.all(values == values[0]) and np.isfinite(values[0])):
        warn(
            "the model has no prior (Model.log_prior is None or constant): the posterior may be "
            "improper, and a sampler will then wander off without an error"
        )
