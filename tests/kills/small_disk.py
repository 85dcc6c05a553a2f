"""Fills a disk of one MiB with a run, makes room, goes on: ``DIRECTORY``, in a mount namespace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import consortia
from consortia.errors import StoreError
from consortia.run import execution, loop

METHOD = consortia.fa_ld(0.05, 1)
MODEL = consortia.Model(
    log_prior=lambda theta: -0.5 * (theta**2).sum(),
    log_likelihood=lambda theta, batch: -0.5 * ((batch - theta[None]) ** 2).sum(axis=-1),
    init=np.zeros(2, np.float32),
)
SITES = consortia.Sites.from_list([np.ones((2, 2), np.float32), np.zeros((3, 2), np.float32)])
LENGTH: dict[str, Any] = {"chains": 1, "rounds": 200_000, "seed": 1, "progress": False}
"""1.6 MB of draws, in seven files."""

NOT_PERMITTED = 77


def mount(*options: str) -> None:
    """Ends with a code of its own where this is not permitted."""
    if subprocess.run(["mount", *options], check=False).returncode:
        raise SystemExit(NOT_PERMITTED)


def main(disk: Path) -> None:
    """Asserts what the test is about."""
    mount("-t", "tmpfs", "-o", "size=1m", "none", str(disk))
    loop.SECONDS_PER_CHUNK, execution.STORED_BYTES = -1.0, 2**18
    path = disk / "run"
    try:
        consortia.sample(MODEL, SITES, METHOD, store=path, **LENGTH)
    except StoreError as error:
        said = str(error)
    assert "No space left on device" in said
    assert f"make room, then continue with `consortia resume {path}`" in said
    whole = consortia.sample(MODEL, SITES, METHOD, **LENGTH)["posterior"]["theta"].values
    kept = consortia.open_run(path)["posterior"]["theta"].values
    assert 2**15 <= kept.shape[1] < 2**17, kept.shape  # at least the first of the files
    np.testing.assert_array_equal(kept, whole[:, : kept.shape[1]])
    mount("-o", "remount,size=8m", str(disk))
    tree = consortia.resume(path, MODEL, SITES, METHOD, progress=False)
    np.testing.assert_array_equal(tree["posterior"]["theta"], whole)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
