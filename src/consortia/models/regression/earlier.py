r"""An earlier posterior as a prior: a mixture of normal laws that is fitted to its draws.

.. math:: \log p(\theta) = w \log q(\theta) + (1 - w) \log p_0(\theta) \quad\text{or}\quad
          \log\bigl((1 - r)\, q(\theta) + r\, p_0(\theta)\bigr)

with q the mixture, p₀ the prior in words. With w < 1 the rows behind q count as w of them each (a
power prior); with r > 0 the mixture gives way where the rows contradict it.

Source: Ibrahim, Chen (2000); Schmidli et al., "Robust meta-analytic-predictive priors" (2014).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.arrays import Array, logsumexp, namespace
from consortia.core.parameters import as_sampled, coordinate_names, posterior_arrays
from consortia.diagnostics.influence import smoothed
from consortia.errors import InputError, wrong
from consortia.store.metadata import Labels, recorded

COMPONENTS, MOST_POINTS, SURE = (2, 4, 6), 20_000, 1.0
"""Numbers of components that are tried beside one, draws of a fit, and by how many standard errors
the log density at draws that were held out must grow for a larger number. Of four the 2.5 %
quantile of the log of a standard deviation between six sites was wrong by 0.23 sd, of six 0.01."""

FEW_FIRST = 8
"""One draw of so many is fitted first, then all from there on."""

MOST_BENT, MOST_NUMBERS = 150, 8_000_000
"""Parameters up to which there are several components, and numbers of an array of a fit."""

EM_STEPS, SETTLED = 500, 1e-6
"""Steps of a fit, and the growth of the mean log density at which it ends: components of a skewed
law overlap, and after 60 steps means of the next posterior were wrong by 0.06 sd."""

FEWEST = 20
"""Draws of a parameter, at least."""


@dataclass(frozen=True, eq=False)
class Earlier:
    """A posterior of an earlier run, and how it is used."""

    run: str  # its name
    draws: int
    k_hat: float | None  # of the mixture's weights at the draws; None: without log-densities
    labels: tuple[str, ...]  # of the parameters, as they are sampled
    shares: Float[np.ndarray, " J"]
    centres: Float[np.ndarray, "J d"]
    covariances: Float[np.ndarray, "J d d"]
    weight: float = 1.0  # w
    robust: float = 0.0  # r

    def __post_init__(self) -> None:
        if self.weight < 1 and self.robust > 0:
            raise wrong("prior_from", ": give a weight below 1 or robust above 0, not both.")
        # the factors of the density, once: they raise if a matrix is not a covariance
        try:
            roots = np.linalg.cholesky(self.covariances)
        except np.linalg.LinAlgError:
            raise wrong("prior_from", f": a covariance of {self.run} is not positive.") from None
        logs = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
        heights = np.log(self.shares) - logs - len(self.labels) / 2 * math.log(2 * math.pi)
        object.__setattr__(self, "_factors", (np.linalg.inv(roots), heights))

    def log_density(self, positions: Array) -> Array:
        """Return log q, (...), at flat positions (..., d)."""
        xp, dtype = namespace(positions), positions.dtype
        inverses, heights = self._factors  # type: ignore[attr-defined]
        parts = [
            float(height) - 0.5 * xp.sum(((positions - centre) @ inverse.T) ** 2, axis=-1)
            for height, centre, inverse in zip(
                heights, xp.asarray(self.centres, dtype), xp.asarray(inverses, dtype), strict=True
            )
        ]
        return logsumexp(xp.stack(parts, axis=-1), -1)

    def log_prior(self, params: Mapping[str, Array], base: Array, axes: Mapping[str, int]) -> Array:
        """Return log p(θ); ``base`` is log p₀, ``axes`` how many axes each parameter has."""
        flat = []
        for name in sorted(axes):
            values = params[name]
            flat.append(values.reshape(*values.shape[: values.ndim - axes[name]], -1))
        xp = namespace(flat[0])
        earlier = self.log_density(xp.concatenate(flat, axis=-1))
        if not self.robust:
            return self.weight * earlier + (1 - self.weight) * base
        return xp.logaddexp(math.log1p(-self.robust) + earlier, math.log(self.robust) + base)

    def draw(self, rng: np.random.Generator, count: int) -> Float[np.ndarray, "n d"]:
        """Return draws of q."""
        which = rng.choice(len(self.shares), count, p=self.shares / self.shares.sum())
        normals = rng.standard_normal((count, len(self.labels), 1))
        return self.centres[which] + (np.linalg.cholesky(self.covariances)[which] @ normals)[..., 0]

    def check(self, labels: Sequence[str]) -> None:
        """Refuse a formula with other parameters.

        Raises:
            InputError: it has; with the first that differ.
        """
        if tuple(labels) != self.labels:
            then, now = set(self.labels) - set(labels), set(labels) - set(self.labels)
            raise InputError(
                f"prior_from: {self.run} is a posterior of {', '.join(sorted(then)[:5]) or 'these'}"
                f" beside {', '.join(sorted(now)[:5]) or 'these in another order'} here: take a "
                "run of the same formula and family, with priors of normal tails; levels of sites "
                "that differ go with integrate=True."
            ).at("prior_from")

    def __str__(self) -> str:
        """Return the prior in words."""
        fit = "" if self.k_hat is None else f", k-hat {self.k_hat:.2f}"
        text = (
            f"the posterior of {self.run} ({self.draws:,} draws, {len(self.shares)} normal "
            f"component{'s' if len(self.shares) > 1 else ''}{fit})"
        )
        if self.robust:
            return f"{text}, mixed with the wide prior at {self.robust:g}"
        return text if self.weight == 1 else f"{text}, its rows counted {self.weight:g} times"

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Earlier:
        """Return the same from the plain values of a study file.

        Raises:
            InputError: a covariance is not one.
        """
        d = len(plain["labels"])
        lower = np.zeros((len(plain["shares"]), d, d))
        lower[:, *np.tril_indices(d)] = plain["covariances"]
        covariances = lower + np.tril(lower, -1).swapaxes(1, 2)
        parts = (tuple(plain["labels"]), np.array(plain["shares"]), np.array(plain["centres"]))
        known = plain["run"], plain["draws"], plain.get("k_hat")
        return cls(*known, *parts, covariances, plain["weight"], plain["robust"])

    def plain(self) -> dict[str, Any]:
        """Return the table of a study file as plain values."""
        lower = np.tril_indices(len(self.labels))
        return {
            **{"run": self.run, "draws": self.draws, "weight": self.weight, "robust": self.robust},
            **({} if self.k_hat is None else {"k_hat": self.k_hat}),
            "labels": list(self.labels),
            "shares": self.shares.tolist(),
            "centres": self.centres.tolist(),
            "covariances": [covariance[lower].tolist() for covariance in self.covariances],
        }


def fitted_run(run: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return a result, read if its directory is given, and its formula's settings."""
    if isinstance(run, (str, os.PathLike)):
        from consortia.store.runs import open_run  # it reads Zarr

        run = open_run(run)
    settings = recorded(run, "settings") or {}
    return run, settings.get("regression", settings)


