"""The phases of an algorithm as server and site see them: shapes, and which can be carried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from consortia.core import random
from consortia.core.contract import Mailbox, Method, Mix, Phase, Route
from consortia.core.queries import Conversation
from consortia.core.target import Target, any_target
from consortia.data.sites import Sites
from consortia.engines import exchanges, rng
from consortia.engines.local import LocalEngine, effort
from consortia.engines.messages.envelope import EnvelopeError
from consortia.engines.phases import Carry, Iteration, SiteArrays
from consortia.engines.rng import Counter, PhaseKeys, PhaseRandomness
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
    outbox: PyTree  # what it sends
    info: dict[str, Any]  # its infos, by name
    hub_info: dict[str, Any]  # those of the hub


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
    """The phases of one stage, for one site at a time: shapes of carry and arrays are of one.

    Attributes:
        sent: shapes around each phase.
        after: those of the carry when all phases have run.
    """

    def __init__(
        self, number: int, phases: tuple[Phase, ...], of: Stages, carry: Carry, arrays: SiteArrays
    ) -> None:
        self.number, self.phases = number, phases
        self.chains = 1 if number == rng.FIT else of.whole.chains
        self.layout = replace(of.whole, chains=self.chains)
        self.own = Iteration(of.own.algorithm, replace(self.layout, nodes=1))
        self.source = rng.Source(self.layout, jnp.asarray(of.weights, jnp.result_type(float)))
        self._visited = jax.jit(lambda *at: self.drawn(phases[0], *at).visited)
        self.sent: list[Sent] = []
        self.after = carry
        for phase, keys in zip(phases, self.keys(random.base_key(0), only=0), strict=True):
            before, run = self.after, partial(self._run, phase)
            self.after, *sent = jax.eval_shape(run, before, arrays, keys)
            self.sent.append(Sent(before, *sent))

    def drawn(self, phase: Phase, keys: PhaseKeys, counter: Array) -> PhaseRandomness:
        """Return the randomness of one repetition, of the nodes whose private keys are given.

        ``counter`` is iteration, warm-up and repetition, int32 (3,).
        """
        repetition = counter[2] if phase.repeated else None
        here = Counter(counter[0], counter[1], repetition)
        return rng.once_randomness(phase, keys, here, self.source)

    def visits(self, keys: PhaseKeys, counter: np.ndarray) -> np.ndarray:
        """Return the site that each chain visits, (chains,), where the first phase is a `Route`."""
        return np.atleast_1d(np.asarray(self._visited(keys, counter)))

    def of_chains(self, count: int, like: PyTree) -> PyTree:
        """Return shapes of so many chains, chain axis first, from those of all."""
        first = int(self.chains > 1)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[first:]), leaf.dtype), like
        )

    def keys(self, base: np.ndarray, only: int) -> tuple[PhaseKeys, ...]:
        """Return the keys of all phases, private ones of one node only; of a `Route` of all."""
        every = rng.stage_keys(self.phases, self.number, base, self.layout)
        return tuple(
            keys
            if isinstance(phase.exchange, Route)
            else PhaseKeys(keys.shared, keys.private[only : only + 1])
            for phase, keys in zip(self.phases, every, strict=True)
        )

    def _run(self, phase: Phase, carry: Carry, arrays: SiteArrays, keys: PhaseKeys) -> Any:
        """Return the carry after a phase at one site, its outbox, and infos of site and hub."""
        drawn = self.drawn(phase, keys, jnp.zeros(3, jnp.int32))
        if drawn.visited is not None:
            drawn = drawn._replace(visited=jnp.zeros_like(drawn.visited))  # the one site
        node, outbox, info = self.own.send(phase, drawn, carry, arrays, False)
        message = exchanges.message_of(phase.exchange, outbox, arrays.weights)
        sent = carry._replace(node=node)
        after, hub_info = self.own.receive(phase, drawn, sent, outbox, message)
        infos = ({}, {}) if phase.repeated else (info, hub_info)
        return after, outbox, *infos


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
        every: these three by their numbers.
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
        begun = jax.eval_shape(self.begin_fit, position)
        self.fit = Stage(rng.FIT, algorithm.fit, self, begun, shapes)
        if algorithm.fit:
            shapes = shapes._replace(fitted=jax.eval_shape(self.fitted, self.fit.after))
        begun = jax.eval_shape(self.begin, several)
        self.setup = Stage(rng.SETUP, algorithm.setup, self, begun, shapes)
        self.rounds = Stage(rng.ROUND, algorithm.phases, self, self.setup.after, shapes)
        self.every = {rng.FIT: self.fit, rng.SETUP: self.setup, rng.ROUND: self.rounds}

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
