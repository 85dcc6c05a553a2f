"""Exchanges as array operations over a leading node axis."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from consortia import graphs
from consortia.core.contract import Exchange, InTurn, Mailbox, Mean, Mix, Phase, Route, Sum
from consortia.errors import InputError
from consortia.runtime.late import Array, PyTree, jax, jnp

MOST_IN_ORDER = 65_536
"""Numbers of all nodes up to which a sum over nodes in several places is taken in their order.

Rounding is then that of one place; more are summed in each place first, so that fewer travel.
"""


def is_in_order(outbox: PyTree, nodes: int, nodes_here: int) -> bool:
    """Return True if the outboxes of all nodes are brought together and then summed."""
    numbers = sum(leaf.size for leaf in jax.tree.leaves(outbox))
    return numbers * nodes <= MOST_IN_ORDER * nodes_here


def message_of(
    exchange: Exchange | None,
    outbox: PyTree,
    weights: Float[Array, " nodes"],
) -> PyTree:
    """Return the message that the outboxes of all nodes become.

    Args:
        exchange: what crosses the network; None leaves the message empty.
        outbox: pytree of arrays (nodes, ...); of a `Route` or `Mailbox` that of the one node that
            acts.
        weights: w_c, (nodes,).

    Returns:
        The message without a node axis, or what each node receives (`Mix`).
    """
    match exchange:
        case None:
            return ()
        case Route() | Mailbox():
            return outbox
        case Mean():
            return jax.tree.map(lambda leaf: _product(weights, leaf), outbox)
        case Sum():
            return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), outbox)
        case Mix(matrix, times, change):
            mixing = graphs.weights.resolve_any(matrix, weights.shape[0])
            if isinstance(mixing, graphs.MixingSchedule):
                return _mixed_in_turn(mixing, outbox, times, change)
            if change:
                return jax.tree.map(lambda leaf: changed(mixing, leaf), outbox)
            for _ in range(times):
                outbox = jax.tree.map(lambda leaf: mixed(mixing, leaf), outbox)
            return outbox
        case _:
            raise InputError(f"this engine cannot carry out a {type(exchange).__name__}.")


def mixed(
    mixing: graphs.MixingMatrix,
    leaf: Float[Array, "nodes ..."],
) -> Float[Array, "nodes ..."]:
    """Return W times an array (nodes, ...), as suits the matrix; see `MixingMatrix.form`.

    As x_i + Σ_j W_ij (x_j − x_i): weights that are rounded still leave the sum over all nodes as
    it is, where Σ_j W_ij x_j would let it drift in single precision. Nothing of the size
    nodes × nodes is made but for the small networks of form ``"dense"``.
    """
    return leaf + changed(mixing, leaf)


def changed(
    mixing: graphs.MixingMatrix,
    leaf: Float[Array, "nodes ..."],
) -> Float[Array, "nodes ..."]:
    """Return Σ_j W_ij (x_j − x_i) of an array (nodes, ...): exactly 0 where all x_i are equal."""
    if mixing.form == "roll" and mixing.circulant is not None:
        parts = zip(*(part.tolist() for part in mixing.circulant), strict=True)
        return _total(
            [weight * (jnp.roll(leaf, -shift, axis=0) - leaf) for shift, weight in parts if shift],
            leaf,
        )
    if mixing.form == "mean" and mixing.constant is not None:
        share = mixing.constant * mixing.agents
        apart = leaf - leaf[:1]
        return share * (jnp.mean(apart, axis=0, keepdims=True) - apart)
    if mixing.form == "dense":
        apart = leaf - leaf[:1]
        return _product(jnp.asarray(np.asarray(mixing), leaf.dtype), apart) - apart
    if mixing.form == "slots":
        columns = zip(*(part.T for part in mixing.slots()), strict=True)
        return _total(
            [_column(weight, leaf) * (leaf[number] - leaf) for number, weight in columns], leaf
        )
    terms = _column(mixing.values, leaf) * (leaf[mixing.columns] - leaf[mixing.rows])
    return jax.ops.segment_sum(terms, mixing.rows, mixing.agents, indices_are_sorted=True)


def _mixed_in_turn(
    schedule: graphs.MixingSchedule, outbox: InTurn, times: int, change: bool
) -> InTurn:
    """Mix each node's messages by the matrix of the turn which the outboxes name."""
    receivers, senders, weights = schedule.table()
    now = jnp.asarray(weights, jnp.result_type(float))[outbox.turn.reshape(-1)[0]]

    def step(leaf: Array) -> Array:
        weight = now.astype(leaf.dtype).reshape((-1,) + (1,) * (leaf.ndim - 1))
        terms = weight * (leaf[senders] - leaf[receivers])
        sums = jax.ops.segment_sum(terms, receivers, schedule.agents, indices_are_sorted=True)
        return sums if change else leaf + sums

    value = outbox.value
    for _ in range(times):
        value = jax.tree.map(step, value)
    return InTurn(value, outbox.turn)


