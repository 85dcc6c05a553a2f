"""A run whose sites answer messages: the server's side, which holds no row and no site's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core import random
from consortia.core.prior import prior_scale
from consortia.core.summed import unsummed
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.engines import exchanges, rng
from consortia.engines.buffers import Buffers, Window, empty_buffers, held_bytes
from consortia.engines.contract import Begin, Run, from_names, named
from consortia.engines.messages import fixed_point, nonfinite
from consortia.engines.messages.agreement import begun, values_of
from consortia.engines.messages.asking import RequestChannel
from consortia.engines.messages.plausible import Judge
from consortia.engines.messages.reporting import NO_SUMS, SUMS, Remote, facts_of
from consortia.engines.messages.rounds import NO_SITES, Rounds
from consortia.engines.messages.site import FITTED
from consortia.engines.messages.stages import Stages, from_arrays
from consortia.engines.phases import Carry, Program
from consortia.errors import SiteMissingError, StoreError
from consortia.runtime.late import Array, PyTree, jax, jnp

RUN, AWAY, ANSWERED = "flower run", "flower away", "flower answered"
"""Names in a checkpoint: identity of the run, who did not take part in which round, and digests of
the last answers."""

UNNAMED = "(unknown: secure sums identify no site)"
"""Stand-in for the name of a site whose numbers are not finite."""


class MessageRun(Remote, Run):
    """One algorithm on sites that answer messages, as the server sees it.

    ``carry.node`` is not the states of the sites, which stay there: it says after which message
    each site's state is, int32 (sites, 4).
    """

    rounds: Rounds  # the exchanges, once the run is started

    def __init__(
        self,
        program: Program,
        stages: Stages,
        sites: Sites,
        target: Target,
        channel: RequestChannel,
        begin: Mapping[str, Any],
        enough: int | None,
        bounds: tuple[float, float],
    ) -> None:
        super().__init__(program, sites, NO_SITES)
        self._stages, self._target, self._channel = stages, target, channel
        weights = stages.weights if enough is None else stages.averaging
        self._weights = np.asarray(weights, jnp.result_type(float))
        self._begin, self._enough, self._bounds = begin, enough, bounds
        self._fitted: PyTree = ()
        self._record = jax.jit(self._recorded, donate_argnums=0)
        self._finite = jax.jit(program.draws_finite)
        self._all = tuple(range(len(sites)))

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Effects of secure sums, or why there are none."""
        channel = self._channel
        if channel.masking:
            return (SUMS.format(sites=len(self.names)),)
        why = unsummed(self.program.algorithm)
        return (NO_SUMS.format(why=why),) if channel.private and why is not None else ()

    # --- before the first round -------------------------------------------------------------------

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, both (nodes, chains).

        Of U_c the sites tell no more than whether it is finite; it is 0 here where it is.
        """
        begin = begun(self._channel, self._begin, positions)
        return values_of(self._target, positions, begin)

    def _started(self, begin: Begin) -> Carry:
        base = random.base_key(begin.seed)
        scale = prior_scale(self._target, np.asarray(begin.positions)[0])
        judge = Judge(scale, self._weights, *self._bounds)
        self.rounds = Rounds(self._stages, self._weights, self._channel, self._enough, base, judge)
        if begin.state is not None:
            return self._taken_up(begin.state, begin.positions)
        positions = begin.positions
        algorithm = self.program.algorithm
        before = np.full((len(self.names), 4), -1, np.int32)
        if algorithm.fit:
            begun = self._stages.begin_fit(positions[0])
            carry = self.rounds.loops[rng.FIT].run(begun._replace(node=before), 0, 0)[0]
            self._fitted = self._fitted_at_sites(carry)
        begun = self._stages.begin(positions[0] if self.layout.chains == 1 else positions)
        return self.rounds.loops[rng.SETUP].run(begun._replace(node=before), 0, 0)[0]

    def _fitted_at_sites(self, carry: Carry) -> PyTree:
        """Let the sites keep what was fitted; return what they have, node axis first."""
        like = self._stages.fit.after.node
        inbox = named(carry.inbox, "inbox")
        requests = {}
        for site in self._all:
            values = self.rounds.places(carry, site)
            requests[site] = self._channel.request(FITTED, site, values=values, arrays=inbox)
        answers = self._channel.ask(
            requests,
            lambda site, answer: from_arrays(nonfinite.unmarked(answer.arrays), like, "node"),
        )
        nodes = (answers[site] for site in self._all)
        node = jax.tree.map(lambda *leaves: np.concatenate(leaves), *nodes)
        everywhere = jax.tree.map(
            lambda leaf: np.broadcast_to(leaf, (len(self.names), *leaf.shape)), carry.inbox
        )
        return node, everywhere

    # --- between two rounds, see `contract.named` ------------------------------------------------

    def state(self, carry: Carry) -> dict[str, np.ndarray]:
        """Return the hub's part of the carry, and after which message each site's state is."""
        self.rounds.stored(carry)
        away = [[iteration, *absent] for iteration, absent in sorted(self.rounds.away.items())]
        return named(carry, "carry") | {
            RUN: np.frombuffer(self._channel.run.encode(), np.uint8),
            ANSWERED: self._answered(),
            AWAY: np.array(away, np.int32).reshape(-1, 1 + len(self.names)),
        }

    def _answered(self) -> np.ndarray:
        """Return the SHA-256 of the last answer of each site, uint8 (sites, 32)."""
        digests = (self._channel.answered.get(site, "00" * 32) for site in self._all)
        return np.array([list(bytes.fromhex(digest)) for digest in digests], np.uint8)

    def _taken_up(
        self, state: Mapping[str, np.ndarray], positions: Float[Array, "chains d"]
    ) -> Carry:
        """Return the carry of a state; the sites have theirs."""
        if RUN not in state:
            raise StoreError(
                "the checkpoint was not made over Flower: it alone holds the states of the sites. "
                "Continue with the engine that made it."
            )
        self._channel.run = state[RUN].tobytes().decode("ascii")
        if ANSWERED in state:  # not in checkpoints of older versions
            digests = enumerate(state[ANSWERED])
            self._channel.answered = {n: sha.tobytes().hex() for n, sha in digests if sha.any()}
        begun(self._channel, self._begin, positions)
        self.rounds.away = {int(row[0]): row[1:].astype(bool) for row in state[AWAY]}
        after = self._stages.setup.after
        labels = jax.ShapeDtypeStruct((len(self.names), 4), np.int32)
        carry = from_names(state, after._replace(node=labels), "carry")
        return carry._replace(node=np.asarray(carry.node))

    # --- rounds -----------------------------------------------------------------------------------

    def advance(self, carry: Carry, buffers: Buffers, window: Window) -> Any:
        """Run the rounds of a window: (carry, buffers, finite (chains,)); consume ``buffers``.

        Raises:
            SiteMissingError: a site that must answer did not, or refused.
        """
        warmup, loop = int(window.warmup), self.rounds.loops[rng.ROUND]
        self.rounds.started(carry)
        for iteration in range(int(window.first), int(window.stop)):
            try:
                after, *infos = loop.run(carry, iteration, warmup)
            except SiteMissingError as error:
                error.round, error.reached = iteration, (carry, buffers)
                raise
            at = np.array([iteration - warmup, window.origin, window.thin], np.int32)
            carry = after
            buffers = self._record(buffers, carry._replace(node=()), *infos, at)
        return carry, buffers, np.asarray(self._finite(carry._replace(node=())))

    def _recorded(
        self, buffers: Buffers, carry: Carry, node_info: Any, hub_info: Any, at: Array
    ) -> Buffers:
        made = self.program.made(carry, node_info, hub_info)
        return self.program.record(buffers, made, at[0], Window(0, 0, at[1], at[2], 0))

    def site_not_finite(self, carry: Carry, at: int, warmup: int, chain: int) -> str | None:
        """Return the first site whose message of round ``at`` is not finite in this chain."""
        if self._channel.masking:
            return UNNAMED
        loop = self.rounds.loops[rng.ROUND]
        loop.run(carry, at, warmup)
        of_chain = () if self.layout.chains == 1 else (chain,)
        for outbox, visits in loop.outboxes:
            for site in self._all if visits is None else [int(visits[chain])]:
                index = of_chain if visits is not None else (site, *of_chain)
                if not all(np.isfinite(leaf[index]).all() for leaf in jax.tree.leaves(outbox)):
                    return self.names[site]
        return None

    # --- what the caller sees ---------------------------------------------------------------------

    def outcome(self, done: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return who took part in which round, and the replies that were not used."""
        away = {i: absent for i, absent in self.rounds.away.items() if i < done}
        facts = facts_of(self._channel)
        if not away:
            return facts, {}
        import xarray  # half a second that a site need not spend

        present = np.ones((done, len(self.names)), bool)
        for iteration, absent in away.items():
            present[iteration] = ~absent
        least = int(present.sum(axis=1).min())
        facts["participation"] = (
            f"at least {least} of {len(self.names)} sites a round, all in {done - len(away)} of "
            f"{done} rounds: draws are of another density than with all; see the group "
            "participation"
        )
        facts["absent"] = float(1 - present.mean())
        names = np.array(self.names, dtype=object)  # Zarr has no stable form of fixed-length text
        taking_part = xarray.Dataset({"present": (("round", "site"), present)}, {"site": names})
        return facts, {"participation": taking_part}

    def buffers(self, carry: Carry) -> Buffers:
        """Return empty buffers for the draws of one chunk."""
        stage = self._stages.rounds
        of_hub = {name: leaf for sent in stage.sent for name, leaf in sent.hub_info.items()}
        of_sites = {
            name: jax.ShapeDtypeStruct((len(self.names), *leaf.shape[1:]), leaf.dtype)
            for sent in stage.sent
            for name, leaf in sent.info.items()
        }
        made = jax.eval_shape(self.program.made, stage.after, of_sites, of_hub)
        return empty_buffers(made, self.program.layout, self.draws_per_iteration)

    @property
    def fitted(self) -> Any:
        """Results of the ``fit`` phases at all sites, node axis first; () without such phases."""
        return self._fitted

    def traffic(self, carry: Carry) -> list[tuple[int, int, int]]:
        """Return (communication rounds, bytes up, bytes down) of each phase of an iteration."""
        stage = self._stages.rounds
        carries = [*(sent.carry for sent in stage.sent[1:]), stage.after]
        messages = [(s.outbox, c.inbox) for s, c in zip(stage.sent, carries, strict=True)]
        phases = exchanges.traffic(stage.phases, messages, 1, len(self.names))
        if not self._channel.masking:
            return phases
        wider = fixed_point.BYTES // self._weights.dtype.itemsize
        return [(rounds, wider * up, down) for rounds, up, down in phases]

    def memory(self, carry: Carry) -> dict[str, int]:
        """Return bytes that the server holds, by what they are for."""
        buffers = jax.eval_shape(lambda: self.buffers(carry))
        held = held_bytes((), buffers, carry, copies=2)
        return {name: size for name, size in held.items() if name != "data"}
