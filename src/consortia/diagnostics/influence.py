r"""Influence of each site and of the prior on a result, by weights on its draws.

.. math::
    w_s \propto 1 / L_c(\theta_s) \quad (\text{without site } c), \qquad
    w_s \propto p(\theta_s)^{\alpha - 1} \quad (\text{with the prior to the power } \alpha)

with :math:`\theta_s` draw s of S, :math:`L_c` the likelihood of site c and p the prior. ArviZ
smooths the weights w and estimates their k-hat (PSIS). To be left out, a site weights the draws
itself: means, standard deviations and k-hat leave it, and no log-likelihood does.

Source: Vehtari, Simpson, Gelman, Yao, Gabry, "Pareto smoothed importance sampling" (2024);
Kallioinen, Paananen, Bürkner, Vehtari, "Detecting and diagnosing prior and likelihood sensitivity
with power-scaling" (2024).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.arguments import hinted
from consortia.core.model import Model
from consortia.core.parameters import coordinate_names, split, structure_of, variables
from consortia.core.pareto import RELIABLE
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.diagnostics.left_out import log_likelihoods, of_sites, positions_of
from consortia.diagnostics.natural import Quantities
from consortia.diagnostics.summary import Shown
from consortia.engines.contract import Engine
from consortia.engines.local import LocalEngine
from consortia.runtime.late import Array, PyTree, jax, jnp

Labels = Mapping[str, Sequence[Sequence[str] | None]]
"""Names along each axis of a parameter, None for an axis without names, by the parameter's name."""

Draws = Float[np.ndarray, "S d"]

MOST_DRAWS = 4000
"""Draws that are weighted, evenly spaced if a run has more."""

POWERS = (0.8, 1.25)
"""α on both sides of 1, which is half-way between them on a log scale."""

SENSITIVE = 0.05
"""Measure of Kallioinen and others from which on a parameter is called sensitive."""


@dataclass(frozen=True, eq=False, repr=False)
class WithoutSites(Shown):
    """The posterior without each of the sites; `str` renders how far each of them moves it.

    Attributes:
        names: of the parameters, on the model's natural scale where it has one.
        sites: names.
        mean: with all sites, (parameters,).
        sd: likewise.
        means: without each site, (sites, parameters).
        sds: likewise.
        k_hat: of each site's weights, (sites,); above .7 a line is not to be trusted.

    Example:
        >>> unit, line = np.ones(1), np.ones((1, 1))
        >>> print(WithoutSites(("dose",), ("oslo",), unit, unit, 3 * line, line, 0.1 * unit))
        without  moves most  by (sd)  its sd by  k-hat
        oslo           dose    +2.00     x 1.00   0.10
    """

    names: tuple[str, ...]
    sites: tuple[str, ...]
    mean: np.ndarray
    sd: np.ndarray
    means: np.ndarray
    sds: np.ndarray
    k_hat: np.ndarray

    @property
    def shifts(self) -> np.ndarray:
        """Shifts of the means without a site, in standard deviations, (sites, parameters)."""
        return (self.means - self.mean) / self.sd

    @property
    def _tables(self) -> list[list[list[str]]]:
        rows = [["without", "moves most", "by (sd)", "its sd by", "k-hat"]]
        for index, site in enumerate(self.sites):
            farthest = int(np.argmax(np.abs(self.shifts[index])))
            wider = self.sds[index, farthest] / self.sd[farthest]
            shift = self.shifts[index, farthest]
            k, name = self.k_hat[index], self.names[farthest]
            rows.append([site, name, f"{shift:+.2f}", f"x {wider:.2f}", f"{k:.2f}"])
        return [rows]

    @property
    def notes(self) -> tuple[str, ...]:
        """The sites whose line is not to be trusted."""
        bad = [site for site, k in zip(self.sites, self.k_hat, strict=True) if not k <= RELIABLE]
        if not bad:
            return ()
        return (
            f"k-hat is above {RELIABLE}: do not use the line of {', '.join(bad)}; run the study "
            "without the rows of that site",
        )

    def to_dataframe(self) -> Any:
        """Return mean, sd, shift and k_hat, a line for each site and parameter."""
        import pandas as pd  # heavy, and only wanted here

        count, d = self.means.shape
        columns = {
            "site": np.repeat(self.sites, d),
            "parameter": np.tile(self.names, count),
            "mean": self.means.ravel(),
            "sd": self.sds.ravel(),
            "shift": self.shifts.ravel(),
            "k_hat": np.repeat(self.k_hat, d),
        }
        return pd.DataFrame(columns)


