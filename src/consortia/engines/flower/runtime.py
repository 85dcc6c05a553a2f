"""What a site computes: the first half of each phase, at its own node.

A piece is compiled once for a phase. Its random numbers are those that one process would draw for
this node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from consortia.core import fingerprints, random, start
from consortia.core.contract import Method, Route
from consortia.core.model import Model
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.engines import rng
from consortia.engines.flower.envelope import Envelope, EnvelopeError
from consortia.engines.flower.errors import MismatchError
from consortia.engines.flower.files import RunFiles
from consortia.engines.flower.stages import (
    Label,
    Stage,
    Stages,
    check_carried,
    from_arrays,
    named_arrays,
)
from consortia.engines.local import LocalEngine, site_arrays
from consortia.engines.phases import Carry, SiteArrays, kept_where
from consortia.engines.rng import PhaseKeys

BEFORE_ALL = (-1, -1, -1, -1)


@dataclass(frozen=True)
class Job:
    """A study as objects: what server and sites must have alike.

    Attributes:
        model: the model.
        sites: names and sizes of all sites, rows where they are.
        algorithm: the algorithm.
        chains: of the run.
        seed: of the run.
        warmup: of the run.
    """

    model: Model
    sites: Sites
    algorithm: Method
    chains: int
    seed: int
    warmup: int


class SiteRuntime:
    """One run at one site.

    Args:
        job: the study, with the rows of this site.
        number: of this site.
        files: of the run.
        begun: the arrays that the run began with: positions (chains, d).
    """

    def __init__(
        self, job: Job, number: int, files: RunFiles, begun: Mapping[str, np.ndarray]
    ) -> None:
        self._job, self._number, self._files = job, number, files
        example = start.starting_parameters(job.model, None, job.seed, 1)[0]
        self._target = Target(job.model, example)
        self._algorithm = job.algorithm.build(self._target)
        check_carried(self._algorithm)
        sizes = np.asarray(job.sites.sizes, np.int64)
        self._arrays = site_arrays(job.model, job.sites, job.algorithm, np.array([number]))
        layout = LocalEngine(block=1).layout(self._target, job.sites, job.algorithm, job.chains)
        d = self._target.dimension
        self._positions = begun["positions"]
        if self._positions.shape != (job.chains, d):
            raise EnvelopeError("the positions are of another number of chains or parameters")
        weights = job.algorithm.site_weights(sizes)
        self._stages = Stages(self._algorithm, layout, d, self._arrays, weights)
        self._base = random.base_key(job.seed)
        self._pieces: dict[tuple[int, int], Callable[..., Any]] = {}
        self._keys: dict[int, tuple[PhaseKeys, ...]] = {}
        self._fitted_there = False

    def check_model(self, fingerprint: str) -> None:
        """Refuse another model than the server's.

        Raises:
            MismatchError: its densities, or constants in them, are not the same.
        """
        if fingerprints.of_model(self._target, self._job.sites.first) != fingerprint:
            raise MismatchError("model")

    def start_flags(self) -> dict[str, np.ndarray]:
        """Return for each chain whether U_c at its start, and its gradient there, are finite."""
        values_at = jax.jit(partial(start.start_values, self._target))
        _, values, finite = values_at(self._arrays, jnp.asarray(self._positions))
        potential = np.asarray(values)[0]
        codes = np.isnan(potential) * 1 + np.isposinf(potential) * 2 + np.isneginf(potential) * 3
        return {"potential": codes.astype(np.uint8), "gradient": np.asarray(finite)[0]}

    def finish_fit(self, request: Envelope) -> dict[str, np.ndarray]:
        """Keep what ``fit`` has left here; return it, for the method to judge."""
        stage = self._stages.fit
        after = stage.after()
        node = self._state(stage, Label(rng.FIT, 0, len(stage.phases), 0), request, after.node)
        inbox = from_arrays(request.arrays, after.inbox, "inbox")
        fitted = self._stages.fitted(Carry(node, (), inbox))
        self._files.keep("fitted", named_arrays(fitted, "fitted"))
        self._fitted_there = False
        return named_arrays(node, "node")

    def step(self, label: Label, request: Envelope) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Do the first half of a phase; keep the state after it, and return what is sent."""
        stage = self._stages.of(label.stage)
        if label.stage > rng.ROUND or label.phase >= len(stage.phases):
            raise EnvelopeError("the study has no such phase")
        phase = stage.phases[label.phase]
        if phase.local is None or label.repetition >= phase.repeat:
            raise EnvelopeError("this phase has nothing to do at a site")
        if label.stage != rng.FIT and self._algorithm.fit:
            self._take_fitted()
        before = stage.before(label.phase)
        node = self._state(stage, label, request, before.node)
        if isinstance(phase.exchange, Route):
            after, outbox = self._visits(stage, label, request, node)
            info: dict[str, Any] = {}
        else:
            inbox = from_arrays(request.arrays, before.inbox, "inbox")
            runs: Any = ()
            if phase.repeats is not None:
                like = jax.ShapeDtypeStruct((stage.chains,), bool)
                runs = from_arrays(request.arrays, like, "runs")
            after, outbox, info = self._piece(stage, label.phase, self._star)(
                node, inbox, runs, self._counter(label), self._keys_of(stage, label), self._arrays
            )
        if jax.tree.leaves(after):
            oldest = _label(request.values.get("oldest"))
            self._files.keep_state(label, named_arrays(after, "node"), oldest)
        info = {} if phase.repeated else info
        return {}, named_arrays(outbox, "outbox") | named_arrays(info, "info")

    # --- states -------------------------------------------------------------------------------

    def _state(self, stage: Stage, label: Label, request: Envelope, like: PyTree) -> PyTree:
        """Return the state before a message, as the server says which one that is."""
        if not jax.tree.leaves(like):
            return like
        before = _label(request.values.get("before"))
        if before == BEFORE_ALL:
            positions = jnp.asarray(self._positions)
            if stage.number == rng.FIT:
                return self._stages.begin_fit(positions[0]).node
            return self._stages.begin(positions[0] if len(positions) == 1 else positions).node
        if before >= label:
            raise EnvelopeError("the state before is said to be later")
        return from_arrays(self._files.state(before), like, "node")

    def _take_fitted(self) -> None:
        if self._fitted_there:
            return
        found = self._files.kept("fitted")
        if found is None:
            raise EnvelopeError("the fit was not finished at this site")
        like = jax.eval_shape(self._stages.fitted, self._stages.fit.after())
        fitted = jax.tree.map(jnp.asarray, from_arrays(found.arrays, like, "fitted"))
        self._arrays = self._arrays._replace(fitted=fitted)
        self._fitted_there = True

    # --- compiled -----------------------------------------------------------------------------

    def _piece(self, stage: Stage, index: int, function: Callable[..., Any]) -> Callable[..., Any]:
        key = (stage.number, index)
        if key not in self._pieces:
            self._pieces[key] = jax.jit(partial(function, stage, index))
        return self._pieces[key]

    def _keys_of(self, stage: Stage, label: Label) -> PhaseKeys:
        """Return the keys of a phase, made once."""
        if stage.number not in self._keys:
            self._keys[stage.number] = stage.keys(self._base, only=self._number)
        return self._keys[stage.number][label.phase]

    def _counter(self, label: Label) -> np.ndarray:
        warmup = self._job.warmup if label.stage == rng.ROUND else 0
        return np.array([label.iteration, warmup, label.repetition], np.int32)

    def _star(
        self,
        stage: Stage,
        index: int,
        node: PyTree,
        inbox: PyTree,
        runs: Array | tuple[()],
        counter: Array,
        keys: PhaseKeys,
        arrays: SiteArrays,
    ) -> tuple[PyTree, PyTree, PyTree]:
        phase = stage.phases[index]
        drawn = stage.drawn(phase, keys, counter)
        carry = Carry(node, (), inbox)
        after, outbox, info = self._stages.own.send(
            phase, drawn, carry, arrays, False, stage.chains
        )
        if not isinstance(runs, tuple):
            which = runs if stage.chains > 1 else runs[0]
            kept = kept_where(which, Carry(after, (), ()), Carry(node, (), ()), False)
            after = kept.node
        return after, outbox, info

    def _visits(
        self, stage: Stage, label: Label, request: Envelope, node: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Do the visits of the chains that are here in this iteration, one after the other."""
        chains = request.arrays.get("chains")
        if (
            chains is None
            or chains.dtype != np.int32
            or chains.ndim != 1
            or not 0 < len(chains) <= stage.chains
            or not ((chains >= 0) & (chains < stage.chains)).all()
        ):
            raise EnvelopeError("it does not say which chains are here")
        several = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                (len(chains), *leaf.shape[int(stage.chains > 1) :]), leaf.dtype
            ),
            stage.before(label.phase).inbox,
        )
        inbox = from_arrays(request.arrays, several, "inbox")
        piece = self._piece(stage, label.phase, self._visit)
        keys = self._keys_of(stage, label)
        left = []
        for place, chain in enumerate(chains):
            own = jax.tree.map(lambda leaf, place=place: leaf[place], inbox)
            visited, node, outbox = piece(
                node, own, chain, self._counter(label), keys, self._arrays
            )
            if int(visited) != self._number:
                raise EnvelopeError("a chain is said to be here that visits another site")
            left.append(outbox)
        return node, jax.tree.map(lambda *leaves: np.stack(leaves), *left)

    def _visit(
        self,
        stage: Stage,
        index: int,
        node: PyTree,
        inbox: PyTree,
        chain: Array,
        counter: Array,
        keys: PhaseKeys,
        arrays: SiteArrays,
    ) -> tuple[Array, PyTree, PyTree]:
        phase = stage.phases[index]
        drawn = stage.drawn(phase, keys, counter)
        after, outbox = self._stages.own.visit_of_chain(
            phase, drawn, chain, 0, self._number, node, inbox, arrays, stage.chains
        )
        visited = jnp.atleast_1d(jnp.asarray(drawn.visited))[chain]
        return visited, after, outbox


def _label(value: Any) -> Label:
    """Return a label among a message's plain values.

    Raises:
        EnvelopeError: it is none.
    """
    if not isinstance(value, list) or len(value) != 4 or any(type(one) is not int for one in value):
        raise EnvelopeError("a label is not four whole numbers")
    return Label(*value)
