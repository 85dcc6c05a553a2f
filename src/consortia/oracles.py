"""Exact laws of the samplers on Gaussian targets: mean, covariance, bias, without Monte Carlo.

On a Gaussian target the approximate samplers are linear recursions with Gaussian noise, so the
law of every draw is known in closed form, bias included. The oracles answer "what will this
method return at these settings?", and a sampler is tested against its own predicted law.
"""

from __future__ import annotations

from consortia.theory.adaptation import psgld_law, psgld_short_memory_variance
from consortia.theory.agents import GaussianAgents
from consortia.theory.decentralized import decentralized_hmc_law, decentralized_ula_moments
from consortia.theory.estimates import minibatch_noise
from consortia.theory.federated_averaging import fa_hmc_law
from consortia.theory.gossip import de_sghmc_law, de_sgld_law
from consortia.theory.law import AgentMoments, Law, Moments
from consortia.theory.stability import (
    Condition,
    gossip_conditions,
    largest_stable_step,
    step_bounds,
)
from consortia.theory.staleness import (
    LinearServer,
    SquareError,
    langevin_server,
    sghmc_server,
    site_noise,
    stale_server_law,
    stale_sghmc_law,
    stale_sgld_law,
    stale_square_error,
    stale_trace_law,
)
from consortia.theory.travelling import gradient_constants, location_shards, travelling_law

__all__ = [
    "AgentMoments",
    "Condition",
    "GaussianAgents",
    "Law",
    "LinearServer",
    "Moments",
    "SquareError",
    "de_sghmc_law",
    "de_sgld_law",
    "decentralized_hmc_law",
    "decentralized_ula_moments",
    "fa_hmc_law",
    "gossip_conditions",
    "gradient_constants",
    "langevin_server",
    "largest_stable_step",
    "location_shards",
    "minibatch_noise",
    "psgld_law",
    "psgld_short_memory_variance",
    "sghmc_server",
    "site_noise",
    "stale_server_law",
    "stale_sghmc_law",
    "stale_sgld_law",
    "stale_square_error",
    "stale_trace_law",
    "step_bounds",
    "travelling_law",
]
