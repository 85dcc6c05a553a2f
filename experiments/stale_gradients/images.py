"""Images for the networks of section 5.2, of which a part can stand for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import consortia
from consortia.data import datasets
from experiments import records
from experiments.stale_gradients import workers


@dataclass(frozen=True)
class Size:
    """How many training and test images are taken at random; all when None."""

    train: int | None
    test: int | None


@dataclass(frozen=True)
class Images:
    """Images (rows, height, width, channels) of 0 to 255 with their labels.

    Attributes:
        sites: one site with the images that are taken.
        test: the test images that are taken.
        rows: N, all training images of the set.
        copies: how many images each one that is taken stands for, so that N stays what it is, and
            with it the step size, the noise and the weight of the prior.
        mean: of all training images.
    """

    sites: consortia.Sites
    test: dict[str, np.ndarray]
    rows: int
    copies: float
    mean: np.ndarray


def load(name: str, shape: tuple[int, int, int], size: Size, seed: int) -> Images:
    """A data set, cut down.

    Raises:
        DatasetMissing: it is not here.
    """
    data = datasets.load(name)
    assert data.train is not None
    assert data.test is not None
    rng = np.random.default_rng(seed)

    def part(rows: dict[str, np.ndarray], most: int | None) -> dict[str, np.ndarray]:
        # The sets may be sorted by class.
        chosen = rng.permutation(len(rows["y"]))[:most]
        return {"x": rows["x"][chosen].reshape(-1, *shape), "y": rows["y"][chosen]}

    train, count = part(data.train, size.train), len(data.train["y"])
    return Images(
        sites=consortia.Sites.from_list([train]),
        test=part(data.test, size.test),
        rows=count,
        copies=count / len(train["y"]),
        mean=data.train["x"].reshape(-1, *shape).mean(axis=0).astype(np.float32),
    )


def study(
    name: str,
    shape: tuple[int, int, int],
    problem: Callable[[Images], workers.Problem],
    size: Size,
    lengths: workers.Scale,
    seed: int,
) -> dict[str, Any]:
    """Workers and servers on a set of images; an absent one is skipped by name."""
    data = load(name, shape, size, seed)
    note = f"{data.sites.rows} of {data.rows} training images, {len(data.test['y'])} test images"
    records.say(f"{name}: {note}")
    return {"note": note} | workers.study(problem(data), lengths, seed)
