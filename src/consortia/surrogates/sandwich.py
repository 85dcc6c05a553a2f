r"""The map that gives draws of a posterior the spread of a sandwich.

The product of likelihoods to the power of weights is not a likelihood of the rows: its draws have
the spread :math:`H^{-1}` around its mode :math:`\hat\theta`, while estimates from other samples of
the same population would scatter by

.. math::
    V = H^{-1} (J + P)\, H^{-1}, \qquad
    J = \sum_i s_i s_i^\top, \quad s_i = w_i \nabla \log p(y_i \mid \hat\theta),

with H the curvature of the log-posterior there and P that of the prior. The draws are moved to

.. math::
    \hat\theta + R\,(R^\top (J + P) R)^{1/2} R^{-1} (\theta - \hat\theta), \qquad H^{-1} = R R^\top,

which leaves them where they are if J is the curvature of the log-likelihood.

Source: Ribatet, Cooley, Davison, "Bayesian inference from composite likelihoods" (2012); Williams,
Savitsky, "Uncertainty estimation for pseudo-Bayesian inference under complex sampling" (2021).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Adjustment(NamedTuple):
    """The map of the draws.

    Attributes:
        mode: its fixed point.
        matrix: what differences from it are multiplied with.
        ratios: standard deviations after by before, of each parameter.
    """

    mode: Float[np.ndarray, " d"]
    matrix: Float[np.ndarray, "d d"]
    ratios: Float[np.ndarray, " d"]


def adjustment(
    mode: Float[np.ndarray, " d"],
    root: Float[np.ndarray, "d d"],
    products: Float[np.ndarray, "d d"],
    prior: Float[np.ndarray, "d d"],
) -> Adjustment:
    """Return the map of draws around a mode.

    Args:
        mode: of the weighted log-posterior.
        root: R, with R Rᵀ the inverse of its curvature.
        products: J, the sum of products of scores.
        prior: P, the curvature of the log-prior; what is negative in it is left out.
    """
    sizes, axes = np.linalg.eigh(prior)
    middle = root.T @ (products + (axes * np.maximum(sizes, 0)) @ axes.T) @ root
    sizes, axes = np.linalg.eigh((middle + middle.T) / 2)
    moved = root @ (axes * np.sqrt(np.maximum(sizes, 0))) @ axes.T
    spread = np.sqrt((moved**2).sum(axis=1) / (root**2).sum(axis=1))
    return Adjustment(mode, moved @ np.linalg.inv(root), spread)
