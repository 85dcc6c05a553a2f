"""Site functions of `few_rounds`: densities, derivatives, a local fit.

All are sums over sites: the server sees totals, and a sum that nobody can take apart is enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from consortia.core.contract import Evaluation, Site
from consortia.core.queries import Arrays, Noise, Reply, Revealed, SiteFunction
from consortia.core.target import Target
from consortia.dynamics import metropolis
from consortia.surrogates.curvature import all_rows, curvature, hessian, mode_of
from consortia.surrogates.fit_rounding import revealed_by_fits, rounded_fits, wrong_share
from consortia.surrogates.heterogeneity import moments, widened
from consortia.surrogates.proposals.mixture import Mixture, envelope_points

ROWS_PER_PARAMETER = 2
"""Rows of a site by parameters, below which its local fit is not trusted."""

HIGHEST = 2.0**16
"""Height of a site's potential above that at the reference from which on it counts as infinite."""

NOISE = Noise(each=0.15, most=0.4, growth=0.02, ceiling=1.0)
"""Noise of log-densities, more of points far below the reference, at which single rows show."""

HEIGHT_NOISE = Noise(each=0.01, most=0.03)
"""Noise of each part of the one at the reference, on which the evidence depends alone."""


def _ruled(target: Target, given: Mapping[str, Array]) -> Target:
    """Return the posterior with the rule of quadrature that a query names by its length."""
    return target.with_nodes(given["rule"].shape[0]) if "rule" in given else target


def _log_densities(target: Target, given: Mapping[str, Array], site: Site) -> Reply:
    """Return U_c at the points minus U_c at the reference, and U_c there in two parts."""
    ruled = _ruled(target, given)
    errors = _errors(target, given, site) if "measured" in given else {}
    places = jnp.concatenate([given["reference"][None], given["points"]])
    at = metropolis.potentials(ruled, places, site)
    base = jax.tree.map(lambda leaf: leaf[0], at)
    there = jax.tree.map(lambda leaf: leaf[1:], at)
    height = jnp.stack([base.coarse, base.fine])
    return {"potentials": there.above(base), "height": height, **errors}


def _slopes(target: Target, given: Mapping[str, Array], site: Site) -> Reply:
    """Return U_c at the points minus U_c at the reference, and the gradients at the points."""
    target = _ruled(target, given)
    base = metropolis.potential(target, given["reference"], site)

    def at(position: Array) -> tuple[Array, Array]:
        potential, gradient = metropolis.potential_and_gradient(target, position, site)
        return potential.above(base), gradient

    potentials, gradients = metropolis.at_all(target, at, given["points"], site)
    return {"potentials": potentials, "gradients": gradients}


def _derivatives(target: Target, given: Mapping[str, Array], site: Site) -> Reply:
    """Return the same with the upper triangles of the second derivatives, one point at a time."""
    target = _ruled(target, given)
    rows, mask = site.all()
    base = metropolis.potential(target, given["reference"], site)
    upper = np.triu_indices(target.dimension)

    def at(position: Array) -> tuple[Array, Array, Array]:
        potential, gradient = metropolis.potential_and_gradient(target, position, site)
        curvature = hessian(lambda at: target.potential(at, rows, mask, site), position, full=True)
        return potential.above(base), gradient, curvature[upper]

    potentials, gradients, curvatures = jax.lax.map(at, given["points"])
    return {"potentials": potentials, "gradients": gradients, "curvatures": curvatures}


def _local_fits(target: Target, given: Mapping[str, Array], site: Site) -> Reply:
    r"""Return A_c and A_c (m_c - reference) of Gaussians fitted to the site's own posterior.

    From each start, m_c is where damped Newton steps on log L_c + (1/S) log p end, with S sites,
    and A_c is minus the curvature there. The first fit is the first one that reached a mode. It
    comes once more at the end, as 0 of a site with few rows: where a scale is a parameter, such a
    site fits its rows exactly, and claims a precision that it does not have. Of a hierarchical
    model A_c is that of what is common to the sites, with `moments` for the spread between them.
    """
    target = _ruled(target, given)
    own = replace(site, prior_share=given["share"])
    rows, mask = own.all()
    upper = np.triu_indices(target.dimension)

    def from_start(start: Array) -> tuple[Array, Array, Array]:
        fitted, precision, there = mode_of(lambda at: target.potential(at, rows, mask, own), start)
        return precision, fitted - given["reference"], there

    *fits, there = jax.lax.map(from_start, given["starts"])
    # The other fits stay those of their starts at all sites: a sum over modes would be of none.
    precisions, away = (fitted.at[0].set(fitted[jnp.argmax(there)]) for fitted in fits)
    spread: Reply = {}
    if target.model.group_sd is not None:
        between = target.group_sd(given["reference"]) ** 2 / given["share"]
        spread = {"spread": moments(away[0], precisions[0], between)}
        precisions = jax.vmap(widened, (0, None))(precisions, between)
    fits = precisions[:, upper[0], upper[1]], jnp.einsum("nij,nj->ni", precisions, away)
    enough = jnp.sum(mask) >= ROWS_PER_PARAMETER * target.dimension
    precisions, pulls = (
        jnp.concatenate([fitted, jnp.where(enough, fitted[:1], 0)]) for fitted in fits
    )
    return {"precisions": precisions, "pulls": pulls, **spread}


