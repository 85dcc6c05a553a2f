"""The apps of the benchmark of `FlowerEngine`: a study and a bare exchange, in turn, in one run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

if TYPE_CHECKING:
    from consortia.engines.messages.questions import Place, Question
    from consortia.engines.messages.site import Gate

FLOATS, SITES, CHAINS = 7850, 3, 1
WARM = 3
"""Rounds of each contender before the first that counts."""

TICK = os.sysconf("SC_CLK_TCK")


def processes() -> dict[int, tuple[int, float]]:
    """Parent and CPU seconds, those of ended children included, of every process here."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        seconds = sum(int(fields[place]) for place in (11, 12, 13, 14)) / TICK
        found[int(entry.name)] = (int(fields[1]), seconds)
    return found


def spent(root: int) -> float:
    """CPU seconds of a process and all its descendants."""
    found = processes()
    total, waiting = 0.0, [root]
    while waiting:
        one = waiting.pop()
        total += found.get(one, (0, 0.0))[1]
        waiting += [pid for pid, (parent, _) in found.items() if parent == one]
    return total


# --- the study -----------------------------------------------------------------------------------


NAMES = tuple(f"site {number}" for number in range(SITES))


def method() -> Any:
    """One small step of FA-HMC: the round is its message."""
    import consortia

    return consortia.fa_hmc(1e-4, leapfrog_steps=1, local_steps=1)


def rows(number: int) -> dict[str, np.ndarray]:
    """The rows of a site."""
    rng = np.random.default_rng(number)
    x, y = rng.normal(size=(20, FLOATS)), rng.normal(size=20)
    return {"x": x.astype(np.float32), "y": y.astype(np.float32)}


def build(engine: Any) -> Any:
    """A linear regression with as many coefficients as the payload has floats a chain."""
    import consortia
    from consortia.engines.messages.site import Job

    sites = consortia.read_sites(rows, NAMES, method(), engine)
    return Job(consortia.models.linear_regression(FLOATS), sites, method(), CHAINS, 1, 0)


class OpenGate:
    """Everything may leave."""

    def admit(self, kind: str, question: Question) -> bool:
        """Every question is a first one."""
        return False

    def rows(self, number: int, parameters: int | None = None) -> None:
        """Any number."""

    def place(self, place: Place, *, again: bool) -> None:
        """Any place."""

    def release(
        self, kind: str, question: Question, payload: bytes, arrays: Mapping[str, np.ndarray]
    ) -> bytes:
        """The message."""
        return payload

    def refusal(
        self,
        error: BaseException,
        wrap: Callable[[str], bytes],
        question: Question | None = None,
    ) -> bytes:
        """In full: there is nothing to hide here."""
        return wrap(repr(error))


_sites: dict[str, Any] = {}


def site(number: int, folder: str) -> Any:
    """The site of a node, kept as long as its process."""
    name = NAMES[number]
    if name not in _sites:
        from consortia.data.facts import SiteFacts, read_table
        from consortia.engines.messages.site import MessageSite
        from consortia.federation.app import compute_inline

        compute_inline()
        gate: Gate = OpenGate()
        _sites[name] = MessageSite(
            name,
            number,
            Path(folder) / name,
            "benchmark",
            lambda: SiteFacts.of(read_table(rows(number), name)),
            build,
            lambda run: gate,
            lambda error, run, wrap: gate.refusal(error, wrap),
        )
    return _sites[name]


client = ClientApp()


@client.query()
def consortium(message: Message, context: Context) -> Message:
    """A site of the study."""
    number = int(context.node_config["partition-id"])
    payload = message.content["consortia"]["message"]
    reply = site(number, str(context.run_config["folder"])).answer(payload)
    return Message(RecordDict({"consortia": ConfigRecord({"message": reply})}), reply_to=message)


@client.train()
def bare(message: Message, context: Context) -> Message:
    """What a bare app does: reads the floats, and returns as many with JAX imported."""
    payload = message.content["consortia"]["message"]
    floats = np.frombuffer(payload, np.float32)
    assert jax is not None
    reply = (floats + np.float32(1)).tobytes()
    return Message(RecordDict({"consortia": ConfigRecord({"message": reply})}), reply_to=message)


# --- the server ----------------------------------------------------------------------------------

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Writes what was measured, or the error, which the simulation keeps to itself."""
    result = Path(str(context.run_config["result"]))
    try:
        found: dict[str, Any] = compared(grid, context)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    written = result.with_suffix(".part")
    written.write_text(json.dumps(found))
    written.rename(result)


def compared(grid: Grid, context: Context) -> dict[str, list[float]]:
    """Rounds of both, in turn; returns the CPU seconds a round of each pair."""
    import consortia
    from consortia.core.target import Target
    from consortia.engines.buffers import Window
    from consortia.federation.app import compute_inline

    compute_inline()
    pairs, rounds = int(context.run_config["pairs"]), int(context.run_config["rounds"])
    root = int(context.run_config["root"])
    engine = consortia.FlowerEngine(grid, NAMES, study="benchmark", deadline=120)
    job = build(engine)
    target = Target(job.model, job.model.init)
    run = engine.prepare(target, job.sites, job.algorithm, CHAINS)
    positions = jax.numpy.stack([target.ravel(job.model.init)] * CHAINS)
    run.start_values(positions)
    carry = run.start(job.seed, positions)
    buffers, done = run.buffers(carry), 0

    def study(count: int) -> None:
        nonlocal carry, buffers, done
        carry, buffers, finite = run.advance(
            carry, buffers, Window(done, done + count, 0, 10**7, 0)
        )
        assert finite.all()
        done += count

    nodes = list(grid.get_node_ids())
    payload = np.zeros(CHAINS * FLOATS, np.float32).tobytes()

    def exchange(count: int) -> None:
        for _ in range(count):
            content = RecordDict({"consortia": ConfigRecord({"message": payload})})
            waiting = set(grid.push_messages([Message(content, n, "train") for n in nodes]))
            pause = 0.0
            while waiting:
                for reply in grid.pull_messages(waiting):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    assert len(reply.content["consortia"]["message"]) == len(payload)
                time.sleep(pause)
                pause = min(pause + 0.01, 0.2)

    times: dict[str, list[float]] = {"FlowerEngine": [], "bare Flower app": []}
    contenders = {"FlowerEngine": study, "bare Flower app": exchange}
    for one in contenders.values():
        one(WARM)
    for _ in range(pairs):
        for name, one in contenders.items():
            before = spent(root)
            one(rounds)
            times[name].append((spent(root) - before) / rounds)
    return times
