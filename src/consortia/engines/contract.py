"""The interface of engines, and of a run that an engine has prepared.

An engine says which process reads which sites, lets the processes agree before a run, and prepares
it. A run starts, advances and is gathered. A method that an engine does not define does what suits
one process that holds everything.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.core.arguments import Hinted
from consortia.core.contract import Method, Site
from consortia.core.faults import Faults
from consortia.core.queries import Conversation
from consortia.core.target import Target
from consortia.data.facts import Gatherer, Gathering, SiteFacts, merge_facts
from consortia.data.sites import Sites
from consortia.engines.buffers import Buffers, Window, emptied, held_bytes, infos_at, with_infos
from consortia.engines.mailbox import Arrivals
from consortia.engines.panel import Panel, Prepared
from consortia.engines.phases import Carry, Program, SiteArrays
from consortia.errors import StoreError, wrong
from consortia.runtime.late import Array, PyTree, jax


class Engine(Gatherer, metaclass=Hinted):
    """An engine, which runs the sites of a study; all processes of a job make the same one.

    Attributes:
        name: as in the record of a run.
    """

    name: str

    @property
    def root(self) -> bool:
        """True in the one process that keeps the draws and writes to the terminal."""
        return True

    # --- before a run ---------------------------------------------------------------------------

    def local_sites(self, nodes: int, method: Method) -> np.ndarray:
        """Return the indices of the sites, of ``nodes``, whose rows this process needs.

        Raises:
            InputError: the method cannot run on so many processes and sites.
        """
        return np.arange(nodes)

    def beside(self) -> Engine:
        """Return the engine by which the other one of two compared models is built.

        It gathers what the sites tell for that one, where they tell both in one message.
        """
        return self

    def gather_facts(self, gathering: Gathering) -> tuple[list[SiteFacts], Any]:
        """Return the facts of all sites, each from the process that reads it, and the root's value.

        Raises:
            InputError: a site cannot be used, or two processes have read other rows for it; in all
                processes.
            RankError: the processes have been given other names, or something else than ``same``.
        """
        names = gathering.names

        def make() -> Any:
            local = self.local_sites(len(names), gathering.method)
            facts, faults = {}, Faults()
            for index in map(int, local):
                with faults.noted(site=names[index]):
                    facts[index] = gathering.contribute(index).plain()
            faults.check()
            return facts, gathering.contribute_root() if self.root else None

        gathered = self.allgather(make, lambda: {"names": tuple(names), **gathering.same()})
        from_root = next((value for _, value in gathered if value is not None), None)
        return merge_facts([facts for facts, _ in gathered], names), from_root

    def barrier(self) -> None:
        """Wait until all processes are here."""

    def abort(self, error: BaseException, code: int) -> None:
        """End this process's part of the job after an error, so that no other waits for it."""

    # --- the run --------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, target: Target, sites: Sites, method: Method, chains: int) -> Run:
        """Place the data and find or make the programs; compile nothing yet.

        ``chains`` counts all of them, those of several servers too.

        Raises:
            InputError: this engine cannot run the method on these sites.
        """

    def panel(self, target: Target, sites: Sites, method: Conversation) -> Panel:
        """Place the data for a conversation; compile nothing yet.

        Args:
            target: the posterior.
            sites: the data.
            method: the conversation.

        Raises:
            InputError: this engine cannot run the method on these sites.
        """
        raise wrong("engine", f" {self.name!r} carries no queries: use consortia.LocalEngine().")


class Begin(NamedTuple):
    """Arguments of `Run.start`."""

    seed: int
    positions: Float[Array, "chains d"]
    rounds: int
    warmup: int
    state: Mapping[str, np.ndarray] | None


