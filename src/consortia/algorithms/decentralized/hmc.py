r"""Decentralized Metropolis-adjusted HMC: agents on a network, without a server.

m agents hold :math:`U_i = -\sum_{j \in i}\log p(z_j|\omega) - \tfrac1m\log p(\omega)` and mix with
their neighbours by a doubly stochastic W. In each iteration of MA-HMC

.. math::
    c_i = \nabla U_i(\omega_i), \quad a_i = p_i^\top \nabla^2 U_i(\omega_i) p_i, \qquad
    g \leftarrow W (g + c - c_{prev}), \quad \aleph \leftarrow W(\aleph + a - a_{prev}), \qquad
    \omega \leftarrow W \omega^*

where :math:`\omega^*_i` is :math:`\omega_i - \epsilon(p_i + \epsilon g_i)` as published, if it is
accepted, and :math:`\omega_i - \epsilon(p_i + \tfrac\epsilon2 g_i)` corrected. The trackers keep
:math:`\tfrac1m\sum_i g_i = \tfrac1m\sum_i \nabla U_i(\omega_i)`, the *average* gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from consortia import graphs, schedules
from consortia.algorithms.federated_hmc import FederatedHMC
from consortia.core import arguments
from consortia.core.contract import (
    Algorithm,
    Claims,
    Cost,
    Draws,
    Info,
    Method,
    Mix,
    Phase,
    SelfSetting,
    Site,
)
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.errors import InputError, warn, wrong
from consortia.graphs import MixingMatrix
from consortia.runtime.late import Array, PyTree, jax, jnp

Vector = Float[Array, " d"]
Scalar = Float[Array, ""]

GOSSIP_ROUNDS = (1, 2, 3, 5, 8)
"""Values of R that are tried where it is left open."""

SOURCE = "Kungurtsev, Cobb, Javidi, Jalaian (2023)"


@dataclass(frozen=True)
class Agents(Method):
    """A sampler of agents on a network: the arguments that `DecentralizedHMC` describes."""

    step_size: Any = None
    mixing: Any = "complete"

    def __post_init__(self) -> None:
        matrix = graphs.weights.as_mixing(self.mixing)
        if isinstance(matrix, graphs.MixingSchedule):
            raise wrong("mixing", " is a schedule of matrices: give one matrix, or use de_sgld.")
        arguments.keep(self, step_size=schedules.as_schedule(self.step_size), mixing=matrix)

    @property
    def network(self) -> MixingMatrix | str:
        """W."""
        return self.mixing

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """Return 1/m for each agent, whatever its rows."""
        return np.full(len(sizes), 1.0 / len(sizes))

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a matrix of the wrong size; warn of a network that falls into parts."""
        parts = self.separate_parts(names)
        if parts:
            warn(f"{parts}, so each samples its own data")

    def separate_parts(self, names: tuple[str, ...]) -> str:
        """Return the parts into which the network falls; empty when it is connected."""
        matrix = graphs.resolve(self.mixing, len(names))
        if matrix.components == 1:
            return ""
        first = [names[i] for i in np.flatnonzero(matrix.component_of == 0)[:3]]
        return (
            f"mixing: the network falls into {matrix.components} parts that never communicate (one "
            f"holds {', '.join(first)})"
        )


