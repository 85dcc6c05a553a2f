"""The one table of algorithms, read by the documentation, the command line and the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from consortia.algorithms.federated_averaging import fa_hmc, fa_ld


@dataclass(frozen=True)
class Entry:
    """What a user should know of an algorithm before using it.

    Attributes:
        factory: the public function that makes it.
        samples: the density of its draws, in words.
        bias: order of the stationary bias, and where it comes from.
        draw: what one draw is.
        step_size: drift, noise variance, and the step h' of the equal SGLD update.
        source: paper and algorithm number.
        engines: engines that run it.
        example: arguments with which it runs on any sites, for tests and documentation.
    """

    factory: Callable[..., Any]
    samples: str
    bias: str
    draw: str
    step_size: str
    source: str
    engines: tuple[str, ...]
    example: dict[str, Any]


_FEDERATED_AVERAGING = "Liang, Zhang, Deng, Song, Lin (2024)"

ALGORITHMS: dict[str, Entry] = {
    "fa_hmc": Entry(
        factory=fa_hmc,
        samples="a law near the posterior (no Metropolis test)",
        bias="mean O((K eta)^2 T) with unlike sites (debias=True removes it on Gaussian targets), "
        "variance O(eta^2)",
        draw="the weighted average of the sites, one a round",
        step_size="eta: drift eta^2/2, noise variance eta^2, h' = eta^2/2",
        source=f"{_FEDERATED_AVERAGING}, algorithms 1-3, B.1, B.2",
        engines=("local",),
        example={"step_size": 0.02, "leapfrog_steps": 3, "local_steps": 2},
    ),
    "fa_ld": Entry(
        factory=fa_ld,
        samples="a law near the posterior (no Metropolis test)",
        bias="mean O(eta^2 (T - 1)) with unlike sites, variance O(eta^2)",
        draw="the weighted average of the sites, one a round",
        step_size="eta: drift eta^2/2, noise variance eta^2, h' = eta^2/2",
        source=f"{_FEDERATED_AVERAGING}, algorithm 3 with K = 1",
        engines=("local",),
        example={"step_size": 0.02, "local_steps": 2},
    ),
}