def earlier_of(tree: Any, run: str, weight: float = 1.0, robust: float = 0.0) -> Earlier:
    """Fit the mixture to the draws of a result.

    Raises:
        InputError: its draws are too few, or of no posterior.
    """
    if recorded(tree, "sandwich"):
        raise wrong("prior_from", f": {run} has sandwich standard errors: it is not a posterior.")
    arrays = posterior_arrays(as_sampled(tree))
    labels, parts = [], []
    for name in sorted(arrays):
        array = arrays[name]
        named = {
            str(dim): [str(value) for value in array.coords[dim].values]
            for dim in array.dims[2:]
            if dim in array.coords
        }
        axes = [named.get(str(dim)) for dim in array.dims[2:]]
        labels += flat_labels({name: array.shape[2:]}, {name: axes})
        parts.append(np.asarray(array, float).reshape(array.shape[0] * array.shape[1], -1))
    points = np.concatenate(parts, axis=1)
    if len(points) < FEWEST * points.shape[1]:
        raise InputError(
            f"prior_from: {run} has {len(points)} draws of {points.shape[1]} parameters: "
            f"{FEWEST * points.shape[1]} are needed."
        ).at("prior_from")
    fitted = Earlier(run, len(points), None, tuple(labels), *_fitted(points), weight, robust)
    stats = tree.children.get("sample_stats") if hasattr(tree, "children") else None
    if stats is None or "lp" not in stats:
        return fitted
    heights = np.asarray(stats["lp"], float).ravel()
    return replace(fitted, k_hat=round(smoothed(fitted.log_density(points) - heights)[1], 3))


def flat_labels(shapes: Mapping[str, tuple[int, ...]], labels: Labels) -> list[str]:
    """Return the name of each parameter in a flat position; of an axis without names the index."""
    every = []
    for name in sorted(shapes):
        given, shape = labels.get(name) or (), shapes[name]
        axes = [None] * (len(shape) - len(given)) + list(given)
        every += coordinate_names(name, shape, axes)
    return every


Fit = tuple[np.ndarray, np.ndarray, np.ndarray]


