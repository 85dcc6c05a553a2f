"""Predictions of a fitted formula for new rows, at one of its sites or at a new one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from consortia.core.arrays import VALUES_AT_ONCE
from consortia.core.parameters import sampled_draws
from consortia.data.columns import Table, rows_of
from consortia.errors import InputError
from consortia.models._integrated import host_noise, resampled
from consortia.models.regression.density import Density
from consortia.models.regression.design import time_rows
from consortia.models.regression.evaluation import in_single
from consortia.models.regression.formula import SITE
from consortia.models.regression.specification import Specification

PyTree = Any

MEAN, SURVIVAL = "mean", "survival"


class NewRows(NamedTuple):
    """Rows to be predicted, and what is known of them."""

    params: Mapping[str, np.ndarray]  # draws as the density takes them, (draws, ...) each
    rows: PyTree  # as the model takes them
    shift: np.ndarray  # part of η from levels that are no parameters, (draws, rows, ...)
    table: Table  # the rows as they were read
    site: str | None  # whose they are; None of a new one
    seed: int  # of what is drawn

    def split(self) -> Iterator[NewRows]:
        """Yield each row alone."""
        for index in range(rows_of(self.table)):
            only = np.array([index])
            table = {name: column.take(only) for name, column in self.table.items()}
            rows = {name: values[only] for name, values in self.rows.items()}
            yield self._replace(rows=rows, shift=self.shift[:, only], table=table)


def chains_of(tree: Any) -> tuple[int, int]:
    """Return the numbers of chains and of draws of each."""
    chains, draws = next(iter(sampled_draws(tree).values())).shape[:2]
    return chains, draws


def of_chains(
    tree: Any, values: np.ndarray, dims: Sequence[str], coords: Mapping[str, Any] | None = None
) -> Any:
    """Return values of all draws, (draws, ...), as an `xarray.DataArray` of chains and draws."""
    import xarray  # heavy, and only wanted here

    shaped = values.reshape(*chains_of(tree), *values.shape[1:])
    return xarray.DataArray(shaped, dims=["chain", "draw", *dims], coords=coords)


def levels_given_rows(
    density: Density, params: Mapping[str, np.ndarray], rows: PyTree, groups: int, seed: Any
) -> np.ndarray:
    """Return levels and slopes that stay at a site, drawn given its rows, (draws, groups, K).

    ``params`` are draws as they are sampled, (draws, ...) each; ``rows`` all rows of the site.
    """
    count, staying = rows["y"].shape[0], density.specification.staying
    batch = {name: np.asarray(values) for name, values in rows.items()}
    single = in_single(density, batch)
    dtype = np.float64 if single is None else np.float32
    draws, mask = len(params["log_sd"]), np.ones(count, bool)
    rng = np.random.default_rng(seed)
    levels = []
    for part in blocks_of(draws, count):
        some = {name: np.asarray(values, dtype)[part] for name, values in params.items()}
        with np.errstate(all="ignore"):
            of_groups = density.given_levels(some, single or batch, mask, groups)
            shape = len(some["log_sd"]), groups, len(staying)
            z = resampled(of_groups, shape, some["log_sd"], host_noise(rng, shape))
            scale = density.group_scale(some, staying)
        levels.append(np.einsum("nij,ngj->ngi", scale, z))
    return np.concatenate(levels)


def blocks_of(draws: int, rows: int, least: int = 1) -> Iterator[slice]:
    """Yield the draws in blocks, of ``least`` or more, that are computed with so many rows."""
    width = max(VALUES_AT_ONCE // max(rows, 1), least)
    for at in range(0, draws, width):
        yield slice(at, at + width)


def shift_of_groups(
    density: Density,
    params: Mapping[str, np.ndarray],
    by_group: np.ndarray,
    groups: Mapping[str, np.ndarray],
    known: np.ndarray | None,
    seed: int,
    fitted: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    new_site: bool,
) -> np.ndarray:
    """Return the part of η from levels and slopes that are no parameters, (draws, rows, ...).

    Args:
        density: of the formula.
        params: draws as they are sampled, (draws, ...) each.
        by_group: what each block is multiplied with, (rows, blocks).
        groups: the index of each row's group, (rows,), by the column of the groups.
        known: levels and slopes of the site, (draws, K), where they stay there and are known.
        seed: of those of new groups.
        fitted: the groups that the site has, by index, and their levels and slopes
            (draws, groups, K); None of a site that has none of them.
        new_site: whether the site is none of those agreed on.
    """
    spec, rng = density.specification, np.random.default_rng(seed)
    draws = len(next(iter(params.values())))
    total = np.zeros((draws, len(by_group), *density.lead))
    for by in dict.fromkeys(block.by for block in spec.blocks if not block.smooth):
        places = [i for i, block in enumerate(spec.blocks) if block.by == by and not block.smooth]
        if any(spec.blocks[block_index].shared for block_index in places):
            continue  # a parameter of each, in the columns
        if by == SITE and not new_site:
            if spec.grouping == SITE:
                assert known is not None
                total += np.einsum("rk,nk->nr", by_group[:, list(spec.staying)], known)
            continue
        index = np.zeros(len(by_group), int) if by == SITE else groups[by]
        levels = levels_of_new(density, params, places, int(index.max()) + 1, rng)
        if by == spec.grouping and fitted is not None:
            levels[:, fitted[0]] = fitted[1]
        total += np.einsum("rk,nr...k->nr...", by_group[:, places], levels[:, index])
    return total


def levels_of_new(
    density: Density,
    params: Mapping[str, np.ndarray],
    blocks: Sequence[int],
    groups: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return levels and slopes of new groups, drawn from their law, (draws, groups, ..., K)."""
    draws = len(params["log_sd"])
    scale = density.group_scale(params, blocks)
    z = rng.normal(size=(draws, groups, *density.lead, len(blocks)))
    return np.einsum("nij,ng...j->ng...i", scale, z)


