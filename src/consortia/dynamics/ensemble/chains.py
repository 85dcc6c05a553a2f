r"""Many short HMC chains that share every message, a step size, a metric and a trajectory length.

A leapfrog step of all W chains is one message. In coordinates :math:`\theta = c + B\zeta`

.. math:: p \leftarrow p - \tfrac{\epsilon}{2} R^\top\nabla U(\zeta), \quad
          \zeta \leftarrow \zeta + \epsilon R p, \quad
          p \leftarrow p - \tfrac{\epsilon}{2} R^\top\nabla U(\zeta), \qquad p \sim N(0, I)

In the warm-up ε adapts to acceptance rates along a ladder of step sizes, the metric :math:`RR^\top`
to the spread of the chains, the length to the correlation of beginnings and ends. Chains start in
groups, the *superchains*; when these no longer differ by nested R-hat the kernel is frozen, and the
ends of further trajectories are draws.

Source: Hoffman, Radul, Sountsov, "An adaptive MCMC scheme for setting trajectory lengths in HMC"
(2021); Hoffman, Sountsov, "Tuning-free generalized HMC" (2022); Margossian, Hoffman, Sountsov,
Riou-Durand, Vehtari, Gelman, "Nested R-hat" (2024). The rules of adaptation are ours.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float
from scipy import linalg

from consortia.core.queries import Arrays, Query
from consortia.dynamics.ensemble.mixing import (
    MAX_DIVERGENT,
    MAX_EXCESS,
    MAX_SUPERCHAINS,
    MIN_GROUP_SIZE,
    NEARLY,
    NECK,
    Measured,
    Points,
    Values,
    Vectors,
    compare,
)

Root = Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]
Exchange = Generator[Query, Arrays, "Ensemble"]

TARGET_RATE, MAX_STEPS, MIN_TRAJECTORIES = 0.8, 12, 3
"""Mean acceptance rate that ε adapts to, and bounds of a trajectory's steps and the warm-up."""

RUNGS, LARGEST_STEP, FIRST_LADDER, LADDER, JITTER = 8, 1.4, 24.0, 3.0, 1.25
"""Number of step sizes of a ladder, the largest in the warm-up by ε, and ratios of the largest to
the smallest: in the first trajectory, later, and of the frozen kernel, to break resonances. Eight
sizes in ratios of 24 and 3 are steps of 1.49 and 1.15; chosen, not measured."""

MAX_DISTANCE, DIVERGENT, IDLE_REJECTIONS, CAUTION = 1e3, 1000.0, 5, 1.5
"""Largest |ζ_i| of a trajectory, energy error from which it is divergent, rejections in a row after
which a chain is idle, and divisor of ε where a few chains are idle or divergent."""


@dataclass(frozen=True)
class Ensemble:
    """All chains between two trajectories: where they are, and their kernel.

    Attributes:
        centre: c.
        base: B, lower triangular, or its diagonal where B is diagonal.
        reference: position where U counts as zero.
        points: of the chains.
        rejections: in a row, of each chain.
        metric: R, in the form of B.
        step_size: ε.
        length: of a trajectory, ε times its steps.
        trajectories: so far.
        messages: so far.
        measured: on the last trajectory.
    """

    centre: Float[np.ndarray, " d"]
    base: Root
    reference: Float[np.ndarray, " d"]
    points: Points
    rejections: Values
    metric: Root
    step_size: float
    length: float = math.pi / 2
    trajectories: int = 0
    messages: int = 0
    measured: Measured = Measured()  # noqa: RUF009 -- immutable

    @property
    def positions(self) -> Vectors:
        """Positions θ of all chains."""
        return self.centre + _times(self.base, self.points.positions)

    @property
    def correlation(self) -> float:
        """Correlation of beginnings and ends of the last trajectory, the largest by size."""
        return self.measured.correlation

    @property
    def acceptance(self) -> float:
        """Mean acceptance rate of the last trajectory."""
        return self.measured.rate

    @property
    def steps(self) -> int:
        """Leapfrog steps, and messages, of a trajectory."""
        return int(np.clip(round(self.length / self.step_size), 1, MAX_STEPS))

    @property
    def settled(self) -> bool:
        """True if the chains have forgotten their starts and explore the posterior."""
        return not self.obstacles()

    @property
    def rough(self) -> bool:
        """True if the last trajectory was rough, of chains near their law or in a neck."""
        measures = self.measured
        diverged = measures.divergent > MAX_DIVERGENT
        seen = measures.excess <= NEARLY or (measures.steepness > NECK and diverged)
        return self.trajectories >= MIN_TRAJECTORIES and seen and bool(measures.roughness())

    def obstacles(self) -> list[str]:
        """Return reasons why the chains have not settled."""
        if self.trajectories < MIN_TRAJECTORIES:
            return [f"there were only {self.trajectories} trajectories"]
        return self.measured.obstacles()


