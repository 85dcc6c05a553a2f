"""The values behind `consortia.decentralized_hmc` and `consortia.decentralized_ula`."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import numpy as np

from consortia import graphs, schedules
from consortia.algorithms import decentralized_phases as phases
from consortia.algorithms import federated_hmc_method
from consortia.algorithms.federated_hmc_settings import Settings
from consortia.algorithms.federated_hmc_wire import FullWidth
from consortia.core import arguments
from consortia.core.contract import Algorithm, Claims, Cost, Draws, Method, Mix, Phase
from consortia.core.target import Target
from consortia.dynamics import MassMatrix
from consortia.errors import InputError
from consortia.graphs import MixingMatrix
from consortia.graphs.laplacian import laplacian_exchange, largest_laplacian_eigenvalue


class _OnNetwork(Method):
    """What both methods say of their agents."""

    mixing: MixingMatrix | str
    step_size: schedules.Schedule

    @property
    def step_schedules(self) -> tuple[schedules.Schedule, ...]:
        """ε or α of the iterations."""
        return (self.step_size,)

    @property
    def network(self) -> MixingMatrix | str:
        """W."""
        return self.mixing

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """1/m for each agent, whatever its rows."""
        return np.full(len(sizes), 1.0 / len(sizes))

    def prior_shares(self, sizes: np.ndarray) -> np.ndarray:
        """λ_i = 1/m."""
        return self.site_weights(sizes)


class DecentralizedHMC(_OnNetwork, phases.HMCSettings):
    """The parameters of `decentralized_hmc`; compares and hashes by value."""

    claims = Claims(
        samples="a law near the posterior (variant='exact': the posterior; variant='published': "
        "its square, standard deviations 0.707 times too small)",
        bias="mean exact on Gaussian targets, variance O(epsilon^2); an agent also by what the "
        "agents disagree",
        draw="the plain average of the agents, one an iteration (draws='agents' adds each agent's)",
        step_size="epsilon: drift epsilon^2/(2m), noise variance epsilon^2/m of the average of m "
        "agents, h' = epsilon^2/(2m)",
        source="Kungurtsev, Cobb, Javidi, Jalaian (2023); variants 'corrected' and 'exact' are "
        "ours",
    )

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a matrix of the wrong size, and exact sums on a network in parts."""
        matrix = graphs.resolve(self.mixing, len(names))
        if matrix.components == 1:
            return
        parts = _in_parts(matrix, names)
        if self.variant == "exact":
            raise InputError(f"{parts}; variant='exact' needs a path between any two agents.")
        warnings.warn(f"{parts}, so each samples its own data", UserWarning, stacklevel=3)

    def cost(self, sizes: np.ndarray) -> Cost:
        """Gradients: one an agent, and one Hessian-vector product counted as another; or L."""
        each = {"corrected": 1, "published": 2, "exact": self.leapfrog_steps}[self.variant]
        return Cost(each * len(sizes), each * int(sizes.sum()))

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """ε²/2 of each iteration, or None when it is constant or every draw is exact."""
        if self.variant == "exact" or isinstance(self.step_size, schedules.Constant):
            return None
        return schedules.evaluate(self.step_size, iterations) ** 2 / 2

    def parameters(self) -> dict[str, Any]:
        """The parameters as plain values; of a matrix its size, its form and a checksum."""
        return _parameters(self)

    def build(self, target: Target) -> Algorithm:
        """Exchange of the trackers, then a step and the exchange of the positions."""
        if self.variant == "exact":
            return federated_hmc_method.assembled(self._as_federated(), target)
        track = Phase(
            partial(phases.track, self, target),
            Mix(self.mixing, self.gossip_rounds),
            noise=partial(phases.momentum, target),
        )
        step = Phase(
            partial(phases.step, self, target),
            Mix(self.mixing),
            noise=partial(phases.step_noise, self),
            shared=partial(phases.step_shared, self, target),
        )
        draws = Draws(node=partial(phases.drawn_hmc, self), agents=self.draws == "agents")
        return Algorithm(partial(phases.init_hmc, self), (track, step), draws)

    def _as_federated(self) -> Settings:
        return Settings(
            name=self.name,
            step_size=self.step_size,
            leapfrog_steps=self.leapfrog_steps,
            mass_matrix=MassMatrix(),
            turn=math.pi / 2,
            jitter=0.0,
            target_acceptance=0.8,
            wire=FullWidth(),
        )


class DecentralizedULA(_OnNetwork, phases.ULASettings):
    """The parameters of `decentralized_ula`; compares and hashes by value."""

    claims = Claims(
        samples="a law near the posterior (noise='published': its m-th power, standard deviations "
        "1/sqrt(m) times too small)",
        bias="mean O(alpha) with unlike agents, large on networks that mix slowly; variance "
        "O(alpha)",
        draw="the plain average of the agents, one an iteration (draws='agents' adds each agent's)",
        step_size="alpha_0, about 20 times the first step alpha_t; h' = alpha_t",
        source="Parayil, Bai, George, Gurram (2020), with the constants of "
        "Kungurtsev, Cobb, Javidi, Jalaian (2023)",
    )

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a matrix of the wrong size; warn of a network in parts or agents that part."""
        matrix = graphs.resolve(self.mixing, len(names))
        if matrix.components > 1:
            text = f"{_in_parts(matrix, names)}, so each samples its own data"
            warnings.warn(text, UserWarning, stacklevel=3)
        first, slow, start = self.consensus
        strongest = first * start**-slow * largest_laplacian_eigenvalue(matrix)
        if strongest >= 2:
            warnings.warn(
                f"consensus: β times the largest eigenvalue of the Laplacian is {strongest:.3g} at "
                f"the start, and the agents part from 2 on: give a β₀ below "
                f"{2 * first / strongest:.3g}",
                UserWarning,
                stacklevel=3,
            )

    def cost(self, sizes: np.ndarray) -> Cost:
        """One gradient an agent."""
        return Cost(len(sizes), int(sizes.sum()))

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """α_t of each iteration, or None when it is constant."""
        power, offset = self.decay
        if power == 0 and isinstance(self.step_size, schedules.Constant):
            return None
        initial = schedules.evaluate(self.step_size, iterations)
        return initial * (np.asarray(iterations, np.float64) + offset) ** -power

    def parameters(self) -> dict[str, Any]:
        """The parameters as plain values; of a matrix its size, its form and a checksum."""
        return _parameters(self)

    def build(self, target: Target) -> Algorithm:
        """One phase: a step at every agent, then the exchange with its neighbours."""
        matrix, share_of = laplacian_exchange(self.mixing)
        phase = Phase(
            partial(phases.langevin, self, target, share_of),
            Mix(matrix),
            noise=partial(phases.ula_noise, target),
            shared=partial(phases.ula_shared, self, target),
        )
        draws = Draws(node=lambda state, inbox: state["position"], agents=self.draws == "agents")
        return Algorithm(phases.init_ula, (phase,), draws)


def _in_parts(matrix: MixingMatrix, names: tuple[str, ...]) -> str:
    first = [names[i] for i in np.flatnonzero(matrix.component_of == 0)[:3]]
    return (
        f"mixing: the network falls into {matrix.components} parts that never talk (one holds "
        f"{', '.join(first)})"
    )


def _parameters(method: Any) -> dict[str, Any]:
    plain = arguments.plain_parameters(method)
    if not isinstance(method.mixing, str):
        plain["mixing"] = method.mixing.summary()
    return plain
