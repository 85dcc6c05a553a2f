r"""Sites that send the profile of a log-likelihood: its values on a grid of one coefficient.

With a level or slope of the site, whose standard deviation is s,

.. math:: L(\beta) = \int e^{\ell(\beta + s z)} \varphi(z)\, dz

by a rule of Gauss and Hermite that is centred and scaled by the product of the prior of z and the
normal law nearest to the profile. Source: Schuemie, Chen, Madigan and Suchard (2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.arguments import unknown
from consortia.core.arrays import Array, namespace
from consortia.errors import InputError, wrong
from consortia.models.regression.specification import Specification

LEAST_POINTS, MOST_POINTS = 8, 10_000
"""Numbers of points of a profile."""

DENSE = 4001
"""Points between which a profile is linear; a normal one is then right to 1e-6."""

NODES = 40
"""Nodes of the rule for a level or slope of the site."""


@dataclass(frozen=True, eq=False)
class SiteProfile:
    """Log-likelihood of a site's own coefficient, in the units of its column, on a grid.

    Beyond the grid it continues straight, and never rises outwards.
    """

    site: str
    names: tuple[str, ...]  # of the one coefficient
    point: Float[np.ndarray, " n"]  # increasing values of it
    value: Float[np.ndarray, " n"]  # the log-likelihood there, 0 at its maximum
    level: Float[np.ndarray, "1 K"]  # 1 where it has the level or slope of a site, by block

    def __str__(self) -> str:
        """Return a sentence on the site."""
        return f"site {self.site!r} sent a likelihood profile of {self.names[0]}, and no rows"

    def plain(self) -> dict[str, Any]:
        """Return plain values, for a digest."""
        profile = {"point": self.point.tolist(), "value": self.value.tolist()}
        return {"site": self.site, "profile": {self.names[0]: profile}}

    def log_likelihood(
        self, agreed: Specification, natural: Mapping[str, Array], scale: Array | None
    ) -> Array:
        """Return the log-likelihood of coefficients, (...), as `SiteEstimate` has it."""
        (name,) = self.names
        if name in agreed.names:
            beta = natural["coefficients"][..., agreed.names.index(name)]
        else:
            beta = natural[name]
        if scale is None or not self.level.any():
            return self._at(beta)
        xp, dtype = namespace(beta), beta.dtype
        of_site = xp.asarray(self.level, dtype) @ scale
        s = xp.sqrt((of_site**2).sum(axis=(-2, -1)))[..., None]
        x, weights = np.polynomial.hermite_e.hermegauss(NODES)
        nodes, ratio = xp.asarray(x, dtype), xp.ones_like(s)
        z = nodes * ratio
        if self._nearest is not None:
            middle, variance = self._nearest
            ratio = xp.sqrt(variance / (variance + s**2))
            z = s * (middle - beta[..., None]) / (variance + s**2) + nodes * ratio
        logs = self._at(beta[..., None] + s * z) - 0.5 * z**2 + 0.5 * nodes**2
        logs = logs + xp.log(ratio) + xp.asarray(np.log(weights / weights.sum()), dtype)
        top = logs.max(axis=-1, keepdims=True)
        return top[..., 0] + xp.log(xp.exp(logs - top).sum(axis=-1))

    @cached_property
    def _spline(self) -> Any:
        from scipy.interpolate import CubicSpline  # SciPy loads with the first use

        return CubicSpline(self.point, self.value)

    @cached_property
    def _dense(self) -> tuple[np.ndarray, np.ndarray]:
        x = np.linspace(self.point[0], self.point[-1], DENSE)
        return x, self._spline(x)

    @cached_property
    def _nearest(self) -> tuple[float, float] | None:
        """Centre and variance of the normal law at the maximum; None at an end of the grid."""
        x, y = self._dense
        top = int(np.argmax(y))
        curvature = -float(self._spline(x[top], 2))
        if top in (0, DENSE - 1) or curvature <= 0:
            return None
        return float(x[top]), 1 / curvature

    def _at(self, beta: Array) -> Array:
        xp, dtype = namespace(beta), beta.dtype
        x, y = (xp.asarray(values, dtype) for values in self._dense)
        low, high = (float(self._spline(end, 1)) for end in self.point[[0, -1]])
        outside = max(low, 0.0) * xp.minimum(beta - x[0], 0.0)
        outside = outside + min(high, 0.0) * xp.maximum(beta - x[-1], 0.0)
        return xp.interp(beta, x, y) + outside


def read_profile(
    site: str, given: Any, known: Sequence[str], levels: Mapping[str, np.ndarray]
) -> SiteProfile:
    """Read the profile that a site has sent, as a study file has it.

    Args:
        site: its name.
        given: by the name of one coefficient ``point`` and ``value``, as OHDSI's files call them.
        known: coefficients that it may be of.
        levels: of each coefficient the blocks that have its level or slope of a site.

    Raises:
        InputError: it cannot be used.
    """
    where = f"summaries.{site}.profile"
    if not isinstance(given, Mapping) or len(given) != 1:
        raise InputError(f"{where}: give one coefficient, with point and value.").at(where)
    ((name, grid),) = given.items()
    if name not in known:
        raise wrong(where, f": {name!r}: {unknown(str(name), known)}.")
    if not isinstance(grid, Mapping) or set(grid) != {"point", "value"}:
        raise wrong(f"{where}.{name}", ": give point and value, two lists of numbers.")
    try:
        point, value = (np.array(grid[part], float) for part in ("point", "value"))
    except (TypeError, ValueError):
        raise wrong(f"{where}.{name}", ": a list contains other things than numbers.") from None
    shaped = point.ndim == 1 and point.shape == value.shape
    if not shaped or not LEAST_POINTS <= len(point) <= MOST_POINTS:
        raise InputError(
            f"{where}.{name}: point and value have the shapes {point.shape} and {value.shape}: "
            f"give lists of {LEAST_POINTS} to {MOST_POINTS} numbers, equally many."
        ).at(f"{where}.{name}")
    if not (np.isfinite(point) & np.isfinite(value)).all() or (np.diff(point) <= 0).any():
        raise InputError(
            f"{where}.{name}: points must increase, and all numbers be finite: leave points out at "
            "which the log-likelihood is not."
        ).at(f"{where}.{name}")
    if np.ptp(value) == 0:
        raise wrong(f"{where}.{name}", ": the log-likelihood is the same at all points.")
    return SiteProfile(site, (str(name),), point, value - value.max(), levels[str(name)])
