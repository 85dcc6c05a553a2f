"""Ways to deal the rows of a pooled data set out to sites.

Every row lands at exactly one site, and the sites' sizes are unequal in general. A site keeps its
rows in their original order. The same seed gives the same partition.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from consortia.core import arguments
from consortia.data.sites import Rows, Sites, read_rows
from consortia.errors import InputError, wrong

PyTree = Any

__all__ = [
    "by_column",
    "dirichlet",
    "iid",
    "label_shards",
    "quantity",
]

ATTEMPTS = 1000
"""Most draws of shares before `dirichlet` gives up on ``minimum_rows``."""


@arguments.hinted
def iid(arrays: PyTree, sites: int, *, seed: int) -> Sites:
    """Split rows at random; sizes differ by one row at most.

    Args:
        arrays: pytree of arrays (rows, ...).
        sites: number of sites.
        seed: non-negative integer.

    Returns:
        The sites, with all rows dealt out.

    Raises:
        InputError: more sites than rows, or arrays that are no rows of numbers.

    Example:
        >>> rows = {"x": np.arange(12.0), "y": np.arange(12) % 3}
        >>> iid(rows, 4, seed=0).sizes
        array([3, 3, 3, 3], dtype=int32)
    """
    data, sites, generator = _begin(arrays, sites, seed)
    return _deal(data, np.array_split(generator.permutation(data.rows), sites))


@arguments.hinted
def dirichlet(
    arrays: PyTree,
    sites: int,
    *,
    concentration: float,
    seed: int,
    label: str | np.ndarray = "y",
    minimum_rows: int = 1,
) -> Sites:
    r"""Split every label in proportions of its own: label skew (Yurochkin et al. 2019).

    .. math:: p_k \sim \mathrm{Dirichlet}(\alpha, \dots, \alpha), \qquad
              \text{site } c \text{ gets the share } p_{kc} \text{ of the rows with label } k

    A small α gives sites with few labels each and very unequal sizes, a large α approaches `iid`.
    All shares are drawn anew until every site has ``minimum_rows``.

    Args:
        arrays: pytree of arrays (rows, ...).
        sites: number of sites.
        concentration: α > 0.
        seed: non-negative integer.
        label: key of the labels when ``arrays`` is a dict, or the labels themselves, (rows,).
        minimum_rows: fewest rows of a site.

    Returns:
        The sites, with all rows dealt out.

    Raises:
        InputError: α <= 0, no such label, more sites than rows, ``minimum_rows`` not reached.

    Example:
        >>> rows = {"x": np.arange(12.0), "y": np.arange(12) % 3}
        >>> int(dirichlet(rows, 2, concentration=1.0, seed=0).sizes.sum())
        12
    """
    data, sites, generator = _begin(arrays, sites, seed)
    concentration = arguments.positive("concentration", concentration)
    minimum_rows = _minimum(minimum_rows, sites, data.rows)
    labels = _categories(_column(arrays, label, data.rows, "label"), "label")
    members = [
        generator.permutation(np.flatnonzero(labels == value)) for value in np.unique(labels)
    ]
    for _ in range(ATTEMPTS):
        shares = generator.dirichlet(np.full(sites, concentration), size=len(members))
        ends = np.rint(np.cumsum(shares, axis=1) * [[len(rows)] for rows in members]).astype(int)
        sizes = np.diff(ends, axis=1, prepend=0)
        if sizes.sum(axis=0).min() >= minimum_rows:
            cut = [np.split(rows, e[:-1]) for rows, e in zip(members, ends, strict=True)]
            return _deal(data, [np.concatenate(pieces) for pieces in zip(*cut, strict=True)])
    raise InputError(
        f"minimum_rows={minimum_rows} was not reached at every one of {sites} sites in "
        f"{ATTEMPTS} draws with concentration={concentration}: raise concentration, or use fewer "
        "sites."
    ).at("minimum_rows")


@arguments.hinted
def label_shards(
    arrays: PyTree,
    sites: int,
    *,
    shards_per_site: int = 2,
    seed: int,
    label: str | np.ndarray = "y",
) -> Sites:
    """Assign equal shards of rows sorted by label: label skew (McMahan et al. 2017).

    A site sees about ``shards_per_site`` labels. Sizes differ by one row a shard at most.

    Args:
        arrays: pytree of arrays (rows, ...).
        sites: number of sites.
        shards_per_site: shards that each site gets.
        seed: non-negative integer.
        label: key of the labels when ``arrays`` is a dict, or the labels themselves, (rows,).

    Returns:
        The sites, with all rows dealt out.

    Raises:
        InputError: more shards than rows, no such label.

    Example:
        >>> rows = {"x": np.arange(12.0), "y": np.arange(12) % 3}
        >>> label_shards(rows, 3, shards_per_site=1, seed=0).sizes
        array([4, 4, 4], dtype=int32)
    """
    data, sites, generator = _begin(arrays, sites, seed)
    shards_per_site = arguments.whole("shards_per_site", shards_per_site, 1)
    shards = sites * shards_per_site
    if shards > data.rows:
        raise InputError(
            f"{sites} sites of {shards_per_site} shards need {shards} rows, but there are "
            f"{data.rows}: lower sites or shards_per_site."
        ).at("shards_per_site")
    labels = _categories(_column(arrays, label, data.rows, "label"), "label")
    shuffled = generator.permutation(data.rows)
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = np.array_split(ordered, shards)
    dealt = generator.permutation(shards).reshape(sites, shards_per_site)
    return _deal(data, [np.concatenate([pieces[i] for i in mine]) for mine in dealt])


@arguments.hinted
def quantity(
    arrays: PyTree,
    sites: int,
    *,
    concentration: float | None = None,
    exponent: float | None = None,
    seed: int,
    minimum_rows: int = 1,
) -> Sites:
    r"""Split random rows in unequal sizes: quantity skew (Dirichlet sizes: Li et al. 2022).

    .. math:: n_c \approx m + (n - N m)\, p_c, \qquad p \sim \mathrm{Dirichlet}(\alpha, \dots,
              \alpha) \quad\text{or}\quad p_c \propto c^{-s}, \; c = 1, \dots, N

    Args:
        arrays: pytree of arrays (rows, ...).
        sites: number of sites, N.
        concentration: α > 0; the smaller, the more unequal. Give this or ``exponent``.
        exponent: s >= 0 of a power law; the first site is the largest, 0 gives equal sizes.
        seed: non-negative integer.
        minimum_rows: m, fewest rows of a site.

    Returns:
        The sites, with all rows dealt out.

    Raises:
        InputError: neither or both of α and s, α <= 0, s < 0, N m > n.

    Example:
        >>> rows = {"x": np.arange(12.0), "y": np.arange(12) % 3}
        >>> quantity(rows, 3, exponent=1.0, seed=0).sizes
        array([6, 3, 3], dtype=int32)
    """
    data, sites, generator = _begin(arrays, sites, seed)
    minimum_rows = _minimum(minimum_rows, sites, data.rows)
    if concentration is not None and exponent is None:
        concentration = arguments.positive("concentration", concentration)
        shares = generator.dirichlet(np.full(sites, concentration))
    elif exponent is not None and concentration is None:
        exponent = arguments.number("exponent", exponent, 0.0)
        shares = np.arange(1, sites + 1, dtype=float) ** -exponent
        shares /= shares.sum()
    else:
        raise InputError("Give exactly one of concentration and exponent.").at("concentration")
    spare = data.rows - sites * minimum_rows
    ends = np.rint(np.cumsum(shares) * spare).astype(int) + minimum_rows * np.arange(1, sites + 1)
    return _deal(data, np.split(generator.permutation(data.rows), ends[:-1]))


@arguments.hinted
def by_column(
    arrays: PyTree,
    column: str | np.ndarray,
    *,
    sites: int | None = None,
    name: str | None = None,
    seed: int | None = None,
) -> Sites:
    """Give rows with similar values of one column to one site: a natural partition.

    Without ``sites``, one site per distinct value ("hospital=3"). With ``sites``, groups between
    quantiles of a numeric column ("age<40", "40<=age<60", "age>=60"), equal values staying
    together, so that sizes are equal only as far as the ties allow; a column with just that many
    distinct values gives one site per value.

    Args:
        arrays: pytree of arrays (rows, ...).
        column: key of the column when ``arrays`` is a dict, or the column itself, (rows,):
            numbers or strings. It stays in ``arrays`` where it is.
        sites: number of quantile groups.
        name: what the column is called in the sites' names; the key, or "column", by default.
        seed: accepted so that all partitions have the same signature; nothing here is random.

    Returns:
        The sites, with all rows dealt out.

    Raises:
        InputError: no such column, a continuous column without ``sites``, more groups than
            the column's ties allow, values that are not finite.

    Example:
        >>> rows = {"x": np.arange(12.0), "y": np.arange(12) % 3}
        >>> by_column(rows, "x", sites=2).names
        ('x<6', 'x>=6')
    """
    data = read_rows(arrays, "`arrays`")
    if seed is not None:
        read_seed(seed)
    values = _column(arrays, column, data.rows, "column")
    if name is None:
        name = column if isinstance(column, str) else "column"
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise wrong("column", f" {name!r} holds NaN or an infinity: impute or remove the rows.")
    if sites is not None:
        sites = _sites(sites, data.rows)
    if sites is None or len(np.unique(values)) == sites:
        values = _categories(values, "column", "give sites=... to cut it at quantiles")
        distinct = np.unique(values)
        groups = [np.flatnonzero(values == value) for value in distinct]
        return _deal(data, groups, [f"{name}={_shown(value)}" for value in distinct])
    if values.dtype.kind not in "biuf":
        raise InputError(
            f"column {name!r} holds strings with {len(np.unique(values))} distinct values, which "
            f"have no quantiles: omit sites={sites} to get one site per value."
        ).at("column")
    cuts = _quantile_cuts(values, sites, name)
    group = np.searchsorted(cuts, values, side="right")
    return _deal(data, [np.flatnonzero(group == g) for g in range(sites)], _intervals(cuts, name))


def _shown(value: Any) -> str:
    return str(int(value)) if isinstance(value, np.floating) else str(value)


def _quantile_cuts(values: np.ndarray, sites: int, name: str) -> np.ndarray:
    """Return the sites − 1 smallest values of the upper groups, each a value of the column."""
    ordered = np.sort(values)
    starts = np.cumsum([len(piece) for piece in np.array_split(ordered, sites)])[:-1]
    cuts = ordered[starts]
    if len(np.unique(cuts)) < sites - 1 or (sites > 1 and cuts[0] == ordered[0]):
        raise InputError(
            f"column {name!r} has too many equal values for {sites} quantile groups "
            f"({len(np.unique(values))} distinct values): lower sites."
        ).at("column")
    return cuts


def _intervals(cuts: np.ndarray, name: str) -> list[str]:
    if len(cuts) == 0:
        return [f"any {name}"]
    shown = [str(cut) for cut in cuts]
    for digits in range(4, 17):
        rounded = [f"{float(cut):.{digits}g}" for cut in cuts]
        if len(set(rounded)) == len(cuts):
            shown = rounded
            break
    middle = [f"{low}<={name}<{high}" for low, high in itertools.pairwise(shown)]
    return [f"{name}<{shown[0]}", *middle, f"{name}>={shown[-1]}"]


def _deal(data: Rows, groups: list[np.ndarray], names: list[str] | None = None) -> Sites:
    return Sites.from_list([data.take(np.sort(group)) for group in groups], names)


def _begin(arrays: PyTree, sites: int, seed: int) -> tuple[Rows, int, np.random.Generator]:
    data = read_rows(arrays, "`arrays`")
    return data, _sites(sites, data.rows), np.random.default_rng(read_seed(seed))


def _sites(sites: Any, rows: int) -> int:
    count = arguments.whole("sites", sites, 1)
    if count > rows:
        raise wrong("sites", f" is {count}, but there are {rows} rows: lower sites.")
    return count


def read_seed(seed: Any) -> int:
    """Return ``seed`` as an integer; refuse what is none or negative."""
    return arguments.whole("seed", seed, 0)


def _minimum(minimum_rows: Any, sites: int, rows: int) -> int:
    least = arguments.whole("minimum_rows", minimum_rows, 1)
    if least * sites > rows:
        raise InputError(
            f"minimum_rows={least} at {sites} sites needs {least * sites} rows, but there are "
            f"{rows}: lower minimum_rows or sites."
        ).at("minimum_rows")
    return least


def _column(arrays: PyTree, column: str | np.ndarray, rows: int, argument: str) -> np.ndarray:
    """Return a column (rows,), from its key in a dict or as it is."""
    if isinstance(column, str):
        if not isinstance(arrays, Mapping):
            raise InputError(
                f"{argument}={column!r} is a key, but arrays is a {type(arrays).__name__}: "
                "give the column itself as an array."
            ).at(argument)
        if column not in arrays:
            raise InputError(
                f"{argument}={column!r} is not in arrays; the keys are "
                f"{', '.join(map(str, arrays))}."
            ).at(argument)
        values = np.asarray(arrays[column])
        what = f"{argument}={column!r}"
    else:
        values, what = np.asarray(column), argument
    if values.shape != (rows,):
        text = f"{what} has shape {values.shape}: give one value per row, ({rows},)."
        raise InputError(text).at(argument)
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        values = values.astype(str)
    if values.dtype.kind not in "biufU":
        raise InputError(f"{what} has type {values.dtype}: give numbers or strings.").at(argument)
    return values


def _categories(
    values: np.ndarray, argument: str, remedy: str = "bin it into classes first"
) -> np.ndarray:
    if values.dtype.kind == "f" and not (values == np.round(values)).all():
        raise wrong(argument, f" is continuous, not categories: {remedy}.")
    return values
