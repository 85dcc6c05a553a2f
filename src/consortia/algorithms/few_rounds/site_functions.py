"""Site functions of `few_rounds`: densities, derivatives, a local fit.

All are sums over sites: the server sees totals, and a sum that nobody can take apart is enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from consortia.core.arrays import namespace
from consortia.core.contract import Evaluation, Site
from consortia.core.host import HostSite
from consortia.core.queries import Arrays, Noise, Reply, Revealed, SiteFunction
from consortia.core.target import Target
from consortia.runtime.late import Array, jax, jnp
from consortia.surrogates.fit_rounding import revealed_by_fits, rounded_fits, wrong_share
from consortia.surrogates.local_fits import ROWS_PER_PARAMETER
from consortia.surrogates.newton import Mode, newton
from consortia.surrogates.proposals.mixture import Mixture, envelope_points

HIGHEST = 2.0**16
"""Height of a site's potential above that at the reference from which on it counts as infinite."""

NOISE = Noise(each=0.15, most=0.4, bounded=True)
"""Noise of log-densities; of points far below the reference, at which single rows show, none."""

HEIGHT_NOISE = Noise(each=0.01, most=0.03)
"""Noise of each part of the one at the reference, on which the evidence depends alone."""

RULE_NOISE = Noise(each=0.0005, most=0.001)
"""Noise of the distances between rules of quadrature: small beside `surrogates.quadrature`'s
tolerance of their sum."""


def _ruled(target: Target, given: Mapping[str, Array]) -> Target:
    """Return the posterior with the rule of quadrature that a query names by its length."""
    return target.with_nodes(given["rule"].shape[0]) if "rule" in given else target


def _log_densities(target: Target, given: Mapping[str, Array], site: Site) -> Reply:
    """Return U_c at the points minus U_c at the reference, and U_c there in two parts."""
    from consortia.dynamics import metropolis

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
    from consortia.dynamics import metropolis

    target = _ruled(target, given)
    base = metropolis.potential(target, given["reference"], site)

    def at(position: Array) -> tuple[Array, Array]:
        potential, gradient = metropolis.potential_and_gradient(target, position, site)
        return potential.above(base), gradient

    potentials, gradients = metropolis.at_all(target, at, given["points"], site)
    return {"potentials": potentials, "gradients": gradients}


def _derivatives(target: Target, given: Mapping[str, Array], site: Site) -> Reply:
    """Return the same with the upper triangles of the second derivatives, one point at a time."""
    from consortia.dynamics import metropolis
    from consortia.surrogates.curvature import hessian

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
    r"""Fit Gaussians to the site's own posterior: A_c and A_c δ_c, with δ_c = m_c - r.

    From each start, m_c is where damped Newton steps on log L_c + (1/S) log p end, with S sites,
    and A_c is minus the curvature there. The first fit is the first one that reached a mode. It
    comes once more at the end, as 0 of a site with few rows: where a scale is a parameter, such a
    site fits its rows exactly, and claims a precision that it does not have. With the variance
    between sites of a hierarchical model `rounded_fits` makes of these what leaves.
    """
    from consortia.surrogates.curvature import mode_of

    target = _ruled(target, given)
    site = replace(site, prior_share=given["share"])
    rows, mask = site.all()

    def from_start(start: Array) -> Mode:
        return mode_of(lambda at: target.potential(at, rows, mask, site), start)

    modes = jax.lax.map(from_start, given["starts"])
    between: Reply = {}
    if target.model.group_sd is not None:
        between = {"between": target.group_sd(given["reference"]) ** 2 / given["share"]}
    enough = jnp.sum(mask) >= ROWS_PER_PARAMETER * target.dimension
    return {**_sent(modes, given["reference"], enough), **between}


def _sent(modes: Mode, reference: Any, enough: Any) -> dict[str, Any]:
    """Return A_c and A_c δ_c of the fits from all starts; ``enough`` says if rows are not few."""
    (positions, matrices, reached), xp = modes, namespace(reference)
    # The other fits stay those of their starts at all sites: a sum over modes would be of none.
    first, parts = reached.argmax(), (matrices, positions - reference[None])
    precisions, away = (xp.concatenate([part[first][None], part[1:]]) for part in parts)
    pulls = xp.einsum("nij,nj->ni", precisions, away)
    fits = {"precisions": precisions[:, *np.triu_indices(pulls.shape[1])], "pulls": pulls}
    return {n: xp.concatenate([fit, xp.where(enough, fit[:1], 0)]) for n, fit in fits.items()}


