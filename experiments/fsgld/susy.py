"""Section 5.3's data: shards of unlike label shares, from a made-up set or from SUSY itself.

The made-up set has 18 standard normal features, and labels from a random network with one layer of
tanh units. The paper's is SUSY, 5 million rows of 18 features.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

import consortia
from consortia.data.datasets import DatasetMissing

FEATURES = 18
TEACHER_UNITS = 20
TEACHER_STEEPNESS = 4.0
ADDRESS = "https://archive.ics.uci.edu/ml/machine-learning-databases/00279/SUSY.csv.gz"

FILES = ("SUSY.csv.gz", "SUSY.csv")

Rows = dict[str, np.ndarray]


class Problem(NamedTuple):
    """Shards, a balanced test set, and the share of label 1 of each shard."""

    sites: consortia.Sites
    test: Rows
    shares: np.ndarray


def problem(
    seed: int,
    concentration: float,
    *,
    shards: int = 30,
    rows: int = 1000,
    test_rows: int = 4000,
    real: bool = False,
) -> Problem:
    """Shards whose share of label 1 is Beta(concentration, concentration).

    Args:
        seed: of everything.
        concentration: 0.5 for unlike shards, 100 for nearly equal ones.
        shards: S.
        rows: of each shard.
        test_rows: half of them of each label.
        real: take the rows from SUSY instead of making them up.
    """
    rng = np.random.default_rng(seed)
    shares = rng.beta(concentration, concentration, shards)
    positive = np.rint(shares * rows).astype(int)
    half = test_rows // 2
    wanted = {1: int(positive.sum()) + half, 0: shards * rows - int(positive.sum()) + half}
    pools = _real_rows(wanted, rng) if real else _made_up_rows(wanted, rng)

    def take(ones: int, zeros: int) -> Rows:
        parts = [(1, ones), (0, zeros)]
        x = np.concatenate([pools[label][:count] for label, count in parts])
        y = np.repeat(np.array([1, 0], np.int32), [ones, zeros])
        for label, count in parts:
            pools[label] = pools[label][count:]
        order = rng.permutation(len(x))
        return {"x": x[order].astype(np.float32), "y": y[order]}

    test = take(half, half)
    sites = consortia.Sites.from_list([take(count, rows - count) for count in positive])
    return Problem(sites, test, shares)


def _made_up_rows(wanted: dict[int, int], rng: np.random.Generator) -> dict[int, np.ndarray]:
    first = rng.normal(size=(FEATURES, TEACHER_UNITS)) / np.sqrt(FEATURES) * 2
    second = rng.normal(size=TEACHER_UNITS) / np.sqrt(TEACHER_UNITS)
    count = 3 * sum(wanted.values())
    x = rng.normal(size=(count, FEATURES))
    score = np.tanh(x @ first) @ second
    odds = TEACHER_STEEPNESS * (score - np.median(score)) / score.std()
    y = rng.uniform(size=count) < 1 / (1 + np.exp(-odds))
    return {label: x[y == label][: wanted[label]] for label in (0, 1)}


def _real_rows(wanted: dict[int, int], rng: np.random.Generator) -> dict[int, np.ndarray]:
    table = load_susy(4 * sum(wanted.values()))
    x, y = table["x"], table["y"]
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    order = rng.permutation(len(y))
    pools = {label: scaled[order][y[order] == label][: wanted[label]] for label in (0, 1)}
    for label, pool in pools.items():
        if len(pool) < wanted[label]:
            raise ValueError(f"SUSY's first rows hold {len(pool)} rows of label {label} only")
    return pools


def susy_is_here() -> bool:
    """Return True if SUSY's file is at hand."""
    return any((_folder() / name).is_file() for name in FILES)


def _folder() -> Path:
    return Path(os.environ.get("CONSORTIA_DATA", "")) / "susy"


def load_susy(rows: int) -> Rows:
    """The first rows of SUSY, x (rows, 18) float32 and y (rows,), 1 for signal.

    ``susy/SUSY.csv.gz`` (or ``SUSY.csv``) is looked for in the directory ``CONSORTIA_DATA``.

    Raises:
        DatasetMissing: it is not there.
    """
    folder = _folder()
    for name in FILES:
        path = folder / name
        if path.is_file():
            table = np.loadtxt(path, delimiter=",", max_rows=rows, dtype=np.float32)
            return {"x": table[:, 1:], "y": table[:, 0].astype(np.int32)}
    raise DatasetMissing(
        f"Data set 'susy': neither SUSY.csv.gz nor SUSY.csv in {folder} (CONSORTIA_DATA names the "
        f"directory above it). It is published at {ADDRESS}."
    )
