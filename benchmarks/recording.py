"""What recording, chunks and diagnostics cost a run of cheap steps (the SGLD of `langevin`).

- all draws kept against every thousandth;
- the run in the library's chunks against one call of the same program over all rounds, kept in
  memory and in a store with checkpoints;
- R-hat and ESS: their share of a run like the demonstration (4 chains of 31 parameters at 4 sites),
  of a run with 1,000 parameters, and of the SGLD run;
- programs compiled by a second, equal call.
"""

from __future__ import annotations

import importlib
import math
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

import consortia
from benchmarks import langevin
from benchmarks.measure import Contender, Gate, Row, interleaved, row_of, time_ratio

NAME = "run loop"
COMPILED = "/jax/core/compile/backend_compile_duration"

SIZES: dict[str, dict[str, int]] = {
    "full": {
        "steps": 200_000,
        "thin": 1000,
        "rounds": 90_000,
        "wide": 300,
        "pairs": 7,
        "shares": 3,
    },
    "quick": {"steps": 50_000, "thin": 1000, "rounds": 15_000, "wide": 50, "pairs": 5, "shares": 2},
    "tiny": {"steps": 300, "thin": 100, "rounds": 60, "wide": 5, "pairs": 1, "shares": 1},
}


def rows(scale: str) -> list[Row]:
    """The figures."""
    sizes = SIZES[scale]
    x, y = langevin.data()
    every = langevin.library(x, y, sizes["steps"], "every draw kept")
    thinned = langevin.library(x, y, sizes["steps"], "thinned", thin=sizes["thin"])
    stored = [_stored(x, y, sizes["steps"], thin) for thin in (10, 1)]
    contenders = [every, thinned, _in_one_call(every, sizes["steps"]), *stored]
    times = interleaved(contenders, sizes["pairs"])
    gate = Gate("<=", 1.05)
    result = [
        time_ratio(NAME, times, every.name, thinned.name, gate=gate, unit="step"),
        time_ratio(NAME, times, every.name, "one call", gate=gate, unit="step"),
        time_ratio(NAME, times, stored[0].name, "one call", gate=gate, unit="step"),
        time_ratio(NAME, times, stored[1].name, "one call", gate=None, unit="step"),
    ]
    share = Gate("<=", 0.02)
    demonstration = _demonstration(sizes["rounds"])
    result.append(_diagnostics(demonstration, "the demonstration", sizes["shares"], share))
    wide = _wide(sizes["wide"])
    result.append(_diagnostics(wide, "1,000 parameters, 4 chains", sizes["shares"], share))
    result.append(_diagnostics(every, f"SGLD, {sizes['steps']:,} steps", sizes["shares"], share))
    result.append(_programs_compiled(x, y))
    return result


def _in_one_call(contender: Contender, steps: int) -> Contender:
    """The same run with buffers for all draws and a single call of the program after the first."""

    def run(seed: int) -> Any:
        with (
            mock.patch("consortia.engines.local.MOST_SLOTS", steps),
            mock.patch("consortia.engines.local.CHUNK_BYTES", 2**40),
            mock.patch("consortia.run.loop.SECONDS_PER_CALL", 1e6),
            mock.patch("consortia.run.loop.SECONDS_PER_CHUNK", 1e6),
            mock.patch("consortia.run.loop.LARGEST_GROWTH", 10**9),
        ):
            return contender.run(seed)

    return Contender("one call", run, contender.work)


def _stored(x: np.ndarray, y: np.ndarray, steps: int, thin: int) -> Contender:
    """The same run into a store, with checkpoints."""
    model = consortia.models.logistic_regression(x.shape[1])
    sites = consortia.Sites.from_list([{"x": x, "y": y}])
    method = consortia.fa_ld(math.sqrt(2 * langevin.STEP), 1, batch_size=langevin.BATCH)

    def run(seed: int) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = {"chains": 1, "thin": thin, "store": Path(folder) / "run"}
            return consortia.sample(
                model, sites, method, rounds=steps, seed=seed, progress=False, **options
            )

    kept = "every draw" if thin == 1 else f"every {thin}th draw"
    return Contender(f"stored, {kept}", run, steps)


def _demonstration(rounds: int) -> Contender:
    """FA-HMC at four sites of the sizes of `examples/breast_cancer.toml`, on random rows."""
    rng = np.random.default_rng(0)
    model = consortia.models.logistic_regression(30, intercept=True)
    sites = consortia.Sites.from_list(
        [
            {
                "x": rng.normal(size=(rows, 30)).astype(np.float32),
                "y": rng.integers(0, 2, rows).astype(np.float32),
            }
            for rows in (114, 114, 114, 113)
        ]
    )
    method = consortia.fa_hmc(0.045, 2, 2)

    def run(seed: int) -> Any:
        return consortia.sample(
            model, sites, method, rounds=rounds, chains=4, thin=30, seed=seed, progress=False
        )

    return Contender("demonstration", run, rounds)


def _wide(rounds: int) -> Contender:
    """FA-HMC with 1,000 parameters, 20 sites of 200 rows and 4 chains, every draw kept."""
    rng = np.random.default_rng(0)
    model = consortia.models.logistic_regression(1000)
    shards = [
        {
            "x": (rng.normal(size=(200, 1000)) / 32).astype(np.float32),
            "y": rng.integers(0, 2, 200).astype(np.float32),
        }
        for _ in range(20)
    ]
    sites = consortia.Sites.from_list(shards)
    method = consortia.fa_hmc(0.02, 5, 5)

    def run(seed: int) -> Any:
        return consortia.sample(
            model, sites, method, rounds=rounds, chains=4, seed=seed, progress=False
        )

    return Contender("1,000 parameters", run, rounds)


def _diagnostics(contender: Contender, of: str, times: int, gate: Gate) -> Row:
    """The CPU time of R-hat and ESS over that of the whole call of `sample`."""
    contender.run(0)
    module = importlib.import_module("consortia.diagnostics.convergence")
    original, spent = module.add_diagnostics, [0.0]

    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.process_time()
        result = original(*arguments, **options)
        spent[0] = time.process_time() - began
        return result

    runs, diagnostics = [], []
    module.add_diagnostics = timed
    try:
        for seed in range(times):
            began = time.process_time()
            contender.run(seed)
            runs.append(time.process_time() - began)
            diagnostics.append(spent[0])
    finally:
        module.add_diagnostics = original
    detail = f"{np.median(diagnostics) * 1e3:.0f} ms of {np.median(runs):.2f} s"
    shares = np.asarray(diagnostics) / np.asarray(runs)
    return row_of(NAME, f"R-hat and ESS, share of a run: {of}", shares, gate, detail)


def _programs_compiled(x: np.ndarray, y: np.ndarray) -> Row:
    """How many programs a second call compiles: equal arguments, other seed and rounds."""
    compiled: list[str] = []

    def listen(event: str, seconds: float, **details: Any) -> None:
        if event == COMPILED:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        model = consortia.models.logistic_regression(x.shape[1])
        sites = consortia.Sites.from_list([{"x": x, "y": y}])
        counts = []
        for seed, rounds in ((1, 50), (2, 70)):
            compiled.clear()
            method = consortia.fa_ld(0.001, 1, batch_size=langevin.BATCH)
            consortia.sample(
                model, sites, method, rounds=rounds, seed=seed, progress=False, chains=1
            )
            counts.append(len(compiled))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    what = "programs compiled by a second, equal call"
    detail = f"the first call: {counts[0]}"
    return row_of(NAME, what, np.asarray([float(counts[1])]), Gate("<=", 0), detail)
