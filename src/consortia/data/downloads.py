"""Published files: found on disk, checked, cached, downloaded when asked.

A file is looked for in the directory that the environment variable ``CONSORTIA_DATA`` names (one
folder per data set), then in the cache, and only with ``download=True`` at the address where it is
published. Its checksum is compared each time it is read.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import numpy as np

from consortia.errors import ConsortiaError

TIMEOUT = 60.0
"""Seconds that a download may stand still."""


class DatasetMissing(ConsortiaError, FileNotFoundError):  # noqa: N818 - says what happened
    """A data set's file is neither in a directory, nor in the cache, nor to be downloaded."""


class DatasetCorrupted(ConsortiaError, OSError):  # noqa: N818 - says what happened
    """A data set's file is not the published one: its checksum differs."""


@dataclass(frozen=True)
class File:
    """One published file.

    Attributes:
        folder: the set's folder.
        name: file name.
        sha256: checksum of the file, or of what `content` names.
        address: where it can be downloaded, None when it cannot.
        content: "file"; "gzip", the decompressed bytes (when the compressor's header is not
            unique); "npz", the arrays' bytes in the order of their names.
        origin: how to get a file that has no address.
    """

    folder: str
    name: str
    sha256: str
    address: str | None
    content: str = "file"
    origin: str = ""


def cache_directory() -> Path:
    """``CONSORTIA_CACHE``, or ``consortia`` in the cache directory of the platform's user."""
    given = os.environ.get("CONSORTIA_CACHE")
    if given:
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "consortia"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "consortia" / "cache"
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "consortia"


def read_file(file: File, *, download: bool = False) -> bytes:
    """The bytes of a published file, its checksum verified.

    Raises:
        DatasetMissing: the file is nowhere, or its download failed.
        DatasetCorrupted: it is there, but its checksum is another.
    """
    cached = cache_directory() / file.folder / file.name
    given = os.environ.get("CONSORTIA_DATA")
    places = [Path(given).expanduser() / file.folder / file.name] if given else []
    for path in [*places, cached]:
        if path.is_file():
            data = path.read_bytes()
            _verify(file, data, str(path))
            return data
    missing = f"Data set {file.folder!r}: the file {file.name} was not found."
    looked = f"CONSORTIA_DATA is {given!r}" if given else "CONSORTIA_DATA is not set"
    looked += f" (a directory with a folder {file.folder}/), and the cache has no {cached}."
    if file.address is None:
        raise DatasetMissing(f"{missing} {looked} It cannot be downloaded. {file.origin}")
    if not download:
        raise DatasetMissing(
            f"{missing} {looked} It is published at {file.address}: download=True gets it from "
            "there."
        )
    try:
        with urllib.request.urlopen(file.address, timeout=TIMEOUT) as answer:
            data = answer.read()
    except (OSError, HTTPException) as error:
        raise DatasetMissing(
            f"{missing} Its download from {file.address} failed ({error}). {looked}"
        ) from error
    _verify(file, data, file.address)
    _write(cached, data)
    return data


def _verify(file: File, data: bytes, where: str) -> None:
    try:
        if file.content == "gzip":
            content = gzip.decompress(data)
        elif file.content == "npz":
            if not zipfile.is_zipfile(io.BytesIO(data)):
                raise ValueError("it is no npz file")
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                content = b"".join(arrays[key].tobytes() for key in sorted(arrays.files))
        else:
            content = data
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DatasetCorrupted(
            f"{where} is damaged ({error}): expected {file.content} content with sha256 "
            f"{file.sha256}, the file itself has {hashlib.sha256(data).hexdigest()}. Delete it "
            "and get it again."
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        kind = "" if file.content == "file" else f" of its {file.content} content"
        raise DatasetCorrupted(
            f"{where} is not the published {file.name}: the sha256{kind} is {found}, expected "
            f"{file.sha256}. Delete it and get it again."
        )


def _write(path: Path, data: bytes) -> None:
    """Write under another name, then rename: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
