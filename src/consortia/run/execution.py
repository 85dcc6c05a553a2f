"""One run from its checks to its result: what `sample` and `resume` have in common."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from consortia.algorithms.expanding import expands_first
from consortia.algorithms.preconditioning import Preconditioned
from consortia.core import start
from consortia.core.contract import Fault, Method
from consortia.core.garbage import collected_seldom
from consortia.core.model import Model
from consortia.core.queries import Conversation
from consortia.data.sites import Sites
from consortia.diagnostics.prediction import BiasPrediction
from consortia.engines.mailbox import servers_of
from consortia.errors import (
    InputError,
    NonFiniteError,
    RankError,
    SiteMissingError,
    WarmupError,
    warn,
)
from consortia.run import checks
from consortia.run import plan as planning
from consortia.run.compiled import keep_compiled_programs
from consortia.run.conversation import converse
from consortia.run.finishing import finished
from consortia.run.interrupts import Abrupt, Interrupts
from consortia.run.loop import ResumePoint, RunLength, RunLoop
from consortia.run.prediction import chosen, predicted, predicted_by, respond, with_scales
from consortia.run.progress import Written, doing, progress_of
from consortia.run.recording import NEVER, Recorder
from consortia.run.specification import Request, check_extensible, check_same, rounding_of
from consortia.run.stopping import StopWhen
from consortia.run.task import Resumption, Task
from consortia.store.ending import Ending, RunEnd
from consortia.store.runs import open_run
from consortia.theory.bias import Problem
from consortia.theory.tuning import BiasTarget, completed, unchosen

STORED_BYTES = 8 * 1024 * 1024
"""Draws of all chains go to the store in about such pieces, one file each; in smaller ones where
time is up before."""


@collected_seldom
def execute(model: Model, sites: Sites, algorithm: Method, request: Request, **options: Any) -> Any:
    """Checks, plan, run, result; options as of `Task`, arguments and errors of `sample`."""
    keep_compiled_programs()
    task = Task(model, sites, algorithm, request, **options)
    task.check()
    if isinstance(algorithm, Conversation):
        return converse(task, algorithm)
    return _execute(task)


def _execute(task: Task) -> Any:
    """Run a method that is a loop over phases."""
    model, sites, request = task.model, task.sites, task.request
    init, engine, writer, stop, keep = task.init, task.engine, task.writer, task.stop, task.keep
    on_plan, on_divergence, progress = task.on_plan, task.on_divergence, task.progress
    bias_target, resumption = task.bias_target, task.resumption
    rounds, thin, warmup, seed = request.rounds, request.thin, request.warmup, request.seed
    algorithm = task.algorithm
    algorithm.check_warmup(warmup)
    length = RunLength(warmup, rounds, thin)
    checks.check_schedule(algorithm, length.total)
    posterior = task.posterior()
    target, variables, metadata = posterior.target, posterior.variables, posterior.metadata
    built = completed(algorithm, target.dimension).build(target)
    chains = request.chains * servers_of(built)
    starts = start.starting_parameters(model, init, seed, chains)
    if resumption is not None:
        algorithm = _as_chosen(algorithm, resumption.specification)
    # On the host: a program with an operand for each of thousands of chains compiles long.
    several = starts if starts[0] is not starts[-1] else starts[:1]  # else each chain's is the same
    flat = np.stack([target.flat(start) for start in several])
    positions: Any = np.array(np.broadcast_to(flat, (chains, target.dimension)))

    def described() -> str | None:
        """Check what is here; return what it says of the step size, if that is set."""
        task.check_densities(target, starts[0])
        return None if to_choose else checks.judged_stability(algorithm, model, sites, starts[0])

    scaled = isinstance(algorithm, Preconditioned) and algorithm.scales is None
    to_choose = scaled or unchosen(algorithm)
    judgements = engine.allgather(described, lambda: task.common(target, algorithm, positions))
    problem: Problem | None = None
    prediction: BiasPrediction | None = None
    step_line: str | None = None
    if scaled:
        with doing("finding the scales", show=progress and engine.root):
            problem = Problem(model, sites, starts[0], engine)
            algorithm = with_scales(algorithm, problem)
    if unchosen(algorithm):
        aim = BiasTarget() if bias_target is None else bias_target

        seeds = itertools.count(seed)

        def pilot(method: Method, count: int, mode: Any) -> Any:
            # A seed of its own: the same numbers again and again would push chains one way.
            short = Request(count, request.chains, next(seeds) % 2**63)
            options: dict[str, Any] = {"writer": None, "progress": False, "stop": None}
            options |= {"keep": None, "on_plan": None, "on_divergence": "ignore"}
            return execute(model, sites, method, short, init=mode, engine=engine, **options)

        with doing("choosing the step size", show=progress and engine.root):
            problem = problem or Problem(model, sites, starts[0], engine)
            choice = chosen(algorithm, problem, aim, request, pilot)
        algorithm, prediction = choice.method, choice.prediction
        step_line = choice.line(aim)
    if to_choose:
        judgements = engine.allgather(
            lambda: checks.judged_stability(algorithm, model, sites, starts[0])
        )
    notes, warned = checks.check_stability(judgements)

    run = engine.prepare(target, sites, algorithm, chains)
    checks.check_thinning(thin, rounds, run.draws_per_iteration)
    specification: dict[str, Any] = {}
    if writer is not None:
        specification = task.specification(
            posterior, algorithm, rounding_of(run, engine.name), stop
        )
    checkpoint = None
    if resumption is not None:
        checkpoint, before = resumption.checkpoint, resumption.specification
        assert writer is not None
        check_same(
            before, specification, writer.path, exact=resumption.exact and not resumption.finished
        )
        kept_prediction = before.get("prediction")
        if kept_prediction is not None:
            prediction = BiasPrediction.read(kept_prediction)
        if resumption.finished:
            return open_run(writer.path) if run.root else None
    if checkpoint is None:
        with doing("checking the start", show=progress and run.root):
            start.check_start_values(run.start_values(positions), sites.names)
        expands = expands_first(built)
        fits, wanted = algorithm.fits_surrogates, resumption is None and on_divergence != "ignore"
        known = (algorithm, model, sites, starts[0], target.dimension, engine)
        if wanted and prediction is None and not expands and not fits:
            with doing("predicting the bias", show=progress and run.root):
                prediction = predicted(*known)
            respond(prediction, on_divergence, warned=warned)
        carry = run.start(seed, positions, rounds, warmup)
        checks.check_fitted(algorithm, run.fitted, sites.names)
        if wanted and fits:
            with doing("predicting the bias", show=progress and run.root):
                prediction = predicted(*known, run.fitted)
            respond(prediction, on_divergence, warned=warned)
        if expands and prediction is None and run.root and not run.serves:
            prediction = predicted_by(algorithm, model, sites, starts[0], run.fitted)
            respond(prediction, on_divergence, warned=warned)
    else:
        check_extensible(before, request, run)
        carry = run.restore(checkpoint.arrays, seed, positions, rounds, warmup)
    if run.serves:
        with Interrupts():  # the root decides when the run ends
            run.serve(carry)
        return None
    stored = writer is not None
    writer = writer if run.root else None  # one process writes for all
    most_kept = None if keep is None else keep.draws
    plan = planning.plan_of(
        run, carry, sites, algorithm, target, engine.name, length, most_kept, notes
    )
    if prediction is not None:
        plan.details["prediction"] = prediction
    if step_line is not None:
        plan = replace(plan, lines=(*plan.lines[:2], ("step_size", step_line), *plan.lines[2:]))
    if writer is not None and resumption is None:
        writer.claim()
    if on_plan is not None and run.root:
        on_plan(plan)
    record = planning.record_of(run, sites, algorithm, engine.name, length, seed)
    record |= metadata.record
    if prediction is not None:
        record["prediction"] = specification["prediction"] = prediction.plain()
    kept = chains * target.dimension * target.dtype.itemsize * run.layout.slots
    draws = rounds * run.draws_per_iteration // thin
    stride = min(run.layout.slots * max(STORED_BYTES // kept, 1), draws)
    if checkpoint is not None:
        stride = checkpoint.header["stride"]
        record["resumed_at"] = [*checkpoint.header["resumed_at"], checkpoint.done]
    if writer is not None:
        if checkpoint is None:
            writer.begin(record, specification, stride)
        else:
            writer.resume(checkpoint, record, specification, stride)
    accumulator = None if keep is None else keep.start(target, chains)
    if accumulator is not None and checkpoint is not None:
        accumulator.restore(checkpoint.arrays)
    recorder = Recorder(
        chains=chains,
        draws=draws,
        thin=thin,
        per_iteration=run.draws_per_iteration,
        warmup=warmup,
        variables=variables,
        sites=sites.names,
        step_weights=algorithm.step_weights,
        store=writer,
        remember=stop is not None and keep is None,
        stride=stride if stored else NEVER,
        kept=0 if checkpoint is None else checkpoint.kept,
        accumulator=accumulator,
        root=run.root,
        labels=metadata.labels,
    )

    def save(loop: RunLoop) -> None:
        arrays = loop.arrays()
        recorder.write()
        if writer is None:
            return
        header = {
            "done": loop.done,
            "kept": recorder.kept,
            "seconds": loop.seconds,
            "ended": loop.ended,
            "stride": stride,
            "resumed_at": record.get("resumed_at", []),
        }
        writer.save(header, arrays | recorder.state())

    telling = progress_of(algorithm.name, length.total, None, show=progress and run.root)
    if writer is not None:
        lengths = (length.total, length.warmup, None)
        traffic = (plan.communication_rounds, plan.bytes_up, plan.bytes_down)
        telling = Written(telling, writer.path, algorithm.name, lengths, traffic, run.answering)
    with telling as shown:
        loop = RunLoop(
            run,
            carry,
            length,
            recorder,
            shown,
            stop,
            algorithm.check_learned,
            reached=_reached(resumption, length, stop),
            save=save if stored else None,
        )

        def result(
            ending: Ending, *, all_there: bool = True, faults: tuple[Fault, ...] = ()
        ) -> Any:
            facts: dict[str, Any] = {}
            groups: dict[str, Any] = {}
            if all_there:
                run.finish()
                facts, groups = run.outcome(loop.done)
                # By all processes: the last positions may be divided among them.
                facts |= planning.measured(run, algorithm, target, loop.carry, loop.done)
            full = algorithm.full_iterations(loop.hub, loop.done)
            if not run.root:
                return None
            record.update(facts)
            record.pop("faults", None)  # of a part of the run
            if faults:
                record["faults"] = [fault._asdict() for fault in faults]
            record["end"], record["stopped"] = ending.kind.value, ending.text
            record["seconds"] = loop.seconds
            record.update(planning.cost_of(plan, algorithm, target, sites, chains, loop.done, full))
            return finished(recorder, writer, record, ending.kind.state, groups)

        try:
            ending = loop.execute()
        except NonFiniteError as error:
            checks.explain(error, algorithm, target, run)
            error.tree = result(Ending(RunEnd.NON_FINITE, str(error)))
            raise
        except WarmupError as error:
            checks.explain_precision(error, model, sites, starts[0])
            error.tree = result(Ending(RunEnd.WARMUP_REFUSED, str(error)))
            raise
        except SiteMissingError as error:
            error.tree = result(Ending(RunEnd.SITE_MISSING, str(error)))
            raise
        except RankError as error:
            error.tree = result(Ending(RunEnd.RANK_LOST, str(error)), all_there=False)
            raise
        except KeyboardInterrupt as error:
            if writer is not None and isinstance(error, Abrupt):
                raise
            ending = Ending(RunEnd.INTERRUPTED, f"interrupted after round {loop.done}")
            how = "" if writer is None else f"; go on with `consortia resume {writer.path}`"
            warn(f"{ending.text}; the draws so far are returned{how}")
    faults = algorithm.check_draws(loop.hub)
    tree = result(ending, faults=faults)
    checks.warn_of(faults)
    return tree


def _as_chosen(algorithm: Method, before: Mapping[str, Any]) -> Method:
    """Return the algorithm with what was found and chosen for a stored run."""
    if isinstance(algorithm, Preconditioned) and algorithm.scales is None:
        kept = before["algorithm"]["parameters"].get("scales")
        found: Any = algorithm
        algorithm = replace(found, scales=kept and tuple(kept))
    if not unchosen(algorithm):
        return algorithm
    kept = before["algorithm"]["parameters"].get("step_size")
    if not isinstance(kept, Mapping) or "value" not in kept:
        raise InputError("step_size is None, but the run has a schedule: give that schedule.")
    stepped: Any = replace(algorithm, step_size=kept["value"])  # type: ignore[type-var]
    return stepped


def _reached(
    resumption: Resumption | None, length: RunLength, stop: StopWhen | None
) -> ResumePoint:
    """Return where to resume; a run that ended goes on when it is longer, or without its rule."""
    if resumption is None or resumption.checkpoint is None:
        return ResumePoint()
    checkpoint = resumption.checkpoint
    header = checkpoint.header
    same_length = resumption.specification["request"]["rounds"] == length.rounds
    ended = Ending.read(header["ended"])
    if checkpoint.done < length.total and not (same_length and stop is not None):
        ended = None
    block = {name: a for name, a in checkpoint.arrays.items() if name.startswith("block")}
    return ResumePoint(checkpoint.done, header["seconds"], ended, block)