@hinted
def leave_one_site_out(
    tree: Any,
    model: Model,
    sites: Sites,
    *,
    labels: Labels | None = None,
    engine: Engine | None = None,
) -> WithoutSites:
    """Return the posterior without each site, from the draws of the run with all of them.

    Args:
        tree: result of a run; None in processes that keep nothing.
        model: of the run.
        sites: of the run.
        labels: names along the axes of the parameters, as `Regression.labels` has them.
        engine: where the rows are in several processes, which all make the same call. Draws go to
            them, and moments and k-hat come back.

    Returns:
        Means, standard deviations and k-hat for each site that is left out, and their table. A
        site's own parameters keep their prior without it: integrate them out, or k-hat is high.

    Raises:
        InputError: the draws have weights or are fewer than 100, or rows are in no process.

    Example:
        >>> from consortia import diagnostics
        >>> print(diagnostics.leave_one_site_out(tree, model, sites))  # doctest: +SKIP
    """
    used_engine: Engine = LocalEngine() if engine is None else engine
    drawn = positions_of("leave_one_site_out", [(tree, model)], used_engine, MOST_DRAWS)[0]
    target = Target(model, structure_of(model.init))
    names, values = natural_of(model, target, drawn, labels)

    def of_site(index: int) -> dict[str, Any]:
        logs = _summed(target, drawn, sites.shards[index])
        share, k = smoothed(-logs)
        mean, sd = moments_of(values, share)
        return {"mean": mean.tolist(), "sd": sd.tolist(), "k": k}

    answers = of_sites(used_engine, sites, of_site)
    mean, sd = moments_of(values, np.full(len(values), 1 / len(values)))
    means, sds, k_hat = (
        np.array([answer[key] for answer in answers]) for key in ("mean", "sd", "k")
    )
    return WithoutSites(names, sites.names, mean, sd, means, sds, k_hat)


@dataclass(frozen=True, eq=False, repr=False)
class PriorSensitivity(Shown):
    """Dependence of each parameter on the prior; `str` renders the table.

    Attributes:
        names: of the parameters, on the model's natural scale where it has one.
        shift: by how many standard deviations a mean moves when the prior counts twice,
            (parameters,): between its powers .8 and 1.25.
        sd_ratio: by what a standard deviation is multiplied then.
        measure: of Kallioinen and others, by ArviZ's `psense`; above .05 a parameter is sensitive.
        likelihood: the same for the power of the likelihood; NaN without ``sites``.
        k_hat: the larger of both weights of the prior's powers.

    Example:
        >>> unit = np.ones(1)
        >>> PriorSensitivity(("dose",), 0.5 * unit, unit, 0.2 * unit, 0.01 * unit, 0.1).findings
        ('the prior dominates, the data are weak',)
    """

    names: tuple[str, ...]
    shift: np.ndarray
    sd_ratio: np.ndarray
    measure: np.ndarray
    likelihood: np.ndarray
    k_hat: float

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences on what the two measures say of each parameter."""
        sentences = []
        for prior, likelihood in zip(self.measure, self.likelihood, strict=True):
            if prior < SENSITIVE:
                sentences.append("")
            elif np.isnan(likelihood):
                sentences.append("the prior matters")
            elif likelihood < SENSITIVE:
                sentences.append("the prior dominates, the data are weak")
            else:
                sentences.append("prior and data may disagree")
        return tuple(sentences)

    @property
    def _tables(self) -> list[list[list[str]]]:
        rows = [["", "prior", "likelihood", "twice the prior (sd)", "its sd by", ""]]
        columns = (self.measure, self.likelihood, self.shift, self.sd_ratio)
        for name, prior, likelihood, shift, ratio, finding in zip(
            self.names, *columns, self.findings, strict=True
        ):
            shown = "" if np.isnan(likelihood) else f"{likelihood:.2f}"
            rows.append([name, f"{prior:.2f}", shown, f"{shift:+.2f}", f"x {ratio:.2f}", finding])
        return [rows]

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons not to trust the lines."""
        if self.k_hat <= RELIABLE:
            return ()
        return (f"k-hat is {self.k_hat:.2f}, above {RELIABLE}: run with another prior to find out",)

    def to_dataframe(self) -> Any:
        """Return all columns, a line for each parameter."""
        import pandas as pd  # heavy, and only wanted here

        columns = {
            "prior": self.measure,
            "likelihood": self.likelihood,
            "shift": self.shift,
            "sd_ratio": self.sd_ratio,
            "finding": self.findings,
        }
        return pd.DataFrame(columns, index=list(self.names))


