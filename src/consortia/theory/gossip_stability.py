"""Where gossip samplers stop being stable, and what the published theorems ask for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from consortia import graphs
from consortia.errors import InputError
from consortia.theory.gaussian_clients import number
from consortia.theory.gossip import de_sghmc_law, de_sgld_law
from consortia.theory.gossip_agents import GaussianAgents
from consortia.theory.gossip_law import GossipLaw

NEVER = "no step size is stable: the network or the data leave no stationary law."

_HALVINGS = 60
_NO_ROOM = 1e-12
"""An eigenvalue of W that is −1 to rounding."""


class Condition(NamedTuple):
    """One condition of a theorem: ``value`` must be below (or at) ``bound``."""

    name: str
    value: float
    bound: float
    holds: bool


def largest_stable_step(
    agents: GaussianAgents,
    mixing: Any,
    *,
    friction: float | None = None,
    tolerance: float = 1e-4,
    **options: Any,
) -> float:
    """The step size up to which a gossip sampler is stable on Gaussian agents.

    With ``batch_size`` the spread must settle as well as the mean, which allows smaller steps only.

    Args:
        agents: the problem; for another model, its curvatures at the mode.
        mixing: W, as in `consortia.de_sgld`.
        friction: γ of DE-SGHMC; None for DE-SGLD.
        tolerance: relative error of the answer, which is always itself stable.
        **options: of `de_sgld_law` or `de_sghmc_law`, without the step size.

    Returns:
        η.

    Raises:
        InputError: an argument of the law is wrong, or no step size is stable.

    Example:
        >>> agents = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])
        >>> round(largest_stable_step(agents, "complete"), 3)
        0.423

    Source: with a symmetric W, DE-SGLD is stable for ηA < I + W, with EXTRA for 4ηA < 5I + 3W, and
    DE-SGHMC for η²A < (2 − γη)(I + W); the other limits are found numerically.
    """
    accuracy = number(tolerance, "tolerance", least=1e-12, most=0.1, strict=True)

    def law(step: float) -> GossipLaw:
        if friction is None:
            return de_sgld_law(agents, mixing, step_size=step, **options)
        return de_sghmc_law(agents, mixing, step_size=step, friction=friction, **options)

    correction = options.get("correction")
    limit = mean_limit(agents, mixing, friction=friction, correction=correction)
    if limit is None:
        # Time scales of the two methods: a step is stable somewhere below them or not at all.
        scale = 1.0 / agents.smoothness
        start = scale if friction is None else min(math.sqrt(scale), 1.0 / friction)
        mean = _largest(lambda step: law(step).spectral_radius, start, accuracy)
    else:
        mean = (1.0 - accuracy / 2) * limit
        if law(mean).spectral_radius >= 1.0:
            raise InputError(NEVER)
    if law(mean).batches is None:
        return mean
    return _bisected(lambda step: law(step).stable, mean, accuracy)


def mean_limit(
    agents: GaussianAgents,
    mixing: Any,
    *,
    friction: float | None = None,
    correction: str | None = None,
) -> float | None:
    r"""The step size from which on the mean diverges, in closed form; None where there is none.

    For a symmetric W an eigenvector of the iteration has real Rayleigh quotients w and a with W
    and A, and its eigenvalue solves a quadratic equation in them whose roots leave the unit disc at
    −1 only: plain ηa = 1 + w, EXTRA 4ηa = 5 + 3w, DE-SGHMC η²a = (2 − γη)(1 + w). With EXTRA and
    momentum the equation is cubic, and only a search tells.

    Args:
        agents: the problem.
        mixing: W.
        friction: γ of DE-SGHMC; None for DE-SGLD.
        correction: None or ``"extra"``.

    Raises:
        InputError: no step size is stable.
    """
    matrix = graphs.resolve(graphs.as_mixing(mixing), agents.count)
    if not _has_closed_form(matrix, friction, correction):
        return None
    offset, slope = _room(correction)
    room = offset * np.eye(agents.count) + slope * np.asarray(matrix)
    if np.linalg.eigvalsh(room)[0] < _NO_ROOM:
        raise InputError(NEVER)
    whole = np.kron(room, np.eye(agents.dimension))
    from scipy.linalg import eigh

    ratio = eigh(agents.stacked_curvature(), whole, eigvals_only=True)[-1]
    return _step(float(ratio), friction)


def _has_closed_form(matrix: Any, friction: float | None, correction: str | None) -> bool:
    return matrix.symmetric and (friction is None or correction is None)


def _room(correction: str | None) -> tuple[float, float]:
    """a and b of aI + bW, which bounds the curvature times η, or η²/(2 − γη)."""
    return (1.0, 1.0) if correction is None else (1.25, 0.75)


def _step(ratio: float, friction: float | None) -> float:
    """η at which η, or η²/(2 − γη), is one over this ratio of curvature to room."""
    if friction is None:
        return 1.0 / ratio
    return (math.sqrt(friction**2 + 8 * ratio) - friction) / (2 * ratio)


def _bisected(stable: Callable[[float], bool], most: float, accuracy: float) -> float:
    """The step up to which a setting is stable, at most ``most``."""
    low = high = most
    for _ in range(_HALVINGS):
        if stable(low):
            break
        low, high = low / 2, low
    else:
        raise InputError(NEVER)
    while high - low > accuracy * low:
        middle = (low + high) / 2
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low


def _largest(radius: Callable[[float], float], start: float, accuracy: float) -> float:
    """The step up to which a radius stays below one, by bracketing and interpolation."""
    low, at_low = start, radius(start)
    for _ in range(_HALVINGS):
        if at_low < 1.0:
            break
        low /= 2
        at_low = radius(low)
    else:
        raise InputError(NEVER)
    high = 1.5 * low
    at_high = radius(high)
    while at_high < 1.0:
        low, at_low = high, at_high
        high *= 1.5
        at_high = radius(high)
    while high - low > accuracy * low:
        # Illinois-like: interpolate where that is possible, and never closer to an end than 2 %.
        share = 0.5
        if math.isfinite(at_high) and at_high < 10.0:
            share = (1.0 - at_low) / (at_high - at_low)
        share = min(max(share, 0.02), 0.98)
        middle = low + share * (high - low)
        edge = middle + accuracy / 2 * low  # to close in from both sides
        value = radius(middle)
        if value < 1.0:
            low, at_low = middle, value
            if edge < high and (beyond := radius(edge)) >= 1.0:
                high, at_high = edge, beyond
        else:
            high, at_high = middle, value
            below = middle - accuracy / 2 * low
            if below > low and (inside := radius(below)) < 1.0:
                low, at_low = below, inside
    return low


def step_bounds(
    agents: GaussianAgents,
    mixing: Any,
    *,
    friction: float | None = None,
    correction: str | None = None,
) -> tuple[float, float]:
    r"""Two numbers with the largest stable step between them, for networks of any size.

    .. math:: \frac{1+\lambda_N}{\max_i L_i} \le \eta_{\max} \le \min_i \frac{1 + W_{ii}}{L_i}

    for plain DE-SGLD, with :math:`L_i` the largest curvature of agent i: W + I − ηA is positive
    definite below the first and, tried on a direction that agent i alone has, not above the second.
    With exact gradients; minibatches allow less.

    Args:
        agents: the problem.
        mixing: W, symmetric.
        friction: γ of DE-SGHMC, whose :math:`\eta^2/(2 - \gamma\eta)` is bounded so.
        correction: ``"extra"`` puts 5 + 3w in place of 4 + 4w; not together with ``friction``.

    Example:
        >>> agents = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])
        >>> print(*(round(bound, 3) for bound in step_bounds(agents, "complete")))
        0.333 0.5
    """
    matrix = graphs.resolve(graphs.as_mixing(mixing), agents.count)
    if not _has_closed_form(matrix, friction, correction):
        raise InputError("step_bounds needs a symmetric W, and not both friction and correction.")
    offset, slope = _room(correction)
    own = np.zeros(agents.count)
    itself = matrix.rows == matrix.columns
    own[matrix.rows[itself]] = matrix.values[itself]
    largest = np.linalg.eigvalsh(agents.curvatures)[:, -1]
    room = max(offset + slope * matrix.smallest_eigenvalue, 1e-300)
    beyond = float(np.max(largest / (offset + slope * own)))
    return _step(agents.smoothness / room, friction), _step(beyond, friction)


def gossip_conditions(
    agents: GaussianAgents, mixing: Any, *, step_size: float, friction: float | None = None
) -> tuple[Condition, ...]:
    r"""The conditions of the published theorems, told and not imposed: they are far from necessary.

    .. math::
        \text{Theorem 1 (DE-SGLD): } \eta < \min\Bigl(\frac{1+\lambda_N}{L}, \frac{1}{L+\mu}\Bigr)
        \qquad \text{Theorem 7 (DE-SGHMC): } \eta^2 < \frac{1+\lambda_N}{2(L+\mu)}, \quad
        \beta = 1 - \gamma\eta \le \min\Bigl(\frac{1+\lambda_N - 4\eta^2\mu}{4},
        \eta^3\sqrt{\frac{c_1\mu^3(1+\lambda_N)}{64}}\Bigr)

    with :math:`\lambda_N` the smallest eigenvalue of W, L and μ the largest and smallest curvature
    of any agent, :math:`c_1 = \tfrac12\eta^2\mu / [(1+\beta) + (1-\beta)\eta^2\mu /
    (1-\lambda_N+\eta^2 L)]`.

    Args:
        agents: the problem.
        mixing: W.
        step_size: η.
        friction: γ for the conditions of theorem 7; None for those of theorem 1.

    Returns:
        The conditions, each with its value, its bound and whether it holds.

    Source: Gürbüzbalaban, Gao, Hu, Zhu (2021), theorems 1 and 7 as given in the slides on them.
    """
    eta = number(step_size, "step_size", strict=True)
    matrix = graphs.resolve(graphs.as_mixing(mixing), agents.count)
    smooth, convex = agents.smoothness, agents.strong_convexity
    room = 1.0 + matrix.smallest_eigenvalue
    if friction is None:
        return (
            _below("eta < (1 + lambda_N)/L", eta, room / smooth),
            _below("eta < 1/(L + mu)", eta, 1.0 / (smooth + convex)),
        )
    beta = 1.0 - number(friction, "friction", strict=True) * eta
    eta2 = eta * eta
    memory = (1 - beta) * eta2 * convex / (2.0 - room + eta2 * smooth)
    c1 = 0.5 * eta2 * convex / ((1 + beta) + memory)
    bound = min(
        (room - 4 * eta2 * convex) / 4, eta**3 * math.sqrt(c1 * convex**3 * max(room, 0) / 64)
    )
    return (
        _below("eta^2 < (1 + lambda_N)/(2(L + mu))", eta2, room / (2 * (smooth + convex))),
        Condition("0 <= beta <= bound", beta, bound, bool(0 <= beta <= bound)),
    )


def _below(name: str, value: float, bound: float) -> Condition:
    return Condition(name, value, bound, bool(np.less(value, bound)))
