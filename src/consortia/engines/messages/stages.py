"""The phases of an algorithm as server and site see them: shapes, and which can be carried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from consortia.core import random
from consortia.core.contract import Algorithm, Mailbox, Method, Mix, Phase, Route
from consortia.core.queries import Conversation
from consortia.core.target import Target, any_target
from consortia.data.sites import Sites
from consortia.engines import exchanges, rng
from consortia.engines.local import LocalEngine, effort
from consortia.engines.messages.envelope import EnvelopeError
from consortia.engines.phases import Carry, Iteration, SiteArrays
from consortia.engines.rng import Counter, Layout, PhaseKeys, PhaseRandomness
from consortia.errors import InputError, wrong
from consortia.runtime.late import Array, PyTree, jax, jnp

QUERY = 3
"""Number of the stage of a conversation's queries; those of phases stand in `rng`."""

STAGES = {rng.FIT: "fit", rng.SETUP: "setup", rng.ROUND: "round", QUERY: "query"}
"""Names of the stages, which are kinds of messages too."""


class Label(NamedTuple):
    """Position of a message in a run; labels are ordered as the messages are.

    Of a query ``iteration`` is the index of the message, and ``phase`` that of its site function.
    """

    stage: int
    iteration: int
    phase: int
    repetition: int


class Sent(NamedTuple):
    """Shapes around the first half of a phase at one site, its node axis of length 1 first."""

    carry: Carry  # before it
    node: PyTree  # the site's state after it
    outbox: PyTree  # what it sends
    info: dict[str, Any]  # the infos, by name


def function_names(method: Conversation) -> list[str]:
    """Return the names of a conversation's site functions, in the order of their indices."""
    return sorted(method.functions)


def check_method(method: Method) -> None:
    """Refuse a method that cannot be carried out at seconds a message.

    Raises:
        InputError: with the reason.
    """
    if isinstance(method, Conversation):
        return
    algorithm = method.build(any_target())
    everything = (*algorithm.fit, *algorithm.setup, *algorithm.phases)
    for phase in everything:
        if isinstance(phase.exchange, Mix):
            raise InputError(
                "engine 'flower': gossip goes from site to site, thousands of times; Flower "
                "carries messages between a server and sites, seconds each. Use LocalEngine or "
                "MPIEngine, or fa_hmc."
            ).at("engine")
        if isinstance(phase.exchange, Mailbox):
            raise InputError(
                "engine 'flower': asynchronous gradients are a message each, thousands of them; "
                "Flower takes seconds for a message. Use LocalEngine or MPIEngine, or fa_hmc."
            ).at("engine")
        silent = phase in algorithm.fit  # leaves something at the sites, and receives nothing
        if phase.local is not None and phase.exchange is None and not silent:
            raise InputError(
                "engine 'flower': a phase of this algorithm ends at the sites without a message, "
                "which it cannot carry. Use LocalEngine or MPIEngine."
            ).at("engine")
    if algorithm.draws.hub is None:
        raise InputError(
            "engine 'flower': the draws of this algorithm are the sites' own states, which do not "
            "leave them. Use LocalEngine or MPIEngine."
        ).at("engine")
    routed = [phase for phase in everything if isinstance(phase.exchange, Route)]
    if routed and (len(algorithm.phases) > 1 or routed != [algorithm.phases[0]]):
        raise wrong("engine", " 'flower': a phase with a Route must be the only one of a round.")


class Stage:
    """The phases of one stage, for one site at a time: shapes of carry and arrays are of one."""

    def __init__(
        self,
        number: int,
        phases: tuple[Phase, ...],
        algorithm: Algorithm,
        whole: Layout,
        carry: Carry,
        arrays: SiteArrays,
        weights: np.ndarray,
    ) -> None:
        self.number, self.phases = number, phases
        self.chains = 1 if number == rng.FIT else whole.chains
        self.layout = replace(whole, chains=self.chains)
        self.own = Iteration(algorithm, replace(self.layout, nodes=1))
        self.source = rng.Source(self.layout, jnp.asarray(weights, jnp.result_type(float)))
        self._arrays = arrays
        self._sent: list[Sent] = []
        self._first = self._next = carry

    def before(self, index: int) -> Carry:
        """Return the carry before a phase; it and those behind it are not looked at."""
        if index == 0:
            return self._first
        self.shapes(index - 1)
        return self._next if len(self._sent) == index else self._sent[index].carry

    def shapes(self, index: int) -> Sent:
        """Return the shapes around the first half of a phase."""
        while len(self._sent) <= index:
            sent, self._next = self._step(len(self._sent), self._next)
            self._sent.append(sent)
        return self._sent[index]

    def after(self) -> Carry:
        """Return the carry when all phases have run."""
        if self.phases:
            self.shapes(len(self.phases) - 1)
        return self._next

    def drawn(self, phase: Phase, keys: PhaseKeys, counter: Array) -> PhaseRandomness:
        """Return the randomness of one repetition, of the nodes whose private keys are given.

        ``counter`` is iteration, warm-up and repetition, int32 (3,).
        """
        repetition = counter[2] if phase.repeated else None
        here = Counter(counter[0], counter[1], repetition)
        return rng.once_randomness(phase, keys, here, self.source)

    def keys(self, base: np.ndarray, only: int | None = None) -> tuple[PhaseKeys, ...]:
        """Return the keys of all phases, private ones of one node only; of a `Route` of all."""

        def chosen(phase: Phase, keys: PhaseKeys) -> PhaseKeys:
            if only is None or isinstance(phase.exchange, Route):
                return keys
            return PhaseKeys(keys.shared, keys.private[only : only + 1])

        every = rng.stage_keys(self.phases, self.number, base, self.layout)
        return tuple(map(chosen, self.phases, every))

    def _step(self, index: int, carry: Carry) -> tuple[Sent, Carry]:
        phase = self.phases[index]

        def run(carry: Carry, arrays: SiteArrays, keys: PhaseKeys) -> tuple[Any, Carry]:
            drawn = self.drawn(phase, keys, jnp.zeros(3, jnp.int32))
            if drawn.visited is not None:
                drawn = drawn._replace(visited=jnp.zeros_like(drawn.visited))  # the one site
            node, outbox, info = self.own.send(phase, drawn, carry, arrays, False)
            message = exchanges.message_of(phase.exchange, outbox, arrays.weights)
            sent = carry._replace(node=node)
            after, _ = self.own.receive(phase, drawn, sent, outbox, message)
            return (node, outbox, {} if phase.repeated else info), after

        keys = self.keys(random.base_key(0), only=0)[index]
        (node, outbox, info), after = jax.eval_shape(run, carry, self._arrays, keys)
        return Sent(carry, node, outbox, info), after


