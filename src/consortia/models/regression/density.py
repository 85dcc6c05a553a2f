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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from consortia.core.arguments import unknown
from consortia.core.arrays import Array, namespace, sum_rows, sums_of_groups
from consortia.core.host import STEP
from consortia.errors import wrong
from consortia.models._integrated import GroupDensity, log_integrals
from consortia.models.regression.correlations import LKJ, cholesky, read_lkj
from consortia.models.regression.earlier import Earlier
from consortia.models.regression.families import CUMULATIVE, Family
from consortia.models.regression.formula import SITE
from consortia.models.regression.priors import Prior, read_prior
from consortia.models.regression.profiles import SiteProfile
from consortia.models.regression.question import EVENT, EXPOSURE, OFFSET, RESPONSE, TIME
from consortia.models.regression.specification import INTERCEPT, Block, Specification
from consortia.models.regression.summaries import SiteEstimate, read_summaries
from consortia.runtime.late import float_type

PyTree = Any

WIDE = 2.5
"""Standard deviations of the response, or units of the predictor, for an sd of the predictor."""

THRESHOLDS, HAZARD, CORRELATION = "thresholds", "log_hazard", "correlation"

SAMPLED_CUTS = {THRESHOLDS: THRESHOLDS, HAZARD: "hazard_contrasts"}
"""Names of the same as they are sampled: the first threshold, and logarithms of distances; the
level of the log hazards, by which sites may differ, and distances from the first of them."""


def _over(values: Array, axes: int) -> Array:
    """Return the sum over the last axes."""
    return values.sum(axis=tuple(range(-axes, 0))) if axes else values


def _group_of(rows: PyTree, xp: Any) -> Array | None:
    """Return the index of each row's group; None where the site is one group."""
    if "group" not in rows:
        return None
    return xp.asarray(rows["group"]).astype(xp.int32)


def _below(matrices: Sequence[Array]) -> Array:
    """Return the entries below the diagonals of matrices (..., k, k), one after the other."""
    parts = [matrix[..., *np.tril_indices(matrix.shape[-1], -1)] for matrix in matrices]
    return namespace(parts[0]).concatenate(parts, axis=-1)


