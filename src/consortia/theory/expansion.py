"""Second-order expansions of a model's potentials, and the posterior's Gaussian law at its mode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float

from consortia.core import arguments
from consortia.core.pareto import shape_of
from consortia.core.prior import PriorScale, normal_by
from consortia.errors import InputError
from consortia.surrogates.local_fits import ROWS_PER_PARAMETER, q_of
from consortia.theory.agents import GaussianAgents
from consortia.theory.potentials import Flat, SitePotentials

RATIOS = 500
"""Points at which `examine` compares the posterior with its Gaussian law."""

PROBES = tuple(np.arange(2.0, 12.5, 0.5).tolist())
"""Standard deviations from the mode at which mass is looked for that the Gaussian law misses."""

MOST_LINES = 40
"""Principal axes, and coordinates' lines, on which it is looked for."""

EXCESS, DEPTH = 4.0, 6.0
"""Mass is missed where the log-density is so much above the Gaussian law's, and at most so much
below that of the mode."""

DRAWS_OF_PRIOR, FAR_OFF = 3, 0.01
"""Draws of the prior at which a Gaussian posterior's gradient is looked at, and by how much it may
be off."""

DIRECTIONS = 12
"""Directions in which settings are compared where there are more, before the best in all."""

MOST_PARAMETERS = 200
"""Beyond, the matrices of all sites take minutes."""

MOST_OPERATIONS = 2_000_000_000
"""Rows times squared parameters, about a second of work for each evaluation of the curvature."""

MOST_K_HAT = 10.0
"""The shape where ratios are not finite, which JSON cannot hold, or miss mass."""

GAUSSIAN = 1e-3
"""Relative change of the curvature within two standard deviations up to which it is constant."""


