"""A site's rows as the model takes them: the columns of a specification, response and offset."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from consortia.data.columns import Column, Table, as_levels, rows_of
from consortia.errors import InputError
from consortia.models.regression import smooth
from consortia.models.regression.formula import SITE
from consortia.models.regression.question import RESPONSE, TIME, WEIGHT, shared_levels
from consortia.models.regression.specification import GAP, Block, Specification

Arrays = dict[str, np.ndarray]


def site_rows(
    agreed: Specification, table: Table, site: str, imputation: int | None = None
) -> Arrays:
    """Return a site's rows for the model, from its table as it was read.

    ``x`` (rows, k) are the columns X R without the intercept's, then those of the blocks; ``y`` the
    response; offset, weight, trials and what a time needs where the model has them. With the number
    of an imputation missing values are drawn.

    Raises:
        InputError: the rows cannot be used.
    """
    kept = agreed.question.kept(table, site)
    if imputation is not None:
        kept = agreed.question.imputed(kept, site, imputation)
    return _of_kept(agreed, kept, site)


def _of_kept(agreed: Specification, kept: Table, site: str) -> Arrays:
    """Return the arrays of the rows that are kept."""
    where, asked = f"site {site!r}", agreed.question
    values, rows = factor_values(agreed, kept, where), rows_of(kept)
    made = {"x": _columns(agreed, values, rows, site)} | _response(agreed, kept, where)
    made |= _beside(agreed, kept, where, made["y"]) | _groups(agreed, kept, values)
    if asked.parsed.cluster is not None:
        names = as_levels(kept[asked.parsed.cluster])
        made["cluster"] = np.unique(names, return_inverse=True)[1].astype(np.int64)
    if asked.family.of_site is None:
        return made
    strata = _strata(agreed, kept)
    order = np.lexsort((-made["y"], strata))
    made = {name: values[order] for name, values in made.items()}
    return made | _at_risk(agreed, made, strata[order])


def template(agreed: Specification) -> Arrays:
    """Return the arrays of `site_rows` without a row."""
    none = Column("number", np.zeros(0), np.zeros(0, bool))
    return _of_kept(agreed, dict.fromkeys((*agreed.question.columns, SITE), none), "")


def new_rows(agreed: Specification, table: Table, where: str, site: str | None) -> Arrays:
    """Return rows without a response, for predictions, from a table as it was read.

    They have the levels of ``site``; None stands for one that is not among those agreed on.

    Returns:
        ``x`` as `site_rows` has it, and offset and trials where the model has them; of a new site
        the columns of its levels and slopes are 0. ``by_group`` (rows, blocks) is what the level
        or slope of a group is multiplied with, 0 of a smooth.

    Raises:
        InputError: a column is not there, or a value misses.
    """
    kept = agreed.question.kept_for_prediction(table, where, site)
    values, rows = factor_values(agreed, kept, where), rows_of(kept)
    slopes = [
        np.zeros(rows) if block.smooth else _slope(agreed, block, values, rows)
        for block in agreed.blocks
    ]
    made = {"x": _columns(agreed, values, rows, site)}
    made["by_group"] = np.stack(slopes, axis=1) if slopes else np.zeros((rows, 0))
    return made | _beside(agreed, kept, where, None)


def group_names(agreed: Specification, table: Table, site: str) -> tuple[str, ...]:
    """Return the names of the groups of a site, by the indices that `site_rows` gives them."""
    kept = agreed.question.kept(table, site)
    return tuple(np.unique(as_levels(kept[str(agreed.grouping)])).tolist())


def factor_values(agreed: Specification, table: Table, where: str) -> dict[str, np.ndarray]:
    """Return the values of every factor, numbers or the indices of levels.

    Raises:
        InputError: a level that is not among those agreed on.
    """
    filled = dict(table)
    for name, column in table.items():
        if name in agreed.fills:
            values = np.where(column.missing, agreed.fills[name], column.values)
            kind = "number" if column.kind == "empty" else column.kind
            filled[name] = Column(kind, values, np.zeros(len(values), bool))
    of_factors: dict[str, np.ndarray] = {}
    for text, factor in agreed.question.parsed.factors.items():
        if text in agreed.levels:
            of_factors[text] = _codes(agreed, text, table[str(factor.column)], where)
            continue
        values = factor.values(filled, where)
        if factor.kind in ("centre", "scale"):
            centre, sd, rows = agreed.inside(text)
            values = values - centre
            if factor.kind == "scale":
                values = values / (sd * np.sqrt(rows / max(rows - 1, 1)))
        of_factors[text] = values
    for group in agreed.question.parsed.groups:
        if group.is_shared:
            name = shared_levels(group.by)
            of_factors[name] = _codes(agreed, name, table[group.by], where)
    marks = {f"{GAP}({name})": table[name].missing.astype(float) for name in agreed.fills}
    return of_factors | marks


# --- columns -------------------------------------------------------------------------------------


def _columns(
    agreed: Specification, values: Mapping[str, np.ndarray], rows: int, site: str | None
) -> np.ndarray:
    X = agreed.matrix(values, rows) @ agreed.basis[:, agreed.varying]
    of_blocks = [_of_block(agreed, block, values, rows, site) for block in agreed.blocks]
    return np.concatenate([X, *of_blocks], axis=1) if of_blocks else X


def _of_block(
    agreed: Specification,
    block: Block,
    values: Mapping[str, np.ndarray],
    rows: int,
    site: str | None,
) -> np.ndarray:
    if block.smooth:
        unit = agreed.units[block.factor]
        u = (values[block.factor] - unit.mean) / unit.sd
        return smooth.curved(u, agreed.question.parsed.factors[block.factor].knots)
    if not block.columns:
        return np.zeros((rows, 0))
    if block.shared:
        names = np.arange(len(block.columns))
        of_rows = values[shared_levels(block.by)].astype(int)
        return _slope(agreed, block, values, rows)[:, None] * (of_rows[:, None] == names)
    here = np.array([agreed_site == site for agreed_site in agreed.sites])
    return _slope(agreed, block, values, rows)[:, None] * here[None, :]


def _slope(
    agreed: Specification, block: Block, values: Mapping[str, np.ndarray], rows: int
) -> np.ndarray:
    if not block.factor:
        return np.ones(rows)
    if block.level is not None:
        level_index = agreed.levels[block.factor].index(block.level)
        return (values[block.factor] == level_index).astype(float)
    return values[block.factor] - agreed.units[block.factor].mean


def _groups(agreed: Specification, kept: Table, values: Mapping[str, np.ndarray]) -> Arrays:
    """Return the multipliers of levels that stay here, and the group of each row."""
    arrays: Arrays = {}
    if agreed.staying:
        blocks, rows = [agreed.blocks[index] for index in agreed.staying], rows_of(kept)
        columns = [_slope(agreed, block, values, rows) for block in blocks]
        arrays["slopes"] = np.stack(columns, axis=1)
    if agreed.grouping not in (None, SITE):
        names = as_levels(kept[str(agreed.grouping)])
        arrays["group"] = np.unique(names, return_inverse=True)[1].astype(np.int64)
    return arrays


def _codes(agreed: Specification, text: str, column: Column, where: str) -> np.ndarray:
    levels = agreed.levels[text]
    texts = np.where(column.missing, GAP, as_levels(column))
    order = np.argsort(levels)
    ranks = np.searchsorted(np.array(levels)[order], texts)
    codes = order[np.minimum(ranks, len(levels) - 1)]
    wrong = np.array(levels)[codes] != texts
    if wrong.any():
        raise InputError(
            f"{where}: {text} has a level that is not among those agreed on "
            f"({', '.join(levels)}) in {int(wrong.sum())} of {len(wrong)} rows: give levels= with "
            "all of them, or put rare ones together."
        ).at(text)
    return codes


# --- the response, and what stands beside the columns --------------------------------------------


def _response(agreed: Specification, kept: Table, where: str) -> Arrays:
    asked = agreed.question
    if RESPONSE in agreed.levels:
        column = kept[str(asked.parsed.response[0].column)]
        return {"y": _codes(agreed, RESPONSE, column, where)}
    if asked.family.response != "time":
        return {"y": asked.response(kept, where)[0]}
    time, event = asked.response(kept, where)
    return time_rows(agreed, time, event, asked.entries(kept, where))


def _strata(agreed: Specification, kept: Table) -> np.ndarray:
    """Return the index of each row's stratum."""
    strata = np.zeros(rows_of(kept), np.int64)
    for name in agreed.question.parsed.strata:
        levels, codes = np.unique(as_levels(kept[name]), return_inverse=True)
        strata = strata * len(levels) + codes
    return strata


