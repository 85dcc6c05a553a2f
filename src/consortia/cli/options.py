"""The options that several commands share, and the engine that they choose."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from consortia.cli.exits import reported
from consortia.errors import InputError


class Engine(StrEnum):
    """Names of engines, which run the sites."""

    local = "local"
    mpi = "mpi"
    flower = "flower"


StudyFile = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of the run.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Replace the study's seed.")]
Chains = Annotated[int | None, typer.Option(min=1, help="Replace run.chains.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Replace run.rounds.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Code = Annotated[
    bool,
    typer.Option(
        "--code",
        help="Run the factory that makes the study's model: a factory is code and runs with your "
        "rights. Not needed for one that you have run before on this machine.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]

Devices = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of devices for the run. By default as many CPU cores, or GPUs, as divide the "
        "chains evenly.",
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Divide the run among processes on one or several hosts; process 0 listens here. "
        "Under srun: slurm, which finds the processes.",
    ),
]
Processes = Annotated[
    int | None, typer.Option(min=1, help="With --coordinator: the number of processes.")
]
Process = Annotated[
    int | None, typer.Option(min=0, help="With --coordinator: the index of this process, from 0.")
]

Together = tuple[str | None, int | None, int | None]
"""Coordinator, number of processes, index of this process."""


def engine_of(
    name: Engine, devices: int | None = None, together: Together = (None, None, None)
) -> Any:
    """Return the engine of that name, over so many devices or processes.

    Raises:
        typer.Exit: it needs an extra, is not in this version, or the processes do not come.
    """
    with reported(False):
        coordinator, processes, process = together
        if name is not Engine.local and (devices is not None or together != (None, None, None)):
            raise InputError(
                "--devices, --coordinator, --processes and --process are for the engine 'local', "
                f"not {name!r}: with that engine a process has one device."
            )
        if name is Engine.mpi:
            from consortia.engines.mpi import MPIEngine
            from consortia.engines.mpi.guard import stand_guard

            stand_guard("The saved draws are intact: continue with `consortia resume`.")
            return MPIEngine()
        if name is Engine.flower:
            raise InputError(
                "--engine flower: Flower itself runs such a study: write its app with `consortia "
                "flower new STUDY.toml` and start it with `flwr run`."
            )
        from consortia.engines.local import LocalEngine
        from consortia.engines.sharding import cores, offer_cpu_devices

        if together != (None, None, None):
            from consortia.engines.sharding import SLURM, join

            given = (processes is not None) + (process is not None)
            if coordinator is None or given != (0 if coordinator == SLURM else 2):
                raise InputError(
                    "--coordinator HOST:PORT, --processes and --process are used together: give "
                    "all three, or only --coordinator slurm."
                )
            join(coordinator, processes, process)
        elif devices is None:
            offer_cpu_devices(cores())
        return LocalEngine(devices=devices)
