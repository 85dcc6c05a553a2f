"""Predictions of a fitted formula for new rows, at one of its sites or at a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.errors import InputError
from consortia.models._integrated import drawn
from consortia.models._shared import Array, PyTree
from consortia.models.regression.density import Density
from consortia.models.regression.design import time_rows
from consortia.models.regression.formula import SITE
from consortia.models.regression.specification import Specification
from consortia.runtime import compiler
from consortia.runtime.compiler import map_in_blocks

MEAN, SURVIVAL = "mean", "survival"

AT_ONCE = 64
"""Draws that are computed at the same time."""

LEAST_ROWS = 64
"""Fewest rows that a program is compiled for; more are as many as `room` has: sites share one."""


def levels_given_rows(
    density: Density, params: Mapping[str, np.ndarray], rows: PyTree, groups: int, seed: Any
) -> np.ndarray:
    """Return levels and slopes that stay at a site, drawn given its rows, (draws, groups, K).

    ``params`` are draws as they are sampled, (draws, ...) each; ``rows`` all rows of the site.
    """
    count, size = rows["y"].shape[0], len(density.specification.staying)
    padded = np.arange(room(count, LEAST_ROWS))
    mask = padded < count
    batch = {name: np.asarray(one)[np.minimum(padded, count - 1)] for name, one in rows.items()}
    draws, dtype = len(params["log_sd"]), params["log_sd"].dtype
    uniforms = np.full((draws, len(padded) if "group" in rows else 1, size), 0.5, dtype)
    uniforms[:, :groups] = np.random.default_rng(seed).random((draws, groups, size))
    found = []
    for start in range(0, draws, AT_ONCE):
        at = np.minimum(np.arange(start, start + AT_ONCE), draws - 1)
        own = {name: np.asarray(values)[at] for name, values in params.items()}
        found.append(_levels(density, own, uniforms[at], batch, mask)[:, :groups])
    return np.concatenate([np.asarray(one) for one in found])[:draws]


@partial(compiler.jit, options=compiler.lightly, static_argnums=0)
def _levels(density: Density, params: PyTree, uniforms: Array, rows: PyTree, mask: Array) -> Array:
    def one(values: PyTree, own: Array) -> Array:
        z = drawn(density.given_levels(values, rows, mask), own)
        return z @ density.group_scale(values, density.specification.staying).T

    return jax.vmap(one)(params, uniforms)


def room(size: int, least: int) -> int:
    """Return room for ``size``, a power of two or half as much again: one program for each."""
    whole = max(least, 1 << (size - 1).bit_length())
    return max(least, whole * 3 // 4 if size <= whole * 3 // 4 else whole)


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
    """Return what levels and slopes that are no parameters add to η, (draws, rows, ...).

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
    for by in dict.fromkeys(one.by for one in spec.blocks if not one.smooth):
        places = [i for i, one in enumerate(spec.blocks) if one.by == by and not one.smooth]
        if any(spec.blocks[place].shared for place in places):
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
    at, draws = tuple(blocks), len(params["log_sd"])
    scale = np.asarray(jax.vmap(lambda one: density.group_scale(one, at))(dict(params)))
    z = rng.normal(size=(draws, groups, *density.lead, len(at)))
    return np.einsum("nij,ng...j->ng...i", scale, z)


def predicted(
    density: Density, params: Mapping[str, np.ndarray], rows: PyTree, shift: np.ndarray
) -> np.ndarray:
    """Return the mean of the response, or the probabilities of its levels, (draws, rows, ...)."""
    if density.family.predict is None:
        raise InputError(
            f"predict: family {density.family.name!r} has no mean of a time to predict: give "
            "at=[...], times at which the probability of no event so far is wanted."
        )
    return _over_draws(density, MEAN, params, rows, shift)


def survival(
    density: Density,
    params: Mapping[str, np.ndarray],
    rows: Sequence[PyTree],
    shift: np.ndarray,
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
    own = shift.astype(jnp.result_type(float))
    return np.asarray(_of_draws(density, what, dict(params), own, dict(rows)))


@partial(jax.jit, static_argnums=(0, 1))
def _of_draws(density: Density, what: str, params: PyTree, shift: Array, rows: PyTree) -> Array:
    before = jnp.asarray(rows.get("offset", np.zeros(1)), shift.dtype)

    def one(given: tuple[PyTree, Array]) -> Array:
        values, own = given
        start = before.reshape(*before.shape, *[1] * (own.ndim - 1))
        return of_batch(density, what, values, {**rows, "offset": start + own})

    return map_in_blocks(one, (params, shift), AT_ONCE)


def of_batch(density: Density, what: str, values: PyTree, batch: PyTree) -> Array:
    """Return the mean of rows, or the probability of no event before their time, of one draw."""
    if what == SURVIVAL:
        return jnp.exp(density.log_likelihood(values, batch))
    return density.predict(values, batch)


def censored(agreed: Specification, rows: PyTree, time: float) -> PyTree:
    """Return rows whose event has not come until a time."""
    count = rows["x"].shape[0]
    return rows | time_rows(agreed, np.full(count, time), np.zeros(count))
