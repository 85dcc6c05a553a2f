"""Federated, asynchronous and decentralized Bayesian sampling."""

from consortia import diagnostics, graphs, latency, models, oracles, schedules, surrogates
from consortia.algorithms.decentralized.hmc import decentralized_exact_hmc, decentralized_hmc
from consortia.algorithms.decentralized.ula import decentralized_ula
from consortia.algorithms.fa_hmc import fa_hmc, fa_ld
from consortia.algorithms.federated_hmc import federated_hmc
from consortia.algorithms.few_rounds import few_rounds as few_rounds
from consortia.algorithms.gossip import de_sghmc, de_sgld
from consortia.algorithms.preconditioning import preconditioned
from consortia.algorithms.private_posterior import private_posterior as private_posterior
from consortia.algorithms.stale import stale_sghmc, stale_sgld, stale_sgnht
from consortia.algorithms.travelling import dsgld, fsgld
from consortia.core.model import Model
from consortia.core.version import __version__
from consortia.data import datasets, partition
from consortia.data.facts import read_sites
from consortia.data.sites import Sites
from consortia.diagnostics.left_out import loo
from consortia.diagnostics.natural import natural, recover
from consortia.diagnostics.predictive import predict
from consortia.diagnostics.summary import summary
from consortia.engines.flower import FlowerEngine
from consortia.engines.local import LocalEngine
from consortia.engines.mpi import MPIEngine
from consortia.models.networks.equinox import from_equinox
from consortia.models.networks.flax import from_flax
from consortia.models.networks.torch import from_torch
from consortia.models.numpyro import from_numpyro
from consortia.models.pymc import from_pymc
from consortia.models.regression.causes import cumulative_incidence
from consortia.models.regression.construction import regression
from consortia.models.regression.model import Regression
from consortia.models.regression.propensity import propensity_weights
from consortia.run.calibration import sbc
from consortia.run.sampling import resume, sample
from consortia.run.sizes import plan_size
from consortia.run.stopping import stop_when
from consortia.run.verification import verify
from consortia.store.accumulators import keep_moments, keep_predictions
from consortia.store.export import to_netcdf
from consortia.store.metadata import Metadata as Metadata
from consortia.store.runs import open_run
from consortia.theory.estimates import gradient_noise_variance, largest_curvature

__all__ = [
    "FlowerEngine",
    "LocalEngine",
    "MPIEngine",
    "Metadata",
    "Model",
    "Regression",
    "Sites",
    "__version__",
    "cumulative_incidence",
    "datasets",
    "de_sghmc",
    "de_sgld",
    "decentralized_exact_hmc",
    "decentralized_hmc",
    "decentralized_ula",
    "diagnostics",
    "dsgld",
    "fa_hmc",
    "fa_ld",
    "federated_hmc",
    "from_equinox",
    "from_flax",
    "from_numpyro",
    "from_pymc",
    "from_torch",
    "fsgld",
    "gradient_noise_variance",
    "graphs",
    "keep_moments",
    "keep_predictions",
    "largest_curvature",
    "latency",
    "loo",
    "models",
    "natural",
    "open_run",
    "oracles",
    "partition",
    "plan_size",
    "preconditioned",
    "predict",
    "propensity_weights",
    "read_sites",
    "recover",
    "regression",
    "resume",
    "sample",
    "sbc",
    "schedules",
    "stale_sghmc",
    "stale_sgld",
    "stale_sgnht",
    "stop_when",
    "summary",
    "surrogates",
    "to_netcdf",
    "verify",
]
