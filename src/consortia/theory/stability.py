"""The stable step sizes: limits of the gossip samplers, and predicted divergence.

`predict_divergence` judges a constant step size by the curvatures at a run's start. It is exact
where the posterior is Gaussian; elsewhere it is a statement on the neighbourhood of the start. A
method of one's own joins in by ``predict_divergence.register``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia import graphs, schedules
from consortia.algorithms.decentralized.hmc import DecentralizedHMC
from consortia.algorithms.gossip import DESGHMC, DESGLD, Gossip
from consortia.algorithms.preconditioning import Preconditioned
from consortia.algorithms.stale import (
    StaleGradients,
    StaleMomentum,
    StaleSGHMC,
    StaleSGLD,
    StaleSGNHT,
)
from consortia.core import arguments
from consortia.core.contract import Method
from consortia.core.model import Model
from consortia.data.sites import Sites
from consortia.dynamics.stochastic_steps import EulerHMC
from consortia.errors import InputError
from consortia.graphs.weights import Mixing
from consortia.runtime.late import PyTree, jax
from consortia.theory.agents import GaussianAgents
from consortia.theory.estimates import largest_curvature
from consortia.theory.gossip import gossip_law, resolved
from consortia.theory.inheritance import knows
from consortia.theory.law import Law
from consortia.theory.staleness import (
    LinearServer,
    langevin_server,
    sghmc_server,
    stale_server_law,
)

MOST_COORDINATES = 1000
"""Agents times parameters up to which the mean's limit is computed, in some tenths of a second."""

LARGEST_SYSTEM = 600
"""Rows of an iteration's matrix up to which its modes are computed, in about a second."""

MOST_CURVATURES = 2_000_000
"""Entries of the Hessians of all sites, or of all rows where minibatches are drawn."""

MOST_OPERATIONS = 2_000_000_000
"""Rows times squared parameters, about a second of work."""

ROUNDING = 1e-6
"""A radius of one within single precision: a direction in which an agent has no curvature."""

REFUSED_BEYOND = 2.0
"""A step of a stale sampler this many times the limit is refused; below, the user is warned:
elsewhere than at the start the curvature may be smaller."""

CURVATURE_TOLERANCE = 1e-3
"""Relative change of the largest curvature at which its search ends."""

NEVER = "no step size is stable: the network or the data leave no stationary law."

_HALVINGS = 60
_NO_ROOM = 1e-12
"""An eigenvalue of W that is −1 to rounding."""


@singledispatch
def predict_divergence(
    method: Method, model: Model, sites: Sites, parameters: PyTree
) -> str | None:
    """Predict a divergence: its cause and a step size without it; None where none is predicted.

    By the curvatures of the sites' potentials at a point, which decide for Gaussian ones. None too
    where nothing is known: a step size that varies, a network that changes, potentials that are
    not convex, a method without a stability limit.

    Args:
        method: what `consortia.de_sgld` or another factory returns.
        model: the model.
        sites: the data, all rows in this process.
        parameters: the point, like the model's parameters.

    Raises:
        InputError: the step size of a method with stale gradients is far beyond its limit.
    """
    return None


def has_prediction(method: Method) -> bool:
    """Return True if `predict_divergence` knows a stability limit for this kind of method."""
    return knows(predict_divergence, type(method))


def _dimension(parameters: PyTree) -> int:
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(parameters))


@predict_divergence.register
def _of_preconditioned(
    method: Preconditioned, model: Model, sites: Sites, parameters: PyTree
) -> str | None:
    """Return None: the law at the mode judges the step, in the units that were found there."""
    return None


# --- gossip --------------------------------------------------------------------------------------


@predict_divergence.register
def _of_gossip(
    method: DESGLD | DESGHMC, model: Model, sites: Sites, parameters: PyTree
) -> str | None:
    """Judge by all modes of an iteration; by the mean alone where the network is too large."""
    if isinstance(method.mixing, graphs.MixingSchedule):
        return None
    if not isinstance(method.step_size, schedules.Constant):
        return None
    dimension = _dimension(parameters)
    coordinates = len(sites) * dimension
    copies = 1 + method.corrected + method.moves
    small = copies * coordinates <= LARGEST_SYSTEM
    each = int(np.max(sites.sizes)) * dimension
    rows = small and method.batch_size is not None and coordinates * each <= MOST_CURVATURES
    if coordinates * dimension > MOST_CURVATURES or sites.rows * dimension**2 > MOST_OPERATIONS:
        return None
    try:
        agents = GaussianAgents.near(model, sites, parameters, rows=rows)
    except InputError:  # not convex there: this theory has nothing to say
        return None
    step = method.step_size.value
    by_modes = rows or copies == 3
    if copies < 3 and graphs.resolve(method.mixing, agents.count).symmetric:
        fault = _by_the_mean(method, step, agents, exactly=coordinates <= MOST_COORDINATES)
        if fault or not by_modes:
            return fault
    return _by_modes(method, step, agents) if small else None


