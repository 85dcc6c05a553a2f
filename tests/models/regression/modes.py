"""Mode and spread of a formula's posterior, by Newton's steps on what sites would send."""

from __future__ import annotations

from typing import Any

import numpy as np

from consortia.core.host import HostSite
from consortia.core.target import Target


def host_sites(made: Any) -> list[HostSite]:
    """Return the sites of a formula, each with its share of the prior."""
    target, names = Target(made.model, made.model.init), made.rows.names
    return [
        HostSite(
            made.model.host.site(made.rows.site(name)),
            target._prior,
            target.layout,
            len(made.rows.site(name)["y"]),
            1 / len(names),
        )
        for name in names
    ]


def mode_and_covariance(made: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode of the coefficients as they are sampled, and their covariance.

    The covariance is robust where asked.
    """
    sites = host_sites(made)
    at = np.zeros(sites[0].dimension)
    for _ in range(12):
        gradient = sum(site.gradients(at[None])[0] for site in sites)
        curvature = sum(site.derivatives(at[None]).matrices[0] for site in sites)
        at = at - np.linalg.solve(curvature, gradient)
    covariance = np.linalg.inv(curvature)
    if made.model.sandwich is not None:
        scores = [site.part_scores(at) for site in sites]
        covariance = covariance @ sum(one.T @ one for one in scores) @ covariance
    return at, covariance


def mode_and_spread(made: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode of the coefficients, and their standard deviations, robust where asked.

    Both are in the units of the columns.
    """
    at, covariance = mode_and_covariance(made)
    spec, count = made.specification, len(made.names)
    varying = [bool(numbers or levels) for numbers, levels in spec.keys]
    turn = spec.basis[np.ix_(varying, varying)]
    covariance = turn @ covariance[:count, :count] @ turn.T
    return turn @ at[:count], np.sqrt(np.diag(covariance))
