r"""Decentralized unadjusted Langevin algorithm: agents on a network, without gradient tracking."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from consortia import gradients, graphs, schedules
from consortia.algorithms.decentralized.hmc import SOURCE, Agents
from consortia.core import arguments
from consortia.core.contract import Algorithm, Claims, Draws, Info, Mix, Phase, Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.errors import warn, wrong
from consortia.graphs.laplacian import laplacian_exchange, largest_laplacian_eigenvalue
from consortia.runtime.late import Array, PyTree, jnp

Vector = Float[Array, " d"]
Scalar = Float[Array, ""]


@dataclass(frozen=True)
class DecentralizedULA(Agents):
    r"""Decentralized unadjusted Langevin algorithm (ULA) without gradient tracking.

    .. math::
        \omega_i \leftarrow \omega_i - \beta_t \sum_j A_{ij}(\omega_i - \omega_j)
        - \alpha_t m \nabla U_i(\omega_i) + \sqrt{2\alpha_t s}\, v_i, \qquad
        \alpha_t = \frac{\alpha_0}{(t + b_1)^{\delta_2}}, \quad
        \beta_t = \frac{\beta_0}{(t + b_2)^{\delta_1}}

    with the adjacency matrix A of the network.

    **Samples**, with ``noise="corrected"`` (s = m): a law near exp(−U) whose mean is wrong by
    O(α_t) if the agents differ, more so on networks that mix slowly (1.5 standard deviations on a
    ring of twenty). With ``noise="published"`` (s = 1): exp(−mU), each standard deviation 1/√m
    times the right one. `consortia.oracles.decentralized_ula_moments` gives the law at any
    iteration.

    **Draw**: the plain average of the agents, one an iteration; ``draws="agents"`` keeps each
    agent's series too. Steps decrease, so estimates are weighted by them.

    **Step size**: α₀, which is *not* the first step: that is α₀ b₁^(−δ₂), about α₀/20 by default.
    h' = α_t for the average.

    Args:
        step_size: α₀ > 0: a number; or an array over iterations or a function of the iteration's
            index, which the decay then multiplies.
        mixing: the network: agents i and j ≠ i are neighbours where W_ij > 0; the weights
            themselves do not count. As in `decentralized_hmc`.
        decay: (δ₂, b₁); (0, 1) keeps the step constant. The published theory requires 1 > δ₂ > ½ +
            δ₁: agents agree faster than they move.
        consensus: (β₀, δ₁, b₂). β_t times the largest eigenvalue of the graph's Laplacian must stay
            below 2, or the agents diverge; a complete network of five violates this at the
            published values, with a warning.
        noise: ``"corrected"`` or ``"published"``.
        draws: ``"average"`` or ``"agents"``.

    Raises:
        InputError: an argument is out of its range, or W is not doubly stochastic.

    Example:
        >>> DecentralizedULA(1e-4, "ring").noise
        'corrected'

    Source: Parayil, Bai, George, Gurram, "Decentralized Langevin dynamics for Bayesian learning"
    (2020), with the constants of Kungurtsev et al. (2023), appendix 2.
    """

    _: KW_ONLY
    decay: tuple[float, float] = (0.55, 230.0)
    consensus: tuple[float, float, float] = (0.48, 0.01, 230.0)
    noise: str = "corrected"
    draws: str = "average"

    name = "decentralized_ula"
    claims = Claims(
        samples="a law near the posterior (noise='published': its m-th power, standard deviations "
        "1/sqrt(m) of the right ones)",
        bias="mean O(alpha) where agents differ, large on networks that mix slowly; variance "
        "O(alpha)",
        draw="the plain average of the agents, one an iteration (draws='agents' adds each agent's)",
        step_size="alpha_0, about 20 times the first step alpha_t; h' = alpha_t",
        source=f"Parayil, Bai, George, Gurram (2020), with the constants of {SOURCE}",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.one_of("noise", self.noise, ("corrected", "published"))
        arguments.one_of("draws", self.draws, ("average", "agents"))
        power, offset = _numbers("decay", self.decay, ("δ₂", "b₁"))
        first, slow, start = _numbers("consensus", self.consensus, ("β₀", "δ₁", "b₂"))
        arguments.keep(
            self,
            decay=(power, arguments.positive("decay: b₁", offset)),
            consensus=(first, slow, arguments.positive("consensus: b₂", start)),
        )

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a matrix of the wrong size; warn of a network in parts or agents that part."""
        super().check(sizes, names, dimension)
        first, slow, start = self.consensus
        matrix = graphs.resolve(self.mixing, len(names))
        strongest = first * start**-slow * largest_laplacian_eigenvalue(matrix)
        if strongest >= 2:
            warn(
                f"consensus: β times the largest eigenvalue of the Laplacian is {strongest:.3g} at "
                f"the start, and the agents part from 2 on: give a β₀ below "
                f"{2 * first / strongest:.3g}"
            )

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """Return α_t of each iteration, or None when it is constant."""
        power, offset = self.decay
        if power == 0 and isinstance(self.step_size, schedules.Constant):
            return None
        initial = schedules.evaluate(self.step_size, iterations)
        return initial * (np.asarray(iterations, np.float64) + offset) ** -power

    def build(self, target: Target) -> Algorithm:
        """Return one phase: a step at every agent, then the exchange with its neighbours."""
        matrix, share_of = laplacian_exchange(self.mixing)
        phase = Phase(
            partial(_step, self, target, share_of),
            Mix(matrix),
            noise=lambda rng: rng.normal("noise", (target.dimension,)),
            shared=partial(_rates, self, target),
        )
        draws = Draws(node=lambda state, inbox: state, agents=self.draws == "agents")
        return Algorithm(lambda position: (position, (), position), (phase,), draws)


