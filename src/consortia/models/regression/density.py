r"""The model of a formula: parameters, priors and likelihood, and what they are in natural units.

.. math::
    \eta = a + \tilde X b + \sum_k \tau_k Z_k u_k + \text{offset}, \qquad
    (\alpha, \beta) = R\,(a, b), \qquad \tilde X = X R

X are the columns of the formula, R their basis (`Specification.basis`), Z the columns of smooths
and of levels by site. Priors are of the natural coefficients β, of the intercept a where all
numbers have their mean, of the standard deviations τ and of u ~ N(0, 1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core.arguments import unknown
from consortia.core.model import Model
from consortia.diagnostics.formula_units import NaturalOfFormula, Recipe
from consortia.errors import InputError
from consortia.models._integrated import integration, log_integrals
from consortia.models._shared import Array, PyTree
from consortia.models.regression.correlations import LKJ, cholesky, read_lkj
from consortia.models.regression.families import Family
from consortia.models.regression.formula import SITE
from consortia.models.regression.priors import Prior, read_prior
from consortia.models.regression.question import EVENT, EXPOSURE, OFFSET, RESPONSE, TIME
from consortia.models.regression.specification import INTERCEPT, Block, Specification
from consortia.store.metadata import Scaling

WIDE = 2.5
"""Standard deviations of the response, or units of the predictor, for an sd of the predictor."""

THRESHOLDS, HAZARD, CORRELATION = "thresholds", "log_hazard", "correlation"


@dataclass(frozen=True, eq=False)  # by identity, so that programs are kept for it
class Density:
    """Parameters, priors and likelihood of one specification."""

    specification: Specification  # what the sites agreed on
    prior: Mapping[str, Any]  # in words, as the user gave them

    @property
    def family(self) -> Family:
        """The family of the response."""
        return self.specification.question.family

    @cached_property
    def classes(self) -> int:
        """Levels of the response; 0 where it has none."""
        return len(self.specification.levels.get(RESPONSE, ()))

    @cached_property
    def cuts(self) -> tuple[str, int] | None:
        """Name and number of what stands in the place of an intercept, or None."""
        if self.family.response == "ordered":
            return THRESHOLDS, self.classes - 1
        if self.family.name == "piecewise_exponential":
            return HAZARD, len(self.specification.breaks) + 1
        return None

    @property
    def intercept(self) -> bool:
        """True if there is one."""
        return (
            self.specification.has_intercept and self.cuts is None and self.family.of_site is None
        )

    @property
    def lead(self) -> tuple[int, ...]:
        """Leading axis of the coefficients: one predictor a class but the first, or ()."""
        return (self.classes - 1,) if self.family.response == "levels" else ()

    # --- priors ---

    @cached_property
    def spread(self) -> float:
        """The sd of the response where η is in its units, else 1."""
        unit = self.specification.units.get(RESPONSE)
        return unit.sd if self.family.response == "number" and unit is not None else 1.0

    @cached_property
    def centre(self) -> float:
        """Expected value of the intercept: the link of the response's mean, less the offset."""
        units = self.specification.units
        offset = units[OFFSET].mean if OFFSET in units else 0.0
        if self.family.response == "number":
            return units[RESPONSE].mean - offset
        if not self.family.logarithmic:
            return -offset
        exposure = units[EXPOSURE].mean if EXPOSURE in units else 1.0
        if self.family.response == "time":
            # half an event where there is none
            rate = max(units[EVENT].mean, 0.5 / units[EVENT].rows)
            per = 1.0 if self.family.name == "weibull" else units[TIME].mean
            return math.log(rate / per / exposure)
        return math.log(max(units[RESPONSE].mean, 0.5 / units[RESPONSE].rows) / exposure)

    @cached_property
    def priors(self) -> dict[str, Prior]:
        """The prior of every natural parameter, by its name; one for each coefficient."""
        spec, asked, found = self.specification, dict(self.prior), {}

        def settle(name: str, default: Prior, keys: tuple[str, ...], lower: float) -> None:
            given = [key for key in keys if key in asked]
            found[name] = read_prior(given[0], asked[given[0]], lower) if given else default
            used.update(given)

        used: set[str] = set()
        wide = WIDE * self.spread
        base = Prior("normal", (self.centre, wide), True)
        if self.intercept:
            settle("intercept", base, ("intercept",), -math.inf)
        for name, term, scale in zip(spec.names, spec.term_of, spec.scales, strict=True):
            default = Prior("normal", (0.0, wide / float(scale)), True)
            settle(name, default, (name, term, "coefficients"), -math.inf)
        if self.cuts is not None:
            name = self.cuts[0]
            default = Prior("student_t", (3.0, 0.0, WIDE)) if name == THRESHOLDS else base
            settle(name, default, (name,), -math.inf)
        for one in self.family.auxiliaries:
            words = one.prior.replace("1 / {sd}", repr(1 / self.spread))
            prior = read_prior(one.name, words, one.lower)
            settle(one.name, Prior(prior.form, prior.arguments, True), (one.name,), 0.0)
        for block in spec.blocks:
            default = Prior("half_student_t", (3.0, wide / self.slope_sd(block)), True)
            settle(block.name, default, (block.name, "sd"), 0.0)
        known = [*dict.fromkeys([*found, *spec.term_of])]
        known += ["coefficients"] if spec.names else []
        known += ["sd"] if spec.blocks else []
        known += [CORRELATION] if spec.bundles else []
        for key in asked:
            if key != CORRELATION and key not in used and key not in known:
                raise InputError(f"prior: {key!r} is not a parameter: {unknown(key, known)}.")
        return found

    def slope_sd(self, block: Block) -> float:
        """Return the standard deviation of what a slope is multiplied with; 1 of a level."""
        number = not block.smooth and block.factor and block.level is None
        return self.specification.units[block.factor].sd if number else 1.0

    @cached_property
    def correlation_prior(self) -> LKJ | None:
        """The prior of the correlations between levels and slopes, or None."""
        asked = self.prior.get(CORRELATION)
        if not self.specification.bundles:
            if asked is not None:
                raise InputError(f"prior: {CORRELATION!r}: the formula has no correlated slopes.")
            return None
        return LKJ(1.0, True) if asked is None else read_lkj(CORRELATION, asked)

    # --- parameters ---

    @property
    def start(self) -> dict[str, np.ndarray]:
        """The parameters to start from."""
        spec, found = self.specification, {}
        if self.intercept:
            found["intercept"] = np.full(self.lead, self.centre, np.float32)
        if spec.names:
            found["coefficients"] = np.zeros((*self.lead, len(spec.names)), np.float32)
        if self.cuts is not None:
            name, count = self.cuts
            found[name] = np.full(count, self.centre, np.float32)
            if name == THRESHOLDS:  # the first one, then logarithms of the distances
                found[name] = np.zeros(count, np.float32)
                found[name][0] = -(count - 1) / 2
        for name in (one.name for one in self.family.auxiliaries):
            value = self.spread if name == "sigma" else 1.0
            found[f"log_{name}"] = np.float32(math.log(value)) * np.ones((), np.float32)
        if spec.blocks:
            units = np.array([self.slope_sd(block) for block in spec.blocks])
            found["log_sd"] = np.log(0.3 * self.spread / units).astype(np.float32)
            columns = sum(len(block.columns) for block in spec.blocks)
            if columns:
                found["effects_in_sd"] = np.zeros((*self.lead, columns), np.float32)
        if spec.bundles:
            count = sum(len(one) * (len(one) - 1) // 2 for one in spec.bundles)
            found["correlation_score"] = np.zeros(count, np.float32)
        return found

    def _own(self, params: PyTree) -> dict[str, Array]:
        """Return the family's own parameters on their natural scale, as they are sampled."""
        own = {
            one.name: one.lower + jnp.exp(params[f"log_{one.name}"])
            for one in self.family.auxiliaries
        }
        if self.cuts is not None:
            own[self.cuts[0]] = self._cuts(params)
        return own

    def _cuts(self, params: PyTree) -> Array:
        assert self.cuts is not None
        name, _ = self.cuts
        values = params[name]
        if name != THRESHOLDS:
            return values
        return jnp.cumsum(jnp.concatenate([values[:1], jnp.exp(values[1:])]))

    def _turned(self, params: PyTree) -> tuple[Array, Array]:
        """Return what is added to the intercept, (...), and β, (..., columns)."""
        R = jnp.asarray(self.specification.basis, params["coefficients"].dtype)
        varying = np.array([bool(one or two) for one, two in self.specification.keys])
        natural = params["coefficients"] @ R[:, varying].T
        constant = natural[..., ~varying]
        shift = constant[..., 0] if constant.shape[-1] else jnp.zeros_like(natural[..., 0])
        return shift, natural[..., varying]

    def natural(self, params: PyTree) -> dict[str, Array]:
        """Return the parameters in the units of the columns, of one draw, at zero of the columns.

        So are the intercept, levels of groups, their standard deviations and correlations: where
        all numbers are 0, as lme4 has them.
        """
        found, spec, T = self.at_mean(params), self.specification, self._to_zero
        if (np.eye(len(T)) == T).all():
            return found
        scale = self.group_scale(params, range(len(T)))
        turned = jnp.asarray(T, scale.dtype) @ scale
        covariance = turned @ turned.T
        found["sd"] = jnp.sqrt(jnp.diagonal(covariance))
        if spec.bundles:
            R = covariance / jnp.outer(found["sd"], found["sd"])
            own = [R[one.start : one.stop, one.start : one.stop] for one in spec.bundles]
            found[CORRELATION] = jnp.concatenate([a[np.tril_indices(len(a), -1)] for a in own])
        if "effects" in found:
            parts = [found["effects"][..., self.block_of == place] for place in range(len(T))]
            moved = list(parts)
            for level, slope in zip(*np.nonzero(T - np.eye(len(T))), strict=True):
                if parts[level].shape[-1]:
                    moved[level] = moved[level] + T[level, slope].item() * parts[slope]
            found["effects"] = jnp.concatenate(moved, axis=-1)
        return found

    @cached_property
    def _to_zero(self) -> np.ndarray:
        """T, which takes levels and slopes at the means of the columns to those at zero."""
        spec = self.specification
        T = np.eye(len(spec.blocks))
        for level, one in enumerate(spec.blocks):
            for slope, other in enumerate(spec.blocks):
                number = other.factor and other.level is None and not other.smooth
                if not one.factor and not one.smooth and number and one.by == other.by:
                    T[level, slope] = -spec.units[other.factor].mean
        return T

    @property
    def recipe(self) -> Recipe:
        """Record of `natural`, sufficient to transform all draws together."""
        return Recipe(
            {one.name: one.lower for one in self.family.auxiliaries},
            "" if self.cuts is None else self.cuts[0],
            [[one.start, one.stop] for one in self.specification.bundles],
            self._to_zero.tolist(),
            self.block_of.tolist(),
            self.labels,
            self.scaling,
        )

    @property
    def scaling(self) -> Scaling | None:
        """Transform of intercept and coefficients to the columns; None without coefficients."""
        spec, count = self.specification, len(self.specification.names)
        if not count:
            return None
        basis = np.eye(count + 1)
        varying = [bool(numbers or levels) for numbers, levels in spec.keys]
        basis[1:, 1:] = spec.basis[np.ix_(varying, varying)]
        if spec.has_intercept:
            basis[0, 1:] = spec.basis[varying.index(False), varying]
        rows = tuple(tuple(row) for row in basis.tolist())
        return Scaling(spec.names, (0.0,) * count, (1.0,) * count, None, rows)

    def at_mean(self, params: PyTree) -> dict[str, Array]:
        """Return the same with levels of groups, and their spread, at the means of the columns.

        Their priors are of these; the intercept is at zero.
        """
        spec, found = self.specification, {}
        shift: Array | float = 0.0
        if "coefficients" in params:
            shift, slopes = self._turned(params)
            found["coefficients"] = slopes
        if self.intercept:
            found["intercept"] = params["intercept"] + shift
        own = self._own(params)
        if self.cuts is not None:
            name = self.cuts[0]
            own[name] = own[name] + (-shift if name == THRESHOLDS else shift)
        if spec.blocks:
            sd = jnp.exp(params["log_sd"])
            own["sd"] = sd
            if "effects_in_sd" in params:
                own["effects"] = self._effects(params)
        if spec.bundles:
            factors = self._factors(params)
            both = [L @ L.T for L in factors]
            below = [R[np.tril_indices(len(R), -1)] for R in both]
            own[CORRELATION] = jnp.concatenate(below)
        return found | own

    def _factors(self, params: PyTree) -> list[Array]:
        """Return L of every bundle, L Lᵀ being the correlations of its levels and slopes."""
        free, place, found = params.get("correlation_score"), 0, []
        for bundle in self.specification.bundles:
            count = len(bundle) * (len(bundle) - 1) // 2
            found.append(cholesky(free[place : place + count], len(bundle)))
            place += count
        return found

    def _effects(self, params: PyTree) -> Array:
        """Return levels, slopes and curves that are parameters, (..., columns)."""
        z = params["effects_in_sd"]
        parts = [z[..., self.block_of == place] for place in range(len(self.specification.blocks))]
        for bundle, L in zip(self.specification.bundles, self._factors(params), strict=True):
            if parts[bundle[0]].shape[-1]:
                mixed = jnp.einsum(
                    "jk,...ks->...js", L, jnp.stack(parts[bundle[0] : bundle[-1] + 1], axis=-2)
                )
                for place, one in enumerate(bundle):
                    parts[one] = mixed[..., place, :]
        sd = jnp.exp(params["log_sd"])[self.block_of]
        return jnp.concatenate(parts, axis=-1) * sd.reshape(*[1] * (z.ndim - 1), -1)

    def group_scale(self, params: PyTree, blocks: Sequence[int]) -> Array:
        """Return A, (K, K): levels and slopes of these blocks are A z, z being N(0, I)."""
        spec = self.specification
        size, dtype = len(spec.blocks), params["log_sd"].dtype
        L = jnp.eye(size, dtype=dtype)
        for bundle, one in zip(spec.bundles, self._factors(params), strict=True):
            L = L.at[bundle[0] : bundle[-1] + 1, bundle[0] : bundle[-1] + 1].set(one)
        scaled = jnp.exp(params["log_sd"])[:, None] * L
        places = np.array(blocks, int)
        return scaled[places][:, places]

    @property
    def labels(self) -> dict[str, list[list[str] | None]]:
        """Names along the axes of the natural parameters, the last axis last."""
        spec, lead = self.specification, []
        if self.lead:
            lead = [list(spec.levels[RESPONSE][1:])]
        found: dict[str, list[list[str] | None]] = {"coefficients": [*lead, list(spec.names)]}
        if self.lead:
            found["intercept"] = [*lead]
        if spec.blocks:
            found["sd"] = [[block.name for block in spec.blocks]]
            if self.block_of.size:
                found["effects"] = [
                    *lead,
                    [name for block in spec.blocks for name in block.columns],
                ]
        if spec.bundles:
            found[CORRELATION] = [
                [
                    f"cor({spec.blocks[bundle[column]].term}, {spec.blocks[bundle[row]].term} | "
                    f"{spec.blocks[bundle[row]].by})"
                    for bundle in spec.bundles
                    for row in range(1, len(bundle))
                    for column in range(row)
                ]
            ]
        if self.cuts is not None and self.cuts[0] == THRESHOLDS:
            levels = spec.levels[RESPONSE]
            found[THRESHOLDS] = [[f"{a}|{b}" for a, b in itertools.pairwise(levels)]]
        return {name: axes for name, axes in found.items() if any(axes)}

    @cached_property
    def block_of(self) -> np.ndarray:
        """Index of the block of each column of the blocks."""
        sizes = [len(block.columns) for block in self.specification.blocks]
        return np.repeat(np.arange(len(sizes)), sizes)

    # --- densities ---

    def log_prior(self, params: PyTree) -> Array:
        """Return log p(θ), normalised, with the Jacobians of logarithms."""
        spec, total = self.specification, jnp.zeros((), jax.tree.leaves(params)[0].dtype)
        if self.intercept:
            total += jnp.sum(self.priors["intercept"].log_density(params["intercept"]))
        if "coefficients" in params:
            slopes = self._turned(params)[1]
            for place, name in enumerate(spec.names):
                total += jnp.sum(self.priors[name].log_density(slopes[..., place]))
            # of β given b; R is triangular but for the order of its columns
            _, determinant = np.linalg.slogdet(self._slopes_of_basis)
            total += math.prod(self.lead) * determinant
        if self.cuts is not None:
            name, count = self.cuts
            total += jnp.sum(self.priors[name].log_density(self._cuts(params)))
            if name == THRESHOLDS:
                total += jnp.sum(params[name][1:]) + math.lgamma(count + 1)
        for one in self.family.auxiliaries:
            value = params[f"log_{one.name}"]
            prior = self.priors[one.name]
            total += prior.log_density(one.lower + jnp.exp(value), one.lower) + value
        for place, block in enumerate(spec.blocks):
            value = params["log_sd"][place]
            total += self.priors[block.name].log_density(jnp.exp(value), 0.0) + value
        if "effects_in_sd" in params:
            u = params["effects_in_sd"]
            total += jnp.sum(-0.5 * u**2) - 0.5 * u.size * math.log(2 * math.pi)
        place = 0
        for bundle in spec.bundles:
            assert self.correlation_prior is not None
            count = len(bundle) * (len(bundle) - 1) // 2
            free = params["correlation_score"][place : place + count]
            total += self.correlation_prior.log_density(free, len(bundle))
            place += count
        return total

    @cached_property
    def _slopes_of_basis(self) -> np.ndarray:
        """The rows and columns of R without the intercept's."""
        varying = np.array([bool(one or two) for one, two in self.specification.keys])
        return self.specification.basis[np.ix_(varying, varying)]

    def predictor(self, params: PyTree, batch: PyTree) -> Array:
        """Return η, (rows,) or (rows, classes − 1)."""
        parts = [params["coefficients"]] if "coefficients" in params else []
        if "effects_in_sd" in params:
            parts.append(self._effects(params))
        dtype = jax.tree.leaves(params)[0].dtype
        x = jnp.asarray(batch["x"]).astype(dtype)
        eta = jnp.zeros((x.shape[0], *self.lead), dtype)
        if parts:
            eta = x @ jnp.concatenate(parts, axis=-1).T
        if self.intercept:
            eta = eta + params["intercept"][(None,) * len(self.lead)]
        if "offset" in batch:
            offset = jnp.asarray(batch["offset"]).astype(dtype)
            eta = eta + offset.reshape(*offset.shape, *[1] * (eta.ndim - offset.ndim))
        return eta

    def log_likelihood(self, params: PyTree, batch: PyTree) -> Array:
        """Return log p(y_i | θ), (rows,), times the row's weight where there are weights."""
        eta = self.predictor(params, batch)
        values = self.family.log_likelihood(eta, batch, self._own(params))
        if "weight" in batch:
            values = values * jnp.asarray(batch["weight"]).astype(values.dtype)
        return values

    def site_log_likelihood(
        self, params: PyTree, rows: PyTree, mask: Array, nodes: int | tuple[int, ...] | None = None
    ) -> Array:
        """Return the log-likelihood of all rows of a site, a scalar; see `log_integrals`."""
        if self.family.of_site is not None:
            return self.family.of_site(self.predictor(params, rows), rows, mask)
        dtype = params["log_sd"].dtype
        groups = rows["y"].shape[0] if "group" in rows else 1
        given = partial(self.given_levels, rows=rows, mask=mask)
        size = len(self.specification.staying)
        return jnp.sum(log_integrals(given, params, groups, size, dtype, nodes), axis=-1)

    def given_levels(self, params: PyTree, rows: PyTree, mask: Array) -> Callable[[Array], Array]:
        """Return the log-likelihoods of a site's groups, (groups,), as a function of z (groups, K).

        A z are the levels and slopes that stay at the site, see `group_scale`. Where the site is
        the group there is one, else as many as rows, most of them without any.
        """
        eta, own = self.predictor(params, rows), self._own(params)
        slopes = jnp.asarray(rows["slopes"]).astype(eta.dtype) @ self.group_scale(
            params, self.specification.staying
        )
        weight = jnp.asarray(rows["weight"]).astype(eta.dtype) if "weight" in rows else 1.0
        group = jnp.asarray(rows["group"]).astype(jnp.int32) if "group" in rows else None

        def of_groups(z: Array) -> Array:
            own_z = z if group is None else z[group]
            shift = jnp.sum(slopes * own_z, axis=1)
            values = weight * self.family.log_likelihood(eta + shift, rows, own)
            values = jnp.where(mask, values, 0)
            if group is None:
                return jnp.sum(values)[None]
            return jax.ops.segment_sum(values, group, len(values))

        return of_groups

    def group_sd(self, params: PyTree) -> dict[str, Array]:
        """Return τ/√J of what is common to the sites, 0 of all else; see `Model.group_sd`."""
        spec = self.specification
        found = {name: jnp.zeros_like(jnp.asarray(values)) for name, values in params.items()}
        spreads = jnp.exp(params["log_sd"]) / math.sqrt(len(spec.sites))
        for place in spec.staying:
            term, spread = spec.blocks[place].term, spreads[place]
            if term in spec.names:
                at = spec.names.index(term)
                unit = abs(float(self._slopes_of_basis[at, at])) or 1.0
                found["coefficients"] = found["coefficients"].at[..., at].set(spread / unit)
            elif term == INTERCEPT and self.intercept:
                found["intercept"] = jnp.broadcast_to(spread, found["intercept"].shape)
            elif term == INTERCEPT and self.cuts is not None:
                name = self.cuts[0]  # of thresholds the others are distances from the first
                own = slice(0, 1) if name == THRESHOLDS else slice(None)
                found[name] = found[name].at[own].set(spread)
        return found

    @property
    def by_site(self) -> bool:
        """True if there is a likelihood of each site and none of rows."""
        return self.family.of_site is not None or bool(self.specification.staying)

    def predict(self, params: PyTree, batch: PyTree) -> Array:
        """Return the mean of the response, or the probabilities of its levels."""
        assert self.family.predict is not None
        return self.family.predict(self.predictor(params, batch), batch, self._own(params))

    @property
    def model(self) -> Model:
        """The model, for `consortia.sample`."""
        natural = NaturalOfFormula(self.natural, self.recipe)
        if self.by_site:
            nodes, size = self.specification.question.nodes, len(self.specification.staying)
            rule = integration(self.site_log_likelihood, size, nodes) if size else None
            return Model(
                self.log_prior,
                None,
                self.start,
                natural=natural,
                site_log_likelihood=(
                    self.site_log_likelihood
                    if rule is None or nodes is None
                    else rule.with_nodes(nodes)
                ),
                group_sd=self.group_sd if self.specification.grouping == SITE else None,
                integration=rule,
            )
        predict = None if self.family.predict is None else self.predict
        return Model(
            self.log_prior,
            self.log_likelihood,
            self.start,
            predict=predict,
            natural=natural,
            sandwich=self.specification.question.samples,
        )

    # --- draws of the prior, and of responses ---

    def draw(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        """Return parameters drawn from their prior, as they are sampled, (count, ...) each."""
        spec, found, lead = self.specification, {}, (count, *self.lead)
        if self.intercept:
            found["intercept"] = self.priors["intercept"].draw(rng, lead, -math.inf)
        if spec.names:
            slopes = [self.priors[name].draw(rng, lead, -math.inf) for name in spec.names]
            natural = np.stack(slopes, axis=-1)
            found["coefficients"] = natural @ np.linalg.inv(self._slopes_of_basis).T
        if self.cuts is not None:
            name, size = self.cuts
            cuts = self.priors[name].draw(rng, (count, size), -math.inf)
            if name == THRESHOLDS:
                cuts = np.sort(cuts, axis=1)
                cuts[:, 1:] = np.log(np.diff(cuts, axis=1))
            found[name] = cuts
        for one in self.family.auxiliaries:
            value = self.priors[one.name].draw(rng, (count,), one.lower)
            found[f"log_{one.name}"] = np.log(value - one.lower)
        if spec.blocks:
            sd = [self.priors[block.name].draw(rng, (count,), 0.0) for block in spec.blocks]
            found["log_sd"] = np.log(np.stack(sd, axis=1))
            if self.block_of.size:
                found["effects_in_sd"] = rng.normal(size=(*lead, len(self.block_of)))
        if self.correlation_prior is not None:
            free = [self.correlation_prior.draw(rng, count, len(one)) for one in spec.bundles]
            found["correlation_score"] = np.concatenate(free, axis=1)
        dtype = jnp.result_type(float)
        return {name: np.asarray(values, dtype) for name, values in found.items()}

    def simulated(
        self,
        rng: np.random.Generator,
        params: Mapping[str, np.ndarray],
        batch: PyTree,
        shift: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return responses of the rows of a batch for many parameters, (count, rows).

        ``params`` are as they are sampled, (count, ...) each. ``shift`` (count, rows, ...) is what
        levels and slopes that stay at the sites add to η; they are drawn anew when None.
        """
        batch = {name: np.asarray(values) for name, values in batch.items()}
        rows = batch["x"].shape[0]

        def inside(one: PyTree) -> tuple[Array, dict[str, Array], Array]:
            staying = self.specification.staying
            scale = self.group_scale(one, staying) if staying else jnp.zeros((0, 0))
            return self.predictor(one, batch), self._own(one), scale

        eta, own, scale = jax.tree.map(np.asarray, jax.jit(jax.vmap(inside))(dict(params)))
        if shift is not None:
            eta = eta + shift
        elif self.specification.staying:
            groups = int(batch["group"].max()) + 1 if "group" in batch else 1
            z = rng.normal(size=(len(eta), groups, scale.shape[1]))
            levels = np.einsum("nij,ngj->ngi", scale, z)
            of_rows = levels[:, batch.get("group", np.zeros(rows, int))]
            eta = eta + np.einsum("rk,nrk->nr", batch["slopes"], of_rows)
        given = {**batch, "breaks": np.array(self.specification.breaks)}
        draws = [
            self.family.draw(rng, eta[i], given, {name: value[i] for name, value in own.items()})
            for i in range(len(eta))
        ]
        return np.stack(draws)
