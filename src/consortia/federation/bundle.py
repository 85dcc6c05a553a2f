"""Flower apps as files: their hash, by which a site approves them, and the study in them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

from consortia.errors import InputError, require_extra

STUDY = "study.toml"

MOST_BYTES, MOST_FILES = 2**24, 1000
"""Limits of an app that is unpacked; one of a study has a few files of some kilobytes."""


def app_hash(app: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of an app as Flower sends it: what ``flwr list`` shows as fab-hash.

    Args:
        app: the folder of an app, or the ``.fab`` file that ``flwr build`` made of it.

    Raises:
        InputError: it is not an app.
        MissingExtraError: it is a folder, and the extra ``flower`` is not installed.
    """
    path = Path(app)
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    with require_extra("flower", "the hash of an app needs the extra flower"):
        from flwr.cli.build import build_fab_from_disk
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what Flower itself uses
            return hashlib.sha256(build_fab_from_disk(path)).hexdigest()
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not a Flower app: {error}") from error


@contextlib.contextmanager
def study_of(app: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the study file in an app, with the modules beside it, while the context lasts.

    Raises:
        InputError: there is none, or there are several.
    """
    path = Path(app)
    if path.is_dir():
        yield _only(path, path)
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(path) as packed:
                _check_size(packed, path)
                packed.extractall(folder)
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is not a Flower app: {error}") from error
        yield _only(Path(folder), path)


def _check_size(packed: zipfile.ZipFile, path: Path) -> None:
    """Refuse to unpack more than an app of a study can hold; no file yields more than it says."""
    entries = packed.infolist()
    size = sum(entry.file_size for entry in entries)
    if size > MOST_BYTES or len(entries) > MOST_FILES:
        raise InputError(
            f"{path}: expected at most {MOST_FILES} files of together {MOST_BYTES:,} bytes, got "
            f"{len(entries)} of {size:,}; it is not unpacked. Ask for an app that "
            "`consortia flower new` wrote."
        )


def _only(folder: Path, path: Path) -> Path:
    studies = sorted(folder.rglob(STUDY))
    if len(studies) != 1:
        raise InputError(
            f"{path}: an app of consortia has one {STUDY}, here are {len(studies)}. Give what "
            "`consortia flower new` wrote."
        )
    return studies[0]
