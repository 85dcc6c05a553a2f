r"""Exact laws of samplers with stale gradients on Gaussian targets, without Monte Carlo.

Along an eigenvector of the precision, with eigenvalue λ, a server of state z broadcasts y = R z and
moves by the gradient at what it broadcast τ steps ago,

.. math:: z_{l+1} = A z_l + \lambda G\,y_{l-\tau_l} + N\,\zeta s

For Langevin dynamics z = θ, the position less its mean, and with a = hλ

.. math:: x_{l+1} = x_l - a\,x_{l-\tau_l} + N(0, s^2), \qquad s^2 = 2h + h^2 V

V being the variance of the gradient's noise; SGHMC has z = (θ, q). With a constant staleness the
state with the last τ broadcasts is an affine recursion: the error of the integrator, of the
gradient's noise and of staleness come out together. Along a given trace of events means and
variances follow the recursion step by step, start-up included.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from consortia.core import arguments
from consortia.errors import wrong
from consortia.theory.affine import AffineMap, AffineRecursion, Array
from consortia.theory.arguments import floats, shares_of
from consortia.theory.law import Law, Moments


class LinearServer(NamedTuple):
    """One step of a server on a Gaussian target, along one direction.

    Attributes:
        transition: A, (n, n).
        force: G, (n,): the state's answer to a gradient.
        broadcast: R, (n,).
        spread: N, (n,): the state's answer to the injected noise and to the gradient's own.
        noise_variance: s², a number or one for each direction, (d,).

    Example:
        >>> float(langevin_server(0.1).noise_variance)
        0.2
    """

    transition: Float[np.ndarray, "n n"]
    force: Float[np.ndarray, " n"]
    broadcast: Float[np.ndarray, " n"]
    spread: Float[np.ndarray, " n"]
    noise_variance: float | Float[np.ndarray, " d"]


def langevin_server(step_size: float, *, gradient_noise: ArrayLike = 0.0) -> LinearServer:
    """Return a step θ' = θ − h g + N(0, 2h), its gradient noise having the variance V.

    Args:
        step_size: h.
        gradient_noise: V, a number or (d,).

    Returns:
        The step, as matrices of one direction.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> round(float(langevin_server(0.1, gradient_noise=2.0).noise_variance), 4)
        0.22
    """
    h = arguments.positive("step_size", step_size)
    unit = np.ones(1)
    s2 = 2 * h + h**2 * _variances(gradient_noise)
    return LinearServer(np.eye(1), -h * unit, unit, unit, s2)


def sghmc_server(
    step_size: float,
    friction: float,
    *,
    integrator: str = "euler",
    extrapolate: float = 0.0,
    gradient_noise: ArrayLike = 0.0,
    subtract_noise: bool = False,
) -> LinearServer:
    """Return a step of SGHMC, by Euler's method or by the symmetric splitting.

    Args:
        step_size: h.
        friction: B.
        integrator: ``"euler"``, ``"splitting"``, or ``"splitting at the end"``: the splitting with
            the gradient taken at θ, in place of the half-step point where it belongs.
        extrapolate: steps by which the broadcast looks ahead along q.
        gradient_noise: V, a number or (d,).
        subtract_noise: inject 2Bh − h²V in place of 2Bh.

    Returns:
        The step, as matrices of one direction; its state is (θ, q).

    Raises:
        InputError: an argument is out of its range, or hV > 2B with ``subtract_noise``.

    Example:
        >>> sghmc_server(0.1, 2.0).transition
        array([[1.  , 0.08],
               [0.  , 0.8 ]])
    """
    h, B = arguments.positive("step_size", step_size), arguments.positive("friction", friction)
    V, ahead = _variances(gradient_noise), arguments.number("extrapolate", extrapolate, 0.0)
    if subtract_noise and np.max(h * V) > 2 * B:
        raise wrong("subtract_noise", f": h V = {np.max(h * V):g} is above 2 B = {2 * B:g}")
    s2 = 2 * B * h + (0.0 if subtract_noise else h**2 * V)
    if integrator == "euler":
        kept = 1 - B * h
        transition = np.array([[1.0, h * kept], [0.0, kept]])
        force = np.array([-(h**2), -h])
        return LinearServer(transition, force, np.array([1.0, ahead * h]), -force / h, s2)
    if integrator not in ("splitting", "splitting at the end"):
        raise wrong("integrator", f": got {integrator!r}; give 'euler' or 'splitting'")
    decay = math.exp(-B * h / 2)
    transition = np.array([[1.0, h / 2 * (1 + decay**2)], [0.0, decay**2]])
    force = -h * decay * np.array([h / 2, 1.0])
    half = h / 2 if integrator == "splitting" else 0.0
    return LinearServer(transition, force, np.array([1.0, half + ahead * h]), -force / h, s2)


def _variances(noise: ArrayLike) -> Array:
    variances = floats(noise, "gradient_noise")
    if np.any(variances < 0):
        raise wrong("gradient_noise", f": got {noise!r}; give variances of at least 0")
    return variances


# --- constant staleness --------------------------------------------------------------------------


def stale_server_law(server: LinearServer, curvature: ArrayLike, staleness: int) -> Law:
    """Return the law of any linear server with a constant staleness, direction by direction.

    All workers hold the start, and the momentum is zero there.

    Args:
        server: one step of it.
        curvature: λ of each direction, a number or (d,).
        staleness: τ ≥ 0.

    Returns:
        The law of θ; its recursion's state is z, then the last τ broadcasts. It is returned for
        unstable settings too: see ``stable``.

    Raises:
        InputError: a curvature is not above 0, or the staleness is not an integer of at least 0.

    Example:
        >>> stale_server_law(langevin_server(0.1), 1.0, 0).stationary.variance.round(4)
        array([1.0526])
    """
    lam = np.atleast_1d(floats(curvature, "curvature"))
    tau = arguments.whole("staleness", staleness, 0)
    if lam.ndim != 1 or np.any(lam <= 0):
        raise wrong("curvature", f": got {curvature!r}; give numbers above 0")
    n, d = server.force.size, lam.size
    matrix = np.zeros((d, n + tau, n + tau))
    matrix[:, :n, :n] = server.transition
    if tau == 0:
        matrix += lam[:, None, None] * np.outer(server.force, server.broadcast)
    else:
        matrix[:, :n, -1] = lam[:, None] * server.force
        matrix[:, n, :n] = server.broadcast
        matrix[:, n + 1 :, n:-1] = np.eye(tau - 1)
    noise = np.zeros_like(matrix)
    noise[:, :n, :n] = _noise(server)
    step = AffineMap(matrix, np.zeros((d, n + tau)), noise)
    start = np.zeros(n + tau)
    start[0], start[n:] = 1.0, server.broadcast[0]
    first = step._replace(matrix=(matrix @ start)[:, :, None])
    return Law(
        AffineRecursion(step, first),
        Moments(np.zeros(d), 1 / lam),
        remedy="Lower the step size, or take fewer workers.",
        basis=f"the exact law with a constant staleness of {tau}",
    )


def stale_sgld_law(
    step_size: float, curvature: ArrayLike, staleness: int, *, gradient_noise: ArrayLike = 0.0
) -> Law:
    r"""Return the law of stale Langevin dynamics for a constant staleness, direction by direction.

    It is stable where :math:`h\lambda < 2 \sin\frac{\pi}{4\tau + 2}` in every direction.

    Args:
        step_size: h.
        curvature: λ of each direction, a number or (d,).
        staleness: τ.
        gradient_noise: V, a number or (d,).

    Returns:
        The law of θ around the target's mean, of d coordinates.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> stale_sgld_law(0.02, 1.0, 10).stationary.variance_ratio.round(4)
        array([1.2357])
    """
    server = langevin_server(step_size, gradient_noise=gradient_noise)
    return stale_server_law(server, curvature, staleness)


def stale_sghmc_law(
    step_size: float,
    friction: float,
    *,
    curvature: ArrayLike = 1.0,
    staleness: int = 0,
    **options: Any,
) -> Law:
    """Return the law of stale SGHMC for a constant staleness, direction by direction.

    Args:
        step_size: h.
        friction: B.
        curvature: λ of each direction, a number or (d,).
        staleness: τ.
        **options: of `sghmc_server`.

    Returns:
        The law of θ around the target's mean, of d coordinates.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> stale_sghmc_law(0.1, 1.0, staleness=1).stationary.variance_ratio.round(3)
        array([1.114])
        >>> law = stale_sghmc_law(0.1, 1.0, staleness=1, extrapolate=1)
        >>> law.stationary.variance_ratio.round(4)
        array([1.0037])
    """
    return stale_server_law(sghmc_server(step_size, friction, **options), curvature, staleness)


# --- averages over a run -------------------------------------------------------------------------


class SquareError(NamedTuple):
    """The error of the average of θ² over a run.

    Attributes:
        mean_square: E(φ̂ − φ̄)².
        bias: E φ̂ − φ̄.
        variance: Var φ̂.

    Example:
        >>> round(stale_square_error(0.1, 0, 0.2, 100, target_variance=1.0).bias, 4)
        0.0078
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
    r"""Return the exact error of the average of θ² over L updates, for a constant staleness.

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

    Returns:
        Mean square, bias and variance of the average.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> found = stale_square_error(0.1, 0, 0.2, 1000, target_variance=1.0)
        >>> round(found.bias, 4)
        0.0481
    """
    from scipy.signal import lfilter

    a = arguments.positive("contraction", contraction)
    tau = arguments.whole("staleness", staleness, 0)
    s2 = arguments.number("noise_variance", noise_variance, 0.0)
    length = arguments.whole("updates", updates, 1)
    v0 = arguments.number("start_variance", start_variance, 0.0)
    recursion = np.zeros(tau + 2)  # its coefficients of x_l, x_{l-1}, ..., all on one side
    recursion[:2] = 1.0, -1.0
    recursion[-1] += a
    unit = np.eye(1, length + 1)[0]
    impulse = lfilter([1.0], recursion, unit)[:length]
    # Before the start all workers hold it, which enters the first τ updates.
    decay = lfilter([1.0, *[-a] * tau], recursion, unit)[1:]
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


