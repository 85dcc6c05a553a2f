r"""Exact laws of Langevin dynamics with stale gradients on Gaussian targets.

Along an eigenvector of the target's precision, with eigenvalue λ, the position less its mean obeys

.. math:: x_{l+1} = x_l - a\,x_{l-\tau_l} + N(0, s^2), \qquad a = h\lambda, \quad
          s^2 = 2h + h^2 V

V being the variance of the gradient's noise. With a constant staleness the variance is known in
closed form, with independent random ones as the solution of a linear system, and along a given
trace as a recursion (`consortia.oracles.stale_trace_law`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consortia.errors import InputError
from consortia.theory.gaussian_clients import count, floats, number

Array = NDArray[np.floating[Any]]

SMALL = 16
"""States up to this size are treated by dense matrices."""


def stale_stability_limit(staleness: int) -> float:
    r"""The a = hλ from which on Langevin dynamics with this constant staleness diverges.

    .. math:: a < 2 \sin\frac{\pi}{4\tau + 2}

    Args:
        staleness: τ ≥ 0.

    Example:
        >>> stale_stability_limit(0)
        2.0
    """
    return 2.0 * math.sin(math.pi / (4 * count(staleness, "staleness", least=0) + 2))


def check_stale_step_size(step_size: float, curvature: float, staleness: int) -> None:
    """Refuse a step size with which the chain diverges along its steepest direction.

    Args:
        step_size: h of Langevin dynamics.
        curvature: λ, the largest eigenvalue of the target's precision.
        staleness: τ, constant; W − 1 of W workers that take turns.

    Raises:
        InputError: hλ is not below `stale_stability_limit`; the message has the largest h.
    """
    h = number(step_size, "step_size", strict=True)
    steepest = number(curvature, "curvature", strict=True)
    limit = stale_stability_limit(staleness)
    if h * steepest >= limit:
        raise InputError(
            f"step_size={h:g} diverges: step_size * curvature is {h * steepest:.4g} (curvature "
            f"{steepest:.4g}), and with staleness {staleness} it must be below "
            f"2 sin(pi / (4 * {staleness} + 2)) = {limit:.4g}: use a step_size below "
            f"{limit / steepest:.3g}, or fewer workers."
        )


def minibatch_noise(
    row_variance: ArrayLike, rows: int, batch_size: int, *, replace: bool = True
) -> Array:
    r"""V, the variance of a minibatch gradient of U from that of the gradients of single rows.

    .. math:: V = \frac{n^2}{B}\operatorname{Var}_i, \quad
              \text{without replacement times } \frac{n - B}{n - 1}

    Args:
        row_variance: variance over the rows, divided by n and not n − 1.
        rows: n.
        batch_size: B.
        replace: rows with replacement.
    """
    n, b = count(rows, "rows"), count(batch_size, "batch_size")
    variance = floats(row_variance, "row_variance") * n**2 / b
    if replace:
        return variance
    if b > n:
        raise InputError(f"batch_size: {b} rows without replacement of only {n}")
    return variance * (n - b) / max(n - 1, 1)


class StaleLaw(NamedTuple):
    """A stationary law along one direction.

    Attributes:
        variance: of θ.
        relative_bias: variance times λ, less one.
        spectral_radius: of the linear recursion; below one, it is stable.
    """

    variance: float
    relative_bias: float
    spectral_radius: float


def stale_sgld_variance(contraction: float, staleness: int, noise_variance: float) -> float:
    r"""The stationary variance with a constant staleness, in closed form.

    .. math:: \operatorname{Var} = \frac{s^2\,(\sin 2p\tau + \cos p)}
              {2 \sin 2p\,(\cos 2p\tau - \sin p)}, \qquad p = \arcsin(a/2)

    Args:
        contraction: a = hλ > 0.
        staleness: τ ≥ 0.
        noise_variance: s² = 2h + h²V.

    Raises:
        InputError: the recursion is not stable; the message has the limit.

    Example:
        >>> round(stale_sgld_variance(0.02, 10, 0.04), 6)
        1.235671
    """
    a = number(contraction, "contraction", strict=True)
    tau = count(staleness, "staleness", least=0)
    s2 = number(noise_variance, "noise_variance")
    limit = stale_stability_limit(tau)
    if a >= limit:
        raise InputError(
            f"contraction: {a:g} is not below {limit:.6g} = 2 sin(pi / (4 * {tau} + 2)), so that "
            "the chain diverges; lower the step size"
        )
    p = math.asin(a / 2)
    above = math.sin(2 * p * tau) + math.cos(p)
    return s2 * above / (2 * math.sin(2 * p) * (math.cos(2 * p * tau) - math.sin(p)))


def stale_sgld_law(
    step_size: float, curvature: float, staleness: int, *, gradient_noise: float = 0.0
) -> StaleLaw:
    """The stationary law of stale Langevin dynamics along one direction, for a constant staleness.

    Args:
        step_size: h.
        curvature: λ.
        staleness: τ.
        gradient_noise: V.

    Raises:
        InputError: the chain is not stable.
    """
    h, lam = (
        number(step_size, "step_size", strict=True),
        number(curvature, "curvature", strict=True),
    )
    s2 = 2 * h + h**2 * number(gradient_noise, "gradient_noise")
    variance = stale_sgld_variance(h * lam, staleness, s2)
    companion = np.eye(staleness + 1, k=-1)
    companion[0, 0] = 1.0
    companion[0, -1] -= h * lam
    radius = float(np.abs(np.linalg.eigvals(companion)).max())
    return StaleLaw(variance, variance * lam - 1, radius)


def random_staleness_variance(
    contraction: float, probabilities: ArrayLike, noise_variance: float
) -> float:
    r"""The stationary variance when every update's staleness is drawn independently.

    The autocovariances γ_0, ..., γ_K solve the linear system

    .. math:: \gamma_k = \gamma_{k-1} - a \sum_j p_j \gamma_{|j+1-k|} \; (k \ge 1), \qquad
              2 \sum_j p_j \gamma_j = a\gamma_0 + s^2/a

    A parameter server's staleness is not independent from one update to the next: this is the law
    of its histogram, `consortia.oracles.stale_trace_law` that of its trace.

    Args:
        contraction: a = hλ > 0.
        probabilities: p_j of τ = 0, 1, ..., K.
        noise_variance: s².

    Raises:
        InputError: the probabilities are none, or the chain is not stable in the mean square.
    """
    a = number(contraction, "contraction", strict=True)
    s2 = number(noise_variance, "noise_variance")
    p = floats(probabilities, "probabilities")
    if p.ndim != 1 or not p.size or np.any(p < 0) or abs(p.sum() - 1) > 1e-9:
        raise InputError("probabilities: give one number a staleness 0, 1, ..., of sum one")
    growth = mean_square_growth(a, p)
    if growth >= 1:
        raise InputError(
            f"contraction: at {a:g} each step multiplies the mean square by {growth:.6g}, so that "
            "the chain diverges; lower the step size"
        )
    size = p.size
    system, right = np.zeros((size, size)), np.zeros(size)
    system[0, 0] -= a**2
    system[0] += 2 * a * p
    right[0] = s2
    for k in range(1, size):
        system[k, k] += 1
        system[k, k - 1] -= 1
        np.add.at(system[k], np.abs(np.arange(size) + 1 - k), a * p)
    return float(np.linalg.solve(system, right)[0])


def mean_square_growth(contraction: float, probabilities: ArrayLike) -> float:
    """The factor by which one step multiplies the mean square in the long run; above one: unstable.

    It is the spectral radius of S → Σ_k p_k A_k S A_k', A_k the step with staleness k.

    Args:
        contraction: a = hλ.
        probabilities: p_j of τ = 0, 1, ..., K.
    """
    import scipy.sparse.linalg

    a, p = number(contraction, "contraction"), floats(probabilities, "probabilities")
    size = p.size

    def step(flat: Array) -> Array:
        second = flat.reshape(size, size)
        # The eigenvector is symmetric; the rest of what an iteration explores is not.
        return _mean_square_step((second + second.T) / 2, a, p).reshape(-1)

    if size <= SMALL:
        dense = np.stack([step(unit) for unit in np.eye(size**2)], axis=1)
        return float(np.abs(np.linalg.eigvals(dense)).max())
    operator = scipy.sparse.linalg.LinearOperator((size**2, size**2), matvec=step, dtype=float)
    leading = scipy.sparse.linalg.eigs(
        operator, k=1, v0=np.eye(size).reshape(-1), ncv=40, tol=1e-8, return_eigenvectors=False
    )
    return float(np.abs(leading).max())


def _mean_square_step(second: Array, a: float, p: Array) -> Array:
    """E[z'z''] from E[zz'] with z the last K + 1 positions, the newest first."""
    mixed = p @ second
    moved = np.empty_like(second)
    moved[1:, 1:] = second[:-1, :-1]
    moved[0, 1:] = moved[1:, 0] = (second[0] - a * mixed)[:-1]
    moved[0, 0] = second[0, 0] - 2 * a * mixed[0] + a**2 * (p @ np.diag(second))
    return moved


class SquareError(NamedTuple):
    """How the average of θ² over a run misses its target.

    Attributes:
        mean_square: E(φ̂ − φ̄)².
        bias: E φ̂ − φ̄.
        variance: Var φ̂.
    """

    mean_square: float
    bias: float
    variance: float


def stale_square_error(
    contraction: float,
    staleness: int,
    noise_variance: float,
    updates: int,
    *,
    start_variance: float = 0.0,
    start_mean: float = 0.0,
    target_mean: float = 0.0,
    target_variance: float = 0.0,
) -> SquareError:
    r"""The exact error of the average of θ² over the first L updates, for a constant staleness.

    With the impulse response ψ of the recursion, θ is Gaussian of mean m + (m₀ − m)g_l and
    covariance :math:`v_0 g_i g_j + s^2 \sum_m \psi_m \psi_{m + |i-j|}`, and for Gaussians
    :math:`\operatorname{Cov}(\theta_i^2, \theta_j^2) = 2C_{ij}^2 + 4\mu_i\mu_j C_{ij}`.

    Args:
        contraction: a = hλ > 0; it need not be stable.
        staleness: τ.
        noise_variance: s².
        updates: L, draws θ_1, ..., θ_L.
        start_variance: v₀ of the start, which all workers hold.
        start_mean: m₀.
        target_mean: m, to which the chain is drawn.
        target_variance: φ̄ = m² + this.
    """
    a, tau = number(contraction, "contraction", strict=True), count(staleness, "staleness", least=0)
    s2, length = number(noise_variance, "noise_variance"), count(updates, "updates")
    v0 = number(start_variance, "start_variance")
    decay = _response(a, tau, length, started=True)[1:]
    impulse = _response(a, tau, length, started=False)[:length]
    mean = target_mean + (start_mean - target_mean) * decay
    bias = variance = 0.0
    for lag in range(length):
        # C of times (i, i + lag), i = 1, ..., L − lag.
        covariance = v0 * decay[: length - lag] * decay[lag:]
        covariance = covariance + s2 * np.cumsum(impulse[: length - lag] * impulse[lag:])
        if lag == 0:
            bias = float(np.mean(mean**2 + covariance)) - target_mean**2 - target_variance
        products = mean[: length - lag] * mean[lag:]
        part = np.sum(2 * covariance**2 + 4 * products * covariance)
        variance += float(part) * (1 if lag == 0 else 2)
    variance /= length**2
    return SquareError(bias**2 + variance, bias, variance)


def _response(a: float, tau: int, length: int, *, started: bool) -> Array:
    """x_0, ..., x_L of the recursion without noise from x_0 = 1; before it 1 or 0."""
    path = np.full(length + 1 + tau, 1.0 if started else 0.0)
    path[tau] = 1.0
    values = path.tolist()
    for at in range(tau, tau + length):
        values[at + 1] = values[at] - a * values[at - tau]
    return np.array(values[tau:])
