r"""Predictive accuracy for rows left out, from sums that leave the sites: PSIS-LOO and WAIC.

.. math::
    \widehat{\mathrm{elpd}}_{\mathrm{loo}} = \sum_i \log\sum_s w_{is}\,p(y_i \mid \theta_s), \qquad
    w_{is} \propto 1/p(y_i \mid \theta_s)\ \text{smoothed}, \qquad
    \widehat{\mathrm{elpd}}_{\mathrm{waic}} = \sum_i \Bigl[\log \overline{p(y_i \mid \theta)} -
    \mathrm{Var}\,\log p(y_i \mid \theta)\Bigr]

Of the log-likelihood of single rows nothing leaves a site but sums over its rows: of each model's
terms, of their products between models, and how many shapes k-hat lie in which range.

Source: Vehtari, Gelman, Gabry, "Practical Bayesian model evaluation using leave-one-out
cross-validation and WAIC" (2017); smoothing and k-hat by ArviZ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.core import arguments
from consortia.core.model import Model
from consortia.core.parameters import (
    draw_imputations,
    draw_weights,
    join,
    sampled_draws,
    spaced,
    structure_of,
    variables,
)
from consortia.core.target import Target, in_jax_width
from consortia.data.sites import Sites
from consortia.diagnostics.summary import Shown
from consortia.engines.contract import Engine
from consortia.engines.local import LocalEngine
from consortia.errors import InputError, wrong
from consortia.runtime import compiler
from consortia.runtime.late import jax, jnp

RANGES = (0.7, 1.0)
"""Ends of the ranges of k-hat that are counted: good, bad, very bad."""

MOST_DRAWS, LEAST_DRAWS = 1000, 100
"""Draws of a model that score rows, evenly spaced if it has more, and fewest that are accepted."""

AT_ONCE = 4096
"""Rows whose log-likelihood is held at the same time."""


class Terms(NamedTuple):
    """Terms of rows, (rows,) each: of LOO and WAIC, the log predictive density, k-hat."""

    loo: np.ndarray
    waic: np.ndarray
    density: np.ndarray
    k_hat: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class LeftOut(Shown):
    """Predictions of rows that are left out, by model; `str` renders them, the best model first."""

    names: tuple[str, ...]  # of the models
    unit: str  # what is left out, "row" or "site"
    rows: int  # how many there are
    sums: np.ndarray  # Σ_i elpd_i of each model, (models,)
    products: np.ndarray  # Σ_i elpd_i elpd'_i, (models, models)
    parameters: np.ndarray  # effective number of parameters, (models,)
    waic: np.ndarray  # Σ_i of WAIC's terms, (models,)
    shapes: np.ndarray  # how many k-hat are below 0.7, below 1 and above, (models, 3)

    def standard_error(self, weights: np.ndarray) -> float:
        """Return the standard error of Σ_i Σ_m weights_m elpd_{m,i}."""
        square, total = weights @ self.products @ weights, weights @ self.sums
        variance = max(square / self.rows - (total / self.rows) ** 2, 0.0)
        return float(np.sqrt(self.rows * variance * self.rows / max(self.rows - 1, 1)))

    @property
    def _tables(self) -> list[list[list[str]]]:
        """The lines of cells, a model's each, the best model first."""
        lines = [["", "elpd", "se", "less", "se", "p", "waic", "k > 0.7"]]
        order, unit = np.argsort(-self.sums), np.eye(len(self.names))  # unit weights of a model
        for model in order:
            difference = unit[order[0]] - unit[model]
            lines.append(
                [
                    self.names[model],
                    f"{self.sums[model]:.1f}",
                    f"{self.standard_error(unit[model]):.1f}",
                    f"{difference @ self.sums:.1f}",
                    f"{self.standard_error(difference):.1f}",
                    f"{self.parameters[model]:.1f}",
                    f"{self.waic[model]:.1f}",
                    f"{self.shapes[model, 1:].sum():.0f} of {self.rows}",
                ]
            )
        return [lines]

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about rows or sites whose effect these draws do not show."""
        worst = int(self.shapes[:, 1:].sum(axis=1).max())
        text = (
            f"{worst} {self.unit}s have a k-hat above 0.7: these draws do not show the "
            "effect of leaving them out"
        )
        return (text,) if worst else ()

    def to_dataframe(self) -> Any:
        """Return elpd, its standard error, p, waic and counts of k-hat, a line for each model."""
        import pandas as pd  # heavy, and only wanted here

        unit = np.eye(len(self.names))
        columns: dict[str, Any] = {"elpd": self.sums, "p": self.parameters, "waic": self.waic}
        columns["se"] = [self.standard_error(weights) for weights in unit]
        bad = self.shapes[:, 1:].sum(axis=1)
        return pd.DataFrame({**columns, "k_above_0.7": bad}, index=list(self.names))


@arguments.hinted
def loo(
    results: Mapping[str, tuple[Any, Model, Sites]], *, engine: Engine | None = None
) -> LeftOut:
    """Score models' predictions of rows that are left out, from sums over each site's rows.

    Of a model with a likelihood of each site (`Model.site_log_likelihood`) a site is left out.

    Args:
        results: by a name for each model, the result of its run, the model and its sites; the rows
            of all models must be the same, in the same order.
        engine: where the rows are in several processes, which all make the same call; those without
            a result give None for it.

    Returns:
        The sums, and their table; of several models also the differences.

    Raises:
        InputError: the models are not of the same rows, the draws have weights, or there are fewer
            than 100.

    Example:
        >>> import consortia
        >>> scores = consortia.loo({"plain": (tree, model, sites)})  # doctest: +SKIP
        >>> print(scores)  # doctest: +SKIP
    """
    used_engine: Engine = LocalEngine() if engine is None else engine
    if not isinstance(results, Mapping) or not results:
        raise InputError("loo: give a dict of names to (result, model, sites).").at("results")
    names = tuple(map(str, results))
    models = [model for _, model, _ in results.values()]
    if len({model.by_site for model in models}) > 1:
        raise InputError("loo: one model has a likelihood of rows, another of sites.").at("results")
    sites_of_models = [sites for _, _, sites in results.values()]
    check_same_rows(sites_of_models)
    first = sites_of_models[0]
    drawn = positions_of("loo", [fit[:2] for fit in results.values()], used_engine, MOST_DRAWS)
    targets = [Target(model, structure_of(model.init)) for model in models]

    def of_site(index: int) -> dict[str, Any]:
        shards = [sites.shards[index] for sites in sites_of_models]
        if problem := other_rows(shards):
            name = first.names[index]
            raise InputError(f"loo: site {name!r}: {problem}").at("results", site=name)
        return sums_of([_pointwise(*fit) for fit in zip(targets, drawn, shards, strict=True)])

    sums = of_sites(used_engine, first, of_site, "loo: ")
    total = {
        key: np.sum([np.asarray(site[key], float) for site in sums], axis=0) for key in sums[0]
    }
    unit = "site" if models[0].by_site else "row"
    rows = len(first) if unit == "site" else first.rows
    return LeftOut(names, unit, rows, **total)


def of_sites(
    engine: Engine, sites: Sites, make: Callable[[int], Any], caller: str = ""
) -> list[Any]:
    """Return the result of ``make`` for each site, in order, where its rows are."""
    answers: dict[int, Any] = {}
    for process in engine.allgather(lambda: {str(index): make(index) for index in sites.here}):
        for index, answer in process.items():
            answers.setdefault(int(index), answer)
    if len(answers) < len(sites):
        raise InputError(f"{caller}no process has all sites' rows: give engine=.").at("engine")
    return [answers[index] for index in range(len(sites))]


def check_same_rows(every: Sequence[Any]) -> None:
    """Check that the sites of several models have the same rows, as far as is seen here.

    Raises:
        InputError: they differ, or one is not a `Sites`.
    """
    for sites in every:
        if not isinstance(sites, Sites):
            raise wrong("sites", " for loo must be of one data set: imputation(0).sites.")
        if sites.names != every[0].names or list(sites.sizes) != list(every[0].sizes):
            raise InputError(
                "loo: the models are fitted to different rows: the sites or their sizes differ."
            ).at("sites")


def other_rows(rows: Sequence[Any]) -> str | None:
    """Find a difference between the rows of several models, as far as the responses say."""
    responses = [shard["y"] for shard in rows if isinstance(shard, Mapping) and "y" in shard]
    known = [np.asarray(response) for response in responses]
    if any(y.shape == known[0].shape and not np.array_equal(y, known[0]) for y in known):
        return "the models have different responses: different rows, or different scales."
    return None


def positions_of(
    caller: str, results: Sequence[tuple[Any, Model]], engine: Engine, most: int
) -> list[np.ndarray]:
    """Return at most so many draws of every model as flat positions, (draws, d), evenly spaced.

    A process that keeps nothing has None for a result.
    """

    def of_this_process() -> list[Any] | None:
        draws = []
        for tree, model in results:
            model.check_posterior(caller)
            if tree is None:
                return None
            if draw_imputations(tree) is not None:
                raise InputError(
                    f"{caller}: the draws come from several imputations: sample one of them, "
                    "imputation(0) of the regression, and give its sites."
                ).at("sites")
            if draw_weights(tree) is not None:
                raise InputError(f"{caller}: the draws already have weights of different steps.")
            flat = join(sampled_draws(tree), variables(structure_of(model.init)), leading=2)
            flat = flat.reshape(-1, flat.shape[-1])
            if len(flat) < LEAST_DRAWS:
                raise InputError(
                    f"{caller}: {len(flat)} draws are too few: keep {LEAST_DRAWS} or more."
                ).at("draws")
            every = spaced(len(flat), most)
            draws.append(flat[every].tolist())
        return draws

    known = [positions for positions in engine.allgather(of_this_process) if positions is not None]
    if not known:
        raise InputError(f"{caller}: no process has a result.")
    return [np.asarray(positions, float) for positions in known[0]]


def sums_of(models: Sequence[Terms]) -> dict[str, Any]:
    """Return the sums over the same rows of each model's terms, as plain values."""
    terms, parameters, waic, shapes = [], [], [], []
    for loo_terms, waic_terms, density, k in models:
        terms.append(loo_terms)
        parameters.append(float(np.sum(density - loo_terms)))
        waic.append(float(waic_terms.sum()))
        # NaN, a k-hat that could not be estimated, counts as very bad
        edges = np.array([-np.inf, *RANGES, np.inf])
        shapes.append(np.histogram(np.nan_to_num(k, nan=np.inf, posinf=1e9), edges)[0].tolist())
    matrix = np.stack(terms)
    return {
        "sums": matrix.sum(axis=1).tolist(),
        "products": (matrix @ matrix.T).tolist(),
        "parameters": parameters,
        "waic": waic,
        "shapes": shapes,
    }


