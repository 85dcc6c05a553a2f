"""Exact laws of the samplers on Gaussian targets: mean, covariance, bias, without Monte Carlo.

On a Gaussian target the approximate samplers are linear recursions with Gaussian noise, so the
law of every draw is known in closed form, bias included. The oracles answer "what will this
method return at these settings?", and a sampler is tested against its own predicted law.
"""

from __future__ import annotations

from consortia.oracles.federated_averaging import (
    FederatedAveragingLaw,
    fa_hmc_law,
    leading_order_mean_bias,
)
from consortia.oracles.travelling import (
    TravellingLaw,
    gradient_constants,
    location_shards,
    minibatch_covariance,
    travelling_law,
)

__all__ = [
    "FederatedAveragingLaw",
    "TravellingLaw",
    "fa_hmc_law",
    "gradient_constants",
    "leading_order_mean_bias",
    "location_shards",
    "minibatch_covariance",
    "travelling_law",
]
