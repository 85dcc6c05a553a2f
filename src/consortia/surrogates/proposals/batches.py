"""A batch of draws and whether it is kept."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.dynamics.independence import Chains

LEAST_SHARE = 0.1
"""Effective share of a batch whose draws count."""

HEAVIEST = 0.006
"""Share of a batch's draws that its heaviest point may be, as expected."""

LEAST_OF_SHARE = 0.1
"""Effective draws by the effective number of proposals, at least: else chains stay somewhere."""


class Judged(NamedTuple):
    """A batch and what speaks against it.

    Attributes:
        chains: its draws.
        share: effective share of the weights.
        log_mean: logarithm of their mean.
        missed: largest mass along a line or parabola that the proposal hardly covers.
        not_covered: ways to what is too much of it.
        depth: mean of how far the draws lie below the highest point.
        heaviest: expected share of the draws at one point.
        effective: smallest effective size of the draws, of the bulk and of both tails.
        mass_error: standard error of the logarithm by which q is normalised.
        withheld: share of the proposals at which a log-density is not finite.
    """

    chains: Chains
    share: float
    log_mean: float
    missed: float
    not_covered: list[Float[np.ndarray, " d"]]
    depth: float
    heaviest: float
    effective: float = math.inf
    mass_error: float = 0.0
    withheld: float = 0.0

    @property
    def counts(self) -> bool:
        """True if the draws are kept."""
        return (
            self.depth <= 2 * self.chains.draws.shape[2] + 10
            and not self.not_covered
            and self.heaviest < HEAVIEST
            and self.share >= LEAST_SHARE
            and self.effective >= LEAST_OF_SHARE * self.share * self.chains.heights.size
        )