@dataclass(frozen=True, eq=False)
class Expansion:
    """The potentials of the sites to second order around the mode, with the mode as the origin.

    Site c has the log-likelihood −g_c·x − ½ x'H_c x, the log-prior is −p·x − ½ x'P x.
    """

    mode: Float[np.ndarray, " d"]  # of the posterior, (d,)
    curvatures: Float[np.ndarray, "S d d"]  # H_c, (S, d, d)
    gradients: Float[np.ndarray, "S d"]  # g_c, (S, d)
    prior_curvature: Float[np.ndarray, "d d"]  # P, (d, d)
    prior_gradient: Float[np.ndarray, " d"]  # p, (d,)
    sizes: Float[np.ndarray, " S"]  # n_c, (S,)
    gaussian: bool  # True if the curvature is the same two standard deviations away
    covariance: Float[np.ndarray, "d d"] = field(repr=False)  # (Σ_c H_c + P)⁻¹, (d, d)
    # Pareto shape of the importance ratios of the posterior to this law; None: not computed
    k_hat: float | None = None
    # how far the posterior's mean is from the mode to first order, (d,); 0 where not computed
    offset: Float[np.ndarray, " d"] | float = 0.0
    # scales of the coordinates, by which a point is multiplied for the model
    units: Float[np.ndarray, " d"] | float = 1.0
    # other modes that hold something, in the model's coordinates; None: not looked for
    others: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        arguments.freeze(self)

    @property
    def sd(self) -> Float[np.ndarray, " d"]:
        """Standard deviations of the Gaussian law, (d,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def precision(self) -> Float[np.ndarray, "d d"]:
        """Σ_c H_c + P, (d, d)."""
        return self.curvatures.sum(axis=0) + self.prior_curvature

    @cached_property
    def turned(self) -> tuple[Flat, Flat, Float[np.ndarray, "S d d"], Float[np.ndarray, "d d"]]:
        """Precisions along the principal axes, these as columns, and H_c and P along them."""
        values, axes = np.linalg.eigh(self.precision)
        return values, axes, axes.T @ self.curvatures @ axes, axes.T @ self.prior_curvature @ axes

    @cached_property
    def agents(self) -> GaussianAgents:
        """The sites as agents with equal shares of the prior."""
        share = 1 / len(self.sizes)
        curvatures = self.curvatures + share * self.prior_curvature
        pulls = -(self.gradients + share * self.prior_gradient)
        return GaussianAgents((curvatures + curvatures.mT) / 2, pulls=pulls)

    @property
    def disagreement(self) -> tuple[float, int] | None:
        """Cochran's Q of the sites with enough rows and its degrees of freedom, where known."""
        enough = self.sizes >= ROWS_PER_PARAMETER * self.mode.size
        if enough.sum() < 2:
            return None
        share = 1 / len(self.sizes)
        curvatures = (self.curvatures + share * self.prior_curvature)[enough]
        pulls = -(self.gradients + share * self.prior_gradient)[enough]
        fits = np.einsum("sij,sj->si", np.linalg.pinv(curvatures, hermitian=True), pulls)
        sums = curvatures.sum(axis=0), pulls.sum(axis=0), float((fits * pulls).sum())
        return q_of(*sums, int(enough.sum()))

    def scaled(self, scales: Float[np.ndarray, " d"]) -> Expansion:
        """Return the expansion in φ = θ / scales."""
        square = np.outer(scales, scales)
        return replace(
            self,
            mode=self.mode / scales,
            curvatures=self.curvatures * square,
            gradients=self.gradients * scales,
            prior_curvature=self.prior_curvature * square,
            prior_gradient=self.prior_gradient * scales,
            covariance=self.covariance / square,
            offset=self.offset / scales,
            units=self.units * scales,
        )

    def projected(self) -> Expansion:
        """Return the expansion in the directions that settings feel most.

        They are the flattest and the steepest principal axes, and where the sites differ most.
        """
        axes, each = np.linalg.eigh(self.precision)[1], DIRECTIONS // 3
        apart = np.linalg.svd(self.gradients, full_matrices=False)[2][:each].T
        some = np.linalg.qr(np.hstack([axes[:, :each], axes[:, -each:], apart]))[0]
        some = some @ np.linalg.eigh(some.T @ self.precision @ some)[1]

        def inside(curvatures: Float[np.ndarray, "... d d"]) -> Float[np.ndarray, "... k k"]:
            both = some.T @ curvatures @ some
            return (both + both.mT) / 2

        return replace(
            self,
            mode=self.mode @ some,
            curvatures=inside(self.curvatures),
            gradients=self.gradients @ some,
            prior_curvature=inside(self.prior_curvature),
            prior_gradient=self.prior_gradient @ some,
            covariance=np.linalg.inv(inside(self.precision)),
            offset=(self.offset * np.ones_like(self.mode)) @ some,
        )

    def pieces(
        self, weights: Float[np.ndarray, " S"], shares: Float[np.ndarray, " S"]
    ) -> tuple[Float[np.ndarray, "S d d"], Float[np.ndarray, "S d"]]:
        """Return curvature and gradient of f_c = U_c / w_c with these shares of the prior."""
        share = shares / weights
        curvatures = self.curvatures / weights[:, None, None]
        curvatures = curvatures + share[:, None, None] * self.prior_curvature
        return curvatures, self.gradients / weights[:, None] + share[:, None] * self.prior_gradient


def too_large(potentials: SitePotentials) -> str | None:
    """Find an obstacle to computing the curvature; None where there is none."""
    d, rows = potentials.start.size, int(potentials.sizes.sum())
    if d <= MOST_PARAMETERS and rows * d**2 <= MOST_OPERATIONS:
        return None
    return f"the curvature of {rows:,} rows in {d:,} parameters is too large to be computed here"