def predicted(
    density: Density, params: Mapping[str, np.ndarray], rows: PyTree, shift: np.ndarray
) -> np.ndarray:
    """Return the mean of the response, or the probabilities of its levels, (draws, rows, ...).

    Of two levels it is the probability of the event.
    """
    if density.family.predict is None:
        raise InputError(
            f"predict: family {density.family.name!r} has no mean of a time to predict: give "
            "at=[...], times at which the probability of no event so far is wanted."
        ).at("at")
    return _over_draws(density, MEAN, params, rows, shift)


def survival(
    density: Density, params: Mapping[str, np.ndarray], rows: Sequence[PyTree], shift: np.ndarray
) -> np.ndarray:
    """Return the probability of no event before each time, (draws, rows, times).

    ``rows`` are for each time the rows as if they were censored then; ``shift`` (draws, rows) is
    that of groups.
    """
    parts = [_over_draws(density, SURVIVAL, params, batch, shift) for batch in rows]
    return np.stack(parts, axis=-1)


def _over_draws(
    density: Density, what: str, params: Mapping[str, np.ndarray], rows: PyTree, shift: np.ndarray
) -> np.ndarray:
    wide = {name: np.asarray(values, float) for name, values in params.items()}
    parts = []
    for part in blocks_of(len(shift), shift.shape[1]):
        some = {name: values[part] for name, values in wide.items()}
        eta = density.predictor(some, rows) + shift[part]
        parts.append(outcome(density, what, some, rows, eta))
    return np.concatenate(parts)


def outcome(
    density: Density, what: str, params: Mapping[str, np.ndarray], rows: PyTree, eta: np.ndarray
) -> np.ndarray:
    """Return the mean of rows, or the probability of no event before their time, given η."""
    family, own_parameters = density.family, density._own(params)
    with np.errstate(all="ignore"):
        if what == SURVIVAL:
            return np.exp(density.weighted(family.log_likelihood(eta, rows, own_parameters), rows))
        if family.event is not None:
            return family.event(eta)
        assert family.predict is not None
        return family.predict(eta, rows, own_parameters)


def censored(agreed: Specification, rows: PyTree, time: float) -> PyTree:
    """Return rows whose event has not come until a time."""
    count = rows["x"].shape[0]
    return rows | time_rows(agreed, np.full(count, time), np.zeros(count))