@dataclass(frozen=True)
class DecentralizedHMC(Agents, SelfSetting):
    r"""Decentralized Metropolis-adjusted Hamiltonian Monte Carlo (MA-HMC).

    **Samples**, by variant:

    - ``"corrected"``: a law near exp(−U), U = Σ_i U_i. The drift is halved, ε²/2, with noise of
      variance ε², and there is no Metropolis test. On Gaussian targets the mean is exact on any
      network however different the agents are; the variance of the average is wrong by O(ε²), that
      of an agent also by the disagreement of the agents. `consortia.oracles.decentralized_hmc_law`
      gives both exactly. With this drift the published Taylor ratio is O(ε³): it carries no
      information, and is left out.
    - ``"published"``: **exp(−2U), not exp(−U)**. The drift ε² with noise of variance ε² is the
      Langevin step of the *squared* density, and its acceptance test, by a Taylor expansion whose
      gradient term has the wrong sign, does not correct that: on Gaussian targets each standard
      deviation is 0.707 times the right one (exactly 1/√(2 − ε²λ/m) for agents that agree on a
      complete network, before any rejection), with one agent and with many. Use it only to compare
      with published results.

    `consortia.decentralized_exact_hmc` samples exp(−U) itself.

    **Draw**: the plain average of the agents after mixing, one an iteration; ``draws="agents"``
    also keeps every agent's series, in the group ``agents``.

    **Step size**: ε. Corrected: drift ε²/2 of the average gradient, that is ε²/(2m) of ∇U, noise
    variance ε² an agent, ε²/m for the average: h' = ε²/(2m). Relaxation takes about 2m/(ε²λ_min)
    iterations for the smallest eigenvalue of ∇²U, so let ε grow with √m; with ``"corrected"`` it
    must stay below √(4m/λ_max).

    Args:
        step_size: ε > 0: a number, an array over iterations (warm-up included) or a function of
            the iteration's index. None: chosen by the exact law, see `consortia.theory.settings`.
        mixing: W, doubly stochastic, agent i being site number i: what
            `consortia.graphs.mixing_matrix` returns, an array (sites, sites), a SciPy sparse
            matrix, or the name of a network (`consortia.graphs.NETWORKS`).
        variant: ``"corrected"`` or ``"published"``.
        gossip_rounds: multiplications by W of each innovation of the trackers, one communication
            round each; positions are multiplied once. None: chosen if the step is, else 1.
        metropolis_from: with ``"published"``, the first iteration (warm-up included) whose
            proposals are tested; before it all are accepted, and trackers continue across it.
        draws: ``"average"`` or ``"agents"``.
        draw_before_mixing: record agents before their positions are mixed. Their average is the
            same.

    Raises:
        InputError: an argument is out of its range, W is not doubly stochastic (with the row or
            column), or an argument does not belong to the variant.

    Example:
        >>> DecentralizedHMC(0.02, "ring").variant
        'corrected'

    Source: Kungurtsev, Cobb, Javidi, Jalaian, "Decentralized Bayesian learning with
    Metropolis-adjusted Hamiltonian Monte Carlo" (2023), and the code published with it;
    ``"corrected"`` is ours.
    """

    _: KW_ONLY
    variant: str = "corrected"
    gossip_rounds: int | None = None
    metropolis_from: int = 0
    draws: str = "average"
    draw_before_mixing: bool = False

    name = "decentralized_hmc"
    claims = Claims(
        samples="a law near the posterior (variant='published': its square, with "
        "0.707 of the right standard deviations)",
        bias="mean exact on Gaussian targets, variance O(epsilon^2); an agent also by what the "
        "agents disagree",
        draw="the plain average of the agents, one an iteration (draws='agents' adds each agent's)",
        step_size="epsilon: drift epsilon^2/(2m), noise variance epsilon^2/m of the average of m "
        "agents, h' = epsilon^2/(2m)",
        source=f"{SOURCE}; variant 'corrected' is ours",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.variant, str) and self.variant == "exact":
            raise InputError(
                "variant is 'exact': use consortia.decentralized_exact_hmc(step_size, mixing, "
                "leapfrog_steps=...)."
            ).at("variant")
        arguments.one_of("variant", self.variant, ("corrected", "published"))
        arguments.one_of("draws", self.draws, ("average", "agents"))
        rounds = self.gossip_rounds
        if rounds is None and not isinstance(self.step_size, schedules.Unchosen):
            rounds = 1
        arguments.keep(
            self,
            gossip_rounds=arguments.optional_whole("gossip_rounds", rounds, 1),
            metropolis_from=arguments.whole("metropolis_from", self.metropolis_from, 0),
            draw_before_mixing=arguments.flag("draw_before_mixing", self.draw_before_mixing),
        )
        if not self.published and self.metropolis_from > 0:
            raise InputError(
                f"metropolis_from={self.metropolis_from} is for variant='published': 'corrected' "
                "tests no proposal."
            ).at("metropolis_from")

    @property
    def open_settings(self) -> Mapping[str, tuple[Any, ...]]:
        """R, as far as it is not given."""
        return {"gossip_rounds": GOSSIP_ROUNDS} if self.gossip_rounds is None else {}

    @property
    def title(self) -> str:
        """The name, with the variant."""
        if self.published:
            return f"{self.name} (MA-HMC as published)"
        return f"{self.name} (MA-HMC, corrected)"

    @property
    def published(self) -> bool:
        """True with the full drift and a Metropolis test by Taylor expansion."""
        return self.variant == "published"

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """Return one gradient an agent; published, a Hessian-vector product counts as another."""
        each = 2 if self.published else 1
        rounds = self.given("gossip_rounds") + 1
        return Cost(each * len(sizes), each * int(sizes.sum()), rounds, rounds)

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """Return ε²/2 of each iteration, or None when it is constant."""
        steps = schedules.varying(self.step_size, iterations)
        return None if steps is None else steps**2 / 2

    def build(self, target: Target) -> Algorithm:
        """Return an exchange of the trackers, then a step and an exchange of the positions."""
        track = Phase(
            partial(_track, self, target),
            Mix(self.mixing, self.given("gossip_rounds")),
            noise=lambda rng: rng.normal("momentum", (target.dimension,)),
        )
        step = Phase(
            partial(_step, self),
            Mix(self.mixing),
            noise=lambda rng: rng.uniform("accept") if self.published else (),
            shared=partial(_step_size, self, target),
        )
        draws = Draws(
            node=lambda state, inbox: state.position if self.draw_before_mixing else inbox,
            agents=self.draws == "agents",
        )
        return Algorithm(partial(_start, self), (track, step), draws)


