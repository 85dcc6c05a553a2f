"""Figures 2c and 3 by a real clock: servers and workers are MPI processes, on a9a.

The paper has five machines of eight cores. One machine has fewer cores than workers, so that a
worker rests for a tenth of a second in each gradient: as long as a worker elsewhere might take to
compute it. One and two workers are run without that pause too; there they compete for the cores.
Time runs from the first gradient that arrives, so that starting and compiling are left out.

A job of processes runs this module: ``mpiexec -n 1+W python -m experiments.stale_gradients.clock``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from consortia.errors import InputError
from experiments import records
from experiments.claims import ROOT, Finding
from experiments.stale_gradients import logistic, workers

PAUSE = 0.1
"""Seconds of a gradient that a worker rests."""

COMPUTING = 2
"""Most workers that are run without a pause."""

LONGER = 50
"""Times as many iterations without a pause, of which only the rate is of use."""

SETTLED = 5
"""Updates a worker after which the rate of updates is measured."""


class Scale(NamedTuple):
    """Numbers of workers, iterations a worker, places of a curve, independent runs."""

    workers: tuple[int, ...]
    iterations: int
    points: int
    runs: int


SCALES = {
    "quick": Scale((1, 2), 10, 5, 1),
    "small": Scale((1, 2, 4, 6, 9), 60, 20, 5),
    "full": Scale((1, 2, 4, 6, 9), 1000, 50, 10),
}


def rested(model: consortia.Model, seconds: float) -> consortia.Model:
    """Return a model whose likelihood takes so much longer wherever it is evaluated."""

    def rest(one: np.ndarray) -> np.ndarray:
        time.sleep(seconds)
        return np.ones_like(one)

    def log_likelihood(position: Any, batch: Any) -> Any:
        corner = batch["x"][0, 0]
        shape = jax.ShapeDtypeStruct(corner.shape, corner.dtype)
        # The gradient takes the factor too, which is 1: else the rest would be optimised away.
        factor = jax.pure_callback(rest, shape, corner, vmap_method="sequential")
        return model.log_likelihood(position, {**batch, "x": batch["x"] * factor})

    return dataclasses.replace(model, log_likelihood=log_likelihood)


def job(count: int, pauses: list[float], scale: Scale, seed: int) -> dict[str, list[Any]]:
    """Return the runs of so many workers by their pause.

    Raises:
        InputError: there is no MPI launcher.
        RuntimeError: the job failed.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    if launcher is None:
        raise InputError("real processes need mpiexec: pip install 'consortia[mpi]'.")
    with tempfile.TemporaryDirectory() as folder:
        asked, found = Path(folder, "asked.json"), Path(folder, "found.json")
        asked.write_text(json.dumps([count, pauses, *scale, seed]))
        command = [sys.executable, "-m", "experiments.stale_gradients.clock", asked, found]
        told = subprocess.run(
            [launcher, "-n", str(1 + count), *map(str, command)],
            cwd=ROOT.parent,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if told.returncode:
            raise RuntimeError(f"{count} workers ended with {told.returncode}: {told.stderr}")
        return json.loads(found.read_text())


def rank(asked: Path, found: Path) -> None:
    """Run as one process of a job; the first one writes what was found."""
    count, pauses, _, iterations, points, runs, seed = json.loads(asked.read_text())
    problem = logistic.problem()
    step, friction = workers.settings(problem, 1.0)
    loss = jax.jit(lambda theta: -jnp.mean(problem.model.log_likelihood(theta, problem.test)))
    results: dict[str, list[Any]] = {}
    for pause in pauses:
        model = rested(problem.model, pause) if pause else problem.model
        length = iterations if pause else LONGER * iterations
        updates, each = length * count, length // points * count
        method = consortia.stale_sghmc(
            np.full(updates, step), friction, problem.batch, workers=count
        )
        for i in range(runs):
            tree = consortia.sample(
                model, problem.sites, method, rounds=updates, thin=each, seed=100 * (seed + i),
                engine=consortia.MPIEngine(), progress=False, chains=1,
            )  # fmt: skip
            if tree is None:
                continue
            times = np.asarray(tree["events"]["time"])
            drawn = np.asarray(tree["posterior"]["coefficients"])[0]
            busy = times[SETTLED * count :]
            results.setdefault(f"{pause:g}", []).append(
                {
                    "loss": [float(loss({"coefficients": one})) for one in drawn],
                    "time": (times[each - 1 :: each] - times[0])[:points].tolist(),
                    "rate": (len(busy) - 1) / float(busy[-1] - busy[0]),
                    "staleness": json.loads(tree.attrs["staleness"]),
                }
            )
    if results:
        found.write_text(json.dumps(results))


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return curves, speed-ups, rates and staleness by the number of workers, by pause."""
    size = SCALES[scale]
    runs: dict[str, dict[int, list[Any]]] = {}
    load = os.getloadavg()[0]
    for count in size.workers:
        pauses = [0.0, PAUSE] if count <= COMPUTING else [PAUSE]
        for pause, found in job(count, pauses, size, seed).items():
            runs.setdefault(pause, {})[count] = found
            rate = np.mean([one["rate"] for one in found])
            records.say(f"W = {count}, pause {pause} s: {rate:.1f} updates a second")
    result: dict[str, Any] = {"cores": os.cpu_count(), "load": load, "pauses": {}}
    for pause, by_workers in runs.items():
        length = size.iterations * (1 if float(pause) else LONGER)
        places = length // size.points * np.arange(1, size.points + 1)
        curves = {
            count: [one | {"diverged": None} for one in found]
            for count, found in by_workers.items()
        }
        entries = workers.compare_workers(curves, places)
        for entry in entries:
            found = by_workers[entry["workers"]]
            rates = [one["rate"] for one in found]
            entry["rate"] = [np.mean(rates), np.std(rates) / max(len(rates) - 1, 1) ** 0.5]
            entry["staleness"] = float(np.mean([np.mean(one["staleness"]) for one in found]))
        result["pauses"][pause] = entries
    return result


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return time speed-ups over the number of workers, and staleness."""
    computing, resting = (results["pauses"][f"{pause:g}"] for pause in (0.0, PAUSE))
    two, most = computing[-1], resting[-1]
    late = most["staleness"] / (most["workers"] - 1)

    def rates(entries: list[Any], entry: Any) -> Finding:
        (alone, first), (fast, last) = entries[0]["rate"], entry["rate"]
        ratio, runs = fast / alone / entry["workers"], len(entry["diverged"])
        error = ratio * ((first / alone) ** 2 + (last / fast) ** 2) ** 0.5 if runs > 1 else None
        found = Finding(ratio, error, pairs=runs)
        shown = (
            f"{found.text}: {alone:.1f} updates a second with 1 worker, {fast:.1f} with "
            f"{entry['workers']}; {results['cores']} cores, load {results['load']:.1f} by others"
        )
        return dataclasses.replace(found, shown=shown)

    return {
        "real-computing": rates(computing, two),
        "real-rate": rates(resting, most),
        "real-time": workers.over_workers(most, "time_speedup"),
        # Staleness of gradients taken and in flight is L (W - 1) over L updates, whatever the
        # clock; of workers in turn W (W - 1) / 2 is in flight at the end, and L is n W.
        "real-staleness": Finding(late, law=1 - 1 / (2 * most["iterations"][-1])),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw loss by iterations a worker and by time, speed-ups, and staleness."""
    resting, computing = results["pauses"][f"{PAUSE:g}"], results["pauses"]["0"]
    for entry in resting:
        loss = np.array(entry["loss"], float).mean(axis=0)
        label = f"W = {entry['workers']}"
        axes[0].plot(entry["iterations"], loss, lw=0.9, label=label)
        axes[1].plot(entry["time"], loss, lw=0.9, label=label)
    axes[0].set(xlabel="iterations a worker", ylabel="test loss")
    axes[1].set(xlabel=f"seconds, a pause of {PAUSE:g} s a gradient")
    for axis in axes[:2]:
        workers.logarithmic(axis)
    axes[0].legend()
    numbers = [entry["workers"] for entry in resting]
    for entries, label in ((resting, f"pause {PAUSE:g} s"), (computing, "computing")):
        alone = entries[0]["rate"][0]
        axes[2].errorbar(
            [e["workers"] for e in entries],
            [e["rate"][0] / alone for e in entries],
            [2 * e["rate"][1] / alone for e in entries],
            fmt="o-", ms=3, lw=0.9, label=f"updates a second, {label}",
        )  # fmt: skip
    times = [e["time_speedup"][0] for e in resting]
    axes[2].plot(numbers, [np.nan if t is None else t for t in times], "s--", ms=3, lw=0.9,
                 label="time to one worker's loss")  # fmt: skip
    axes[2].plot(numbers, numbers, "k:", lw=0.7, label="linear")
    axes[2].set(xlabel="workers W", ylabel="speed-up")
    axes[2].legend()
    axes[3].plot(numbers, [e["staleness"] for e in resting], "o-", ms=3, lw=0.9, label="measured")
    axes[3].plot(numbers, np.array(numbers) - 1, "k:", lw=0.7, label="W − 1")
    axes[3].set(xlabel="workers W", ylabel="mean staleness")
    for axis in axes[2:4]:
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[3].legend()


if __name__ == "__main__":
    rank(Path(sys.argv[1]), Path(sys.argv[2]))
