"""Gradient oracles: exact, minibatch, noisy; each may wrap another and has one signature."""

from consortia.gradients.base import GradientOracle
from consortia.gradients.control_variate import control_variate
from consortia.gradients.exact import exact
from consortia.gradients.minibatch import estimate, minibatch
from consortia.gradients.noisy import noisy

__all__ = [
    "GradientOracle",
    "control_variate",
    "estimate",
    "exact",
    "minibatch",
    "noisy",
]