class Stages:
    """All stages of an algorithm, for one site at a time.

    Args:
        target: the posterior.
        sites: names and sizes of all sites.
        method: whose algorithm it is.
        chains: of the run.
        arrays: one site's data, or their shapes, node axis of length 1 first.

    Attributes:
        whole: the layout of all nodes.
        weights: w_c of all sites.
        averaging: those of averages over sites of which some may be absent.
        effort: of the compiler, for what site and server compute.
        own: the functions of one node.
        fit: the stage, as are ``setup`` and ``rounds``.
    """

    def __init__(
        self, target: Target, sites: Sites, method: Method, chains: int, arrays: SiteArrays
    ) -> None:
        algorithm, dimension = method.build(target), target.dimension
        whole = self.whole = LocalEngine(block=1).layout(target, sites, method, chains)
        sizes = np.asarray(sites.sizes, np.int64)
        self.weights, self.averaging = method.site_weights(sizes), method.averaging_weights(sizes)
        self.effort = effort(target, sites, method, whole)
        self.own = Iteration(algorithm, replace(whole, nodes=1))
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arrays)
        every = () if whole.chains == 1 else (whole.chains,)
        dtype = jnp.result_type(float)
        position = jax.ShapeDtypeStruct((dimension,), dtype)
        several = jax.ShapeDtypeStruct((*every, dimension), dtype)

        def stage(number: int, phases: tuple[Phase, ...], carry: Carry) -> Stage:
            return Stage(number, phases, algorithm, whole, carry, shapes, self.weights)

        self.fit = stage(rng.FIT, algorithm.fit, jax.eval_shape(self.begin_fit, position))
        if algorithm.fit:
            after = self.fit.after()
            shapes = shapes._replace(fitted=jax.eval_shape(self.fitted, after))
        begun = jax.eval_shape(self.begin, several)
        self.setup = stage(rng.SETUP, algorithm.setup, begun)
        self.rounds = stage(rng.ROUND, algorithm.phases, self.setup.after())

    def begin_fit(self, position: Array) -> Carry:
        """Return the carry before the first phase of ``fit``, from the first chain's position."""
        node, hub, inbox = self.own.algorithm.init(position)
        return Carry(self.own.everywhere(node), hub, inbox)

    def fitted(self, carry: Carry) -> PyTree:
        """Return a site's state after ``fit``, node axis first."""
        return carry.node, self.own.everywhere(carry.inbox)

    def begin(self, positions: Array) -> Carry:
        """Return the carry before ``setup``; positions (chains, d), or (d,) of one chain."""
        node, hub, inbox = self.own.over_chains(self.own.algorithm.init)(positions)
        return Carry(self.own.everywhere(node), hub, inbox)

    def of(self, number: int) -> Stage:
        """Return the stage of this number."""
        return {rng.FIT: self.fit, rng.SETUP: self.setup}.get(number, self.rounds)


def from_arrays(arrays: Any, like: PyTree, prefix: str) -> PyTree:
    """Return the pytree of these shapes from what arrived, on the host.

    Raises:
        EnvelopeError: an array is absent, too many, or of another shape or type.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    if not leaves and not any(name.startswith(prefix) for name in arrays):
        return like
    wanted = {prefix + jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    parts = {name: array for name, array in arrays.items() if name.startswith(prefix)}
    if parts.keys() != wanted.keys():
        raise EnvelopeError(f"it holds other arrays of {prefix} than this step has")
    check_shapes(parts, wanted)
    return jax.tree.unflatten(structure, [parts[name] for name in wanted])


def check_shapes(arrays: Mapping[str, np.ndarray], like: Mapping[str, Any]) -> None:
    """Refuse arrays that are of other shapes or types than these.

    Raises:
        EnvelopeError: it names the first.
    """
    for name, leaf in like.items():
        array = arrays[name]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise EnvelopeError(
                f"array {name!r} is {array.dtype} {array.shape}, not {leaf.dtype} {leaf.shape}"
            )
