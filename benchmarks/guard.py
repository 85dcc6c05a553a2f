"""Ratios that no change may spoil: rounds, imports, small jobs; a few minutes, generous limits.

Every figure is a ratio of CPU times, each the least of several: what else the machine does makes
times longer and never shorter. The limits leave about a factor of two to what was measured, so that
another processor or version passes and a lost block, an eager loop or a program compiled twice
does not. What has no time left within `SECONDS` is skipped and said so.
``python -m benchmarks --only guard``; it is left out of the other benchmarks.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import consortia
from benchmarks import federated_hmc, gossip, langevin
from benchmarks.cold_start import CACHE
from benchmarks.environment import run_python
from benchmarks.measure import Contender, Gate, Row, interleaved
from consortia.core.target import Target
from consortia.engines.buffers import Window

NAME = "guard"
PAIRS = {"full": 5, "quick": 3, "tiny": 1}
STEPS = {"full": 4000, "quick": 2000, "tiny": 100}
SECONDS = 120.0
"""After which no other figure is begun."""


def rows(scale: str) -> list[Row]:
    """The figures, each with its limit."""
    pairs, steps = PAIRS[scale], STEPS[scale]
    began, found = time.monotonic(), []
    for what, figure in (*_rounds(pairs, steps), *_cold(min(pairs, 2))):
        if time.monotonic() - began > SECONDS:
            found.append(Row(NAME, what, skipped="no time left on this machine"))
        else:
            found.append(figure(what))
    return found


Figure = tuple[str, Callable[[str], Row]]


def _rounds(pairs: int, steps: int) -> Iterator[Figure]:
    """Rounds of the library's programs beside bare loops."""
    x, y = langevin.data()
    sgld = langevin.bare(x, y, steps, by_hand=True, block=64)
    model, sites = consortia.models.logistic_regression(x.shape[1]), [{"x": x, "y": y}]
    method: Any = consortia.fa_ld(0.001, 1, batch_size=langevin.BATCH)
    yield "SGLD, bare scan / consortia", _beside(sgld, model, sites, method, pairs, 0.5)
    problem = federated_hmc.Problem.synthetic()
    loop = federated_hmc.bare(problem, steps // 50, by_hand=True, batched=True)
    model = consortia.models.logistic_regression(problem.dimension)
    sites = [{"x": x, "y": y} for x, y in zip(problem.x, problem.y, strict=True)]
    method = consortia.fa_hmc(0.01, problem.leapfrog_steps, problem.local_steps)
    yield "FA-HMC, bare scan / consortia", _beside(loop, model, sites, method, pairs, 0.6)
    x, y = gossip.data(100)
    ring = gossip.bare(100, steps, by_hand=True, block=64)
    model = consortia.models.linear_regression(x.shape[-1])
    sites = [{"x": own, "y": answers} for own, answers in zip(x, y, strict=True)]
    method = consortia.de_sgld(1e-4, "ring")
    what = "gossip of 100 agents, bare scan / consortia"
    yield what, _beside(ring, model, sites, method, pairs, 1.0)


def _beside(
    bare: Contender, model: Any, shards: list[Any], method: Any, pairs: int, least: float
) -> Callable[[str], Row]:
    """The time of a bare loop's round over that of the library's program, at least this."""

    def figure(what: str) -> Row:
        target = Target(model, model.init)
        sites = consortia.Sites.from_list(shards)
        run = consortia.LocalEngine(devices=1).prepare(target, sites, method, 1)
        carry = run.start(0, target.flat(model.init)[None], 10**6)
        state = [carry, run.buffers(carry)]
        rounds = int(bare.work)

        def advance(seed: int) -> None:
            window = Window(0, rounds, 0, 1 if rounds < run.layout.slots else 2**30, 0)
            _, state[1], finite = run.advance(state[0], state[1], window)
            assert np.asarray(finite).all()

        ours = Contender("consortia", advance, rounds)
        times = interleaved([ours, bare], pairs)
        one, other = (float(times[name].min()) for name in (bare.name, ours.name))
        detail = f"{one * 1e6:.3g} µs / {other * 1e6:.3g} µs"
        return Row(NAME, what, one / other, pairs=pairs, gate=Gate(">=", least), detail=detail)

    return figure


def _cold(pairs: int) -> Iterator[Figure]:
    """Imports, a small job, and the same job when its programs are kept."""
    job, bare = ("-m", "benchmarks.cold_jobs", "library"), ("-m", "benchmarks.cold_jobs", "bare")

    def ratio(gate: Gate, seconds: Callable[[], tuple[float, float]]) -> Callable[[str], Row]:
        def figure(what: str) -> Row:
            one, other = seconds()
            detail = f"{one:.2f} s / {other:.2f} s"
            return Row(NAME, what, one / other, pairs=pairs, gate=gate, detail=detail)

        return figure

    def imports() -> tuple[float, float]:
        return _least([("-c", "import consortia"), ("-c", "import jax")], pairs)

    def kept() -> tuple[float, float]:
        found = []
        for _ in range(pairs):
            with tempfile.TemporaryDirectory() as folder:
                extra = {**CACHE, "JAX_COMPILATION_CACHE_DIR": folder}
                printed = [json.loads(run_python(*job, extra=extra)[1]) for _ in range(2)]
            found.append([one["compile_seconds"] for one in printed])
        empty, filled = np.min(found, axis=0)
        return float(filled), float(empty)

    yield "time, import consortia / import jax", ratio(Gate("<=", 0.5), imports)
    yield (
        "time, small job from cold, consortia / bare JAX",
        ratio(Gate("<=", 4.0), lambda: _least([job, bare], pairs)),
    )
    yield "compile time, filled cache / empty cache", ratio(Gate("<=", 0.5), kept)


def _least(commands: Sequence[tuple[str, ...]], pairs: int) -> tuple[float, float]:
    """The least CPU seconds of two commands, run in turn."""
    seconds = [[run_python(*command)[0] for command in commands] for _ in range(pairs)]
    one, other = np.min(seconds, axis=0)
    return float(one), float(other)
