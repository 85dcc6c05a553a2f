"""Computation at a site: the first half of each phase, at its own node.

A piece is compiled once for a phase. What the phases have in common is drawn as one process would
draw it; what they declare as private likewise, or from a secret of the site.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from consortia.core import fingerprints, random, start
from consortia.core.contract import Evaluation, Mean, Method, Phase, Route
from consortia.core.model import Model
from consortia.core.prior import PriorScale, prior_scale
from consortia.core.summed import unsummed
from consortia.core.target import Target
from consortia.data import digest
from consortia.data.digest import RowDigests
from consortia.data.sites import Sites
from consortia.engines import rng
from consortia.engines.contract import named
from consortia.engines.messages.envelope import Envelope, EnvelopeError
from consortia.engines.messages.errors import MismatchError
from consortia.engines.messages.files import RunFiles
from consortia.engines.messages.questions import (
    NOWHERE,
    Place,
    Question,
    largest,
    question_of,
)
from consortia.engines.messages.settled import Statement
from consortia.engines.messages.stages import (
    Label,
    Stage,
    Stages,
    check_method,
    from_arrays,
)
from consortia.engines.phases import Carry, SiteArrays, kept_where, rows_of_sites, site_arrays
from consortia.engines.rng import PhaseKeys
from consortia.runtime import compiler
from consortia.runtime.late import Array, PyTree, jax, jnp

Permit = Callable[[Statement | None], None]

BEFORE_ALL = (-1, -1, -1, -1)
PLACE = "evaluated"
"""File of the positions at which the chains were evaluated last."""

START_TOLERANCE = 1e-5
"""Relative and absolute; functions of a key may round otherwise on another processor."""


@dataclass(frozen=True)
class Job:
    """A study as objects: what must be the same at server and sites."""

    model: Model
    sites: Sites  # names and sizes of all sites, rows where they are
    algorithm: Method
    chains: int  # of the run
    seed: int  # of the run
    warmup: int  # of the run
    init: Any = None  # as `consortia.sample` takes it
    # sites carry equal shares of the prior, as no site knows the others' rows
    registered: bool = False


class Assignment(NamedTuple):
    """One run at one site."""

    job: Job  # the study, with the rows of this site
    number: int  # of this site
    files: RunFiles  # of the run
    begun: Mapping[str, np.ndarray]  # arrays that the run began with: positions (chains, d)
    run: str  # its identity
    secret: bytes | None  # of the site, from which it draws what is private; else from the seed
    # the name of the data whose budget the rows draw on, and digests of the rows in their order
    known: Callable[[], tuple[str, RowDigests]] | None = None


class SiteWork:
    """The target and the rows of a run at a site, and where they were evaluated last.

    Args:
        assignment: the run.
        chains: that travel in a message.

    Attributes:
        dimension: d.
        rows: of the site.
    """

    def __init__(self, assignment: Assignment, chains: int) -> None:
        job, self._number, self._files, begun, self._run, self._secret, self._known = assignment
        self._job = job
        self.rows = int(job.sites.sizes[self._number])
        starts = start.starting_parameters(job.model, job.init, job.seed, chains)
        self._target = Target(job.model, starts[0])
        d = self.dimension = self._target.dimension
        self._positions = begun["positions"]
        if self._positions.shape != (chains, d):
            raise EnvelopeError("the positions are of another number of chains or parameters")
        expected = np.stack([self._target.flat(start_of_chain) for start_of_chain in starts])
        if not np.allclose(self._positions, expected, rtol=START_TOLERANCE, atol=START_TOLERANCE):
            raise MismatchError("start")
        self._evaluated: Mapping[str, np.ndarray] | None = None

    @functools.cached_property
    def _arrays(self) -> SiteArrays:
        """Rows and numbers of the site, for compiled programs."""
        job = self._job
        arrays = site_arrays(job.model, job.sites, job.algorithm, np.array([self._number]))
        if not job.registered:
            return arrays
        equal = jnp.full_like(arrays.prior_shares, self._equal_share)
        return arrays._replace(weights=equal, prior_shares=equal)

    @property
    def _equal_share(self) -> float:
        """Share of the prior where nobody knows how many rows the other sites have."""
        return 1 / len(self._job.sites)

    def check_model(self, fingerprint: str) -> None:
        """Refuse another model than the server's.

        Raises:
            MismatchError: its densities, or constants in them, are not the same.
        """
        if fingerprints.of_model(self._target, self._job.sites.first) != fingerprint:
            raise MismatchError("model")

    def start_flags(self) -> dict[str, np.ndarray]:
        """Return for each chain whether U_c at its start, and its gradient there, are finite."""
        _, values, finite = self._start_values()
        potential = np.asarray(values)[0]
        codes = np.isnan(potential) * 1 + np.isposinf(potential) * 2 + np.isneginf(potential) * 3
        return {"potential": codes.astype(np.uint8), "gradient": np.asarray(finite)[0]}

    def _start_values(self) -> tuple[Any, Any, Any]:
        """Return this site's part of `consortia.core.start.start_values`."""
        values_at = jax.jit(
            partial(start.start_values, self._target, most=self._job.algorithm.gradient_rows),
            compiler_options=self._once,
        )
        return values_at(self._arrays, jnp.asarray(self._positions))

    @property
    def _once(self) -> dict[str, Any]:
        """Options of the compiler for what runs once."""
        return compiler.for_once()

    @functools.cached_property
    def _scale(self) -> PriorScale:
        return prior_scale(self._target, self._positions[0])

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the rows as the model takes them."""
        return digest.of_rows(
            rows_of_sites(self._job.model, self._job.sites, np.array([self._number]))
        )

    def _reached(self, label: Label, evaluation: Evaluation, chains: np.ndarray) -> Place:
        """Return the place that a message asks about.

        Args:
            label: of the message.
            evaluation: of its inbox; the first axis is that of the chains, where there are several.
            chains: in the message, their indices.

        Raises:
            EnvelopeError: the algorithm does not say at which positions it asks.
        """
        positions, d = np.asarray(evaluation.positions), self.dimension
        if positions.dtype.kind != "f" or positions.ndim < 1 or positions.shape[-1] != d:
            raise EnvelopeError("the algorithm does not say at which positions it asks")
        before, iterations = self._last_evaluated(label.stage)
        rounds = np.maximum(label.iteration - iterations[chains], 1)  # since then
        points = np.asarray(positions, np.float64).reshape(len(chains), -1, d)
        reach, middles = self._scale.distance(points), points.mean(axis=1)
        moved = self._scale.distance(middles, before[chains]) / rounds[:, None]
        count = points.shape[0] * points.shape[1]
        return Place(count, largest(reach), largest(moved), middles, chains=chains)

    def _last_evaluated(self, stage: int) -> tuple[np.ndarray, np.ndarray]:
        """Return each chain's last place of evaluation in a stage, (chains, d), with iteration."""
        if self._evaluated is None:
            self._evaluated = self._files.noted(PLACE)
        if self._evaluated is not None and int(self._evaluated["stage"]) == stage:
            return self._evaluated["middles"], self._evaluated["iterations"]
        start = np.asarray(self._positions[: 1 if stage == rng.FIT else None], np.float64)
        return start, np.full(len(start), -1)

    def keep_place(self, label: Label, where: Place) -> None:
        """Note where the chains of a message were evaluated, for the next one."""
        if where.points:
            middles, iterations = (values.copy() for values in self._last_evaluated(label.stage))
            middles[where.chains], iterations[where.chains] = where.middles, label.iteration
            parts = {"stage": np.array(label.stage), "middles": middles, "iterations": iterations}
            self._evaluated = parts
            self._files.note(PLACE, parts)

    def check_noise(self, label: Label, request: Envelope, *, masked: bool) -> None:
        """Check that the noise of an answer protects it, before its cost is written down."""

    def exact_cell(self, label: Label, request: Envelope) -> int | None:
        """Return the rows of the rarest pattern where exact sums over rows answer; else None."""

    def finish_fit(self, request: Envelope) -> dict[str, np.ndarray]:
        """Keep what ``fit`` has left here; return it, for the method to judge."""
        raise EnvelopeError("the study has no messages of this kind")


