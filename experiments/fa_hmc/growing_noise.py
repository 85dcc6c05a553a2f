r"""Appendix K: gradient noise whose variance is at most σ² (‖∇f‖² + d), by its moments.

Two clients with even weights and common momenta, as those of figure 2, in one of d equal
coordinates: the noise of a client's gradient g has the variance σ² (E g² + 1). It is then a linear
function of second moments, and a round one of (1, E x, E x²), whatever the law of the noise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from experiments.claims import Finding, computed
from experiments.fa_hmc.dimension import (
    CURVATURES,
    LEAPFROG_STEPS,
    LOCAL_STEPS,
    MEANS,
    START,
    THRESHOLD,
    step_size,
)

NOISE = 100.0
"""σ², the variance of section 5.1."""
DIMENSIONS = (10, 30, 100, 300, 1000)
LEAPFROGS, TRAJECTORY = (5, 10, 20, 50), 0.2
MOST_ROUNDS, HALVINGS = 50_000, 24
FIRST, SECOND = 1, 3
"""Where the clients' positions stand in (1, x, p, x', p'); their momenta follow."""


def round_map(
    step: float, leapfrogs: int, noise: float, *, grows: bool = True, bare: bool = False
) -> np.ndarray:
    """Return the map of (1, E x, E x²) that is a round of T iterations, (3, 3).

    Args:
        step: η.
        leapfrogs: K.
        noise: σ².
        grows: the noise grows with the gradient; False: its variance is σ².
        bare: leave out momenta, the sites' means and the noise that does not grow.
    """
    kick, drift, slopes = np.eye(5), np.eye(5), []
    for at, mean, curvature in zip((FIRST, SECOND), MEANS, CURVATURES, strict=True):
        slope = np.zeros(5)
        slope[at], slope[0] = curvature, 0 if bare else -curvature * mean
        kick[at + 1] -= step / 2 * slope
        drift[at, at + 1] = step
        slopes.append(slope)
    average = np.array([[1, 0, 0, 0, 0], [0, 0.5, 0, 0.5, 0]])

    def kicked(square: np.ndarray) -> np.ndarray:
        made = kick @ square @ kick.T
        for at, slope in zip((FIRST, SECOND), slopes, strict=True):
            growing = slope @ square @ slope if grows else 0.0
            still = 0.0 if bare else square[0, 0]
            made[at + 1, at + 1] += step**2 / 4 * noise * (growing + still)
        return made

    columns = []
    for moments in np.eye(3):
        spread = np.array([[1, 0], [0, 1], [0, 0], [0, 1], [0, 0]])
        square = spread @ np.array([moments[:2], moments[1:]]) @ spread.T
        for _ in range(LOCAL_STEPS):
            for row in (FIRST + 1, SECOND + 1):
                square[row] = square[:, row] = 0
            momenta = np.ix_((FIRST + 1, SECOND + 1), (FIRST + 1, SECOND + 1))
            square[momenta] = 0.0 if bare else square[0, 0]
            for _ in range(leapfrogs):
                square = kicked(drift @ kicked(square) @ drift.T)
        (one, first), (_, second) = average @ square @ average.T
        columns.append([one, first, second])
    return np.array(columns).T


def rounds_needed(dimension: int, *, grows: bool) -> float:
    """Return the first round of figure 2 with W₂² < 0.1 by mean and variance; infinity if none."""
    one_round = round_map(step_size(dimension), LEAPFROG_STEPS, NOISE, grows=grows)
    precision = float(np.mean(CURVATURES))
    centre = float(np.mean(np.multiply(CURVATURES, MEANS))) / precision
    state = np.array([1.0, START, START**2])
    for number in range(1, MOST_ROUNDS):
        state = one_round @ state
        spread = math.sqrt(max(state[2] - state[1] ** 2, 0.0))
        if (state[1] - centre) ** 2 + (spread - precision**-0.5) ** 2 < THRESHOLD / dimension:
            return number
    return math.inf


def most_noise(leapfrogs: int) -> float:
    """Return the σ² from which on the second moment grows, with trajectories of one length."""
    low, high = 1.0, 1e6
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        grown = round_map(TRAJECTORY / leapfrogs, leapfrogs, middle, bare=True)[2, 2]
        low, high = (middle, high) if grown < 1 else (low, middle)
    return low


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return rounds by d with both kinds of noise, and the most noise by K."""
    return {
        "dimensions": DIMENSIONS,
        "growing": [rounds_needed(d, grows=True) for d in DIMENSIONS],
        "bounded": [rounds_needed(d, grows=False) for d in DIMENSIONS],
        "leapfrogs": LEAPFROGS,
        "most": [most_noise(leapfrogs) for leapfrogs in LEAPFROGS],
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the exponents of d in the rounds, and of K in the most noise."""
    growing, bounded, most = (
        float(np.polyfit(np.log(results[by]), np.log(results[values]), 1)[0])
        for by, values in (
            ("dimensions", "growing"),
            ("dimensions", "bounded"),
            ("leapfrogs", "most"),
        )
    )
    rounds = results["growing"][-1], results["bounded"][-1]
    return {
        "appk-dimension": computed(
            growing / bounded,
            f"{growing:.3f} over {bounded:.3f}; at d = {results['dimensions'][-1]} "
            f"{rounds[0]:.0f} rounds and {rounds[1]:.0f}",
        ),
        "appk-leapfrogs": computed(
            most, f"{most:.3f}; K = {results['leapfrogs'][0]}: σ² = {results['most'][0]:.0f}"
        ),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw rounds by d, and the most noise by K."""
    for name in ("growing", "bounded"):
        axes[0].loglog(results["dimensions"], results[name], "o-", ms=3, lw=0.8, label=name)
    axes[0].set(xlabel="d", ylabel="rounds to W₂² < 0.1, σ² = 100")
    axes[0].legend()
    axes[1].loglog(results["leapfrogs"], results["most"], "ko-", ms=3, lw=0.8)
    axes[1].set(xlabel="K at Kη = .2", ylabel="largest σ²")
