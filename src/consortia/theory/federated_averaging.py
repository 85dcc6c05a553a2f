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

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from consortia.errors import InputError
from consortia.theory.affine import AffineMap, AffineRecursion, Array
from consortia.theory.arguments import check_density, count, curvatures_of, filled, floats, number
from consortia.theory.law import Law, Moments


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
) -> Law:
    r"""Return the exact law of FA-HMC (FA-LD with ``leapfrog_steps=1``) on Gaussian clients.

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
        >>> found = law.stationary
        >>> print(law.target.mean, found.bias.round(3), found.variance_ratio.round(3))
        [16.2] [-1.345] [1.115]
    """
    clients = read_clients(means, curvatures, weights, mass_matrix)
    if gradient_draws not in (1, 2):
        raise InputError(f"gradient_draws: got {gradient_draws!r}; give 2 or 1")
    noise = filled(gradient_noise, clients.weights.shape, "gradient_noise")
    if np.any(noise < 0.0):
        raise InputError("gradient_noise: a variance is negative; give variances of at least zero")
    heat = number(temperature, "temperature", strict=True)
    # A step far beyond stability overflows: the law then has an infinite spectral radius.
    with np.errstate(over="ignore", invalid="ignore"):
        response, spread = _one_round(
            clients,
            step_size=number(step_size, "step_size", strict=True),
            leapfrog_steps=count(leapfrog_steps, "leapfrog_steps"),
            local_steps=count(local_steps, "local_steps"),
            rho=number(momentum_correlation, "momentum_correlation", most=1.0),
            gradient_noise=noise,
            gradient_draws=gradient_draws,
            heat=heat,
        )
        return _law(clients, response, spread, heat, debias=debias)


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
    r"""Return the stationary mean bias of FA-HMC to leading order in the trajectory length.

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


def _one_round(
    clients: GaussianClients,
    *,
    step_size: float,
    leapfrog_steps: int,
    local_steps: int,
    rho: float,
    gradient_noise: Float[np.ndarray, " N"],
    gradient_draws: int,
    heat: float,
) -> tuple[Array, Array]:
    """Run T iterations at every client and average, by their linear answers.

    Returns:
        H_c, minus the answer of a client's position to a unit constant force, (N, d[, d]), so
        that H_c L_c = 1 - a_c^T; and the covariance V of the average, (d[, d]).
    """
    curvature, eta2 = clients.eigenvalues, step_size**2
    # Leapfrogs from rest at the origin, in differences, which keeps 1 - cos(Kφ) exact for small
    # steps: `kicked` answers a unit momentum (B_k), `forced` a unit constant force.
    kicked, kicked_change = np.zeros_like(curvature), np.full_like(curvature, step_size)
    forced, forced_change = np.zeros_like(curvature), np.full_like(curvature, eta2 / 2.0)
    inner_kicks = np.zeros_like(clients.pair(kicked))
    for _ in range(leapfrog_steps):
        inner_kicks += clients.pair(kicked)
        kicked = kicked + kicked_change
        forced = forced + forced_change
        kicked_change = kicked_change - eta2 * curvature * kicked
        forced_change = forced_change + eta2 * (1.0 - curvature * forced)
    # Noise at an inner point is two half kicks, independent of each other or equal.
    factor = 2.0 if gradient_draws == 2 else 4.0
    noisy = (clients.pair(kicked) + factor * inner_kicks) * eta2 / 4.0

    decay = 1.0 - curvature * forced
    power = np.ones_like(decay)
    series, private, memory = np.zeros_like(decay), np.zeros_like(decay), np.zeros_like(noisy)
    spread = np.zeros_like(noisy[0])
    for _ in range(local_steps):
        series += power
        private += (kicked * power) ** 2
        memory += clients.pair(power)
        common = clients.average(clients.lift(kicked * power))
        spread += rho * heat * clients.from_momentum(common)
        power = power * decay
    spread += (1.0 - rho) * heat * clients.average(clients.lift(private))
    per_client = clients.weights * gradient_noise
    scale = per_client.reshape(-1, *[1] * (noisy.ndim - 1))
    spread += clients.average(scale * clients.lift_noise(noisy * memory))
    return clients.lift(forced * series), spread


@dataclass(frozen=True, eq=False)
class FederatedRounds(AffineRecursion):
    r"""Rounds of federated averaging around the target's mean, in independent blocks.

    .. math:: x_{r+1} = \alpha x_r + \beta' x_{r-1} + \beta + N(0, V), \qquad \beta' = 0
        \text{ without de-biasing}

    Round 0 of the de-biased variant has no anchor yet and is a plain round. Matrices that act
    coordinate by coordinate (a diagonal problem) are held as their diagonals.

    Attributes:
        alpha: :math:`\alpha`, (d,) in a diagonal problem and (d, d) otherwise.
        anchor_coefficient: :math:`\beta'`, of the same shape; zero without de-biasing.
        beta: :math:`\beta`, (d,).
        innovation_covariance: V, of the shape of ``alpha``.
    """

    alpha: Array = field(kw_only=True)
    anchor_coefficient: Array = field(kw_only=True)
    beta: Float[np.ndarray, " d"] = field(kw_only=True)
    innovation_covariance: Array = field(kw_only=True)


def _law(
    clients: GaussianClients, response: Array, spread: Array, heat: float, *, debias: bool
) -> Law:
    """Return the law from what a round does to every client's position."""
    diagonal, d = clients.diagonal, clients.means.shape[1]
    one = np.ones(d) if diagonal else np.eye(d)
    centre, precision = clients.target_mean, clients.precision
    own = multiply(response, clients.curvatures, diagonal=diagonal)
    shared = multiply(response, precision, diagonal=diagonal)
    alpha = one - clients.average(own)
    nil = np.zeros_like(alpha)
    anchor = clients.average(own - shared) if debias else nil
    relaxation = clients.average(shared if debias else own)
    # What a plain round adds to the centred mean, Σ_c w_c (1 - a_c^T)(m_c - m*).
    pull = clients.weights @ apply(own, clients.means - centre)

    # The state is (u_r, u_{r-1}), or u_r alone without de-biasing, with u = x - m*.
    matrix = _blocks([[alpha, anchor], [one, nil]] if debias else [[alpha]])
    covariance = _blocks([[spread, nil], [nil, nil]] if debias else [[spread]])
    width = 1 if diagonal else d
    offset = np.zeros(matrix.shape[:2])
    offset[:, :width] = pull.reshape(-1, width)
    recursion = FederatedRounds(
        step=AffineMap(matrix, np.zeros_like(offset) if debias else offset, covariance),
        # β' acts on an anchor that does not exist yet: only the columns of the position remain.
        first=AffineMap(matrix[:, :, :width], offset, covariance),
        relaxation=None if debias else _blocks([[relaxation]]),
        alpha=alpha,
        anchor_coefficient=anchor,
        beta=(0.0 if debias else pull) + apply(relaxation[None], centre[None])[0],
        innovation_covariance=spread,
    )
    inverse = heat / precision if diagonal else heat * np.linalg.inv(precision)
    return Law(
        recursion,
        Moments(centre, inverse),
        centred=True,
        remedy="Lower step_size, leapfrog_steps or local_steps"
        + (", or set debias=False." if debias else "."),
        basis="the exact law of federated averaging",
    )


