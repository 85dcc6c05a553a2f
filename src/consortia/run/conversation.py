"""A run of a conversation: its generator over a panel of sites, from checks to result.

Answers are stored as they arrive. Resuming runs the generator over them again, up to the first that
is missing; draws that are stored already are not stored again.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consortia.core import start
from consortia.core.contract import Plan
from consortia.core.host import MOST_ROWS
from consortia.core.queries import Batch, Conversation, Known, Outcome, Query, in_width
from consortia.core.target import Target, in_jax_width
from consortia.core.words import size
from consortia.diagnostics.prediction import BiasPrediction
from consortia.engines.panel import Answer, Panel
from consortia.errors import (
    InputError,
    NonFiniteError,
    SiteMissingError,
    StoreError,
    WarmupError,
    warn,
)
from consortia.run import checks, quadrature, sandwich
from consortia.run import plan as planning
from consortia.run.finishing import finished
from consortia.run.interrupts import Interrupts, interrupted
from consortia.run.prediction import respond
from consortia.run.progress import Progress, Written, doing, progress_of
from consortia.run.specification import rounding_of_answers
from consortia.run.task import Posterior, Task
from consortia.runtime.late import jnp
from consortia.runtime.threads import one_thread
from consortia.store.answers import Answers, digest_of
from consortia.store.ending import ERRORS, Ending, RunEnd
from consortia.store.libraries import imported_aside
from consortia.store.results import Records
from consortia.store.runs import RunStore, open_run
from consortia.theory.bias import keeps_posterior, predict_bias

STORED_BYTES = 8 * 1024 * 1024
"""The most of the draws of all chains that goes into one file."""

EVALUATIONS = {
    "sums": "from sums over the rows, made once",
    "NumPy": "by NumPy, nothing is compiled",
    "compiled": "by compiled programs",
}
"""Ways in which sites evaluate their rows, for the plan."""

IDENTITY = "sites_know_it_as"
"""Entry of a specification: by what the sites know the run again."""


def converse(task: Task, method: Conversation) -> Any:
    """Run a conversation; arguments and errors as of `consortia.sample`.

    ``rounds`` are the most batches of draws.
    """
    request, engine, sites = task.request, task.engine, task.sites
    posterior = task.posterior()
    target = posterior.target
    first = start.starting_parameters(task.model, task.init, request.seed, 1)[0]
    positions: Any = np.asarray(target.flat(first))[None]
    engine.allgather(
        lambda: task.check_densities(target, first),
        lambda: task.common(target, method, positions),
    )
    panel = engine.panel(target, sites, method)
    if task.resumption is not None:
        progress = {} if task.writer is None else task.writer.answers.progress()
        panel.continue_as(task.resumption.specification.get(IDENTITY, {}) | progress)
    specification: dict[str, Any] = {}
    if task.writer is not None:
        rounding = rounding_of_answers(panel, engine.name)
        specification = task.specification(posterior, method, rounding)
        specification[IDENTITY] = panel.identity()
    if task.finished_before(specification):
        return open_run(task.writer.path) if task.writer is not None and engine.root else None
    with doing("checking the start", show=task.progress and panel.root):
        start.check_start_values(panel.start_values(positions), sites.names)
    if panel.serves:
        with Interrupts():  # the root decides when the run ends
            panel.serve()
        return None
    prediction = _predicted(task, method, first)
    writer = task.writer if panel.root else None  # of processes that share devices one writes
    plan = plan_of(panel, task, posterior, method)
    parts = panel, sites, method, engine.name, request.chains, request.seed
    record = planning.common_record(*parts) | {
        "rounds": request.rounds,
        "warmup": 0,
        "thin": request.thin,
        "node_mode": "map" if panel.mapped else "auto",
        "block": 1,
        "graph": "star",
        "evaluation": panel.way,
        "site_rows": panel.sizes.tolist(),  # by the sites: the server may have no rows
    }
    record |= posterior.metadata.record
    record |= quadrature.unmeasured(target) | sandwich.claims_in_place(target)
    if prediction is not None:
        plan.details["prediction"] = prediction
        record["prediction"] = specification["prediction"] = prediction.plain()
    task.show(plan, root=panel.root)
    known = Known(
        target,
        positions[0].astype(np.float64),
        np.asarray(sites.sizes, np.int64),
        request.chains,
        request.rounds,
        request.seed,
        panel.farthest,
    )
    run = ConversationRun(panel, method, known, task, posterior, record, specification, writer)
    return run.result_of(plan)


def _predicted(task: Task, method: Conversation, first: Any) -> BiasPrediction | None:
    """Return the predicted bias, of a stored run that of its beginning; None where unwanted."""
    if task.resumption is not None:
        kept = task.resumption.specification.get("prediction")
        return None if kept is None else BiasPrediction.read(kept)
    if task.on_divergence == "ignore":
        return None
    if not keeps_posterior(method):
        return BiasPrediction(reason="the distribution of its draws is not known")
    prediction = predict_bias(task.model, task.sites, method, init=first)
    respond(prediction, task.on_divergence, warned=False)
    return prediction


# --- plan and record -----------------------------------------------------------------------------


def usual_messages(method: Conversation, target: Target) -> int:
    """Return the queries of a run as a rule: those of its method, and those of its model."""
    more = sandwich.MORE_MESSAGES * (target.model.sandwich is not None)
    more += quadrature.MORE_MESSAGES * (target.model.integration is not None)
    return min(method.usual_messages(target.dimension) + more, method.most_messages)


def plan_of(panel: Panel, task: Task, posterior: Posterior, method: Conversation) -> Plan:
    """Return the plan of a conversation; nothing is traced for it."""
    request, target, sites = task.request, posterior.target, task.sites
    usual = usual_messages(method, target)
    sizes, width = method.sizes_of(target).values(), target.dtype.itemsize
    up, down = (
        max((getattr(sizes_of, way) for sizes_of in sizes), default=0) * width * len(sites)
        for way in ("up", "down")
    )
    used = panel.devices
    per_message = f", in each at most {size(up)} up and {size(down)} down" if sizes else ""
    memory = ", ".join(f"{name} {size(value)}" for name, value in panel.memory().items())
    claims = {"samples": method.claims.samples, "bias": method.claims.bias}
    claims |= sandwich.claims_in_place(target)
    lines = [
        ("algorithm", f"{method.name}: samples {claims['samples']}"),
        ("bias", quadrature.bias_of(claims["bias"], target, exact=panel.way == "sums")),
        ("nodes", planning.rows_of(panel.sizes)),
        ("chains", f"{request.chains}, all at the hub"),
        ("parameters", f"{target.dimension}, {target.dtype}"),
        ("rounds", f"at most {request.rounds} batches of draws"),
        ("engine", f"{task.engine.name}, devices: {planning.devices_of(used)}"),
    ]
    if panel.way is not None:
        lines.append(("evaluation", EVALUATIONS[panel.way]))
    if memory:
        lines.append(("memory", memory))
    lines.append(
        ("network", f"usually {usual} messages, at most {method.most_messages}{per_message}")
    )
    if sizes:
        in_all = (
            f"{count} messages: at most {size(count * up)} up and {size(count * down)} down"
            for count in (usual, method.most_messages)
        )
        lines.append(("in all", "; ".join(in_all)))
    lines += [("process", text) for text in panel.where]
    expected = panel.expected(usual)
    if expected is not None:
        lines.append(("wall time", expected))
    notes = (*panel.notes, *planning.notes_on(sites))
    whole = usual, usual * up, usual * down
    return Plan(tuple(lines), notes, up, down, 1, whole)


# --- the conversation ----------------------------------------------------------------------------


@dataclass
class AnswerSource:
    """Queries on their way to the sites, or to the answers that are stored."""

    panel: Panel
    answers: Answers | None  # of the run directory; None: nothing is stored
    replaying: bool  # answers are taken from the directory
    # of each query its purpose, and the points at which sites evaluate their rows
    messages: list[dict[str, Any]] = field(default_factory=list)
    sent: tuple[int, int] = (0, 0)  # bytes up and down, of all sites
    # of a site's rows at a point, and the rows that they read, of all sites
    evaluations: tuple[int, int] = (0, 0)
    # a query has no answer yet; after an error no process is where the others are
    waits: bool = False

    def answer(self, query: Query) -> Answer:
        """Return the answer of all sites to a query, in double precision.

        Raises:
            StoreError: the stored answer is that of another query.
        """
        query = query._replace(arrays=in_width(query.arrays))
        number = len(self.messages) + 1
        reply = self._stored(number, query) if self.replaying else None
        if reply is None:
            self.waits = True
            reply = self.panel.ask(query, number - 1)
            self.waits = False
            if self.answers is not None:
                self.answers.keep(number, digest_of(query), reply, self.panel.progress())
        self._count(query, reply)
        return reply

    def _stored(self, number: int, query: Query) -> Answer | None:
        """Return a stored answer; None, from now on, where there is none to be used."""
        assert self.answers is not None
        stored, problem = self.answers.read(number)
        if stored is None:
            if problem is not None:
                warn(f"{problem}: the sites answer again from message {number} on")
            self.answers.cut(number)
            self.replaying = False
            return None
        if stored.query != digest_of(query):
            raise StoreError(
                f"{str(self.answers.path(number))!r} answers another query than message {number} "
                f"({query.purpose}) of this run: the server has rounded differently, as with "
                "another version of NumPy or SciPy, or on another processor. Resume where the run "
                "was begun, or start a new run in another directory."
            ).at(file=str(self.answers.path(number)))
        return dict(stored.arrays)

    def _count(self, query: Query, answer: Answer) -> None:
        points, sites = self.panel.points(query), len(self.panel.names)
        self.messages.append({"for": query.purpose, "points": points})
        function = self.panel.function(query)
        up = self.panel.bytes_up(function, answer) * (sites if function.summed else 1)
        down = sum(values.nbytes for values in query.arrays.values()) * sites
        self.sent = self.sent[0] + up, self.sent[1] + down
        rows = int(self.panel.sizes.sum())
        self.evaluations = (
            self.evaluations[0] + points * sites,
            self.evaluations[1] + points * rows,
        )


class ConversationRun:
    """One conversation in progress."""

    def __init__(
        self,
        panel: Panel,
        method: Conversation,
        known: Known,
        task: Task,
        posterior: Posterior,
        record: dict[str, Any],
        specification: dict[str, Any],
        writer: RunStore | None,
    ) -> None:
        self._panel, self._method, self._known, self._task = panel, method, known, task
        self._record, self._specification, self._writer = record, specification, writer
        header = {} if task.checkpoint is None else task.checkpoint.header
        self._started = time.monotonic() - float(header.get("seconds", 0.0))
        self._batches, self._made = 0, 0  # draws of a chain, before thinning
        # By digests: a longer run may drop a batch that a shorter one has stored.
        self._digests: list[str] = []
        exact = task.resumption is not None and task.resumption.exact
        self._stored: list[str] = header.get("batches", []) if exact else []
        self._stride = int(header.get("stride", 1))
        answers = None if writer is None else writer.answers
        self._source = AnswerSource(
            panel, answers, task.resumption is not None and answers is not None
        )
        self._recorder = task.recorder(posterior, task.request.chains, writer)
        self._interrupts = Interrupts()

    # --- from the first query to the result -------------------------------------------------------

    def result_of(self, plan: Plan) -> Any:
        """Run the generator to its end; return the result."""
        begun = self._record, self._specification, self._stride
        self._task.begin_store(*begun, root=self._panel.root)
        with self._ended_panel(), self._shown(plan) as shown, self._interrupts:
            try:
                outcome, ending = self._ending(shown)
            except tuple(ERRORS) as error:
                if isinstance(error, SiteMissingError):
                    error.round = len(self._source.messages)
                error.tree = self._result(Ending.by(error))
                raise
            except KeyboardInterrupt as error:
                directory = None if self._writer is None else self._writer.path
                where = f"message {len(self._source.messages)}"
                outcome, ending = Outcome(""), interrupted(error, where, directory)
        tree = self._result(ending, outcome)
        if outcome.failure is not None:
            refused = WarmupError(outcome.failure)
            task, known = self._task, self._known
            # where its points are: rounding may be coarser there than at the start
            mean = jnp.asarray(outcome.report.get("fitted_mean", known.start), known.target.dtype)
            params = known.target.unravel(mean)
            if task.model.host is None or np.max(known.sizes) > MOST_ROWS:  # else NumPy has doubles
                checks.explain_precision(refused, task.model, task.sites, params)
            refused.tree = tree
            raise refused
        for fault in outcome.faults:
            warn(fault.text)
        return tree

    @contextlib.contextmanager
    def _ended_panel(self) -> Iterator[None]:
        """End the processes that serve, unless they wait for something else."""
        try:
            yield
        finally:
            if not self._source.waits:
                self._panel.finish()

    def _shown(self, plan: Plan) -> Progress:
        method, task, panel = self._method, self._task, self._panel
        most, usual = method.most_messages, usual_messages(method, self._known.target)
        show = task.progress and panel.root
        telling = progress_of(method.name, most, usual, "messages", show=show)
        if self._writer is None:
            return telling
        traffic = plan.communication_rounds, plan.bytes_up, plan.bytes_down
        lengths = most, 0, usual
        parts = self._writer.path, method.name, lengths, traffic, panel.answering
        return Written(telling, *parts)

    def _ending(self, shown: Progress) -> tuple[Outcome, Ending]:
        """Run the generator until it returns, or the stopping rule ends the run."""
        generator = self._method.converse(self._known)
        to_send: Any = None
        try:
            while True:
                with one_thread():
                    yielded = generator.send(to_send)
                if isinstance(yielded, Batch):
                    to_send = None
                    reason = self._taken(yielded)
                    if reason is not None:
                        generator.close()
                        ending = Ending(RunEnd.STOPPING_RULE, reason)
                        return Outcome(reason), ending
                elif isinstance(yielded, Query):
                    with imported_aside(self._recorder.libraries):  # the first call compiles
                        to_send = self._source.answer(yielded)
                else:
                    raise InputError(
                        f"{self._method.name} yields a {type(yielded).__name__}, expected a "
                        "Query or a Batch: correct the method."
                    )
                messages = len(self._source.messages)
                sent = messages, *self._source.sent
                shown.update(messages, self._recorder.kept, sent)
                if self._interrupts.requested:
                    raise KeyboardInterrupt
        except StopIteration as end:
            return self._ended(end.value)

    def _ended(self, outcome: Outcome) -> tuple[Outcome, Ending]:
        if outcome.failure is not None:
            return outcome, Ending(RunEnd.WARMUP_REFUSED, outcome.failure)
        whole = self._batches >= self._known.batches
        kind = RunEnd.ALL_ROUNDS if whole else RunEnd.STOPPING_RULE
        return outcome, Ending(kind, outcome.reason)

    # --- draws ------------------------------------------------------------------------------------

    def _taken(self, batch: Batch) -> str | None:
        """Record a batch; return why the run ends here by its stopping rule, or None."""
        records = self._records_of(batch)
        self._check_stored(batch)
        self._record.update(batch.report)
        known = self._recorder.kept
        self._batches += 1
        if records.draws.shape[1]:
            if self._writer is not None and not known:
                each = max(records.bytes_per_draw, 1)
                self._stride = int(np.clip(STORED_BYTES // each, 1, records.draws.shape[1]))
                self._writer.cut_into(self._stride)
            self._recorder.take(records)
            self._save(None)
        if self._made // self._task.request.thin < self._recorder.kept or not self._recorder.kept:
            return None  # these draws were judged before
        if self._task.stop is None:
            return None
        return self._task.stop.reason(self._recorder.draws_so_far, self._started)

    def _check_stored(self, batch: Batch) -> None:
        self._digests.append(hashlib.sha256(np.asarray(batch.draws).tobytes()).hexdigest())
        index = self._batches
        if index < len(self._stored) and self._stored[index] != self._digests[index]:
            raise StoreError(
                f"{self._method.name}: batch {index} of the draws that are stored (counted from 0) "
                "is not one of the longer run: a later batch has shown that its proposals lacked "
                "a part of the posterior. Do not use these draws; sample the study again, with "
                "more rounds, in a separate directory."
            )

    def _records_of(self, batch: Batch) -> Records:
        """Return the draws of a batch that are to be kept and are not yet."""
        draws = in_jax_width(np.asarray(batch.draws, self._known.target.dtype))
        chains, count, d = self._known.chains, draws.shape[1], self._known.target.dimension
        if draws.shape != (chains, count, d):
            raise InputError(
                f"{self._method.name} yields draws of shape {draws.shape}, expected "
                f"({chains}, draws, {d}): correct the method."
            )
        if not np.isfinite(draws).all():
            chain, index, _ = (int(number) for number in np.argwhere(~np.isfinite(draws))[0])
            raise NonFiniteError(
                f"chain {chain} turned non-finite in batch {self._batches} of draws (counted from "
                f"0), at its draw {index}: look at the model and the data there. "
                f"{self._recorder.kept} draws before the batch are kept.",
                round=self._batches,
                chain=chain,
                site=None,
                position=draws[chain, index],
            )
        thin = self._task.request.thin
        places = np.arange(self._made, self._made + count)
        kept = ((places + 1) % thin == 0) & (places // thin >= self._recorder.kept)
        self._made += count
        stats = {name: in_jax_width(np.asarray(a))[:, kept] for name, a in batch.stats.items()}
        return Records(draws[:, kept], None, stats, {})

    def _save(self, ended: Ending | None) -> None:
        self._recorder.write()
        if self._writer is None:
            return
        header = {
            "done": self._batches,
            "kept": self._recorder.kept,
            "seconds": time.monotonic() - self._started,
            "ended": ended,
            "stride": self._stride,
            "resumed_at": self._record.get("resumed_at", []),
            "batches": self._digests + self._stored[len(self._digests) :],
        }
        self._writer.save(header, self._recorder.state())

    # --- the result -------------------------------------------------------------------------------

    def _result(self, ending: Ending, outcome: Outcome | None = None) -> Any:
        if not self._panel.root:
            return None
        outcome = Outcome(ending.text) if outcome is None else outcome
        source, record = self._source, self._record
        record.update(self._panel.outcome())
        record.update(outcome.report)
        record.pop("faults", None)  # of a part of the run
        if outcome.faults:
            record["faults"] = [fault._asdict() for fault in outcome.faults]
        record["end"], record["stopped"] = ending.kind.value, ending.text
        record["seconds"] = time.monotonic() - self._started
        up, down = source.sent
        record |= {
            "iterations_run": self._batches,
            "communication_rounds": len(source.messages),
            "bytes_up": up,
            "bytes_down": down,
            "bytes_sent": up + down,
            "gradients": source.evaluations[0],
            "row_gradients": source.evaluations[1],
            "messages": source.messages,
        }
        self._save(ending if ending.kind.state == "finished" else None)
        return finished(self._recorder, self._writer, record, ending.kind.state, {})
