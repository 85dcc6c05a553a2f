"""Federated, asynchronous and decentralized Bayesian sampling."""

from consortia import (
    datasets,
    diagnostics,
    graphs,
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
from consortia.algorithms.travelling import dsgld, fsgld
from consortia.diagnostics.predictive import predict
from consortia.diagnostics.summary import summary
from consortia.engines.local import LocalEngine
from consortia.model import Model
from consortia.sampling import sample
from consortia.sites import Sites
from consortia.stopping import stop_when
from consortia.store import open_run

__version__ = "0.1.0"

__all__ = [
    "LocalEngine",
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
    "graphs",
    "models",
    "open_run",
    "oracles",
    "partition",
    "predict",
    "sample",
    "schedules",
    "stop_when",
    "summary",
    "surrogates",
]
