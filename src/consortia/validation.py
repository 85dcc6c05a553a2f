"""Checks of a model, its data and its start, made before the sampler is compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia import checks, numbers
from consortia.base import Method, Site
from consortia.errors import InputError, NonFiniteError
from consortia.model import Model
from consortia.sites import Sites, in_jax_width
from consortia.target import Target

Array = jax.Array
PyTree = Any


def check_arguments(
    model: Any,
    sites: Any,
    method: Any,
    *,
    rounds: Any,
    chains: Any,
    seed: Any,
    thin: Any,
    warmup: Any,
) -> None:
    """Types and ranges of the arguments of `sample`."""
    if not isinstance(model, Model):
        raise InputError(f"model is a {type(model).__name__}: give a consortia.Model.")
    if not isinstance(sites, Sites):
        raise InputError(
            f"sites is a {type(sites).__name__}: make it with consortia.Sites.from_list([...]) "
            "or consortia.partition."
        )
    if not hasattr(method, "build"):
        raise InputError(
            f"algorithm is {method!r}: give what consortia.fa_hmc(...) or another factory returns."
        )
    checks.whole("rounds", rounds, 1)
    checks.whole("chains", chains, 1)
    checks.whole("thin", thin, 1)
    checks.whole("warmup", warmup, 0)
    checks.whole("seed", seed, 0, 2**63 - 1)
    if rounds + warmup >= 2**31:
        raise InputError(f"rounds + warmup is {rounds + warmup}: the most is {2**31 - 1}.")


def check_thinning(thin: int, rounds: int, per_iteration: int) -> None:
    """At least one draw must be kept, and draws must be countable in 32 bits."""
    draws = rounds * per_iteration
    if thin > draws:
        raise InputError(
            f"thin={thin} is larger than the {draws} draws of this run: no draw would be kept."
        )
    if draws >= 2**31:
        raise InputError(f"rounds={rounds} give {draws} draws: the most is {2**31 - 1}.")


def starting_parameters(model: Model, init: Any, seed: int, chains: int) -> list[PyTree]:
    """The parameters that each chain starts from, checked against the model's own structure."""
    own = model.init(jax.random.key(0)) if callable(model.init) else model.init
    _check_leaves("Model.init", own)
    source, argument = (model.init, "Model.init") if init is None else (init, "init")
    if not callable(source):
        _check_start(argument, source, own)
        return [source] * chains
    result = []
    for chain in range(chains):
        parameters = source(numbers.user_key(seed, chain))
        _check_start(argument, parameters, own)
        result.append(parameters)
    return result


def _check_leaves(argument: str, parameters: PyTree) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(parameters)
    if not leaves:
        raise InputError(f"{argument} has no parameters: give at least one floating array.")
    for path, leaf in leaves:
        where = f"{argument}{jax.tree_util.keystr(path)}"
        dtype = getattr(leaf, "dtype", np.asarray(leaf).dtype)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise InputError(
                f"{where} is of type {dtype}: parameters must be floating (write 0.0, not 0)."
            )


def _check_start(argument: str, parameters: PyTree, own: PyTree) -> None:
    _check_leaves(argument, parameters)
    structure: Any = jax.tree.structure(parameters)
    wanted: Any = jax.tree.structure(own)
    if structure != wanted:
        raise InputError(
            f"{argument} has the structure {structure}, the model's parameters have {wanted}."
        )
    paths = jax.tree_util.tree_leaves_with_path(own)
    for leaf, (path, example) in zip(jax.tree.leaves(parameters), paths, strict=True):
        where = f"{argument}{jax.tree_util.keystr(path)}"
        if np.shape(leaf) != np.shape(example):
            raise InputError(
                f"{where} has shape {np.shape(leaf)}, the model's parameter {np.shape(example)}."
            )
        if not np.all(np.isfinite(np.asarray(leaf))):
            raise InputError(f"{where} holds a value that is not finite.")


def check_data(model: Model, sites: Sites) -> None:
    """The model's own check of the rows of each site that is here."""
    if model.check is None:
        return
    for number in sites.here:
        problem = model.check(sites.site(number))
        if problem:
            raise InputError(f"site {sites.names[number]!r}: {problem}")


