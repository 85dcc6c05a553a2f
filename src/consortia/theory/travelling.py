r"""The exact law of chains that travel between sites (DSGLD, FSGLD) on Gaussian likelihoods.

Site s has the likelihood :math:`\exp(-\tfrac12(\theta - m_s)^\top H_s(\theta - m_s))` and is
visited with probability :math:`f_s`. There one update is affine with Gaussian noise,

.. math::
    \theta' = \theta - \tfrac h2 (J_s\theta - k_s) + N(0, Q_s), \qquad
    Q_s = hI + \tfrac{h^2}{4 f_s^2} C_s, \\
    J_s = P + H_s/f_s + \alpha(\Lambda - \Lambda_s/f_s), \quad
    k_s = P m_0 + H_s m_s/f_s + \alpha(\Lambda\mu - \Lambda_s\mu_s/f_s)

with the prior :math:`N(m_0, P^{-1})`, the surrogates :math:`N(\mu_s, \Lambda_s^{-1})`, their
product :math:`N(\mu, \Lambda^{-1})` and the covariance :math:`C_s` of the minibatch estimate of the
shard's gradient. Sites are drawn anew for each visit, so that the first two moments of the law obey
linear equations whatever the sites; the law itself is a mixture of Gaussians.

Source: the algorithms are those of El Mekkaoui, Mesquita, Blomstedt, Kaski (2021), section 3. The
formulas are derived here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from consortia.core import arguments
from consortia.errors import InputError, wrong
from consortia.surrogates import Gaussian
from consortia.theory import affine
from consortia.theory.affine import AffineMap, Array, Normal, Recursion, spectral_radius
from consortia.theory.arguments import (
    check_density,
    curvatures_of,
    filled,
    floats,
    full_matrices,
    matrix_of,
    shares_of,
)
from consortia.theory.estimates import minibatch_noise
from consortia.theory.law import Law, Moments

MOST_TRAVELLED, MOST_DENSE = 200, 20
"""Parameters up to which the moments of a mixture of maps are computed, in half a second; and by
the matrix of the map that it makes of covariances, which takes longer from 20 on."""

SOLVED = 1e-9
"""Relative error of covariances that are iterated."""


def travelling_law(
    means: ArrayLike,
    precisions: ArrayLike,
    probabilities: ArrayLike | None = None,
    *,
    step_size: float,
    local_steps: int,
    prior_mean: ArrayLike = 0.0,
    prior_precision: ArrayLike = 0.0,
    gradient_noise: ArrayLike | None = None,
    strength: float = 0.0,
    surrogates: Sequence[Gaussian] | None = None,
    corrections: tuple[ArrayLike, ArrayLike] | None = None,
    record: str = "visits",
    step_factors: Sequence[float] | None = None,
) -> Law:
    r"""Return the first two moments of DSGLD (``strength=0``) and FSGLD in the long run.

    A visit is :math:`\theta \mapsto A_s^T\theta + b_s + N(0, R_s)`, with :math:`A_s = 1 - hJ_s/2`;

    .. math::
        \mu = \sum_s f_s (A_s^T\mu + b_s), \qquad
        M = \sum_s f_s \bigl[A_s^T M A_s^{T\top} + A_s^T\mu b_s^\top + b_s\mu^\top A_s^{T\top}
        + b_s b_s^\top + R_s\bigr]

    are the mean and the second moment of the ends of visits.

    Args:
        means: :math:`m_s`, ``(S, d)``.
        precisions: :math:`H_s`: ``(S,)`` (times the identity), ``(S, d)`` or ``(S, d, d)``.
        probabilities: :math:`f_s`, ``(S,)``, of sum one; 1/S when None.
        step_size: h.
        local_steps: T.
        prior_mean: :math:`m_0`, a number or ``(d,)``.
        prior_precision: P, a number, ``(d,)`` or ``(d, d)``; 0 is a flat prior.
        gradient_noise: :math:`C_s`, ``(S, d, d)``, see `minibatch_noise`; None for full batches.
        strength: α.
        surrogates: one `consortia.surrogates.Gaussian` a site; None: the likelihoods themselves.
        corrections: in their place :math:`\nabla\log q_s - f_s\nabla\log q` at 0, ``(S, d)``, and
            minus its derivatives, ``(S, d, d)`` or ``(S, d)``.
        record: the draws are the ends of ``"visits"``, or all ``"updates"`` taken together.
        step_factors: h_t/h of the updates of a visit; the recursion then has whole visits alone.

    Returns:
        The law, an iteration being a visit. `TravellingRecursion`, its recursion, has the moments
        in the middle of a visit and the errors of averages.

    Raises:
        InputError: an argument has a wrong shape or value.

    Example:
        >>> law = travelling_law([[-3.0], [3.0]], [100.0, 100.0], step_size=1e-4, local_steps=1000,
        ...                      prior_precision=1.0)
        >>> law.stationary.variance_ratio.round(0)     # a mixture of two local posteriors
        array([1792.])
    """
    centre = floats(means, "means")
    if centre.ndim != 2 or not centre.size:
        raise wrong("means", f": shape {centre.shape}; give (sites, d)")
    sites, d = centre.shape
    given = [1 / sites] * sites if probabilities is None else probabilities
    shares = shares_of(given, "probabilities", sites)
    curvatures = full_matrices(curvatures_of(precisions, (sites, d), "precisions", "sites"))
    h = arguments.positive("step_size", step_size)
    alpha = arguments.number("strength", strength, 0.0)
    prior = matrix_of(prior_precision, "prior_precision", d)
    prior_pull = prior @ filled(prior_mean, (d,), "prior_mean")
    noise = _noise(gradient_noise, sites, d)
    pull = np.einsum("sij,sj->si", curvatures, centre)
    constants, slopes = _corrections(curvatures, pull, shares, surrogates, corrections)
    fall = prior + (curvatures - alpha * slopes) / shares[:, None, None]
    offset = prior_pull + (pull - alpha * constants) / shares[:, None]
    check_density(precision := prior + curvatures.sum(0), "precisions")
    arguments.one_of("record", record, ("visits", "updates"))
    target_mean = np.linalg.solve(precision, prior_pull + pull.sum(0))
    steps = arguments.whole("local_steps", local_steps, 1)
    update = partial(_update, fall, offset, noise / shares[:, None, None] ** 2, target_mean)
    repeated = update(h)
    if step_factors is not None:
        if len(step_factors) != steps or record != "visits":
            raise wrong("step_factors", f": give {steps} numbers, and record='visits'")
        visit = (update(h * factor) for factor in step_factors)
        steps, repeated = 1, reduce(lambda first, then: then.after(first), visit)
    return Law(
        TravellingRecursion(shares, repeated, steps, record),
        Moments(target_mean, np.linalg.inv(precision)),
        centred=True,
        remedy="Lower step_size, local_steps or strength.",
        basis="the exact law of a travelling chain",
    )


def _update(fall: Array, offset: Array, noise: Array, origin: Array, h: float) -> AffineMap:
    """Return an update of θ − origin, which costs no precision where means are large."""
    matrices = np.eye(len(origin)) - h / 2 * fall
    moved = np.einsum("sij,j->si", matrices, origin) - origin
    return AffineMap(matrices, h / 2 * offset + moved, h * np.eye(len(origin)) + h**2 / 4 * noise)


def _noise(gradient_noise: ArrayLike | None, sites: int, d: int) -> Array:
    """Return C_s, (S, d, d), checked; zeros for full batches."""
    if gradient_noise is None:
        return np.zeros((sites, d, d))
    noise = floats(gradient_noise, "gradient_noise")
    if noise.shape != (sites, d, d):
        raise wrong("gradient_noise", f": shape {noise.shape}; give ({sites}, {d}, {d})")
    return noise


def _corrections(
    hessians: Array,
    pull: Array,
    shares: Array,
    surrogates: Sequence[Gaussian] | None,
    corrections: tuple[ArrayLike, ArrayLike] | None,
) -> tuple[Array, Array]:
    """Return ∇log q_s − f_s ∇log q at 0, (S, d), and minus its derivatives, (S, d, d)."""
    sites, d = pull.shape
    if corrections is not None:
        constants, slopes = (floats(part, "corrections") for part in corrections)
        slopes = full_matrices(slopes)
        if constants.shape != (sites, d) or slopes.shape != (sites, d, d):
            raise InputError(
                f"corrections: shapes {constants.shape} and {slopes.shape}; give ({sites}, {d}) "
                f"and ({sites}, {d}, {d})"
            ).at("corrections")
        return constants, slopes
    if surrogates is not None:
        if len(surrogates) != sites or any(q.dimension != d for q in surrogates):
            raise wrong("surrogates", f": give {sites} Gaussians of {d} parameters")
        hessians = np.stack(
            [q.precision if q.precision.ndim == 2 else np.diag(q.precision) for q in surrogates]
        )
        pull = np.einsum("sij,sj->si", hessians, np.stack([q.mean for q in surrogates]))
    share = shares[:, None]
    return pull - share * pull.sum(0), hessians - share[:, :, None] * hessians.sum(0)


@dataclass(frozen=True, eq=False)
class TravellingRecursion(Recursion):
    r"""Visits of a chain, each at a site drawn anew, around the target's mean.

    If all sites have the same :math:`A` (equal curvatures, exact surrogates) and V is the
    covariance over the sites of the fixed points, the covariance after j of T updates is

    .. math:: \frac{Q}{1 - A^2} + A^{2j} W_0 + (1 - A^j)^2 V, \qquad
              W_0 = \frac{(1 - A^T)^2}{1 - A^{2T}} V

    with V = 0 for α = 1: exact surrogates make the law independent of T.
    """

    shares: Float[np.ndarray, " S"]  # how often each site is visited, f_s, (S,)
    update: AffineMap  # θ ↦ A_s θ + b_s + N(0, Q_s), one update at each site
    local_steps: int  # T, the updates of a visit
    # the draws are the ends of ``"visits"``, or all ``"updates"`` of a visit together
    record: str = "visits"

    @cached_property
    def _visit(self) -> AffineMap:
        return self.update.power(self.local_steps)

    @cached_property
    def spectral_radius(self) -> float:
        """Spectral radius of Σ_s f_s A_s^T."""
        return spectral_radius(self._average(self._visit.matrix))

    @cached_property
    def mean_square_radius(self) -> float:
        """Spectral radius of X ↦ Σ_s f_s A_s^T X A_s^T'; below one there is a stationary law."""
        return affine.operator_radius(self._carried, self.update.covariance.shape[1:])

    @property
    def stable(self) -> bool:
        """True if mean and covariance settle."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._settles or self.mean_square_radius < 1

    @property
    def instability(self) -> str:
        """The part that does not settle, in words; empty when all does."""
        if self.stable:
            return ""
        return f"the mean square grows by the factor {self.mean_square_radius:.6g} a visit"

    @cached_property
    def _settles(self) -> bool:
        """True if X − Σ_s f_s A_s^T X A_s^T' = I has a positive solution.

        The map takes covariances to covariances: it has one where its radius is below one, and
        only there. Its eigenvalues take ten times as long.
        """
        try:
            solution = self._solved(np.eye(self.update.offset.shape[-1]))
            return bool(np.linalg.eigvalsh((solution + solution.T) / 2)[0] > 0)
        except (np.linalg.LinAlgError, InputError):  # also of numbers that are not finite
            return False

    def _solved(self, constant: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
        """Return the X of X − Σ_s f_s A_s^T X A_s^T' = constant.

        With many parameters the part of the average map is inverted, and the small rest, that of
        what the sites differ by, is iterated.

        Raises:
            InputError: the iteration does not settle.
        """
        matrices, d = self._visit.matrix, len(constant)
        if d <= MOST_DENSE:
            flat = matrices.reshape(-1, d * d)
            image = ((self.shares * flat.T) @ flat).reshape(d, d, d, d).swapaxes(1, 2)
            system = np.eye(d * d) - image.reshape(d * d, d * d)
            return np.linalg.solve(system, constant.ravel()).reshape(d, d)
        from scipy.sparse.linalg import LinearOperator, gmres

        average = self._average(matrices)

        def inverted(covariance: Array) -> Array:
            return AffineMap(average, np.zeros(d), covariance).stationary_covariance().ravel()

        def apart(flat: Array) -> Array:
            second = flat.reshape(d, d)
            return flat - inverted(self._carried(second) - average @ second @ average.T)

        begin = inverted(constant)
        operator = LinearOperator((d * d, d * d), apart, dtype=np.float64)
        solution, left = gmres(operator, begin, x0=begin, rtol=SOLVED, restart=50, maxiter=4)
        if left:
            raise InputError("the covariance settles too slowly to be computed")
        return np.asarray(solution).reshape(d, d)

    def _carried(self, second: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
        """Return Σ_s f_s A_s^T X A_s^T'."""
        return self._average(self._visit.matrix @ second @ self._visit.matrix.mT)

    @cached_property
    def _ends(self) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
        """Mean and second moment at the end of a visit, in the long run."""
        if not self.stable:
            raise InputError(f"there is no stationary law: {self.instability}")
        visit = self._visit
        d = visit.offset.shape[-1]
        mean = np.linalg.solve(np.eye(d) - self._average(visit.matrix), self._average(visit.offset))
        _, constant = visit.second_moments(mean, np.zeros((d, d)))
        second = self._solved(self._average(constant))
        return mean, (second + second.T) / 2

    def stationary(self) -> Normal:
        """Return the law of the draws in the long run."""
        return _normal(*(self._ends if self.record == "visits" else self._updates(*self._ends)))

    def within(self, update: int) -> Normal:
        """Return the law in the long run after ``update`` of the T updates of a visit.

        Args:
            update: from 0, the end of the visit before, to T.
        """
        if not 0 <= update <= self.local_steps:
            raise wrong("update", f": got {update!r}; give a number from 0 to {self.local_steps}")
        mean, second = self.update.power(int(update)).second_moments(*self._ends)
        return _normal(self._average(mean), self._average(second))

    def path(self, start: Normal) -> Iterator[Normal]:
        """Yield the law of the draws after 0, 1, 2, ... visits."""
        yield start
        mean = start.mean
        second = start.full + np.outer(mean, mean)
        while True:
            drawn = self._updates(mean, second) if self.record == "updates" else None
            means, seconds = self._visit.second_moments(mean, second)
            mean, second = self._average(means), self._average(seconds)
            yield _normal(*(drawn or (mean, second)))

    def _updates(self, mean: Array, second: Array) -> tuple[Array, Array]:
        """Return the moments of all updates of a visit taken together, from those before it."""
        total, square = np.zeros_like(mean), np.zeros_like(second)
        for _ in range(self.local_steps):
            mean, second = self.update.second_moments(mean, second)
            total = total + self._average(mean) / self.local_steps
            square = square + self._average(second) / self.local_steps
        return total, square

    def _average(self, values: Array) -> Array:
        """Return Σ_s f_s values_s."""
        return np.tensordot(self.shares, values, axes=1)

    # --- averages over a run -------------------------------------------------------------------

    def mean_square_error(self, updates: int, thin: int) -> float:
        """Return E‖average of the draws − posterior mean‖² of a stationary run.

        Args:
            updates: updates that draws are taken from, after the burn-in.
            thin: every so many updates one draw; a divisor of T, or a multiple of it.

        Returns:
            The squared bias of the mean plus the variance of the average, summed over coordinates.
        """
        steps = self.local_steps
        if thin % steps and steps % thin:
            raise wrong("thin", f": got {thin}; give a divisor or a multiple of {steps}")
        between, stride = min(thin, steps), max(thin // steps, 1)
        blocks = updates // max(thin, steps)
        if blocks < 1:
            raise wrong("updates", f": {updates} do not hold one draw or visit")
        mean, covariance, matrix = self._sum_of_a_visit(between)
        # The end of a visit, through the visits between, to the draws of a later one.
        d = len(mean) // 2
        skip = np.linalg.matrix_power(matrix[:d, :d], stride)
        response = matrix[d:, :d] @ np.linalg.matrix_power(matrix[:d, :d], stride - 1)
        variance = blocks * np.trace(covariance[d:, d:])
        for lag in range(1, blocks):
            term = 2 * (blocks - lag) * np.trace(response @ covariance[:d, d:])
            variance += term
            if abs(term) < 1e-14 * variance:
                break
            response = response @ skip
        draws = steps // between
        bias = mean[d:] / draws
        return float(variance / (blocks * draws) ** 2 + bias @ bias)

    def _sum_of_a_visit(self, between: int) -> tuple[Array, Array, Array]:
        """Return the law of the end of a visit and, below it, of the sum of its draws.

        Args:
            between: updates from one draw to the next, a divisor of T.

        Returns:
            Mean and covariance, in the long run; and their answer to the start of the visit.
        """
        matrix, offset, noise = self.update
        nil = np.zeros_like(matrix)
        unit = nil + np.eye(offset.shape[-1])
        wide = AffineMap(
            np.block([[matrix, nil], [nil, unit]]),
            np.concatenate([offset, 0 * offset], axis=-1),
            np.block([[noise, nil], [nil, nil]]),
        )
        add = AffineMap(np.block([[unit, nil], [unit, unit]]), 0 * wide.offset, 0 * wide.covariance)
        visit = add.after(wide.power(between)).power(self.local_steps // between)
        mean, second = (np.pad(part, (0, len(part))) for part in self._ends)
        mean, second = (self._average(part) for part in visit.second_moments(mean, second))
        return mean, second - np.outer(mean, mean), self._average(visit.matrix)


def _normal(mean: Array, second: Array) -> Normal:
    return Normal(mean, second - np.outer(mean, mean))


def location_shards(
    shards: Sequence[ArrayLike], batch_size: int | None = None, *, replace: bool = True
) -> dict[str, Array]:
    """Describe rows x_i ~ N(θ, I) at the sites by arguments of `travelling_law`.

    Args:
        shards: the rows of each site, (n_s, d).
        batch_size: m, or None.
        replace: as in the algorithm.

    Returns:
        ``means``, ``precisions`` and ``gradient_noise``.

    Raises:
        InputError: a shard is not (n_s, d).

    Example:
        >>> sorted(location_shards([np.zeros((3, 1)), np.ones((2, 1))], 1))
        ['gradient_noise', 'means', 'precisions']
    """
    rows = [floats(shard, f"shards[{i}]") for i, shard in enumerate(shards)]
    noise = [
        minibatch_noise(np.atleast_2d(np.cov(x.T, bias=True)), len(x), batch_size, replace=replace)
        for x in rows
    ]
    return {
        "means": np.stack([x.mean(axis=0) for x in rows]),
        "precisions": np.array([float(len(x)) for x in rows]),
        "gradient_noise": np.stack(noise),
    }