@dataclass(frozen=True)
class DecentralizedExactHMC(Agents):
    r"""Hamiltonian Monte Carlo over a network, exactly: the agents move as one.

    All agents share the random numbers of (p, u), and sum U and ∇U exactly at each proposal:
    centralized MALA, or HMC with ``leapfrog_steps``. It is the only Metropolis-exact method among
    the decentralized ones. The sums are exact all-reduces, counted here as one star round each.

    **Samples** exp(−U), U = Σ_i U_i.

    **Draw**: the agents' common position, one an iteration.

    **Step size**: ε of the leapfrog; with one step drift ε²/2, noise variance ε², h' = ε²/2.

    Args:
        step_size: ε > 0: a number, an array over iterations (warm-up included) or a function of
            the iteration's index.
        mixing: the network, which must be connected; as in `decentralized_hmc`.
        leapfrog_steps: L, leapfrog steps of each trajectory.

    Raises:
        InputError: an argument is out of its range, or W is not doubly stochastic.

    Example:
        >>> DecentralizedExactHMC(0.02, "ring").leapfrog_steps
        1

    Source: ours, for comparison with Kungurtsev, Cobb, Javidi, Jalaian (2023).
    """

    _: KW_ONLY
    leapfrog_steps: int = 1

    name = "decentralized_exact_hmc"
    claims = Claims(
        samples="the posterior (Metropolis test on the summed log-density)",
        bias="none, however different the agents are; every agent answers in every step",
        draw="the agents' common position, one an iteration",
        step_size="epsilon of the leapfrog; with one step drift epsilon^2/2, noise variance "
        "epsilon^2, h' = epsilon^2/2",
        source=f"ours, for comparison with {SOURCE}",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = arguments.whole("leapfrog_steps", self.leapfrog_steps, 1)
        arguments.keep(self, leapfrog_steps=steps)

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a matrix of the wrong size, and exact sums on a network in parts."""
        parts = self.separate_parts(names)
        if parts:
            raise InputError(
                f"{parts}; decentralized_exact_hmc needs a path between any two agents."
            ).at("mixing")

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """Return L gradients an agent."""
        steps = self.leapfrog_steps
        return Cost(steps * len(sizes), steps * int(sizes.sum()), steps, steps)

    def build(self, target: Target) -> Algorithm:
        """Return the phases of federated HMC, whose hub every agent can be."""
        return FederatedHMC(
            step_size=self.step_size,
            leapfrog_steps=self.leapfrog_steps,
            mass_matrix="identity",
            jitter=0.0,
        ).build(target)


decentralized_hmc, decentralized_exact_hmc = DecentralizedHMC, DecentralizedExactHMC

# --- one iteration -------------------------------------------------------------------------------


class Tracked(NamedTuple):
    """c_i and a_i of an agent, or what it tracks of their average; no a_i unless published."""

    gradient: Vector
    curvature: PyTree[Scalar]


class Agent(NamedTuple):
    """An agent: ω_i (after a step, before it mixes), p_i, its own c_i and a_i, and g_i and ℵ_i."""

    position: Vector
    momentum: Vector
    own: Tracked
    mixed: Tracked


class Step(NamedTuple):
    """ε of an iteration, and whether its proposals are tested."""

    step_size: Scalar
    testing: PyTree[Bool[Array, ""]]


def _start(method: DecentralizedHMC, position: Vector) -> tuple[Agent, tuple[()], Vector]:
    zero = jnp.zeros_like(position)
    none = Tracked(zero, jnp.zeros((), position.dtype) if method.published else ())
    return Agent(position, zero, none, none), (), position


def _track(
    method: DecentralizedHMC,
    target: Target,
    noise: Vector,
    shared: tuple[()],
    state: Agent,
    inbox: Vector,
    site: Site,
) -> tuple[Agent, Tracked, Info]:
    """Send the trackers plus what is new: g + c − c_prev, and ℵ + a − a_prev."""
    rows, mask = site.all()

    def potential(position: Vector) -> Scalar:
        return target.potential(position, rows, mask, site)

    def slope(position: Vector) -> Scalar:
        return jax.jvp(potential, (position,), (noise,))[1]

    # Forward over forward: p'∇²U p takes one pass over the rows, a product ∇²U p would take two.
    curved = jax.jvp(slope, (inbox,), (noise,))[1] if method.published else ()
    tracked = Tracked(jax.grad(potential)(inbox), curved)
    message = jax.tree.map(lambda g, c, before: g + (c - before), state.mixed, tracked, state.own)
    return Agent(inbox, noise, tracked, state.mixed), message, {}


def _step_size(method: DecentralizedHMC, target: Target, rng: RandomStreams) -> Step:
    testing = jnp.asarray(rng.iteration) >= method.metropolis_from if method.published else ()
    return Step(jnp.asarray(method.step_size(rng.iteration), target.dtype), testing)


def _step(
    method: DecentralizedHMC,
    noise: PyTree[Scalar],
    shared: Step,
    state: Agent,
    inbox: Tracked,
    site: Site,
) -> tuple[Agent, Vector, Info]:
    """Make a step with the tracked gradient, and send ω after it."""
    position, step_size = state.position, shared.step_size
    drift = step_size if method.published else step_size / 2
    proposed = position - step_size * (state.momentum + drift * inbox.gradient)
    info = {}
    if method.published:
        change = step_size**2 / 2 * (inbox.curvature + jnp.sum(inbox.gradient**2))
        rate = jnp.exp(jnp.minimum(-change, 0))
        accepted = (noise < rate) | ~shared.testing
        accepted &= jnp.all(jnp.isfinite(proposed))
        proposed = jnp.where(accepted, proposed, position)
        info["accepted"] = accepted
    return state._replace(position=proposed, mixed=inbox), proposed, info