def check_density(target: Target, sites: Sites) -> None:
    """Shapes of both densities, and one independent value per row; nothing is compiled."""
    position = jax.ShapeDtypeStruct((target.dimension,), target.dtype)
    log_prior = target.model.log_prior
    if log_prior is not None:
        shape = _shape("log_prior", lambda p: log_prior(target.unravel(p)), position)
        if shape != ():
            raise InputError(
                f"Model.log_prior returns shape {shape}: it must be a scalar (sum over the "
                "parameters)."
            )
    for rows in (3, 2):
        index = np.zeros(rows, int)
        batch = jax.tree.map(lambda leaf, index=index: leaf[index], sites.first)
        shape = _shape("log_likelihood", target.log_likelihood, position, batch)
        if shape == (rows,):
            continue
        if shape == ():
            raise InputError(
                "Model.log_likelihood returns a scalar: it must return one value per row, shape "
                "(rows,). Leave out the sum or mean; the library sums the rows itself, and a sum "
                "would break minibatch scaling without a sign."
            )
        raise InputError(
            f"Model.log_likelihood returns shape {shape} for a batch of {rows} rows: it must "
            f"return one value per row, shape ({rows},)."
        )


def _shape(name: str, function: Callable[..., Any], *arguments: Any) -> tuple[int, ...]:
    try:
        return tuple(jax.eval_shape(function, *arguments).shape)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"Model.{name} cannot be evaluated on the model's parameters"
            f"{' and a batch of the first site' if len(arguments) > 1 else ''}: "
            f"{type(error).__name__}: {first_line}"
        ) from error


def check_rows_independent(target: Target, sites: Sites, position: Array) -> None:
    """The value of a row must not depend on the other rows of its batch."""
    shard = sites.first
    length = len(jax.tree.leaves(shard)[0])
    if length < 2:
        return
    take = [np.array([0, length - 1]), np.array([length - 1, length - 1])]
    rows = [jax.tree.map(lambda leaf, i=i: in_jax_width(leaf[i]), shard) for i in take]
    values = np.asarray(_row_values(target.model, target.unravel(position), rows))
    if np.all(np.isfinite(values)) and not np.allclose(values[0][1], values[1][1], rtol=1e-3):
        raise InputError(
            "Model.log_likelihood gives a row another value when the other rows of the batch "
            "change: it must return each row's own log-likelihood (no sum, mean or normalisation "
            "over the batch)."
        )


@partial(jax.jit, static_argnums=0)
def _row_values(model: Model, parameters: PyTree, batches: list[PyTree]) -> Array:
    """Log-likelihoods of the rows of several batches of one size; compiled once for a model."""
    target = Target(model, parameters)
    position = target.ravel(parameters)
    return jnp.stack([target.log_likelihood(position, batch) for batch in batches])


@partial(jax.jit, static_argnums=0)
def _prior_values(model: Model, parameters: PyTree) -> Array:
    """The log-prior here and there: a prior on a box is constant near the start, and proper."""
    target = Target(model, parameters)
    position = target.ravel(parameters)
    points = (position, position + 1, 2 * position - 3, position + 1e9, position - 1e9)
    return jnp.stack([target.log_prior(point) for point in points])


def check_prior(target: Target, position: Array) -> None:
    """Warn when the posterior has no prior at all."""
    flat = target.model.log_prior is None
    if not flat:
        values = np.asarray(_prior_values(target.model, target.unravel(position)))
        flat = bool(np.all(values == values[0]) and np.isfinite(values[0]))
    if flat:
        warnings.warn(
            "the model has no prior (Model.log_prior is None or constant): the posterior may be "
            "improper, and a sampler will then wander off without an error",
            UserWarning,
            stacklevel=3,
        )


def judged_stability(method: Method, model: Model, sites: Sites, parameters: PyTree) -> str | None:
    """What the method has against its step size, "" for nothing; None without the rows to tell."""
    judge = getattr(method, "check_stability", None)
    if judge is None:
        return ""
    return None if sites.elsewhere else judge(model, sites, parameters) or ""


def check_stability(judgements: list[str | None]) -> tuple[str, ...]:
    """Warns of a step size with which the method diverges, where a process could tell.

    Returns:
        What the plan should say: that none could.
    """
    known = [text for text in judgements if text is not None]
    if not known:
        return (
            "step_size is not judged by the curvatures at the start: no process has the rows of "
            "all sites.",
        )
    if known[0]:
        warnings.warn(known[0], UserWarning, stacklevel=3)
    return ()


