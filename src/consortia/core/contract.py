"""The contract between algorithms and engines.

An algorithm is a tuple of phases of pure functions, cut exactly where data must cross the network.
An engine moves the data and knows no algorithm. Both meet here and import nothing of each other.

One iteration runs the phases in order. In a phase

1. every node maps ``(noise, shared, state, inbox, site)`` to ``(state, outbox, info)``;
2. the exchange turns the outboxes of all nodes into a message;
3. the hub, a pure function that every participant could run, maps ``(shared, hub_state, message)``
   to ``(hub_state, reply, info)``;
4. the reply is the inbox of the next phase, and the last phase's reply that of the next iteration.

Positions are flat vectors ``(d,)``. No function sees a chain or node axis: engines batch.
Random numbers are declared by ``noise`` and ``shared`` and arrive as arguments.

Values that differ from site to site (data, sizes, weights, mixing matrices) reach the functions
through `Site` and the exchanges only, never by closure: a compiled program then serves every run
with equal shapes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, cast

import numpy as np

from consortia.core import arguments, random
from consortia.errors import wrong
from consortia.runtime import late
from consortia.runtime.late import Array as Array
from consortia.runtime.late import jax, jnp

PyTree = Any
Info = Mapping[str, Array]


# --- exchanges: values without behaviour -------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """The average over all nodes with the sites' weights, Σ_c w_c outbox_c; one star round."""


@dataclass(frozen=True)
class Sum:
    """The plain sum over all nodes, Σ_c outbox_c; one star round.

    Every node must answer: a sum without one belongs to another target. An engine that waits waits
    until its deadline, and then raises `consortia.errors.SiteMissingError` with the sites' names.
    """


@dataclass(frozen=True)
class Mix:
    """Gossip: node i receives Σ_j W_ij outbox_j, ``times`` times over; there is no hub.

    Attributes:
        matrix: W, doubly stochastic: a `consortia.graphs.MixingMatrix`, a tuple of rows, or the
            name of a network that the number of nodes determines (`consortia.graphs.NETWORKS`).
            It compares and hashes by value. With a `consortia.graphs.MixingSchedule` the outbox is
            `InTurn`.
        times: number of multiplications by W, one communication round each.
        change: node i receives what mixing changes, Σ_j W_ij (outbox_j − outbox_i), with the
            precision of the differences: exactly 0 where all agree. A method that sums it up needs
            it, since the rounding of positions in single precision would pile up; ``times`` is 1.
    """

    matrix: Hashable
    times: int = 1
    change: bool = False


class InTurn(NamedTuple):
    """An outbox, and a message, of `Mix` with a schedule of matrices.

    Attributes:
        value: pytree that is mixed.
        turn: index of the matrix, int32, equal at all nodes.
    """

    value: PyTree
    turn: Array


@dataclass(frozen=True)
class Route:
    """A chain travels: in each iteration it visits one node, and its outbox is its next inbox.

    ``local`` then runs at the visited node only, one node for each chain, and of that site's data
    only the rows that it asks for are read. Several chains may be at one node.

    Attributes:
        probabilities: f_s of a visit, one for each node; the sites' weights w_c when None.
    """

    probabilities: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Mailbox:
    """One message at a time: a worker's outbox reaches its server, which answers that worker only.

    ``local`` runs at one worker, on an inbox that may be older than the server's state; ``hub``
    makes one step of the server, and its reply is what the worker works on next.

    Attributes:
        workers: workers of each server.
        servers: servers, each an independent chain.
        max_staleness: a gradient older than this many updates is dropped; None keeps all.
        latency: how long a task takes, a value of `consortia.latency`.
        shares: the workers' weights as they see them in `Site`, when each holds a site of its own;
            their shares of the accepted updates when None.
        by_share: ``local`` divides by these weights. False where they do not matter, so that they
            need not be known beforehand and may change.
    """

    workers: int
    servers: int = 1
    max_staleness: int | None = None
    latency: Any = None
    shares: tuple[float, ...] | None = None
    by_share: bool = True


Exchange = Mean | Sum | Mix | Route | Mailbox


# --- what a node function sees of its data -----------------------------------------------------