@hinted
def prior_sensitivity(
    tree: Any,
    model: Model,
    sites: Sites | None = None,
    *,
    log_prior: Callable[[PyTree], Any] | None = None,
    labels: Labels | None = None,
    engine: Engine | None = None,
) -> PriorSensitivity:
    """Measure each parameter's dependence on the prior, by scaling its power.

    The sites send nothing unless they are given, for the measure of the likelihood: then each adds
    up its log-likelihood at up to 4,000 draws, in one message.

    Args:
        tree: result of a run; None in processes that keep nothing.
        model: of the run.
        sites: of the run, for the likelihood's measure.
        log_prior: of the parameters, the part of the prior that is scaled; `Model.log_prior` when
            None. That one has the Jacobians of parameters that are sampled on another scale.
        labels: names along the axes of the parameters, as `Regression.labels` has them.
        engine: where the rows are in several processes, which all make the same call.

    Returns:
        Measures, shifts and what they say, and their table.

    Raises:
        InputError: the draws have weights or are fewer than 100, or rows are in no process.

    Example:
        >>> from consortia import diagnostics
        >>> print(diagnostics.prior_sensitivity(tree, model))  # doctest: +SKIP
    """
    used_engine: Engine = LocalEngine() if engine is None else engine
    drawn = positions_of("prior_sensitivity", [(tree, model)], used_engine, MOST_DRAWS)[0]
    target = Target(model, structure_of(model.init))
    names, values = natural_of(model, target, drawn, labels)
    prior = _log_prior(target, log_prior, drawn)
    weighted = [smoothed((power - 1) * prior) for power in POWERS]
    moments = [moments_of(values, share) for share, _ in weighted]
    sd = values.std(axis=0, ddof=1)
    doublings = np.log2(POWERS[1] / POWERS[0])  # of the prior's power between both
    shift = (moments[1][0] - moments[0][0]) / sd / doublings
    ratio = (moments[1][1] / moments[0][1]) ** (1 / doublings)
    likelihood = np.full(len(names), np.nan)
    if sites is not None:
        run_sites = sites

        def of_site(index: int) -> list[float]:
            return _summed(target, drawn, run_sites.shards[index]).tolist()

        total = np.sum(of_sites(used_engine, run_sites, of_site), axis=0)
        likelihood = _measure(values, total)
    k_hat = max(k for _, k in weighted)
    return PriorSensitivity(names, shift, ratio, _measure(values, prior), likelihood, k_hat)


def natural_of(
    model: Model, target: Target, drawn: Draws, labels: Labels | None
) -> tuple[tuple[str, ...], Draws]:
    """Return names and values of the parameters, on the model's natural scale if it has one."""
    arrays, axes = split(drawn[None], variables(target.structure)), labels or {}
    if model.natural is not None:
        arrays = dict(sorted(Quantities(model).of_arrays(arrays).items()))  # as sites send them
    names = [coordinate_names(name, a.shape[2:], axes.get(name, ())) for name, a in arrays.items()]
    values = [np.asarray(a, np.float64).reshape(len(drawn), -1) for a in arrays.values()]
    return tuple(chain.from_iterable(names)), np.concatenate(values, axis=1)


def moments_of(values: Draws, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return weighted means and standard deviations."""
    mean = share @ values
    return mean, np.sqrt(share @ (values - mean) ** 2)


def smoothed(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Return smoothed weights with sum one, and their k-hat."""
    from arviz_stats.base.array import array_stats  # a second that few runs need

    with np.errstate(all="ignore"):  # of ratios that are all but equal
        weights, k = array_stats.psislw(-log_weights)  # it takes their negatives
    share = np.exp(weights - weights.max())
    return share / share.sum(), float(k)


def _measure(values: Draws, log_density: np.ndarray) -> np.ndarray:
    """Return ArviZ's `psense` of each column for the power of a density.

    `psense` scales the power of the density in the group `log_prior`, whichever density that is.
    """
    import xarray
    from arviz_stats.psense import psense

    posterior = xarray.Dataset({"x": (("chain", "draw", "column"), values[None])})
    scaled = xarray.Dataset({"log_density": (("chain", "draw"), log_density[None])})
    tree = xarray.DataTree.from_dict({"posterior": posterior, "log_prior": scaled})
    return np.asarray(psense(tree, group="prior", sample_dims=["chain", "draw"])["x"], float)


def _summed(target: Target, drawn: Draws, rows: PyTree) -> np.ndarray:
    """Return log L_c at the draws, (S,)."""
    parts = [values.sum(axis=1) for values in log_likelihoods(target, drawn, rows)]
    return np.asarray(np.sum(parts, axis=0))


def _log_prior(
    target: Target, scaled: Callable[[PyTree], Any] | None, drawn: Draws
) -> Float[np.ndarray, " S"]:
    if target.model.host is not None:
        if scaled is None:
            return target.log_priors(drawn)
        return np.broadcast_to(scaled(target.layout.params(drawn)), len(drawn)).astype(float)

    def at(position: Array) -> Array:
        return target.log_prior(position) if scaled is None else scaled(target.unravel(position))

    values = jax.jit(lambda positions: jax.lax.map(at, positions))(jnp.asarray(drawn, target.dtype))
    return np.asarray(values, np.float64)
