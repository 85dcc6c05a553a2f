r"""A regression that NumPy evaluates: the rows of one site, at many points together.

All points share one product of matrices, η = X Bᵀ. Where many rows are equal in all their
columns, they become one row with a count. Of a gaussian response with a fixed design

.. math::
    \sum_i (y_i - \eta_i)^2 = r^T r + (\hat b - b)^T X^T X\, (\hat b - b)

needs sums over the rows alone, once. Levels that stay at the site are integrated out by the rule of
`consortia.models._integrated`, in single precision where there are many values: rows differ by
much more, and their sums are in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.arrays import VALUES_AT_ONCE, sum_rows, sums_of_groups
from consortia.core.fingerprints import of_value
from consortia.core.host import MOST_ROWS, Params, RowValues, SiteLikelihood
from consortia.core.model import Model, no_rows
from consortia.models._integrated import CHOICES, NODES, integration, lower, weighted_nodes
from consortia.models.regression.density import Density
from consortia.models.regression.formula import SITE
from consortia.models.regression.scores import SUFFIX, OfScores, Scores

Rows = Mapping[str, np.ndarray]

SINGLE = ("bernoulli", "binomial", "poisson", "weibull", "piecewise_exponential")
"""Families of which a row's value loses nothing in single precision but its last digits."""


class Evaluation:
    """A formula's density as NumPy evaluates it, see `consortia.core.host.HostDensity`."""

    def __init__(self, density: Density) -> None:
        self._density, self._scores = density, Scores(density)

    @property
    def labels(self) -> Mapping[str, Any]:
        """Names along the axes of the natural parameters."""
        return self._density.labels

    @property
    def units(self) -> Mapping[str, float]:
        """The spread of the response, of what is in its units."""
        spread = self._density.spread
        return {"intercept": spread, "coefficients": spread}

    @property
    def digest(self) -> str:
        """SHA-256 of the agreed formula and its priors."""
        density = self._density
        priors = {name: str(prior) for name, prior in density.priors.items()}
        scored, earlier = list(self._scores.tails), density.earlier
        every = density.specification.digest, priors, str(density.correlation_prior)
        sent = [estimate.plain() for estimate in density.site_estimates]
        if earlier is not None or sent:
            more = [] if earlier is None else [earlier.plain()]
            return of_value((*every, *more, *sent))
        return of_value((*every, scored) if scored else every)

    @property
    def has_rows(self) -> bool:
        """True if a site's likelihood is a product over rows, given levels if there are any."""
        return self._density.family.of_site is None

    def way(self, rows: int, sites: int = 1) -> str:
        """Name the evaluation of so many rows of all sites: "sums", "NumPy" or "compiled"."""
        density = self._density
        if density.specification.question.evaluate == "compiled":
            return "compiled"
        if density.family.name == "gaussian":
            return SumsOfSquares.way
        size = len(density.specification.staying)
        if not size:
            return "compiled" if rows > MOST_ROWS else RowByRow.way
        nodes = CHOICES[size][1] ** size  # that of most studies
        many = sites > MOST_SITES or rows * nodes > MOST_NODE_VALUES
        return "compiled" if many else RowByRow.way

    def prior_slopes(self, params: Params) -> dict[str, np.ndarray]:
        """Compute the gradient of the log-prior by coefficients; of scores differences do."""
        density = self._density
        by_differences = self._scores.tails or density.site_estimates or density.earlier is not None
        return {} if by_differences else density.prior_slopes(params)

    def group_bundles(self, params: Params) -> list[tuple[tuple[tuple[str, int], ...], np.ndarray]]:
        """Return the common levels and slopes that are correlated between the sites, with L."""
        named, tails = self._density.group_bundles(self._scores.params(params)), self._scores.tails
        return [
            (tuple((name + SUFFIX * (name in tails), index) for name, index in members), factors)
            for members, factors in named
        ]

    def predict(self, params: Params, rows: Rows) -> np.ndarray:
        """Compute the means of the response of many points, (K, n, ...)."""
        return self._density.predict(self._scores.params(params), rows)

    def log_likelihood(self, params: Params, rows: Rows) -> np.ndarray:
        """Compute log p(z_i | θ) of many points, (K, n)."""
        return self._density.log_likelihood(self._scores.params(params), rows)

    def site(self, rows: Rows) -> SiteLikelihood:
        """Return the likelihood of a site's rows."""
        density, rows = self._density, {name: np.asarray(column) for name, column in rows.items()}
        gaussian = density.family.name == "gaussian"
        made = SumsOfSquares(density, rows) if gaussian else RowByRow(density, rows)
        return OfScores(made, self._scores) if self._scores.tails else made


