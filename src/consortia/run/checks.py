"""Checks of a model, its data and its start, made before the sampler is compiled."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from consortia.core import arguments as checks
from consortia.core import density, fingerprints, trees
from consortia.core.contract import Method, SurrogateBased
from consortia.core.model import Model
from consortia.core.parameters import coordinate_names, structure_of, variables
from consortia.core.queries import Conversation
from consortia.core.target import Target, parameters_of
from consortia.data.sites import Sites
from consortia.engines.contract import Run
from consortia.errors import InputError, NonFiniteError, WarmupError, warn, wrong
from consortia.runtime import late
from consortia.runtime.late import jax, jnp
from consortia.schedules import Tabulated
from consortia.theory import stability

PROCESS = os.getpid()
"""The process in which JAX was loaded."""

RESOLVED = 0.5
"""A log-density must be known to such a difference for a Metropolis test to mean something."""

ROUNDED_MAX = 1e-3
"""Share of a column's standard deviation that rounding may move without a warning."""

CHAINS_MAX = 100_000

PyTree = Any

_traced: WeakKeyDictionary[Model, dict[str, str]] = WeakKeyDictionary()
"""Fingerprints of what has been sampled, by structure of parameters and rows."""


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
    draws: Any = None,
    init: Any = None,
) -> int:
    """Check types and ranges of the arguments of `sample`; return the rounds."""
    check_process()
    if not isinstance(model, Model):
        what = (
            "a consortia.Model; consortia.from_numpyro makes one of a model of NumPyro, "
            "from_flax or from_equinox of a network"
        )
        if isinstance(getattr(model, "model", None), Model):
            what = "its .model, and its .sites as sites"
        raise wrong("model", f" is a {type(model).__name__}: give {what}.")
    if not isinstance(sites, Sites):
        raise InputError(
            f"sites is a {type(sites).__name__}: make it with consortia.Sites.from_list([...]) "
            "or consortia.partition."
        ).at("sites")
    if isinstance(method, type) and issubclass(method, Method):
        raise wrong("algorithm", f" is {method.name} itself: write {method.name}(...).")
    if not isinstance(method, Method):
        raise InputError(
            f"algorithm is {method!r}: give what consortia.fa_hmc(...) or another factory returns, "
            "or a frozen dataclass that inherits from consortia.core.contract.Method."
        ).at("algorithm")
    check_likelihood(model, method)
    if draws is not None:
        if rounds is not None:
            raise wrong("draws", " and rounds both say how long the run is: give one of them.")
        checks.whole("thin", thin, 1)
        rounds = _rounds_for(checks.whole("draws", draws, 1) * thin, model, method, init)
    if rounds is None and isinstance(method, Conversation):
        rounds = method.most_rounds
    if rounds is None:
        raise wrong("rounds", f" is missing: {method.name} does not stop by itself.")
    checks.whole("rounds", rounds, 1)
    checks.whole("chains", chains, 1, CHAINS_MAX)
    checks.whole("thin", thin, 1)
    checks.whole("warmup", warmup, 0)
    checks.whole("seed", seed, 0, 2**63 - 1)
    if rounds + warmup >= 2**31:
        raise wrong("rounds", f" + warmup is {rounds + warmup}: the most is {2**31 - 1}.")
    return int(rounds)


