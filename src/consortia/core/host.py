"""The posterior of a model that NumPy evaluates: nothing is traced, nothing is compiled.

A model says by `consortia.core.model.Model.host` that its functions take NumPy's arrays with
leading axes, of many points together, and gives the likelihood of a site's rows in this form. What
else a conversation needs of a site or of the prior follows here, in double precision. Derivatives
are exact where the likelihood gives them; others are central differences, which are enough for what
only proposals depend on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

Params = Mapping[str, np.ndarray]
"""Parameters by name, (K, *shape) each: of K points."""

MOST_ROWS = 100_000
"""Rows beyond which compiled programs are taken, which use every core. CPU s of a logistic
regression of 10 columns, first and second call: of 100,000 rows 10.2 and 8.6 by NumPy, 14.0 and 9.9
compiled; of a million 35.7 and 34.7, 38.4 and 31.8 (measured)."""

STEP = 1e-4
"""Step of a central difference, in units of a parameter: with it the error of a second derivative
is about 1e-8 of a sum, by its truncation as by its rounding."""


class RowValues(NamedTuple):
    """Some rows of a site, and k values of each by which its likelihood is differentiated."""

    rows: Mapping[str, np.ndarray]  # n of them
    moved: Mapping[str, np.ndarray]  # 2 k n: with each value up, then with each value down
    steps: Float[np.ndarray, " k"]  # by which they are moved
    others: Mapping[str, np.ndarray] = MappingProxyType({})  # rows of which sums alone are moved
    sums: Float[np.ndarray, "others B"] = np.zeros((0, 0))  # weight of each in each sum

    def some(self, which: np.ndarray, first: int | None = None) -> dict[str, np.ndarray]:
        """Return the rows, or the first of them, with only these values moved, 2 (values) n."""
        shape = 2, len(self.steps), len(self.rows["y"])
        count = 2 * int(which.sum()) * (first or shape[2])
        parts = {name: part.reshape(*shape, *part.shape[1:]) for name, part in self.moved.items()}
        return {n: p[:, which, :first].reshape(count, *p.shape[3:]) for n, p in parts.items()}

    def slopes(self, ends: Float[np.ndarray, "K m"], which: np.ndarray) -> np.ndarray:
        """Return central differences (K, values, n) of numbers of the rows of `some`."""
        high, low = np.moveaxis(ends.reshape(len(ends), 2, int(which.sum()), -1), 1, 0)
        return (high - low) / (2 * self.steps[which, None])


class SiteLikelihood(Protocol):
    """The likelihood of all rows of one site, at many points.

    Attributes:
        way: how it is evaluated, in a word for plan and record.
    """

    way: str

    def values(
        self, params: Params, nodes: int | None, *, single: bool = False
    ) -> Float[np.ndarray, " K"]:
        """Return log L; ``nodes`` are of the rule of quadrature, the model's own when None.

        With ``single`` rows may be evaluated in single precision: no difference is taken of it.
        """

    def slopes(self, params: Params, nodes: int | None) -> dict[str, np.ndarray]:
        """Return the gradient by those parameters of which η is a linear function, by name."""

    def errors(self, params: Params, nodes: tuple[int, ...]) -> Float[np.ndarray, "K rules"]:
        """Return the distances of rules of quadrature from the last of them."""

    def of_rows(self, params: Params, part: slice) -> Float[np.ndarray, "K n"]:
        """Return log p(z_i | θ) of some rows."""

    def by_values(
        self, params: Params, values: RowValues, nodes: int | None
    ) -> Float[np.ndarray, "K k nB"]:
        """Return the derivatives of log L by values of some of its rows, and then by sums.

        A sum is a move of one value of all other rows at once, each by its weight; it may count as
        known, with derivatives 0.
        """

    def parts(self, params: Params) -> Float[np.ndarray, "K parts"]:
        """Return parts of log L whose scores count as independent, see `Model.sandwich`."""


class HostDensity(Protocol):
    """The part of a model whose functions NumPy evaluates."""

    @property
    def labels(self) -> Mapping[str, Any]:
        """Names along the axes of the natural parameters."""

    @property
    def units(self) -> Mapping[str, float]:
        """Unit of the parameters of each name, in which differences are taken; 1 where absent."""

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides the density."""

    @property
    def has_rows(self) -> bool:
        """True if a site's likelihood is a product over rows, given levels if there are any."""

    def way(self, rows: int, sites: int = 1) -> str:
        """Name the evaluation of so many rows of all sites: "sums", "NumPy" or "compiled"."""

    def prior_slopes(self, params: Params) -> dict[str, np.ndarray]:
        """Compute the gradient of the log-prior by some of the parameters, by name."""

    def group_bundles(self, params: Params) -> list[tuple[tuple[tuple[str, int], ...], np.ndarray]]:
        """Compute the correlations between the sites of `Model.group_sd` at many points.

        Of each bundle come its K members, an entry of a parameter each, and L (n, K, K), the lower
        Cholesky factors of their correlations R.
        """

    def predict(self, params: Params, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute `Model.predict` of many points, (K, n, ...)."""

    def log_likelihood(self, params: Params, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute log p(z_i | θ) of many points, (K, n)."""

    def site(self, rows: Mapping[str, np.ndarray]) -> SiteLikelihood:
        """Return the likelihood of a site's rows, which are prepared once."""


class Flat:
    """Names, places and units of the parameters in a flat position.

    Args:
        structure: parameters by name, arrays or shapes; the flat position has them by sorted name.
        units: of names.
    """

    def __init__(self, structure: Mapping[str, Any], units: Mapping[str, float]) -> None:
        self.places: dict[str, tuple[slice, tuple[int, ...]]] = {}
        start, steps = 0, []
        for name in sorted(structure):
            shape = tuple(int(n) for n in np.shape(structure[name]))
            size = math.prod(shape)
            self.places[name] = slice(start, start + size), shape
            steps += [units.get(name, 1.0)] * size
            start += size
        self.dimension = start
        self.steps = STEP * np.array(steps)

    def unravel(self, positions: Any) -> dict[str, Any]:
        """Return the parameters of positions (..., d), of NumPy or of JAX."""
        return {
            name: positions[..., columns].reshape((*positions.shape[:-1], *shape))
            for name, (columns, shape) in self.places.items()
        }

    def params(self, positions: Float[np.ndarray, "K d"]) -> dict[str, np.ndarray]:
        """Return the parameters of positions, in double precision."""
        return self.unravel(np.asarray(positions, np.float64))

    def moved(self, positions: Float[np.ndarray, "K d"], which: np.ndarray) -> np.ndarray:
        """Return positions moved up and down in each coordinate of ``which``, (2, m, K, d)."""
        by = np.zeros((len(which), 1, self.dimension))
        by[np.arange(len(which)), 0, which] = self.steps[which]
        wide = np.asarray(positions, np.float64)
        return np.stack([wide + by, wide - by])

    @np.errstate(invalid="ignore")  # far out both values may be infinite: the slope is NaN
    def differences(
        self,
        function: Callable[[np.ndarray], np.ndarray],
        positions: Float[np.ndarray, "K d"],
        which: np.ndarray,
    ) -> np.ndarray:
        """Return central differences of a function of (n, d) by some coordinates, (m, K, ...)."""
        moved = self.moved(positions, which)
        values = function(moved.reshape(-1, self.dimension))
        high, low = values.reshape(*moved.shape[:-1], *values.shape[1:])
        steps = self.steps[which].reshape(-1, *[1] * (high.ndim - 1))
        return (high - low) / (2 * steps)

    @np.errstate(all="ignore")
    def gradients(
        self,
        slopes: Callable[[Params], Mapping[str, np.ndarray]],
        function: Callable[[np.ndarray], np.ndarray],
        positions: Float[np.ndarray, "K d"],
    ) -> Float[np.ndarray, "K d"]:
        """Return a function's gradient: its slopes by some names, differences by the others."""
        gradients, rest = self._placed(slopes(self.params(positions)), len(positions))
        if rest.any():
            which = np.flatnonzero(rest)
            gradients[:, which] = self.differences(function, positions, which).T
        return gradients

    def _placed(
        self, slopes: Mapping[str, np.ndarray], count: int
    ) -> tuple[Float[np.ndarray, "n d"], np.ndarray]:
        """Return slopes at flat positions, 0 by other coordinates, and which these are."""
        gradients, rest = np.zeros((count, self.dimension)), np.ones(self.dimension, bool)
        for name, values in slopes.items():
            columns, _ = self.places[name]
            gradients[:, columns] = values.reshape(count, -1)
            rest[columns] = False
        return gradients, rest

    @np.errstate(all="ignore")  # far out values may be infinite: the derivatives are NaN
    def derivatives(
        self,
        slopes: Callable[[Params], Mapping[str, np.ndarray]],
        function: Callable[[np.ndarray], np.ndarray],
        positions: Float[np.ndarray, "K d"],
    ) -> Derivatives:
        """Return a function and its derivatives, from one evaluation of its slopes and one of it.

        The slopes are differenced in every coordinate. The other coordinates have values alone,
        whose differences are differenced in these coordinates only: the matrix is symmetric.
        """
        count, d = positions.shape
        moved = self.moved(positions, np.arange(d)).reshape(2 * d, count, d)
        at = np.concatenate([np.asarray(positions, np.float64)[None], moved])
        gradients, rest = self._placed(slopes(self.params(at.reshape(-1, d))), at[..., 0].size)
        gradients = gradients.reshape(at.shape)
        which = np.flatnonzero(rest)
        some = np.concatenate([[0], 1 + which, 1 + d + which])
        apart = self.moved(at[some].reshape(-1, d), which)
        values = function(np.concatenate([at[0], apart.reshape(-1, d)]))
        high, low = values[count:].reshape(2, len(which), len(some), count)
        differences = (high - low) / (2 * self.steps[which, None, None])
        gradients[np.ix_(some, np.arange(count), which)] = np.moveaxis(differences, 0, -1)
        high, low = gradients[1:].reshape(2, d, count, d)
        lines = np.moveaxis((high - low) / (2 * self.steps[:, None, None]), 0, 1)
        lines = np.where(~rest[:, None] & rest, np.swapaxes(lines, 1, 2), lines)
        matrices = (lines + np.swapaxes(lines, 1, 2)) / 2
        return Derivatives(values[:count], gradients[0], matrices)


class Derivatives(NamedTuple):
    """A function of (K, d) and its derivatives."""

    values: Float[np.ndarray, " K"]
    gradients: Float[np.ndarray, "K d"]
    matrices: Float[np.ndarray, "K d d"]


class HostPrior:
    """The prior of such a model at many points.

    Args:
        log_prior: of parameters by name, (K, ...) each.
        slopes: its gradient by some of them, by name.
        flat: places of the parameters.
    """

    def __init__(
        self,
        log_prior: Callable[[Params], np.ndarray],
        slopes: Callable[[Params], dict[str, np.ndarray]],
        flat: Flat,
    ) -> None:
        self._log_prior, self._slopes, self._flat = log_prior, slopes, flat

    def values(self, positions: Float[np.ndarray, "K d"]) -> Float[np.ndarray, " K"]:
        """Return log p(θ)."""
        with np.errstate(all="ignore"):
            total = self._log_prior(self._flat.params(positions))
        return np.broadcast_to(total, len(positions)).astype(np.float64)

    def gradients(self, positions: Float[np.ndarray, "K d"]) -> Float[np.ndarray, "K d"]:
        """Return ∇ log p(θ)."""
        return self._flat.gradients(self._slopes, self.values, positions)

    def derivatives(self, positions: Float[np.ndarray, "K d"]) -> Derivatives:
        """Return log p(θ) and its derivatives."""
        return self._flat.derivatives(self._slopes, self.values, positions)


class HostSite:
    r"""A site's part of the posterior, U_c = −log L_c − λ_c log p, and its derivatives.

    Args:
        likelihood: of its rows.
        prior: of the model.
        flat: places of the parameters.
        size: rows.
        share: λ_c.
    """

    def __init__(
        self, likelihood: SiteLikelihood, prior: HostPrior, flat: Flat, size: int, share: float
    ) -> None:
        self._likelihood, self._prior, self._flat = likelihood, prior, flat
        self.size, self.share, self.way = size, share, likelihood.way

    def with_share(self, share: float) -> HostSite:
        """Return the same with another share of the prior."""
        return HostSite(self._likelihood, self._prior, self._flat, self.size, share)

    @property
    def dimension(self) -> int:
        """The number of parameters."""
        return self._flat.dimension

    def potentials(
        self,
        positions: Float[np.ndarray, "K d"],
        nodes: int | None = None,
        *,
        single: bool = False,
    ) -> Float[np.ndarray, " K"]:
        """Return U_c(θ); with ``single`` up to the error of rows in single precision."""
        with np.errstate(all="ignore"):
            values = self._likelihood.values(self._flat.params(positions), nodes, single=single)
        return -values - self.share * self._prior.values(positions)

    def _functions(self, nodes: int | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the slopes of log L at parameters, and log L at positions."""
        of, params = self._likelihood, self._flat.params
        return lambda given: of.slopes(given, nodes), lambda at: of.values(params(at), nodes)

    def gradients(
        self, positions: Float[np.ndarray, "K d"], nodes: int | None = None
    ) -> Float[np.ndarray, "K d"]:
        """Return ∇U_c(θ)."""
        gradients = self._flat.gradients(*self._functions(nodes), positions)
        return -gradients - self.share * self._prior.gradients(positions)

    def derivatives(
        self, positions: Float[np.ndarray, "K d"], nodes: int | None = None
    ) -> Derivatives:
        """Return U_c(θ) and its derivatives."""
        likelihood = self._flat.derivatives(*self._functions(nodes), positions)
        prior = self._prior.derivatives(positions)
        return Derivatives(
            *(-of - self.share * by for of, by in zip(likelihood, prior, strict=True))
        )

    def pieces(
        self, position: Float[np.ndarray, " d"], nodes: int | None = None
    ) -> tuple[float, Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
        """Return U_c, ∇U_c and ∇²U_c at one position."""
        values, gradients, matrices = self.derivatives(position[None], nodes)
        return float(values[0]), gradients[0], matrices[0]

    def errors(
        self, positions: Float[np.ndarray, "K d"], nodes: tuple[int, ...]
    ) -> Float[np.ndarray, "K rules"]:
        """Return the distances of rules of quadrature from the last of them."""
        with np.errstate(all="ignore"):
            return self._likelihood.errors(self._flat.params(positions), nodes)

    def scores(
        self, positions: Float[np.ndarray, "K d"], part: slice = slice(None)
    ) -> Float[np.ndarray, "K n d"]:
        """Return the gradient of log p(z_i | θ) of some rows."""
        return self._scores(lambda params: self._likelihood.of_rows(params, part), positions)

    def part_scores(self, position: Float[np.ndarray, " d"]) -> Float[np.ndarray, "parts d"]:
        """Return the gradients of parts of log L that count as independent."""
        return self._scores(self._likelihood.parts, position[None])[0]

    def _scores(self, parts: Callable[[Params], np.ndarray], positions: np.ndarray) -> np.ndarray:
        def values_at(moved: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):
                return parts(self._flat.params(moved))

        derivatives = self._flat.differences(values_at, positions, np.arange(self.dimension))
        return np.moveaxis(derivatives, 0, 2)

    def row_hessians(
        self, position: Float[np.ndarray, " d"], part: slice = slice(None)
    ) -> Float[np.ndarray, "n d d"]:
        """Return the second derivatives of log p(z_i | θ) of some rows."""
        every = np.arange(self.dimension)
        curvatures = self._flat.differences(lambda at: self.scores(at, part), position[None], every)
        matrices = np.moveaxis(curvatures[:, 0], 0, 2)
        return (matrices + np.swapaxes(matrices, 1, 2)) / 2
