"""The change that the surrogates make to one site's gradient, ready to be evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from consortia.core.contract import Site
from consortia.errors import InputError
from consortia.runtime.late import Array, jnp
from consortia.surrogates.gaussian import Gaussian, Natural, apply

RUNAWAY = 1e6
"""Squared distance from the start, in units of the pooled surrogate's, that no chain reaches."""


class Correction(NamedTuple):
    r"""∇log q_c − s_c ∇log q of one site, q = Π_c q_c, an affine function of the position.

    Over the sites it sums to zero for any weights s_c of sum one.

    Attributes:
        reference: the point c that the natural parameters refer to, (d,).
        constant: the value there, (d,).
        slope: minus the derivative, (d,) or (d, d).
        pooled: diagonal of the precision of q, (d,).
        limit: `runaway` begins where (θ − c)' diag(pooled) (θ − c) is larger.
    """

    reference: Array
    constant: Array
    slope: Array
    pooled: Array
    limit: Array

    @classmethod
    def of(cls, local: Natural, total: Natural, weight: Array, reference: Array) -> Correction:
        """Return it from a site's surrogate, the product of all, and the site's weight s_c."""
        weight = jnp.asarray(weight, reference.dtype)
        diagonal = total.precision if total.precision.ndim == 1 else jnp.diag(total.precision)
        step = total.gradient / jnp.maximum(diagonal, jnp.finfo(diagonal.dtype).tiny)
        return cls(
            reference,
            local.gradient - weight * total.gradient,
            local.precision - weight * total.precision,
            diagonal,
            RUNAWAY * (diagonal.size + jnp.sum(diagonal * step**2)),
        )

    def at(self, position: Array) -> Array:
        """Return ∇log q_c(θ) − s_c ∇log q(θ), which is added to ∇U_c(θ), (d,)."""
        return self.constant - apply(self.slope, position - self.reference)

    def runaway(self, position: Array) -> Array:
        """Return True if the chain is a thousand times further out than start and surrogate."""
        # Not "larger than": a distance that overflowed is a runaway too.
        return ~(jnp.sum(self.pooled * (position - self.reference) ** 2) <= self.limit)


def stacked(gaussians: tuple[Gaussian, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return means (S, d) and precisions (S, d), or (S, d, d) when one of them is full."""
    full = any(gaussian.precision.ndim == 2 for gaussian in gaussians)
    precisions = [
        np.diag(g.precision) if full and g.precision.ndim == 1 else g.precision for g in gaussians
    ]
    return np.stack([gaussian.mean for gaussian in gaussians]), np.stack(precisions)


def product(means: np.ndarray, precisions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean (d,) and precision of q = Π_s q_s."""
    pooled = precisions.sum(axis=0)
    if pooled.ndim == 1:
        return (precisions * means).sum(axis=0) / pooled, pooled
    return np.linalg.solve(pooled, np.einsum("sij,sj->i", precisions, means)), pooled


def given_correction(gaussians: tuple[Gaussian, ...]) -> Callable[[Site], Correction]:
    """Return the corrections of the user's own Gaussians, one a site, in the order of the sites."""
    means, precisions = stacked(gaussians)
    reference, pooled = product(means, precisions)
    full = precisions.ndim == 3
    linear_terms = np.einsum(
        "sij,sj->si" if full else "si,si->si", precisions, means - reference[None]
    )

    def at(site: Site) -> Correction:
        if site.number is None:
            raise InputError(
                "surrogate: a list of Gaussians needs an engine that gives a site its index; "
                "use 'anchored', 'laplace' or 'sgld_moments' here."
            ).at("surrogate")
        dtype = jnp.result_type(float)
        gaussian = Natural(
            jnp.asarray(linear_terms, dtype)[site.number],
            jnp.asarray(precisions, dtype)[site.number],
        )
        total = Natural(jnp.zeros(reference.size, dtype), jnp.asarray(pooled, dtype))
        return Correction.of(gaussian, total, site.weight, jnp.asarray(reference, dtype))

    return at


def correction_of(site: Site) -> Correction:
    """Return the correction that `consortia.surrogates.fit_phases` left at a site."""
    return site.fitted[0].correction