def _rounds_for(draws: int, model: Model, method: Method, init: Any) -> int:
    """Return the rounds that yield so many draws."""
    if isinstance(method, Conversation):
        raise InputError(
            f"draws: {method.name} ends by itself, at a number of effective draws: give "
            f"consortia.{method.name}(effective_size={draws})."
        ).at("draws")
    target = Target(model, parameters_of(model, init, jax.random.key(0)))
    return -(-draws // method.build(target).draws.per_iteration)


def check_likelihood(model: Model, method: Method) -> None:
    """Refuse minibatches of a model with a likelihood of each site, and weights of a sample.

    Raises:
        InputError: the method takes them; or it cannot give draws the spread of a sandwich.
    """
    if model.sandwich and not (isinstance(method, Conversation) and method.sandwich):
        raise InputError(
            f"weights_are='sampling', cluster(...): {method.name} draws from a posterior, whose "
            "spread is wrong with weights of a sample, or with clusters of rows: use few_rounds."
        ).at("weights_are")
    batch = method.parameters().get("batch_size")
    if model.by_site and batch is not None:
        raise InputError(
            f"{method.name} takes minibatches of {batch} rows, and the model has a log-likelihood "
            "of each site and none of rows: give batch_size=None, use federated_hmc, or write "
            "integrate=False where levels of sites are integrated out."
        ).at("batch_size")


def check_process() -> None:
    """Refuse to run in a process that was forked: JAX's threads are not in it, and it would wait.

    Raises:
        InputError: it is one.
    """
    if os.getpid() != PROCESS:
        raise InputError(
            "this process was forked after JAX was initialised and would deadlock: "
            "start processes by 'spawn' (multiprocessing.get_context('spawn')), or sample in the "
            "first one."
        )


def check_model(target: Target, shard: PyTree) -> None:
    """Refuse a model with densities of wrong shapes, or of others than in its first run here.

    Compiled programs are kept by model: they would go on with what the functions closed over then.
    As long as they compute the same, their shapes are looked at once.

    Raises:
        InputError: see `consortia.core.density.check_density`; or they have changed.
    """
    leaves = [(leaf.shape[1:], str(leaf.dtype)) for leaf in jax.tree.leaves(shard)]
    numerics = (jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision)  # type: ignore[attr-defined]
    key = str((target.structure, jax.tree.structure(shard), leaves, numerics))
    known = _traced.setdefault(target.model, {})
    if key not in known:
        density.check_density(target, shard)
    try:
        now = fingerprints.of_model(target, shard)
    except Exception:
        density.check_density(target, shard)  # says which function cannot be evaluated by now
        raise
    if known.setdefault(key, now) != now:
        raise InputError(
            "the model's functions no longer compute what they did when it was first sampled: a "
            "variable that they use has changed. Make a new consortia.Model of them; a model is "
            "compiled once."
        ).at("model")


def check_thinning(thin: int, rounds: int, per_iteration: int) -> None:
    """Refuse to keep no draw, or more than 32 bits can count."""
    draws = rounds * per_iteration
    if thin > draws:
        raise wrong("thin", f"={thin} is larger than the {draws} draws of this run: none is kept.")
    if draws >= 2**31:
        raise wrong("rounds", f"={rounds} give {draws} draws: the most is {2**31 - 1}.")


def judged_stability(method: Method, model: Model, sites: Sites, parameters: PyTree) -> str | None:
    """Return the reason against the step size, "" for none; None without the rows to judge by."""
    if model.by_site or not stability.has_prediction(method):  # curvatures are sums over rows
        return ""
    if sites.elsewhere:
        return None
    return stability.predict_divergence(method, model, sites, parameters) or ""


def check_stability(judgements: list[str | None]) -> tuple[tuple[str, ...], bool]:
    """Warn of a step size with which the method diverges.

    Returns:
        Notes for the plan: that no process could judge it, where none had all rows; and True if
        there was a warning.
    """
    known = [text for text in judgements if text is not None]
    if not known:
        return (
            "step_size is not judged by the curvatures at the start: no process has the rows of "
            "all sites.",
        ), False
    if known[0]:
        warn(known[0])
    return (), bool(known[0])


def explain(error: NonFiniteError, method: Method, target: Target, run: Run) -> None:
    """Add to the error what the method knows of the end of a chain at a site."""
    if error.site is None or not isinstance(method, SurrogateBased):
        return
    position = jnp.asarray(error.position, target.dtype)
    site = run.site(error.site)
    if site is None:  # its rows are in another process
        return
    reason = method.explain_end(target, site, error.site, position)
    if reason:
        error.args = (f"{error} {reason}",)


def check_schedule(method: Method, total: int) -> None:
    """Refuse a step size given as an array that does not reach to the last round."""
    for schedule in method.step_schedules:
        if isinstance(schedule, Tabulated) and schedule.length < total:
            raise InputError(
                f"step_size is an array of {schedule.length} values, the run has {total} rounds "
                "(warm-up included): give one value a round, or a function from "
                "consortia.schedules."
            ).at("step_size")


def explain_precision(error: WarmupError, model: Model, sites: Sites, params: PyTree) -> None:
    """Add to an error that 32 bits are too few, where that is its reason."""
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        return
    moved = _rounding(model, sites, params)
    if not moved > RESOLVED:
        return
    reason = next(iter(precision_notes(sites)), None)
    if reason is None:
        reason = (
            f"32 bits round the log-density by about {moved:.2g}, and a Metropolis test needs "
            "tenths of it: set JAX_ENABLE_X64=1 before the start, use a larger unit of the "
            "response, or write a difference of large terms as one (of gammaln as betaln)."
        )
    if flat := _without_prior(model, params):  # its draws may have no end, whatever the bits
        reason += f" And give {', '.join(flat)} a proper prior, if 64 bits are not enough."
    what = str(error).partition(". ")[0].rstrip(".")  # its advice is of another reason
    error.args = (f"{what}. The reason: {reason}",)


def _without_prior(model: Model, params: PyTree) -> list[str]:
    """Name the parameters that the log-prior does not change, at two places."""
    structure = variables(structure_of(params))
    names = [name for each in structure for name in coordinate_names(each.name, each.shape)]
    if model.log_prior is None:
        return names
    moved = np.zeros(len(names), bool)
    for point in (params, jax.tree.map(lambda leaf: leaf + 1, params)):
        slopes = jax.tree.leaves(jax.grad(model.log_prior)(point))
        moved |= np.concatenate([np.ravel(slope) for slope in slopes]) != 0
    return [name for name, known in zip(names, moved, strict=True) if not known]


def _rounding(model: Model, sites: Sites, params: PyTree) -> float:
    """Return by how much rounding to 32 bits moves the log-likelihood of the rows that are here."""
    if model.by_site:
        return 0.0
    squares = 0.0
    for shard in sites.shards:
        single = np.asarray(model.log_likelihood(params, jax.tree.map(jnp.asarray, shard)), float)
        try:
            with jax.enable_x64(True):
                wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, _wide(leaf)), (params, shard))
                double = np.asarray(model.log_likelihood(*wide), float)
        except TypeError:  # the model has a width of its own
            return 0.0
        squares += float(np.sum((single - double) ** 2))
    return squares**0.5


def _wide(leaf: Any) -> np.dtype:
    dtype = np.asarray(leaf).dtype
    return np.dtype(np.float64) if dtype.kind == "f" else dtype


def precision_notes(sites: Sites) -> list[str]:
    """Return a note where rounding to 32 bits moves values of a column by much of its spread."""
    kept = late.float_type()
    for _, keys, leaf in trees.leaves_of(sites.first):
        values = np.asarray(leaf)
        if values.dtype.kind != "f" or values.dtype.itemsize <= kept.itemsize:
            continue
        moved, spread = np.abs(values.astype(kept) - values), np.std(values, axis=0)
        if bool(np.any((spread > 0) & (moved > ROUNDED_MAX * spread))):
            return [
                f"32 bits round values of {'/'.join(keys)!r} by more than "
                "a thousandth of their standard deviation: subtract a constant from them, or set "
                "JAX_ENABLE_X64=1 before the start."
            ]
    return []