@dataclass(frozen=True)
class Site:
    """The data of one site, as a node function sees it.

    Whether ``data`` is this site's own slice or the arrays of all sites with a row index in front
    is hidden behind `rows` and `all`.

    Attributes:
        data: pytree of arrays (rows, ...), or (sites, rows, ...) when ``node`` is not None.
            Unequal sites are padded by repeating a row.
        size: number of true rows n_c, int32 scalar.
        weight: w_c, positive, Σ_c w_c = 1.
        prior_share: λ_c, the share of the log-prior that this site carries, Σ_c λ_c = 1.
        fitted: what the algorithm's ``fit`` phases left here; read-only.
        node: index of this site in ``data``, int32 scalar, or None when that is already its slice.
        number: index of this site among all sites, int32 scalar.
    """

    data: PyTree
    size: Array
    weight: Array
    prior_share: Array
    fitted: PyTree = ()
    node: Array | None = None
    number: Array | None = None

    def rows(self, index: Array) -> PyTree:
        """Return the rows with these indices; ``index`` int32 (batch,)."""
        if self.node is None:
            return jax.tree.map(lambda leaf: leaf[index], self.data)
        return jax.tree.map(lambda leaf: leaf[self.node, index], self.data)

    def all(self) -> tuple[PyTree, Array]:
        """Return all rows, padding included, and the mask (rows,) of the true ones."""
        data = self.data
        if self.node is not None:
            data = jax.tree.map(lambda leaf: leaf[self.node], data)
        length = jax.tree.leaves(data)[0].shape[0]
        return data, jnp.arange(length, dtype=self.size.dtype) < self.size

    def index(self, bits: Array, *, replace: bool = True) -> Array:
        """Return uniform row indices from words (..., batch), with or without replacement."""
        if replace:
            return random.below(bits, self.size)
        return random.distinct_below(bits, self.size)


late.when_loaded(lambda: jax.tree_util.register_dataclass(Site))


# --- phases and algorithms ---------------------------------------------------------------------


def no_numbers(rng: random.RandomStreams) -> tuple[()]:
    """Return (): the phase needs no random numbers of this kind."""
    return ()


class Evaluation(NamedTuple):
    """The positions at which an inbox makes a site evaluate its rows, and which the site bounds.

    Attributes:
        positions: (..., d), with whatever axes the inbox has in front.
    """

    positions: Array | np.ndarray


class Fault(NamedTuple):
    """A problem that a method's diagnostics found in its draws.

    Attributes:
        text: what was seen, and what to do.
        wrong: True where the draws are not those of the posterior, False where that is in doubt.
        unseen: True where a part of the posterior was not looked at.
    """

    text: str
    wrong: bool = False
    unseen: bool = False


class Disclosure(NamedTuple):
    """The part of an outbox from which a server judges whether it is plausible.

    Attributes:
        positions: (..., d), to which the site has moved from those of the inbox; () if none.
        gradients: (..., d), of U_c / w_c where they are averaged, of U_c where they are summed; ()
            if none.
    """

    positions: PyTree = ()
    gradients: PyTree = ()


class Phase(NamedTuple):
    """One step of an iteration, which ends exactly where something must be exchanged.

    Attributes:
        local: ``(noise, shared, state, inbox, site) -> (state, outbox, info)`` at one node of one
            chain, or None when only the hub acts.
        exchange: how the outboxes become the message; None when nothing crosses the network.
        hub: ``(shared, hub_state, message) -> (hub_state, reply, info)``, or None: the reply is
            the message.
        noise: ``RandomStreams -> pytree`` private to a (chain, node). Between institutions it comes
            from a secret of the site, and nobody else can compute it; engines that promise the
            draws of one process compute it from the seed, so that nothing is private there.
        shared: ``RandomStreams -> pytree`` common to all nodes and the hub of a chain.
        repeat: how often the phase runs in a row: the number itself, or its upper bound when
            ``repeats`` is given.
        repeats: ``hub_state -> int32``, how often this chain repeats the phase in this iteration
            (a jittered trajectory); at most ``repeat``. Asked before each time, so that the hub may
            end it early.
        evaluation: ``inbox -> Evaluation``, on the host: where ``local`` evaluates at rows; None
            where the inbox decides that nowhere.
        disclosure: ``outbox -> Disclosure``, on the host: what of an outbox can be compared with
            those of other sites; None where nothing can.
    """

    local: Callable[..., tuple[PyTree, PyTree, Info]] | None
    exchange: Exchange | None = None
    hub: Callable[..., tuple[PyTree, PyTree, Info]] | None = None
    noise: Callable[[random.RandomStreams], PyTree] = no_numbers
    shared: Callable[[random.RandomStreams], PyTree] = no_numbers
    repeat: int = 1
    repeats: Callable[[PyTree], Array] | None = None
    evaluation: Callable[[PyTree], Evaluation] | None = Evaluation  # the inbox itself
    disclosure: Callable[[PyTree], Disclosure] | None = None

    @property
    def repeated(self) -> bool:
        """True if it may run more or fewer times than once; it has no infos then."""
        return self.repeat > 1 or self.repeats is not None


class Draws(NamedTuple):
    """The recorded draws of an iteration; exactly one of ``hub`` and ``node`` is given.

    Attributes:
        hub: ``(hub_state, inbox) -> (d,)``, or (per_iteration, d).
        node: ``(state, inbox) -> (d,)`` at every node; the posterior draw is their plain average.
        agents: also keep every node's own value, in the group ``agents``.
        per_iteration: draws that one iteration yields, in order; more than one from the hub only.
    """

    hub: Callable[[PyTree, PyTree], Array] | None = None
    node: Callable[[PyTree, PyTree], Array] | None = None
    agents: bool = False
    per_iteration: int = 1