# --- along a trace -------------------------------------------------------------------------------


def stale_trace_law(
    server: LinearServer,
    staleness: ArrayLike,
    curvature: ArrayLike,
    *,
    centre: ArrayLike = 0.0,
    workers: ArrayLike | None = None,
    start_mean: ArrayLike = 0.0,
    start_variance: ArrayLike = 0.0,
) -> Moments:
    r"""Return the exact mean and variance of θ after every update of one server, by direction.

    .. math:: z_{l+1} = A z_l + G\,\lambda_{c(l)}(y_{l-\tau_l} - \mu_{c(l)}) + N \zeta s

    With sites of their own, λ_c and μ_c are those of the site whose gradient arrives, λ_c divided
    by its share.

    Args:
        server: one step, of `langevin_server` or `sghmc_server`.
        staleness: τ of the accepted updates, (updates,).
        curvature: λ of each direction, (d,); with ``workers`` that of each site's gradient as it
            arrives, that is divided by the site's share, (sites, d).
        centre: μ, where the gradient is zero, like ``curvature``.
        workers: site of each accepted update, (updates,), when each holds its own.
        start_mean: of θ at the start, which all workers hold; (d,). The momentum is zero.
        start_variance: of the start, (d,).

    Returns:
        Means and variances, (updates, d).

    Raises:
        InputError: shapes do not fit, or a staleness reaches behind the start.

    Example:
        >>> law = stale_trace_law(langevin_server(0.1), [0, 0, 1], [1.0], start_mean=1.0)
        >>> law.mean[:, 0].round(3)
        array([0.9 , 0.81, 0.72])
    """
    tau, who = _events(staleness, workers)
    lam = np.atleast_2d(floats(curvature, "curvature"))
    if workers is not None and who.max() >= len(lam):
        raise wrong("workers", f": site {who.max()} is named, curvature has {len(lam)} rows")
    mu = np.broadcast_to(np.atleast_2d(floats(centre, "centre")), lam.shape)
    d, n, length = lam.shape[1], server.force.size, int(tau.max()) + 1
    # The state is z, then a ring of the last broadcasts.
    sent = np.vstack([np.eye(n), server.broadcast])
    begin = np.append(np.eye(1, n)[0], np.full(length, server.broadcast[0]))
    mean = np.outer(np.broadcast_to(floats(start_mean, "start_mean"), d), begin)
    second = np.broadcast_to(floats(start_variance, "start_variance"), d)[:, None, None]
    second = second * np.outer(begin, begin)
    noise, answer = sent @ _noise(server) @ sent.T, np.empty((d, n + 1, n + 1))
    answer[:, :, :n] = sent @ server.transition
    means, variances = np.empty((tau.size, d)), np.empty((tau.size, d))
    for step, late in enumerate(tau.tolist()):
        # It reads z and a broadcast, and writes z and the newest one in the place of the oldest.
        old = [*range(n), n + (step - late) % length]
        new = [*range(n), n + (step + 1) % length]
        answer[:, :, n] = np.outer(lam[who[step]], sent @ server.force)
        pull = lam[who[step]] * mu[who[step]]
        moved = np.einsum("dij,dj->di", answer, mean[:, old])
        mean[:, new] = moved - np.outer(pull, sent @ server.force)
        second[:, new] = answer @ second[:, old]
        second[:, :, new] = second[:, :, old] @ answer.mT
        second[:, np.array(new)[:, None], new] += noise
        means[step], variances[step] = mean[:, 0], second[:, 0, 0]
    return Moments(means, variances)