def time_rows(
    agreed: Specification, time: np.ndarray, event: np.ndarray, start: np.ndarray | None = None
) -> Arrays:
    """Return times to an event, (rows,), as the family takes them.

    Args:
        agreed: what the sites agreed on.
        time: of the event, or of the end of follow-up.
        event: 1 where it was seen, else 0.
        start: of each row; 0 when None.
    """
    arrays = {"y": time, "event": event}
    start = np.zeros(len(time)) if start is None else start
    parsed, of = agreed.question.parsed, agreed.question.family
    if parsed.entry is not None or (of.of_site is not None and parsed.strata):
        arrays["start"] = start
    if agreed.breaks:
        arrays["interval"] = np.searchsorted(agreed.breaks, time, side="left")
    elif of.of_site is None:
        arrays["log_unit"] = np.full(len(time), np.log(agreed.units[TIME].mean))
    return arrays


def _beside(agreed: Specification, kept: Table, where: str, y: np.ndarray | None) -> Arrays:
    """Return offset, trials and weight; of rows without a response no weight."""
    asked, arrays = agreed.question, {}
    for name, factor in asked.extra.items():
        if name == "weights" and y is None:
            continue
        values = asked.beside(name, kept, where)
        if name == "trials":
            least = 0 if y is None else y
            if (values != np.round(values)).any() or (values < least).any():
                wrong = (values != np.round(values)) | (values < least)
                raise InputError(
                    f"{where}: trials {factor.text} must be integers, no less than the response"
                    f"{factor.first(kept, wrong, 'correct these rows, or swap the two columns')}."
                )
            arrays["trials"] = values
        elif name == "weights":
            arrays["weight"] = values / agreed.units[WEIGHT].mean if asked.samples else values
    if asked.parsed.offset is not None or "exposure" in asked.extra:
        arrays["offset"] = asked.offsets(kept, where)
    return arrays


