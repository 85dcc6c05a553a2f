"""One run from its checks to its result: what `sample` and `resume` have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from consortia.algorithms.expanding import expands_first
from consortia.algorithms.preconditioning import Preconditioned
from consortia.core import start
from consortia.core.contract import Adaptive, Method, Plan, SurrogateBased
from consortia.core.model import Model
from consortia.core.parameters import join, variables
from consortia.core.queries import Conversation
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.diagnostics.prediction import MODES_SOUGHT, BiasPrediction
from consortia.engines.contract import Run
from consortia.engines.mailbox import servers_of
from consortia.errors import NonFiniteError, RankError, WarmupError, warn, wrong
from consortia.run import checks, quadrature
from consortia.run import plan as planning
from consortia.run.compiled import keep_compiled_programs
from consortia.run.conversation import converse
from consortia.run.finishing import finished
from consortia.run.interrupts import Interrupts, interrupted
from consortia.run.loop import ResumePoint, RunLength, RunLoop
from consortia.run.pilot import unpredicted
from consortia.run.prediction import (
    chosen,
    predicted,
    predicted_by,
    respond,
    starts_near_mode,
    with_scales,
)
from consortia.run.progress import Progress, Written, doing, progress_of
from consortia.run.recording import NEVER
from consortia.run.specification import Request, check_extensible, rounding_of
from consortia.run.stopping import StopWhen
from consortia.run.task import Posterior, Resumption, Task
from consortia.runtime.garbage import collected_seldom
from consortia.store.ending import ERRORS, Ending
from consortia.store.runs import open_run
from consortia.theory.bias import Problem, keeps_posterior
from consortia.theory.settings import open_settings
from consortia.theory.tuning import BiasTarget, Choice, completed, unchosen

STORED_BYTES = 8 * 1024 * 1024
"""Draws of all chains go to the store in about such pieces, one file each; in smaller ones where
time is up before."""


@collected_seldom
def execute(model: Model, sites: Sites, algorithm: Method, request: Request, **options: Any) -> Any:
    """Check, plan and run; options are those of `Task`, arguments and errors those of `sample`."""
    keep_compiled_programs()
    task = Task(model, sites, algorithm, request, **options)
    task.check()
    if isinstance(algorithm, Conversation):
        return converse(task, algorithm)
    return _execute(task)


def _execute(task: Task) -> Any:
    """Run a method that is a loop over phases."""
    request, engine, sites = task.request, task.engine, task.sites
    if isinstance(task.algorithm, Adaptive):
        task.algorithm.check_warmup(request.warmup)
    length = RunLength(request.warmup, request.rounds, request.thin)
    checks.check_schedule(task.algorithm, length.total)
    posterior = task.posterior()
    begin = _start_of(task, posterior.target)
    settled = _settled(task, posterior.target, begin)
    begin = begin._replace(positions=settled.positions)
    run = engine.prepare(posterior.target, sites, settled.algorithm, begin.chains)
    checks.check_thinning(request.thin, request.rounds, run.draws_per_iteration)
    specification: dict[str, Any] = {}
    if task.writer is not None:
        rounding = rounding_of(run, engine.name)
        specification = task.specification(posterior, settled.algorithm, rounding)
    if task.finished_before(specification):
        return open_run(task.writer.path) if task.writer is not None and run.root else None
    before = {} if task.resumption is None else task.resumption.specification
    if (stored := before.get("prediction")) is not None:
        settled = replace(settled, prediction=BiasPrediction.read(stored))
    carry, prediction = _begun(task, run, begin, settled)
    if run.serves:
        with Interrupts():  # the root decides when the run ends
            run.serve(carry)
        return None
    settled = replace(settled, prediction=prediction)
    plan = _plan_of(task, run, carry, posterior.target, length, settled)
    if prediction is not None:
        specification["prediction"] = prediction.plain()
    return PhaseRun(task, run, posterior, begin, settled, length, plan, specification).result(carry)


# --- before the first round ----------------------------------------------------------------------


class Start(NamedTuple):
    """The starts of the chains."""

    parameters: list[Any]  # of each chain
    positions: np.ndarray  # the same, flat, (chains, d)
    expands: bool  # the method's own start needs numbers that the prediction takes from its fit

    @property
    def chains(self) -> int:
        """The number of chains, of all servers."""
        return len(self.positions)


@dataclass(frozen=True)
class Settled:
    """The method with all its settings, and what was found on the way to them."""

    algorithm: Method  # the method
    prediction: BiasPrediction | None  # of its bias; None: none was made yet
    choice: Choice | None  # of a step size, or of several settings
    step_line: str | None  # what the plan says of it
    notes: tuple[str, ...]  # of the plan
    warned: bool  # whether a warning of its stability was given
    positions: np.ndarray  # where the chains start, (chains, d)


def _start_of(task: Task, target: Target) -> Start:
    """Return the chains' start."""
    built = completed(task.algorithm, target.dimension).build(target)
    chains = task.request.chains * servers_of(built)
    starts = start.starting_parameters(task.model, task.init, task.request.seed, chains)
    # On the host: a program with an operand for each of thousands of chains compiles long.
    several = starts if starts[0] is not starts[-1] else starts[:1]  # else each chain's is the same
    flat = np.stack([target.flat(start) for start in several])
    positions = np.array(np.broadcast_to(flat, (chains, target.dimension)))
    return Start(starts, positions, expands_first(built))


