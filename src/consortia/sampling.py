"""`sample`: checks, plan, run, result."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from consortia import naming, planning, results, validation
from consortia.base import Method, Plan
from consortia.engines.local import LocalEngine
from consortia.engines.mailbox import servers_of
from consortia.errors import InputError, NonFiniteError, WarmupError
from consortia.model import Model
from consortia.progress import progress_of
from consortia.recording import Recorder
from consortia.running import Length, RunLoop
from consortia.sites import Sites
from consortia.stopping import StopWhen, check_rule
from consortia.store import RunStore, open_run
from consortia.target import Target

DIAGNOSTICS_SHARE = 0.02
"""R-hat and ESS may take this share of a run; `consortia.summary` computes the rest on demand."""

DIAGNOSED_PER_SECOND = 4e6
"""Numbers that R-hat and ESS get through in a second, measured on one core at 4 × 1,000 draws."""

LONG_CHAIN, LONG_CHAIN_RATE = 10_000, 1.5e6
"""Draws a chain beyond which they get through fewer: the same at 200,000 draws."""


def sample(
    model: Model,
    sites: Sites,
    algorithm: Method,
    *,
    rounds: int,
    chains: int = 1,
    seed: int = 0,
    thin: int = 1,
    warmup: int = 0,
    init: Any = None,
    engine: LocalEngine | None = None,
    store: Any = None,
    progress: bool = True,
    stop: StopWhen | None = None,
    on_plan: Callable[[Plan], None] | None = None,
) -> Any:
    """Samples a posterior from data that stay at their sites.

    Which law is sampled, and how far from the posterior it is, depends on the algorithm; its
    docstring says so.

    Args:
        model: log-prior and per-row log-likelihood.
        sites: the data, one shard per site.
        algorithm: what `consortia.fa_hmc` or another factory returns.
        rounds: iterations after the warm-up ones; each yields one draw.
        chains: independent chains, at each server where there are several. Sites are not chains.
        seed: 0 <= seed < 2**63; equal seeds give equal draws on every engine.
        thin: keep draws number thin, 2·thin, ...: the last of each block.
        warmup: iterations before the first recorded one.
        init: where to start instead of ``model.init``: an array or pytree like the model's
            parameters (every chain starts there), or a function of a JAX key (one call a chain).
        engine: how the sites are run; `LocalEngine()` when None.
        store: a directory for the run, written chunk by chunk; the result then opens it lazily.
        progress: show a bar on a terminal, JSON lines elsewhere, on standard error.
        stop: a rule from `consortia.stop_when`; ``rounds`` is then the most that are run.
        on_plan: called with the `Plan` before the sampler is compiled.

    Returns:
        `xarray.DataTree` in ArviZ's layout: ``posterior`` (chain, draw, ...), ``sample_stats``,
        ``agents`` where sites have series of their own, ``diagnostics`` (R-hat and ESS, with the
        reason where they are not available); seed, versions, parameters and cost as attributes.
        Parameters given as a dict become one variable each, a bare array becomes "theta".
        An interrupt from the keyboard ends the run early with a warning, and the draws so far.

    Raises:
        InputError: an argument, the model or the data cannot be used.
        StoreError: ``store`` already holds a run.
        NonFiniteError: a chain turned non-finite; ``error.tree`` holds every draw before it.
        WarmupError: what was learned in the warm-up is not worth going on with.
    """
    validation.check_arguments(
        model, sites, algorithm, rounds=rounds, chains=chains, seed=seed, thin=thin, warmup=warmup
    )
    length = Length(warmup, rounds, thin)
    stop = check_rule(stop)
    writer = None if store is None else RunStore(store)
    engine = LocalEngine() if engine is None else engine
    if not hasattr(engine, "prepare"):
        raise InputError(f"engine is {engine!r}: give consortia.LocalEngine() or another engine.")
    validation.check_schedule(algorithm, length.total)
    validation.check_warmup(algorithm, warmup)
    target = Target(model, validation.starting_parameters(model, init, seed, 1)[0])
    variables = naming.variables(target.structure)
    algorithm.check(np.asarray(sites.sizes), sites.names, target.dimension)
    chains *= servers_of(algorithm.build(target))
    starts = validation.starting_parameters(model, init, seed, chains)
    validation.check_data(model, sites)
    validation.check_density(target, sites)
    positions = jnp.stack([target.ravel(start) for start in starts])
    validation.check_rows_independent(target, sites, positions[0])
    validation.check_prior(target, positions[0])
    validation.check_stability(algorithm, model, sites, starts[0])

    run = engine.prepare(target, sites, algorithm, chains)
    validation.check_thinning(thin, rounds, run.draws_per_iteration)
    validation.check_start_values(run.start_values(positions), sites.names)
    carry = run.start(seed, positions, rounds, warmup)
    validation.check_fitted(algorithm, run.fitted, sites.names)
    plan = planning.plan_of(run, carry, sites, algorithm, target, engine.name, length)
    if on_plan is not None:
        on_plan(plan)
    record = planning.record_of(run, sites, algorithm, engine.name, length, seed)
    recorder = Recorder(
        chains=chains,
        draws=rounds * run.draws_per_iteration // thin,
        thin=thin,
        per_iteration=run.draws_per_iteration,
        warmup=warmup,
        variables=variables,
        sites=sites.names,
        step_weights=algorithm.step_weights,
        store=writer,
        remember=stop is not None,
    )
    if writer is not None:
        writer.begin(record)
    started = time.monotonic()
    with progress_of(algorithm.name, length.total, show=progress) as shown:
        judge = getattr(algorithm, "check_learned", None)
        loop = RunLoop(run, carry, length, recorder, shown, stop, judge)

        def result(reason: str) -> Any:
            record["stopped"] = reason
            record["seconds"] = time.monotonic() - started
            worth = planning.full_iterations(algorithm, loop.hub, loop.done)
            record.update(planning.cost_of(plan, algorithm, sites, chains, loop.done, worth))
            record.update(planning.measured(run, algorithm, target, loop.carry, loop.done))
            return _finished(recorder, writer, record)

        try:
            reason = loop.execute()
        except (NonFiniteError, WarmupError) as error:
            if isinstance(error, NonFiniteError):
                validation.explain(error, algorithm, target, run)
            error.tree = result(str(error))
            raise
        except KeyboardInterrupt:
            reason = f"interrupted after round {loop.done}"
            warnings.warn(f"{reason}; the draws so far are returned", UserWarning, stacklevel=2)
    tree = result(reason)
    validation.warn_of(algorithm, loop.hub)
    return tree


def _finished(recorder: Recorder, writer: RunStore | None, record: dict[str, Any]) -> Any:
    """The tree of a run that has ended, with R-hat and ESS."""
    from consortia.diagnostics.convergence import add_diagnostics

    rate = LONG_CHAIN_RATE if recorder.kept > LONG_CHAIN else DIAGNOSED_PER_SECOND
    numbers = rate * DIAGNOSTICS_SHARE * record["seconds"]
    coordinates = int(numbers / max(recorder.kept * record["chains"], 1))
    if writer is None:
        tree = results.tree_of(recorder.groups(), record)
        if recorder.kept:
            add_diagnostics(tree, max_coordinates=coordinates)
        return tree
    writer.finish(record, {})
    if recorder.kept:
        tree = open_run(writer.path)
        add_diagnostics(tree, max_coordinates=coordinates)
        writer.finish(record, {"diagnostics": tree["diagnostics"].to_dataset()})
    return open_run(writer.path)
