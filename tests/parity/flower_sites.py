"""The sites of the small problem as nodes of a network inside this process."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from parity import problem

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.data.facts import Gathering, SiteFacts
from consortia.engines.messages.questions import Leaving, Place, Question, Wrap
from consortia.engines.messages.site import Job, MessageSite
from consortia.engines.messages.transport import Arrival, InProcess

FIRST_NODE = 1000


class Faulty(InProcess):
    """A network whose faults change, drop, hold back or add replies.

    ``faults`` sees each: (node, name of the message, payload, reply) -> replies.
    """

    def __init__(self, sites: Any, faults: Callable[..., list[Arrival]]) -> None:
        super().__init__(sites)
        self.faults, self.arrived = faults, list[Arrival]()

    def push(self, messages: Any, ttl: float) -> list[str]:
        names: list[str] = []
        for node, payload in messages:
            names += super().push([(node, payload)], ttl)
            (reply,) = super().replies(names[-1:])
            self.arrived += self.faults(node, names[-1], payload, reply)
        return names

    def replies(self, messages: Any) -> list[Arrival]:
        arrived, self.arrived = self.arrived, []
        return arrived


class OpenGate:
    """Lets everything out, and remembers it."""

    def __init__(self) -> None:
        self.left: list[tuple[str, int | None, bytes]] = []
        self.errors: dict[str, BaseException] = {}
        self.places: list[Place] = []

    def admit(self, kind: str, question: Question) -> bool:
        return False

    def rows(self, number: int, parameters: int | None = None, cell: int | None = None) -> None:
        """Enough."""

    def data(self, rows: Any, values: int) -> None:
        """Any rows."""

    def holds(self) -> str:
        return "all"

    def place(self, place: Place, *, again: bool) -> None:
        self.places.append(place)

    def spend(self, spent: Any) -> None:
        """Any cost may be."""

    def knows(self, message: str) -> bool:
        return True

    def settled(self, statement: Any) -> None:
        """Any rows may be."""

    def release(self, leaving: Leaving) -> bytes:
        for name, array in leaving.arrays.items():
            assert array.dtype.kind != "f" or np.isfinite(array).all(), name
        self.left.append((leaving.kind, leaving.question.round, leaving.payload))
        return leaving.payload

    def refusal(self, error: BaseException, wrap: Wrap, question: Question | None = None) -> bytes:
        reference = secrets.token_hex(4)
        self.errors[reference] = error
        return wrap(f"the site met an error; its log has it under {reference}")


class OneSite(consortia.LocalEngine):
    """Reads one site, and takes all others for the same."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def gather_facts(self, gathering: Gathering) -> Any:
        self.facts: SiteFacts = gathering.contribute(self.number)
        return [self.facts] * len(gathering.names), None


class Sites:
    """All sites of a case, each with a folder and a gate of its own."""

    def __init__(
        self,
        folder: Path,
        name: str,
        count: int,
        chains: int,
        model: Any = problem.MODEL,
        sites: Any = None,
        warmup: int = problem.WARMUP,
        seed: int = problem.SEED,
        **more: Any,
    ) -> None:
        self.sites = problem.sites(count) if sites is None else sites
        self.method = ALGORITHMS[name].factory(**(ALGORITHMS[name].example | more))
        self.model, self.chains, self.warmup, self.seed = model, chains, warmup, seed
        self.folder = Path(folder)
        self.gates = [OpenGate() for _ in self.sites.names]
        self.handlers = [self.handler(number) for number in range(len(self.sites))]

    @property
    def names(self) -> tuple[str, ...]:
        return self.sites.names

    def handler(self, number: int, **changes: Any) -> MessageSite:
        """A new process of a site: nothing but its folder is known to it."""

        def build(engine: Any) -> Job:
            return Job(
                changes.get("model", self.model),
                self._read(engine),
                changes.get("method", self.method),
                self.chains,
                self.seed,
                self.warmup,
            )

        def contribute() -> SiteFacts:
            engine = OneSite(number)
            self._read(engine)
            return engine.facts

        gate = self.gates[number]
        return MessageSite(
            self.names[number],
            number,
            self.folder / self.names[number],
            changes.get("study", "study"),
            contribute,
            build,
            lambda run: gate,
            lambda error, run, wrap: gate.refusal(error, wrap),
        )

    def _read(self, engine: Any) -> Any:
        return consortia.read_sites(self.sites.site, self.names, self.method, engine)

    def restart(self, number: int, **changes: Any) -> None:
        """The process of a site ends, and another one takes its place."""
        self.handlers[number] = self.handler(number, **changes)

    def transport(self, faults: Any = None) -> InProcess:
        def answer(number: int) -> Any:
            return lambda message: self.handlers[number].answer(message)

        sites = {FIRST_NODE + n: answer(n) for n in range(len(self.sites))}
        return InProcess(sites) if faults is None else Faulty(sites, faults)

    def engine(self, faults: Any = None, **options: Any) -> consortia.FlowerEngine:
        options = {"deadline": 20, "study": "study"} | options
        return consortia.FlowerEngine(self.transport(faults), self.names, **options)

    def sampled(self, engine: Any = None, **more: Any) -> Any:
        """The result with this engine, the sites being read through it."""
        engine = self.engine() if engine is None else engine
        lengths = {"rounds": problem.ROUNDS, "warmup": self.warmup}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return consortia.sample(
                self.model,
                self._read(engine),
                self.method,
                chains=self.chains,
                seed=self.seed,
                engine=engine,
                progress=False,
                **(lengths | more),
            )
