"""The value behind `consortia.de_sgld` and `consortia.de_sghmc`."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from consortia import graphs, schedules
from consortia.algorithms import gossip_phases as phases
from consortia.core import arguments
from consortia.core.contract import Algorithm, Claims, Cost, Draws, Method, Mix, Phase
from consortia.core.target import Target
from consortia.errors import InputError

CLAIMS = {
    "de_sgld": Claims(
        samples="the average: a law near the posterior; a single agent: a law that is far too wide",
        bias="in W2: average O(eta), growing with the disagreement of unlike agents; an agent "
        "O(sqrt(eta)) (correction='extra', noise='common', averaged_noise=True: O(eta^2) for both)",
        draw="the plain average of the agents, one an iteration (draws='agents' adds each agent's)",
        step_size="eta: drift eta, noise variance 2 eta at each agent, h' = eta",
        source="Gürbüzbalaban, Gao, Hu, Zhu (2021), equation 2",
    ),
    "de_sghmc": Claims(
        samples="the average: a law near the posterior; a single agent: a law that is far too wide",
        bias="in W2: average O(eta), growing with the disagreement of unlike agents; an agent more "
        "(correction='extra', noise='common': as the average)",
        draw="the plain average of the agents, one an iteration (draws='agents' adds each agent's)",
        step_size="eta: a step in time, position moves eta v; h' = eta^2 where friction = 1/eta",
        source="Gürbüzbalaban, Gao, Hu, Zhu (2021), equations 20 and 21",
    ),
}


class Gossip(phases.Settings, Method):
    """The parameters of `de_sgld` and `de_sghmc`; compares and hashes by value."""

    @property
    def claims(self) -> Claims:
        """What the method samples, by its name."""
        return CLAIMS[self.name]

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a matrix or an anchor of the wrong size; warn of a network in parts."""
        if len(names) < 2:
            raise InputError(
                "there is one site: gossip needs at least two agents. With all data in one place "
                "use consortia.fa_ld(step_size, local_steps=1)."
            )
        matrix = graphs.resolve_any(self.mixing, len(names))
        if not self.replace:
            arguments.batch_fits(self.batch_size, sizes, names)
        if self.corrected and not matrix.symmetric:
            raise InputError("correction='extra' needs a symmetric mixing matrix.")
        if self.anchor is not None and len(self.anchor) != dimension:
            raise InputError(
                f"control_variate has {len(self.anchor)} values, the model {dimension} parameters."
            )
        if matrix.components > 1:
            warnings.warn(_in_parts(matrix, names), UserWarning, stacklevel=3)

    @property
    def step_schedules(self) -> tuple[schedules.Schedule, ...]:
        """η of the iterations."""
        return (self.step_size,)

    @property
    def network(self) -> Any:
        """W."""
        return self.mixing

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """1/N for each agent, whatever its rows."""
        return np.full(len(sizes), 1.0 / len(sizes))

    def prior_shares(self, sizes: np.ndarray) -> np.ndarray:
        """λ_i = 1/N."""
        return self.site_weights(sizes)

    def cost(self, sizes: np.ndarray) -> Cost:
        """One gradient an agent, two on the same rows with a control variate."""
        if self.batch_size is None:
            return Cost(len(sizes), int(sizes.sum()))
        gradients = len(sizes) * (1 if self.anchor is None else 2)
        return Cost(gradients, gradients * self.batch_size)

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """η of each iteration, the time that it stands for, or None when it is constant."""
        if isinstance(self.step_size, schedules.Constant):
            return None
        return schedules.evaluate(self.step_size, iterations)

    def parameters(self) -> dict[str, Any]:
        """The parameters as plain values; of a matrix its size, its form and a checksum."""
        plain = arguments.plain_parameters(self)
        plain["control_variate"] = plain.pop("anchor")
        if not isinstance(self.mixing, str):
            plain["mixing"] = self.mixing.summary()
        return plain

    def build(self, target: Target) -> Algorithm:
        """One phase: a step at every agent, then `Mix`."""
        local = phases.langevin if self.friction is None else phases.hamiltonian
        phase = Phase(
            partial(local, self, target),
            Mix(self.mixing, change=True),
            noise=partial(phases.noise, self, target),
            shared=partial(phases.shared, self, target),
        )
        draws = Draws(node=lambda state, inbox: state["position"], agents=self.draws == "agents")
        fit = (Phase(partial(phases.anchor_gradient, self, target)),)
        return Algorithm(
            partial(phases.init, self), (phase,), draws, fit=() if self.anchor is None else fit
        )


def _in_parts(matrix: graphs.MixingMatrix | graphs.MixingSchedule, names: tuple[str, ...]) -> str:
    sizes = np.bincount(matrix.component_of)
    first = [names[i] for i in np.flatnonzero(matrix.component_of == 0)[:3]]
    more = ", ..." if sizes[0] > 3 else ""
    return (
        f"the network falls into {len(sizes)} parts that never talk (the first: "
        f"{', '.join(first)}{more}). Each part and its agents sample the posterior of their own "
        "data alone, under their shares of the prior; the average of all agents is the average of "
        "those independent samples, which is not the posterior unless the parts have like data."
    )