def _total(terms: list[Array], like: Array) -> Array:
    """Return the sum, one term after the other: a stack would be several times the state."""
    if not terms:
        return jnp.zeros_like(like)
    first, *rest = terms
    for term in rest:
        first = first + term
    return first


def _column(values: np.ndarray, like: Array) -> Array:
    """Return one number a node, shaped to multiply an array (nodes, ...)."""
    return jnp.asarray(values, like.dtype).reshape((-1,) + (1,) * (like.ndim - 1))


def describe(exchange: Exchange | None, nodes: int) -> str | None:
    """Describe the messages of a gossip exchange for the plan of a run; None for another."""
    if not isinstance(exchange, Mix):
        return None
    mixing = graphs.weights.resolve_any(exchange.matrix, nodes)
    if isinstance(mixing, graphs.MixingSchedule):
        return f"{nodes} agents; {len(mixing)} matrices W in turn, applied as a sum over links"
    forms = {
        "roll": f"{len(mixing.circulant[0]) if mixing.circulant else 0} shifts of the agents",
        "mean": "one sum over all agents",
        "dense": f"a dense {nodes} × {nodes} matrix",
        "slots": "neighbour lists of equal length",
        "edges": "a sum over the list of links",
    }
    text = f"{nodes} agents, {mixing.links // 2} edges; W applied as {forms[mixing.form]}"
    if mixing.components > 1:
        return f"{text}; the network has {mixing.components} parts that never communicate"
    if mixing.spectrum_is_cheap:
        return f"{text}; spectral gap {mixing.spectral_gap:.3g}"
    return text


def _product(
    matrix: Float[Array, "... nodes"],
    leaf: Float[Array, "nodes ..."],
) -> Float[Array, " ..."]:
    return jnp.tensordot(matrix.astype(leaf.dtype), leaf, axes=1, precision="highest")


def reply_per_node(phase: Phase, before: bool) -> bool:
    """Return True if the inbox after a phase differs from node to node; ``before``: it did."""
    if isinstance(phase.exchange, Mix):
        return True
    if phase.exchange is None and phase.hub is None:
        return before if phase.local is None else True
    return False


def inbox_per_node(phases: tuple[Phase, ...]) -> bool:
    """Return True if the inbox at the start of an iteration differs from node to node."""
    per_node = False
    for _ in range(2):  # the second time with what the iteration before has left
        for phase in phases:
            per_node = reply_per_node(phase, per_node)
    return per_node


def communication(
    exchange: Exchange | None, outbox_bytes: int, reply_bytes: int, nodes: int
) -> tuple[int, int, int]:
    """Return (rounds, bytes up, bytes down) of one exchange of one chain.

    A star sends every outbox up and every reply down; gossip sends each outbox along each edge of
    the graph, a travelling chain its outbox from one site to the next, counted as up only, and a
    parameter server answers the one worker that sent a message.
    """
    match exchange:
        case None:
            return 0, 0, 0
        case Route():
            return 1, outbox_bytes, 0
        case Mailbox():
            return 1, outbox_bytes, reply_bytes
        case Mix(matrix, times):
            return times, times * graphs.weights.resolve_any(matrix, nodes).links * outbox_bytes, 0
        case _:
            return 1, nodes * outbox_bytes, nodes * reply_bytes


def traffic(
    phases: tuple[Phase, ...], messages: list[tuple[PyTree, PyTree]], senders_here: int, nodes: int
) -> list[tuple[int, int, int]]:
    """Return (communication rounds, bytes up, bytes down) of each phase, run once.

    Args:
        phases: of one iteration.
        messages: shapes of the outboxes of ``senders_here`` nodes, and of the reply, of each.
        senders_here: number of nodes of this process.
        nodes: number of nodes.
    """
    result = []
    for phase, (outbox, reply) in zip(phases, messages, strict=True):
        senders = 1 if isinstance(phase.exchange, Route | Mailbox) else senders_here
        sizes = (_bytes(outbox) // senders, _bytes(reply))
        result.append(communication(phase.exchange, *sizes, nodes))
    return result


def _bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
