r"""Gossip samplers DE-SGLD and DE-SGHMC, and a correction of their bias.

N agents on a graph hold :math:`f_i = -\sum_{j \in i}\log p(z_j|x) - \tfrac1N \log p(x)`; they send
their positions to their neighbours only, who average them with a doubly stochastic matrix W:

.. math::
    \text{DE-SGLD} \quad & x_i' = \sum_j W_{ij} x_j - \eta g_i(x_i) + \sqrt{2\eta}\,\xi_i \\
    \text{DE-SGHMC} \quad & v_i' = v_i - \eta[\gamma v_i + g_i(x_i)] + \sqrt{2\gamma\eta}\,\xi_i,
    \qquad x_i' = \sum_j W_{ij} x_j + \eta v_i'

with :math:`g_i` an estimate of :math:`\nabla f_i`, η the step size, γ the friction, v a velocity,
ξ standard normal and :math:`U = \sum_i f_i`. All agents move at the same time, from the old
positions. At temperature 0 the first is distributed stochastic gradient descent (D-SG), and with a
momentum its accelerated form (D-ASG); the second is a heavy ball.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from consortia import gradients, graphs, schedules
from consortia.core import arguments
from consortia.core.contract import (
    FRICTIONS,
    Algorithm,
    Claims,
    Cost,
    Draws,
    Info,
    InTurn,
    Mix,
    Phase,
    SelfSetting,
    Site,
)
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.errors import InputError, warn, wrong
from consortia.graphs import MixingMatrix, MixingSchedule
from consortia.runtime.late import Array, PyTree, jax, jnp
from consortia.schedules import Schedule

MOST_MOMENTUM = 0.9999
"""Largest β, so that the limit 1, at which a velocity never decays, is refused: it lasts 10,000
iterations. Chosen, not measured."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments that both samplers have; `DESGLD` describes them."""

    batch_size: int | None = None
    replace: bool = True
    correction: str | bool | None = None
    noise: str = "independent"
    control_variate: tuple[float, ...] | Any = None
    draws: str = "average"
    temperature: float = 1.0


