"""Peak memory of runs of unlike length, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Not getrusage: its peak starts from that of the process which forked this one.
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"
)

DIMENSION = 1000

RUN = """
import sys
import numpy as np
import consortia

rounds, thin, dimension, store = (*map(int, sys.argv[1:4]), sys.argv[4] or None)
model = consortia.Model(
    log_prior=lambda theta: -0.5 * (theta**2).sum(),
    log_likelihood=lambda theta, batch: -0.5 * ((batch - theta) ** 2).sum(axis=-1),
    init=np.zeros(dimension, np.float32),
)
sites = consortia.Sites.from_list([np.ones((2, dimension), np.float32)])
method = consortia.fa_ld(0.1, 1)
tree = consortia.sample(
    model, sites, method, rounds=rounds, chains=1, thin=thin, store=store, progress=False
)
assert tree["posterior"].sizes["draw"] == rounds // thin
status = open("/proc/self/status").read()
print(int(status.split("VmHWM:")[1].split()[0]) / 1024)
"""


def peak_mebibytes(
    rounds: int, thin: int, store: Path | str = "", dimension: int = DIMENSION
) -> float:
    arguments = [str(rounds), str(thin), str(dimension), str(store)]
    finished = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        # It computes for longer than it compiles.
        env={"JAX_PLATFORMS": "cpu", **os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    print(rounds, thin, "peak", finished.stdout)
    return float(finished.stdout)


@pytest.fixture(scope="module")
def short_run() -> float:
    """The peak of 1,000 rounds of which one draw is kept, without a store."""
    return peak_mebibytes(1000, 1000)


# 100,000 draws of 1,000 float32 numbers are 381 MiB, 1,000 of them 4 MiB. Besides the kept draws,
# their copy in the result and the buffers on the device the longer run needs what R-hat and ESS
# take: 10 MiB more in all were measured, 28 MiB with a store (most of it Zarr's code). The gate
# leaves room for other versions of the libraries and still finds a quarter of the draws.
@pytest.mark.parametrize(
    "stored",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["in memory", "stored"],
)
def test_thinned_draws_do_not_fill_the_memory(
    short_run: float, tmp_path: Path, stored: bool
) -> None:
    peak = peak_mebibytes(100_000, 100, tmp_path / "run" if stored else "")
    assert peak - short_run < 100


@pytest.mark.slow
@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
def test_a_million_rounds_need_less_than_300_mebibytes_more_than_a_thousand(
    short_run: float, tmp_path: Path, stored: bool
) -> None:
    peak = peak_mebibytes(1_000_000, 1000, tmp_path / "run" if stored else "")
    assert peak - short_run < 300


# 200,000 draws are 763 MiB on the disk. R-hat and ESS read them in slabs and keep the coordinates
# they look at; 150 MiB more than the short run were measured at half as many draws.
@pytest.mark.slow
def test_a_store_keeps_all_draws_out_of_the_memory(short_run: float, tmp_path: Path) -> None:
    peak = peak_mebibytes(200_000, 1, tmp_path / "run")
    assert peak - short_run < 300


# All ten million draws, 763 MiB, go to the store with a checkpoint after each piece of 8 MiB; 124
# MiB more than the short run were measured.
@pytest.mark.slow
def test_ten_million_draws_are_streamed_in_the_memory_of_a_thousand(tmp_path: Path) -> None:
    short = peak_mebibytes(1000, 1, tmp_path / "short", dimension=20)
    peak = peak_mebibytes(10_000_000, 1, tmp_path / "long", dimension=20)
    assert peak - short < 300
