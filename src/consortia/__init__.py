"""Federated, asynchronous and decentralized Bayesian sampling."""

from consortia import (
    datasets,
    diagnostics,
    graphs,
    latency,
    models,
    oracles,
    partition,
    schedules,
    surrogates,
)
from consortia.algorithms.decentralized import decentralized_hmc, decentralized_ula
from consortia.algorithms.federated_averaging import fa_hmc, fa_ld
from consortia.algorithms.federated_hmc import federated_hmc
from consortia.algorithms.gossip import de_sghmc, de_sgld
from consortia.algorithms.stale import stale_sghmc, stale_sgld, stale_sgnht
from consortia.algorithms.stale_measures import gradient_noise_variance, largest_curvature
from consortia.algorithms.travelling import dsgld, fsgld
from consortia.diagnostics.predictive import predict
from consortia.diagnostics.summary import summary
from consortia.engines.flower import FlowerEngine
from consortia.engines.local import LocalEngine
from consortia.engines.mpi import MPIEngine
from consortia.export import to_netcdf
from consortia.keeping import keep_moments, keep_predictions
from consortia.model import Model
from consortia.reading import read_sites
from consortia.sampling import resume, sample
from consortia.sites import Sites
from consortia.stopping import stop_when
from consortia.store import open_run

__version__ = "0.1.0"

__all__ = [
    "FlowerEngine",
    "LocalEngine",
    "MPIEngine",
    "Model",
    "Sites",
    "__version__",
    "datasets",
    "de_sghmc",
    "de_sgld",
    "decentralized_hmc",
    "decentralized_ula",
    "diagnostics",
    "dsgld",
    "fa_hmc",
    "fa_ld",
    "federated_hmc",
    "fsgld",
    "gradient_noise_variance",
    "graphs",
    "keep_moments",
    "keep_predictions",
    "largest_curvature",
    "latency",
    "models",
    "open_run",
    "oracles",
    "partition",
    "predict",
    "read_sites",
    "resume",
    "sample",
    "schedules",
    "stale_sghmc",
    "stale_sgld",
    "stale_sgnht",
    "stop_when",
    "summary",
    "surrogates",
    "to_netcdf",
]