def _errors(target: Target, given: Mapping[str, Array], site: Site) -> Reply:
    """Return the distances of rules from the one that they are compared with, (points, rules)."""
    rules, (rows, mask) = target.model.integration, site.all()
    assert rules is not None
    errors_of = rules.with_nodes(rules.measured(len(given.get("rule", range(rules.default)))))

    def at(position: Array) -> Array:
        return errors_of(target.unravel(position), rows, mask)

    return {"errors": jax.lax.map(at, given["measured"])}


def _scores(target: Target, given: Mapping[str, Array], site: Site) -> Reply:
    """Return the upper triangle of the sum of products of independent parts' scores, at a point."""
    (rows, mask), parts = site.all(), target.model.sandwich
    assert parts is not None
    scores = jax.jacfwd(lambda at: parts(target.unravel(at), rows, mask))(given["points"][0])
    return {"products": (scores.T @ scores)[np.triu_indices(target.dimension)]}


# --- the same by NumPy ----------------------------------------------------------------------------


def _nodes(target: Target, given: Arrays) -> int | None:
    """Return the nodes of the rule that a query names by its length; None of the model's own.

    Raises:
        InputError: the model has no such rule.
    """
    if "rule" not in given:
        return None
    target.rules_with(nodes := len(given["rule"]))
    return nodes


@np.errstate(invalid="ignore")  # a far-off reference has an infinite U, and all points none
def _host_log_densities(target: Target, given: Arrays, site: HostSite) -> Arrays:
    nodes, errors = _nodes(target, given), {}
    if "measured" in given:
        rules = target.model.integration
        assert rules is not None
        compared = rules.measured(rules.default if nodes is None else nodes)
        errors["errors"] = site.errors(given["measured"], compared)
    places = np.concatenate([given["reference"][None], given["points"]])
    base, *there = site.potentials(places, nodes, single=True)
    return {"potentials": np.array(there) - base, "height": np.array([base, 0.0]), **errors}


def _host_derivatives(target: Target, given: Arrays, site: HostSite) -> Arrays:
    nodes, points = _nodes(target, given), given["points"]
    upper = np.triu_indices(target.dimension)
    potentials, gradients, matrices = site.derivatives(points, nodes)
    return {
        "potentials": potentials - site.potentials(given["reference"][None], nodes),
        "gradients": gradients,
        "curvatures": matrices[:, *upper],
    }


def _host_fits(target: Target, given: Arrays, site: HostSite) -> Arrays:
    nodes, site = _nodes(target, given), site.with_share(float(given["share"]))
    pieces = partial(site.pieces, nodes=nodes)
    fits = zip(*(newton(pieces, np.asarray(at)) for at in given["starts"]), strict=True)
    reference, between = np.asarray(given["reference"], np.float64), dict[str, Any]()
    if target.model.group_sd is not None:
        between["between"] = target.group_sds(reference[None])[0] ** 2 / float(given["share"])
    enough = site.size >= ROWS_PER_PARAMETER * target.dimension
    return {**_sent(Mode(*map(np.stack, fits)), reference, enough), **between}


def _host_scores(target: Target, given: Arrays, site: HostSite) -> Arrays:
    scores = site.part_scores(np.asarray(given["points"][0], np.float64))
    return {"products": (scores.T @ scores)[np.triu_indices(target.dimension)]}


# --- shapes of answers ---------------------------------------------------------------------------


def _triangle(target: Target) -> int:
    return target.dimension * (target.dimension + 1) // 2


def _shapes_of_log_densities(target: Target, given: Arrays) -> Mapping[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"potentials": given["points"].shape[:1], "height": (2,)}
    if "measured" in given:
        rules = target.model.integration
        assert rules is not None
        compared = rules.measured(_nodes(target, given) or rules.default)
        shapes["errors"] = (len(given["measured"]), len(compared))
    return shapes


def _shapes_of_slopes(target: Target, given: Arrays) -> Mapping[str, tuple[int, ...]]:
    return {"potentials": given["points"].shape[:1], "gradients": given["points"].shape}


def _shapes_of_derivatives(target: Target, given: Arrays) -> Mapping[str, tuple[int, ...]]:
    count = len(given["points"])
    return {**_shapes_of_slopes(target, given), "curvatures": (count, _triangle(target))}


