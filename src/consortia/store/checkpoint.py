"""The checkpoints of a run: two files, each written whole or not at all, with a checksum.

A new checkpoint takes the place of the older one, so that a damaged file costs the rounds between
two checkpoints and no more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from consortia.errors import StoreError
from consortia.store.container import ContainerError, Format, VersionError
from consortia.store.durable import read_regular, replace_file

FORMAT = Format(b"CONSRTIA", 3, nonfinite=True)
NAMES = ("checkpoint-a.bin", "checkpoint-b.bin")

MAX_CHECKPOINT_BYTES = 2**40
"""More than any machine holds in memory: a longer file is not a checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two rounds."""

    # plain values: the specification of the run, its record, and how far it is
    header: dict[str, Any]
    arrays: dict[str, np.ndarray]  # everything else, by name
    index: int = 0  # which of the two files it was read from

    @property
    def done(self) -> int:
        """Iterations that are finished, warm-up included."""
        return int(self.header["done"])

    @property
    def kept(self) -> int:
        """Draws of each chain that the store must hold."""
        return int(self.header["kept"])


class ForeignFormat(StoreError):  # noqa: N818 - says what is there
    """A checkpoint was written in another format version."""


class Damaged(StoreError):  # noqa: N818 - says what is there
    """A checkpoint is torn or altered: its checksum differs."""


class Checkpoints:
    """The two checkpoints of a run directory."""

    def __init__(self, directory: Path) -> None:
        self._paths = [directory / name for name in NAMES]
        self._next = 0

    @property
    def present(self) -> bool:
        """True if there is a file, whatever its state."""
        return any(path.exists() for path in self._paths)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint in the place of the older one."""
        write(self._paths[self._next], checkpoint)
        self._next = 1 - self._next

    def readable(self) -> tuple[list[Checkpoint], list[str]]:
        """Return the checkpoints that can be read, latest first, and what is wrong with the others.

        Raises:
            ForeignFormat: one was written in another format version.
        """
        from consortia.store.record import Header, fits  # pydantic is heavy; few runs are read

        checkpoints: list[Checkpoint] = []
        problems = []
        for index, path in enumerate(self._paths):
            if not path.exists():
                continue
            try:
                candidate = replace(read(path), index=index)
            except Damaged as error:
                problems.append(str(error))
                continue
            if fits(Header, candidate.header):
                checkpoints.append(candidate)
            else:
                problems.append(f"{path.name} is damaged")
        checkpoints.sort(key=lambda checkpoint: checkpoint.header["number"], reverse=True)
        return checkpoints, problems

    def retain(self, checkpoint: Checkpoint) -> None:
        """Leave one in its place: the next that is saved replaces the other."""
        self._next = 1 - checkpoint.index


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Put a file with this checkpoint in the place of ``path``."""
    replace_file(path, FORMAT.pieces(checkpoint.header, checkpoint.arrays))


def read(path: Path) -> Checkpoint:
    """Read and check a file.

    Raises:
        ForeignFormat: it is whole, but of another format version.
        Damaged: it is not what was written.
    """
    try:
        return Checkpoint(*FORMAT.decode(read_regular(path, MAX_CHECKPOINT_BYTES)))
    except VersionError as error:
        age = "a newer" if error.version > FORMAT.version else "an older"
        raise ForeignFormat(
            f"{str(path)!r} was written by {age} version of consortia (checkpoint format "
            f"{error.version}, this one reads {FORMAT.version}): resume the run with that version."
        ).at(file=str(path)) from None
    except (ContainerError, OSError) as error:
        raise Damaged(f"{path.name} is damaged") from error