def site_noise(gradients: ArrayLike, shares: ArrayLike) -> Array:
    r"""Return the sites' share in a gradient's covariance, when one site's arrives at a time.

    .. math:: \operatorname{Cov}_f(\nabla U_c / f_c) = \sum_c \frac{1}{f_c}\nabla U_c \nabla U_c^T
              - \nabla U \nabla U^T

    Times h² it inflates each step's noise, if the order of the sites is random; workers that take
    turns add less.

    Args:
        gradients: ∇U_c at one point, best near the mode, (sites, d).
        shares: f_c, (sites,).

    Returns:
        The covariance, (d, d).

    Raises:
        InputError: shapes do not fit, or the shares are not positive and of sum one.

    Example:
        >>> site_noise([[1.0], [-1.0]], [0.5, 0.5])
        array([[4.]])
    """
    g, f = floats(gradients, "gradients"), shares_of(shares, "shares")
    if g.ndim != 2 or f.shape != g.shape[:1]:
        raise wrong("gradients", f": shape {g.shape}; give (sites, d) for {f.size} shares")
    total = g.sum(axis=0)
    return (g / f[:, None]).T @ g - np.outer(total, total)


def _events(
    staleness: ArrayLike, workers: ArrayLike | None
) -> tuple[Int[np.ndarray, " updates"], Int[np.ndarray, " updates"]]:
    tau = np.asarray(staleness)
    if tau.ndim != 1 or not tau.size or not np.issubdtype(tau.dtype, np.integer):
        raise wrong("staleness", f": shape {tau.shape}; give integers, (updates,)")
    if np.any(tau < 0) or np.any(tau > np.arange(tau.size)):
        raise wrong("staleness", ": it must be at least 0 and cannot reach behind the start")
    who = np.zeros(tau.size, int) if workers is None else np.asarray(workers)
    if who.shape != tau.shape:
        raise wrong("workers", f": shape {who.shape}; give one for each of {tau.size} updates")
    return tau, who


def _noise(server: LinearServer) -> Array:
    """Return the covariance that a step adds to the state, (n, n) or one a direction, (d, n, n)."""
    variance = np.asarray(server.noise_variance)[..., None, None]
    return variance * np.outer(server.spread, server.spread)
