"""Incidence of competing causes for people, from a model of the hazard of each cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.errors import InputError, wrong
from consortia.models.regression.model import Regression
from consortia.models.regression.prediction import chains_of, of_chains
from consortia.models.regression.risk import incidences


@arguments.hinted
def cumulative_incidence(
    causes: Mapping[str, tuple[Regression, Any]],
    table: Any,
    site: str | None = None,
    *,
    at: Sequence[float],
    seed: int = 0,
) -> Any:
    """Return the probability of each cause's event before given times, where causes compete.

    Each cause has a regression of its hazard, in which events of the others end the follow-up:
    ``Surv(time, cause == 1)``, ``Surv(time, cause == 2)``.

    Args:
        causes: by name the regression of a cause and the result of its run; draws of one are
            independent of another's, and the first of each are taken together.
        table: people, as `Regression.predict` takes them.
        site: whose baselines they have; None for a new one.
        at: the times.
        seed: of what is drawn.

    Returns:
        `xarray.DataArray` of (chain, draw, row, cause, time).

    Raises:
        InputError: there is one cause, the runs have other chains, or as `Regression.predict`.

    Example:
        >>> cumulative_incidence({"relapse": (made, tree), "death": (other, other_tree)},
        ...                      {"age": [60]}, "oslo", at=[12, 60])  # doctest: +SKIP
    """
    if len(causes) < 2:
        raise wrong("causes", ": give two or more, each a regression and the result of its run.")
    models = [made for made, _ in causes.values()]
    trees = [tree for _, tree in causes.values()]
    for name, made in zip(causes, models, strict=True):
        try:
            wanted = made._times(at)
        except InputError as error:
            raise wrong("causes", f": {name}: {error}") from error
    given = [
        made._prepared(tree, table, site, seed + number, new_groups=False)
        for number, (made, tree) in enumerate(causes.values())
    ]
    times = [made._curve_times(site, max(wanted))[0] for made in models]
    grid = np.unique(np.concatenate([*times, wanted]))
    chains, counts = zip(*(chains_of(tree) for tree in trees), strict=True)
    if len(set(chains)) > 1:
        raise wrong("causes", f": the runs have {chains} chains: run all with the same number.")
    shown, parts = np.searchsorted(grid, wanted), []
    curves = [made._hazard_curves(rows, grid) for made, rows in zip(models, given, strict=True)]
    for hazards in zip(*curves, strict=True):
        paired = [
            of_cause.reshape(chains[0], -1, len(grid))[:, : min(counts)].reshape(-1, len(grid))
            for of_cause in hazards
        ]
        parts.append(incidences(np.stack(paired))[..., shown])
    values = np.stack(parts).transpose(2, 0, 1, 3)
    coords = {"cause": list(causes), "time": wanted}
    shortest = trees[int(np.argmin(counts))]
    return of_chains(shortest, values, ["row", "cause", "time"], coords)
