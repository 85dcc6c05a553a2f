"""Quality of a result: convergence, summaries, predictions and their scores, distances."""

from consortia.core import public
from consortia.core.gaussian import gaussian_wasserstein2 as gaussian_wasserstein2
from consortia.diagnostics.convergence import ChunkVerdict as ChunkVerdict
from consortia.diagnostics.convergence import Convergence as Convergence
from consortia.diagnostics.convergence import add_diagnostics as add_diagnostics
from consortia.diagnostics.convergence import convergence as convergence
from consortia.diagnostics.convergence import rhat_and_ess as rhat_and_ess
from consortia.diagnostics.distances import marginal_error as marginal_error
from consortia.diagnostics.distances import marginal_wasserstein2 as marginal_wasserstein2
from consortia.diagnostics.distances import wasserstein2 as wasserstein2
from consortia.diagnostics.influence import PriorSensitivity as PriorSensitivity
from consortia.diagnostics.influence import WithoutSites as WithoutSites
from consortia.diagnostics.influence import leave_one_site_out as leave_one_site_out
from consortia.diagnostics.influence import prior_sensitivity as prior_sensitivity
from consortia.diagnostics.predictive import accuracy as accuracy
from consortia.diagnostics.predictive import brier as brier
from consortia.diagnostics.predictive import calibration_curve as calibration_curve
from consortia.diagnostics.predictive import (
    expected_calibration_error as expected_calibration_error,
)
from consortia.diagnostics.predictive import log_predictive_density as log_predictive_density
from consortia.diagnostics.predictive import negative_log_likelihood as negative_log_likelihood
from consortia.diagnostics.predictive import predict as predict
from consortia.diagnostics.predictive import rmse as rmse
from consortia.diagnostics.predictive import scores as scores
from consortia.diagnostics.stein import Stein as Stein
from consortia.diagnostics.stein import kernel_stein as kernel_stein
from consortia.diagnostics.summary import Summary as Summary
from consortia.diagnostics.summary import summary as summary

__all__ = public.names(vars())
