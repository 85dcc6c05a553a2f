r"""Exact laws of stochastic gradient HMC with stale gradients on Gaussian targets.

Along an eigenvector of the precision, with eigenvalue λ, a server of state z = (θ, q) obeys

.. math:: z_{l+1} = A z_l + \lambda G\,y_{l-\tau} + N\,\zeta s, \qquad y_l = R z_l

with y what it broadcasts. The stationary covariance of z and the last τ broadcasts solves a
Lyapunov equation: the error of the integrator, of the gradient's noise and of staleness come out
together, without Monte Carlo.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consortia.errors import InputError
from consortia.theory.gaussian_clients import count, floats, number

Array = NDArray[np.floating[Any]]


class LinearServer(NamedTuple):
    """One step of a server on a Gaussian target, along one direction.

    Attributes:
        transition: A, (n, n).
        force: G, (n,): the state's answer to a gradient.
        broadcast: R, (n,).
        spread: N, (n,): the state's answer to the injected noise and to the gradient's own.
        noise_variance: s².
    """

    transition: Array
    force: Array
    broadcast: Array
    spread: Array
    noise_variance: float


def langevin_server(step_size: float, *, gradient_noise: float = 0.0) -> LinearServer:
    """θ' = θ − h g + N(0, 2h), the gradient's noise of variance V included."""
    h = number(step_size, "step_size", strict=True)
    one = np.ones(1)
    s2 = 2 * h + h**2 * number(gradient_noise, "gradient_noise")
    return LinearServer(np.eye(1), -h * one, one, one, s2)


def sghmc_server(
    step_size: float,
    friction: float,
    *,
    integrator: str = "euler",
    extrapolate: float = 0.0,
    gradient_noise: float = 0.0,
    subtract_noise: bool = False,
) -> LinearServer:
    """A step of SGHMC, by Euler's method or by the symmetric splitting.

    Args:
        step_size: h.
        friction: B.
        integrator: ``"euler"``, ``"splitting"``, or ``"splitting at the end"``: the splitting with
            the gradient taken at θ, in place of the half-step point where it belongs.
        extrapolate: steps by which the broadcast looks ahead along q.
        gradient_noise: V.
        subtract_noise: inject 2Bh − h²V in place of 2Bh.

    Raises:
        InputError: an argument is out of its range, or hV > 2B with ``subtract_noise``.
    """
    h, B = number(step_size, "step_size", strict=True), number(friction, "friction", strict=True)
    V, ahead = number(gradient_noise, "gradient_noise"), number(extrapolate, "extrapolate")
    if subtract_noise and h * V > 2 * B:
        raise InputError(f"subtract_noise: h V = {h * V:g} is above 2 B = {2 * B:g}")
    s2 = 2 * B * h + (0.0 if subtract_noise else h**2 * V)
    if integrator == "euler":
        kept = 1 - B * h
        transition = np.array([[1.0, h * kept], [0.0, kept]])
        force = np.array([-(h**2), -h])
        return LinearServer(transition, force, np.array([1.0, ahead * h]), -force / h, s2)
    if integrator not in ("splitting", "splitting at the end"):
        raise InputError(f"integrator: got {integrator!r}; give 'euler' or 'splitting'")
    decay = math.exp(-B * h / 2)
    transition = np.array([[1.0, h / 2 * (1 + decay**2)], [0.0, decay**2]])
    force = -h * decay * np.array([h / 2, 1.0])
    half = h / 2 if integrator == "splitting" else 0.0
    return LinearServer(transition, force, np.array([1.0, half + ahead * h]), -force / h, s2)


class StaleServerLaw(NamedTuple):
    """The stationary law of a server along one direction.

    Attributes:
        variance: of θ.
        relative_bias: variance times λ, less one.
        covariance: of the state, (n, n).
        spectral_radius: of the linear recursion; below one, it is stable.
    """

    variance: float
    relative_bias: float
    covariance: Array
    spectral_radius: float


def stale_server_radius(server: LinearServer, curvature: float, staleness: int) -> float:
    """The spectral radius of any linear server with a constant staleness; below one, it is stable.

    Args:
        server: one step of it.
        curvature: λ.
        staleness: τ ≥ 0.
    """
    return float(np.abs(np.linalg.eigvals(_recursion(server, curvature, staleness))).max())


def _recursion(server: LinearServer, curvature: float, staleness: int) -> Array:
    """The matrix of one step of the state, with the broadcasts of the last τ steps before it."""
    lam = number(curvature, "curvature", strict=True)
    tau = count(staleness, "staleness", least=0)
    n = server.force.size
    move = np.zeros((n + tau, n + tau))
    move[:n, :n] = server.transition
    if tau == 0:
        move += lam * np.outer(server.force, server.broadcast)
    else:
        move[:n, -1] = lam * server.force
        move[n, :n] = server.broadcast
        move[n + 1 :, n:-1] = np.eye(tau - 1)
    return move


def stale_server_law(server: LinearServer, curvature: float, staleness: int) -> StaleServerLaw:
    """The stationary law of any linear server with a constant staleness, by a Lyapunov equation.

    Args:
        server: one step of it.
        curvature: λ.
        staleness: τ ≥ 0.

    Raises:
        InputError: the recursion is not stable.
    """
    import scipy.linalg

    move, n = _recursion(server, curvature, staleness), server.force.size
    radius = float(np.abs(np.linalg.eigvals(move)).max())
    if radius >= 1:
        raise InputError(
            f"the chain diverges: a step multiplies distances by {radius:.6g} at curvature "
            f"{curvature:g} and staleness {staleness}; lower the step size"
        )
    noise = np.zeros_like(move)
    noise[:n, :n] = server.noise_variance * np.outer(server.spread, server.spread)
    covariance = scipy.linalg.solve_discrete_lyapunov(move, noise, method="direct")[:n, :n]
    variance = float(covariance[0, 0])
    return StaleServerLaw(variance, variance * float(curvature) - 1, covariance, radius)


def stale_sghmc_law(
    step_size: float, friction: float, *, curvature: float = 1.0, staleness: int = 0, **options: Any
) -> StaleServerLaw:
    """The stationary law of stale SGHMC along one direction, for a constant staleness.

    Args:
        step_size: h.
        friction: B.
        curvature: λ.
        staleness: τ.
        **options: of `sghmc_server`.

    Raises:
        InputError: an argument is out of its range, or the chain is not stable.

    Example:
        >>> round(stale_sghmc_law(0.1, 1.0, staleness=1).relative_bias, 3)
        0.114
        >>> round(stale_sghmc_law(0.1, 1.0, staleness=1, extrapolate=1).relative_bias, 4)
        0.0037
    """
    return stale_server_law(sghmc_server(step_size, friction, **options), curvature, staleness)


def sghmc_error_slopes(
    step_sizes: ArrayLike, friction: float = 1.0, **options: Any
) -> tuple[Array, Array]:
    """Relative errors of the variance over step sizes, and the order from each to the next.

    Args:
        step_sizes: h, decreasing, (k,).
        friction: B.
        **options: of `stale_sghmc_law`.

    Returns:
        Errors (k,) and slopes log|e_i/e_{i+1}| / log(h_i/h_{i+1}), (k − 1,).
    """
    steps = floats(step_sizes, "step_sizes")
    errors = np.array([stale_sghmc_law(float(h), friction, **options).relative_bias for h in steps])
    slopes = np.diff(np.log(np.abs(errors))) / np.diff(np.log(steps))
    return errors, slopes