def model_of(density: Density) -> Model:
    """Return the model of a formula, for `consortia.sample`."""
    host, scores = Evaluation(density), Scores(density)
    spec, parts = density.specification, density.independent_parts
    shared: dict[str, Any] = {"natural": scores.of(density.natural), "host": host}
    shared |= {"tails": scores.of_sampled}
    shared |= {"sandwich": scores.of(parts)} if spec.question.robust else {}
    if density.by_site:
        nodes, size = spec.question.nodes, len(spec.staying)
        of_site = scores.of(density.site_log_likelihood)
        rule = integration(of_site, size, nodes, spec.grouping != SITE) if size else None
        return Model(
            scores.log_prior,
            None,
            scores.start,
            site_log_likelihood=rule.with_nodes(nodes) if rule and nodes else of_site,
            group_sd=scores.group_sd if spec.grouping == SITE else None,
            integration=rule,
            **shared,
        )
    return Model(
        scores.log_prior,
        scores.of(density.log_likelihood),
        scores.start,
        predict=None if density.family.predict is None else scores.of(density.predict),
        **shared,
    )


# --- gradients -----------------------------------------------------------------------------------


def columns_of(density: Density, params: Params) -> np.ndarray:
    """Return the coefficients of all columns, (K, p): the intercept's, the formula's, effects."""
    lead = next(iter(params.values())).shape[:1]
    parts = [params["intercept"][..., None]] if density.intercept else [np.zeros((*lead, 0))]
    parts += [params["coefficients"]] if "coefficients" in params else []
    if "effects_in_sd" in params:
        parts.append(density._effects(params))
    return np.concatenate(parts, axis=-1)


def _part_of(rows: Rows, part: slice) -> Rows:
    return {name: values[part] for name, values in rows.items()}


def by_name(density: Density, params: Params, gradient: np.ndarray) -> dict[str, np.ndarray]:
    """Return a gradient by the coefficients of all columns, (K, p), as one by the parameters."""
    named, at = {}, int(density.intercept)
    if density.intercept:
        named["intercept"] = gradient[:, 0]
    if "coefficients" in params:
        count = len(density.specification.names)
        named["coefficients"] = gradient[:, at : at + count]
        at += count
    if "effects_in_sd" in params:
        scale = {name: params[name][:, None] for name in SCALES if name in params}
        turn = density._effects(scale | {"effects_in_sd": np.eye(gradient.shape[1] - at)[None]})
        named["effects_in_sd"] = np.einsum("kue,ke->ku", turn, gradient[:, at:])
    return named


SCALES = ("log_sd", "correlation_score")
"""Parameters by which effects are a linear function of those in standard deviations."""


