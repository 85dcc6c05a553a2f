"""The engine of one process: nodes and chains as array axes of one compiled program."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia import numbers
from consortia.base import Method, Site
from consortia.engines import drawing, slots
from consortia.engines import mailbox as mailboxes
from consortia.engines import state as states
from consortia.engines.drawing import Counter, PhaseKeys
from consortia.engines.program import Program
from consortia.engines.types import Buffers, Carry, Layout, SiteArrays, Window
from consortia.errors import InputError
from consortia.sites import Sites, in_jax_width
from consortia.target import Target
from consortia.validation import start_values

Array = jax.Array

BLOCK_BYTES = 96 * 1024
"""Random numbers drawn at once; larger blocks leave the processor's cache."""

LONGEST_BLOCK = 256
MAP_BYTES = 60_000
"""A site's gradient that reads more than this runs faster one site after the other (measured)."""

CHUNK_BYTES = 4 * 1024 * 1024
MOST_SLOTS = 8192
KEPT_PROGRAMS = 16

_programs: OrderedDict[Any, Program] = OrderedDict()


class LocalEngine:
    """Runs all sites and chains in this process, on the default device.

    Args:
        node_mode: ``"vmap"`` (all sites in one batched operation), ``"map"`` (one after the other,
            faster when a site's gradient reads more than about 10 kB) or ``"auto"``.
        block: rounds whose random numbers are drawn at once; chosen by size when None. It changes
            no random number, only rounding; it is recorded with the run.

    Raises:
        InputError: an argument is out of its range.
    """

    name = "local"

    def __init__(self, *, node_mode: str = "auto", block: int | None = None) -> None:
        if node_mode not in ("auto", "vmap", "map"):
            raise InputError(f"node_mode is {node_mode!r}: use 'auto', 'vmap' or 'map'.")
        if block is not None and block < 1:
            raise InputError(f"block is {block}: it must be at least 1.")
        self.node_mode = node_mode
        self.block = block

    def prepare(self, target: Target, sites: Sites, method: Method, chains: int) -> LocalRun:
        """Places the data and finds or makes the program; compiles nothing yet.

        ``chains`` counts all of them, those of several servers too.
        """
        sizes = np.asarray(sites.sizes, np.int64)
        arrays = _arrays(sites, method)
        layout = self._layout(target, sites, method, chains)
        shapes = jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), arrays)
        leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda node: type(node) is tuple)
        key = (target.model, _structure_key(target), method, layout, tuple(leaves), str(structure))
        program = _programs.pop(key, None)
        if program is None:
            program = Program(method.build(target), layout, partial(start_values, target))
        _programs[key] = program  # the youngest last
        while len(_programs) > KEPT_PROGRAMS:
            _programs.popitem(last=False)
        return LocalRun(program, arrays, sites.names, sizes)

    def _layout(self, target: Target, sites: Sites, method: Method, chains: int) -> Layout:
        nodes = len(sites)
        cost = method.cost(np.asarray(sites.sizes, np.int64))
        rows = cost.row_gradients / max(cost.gradients, 1)
        row_bytes = sum(leaf.nbytes / leaf.shape[0] for leaf in jax.tree.leaves(sites.shards[0]))
        mapped = self.node_mode == "map"
        if self.node_mode == "auto":
            mapped = nodes == 1 or rows * row_bytes > MAP_BYTES
        draws = method.build(target).draws
        kept = chains * target.dimension * target.dtype.itemsize
        kept *= 1 + nodes if draws.agents else 1
        places = int(np.clip(CHUNK_BYTES // kept, 1, MOST_SLOTS))
        places = max(places, draws.per_iteration)
        layout = Layout(nodes, chains, mapped, 1, places)
        if self.block is not None:
            block = self.block
        else:
            numbers_bytes = _bytes_of_numbers(method, target, layout)
            block = int(np.clip(BLOCK_BYTES // max(numbers_bytes, 1), 1, LONGEST_BLOCK))
        return Layout(nodes, chains, mapped, block, places)


class LocalRun:
    """One algorithm on one set of sites, ready to start.

    Attributes:
        program: the compiled functions, shared by equal runs.
        layout: how nodes, chains and rounds are batched.
        names: names of the sites.
        arrivals: whose message arrives when, where messages arrive one at a time.
        draws_per_iteration: draws that one iteration yields.
    """

    def __init__(
        self, program: Program, arrays: SiteArrays, names: tuple[str, ...], sizes: np.ndarray
    ) -> None:
        self.program = program
        self.layout = program.layout
        self.names = names
        self.sizes = sizes
        self._arrays = arrays
        self._keys: tuple[PhaseKeys, ...] | None = None
        self.arrivals: mailboxes.Arrivals | None = None
        self.draws_per_iteration = program.algorithm.draws.per_iteration

    def start_values(self, positions: Array) -> tuple[Array, Array, Array]:
        """Log-prior (chains,), U_c and whether its gradient is finite, both (nodes, chains).

        ``positions`` is (chains, d).
        """
        return self.program.start_values(self._arrays, positions)

    def start(self, seed: int, positions: Array, rounds: int = 1, warmup: int = 0) -> Carry:
        """The state before the first round; runs ``fit`` and ``setup``.

        Args:
            seed: seed of the run.
            positions: starting points, (chains, d).
            rounds: rounds after the warm-up that may be asked for.
            warmup: rounds before them.

        Raises:
            InputError: the events of a simulated parameter server would change the target.
        """
        base, ring = self._begin(seed, positions, rounds, warmup)
        if self.program.algorithm.fit:
            fitted = self.program.fit(self._arrays, base, positions[0])
            self._arrays = self._arrays._replace(fitted=fitted)
        return self._first(base, positions, ring, self._arrays)

    def _begin(self, seed: int, positions: Array, rounds: int, warmup: int) -> tuple[Any, int]:
        """The keys and the trace of a run: its base key, and the past replies that it keeps."""
        ring = 1
        if self.program.mailbox is not None:
            box = self.program.mailbox
            self.arrivals = mailboxes.Arrivals(box, seed, warmup + rounds, warmup, self.names)
            self._arrays = self._arrays._replace(events=self.arrivals.stretch(0)[0])
            ring = mailboxes.ring_length(
                self.arrivals.trace.largest_staleness, box.workers, positions.nbytes
            )
        base = numbers.base_key(seed)
        self._keys = self.program.keys(base)
        return base, ring

    def _first(self, base: Any, positions: Array, ring: int, arrays: SiteArrays) -> Carry:
        """The carry before the first round, with these fitted constants."""
        carry = self.program.start(positions[0] if self.layout.chains == 1 else positions, ring)
        if self.program.algorithm.setup:
            carry = self.program.setup(arrays, base, carry)
        return carry

    # --- between two rounds, see `consortia.engines.state` ---------------------------------------

    def state(self, carry: Carry) -> dict[str, np.ndarray]:
        """The carry and what ``fit`` left, as named arrays on the host."""
        return states.named(carry, "carry") | states.named(self._arrays.fitted, "fitted")

    def restore(
        self, state: Mapping[str, np.ndarray], seed: int, positions: Array, rounds: int, warmup: int
    ) -> Carry:
        """The carry of a state, in place of `start` with the same arguments; nothing is fitted.

        Raises:
            StoreError: the state is of another run.
        """
        base, ring = self._begin(seed, positions, rounds, warmup)
        arrays = self._arrays
        if self.program.algorithm.fit:
            shapes = jax.eval_shape(self.program.fit, arrays, base, positions[0])
            arrays = arrays._replace(fitted=states.from_names(state, shapes, "fitted"))
            self._arrays = arrays
        shapes = jax.eval_shape(lambda: self._first(base, positions, ring, arrays))
        return states.from_names(state, shapes, "carry")

    def block_in_progress(self, buffers: Buffers, slot: int) -> dict[str, np.ndarray]:
        """What is recorded so far of a block of thinned rounds, in this slot of the buffers."""
        return states.named(slots.infos_at(buffers, slot), "block")

    def with_block(self, buffers: Buffers, block: Mapping[str, np.ndarray]) -> Buffers:
        """Empty buffers that go on with such a block, in their first slot."""
        shapes = slots.infos_at(buffers, 0)
        return slots.with_infos(buffers, states.from_names(block, shapes, "block"))

    def buffers(self, carry: Carry) -> Buffers:
        """Empty buffers for the draws of one chunk."""
        return self.program.buffers(carry, self._arrays, self.keys)

    def emptied(self, buffers: Buffers) -> Buffers:
        """The buffers of a chunk whose draws have been taken, for the next one."""
        return slots.emptied(buffers)

    def advance(self, carry: Carry, buffers: Buffers, window: Window) -> Any:
        """Runs the rounds of a window: (carry, buffers, finite (chains,)); consumes ``buffers``."""
        first, finite = window.first, None
        while True:
            stop = min(window.stop, self._within_reach(first))
            here = window._replace(first=first, stop=stop)
            scalars = Window(*(np.int32(value) for value in here))
            carry, buffers, now = self.program.advance(
                carry, buffers, self._arrays, self.keys, scalars
            )
            finite = now if finite is None else finite & now
            if stop == window.stop:
                return carry, buffers, finite
            first = stop

    def _within_reach(self, round: int) -> int:
        """Places the events around a round; the first round beyond them."""
        if self.arrivals is None:
            return round + 2**31
        events, beyond = self.arrivals.stretch(round)
        self._arrays = self._arrays._replace(events=events)
        return beyond

    def site_not_finite(self, carry: Carry, at: int, warmup: int, chain: int) -> str | None:
        """The first site whose message of round ``at`` is not finite in this chain."""
        self._within_reach(at)
        flags = self.program.outboxes_finite(
            carry, self._arrays, self.keys, np.int32(at), np.int32(warmup)
        )
        for phase in flags:
            bad = np.flatnonzero(~np.asarray(phase)[:, chain])
            if bad.size:
                return self.names[int(bad[0])]
        return None

    def position(self, carry: Carry, chain: int) -> np.ndarray:
        """What a chain draws in this state, (d,); the last of several draws."""
        draw = np.asarray(self.program.draw(carry))
        return draw.reshape(self.layout.chains, -1, draw.shape[-1])[chain, -1]

    @property
    def fitted(self) -> Any:
        """What the ``fit`` phases left at all sites, node axis first; () without such phases."""
        return self._arrays.fitted

    def site(self, name: str) -> Site:
        """One site, as a visiting chain sees it."""
        node = self.names.index(name)
        arrays = self._arrays
        fitted = jax.tree.map(lambda leaf: leaf[node], arrays.fitted)
        size, weight, share = arrays.sizes[node], arrays.weights[node], arrays.prior_shares[node]
        return Site(arrays.data, size, weight, share, fitted, jnp.int32(node))

    def traffic(self, carry: Carry) -> tuple[int, int, int]:
        """(communication rounds, bytes up, bytes down) of one iteration of all chains."""
        return self.program.traffic(carry, self._arrays, self.keys)

    def memory(self, carry: Carry) -> dict[str, int]:
        """Bytes that the run holds on the device, by what they are for."""
        buffers = jax.eval_shape(lambda: self.program.buffers(carry, self._arrays, self.keys))
        return {
            "data": sum(leaf.nbytes for leaf in jax.tree.leaves(self._arrays)),
            "draws of a chunk": sum(
                leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(buffers)
            ),
            "state": 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(carry)),
        }

    @property
    def keys(self) -> tuple[PhaseKeys, ...]:
        """Keys of the phases of every iteration."""
        if self._keys is None:
            raise RuntimeError("the run has not been started")
        return self._keys


def _arrays(sites: Sites, method: Method) -> SiteArrays:
    sizes = np.asarray(sites.sizes, np.int64)
    dtype = jnp.result_type(float)
    return SiteArrays(
        data=jax.tree.map(lambda leaf: jnp.asarray(in_jax_width(leaf)), sites.padded()),
        sizes=jnp.asarray(sizes.astype(np.int32)),
        weights=jnp.asarray(method.weights(sizes), dtype),
        prior_shares=jnp.asarray(method.prior_shares(sizes), dtype),
        fitted=(),
    )


def _structure_key(target: Target) -> Any:
    leaves, structure = jax.tree.flatten(target.structure)
    return str(structure), tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _bytes_of_numbers(method: Method, target: Target, layout: Layout) -> int:
    """Bytes of all random numbers of one round."""
    algorithm = method.build(target)
    phases, box = algorithm.phases, mailboxes.mailbox_of(algorithm)
    events = () if box is None else mailboxes.no_events(box)

    def draw(base: Array) -> Any:
        keys = drawing.stage_keys(phases, drawing.ROUND, base, layout)
        counter = Counter(jnp.int32(0), jnp.int32(0))
        weights = jnp.ones(layout.nodes)
        return drawing.round_numbers(phases, keys, counter, layout, weights, events)

    shapes = jax.eval_shape(draw, numbers.base_key(0))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
