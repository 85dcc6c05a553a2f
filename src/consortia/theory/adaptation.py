r"""Laws of Langevin dynamics with a preconditioner that adapts (pSGLD), on Gaussian targets.

.. math:: \theta' = \theta - h G g + N(0, 2hG), \qquad G_i = \frac{1}{\epsilon + \sqrt{v_i}}

with ε the floor and v the mean of the squared gradients of the chain. Over all of its past v comes
to rest, at a G that makes the squared gradients which it was made of:

.. math:: G_i = \frac{1}{\epsilon + \sqrt{(H \Sigma(G) H + C)_{ii}}}

Σ(G) being the covariance with that G and C that of the gradients' noise. This is SGLD on
:math:`\phi = G^{-1/2}\theta`, whose law is exact. A short memory has v follow θ: as h falls the
chain is the diffusion :math:`d\theta = -G(\theta)\nabla U\,dt + \sqrt{2G(\theta)}\,dW`, with the
density :math:`e^{-U}/G`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from consortia.core import arguments
from consortia.errors import wrong
from consortia.theory.affine import Array
from consortia.theory.arguments import check_density, matrix_of
from consortia.theory.law import Law, Moments
from consortia.theory.staleness import langevin_server, stale_server_law

MOST_ITERATIONS = 400
CLOSE = 1e-10
"""Relative change of G at which it has come to rest."""

NODES = 20_001
"""Points of the sums over θ with a short memory, from -12 to 12 posterior standard deviations."""


def psgld_law(
    step_size: float,
    precision: ArrayLike,
    *,
    floor: float,
    staleness: int = 0,
    gradient_noise: ArrayLike = 0.0,
) -> Law:
    """Return the law in the long run of pSGLD whose memory is all of its past (α = 1).

    It is stable at any step size: the longer it is, the larger are the gradients, and G falls.

    Args:
        step_size: h; the paper's is 2h/n, of n rows.
        precision: H of the target, a number, (d,) or (d, d).
        floor: ε, in the units of a gradient of U; the paper's λ times n.
        staleness: τ ≥ 0, constant.
        gradient_noise: C, a number, (d,) or (d, d).

    Returns:
        The law of θ around the target's mean.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> law = psgld_law(0.1, [1.0, 100.0], floor=1e-3)
        >>> law.stationary.variance_ratio.round(2)
        array([1.05, 1.64])
    """
    h, eps = arguments.positive("step_size", step_size), arguments.positive("floor", floor)
    hessian = matrix_of(precision, "precision")
    if not np.allclose(hessian, hessian.T, rtol=1e-8):
        raise wrong("precision", ": the matrix is not symmetric; give (H + H.T) / 2")
    check_density(hessian, "precision")
    noise = matrix_of(gradient_noise, "gradient_noise", len(hessian))
    metric = 1 / (eps + np.sqrt(np.diag(hessian + noise)))
    off = damping = 1.0
    change = np.zeros_like(metric)  # by which ln G is to move
    tried = metric
    for _ in range(MOST_ITERATIONS):
        law = _fixed(h, tried, hessian, noise, staleness)
        next_change = np.full_like(metric, np.inf)
        if law.stable:
            square = np.diag(hessian @ law.stationary.covariance @ hessian + noise)
            next_change = -np.log(tried * (eps + np.sqrt(square)))
        size = float(np.abs(next_change).max())
        if size < CLOSE:
            return law
        if size < off or (law.stable and not change.any()):
            metric, change, off = tried, next_change, size
            damping = min(1.0, 1.5 * damping)
        elif change.any():
            damping /= 2
        else:
            metric = metric / 4
        tried = metric * np.exp(damping * change)
    raise wrong("step_size", f": {h:g} is too long for its preconditioner to be found; lower it")


def psgld_short_memory_variance(
    curvature: float, *, floor: float, gradient_noise: float = 0.0
) -> float:
    r"""Return the variance to which pSGLD with a short memory tends as the step falls to zero.

    .. math:: p(\theta) \propto \bigl(\epsilon + \sqrt{\lambda^2\theta^2 + C}\bigr)
              e^{-\lambda\theta^2/2}

    Exact for any α < 1 where gradients are exact; with noise it is the limit of α to 1 after that
    of the step to 0. Without noise and floor the variance is 2/λ, twice the posterior's.

    Args:
        curvature: λ > 0.
        floor: ε ≥ 0, in the units of a gradient of U.
        gradient_noise: C ≥ 0.

    Returns:
        The variance of θ.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> round(psgld_short_memory_variance(1.0, floor=1e-9), 4)
        2.0
    """
    lam, eps = arguments.positive("curvature", curvature), arguments.number("floor", floor, 0.0)
    noise = arguments.number("gradient_noise", gradient_noise, 0.0)
    theta = np.linspace(-12, 12, NODES) / np.sqrt(lam)
    density = (eps + np.sqrt((lam * theta) ** 2 + noise)) * np.exp(-lam * theta**2 / 2)
    return float((density * theta**2).sum() / density.sum())


def _fixed(h: float, metric: Array, hessian: Array, noise: Array, staleness: int) -> Law:
    """Return the law with this G, along the principal directions of φ."""
    root = np.sqrt(metric)
    square = np.outer(root, root)
    values, axes = np.linalg.eigh(hessian * square)
    of_axes = np.maximum(np.sum(axes * ((noise * square) @ axes), axis=0), 0)
    law = stale_server_law(langevin_server(h, gradient_noise=of_axes), values, staleness)
    target = Moments(np.zeros_like(values), (axes / values) @ axes.T)
    return replace(law, target=target, axes=axes).in_units(root)
