r"""Gaussian surrogates of the sites' likelihoods, and the correction of gradients they give.

Site c's likelihood p(x_c | θ), a product over its rows without the prior, is approximated by a
Gaussian q_c. The Gaussians are computed once, at the sites, and shared once; what they change in a
gradient has mean zero over the sites, whatever they are, so a poor surrogate costs variance or
stability and never the target. `consortia.gradients.conducive` puts them to use.

Ways to make them: the user's own `Gaussian`; ``"anchored"``, ``"laplace"`` and ``"sgld_moments"``,
which `Recipe` describes.
"""

from __future__ import annotations

from consortia.surrogates.correction import Correction, correction_of, given_correction
from consortia.surrogates.examination import (
    Examination,
    examined,
    explain_divergence,
    explain_end,
    look_phase,
)
from consortia.surrogates.fitting import Recipe, Settings, fit_phases
from consortia.surrogates.gaussian import Gaussian, Natural, read_gaussians

__all__ = [
    "Correction",
    "Examination",
    "Gaussian",
    "Natural",
    "Recipe",
    "Settings",
    "correction_of",
    "examined",
    "explain_divergence",
    "explain_end",
    "fit_phases",
    "given_correction",
    "look_phase",
    "read_gaussians",
]
