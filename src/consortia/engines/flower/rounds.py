"""The exchanges of a stage, as the server carries them out: one message to each site it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from consortia.core.contract import Mean, Route
from consortia.engines import rng
from consortia.engines.flower import nonfinite
from consortia.engines.flower.asking import RequestChannel
from consortia.engines.flower.envelope import Envelope, EnvelopeError
from consortia.engines.flower.hub import Hub
from consortia.engines.flower.stages import STAGES, Label, Sent, Stages, from_arrays, named_arrays
from consortia.engines.phases import Carry
from consortia.engines.rng import Counter

PyTree = Any
Note = Callable[[PyTree, Any], None]

KEPT_STATES = 3
"""So many of the last checkpoints a site must be able to go back to."""


class Rounds:
    """All exchanges of a run.

    ``carry.node`` is not the states of the sites, which stay there: it says after which message
    each site's state is, int32 (sites, 4).

    Args:
        stages: of the algorithm.
        weights: w_c of all sites.
        channel: carries the messages.
        enough: so many sites make an average; all when None.
        base: the run's base key.

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
    ) -> None:
        self.away: dict[int, np.ndarray] = {}
        self._weights, self._channel, self._enough = weights, channel, enough
        self._hubs = {number: Hub(stages.of(number), base) for number in STAGES}
        self._all = tuple(range(len(weights)))
        self._stored: list[np.ndarray] = []
        self._started: list[np.ndarray] = []

    def stored(self, carry: Carry) -> None:
        """The run will be able to go on from this state."""
        self._stored = [*self._stored, np.asarray(carry.node)][-KEPT_STATES:]

    def started(self, carry: Carry) -> None:
        """The run goes on from this state, and may look at it again."""
        self._started = [*self._started, np.asarray(carry.node)][-2:]

    def iterate(
        self,
        number: int,
        carry: Carry,
        iteration: int,
        warmup: int,
        note: Note | None = None,
    ) -> tuple[Carry, dict[str, Any], dict[str, Any]]:
        """All phases of a stage, and their infos; ``note`` sees outboxes, and where they are from.

        What an earlier attempt at this iteration has recorded of who was away is forgotten.
        """
        hub = self._hubs[number]
        node_info: dict[str, Any] = {}
        hub_info: dict[str, Any] = {}
        if number == rng.ROUND:
            self.away.pop(iteration, None)
        for index, phase in enumerate(hub.stage.phases):
            if phase.local is None:
                labels = carry.node
                counter = Counter(iteration, warmup)
                carry, info = hub.alone(index, carry._replace(node=()), counter)
                carry = carry._replace(node=labels)
                hub_info |= info
                continue
            for repetition in range(int(hub.counts(index, carry).max())):
                label = Label(number, iteration, index, repetition)
                run = self._route if isinstance(phase.exchange, Route) else self._star
                carry, own, info = run(hub, label, carry, warmup, note)
                node_info |= own
                hub_info |= info
        return carry, node_info, hub_info

    def _star(
        self,
        hub: Hub,
        label: Label,
        carry: Carry,
        warmup: int,
        note: Note | None,
    ) -> tuple[Carry, dict[str, Any], dict[str, Any]]:
        """One exchange with all sites."""
        stage, phase = hub.stage, hub.stage.phases[label.phase]
        sent = stage.shapes(label.phase)
        arrays = named_arrays(carry.inbox, "inbox")
        if phase.repeats is not None:
            arrays["runs"] = label.repetition < hub.counts(label.phase, carry)
        may_miss = isinstance(phase.exchange, Mean) and label.stage == rng.ROUND
        answers = self._channel.ask(
            {site: self._request(label, carry, site, arrays) for site in self._all},
            partial(_read, sent.outbox, sent.info),
            iteration=label.iteration,
            enough=self._enough if may_miss else None,
        )
        here = np.array([site in answers for site in self._all])
        if not here.all():
            away = self.away.get(label.iteration, np.zeros(len(here), bool))
            self.away[label.iteration] = away | ~here
            answers = {site: _absent(sent) for site in self._all} | answers
        parts = [answers[site] for site in self._all]
        outbox = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(part[0] for part in parts))
        info = {name: np.concatenate([part[1][name] for part in parts]) for name in sent.info}
        if note is not None and not phase.repeated:
            note(outbox, None)
        weights = self._weights * here
        counter = Counter(label.iteration, self._counted(label, warmup), label.repetition)
        after, hub_info = hub.end(
            label.phase, carry._replace(node=()), outbox, weights / weights.sum(), counter
        )
        labels = np.where(here[:, None], np.array(label, np.int32), carry.node)
        return after._replace(node=labels), info, hub_info

    def _route(
        self,
        hub: Hub,
        label: Label,
        carry: Carry,
        warmup: int,
        note: Note | None,
    ) -> tuple[Carry, dict[str, Any], dict[str, Any]]:
        """One visit of every chain, each at its site."""
        stage = hub.stage
        counter = Counter(label.iteration, warmup)
        visits = hub.visits(counter)
        alone = stage.chains == 1
        requests, likes, chains = {}, {}, {}
        sent = stage.shapes(label.phase)
        for site in np.unique(visits).tolist():
            which = chains[site] = np.flatnonzero(visits == site).astype(np.int32)
            inbox = jax.tree.map(
                lambda leaf, which=which: np.asarray(leaf)[None if alone else which], carry.inbox
            )
            arrays = named_arrays(inbox, "inbox") | {"chains": which}
            requests[site] = self._request(label, carry, site, arrays)
            likes[site] = jax.tree.map(
                lambda leaf, which=which: jax.ShapeDtypeStruct(
                    (len(which), *leaf.shape[int(not alone) :]), leaf.dtype
                ),
                sent.outbox,
            )
        answers = self._channel.ask(
            requests,
            lambda site, answer: _read(likes[site], {}, site, answer),
            iteration=label.iteration,
        )
        order = np.argsort(np.concatenate([chains[site] for site in requests]))
        outbox = jax.tree.map(
            lambda *leaves: np.concatenate(leaves)[order],
            *(answers[site][0] for site in requests),
        )
        if note is not None:
            note(outbox, visits)
        if alone:
            outbox = jax.tree.map(lambda leaf: leaf[0], outbox)
        after, hub_info = hub.end(
            label.phase, carry._replace(node=()), outbox, self._weights, counter
        )
        labels = np.array(carry.node)
        labels[list(requests)] = np.array(label, np.int32)
        return after._replace(node=labels), {}, hub_info

    def _counted(self, label: Label, warmup: int) -> int:
        return warmup if label.stage == rng.ROUND else 0

    def _request(
        self, label: Label, carry: Carry, site: int, arrays: Mapping[str, np.ndarray]
    ) -> Envelope:
        return self._channel.request(
            STAGES[label.stage],
            site,
            label=tuple(label),
            values=self.places(carry, site),
            arrays=arrays,
        )

    def places(self, carry: Carry, site: int) -> dict[str, Any]:
        """After which message the state is that a site starts from, and the oldest to be kept."""
        reached = self._stored or self._started
        oldest = [-1, -1, -1, -1]
        if len(reached) >= (KEPT_STATES if self._stored else 2):
            oldest = reached[0][site].tolist()
        return {"before": np.asarray(carry.node)[site].tolist(), "oldest": oldest}


def _absent(sent: Sent) -> tuple[PyTree, Any]:
    """What stands for the answer of a site that does not take part."""
    outbox = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), sent.outbox)
    return outbox, {name: np.full(leaf.shape, np.nan) for name, leaf in sent.info.items()}


def _read(outbox: PyTree, info: Any, site: int, answer: Envelope) -> tuple[PyTree, Any]:
    """What a site sends in a phase, checked.

    Raises:
        EnvelopeError: it is of other shapes or types, or a number is not finite.
    """
    arrays = nonfinite.unmarked(answer.arrays)
    found = from_arrays(arrays, outbox, "outbox"), from_arrays(arrays, info, "info")
    if len(arrays) != sum(len(jax.tree.leaves(part)) for part in found):
        raise EnvelopeError("it holds arrays that nobody asked for")
    return found