class Gossip(Options, SelfSetting):
    """The common part of both samplers: checks, and a phase of a step and `Mix`."""

    step_size: Schedule | Any
    mixing: MixingMatrix | MixingSchedule | str | Any
    friction: float | None
    averaged_noise: bool | None
    momentum: float

    def __post_init__(self) -> None:
        arguments.keep(
            self,
            step_size=schedules.as_schedule(self.step_size),
            mixing=graphs.weights.as_mixing(self.mixing),
            batch_size=arguments.optional_whole("batch_size", self.batch_size, 1),
            replace=arguments.flag("replace", self.replace),
            correction=arguments.one_of("correction", self.correction, (None, False, "extra")),
            noise=arguments.one_of("noise", self.noise, ("independent", "common")),
            control_variate=_point(self.control_variate, self.batch_size),
            draws=arguments.one_of("draws", self.draws, ("average", "agents")),
            temperature=arguments.number("temperature", self.temperature, 0.0, math.inf),
        )

    @property
    def corrected(self) -> bool:
        """True if agents remember how they disagreed with their neighbours."""
        return self.correction == "extra"

    @property
    def open_settings(self) -> Mapping[str, tuple[Any, ...]]:
        """The correction and the averaged noise where the step is open too, and the friction."""
        values: dict[str, tuple[Any, ...]] = {}
        if isinstance(self.step_size, schedules.Unchosen):
            mixing = self.mixing
            # EXTRA needs a symmetric W; those of named networks are
            symmetric = isinstance(mixing, str) or getattr(mixing, "symmetric", False)
            if self.correction is None and self.temperature > 0:
                values["correction"] = (False, "extra") if symmetric else (False,)
            if self.averaged_noise is None:
                values["averaged_noise"] = (True, False)
        return values

    @property
    def moves(self) -> bool:
        """True if agents have a velocity."""
        return self.friction is not None or self.momentum > 0

    @property
    def network(self) -> MixingMatrix | MixingSchedule | str:
        """W, or the name of the network that it is made for."""
        return self.mixing

    @property
    def dimension(self) -> int | None:
        """The dimension of a given control variate."""
        return None if self.control_variate is None else len(self.control_variate)

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a matrix or an anchor of the wrong size; warn of a network in parts."""
        if len(names) < 2:
            raise InputError(
                "there is one site: gossip needs at least two agents. With all data in one place "
                "use consortia.fa_ld(step_size, local_steps=1)."
            ).at("sites")
        matrix = graphs.weights.resolve_any(self.mixing, len(names))
        if not self.replace:
            arguments.batch_fits(self.batch_size, sizes, names)
        if self.corrected and not matrix.symmetric:
            raise wrong("correction", "='extra' needs a symmetric mixing matrix.")
        if self.dimension not in (None, dimension):
            raise InputError(
                f"control_variate has {self.dimension} values, the model {dimension} parameters."
            ).at("control_variate")
        if matrix.components > 1:
            warn(_in_parts(matrix, names))

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """Return 1/N for each agent, whatever its rows."""
        return np.full(len(sizes), 1.0 / len(sizes))

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """Return one gradient an agent, two on the same rows with a control variate."""
        if self.batch_size is None:
            return super().cost(sizes, dimension)
        gradients = len(sizes) * (1 if self.control_variate is None else 2)
        return Cost(gradients, gradients * self.batch_size)

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """Return η of each iteration, the time that it stands for; None when it is constant."""
        return schedules.varying(self.step_size, iterations)

    @abstractmethod
    def agent_step(self, target: Target) -> Callable[..., tuple[Agent, PyTree, Info]]:
        """Return an agent's work in an iteration, the ``local`` of its phase."""

    def build(self, target: Target) -> Algorithm:
        """Return one phase: a step at every agent, then `Mix`."""
        phase = Phase(
            self.agent_step(target),
            Mix(self.mixing, change=True),
            noise=partial(_noise, self, target),
            shared=partial(_shared, self, target),
        )
        draws = Draws(node=lambda state, inbox: state.position, agents=self.draws == "agents")
        fit = () if self.control_variate is None else (Phase(partial(_at_anchor, self, target)),)
        return Algorithm(partial(_init, self), (phase,), draws, fit=fit)