def _blocks(rows: list[list[Array]]) -> Array:
    """Return one small block per coordinate from diagonals, and one large one otherwise."""
    if rows[0][0].ndim == 1:
        return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
    return np.block(rows)[None]


# --- the clients ---------------------------------------------------------------------------------


class GaussianClients(NamedTuple):
    """Clients with f_c(x) = ½ (x - m_c)' L_c (x - m_c), a weighted sum and a mass matrix.

    A problem is diagonal when every curvature and the mass matrix are: operators are then held as
    their diagonals, and every function here works coordinate by coordinate, in any dimension.

    Attributes:
        weights: w_c, (N,).
        means: m_c, (N, d).
        curvatures: L_c, (N, d) in a diagonal problem, else (N, d, d).
        mass: M, (d,) in a diagonal problem, else (d, d).
        eigenvalues: of L_c against M, (N, d).
        basis: P_c with P_c' M P_c = 1 and P_c' L_c P_c = diag(eigenvalues): (N, d, d), or
            M^(-1/2), (d,), in a diagonal problem.
    """

    weights: Float[np.ndarray, " N"]
    means: Float[np.ndarray, "N d"]
    curvatures: Array
    mass: Array
    eigenvalues: Float[np.ndarray, "N d"]
    basis: Array

    @property
    def diagonal(self) -> bool:
        """True where operators are held as their diagonals."""
        return self.mass.ndim == 1

    @property
    def precision(self) -> Array:
        """Σ_c w_c L_c."""
        return self.average(self.curvatures)

    @property
    def target_mean(self) -> Array:
        """The mode of Σ_c w_c f_c, (d,)."""
        # Around the first mean, so that a common shift of all clients costs no precision.
        pull = self.weights @ apply(self.curvatures, self.means - self.means[0])
        return self.means[0] + solve(self.precision, pull)

    def average(self, values: Array) -> Array:
        """Return Σ_c w_c values_c."""
        return np.tensordot(self.weights, values, axes=1)

    def pair(self, values: Array) -> Array:
        """Return products of values (N, d): squares in a diagonal problem, else all, (N, d, d)."""
        return values**2 if self.diagonal else values[:, :, None] * values[:, None, :]

    def lift(self, values: Array) -> Array:
        """Return P_c diag(values_c) P_c', operators from the clients' own coordinates."""
        if self.diagonal:
            return values * self.basis**2
        return np.einsum("nij,nj,nkj->nik", self.basis, values, self.basis)

    def lift_noise(self, products: Array) -> Array:
        """Return the covariance by gradient noise N(0, 1), given the `pair` of the answers."""
        if self.diagonal:
            return products * self.basis**4
        across = np.swapaxes(self.basis, 1, 2)
        return self.basis @ (products * (across @ self.basis)) @ across

    def from_momentum(self, kick: Array) -> Array:
        """Return the covariance of a symmetric operator times a common momentum N(0, M)."""
        return kick**2 * self.mass if self.diagonal else kick @ self.mass @ kick


