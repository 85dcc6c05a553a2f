"""Ready models with Gaussian priors: regressions, metric learning, a network; sites by losses."""

from consortia.core import public
from consortia.models.linear import linear_regression as linear_regression
from consortia.models.logistic import logistic_regression as logistic_regression
from consortia.models.losses import local_losses as local_losses
from consortia.models.metric_learning import metric_learning as metric_learning
from consortia.models.mlp import mlp as mlp
from consortia.models.softmax import softmax_regression as softmax_regression

__all__ = public.names(vars())
