"""Federated HMC with the force of a Gaussian surrogate: the value behind ``force="surrogate"``."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from consortia.algorithms import federated_hmc_surrogate_fit as fit
from consortia.algorithms import federated_hmc_surrogate_learning as learning
from consortia.algorithms import federated_hmc_surrogate_phases as phases
from consortia.algorithms import federated_hmc_surrogate_search as search
from consortia.algorithms.federated_hmc_method import FederatedHMC
from consortia.core import arguments
from consortia.core.contract import Algorithm, Cost, Draws, Mean, Method, Phase, Sum
from consortia.core.target import Target
from consortia.errors import InputError

LOWEST_RATE = 0.1
"""With a lower acceptance rate at the end of the warm-up a run is not worth its messages."""


SEARCH_ROUNDS = search.NEWTON_STEPS + search.AVERAGING_STEPS + 2
"""Communication rounds before the first iteration, when no surrogate is given."""


LONGEST_STILL = 0.02
"""A chain that stands still for this share of its draws is warned of; so few effective draws, about
fifty, can be left of it."""

LEAST_STILL = 50
"""A run shorter than this is no sign of light tails."""

FALLEN = 0.5
"""Ratio of acceptance rates, after the warm-up and at its end, below which a warning is given."""


class SurrogateHMC(fit.SurrogateSettings, Method):
    """The parameters of `federated_hmc` with ``force="surrogate"``; compares by value."""

    step_size = None
    claims = FederatedHMC.claims

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a surrogate for another number of parameters."""
        if self.surrogate is not None and self.surrogate.dimension != dimension:
            raise InputError(
                f"surrogate is for {self.surrogate.dimension} parameters, the model has "
                f"{dimension}."
            )

    @property
    def adapts(self) -> bool:
        """Any warm-up will do; without one the surrogate stays as it was given or fitted."""
        return True

    @property
    def dimension(self) -> int | None:
        """That of a given surrogate."""
        return None if self.surrogate is None else self.surrogate.dimension

    def check_fitted(self, fitted: Any, names: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse a fit without a mode, or that is not positive definite there.

        Args:
            fitted: what the fit phases left at all sites, node axis first.
            names: of the sites.

        Raises:
            InputError: the Laplace approximation does not exist.
        """
        if self.surrogate is not None:
            return ()
        found = {name: np.asarray(value)[0] for name, value in fitted[1].items()}
        precision = found["precision"]
        if not np.all(np.isfinite(precision)) or np.linalg.eigvalsh(precision)[0] <= 0:
            raise InputError(
                "force='surrogate': the log-density has no positive definite curvature where the "
                f"search for its mode ended after {search.NEWTON_STEPS} steps. Give init nearer to "
                "the mode, a surrogate=consortia.surrogates.Gaussian(mean, covariance) of the "
                "posterior, or use force='exact'."
            )
        if not found["decrement"] < 1:
            raise InputError(
                f"force='surrogate': the search for the mode ended {found['decrement']:.3g} "
                "squared standard deviations from it. Give init nearer to the mode, or a "
                "surrogate=consortia.surrogates.Gaussian(mean, covariance)."
            )
        return ()

    def check_learned(self, hub: Any) -> str | None:
        """Why a run should not go on after its warm-up, with advice; None when it should."""
        rate = float(np.min(np.asarray(hub["last_rate"])))
        if rate >= LOWEST_RATE:
            return None
        return (
            f"the surrogate is too far from the posterior: {100 * rate:.2g} % of the proposals "
            "were accepted at the end of the warm-up. Give a longer warm-up or a shorter turn "
            "(turn=0.5, proposals_per_round=1), or use force='exact'."
        )

    def check_draws(self, hub: Any) -> tuple[str, ...]:
        """Warnings about the draws that were made."""
        seen = {name: np.asarray(value) for name, value in hub["seen"].items()}
        made = np.maximum(seen["rounds"], 1)
        texts = []
        still = float(np.max(seen["longest"] / (made * self.proposals)))
        if still > LONGEST_STILL and np.max(seen["longest"]) >= LEAST_STILL:
            texts.append(
                f"a chain stood still for {np.max(seen['longest'])} proposals, {100 * still:.2g} % "
                "of its draws: the surrogate's tails are lighter than the posterior's. Give a "
                f"wider one (widening={self.widening + 0.1:.2f}), a shorter turn, or more rounds"
            )
        rate, before = np.min(seen["rates"] / made), np.min(np.asarray(hub["last_rate"]))
        if rate < FALLEN * before < FALLEN and np.min(seen["rounds"]) >= LEAST_STILL:
            texts.append(
                f"the acceptance rate fell from {before:.2g} at the end of the warm-up to "
                f"{rate:.2g}: the warm-up has not seen all of the posterior. Give a longer one"
            )
        return tuple(texts)

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """w_c = n_c/n; the draws do not depend on them."""
        return sizes / sizes.sum()

    def prior_shares(self, sizes: np.ndarray) -> np.ndarray:
        """λ_c = w_c."""
        return self.site_weights(sizes)

    def cost(self, sizes: np.ndarray) -> Cost:
        """No gradients; K potentials a site, each counted as one."""
        return Cost(self.proposals * len(sizes), self.proposals * int(sizes.sum()))

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """None: all draws count alike."""
        return None

    def parameters(self) -> dict[str, Any]:
        """The parameters as plain values."""
        return arguments.plain_parameters(self)

    def build(self, target: Target) -> Algorithm:
        """Search for a surrogate unless one is given; then propose, evaluate, decide, learn."""
        evaluate = partial(phases.evaluate, target)
        propose = Phase(
            None,
            hub=partial(phases.propose, self),
            shared=partial(phases.proposal_numbers, self, target),
        )
        answer = Phase(
            evaluate,
            Sum(),
            hub=partial(phases.decide, self),
            shared=partial(phases.decision_numbers, self),
        )
        learn = Phase(None, hub=partial(learning.learn, self), repeats=learning.due)
        adopt = Phase(fit.recall, Mean(), hub=partial(fit.adopt, self))
        if self.surrogate is not None:
            adopt = Phase(None, hub=partial(fit.given, self))
        return Algorithm(
            partial(fit.init, self),
            (propose, answer, learn),
            Draws(hub=phases.drawn, per_iteration=self.proposals),
            fit=() if self.surrogate is not None else self._fit(target),
            setup=(adopt, Phase(evaluate, Sum(), hub=fit.start)),
        )

    def _fit(self, target: Target) -> tuple[Phase, ...]:
        newton = Phase(
            partial(search.look, target), Sum(), hub=search.descend, repeat=search.NEWTON_STEPS
        )
        average = Phase(
            partial(search.average, target),
            Sum(),
            hub=search.nearer,
            shared=partial(search.points, target),
            repeat=search.AVERAGING_STEPS,
        )
        rooted = Phase(None, hub=search.rooted)
        return (newton, rooted, average)
