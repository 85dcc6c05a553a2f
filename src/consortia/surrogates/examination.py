r"""Does the corrected drift drive a chain back at every site? An examination before a run begins.

With curvatures H_c of the shards and P of the prior the drift at site s falls off as

.. math:: J_s = P + H_s / f_s + \alpha(\Lambda - \Lambda_s / f_s)

Where a surrogate is narrower than its likelihood, the last term can turn J_s negative: the site
then drives the chain away, *anti-restoring*, by a factor (1 − h J_s / 2)^T in a visit. A visit at
random multiplies the squared distance from the mean by

.. math:: \sum_s f_s (1 - h J_s / 2)^{2T}

on average; where that is one or more the chain has no stationary variance. Both are exact on
Gaussian likelihoods (of one common eigenbasis), and a linearisation elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from consortia.core.contract import Phase, Site
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.runtime.late import Array, jax, jnp
from consortia.surrogates import curvature as curvatures
from consortia.surrogates.correction import Correction, product, stacked
from consortia.surrogates.gaussian import Gaussian, Natural, apply

WARNED_GROWTH = 0.1
"""Logarithm of the growth of a distance in one visit from which on a warning is given."""


REMEDY = (
    "use surrogate='anchored', a covariance from more draws, a smaller strength, fewer local_steps "
    "or a smaller step_size"
)


class Examination(NamedTuple):
    """A site's own correction, at the start and where the surrogates point.

    Attributes:
        correction: the correction itself; None where the user gave the Gaussians.
        converged: whether the surrogate could be computed.
        weakest: smallest eigenvalue of J_s (smallest entry of a diagonal one), (2,).
        strongest: the largest, (2,).
    """

    correction: Correction | None
    converged: Array | np.ndarray
    weakest: Array | np.ndarray
    strongest: Array | np.ndarray


def row_bits(rng: RandomStreams) -> Array:
    """Return the random words that choose the rows of a curvature."""
    return rng.bits("rows", (curvatures.MOST_ROWS,))


def examine(
    kind: str,
    target: Target,
    settings: Any,
    noise: Array,
    shared: Any,
    state: Any,
    inbox: Natural,
    site: Site,
) -> Any:
    """Compute a site's correction; the message is its share of the mean-square factors, (2, d)."""
    reference, surrogate, converged, seen = state
    correction = Correction.of(surrogate, inbox, site.weight, reference)
    weight = jnp.asarray(site.weight, reference.dtype)
    # The rows of the surrogate itself, so that the two differ by nothing but the point.
    bits = noise if seen is None else seen[1]
    rows, weights = curvatures.some_rows(site, bits, reference.dtype)
    pooled, centre = surrogate_posterior(target, reference, inbox)
    full = surrogate.precision.ndim == 2
    falls = []
    for point, known in ((reference, seen), (centre, None)):
        if known is None:
            local = curvatures.curvature(target, point, rows, weights, kind, full=full)
        else:
            local = known[0]
        falls.append(restoring(target, correction, settings.strength, weight, point, local))
    if full:
        basis = jnp.linalg.eigh(pooled)[1]
        along = [jnp.einsum("ij,ik,kj->j", basis, fall, basis) for fall in falls]
    else:
        along = falls
    factors = [
        weight * (1 - settings.step_size / 2 * fall) ** (2 * settings.local_steps) for fall in along
    ]
    extremes = [_spectrum(fall) for fall in falls]
    state = Examination(
        correction,
        converged,
        jnp.stack([jnp.min(values) for values in extremes]),
        jnp.stack([jnp.max(values) for values in extremes]),
    )
    return state, jnp.stack(factors), {}


def surrogate_posterior(target: Target, reference: Array, total: Natural) -> tuple[Array, Array]:
    """Return the precision of prior times surrogates, and where a Newton step from c leads."""
    full = total.precision.ndim == 2

    def prior(theta: Array) -> Array:
        return -target.log_prior(theta)

    pooled = total.precision + curvatures.hessian(prior, reference, full=full)
    pull = total.gradient - jax.grad(prior)(reference)
    diagonal = jnp.diag(pooled) if full else pooled
    small = jnp.finfo(reference.dtype).eps * jnp.max(diagonal)
    if not full:
        return pooled, reference + pull / (pooled + small)
    ridge = small * jnp.eye(reference.size, dtype=reference.dtype)
    return pooled, reference + jnp.linalg.solve(pooled + ridge, pull)


