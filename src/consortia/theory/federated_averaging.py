r"""The exact law of FA-HMC, FA-LD and de-biased FA-HMC on Gaussian clients.

Client c has :math:`f_c(x) = \tfrac12 (x - m_c)^\top L_c (x - m_c)`, where :math:`f_c = U_c / w_c`,
so that the target is :math:`\exp(-\sum_c w_c f_c / \text{temperature})`. One round, T iterations of
K leapfrog steps at every client and one average, is then an affine map plus Gaussian noise,

.. math::
    x_{r+1} = \alpha x_r + \beta + N(0, V), \qquad
    \alpha = \sum_c w_c a_c^T, \quad \beta = \sum_c w_c (1 - a_c^T) m_c, \quad a_c = \cos(K\phi_c),

with :math:`\cos\phi_c = 1 - \eta^2\lambda_c/2` for a curvature :math:`\lambda_c`; matrices are
functions of :math:`L_c`. The de-biased variant adds :math:`\beta' x_{r-1}`, the average that served
as the anchor, with :math:`\beta' = \sum_c w_c (1 - a_c^T)(1 - \bar\lambda / \lambda_c)`.

Source: Liang, Zhang, Deng, Song, Lin, "Bayesian federated learning with Hamiltonian Monte Carlo:
algorithm and theory" (2024), algorithms 1-3, B.1 and B.2, and section 4.2 (the momenta). The
formulas are derived here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consortia.errors import InputError
from consortia.theory.federated_averaging_law import AffineNoise, FederatedAveragingLaw
from consortia.theory.gaussian_clients import (
    GaussianClients,
    apply,
    count,
    filled,
    multiply,
    number,
    read_clients,
    solve,
)

__all__ = ["FederatedAveragingLaw", "fa_hmc_law", "leading_order_mean_bias"]

Array = NDArray[np.floating[Any]]


def fa_hmc_law(
    means: ArrayLike,
    curvatures: ArrayLike,
    weights: ArrayLike,
    *,
    step_size: float,
    leapfrog_steps: int,
    local_steps: int,
    momentum_correlation: float = 1.0,
    gradient_noise: ArrayLike = 0.0,
    gradient_draws: int = 2,
    debias: bool = False,
    mass_matrix: ArrayLike | None = None,
    temperature: float = 1.0,
) -> FederatedAveragingLaw:
    r"""The exact law of FA-HMC (FA-LD with ``leapfrog_steps=1``) on Gaussian clients.

    .. math::
        V = \sum_{j<T} \Bigl[\rho \bigl(\textstyle\sum_c w_c b_c a_c^j\bigr)^2
        + (1-\rho) \sum_c w_c b_c^2 a_c^{2j}\Bigr] + \sum_c w_c^2 q_c \sum_{j<T} a_c^{2j}

    where :math:`a_c` and :math:`b_c` answer a unit position and a unit momentum after K leapfrog
    steps, and :math:`q_c` is the variance from noisy gradients in one iteration. A noisy gradient
    is a kick of half a step, so with :math:`B_k` the answer of the position to a unit momentum
    after k steps (:math:`B_K = b_c`),

    .. math::
        q = \sigma^2 \tfrac{\eta^2}{4} \Bigl[B_K^2 + 2 \sum_{k<K} B_k^2\Bigr]
        \text{ (two draws)}, \qquad
        q = \sigma^2 \tfrac{\eta^2}{4} \Bigl[B_K^2 + 4 \sum_{k<K} B_k^2\Bigr] \text{ (one draw).}

    N clients, d coordinates. The clients are those of the weighted sum: a client whose own
    posterior piece is :math:`U_c` enters with the curvature of :math:`f_c = U_c / w_c`. So two
    nodes with posteriors N(20, 1) and N(1, 4), each half of the weight, enter with curvatures 1
    and 1/4 and the target is N(16.2, 1.6), the weighted geometric mean of the two.

    Args:
        means: :math:`m_c`, ``(N,)`` (the same in every coordinate) or ``(N, d)``.
        curvatures: :math:`L_c`: ``(N,)`` (times the identity), ``(N, d)`` (diagonals) or
            ``(N, d, d)`` (symmetric). None may be negative; their weighted sum must be positive.
        weights: :math:`w_c`, ``(N,)``, positive, of sum one.
        step_size: η.
        leapfrog_steps: K.
        local_steps: T, the iterations of a round.
        momentum_correlation: ρ in [0, 1]: share of the momentum's variance that is common.
        gradient_noise: σ², variance per coordinate added to every :math:`\nabla f_c` (to the
            whole force when ``debias``); a number or ``(N,)``.
        gradient_draws: 2, independent noise at the end of a step and at the start of the next,
            2K - 1 draws an iteration (the paper's); 1, the same noise for both, K draws.
        debias: the de-biased variant; round 0 has no correction yet.
        mass_matrix: M, None (the identity), ``(d,)`` or ``(d, d)``; the momentum is N(0, M).
        temperature: factor of the momentum's variance.

    Returns:
        The law. It is returned for unstable settings too: ask ``.stable``.

    Raises:
        InputError: an argument has a wrong shape or value.

    Example:
        >>> law = fa_hmc_law([20.0, 1.0], [1.0, 0.25], [0.5, 0.5],
        ...                  step_size=0.1, leapfrog_steps=5, local_steps=10)
        >>> print(law.target_mean, law.mean_bias.round(3), law.variance_ratio.round(3))
        [16.2] [-1.345] [1.115]
    """
    clients = read_clients(means, curvatures, weights, mass_matrix)
    if gradient_draws not in (1, 2):
        raise InputError(f"gradient_draws: got {gradient_draws!r}; give 2 or 1")
    noise = filled(gradient_noise, clients.weights.shape, "gradient_noise")
    if np.any(noise < 0.0):
        raise InputError("gradient_noise: a variance is negative; give variances of at least zero")
    settings = _Settings(
        step_size=number(step_size, "step_size", strict=True),
        leapfrog_steps=count(leapfrog_steps, "leapfrog_steps"),
        local_steps=count(local_steps, "local_steps"),
        momentum_correlation=number(momentum_correlation, "momentum_correlation", most=1.0),
        gradient_noise=noise,
        gradient_draws=gradient_draws,
        temperature=number(temperature, "temperature", strict=True),
    )
    # A step far beyond stability overflows: the law then has an infinite spectral radius.
    with np.errstate(over="ignore", invalid="ignore"):
        response, spread = _one_round(clients, settings)
        return _law(clients, response, spread, settings.temperature, debias=debias)


def leading_order_mean_bias(
    means: ArrayLike,
    curvatures: ArrayLike,
    weights: ArrayLike,
    *,
    step_size: float,
    leapfrog_steps: int,
    local_steps: int,
    mass_matrix: ArrayLike | None = None,
) -> Array:
    r"""The stationary mean bias of FA-HMC to leading order in the trajectory length.

    .. math::
        -\kappa \bar L^{-1} \sum_c w_c L_c M^{-1} L_c (m_c - m_*), \qquad
        \kappa = (K\eta)^2 \Bigl[\tfrac{T-1}{4} + \tfrac{1 - 1/K^2}{12}\Bigr], \quad
        \bar L = \sum_c w_c L_c

    It vanishes for K = T = 1 only, or when all curvatures are equal. The next order is
    :math:`(K\eta)^4`. Arguments are those of `fa_hmc_law`.

    Returns:
        The bias, ``(d,)``.

    Example:
        >>> bias = leading_order_mean_bias([20.0, 1.0], [1.0, 0.25], [0.5, 0.5],
        ...                                step_size=0.02, leapfrog_steps=5, local_steps=10)
        >>> print(bias.round(4))
        [-0.0531]
    """
    clients = read_clients(means, curvatures, weights, mass_matrix)
    eta = number(step_size, "step_size", strict=True)
    steps = count(leapfrog_steps, "leapfrog_steps")
    iterations = count(local_steps, "local_steps")
    kappa = (steps * eta) ** 2 * ((iterations - 1) / 4.0 + (1.0 - 1.0 / steps**2) / 12.0)
    force = apply(clients.curvatures, clients.means - clients.target_mean)
    velocity = np.stack([solve(clients.mass, pull) for pull in force])
    bias = solve(clients.precision, clients.weights @ apply(clients.curvatures, velocity))
    return -kappa * bias


class _Settings(NamedTuple):
    """The checked settings of one round; the names are those of `fa_hmc_law`."""

    step_size: float
    leapfrog_steps: int
    local_steps: int
    momentum_correlation: float
    gradient_noise: Array
    gradient_draws: int
    temperature: float


def _one_round(clients: GaussianClients, settings: _Settings) -> tuple[Array, Array]:
    """What T iterations at every client and the average do.

    Returns:
        H_c, minus the answer of a client's position to a unit constant force, (N, d[, d]), so
        that H_c L_c = 1 - a_c^T; and the covariance V of the average, (d[, d]).
    """
    curvature, eta2 = clients.eigenvalues, settings.step_size**2
    # Leapfrogs from rest at the origin, in differences, which keeps 1 - cos(Kφ) exact for small
    # steps: `kicked` answers a unit momentum (B_k), `forced` a unit constant force.
    kicked, kicked_change = np.zeros_like(curvature), np.full_like(curvature, settings.step_size)
    forced, forced_change = np.zeros_like(curvature), np.full_like(curvature, eta2 / 2.0)
    inner_kicks = np.zeros_like(clients.pair(kicked))
    for _ in range(settings.leapfrog_steps):
        inner_kicks += clients.pair(kicked)
        kicked = kicked + kicked_change
        forced = forced + forced_change
        kicked_change = kicked_change - eta2 * curvature * kicked
        forced_change = forced_change + eta2 * (1.0 - curvature * forced)
    # Noise at an inner point is two half kicks, independent of each other or equal.
    factor = 2.0 if settings.gradient_draws == 2 else 4.0
    noisy = (clients.pair(kicked) + factor * inner_kicks) * eta2 / 4.0

    rho, heat = settings.momentum_correlation, settings.temperature
    decay = 1.0 - curvature * forced
    power = np.ones_like(decay)
    series, private, memory = np.zeros_like(decay), np.zeros_like(decay), np.zeros_like(noisy)
    spread = np.zeros_like(noisy[0])
    for _ in range(settings.local_steps):
        series += power
        private += (kicked * power) ** 2
        memory += clients.pair(power)
        common = clients.average(clients.lift(kicked * power))
        spread += rho * heat * clients.from_momentum(common)
        power = power * decay
    spread += (1.0 - rho) * heat * clients.average(clients.lift(private))
    per_client = clients.weights * settings.gradient_noise
    scale = per_client.reshape(-1, *[1] * (noisy.ndim - 1))
    spread += clients.average(scale * clients.lift_noise(noisy * memory))
    return clients.lift(forced * series), spread


def _law(
    clients: GaussianClients, response: Array, spread: Array, heat: float, *, debias: bool
) -> FederatedAveragingLaw:
    diagonal, d = clients.diagonal, clients.means.shape[1]
    one = np.ones(d) if diagonal else np.eye(d)
    centre, precision = clients.target_mean, clients.precision
    own = multiply(response, clients.curvatures, diagonal=diagonal)
    shared = multiply(response, precision, diagonal=diagonal)
    alpha = one - clients.average(own)
    nil = np.zeros_like(alpha)
    anchor = clients.average(own - shared) if debias else nil
    relaxation = clients.average(shared if debias else own)
    first_offset = clients.weights @ apply(own, clients.means - centre)
    offset = np.zeros(d) if debias else first_offset

    matrix = _blocks([[alpha, anchor], [one, nil]] if debias else [[alpha]])
    covariance = _blocks([[spread, nil], [nil, nil]] if debias else [[spread]])
    state_offset = np.zeros(matrix.shape[:2])
    state_offset[:, : 1 if diagonal else d] = offset.reshape(matrix.shape[0], -1)
    radius = math.inf
    if np.all(np.isfinite(matrix)):
        radius = float(np.max(np.abs(np.linalg.eigvals(matrix))))
    return FederatedAveragingLaw(
        diagonal=diagonal,
        alpha=alpha,
        anchor_coefficient=anchor,
        beta=offset + apply(relaxation[None], centre[None])[0],
        innovation_covariance=spread,
        spectral_radius=radius,
        target_mean=centre,
        precision=precision / heat,
        recursion=AffineNoise(matrix, state_offset, covariance),
        first_offset=first_offset,
        relaxation=relaxation,
    )


def _blocks(rows: list[list[Array]]) -> Array:
    """A block matrix: one small block per coordinate from diagonals, one large one otherwise."""
    if rows[0][0].ndim == 1:
        return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
    return np.block(rows)[None]
