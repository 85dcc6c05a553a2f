"""What the tests of parity run in every engine: a small problem and the registry's examples.

Executed by the processes of a job as well, ``python problem.py ENGINE OUTPUT CASE ...``, where
ENGINE is ``mpi``, ``NODESxCHAINS`` (a mesh of so many devices of one process; with ``-parts`` sums
over sites are taken in parts, as those of large messages are) or
``PORT/PROCESSES/NUMBER`` (one of several processes that share their devices).
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import consortia
from consortia.algorithms.registry import ALGORITHMS

SIZES = (5, 8, 11, 6, 7, 9)
ROUNDS, WARMUP, SEED = 60, 10, 11
UPDATES, BURN = 2000, 100
PAUSES = 0.0005, 0.0015
"""Seconds that the workers of a server sleep over each gradient in a test, and that its last one
does: unlike, and so that it keeps a share that the engine accepts however fast the others are."""


def sites(count: int) -> consortia.Sites:
    """Unlike sites of unlike sizes."""
    rng = np.random.default_rng(0)
    return consortia.Sites.from_list(
        [
            {
                "x": rng.normal(number / 2, 1, (size, 2)),
                "y": (rng.uniform(size=size) < 0.3 + number / 10).astype(np.int32),
            }
            for number, size in enumerate(SIZES[:count])
        ]
    )


MODEL = consortia.models.logistic_regression(2, intercept=True)


def is_asynchronous(name: str) -> bool:
    """Whether its messages arrive one at a time."""
    return "workers" in ALGORITHMS[name].example


def sampled(name: str, count: int, chains: int, engine: Any, seed: int = SEED, **more: Any) -> Any:
    """The result of an algorithm's example on so many sites (None where nothing is kept)."""
    arguments = ALGORITHMS[name].example | more
    lengths = {"rounds": ROUNDS, "warmup": WARMUP}
    if is_asynchronous(name):
        lengths = {"rounds": UPDATES, "warmup": BURN}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return consortia.sample(
            MODEL,
            sites(count),
            ALGORITHMS[name].factory(**arguments),
            **lengths,
            chains=chains,
            seed=seed,
            engine=engine,
            on_divergence="ignore",  # the prediction is no part of what is compared
            progress=False,
        )


GAUSSIANS = tuple(
    consortia.surrogates.Gaussian(np.full(3, number / 5), (1 + number) * np.eye(3))
    for number in range(5)
)
"""One for each of five sites, all unlike."""

CASES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    f"{name}-{chains}": (name, 5, chains, {})
    for name in ALGORITHMS
    for chains in (1, 2)
    if not is_asynchronous(name)
} | {
    "de_sgld-agents": ("de_sgld", 6, 2, {"averaged_noise": True, "mixing": "path"}),
    "fsgld-updates": ("fsgld", 5, 2, {"record": "updates"}),
    "fsgld-given": ("fsgld", 5, 2, {"surrogate": GAUSSIANS}),
    "fa_hmc-debiased": ("fa_hmc", 5, 1, {"debias": True, "batch_size": 3}),
    "fa_hmc-within": (
        "fa_hmc",
        5,
        2,
        {"local_steps": 1, "average_every": 2, "batch_size": 3, "momentum_correlation": 0.5},
    ),
}
"""Label to algorithm, sites, chains and further arguments."""

DIVIDED = {
    f"{label}-even": (name, 6, *rest)
    for label, (name, _, *rest) in CASES.items()
    if label != "fsgld-given"
} | {"stale_sghmc-even": ("stale_sghmc", 1, 2, {})}
"""The same with a number of sites that two devices divide."""

ASYNCHRONOUS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    f"{name}-replay": (name, 1, chains, {})
    for name, chains in (("stale_sgld", 2), ("stale_sghmc", 1), ("stale_sgnht", 2))
} | {
    "stale_sgld-sites": ("stale_sgld", 3, 1, {"shares": (0.4, 0.4, 0.2)}),
    "stale_sgld-steps": ("stale_sgld", 3, 2, {"local_steps": 4, "max_staleness": 4}),
    "stale_sghmc-capped": ("stale_sghmc", 1, 1, {"max_staleness": 4}),
}

SINGLE: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "single-within": ("fa_hmc", 6, 2, CASES["fa_hmc-within"][3]),
    "single-every-step": ("fa_hmc", 6, 2, {"local_steps": 1, "average_every": 1}),
    "single-debiased": ("fa_hmc", 6, 2, {"debias": True, "batch_size": 3}),
}
"""Cases in numbers of 32 bits."""

SHARING = {
    "fa_ld": "fa_hmc",
    "dsgld": "fsgld",
    "de_sgld": "de_sghmc",
    "stale_sgld": "stale_sghmc",
    "stale_sgnht": "stale_sghmc",
    "decentralized_ula": "decentralized_hmc",
    "decentralized_exact_hmc": "federated_hmc",
}
"""Algorithms whose phases and exchanges are another one's; their tests that compile are slow."""


def repeats(label: str) -> bool:
    """Return True if a case is the plain example of an algorithm that shares its exchanges."""
    name, *_, more = (CASES | DIVIDED | ASYNCHRONOUS)[label]
    return name in SHARING and not more


PARTS = "-parts"
CARRIED = "mpi-carried"
"""MPI as it is where JAX computes on an accelerator: the host carries messages between pieces."""


def slowed(engine: Any) -> None:
    """Makes the last worker of this job slower than the others."""
    from consortia.engines.mpi.workers import Worker

    plain, pause = Worker._fetch, PAUSES[engine.rank == engine.ranks - 1]

    def late(self: Worker, *arguments: Any) -> None:
        time.sleep(pause)
        plain(self, *arguments)

    Worker._fetch = late


def engine_of(kind: str) -> Any:
    """The engine that a process is told to use."""
    if kind.startswith("mpi"):
        if kind == CARRIED:
            from consortia.engines.mpi.callback import HostCallback

            HostCallback.in_place = lambda: False
        return consortia.MPIEngine(deadline=120)
    if kind.endswith(PARTS):
        from consortia.engines import exchanges

        exchanges.MOST_IN_ORDER = 0
        kind = kind.removesuffix(PARTS)
    if "x" in kind:
        nodes, chains = (int(part) for part in kind.split("x"))
        devices = np.asarray(jax.devices()[: nodes * chains]).reshape(nodes, chains)
        return consortia.LocalEngine(jax.sharding.Mesh(devices, ("nodes", "chains")))
    from consortia.engines.sharding import join

    port, processes, number = kind.split("/")
    join(f"127.0.0.1:{port}", int(processes), int(number))
    return consortia.LocalEngine()


def main() -> None:
    """One process's part: runs the cases and, at the root, stores each result."""
    kind, output, *labels = sys.argv[1:]
    engine = engine_of(kind)
    if kind.startswith("mpi"):
        slowed(engine)
    for label in labels:
        jax.config.update("jax_enable_x64", label not in SINGLE)
        name, count, chains, more = (CASES | DIVIDED | ASYNCHRONOUS | SINGLE)[label]
        tree = sampled(name, count, chains, engine, **more)
        if tree is not None:
            tree.to_zarr(Path(output) / f"{label}.zarr")


if __name__ == "__main__":
    main()