def _fitted(points: Float[np.ndarray, "n d"]) -> Fit:
    """Return shares, centres and covariances; the whole has mean and covariance of the points."""
    mean = points.mean(axis=0)
    covariance = np.cov(points.T).reshape(points.shape[1], -1)
    root = np.linalg.cholesky(covariance)
    white = np.linalg.solve(root, (points - mean).T).T
    single = np.ones(1), np.zeros((1, points.shape[1])), np.eye(points.shape[1])[None]
    white = white[:: -(-len(white) // (2 * MOST_POINTS))]
    best, known = 1, _log_density(white[1::2], single)
    for components in COMPONENTS if points.shape[1] <= MOST_BENT else ():
        fitted = _mixture(white[::2], components)
        gains = _log_density(white[1::2], fitted) - known
        if gains.mean() > SURE * gains.std() / math.sqrt(len(gains)):
            best, known = components, known + gains
    shares, centres, scales = single if best == 1 else _mixture(white, best)
    middle = shares @ centres
    away = centres - middle
    spread = np.einsum("j,jab->ab", shares, scales + away[:, :, None] * away[:, None, :])
    turn = root @ np.linalg.inv(np.linalg.cholesky(spread))
    return shares, mean + away @ turn.T, turn @ scales @ turn.T


def _mixture(white: Float[np.ndarray, "n d"], components: int) -> Fit:
    """Return a mixture by expectation and maximisation, begun along the most skewed direction."""
    d = white.shape[1]
    upper, width = np.triu_indices(d), d * (d + 1) // 2
    white = white[:: max(len(white) * width // MOST_NUMBERS, 1)]
    n = len(white)
    features = _features(white)  # their sums are all that a step needs
    _, axes = np.linalg.eigh(np.einsum("n,na,nb->ab", (white**2).sum(axis=1), white, white))
    groups = np.array_split(np.argsort(white @ axes[:, -1]), components)
    parts, fit = np.zeros((n, components)), None
    for index, nearest in enumerate(groups):
        parts[nearest, index] = 1.0
    for thin in (FEW_FIRST, 1):
        some, reached = features[::thin], -math.inf
        parts = parts[::thin] if fit is None else _shares(some, fit)[0]
        for _ in range(EM_STEPS):
            sums = parts.T @ some
            counts = sums[:, -1] + 1e-9
            centres, scales = sums[:, width:-1] / counts[:, None], np.empty((components, d, d))
            scales[:, *upper] = scales[:, *upper[::-1]] = sums[:, :width]
            scales -= counts[:, None, None] * centres[:, :, None] * centres[:, None]
            scales = (scales + 2 * d * np.eye(d)) / (counts + 2 * d)[:, None, None]
            fit = counts / counts.sum(), centres, scales
            before = reached
            parts, reached = _shares(some, fit)
            if reached - before < SETTLED:
                break
    assert fit is not None
    return fit


def _shares(features: np.ndarray, fit: Fit) -> tuple[np.ndarray, float]:
    """Return each component's share in each point, (n, J), and the mean log density."""
    heights = features @ _coefficients(*fit).T
    top = heights.max(axis=1, keepdims=True)
    parts = np.exp(heights - top)
    total = parts.sum(axis=1, keepdims=True)
    return parts / total, float((top + np.log(total)).mean())


def _coefficients(*fit: np.ndarray) -> np.ndarray:
    """Return the log density of each component by the products of coordinates, these, and 1."""
    shares, centres, scales = fit
    d = centres.shape[1]
    rows, columns = np.triu_indices(d)
    inverses = np.linalg.inv(scales)
    squares = -inverses[:, rows, columns] * np.where(rows == columns, 0.5, 1.0)
    slopes = np.einsum("jab,jb->ja", inverses, centres)
    constants = -0.5 * (
        np.linalg.slogdet(scales)[1] + (slopes * centres).sum(axis=1) + d * math.log(2 * math.pi)
    )
    return np.concatenate([squares, slopes, (np.log(shares) + constants)[:, None]], axis=1)


def _features(points: Float[np.ndarray, "n d"]) -> np.ndarray:
    """Return products of coordinates, these, and 1: a component's log density is linear in them."""
    rows, columns = np.triu_indices(points.shape[1])
    ones = np.ones((len(points), 1))
    return np.concatenate([points[:, rows] * points[:, columns], points, ones], axis=1)


def _log_density(points: Float[np.ndarray, "n d"], fit: Fit) -> np.ndarray:
    """Return the log density of the mixture at points, (n,)."""
    return logsumexp(_features(points) @ _coefficients(*fit).T, axis=1)