def restoring(
    target: Target,
    correction: Correction,
    strength: float,
    weight: Array,
    point: Array,
    likelihood: Array,
) -> Array:
    """Return J_s of a site at a point: (d, d), or its diagonal (d,) for diagonal surrogates.

    Args:
        target: the posterior.
        correction: of the site.
        strength: α.
        weight: f_s.
        point: (d,).
        likelihood: H_s there, of the same shape.
    """
    full = correction.slope.ndim == 2
    prior = curvatures.hessian(lambda theta: -target.log_prior(theta), point, full=full)
    return prior + (likelihood - strength * correction.slope) / weight


def _spectrum(matrix: Array) -> Array:
    """Return the eigenvalues of a symmetric matrix, or the diagonal itself."""
    return jnp.linalg.eigvalsh(matrix) if matrix.ndim == 2 else matrix


# --- the user's own Gaussians --------------------------------------------------------------------


class Look(NamedTuple):
    """Curvatures of a site at the start and where the chains will be.

    Attributes:
        likelihood: H_s at both points, (2, d), or (2, d, d) when a Gaussian is full.
        prior: P there, of the same shape.
        weight: f_s.
    """

    likelihood: Array
    prior: Array
    weight: Array


def look_phase(
    gaussians: tuple[Gaussian, ...], target: Target, position_of: Callable[[Any], Array]
) -> Phase:
    """Return a phase for ``Algorithm.fit`` that leaves a `Look` at each site; nothing is sent."""
    mean, pooled = product(*stacked(gaussians))
    return Phase(partial(_look, mean, pooled, target, position_of), noise=row_bits, evaluation=None)


def _look(
    mean: np.ndarray,
    pooled: np.ndarray,
    target: Target,
    position_of: Callable[[Any], Array],
    noise: Array,
    shared: Any,
    state: Any,
    inbox: Any,
    site: Site,
) -> Any:
    start = position_of(inbox)
    precision = jnp.asarray(pooled, start.dtype)
    total = Natural(apply(precision, jnp.asarray(mean, start.dtype) - start), precision)
    _, centre = surrogate_posterior(target, start, total)
    rows, weights = curvatures.some_rows(site, noise, start.dtype)
    full = precision.ndim == 2

    def prior(theta: Array) -> Array:
        return -target.log_prior(theta)

    points = (start, centre)
    likelihood = [
        curvatures.curvature(target, point, rows, weights, "hessian", full=full) for point in points
    ]
    priors = [curvatures.hessian(prior, point, full=full) for point in points]
    return Look(jnp.stack(likelihood), jnp.stack(priors), site.weight), (), {}


def examined(
    gaussians: tuple[Gaussian, ...],
    looks: Look,
    *,
    strength: float,
    step_size: float,
    local_steps: int,
) -> tuple[Examination, np.ndarray]:
    """Examine the user's Gaussians, in the form of `fit_phases`.

    Args:
        gaussians: one a site.
        looks: of all sites, site axis first.
        strength: α.
        step_size: h.
        local_steps: T.
    """
    _, precisions = stacked(gaussians)
    likelihood, prior, weight = (np.asarray(value, np.float64) for value in looks)
    pooled = precisions.sum(axis=0)
    shares = weight.reshape((-1,) + (1,) * (precisions.ndim - 1))
    slopes = precisions - shares * pooled
    falls = prior + (likelihood - strength * slopes[:, None]) / shares[:, None]
    along = extremes = falls
    if precisions.ndim == 3:
        basis = np.linalg.eigh(pooled + prior[0, 0])[1]
        along = np.einsum("ij,spik,kj->spj", basis, falls, basis)
        extremes = np.linalg.eigvalsh(falls)
    factors = np.einsum("s,spj->pj", weight, (1 - step_size / 2 * along) ** (2 * local_steps))
    examination = Examination(
        None, np.ones(len(gaussians), bool), extremes.min(axis=-1), extremes.max(axis=-1)
    )
    return examination, factors[None]