@dataclass(frozen=True)
class DESGLD(Gossip):
    r"""Decentralized stochastic gradient Langevin dynamics (DE-SGLD).

    .. math:: x_i' = \sum_j W_{ij} x_j - \eta g_i(x_i) + \sqrt{2\eta}\,\xi_i

    **Samples**: the average of the agents samples a law near exp(−U/temperature), U = Σ_i f_i, with
    a bias in W₂ of O(η), which is larger if agents differ and on networks that mix slowly. A single
    agent does *not* sample it: each step adds noise of variance 2η to every agent, N times what the
    average sees, so that its law is far too wide, with an error of O(√η) as soon as 2η exceeds the
    target's variance. On Gaussian targets `consortia.oracles.de_sgld_law` gives both laws.

    **Draw**: the plain average of the agents, one an iteration; with ``draws="agents"`` the result
    also has every agent's series, in the group ``agents``.

    **Step size**: η, drift η, noise variance 2η at each agent: h' = η for the sum of the agents'
    dynamics, that is drift (η/N)∇U and noise variance 2η/N for the average. **Settings that are
    left open**, η and with it ``correction`` and ``averaged_noise``, are chosen by the exact law:
    the cheapest settings whose bias is within the target of a run, see `consortia.theory.settings`.

    `consortia.sample` warns of a step that would diverge, by the curvatures at the start, and names
    the largest that would not (`consortia.oracles.largest_stable_step`).

    **To reduce the bias**: ``correction="extra", noise="common", averaged_noise=True`` brings every
    agent's law within O(η²) of the target's, for the same gradients and messages.

    Args:
        step_size: η > 0: a number, an array over iterations (warm-up included) or a function of
            the iteration's index; see `consortia.schedules`. None: chosen.
        mixing: W, doubly stochastic, agent i being site number i: what
            `consortia.graphs.mixing_matrix` returns, an array (sites, sites), a SciPy sparse
            matrix, or the name of a network (`consortia.graphs.NETWORKS`); or a
            `consortia.graphs.MixingSchedule` of matrices in turn, for links that come and go.
        batch_size: B rows a gradient; None takes all rows of the agent.
        replace: minibatches with replacement; without costs more and bounds B by the smallest site.
        correction: ``"extra"`` subtracts each agent's accumulated disagreement with its neighbours,
            :math:`q_i' = q_i + (x_i - \sum_j W_{ij} x_j)/2`, so that different agents still meet at
            the mode. It needs a symmetric W and, on slow networks, many iterations to settle. None:
            chosen where the step is, else False.
        noise: ``"independent"``, or ``"common"``: all agents add the same :math:`\xi/\sqrt N`. The
            average's law hardly changes and each agent follows it; but the agents then share a
            random seed, and whoever knows it can take the noise out of an agent's messages.
        averaged_noise: the mean of this step's noise and the last one's: :math:`(\xi_k +
            \xi_{k+1})/2` (Leimkuhler, Matthews); removes the O(η) of the variance. Before the first
            step ξ is 0. None: chosen where the step is, else False.
        control_variate: a point near the mode (an array like the flat position, or parameters like
            the model's) at which every agent keeps its exact gradient; minibatches then estimate
            only the difference. `de_sgld(..., correction="extra", temperature=0.0)` finds one.
        draws: ``"average"``, or ``"agents"`` to keep each agent's series too.
        temperature: factor of the noise's variance; the target is exp(−U/temperature). At 0 this is
            distributed (stochastic) gradient descent (D-SG).
        momentum: β in [0, 1), which only temperature 0 has: distributed accelerated stochastic
            gradient descent (D-ASG), :math:`x' = Wy - \eta g(y)`, :math:`y' = x' + \beta(x' - x)`.
            Mixing, draws and gradients use y, which has the same limit as x. For a strongly convex
            U take β = (1 − √(μη))/(1 + √(μη)), μ its least curvature.

    Raises:
        InputError: an argument is out of its range, or W is not doubly stochastic (with the row
            or column).

    Example:
        >>> de_sgld(0.01, "ring").correction is None
        True

    Source: Gürbüzbalaban, Gao, Hu, Zhu, "Decentralized stochastic gradient Langevin dynamics and
    Hamiltonian Monte Carlo" (2021), eq. (2). EXTRA is that of Shi, Ling, Wu, Yin (2015), here with
    the noise outside its memory. D-ASG is that of Fallah, Gürbüzbalaban, Ozdaglar, Simsekli, Zhu
    (2022), with a constant momentum.
    """

    step_size: Schedule | Any = None
    mixing: MixingMatrix | MixingSchedule | str | Any = "complete"
    _: KW_ONLY
    averaged_noise: bool | None = None
    momentum: float = 0.0

    name = "de_sgld"
    friction = None
    claims = Claims(
        samples="the average: a law near the posterior; a single agent: a law that is far too wide",
        bias="in W2: average O(eta), growing with the disagreement of the agents; an agent "
        "O(sqrt(eta)) (correction='extra', noise='common', averaged_noise=True: O(eta^2) for both)",
        draw="the plain average of the agents, one an iteration (draws='agents' adds each agent's)",
        step_size="eta: drift eta, noise variance 2 eta at each agent, h' = eta",
        source="Gürbüzbalaban, Gao, Hu, Zhu (2021), equation 2",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        momentum = arguments.number("momentum", self.momentum, 0.0, MOST_MOMENTUM)
        if momentum and (self.temperature or self.corrected):
            raise InputError(
                "momentum makes D-ASG, which finds a mode: give temperature=0.0 with it, and no "
                "correction. To sample with momentum use de_sghmc."
            ).at("momentum")
        averaged = self.averaged_noise
        if averaged is not None or not isinstance(self.step_size, schedules.Unchosen):
            averaged = arguments.flag("averaged_noise", False if averaged is None else averaged)
        arguments.keep(self, averaged_noise=averaged, momentum=momentum)

    def agent_step(self, target: Target) -> Callable[..., tuple[Agent, PyTree, Info]]:
        """Return a step of DE-SGLD."""
        return partial(_langevin, self, target)


@dataclass(frozen=True)
class DESGHMC(Gossip):
    r"""Decentralized stochastic gradient Hamiltonian Monte Carlo (DE-SGHMC).

    .. math:: v_i' = v_i - \eta[\gamma v_i + g_i(x_i)] + \sqrt{2\gamma\eta}\,\xi_i, \qquad
              x_i' = \sum_j W_{ij} x_j + \eta v_i'

    **Samples**: as `de_sgld`: the average a law near exp(−U/temperature), with a bias in W₂ that
    falls with η; a single agent a law that is far too wide. `consortia.oracles.de_sghmc_law` gives
    both exactly on Gaussian targets. ``correction="extra", noise="common"`` brings each agent near
    the average and removes the effect of their differences on it.

    **Draw**: the plain average of the agents' positions, one an iteration; ``draws="agents"`` keeps
    each agent's series too.

    **Step size**: η, a step in time: drift of v η(γv + g), noise variance 2γη, and the position
    moves by η v'. With γ = 1/η one step is one of `de_sgld` with the step size η², h' = η².

    Args:
        step_size: η > 0, as in `de_sgld`.
        friction: γ > 0 with γη ≤ 1, per unit of time. The published theorem requires it near 1/η;
            settings that mix well violate this (`consortia.oracles.gossip_conditions`). None:
            chosen.
        mixing: W, as in `de_sgld`.
        correction: as in `de_sgld`, applied to the position.
        temperature: as in `de_sgld`; at 0 this is a distributed heavy ball,
            :math:`x' = Wx - \eta^2 g(x) + (1 - \gamma\eta)(x - Wx_{-1})`, x₋₁ the position before.

    All other arguments are those of `de_sgld`.

    Raises:
        InputError: an argument is out of its range, or W is not doubly stochastic.

    Example:
        >>> de_sghmc(0.1, 7.0, "ring").friction
        7.0

    Source: Gürbüzbalaban, Gao, Hu, Zhu (2021), eqs. (20) and (21).
    """

    step_size: Schedule | Any = None
    friction: float | None = None
    mixing: MixingMatrix | MixingSchedule | str | Any = "complete"

    name = "de_sghmc"
    averaged_noise = False
    momentum = 0.0
    claims = Claims(
        samples="the average: a law near the posterior; a single agent: a law that is far too wide",
        bias="in W2: average O(eta), growing with the disagreement of the agents; an agent more "
        "(correction='extra', noise='common': as the average)",
        draw="the plain average of the agents, one an iteration (draws='agents' adds each agent's)",
        step_size="eta: a step in time, position moves eta v; h' = eta^2 where friction = 1/eta",
        source="Gürbüzbalaban, Gao, Hu, Zhu (2021), equations 20 and 21",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.friction is None:
            return
        friction, step = arguments.positive("friction", self.friction), self.step_size
        if isinstance(step, schedules.Constant) and friction * step.value > 1:
            raise InputError(
                f"friction * step_size is {friction * step.value:g}: it must be at most 1, or "
                "velocities change their sign in every step; lower one of them."
            ).at("friction")
        arguments.keep(self, friction=friction)

    @property
    def open_settings(self) -> Mapping[str, tuple[Any, ...]]:
        """The friction, and the correction where the step is open too."""
        friction = {"friction": FRICTIONS} if self.friction is None else {}
        return friction | dict(super().open_settings)

    def agent_step(self, target: Target) -> Callable[..., tuple[Agent, PyTree, Info]]:
        """Return a step of DE-SGHMC."""
        return partial(_hamiltonian, self, target)


de_sgld, de_sghmc = DESGLD, DESGHMC


def _point(control_variate: Any, batch_size: int | None) -> tuple[float, ...] | None:
    """Return the control variate's flat point, where there is one."""
    if control_variate is None:
        return None
    if batch_size is None:
        raise wrong("control_variate", " is for minibatches: give batch_size, or leave it out.")
    leaves = [
        arguments.array("control_variate", leaf, "a point").ravel()
        for leaf in jax.tree.leaves(control_variate)
    ]
    return tuple(np.concatenate(leaves).tolist())


def _in_parts(matrix: MixingMatrix | MixingSchedule, names: tuple[str, ...]) -> str:
    """Return the warning of a network in parts, with the first agents of its first part."""
    sizes = np.bincount(matrix.component_of)
    first = [names[i] for i in np.flatnonzero(matrix.component_of == 0)[:3]]
    more = ", ..." if sizes[0] > 3 else ""
    return (
        f"the network falls into {len(sizes)} parts that never communicate (the first: "
        f"{', '.join(first)}{more}). Each part and its agents sample the posterior of their own "
        "data alone, under their shares of the prior; the average of all agents is the average of "
        "those independent samples, which is not the posterior unless their data are similar."
    )


# --- what is drawn, kept and sent ----------------------------------------------------------------


class Shared(NamedTuple):
    """Values of all agents: η, the index of a changing network's next matrix, and a common ξ."""

    step_size: Float[Array, ""]
    turn: PyTree[Int[Array, ""]]
    normal: PyTree[Float[Array, " d"]]


class Noise(NamedTuple):
    """Noise of one agent: the random numbers of its minibatch, and ξ_i where it is independent."""

    gradient: PyTree
    normal: PyTree[Float[Array, " d"]]


class Agent(NamedTuple):
    """The state of an agent; what its variant does not need is ()."""

    position: Float[Array, " d"]
    velocity: PyTree[Float[Array, " d"]]
    disagreement: PyTree[Float[Array, " d"]]
    normal: PyTree[Float[Array, " d"]]


class Anchor(NamedTuple):
    """An agent's control variate, fitted before the run: its point, and ∇U_i there."""

    position: Float[Array, " d"]
    gradient: Float[Array, " d"]


def _init(method: Gossip, position: Float[Array, " d"]) -> tuple[Agent, tuple[()], PyTree]:
    """Start all agents at one point: return an agent, no hub, and the first message.

    The message is the change by mixing (`Mix.change`), zero as long as all agents agree.
    """
    zero = jnp.zeros_like(position)
    agent = Agent(
        position,
        zero if method.moves else (),
        zero if method.corrected else (),
        zero if method.averaged_noise else (),
    )
    return agent, (), _message(method, zero, jnp.zeros((), jnp.int32))


def _shared(method: Gossip, target: Target, rng: RandomStreams) -> Shared:
    # the message of iteration k is mixed at the start of k + 1, by the matrix of that turn
    turn: PyTree = ()
    if isinstance(method.mixing, MixingSchedule):
        matrices = jnp.asarray(len(method.mixing), jnp.int32)
        turn = (jnp.asarray(rng.iteration, jnp.int32) + jnp.ones((), jnp.int32)) % matrices
    return Shared(
        jnp.asarray(method.step_size(rng.iteration), target.dtype),
        turn,
        _normal(method, target, rng, "common"),
    )


def _noise(method: Gossip, target: Target, rng: RandomStreams) -> Noise:
    rows = _estimate(method, target).numbers(rng, "gradient", (1,))
    return Noise(rows, _normal(method, target, rng, "independent"))


def _normal(
    method: Gossip, target: Target, rng: RandomStreams, kind: str
) -> PyTree[Float[Array, " d"]]:
    if method.noise != kind or method.temperature == 0:
        return ()
    return rng.normal("noise", (target.dimension,))


def _message(method: Gossip, position: Float[Array, " d"], turn: PyTree) -> PyTree:
    """Make the message: the position, and the index of the matrix where the network changes.

    It is mixed at the start of the next iteration, so that iteration k is mixed by matrix k.
    """
    if not isinstance(method.mixing, MixingSchedule):
        return position
    return InTurn(position, turn)


# --- an iteration at an agent --------------------------------------------------------------------


def _at_anchor(
    method: Gossip,
    target: Target,
    noise: tuple[()],
    shared: tuple[()],
    state: Agent,
    inbox: PyTree,
    site: Site,
) -> tuple[Agent, Anchor, Info]:
    """Return ∇U_i at the anchor, which stays with the site as ``fitted``."""
    anchor = jnp.asarray(method.control_variate, target.dtype)
    return state, Anchor(anchor, gradients.exact(target).bind(site)((), anchor)), {}


def _langevin(
    method: Gossip,
    target: Target,
    noise: Noise,
    shared: Shared,
    state: Agent,
    inbox: PyTree,
    site: Site,
) -> tuple[Agent, PyTree, Info]:
    """Return the agent after one step of DE-SGLD; the message is its new position."""
    mixed, disagreement = _mixed(method, state, inbox)
    proposed = mixed - shared.step_size * _gradient(method, target, noise, state, site)
    previous = state.normal  # ξ_k of the averaged noise
    if method.temperature > 0:
        normal = _normal_at(method, noise, shared, site)
        if method.averaged_noise:
            previous, normal = normal, (previous + normal) / 2
        proposed = proposed + jnp.sqrt(2 * method.temperature * shared.step_size) * normal
    velocity = state.velocity
    if method.momentum > 0:  # the position is y = x + velocity
        velocity = method.momentum * (proposed - state.position + state.velocity)
        proposed = proposed + velocity
    agent = Agent(proposed, velocity, disagreement, previous)
    return agent, _message(method, proposed, shared.turn), {}


def _hamiltonian(
    method: DESGHMC,
    target: Target,
    noise: Noise,
    shared: Shared,
    state: Agent,
    inbox: PyTree,
    site: Site,
) -> tuple[Agent, PyTree, Info]:
    """Return the agent after one step of DE-SGHMC; the message is its new position."""
    friction, step_size = method.given("friction"), shared.step_size
    gradient = _gradient(method, target, noise, state, site)
    velocity = state.velocity - step_size * (friction * state.velocity + gradient)
    if method.temperature > 0:
        scale = jnp.sqrt(2 * friction * method.temperature * step_size)
        velocity = velocity + scale * _normal_at(method, noise, shared, site)
    mixed, disagreement = _mixed(method, state, inbox)
    proposed = mixed + step_size * velocity
    agent = Agent(proposed, velocity, disagreement, ())
    return agent, _message(method, proposed, shared.turn), {}


def _mixed(method: Gossip, state: Agent, inbox: PyTree) -> tuple[Float[Array, " d"], PyTree]:
    """Return the mixed position less the disagreement so far, and the disagreement from now on.

    The noise never enters the disagreement q. That is summed from what mixing changes: taken from
    positions, rounding of one sign would add up to a force that moves all agents away.
    """
    change = inbox.value if isinstance(inbox, InTurn) else inbox
    mixed = state.position + change
    if not method.corrected:
        return mixed, ()
    return mixed - state.disagreement, state.disagreement - change / 2


def _normal_at(method: Gossip, noise: Noise, shared: Shared, site: Site) -> Float[Array, " d"]:
    """Return the agent's own standard normal vector, or the common one by √(site weight) = 1/√N."""
    if method.noise == "independent":
        return noise.normal
    return shared.normal * jnp.sqrt(jnp.asarray(site.weight, shared.normal.dtype))


def _gradient(
    method: Gossip, target: Target, noise: Noise, state: Agent, site: Site
) -> Float[Array, " d"]:
    """Return the estimate of ∇U_i at the agent's own position."""
    oracle = _estimate(method, target)
    if method.control_variate is not None:
        anchor = site.fitted[1]  # of the fit phase's (state, inbox), see `_at_anchor`
        exact = anchor.gradient
        active = jnp.ones((), bool)
        oracle = gradients.control_variate(oracle, anchor.position, exact, exact, active)
    return oracle.bind(site)(oracle.prepare(noise.gradient, site), state.position)


def _estimate(method: Gossip, target: Target) -> gradients.GradientOracle:
    return gradients.estimate(target, method.batch_size, replace=method.replace)