def multiply(left: Array, right: Array, *, diagonal: bool) -> Array:
    """Return the product of two operators, or of two stacks of them."""
    return left * right if diagonal else left @ right


def apply(operators: Array, vectors: Array) -> Array:
    """Apply operators (N, d) or (N, d, d) to vectors (N, d)."""
    return (
        operators * vectors if operators.ndim == 2 else np.einsum("nij,nj->ni", operators, vectors)
    )


def solve(operator: Array, vector: Array) -> Array:
    """Return the solution x of ``operator x = vector``, for (d,) or (d, d) and (d,)."""
    return vector / operator if operator.ndim == 1 else np.linalg.solve(operator, vector)


def read_clients(
    means: ArrayLike, curvatures: ArrayLike, weights: ArrayLike, mass_matrix: ArrayLike | None
) -> GaussianClients:
    """Check the clients; shapes as in `consortia.oracles.fa_hmc_law`."""
    w, m, lam = (
        floats(weights, "weights"),
        floats(means, "means"),
        floats(curvatures, "curvatures"),
    )
    if w.ndim != 1 or not w.size or np.any(w <= 0.0) or abs(w.sum() - 1.0) > 1e-6:
        raise InputError(f"weights: got {w}; give one positive weight per client, of sum one")
    n = w.size
    d = m.shape[1] if m.ndim == 2 else lam.shape[1] if lam.ndim >= 2 else 1
    if m.shape not in ((n,), (n, d)):
        raise InputError(f"means: shape {m.shape}; give ({n},) or ({n}, {d}) for {n} weights")
    m = np.broadcast_to(m if m.ndim == 2 else m[:, None], (n, d))
    lam = curvatures_of(lam, (n, d), "curvatures", "weights")
    check_density(np.tensordot(w, lam, axes=1), "curvatures", 1e-10 if lam.ndim == 3 else 0.0)
    mass = _mass(mass_matrix, d)
    if lam.ndim == 2 and mass.ndim == 1:
        return GaussianClients(w, m, lam, mass, lam / mass, 1.0 / np.sqrt(mass))
    full = lam if lam.ndim == 3 else lam[:, :, None] * np.eye(d)
    mass = mass if mass.ndim == 2 else np.diag(mass)
    whiten = np.linalg.inv(np.linalg.cholesky(mass).T)
    values, vectors = np.linalg.eigh(whiten.T @ full @ whiten)
    # A semi-definite matrix can have eigenvalues of minus a rounding error.
    return GaussianClients(w, m, full, mass, np.maximum(values, 0.0), whiten @ vectors)


def _mass(mass_matrix: ArrayLike | None, d: int) -> Array:
    if mass_matrix is None:
        return np.ones(d)
    mass = floats(mass_matrix, "mass_matrix")
    if mass.shape not in ((d,), (d, d)):
        raise InputError(f"mass_matrix: shape {mass.shape}; give None, ({d},) or ({d}, {d})")
    positive = bool(np.all(mass > 0.0)) if mass.ndim == 1 else _is_positive_definite(mass)
    if not positive:
        raise InputError(
            "mass_matrix: not positive definite; give positive numbers or a covariance"
        )
    return mass


def _is_positive_definite(matrix: Array) -> bool:
    return bool(np.allclose(matrix, matrix.T) and np.linalg.eigvalsh(matrix)[0] > 0.0)
