"""Quality of a result: convergence, summaries, predictions and their scores, distances."""

from consortia.core.gaussian import gaussian_wasserstein2
from consortia.diagnostics.convergence import (
    ChunkVerdict,
    Convergence,
    add_diagnostics,
    convergence,
    rhat_and_ess,
)
from consortia.diagnostics.distances import (
    marginal_error,
    marginal_wasserstein2,
    wasserstein2,
)
from consortia.diagnostics.influence import (
    PriorSensitivity,
    WithoutSites,
    leave_one_site_out,
    prior_sensitivity,
)
from consortia.diagnostics.predictive import (
    accuracy,
    brier,
    calibration_curve,
    expected_calibration_error,
    log_predictive_density,
    negative_log_likelihood,
    predict,
    rmse,
    scores,
)
from consortia.diagnostics.stein import Stein, kernel_stein
from consortia.diagnostics.summary import Summary, summary
from consortia.diagnostics.units import in_column_units

__all__ = [
    "ChunkVerdict",
    "Convergence",
    "PriorSensitivity",
    "Stein",
    "Summary",
    "WithoutSites",
    "accuracy",
    "add_diagnostics",
    "brier",
    "calibration_curve",
    "convergence",
    "expected_calibration_error",
    "gaussian_wasserstein2",
    "in_column_units",
    "kernel_stein",
    "leave_one_site_out",
    "log_predictive_density",
    "marginal_error",
    "marginal_wasserstein2",
    "negative_log_likelihood",
    "predict",
    "prior_sensitivity",
    "rhat_and_ess",
    "rmse",
    "scores",
    "summary",
    "wasserstein2",
]