def by_values(
    density: Density,
    params: Params,
    values: RowValues,
    averaged: Callable[[Rows, Callable[[np.ndarray], np.ndarray]], np.ndarray] | None = None,
) -> np.ndarray:
    """Return the derivatives of log L by values of rows, and by their sums, (K, k, n + B).

    By values of which η is a linear function they are ∂ℓ/∂η times its slopes; by the others, as a
    response or a column with a slope that is integrated out, central differences.

    Args:
        density: of the formula.
        params: of K points.
        values: n rows, and k values of each.
        averaged: means over levels of a function of η; None: there are none.
    """
    family, own_parameters = density.family, density._own(params)
    direct = np.array([family.slopes is not None and not density.lead] * len(values.steps))
    for name, part in values.moved.items():
        if name not in LINEAR:
            high, low = part.reshape(2, len(direct), -1)
            direct &= (high == low).all(axis=1)
    rest, n = values.some(~direct), len(values.rows["y"]) * bool(direct.any())
    table = {
        name: np.concatenate([np.asarray(part)[:n], rest[name]])
        for name, part in values.rows.items()
    }
    head = _part_of(values.rows, slice(n))

    def of(eta: np.ndarray) -> np.ndarray:
        parts = []
        if n:
            assert family.slopes is not None
            parts.append(family.slopes(eta[..., :n], head, own_parameters)[0])
        if len(rest["y"]):
            parts.append(family.log_likelihood(eta[..., n:] if n else eta, rest, own_parameters))
        return np.concatenate(parts, axis=-1)

    def mean(rows: Rows, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        if averaged is not None:
            return averaged(rows, function)
        return density.weighted(function(density.predictor(params, rows)), rows)

    count, sums = len(values.rows["y"]), values.sums.shape[1]
    means = mean(table, of)
    made = np.zeros((len(means), len(direct), count + sums), means.dtype)
    if n:
        slopes = family.slopes
        assert slopes is not None
        linear = values.slopes(density.predictor(params, values.some(direct, 1)), direct)
        made[:, direct, :count] = means[:, None, :n] * linear
        if sums:
            rows = values.others
            every = mean(rows, lambda eta: slopes(eta, rows, own_parameters)[0])
            made[:, direct, count:] = (every @ values.sums)[:, None] * linear
    if not direct.all():
        made[:, ~direct, :count] = values.slopes(means[:, n:], ~direct)
    return made


LINEAR = ("x", "offset")
"""Arrays of the rows of which η is a linear function, whatever the levels."""


# --- rows ----------------------------------------------------------------------------------------

SAMPLE, FEWEST_EQUAL = 1024, 0.5
"""Rows that are looked at first, and the share of them that must be equal to others."""


def counted(rows: Rows) -> dict[str, np.ndarray]:
    """Return the rows that differ in a column, with how many there are of each in the weights."""
    size = len(rows["y"])
    few = np.linspace(0, size - 1, min(SAMPLE, size)).astype(int)

    def table(part: slice | np.ndarray) -> np.ndarray:
        columns = [
            values[part].reshape(len(values[part]), -1).astype(float) for values in rows.values()
        ]
        return np.concatenate(columns, axis=1)

    if len(np.unique(table(few), axis=0)) > (1 - FEWEST_EQUAL) * len(few):
        return dict(rows)
    _, first, counts = np.unique(table(slice(None)), axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)
    kept = {name: values[first[order]] for name, values in rows.items()}
    return kept | {"weight": kept.get("weight", 1.0) * counts[order]}


def in_single(density: Density, rows: Rows) -> dict[str, np.ndarray] | None:
    """Return the rows in single precision; None where their sum needs more."""
    known = SINGLE if density.specification.staying else ()
    if density.family.name not in known or float(np.max(rows["y"], initial=0.0)) > LARGEST:
        return None
    return {
        name: values.astype(np.float32) if values.dtype.kind == "f" else values
        for name, values in rows.items()
    }


FEW_VALUES = 2**16
"""Row values at nodes, up to which double precision costs nothing to speak of. The error of single
precision, 1.3e-5 for 190 rows, is small beside the tolerance of 0.01 where rules are compared."""


class RowByRow:
    """A likelihood that is a sum over rows, or over groups whose levels are integrated out."""

    way = "NumPy"

    def __init__(self, density: Density, rows: Rows) -> None:
        self._given = rows
        if density.family.of_site is None:
            rows = counted(rows)
        if "group" in rows:  # so that a group's rows are one after the other
            order = np.argsort(rows["group"], kind="stable")
            rows = {name: values[order] for name, values in rows.items()}
        self._density, self._rows = density, dict(rows)
        self._size = len(rows["y"])
        self._mask = np.ones(self._size, bool)
        self._groups = int(rows["group"].max()) + 1 if "group" in rows else 1
        self._nodes = density.specification.question.nodes  # that the user insists on

    @cached_property
    def _single(self) -> Rows | None:
        """The rows in single precision; None where their sum needs more."""
        return in_single(self._density, self._rows)

    def values(
        self, params: Params, nodes: int | None, *, single: bool = False
    ) -> Float[np.ndarray, " K"]:
        """Return log L."""
        density, nodes = self._density, nodes or self._nodes
        if density.by_site:
            of_site = density.site_log_likelihood
            blocks = self._blocks(params, (nodes,) if single else ())
            parts = [of_site(part, rows, self._mask, nodes) for part, rows in blocks]
            return np.concatenate(parts).astype(np.float64)
        total = np.zeros(len(next(iter(params.values()))))
        for at in range(0, self._size, ROWS_AT_ONCE):
            rows = _part_of(self._rows, slice(at, at + ROWS_AT_ONCE))
            parts = [
                sum_rows(density.log_likelihood(part, rows))
                for part in self._points(params, len(rows["y"]))
            ]
            total += np.concatenate(parts)
        return total

    def _blocks(self, params: Params, rules: Iterable[int | None]) -> Any:
        """Yield some points with the rows, in single precision if ``rules`` have many nodes."""
        rows: Rows = self._rows
        size = len(self._density.specification.staying)
        nodes = sum((each or NODES[size]) ** size for each in rules) if size else 0
        work = self._size * len(next(iter(params.values()))) * nodes
        if work > FEW_VALUES and self._single is not None:
            rows = self._single
            params = {name: values.astype(np.float32) for name, values in params.items()}
        for part in self._points(params, self._size):
            yield part, rows

    @staticmethod
    def _points(params: Params, rows: int) -> Any:
        """Yield the parameters of some points at a time."""
        count = len(next(iter(params.values())))
        width = max(VALUES_AT_ONCE // max(rows, 1), 1)
        for at in range(0, count, width):
            yield {name: values[at : at + width] for name, values in params.items()}

    def slopes(self, params: Params, nodes: int | None) -> dict[str, np.ndarray]:
        """Return the gradient by coefficients; none of a partial likelihood."""
        density = self._density
        if density.family.slopes is None or (density.lead and "effects_in_sd" in params):
            return {}
        x, parts = self._rows["x"], []
        for part in self._points(params, self._size):
            first = self._row_slopes(part, nodes)
            if density.lead:
                gradient = np.einsum("knl,np->klp", first, x)
                named = {"coefficients": gradient} if "coefficients" in part else {}
                if density.intercept:
                    named["intercept"] = first.sum(axis=1)
                parts.append(named)
                continue
            gradient = first @ x
            if density.intercept:
                gradient = np.concatenate([first.sum(axis=1)[:, None], gradient], axis=1)
            parts.append(by_name(density, part, gradient))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _row_slopes(self, params: Params, nodes: int | None) -> np.ndarray:
        """Return ∂ℓ/∂η of every row, (K, n); its mean over the levels that are integrated out."""
        density, rows = self._density, self._rows
        own_parameters, of = density._own(params), density.family.slopes
        assert of is not None
        if not density.specification.staying:
            first = of(density.predictor(params, rows), rows, own_parameters)[0]
            if density.lead:  # the classes are the last axis
                return np.moveaxis(density.weighted(np.moveaxis(first, -1, 0), rows), 0, -1)
            return density.weighted(first, rows)
        return self._averaged(params, rows, lambda eta: of(eta, rows, own_parameters)[0], nodes)

    def _averaged(
        self, params: Params, rows: Rows, of: Callable[[np.ndarray], np.ndarray], nodes: int | None
    ) -> np.ndarray:
        """Average a function of η over the levels given the site's own rows, (K, n)."""
        density, like = self._density, params["log_sd"]
        predictor = density.predictor_given(params, rows)
        single = self._single if like.dtype == np.float32 else None
        every = self._rows if single is None else single
        groups = density.given_levels(params, every, self._mask, self._groups)
        shape = (len(like), self._groups, len(density.specification.staying))
        group, total = rows.get("group", np.zeros(1, int)), np.zeros((len(like), len(rows["y"])))
        for z, share in weighted_nodes(groups, shape, like, nodes or self._nodes):
            values, shares = density.weighted(of(predictor(z)), rows), share[..., group]
            total += np.where(shares > 0, values * shares, 0).sum(axis=0)  # 0 of a rate of e^1000
        return total

    def by_values(self, params: Params, values: RowValues, nodes: int | None) -> np.ndarray:
        """Return the derivatives of log L by values of some rows and by sums, (K, k, n + B).

        Where levels are integrated out they are means over the levels given the site's own rows.
        """
        density, parts = self._density, []
        for part in self._points(params, self._size):
            stays = bool(density.specification.staying)
            averaged = partial(self._averaged, part, nodes=nodes) if stays else None
            parts.append(by_values(density, part, values, averaged))
        return np.concatenate(parts)

    def errors(self, params: Params, nodes: tuple[int, ...]) -> np.ndarray:
        """Return the distances of rules of quadrature from the last of them, (K, rules)."""
        of_site = self._density.site_log_likelihood
        parts = [
            of_site(part, rows, self._mask, nodes) for part, rows in self._blocks(params, nodes)
        ]
        return np.concatenate(parts, axis=1).T

    def of_rows(self, params: Params, part: slice) -> np.ndarray:
        """Return log p(z_i | θ) of some rows, equal ones each by itself.

        Raises:
            InputError: the site's rows have a likelihood together only.
        """
        if self._density.by_site:
            no_rows(params, self._given)
        return self._density.log_likelihood(params, _part_of(self._given, part))

    def parts(self, params: Params) -> np.ndarray:
        """Return parts of log L whose scores count as independent."""
        return self._density.independent_parts(params, self._given, np.ones((), bool))


# --- sums before rows ----------------------------------------------------------------------------


Weighing = Callable[[np.ndarray], np.ndarray]
"""Multiplies values of rows by the rows' weights, if there are any."""


class SumsOfSquares(RowByRow):
    r"""A gaussian response: every point costs the square of its columns, whatever the rows.

    Levels A z, z ~ N(0, I), of a site's groups g are integrated out exactly,

    .. math::
        \log L = -\frac{w}{2} \log 2\pi\sigma^2
            - \frac{1}{2\sigma^2} \Big(r^T r - \sum_g v_g^T v_g\Big)
            - \frac12 \sum_g \Big(\frac{v_g^T M_g^{-1} v_g}{\sigma^2} + \log |M_g|\Big), \qquad
        v_g = Q_g^T r_g, \quad M_g = I + \frac{R_g A A^T R_g^T}{\sigma^2}

    of r = y − η without levels and of the levels' columns Q R with orthonormal Q, which may depend
    on one another. However large A is, nothing cancels: the eigenvalues of M are at least 1.
    """

    way = "sums"

    def __init__(self, density: Density, rows: Rows) -> None:
        super().__init__(density, rows)
        p, size = rows["x"].shape[1] + density.intercept, len(density.specification.staying)
        self._gram, pull = np.zeros((p, p)), np.zeros(p)
        products = np.zeros((self._groups, size, p + size))
        blocks = [slice(at, at + VALUES_AT_ONCE) for at in range(0, self._size, VALUES_AT_ONCE)]
        for block in blocks:
            Z, y, weighted, levels = self._block(block)
            self._gram += Z.T @ weighted(Z)
            pull += Z.T @ weighted(y)
            products += self._by_group(block, weighted(levels), np.concatenate([Z, levels], axis=1))
        squares = np.diagonal(products[..., p:], axis1=-2, axis2=-1)
        norms = np.sqrt(np.where(squares > 0, squares, 1.0))[..., None, :]
        sizes, axes = np.linalg.eigh(products[..., p:] / norms / np.swapaxes(norms, -1, -2))
        roots = np.sqrt(np.where(sizes > RANK, sizes, 0.0))[..., None]
        inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0)
        self._R = roots * np.swapaxes(axes, -1, -2) * norms
        to_levels = inverse * np.swapaxes(axes, -1, -2) / norms
        self._cross = to_levels @ products[..., :p]
        self._best = np.linalg.lstsq(self._gram, pull, rcond=None)[0]
        self._rest, self._weight, self._pull = 0.0, 0.0, np.zeros(p)
        self._level_pull = np.zeros((self._groups, size))
        for block in blocks:  # around the best coefficients, where nothing cancels
            Z, y, weighted, levels = self._block(block)
            residual = y - Z @ self._best
            self._rest += float(weighted(residual) @ residual)
            self._pull += Z.T @ weighted(residual)
            self._weight += float(weighted(np.ones(len(y))).sum())
            sums = self._by_group(block, weighted(levels), residual[:, None])
            self._level_pull += (to_levels @ sums)[..., 0]
        # of the residuals that no level explains
        self._rest -= float((self._level_pull**2).sum())
        self._pull -= np.einsum("gkp,gk->p", self._cross, self._level_pull)
        self._gram -= np.einsum("gkp,gkq->pq", self._cross, self._cross, optimize=True)

    def _block(self, block: slice) -> tuple[np.ndarray, np.ndarray, Weighing, np.ndarray]:
        """Return columns, response without offset, its weights' product, and levels' columns."""
        rows = {n: np.asarray(a, float) for n, a in _part_of(self._rows, block).items()}
        Z, levels = rows["x"], rows.get("slopes", np.zeros((len(rows["y"]), 0)))
        if self._density.intercept:
            Z = np.concatenate([np.ones((len(Z), 1)), Z], axis=1)

        def weighted(values: np.ndarray) -> np.ndarray:
            return (values.T * rows["weight"]).T if "weight" in rows else values

        return Z, rows["y"] - rows.get("offset", 0.0), weighted, levels

    def _by_group(self, block: slice, levels: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return Σ s cᵀ over the rows of each group, (groups, K, columns)."""
        if "group" not in self._rows:
            return (levels.T @ columns)[None]
        products = levels.T[:, None] * columns.T
        sums = sums_of_groups(products, self._rows["group"][block], self._groups)
        return np.moveaxis(sums, -1, 0)

    def values(
        self, params: Params, nodes: int | None = None, *, single: bool = False
    ) -> Float[np.ndarray, " K"]:
        """Return log L."""
        apart = self._best - columns_of(self._density, params)
        squares = self._rest + 2 * apart @ self._pull
        squares = squares + np.einsum("ki,ij,kj->k", apart, self._gram, apart, optimize=True)
        log_sigma = params["log_sigma"]
        constant = 0.5 * math.log(2 * math.pi)
        squares = np.maximum(squares, 0.0)  # of rows that levels and coefficients fit exactly
        total = -0.5 * squares * np.exp(-2 * log_sigma) - self._weight * (log_sigma + constant)
        for at, added, _ in self._integrated(params, apart):
            total[at] += added
        return total

    def _integrated(
        self, params: Params, apart: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield of some points what is added to log L, (n,), and M⁻¹ v, (n, groups, K)."""
        staying = self._density.specification.staying
        size, groups = len(staying), self._groups
        width = max(VALUES_AT_ONCE // max(groups * size**2, 1), 1)
        for first in range(0, len(apart) * bool(size), width):
            at = slice(first, first + width)
            part = {name: values[at] for name, values in params.items()}
            precision = np.exp(-2 * part["log_sigma"])[:, None]
            A = self._density.group_scale(part, staying) * np.sqrt(precision)[..., None]
            RA = self._R @ A[:, None]
            L = lower(np.eye(size) + RA @ np.swapaxes(RA, -1, -2), 1.0)
            v = self._level_pull + np.einsum("gkp,np->ngk", self._cross, apart[at])
            for i in range(size):  # L⁻¹ v, in its place
                v[..., i] = (v[..., i] - (L[..., i, :i] * v[..., :i]).sum(axis=-1)) / L[..., i, i]
            logs = np.log(np.diagonal(L, axis1=-2, axis2=-1))
            added = -(0.5 * v**2 * precision[..., None] + logs).sum(axis=(-2, -1))
            for i in reversed(range(size)):
                rest = (L[..., i + 1 :, i] * v[..., i + 1 :]).sum(axis=-1)
                v[..., i] = (v[..., i] - rest) / L[..., i, i]
            yield at, added, v

    def slopes(self, params: Params, nodes: int | None = None) -> dict[str, np.ndarray]:
        """Return the gradient by coefficients."""
        apart = self._best - columns_of(self._density, params)
        gradient = self._pull + apart @ self._gram
        for at, _, v in self._integrated(params, apart):
            gradient[at] += np.einsum("ngk,gkp->np", v, self._cross)
        return by_name(self._density, params, gradient * np.exp(-2 * params["log_sigma"])[:, None])

    def errors(self, params: Params, nodes: tuple[int, ...]) -> np.ndarray:
        """Return zeros, (K, rules): no rule is used."""
        return np.zeros((len(params["log_sigma"]), len(nodes)))


RANK = 1e-12
"""Eigenvalue of the products of a group's columns of length 1, below which it is rounding."""

MOST_NODE_VALUES = 1_000_000
"""Rows times nodes where levels are integrated out, likewise: an estimate."""

MOST_SITES = 300
"""Sites likewise, each of which NumPy evaluates by itself. The queries of a study of 1,000 sites of
20 rows took 90 CPU s by NumPy and 25 compiled, of 100 sites 10 by NumPy (profiled)."""

ROWS_AT_ONCE = 2**13
"""Rows that are computed together with some points, of a sum over rows."""

LARGEST = 64.0
"""Response from which on the parts of a row's value cancel digits that single precision lacks."""
