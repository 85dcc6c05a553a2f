"""The checkpoint of a run: one file, written whole or not at all, with a checksum.

Layout: eight bytes ``CONSRTIA``, the format version (4 bytes, little endian), the SHA-256 of
everything else (32 bytes), then a NumPy archive (``.npz``, nothing pickled) of the arrays and of
the header, which is JSON. The first 44 bytes mean the same in every format version, so that a file
of another version is told from a damaged one.

Two files are kept. A new checkpoint takes the place of the older one, so that a damaged file costs
the rounds between two checkpoints and no more.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from consortia.errors import StoreError

MAGIC = b"CONSRTIA"
FORMAT = 2
NAMES = ("checkpoint-a.npz", "checkpoint-b.npz")
PREAMBLE = len(MAGIC) + 4 + 32
HEADER = "header"
BLOCK = 2**20


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two rounds.

    Attributes:
        header: plain values: the specification of the run, its record, and how far it is.
        arrays: everything else, by name.
        place: which of the two files it was read from.
    """

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]
    place: int = 0

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
        """Whether there is a file, whatever its state."""
        return any(path.exists() for path in self._paths)

    def save(self, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint over the older one, at once and for good."""
        write(self._paths[self._next], checkpoint)
        self._next = 1 - self._next

    def readable(self) -> tuple[list[Checkpoint], list[str]]:
        """The checkpoints that can be read, the latest first, and what is wrong with the others.

        Raises:
            ForeignFormat: one was written in another format version.
        """
        found: list[Checkpoint] = []
        problems = []
        for place, path in enumerate(self._paths):
            if not path.exists():
                continue
            try:
                found.append(replace(read(path), place=place))
            except Damaged as error:
                problems.append(str(error))
        found.sort(key=lambda checkpoint: checkpoint.header["number"], reverse=True)
        return found, problems

    def keep(self, checkpoint: Checkpoint) -> None:
        """Leaves one in its place: the next that is saved takes the other."""
        self._next = 1 - checkpoint.place


# --- one file ------------------------------------------------------------------------------------


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Writes a file beside ``path``, has it on the disk, and puts it in its place."""
    if HEADER in checkpoint.arrays:
        raise ValueError(f"an array cannot be named {HEADER!r}")
    header = np.frombuffer(json.dumps(checkpoint.header).encode(), np.uint8)
    temporary = path.with_suffix(".part")
    with temporary.open("w+b") as file:
        file.write(bytes(PREAMBLE))
        arrays: dict[str, Any] = {HEADER: header, **checkpoint.arrays}
        np.savez(_Tail(file), **arrays)
        file.seek(0)
        file.write(MAGIC + FORMAT.to_bytes(4, "little"))
        digest = _digest(file)
        file.seek(len(MAGIC) + 4)
        file.write(digest)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


def read(path: Path) -> Checkpoint:
    """Reads and checks a file.

    Raises:
        ForeignFormat: it is whole, but of another format version.
        Damaged: it is not what was written.
    """
    with path.open("rb") as file:
        start = file.read(PREAMBLE)
        if len(start) < PREAMBLE or start[: len(MAGIC)] != MAGIC or _digest(file) != start[-32:]:
            raise Damaged(f"{path.name} is damaged")
        version = int.from_bytes(start[len(MAGIC) : len(MAGIC) + 4], "little")
        if version != FORMAT:
            age = "a newer" if version > FORMAT else "an older"
            raise ForeignFormat(
                f"{str(path)!r} was written by {age} version of consortia (checkpoint format "
                f"{version}, this one reads {FORMAT}): resume the run with that version."
            )
        file.seek(PREAMBLE)
        try:
            with np.load(_Tail(file), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            header = json.loads(arrays.pop(HEADER).tobytes())
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise Damaged(f"{path.name} is damaged ({error})") from error
    return Checkpoint(header, arrays)


def _digest(file: BinaryIO) -> bytes:
    """Of the whole file but the place of the digest itself."""
    digest = hashlib.sha256()
    file.seek(0)
    digest.update(file.read(len(MAGIC) + 4))
    file.seek(PREAMBLE)
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.digest()


class _Tail:
    """A file without its preamble, for the archive, which counts from its own beginning."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.read, self.write, self.flush = file.read, file.write, file.flush

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset + (PREAMBLE if whence == 0 else 0), whence) - PREAMBLE

    def tell(self) -> int:
        return self._file.tell() - PREAMBLE

    def seekable(self) -> bool:
        return True


def sync_directory(directory: Path) -> None:
    """Has the names in a directory on the disk; only POSIX knows how."""
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 of plain values."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