class Algorithm(NamedTuple):
    """A distributed sampler, ready for an engine.

    Attributes:
        init: ``position -> (node_state, hub_state, inbox)`` of one node and one chain.
        phases: one iteration.
        draws: what an iteration yields.
        fit: run once, without chains, before anything else; what the last phase leaves as
            ``(state, inbox)`` at a node becomes that site's ``fitted``.
        setup: run once per chain, before the first iteration.
    """

    init: Callable[[Array], tuple[PyTree, PyTree, PyTree]]
    phases: tuple[Phase, ...]
    draws: Draws
    fit: tuple[Phase, ...] = ()
    setup: tuple[Phase, ...] = ()


@dataclass(frozen=True)
class Cost:
    """The work of all sites together in one iteration of one chain.

    Attributes:
        gradients: evaluations of a site's gradient (exact or minibatch), summed over the sites.
        row_gradients: rows that they read, summed over the sites.
        messages: communication rounds, that is messages each way.
        vectors: vectors of the dimension of the parameters that they hold together, each way.
        in_turn: the sites compute one after the other, and not at the same time.
    """

    gradients: int
    row_gradients: int
    messages: int = 1
    vectors: int = 1
    in_turn: bool = False


@dataclass(frozen=True)
class Claims:
    """Facts that a user should know of a method before using it, in words.

    Attributes:
        samples: the density of its draws.
        bias: order of the stationary bias, and where it comes from.
        draw: what one draw is.
        step_size: drift, noise variance, and the step h' of the equal SGLD update.
        source: paper and algorithm number.
    """

    samples: str
    bias: str
    draw: str
    step_size: str
    source: str


class Named(arguments.Hinted):
    """Classes with a name of their own in messages."""

    name: str

    @property
    def called(self) -> str:
        """The name in messages."""
        return self.name


CURVATURE = "curvature"
"""A mass matrix to choose: the posterior's second derivatives at its mode."""


@dataclass(frozen=True)
class Frequency:
    """A friction to choose: so many times the slowest frequency of the dynamics at the mode."""

    times: float


FRICTIONS = tuple(Frequency(times) for times in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0))
"""Frictions that are tried where one is left open; 2 damps the slowest direction critically."""


