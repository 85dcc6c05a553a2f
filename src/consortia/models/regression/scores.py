"""Coefficients with Cauchy and Student's t priors as they are sampled: by their scores.

Everything else sees the parameters of `consortia.models.regression.density`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from consortia.core.arrays import Array, namespace
from consortia.core.host import Params, SiteLikelihood
from consortia.core.tails import Tail
from consortia.models.regression.density import Density

SUFFIX = "_score"
"""End of the name of scores."""

SLOPES = "coefficients"


class Scores:
    """The map from what is sampled to the parameters of a density.

    Args:
        density: of the parameters.
    """

    def __init__(self, density: Density) -> None:
        self._density = density

    @cached_property
    def tails(self) -> dict[str, Tail]:
        """Laws by which parameters are sampled by their scores, by name; often none."""
        priors, names = self._density.priors, self._density.specification.names
        if self._density.earlier is not None:
            return {}
        kept = {name: priors[name].tail for name in ("intercept",) if name in priors}
        kept = {name: tail for name, tail in kept.items() if tail.heaviness}
        slopes = [priors[name].tail for name in names]
        if any(tail.heaviness for tail in slopes):
            kept[SLOPES] = Tail(*np.array(slopes).T)
        return kept

    @property
    def of_sampled(self) -> dict[str, Tail]:
        """The same by the names that are sampled."""
        return {name + SUFFIX: tail for name, tail in self.tails.items()}

    @property
    def start(self) -> dict[str, np.ndarray]:
        """Start of the sampled parameters."""
        sampled = dict(self._density.start)
        for name, tail in self.tails.items():
            values = sampled.pop(name)
            if name == SLOPES:
                values = values @ self._density.slopes_of_basis.T
            sampled[name + SUFFIX] = tail.score(values).astype(np.float32)
        return sampled

    def params(self, sampled: Mapping[str, Array]) -> dict[str, Array]:
        """Return the parameters."""
        parameters = dict(sampled)
        for name, tail in self.tails.items():
            values = tail.value(parameters.pop(name + SUFFIX))
            if name == SLOPES:
                values = values @ self._matrix(self._inverse, values).T
            parameters[name] = values
        return parameters

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of what is sampled, of one of parameters; the same without scores."""
        if not self.tails:
            return function

        def of_scores(sampled: Mapping[str, Array], *arguments: Any, **named: Any) -> Any:
            return function(self.params(sampled), *arguments, **named)

        return of_scores

    def log_prior(self, sampled: Mapping[str, Array]) -> Array:
        """Return the log-density of what is sampled."""
        density = self._density
        total = density.log_prior(self.params(sampled))
        for name, tail in self.tails.items():
            slopes = tail.log_slope(sampled[name + SUFFIX])
            axes = density.start[name].ndim
            total = total + (slopes.sum(axis=tuple(range(-axes, 0))) if axes else slopes)
            if name == SLOPES:
                _, determinant = np.linalg.slogdet(density.slopes_of_basis)
                total = total - math.prod(density.lead) * float(determinant)
        return total

    def group_sd(self, sampled: Mapping[str, Array]) -> dict[str, Array]:
        """Return `Density.group_sd` in the units of scores at their centre."""
        deviations = self._density.group_sd(self.params(sampled))
        for name, tail in self.tails.items():
            values, like = deviations.pop(name), sampled[name + SUFFIX]
            if name == SLOPES:
                values = values @ self._matrix(self._density.slopes_of_basis, values).T
            deviations[name + SUFFIX] = values * namespace(like).exp(-tail.log_slope(0 * like))
        return deviations

    def slopes(self, sampled: Params, slopes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the gradient by what is sampled, of one by parameters."""
        gradient = dict(slopes)
        for name, tail in self.tails.items():
            if name in gradient:
                values = gradient.pop(name)
                if name == SLOPES:
                    values = values @ self._inverse
                gradient[name + SUFFIX] = values * np.exp(tail.log_slope(sampled[name + SUFFIX]))
        return gradient

    @cached_property
    def _inverse(self) -> np.ndarray:
        return np.linalg.inv(self._density.slopes_of_basis)

    @staticmethod
    def _matrix(matrix: np.ndarray, like: Array) -> Array:
        return namespace(like).asarray(matrix, like.dtype)


class OfScores:
    """The likelihood of a site's rows as a function of what is sampled.

    Args:
        likelihood: as a function of parameters.
        scores: the map.
    """

    def __init__(self, likelihood: SiteLikelihood, scores: Scores) -> None:
        self._likelihood, self._scores, self.way = likelihood, scores, likelihood.way
        self.values, self.errors = scores.of(likelihood.values), scores.of(likelihood.errors)
        self.parts, self.of_rows = scores.of(likelihood.parts), scores.of(likelihood.of_rows)
        self.by_values = scores.of(likelihood.by_values)

    def slopes(self, params: Params, nodes: int | None) -> dict[str, np.ndarray]:
        """Return the gradient by those of which η is a function."""
        gradient = self._likelihood.slopes(self._scores.params(params), nodes)
        return self._scores.slopes(params, gradient)