def _options(method: Gossip) -> dict[str, Any]:
    options: dict[str, Any] = {"friction": method.friction, "correction": method.correction or None}
    return options | ({"momentum": method.momentum} if method.momentum else {})


def _by_the_mean(
    method: Gossip, step: float, agents: GaussianAgents, *, exactly: bool
) -> str | None:
    """Judge by the closed forms for exact gradients; minibatches may allow less."""
    options = _options(method)
    below, beyond = step_bounds(agents, method.mixing, **options)
    if step < below:
        return None
    text, limit = f"between {below:.3g} and {beyond:.3g}", beyond
    if exactly:
        try:
            limit = mean_limit(agents, method.mixing, **options) or beyond
        except InputError as error:  # no step size is stable, and why
            return _unstable(step, str(error))
        text = f"{limit:.3g}"
    if step < limit * (1 + ROUNDING):
        return None
    more = "" if method.batch_size is None else ", and minibatches allow less"
    return _unstable(step, f"the largest stable step_size is {text}{more}.")


def _by_modes(method: Gossip, step: float, agents: GaussianAgents) -> str | None:
    """Judge by all modes of the iteration, minibatch noise included."""
    options = _options(method)
    if method.momentum:
        options["temperature"] = 0.0
    if agents.rows is not None:
        options |= {"batch_size": method.batch_size, "replace": method.replace}
    law = gossip_law(agents, method.mixing, step, **options)
    if law.stable or abs(law.spectral_radius - 1.0) < ROUNDING:
        return None
    try:
        largest = largest_stable_step(agents, method.mixing, tolerance=1e-2, **options)
    except InputError as error:  # no step size is stable, and why
        return _unstable(step, f"{law.instability}; {error}")
    return _unstable(step, f"{law.instability}; the largest stable step_size is {largest:.3g}.")


def _unstable(step: float, why: str) -> str:
    return (
        f"step_size {step:g} is unstable by the curvatures at the start: {why} (Exact where the "
        "posterior is Gaussian, elsewhere a statement on the neighbourhood of the start.)"
    )


# --- decentralized HMC ---------------------------------------------------------------------------


@predict_divergence.register
def _of_tracked_gradients(
    method: DecentralizedHMC, model: Model, sites: Sites, parameters: PyTree
) -> str | None:
    """Judge by the largest curvature of the sum; where proposals are tested, acceptance tells."""
    if not isinstance(method.step_size, schedules.Constant):
        return None
    dimension = _dimension(parameters)
    entries, operations = len(sites) * dimension**2, sites.rows * dimension**2
    if entries > MOST_CURVATURES or operations > MOST_OPERATIONS:
        return None
    try:
        agents = GaussianAgents.near(model, sites, parameters, rows=False)
    except InputError:  # not convex there: nothing can be said
        return None
    steepest = float(np.linalg.eigvalsh(agents.curvatures.sum(axis=0))[-1])
    # A step along λ multiplies by 1 − ε²λ/(2m), with twice the drift when published.
    limit = math.sqrt((2 if method.published else 4) * len(sites) / steepest)
    if method.step_size.value < limit:
        return None
    return (
        f"step_size {method.step_size.value:g} is unstable by the curvatures at the start: give "
        f"less than {limit:.3g}. (Exact where the posterior is Gaussian and the agents agree.)"
    )


# --- stale gradients -----------------------------------------------------------------------------


@predict_divergence.register
def _of_stale_gradients(
    method: StaleSGLD | StaleSGHMC | StaleSGNHT, model: Model, sites: Sites, parameters: PyTree
) -> str | None:
    """Judge by the largest curvature and the average staleness, that of workers in turn."""
    steps = [s.value for s in method.step_schedules if isinstance(s, schedules.Constant)]
    adapts = isinstance(method, StaleSGLD) and method.adaptation is not None
    if not steps or adapts:  # a step that adapts falls as the gradients grow
        return None
    step = max(steps)
    curvature = largest_curvature(model, sites, parameters, tolerance=CURVATURE_TOLERANCE)
    staleness = method.workers - 1
    if method.max_staleness is not None:
        staleness = min(staleness, method.max_staleness)
    if not 0 < curvature < float("inf") or _settles(method, step, curvature, staleness):
        return None
    limit = _largest(lambda h: _settles(method, h, curvature, staleness), step, 1e-3, most=step)
    text = (
        f"step_size {step:g} diverges: by the curvature at the start, {curvature:.4g}, and with "
        f"staleness {staleness} on average the largest stable step_size is {limit:.3g}. Lower "
        "step_size, take fewer workers, or start where the posterior is less curved."
    )
    if step >= REFUSED_BEYOND * limit:
        raise InputError(text).at("step_size")
    return text


