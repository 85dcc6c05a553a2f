"""Published files: found on disk, checked, cached, downloaded on request.

A file is looked for in the directory that the environment variable ``CONSORTIA_DATA`` names (one
folder per data set), then in the cache, and only with ``download=True`` at the address where it is
published. Its checksum is compared each time it is read.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consortia.errors import ConsortiaError

TIMEOUT_SECONDS = 60.0
"""Seconds for which a download may stall."""


class DatasetMissing(ConsortiaError, FileNotFoundError):  # noqa: N818 - says what happened
    """A data set's file is neither in a directory, nor in the cache, nor to be downloaded.

    Example:
        >>> issubclass(DatasetMissing, FileNotFoundError)
        True
    """


class DatasetCorrupted(ConsortiaError, OSError):  # noqa: N818 - says what happened
    """A data set's file is not the published one: its checksum differs.

    Example:
        >>> issubclass(DatasetCorrupted, OSError)
        True
    """


@dataclass(frozen=True)
class RemoteFile:
    """One published file."""

    folder: str  # the set's folder
    name: str  # file name
    sha256: str  # checksum of the file, or of what `content` names
    address: str | None  # where it can be downloaded, None when it cannot
    # "file"; "gzip", the decompressed bytes (when the compressor's header is not unique); "npz",
    # the arrays' bytes in the order of their names
    content: str = "file"
    origin: str = ""  # how to get a file that has no address


def cache_directory() -> Path:
    """Return ``CONSORTIA_CACHE``, or ``consortia`` in the platform's cache directory."""
    given = os.environ.get("CONSORTIA_CACHE")
    if given:
        return Path(given).expanduser()
    import pooch  # heavy, and needed by few runs

    return Path(pooch.os_cache("consortia"))


def directories() -> list[Path]:
    """List the folders searched for files: ``CONSORTIA_DATA`` if it is set, then the cache."""
    given = os.environ.get("CONSORTIA_DATA")
    return [*([Path(given).expanduser()] if given else []), cache_directory()]


def read_file(file: RemoteFile, *, download: bool = False) -> bytes:
    """Return the bytes of a published file, its checksum verified.

    Raises:
        DatasetMissing: the file is nowhere, or its download failed.
        DatasetCorrupted: it is there, but its checksum is another.
    """
    paths = [directory / file.folder / file.name for directory in directories()]
    for path in paths:
        if path.is_file():
            data = path.read_bytes()
            _verify(file, data, str(path))
            return data
    cached, given = paths[-1], os.environ.get("CONSORTIA_DATA")
    missing = f"Data set {file.folder!r}: the file {file.name} was not found."
    looked = f"CONSORTIA_DATA is {given!r}" if given else "CONSORTIA_DATA is not set"
    looked += f" (a directory with a folder {file.folder}/), and the cache has no {cached}."
    if file.address is None:
        text = f"{missing} {looked} It is not available for download. {file.origin}"
        raise DatasetMissing(text).at(file=file.name)
    if not download:
        raise DatasetMissing(
            f"{missing} {looked} It is published at {file.address}: download=True downloads it."
        ).at(file=file.name)
    try:
        return _download(file, file.address, cached)
    except DatasetCorrupted:
        raise
    except OSError as error:
        raise DatasetMissing(
            f"{missing} Its download from {file.address} failed ({error}). {looked}"
        ).at(file=file.name) from error


def _download(file: RemoteFile, address: str, path: Path) -> bytes:
    """Put a file into the cache; pooch renames it to ``path`` once it is whole and verified."""
    import pooch  # heavy, and needed by few runs

    fetch = pooch.HTTPDownloader(timeout=TIMEOUT_SECONDS)

    def fetch_verified(url: str, output: str, cache: Any) -> None:
        try:
            fetch(url, output, cache)
        except OSError as error:
            if (response := getattr(error, "response", None)) is not None:
                response.close()  # pooch leaves it open
            raise
        _verify(file, Path(output).read_bytes(), url)

    pooch.get_logger().setLevel("WARNING")
    pooch.retrieve(address, None, path.name, path.parent, downloader=fetch_verified)
    return path.read_bytes()


def _verify(file: RemoteFile, data: bytes, where: str) -> None:
    try:
        if file.content == "gzip":
            content = gzip.decompress(data)
        elif file.content == "npz":
            if not zipfile.is_zipfile(io.BytesIO(data)):
                raise ValueError("it is not an npz file")
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                content = b"".join(arrays[key].tobytes() for key in sorted(arrays.files))
        else:
            content = data
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DatasetCorrupted(
            f"{where} is damaged ({error}): expected {file.content} content with sha256 "
            f"{file.sha256}, but the file has {hashlib.sha256(data).hexdigest()}. Delete it and "
            "download it again."
        ).at(file=file.name) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        kind = "" if file.content == "file" else f" of its {file.content} content"
        raise DatasetCorrupted(
            f"{where} is not the published {file.name}: the sha256{kind} is {digest}, expected "
            f"{file.sha256}. Delete it and download it again."
        ).at(file=file.name)