def expand(potentials: SitePotentials) -> Expansion:
    """Find the mode downhill from the start, and the curvatures there.

    Raises:
        InputError: too many parameters, no mode is found, or it is not log-concave there.
    """
    reason = too_large(potentials)
    if reason is not None:
        raise InputError(reason)
    mode = potentials.mode()
    _, gradients, curvatures = potentials.expansion(mode)
    _, prior_gradient, prior_curvature = potentials.prior(mode)
    precision = curvatures.sum(axis=0) + prior_curvature
    values = np.linalg.eigvalsh(precision)
    if not values[0] > 1e-6 * values[-1]:
        raise InputError("the posterior is flat in some direction at its mode")
    covariance = np.linalg.inv(precision)
    away = potentials.away(mode, covariance)
    there = potentials.expansion(away)[2].sum(axis=0) + potentials.prior(away)[2]
    change = np.abs(there - precision).max() / np.abs(precision).max()
    if change < GAUSSIAN and potentials.anywhere and not _linear(potentials, mode, precision):
        change = np.inf
    near = Expansion(
        mode,
        curvatures,
        gradients,
        prior_curvature,
        prior_gradient,
        potentials.sizes,
        bool(change < GAUSSIAN),
        covariance,
    )
    if not potentials.anywhere:
        return near
    return replace(near, others=()) if near.gaussian else examine(near, potentials)


def _linear(potentials: SitePotentials, mode: Flat, precision: Float[np.ndarray, "d d"]) -> bool:
    """Test the gradient at draws of the prior for being that of one normal law."""
    scale, rng = _prior_scale(potentials), np.random.default_rng(0)
    for _ in range(DRAWS_OF_PRIOR):
        position = scale.centre + scale.sd * rng.standard_normal(mode.size)
        gradient, expected = potentials.whole(position)[1], precision @ (position - mode)
        units = 1 / np.sqrt(np.diagonal(precision))
        off = np.linalg.norm(units * (gradient - expected))
        if not off < FAR_OFF * np.linalg.norm(units * expected):
            return False
    return True


def _prior_scale(potentials: SitePotentials) -> PriorScale:
    _, gradient, curvature = potentials.prior(potentials.start)
    centre, sd = normal_by(potentials.start, -gradient, np.diagonal(curvature))
    return PriorScale(centre, np.where(np.isfinite(sd), sd, 1.0))


def examine(near: Expansion, potentials: SitePotentials) -> Expansion:
    r"""Add the Pareto shape of the importance ratios to the Gaussian law, and the mean's offset.

    To first order in the third derivatives of the potential U the posterior's mean is
    :math:`-\tfrac12 H^{-1}\,\nabla^3 U : \Sigma` from its mode.

    The shape is `MOST_K_HAT` where the posterior has mass that the Gaussian law does not reach at
    all: another mode, which its draws would not find, on a principal axis or a coordinate's own
    line; the offset is not computed then.
    """
    from consortia.theory.modes import Lines  # loads SciPy

    rng, d = np.random.default_rng(0), near.mode.size
    values, axes = np.linalg.eigh(near.covariance)
    principal = (axes * np.sqrt(values)).T[::-1]
    lines = np.concatenate([principal[:MOST_LINES], (near.covariance / near.sd).T[:MOST_LINES]])
    far = np.concatenate([t * lines for t in (*PROBES, *(-probe for probe in PROBES))])
    inside = rng.normal(size=(RATIOS, d)) @ principal[::-1]
    places = np.concatenate([np.zeros((1, d)), inside, far])
    to_prior = Lines(near.mode, _prior_scale(potentials))
    density = potentials.values(np.concatenate([near.mode + places, to_prior.points]))
    density, on_lines = density[: len(places)] - density[0], density[len(places) :]
    near = replace(near, others=to_prior.other_modes(on_lines, near.covariance, potentials))
    ratios = density + 0.5 * np.sum(places @ near.precision * places, axis=1)
    inner, outer = slice(1, 1 + RATIOS), slice(1 + RATIOS, None)
    missed = (ratios[outer] > EXCESS) & (density[outer] > -DEPTH)
    if missed.any() or not np.isfinite(density[inner]).all():
        return replace(near, k_hat=MOST_K_HAT)
    # Third derivatives, contracted with the covariance: from gradients a standard deviation away.
    bent = potentials.scores(near.mode + np.concatenate([principal, -principal])).sum(axis=0)
    k_hat = min(shape_of(ratios[inner]), MOST_K_HAT)
    return replace(near, k_hat=k_hat, offset=0.5 * near.covariance @ bent)
