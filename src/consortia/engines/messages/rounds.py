"""The loop over phases at the server: for each, one message to each site, then half at the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from consortia.core.contract import Mean, Phase, Route
from consortia.engines import exchanges, rng
from consortia.engines.contract import named
from consortia.engines.messages import nonfinite, plausible
from consortia.engines.messages.asking import RequestChannel
from consortia.engines.messages.envelope import Envelope, EnvelopeError
from consortia.engines.messages.masked import Layout
from consortia.engines.messages.plausible import Judge
from consortia.engines.messages.stages import (
    STAGES,
    Label,
    Sent,
    Stage,
    Stages,
    from_arrays,
)
from consortia.engines.phases import Carry, Iteration, SiteArrays, kept_where
from consortia.engines.rng import Counter, PhaseKeys
from consortia.runtime import compiler
from consortia.runtime.late import Array, PyTree, jax

Note = Callable[[PyTree, Any], None]

KEPT_STATES = 3
"""So many of the last checkpoints a site must be able to go back to."""


class Rounds:
    """All exchanges of a run.

    ``carry.node`` is not the states of the sites, which stay there: it says after which message
    each site's state is, int32 (sites, 4). ``enough`` sites make an average; all when None.

    Attributes:
        away: of the rounds in which not all took part, bool (sites,).
    """

    def __init__(
        self,
        stages: Stages,
        weights: np.ndarray,
        channel: RequestChannel,
        enough: int | None,
        base: np.ndarray,
        judge: Judge,
    ) -> None:
        self.judge = judge
        self.away: dict[int, np.ndarray] = {}
        self.weights, self.channel, self.enough = weights, channel, enough
        self._loops = {
            number: StageLoop(stages.of(number), base, self, stages.effort) for number in STAGES
        }
        self._stored: list[np.ndarray] = []
        self._started: list[np.ndarray] = []

    def stored(self, carry: Carry) -> None:
        """Note that the run will be able to resume from this state."""
        self._stored = [*self._stored, np.asarray(carry.node)][-KEPT_STATES:]

    def started(self, carry: Carry) -> None:
        """Note that the run continues from this state, and may look at it again."""
        self._started = [*self._started, np.asarray(carry.node)][-2:]

    def iterate(
        self, number: int, carry: Carry, iteration: int, warmup: int, note: Note | None = None
    ) -> tuple[Carry, dict[str, Any], dict[str, Any]]:
        """Run all phases of a stage; return the carry and the infos of nodes and hub.

        ``note`` is called with the outboxes of each phase that runs once, and where they are from.
        What an earlier attempt at this iteration has recorded of who was away is forgotten.
        """
        if number == rng.ROUND:
            self.away.pop(iteration, None)
        return self._loops[number].run(carry, iteration, warmup, note)

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
    """

    def __init__(
        self, stage: Stage, base: np.ndarray, run: Rounds, effort: compiler.Effort
    ) -> None:
        super().__init__(stage.own.algorithm, stage.layout)
        self.stage, self._base, self._run = stage, base, run
        self._sites = tuple(range(len(run.weights)))
        self._made: tuple[PhaseKeys, ...] = ()
        self._warmup = 0
        self._visits: np.ndarray | None = None
        indices = range(len(stage.phases))
        compiled = partial(jax.jit, compiler_options=effort.often)
        self._alone = [compiled(partial(self._hub_only, index)) for index in indices]
        self._end = [compiled(partial(self._second_half, index)) for index in indices]
        self._repeats = [
            None if phase.repeats is None else jax.jit(self.over_chains(phase.repeats))
            for phase in stage.phases
        ]
        self._visited = jax.jit(self._visited_sites)

    def run(
        self, carry: Carry, iteration: int, warmup: int, note: Note | None
    ) -> tuple[Carry, dict[str, Any], dict[str, Any]]:
        """Run all phases; return the carry and the infos of nodes and hub."""
        number, phases = self.stage.number, self.stage.phases
        labels: Any = tuple(Label(number, iteration, index, 0) for index in range(len(phases)))
        self._warmup = warmup if number == rng.ROUND else 0

        def seen(label: Any, outbox: PyTree) -> None:
            if note is not None and phases[label.phase].local is not None:
                note(outbox, self._visits)

        carry, _, node_info, hub_info = self.run_phases(
            phases, labels, carry, NO_SITES, False, seen
        )
        return carry, node_info, hub_info

    def phase(
        self,
        phase: Phase,
        drawn: Any,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
    ) -> tuple[Carry, dict[str, Any], dict[str, Any], PyTree]:
        """Ask the sites for their half of a phase, and do the hub's; as of `Iteration`."""
        if phase.local is None:
            return self._hub_phase(drawn, carry)
        ask = self._route if isinstance(phase.exchange, Route) else self._star
        return ask(drawn, carry)

    def repeated(
        self,
        phase: Phase,
        drawn: Any,
        carry: Carry,
        sites: SiteArrays,
        per_node: bool,
    ) -> Carry:
        """Run a phase as often as the chain wants that wants it most; as of `Iteration`."""
        if phase.local is None:
            return self._hub_phase(drawn, carry)[0]
        repetition = 0
        while repetition < self._counts(drawn.phase, carry).max():
            label = drawn._replace(repetition=repetition)
            carry = self.phase(phase, label, carry, sites, per_node)[0]
            repetition += 1
        return carry

    # --- exchanges ------------------------------------------------------------------------------

    def _star(self, label: Label, carry: Carry) -> Any:
        """Do one exchange with all sites."""
        phase, sent = self.stage.phases[label.phase], self.stage.shapes(label.phase)
        arrays = named(carry.inbox, "inbox")
        if phase.repeats is not None:
            arrays["runs"] = label.repetition < self._counts(label.phase, carry)
        requests = {site: self._run.request(label, carry, site, arrays) for site in self._sites}
        here, self._visits = np.ones(len(self._sites), bool), None
        info: dict[str, Any] = {}
        if self._run.channel.masking:
            outbox = self._summed(label, sent, requests)
            weights = np.ones(1, self._run.weights.dtype)
        else:
            outbox, info, here = self._each(label, carry, sent, requests)
            weights = self._run.weights * here
            weights = weights / weights.sum()
        after, hub_info = self._finish(label, carry, outbox, weights)
        labels = np.where(here[:, None], np.array(label, np.int32), carry.node)
        return after._replace(node=labels), info, hub_info, outbox

    def _each(
        self, label: Label, carry: Carry, sent: Sent, requests: Mapping[int, Envelope]
    ) -> tuple[PyTree, dict[str, Any], np.ndarray]:
        """Return the outboxes and infos of all sites, node axis first, and which are here."""
        phase, channel = self.stage.phases[label.phase], self._run.channel
        may_miss = isinstance(phase.exchange, Mean) and label.stage == rng.ROUND
        answers = channel.ask(
            requests,
            partial(_read, sent.outbox, sent.info),
            iteration=label.iteration,
            enough=self._run.enough if may_miss else None,
        )
        alone = {site: jax.tree.map(lambda leaf: leaf[0], answers[site][0]) for site in answers}
        messages = {site: plausible.Sent(carry.inbox, part) for site, part in alone.items()}
        channel.check_plausible(self._run.judge, phase, messages, label.iteration)
        here = np.array([site in answers for site in self._sites])
        if not here.all():
            away = self._run.away.get(label.iteration, np.zeros(len(here), bool))
            self._run.away[label.iteration] = away | ~here
            answers = {site: _absent(sent) for site in self._sites} | answers
        parts = [answers[site] for site in self._sites]
        outbox = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(part[0] for part in parts))
        info = {name: np.concatenate([part[1][name] for part in parts]) for name in sent.info}
        return outbox, info, here

    def _summed(self, label: Label, sent: Sent, requests: Mapping[int, Envelope]) -> PyTree:
        """Return the sum of the outboxes of all sites, of which the server learns no other."""
        like = named(
            jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), sent.outbox), "outbox"
        )
        layout = Layout.of(like, {}, len(self._sites))
        answers = self._run.channel.ask(
            requests, lambda site, answer: layout.read(answer), iteration=label.iteration
        )
        total = layout.total([answers[site] for site in self._sites])
        total = {name: value.astype(like[name].dtype) for name, value in total.items()}
        return from_arrays(total, sent.outbox, "outbox")

    def _route(self, label: Label, carry: Carry) -> Any:
        """Do one visit of every chain, each at its site."""
        alone = self.stage.chains == 1
        visits = np.atleast_1d(np.asarray(self._visited(self._keys(0), self._packed(label))))
        requests, likes, chains, inboxes = {}, {}, {}, {}
        sent = self.stage.shapes(label.phase)
        for site in np.unique(visits).tolist():
            which = chains[site] = np.flatnonzero(visits == site).astype(np.int32)
            inboxes[site] = jax.tree.map(
                lambda leaf, which=which: np.asarray(leaf)[None if alone else which], carry.inbox
            )
            arrays = named(inboxes[site], "inbox") | {"chains": which}
            requests[site] = self._run.request(label, carry, site, arrays)
            likes[site] = jax.tree.map(
                lambda leaf, which=which: jax.ShapeDtypeStruct(
                    (len(which), *leaf.shape[int(not alone) :]), leaf.dtype
                ),
                sent.outbox,
            )
        answers = self._run.channel.ask(
            requests,
            lambda site, answer: _read(likes[site], {}, site, answer),
            iteration=label.iteration,
        )
        visited = {site: plausible.Sent(inboxes[site], answers[site][0]) for site in requests}
        phase, judge = self.stage.phases[label.phase], self._run.judge
        self._run.channel.check_plausible(judge, phase, visited, label.iteration)
        order = np.argsort(np.concatenate([chains[site] for site in requests]))
        outbox = jax.tree.map(
            lambda *leaves: np.concatenate(leaves)[order],
            *(answers[site][0] for site in requests),
        )
        self._visits = visits
        message = jax.tree.map(lambda leaf: leaf[0], outbox) if alone else outbox
        after, hub_info = self._finish(label, carry, message, self._run.weights)
        labels = np.array(carry.node)
        labels[list(requests)] = np.array(label, np.int32)
        return after._replace(node=labels), {}, hub_info, outbox

    # --- at the hub -----------------------------------------------------------------------------

    def _hub_phase(self, label: Label, carry: Carry) -> Any:
        """Do a phase of the hub alone, all its repetitions."""
        after, info = self._alone[label.phase](
            carry._replace(node=()), self._keys(label.phase), self._packed(label)
        )
        return after._replace(node=carry.node), {}, info, ()

    def _finish(
        self, label: Label, carry: Carry, outbox: PyTree, weights: np.ndarray
    ) -> tuple[Carry, dict[str, Array]]:
        """Do the rest of a phase from the outboxes of all sites, node axis first."""
        return self._end[label.phase](
            carry._replace(node=()), outbox, weights, self._keys(label.phase), self._packed(label)
        )

    def _counts(self, index: int, carry: Carry) -> np.ndarray:
        """Count each chain's repetitions of a phase, (chains,)."""
        count = self._repeats[index]
        if count is None:
            return np.full(self.stage.chains, self.stage.phases[index].repeat)
        return np.atleast_1d(np.asarray(count(carry.hub)))

    def _packed(self, label: Label) -> np.ndarray:
        return np.array([label.iteration, self._warmup, label.repetition], np.int32)

    def _keys(self, index: int) -> PhaseKeys:
        """Return the keys of a phase, made once; private ones of one node, for their shapes."""
        if not self._made:
            self._made = self.stage.keys(self._base, only=0)
        return self._made[index]

    # --- compiled -------------------------------------------------------------------------------

    def _hub_only(self, index: int, carry: Carry, keys: PhaseKeys, counter: Array) -> Any:
        stage, phase = self.stage, self.stage.phases[index]
        here = Counter(counter[0], counter[1])
        drawn = rng.phase_randomness(phase, keys, here, stage.source)
        rest = (phase, drawn, carry, NO_SITES, False)
        if phase.repeated:
            return stage.own.repeated(*rest), {}
        after, _, info, _ = stage.own.phase(*rest)
        return after, info

    def _second_half(
        self,
        index: int,
        carry: Carry,
        outbox: PyTree,
        weights: Array,
        keys: PhaseKeys,
        counter: Array,
    ) -> Any:
        stage, phase = self.stage, self.stage.phases[index]
        drawn = stage.drawn(phase, keys, counter)
        message = outbox
        if not isinstance(phase.exchange, Route):
            message = exchanges.message_of(phase.exchange, outbox, weights)
        after, info = self.receive(phase, drawn, carry, outbox, message)
        if phase.repeats is not None:
            count = self.over_chains(phase.repeats)(carry.hub)
            after = kept_where(counter[2] < count, after, carry, False)
        return after, {} if phase.repeated else info

    def _visited_sites(self, keys: PhaseKeys, counter: Array) -> Array:
        visited = self.stage.drawn(self.stage.phases[0], keys, counter).visited
        if visited is None:
            raise TypeError("no phase has a Route")
        return visited


ONE: Any = np.ones(1)
NO_SITES = SiteArrays((), ONE, ONE, ONE, ())
"""Stand-in for the data, of which the server has none."""


def _absent(sent: Sent) -> tuple[PyTree, Any]:
    """Return a stand-in for the answer of a site that does not take part."""
    outbox = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), sent.outbox)
    return outbox, {name: np.full(leaf.shape, np.nan) for name, leaf in sent.info.items()}


def _read(outbox: PyTree, info: Any, site: int, answer: Envelope) -> tuple[PyTree, Any]:
    """Read a site's message in a phase, and check it."""
    arrays = nonfinite.unmarked(answer.arrays)
    parts = from_arrays(arrays, outbox, "outbox"), from_arrays(arrays, info, "info")
    if len(arrays) != sum(len(jax.tree.leaves(part)) for part in parts):
        raise EnvelopeError("it holds arrays that nobody requested")
    return parts
