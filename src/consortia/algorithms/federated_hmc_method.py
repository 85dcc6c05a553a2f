"""Federated HMC with the exact force: the value behind `consortia.federated_hmc`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from consortia.algorithms import federated_hmc_phases as phases
from consortia.algorithms.federated_hmc_settings import Settings
from consortia.core import arguments
from consortia.core.contract import Algorithm, Claims, Cost, Draws, Method, Phase, Sum
from consortia.core.target import Target
from consortia.errors import InputError
from consortia.schedules import Schedule

LEAST_WARMUP = 20
"""Rounds in which something can be learned."""

LOWEST_RATE = 0.1
"""With a lower acceptance rate at the end of the warm-up a run is not worth its messages."""


class FederatedHMC(Settings, Method):
    """The parameters of `federated_hmc`; compares and hashes by value."""

    claims = Claims(
        samples="the posterior (Metropolis test on the summed log-density)",
        bias="none, however unlike the sites are; every site answers in every round",
        draw="the position after a trajectory (K of them a round with force='surrogate')",
        step_size="epsilon of the leapfrog, learned when left out; with one step drift "
        "epsilon^2/2, noise variance epsilon^2, h' = epsilon^2/2",
        source="Duane, Kennedy, Pendleton, Roweth (1987); the federated form is ours",
    )

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a mass matrix for another number of parameters."""
        if self.mass_matrix is not None:
            self.mass_matrix.check(dimension)

    @property
    def adapts(self) -> bool:
        """True where an argument is left to the warm-up."""
        return bool(self.learns)

    @property
    def dimension(self) -> int | None:
        """That of a given mass matrix."""
        return None if self.mass_matrix is None else self.mass_matrix.dimension

    @property
    def step_schedules(self) -> tuple[Schedule, ...]:
        """ε of the iterations, where it is given."""
        return () if self.step_size is None else (self.step_size,)

    def check_warmup(self, warmup: int) -> None:
        """Refuse a run in which nothing can be learned although something must be."""
        if self.learns and warmup < LEAST_WARMUP:
            given = {"step_size": "a number", "leapfrog_steps": "a number"}
            remedy = " and ".join(
                f"{name}={given.get(name, repr('identity'))}" for name in self.learns
            )
            raise InputError(
                f"warmup is {warmup}, but {' and '.join(self.learns)} must be learned in the "
                f"warm-up: give sample(..., warmup=500), at least {LEAST_WARMUP}, or {remedy}."
            )

    def check_learned(self, hub: Any) -> str | None:
        """Why a run should not go on after its warm-up, with advice; None when it should."""
        if not self.learns:
            return None
        rate = float(np.min(np.asarray(hub["learned"].rate)))
        if rate >= LOWEST_RATE:
            return None
        return (
            f"only {100 * rate:.2g} % of the trajectories were accepted at the end of the warm-up: "
            "give a longer warm-up, init nearer to the posterior, or a smaller step_size."
        )

    def full_iterations(self, hub: Any, done: int) -> float:
        """The run so far in trajectories of the most steps; of the chain that made the most."""
        return int(np.max(np.asarray(hub["messages"]))) / self.most_steps

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """w_c = n_c/n; the draws do not depend on them."""
        return sizes / sizes.sum()

    def prior_shares(self, sizes: np.ndarray) -> np.ndarray:
        """λ_c = w_c."""
        return self.site_weights(sizes)

    def cost(self, sizes: np.ndarray) -> Cost:
        """One gradient a site in each step; the most that a trajectory can have."""
        return Cost(self.most_steps * len(sizes), self.most_steps * int(sizes.sum()))

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """None: all draws count alike, whatever the step size."""
        return None

    def parameters(self) -> dict[str, Any]:
        """The parameters as plain values."""
        return arguments.plain_parameters(self)

    def build(self, target: Target) -> Algorithm:
        """Begin, leapfrog steps with a sum over the sites each, end."""
        return assembled(self, target)


def assembled(method: Settings, target: Target) -> Algorithm:
    """The phases of one trajectory, for any method with these settings."""
    begin = Phase(
        None,
        hub=partial(phases.begin, method),
        shared=partial(phases.begin_numbers, method, target),
    )
    leapfrog = Phase(
        partial(method.wire.evaluate, target),
        Sum(),
        hub=partial(phases.leapfrog, method),
        noise=partial(method.wire.numbers, target),
        repeat=method.most_steps,
        repeats=partial(phases.evaluations, method),
    )
    end = Phase(None, hub=partial(phases.end, method), shared=phases.end_numbers)
    setup = Phase(partial(method.wire.first, target), Sum(), hub=partial(phases.start, method))
    return Algorithm(
        partial(phases.init, method),
        (begin, leapfrog, end),
        Draws(hub=phases.drawn),
        setup=(setup,),
    )
