r"""Sites that send an estimate and its covariance, in one model with sites that have rows.

With estimates :math:`\hat\beta_s` of a site's own coefficients, whose covariance is V_s,

.. math:: \hat\beta_s \mid \theta \sim N\bigl(\beta,\; V_s + Z A A^\top Z^\top\bigr)

where Z A z are the levels and slopes of a site, integrated out: the likelihood of a meta-analysis
in two stages. Everybody knows these numbers, so that they belong to the prior and no site answers
for them. Source: van Houwelingen, Arends and Stijnen (2002).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.arguments import unknown
from consortia.core.arrays import Array, namespace
from consortia.errors import InputError, wrong
from consortia.models.regression.formula import SITE
from consortia.models.regression.profiles import SiteProfile, read_profile
from consortia.models.regression.specification import INTERCEPT, Specification

INTERCEPT_NAME = "intercept"
KEYS, PROFILE = {"estimate", "covariance"}, "profile"

ASYMMETRIC = 1e-6
"""Relative difference of a covariance and its transpose from which on they are not equal."""


@dataclass(frozen=True, eq=False)
class SiteEstimate:
    """Estimates of a site's coefficients, in the units of the columns, and their covariance."""

    site: str
    names: tuple[str, ...]
    estimate: Float[np.ndarray, " k"]
    covariance: Float[np.ndarray, "k k"]

    def __str__(self) -> str:
        """Return a sentence on the site."""
        return f"site {self.site!r} sent an estimate of {', '.join(self.names)}, and no rows"

    def plain(self) -> dict[str, Any]:
        """Return plain values, for a digest."""
        return {
            "site": self.site,
            "estimate": dict(zip(self.names, self.estimate.tolist(), strict=True)),
            "covariance": self.covariance.tolist(),
        }

    def log_likelihood(
        self, agreed: Specification, natural: Mapping[str, Array], scale: Array | None
    ) -> Array:
        """Return the log density of the estimate, (...).

        Args:
            agreed: the formula.
            natural: coefficients, and an intercept, in the units of the columns.
            scale: Z A of all blocks of levels and slopes, (..., K, K); None without any.
        """
        parts = [
            natural[INTERCEPT_NAME]
            if name == INTERCEPT_NAME
            else natural["coefficients"][..., agreed.names.index(name)]
            for name in self.names
        ]
        xp, dtype = namespace(parts[0]), parts[0].dtype
        apart = xp.asarray(self.estimate, dtype) - xp.stack(parts, axis=-1)
        covariance = xp.asarray(self.covariance, dtype)
        if scale is not None:
            of_site = xp.asarray(_levels(self.names, agreed), dtype) @ scale
            covariance = covariance + of_site @ xp.swapaxes(of_site, -1, -2)
        root = xp.linalg.cholesky(covariance)
        z = xp.linalg.solve(root, apart[..., None])[..., 0]
        logs = xp.log(xp.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
        return -0.5 * (z**2).sum(axis=-1) - logs - len(self.names) / 2 * math.log(2 * math.pi)


def _levels(names: Sequence[str], agreed: Specification) -> Float[np.ndarray, "k K"]:
    """Return 1 where a coefficient has the level or slope of a site at zero of the columns."""
    terms = [block.term if block.by == SITE else None for block in agreed.blocks]
    wanted = [INTERCEPT if name == INTERCEPT_NAME else name for name in names]
    return np.array([[float(name == term) for term in terms] for name in wanted])


def read_summaries(
    given: Any, agreed: Specification, known: Sequence[str]
) -> tuple[SiteEstimate | SiteProfile, ...]:
    """Read estimates of sites, by name, as a study file has them.

    ``known`` are the coefficients that an estimate may be of.

    Raises:
        InputError: they cannot be used.
    """
    if not given:
        return ()
    if not isinstance(given, Mapping):
        raise wrong("summaries", ": give a dict, by site, of estimate and covariance.")
    if agreed.question.robust:
        raise InputError(
            "summaries: an estimate cannot be combined with weights of a sample or cluster(...): "
            "leave these out, or the estimate."
        ).at("summaries")
    if not known:
        raise InputError(
            f"summaries: with family {agreed.question.family.name} and this formula no column has "
            "one coefficient that an estimate could be of."
        ).at("summaries")
    estimates: list[SiteEstimate | SiteProfile] = []
    for site, values in given.items():
        where = f"summaries.{site}"
        if site in agreed.sites:
            raise wrong(where, ": this site has rows: give either its rows or its estimate.")
        if isinstance(values, Mapping) and {*values} == {PROFILE}:
            levels = {name: _levels((name,), agreed) for name in known}
            estimates.append(read_profile(str(site), values[PROFILE], known, levels))
            continue
        if not isinstance(values, Mapping) or set(values) != KEYS:
            raise InputError(
                f"{where}: give estimate, by coefficient, and covariance; or profile alone."
            ).at(where)
        if not isinstance(values["estimate"], Mapping) or not values["estimate"]:
            raise InputError(
                f"{where}.estimate is {values['estimate']!r}: give a number for each coefficient "
                f"by name, such as {{{next(iter(known))!r}: 0.7}}."
            ).at(f"{where}.estimate")
        for name in values["estimate"]:
            if name not in known:
                raise wrong(f"{where}.estimate", f": {name!r}: {unknown(name, known)}.")
        try:
            estimate = np.array([float(value) for value in values["estimate"].values()])
            covariance = np.array(values["covariance"], float)
        except (TypeError, ValueError):
            raise InputError(
                f"{where}: estimate or covariance contains something other than numbers."
            ).at(where) from None
        size = len(estimate)
        if covariance.shape != (size, size) or not size:
            raise InputError(
                f"{where}.covariance has the shape {covariance.shape}: give {size} lines of {size} "
                f"numbers, in the order of {', '.join(values['estimate']) or 'the estimate'}."
            ).at(f"{where}.covariance")
        scale = np.sqrt(np.abs(np.outer(np.diag(covariance), np.diag(covariance))))
        same = np.abs(covariance - covariance.T) <= ASYMMETRIC * scale
        every = np.isfinite(covariance).all() and np.isfinite(estimate).all() and same.all()
        if not every or np.linalg.eigvalsh(covariance)[0] <= 0:
            raise InputError(
                f"{where}: estimates must be finite, and covariance symmetric and positive "
                "definite, with variances (squares of standard errors) on its diagonal."
            ).at(where)
        estimates.append(SiteEstimate(str(site), tuple(values["estimate"]), estimate, covariance))
    return tuple(estimates)