def settle(
    starts: Vectors,
    centre: Float[np.ndarray, " d"],
    root: Root,
    reference: Float[np.ndarray, " d"],
    rng: np.random.Generator,
    most_messages: int,
    most_rough: int | None = None,
) -> Exchange:
    """Run the warm-up until the chains have settled, or another trajectory is too many messages.

    More time lets chains forget their starts; it does not help where one step size does not suit
    all of a posterior.

    Args:
        starts: θ of the chains, superchains as consecutive blocks, see `mixing.resampled`.
        centre: c, about where the posterior is.
        root: B, about a root of its covariance: lower triangular, or the diagonal of a diagonal.
        reference: position relative to which sites answer.
        rng: random numbers of the server.
        most_messages: of the warm-up, at least one.
        most_rough: the same where chains are rough, see `Ensemble.rough`: they stand still,
            diverge, or hardly change their energy; None: no fewer.
    """
    count, d = starts.shape
    if count < 2 * MIN_GROUP_SIZE:
        raise ValueError(f"expected at least {2 * MIN_GROUP_SIZE} chains, got {count}")
    away = starts - centre
    white = away / root if root.ndim == 1 else linalg.solve_triangular(root, away.T, lower=True).T
    points = Points(white, np.zeros(count), np.zeros_like(white))
    metric = np.ones(d) if root.ndim == 1 else np.eye(d)
    # About the target rate on a Gaussian.
    step_size = 1.5 * d**-0.25
    ensemble = Ensemble(centre, root, reference, points, np.zeros(count), metric, step_size)
    ensemble = replace(ensemble, points=(yield from _evaluate(ensemble, white)), messages=1)
    ensemble = replace(ensemble, metric=_metric(ensemble))
    rough = most_messages if most_rough is None else most_rough
    while ensemble.messages + ensemble.steps <= (rough if ensemble.rough else most_messages):
        sizes = _ladder(ensemble, LARGEST_STEP, LADDER if ensemble.trajectories else FIRST_LADDER)
        ensemble, rates = yield from _move(ensemble, sizes, rng)
        if ensemble.settled:
            break
        ensemble = _adapted(ensemble, sizes, rates)
    return ensemble


def trajectory(ensemble: Ensemble, rng: np.random.Generator) -> Exchange:
    """Run one trajectory of all chains with the frozen kernel, which is exact."""
    ensemble, _ = yield from _move(ensemble, _ladder(ensemble, 1.0, JITTER), rng)
    return ensemble


def _ladder(ensemble: Ensemble, largest: float, ratio: float) -> Values:
    """Return the step size of each chain; its rung changes with every trajectory."""
    rungs = (np.arange(len(ensemble.rejections)) + ensemble.trajectories) % RUNGS
    return ensemble.step_size * largest * ratio ** (-(rungs + 0.5) / RUNGS)


def _move(
    ensemble: Ensemble, sizes: Values, rng: np.random.Generator
) -> Generator[Query, Arrays, tuple[Ensemble, Values]]:
    """Return the chains after a trajectory and its Metropolis test, and the acceptance rates."""
    begin, steps, metric = ensemble.points, ensemble.steps, ensemble.metric
    momenta = rng.standard_normal(begin.positions.shape)
    energies = begin.potentials + (momenta**2).sum(axis=1) / 2
    end, lost, half = begin, np.zeros(len(sizes), bool), sizes[:, None] / 2
    for _ in range(steps):
        momenta = momenta - half * _against(metric, end.gradients)
        there = end.positions + 2 * half * _times(metric, momenta)
        # A lost trajectory will be rejected; until then its chain is evaluated where it began.
        lost = lost | ~(np.abs(there) <= MAX_DISTANCE).all(axis=1)
        end = yield from _evaluate(ensemble, np.where(lost[:, None], begin.positions, there))
        lost = lost | np.isinf(end.potentials)
        momenta = momenta - half * _against(metric, end.gradients)
    ends, errors = end.potentials + (momenta**2).sum(axis=1) / 2, np.full(len(sizes), np.inf)
    np.subtract(ends, energies, out=errors, where=~lost)
    rates = np.exp(-np.maximum(errors, 0))
    taken = _accepted(rates, rng)
    after = Points(*(np.where(taken, a.T, b.T).T for a, b in zip(end, begin, strict=True)))
    rejections = np.where(taken, 0, ensemble.rejections + 1)
    usual = errors[sizes <= ensemble.step_size]
    median, steep = np.quantile((_against(metric, after.gradients) ** 2).sum(axis=1), (0.5, 0.99))
    measured = compare(begin, after)._replace(
        rate=float(rates.mean()),
        idle=float((rejections >= IDLE_REJECTIONS).mean()),
        divergent=float((usual > DIVERGENT).mean()),
        steepness=float(steep / median) if median else math.inf,
    )
    moved = replace(ensemble, points=after, rejections=rejections, measured=measured)
    count, messages = ensemble.trajectories + 1, ensemble.messages + steps
    return replace(moved, trajectories=count, messages=messages), rates