class Run(Prepared):
    """One algorithm on one set of sites, ready to start.

    Attributes:
        program: the functions of all nodes; some engines use its shapes only.
        layout: how nodes, chains and rounds are batched.
        draws_per_iteration: draws that one iteration yields.
        arrivals: whose message arrives when, where messages arrive one at a time in simulation.
        participation: which sites take part in which round, bool (rounds, nodes); None: all.
    """

    arrivals: Arrivals | None = None
    participation: np.ndarray | None = None

    def __init__(self, program: Program, sites: Sites, arrays: SiteArrays) -> None:
        super().__init__(sites)
        self.program, self.layout = program, program.layout
        self.draws_per_iteration = program.algorithm.draws.per_iteration
        self._arrays = arrays

    # --- before the first round -------------------------------------------------------------------

    def start(
        self,
        seed: int,
        positions: Float[Array, "chains d"],
        rounds: int = 1,
        warmup: int = 0,
        state: Mapping[str, np.ndarray] | None = None,
    ) -> Carry:
        """Run ``fit`` and ``setup``; return the state before the first round.

        Args:
            seed: seed of the run.
            positions: starting points, (chains, d).
            rounds: most rounds after the warm-up.
            warmup: rounds before them.
            state: what `state` returned in an earlier run, which is returned as a carry: nothing is
                fitted.

        Raises:
            InputError: the events of a simulated parameter server would change the target.
            StoreError: the state is of another run, or of another engine.
        """
        return self._started(Begin(seed, positions, rounds, warmup, state))

    @abstractmethod
    def _started(self, begin: Begin) -> Carry:
        """Start the run, as `start` describes."""

    # --- between two rounds, see `contract.named` ------------------------------------------------

    @abstractmethod
    def state(self, carry: Carry) -> dict[str, np.ndarray]:
        """Return the carry and what ``fit`` left, of all nodes, as named arrays on the host."""

    def block_in_progress(self, buffers: Buffers, slot: int) -> dict[str, np.ndarray]:
        """Return the record so far of a block of thinned rounds, in this slot."""
        return named(infos_at(self._here(buffers), slot), "block")

    def with_block(self, buffers: Buffers, block: Mapping[str, np.ndarray]) -> Buffers:
        """Return empty buffers that continue such a block, in their first slot."""
        shapes = infos_at(buffers, 0)
        return with_infos(buffers, from_names(block, shapes, "block"))

    # --- rounds -----------------------------------------------------------------------------------

    @abstractmethod
    def advance(self, carry: Carry, buffers: Buffers, window: Window) -> Any:
        """Run the rounds of a window; return (carry, buffers, finite (chains,)).

        ``buffers`` is consumed.
        """

    @abstractmethod
    def site_not_finite(self, carry: Carry, at: int, warmup: int, chain: int) -> str | None:
        """Return the first site whose message of round ``at`` is not finite in this chain."""

    def agree(self, value: float) -> float:
        """Return the root's value, in all processes; for what depends on a clock."""
        return value

    def serve(self, carry: Carry) -> None:
        """Answer the other processes until they end the run; only where ``serves`` is true."""

    # --- the draws of a chunk ---------------------------------------------------------------------

    @abstractmethod
    def buffers(self, carry: Carry) -> Buffers:
        """Return empty buffers for this process's part of the draws of one chunk."""

    def collected(self, buffers: Buffers) -> Buffers:
        """Return the draws of all processes, where ``root`` is true."""
        return self._here(buffers)

    def emptied(self, buffers: Buffers) -> Buffers:
        """Return the buffers of a chunk whose draws have been taken, for the next one."""
        return emptied(buffers)

    # --- what the caller sees ---------------------------------------------------------------------

    def hub(self, carry: Carry) -> PyTree:
        """Return the hub's state, chain axis first; a single chain has none."""
        return self._here(carry.hub)

    def positions(self, carry: Carry) -> np.ndarray:
        """Return the draws of all chains in this state, (chains, d); the last of several draws."""
        draw = np.asarray(self.program.draw(self._here(carry)))
        return draw.reshape(self.layout.chains, -1, draw.shape[-1])[:, -1]

    @property
    def fitted(self) -> PyTree:
        """Results of ``fit`` at all sites, node axis first; () without such phases."""
        return self._here(self._arrays.fitted)

    def site(self, name: str) -> Site | None:
        """Return one site as a visiting chain sees it, or None where its rows are elsewhere."""
        return None

    def gradients(
        self,
        target: Target,
    ) -> Callable[[Float[Array, " d"]], Float[Array, "nodes d"]] | None:
        """Return position (d,) ↦ ∇U_c of all rows of each site, (nodes, d).

        None where some rows are in another process: it would cost rounds.
        """
        return None

    @abstractmethod
    def traffic(self, carry: Carry) -> list[tuple[int, int, int]]:
        """Return (communication rounds, bytes up, bytes down) of each phase of an iteration."""

    def memory(self, carry: Carry) -> dict[str, int]:
        """Return the bytes that this process holds, by what they are for."""
        buffers = jax.eval_shape(lambda: self.buffers(carry))
        return held_bytes(self._arrays, buffers, carry, copies=2)

    def outcome(self, done: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return attributes and groups of the result that only the run itself knows."""
        return {}, {}

    def _here(self, tree: PyTree) -> PyTree:
        """Return arrays of the run, whole in this process."""
        return tree


# --- a run between two rounds as named arrays ----------------------------------------------------


def named(tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """Return the leaves of a pytree by their paths, on the host."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def from_names(arrays: Mapping[str, np.ndarray], like: PyTree, prefix: str) -> PyTree:
    """Return the pytree of the shapes ``like`` from the arrays that `named` made.

    Raises:
        StoreError: an array is absent, or of another shape or type.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    restored = []
    for path, shape in leaves:
        name = prefix + jax.tree_util.keystr(path)
        array = arrays.get(name)
        if array is None:
            raise StoreError(f"the checkpoint lacks the array {name!r} that this algorithm needs.")
        if array.dtype.kind == "V" and array.dtype.itemsize == shape.dtype.itemsize:
            array = array.view(shape.dtype)  # a narrow type that NumPy's files have no name for
        if array.shape != shape.shape or array.dtype != shape.dtype:
            raise StoreError(
                f"the checkpoint's array {name!r} is {array.dtype} {array.shape}, this run needs "
                f"{shape.dtype} {shape.shape}."
            )
        restored.append(jax.device_put(array))
    return jax.tree.unflatten(structure, restored)