class SiteRuntime(SiteWork):
    """One run of phases at one site."""

    def __init__(self, assignment: Assignment) -> None:
        job = assignment.job
        super().__init__(assignment, job.chains)
        check_method(job.algorithm)
        parts = self._target, job.sites, job.algorithm, job.chains
        self._stages = Stages(*parts, self._arrays)
        self._algorithm = self._stages.own.algorithm
        base = random.base_key(job.seed)
        of_stages = self._stages.every.items()
        self._keys = {number: of.keys(base, only=self._number) for number, of in of_stages}
        self._pieces: dict[tuple[int, int], Callable[..., Any]] = {}

    @property
    def _once(self) -> dict[str, Any]:
        return self._stages.effort.once

    def finish_fit(self, request: Envelope) -> dict[str, np.ndarray]:
        """Keep what ``fit`` has left here; return it, for the method to judge."""
        stage = self._stages.fit
        after = stage.after
        node = self._state(stage, Label(rng.FIT, 0, len(stage.phases), 0), request, after.node)
        inbox = from_arrays(request.arrays, after.inbox, "inbox")
        fitted = self._stages.fitted(Carry(node, (), inbox))
        self._files.keep("fitted", named(fitted, "fitted"))
        self._arrays = self._arrays._replace(fitted=())  # to be read anew
        return named(node, "node")

    def answered(
        self, label: Label, request: Envelope, permit: Permit | None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray], Statement | None]:
        """Do the first half of a phase; keep the state after it, and return what is sent."""
        stage, phase = self._phase(label)
        if label.stage != rng.FIT and self._algorithm.fit:
            self._take_fitted()
        node = self._state(stage, label, request, stage.sent[label.phase].carry.node)
        chains = self._chains(stage, label)
        inbox = self._inbox(stage, label, request, chains)
        info: dict[str, Any] = {}
        piece = self._piece(stage, label.phase)
        rest = self._counter(label), self._keys_of(stage, label, request), self._arrays
        if isinstance(phase.exchange, Route):
            left = []
            for index, chain in enumerate(chains):  # one after the other
                chain_inbox = jax.tree.map(lambda leaf, index=index: leaf[index], inbox)
                node, outbox = piece(node, chain_inbox, chain, *rest)
                left.append(outbox)
            after, outbox = node, jax.tree.map(lambda *leaves: np.stack(leaves), *left)
        else:
            runs: Any = ()
            if phase.repeats is not None:
                like = jax.ShapeDtypeStruct((stage.chains,), bool)
                runs = from_arrays(request.arrays, like, "runs")
            after, outbox, info = piece(node, inbox, runs, *rest)
        if jax.tree.leaves(after):
            oldest = _label(request.values.get("oldest"))
            self._files.keep_state(label, named(after, "node"), oldest)
        info = {} if phase.repeated else info
        return {}, named(outbox, "outbox") | named(info, "info"), None

    def summed(self, label: Label, request: Envelope) -> bool:
        """Return True if the server needs the sum over the sites of all messages only."""
        return unsummed(self._algorithm) is None

    def summands(
        self, label: Label, request: Envelope, answer: Mapping[str, np.ndarray]
    ) -> tuple[Mapping[str, np.ndarray], Mapping[str, float]]:
        """Return the numbers that are added over the sites: of an average those times w_c.

        Raises:
            EnvelopeError: there is something else in the message than what is added.
        """
        _, phase = self._phase(label)
        if any(not name.startswith("outbox") for name in answer):
            raise EnvelopeError("the message holds numbers of this site alone")
        averaged = isinstance(phase.exchange, Mean)
        share = float(np.asarray(self._arrays.weights)[0]) if averaged else 1.0
        return {name: share * np.asarray(array, np.float64) for name, array in answer.items()}, {}

    def _phase(self, label: Label) -> tuple[Stage, Phase]:
        """Return the stage and the phase of a label, if a site has something to do there."""
        stage = self._stages.every.get(label.stage)
        if stage is None or label.phase >= len(stage.phases):
            raise EnvelopeError("the study has no such phase")
        phase = stage.phases[label.phase]
        if phase.local is None or label.repetition >= phase.repeat:
            raise EnvelopeError("this phase has nothing to do at a site")
        if label.stage != rng.ROUND and label.iteration:
            raise EnvelopeError("there is no such iteration before the rounds")
        return stage, phase

    # --- requests -----------------------------------------------------------------------------

    def place(self, label: Label, request: Envelope) -> Place:
        """Return the place where a message asks about the rows; compute nothing of them."""
        stage, phase = self._phase(label)
        sent, chains = stage.sent[label.phase], self._chains(stage, label)
        numbers = sum(leaf.size for leaf in jax.tree.leaves((sent.outbox, sent.info)))
        numbers = numbers * len(chains) // stage.chains
        if phase.evaluation is None:
            return Place(0, 0.0, 0.0, NOWHERE, numbers)
        evaluation = phase.evaluation(self._inbox(stage, label, request, chains))
        return replace(self._reached(label, evaluation, chains), numbers=numbers)

    def _chains(self, stage: Stage, label: Label) -> np.ndarray:
        """Return the indices of the chains that a message is about: of a `Route` those here."""
        if not isinstance(stage.phases[label.phase].exchange, Route):
            return np.arange(stage.chains)
        keys = self._keys[stage.number][label.phase]
        here = np.flatnonzero(stage.visits(keys, self._counter(label)) == self._number)
        if not here.size:
            raise EnvelopeError("no chain visits this site in this iteration")
        return here.astype(np.int32)

    def _inbox(self, stage: Stage, label: Label, request: Envelope, chains: np.ndarray) -> PyTree:
        """Return the inbox in a message; of a `Route` those of its chains, chain axis first."""
        like = stage.sent[label.phase].carry.inbox
        if isinstance(stage.phases[label.phase].exchange, Route):
            like = stage.of_chains(len(chains), like)
        return from_arrays(request.arrays, like, "inbox")

    # --- states -------------------------------------------------------------------------------

    def _state(self, stage: Stage, label: Label, request: Envelope, like: PyTree) -> PyTree:
        """Return the state before a message, as the server says which one that is."""
        if not jax.tree.leaves(like):
            return like
        before = _label(request.values.get("before"))
        if before == BEFORE_ALL:
            positions = jnp.asarray(self._positions)
            if stage.number == rng.FIT:
                return self._stages.begin_fit(positions[0]).node
            return self._stages.begin(positions[0] if len(positions) == 1 else positions).node
        if before >= label:
            raise EnvelopeError("the state before is said to be later")
        return from_arrays(self._files.state(before), like, "node")

    def _take_fitted(self) -> None:
        if jax.tree.leaves(self._arrays.fitted):
            return
        fit = self._files.kept("fitted")
        if fit is None:
            raise EnvelopeError("the fit was not finished at this site")
        like = jax.eval_shape(self._stages.fitted, self._stages.fit.after)
        fitted = jax.tree.map(jnp.asarray, from_arrays(fit.arrays, like, "fitted"))
        self._arrays = self._arrays._replace(fitted=fitted)

    # --- compiled -----------------------------------------------------------------------------

    def _piece(self, stage: Stage, index: int) -> Callable[..., Any]:
        """Return the first half of a phase, compiled: of a `Route` for one chain, else for all.

        ``which`` is that chain, or the chains that repeat the phase once more, where some may not.
        """
        phase, key = stage.phases[index], (stage.number, index)

        def half(node: PyTree, inbox: PyTree, which: Any, counter: Array, *rest: Any) -> Any:
            keys, arrays = rest
            drawn = stage.drawn(phase, keys, counter)
            if isinstance(phase.exchange, Route):
                at = which, 0, self._number, node, inbox, arrays
                return stage.own.visit_of_chain(phase, drawn, *at)
            carry = Carry(node, (), inbox)
            after, outbox, info = stage.own.send(phase, drawn, carry, arrays, False)
            if phase.repeats is not None:
                runs = which if stage.chains > 1 else which[0]
                after = kept_where(runs, Carry(after, (), ()), Carry(node, (), ()), False).node
            return after, outbox, info

        if key not in self._pieces:
            options = self._stages.effort.often
            self._pieces[key] = jax.jit(half, compiler_options=options)
        return self._pieces[key]

    def _keys_of(self, stage: Stage, label: Label, request: Envelope) -> PhaseKeys:
        """Return the keys of a phase.

        Private ones are of the question where they come from the site's secret.
        """
        keys = self._keys[stage.number][label.phase]
        phase = stage.phases[label.phase]
        if self._secret is None:
            return keys
        declared = jax.eval_shape(lambda: phase.noise(random.RandomStreams(0, 0)))
        if not jax.tree.leaves(declared):
            return keys
        index = self._number if isinstance(phase.exchange, Route) else 0
        private = np.array(keys.private)
        question = question_of(request)
        private[index] = private_keys(self._secret, self._run, question, stage.chains)
        return PhaseKeys(keys.shared, private)

    def _counter(self, label: Label) -> np.ndarray:
        warmup = self._job.warmup if label.stage == rng.ROUND else 0
        return np.array([label.iteration, warmup, label.repetition], np.int32)


def private_keys(secret: bytes, run: str, question: Question, chains: int) -> np.ndarray:
    """Return the keys of what is private in a message, uint32 (chains, 2), or (2,) of one chain.

    Each is the beginning of an HMAC-SHA-256 of run, label, question and chain under the site's
    secret: the same question has the same noise, so that asking again averages nothing out; two
    questions at one label, where a policy permits them, have noise of their own.
    """

    def key(chain: int) -> bytes:
        text = f"{run} {question.place} {question.digest} {chain}"
        return hmac.new(secret, text.encode(), hashlib.sha256).digest()[:8]

    keys = np.frombuffer(b"".join(map(key, range(chains))), np.uint32).reshape(chains, 2)
    return keys[0] if chains == 1 else keys


def _label(value: Any) -> Label:
    """Return a label among a message's plain values."""
    if not isinstance(value, list) or len(value) != 4 or any(type(n) is not int for n in value):
        raise EnvelopeError("a label is not four integers")
    return Label(*value)
