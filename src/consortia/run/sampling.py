"""`sample` and `resume`: the arguments, and where the run is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, astuple, fields, replace
from pathlib import Path
from typing import Any, Literal

from consortia.core import arguments
from consortia.core.contract import Method, Plan
from consortia.core.model import Model
from consortia.data.sites import Sites
from consortia.engines.contract import Engine
from consortia.engines.local import LocalEngine
from consortia.errors import InputError, StoreError
from consortia.run import checks
from consortia.run.execution import execute
from consortia.run.imputations import (
    check_imputations,
    engines_of,
    one_engine,
    pooled,
    request_of,
)
from consortia.run.interrupts import passed_on
from consortia.run.prediction import check_response
from consortia.run.specification import CHAINS, Request, extended
from consortia.run.stopping import StopWhen, check_rule
from consortia.run.task import Resumption
from consortia.store.accumulators import AccumulatorSpec, keep_moments, read_spec
from consortia.store.checkpoint import Checkpoint
from consortia.store.ending import Ending
from consortia.store.metadata import Metadata
from consortia.store.runs import RunStore, holds_run
from consortia.theory.tuning import BiasTarget


@arguments.hinted
@passed_on
def sample(
    model: Model,
    sites: Sites | tuple[Sites, ...],
    algorithm: Method,
    *,
    rounds: int | None = None,
    draws: int | None = None,
    chains: int = CHAINS,
    seed: int = 0,
    thin: int = 1,
    warmup: int = 0,
    init: Any = None,
    engine: Engine | tuple[Engine, ...] | None = None,
    store: Any = None,
    progress: bool = True,
    stop: StopWhen | None = None,
    keep: AccumulatorSpec | str = "draws",
    metadata: Metadata | None = None,
    on_divergence: str = "warn",
    bias_target: Any = (0.05, 0.05),
    cost: float | str | None = None,
    on_plan: Callable[[Plan], None] | None = None,
) -> Any:
    """Sample a posterior from data that stay at their sites, with an algorithm's law and bias.

    Args:
        model: log-prior and per-row log-likelihood.
        sites: the data, one shard per site. Data sets completed by imputation, a tuple, are sampled
            one after the other, with equally many draws of each.
        algorithm: what `consortia.fa_hmc` or another factory returns.
        rounds: iterations after the warm-up ones; each yields one draw. A method that ends by
            itself (`consortia.few_rounds`) needs none: it is then the most that are run.
        draws: draws of each chain that are kept, as PyMC and NumPyro count, in place of ``rounds``:
            these are then draws × thin, or fewer where a round yields several.
        chains: independent chains, at each server where there are several. Sites are not chains.
        seed: 0 <= seed < 2**63; equal seeds give equal draws on every engine.
        thin: keep draws number thin, 2·thin, ...
        warmup: iterations before the first recorded one; some methods end it by themselves.
        init: a start for all chains, or a function of a JAX key; ``model.init`` when None, or the
            Gaussian law at the mode where settings are chosen.
        engine: `LocalEngine()` when None; a tuple of one for each imputation. All ranks of a
            `consortia.MPIEngine` make the same call, and all but rank 0 get None.
        store: a directory for the run and its checkpoints; `resume` continues it.
        progress: show a bar on a terminal, JSON lines elsewhere, on standard error.
        stop: a rule from `consortia.stop_when`; ``rounds`` is then the most that are run.
        keep: ``"draws"``; of large models ``"moments"``, `consortia.keep_moments`, means,
            covariances and some draws, or `consortia.keep_predictions`, at given rows only.
        metadata: names and units that are kept with the draws, a `consortia.Metadata`.
        on_divergence: ``"warn"`` where the bias predicted at the mode is bad, ``"raise"`` where a
            chain is predicted to diverge; ``"ignore"``: predict nothing.
        bias_target: largest predicted bias with which a step size and settings are chosen: of means
            in posterior standard deviations, and of standard deviations as a share.
        cost: of a draw, by which settings are chosen: ``"messages"``, ``"bytes"``, ``"gradients"``,
            or time, by the gradients of a site that a message takes as long as; 30 when None.
        on_plan: called with the `Plan` before the sampler is compiled.

    Returns:
        `xarray.DataTree` in ArviZ's layout: ``posterior`` (chain, draw, ...; with a coordinate
        ``imputation`` where there are several), of natural quantities where the model has them,
        beside the coordinates in ``unconstrained_posterior``; ``sample_stats``, ``agents`` where
        sites have series of their own, ``diagnostics``; seed, versions, parameters and cost as
        attributes. A bare array of parameters becomes "theta". Ctrl-C ends a run with its draws.

    Raises:
        InputError: an argument, the model or the data cannot be used.
        DivergenceError: see ``on_divergence``.
        StoreError: ``store`` already holds a run.
        NonFiniteError: a chain turned non-finite; ``error.tree`` holds every draw before it.
        SiteMissingError: a site that must answer did not; ``error.tree`` holds the draws before.
        WarmupError: what was learned in the warm-up is not worth going on with.
        RankError: a process of a run over several is gone, late or has failed.

    Example:
        >>> import consortia, numpy as np
        >>> model = consortia.models.linear_regression(1)
        >>> rows = {"x": np.ones((4, 1), np.float32), "y": np.float32([1, 2, 3, 2])}
        >>> sites = consortia.Sites.from_list([rows, rows])
        >>> exact = consortia.federated_hmc(step_size=0.2, leapfrog_steps=3, mass_matrix="identity")
        >>> tree = consortia.sample(model, sites, exact, rounds=20, chains=2, progress=False)
        >>> tree["posterior"]["coefficients"].shape
        (2, 20, 1)
    """
    length = {"rounds": rounds, "chains": chains, "seed": seed, "thin": thin, "warmup": warmup}
    options: dict[str, Any] = {"stop": stop, "keep": keep, "metadata": metadata, "cost": cost}
    options |= {"on_divergence": on_divergence, "bias_target": bias_target, "on_plan": on_plan}
    options |= {"init": init, "engine": engine, "store": store, "progress": progress}
    options["draws"] = draws
    return _sampled(model, sites, algorithm, length, options)


@arguments.hinted
@passed_on
def resume(
    path: str | os.PathLike[str],
    model: Model,
    sites: Sites | tuple[Sites, ...],
    algorithm: Method,
    *,
    rounds: int | None = None,
    stop: StopWhen | Literal["same"] | None = "same",
    keep: AccumulatorSpec | Literal["same"] = "same",
    init: Any = None,
    engine: Engine | tuple[Engine, ...] | None = None,
    exact: bool = True,
    progress: bool = True,
    on_plan: Callable[[Plan], None] | None = None,
) -> Any:
    """Resume a stored run; its draws are those of an uninterrupted one.

    Bitwise: what was drawn since the last checkpoint is drawn again. A run that was stopped before
    its first checkpoint is started from its beginning; a finished one is returned as it is, unless
    ``rounds`` makes it longer.

    Args:
        path: the run directory that was given to ``sample(..., store=...)``.
        model: the model of that run, made again; so are ``sites`` and ``algorithm``. What is not
            the same is refused.
        sites: the data.
        algorithm: the algorithm with its parameters.
        rounds: iterations after the warm-up ones in all, instead of those of the run; a longer run
            is bitwise the one that had been that long from the start.
        stop: the run's own stopping rule ("same"), another one, or None.
        keep: needed where the run keeps predictions: the same `consortia.keep_predictions`.
        init: as in `sample`; needed only where the run has no checkpoint yet.
        engine: how the sites are run; as in the run when None.
        exact: refuse another version of JAX, NumPy or this package, another kind of device, another
            block or node mode: rounding would differ. With False the chain continues there.
        progress: as in `sample`.
        on_plan: as in `sample`.

    Returns:
        As `sample`.

    Raises:
        StoreError: there is no run, another process is writing it, it is of another model, of other
            data or another algorithm, or it was written in another format version. Nothing is
            changed then. A damaged checkpoint or file of draws is passed over with a warning, and
            the checkpoint before it taken.
        InputError, NonFiniteError, WarmupError: as `sample`; ``rounds`` cannot be had.

    Example:
        >>> import consortia
        >>> tree = consortia.resume(  # doctest: +SKIP
        ...     "runs/mine", model, sites, algorithm, rounds=20_000)
    """
    more: dict[str, Any] = {"init": init, "progress": progress, "on_plan": on_plan}
    if isinstance(sites, tuple):
        more |= {"rounds": rounds, "stop": stop, "keep": keep, "exact": exact, "engine": engine}
        return _resumed_each(path, model, sites, algorithm, more)
    together = one_engine(engine)
    writer = RunStore(path, existing=True)
    if not together.root:
        together.barrier()  # rank 0 opens it first, and leaves out what is damaged
    else:
        writer.claim(existing=True)
    try:
        checkpoint = writer.reopen()
        if together.root:
            together.barrier()
        request, rule, resumption = _resumption(writer, checkpoint, rounds, stop, exact)
        checks.check_arguments(model, sites, algorithm, **asdict(request))
        before = resumption.specification
        accumulators = _kept(before["keep"], keep, path)
        if engine is None:
            together = LocalEngine.like(before["rounding"], exact=exact)
        more |= {"engine": together, "writer": writer, "stop": rule, "keep": accumulators}
        more |= {"metadata": Metadata.read(before.get("metadata", {})), "resumption": resumption}
        return execute(model, sites, algorithm, request, **more)
    finally:
        writer.release()


def _resumption(
    writer: RunStore,
    checkpoint: Checkpoint | None,
    rounds: int | None,
    stop: StopWhen | Literal["same"] | None,
    exact: bool,
) -> tuple[Request, StopWhen | None, Resumption]:
    """Return the length of a resumed run, its stopping rule, and the state it starts from."""
    before = writer.specification
    if not before:
        raise StoreError(
            f"{str(writer.path)!r} is a run of several imputations: give the regression's sites, a "
            "tuple."
        ).at("sites")
    rule = _rule(before["stop"]) if stop == "same" else check_rule(stop)
    request = Request(**before["request"])
    if checkpoint is not None:
        request = extended(
            before,
            rounds,
            done=checkpoint.done,
            warmup=before["request"]["warmup"],
            ended=Ending.read(checkpoint.header["ended"]),
            stop=rule,
        )
    elif rounds is not None:
        request = replace(request, rounds=rounds)
    unchanged = asdict(request) == before["request"] and rule == _rule(before["stop"])
    ended = checkpoint is not None and checkpoint.header["ended"] is not None
    finished = ended and writer.finished and unchanged
    return request, rule, Resumption(before, checkpoint, exact, finished)


def _sampled(
    model: Model, sites: Any, algorithm: Method, length: dict[str, Any], options: dict[str, Any]
) -> Any:
    """Return the draws of one data set, or of each of several.

    ``options`` are the other arguments of `sample`.
    """
    if isinstance(sites, tuple) and sites:
        return _of_each(model, sites, algorithm, length, options)
    given = length | {name: options[name] for name in ("draws", "init")}
    rounds = checks.check_arguments(model, sites, algorithm, **given)
    settings = {name: options[name] for name in ("metadata", "init", "progress", "on_plan")}
    settings |= {"stop": check_rule(options["stop"]), "engine": one_engine(options["engine"])}
    settings["writer"] = writer = None if options["store"] is None else RunStore(options["store"])
    try:
        settings["keep"] = read_spec(options["keep"])
        settings["on_divergence"] = check_response(options["on_divergence"])
        settings["bias_target"] = BiasTarget.read(options["bias_target"], options["cost"])
        return execute(model, sites, algorithm, Request(**length | {"rounds": rounds}), **settings)
    finally:
        if writer is not None:
            writer.release()


def _of_each(
    model: Model,
    several: tuple[Sites, ...],
    algorithm: Method,
    length: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    """Return the draws given each of several imputations; ``options`` as of `_sampled`."""
    check_imputations(several, options["keep"], options["engine"])
    given = length | {name: options[name] for name in ("draws", "init")}
    rounds = checks.check_arguments(model, several[0], algorithm, **given)
    rule, metadata, cost = check_rule(options["stop"]), options["metadata"], options["cost"]
    request: dict[str, Any] = {
        **length,
        "rounds": rounds,
        "on_divergence": check_response(options["on_divergence"]),
        "bias_target": list(astuple(BiasTarget.read(options["bias_target"]))[:2]),
        **({} if cost is None else {"cost": cost}),
        "stop": None if rule is None else asdict(rule),
        "metadata": None if metadata is None else metadata.plain,
    }
    engines = engines_of(options["engine"], len(several))

    def run(number: int, seed: int, path: Path | None) -> Any:
        shown = options["on_plan"] if number == 0 else None
        settings = {"init": options["init"], "progress": options["progress"], "on_plan": shown}
        settings |= {"seed": seed, "store": path, "engine": engines[number]}
        return sample(model, several[number], algorithm, **_read(request), **settings)

    return pooled(len(several), request, run, engine=engines[0], store=options["store"])


def _resumed_each(
    path: str | os.PathLike[str],
    model: Model,
    several: tuple[Sites, ...],
    algorithm: Method,
    options: dict[str, Any],
) -> Any:
    """Resume each of several imputations; begin those that were not begun.

    ``options`` are the other arguments of `resume`.
    """
    keep, engine, stop = options.pop("keep"), options.pop("engine"), options["stop"]
    check_imputations(several, "draws" if keep == "same" else keep, engine)
    engines = engines_of(engine, len(several))
    together = engines[0]
    request = request_of(path)
    if request is None:
        raise StoreError(f"{path} is a run of one data set: give its sites alone.").at("sites")
    if options["rounds"] is not None:
        request["rounds"] = options["rounds"]
    if stop != "same":
        rule = check_rule(stop)
        request["stop"] = None if rule is None else asdict(rule)

    def run(number: int, seed: int, directory: Path | None) -> Any:
        assert directory is not None
        rows, shown = several[number], options["on_plan"] if number == 0 else None
        begun = together.allgather(lambda: holds_run(directory) if together.root else False)
        if any(begun):
            given = None if engine is None else engines[number]
            more = options | {"on_plan": shown, "engine": given}
            return resume(directory, model, rows, algorithm, **more)
        more = {"init": options["init"], "progress": options["progress"], "on_plan": shown}
        more |= {"seed": seed, "store": directory, "engine": engines[number]}
        return sample(model, rows, algorithm, **_read(request), **more)

    return pooled(len(several), request, run, engine=together, store=path, existing=True)


def _read(request: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `sample` from what is stored of them."""
    arguments = {name: value for name, value in request.items() if name != "seed"}
    metadata = arguments["metadata"]
    return arguments | {
        "stop": _rule(arguments["stop"]),
        "metadata": None if metadata is None else Metadata.read(metadata),
    }


def _kept(stored: dict[str, Any] | None, given: Any, path: Any) -> AccumulatorSpec | None:
    """Make again the specification by which a run keeps its draws; refuse another."""
    if given == "same":
        if stored is None:
            return None
        if stored["kind"] == "moments":
            return keep_moments(covariance=stored["covariance"], draws=stored["draws"])
        raise InputError(
            f"{str(path)!r} keeps predictions at rows that it does not hold: give "
            "keep=consortia.keep_predictions(rows) with the same rows."
        ).at("keep")
    keep = read_spec(given)
    if (None if keep is None else keep.describe()) != stored:
        kind = "all draws" if stored is None else stored["kind"]
        raise StoreError(f"{path} keeps {kind}: leave `keep` out, or give the same.").at("keep")
    return keep


def _rule(stored: dict[str, Any] | None) -> StopWhen | None:
    if stored is None:
        return None
    return StopWhen(**{field.name: stored[field.name] for field in fields(StopWhen)})
