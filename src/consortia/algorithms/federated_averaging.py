r"""Federated averaging HMC: FA-HMC, FA-LD and the de-biased variant.

A round is T HMC iterations of K leapfrog steps at every site, then one weighted average:

.. math::
    \theta' = \theta + \eta p - \tfrac{\eta^2}{2} g_c(\theta, \xi_k), \quad
    p' = p - \tfrac{\eta}{2}[g_c(\theta, \xi_k) + g_c(\theta', \xi_{k+1/2})], \quad
    \theta \leftarrow \sum_c w_c \theta_c

with :math:`f_c = U_c / w_c`, :math:`g_c` an estimate of :math:`\nabla f_c` and the momentum
:math:`p_c = \sqrt{\rho}\,\xi + \sqrt{1-\rho}\,\xi_c/\sqrt{w_c}`, ξ common to all sites, drawn anew
for each HMC iteration. There is no Metropolis step.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np

from consortia import schedules
from consortia.algorithms import federated_averaging_phases as phases
from consortia.core import arguments
from consortia.core.contract import Algorithm, Claims, Cost, Draws, Mean, Method, Phase
from consortia.core.target import Target
from consortia.dynamics import MassMatrix


def fa_hmc(
    step_size: Any,
    leapfrog_steps: int,
    local_steps: int,
    *,
    batch_size: int | None = None,
    replace: bool = True,
    gradient_noise: float = 0.0,
    gradient_draws: int = 2,
    momentum_correlation: float = 1.0,
    debias: bool = False,
    weights: Any = None,
    mass_matrix: Any = None,
    temperature: float = 1.0,
) -> FederatedAveragingHMC:
    r"""Federated averaging HMC (FA-HMC).

    **Samples** a law near exp(−U/temperature), U = Σ_c U_c, and not that law itself: there is no
    Metropolis test, and sites that differ pull the average aside. On Gaussian targets
    `consortia.oracles.fa_hmc_law` gives the exact law. To leading order the mean is off by
    −κ Σ_c w_c λ_c² (m_c − m*)/λ̄ with κ = (Kη)²[(T−1)/4 + (1 − 1/K²)/12], which vanishes only for
    K = T = 1 or equal curvatures; the variance is off by O(η²), for one site by the factor
    1/(1 − η²λ/4). Minibatches add O(η²) to the variance. ``debias=True`` removes the bias of the
    mean on Gaussian targets, whenever the method is stable.

    **Draw**: the averaged θ, one a round. The sites' own θ_c are not posterior draws.

    **Step size**: η, drift η²/2, noise variance η²: one leapfrog step equals an SGLD step with
    h' = η²/2 (θ − h'∇U + N(0, 2h')).

    Args:
        step_size: η > 0: a number, an array over rounds (warm-up included) or a function of the
            round's index; see `consortia.schedules`.
        leapfrog_steps: K ≥ 1.
        local_steps: T ≥ 1, HMC iterations between two averages.
        batch_size: B rows a gradient draw; None takes all rows of the site.
        replace: minibatches with replacement; without costs more and bounds B by the smallest site.
        gradient_noise: variance per coordinate of Gaussian noise added to each draw of ∇f_c.
        gradient_draws: independent draws at each inner leapfrog point: 2 as published (2K − 1
            stochastic gradients per HMC iteration), or 1 (K of them).
        momentum_correlation: ρ in [0, 1], the part of the momentum's variance that all sites share.
        debias: the force becomes ∇f_c(θ) − ∇f_c(a) + ∇f(a), the anchor a being the average of the
            previous synchronisation, with the same rows at θ and a and one full gradient a round;
            ``gradient_noise`` is added once to the whole force. Can be unstable when the sites'
            curvatures differ much; the oracle gives the spectral radius.
        weights: w_c > 0 summing to one; n_c/n when None. The target does not depend on them.
        mass_matrix: M, the diagonal (d,) or dense (d, d) in the order of the flat parameters;
            the identity when None. Momentum N(0, M), drift η M⁻¹p − (η²/2) M⁻¹g.
        temperature: momentum variance is multiplied by it; the target is exp(−U/temperature).

    Returns:
        A value that `consortia.sample` takes; equal arguments give equal values.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> import consortia
        >>> consortia.fa_hmc(0.02, leapfrog_steps=5, local_steps=10).leapfrog_steps
        5

    Source: Liang, Zhang, Deng, Song, Lin, "Bayesian federated learning with Hamiltonian Monte
    Carlo" (2024), algorithms 1–3; ``debias`` is its B.2.
    """
    return FederatedAveragingHMC(
        name="fa_hmc",
        step_size=schedules.as_schedule(step_size),
        leapfrog_steps=arguments.whole("leapfrog_steps", leapfrog_steps, 1),
        local_steps=arguments.whole("local_steps", local_steps, 1),
        batch_size=arguments.optional_whole("batch_size", batch_size, 1),
        replace=bool(replace),
        gradient_noise=arguments.number("gradient_noise", gradient_noise, 0.0, math.inf),
        gradient_draws=arguments.whole("gradient_draws", gradient_draws, 1, 2),
        momentum_correlation=arguments.number(
            "momentum_correlation", momentum_correlation, 0.0, 1.0
        ),
        debias=bool(debias),
        given_weights=arguments.site_weights(weights),
        mass_matrix=MassMatrix.of(mass_matrix),
        temperature=arguments.number("temperature", temperature, 0.0, math.inf),
    )


def fa_ld(step_size: Any, local_steps: int, **options: Any) -> FederatedAveragingHMC:
    r"""Federated averaging Langevin dynamics (FA-LD): `fa_hmc` with one leapfrog step.

    .. math:: \theta'_c = \theta_c - \tfrac{\eta^2}{2} g_c(\theta_c) + \eta p_c, \qquad
              \theta \leftarrow \sum_c w_c\theta_c \text{ after } T \text{ steps}

    **Samples** a law near exp(−U/temperature); the mean is off by O(η²) unless T = 1 or the sites'
    curvatures are equal, the variance by O(η²). **Draw**: the averaged θ, one a round.

    Args:
        step_size: η; drift η²/2, noise variance η².
        local_steps: T ≥ 1, Langevin steps between two averages.
        **options: as in `fa_hmc`, without ``leapfrog_steps``.

    Returns:
        A value that `consortia.sample` takes.

    Raises:
        InputError: an argument is out of its range.

    Source: Liang et al. (2024), algorithm 3 with K = 1.
    """
    return dataclasses.replace(fa_hmc(step_size, 1, local_steps, **options), name="fa_ld")


CLAIMS = {
    "fa_hmc": Claims(
        samples="a law near the posterior (no Metropolis test)",
        bias="mean O((K eta)^2 T) with unlike sites (debias=True removes it on Gaussian targets), "
        "variance O(eta^2)",
        draw="the weighted average of the sites, one a round",
        step_size="eta: drift eta^2/2, noise variance eta^2, h' = eta^2/2",
        source="Liang, Zhang, Deng, Song, Lin (2024), algorithms 1-3, B.1, B.2",
    ),
    "fa_ld": Claims(
        samples="a law near the posterior (no Metropolis test)",
        bias="mean O(eta^2 (T - 1)) with unlike sites, variance O(eta^2)",
        draw="the weighted average of the sites, one a round",
        step_size="eta: drift eta^2/2, noise variance eta^2, h' = eta^2/2",
        source="Liang, Zhang, Deng, Song, Lin (2024), algorithm 3 with K = 1",
    ),
}


class FederatedAveragingHMC(phases.Settings, Method):
    """The parameters of `fa_hmc` and `fa_ld`; compares and hashes by value."""

    @property
    def claims(self) -> Claims:
        """What the method samples, by its name."""
        return CLAIMS[self.name]

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse weights for another number of sites, batches too large, a wrong mass matrix."""
        arguments.weights_fit(self.given_weights, names)
        if not self.replace:
            arguments.batch_fits(self.batch_size, sizes, names)
        self.mass_matrix.check(dimension)

    @property
    def step_schedules(self) -> tuple[schedules.Schedule, ...]:
        """η of the rounds."""
        return (self.step_size,)

    @property
    def dimension(self) -> int | None:
        """That of a given mass matrix."""
        return self.mass_matrix.dimension

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """w_c: as given, else n_c/n."""
        if self.given_weights is not None:
            return np.asarray(self.given_weights, np.float64)
        return sizes / sizes.sum()

    def prior_shares(self, sizes: np.ndarray) -> np.ndarray:
        """λ_c = w_c."""
        return self.site_weights(sizes)

    def cost(self, sizes: np.ndarray) -> Cost:
        """Gradients of one round: K T exact ones a site, or (2K − 1) T minibatch ones."""
        inner = self.leapfrog_steps - 1
        if self.batch_size is None:
            draws = self.local_steps * (1 + inner)
            rows = draws * int(sizes.sum())
        else:
            draws = self.local_steps * (1 + inner * self.gradient_draws)
            draws *= 2 if self.debias else 1
            rows = draws * len(sizes) * self.batch_size
        extra = 1 if self.debias else 0
        return Cost((draws + extra) * len(sizes), rows + extra * int(sizes.sum()))

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """h' = η²/2 of each round, or None when η is constant."""
        if isinstance(self.step_size, schedules.Constant):
            return None
        return schedules.evaluate(self.step_size, iterations) ** 2 / 2

    def parameters(self) -> dict[str, Any]:
        """The parameters as plain values."""
        return arguments.plain_parameters(self)

    def build(self, target: Target) -> Algorithm:
        """One phase: T iterations of K leapfrogs at every site, then the average."""
        local = phases.local_debiased if self.debias else phases.local
        phase = Phase(
            partial(local, self, target),
            Mean(),
            noise=partial(phases.noise, self, target),
            shared=partial(phases.shared, self, target),
        )
        if self.debias:
            return Algorithm(phases.init_debiased, (phase,), Draws(hub=lambda hub, inbox: inbox[0]))
        return Algorithm(phases.init, (phase,), Draws(hub=lambda hub, inbox: inbox))