def _settled(task: Task, target: Target, begin: Start) -> Settled:
    """Check what is here, and find the scales and the step size that were left open."""
    model, sites, engine = task.model, task.sites, task.engine
    algorithm, first = task.algorithm, begin.parameters[0]
    if task.resumption is not None:
        algorithm = _as_chosen(algorithm, task.resumption.specification)
    scaled = isinstance(algorithm, Preconditioned) and algorithm.scales is None
    to_choose = scaled or unchosen(algorithm)

    def described() -> str | None:
        """Check what is here; return what it says of the step size, if that is set."""
        task.check_densities(target, first)
        return None if to_choose else checks.judged_stability(algorithm, model, sites, first)

    positions: Any = begin.positions
    judgements = engine.allgather(described, lambda: task.common(target, algorithm, positions))
    near = task.checkpoint is None and task.init is None and unchosen(task.algorithm)
    problem = Problem(model, sites, first, engine, from_mode=near)
    prediction: BiasPrediction | None = None
    choice: Choice | None = None
    step_line: str | None = None
    if scaled:
        with doing("finding the scales", show=task.progress and engine.root):
            algorithm = with_scales(algorithm, problem)
    if unchosen(algorithm):
        aim = BiasTarget() if task.bias_target is None else task.bias_target
        algorithm, defaults = unpredicted(algorithm, problem)
        step_line = "as given"
        if unchosen(algorithm):
            with doing("choosing the step size", show=task.progress and engine.root):
                choice = chosen(algorithm, problem, aim, task.request, _pilot(task))
            algorithm, prediction = choice.method, choice.prediction
            step_line = choice.line(aim)
        if defaults:
            step_line += f"; {defaults} by default, since no bias is predicted"
    if near:
        fits = isinstance(algorithm, SurrogateBased) and algorithm.fits_surrogates
        positions = starts_near_mode(problem, positions, task.request.seed, fits=fits)
        mode: Any = None if problem.too_large else problem.near.mode
        first = first if mode is None else target.unravel(mode)
    if to_choose:
        judgements = engine.allgather(
            lambda: checks.judged_stability(algorithm, model, sites, first)
        )
    notes, warned = checks.check_stability(judgements)
    return Settled(algorithm, prediction, choice, step_line, notes, warned, positions)


def _pilot(task: Task) -> Callable[[Method, int, Any], Any]:
    """Return the function that makes a short run, to try a step size."""
    seeds = itertools.count(task.request.seed)

    def pilot(method: Method, count: int, mode: Any) -> Any:
        # A seed of its own: the same numbers again and again would push chains one way.
        short = Request(count, task.request.chains, next(seeds) % 2**63)
        options: dict[str, Any] = {"writer": None, "progress": False, "stop": None}
        options |= {"keep": None, "on_plan": None, "on_divergence": "ignore"}
        return execute(
            task.model, task.sites, method, short, init=mode, engine=task.engine, **options
        )

    return pilot


def _begun(
    task: Task, run: Run, begin: Start, settled: Settled
) -> tuple[Any, BiasPrediction | None]:
    """Return the state from which the rounds go on, and the predicted bias."""
    request, model, sites, engine = task.request, task.model, task.sites, task.engine
    algorithm, prediction, first = settled.algorithm, settled.prediction, begin.parameters[0]
    positions: Any = begin.positions
    parts = request.seed, positions, request.rounds, request.warmup
    if task.resumption is not None and task.checkpoint is not None:
        check_extensible(task.resumption.specification, request, run)
        return run.start(*parts, task.checkpoint.arrays), prediction
    with doing("checking the start", show=task.progress and run.root):
        start.check_start_values(run.start_values(positions), sites.names)
    wanted = task.resumption is None and task.on_divergence != "ignore"
    # Its law is known with the surrogates only, which exist after the start.
    fits = isinstance(algorithm, SurrogateBased) and algorithm.fits_surrogates
    known = algorithm, model, sites, first, positions.shape[1], engine
    if wanted and prediction is None and not begin.expands and not fits:
        with doing("predicting the bias", show=task.progress and run.root):
            count = request.rounds * begin.chains // request.thin
            prediction = predicted(*known, draws=count)
        respond(prediction, task.on_divergence, warned=settled.warned)
    carry = run.start(*parts)
    if isinstance(algorithm, SurrogateBased):
        for text in algorithm.check_fitted(run.fitted, sites.names):
            warn(text)
    if wanted and fits:
        with doing("predicting the bias", show=task.progress and run.root):
            prediction = predicted(*known, run.fitted)
        respond(prediction, task.on_divergence, warned=settled.warned)
    if begin.expands and prediction is None and run.root and not run.serves:
        present = engine.participation
        prediction = predicted_by(algorithm, model, sites, first, run.fitted, present)
        respond(prediction, task.on_divergence, warned=settled.warned)
    return carry, prediction