def _errors(target: Target, given: Mapping[str, Array], site: Site) -> Reply:
    """Return how far rules are from that which they are compared with, (points, rules)."""
    rules, (rows, mask) = target.model.integration, site.all()
    assert rules is not None
    errors_of = rules.with_nodes(rules.measured(len(given.get("rule", range(rules.own)))))

    def at(position: Array) -> Array:
        return errors_of(target.unravel(position), rows, mask)

    return {"errors": jax.lax.map(at, given["measured"])}


def _scores(target: Target, given: Mapping[str, Array], site: Site) -> Reply:
    """Return the upper triangle of the sum over rows of products of their scores, at a point."""
    rows, weights = all_rows(site, target.dtype)
    products = curvature(target, given["points"][0], rows, weights, "empirical_fisher", full=True)
    return {"products": products[np.triu_indices(target.dimension)]}


# --- where a site evaluates its rows -------------------------------------------------------------


def _drawn(arrays: Arrays) -> Arrays:
    """Return the points of a message: those that travel, after those of the common stream."""
    kept = {name: arrays[name] for name in ("reference", "rule", "measured") if name in arrays}
    if "accepted" not in arrays:
        return kept | {"points": arrays["points"]}
    envelope = Mixture(*(np.asarray(arrays[name], float) for name in Mixture._fields))
    points = envelope_points(envelope, arrays["stream"], arrays["accepted"])
    points = np.concatenate([points.astype(arrays["points"].dtype), arrays["points"]])
    return kept | {"points": points}


def _at_points(arrays: Arrays) -> Evaluation:
    """Return where the points lie; those of tails count half as far from their middle."""
    points = np.asarray(arrays["points"], float)
    middle = np.median(points, axis=0)
    points = np.concatenate([points, np.asarray(arrays.get("measured", points[:0]), float)])
    return Evaluation(jnp.asarray((points + middle) / 2))


# --- what an answer gives away -------------------------------------------------------------------


def _of_log_densities(arrays: Arrays, answer: Arrays, errors: Arrays) -> tuple[Revealed]:
    """Return the sums at the points and that at the reference."""
    heights = math.hypot(*errors["height"])
    of_points = {0: errors["potentials"][:, None]}
    reference = np.asarray(arrays["reference"])
    return (Revealed(arrays["points"], (0,), reference, heights, of_points),)


def _of_derivatives(
    orders: tuple[int, ...], arrays: Arrays, answer: Arrays, errors: Arrays
) -> tuple[Revealed]:
    return (Revealed(arrays["points"], orders, np.asarray(arrays["reference"])),)


def _of_products(arrays: Arrays, answer: Arrays, errors: Arrays) -> tuple[Revealed]:
    """Return a curvature, which is what products of scores estimate, in as many numbers."""
    return (Revealed(arrays["points"], (2,)),)


FUNCTIONS = {
    "local_fits": SiteFunction(
        _local_fits,
        lambda arrays: Evaluation(jnp.asarray(arrays["starts"])),
        "the curvature of the log-posterior of the site alone at its modes, and where these are, "
        "with about two digits",
        reveals=revealed_by_fits,
        fault=wrong_share,
        rounding=rounded_fits,
    ),
    "log_densities": SiteFunction(
        _log_densities,
        _at_points,
        "the log-likelihood of all rows of the site together, at each of the points",
        complete=_drawn,
        reveals=_of_log_densities,
        noise={"potentials": NOISE, "height": HEIGHT_NOISE},
        bounds={"potentials": HIGHEST},
    ),
    "slopes": SiteFunction(
        _slopes,
        _at_points,
        "the log-likelihood of all rows of the site together, and its gradient, at each point",
        reveals=partial(_of_derivatives, (0, 1)),
    ),
    "derivatives": SiteFunction(
        _derivatives,
        _at_points,
        "the log-likelihood of all rows of the site together, its gradient and its curvature, at "
        "each of a few points",
        reveals=partial(_of_derivatives, (0, 1, 2)),
    ),
    "scores": SiteFunction(
        _scores,
        _at_points,
        "the sum over the rows of the site of products of each one's scores, at one point, where "
        "rows have weights of a sample",
        reveals=_of_products,
    ),
}
"""Site functions of `few_rounds`, by name."""
