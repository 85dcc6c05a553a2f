"""The step sizes that the papers prescribe, each with its theorem and with what it leaves open."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from consortia.core.arguments import number, positive, site_weights, whole
from consortia.errors import InputError, wrong

# --- FA-HMC --------------------------------------------------------------------------------------


def fa_hmc_first_stage(
    step_size: float, *, leapfrog_steps: int, local_steps: int, strong_convexity: float
) -> int:
    r"""Return the length of the first stage, in which the squared distance shrinks by a factor 8.

    .. math:: \frac{t_1}{T} = \left\lceil \frac{\log 8}{-T \log(1 - \mu (K\eta_1)^2 / 4)}
        \right\rceil

    Not guaranteed: that μ is the rate of this posterior; a μ that is too large ends the stage
    before the start is forgotten.

    Args:
        step_size: :math:`\eta_1`.
        leapfrog_steps: K.
        local_steps: T.
        strong_convexity: μ, the smallest curvature of every :math:`f_c = U_c / w_c`.

    Returns:
        In synchronisations.

    Raises:
        InputError: an argument is out of its range, or μ (Kη)² / 4 is not below 1.

    Example:
        >>> fa_hmc_first_stage(0.1, leapfrog_steps=2, local_steps=5, strong_convexity=1.0)
        42

    Source: Liang et al. (2024), proposition J.1.
    """
    length = whole("leapfrog_steps", leapfrog_steps, 1) * positive("step_size", step_size)
    shrink = positive("strong_convexity", strong_convexity) * length**2 / 4.0
    if shrink >= 1.0:
        raise InputError(
            f"step_size: μ (Kη)² / 4 = {shrink:.4g}, but the bound holds below 1 only; lower "
            "step_size or leapfrog_steps"
        ).at("step_size")
    rounds = math.log(8.0) / (-whole("local_steps", local_steps, 1) * math.log1p(-shrink))
    return max(1, math.ceil(rounds))


def fa_hmc_step_size(
    *,
    smoothness: float,
    dimension: int,
    accuracy: float,
    leapfrog_steps: int,
    local_steps: int,
    weights: Sequence[float] | np.ndarray,
    momentum_correlation: float = 1.0,
    gradient_noise: float = 0.0,
    constant: float = 1.0,
) -> float:
    r"""Return the constant step size of FA-HMC for a given distance to the target.

    .. math:: (K\eta)^2 = \gamma = C \min\left\{\frac1L, \frac{\epsilon}{T\sqrt d},
        \frac{\epsilon^2}{d T^2 (1-\rho) N},
        \frac{\epsilon^2 K}{d \sum_c w_c^2 \sigma_g^2}\right\},
        \qquad \sigma_g^2 = \frac{\sigma^2}{L}

    Then :math:`W_2 \le \epsilon` after :math:`\tilde O(d \log(d/\epsilon^2)/\epsilon^2 \cdot
    T^2(\gamma + (1-\rho)N) + \dots)` local iterations, for strongly convex, smooth clients.

    Not guaranteed: the constant. The theorem says that some C exists, which depends on L, L/μ and
    the Lipschitz constant of the Hessian; 1 is a guess, above which even the first bound,
    :math:`K\eta \le 1/\sqrt L`, fails. The exact laws in `consortia.oracles` show what a step size
    does.

    Args:
        smoothness: L, the largest curvature of every :math:`f_c = U_c / w_c`.
        dimension: d.
        accuracy: ε, the distance :math:`W_2` to reach, in units of the parameters.
        leapfrog_steps: K.
        local_steps: T.
        weights: :math:`w_c`, one for each of the N clients.
        momentum_correlation: ρ.
        gradient_noise: σ², variance per coordinate of a client's stochastic gradient of f_c.
        constant: C.

    Returns:
        η, positive.

    Raises:
        InputError: an argument is out of its range, or the weights do not sum to one.

    Example:
        >>> step = fa_hmc_step_size(smoothness=1.0, dimension=4, accuracy=0.1, leapfrog_steps=2,
        ...                         local_steps=5, weights=[0.5, 0.5])
        >>> round(step, 4)
        0.05

    Source: Liang et al. (2024), theorem 4.1 (its assumption 3.4 bounds the trace of the gradient's
    covariance by :math:`\sigma_g^2 L d`).
    """
    share = np.array(site_weights(np.atleast_1d(weights)))
    l_, d = positive("smoothness", smoothness), whole("dimension", dimension, 1)
    eps, k = positive("accuracy", accuracy), whole("leapfrog_steps", leapfrog_steps, 1)
    t = whole("local_steps", local_steps, 1)
    private = 1.0 - number("momentum_correlation", momentum_correlation, 0.0, 1.0)
    noise = float(np.sum(share**2)) * number("gradient_noise", gradient_noise, 0.0) / l_
    bounds = [1.0 / l_, eps / (t * math.sqrt(d))]
    if private > 0.0:
        bounds.append(eps**2 / (d * t**2 * private * share.size))
    if noise > 0.0:
        bounds.append(eps**2 * k / (d * noise))
    return math.sqrt(positive("constant", constant) * min(bounds)) / k


# --- stale gradients -----------------------------------------------------------------------------


def stale_error_step_size(iterations: int, *, staleness: float, constant: float) -> float:
    r"""Return the step size that minimises the bound of the squared error with stale gradients.

    .. math:: h = C \tau^{-2/3} L^{-1/3}

    It balances the terms :math:`1/(Lh)` and :math:`\tau^2 h^2` of the bound on the mean squared
    error of an average over L updates; at it the error is of order :math:`(\tau/L)^{2/3}`.

    Not guaranteed: stability. The constant holds the scale of the log-density: with the paper's
    own experiment (C = 1/30, 1,000 rows) on a density at full scale every chain diverges. The
    bound also drops the term of the integrator's order, so it says nothing without staleness.

    Args:
        iterations: L, accepted updates in total.
        staleness: τ, the largest delay of a gradient in updates, above zero.
        constant: C, not given by the theorem.

    Returns:
        h, positive.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> round(stale_error_step_size(1000, staleness=8, constant=0.1), 6)
        0.0025

    Source: Chen, Ding, Li, Zhang, Carin, "Stochastic gradient MCMC with stale gradients" (2016),
    theorem 3 and sections 4 and 5.1.
    """
    tau, total = positive("staleness", staleness), whole("iterations", iterations, 1)
    return positive("constant", constant) * tau ** (-2.0 / 3.0) * total ** (-1.0 / 3.0)


def stale_variance_step_size(iterations: int, *, order: int, constant: float) -> float:
    r"""Return the step size that minimises the variance's bound, whatever the staleness.

    .. math:: h = C L^{-1/(2K+1)}

    The variance of an average over L updates is then of order :math:`L^{-2K/(2K+1)}`, and so it
    falls in proportion to that power of the number of workers.

    Not guaranteed: the bias, which grows with the staleness and is not in the variance. With many
    workers it decides the error; use `stale_error_step_size` for that.

    Args:
        iterations: L, accepted updates in total.
        order: K of the integrator: 1 for SGLD and the Euler scheme, 2 for a symmetric splitting.
        constant: C, not given by the corollary.

    Returns:
        h, positive.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> round(stale_variance_step_size(1000, order=1, constant=0.1), 6)
        0.01

    Source: Chen et al. (2016), theorem 4 and corollary 5.
    """
    power = -1.0 / (2 * whole("order", order, 1) + 1)
    return positive("constant", constant) * whole("iterations", iterations, 1) ** power


# --- gossip --------------------------------------------------------------------------------------


def de_sgld_step_size(budget: int, *, strong_convexity: float, constant: float) -> float:
    r"""Return the step size of DE-SGLD for a budget of K iterations.

    .. math:: \eta = \frac{c \log\sqrt K}{\mu K}

    The average over the agents is then within :math:`O(\sqrt{\log K / K})` of the target in
    :math:`W_2`, with constants from the graph, the dimension and the gradients' noise.

    Not guaranteed: the theorem's own condition
    :math:`\eta < \min\{(1+\lambda_{\min}(W))/L, 1/(L+\mu)\}`, which small budgets break (check it
    with the exact law); and a single agent, whose spread stays of order √η.

    Args:
        budget: K, at least 2.
        strong_convexity: μ, the smallest curvature of every agent's :math:`f_i`.
        constant: c, above 1.

    Returns:
        η, positive.

    Raises:
        InputError: the constant is not above 1, or another argument out of its range.

    Example:
        >>> round(de_sgld_step_size(1000, strong_convexity=2.0, constant=1.5), 6)
        0.00259

    Source: Gürbüzbalaban, Gao, Hu, Zhu, "Decentralized stochastic gradient Langevin dynamics and
    Hamiltonian Monte Carlo" (2021), theorem 1 and the discussion after it.
    """
    c = positive("constant", constant)
    if c <= 1.0:
        raise wrong("constant", f": got {constant!r}; the bound needs a constant above 1")
    k = whole("budget", budget, 2)
    return c * 0.5 * math.log(k) / (positive("strong_convexity", strong_convexity) * k)


def de_sghmc_step_size(budget: int, *, strong_convexity: float, constant: float) -> float:
    r"""Return the step size of DE-SGHMC for a budget of K iterations.

    .. math:: \eta = \sqrt{\frac{c \log\sqrt K}{\mu K}}

    Not guaranteed: the theorem's conditions, among them a friction of nearly 1/η, under which the
    method is all but DE-SGLD with the step η²; settings that work well in practice violate them.

    Args:
        budget: K, at least 2.
        strong_convexity: μ, the smallest curvature of every agent's :math:`f_i`.
        constant: c, above 1.

    Returns:
        η, positive.

    Raises:
        InputError: the constant is not above 1, or another argument out of its range.

    Example:
        >>> round(de_sghmc_step_size(1000, strong_convexity=2.0, constant=1.5), 4)
        0.0509

    Source: Gürbüzbalaban et al. (2021), theorem 7 and the discussion after it.
    """
    return math.sqrt(
        de_sgld_step_size(budget, strong_convexity=strong_convexity, constant=constant)
    )