# --- the verdict ---------------------------------------------------------------------------------


def explain_divergence(
    fitted: Any, names: Sequence[str], *, step_size: float, local_steps: int
) -> tuple[str | None, tuple[str, ...]]:
    """Put the findings of the examination before the run into words.

    Args:
        fitted: what the phases of `consortia.surrogates.fit_phases` left at all sites.
        names: of the sites.
        step_size: h of the first round.
        local_steps: T.

    Returns:
        The reason why no run should start, or None; and warnings.
    """
    findings: Examination = fitted[0]
    factors = np.asarray(fitted[1], np.float64)[0]
    failed = np.flatnonzero(~np.asarray(findings.converged))
    if failed.size:
        return (
            f"the surrogate of site {names[failed[0]]!r} could not be computed "
            f"({failed.size} of {len(names)} sites): the search for the mode did not end, or the "
            "local draws turned non-finite. Give consortia.surrogates.Recipe a larger ridge or a "
            "smaller step_size, or use surrogate='anchored'."
        ), ()
    # The second point is where the chains will be, as far as the surrogates know.
    weakest, strongest = (np.asarray(v, np.float64) for v in (findings.weakest, findings.strongest))
    factor = factors.max(axis=-1).min()
    worst = int(np.argmin(weakest.min(axis=1)))
    growth = -step_size / 2 * local_steps * weakest[worst].min()
    turned = _turned(names[worst], float(weakest[worst].min()))
    if not factor < 1:
        if growth > 0:
            return (
                f"{turned}, and with {local_steps} steps a visit the chain diverges; {REMEDY}.",
                (),
            )
        return (
            f"a visit of {local_steps} steps multiplies the squared distance from the mean by "
            f"{factor:.3g} on average, so the chain diverges: "
            f"{_too_steep(strongest.max(), step_size)}."
        ), ()
    if growth > WARNED_GROWTH:
        return None, (f"{turned}, by exp({growth:.2g}) a visit; {REMEDY}.",)
    return None, ()


def explain_end(
    target: Target,
    site: Site,
    name: str,
    correction: Correction,
    position: Array,
    *,
    kind: str,
    strength: float,
    step_size: float,
) -> str:
    """Describe a chain's end at a site, by J_s at its last finite position.

    Args:
        target: the posterior.
        site: where the chain ended.
        name: of the site.
        correction: of the site.
        position: the last finite one, (d,).
        kind: of curvature.
        strength: α.
        step_size: h of the first round.
    """
    bits = jax.random.bits(jax.random.key(0), (curvatures.MOST_ROWS,), jnp.uint32)
    rows, weights = curvatures.some_rows(site, bits, position.dtype)
    weight = jnp.asarray(site.weight, position.dtype)
    full = correction.slope.ndim == 2
    local = curvatures.curvature(target, position, rows, weights, kind, full=full)
    fall = restoring(target, correction, strength, weight, position, local)
    values = np.asarray(_spectrum(fall), np.float64)
    if not np.all(np.isfinite(values)):
        return f"The curvature of site {name!r} is not finite where the chain last was."
    if values.min() < 0:
        return f"Where the chain last was, {_turned(name, values.min())}; {REMEDY}."
    if values.max() * step_size > 4:
        return f"Where the chain last was, {_too_steep(values.max(), step_size)}."
    return (
        "Where the chain last was, the conducive gradient of this site still drove it back "
        f"(curvature {values.min():.3g} and more): look at other sites' surrogates, or start "
        "nearer to the posterior."
    )


def _turned(name: str, curvature: float) -> str:
    return (
        f"at site {name!r} the correction drives a chain away from the posterior instead of back "
        f"(curvature {curvature:.3g}): its surrogate is narrower than its likelihood in some "
        "direction, compared with the surrogates of the others"
    )


def _too_steep(curvature: float, step_size: float) -> str:
    return (
        f"the steepest curvature of a site is {curvature:.3g}, and step_size={step_size:g} should "
        "be well below 4 divided by it; lower step_size"
    )