class Method(metaclass=Named):
    """A sampler's parameters: a frozen dataclass, which compares and hashes by value.

    A method states its `name` and its `claims`, and `build` turns its parameters into phases for
    one model; everything that depends on the sites arrives later, through `Site`. All other members
    have a default that suits a method without needs of its own. A member that few methods need
    belongs to a capability, a class beside this one that they inherit from too.

    Attributes:
        name: the name in plans, records and study files.
        step_size: a schedule, or a tuple with one for each server; None when it is learned.
    """

    name: str
    step_size: Any

    def __dir__(self) -> list[str]:
        """Return the settings, and what a user may ask of a method; the rest serves engines."""
        settings = [setting.name for setting in fields(cast(Any, self)) if setting.init]
        return [*settings, "claims", "name", "parameters", "title"]

    @property
    @abstractmethod
    def claims(self) -> Claims:
        """The sampled law and its bias; a class attribute where no parameter matters."""

    @abstractmethod
    def build(self, target: Any) -> Algorithm:
        """Return the phases, for a `consortia.core.target.Target`."""

    # --- weights and cost ------------------------------------------------------------------------

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """Return w_c, (sites,), positive, summing to one: n_c/n."""
        return sizes / sizes.sum()

    def averaging_weights(self, sizes: np.ndarray) -> np.ndarray:
        """Return the sites' weights in an average over those present, to be scaled: w_c."""
        return self.site_weights(sizes)

    def prior_shares(self, sizes: np.ndarray) -> np.ndarray:
        """Return λ_c, (sites,), summing to one: w_c."""
        return self.site_weights(sizes)

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """Return the gradients of one iteration of one chain: an exact one a site.

        Args:
            sizes: numbers of rows, (sites,).
            dimension: d.
        """
        return Cost(gradients=len(sizes), row_gradients=int(sizes.sum()))

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """Return h' of these iterations, by which estimates are weighted; None when all are equal.

        (iterations,), or (servers, iterations) where servers have step sizes of their own.
        """
        return None

    # --- facts of its parameters -----------------------------------------------------------------

    def parameters(self) -> dict[str, Any]:
        """Return the parameters as plain values, for the record of a run."""
        return arguments.plain_parameters(self)

    @property
    def step_schedules(self) -> tuple[Callable[[Any], Array], ...]:
        """The step sizes over the rounds: one, or one for each server; () when there are none."""
        steps = self.step_size
        return steps if isinstance(steps, tuple) else () if steps is None else (steps,)

    @property
    def network(self) -> Any:
        """The mixing matrix, schedule or named network of a method without a hub, else None."""
        return None

    @property
    def title(self) -> str:
        """The name with the variant, where a citing paper must see which it is."""
        return f"{self.name} at temperature 0, an optimiser" if self.optimises else self.name

    @property
    def optimises(self) -> bool:
        """True at temperature 0, where no noise is added: it finds a mode, and samples nothing."""
        return getattr(self, "temperature", 1) == 0

    @property
    def gradient_rows(self) -> int | None:
        """Rows of a site that a gradient reads, by its ``batch_size``; None where it reads all."""
        return getattr(self, "batch_size", None)

    @property
    def lightly_compiled(self) -> bool:
        """True if rounds take as long with `consortia.runtime.compiler.lightly`, as measured.

        Their time goes into many products with all rows, and not into other loops over them; or, in
        a small problem, into the minibatch of one site at a time.
        """
        return False

    @property
    def dimension(self) -> int | None:
        """The number of parameters that an argument (a matrix, a point) fixes, else None."""
        return None

    # --- checks ----------------------------------------------------------------------------------

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Raise an `InputError` that names the site where the method cannot run on these sites."""
        return


# --- capabilities: what a run does with some methods only ---------------------------------------


class Adaptive(Method):
    """A method that learns in the warm-up, and can judge what it has learned."""

    @property
    def adapts(self) -> bool:
        """True if the warm-up learns something, so that a run without it is another one."""
        return False

    def check_warmup(self, warmup: int) -> None:
        """Raise an `InputError` where the warm-up is too short for what it has to learn."""
        return

    def check_learned(self, hub: PyTree) -> str | None:
        """Find a reason to end a run after its warm-up, with advice; None where there is none."""
        return None

    def full_iterations(self, hub: PyTree, done: int) -> float:
        """Return ``done`` iterations in units of the longest, which `cost` and the plan count."""
        return done


class SelfSetting(Method):
    """A method of which other settings than the step size may be left open."""

    @property
    @abstractmethod
    def open_settings(self) -> Mapping[str, tuple[Any, ...]]:
        """Values to choose from, of each argument besides the step size that is left open."""

    def given(self, name: str) -> Any:
        """Return an argument that may be left open.

        Raises:
            InputError: it is still to be chosen.
        """
        value = getattr(self, name)
        if value is None:
            raise wrong(name, " is None: `consortia.sample` chooses it; here it must be given.")
        return value


class SurrogateBased(Method):
    """A method whose sites fit surrogates before the first round."""

    @property
    def fits_surrogates(self) -> bool:
        """True if the sites fit surrogates before the first round, on which the law depends."""
        return False

    def check_fitted(self, fitted: PyTree, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return warnings about what the ``fit`` phases left, or raise an `InputError`.

        Args:
            fitted: of all sites, node axis first.
            names: of the sites.
        """
        return ()

    def explain_end(self, target: Any, site: Site, name: str, position: Array) -> str:
        """Describe the cause of a chain's non-finite end at a site; "" where none is known.

        Args:
            target: the posterior.
            site: where the chain ended.
            name: of the site.
            position: the last finite one, (d,).
        """
        return ""


class ServerBased(Method):
    """A method of parameter servers, each an independent chain with workers of its own."""

    @property
    def servers_alike(self) -> bool:
        """True if all servers have one law; else R-hat compares different laws."""
        return True

    def measure(
        self,
        gradients: Callable[[PyTree], PyTree],
        shares: np.ndarray | None,
        positions: Callable[[], np.ndarray],
        iteration: int,
    ) -> dict[str, Any]:
        """Measure the place where the chains ended, for the record.

        Args:
            gradients: positions to the sites' gradients there.
            shares: (servers, sites), of each site where messages arrive one at a time, else None.
            positions: ``() -> (chains, d)``, where the chains are; all processes call it, or none.
            iteration: the last one.
        """
        return {}


@dataclass(frozen=True)
class Plan:
    """The plan of a run: what will run where.

    Attributes:
        lines: pairs of a label and a value, in the order to be shown.
        warnings: plain sentences on what the user should know.
        bytes_per_round: bytes over the network, up and down, of one iteration of all chains.
        communication_rounds: communication rounds of one iteration.
        whole: communication rounds, bytes up and bytes down of a conversation, as a rule.
    """

    lines: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...] = ()
    bytes_up: int = 0
    bytes_down: int = 0
    communication_rounds: int = 0
    whole: tuple[int, int, int] = (0, 0, 0)
    details: dict[str, Any] = field(default_factory=dict)