@dataclass(frozen=True, eq=False)  # by identity, so that programs are kept for it
class Density:
    """Parameters, priors and likelihood of one specification."""

    specification: Specification  # what the sites agreed on
    prior: Mapping[str, Any]  # in words, as the user gave them
    earlier: Earlier | None = None  # an earlier posterior, which stands in their place
    summaries: Any = None  # by site its estimate and covariance, as the user gave them

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
        """Name and number of what stands instead of an intercept, or None."""
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
        spec, asked, settled = self.specification, dict(self.prior), {}

        def settle(name: str, default: Prior, keys: tuple[str, ...], lower: float) -> None:
            given = [key for key in keys if key in asked]
            settled[name] = read_prior(given[0], asked[given[0]], lower) if given else default
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
        for extra in self.family.auxiliaries:
            words = extra.prior.replace("1 / {sd}", repr(1 / self.spread))
            prior = read_prior(extra.name, words, extra.lower)
            settle(extra.name, Prior(prior.form, prior.arguments, True), (extra.name,), 0.0)
        for block in spec.blocks:
            default = Prior("half_student_t", (3.0, wide / self.slope_sd(block)), True)
            settle(block.name, default, (block.name, "sd"), 0.0)
        known = [*dict.fromkeys([*settled, *spec.term_of])]
        known += ["coefficients"] if spec.names else []
        known += ["sd"] if spec.blocks else []
        known += [CORRELATION] if spec.bundles else []
        for key in asked:
            if key != CORRELATION and key not in used and key not in known:
                raise wrong("prior", f": {key!r} is not a parameter: {unknown(key, known)}.")
        return settled

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
                raise wrong("prior", f": {CORRELATION!r}: the formula has no correlated slopes.")
            return None
        return LKJ(1.0, True) if asked is None else read_lkj(CORRELATION, asked)

    # --- parameters ---

    @cached_property
    def _axes(self) -> dict[str, int]:
        return {name: np.ndim(values) for name, values in self._start_in_words.items()}

    @property
    def start(self) -> dict[str, np.ndarray]:
        """The parameters to start from."""
        words = self._start_in_words
        if self.earlier is None:
            return words
        mean = self.earlier.shares @ self.earlier.centres
        return {
            name: values.astype(np.float32)[0] for name, values in self.unravel(mean[None]).items()
        }

    def unravel(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parameters of flat positions, (count, d)."""
        params, at = {}, 0
        for name, like in sorted(self._start_in_words.items()):
            params[name] = positions[:, at : at + like.size].reshape(-1, *like.shape)
            at += like.size
        return params

    @property
    def _start_in_words(self) -> dict[str, np.ndarray]:
        spec, start = self.specification, {}
        if self.intercept:
            start["intercept"] = np.full(self.lead, self.centre, np.float32)
        if spec.names:
            start["coefficients"] = np.zeros((*self.lead, len(spec.names)), np.float32)
        if self.cuts is not None:
            name, count = self.cuts
            first = self.centre if name == HAZARD else -(count - 1) / 2
            start[SAMPLED_CUTS[name]] = (first * np.eye(count)[0]).astype(np.float32)
        for name in (auxiliary.name for auxiliary in self.family.auxiliaries):
            value = self.spread if name == "sigma" else 1.0
            start[f"log_{name}"] = np.float32(math.log(value)) * np.ones((), np.float32)
        if spec.blocks:
            units = np.array([self.slope_sd(block) for block in spec.blocks])
            start["log_sd"] = np.log(0.3 * self.spread / units).astype(np.float32)
            columns = sum(len(block.columns) for block in spec.blocks)
            if columns:
                start["effects_in_sd"] = np.zeros((*self.lead, columns), np.float32)
        if spec.bundles:
            count = sum(len(bundle) * (len(bundle) - 1) // 2 for bundle in spec.bundles)
            start["correlation_score"] = np.zeros(count, np.float32)
        return start

    def _auxiliary(self, params: PyTree) -> dict[str, Array]:
        """Return the family's own parameters on their natural scale, (...) or (..., cuts)."""
        values = {}
        for auxiliary in self.family.auxiliaries:
            sampled = params[f"log_{auxiliary.name}"]
            values[auxiliary.name] = auxiliary.lower + namespace(sampled).exp(sampled)
        if self.cuts is not None:
            values[self.cuts[0]] = self._cuts(self.cuts[0], params)
        return values

    def _own(self, params: PyTree) -> dict[str, Array]:
        """Return them beside the rows of η, (..., k) each."""
        bounded = {auxiliary.name for auxiliary in self.family.auxiliaries}
        given = {name: params[name] for name in (CUMULATIVE,) if name in params}
        given["breaks"] = np.array(self.specification.breaks)
        return given | {
            name: values[..., None] if name in bounded else values
            for name, values in self._auxiliary(params).items()
        }

    def _cuts(self, name: str, params: PyTree) -> Array:
        values = params[SAMPLED_CUTS[name]]
        xp = namespace(values)
        if name == HAZARD:
            return values @ xp.asarray(np.linalg.inv(self._contrasts).T, values.dtype)
        steps = xp.concatenate([values[..., :1], xp.exp(values[..., 1:])], axis=-1)
        return xp.cumsum(steps, axis=-1)

    def sampled_cuts(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return rising thresholds, or log hazards, (..., cuts), as they are sampled."""
        if name == HAZARD:
            return values @ self._contrasts.T
        return np.concatenate([values[..., :1], np.log(np.diff(values))], axis=-1)

    @cached_property
    def _contrasts(self) -> np.ndarray:
        """The matrix from log hazards to their level, and their distances from the first.

        The level is their mean by the shares of intervals in exponential times of the agreed mean.
        """
        ends = np.array([0.0, *self.specification.breaks, np.inf])
        shares = -np.diff(np.exp(-ends / self.specification.units[TIME].mean))
        return np.concatenate([shares[None], np.eye(len(shares))[1:] - np.eye(len(shares))[:1]])

    def _turned(self, params: PyTree) -> tuple[Array, Array]:
        """Return the addends of the intercept, (...), and of β, (..., columns)."""
        xp, varying = namespace(params["coefficients"]), self.specification.varying
        R = xp.asarray(self.specification.basis, params["coefficients"].dtype)
        natural = params["coefficients"] @ R[:, varying].T
        constants = natural[..., ~varying]
        shift = constants[..., 0] if constants.shape[-1] else xp.zeros_like(natural[..., 0])
        return shift, natural[..., varying]

    def natural(self, params: PyTree) -> dict[str, Array]:
        """Return the parameters in the units of the columns, at zero of the columns.

        So are the intercept, levels of groups, their standard deviations and correlations: where
        all numbers are 0, as lme4 has them.
        """
        values, spec, T = self.at_mean(params), self.specification, self._to_zero
        if (np.eye(len(T)) == T).all():
            return values
        scale = self.group_scale(params, range(len(T)))
        xp = namespace(scale)
        turned = xp.asarray(T, scale.dtype) @ scale
        covariance = turned @ xp.swapaxes(turned, -1, -2)
        sd = values["sd"] = xp.sqrt(xp.diagonal(covariance, axis1=-2, axis2=-1))
        if spec.bundles:
            R = covariance / (sd[..., :, None] * sd[..., None, :])
            bundles = [R[..., b.start : b.stop, b.start : b.stop] for b in spec.bundles]
            values[CORRELATION] = _below(bundles)
        if "effects" in values:
            parts = [values["effects"][..., self.block_of == block] for block in range(len(T))]
            moved = list(parts)
            for level, slope in zip(*np.nonzero(T - np.eye(len(T))), strict=True):
                if parts[level].shape[-1]:
                    moved[level] = moved[level] + T[level, slope].item() * parts[slope]
            values["effects"] = xp.concatenate(moved, axis=-1)
        return values

    @cached_property
    def _to_zero(self) -> np.ndarray:
        """T, which takes levels and slopes at the means of the columns to those at zero."""
        spec = self.specification
        T = np.eye(len(spec.blocks))
        for level, block in enumerate(spec.blocks):
            for slope, other in enumerate(spec.blocks):
                number = other.factor and other.level is None and not other.smooth
                if not block.factor and not block.smooth and number and block.by == other.by:
                    T[level, slope] = -spec.units[other.factor].mean
        return T

    def at_mean(self, params: PyTree) -> dict[str, Array]:
        """Return the same with levels of groups, and their spread, at the means of the columns.

        Their priors are of these; the intercept is at zero.
        """
        spec, natural = self.specification, {}
        shift: Any = 0.0
        if "coefficients" in params:
            shift, natural["coefficients"] = self._turned(params)
        if self.intercept:
            natural["intercept"] = params["intercept"] + shift
        natural |= self._auxiliary(params)
        if self.cuts is not None and "coefficients" in params:
            name = self.cuts[0]
            natural[name] = natural[name] + (-shift if name == THRESHOLDS else shift)[..., None]
        if spec.blocks:
            natural["sd"] = namespace(params["log_sd"]).exp(params["log_sd"])
            if "effects_in_sd" in params:
                natural["effects"] = self._effects(params)
        if spec.bundles:
            factors = self._factors(params)
            natural[CORRELATION] = _below([L @ L.swapaxes(-1, -2) for L in factors])
        return natural

    def _factors(self, params: PyTree) -> list[Array]:
        """Return L of every bundle, L Lᵀ being the correlations of its levels and slopes."""
        return [cholesky(free, len(bundle)) for bundle, free in self._scores_of_bundles(params)]

    def _scores_of_bundles(self, params: PyTree) -> Iterator[tuple[range, Array]]:
        """Yield the blocks of every bundle, and the scores of their correlations."""
        offset = 0
        for bundle in self.specification.bundles:
            count = len(bundle) * (len(bundle) - 1) // 2
            yield bundle, params["correlation_score"][..., offset : offset + count]
            offset += count

    def _effects(self, params: PyTree) -> Array:
        """Return levels, slopes and curves that are parameters, (..., columns)."""
        z = params["effects_in_sd"]
        xp = namespace(z)
        parts = [z[..., self.block_of == index] for index in range(len(self.specification.blocks))]
        for bundle, L in zip(self.specification.bundles, self._factors(params), strict=True):
            if parts[bundle[0]].shape[-1]:
                together = xp.stack(parts[bundle[0] : bundle[-1] + 1], axis=-2)
                mixed = self._of_classes(L, 2) @ together
                for index, block in enumerate(bundle):
                    parts[block] = mixed[..., index, :]
        sd = xp.exp(params["log_sd"])[..., self.block_of]
        return xp.concatenate(parts, axis=-1) * self._of_classes(sd, 1)

    def _of_classes(self, values: Array, axes: int) -> Array:
        """Return values with an axis of 1 for each one of the classes, before the last axes."""
        shape = values.shape[: values.ndim - axes], values.shape[values.ndim - axes :]
        return values.reshape(*shape[0], *[1] * len(self.lead), *shape[1])

    def group_scale(self, params: PyTree, blocks: Sequence[int]) -> Array:
        """Return A, (..., K, K): levels and slopes of these blocks are A z, z being N(0, I)."""
        spec, log_sd = self.specification, params["log_sd"]
        xp, size, dtype = namespace(log_sd), len(spec.blocks), params["log_sd"].dtype
        alone = np.eye(size)
        for bundle in spec.bundles:
            alone[bundle.start : bundle.stop] = 0
        L = xp.asarray(alone, dtype)
        for bundle, factor in zip(spec.bundles, self._factors(params), strict=True):
            at = xp.asarray(np.eye(size)[:, bundle.start : bundle.stop], dtype)
            L = L + at @ factor @ at.T
        scaled = xp.exp(log_sd)[..., :, None] * L
        places = np.array(blocks, int)
        return scaled[..., places[:, None], places[None, :]]

    @property
    def labels(self) -> dict[str, list[list[str] | None]]:
        """Names along the axes of the natural parameters, the last axis last."""
        spec, lead = self.specification, []
        if self.lead:
            lead = [list(spec.levels[RESPONSE][1:])]
        labels: dict[str, list[list[str] | None]] = {"coefficients": [*lead, list(spec.names)]}
        if self.lead:
            labels["intercept"] = [*lead]
        if spec.blocks:
            labels["sd"] = [[block.name for block in spec.blocks]]
            if self.block_of.size:
                labels["effects"] = [
                    *lead,
                    [name for block in spec.blocks for name in block.columns],
                ]
        if spec.bundles:
            labels[CORRELATION] = [
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
            labels[THRESHOLDS] = [[f"{a}|{b}" for a, b in itertools.pairwise(levels)]]
        return {name: axes for name, axes in labels.items() if any(axes)}

    @cached_property
    def block_of(self) -> np.ndarray:
        """Index of the block of each column of the blocks."""
        sizes = [len(block.columns) for block in self.specification.blocks]
        return np.repeat(np.arange(len(sizes)), sizes)

    @property
    def between_sites(self) -> list[list[Any]]:
        """Indices that read the effects that differ between sites out of draws, without the study.

        Of each: the term, the index of the common coefficient (None of a level), that of the
        standard deviation, and those of the sites' effects. Empty where the draws alone do not have
        them: correlated, integrated out, or of several classes.
        """
        spec = self.specification
        if self.lead or spec.bundles or spec.grouping == SITE:
            return []
        slopes = {name: index for index, name in enumerate(spec.names)}
        return [
            [block.term, slopes.get(block.term), i, np.flatnonzero(self.block_of == i).tolist()]
            for i, block in enumerate(spec.blocks)
            if block.by == SITE
        ]

    # --- densities ---

    def log_prior(self, params: PyTree) -> Array:
        """Return log p(θ), (...), with the Jacobians of logarithms; of words it is normalised."""
        total = self._log_prior_in_words(params)
        if self.earlier is not None:
            total = self.earlier.log_prior(params, total, self._axes)
        if self.site_estimates:
            spec, natural, scale = self.specification, self.at_mean(params), None
            if spec.blocks:
                scale = self.group_scale(params, range(len(spec.blocks)))
                scale = namespace(scale).asarray(self._to_zero, scale.dtype) @ scale
            for sent in self.site_estimates:
                total = total + sent.log_likelihood(spec, natural, scale)
        return total

    @cached_property
    def site_estimates(self) -> tuple[SiteEstimate | SiteProfile, ...]:
        """Estimates of sites without rows."""
        known = [] if self.lead else ["intercept"] * self.intercept + [*self.specification.names]
        return read_summaries(self.summaries, self.specification, known)

    def _log_prior_in_words(self, params: PyTree) -> Array:
        spec, total, lead = self.specification, 0.0, len(self.lead)
        if self.intercept:
            total += _over(self.priors["intercept"].log_density(params["intercept"]), lead)
        if "coefficients" in params:
            slopes, (centres, scales, priors) = self._turned(params)[1], self._slope_priors
            centre, scale = (
                namespace(slopes).asarray(np.broadcast_to(of, slopes.shape), slopes.dtype)
                for of in (centres, scales)
            )
            units = (slopes - centre) / scale
            for prior, places in priors.items():
                total += _over(prior.log_density(units[..., places]), lead + 1)
            total -= math.prod(self.lead) * float(np.log(scales).sum())
            # of β given b; R is triangular but for the order of its columns
            _, determinant = np.linalg.slogdet(self.slopes_of_basis)
            total += math.prod(self.lead) * float(determinant)
        if self.cuts is not None:
            name, count = self.cuts
            total += _over(self.priors[name].log_density(self._cuts(name, params)), 1)
            if name == THRESHOLDS:
                total += _over(params[name][..., 1:], 1) + math.lgamma(count + 1)
        for auxiliary in self.family.auxiliaries:
            value, prior = params[f"log_{auxiliary.name}"], self.priors[auxiliary.name]
            bounded = auxiliary.lower + namespace(value).exp(value)
            total += prior.log_density(bounded, auxiliary.lower) + value
        for index, block in enumerate(spec.blocks):
            value = params["log_sd"][..., index]
            total += self.priors[block.name].log_density(namespace(value).exp(value), 0.0) + value
        if "effects_in_sd" in params:
            u = params["effects_in_sd"]
            numbers = math.prod(u.shape[u.ndim - lead - 1 :])
            total += _over(-0.5 * u**2, lead + 1) - 0.5 * numbers * math.log(2 * math.pi)
        for bundle, free in self._scores_of_bundles(params):
            assert self.correlation_prior is not None
            total += self.correlation_prior.log_density(free, len(bundle))
        return total

    def prior_slopes(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compute the gradient of log p by the coefficients, whose laws are independent of β.

        A central difference of each law in its own unit is exact to some 1e-8: two evaluations in
        place of two for each coefficient.
        """
        if "coefficients" not in params:
            return {}
        slopes, (centres, scales, priors) = self._turned(params)[1], self._slope_priors
        units, gradient = (slopes - centres) / scales, np.empty_like(slopes)
        for prior, places in priors.items():
            high, low = (prior.log_density(units[..., places] + by) for by in (STEP, -STEP))
            gradient[..., places] = (high - low) / (2 * STEP)
        return {"coefficients": gradient / scales @ self.slopes_of_basis}

    @cached_property
    def _slope_priors(self) -> tuple[np.ndarray, np.ndarray, dict[Prior, Any]]:
        """Centres and scales of the coefficients' priors, and who has which law in these units."""
        names = self.specification.names
        parts = [self.priors[name].in_units() for name in names]
        laws: dict[Prior, list[int]] = {}
        for index, (law, _, _) in enumerate(parts):
            laws.setdefault(law, []).append(index)
        centres, scales = (np.array([part[k] for part in parts]) for k in (1, 2))
        places = {law: slice(None) if len(laws) == 1 else np.array(at) for law, at in laws.items()}
        return centres, scales, places

    @cached_property
    def slopes_of_basis(self) -> np.ndarray:
        """The rows and columns of R without the intercept's."""
        varying = self.specification.varying
        return self.specification.basis[np.ix_(varying, varying)]

    def predictor(self, params: PyTree, batch: PyTree) -> Array:
        """Return η, (..., rows) or (..., rows, classes − 1)."""
        parts = [params["coefficients"]] if "coefficients" in params else []
        if "effects_in_sd" in params:
            parts.append(self._effects(params))
        example = next(iter(params.values()))
        xp, dtype = namespace(example), example.dtype
        x = xp.asarray(batch["x"], dtype)
        eta = xp.zeros((*self.lead, x.shape[0]), dtype)
        if parts:
            effects = xp.concatenate(parts, axis=-1)
            eta = effects @ x[:, : effects.shape[-1]].T  # arrays may be padded
        if self.intercept:
            eta = eta + params["intercept"][..., None]
        if self.lead:
            eta = xp.swapaxes(eta, -1, -2)
        if "offset" in batch:
            offset = xp.asarray(batch["offset"], dtype)
            eta = eta + offset.reshape(*offset.shape, *[1] * len(self.lead))
        return eta

    def log_likelihood(self, params: PyTree, batch: PyTree) -> Array:
        """Return log p(y_i | θ), (..., rows), times the row's weight where there are weights."""
        eta = self.predictor(params, batch)
        return self.weighted(self.family.log_likelihood(eta, batch, self._own(params)), batch)

    def weighted(self, values: Array, batch: PyTree) -> Array:
        """Return values of rows, (..., rows), times their weights where there are weights."""
        if "weight" in batch:
            return values * namespace(values).asarray(batch["weight"]).astype(values.dtype)
        return values

    def site_log_likelihood(
        self, params: PyTree, rows: PyTree, mask: Array, nodes: int | tuple[int, ...] | None = None
    ) -> Array:
        """Return the log-likelihood of all rows of a site, (...); see `log_integrals`."""
        if self.family.of_site is not None:
            return self.family.of_site(self.predictor(params, rows), rows, mask)
        groups = 1
        if "group" in rows:  # compiled programs have room for as many as rows
            on_host = namespace(params["log_sd"]) is np
            groups = int(np.max(rows["group"])) + 1 if on_host else rows["y"].shape[0]
        given = partial(self.given_levels, rows=rows, mask=mask, groups=groups)
        size, like = len(self.specification.staying), params["log_sd"]
        begun = like.shape[:-1], groups, size
        return log_integrals(given, params, begun, like, nodes).sum(axis=-1)

    def independent_parts(self, params: PyTree, rows: PyTree, mask: Array) -> Array:
        """Return parts of a site's log-likelihood whose scores count as independent, (..., parts).

        They are those of rows, or of clusters of rows.
        """
        eta = self.predictor(params, rows)
        xp = namespace(eta)
        if self.family.parts_of_site is not None:
            values = self.family.parts_of_site(eta, rows, mask)
        else:
            values = self.family.log_likelihood(eta, rows, self._own(params))
            values = xp.where(mask, self.weighted(values, rows), 0)
        if "cluster" not in rows:
            return values
        clusters = xp.asarray(rows["cluster"]).astype(xp.int32)
        return sums_of_groups(values, clusters, values.shape[-1])

    def predictor_given(
        self, params: PyTree, rows: PyTree, scale: Array | None = None
    ) -> Callable[[Array], Array]:
        """Return η as a function of z (..., groups, K), see `given_levels`; ``scale`` is A."""
        eta = self.predictor(params, rows)
        A = self.group_scale(params, self.specification.staying) if scale is None else scale
        xp = namespace(eta)
        slopes, group = xp.asarray(rows["slopes"]).astype(eta.dtype), _group_of(rows, xp)

        def predictor(z: Array) -> Array:
            levels = (z @ xp.swapaxes(A, -1, -2)).astype(eta.dtype)
            if group is None:  # one product of matrices for all points
                return eta + levels[..., 0, :] @ slopes.T
            return (levels[..., group, :] * slopes).sum(axis=-1) + eta

        return predictor

    def given_levels(
        self, params: PyTree, rows: PyTree, mask: Array, groups: int | None = None
    ) -> GroupDensity:
        """Return the density of a site's groups, given z (..., groups, K).

        A z are the levels and slopes that stay at the site, see `group_scale`. Where the site is
        the group there is one; by default as many as rows, most of them without any.
        """
        xp, A = namespace(params["log_sd"]), self.group_scale(params, self.specification.staying)
        predictor, extras = self.predictor_given(params, rows, A), self._own(params)
        slopes, group = xp.asarray(rows["slopes"]).astype(A.dtype), _group_of(rows, xp)
        count = (1 if group is None else len(slopes)) if groups is None else groups
        size = slopes.shape[1]
        pairs = [(i, j) for i in range(size) for j in range(i, size)]
        products = xp.stack([slopes[:, i] * slopes[:, j] for i, j in pairs], axis=1)

        def real(values: Array) -> Array:
            values = self.weighted(values, rows)
            return values if xp is np else xp.where(mask, values, 0)

        def times(values: Array, columns: Array) -> Array:
            """Return the sums over each group's rows of values times columns, (..., groups, k)."""
            if group is None:
                return (real(values) @ columns)[..., None, :]
            parts = sums_of_groups(real(values)[..., None, :] * columns.T, group, count)
            return xp.swapaxes(parts, -1, -2)

        def summed(values: Array) -> Array:
            if group is None:
                return sum_rows(real(values))[..., None]
            return sums_of_groups(real(values), group, count)

        def log_likelihoods(z: Array) -> Array:
            return summed(self.family.log_likelihood(predictor(z), rows, extras))

        def derivatives(z: Array) -> tuple[Array, Array]:
            assert self.family.slopes is not None
            first, second = self.family.slopes(predictor(z), rows, extras)
            gradient, upper = times(first, slopes), times(second, products)
            at = [[pairs.index((min(i, j), max(i, j))) for j in range(size)] for i in range(size)]
            matrix = upper[..., np.array(at)]
            turn = A[..., None, :, :]
            along = xp.swapaxes(turn, -1, -2)
            return (along @ gradient[..., None])[..., 0], along @ matrix @ turn

        return GroupDensity(log_likelihoods, math.prod(A.shape[:-2]) * len(slopes), derivatives)

    @cached_property
    def _common(self) -> dict[int, tuple[str, int, float]]:
        """The parameter that is common, its entry and its factor, of each block of the sites."""
        spec, common = self.specification, dict[int, tuple[str, int, float]]()
        for block in spec.staying:
            term = spec.blocks[block].term
            if term in spec.names:
                index = spec.names.index(term)
                common[block] = "coefficients", index, float(self.slopes_of_basis[index, index])
            elif term == INTERCEPT and self.intercept:
                common[block] = "intercept", 0, 1.0
            elif term == INTERCEPT and self.cuts is not None:
                common[block] = SAMPLED_CUTS[self.cuts[0]], 0, 1.0
        return common

    def group_sd(self, params: PyTree) -> dict[str, Array]:
        """Return τ/√J of what is common to the sites, 0 of all else; see `Model.group_sd`."""
        xp = namespace(params["log_sd"])
        spreads = xp.exp(params["log_sd"]) / math.sqrt(len(self.specification.sites))
        common = {name: xp.zeros_like(xp.asarray(values)) for name, values in params.items()}
        for block, (name, index, factor) in self._common.items():
            spread = spreads[..., block]
            if name != "intercept":
                units = np.eye(common[name].shape[-1])[index] / (abs(factor) or 1.0)
                spread = xp.asarray(units, spreads.dtype) * spread[..., None]
            common[name] = common[name] + spread
        return common

    def group_bundles(self, params: PyTree) -> list[tuple[tuple[tuple[str, int], ...], Array]]:
        """Return the members of each bundle that are common to the sites, and L of all points."""
        known, bundles = {} if self.lead else self._common, []
        for bundle, L in zip(self.specification.bundles, self._factors(params), strict=True):
            if known.keys() >= set(bundle):
                names, entries, factors = zip(*(known[block] for block in bundle), strict=True)
                signs = np.sign(factors)[:, None]
                bundles.append((tuple(zip(names, entries, strict=True)), signs * L))
        return bundles

    @property
    def by_site(self) -> bool:
        """True if there is a likelihood of each site and none of rows."""
        return self.family.of_site is not None or bool(self.specification.staying)

    def predict(self, params: PyTree, batch: PyTree) -> Array:
        """Return the mean of the response, or the probabilities of its levels, (..., rows)."""
        assert self.family.predict is not None
        return self.family.predict(self.predictor(params, batch), batch, self._own(params))

    # --- draws of the prior, and of responses ---

    def draw(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        """Return parameters drawn from their prior, as they are sampled, (count, ...) each.

        Raises:
            InputError: it is an earlier posterior of a weight below 1, or has estimates of sites,
                which nothing draws from.
        """
        if self.site_estimates:
            raise wrong("summaries", ": a prior with estimates of sites cannot be simulated.")
        if self.earlier is None:
            return self._draw_in_words(rng, count)
        if self.earlier.weight < 1:
            raise wrong("prior_from", ": a prior with a weight below 1 cannot be simulated.")
        earlier_draws = self.unravel(self.earlier.draw(rng, count))
        wide = rng.random(count) < self.earlier.robust
        words = self._draw_in_words(rng, count)
        mixed = {}
        for name, values in earlier_draws.items():
            chosen = wide.reshape(-1, *[1] * (values.ndim - 1))
            mixed[name] = np.where(chosen, words[name], values).astype(float_type())
        return mixed

    def _draw_in_words(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        spec, draws, lead = self.specification, {}, (count, *self.lead)
        if self.intercept:
            draws["intercept"] = self.priors["intercept"].draw(rng, lead, -math.inf)
        if spec.names:
            slopes = [self.priors[name].draw(rng, lead, -math.inf) for name in spec.names]
            natural = np.stack(slopes, axis=-1)
            draws["coefficients"] = natural @ np.linalg.inv(self.slopes_of_basis).T
        if self.cuts is not None:
            name, size = self.cuts
            cuts = self.priors[name].draw(rng, (count, size), -math.inf)
            cuts = np.sort(cuts) if name == THRESHOLDS else cuts
            draws[SAMPLED_CUTS[name]] = self.sampled_cuts(name, cuts)
        for auxiliary in self.family.auxiliaries:
            value = self.priors[auxiliary.name].draw(rng, (count,), auxiliary.lower)
            draws[f"log_{auxiliary.name}"] = np.log(value - auxiliary.lower)
        if spec.blocks:
            sd = [self.priors[block.name].draw(rng, (count,), 0.0) for block in spec.blocks]
            draws["log_sd"] = np.log(np.stack(sd, axis=1))
            if self.block_of.size:
                draws["effects_in_sd"] = rng.normal(size=(*lead, len(self.block_of)))
        if self.correlation_prior is not None:
            free = [self.correlation_prior.draw(rng, count, len(bundle)) for bundle in spec.bundles]
            draws["correlation_score"] = np.concatenate(free, axis=1)
        return {name: np.asarray(values, float_type()) for name, values in draws.items()}

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

        wide = {name: np.asarray(values, float) for name, values in params.items()}
        eta, extras = self.predictor(wide, batch), self._own(wide)
        if shift is not None:
            eta = eta + shift
        elif self.specification.staying:
            groups = int(batch["group"].max()) + 1 if "group" in batch else 1
            scale = self.group_scale(wide, self.specification.staying)
            z = rng.normal(size=(len(eta), groups, scale.shape[-1]))
            levels = np.einsum("nij,ngj->ngi", scale, z)
            of_rows = levels[:, batch.get("group", np.zeros(rows, int))]
            eta = eta + np.einsum("rk,nrk->nr", batch["slopes"], of_rows)
        breaks = {"breaks": extras.pop("breaks", None)}
        if not (extras or self.lead):  # from the same numbers as one draw after the other
            return self.family.draw(rng, eta, batch, breaks)
        draws = [
            self.family.draw(rng, eta[i], batch, breaks | {k: v[i] for k, v in extras.items()})
            for i in range(len(eta))
        ]
        return np.stack(draws)
