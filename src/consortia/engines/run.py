"""A run of `consortia.LocalEngine`: an algorithm on a set of sites, started and advanced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core import random
from consortia.core.contract import Site
from consortia.core.model import Model
from consortia.core.target import Target
from consortia.engines import mailbox as mailboxes
from consortia.engines import rng
from consortia.engines.buffers import Buffers, Window
from consortia.engines.contract import Begin, Run, from_names, named
from consortia.engines.phases import Carry, Program, SiteArrays
from consortia.engines.rng import PhaseKeys
from consortia.errors import InputError
from consortia.runtime import compiler
from consortia.runtime.late import Array, PyTree, jax, jnp


class LocalRun(Run):
    """One algorithm on one set of sites, in this process."""

    program: Program
    keys: tuple[PhaseKeys, ...]  # of the phases of every iteration, once the run is started
    averaging: np.ndarray  # the sites' weights in averages over those that take part

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Array, Array, Array]:
        """Return log-prior (chains,), U_c and if its gradient is finite, both (nodes, chains)."""
        return self.program.start_values(self._arrays, positions)

    def _started(self, begin: Begin) -> Carry:
        base, ring = self._begin(begin)
        program, positions, state = self.program, begin.positions, begin.state
        if program.algorithm.fit:
            given = self._arrays, program.keys(rng.FIT, base), positions[0]
            if state is None:
                fitted = program.fit(*given)
            else:
                fitted = self._fitted_of(state, program.fit.eval_shape(*given))
            self._arrays = self._arrays._replace(fitted=fitted)
        # A single chain has no chain axis.
        first = positions[0] if self.layout.chains == 1 else positions
        begun = first, ring, self._arrays, program.keys(rng.SETUP, base)
        if state is None:
            return program.begin(*begun)
        return self._carry_of(state, program.begin.eval_shape(*begun))

    def _fitted_of(self, state: Mapping[str, np.ndarray], shapes: PyTree) -> PyTree:
        """Read the results of ``fit`` from a state, of the shapes of this process."""
        return from_names(state, shapes, "fitted")

    def _carry_of(self, state: Mapping[str, np.ndarray], shapes: Carry) -> Carry:
        """Return the carry, of the shapes of this process, from a state."""
        return from_names(state, shapes, "carry")

    def _begin(self, begin: Begin) -> tuple[Any, int]:
        """Make the keys and the trace; return the base key, and how many past replies are kept."""
        ring, rounds = 1, begin.warmup + begin.rounds
        if self.participation is not None and len(self.participation) < rounds:
            raise InputError(
                f"participation has {len(self.participation)} rows: give one for each of the "
                f"{rounds} rounds, warm-up included."
            ).at("participation")
        if self.program.mailbox is not None:
            box = self.program.mailbox
            self.arrivals = mailboxes.Arrivals(box, begin.seed, rounds, begin.warmup, self.names)
            self._arrays = self._arrays._replace(events=self.arrivals.stretch(0)[0])
            ring = mailboxes.ring_length(
                self.arrivals.trace.largest_staleness, box.workers, begin.positions.nbytes
            )
        base = random.base_key(begin.seed)
        self.keys = self.program.keys(rng.ROUND, base)
        return base, ring

    # --- between two rounds, see `contract.named` ------------------------------------------------

    def state(self, carry: Carry) -> dict[str, np.ndarray]:
        """Return the carry and what ``fit`` left, as named arrays on the host."""
        return named(self._here(carry), "carry") | named(self.fitted, "fitted")

    def buffers(self, carry: Carry) -> Buffers:
        """Return empty buffers for the draws of one chunk."""
        return self.program.buffers(carry, self._arrays, self.keys)

    def outcome(self, done: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return attributes and groups of the result that only the run itself can tell."""
        if self.participation is None or self.participation[:done].all():
            return {}, {}
        present = self.participation[:done]
        least = int(present.sum(axis=1).min())
        text = f"as given: at least {least} of {len(self.names)} sites"
        return {"participation": text, "absent": float(1 - present.mean())}, {}

    def advance(self, carry: Carry, buffers: Buffers, window: Window) -> Any:
        """Run the rounds of a window: (carry, buffers, finite (chains,)); consume ``buffers``."""
        first, finite = window.first, None
        while True:
            stop = min(window.stop, self._within_reach(first))
            here = window._replace(first=first, stop=stop)
            scalars = Window(*(np.int32(value) for value in here))
            parts = carry, buffers, self._arrays, self.keys, scalars
            carry, buffers, now = self.program.advance(*parts)
            finite = now if finite is None else finite & now
            if stop == window.stop:
                return carry, buffers, finite
            first = stop

    def _within_reach(self, round: int) -> int:
        """Place the events around a round, or who takes part; return the first round beyond."""
        if self.participation is not None:
            taking_part = jnp.asarray(self.participation[round] * self.averaging, float)
            self._arrays = self._arrays._replace(present=taking_part)
            return round + 1
        if self.arrivals is None:
            return round + 2**31
        events, beyond = self.arrivals.stretch(round)
        self._arrays = self._arrays._replace(events=events)
        return beyond

    def site_not_finite(self, carry: Carry, at: int, warmup: int, chain: int) -> str | None:
        """Return the first site whose message of round ``at`` is not finite in this chain."""
        for phase in self._outboxes_finite(carry, at, warmup):
            bad = np.flatnonzero(~np.asarray(phase)[:, chain])
            if bad.size:
                return self.names[int(bad[0])]
        return None

    def _outboxes_finite(self, carry: Carry, at: int, warmup: int) -> list[Any]:
        """Return of each phase that runs once, (nodes, chains), whether its outbox is finite."""
        self._within_reach(at)
        flags = self.program.outboxes_finite(
            carry, self._arrays, self.keys, np.int32(at), np.int32(warmup)
        )
        return self._here(flags)

    def site(self, name: str) -> Site | None:
        """Return one site, as a visiting chain sees it."""
        return self._arrays.site(self.names.index(name))

    def gradients(
        self,
        target: Target,
    ) -> Callable[[Float[Array, " d"]], Float[Array, "nodes d"]] | None:
        """Return position (d,) ↦ ∇U_c of all rows of each site, (nodes, d)."""
        arrays = self._arrays._replace(events=())
        example = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), target.structure)
        return lambda position: gradients(target.model, example, arrays, position)

    def traffic(self, carry: Carry) -> list[tuple[int, int, int]]:
        """Return (communication rounds, bytes up, bytes down) of each phase of an iteration."""
        return self.program.traffic(carry, self._arrays, self.keys)


@partial(compiler.jit, options=compiler.lightly, static_argnums=0)
def gradients(
    model: Model, parameters: Any, arrays: SiteArrays, position: Float[Array, " d"]
) -> Float[Array, "nodes d"]:
    """Return ∇U_c of all rows of each site; compiled once for a model and shapes."""
    target = Target(model, parameters)

    def at_node(node: Array) -> Array:
        site = arrays.site(node)
        rows, mask = site.all()
        return jax.grad(target.potential)(position, rows, mask, site)

    return jax.lax.map(at_node, jnp.arange(arrays.sizes.shape[0], dtype=jnp.int32))
