"""Two devices of the processor against one: image classification, and 20 small sites.

FA-HMC on the softmax regression shaped as Fashion-MNIST at ten sites, and on the logistic
regression at 20 sites of 50 rows; one chain, the sites divided between two cores. The peers are one
device that has one core; one device whose threads may use both, which is only told; and, of the
logistic regression, a bare JAX loop over the same two devices, whose average over the sites waits
as the library's does. Where idle cores of a virtual machine halt at once (``idle_polling_ns`` of
the machine is 0) each average wakes two of them, some 30 µs each.
Each contender has a process of its own, since the number of devices is fixed when JAX starts; they
take turns, each alone at its time. Wall time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.environment import ROOT, child_environment, pin_to_one_core, use_all_cores
from benchmarks.measure import Gate, Row, throughput

NAME = "devices"
SIZES: dict[str, dict[str, Any]] = {
    "full": {"pairs": 11, "images": 1, "sites": 2000},
    "quick": {"pairs": 3, "images": 2, "sites": 1000},
    "tiny": {"pairs": 1, "images": 1, "sites": 20},
}
GATES = {"images": 1.6, "sites": 1.5}
BARE = "bare"
WHAT = {"images": "softmax regression, 10 sites", "sites": "logistic regression, 20 sites"}


def problem(kind: str, scale: str) -> tuple[Any, Any, Any]:
    """Model, sites and method, as in the benchmarks of one core."""
    import consortia
    from benchmarks import federated_hmc, softmax

    if kind == "sites":
        small = federated_hmc.Problem.synthetic()
        x, y, steps = small.x, small.y.astype(np.int32), federated_hmc.STEP_SIZE
        model = consortia.models.logistic_regression(small.dimension)
        method = consortia.fa_hmc(steps, small.leapfrog_steps, small.local_steps)
    else:
        size = softmax.SIZES[scale]
        x, y = softmax.data(size["rows"])
        model = consortia.models.softmax_regression(softmax.FEATURES, softmax.CLASSES)
        method = consortia.fa_hmc(
            softmax.STEP_SIZE,
            softmax.LEAPFROG_STEPS,
            size["local_steps"],
            batch_size=size["batch"],
        )
    shards = [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
    return model, consortia.Sites.from_list(shards), method


def library(kind: str, scale: str, devices: int, rounds: int) -> Callable[[int], Any]:
    """The whole call of `consortia.sample`."""
    import consortia

    engine = consortia.LocalEngine(devices=devices)
    model, sites, method = problem(kind, scale)
    options = {"chains": 1, "rounds": rounds, "thin": rounds, "engine": engine, "progress": False}
    return lambda seed: consortia.sample(model, sites, method, seed=seed, **options)


def bare(rounds: int) -> Callable[[int], Any]:
    """The logistic regression in a hand-written sampler whose sites lie on all devices."""
    import jax

    from benchmarks import federated_hmc

    small = federated_hmc.Problem.synthetic()
    at_device = federated_hmc.bare_round(small, federated_hmc.hand_gradient, batched=True)
    mesh = jax.make_mesh((jax.device_count(),), ("sites",))
    cut, whole = jax.sharding.PartitionSpec("sites"), jax.sharding.PartitionSpec()
    chain = jax.jit(
        jax.shard_map(
            federated_hmc.bare_chain(
                small, rounds, lambda *state: jax.lax.psum(at_device(*state), "sites")
            ),
            mesh=mesh,
            in_specs=(whole, whole, cut, cut),
            out_specs=whole,
            check_vma=False,
        )
    )
    own = jax.sharding.NamedSharding(mesh, cut)
    x, y = (jax.device_put(values, own) for values in (small.x, small.y))
    start = np.zeros(small.dimension, np.float32)
    return lambda seed: np.asarray(chain(start, jax.random.key(seed), x, y))


def serve(kind: str, scale: str, devices: int, rounds: int) -> None:
    """Says when it has compiled; then runs for every line that it reads, and tells the seconds."""
    run = bare(rounds) if kind == BARE else library(kind, scale, devices, rounds)
    run(0)
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        run(number + 1)
        print(json.dumps(time.perf_counter() - began), flush=True)


def rows(scale: str) -> list[Row]:
    """The figures."""
    if (os.cpu_count() or 1) < 2:
        return [Row(NAME, "two devices / one", skipped="this machine has one core")]
    return [row for kind in GATES for row in _compared(kind, scale)]


def _compared(kind: str, scale: str) -> list[Row]:
    pairs, rounds = SIZES[scale]["pairs"], SIZES[scale][kind]
    environment = {**child_environment(), "JAX_NUM_CPU_DEVICES": "2"}
    environment.pop("XLA_FLAGS")  # a device may use all threads of its cores
    two, core, threads, loop = (
        f"{WHAT[kind]}, {of}"
        for of in (
            "two devices",
            "one core",
            "one device with two cores",
            "a bare loop on two devices",
        )
    )
    places: dict[str, tuple[str, int, Callable[[], Any]]] = {
        two: (kind, 2, use_all_cores),
        core: (kind, 1, pin_to_one_core),
        threads: (kind, 1, use_all_cores),
    }
    if kind == "sites":
        places[loop] = (BARE, 2, use_all_cores)
    started = {
        name: subprocess.Popen(
            [sys.executable, "-m", "benchmarks.devices", job, scale, str(count), str(rounds)],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=place,
        )
        for name, (job, count, place) in places.items()
    }
    for process in started.values():  # no turn is taken while another contender compiles
        assert process.stdout is not None
        process.stdout.readline()
    seconds: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(pairs):
        for name, process in started.items():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            seconds[name].append(json.loads(process.stdout.readline()) / rounds)
    for process in started.values():
        process.communicate()
    times = {name: np.asarray(values) for name, values in seconds.items()}
    told = [throughput(NAME, times, two, name) for name in places if name not in (two, core)]
    return [throughput(NAME, times, two, core, gate=Gate(">=", GATES[kind])), *told]


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