decentralized_ula = DecentralizedULA

# --- one iteration -------------------------------------------------------------------------------


class Rates(NamedTuple):
    """α_t and β_t."""

    step_size: Scalar
    consensus: Scalar


def _rates(method: DecentralizedULA, target: Target, rng: RandomStreams) -> Rates:
    time = jnp.asarray(rng.iteration, target.dtype)
    power, offset = method.decay
    first, slow, start = method.consensus
    alpha = jnp.asarray(method.step_size(rng.iteration), target.dtype) * (time + offset) ** -power
    return Rates(alpha, first * (time + start) ** -slow)


def _step(
    method: DecentralizedULA,
    target: Target,
    share_of: Callable[[Array], Array],
    noise: Vector,
    shared: Rates,
    state: Vector,
    inbox: Vector,
    site: Site,
) -> tuple[Vector, Vector, Info]:
    """Make one step from ω_i, and send the new position.

    ``share_of`` gives δ of the exchange's matrix I − δL from the number of agents, so that the
    inbox holds ω − δLω.
    """
    alpha = shared.step_size
    agents = 1 / jnp.asarray(site.weight, target.dtype)
    gradient = gradients.exact(target).bind(site)((), state)
    disagreement = (state - inbox) / share_of(agents)
    temperature = 2 * alpha * (agents if method.noise == "corrected" else 1)
    position = (
        state
        - shared.consensus * disagreement
        - alpha * agents * gradient
        + jnp.sqrt(temperature) * noise
    )
    return position, position, {}


# --- arguments -----------------------------------------------------------------------------------


def _numbers(name: str, values: PyTree, parts: tuple[str, ...]) -> tuple[float, ...]:
    if not isinstance(values, (tuple, list)) or len(values) != len(parts):
        raise wrong(name, f" is {values!r}: give the numbers ({', '.join(parts)}).")
    return tuple(
        arguments.number(f"{name}: {part}", value, 0.0, math.inf)
        for part, value in zip(parts, values, strict=True)
    )
