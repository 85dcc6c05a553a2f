"""Exact laws of the samplers on Gaussian targets: mean, covariance, bias, without Monte Carlo.

On a Gaussian target the approximate samplers are linear recursions with Gaussian noise, so the
law of every draw is known in closed form, bias included. The oracles answer "what will this
method return at these settings?", and a sampler is tested against its own predicted law.
"""

from __future__ import annotations

from consortia.theory.federated_averaging import (
    FederatedAveragingLaw,
    fa_hmc_law,
    leading_order_mean_bias,
)
from consortia.theory.gossip import de_sghmc_law, de_sgld_law
from consortia.theory.gossip_agents import GaussianAgents
from consortia.theory.gossip_law import GossipLaw, GossipMoments
from consortia.theory.gossip_stability import (
    Condition,
    gossip_conditions,
    largest_stable_step,
    mean_limit,
    step_bounds,
)
from consortia.theory.staleness import (
    SquareError,
    StaleLaw,
    check_stale_step_size,
    mean_square_growth,
    minibatch_noise,
    random_staleness_variance,
    stale_sgld_law,
    stale_sgld_variance,
    stale_square_error,
    stale_stability_limit,
)
from consortia.theory.staleness_momentum import (
    LinearServer,
    StaleServerLaw,
    langevin_server,
    sghmc_error_slopes,
    sghmc_server,
    stale_server_law,
    stale_server_radius,
    stale_sghmc_law,
)
from consortia.theory.staleness_trace import (
    TraceLaw,
    site_noise,
    stale_trace_growth,
    stale_trace_law,
)
from consortia.theory.travelling import (
    TravellingLaw,
    gradient_constants,
    location_shards,
    minibatch_covariance,
    travelling_law,
)

__all__ = [
    "Condition",
    "FederatedAveragingLaw",
    "GaussianAgents",
    "GossipLaw",
    "GossipMoments",
    "LinearServer",
    "SquareError",
    "StaleLaw",
    "StaleServerLaw",
    "TraceLaw",
    "TravellingLaw",
    "check_stale_step_size",
    "de_sghmc_law",
    "de_sgld_law",
    "fa_hmc_law",
    "gossip_conditions",
    "gradient_constants",
    "langevin_server",
    "largest_stable_step",
    "leading_order_mean_bias",
    "location_shards",
    "mean_limit",
    "mean_square_growth",
    "minibatch_covariance",
    "minibatch_noise",
    "random_staleness_variance",
    "sghmc_error_slopes",
    "sghmc_server",
    "site_noise",
    "stale_server_law",
    "stale_server_radius",
    "stale_sghmc_law",
    "stale_sgld_law",
    "stale_sgld_variance",
    "stale_square_error",
    "stale_stability_limit",
    "stale_trace_growth",
    "stale_trace_law",
    "step_bounds",
    "travelling_law",
]