def terms_of(values: Float[np.ndarray, "draws rows"]) -> Terms:
    """Return the terms of some rows from their log-likelihoods at the draws."""
    from arviz_stats.base.array import array_stats  # a second that few runs need

    density = np.logaddexp.reduce(values, axis=0) - np.log(len(values))
    with np.errstate(all="ignore"):  # of ratios that are all but equal
        weights, k = array_stats.psislw(values, axis=0)  # it takes log-likelihoods
    left_out = np.logaddexp.reduce(weights.T + values, axis=0)
    return Terms(left_out, density - values.var(axis=0, ddof=1), density, k)


def _pointwise(target: Target, positions: np.ndarray, rows: Any) -> Terms:
    """Return the terms of a site's rows."""
    parts = map(terms_of, log_likelihoods(target, positions, rows))
    return Terms(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def log_likelihoods(target: Target, positions: np.ndarray, rows: Any) -> Iterator[np.ndarray]:
    """Yield the summands of a site's log-likelihood at draws, (draws, summands) of some rows."""
    count = jax.tree.leaves(rows)[0].shape[0]
    size = count if target.model.by_site else AT_ONCE
    for begin in range(0, count, size):
        part = jax.tree.map(lambda leaf, at=begin: in_jax_width(leaf[at : at + size]), rows)
        values = _log_likelihoods(target, jnp.asarray(positions, target.dtype), part)
        yield np.asarray(values, np.float64)


@partial(compiler.jit, static_argnums=0)
def _log_likelihoods(target: Target, positions: jax.Array, rows: Any) -> jax.Array:
    """Return log p(y_i | θ_s), (draws, rows), computed for 64 draws side by side."""
    mask = jnp.ones(jax.tree.leaves(rows)[0].shape[0], bool)
    return compiler.map_in_blocks(lambda draw: target.summands(draw, rows, mask), positions, 64)
