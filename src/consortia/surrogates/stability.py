r"""Whether the corrected drift pulls a chain back at every site, before a run begins.

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

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from consortia.base import Site
from consortia.surrogates import curvature as curvatures
from consortia.surrogates.correction import Correction
from consortia.surrogates.gaussian import Natural
from consortia.target import Target

Array = jax.Array

NOTABLE = 0.1
"""Logarithm of the growth of a distance in one visit from which on a warning is given."""


class Examination(NamedTuple):
    """What a site found of its own correction, at the start and where the surrogates point.

    Attributes:
        correction: the correction itself.
        converged: whether the surrogate could be computed.
        weakest: smallest eigenvalue of J_s (smallest entry of a diagonal one), (2,).
        strongest: the largest, (2,).
    """

    correction: Correction
    converged: Array
    weakest: Array
    strongest: Array


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
    """Forms a site's correction; the message is its share of the mean-square factors, (2, d)."""
    reference, own, converged = state
    correction = Correction.of(own, inbox, site.weight, reference)
    weight = jnp.asarray(site.weight, reference.dtype)
    full = own.precision.ndim == 2
    rows, weights = curvatures.some_rows(site, noise, reference.dtype)

    def prior(theta: Array) -> Array:
        return -target.log_prior(theta)

    # Where the chains will be: one Newton step on the surrogate posterior, from the start.
    flat = curvatures.hessian(prior, reference, full=full)
    pull = inbox.gradient - jax.grad(prior)(reference)
    pooled = inbox.precision + flat
    diagonal = pooled if pooled.ndim == 1 else jnp.diag(pooled)
    small = jnp.finfo(reference.dtype).eps * jnp.max(diagonal)
    if full:
        ridge = small * jnp.eye(reference.size, dtype=reference.dtype)
        centre = reference + jnp.linalg.solve(pooled + ridge, pull)
    else:
        centre = reference + pull / (pooled + small)

    falls = []
    for point in (reference, centre):
        local = curvatures.curvature(target, point, rows, weights, kind, full=full)
        prior_part = curvatures.hessian(prior, point, full=full)
        falls.append(prior_part + (local - settings.strength * correction.slope) / weight)
    if full:
        basis = jnp.linalg.eigh(pooled)[1]
        extremes = [jnp.linalg.eigvalsh(fall) for fall in falls]
        along = [jnp.einsum("ij,ik,kj->j", basis, fall, basis) for fall in falls]
    else:
        extremes = along = falls
    factors = [
        weight * (1 - settings.step_size / 2 * fall) ** (2 * settings.local_steps) for fall in along
    ]
    state = Examination(
        correction,
        converged,
        jnp.stack([jnp.min(values) for values in extremes]),
        jnp.stack([jnp.max(values) for values in extremes]),
    )
    return state, jnp.stack(factors), {}


def explain_divergence(
    fitted: Any, names: Sequence[str], *, step_size: float, local_steps: int
) -> tuple[str | None, tuple[str, ...]]:
    """What the examination before the run has found, in words.

    Args:
        fitted: what the phases of `consortia.surrogates.fit_phases` left at all sites.
        names: of the sites.
        step_size: h of the first round.
        local_steps: T.

    Returns:
        The reason why no run should start, or None; and warnings.
    """
    found: Examination = fitted[0]
    factors = np.asarray(fitted[1], np.float64)[0]
    failed = np.flatnonzero(~np.asarray(found.converged))
    if failed.size:
        return (
            f"the surrogate of site {names[failed[0]]!r} could not be computed "
            f"({failed.size} of {len(names)} sites): the search for the mode did not end, or the "
            "local draws turned non-finite. Give consortia.surrogates.Recipe a larger ridge or a "
            "smaller step_size, or use surrogate='anchored'."
        ), ()
    # The second point is where the chains will be, as far as the surrogates know.
    weakest, strongest = (np.asarray(v, np.float64) for v in (found.weakest, found.strongest))
    factor = factors.max(axis=-1).min()
    worst = int(np.argmin(weakest.min(axis=1)))
    growth = -step_size / 2 * local_steps * weakest[worst].min()
    turned = (
        f"at site {names[worst]!r} the correction drives a chain away from the posterior instead "
        f"of back (curvature {weakest[worst].min():.3g}): its surrogate is narrower than its "
        "likelihood in some direction, compared with the surrogates of the others"
    )
    remedy = (
        "use surrogate='anchored', a covariance from more draws, a smaller strength, fewer "
        "local_steps or a smaller step_size"
    )
    if not factor < 1:
        if growth > 0:
            return (
                f"{turned}, and with {local_steps} steps a visit the chain diverges; {remedy}.",
                (),
            )
        return (
            f"a visit of {local_steps} steps multiplies the squared distance from the mean by "
            f"{factor:.3g} on average, so the chain diverges: the steepest curvature of a site is "
            f"{strongest.max():.3g}, and step_size={step_size:g} should be well below 4 divided by "
            "it; lower step_size."
        ), ()
    if growth > NOTABLE:
        return None, (f"{turned}, by exp({growth:.2g}) a visit; {remedy}.",)
    return None, ()
