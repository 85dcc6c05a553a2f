"""The arguments of a run, and the checks that do not depend on its method."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from consortia.core import arguments, density, fingerprints, parameters, start
from consortia.core.contract import Method, Plan
from consortia.core.model import Model
from consortia.core.target import Target
from consortia.data import digest
from consortia.data.sites import Sites
from consortia.diagnostics.natural import Quantities
from consortia.engines.contract import Engine
from consortia.errors import InputError, wrong
from consortia.run import checks
from consortia.run.recording import Recorder
from consortia.run.specification import Request, check_same
from consortia.run.stopping import StopWhen
from consortia.store.accumulators import AccumulatorSpec
from consortia.store.checkpoint import Checkpoint
from consortia.store.metadata import Metadata, check_metadata
from consortia.store.runs import RunStore
from consortia.theory.tuning import BiasTarget


@dataclass(frozen=True)
class Resumption:
    """The state from which a run is resumed."""

    specification: dict[str, Any]  # of the run in the directory
    checkpoint: Checkpoint | None  # None when it has none yet: it then starts from the beginning
    exact: bool  # refuse what would change rounding
    finished: bool  # nothing is left to do


@dataclass(frozen=True)
class Posterior:
    """A posterior with its parameters' names, checked."""

    target: Target  # the posterior
    # the parameters' names and places in the flat position
    variables: tuple[parameters.Variable, ...]
    metadata: Metadata  # title, names and units, checked against them


@dataclass(frozen=True)
class Task:
    """The arguments of a run; see `consortia.sample`."""

    model: Model
    sites: Sites
    algorithm: Method
    request: Request  # how long it is, and what it starts from
    init: Any
    engine: Engine
    writer: RunStore | None  # the directory that it is written to; None: it stays in memory
    progress: bool
    stop: StopWhen | None
    keep: AccumulatorSpec | None
    on_plan: Callable[[Plan], None] | None
    metadata: Metadata | None = None
    on_divergence: str = "warn"
    bias_target: BiasTarget | None = None
    resumption: Resumption | None = None  # the state from which it is resumed; None for a new run

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The state at which a resumed run continues; None where it starts from the beginning."""
        return None if self.resumption is None else self.resumption.checkpoint

    def check(self) -> None:
        """Check the arguments that depend on no data.

        Raises:
            InputError: one cannot be used, or two not together.
        """
        stop = self.stop
        if self.keep is not None and stop is not None and (stop.rhat, stop.ess) != (None, None):
            raise InputError(
                "stop: R-hat and ESS are judged on all draws, which `keep` does not keep: give "
                "stop_when(budget=...) or keep='draws'."
            ).at("stop")
        if not isinstance(self.engine, Engine):
            raise InputError(
                f"engine is {self.engine!r}: give consortia.LocalEngine() or consortia.MPIEngine()."
            ).at("engine")
        if self.on_plan is not None and not callable(self.on_plan):
            raise wrong("on_plan", f" is {self.on_plan!r}: give a function of a Plan.")
        arguments.flag("progress", self.progress)

    def posterior(self) -> Posterior:
        """Return the posterior, once method and metadata are known to fit it.

        Raises:
            InputError: they do not, or a result cannot hold a natural quantity of the model.
        """
        first = start.starting_parameters(self.model, self.init, self.request.seed, 1)[0]
        target, _ = Target(self.model, first), Quantities(self.model).shapes
        variables = parameters.variables(target.structure)
        metadata = check_metadata(self.metadata, {part.name: part.shape for part in variables})
        sites = self.sites
        self.algorithm.check(np.asarray(sites.sizes), sites.names, target.dimension)
        return Posterior(target, tuple(variables), metadata)

    def check_densities(self, target: Target, first: Any) -> None:
        """Check the data that are here, and the model at the start of the first chain.

        Raises:
            InputError: one cannot be used.
        """
        density.check_data(self.model, self.sites.held)
        if self.model.host is None:  # else its densities are the package's own
            checks.check_model(target, self.sites.first)
            density.check_values(target, self.sites.first, first)

    def recorder(
        self, posterior: Posterior, chains: int, writer: RunStore | None, **more: Any
    ) -> Recorder:
        """Return a recorder of the draws after those in the store; ``more`` are its options."""
        stored = self.checkpoint
        accumulator = None
        if self.keep is not None:
            accumulator = self.keep.start(posterior.target, chains)
            if stored is not None:
                accumulator.restore(stored.arrays)
        return Recorder(
            chains=chains,
            thin=self.request.thin,
            variables=posterior.variables,
            sites=self.sites.names,
            store=writer,
            remember=self.stop is not None and self.keep is None,
            kept=0 if stored is None else stored.kept,
            accumulator=accumulator,
            labels=posterior.metadata.labels,
            natural=Quantities(posterior.target.model),
            **more,
        )

    def common(self, target: Target, algorithm: Method, positions: np.ndarray) -> dict[str, Any]:
        """Return the arguments that all processes share."""
        return asdict(self.request) | {
            "model": fingerprints.of_model(target, self.sites.first),
            "sites": digest.of_sites(self.sites.names, self.sites.digests),
            "algorithm": algorithm,
            "init": positions,
            "stop": self.stop,
            "keep": self.keep,
            "store": self.writer is not None,
        }

    def specification(
        self, posterior: Posterior, algorithm: Method, rounding: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return everything that decides a run's draws, to know it again.

        ``request`` and ``stop`` say how long it is; ``algorithm``, ``model`` and ``data`` what it
        is, with fingerprints; ``rounding`` what else its bits depend on.
        """
        target, sites = posterior.target, self.sites
        made = {
            "request": asdict(self.request),
            "stop": None if self.stop is None else asdict(self.stop),
            "algorithm": {
                "name": algorithm.name,
                "parameters": algorithm.parameters(),
                "fingerprint": fingerprints.of_value(algorithm),
            },
            "model": {
                "dimension": target.dimension,
                "fingerprint": fingerprints.of_model(target, sites.first),
            },
            "data": {
                "sites": len(sites),
                "rows": int(np.sum(np.asarray(sites.sizes, np.int64))),
                "fingerprint": digest.of_sites(sites.names, sites.digests),
            },
            "rounding": dict(rounding),
            "metadata": posterior.metadata.plain,
        }
        keep = None if self.keep is None else self.keep.describe()
        return json.loads(json.dumps(made)) | {"keep": keep}

    def finished_before(self, specification: dict[str, Any]) -> bool:
        """Return True if a resumed run had ended; refuse to resume a run of something else."""
        if self.resumption is None:
            return False
        assert self.writer is not None
        before, finished = self.resumption.specification, self.resumption.finished
        exact = self.resumption.exact and not finished
        check_same(before, specification, self.writer.path, exact=exact)
        return finished

    def show(self, plan: Plan, *, root: bool) -> None:
        """Show the plan, once the directory of a new run is claimed; one process does both."""
        if self.writer is not None and root and self.resumption is None:
            self.writer.claim()
        if self.on_plan is not None and root:
            self.on_plan(plan)

    def begin_store(
        self, record: dict[str, Any], specification: dict[str, Any], stride: int, *, root: bool
    ) -> None:
        """Begin the run directory, or go on in it."""
        checkpoint = self.checkpoint
        if checkpoint is not None:
            record["resumed_at"] = [*checkpoint.header["resumed_at"], checkpoint.done]
        if self.writer is not None and root:
            self.writer.begin(record, specification, stride, checkpoint)