def _shapes_of_fits(target: Target, given: Arrays) -> Mapping[str, tuple[int, ...]]:
    count, d = len(given["starts"]) + 1, target.dimension
    spread = {} if target.model.group_sd is None else {"spread": (6, d)}
    fits = {"precisions": (count, _triangle(target)), "pulls": (count, d), "squares": (count, 1)}
    return {**fits, **spread}


def _shapes_of_scores(target: Target, given: Arrays) -> Mapping[str, tuple[int, ...]]:
    return {"products": (_triangle(target),)}


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
    """Return the places of the points; those of tails count half as far from their middle."""
    points = np.asarray(arrays["points"], float)
    middle = np.median(points, axis=0)
    points = np.concatenate([points, np.asarray(arrays.get("measured", points[:0]), float)])
    return Evaluation((points + middle) / 2)


# --- what an answer gives away -------------------------------------------------------------------


def _of_log_densities(
    target: Target, arrays: Arrays, answer: Arrays, errors: Arrays
) -> tuple[Revealed, ...]:
    """Return the sums at the points and that at the reference, and how far rules are from one."""
    heights = math.hypot(*errors["height"])
    of_points = {0: errors["potentials"][:, None]}
    reference, rules = np.asarray(arrays["reference"]), _rule_of(arrays)
    of_rows = Revealed(arrays["points"], (0,), reference, heights, of_points, rules=rules)
    if "measured" not in arrays:
        return (of_rows,)
    integration = target.model.integration
    assert integration is not None
    compared = integration.measured(*(rules or (integration.default,)))
    apart = {0: errors["errors"]}
    return of_rows, Revealed(arrays["measured"], (0,), errors=apart, rules=compared)


def _rule_of(arrays: Arrays) -> tuple[int, ...]:
    return (len(arrays["rule"]),) if "rule" in arrays else ()


def _of_derivatives(
    orders: tuple[int, ...], target: Target, arrays: Arrays, answer: Arrays, errors: Arrays
) -> tuple[Revealed]:
    reference = np.asarray(arrays["reference"])
    return (Revealed(arrays["points"], orders, reference, rules=_rule_of(arrays)),)


def _of_products(target: Target, arrays: Arrays, answer: Arrays, errors: Arrays) -> tuple[Revealed]:
    """Return a curvature, which is what products of scores estimate, in as many numbers."""
    return (Revealed(arrays["points"], (2,)),)


FUNCTIONS = {
    "local_fits": SiteFunction(
        _local_fits,
        lambda arrays: Evaluation(np.asarray(arrays["starts"])),
        "the curvature of the log-posterior of the site alone at its modes, and where these are, "
        "with about two digits",
        reveals=revealed_by_fits,
        fault=wrong_share,
        rounding=rounded_fits,
        evaluate=_host_fits,
        shapes=_shapes_of_fits,
    ),
    "log_densities": SiteFunction(
        _log_densities,
        _at_points,
        "the log-likelihood of all rows of the site together, at each of the points",
        evaluate=_host_log_densities,
        shapes=_shapes_of_log_densities,
        complete=_drawn,
        reveals=_of_log_densities,
        noise={"potentials": NOISE, "height": HEIGHT_NOISE, "errors": RULE_NOISE},
        bounds={"potentials": HIGHEST},
    ),
    "slopes": SiteFunction(
        _slopes,
        _at_points,
        "the log-likelihood of all rows of the site together, and its gradient, at each point",
        shapes=_shapes_of_slopes,
        reveals=partial(_of_derivatives, (0, 1)),
    ),
    "derivatives": SiteFunction(
        _derivatives,
        _at_points,
        "the log-likelihood of all rows of the site together, its gradient and its curvature, at "
        "each of a few points",
        evaluate=_host_derivatives,
        shapes=_shapes_of_derivatives,
        reveals=partial(_of_derivatives, (0, 1, 2)),
    ),
    "scores": SiteFunction(
        _scores,
        _at_points,
        "the sum over the rows of the site, or over clusters of them, of products of each one's "
        "scores, at one point, where rows have weights of a sample or are in clusters",
        evaluate=_host_scores,
        shapes=_shapes_of_scores,
        reveals=_of_products,
    ),
}
"""Site functions of `few_rounds`, by name."""