def _settles(method: StaleGradients, step: float, curvature: float, staleness: int) -> bool:
    """Return True if the linear recursion on a Gaussian target of this precision is stable.

    Of Langevin steps it is where h times the precision is below 2 sin(π / (4τ + 2)), which costs
    nothing with many workers and has no rounding with small steps.
    """
    if isinstance(method, StaleSGLD):
        step = method.steps_a_task * step  # as wide as the step that is as long as all of a task
        return step * curvature < 2.0 * math.sin(math.pi / (4 * staleness + 2))
    return stale_server_law(server_of(method, step), curvature, staleness).stable


def server_of(
    method: StaleGradients, step: float, gradient_noise: Float[np.ndarray, " d"] | float = 0.0
) -> LinearServer:
    """Return a step of a method's server on a Gaussian target, its thermostat at rest.

    Args:
        method: the sampler.
        step: h.
        gradient_noise: V, a number or one for each direction, (d,).
    """
    if not isinstance(method, StaleMomentum):
        return langevin_server(step, gradient_noise=gradient_noise)
    server = sghmc_server(
        step,
        method.given("friction"),
        integrator="euler" if isinstance(method.dynamics, EulerHMC) else "splitting",
        extrapolate=method.steps_ahead,
        gradient_noise=gradient_noise,
    )
    if not isinstance(method, StaleSGHMC):
        return server
    taken = step**2 * np.asarray(method.subtract_noise)  # out of the noise that is injected
    return server._replace(noise_variance=server.noise_variance - taken)


# --- limits of gossip samplers ------------------------------------------------------------------


class Condition(NamedTuple):
    """One condition of a theorem: ``value`` must be below (or at) ``bound``.

    Attributes:
        name: what is bounded.
        value: its value here.
        bound: what it must stay below.
        holds: whether it does.

    Example:
        >>> Condition("step", 0.1, 0.5, True).holds
        True
    """

    name: str
    value: float
    bound: float
    holds: bool


def largest_stable_step(
    agents: GaussianAgents,
    mixing: Mixing,
    *,
    friction: float | None = None,
    tolerance: float = 1e-4,
    **options: Any,
) -> float:
    """Return the step size up to which a gossip sampler is stable on Gaussian agents.

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
    DE-SGHMC for η²A < (2 − γη)(I + W), D-ASG for ηA < I/(1 + 2β) + W; the other limits are found
    numerically.
    """
    accuracy = arguments.number("tolerance", tolerance, 1e-12, 0.1)

    def law(step: float) -> Law:
        return gossip_law(agents, mixing, step, friction, **options)

    correction, momentum = options.get("correction"), options.get("momentum", 0.0)
    limit = mean_limit(agents, mixing, friction=friction, correction=correction, momentum=momentum)
    if limit is None:
        # Time scales of the two methods: a step is stable somewhere below them or not at all.
        scale = 1.0 / agents.smoothness
        start = scale if friction is None else min(math.sqrt(scale), 1.0 / friction)
        mean = _largest(lambda step: law(step).spectral_radius < 1.0, start, accuracy)
    else:
        mean = (1.0 - accuracy / 2) * limit
        if law(mean).spectral_radius >= 1.0:
            raise InputError(NEVER).at("step_size")
    if options.get("batch_size") is None:
        return mean
    return _largest(lambda step: law(step).stable, mean, accuracy, most=mean)


def mean_limit(
    agents: GaussianAgents,
    mixing: Mixing,
    *,
    friction: float | None = None,
    correction: str | None = None,
    momentum: float = 0.0,
) -> float | None:
    r"""Return the step size from which on the mean diverges; None without a closed form.

    For a symmetric W an eigenvector of the iteration has real Rayleigh quotients w and a with W
    and A, and its eigenvalue solves a quadratic equation in them whose roots leave the unit disc at
    −1 only: plain ηa = 1 + w, EXTRA 4ηa = 5 + 3w, DE-SGHMC η²a = (2 − γη)(1 + w), D-ASG
    ηa = 1/(1 + 2β) + w. With EXTRA and friction the equation is cubic, and only a search tells.

    Raises:
        InputError: no step size is stable.
    """
    matrix = resolved(agents, mixing)
    if not _has_closed_form(matrix, friction, correction):
        return None
    offset, slope = _room(correction, momentum)
    room = offset * np.eye(agents.count) + slope * np.asarray(matrix)
    if np.linalg.eigvalsh(room)[0] < _NO_ROOM:
        raise InputError(NEVER).at("step_size")
    whole = np.kron(room, np.eye(agents.dimension))
    from scipy.linalg import eigh

    ratio = eigh(agents.stacked_curvature(), whole, eigvals_only=True)[-1]
    return _step(float(ratio), friction)


