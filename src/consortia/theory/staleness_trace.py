r"""The exact law of a parameter server along one trace of events, on Gaussian targets.

Given who sends which version when, the recursion

.. math:: z_{l+1} = A z_l + G\,\lambda_{c(l)}(y_{l-\tau_l} - \mu_{c(l)}) + N \zeta s, \qquad y = R z

is linear with known coefficients: means and variances follow it step by step, start-up included.
With sites of their own, λ_c and μ_c are those of the site that is heard, λ_c divided by its share.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consortia.errors import InputError
from consortia.theory.gaussian_clients import floats, number
from consortia.theory.staleness_momentum import LinearServer

Array = NDArray[np.floating[Any]]


class TraceLaw(NamedTuple):
    """The law of θ after each update.

    Attributes:
        mean: (updates, d).
        variance: (updates, d).
    """

    mean: Array
    variance: Array


def stale_trace_law(
    server: LinearServer,
    staleness: ArrayLike,
    curvature: ArrayLike,
    *,
    centre: ArrayLike = 0.0,
    workers: ArrayLike | None = None,
    start_mean: ArrayLike = 0.0,
    start_variance: ArrayLike = 0.0,
) -> TraceLaw:
    """The exact mean and variance of θ after every update of one server, by direction.

    Args:
        server: one step, of `langevin_server` or `sghmc_server`.
        staleness: τ of the accepted updates, (updates,).
        curvature: λ of each direction, (d,); with ``workers`` that of each site's gradient as it
            arrives, that is divided by the site's share, (sites, d).
        centre: μ, where the gradient is zero, like ``curvature``.
        workers: site of each accepted update, (updates,), when each holds its own.
        start_mean: of θ at the start, which all workers hold; (d,). The momentum is zero.
        start_variance: of the start, (d,).

    Raises:
        InputError: shapes do not fit, or a staleness reaches behind the start.
    """
    tau, who = _events(staleness, workers)
    lam = np.atleast_2d(floats(curvature, "curvature"))
    if workers is not None and who.max() >= len(lam):
        raise InputError(f"workers: site {who.max()} is named, curvature has {len(lam)} rows")
    mu = np.broadcast_to(np.atleast_2d(floats(centre, "centre")), lam.shape)
    d, n = lam.shape[1], server.force.size
    A, G, R = server.transition, server.force, server.broadcast
    Q = server.noise_variance * np.outer(server.spread, server.spread)
    length = int(tau.max()) + 1
    mean = np.zeros((d, n))
    mean[:, 0] = np.broadcast_to(floats(start_mean, "start_mean"), d)
    second = np.zeros((d, n, n))
    second[:, 0, 0] = np.broadcast_to(floats(start_variance, "start_variance"), d)
    # A ring of past broadcasts: means, covariances with the state, and with one another.
    sent = np.repeat((mean @ R)[:, None], length, axis=1)
    cross = np.repeat((second @ R)[:, :, None], length, axis=2)
    among = np.repeat(np.repeat((cross[:, :, 0] @ R)[:, None, None], length, 1), length, 2)
    means, variances = np.empty((tau.size, d)), np.empty((tau.size, d))
    for step, (late, site) in enumerate(zip(tau.tolist(), who.tolist(), strict=True)):
        at, new = (step - late) % length, (step + 1) % length
        pull = lam[site]
        mean = mean @ A.T + (pull * (sent[:, at] - mu[site]))[:, None] * G
        mixed = np.einsum("ij,dj,k->dik", A, cross[:, :, at], G) * pull[:, None, None]
        square = (pull**2 * among[:, at, at])[:, None, None] * np.outer(G, G)
        second = A @ second @ A.T + mixed + np.swapaxes(mixed, 1, 2) + square + Q
        cross = A @ cross + G[:, None] * (pull[:, None] * among[:, at])[:, None]
        # The new broadcast takes the place of the oldest one.
        along = np.einsum("i,dij->dj", R, cross)
        cross[:, :, new] = second @ R
        along[:, new] = cross[:, :, new] @ R
        among[:, new] = among[:, :, new] = along
        sent[:, new] = mean @ R
        means[step], variances[step] = mean[:, 0], second[:, 0, 0]
    return TraceLaw(means, variances)


def stale_trace_growth(server: LinearServer, staleness: ArrayLike, curvature: float) -> float:
    """The factor per update by which a distance grows along a trace; above one the chain diverges.

    Args:
        server: one step.
        staleness: τ of the accepted updates of one server, (updates,).
        curvature: λ, the largest one of the target.

    Returns:
        The factor over the second half of the trace, so that the start does not count.
    """
    tau, _ = _events(staleness, None)
    lam = number(curvature, "curvature", strict=True)
    length = int(tau.max()) + 1
    state = np.zeros(server.force.size)
    state[0] = 1.0
    sent = np.full(length, float(server.broadcast @ state))
    logarithm, half = 0.0, 0.0
    for step, late in enumerate(tau.tolist()):
        if step == tau.size // 2:
            half = logarithm + np.log(_size(state, sent))
        state = server.transition @ state + lam * server.force * sent[(step - late) % length]
        sent[(step + 1) % length] = server.broadcast @ state
        size = _size(state, sent)
        if size > 1e100 or size < 1e-100:
            state, sent, logarithm = state / size, sent / size, logarithm + np.log(size)
    end = logarithm + np.log(_size(state, sent))
    return float(np.exp((end - half) / (tau.size - tau.size // 2)))


def site_noise(gradients: ArrayLike, shares: ArrayLike) -> Array:
    r"""What unlike sites add to the variance of a gradient, when one site is heard at a time.

    .. math:: \operatorname{Cov}_f(\nabla U_c / f_c) = \sum_c \frac{1}{f_c}\nabla U_c \nabla U_c^T
              - \nabla U \nabla U^T

    Times h² it inflates each step's noise, if the order of the sites is random; workers that take
    turns add less.

    Args:
        gradients: ∇U_c at one point, best near the mode, (sites, d).
        shares: f_c, (sites,).

    Returns:
        The covariance, (d, d).
    """
    g, f = floats(gradients, "gradients"), floats(shares, "shares")
    if g.ndim != 2 or f.shape != g.shape[:1]:
        raise InputError(f"gradients: shape {g.shape}; give (sites, d) for {f.size} shares")
    if np.any(f <= 0) or abs(f.sum() - 1) > 1e-6:
        raise InputError("shares: give one positive number a site, of sum one")
    total = g.sum(axis=0)
    return (g / f[:, None]).T @ g - np.outer(total, total)


def _events(staleness: ArrayLike, workers: ArrayLike | None) -> tuple[NDArray[Any], NDArray[Any]]:
    tau = np.asarray(staleness)
    if tau.ndim != 1 or not tau.size or not np.issubdtype(tau.dtype, np.integer):
        raise InputError(f"staleness: shape {tau.shape}; give whole numbers, (updates,)")
    if np.any(tau < 0) or np.any(tau > np.arange(tau.size)):
        raise InputError("staleness: it must be at least 0 and cannot reach behind the start")
    who = np.zeros(tau.size, int) if workers is None else np.asarray(workers)
    if who.shape != tau.shape:
        raise InputError(f"workers: shape {who.shape}; give one for each of {tau.size} updates")
    return tau, who


def _size(state: Array, sent: Array) -> float:
    return float(np.sqrt(state @ state + sent @ sent))