def check_fitted(method: Method, fitted: PyTree, names: tuple[str, ...]) -> None:
    """The method's own judgement on what its ``fit`` phases left at the sites: may refuse it."""
    judge = getattr(method, "check_fitted", None)
    for text in judge(fitted, names) if judge is not None else ():
        warnings.warn(text, UserWarning, stacklevel=3)


def explain(error: NonFiniteError, method: Method, target: Target, run: Any) -> None:
    """Adds to the error what the method knows of the end of a chain at a site."""
    explanation = getattr(method, "explain_end", None)
    if explanation is None or error.site is None:
        return
    position = jnp.asarray(error.position, target.dtype)
    site = run.site(error.site)
    if site is None:  # its rows are in another process
        return
    reason = explanation(target, site, error.site, position)
    if reason:
        error.args = (f"{error} {reason}",)


def warn_of(method: Method, hub: Any) -> None:
    """What the method has to say about the draws that it made, from the hub's last state."""
    notes = getattr(method, "notes", None)
    for text in notes(hub) if notes is not None else ():
        warnings.warn(text, UserWarning, stacklevel=3)


def start_values(target: Target, arrays: Any, positions: Array) -> tuple[Array, Array, Array]:
    """Log-prior and U_c, and whether its gradient is finite, at every start; jit this.

    Args:
        target: the posterior.
        arrays: the engine's `SiteArrays`.
        positions: (chains, d).

    Returns:
        log-prior (chains,), U_c (nodes, chains) and finite gradient (nodes, chains).
    """

    def at_node(own: Any) -> tuple[Array, Array]:
        node, size, weight, share = own
        site = Site(arrays.data, size, weight, share, (), node)
        rows, mask = site.all()

        def at(position: Array) -> tuple[Array, Array]:
            value, gradient = jax.value_and_grad(target.potential)(position, rows, mask, site)
            return value, jnp.all(jnp.isfinite(gradient))

        return jax.lax.map(at, positions)

    nodes = jnp.arange(arrays.sizes.shape[0], dtype=jnp.int32)
    own = (nodes, arrays.sizes, arrays.weights, arrays.prior_shares)
    values, finite = jax.lax.map(at_node, own)
    return jax.lax.map(target.log_prior, positions), values, finite


def check_start_values(values: tuple[Any, Any, Any], names: tuple[str, ...]) -> None:
    """Refuse a start at which the density or its gradient is not finite."""
    prior, potential, finite = (np.asarray(value) for value in values)
    for chain, value in enumerate(prior):
        if not np.isfinite(value):
            raise InputError(
                f"Model.log_prior is {value} at the start of chain {chain}: choose init inside "
                "the support of the prior."
            )
    bad = np.argwhere(~np.isfinite(potential))
    if bad.size:
        node, chain = bad[0]
        raise InputError(
            f"the log-density of site {names[node]!r} is {-potential[node, chain]} at the start of "
            f"chain {chain}: choose another init, or look at the data of this site."
        )
    bad = np.argwhere(~finite)
    if bad.size:
        node, chain = bad[0]
        raise InputError(
            f"the gradient of the log-density of site {names[node]!r} is not finite at the start "
            f"of chain {chain} (the density itself is): look for sqrt, log or a division at 0 in "
            "Model.log_likelihood or Model.log_prior, or choose another init."
        )


def check_warmup(method: Method, warmup: int) -> None:
    """The method's own judgement on the length of the warm-up: may refuse it."""
    judge = getattr(method, "check_warmup", None)
    if judge is not None:
        judge(warmup)


def check_schedule(method: Method, total: int) -> None:
    """A step size given as an array must reach to the last round."""
    length = getattr(getattr(method, "step_size", None), "length", None)
    if length is not None and length < total:
        raise InputError(
            f"step_size is an array of {length} values, the run has {total} rounds (warm-up "
            "included): give one value a round, or a function from consortia.schedules."
        )


def precision_notes(sites: Sites) -> list[str]:
    """What the user should know about the width of numbers."""
    wide = {
        str(leaf.dtype)
        for leaf in jax.tree.leaves(sites.first)
        if leaf.dtype.kind in "fiuc" and leaf.dtype != jax.dtypes.canonicalize_dtype(leaf.dtype)
    }
    if not wide:
        return []
    return [
        f"the data hold {', '.join(sorted(wide))}, JAX runs in 32 bits: they are rounded. Set "
        "JAX_ENABLE_X64=1 before the start to keep 64 bits."
    ]
