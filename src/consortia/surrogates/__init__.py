r"""Gaussian surrogates of the sites' likelihoods, and the correction of gradients they give.

Site c's likelihood p(x_c | θ), a product over its rows without the prior, is approximated by a
Gaussian q_c. The Gaussians are computed once, at the sites, and shared once; what they change in a
gradient has mean zero over the sites, whatever they are, so a poor surrogate costs variance or
stability and never the target. `consortia.surrogates.conducive` puts them to use.

Ways to make them: the user's own `Gaussian`; ``"anchored"``, ``"laplace"`` and ``"sgld_moments"``,
which `Recipe` describes.
"""

from __future__ import annotations

# Parts of FSGLD and of conducive gradients, not for users.
from consortia.surrogates.conducive import conducive as conducive
from consortia.surrogates.correction import Correction as Correction
from consortia.surrogates.correction import correction_of as correction_of
from consortia.surrogates.correction import given_correction as given_correction
from consortia.surrogates.examination import Examination as Examination
from consortia.surrogates.examination import examined as examined
from consortia.surrogates.examination import explain_divergence as explain_divergence
from consortia.surrogates.examination import explain_end as explain_end
from consortia.surrogates.examination import look_phase as look_phase
from consortia.surrogates.fitting import Recipe
from consortia.surrogates.fitting import Settings as Settings
from consortia.surrogates.fitting import fit_phases as fit_phases
from consortia.surrogates.gaussian import Gaussian
from consortia.surrogates.gaussian import Natural as Natural
from consortia.surrogates.gaussian import read_gaussians as read_gaussians

__all__ = ["Gaussian", "Recipe"]
