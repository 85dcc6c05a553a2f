"""Exact laws of the samplers on Gaussian targets: mean, covariance, bias, without Monte Carlo.

On a Gaussian target the approximate samplers are linear recursions with Gaussian noise, so the
law of every draw is known in closed form, bias included. The oracles answer "what will this
method return at these settings?", and a sampler is tested against its own predicted law.
"""

from consortia.core import public
from consortia.theory.adaptation import psgld_law as psgld_law
from consortia.theory.adaptation import psgld_short_memory_variance as psgld_short_memory_variance
from consortia.theory.agents import GaussianAgents as GaussianAgents
from consortia.theory.decentralized import decentralized_hmc_law as decentralized_hmc_law
from consortia.theory.decentralized import decentralized_ula_moments as decentralized_ula_moments
from consortia.theory.estimates import minibatch_noise as minibatch_noise
from consortia.theory.federated_averaging import fa_hmc_law as fa_hmc_law
from consortia.theory.gossip import de_sghmc_law as de_sghmc_law
from consortia.theory.gossip import de_sgld_law as de_sgld_law
from consortia.theory.law import AgentMoments as AgentMoments
from consortia.theory.law import Law as Law
from consortia.theory.law import Moments as Moments
from consortia.theory.stability import Condition as Condition
from consortia.theory.stability import gossip_conditions as gossip_conditions
from consortia.theory.stability import largest_stable_step as largest_stable_step
from consortia.theory.stability import step_bounds as step_bounds
from consortia.theory.staleness import LinearServer as LinearServer
from consortia.theory.staleness import SquareError as SquareError
from consortia.theory.staleness import langevin_server as langevin_server
from consortia.theory.staleness import sghmc_server as sghmc_server
from consortia.theory.staleness import site_noise as site_noise
from consortia.theory.staleness import stale_server_law as stale_server_law
from consortia.theory.staleness import stale_sghmc_law as stale_sghmc_law
from consortia.theory.staleness import stale_sgld_law as stale_sgld_law
from consortia.theory.staleness import stale_square_error as stale_square_error
from consortia.theory.staleness import stale_trace_law as stale_trace_law
from consortia.theory.travelling import location_shards as location_shards
from consortia.theory.travelling import travelling_law as travelling_law

__all__ = public.names(vars())