def _accepted(rates: Values, rng: np.random.Generator) -> Bool[np.ndarray, " W"]:
    """Return the outcomes of the Metropolis tests."""
    return rng.random(len(rates)) < rates


def _evaluate(ensemble: Ensemble, positions: Vectors) -> Generator[Query, Arrays, Points]:
    """Return the chains there; U is infinite and its gradient zero where one is not finite."""
    there = ensemble.centre + _times(ensemble.base, positions)
    answer = yield Query("slopes", {"reference": ensemble.reference, "points": there}, "chains")
    potentials, gradients = answer["potentials"], answer["gradients"]
    # Squares of larger gradients could overflow.
    finite = np.isfinite(potentials) & (np.abs(gradients) < 1e100).all(axis=1)
    gradients = _against(ensemble.base, np.where(finite[:, None], gradients, 0.0))
    return Points(positions, np.where(finite, potentials, np.inf), gradients)


def _times(root: Root, vectors: Vectors) -> Vectors:
    """Return R v of each chain."""
    return vectors * root if root.ndim == 1 else vectors @ root.T


def _against(root: Root, vectors: Vectors) -> Vectors:
    """Return Rᵀ g of each chain."""
    return vectors * root if root.ndim == 1 else vectors @ root


def _adapted(ensemble: Ensemble, sizes: Values, rates: Values) -> Ensemble:
    """Return the chains with the kernel that the last trajectory suggests."""
    measured, rungs = ensemble.measured, np.sort(np.unique(sizes))[::-1]
    usable = [size for size in rungs if rates[sizes == size].mean() >= TARGET_RATE]
    step_size = float(usable[0] if usable else rungs[-1] ** 1.2 / rungs[0] ** 0.2)
    # A few chains need smaller steps; divergence with larger ones than will be used says nothing.
    divergent = float((rates[sizes <= step_size] == 0).mean()) if usable else 0.0
    cautious = measured._replace(drift=0.0, divergent=divergent).obstacles()
    if measured.excess <= MAX_EXCESS and cautious:
        step_size /= CAUTION
    # The first chains begin in few places: their correlation says nothing.
    noise = 4 / math.sqrt(len(rates))
    change = max(abs(measured.correlation) - noise, 0) if ensemble.trajectories > 1 else 0.0
    length = ensemble.length * math.exp(math.copysign(change / 2, measured.correlation))
    length = min(max(length, step_size), MAX_STEPS * step_size)
    return replace(ensemble, metric=_metric(ensemble), step_size=step_size, length=length)


def _metric(ensemble: Ensemble) -> Root:
    """Return R from the spread of the chains, shrunk towards the one in use."""
    (positions, _, gradients), metric = ensemble.points, ensemble.metric
    if metric.ndim == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.sqrt(positions.std(axis=0) / gradients.std(axis=0))
        return np.where(np.isfinite(scale) & (scale > 0), scale, metric)
    if not ensemble.trajectories:
        return metric
    # The more superchains differ, the fewer of their chains are independent.
    count, d = positions.shape
    effective = count / (1 + count * np.clip(ensemble.measured.excess, 0, 1) / MAX_SUPERCHAINS)
    share = effective / (effective + 4 * d)
    covariance = share * np.cov(positions.T, bias=True) + (1 - share) * metric @ metric.T
    return np.linalg.cholesky(np.reshape(covariance, (d, d)))
