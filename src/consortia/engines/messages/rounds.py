"""The loop over phases at the server: for each, one message to each site, then half at the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from consortia.core.contract import Mean, Phase, Route
from consortia.engines import exchanges, rng
from consortia.engines.contract import named
from consortia.engines.messages import nonfinite, plausible
from consortia.engines.messages.asking import RequestChannel
from consortia.engines.messages.envelope import Envelope, EnvelopeError
from consortia.engines.messages.plausible import Judge
from consortia.engines.messages.stages import STAGES, Label, Sent, Stage, Stages, from_arrays
from consortia.engines.phases import Carry, Iteration, SiteArrays, kept_where
from consortia.engines.rng import PhaseKeys
from consortia.runtime.late import Array, PyTree, jax

KEPT_STATES = 3
"""So many of the last checkpoints a site must be able to go back to."""


@dataclass(eq=False)
class Rounds:
    """All exchanges of a run.

    ``carry.node`` is not the states of the sites, which stay there: it says after which message
    each site's state is, int32 (sites, 4).

    Attributes:
        away: of the rounds in which not all took part, bool (sites,).
        loops: over the phases of each stage.
    """

    stages: Stages
    weights: np.ndarray  # w_c
    channel: RequestChannel
    enough: int | None  # sites that make an average; all when None
    base: np.ndarray  # key of the run
    judge: Judge

    def __post_init__(self) -> None:
        self.away: dict[int, np.ndarray] = {}
        self._stored: list[np.ndarray] = []
        self._started: list[np.ndarray] = []
        self.loops = {number: StageLoop(of, self) for number, of in self.stages.every.items()}

    def stored(self, carry: Carry) -> None:
        """Note that the run will be able to resume from this state."""
        self._stored = [*self._stored, np.asarray(carry.node)][-KEPT_STATES:]

    def started(self, carry: Carry) -> None:
        """Note that the run continues from this state, and may look at it again."""
        self._started = [*self._started, np.asarray(carry.node)][-2:]

    def request(
        self, label: Label, carry: Carry, site: int, arrays: Mapping[str, np.ndarray]
    ) -> Envelope:
        """Return the request to a site in a phase."""
        return self.channel.request(
            STAGES[label.stage],
            site,
            label=tuple(label),
            values=self.places(carry, site) | self.channel.keys_of_all,
            arrays=arrays,
        )

    def places(self, carry: Carry, site: int) -> dict[str, Any]:
        """Return after which message the state is that a site starts from, and the oldest kept."""
        reached = self._stored or self._started
        oldest = [-1, -1, -1, -1]
        if len(reached) >= (KEPT_STATES if self._stored else 2):
            oldest = reached[0][site].tolist()
        return {"before": np.asarray(carry.node)[site].tolist(), "oldest": oldest}


class StageLoop(Iteration):
    """The phases of one stage at the server; what it computes is compiled once for each phase.

    The randomness of a phase is here the `Label` of its message: the hub's part is drawn where it
    is needed, the nodes' part at the sites.

    Attributes:
        outboxes: of the last iteration, of each phase that runs once, with the sites that
            chains visited, (chains,); None where all sites answered for all chains.
    """

    def __init__(self, stage: Stage, run: Rounds) -> None:
        super().__init__(stage.own.algorithm, stage.layout)
        self.stage, self._run = stage, run
        self._sites = tuple(range(len(run.weights)))
        self._keys = stage.keys(run.base, only=0)  # private ones for their shapes
        self._warmup = 0
        self.outboxes: list[tuple[PyTree, np.ndarray | None]] = []
        self._visits: np.ndarray | None = None
        options = run.stages.effort.often
        self._end = [
            jax.jit(partial(self._second_half, index), compiler_options=options)
            for index in range(len(stage.phases))
        ]
        self._repeats = [
            None if phase.repeats is None else jax.jit(self.over_chains(phase.repeats))
            for phase in stage.phases
        ]

    def run(
        self, carry: Carry, iteration: int, warmup: int
    ) -> tuple[Carry, dict[str, Any], dict[str, Any]]:
        """Run all phases; return the carry and the infos of nodes and hub.

        What an earlier attempt at this iteration has recorded of who was away is forgotten.
        """
        number, phases = self.stage.number, self.stage.phases
        labels: Any = tuple(Label(number, iteration, index, 0) for index in range(len(phases)))
        self._warmup, self.outboxes = 0, []
        if number == rng.ROUND:
            self._warmup = warmup
            self._run.away.pop(iteration, None)

        def note(label: Any, outbox: PyTree) -> None:
            self.outboxes.append((outbox, self._visits))

        carry, _, *infos = self.run_phases(phases, labels, carry, NO_SITES, False, note)
        return carry, infos[0], infos[1]

    def phase(
        self,
        phase: Phase,
        drawn: Any,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
    ) -> tuple[Carry, dict[str, Any], dict[str, Any], PyTree]:
        """Query the sites for their half of a phase, and do the hub's; as of `Iteration`."""
        label, outbox, info = drawn, (), dict[str, Any]()
        here, weights = np.zeros(len(self._sites), bool), self._run.weights
        self._visits = None
        if isinstance(phase.exchange, Route):
            outbox, here = self._route(label, carry)
        elif phase.local is not None:
            outbox, info, here = self._star(label, carry)
            weights = weights * here / (weights * here).sum()
            if self._run.channel.masking:
                weights = np.ones(1, weights.dtype)
        after, hub_info = self._end[label.phase](
            carry._replace(node=()), outbox, weights, self._keys[label.phase], self._packed(label)
        )
        node = np.where(here[:, None], np.array(label, np.int32), carry.node)
        return after._replace(node=node), info, hub_info, outbox

    def repeated(
        self,
        phase: Phase,
        drawn: Any,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
    ) -> Carry:
        """Run a phase as often as the chain wants that wants it most; as of `Iteration`."""
        repetition = 0
        while repetition < self._counts(drawn.phase, carry).max():
            label = drawn._replace(repetition=repetition)
            carry = self.phase(phase, label, carry, sites, per_node)[0]
            repetition += 1
        return carry

    # --- exchanges ------------------------------------------------------------------------------

    def _star(self, label: Label, carry: Carry) -> tuple[PyTree, dict[str, Any], np.ndarray]:
        """Return the outboxes and infos of all sites, node axis first, and which are here.

        Where they are masked the server learns no more than their sum, the only "node" then.
        """
        phase, sent, run = self.stage.phases[label.phase], self.stage.sent[label.phase], self._run
        arrays = named(carry.inbox, "inbox")
        if phase.repeats is not None:
            arrays["runs"] = label.repetition < self._counts(label.phase, carry)
        requests = {site: run.request(label, carry, site, arrays) for site in self._sites}
        if run.channel.masking:
            like = named(
                jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), sent.outbox), "outbox"
            )
            total = run.channel.ask_sum(requests, like, {}, label.iteration)
            total = {name: value.astype(like[name].dtype) for name, value in total.items()}
            return from_arrays(total, sent.outbox, "outbox"), {}, np.ones(len(requests), bool)
        may_miss = isinstance(phase.exchange, Mean) and label.stage == rng.ROUND
        answers = self._answers(
            label,
            requests,
            dict.fromkeys(requests, sent),
            lambda site, outbox: (carry.inbox, jax.tree.map(lambda leaf: leaf[0], outbox)),
            run.enough if may_miss else None,
        )
        here = np.array([site in answers for site in self._sites])
        if not here.all():
            away = run.away.get(label.iteration, np.zeros(len(here), bool))
            run.away[label.iteration] = away | ~here
        parts = [answers[site] if site in answers else _absent(sent) for site in self._sites]
        outbox = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(part[0] for part in parts))
        info = {name: np.concatenate([part[1][name] for part in parts]) for name in sent.info}
        return outbox, info, here

    def _route(self, label: Label, carry: Carry) -> tuple[PyTree, np.ndarray]:
        """Return the outboxes of one visit of every chain, and which sites were visited."""
        stage, sent = self.stage, self.stage.sent[label.phase]
        alone = stage.chains == 1
        visits = self._visits = stage.visits(self._keys[label.phase], self._packed(label))
        requests, likes, chains, inboxes = {}, {}, {}, {}
        for site in np.unique(visits).tolist():
            which = chains[site] = np.flatnonzero(visits == site)
            inboxes[site] = jax.tree.map(
                lambda leaf, which=which: np.asarray(leaf)[None if alone else which], carry.inbox
            )
            requests[site] = self._run.request(label, carry, site, named(inboxes[site], "inbox"))
            likes[site] = sent._replace(outbox=stage.of_chains(len(which), sent.outbox))
        answers = self._answers(
            label, requests, likes, lambda site, outbox: (inboxes[site], outbox), None
        )
        order = np.argsort(np.concatenate([chains[site] for site in requests]))
        outbox = jax.tree.map(
            lambda *leaves: np.concatenate(leaves)[0 if alone else order],
            *(answers[site][0] for site in requests),
        )
        return outbox, np.isin(self._sites, visits)

    def _answers(
        self,
        label: Label,
        requests: Mapping[int, Envelope],
        likes: Mapping[int, Sent],
        messages: Callable[[int, PyTree], tuple[PyTree, PyTree]],
        enough: int | None,
    ) -> dict[int, tuple[PyTree, Any]]:
        """Return outbox and info of each site that answers, once all are plausible.

        Args:
            label: of the phase.
            requests: by the site's number.
            likes: shapes of what it sends.
            messages: inbox and outbox of a site from the latter, without the axis of the nodes.
            enough: as of `RequestChannel.ask`.
        """
        channel, phase = self._run.channel, self.stage.phases[label.phase]
        answers = channel.ask(
            requests,
            lambda site, answer: _read(likes[site], answer),
            iteration=label.iteration,
            enough=enough,
        )
        sent = {n: plausible.Sent(*messages(n, outbox)) for n, (outbox, _) in answers.items()}
        channel.check_plausible(self._run.judge, phase, sent, label.iteration)
        return answers

    # --- at the hub -----------------------------------------------------------------------------

    def _counts(self, index: int, carry: Carry) -> np.ndarray:
        """Count each chain's repetitions of a phase, (chains,)."""
        count = self._repeats[index]
        if count is None:
            return np.full(self.stage.chains, self.stage.phases[index].repeat)
        return np.atleast_1d(np.asarray(count(carry.hub)))

    def _packed(self, label: Label) -> np.ndarray:
        return np.array([label.iteration, self._warmup, label.repetition], np.int32)

    def _second_half(
        self,
        index: int,
        carry: Carry,
        outbox: PyTree,
        weights: Array,
        keys: PhaseKeys,
        counter: Array,
    ) -> Any:
        """Do the rest of a phase from the outboxes of all sites, node axis first; compiled."""
        stage, phase = self.stage, self.stage.phases[index]
        drawn = stage.drawn(phase, keys, counter)
        message = exchanges.message_of(phase.exchange, outbox, weights)
        after, info = self.receive(phase, drawn, carry, outbox, message)
        if phase.repeats is not None:
            count = self.over_chains(phase.repeats)(carry.hub)
            after = kept_where(counter[2] < count, after, carry, False)
        return after, {} if phase.repeated else info


ONE: Any = np.ones(1)
NO_SITES = SiteArrays((), ONE, ONE, ONE, ())
"""Stand-in for the data, of which the server has none."""


def _absent(sent: Sent) -> tuple[PyTree, Any]:
    """Return a stand-in for the answer of a site that does not take part."""
    outbox = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), sent.outbox)
    return outbox, {name: np.full(leaf.shape, np.nan) for name, leaf in sent.info.items()}


def _read(sent: Sent, answer: Envelope) -> tuple[PyTree, Any]:
    """Read a site's message in a phase, and check it."""
    arrays = nonfinite.unmarked(answer.arrays)
    parts = from_arrays(arrays, sent.outbox, "outbox"), from_arrays(arrays, sent.info, "info")
    if len(arrays) != sum(len(jax.tree.leaves(part)) for part in parts):
        raise EnvelopeError("it holds arrays that nobody requested")
    return parts
