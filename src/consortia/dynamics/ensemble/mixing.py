"""Measurements of how many chains mix: nested R-hat, drift, idle and divergent chains.

Source: Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari, Gelman, "Nested R-hat" (2024).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Vectors = Float[np.ndarray, "W d"]
Values = Float[np.ndarray, " W"]

MAX_SUPERCHAINS, MIN_GROUP_SIZE = 48, 8
"""Number of superchains, at most, and of the chains in one, at least."""

MAX_EXCESS, MAX_DRIFT = 0.01, 0.05
"""Bounds of what the starts have left: variance between superchains by that within, and change of a
mean or spread in one trajectory, in standard deviations, each beyond its noise. Superchains that
all began in the same wrong place agree with one another, but drift."""

NEARLY, NECK = 0.1, 30.0
"""Excess beyond which roughness may be that of a metric which is not yet adapted; and steepness,
see `Measured`, beyond which it is not, where trajectories diverge: that of a Gaussian is at most
14.6, whatever the metric."""

MAX_IDLE, MAX_DIVERGENT, MIN_BFMI = 0.002, 0.002, 0.3
"""Bounds beyond which trajectories of one step size do not explore the posterior."""

STEEP, MIN_BFMI_OF_STEEP = 6.0, 0.5
"""Ratio of the 99th percentile of squared forces to their median, beyond which the E-BFMI must be
larger: in the centred model of eight schools, whose neck chains do not enter, they are 14 to 28 and
.34 to .44. In Student's t, which chains explore, they are 1.2 to 2.7 and .38 to .56."""


class Points(NamedTuple):
    """Positions ζ of all chains, with U relative to the reference and its gradient in ζ."""

    positions: Vectors
    potentials: Values
    gradients: Vectors


class Measured(NamedTuple):
    """Measurements of one trajectory of all chains.

    Attributes:
        rate: mean acceptance rate.
        nested_r_hat: largest, over the coordinates, their distances to the mean, and U.
        excess: variance between superchains by that within, beyond its noise.
        drift: change of means and standard deviations, in standard deviations, beyond its noise.
        correlation: of beginnings and ends, of the coordinate with the largest absolute value.
        idle: share of chains that have not moved for long.
        divergent: share of trajectories that diverged, among those with steps of ε or less.
        bfmi: E-BFMI of the energies.
        steepness: 99th percentile of the squared forces of the chains, by their median.
    """

    rate: float = math.nan
    nested_r_hat: float = math.nan
    excess: float = math.nan
    drift: float = math.nan
    correlation: float = math.nan
    idle: float = math.nan
    divergent: float = math.nan
    bfmi: float = math.nan
    steepness: float = math.nan

    def obstacles(self) -> list[str]:
        """Return reasons why the chains have not settled; a bound is missed by nan as well."""
        conditions = {
            f"nested R-hat is {self.nested_r_hat:.3g}": self.excess <= MAX_EXCESS,
            f"means or spreads still drift by {self.drift:.2g} sd": self.drift <= MAX_DRIFT,
        }
        return [text for text, met in conditions.items() if not met] + self.roughness()

    def roughness(self, count: int = 0) -> list[str]:
        """Return the reasons that no longer run mends: one step size does not suit all places.

        Args:
            count: chains, where shares of them may be three standard errors beyond their bounds.
        """
        idle, divergent = (
            bound + (3 * math.sqrt(bound / count) if count else 0.0)
            for bound in (MAX_IDLE, MAX_DIVERGENT)
        )
        least = MIN_BFMI if self.steepness <= STEEP else MIN_BFMI_OF_STEEP
        conditions = {
            f"{self.idle:.2%} of the chains do not move": self.idle <= idle,
            f"{self.divergent:.2%} of the trajectories diverge": self.divergent <= divergent,
            f"the E-BFMI is {self.bfmi:.2g}": self.bfmi >= least,
        }
        return [text for text, met in conditions.items() if not met]


def resampled(
    points: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"],
    count: int,
    rng: np.random.Generator,
) -> Vectors:
    """Return starts by systematic resampling in random order: copies of a point are neighbours.

    They so belong to one superchain, and what the noise of the weights has left of the starts is
    what nested R-hat measures. To copies in all superchains it would be blind.
    """
    order = rng.permutation(len(points))
    levels = (np.arange(count) + rng.random()) / count * weights.sum()
    places = np.searchsorted(np.cumsum(weights[order]), levels)
    return points[order[np.minimum(places, len(points) - 1)]]


def nested_variances(values: Float[np.ndarray, "W q"]) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Return variances between and within superchains, (q,) each, their number and their size."""
    groups = min(MAX_SUPERCHAINS, len(values) // MIN_GROUP_SIZE)
    size = len(values) // groups
    parts = values[: groups * size].reshape(groups, size, -1)
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    return parts.mean(axis=1).var(axis=0, ddof=1), within, groups, size


def compare(before: Points, after: Points) -> Measured:
    """Compare the beginnings and ends of trajectories, and the superchains."""
    (old, new), (count, d) = (before.positions, after.positions), after.positions.shape
    first, second = old - old.mean(axis=0), new - new.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        monitored = np.concatenate([new, np.abs(second), after.potentials[:, None]], axis=1)
        between, within, groups, size = nested_variances(monitored)
        ratio = float(np.where(within > 0, between / within, np.inf).max())
        sd, sd_before = second.std(axis=0), first.std(axis=0)
        shift = np.maximum(np.abs((new - old).mean(axis=0)), np.abs(sd - sd_before)) / sd
        products = np.nan_to_num((first * second).mean(axis=0) / (sd * sd_before))
        bfmi = d / (after.potentials.var() + d / 2)
    return Measured(
        nested_r_hat=math.sqrt(1 + ratio),
        # The largest of many noisy variances counts.
        excess=ratio - 1 / size - 4 * math.sqrt(2 / (groups - 1)) / size,
        drift=float(shift.max()) - 4 * math.sqrt(2 / count),
        correlation=float(products[np.abs(products).argmax()]),
        bfmi=float(bfmi),
    )
