"""A check, before Zarr reads, that a hierarchy is of this store's own making.

A run directory may come from somebody else. Zarr would follow links, run codecs that a description
names, and fill an array of any described length with zeros. Here descriptions are plain JSON, types
are numbers and names, and no array is longer than its files.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consortia.core.printable import is_printable
from consortia.store.durable import read_regular

DESCRIPTION = "zarr.json"
DESCRIPTION_BYTES = 2**20
GROUPS_MAX, ARRAYS_MAX = 64, 4000
AXES_MAX, LENGTH_MAX = 32, 2**40

NUMBERS = {
    "bool": 1,
    **{f"{kind}{bits}": bits // 8 for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": bits // 8 for bits in (16, 32, 64)},
    **{f"complex{bits}": bits // 8 for bits in (64, 128)},
}
"""Bytes of a number of each type."""

NAMES = "string"
NAME_BYTES = 4096
"""Bytes of a name, and of the pointer to it."""

CODECS = {"bytes", "vlen-utf8", "crc32c"}
"""All that this store writes."""

SLACK = 2**28
"""Bytes that all arrays may lack in their files: a write was cut short between the two."""

CHUNK_SLACK = 2**16
"""Bytes by which a damaged file may be too long, for a checksum to find."""


def check_hierarchy(path: Path) -> None:
    """Read all descriptions, and look at all files, of the groups in a directory.

    Raises:
        ValueError: something is there that this store does not write; the text says what and where.
        OSError: a file cannot be read.
    """
    if path.is_symlink():
        raise ValueError(f"{path.name!r} is a link")
    if not (path / DESCRIPTION).exists():
        raise ValueError("it is not a group of Zarr 3")
    _described(path, "group")
    groups = [entry for entry in _entries(path) if entry.is_dir(follow_symlinks=False)]
    if len(groups) > GROUPS_MAX:
        raise ValueError(f"there are more than {GROUPS_MAX} groups")
    lacking, count = 0, 0
    for group in groups:
        here = Path(group.path)
        if not (here / DESCRIPTION).exists():
            continue  # what a write that was cut short has left
        _described(here, "group")
        for entry in _entries(here):
            if entry.is_dir(follow_symlinks=False) and os.path.exists(
                f"{entry.path}/{DESCRIPTION}"
            ):
                count += 1
                if count > ARRAYS_MAX:
                    raise ValueError(f"there are more than {ARRAYS_MAX} arrays")
                lacking += _check_array(Path(entry.path), f"{group.name}/{entry.name}")
    if lacking > SLACK:
        raise ValueError(f"its files lack {lacking} bytes of the arrays that are described")


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """List a directory's files and directories; refuse links and all else."""
    with os.scandir(folder) as listing:
        entries = list(listing)
    for entry in entries:
        kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            raise ValueError(f"{entry.name!r} is a link, or no file")
        if not is_printable(entry.name):
            raise ValueError(f"{entry.name!r} is not a name that this store writes")
    return entries


def _described(folder: Path, kind: str) -> dict[str, Any]:
    """Return the description of a group or an array."""
    try:
        parts = json.loads(read_regular(folder / DESCRIPTION, DESCRIPTION_BYTES))
    except (ValueError, RecursionError):
        raise ValueError(f"{folder.name}: its description is not JSON") from None
    if not isinstance(parts, dict) or parts.get("zarr_format") != 3:
        raise ValueError(f"{folder.name}: it is not of Zarr's format 3")
    if parts.get("node_type") != kind or not isinstance(parts.get("attributes", {}), dict):
        raise ValueError(f"{folder.name}: it is not of the kind {kind!r}")
    return parts


def _check_array(folder: Path, where: str) -> int:
    """Check a description and its files; return how many bytes these are too few."""
    parts = _described(folder, "array")
    shape, chunk = _lengths(parts.get("shape")), _lengths(_inside(parts, "chunk_grid", "regular"))
    names, codecs = parts.get("dimension_names"), parts.get("codecs")
    if shape is None or chunk is None or len(shape) != len(chunk) or 0 in chunk:
        raise ValueError(f"{where}: its shape, or that of its chunks, is not a list of lengths")
    if not (isinstance(names, list) and len(names) == len(shape) and _are_names(names)):
        raise ValueError(f"{where}: the names of its axes are not strings, one an axis")
    if not (isinstance(codecs, list) and _codec_names(codecs) <= CODECS):
        raise ValueError(f"{where}: it is written with a codec that is not ours")
    if parts.get("storage_transformers") or _inside(parts, "chunk_key_encoding", "default") is None:
        raise ValueError(f"{where}: its files are stored in a way that is not ours")
    kind = parts.get("data_type")
    text = kind == NAMES
    if not isinstance(kind, str) or not (text or kind in NUMBERS):
        raise ValueError(f"{where}: it holds neither numbers nor names")
    if text != ("vlen-utf8" in _codec_names(codecs)):
        raise ValueError(f"{where}: its codec is of another type")
    each = NAME_BYTES if text else NUMBERS[kind]
    most = math.prod(chunk) * each + CHUNK_SLACK
    size = 0
    for file, length in _files(folder):
        if length > most:
            raise ValueError(f"{where}: {file.name!r} is longer than a chunk")
        if text and file.name.isdecimal():
            _check_names(file, math.prod(chunk), where)
        size += most if text else length
    return max(math.prod(shape) * each - size, 0)


def _inside(record: Mapping[str, Any], key: str, name: str) -> Any:
    """Return the configuration of a part of a description; None where it is of another kind."""
    part = record.get(key)
    if not isinstance(part, dict) or part.get("name") != name:
        return None
    inner = part.get("configuration", {})
    if not isinstance(inner, dict):
        return None
    return inner.get("chunk_shape") if key == "chunk_grid" else inner


def _lengths(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > AXES_MAX:
        return None
    good = all(type(length) is int and 0 <= length <= LENGTH_MAX for length in value)
    return tuple(value) if good else None


def _are_names(values: list[Any]) -> bool:
    return all(isinstance(name, str) and is_printable(name) for name in values)


def _codec_names(codecs: list[Any]) -> set[str]:
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in codecs]
    return {entry if isinstance(entry, str) else "" for entry in names}


def _files(folder: Path) -> list[tuple[Path, int]]:
    """Return all files below an array's directory but its description, with their lengths."""
    files, waiting = [], [folder]
    while waiting:
        for entry in _entries(waiting.pop()):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            elif entry.name != DESCRIPTION:
                files.append((Path(entry.path), entry.stat(follow_symlinks=False).st_size))
    return files


def _check_names(file: Path, most: int, where: str) -> None:
    """Check how many names a chunk says that it has: room is made for them before they are read."""
    with file.open("rb") as opened:
        count = int.from_bytes(opened.read(4), "little")
    if count > most:
        raise ValueError(f"{where}: {file.name!r} says that it has more names than a chunk")