def _plan_of(
    task: Task, run: Run, carry: Any, target: Target, length: RunLength, settled: Settled
) -> Plan:
    """Return the plan, once the run directory is claimed and the plan is shown."""
    most_kept = None if task.keep is None else task.keep.draws_kept(target, run.layout.chains)
    parts = task.sites, settled.algorithm, target, task.engine.name, length, most_kept
    plan = planning.plan_of(run, carry, *parts, (*run.notes, *settled.notes))
    if settled.prediction is not None:
        plan.details["prediction"] = settled.prediction
    if settled.step_line is not None:
        line = ("step_size", settled.step_line)
        plan = replace(plan, lines=(*plan.lines[:2], line, *plan.lines[2:]))
    plan.details["method"] = settled.algorithm
    if settled.choice is not None:
        plan.details["tried"] = settled.choice.tried
    task.show(plan, root=run.root)
    return plan


# --- the rounds ----------------------------------------------------------------------------------


class PhaseRun:
    """The rounds of one run, and its result."""

    def __init__(
        self,
        task: Task,
        run: Run,
        posterior: Posterior,
        begin: Start,
        settled: Settled,
        length: RunLength,
        plan: Plan,
        specification: dict[str, Any],
    ) -> None:
        self._task, self._run, self._target = task, run, posterior.target
        self._begin, self._length, self._plan = begin, length, plan
        self._algorithm = settled.algorithm
        self._writer = task.writer if run.root else None  # one process writes for all
        parts = task.sites, settled.algorithm, task.engine.name, length, task.request.seed
        self._record = planning.record_of(run, *parts) | posterior.metadata.record
        self._record |= quadrature.unmeasured(posterior.target)
        if settled.prediction is not None:
            self._record["prediction"] = settled.prediction.plain()
        if task.checkpoint is None:  # draws of a chain that go into one file
            target, slots = posterior.target, run.layout.slots
            iteration_bytes = begin.chains * target.dimension * target.dtype.itemsize * slots
            self._stride = min(slots * max(STORED_BYTES // iteration_bytes, 1), self._draws)
        else:
            self._stride = int(task.checkpoint.header["stride"])
        task.begin_store(self._record, specification, self._stride, root=run.root)
        self._recorder = task.recorder(
            posterior,
            begin.chains,
            self._writer,
            draws=self._draws,
            per_iteration=run.draws_per_iteration,
            warmup=task.request.warmup,
            step_weights=settled.algorithm.step_weights,
            stride=NEVER if task.writer is None else self._stride,
            root=run.root,
        )

    @property
    def _draws(self) -> int:
        request = self._task.request
        return request.rounds * self._run.draws_per_iteration // request.thin

    def result(self, carry: Any) -> Any:
        """Run the rounds from a state to their end; return the result."""
        task, algorithm = self._task, self._algorithm
        with self._shown() as shown:
            loop = RunLoop(
                self._run,
                carry,
                self._length,
                self._recorder,
                shown,
                task.stop,
                algorithm.check_learned if isinstance(algorithm, Adaptive) else None,
                reached=_reached(task.resumption, self._length, task.stop),
                save=None if task.writer is None else self._save,
            )
            try:
                ending = loop.execute()
            except tuple(ERRORS) as error:
                if isinstance(error, NonFiniteError):
                    checks.explain(error, algorithm, self._target, self._run)
                if isinstance(error, WarmupError):
                    first = self._begin.parameters[0]
                    checks.explain_precision(error, task.model, task.sites, first)
                there = not isinstance(error, RankError)
                error.tree = self._tree(loop, Ending.by(error), all_there=there)
                raise
            except KeyboardInterrupt as error:
                directory = None if self._writer is None else self._writer.path
                ending = interrupted(error, f"round {loop.done}", directory)
        return self._tree(loop, ending)

    def _draws_so_far(self) -> np.ndarray:
        """Return the kept draws so far, (chains, draws, d); none where they are not kept."""
        chains, d, count = self._begin.chains, self._target.dimension, self._recorder.kept
        wanted = keeps_posterior(self._algorithm) or self._target.model.integration is not None
        if self._task.keep is not None or not count or not wanted:
            return np.zeros((chains, 0, d))
        if self._writer is None:
            return self._recorder.draws_so_far()
        self._recorder.write()
        return join(self._writer.posterior(count), variables(self._target.structure))

    def _shown(self) -> Progress:
        run, length, plan, name = self._run, self._length, self._plan, self._algorithm.name
        telling = progress_of(name, length.total, None, show=self._task.progress and run.root)
        if self._writer is None:
            return telling
        lengths = (length.total, length.warmup, None)
        traffic = (plan.communication_rounds, plan.bytes_up, plan.bytes_down)
        return Written(telling, self._writer.path, name, lengths, traffic, run.answering)

    def _save(self, loop: RunLoop) -> None:
        """Write draws and a checkpoint; all processes gather, and one writes."""
        arrays = loop.arrays()
        self._recorder.write()
        if self._writer is None:
            return
        header = {
            "done": loop.done,
            "kept": self._recorder.kept,
            "seconds": loop.seconds,
            "ended": loop.ended,
            "stride": self._stride,
            "resumed_at": self._record.get("resumed_at", []),
        }
        self._writer.save(header, arrays | self._recorder.state())

    def _tree(self, loop: RunLoop, ending: Ending, *, all_there: bool = True) -> Any:
        """Return the result of the rounds so far; None where another process has it."""
        run, algorithm, target, record = self._run, self._algorithm, self._target, self._record
        facts: dict[str, Any] = {}
        groups: dict[str, Any] = {}
        if all_there:
            run.finish()
            facts, groups = run.outcome(loop.done)
            # By all processes: the last positions may be divided among them.
            facts |= planning.measured(run, algorithm, target, loop.carry, loop.done)
        full: float = loop.done
        if isinstance(algorithm, Adaptive):
            full = algorithm.full_iterations(loop.hub, loop.done)
        if not run.root:
            return None
        record.update(facts)
        if "participation" in groups and self._begin.expands:  # known only now
            known = algorithm, self._task.model, self._task.sites, self._begin.parameters[0]
            present = groups["participation"]["present"].values
            record["prediction"] = predicted_by(*known, run.fitted, present).plain()
        draws, sites = self._draws_so_far(), self._task.sites
        record.update(quadrature.measured(target, sites, draws))
        if keeps_posterior(algorithm):
            from consortia.diagnostics import other_modes  # heavy: SciPy, for the end of a run

            record.update(other_modes.record_of(target, sites, self._begin.positions[0], draws))
        else:
            record[MODES_SOUGHT] = False
        record["end"], record["stopped"] = ending.kind.value, ending.text
        record["seconds"] = loop.seconds
        parts = target, self._task.sites, self._begin.chains, loop.done, full
        record.update(planning.cost_of(self._plan, algorithm, *parts))
        return finished(self._recorder, self._writer, record, ending.kind.state, groups)


# --- what was stored -----------------------------------------------------------------------------


def _as_chosen(algorithm: Method, before: Mapping[str, Any]) -> Method:
    """Return the algorithm with what was found and chosen for a stored run."""
    if isinstance(algorithm, Preconditioned) and algorithm.scales is None:
        kept = before["algorithm"]["parameters"].get("scales")
        preconditioned: Any = algorithm
        algorithm = replace(preconditioned, scales=kept and tuple(kept))
    if not unchosen(algorithm):
        return algorithm
    parameters = before["algorithm"]["parameters"]
    settings = {name: parameters.get(name) for name in open_settings(algorithm)}
    if isinstance(matrix := settings.get("mass_matrix"), Mapping):
        settings["mass_matrix"] = matrix["values"]
    opened: Any = algorithm
    algorithm = replace(opened, **settings)
    if not unchosen(algorithm):
        return algorithm
    kept = parameters.get("step_size")
    if not isinstance(kept, Mapping) or "value" not in kept:
        raise wrong("step_size", " is None, but the run has a schedule: give that schedule.")
    stepped: Any = replace(algorithm, step_size=kept["value"])  # type: ignore[type-var]
    return stepped


def _reached(
    resumption: Resumption | None, length: RunLength, stop: StopWhen | None
) -> ResumePoint:
    """Find the point to resume at; an ended run continues if longer, or without its rule."""
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