def _has_closed_form(
    matrix: graphs.MixingMatrix, friction: float | None, correction: str | None
) -> bool:
    return matrix.symmetric and (friction is None or correction is None)


def _room(correction: str | None, momentum: float) -> tuple[float, float]:
    """Return a and b of aI + bW, which bounds the curvature times η, or η²/(2 − γη)."""
    return (1.0 / (1.0 + 2.0 * momentum), 1.0) if correction is None else (1.25, 0.75)


def _step(ratio: float, friction: float | None) -> float:
    """Return the η at which η, or η²/(2 − γη), is one over this ratio of curvature to room."""
    if friction is None:
        return 1.0 / ratio
    return (math.sqrt(friction**2 + 8 * ratio) - friction) / (2 * ratio)


def _largest(
    stable: Callable[[float], bool], start: float, accuracy: float, most: float = math.inf
) -> float:
    """Return the step up to which a setting is stable, from a start up to ``most``."""
    low = high = start
    for _ in range(_HALVINGS):
        if stable(low):
            break
        low, high = low / 2, low
    else:
        raise InputError(NEVER).at("step_size")
    if low == high < most:
        while stable(high := 1.5 * low):
            low = high
    while high - low > accuracy * low:
        middle = (low + high) / 2
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low


def step_bounds(
    agents: GaussianAgents,
    mixing: Mixing,
    *,
    friction: float | None = None,
    correction: str | None = None,
    momentum: float = 0.0,
) -> tuple[float, float]:
    r"""Return two numbers with the largest stable step between them, for networks of any size.

    .. math:: \frac{1+\lambda_N}{\max_i L_i} \le \eta_{\max} \le \min_i \frac{1 + W_{ii}}{L_i}

    for plain DE-SGLD, with :math:`L_i` the largest curvature of agent i: W + I − ηA is positive
    definite below the first and, tried on a direction that agent i alone has, not above the second.
    With exact gradients; minibatches allow less.

    Args:
        agents: the problem.
        mixing: W, symmetric.
        friction: γ of DE-SGHMC, whose :math:`\eta^2/(2 - \gamma\eta)` is bounded so.
        correction: ``"extra"`` puts 5 + 3w in place of 4 + 4w; not together with ``friction``.
        momentum: β of D-ASG, 1/(1 + 2β) + w in place of 1 + w.

    Returns:
        The lower bound and the upper one.

    Raises:
        InputError: W is not symmetric, or an argument has a wrong shape or value.

    Example:
        >>> agents = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])
        >>> print(*(round(bound, 3) for bound in step_bounds(agents, "complete")))
        0.333 0.5
    """
    matrix = resolved(agents, mixing)
    if not _has_closed_form(matrix, friction, correction):
        raise InputError("step_bounds needs a symmetric W, and not both friction and correction.")
    offset, slope = _room(correction, momentum)
    own_weights = np.zeros(agents.count)
    itself = matrix.rows == matrix.columns
    own_weights[matrix.rows[itself]] = matrix.values[itself]
    largest = np.linalg.eigvalsh(agents.curvatures)[:, -1]
    room = max(offset + slope * matrix.smallest_eigenvalue, 1e-300)
    beyond = float(np.max(largest / (offset + slope * own_weights)))
    return _step(agents.smoothness / room, friction), _step(beyond, friction)


def gossip_conditions(
    agents: GaussianAgents, mixing: Mixing, *, step_size: float, friction: float | None = None
) -> tuple[Condition, ...]:
    r"""Return the conditions of the published theorems, which are far from necessary.

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

    Raises:
        InputError: an argument has a wrong shape or value.

    Example:
        >>> agents = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])
        >>> [one.holds for one in gossip_conditions(agents, "complete", step_size=0.01)]
        [True, True]

    Source: Gürbüzbalaban, Gao, Hu, Zhu (2021), theorems 1 and 7 as given in the slides on them.
    """
    eta = arguments.positive("step_size", step_size)
    matrix = resolved(agents, mixing)
    smooth, convex = agents.smoothness, agents.strong_convexity
    room = 1.0 + matrix.smallest_eigenvalue
    if friction is None:
        return (
            _below("eta < (1 + lambda_N)/L", eta, room / smooth),
            _below("eta < 1/(L + mu)", eta, 1.0 / (smooth + convex)),
        )
    beta = 1.0 - arguments.positive("friction", friction) * eta
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
