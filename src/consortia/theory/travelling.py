r"""The exact law of chains that travel between sites (DSGLD, FSGLD) on Gaussian likelihoods.

Site s has the likelihood :math:`\exp(-\tfrac12(\theta - m_s)^\top H_s(\theta - m_s))` and is
visited with probability :math:`f_s`. There one update is affine with Gaussian noise,

.. math::
    \theta' = \theta - \tfrac h2 (J_s\theta - k_s) + N(0, Q_s), \qquad
    Q_s = hI + \tfrac{h^2}{4 f_s^2} C_s, \\
    J_s = P + H_s/f_s + \alpha(\Lambda - \Lambda_s/f_s), \quad
    k_s = P m_0 + H_s m_s/f_s + \alpha(\Lambda\mu - \Lambda_s\mu_s/f_s)

with the prior :math:`N(m_0, P^{-1})`, the surrogates :math:`N(\mu_s, \Lambda_s^{-1})`, their
product :math:`N(\mu, \Lambda^{-1})` and the covariance :math:`C_s` of the minibatch estimate of the
shard's gradient. Sites are drawn anew for each visit, so that the first two moments of the law obey
linear equations whatever the sites; the law itself is a mixture of Gaussians.

Source: the algorithms are those of El Mekkaoui, Mesquita, Blomstedt, Kaski (2021), section 3. The
formulas are derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consortia.errors import InputError
from consortia.theory.gaussian_clients import count, filled, floats, number
from consortia.theory.travelling_law import TravellingLaw, Visits

__all__ = [
    "TravellingLaw",
    "gradient_constants",
    "location_shards",
    "minibatch_covariance",
    "travelling_law",
]

Array = NDArray[np.floating[Any]]


def travelling_law(
    means: ArrayLike,
    precisions: ArrayLike,
    probabilities: ArrayLike | None = None,
    *,
    step_size: float,
    local_steps: int,
    prior_mean: ArrayLike = 0.0,
    prior_precision: ArrayLike = 0.0,
    gradient_noise: ArrayLike | None = None,
    strength: float = 0.0,
    surrogates: Sequence[Any] | None = None,
) -> TravellingLaw:
    r"""The first two moments of DSGLD (``strength=0``) and FSGLD in the long run.

    S sites, d parameters. With :math:`A_s = 1 - \tfrac h2 J_s` a visit is
    :math:`\theta \mapsto A_s^T\theta + b_s + N(0, R_s)`, and

    .. math::
        \mu = \sum_s f_s (A_s^T\mu + b_s), \qquad
        M = \sum_s f_s \bigl[A_s^T M A_s^{T\top} + A_s^T\mu b_s^\top + b_s\mu^\top A_s^{T\top}
        + b_s b_s^\top + R_s\bigr]

    for the mean and the second moment of the ends of visits. If all sites have the same
    :math:`A` (equal curvatures, exact surrogates) and V is the covariance over the sites of the
    fixed points, the covariance after j of T updates is

    .. math:: \frac{Q}{1 - A^2} + A^{2j} W_0 + (1 - A^j)^2 V, \qquad
              W_0 = \frac{(1 - A^T)^2}{1 - A^{2T}} V

    with V = 0 for α = 1: exact surrogates make the law independent of T.

    Args:
        means: :math:`m_s`, ``(S, d)``.
        precisions: :math:`H_s`: ``(S,)`` (times the identity), ``(S, d)`` (diagonals) or
            ``(S, d, d)``.
        probabilities: :math:`f_s`, ``(S,)``, of sum one; 1/S when None.
        step_size: h.
        local_steps: T.
        prior_mean: :math:`m_0`, a number or ``(d,)``.
        prior_precision: P, a number, ``(d,)`` or ``(d, d)``; 0 is a flat prior.
        gradient_noise: :math:`C_s`, ``(S, d, d)``, see `minibatch_covariance`; None for full
            batches.
        strength: α.
        surrogates: one `consortia.surrogates.Gaussian` a site; the likelihoods themselves when
            None.

    Returns:
        The law. It is returned for unstable settings too: ask ``.stable``.

    Raises:
        InputError: an argument has a wrong shape or value.

    Example:
        >>> law = travelling_law([[-3.0], [3.0]], [100.0, 100.0], step_size=1e-4, local_steps=1000,
        ...                      prior_precision=1.0)
        >>> law.variance_inflation().round(0)     # a mixture of two local posteriors
        array([1792.])
    """
    centre = floats(means, "means")
    if centre.ndim != 2 or not centre.size:
        raise InputError(f"means: shape {centre.shape}; give (sites, d)")
    sites, d = centre.shape
    shares = np.full(sites, 1 / sites)
    if probabilities is not None:
        shares = floats(probabilities, "probabilities")
        if shares.shape != (sites,) or np.any(shares <= 0) or abs(shares.sum() - 1) > 1e-6:
            raise InputError(
                f"probabilities: got {shares}; give {sites} positive numbers of sum one"
            )
    own = _matrices(precisions, sites, d, "precisions")
    h = number(step_size, "step_size", strict=True)
    alpha = number(strength, "strength")
    prior = _matrix(prior_precision, d, "prior_precision")
    prior_centre = filled(prior_mean, (d,), "prior_mean")
    noise: Array = np.zeros((sites, d, d))
    if gradient_noise is not None:
        noise = floats(gradient_noise, "gradient_noise")
        if noise.shape != (sites, d, d):
            raise InputError(f"gradient_noise: shape {noise.shape}; give ({sites}, {d}, {d})")

    pull = np.einsum("sij,sj->si", own, centre)
    approximate, approximate_pull = own, pull
    if surrogates is not None:
        if len(surrogates) != sites or any(q.dimension != d for q in surrogates):
            raise InputError(f"surrogates: give {sites} Gaussians of {d} parameters")
        approximate = np.stack(
            [q.precision if q.precision.ndim == 2 else np.diag(q.precision) for q in surrogates]
        )
        means_of = np.stack([q.mean for q in surrogates])
        approximate_pull = np.einsum("sij,sj->si", approximate, means_of)
    share = shares[:, None]
    fall = prior + own / share[:, :, None]
    fall = fall + alpha * (approximate.sum(0) - approximate / share[:, :, None])
    offset = prior @ prior_centre + pull / share
    offset = offset + alpha * (approximate_pull.sum(0) - approximate_pull / share)
    spread = h * np.eye(d) + h**2 / 4 * noise / share[:, :, None] ** 2

    precision = prior + own.sum(0)
    if np.linalg.eigvalsh(precision)[0] <= 0:
        raise InputError("precisions: prior and sites together are not a density; add a prior")
    visits = Visits(shares, np.eye(d) - h / 2 * fall, h / 2 * offset, spread)
    return TravellingLaw(
        local_steps=count(local_steps, "local_steps"),
        target_mean=np.linalg.solve(precision, prior @ prior_centre + pull.sum(0)),
        target_covariance=np.linalg.inv(precision),
        visits=visits,
    )


def minibatch_covariance(
    row_covariance: ArrayLike, size: int, batch_size: int | None, *, replace: bool = True
) -> Array:
    r"""Covariance of (n/m) Σ_batch of the rows' gradients, for one site.

    .. math:: \frac{n^2}{m} S \text{ with replacement}, \qquad
              \frac{n^2}{m}\,\frac{n - m}{n - 1} S \text{ without}

    Args:
        row_covariance: S, covariance of the gradients over the site's rows (divided by n), (d, d).
        size: n.
        batch_size: m; None is the full batch, without noise.
        replace: whether rows are drawn with replacement.

    Example:
        >>> float(minibatch_covariance([[2.0]], 100, 10)[0, 0])
        2000.0
    """
    covariance = np.atleast_2d(floats(row_covariance, "row_covariance"))
    if batch_size is None:
        return np.zeros_like(covariance)
    n, m = count(size, "size"), count(batch_size, "batch_size")
    if not replace and m > n:
        raise InputError(f"batch_size: {m} of {n} rows cannot be drawn without replacement")
    left = 1.0 if replace else (n - m) / max(n - 1, 1)
    return n**2 / m * left * covariance


def location_shards(
    shards: Sequence[ArrayLike], batch_size: int | None = None, *, replace: bool = True
) -> dict[str, Array]:
    """Rows x_i ~ N(θ, I) at the sites, as the arguments of `travelling_law` that describe them.

    Args:
        shards: the rows of each site, (n_s, d).
        batch_size: m, or None.
        replace: as in the algorithm.

    Returns:
        ``means``, ``precisions`` and ``gradient_noise``.
    """
    rows = [floats(shard, f"shards[{i}]") for i, shard in enumerate(shards)]
    noise = [
        minibatch_covariance(np.cov(x.T, bias=True), len(x), batch_size, replace=replace)
        for x in rows
    ]
    return {
        "means": np.stack([x.mean(axis=0) for x in rows]),
        "precisions": np.array([float(len(x)) for x in rows]),
        "gradient_noise": np.stack(noise),
    }


def gradient_constants(row_gradients: ArrayLike, surrogate_gradients: ArrayLike) -> tuple[Any, Any]:
    r"""γ_s² and ε_s² of one shard over a grid: what governs the errors of DSGLD and of FSGLD.

    .. math::
        \gamma_s^2 = \max_{\theta, i} \|\nabla\log p(x_i|\theta)\|^2, \qquad
        \epsilon_s^2 = \max_\theta \frac{1}{n_s}\sum_i
        \bigl\|\nabla\log p(x_i|\theta) - n_s^{-1}\nabla\log q_s(\theta)\bigr\|^2

    Args:
        row_gradients: ∇log p(x_i | θ) at each point of the grid, (points, rows, d).
        surrogate_gradients: ∇log q_s(θ) there, (points, d).

    Returns:
        γ_s² and ε_s², maxima over the grid, which bound nothing outside it.

    Source: El Mekkaoui et al. (2021), assumption 1, lemma 2, figure 4.
    """
    rows = floats(row_gradients, "row_gradients")
    surrogate = floats(surrogate_gradients, "surrogate_gradients")
    if rows.ndim != 3 or surrogate.shape != (rows.shape[0], rows.shape[2]):
        raise InputError(
            f"row_gradients {rows.shape} and surrogate_gradients {surrogate.shape}: give "
            "(points, rows, d) and (points, d)"
        )
    gamma = float(np.max(np.sum(rows**2, axis=-1)))
    error = rows - surrogate[:, None] / rows.shape[1]
    return gamma, float(np.max(np.mean(np.sum(error**2, axis=-1), axis=1)))


# --- arguments -------------------------------------------------------------------------------


def _matrices(value: ArrayLike, sites: int, d: int, name: str) -> Array:
    array = floats(value, name)
    if array.shape == (sites,):
        array = array[:, None] * np.ones(d)
    if array.shape == (sites, d):
        array = array[:, :, None] * np.eye(d)
    if array.shape != (sites, d, d):
        raise InputError(f"{name}: shape {array.shape}; give ({sites},), ({sites}, {d}) or more")
    if np.any(np.linalg.eigvalsh(array)[:, 0] < -1e-10 * np.abs(array).max()):
        raise InputError(f"{name}: a matrix has a negative eigenvalue")
    return array


def _matrix(value: ArrayLike, d: int, name: str) -> Array:
    array = floats(value, name)
    if array.shape in ((), (d,)):
        array = array * np.eye(d)
    if array.shape != (d, d):
        raise InputError(f"{name}: shape {array.shape}; give a number, ({d},) or ({d}, {d})")
    return array