def _at_risk(agreed: Specification, rows: Arrays, strata: np.ndarray) -> Arrays:
    """Return who is at risk of which event, of rows in the order of strata and falling times.

    Returns:
        ``last`` row with a row's time; Efron's ``tie_share`` of each event; with weights
        ``tie_weight``, their mean over the events of a time. With rows that start later than 0, or
        strata, ``first``, the first row of a row's stratum, ``late``, all rows in the order of
        strata and falling starts, and ``later``, how many of these come before those that had
        started at a row's time. For scores of rows ``tie_count``, the events of a row's time, at
        least 1, and ``since`` and ``until``, between which are the events at which it is at risk.
    """
    asked = agreed.question
    times, start = rows["y"], rows.get("start", np.zeros(len(rows["y"])))
    weight = rows.get("weight", np.ones(len(times)))
    events = (rows["event"] > 0) & (weight > 0)
    last, first, later, since, until = np.zeros((5, len(times)), np.int64)
    share, tie_weight, count = np.zeros(len(times)), np.ones(len(times)), np.ones(len(times))
    late = np.lexsort((-start, strata)).astype(np.int64)
    for stratum in np.unique(strata):
        begin, end = np.searchsorted(strata, [stratum, stratum + 1])
        inside = slice(begin, end)
        falling = -times[inside]
        last[inside] = begin + np.searchsorted(falling, falling, side="right") - 1
        since[inside] = begin + np.searchsorted(falling, falling)
        until[inside] = begin + np.searchsorted(falling, -start[inside])
        first[inside] = begin
        later[inside] = begin + np.searchsorted(-start[late[inside]], falling, side="right")
    for end in np.unique(last[events]):
        tied = np.flatnonzero((last == end) & events)
        tie_weight[tied], count[tied] = weight[tied].mean(), len(tied)
        if asked.ties == "efron":
            share[tied] = np.arange(len(tied)) / len(tied)
    arrays = {"event": events.astype(float), "last": last, "tie_share": share}
    if "weight" in rows:
        arrays["tie_weight"] = tie_weight
    if "start" in rows:
        arrays |= {"first": first, "late": late, "later": later}
    if asked.robust:
        arrays |= {"tie_count": count, "since": since, "until": until}
    return arrays
