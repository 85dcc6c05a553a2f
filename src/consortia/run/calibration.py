"""`sbc`: whether a method samples the posterior of a formula, by data simulated from its prior."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.core.contract import Method
from consortia.core.parameters import spaced
from consortia.data.sites import Sites
from consortia.diagnostics.ranks import Calibration
from consortia.errors import InputError, wrong
from consortia.models.regression.estimates import flat_names
from consortia.models.regression.model import Regression
from consortia.run.sampling import sample


@arguments.hinted
def sbc(
    regression: Regression,
    algorithm: Method,
    *,
    simulations: int = 200,
    rounds: int = 400,
    warmup: int = 200,
    draws: int = 63,
    seed: int = 0,
    on_simulation: Callable[[int], None] | None = None,
) -> Calibration:
    """Return ranks of parameters drawn from the prior among draws of their posteriors.

    In each simulation parameters are drawn from the prior, responses at every site's rows given
    them, and the posterior is sampled by the method as the study would. The ranks are uniform where
    the method samples the posterior; see `consortia.diagnostics.ranks`.

    Args:
        regression: what `consortia.regression` returned; of its rows only the predictors are used.
        algorithm: the method.
        simulations: how many; 200 show a bias of about a quarter of a posterior sd.
        rounds: iterations of one simulation after the warm-up.
        warmup: iterations before them.
        draws: L, evenly spaced draws that a simulation ranks among.
        seed: equal seeds give equal ranks.
        on_simulation: called with the number of simulations done.

    Returns:
        The ranks of every parameter, with their test of uniformity.

    Raises:
        InputError: the family cannot be simulated, the formula has weights, or the rows of a site
            are not in this process.

    Example:
        >>> import consortia
        >>> found = consortia.sbc(made, consortia.few_rounds(), simulations=50)  # doctest: +SKIP
        >>> print(found)  # doctest: +SKIP
    """
    arguments.whole("simulations", simulations, 2)
    arguments.whole("draws", draws, 3)
    if rounds < draws:
        raise wrong("rounds", f" = {rounds} give sbc no {draws} draws: run more rounds.")
    if "weights" in regression.specification.question.extra:
        raise wrong("weights", ": sbc cannot simulate responses with weights: leave them out.")
    if regression.specification.imputed:
        raise InputError("sbc: values are imputed: give missing='complete', or one imputation.")
    from arviz_stats.base.array import array_stats

    density = regression.density
    params = density.draw(np.random.default_rng((seed, 0)), simulations)
    truth = density.natural(params)
    names: list[str] = []
    ranks, sizes = [], []
    for simulation in range(simulations):
        parameters = {name: values[simulation : simulation + 1] for name, values in params.items()}
        sites = simulated(regression, parameters, np.random.default_rng((seed, 1, simulation)))
        chosen = int(np.random.default_rng((seed, 2, simulation)).integers(2**62))
        tree = sampled(regression, sites, algorithm, rounds, warmup, chosen)
        drawn = regression.natural(tree)
        kept = spaced(drawn.sizes["draw"], draws)
        row, least, names = [], np.inf, []
        for name in drawn.data_vars:
            values = np.asarray(drawn[name])[0][kept]
            row.append(np.sum(values < truth[str(name)][simulation], axis=0).ravel())
            chain = values.reshape(1, draws, -1)
            ess = array_stats.ess(chain, chain_axis=0, draw_axis=1)
            least = min(least, float(np.nanmin(ess)))
            names += flat_names(str(name), values.shape[1:], regression.labels)
        ranks.append(np.concatenate(row))
        sizes.append(least)
        if on_simulation is not None:
            on_simulation(simulation + 1)
    return Calibration(tuple(names), np.stack(ranks), draws, float(np.median(sizes)), seed)


def simulated(
    regression: Regression, params: Any, rng: np.random.Generator, factor: float = 1.0
) -> Sites:
    """Return the sites with responses simulated for one set of parameters.

    Args:
        regression: of which the predictors are.
        params: as they are sampled, (1, ...) each.
        rng: source of what is drawn.
        factor: rows of each site, as a multiple; other than 1 they are drawn with replacement.
    """
    shards = []
    for name in regression.rows.names:
        rows = {key: np.asarray(values) for key, values in regression.rows.site(name).items()}
        if factor != 1.0:
            count = len(rows["y"])
            again = rng.integers(0, count, max(round(factor * count), 1))
            rows = {key: values[again] for key, values in rows.items()}
        (y,) = regression.density.simulated(rng, params, rows)
        shards.append(regression.with_response(rows, y))
    return Sites.from_list(shards, list(regression.rows.names))


def sampled(
    regression: Regression, sites: Sites, algorithm: Method, rounds: int, warmup: int, seed: int
) -> Any:
    """Return the result of one simulation; settings and draws of a single one are no news."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return sample(
            regression.model,
            sites,
            algorithm,
            rounds=rounds,
            warmup=warmup,
            seed=seed,
            progress=False,
            on_divergence="ignore",
        )
