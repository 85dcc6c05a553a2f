"""R-hat and effective sample size, for every scalar coordinate and at a bounded cost.

Neither sees bias: a sampler that converged to the wrong law has R-hat 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from consortia.core import arguments
from consortia.core.parameters import draw_imputations, posterior_arrays, posterior_group
from consortia.diagnostics.imputations import of_each
from consortia.dynamics.rank_statistics import (
    LEAST_DRAWS,
    effective_sample_size,
    rhat_and_ess_of,
    split_chains,
)
from consortia.errors import wrong

Between = Literal["chains", "halves"]
MaxCoordinates = int | Literal["auto", "all"]

# Values (chains × draws × coordinates) that "auto" looks at. At the measured .12 µs a value that is
# 60 ms for a whole run and 15 ms for one verdict of a stopping rule.
RUN_VALUES = 2**19
CHUNK_VALUES = 2**17
# Values worked on at once: the temporary arrays then stay in the processor's cache.
BLOCK_VALUES = 2**15
# Values read from a store at once, 32 MiB in double precision.
SLAB_VALUES = 2**22

_AVAILABLE, _NOT_COMPUTED, _FEW, _NON_FINITE, _CONSTANT, _ONE_CHAIN, _UNLIKE = range(7)


class ChunkVerdict(NamedTuple):
    """The worst statistics of the draws so far, for a stopping rule.

    Attributes:
        max_r_hat: largest R-hat over the coordinates, NaN when it is not available for some.
        min_ess: smallest of all bulk and tail effective sample sizes, NaN likewise.
        reason: why a statistic is not available, or None.

    Example:
        >>> ChunkVerdict(1.01, 400.0, None).min_ess
        400.0
    """

    max_r_hat: float
    min_ess: float
    reason: str | None


@dataclass(frozen=True)
class Convergence:
    """R-hat and effective sample sizes of every scalar coordinate of a posterior.

    Attributes:
        r_hat: by variable, ``(*shape)``; NaN where it is not available.
        ess_bulk: likewise, in draws, over all chains.
        ess_tail: likewise, the smaller of the two at the 5 % and the 95 % quantile.
        r_hat_reason: by variable, ``(*shape)`` of text: why R-hat is not available, "" where it is.
        ess_reason: likewise for both effective sample sizes.
        computed: how many coordinates were looked at.
        coordinates: how many there are.

    Example:
        >>> draws = np.random.default_rng(0).normal(size=(4, 100, 2))
        >>> convergence({"theta": draws}).r_hat["theta"].shape
        (2,)
    """

    r_hat: Mapping[str, np.ndarray]
    ess_bulk: Mapping[str, np.ndarray]
    ess_tail: Mapping[str, np.ndarray]
    r_hat_reason: Mapping[str, np.ndarray]
    ess_reason: Mapping[str, np.ndarray]
    computed: int
    coordinates: int

    def notes(self) -> list[str]:
        """Return the footnotes: each reason once, with how many coordinates where not all."""
        notes = [text for _, text in self._missing()]
        if self.computed < self.coordinates:
            notes.insert(
                0, f"R-hat and ESS: computed for {self.computed} of {self.coordinates} coordinates"
            )
        return notes

    def missing(self, statistic: Literal["R-hat", "ESS"]) -> tuple[str, ...]:
        """Return the notes on why a statistic is not available."""
        return tuple(text for names, text in self._missing() if statistic in names)

    def _missing(self) -> Iterator[tuple[list[str], str]]:
        reasons = {"R-hat": _count(self.r_hat_reason), "ESS": _count(self.ess_reason)}
        for reason in reasons["R-hat"] | reasons["ESS"]:
            if reason != _not_computed(self.computed, self.coordinates):
                names = [name for name, counts in reasons.items() if reason in counts]
                count = max(reasons[name][reason] for name in names)
                part = (
                    "" if count == self.computed else f" ({count} of {self.computed} coordinates)"
                )
                yield names, f"{' and '.join(names)} not available: {reason}{part}"


def convergence(
    posterior: Any, *, between: Between = "chains", max_coordinates: MaxCoordinates = "auto"
) -> Convergence:
    r"""Return rank-normalised split R-hat, bulk ESS and tail ESS of every scalar coordinate.

    .. math:: \hat R = \sqrt{\frac{B/W + n - 1}{n}}, \qquad
              \mathrm{ESS} = \frac{mn}{-1 + 2\sum_t \hat\rho_t}

    of the m half-chains of n draws, W and B being the variances within and between them; R-hat is
    the larger of the two for the normal scores of the draws and of their distances to the median.

    A statistic that cannot be computed is NaN with a reason beside it, without error or warning.
    Chains of servers with unlike step sizes have unlike laws: they are not compared. Draws given
    several imputations are of unlike posteriors: R-hat is the largest of those within one, the
    effective sample sizes are summed.

    Args:
        posterior: a result of a run, its group ``posterior``, an `xarray.Dataset`, or a mapping of
            names to arrays (chain, draw, ...). Only independent chains are chains here, never the
            sites of one chain.
        between: "chains": R-hat needs two chains at least. "halves": one chain is enough, its two
            halves are compared (with several chains both choices are equal).
        max_coordinates: "all", the largest number of coordinates to look at, or "auto", which
            looks at no more than about 5·10⁵ values: an evenly spaced subset of each variable's
            coordinates that depends only on the sizes.

    Returns:
        R-hat and both effective sample sizes, by variable, with reasons where there is none.

    Raises:
        InputError: an unknown option, or no draws where they are expected.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> result = convergence({"theta": rng.normal(size=(1, 200, 3))})
        >>> result.notes()
        ['R-hat not available: 1 chain']
    """
    arguments.one_of("between", between, ("chains", "halves"))
    arrays = posterior_arrays(posterior)
    numbers = draw_imputations(posterior)
    if numbers is not None:
        return _given_each(arrays, numbers, between, max_coordinates)
    total = sum(_size(array) for array in arrays.values())
    allowed = _allowed(max_coordinates, arrays, total, RUN_VALUES)
    unlike = getattr(posterior, "attrs", {}).get("servers_alike") in (False, "false")
    fields: tuple[dict[str, Any], ...] = ({}, {}, {}, {}, {})
    computed = 0
    for name, array in arrays.items():
        picked = _evenly_spaced(_size(array), allowed, total)
        computed += picked.size
        statistics = _of_variable(array, picked, between)
        if unlike:
            statistics = [np.full(_size(array), value) for value in (*[np.nan] * 3, *[_UNLIKE] * 2)]
        for field, values in zip(fields, statistics, strict=True):
            field[name] = values.reshape(array.shape[2:])
    chains, draws = next(iter(arrays.values())).shape[:2]
    text = np.array(_reasons(chains, draws, computed, total), dtype=object)
    r_hat, bulk, tail = fields[:3]
    why = [
        {name: np.asarray(text[code], object) for name, code in field.items()}
        for field in fields[3:]
    ]
    return Convergence(r_hat, bulk, tail, why[0], why[1], computed, total)


def rhat_and_ess(
    draws: Any, *, between: Between = "chains", max_coordinates: MaxCoordinates = "auto"
) -> ChunkVerdict:
    """Return the worst R-hat and effective sample size of the draws so far, for a stopping rule.

    Args:
        draws: (chain, draw, d).
        between: as in `convergence`.
        max_coordinates: as in `convergence`, but "auto" looks at about 10⁵ values only, because
            a rule is checked after every chunk.

    Returns:
        The largest R-hat, the smallest effective sample size, and why one is not available.

    Raises:
        InputError: the draws are not (chain, draw, d), or an option is unknown.

    Example:
        >>> found = rhat_and_ess(np.random.default_rng(0).normal(size=(4, 100, 2)))
        >>> found.max_r_hat < 1.1
        True
    """
    array = np.asarray(draws)
    if array.ndim != 3:
        raise wrong("draws", f" have shape {array.shape}: give an array (chain, draw, d).")
    allowed = _allowed(max_coordinates, {"theta": array}, _size(array), CHUNK_VALUES)
    report = convergence({"theta": array}, between=between, max_coordinates=allowed)
    looked_at = report.r_hat_reason["theta"] != _not_computed(report.computed, report.coordinates)
    r_hat = report.r_hat["theta"][looked_at]
    ess = np.minimum(report.ess_bulk["theta"], report.ess_tail["theta"])[looked_at]
    reasons = dict.fromkeys(report.missing("R-hat") + report.missing("ESS"))
    return ChunkVerdict(float(r_hat.max()), float(ess.min()), "; ".join(reasons) or None)


def error_of_mean(array: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    r"""Return the Monte Carlo standard error of the mean of every coordinate, sd / √ESS.

    With step weights the mean is a ratio; its error is that of the mean of
    :math:`u_i = w_i (x_i - \bar x_w) / \bar w`.

    Args:
        array: draws (chain, draw, *shape).
        weights: step weights (draw,) or (chain, draw), or None.

    Returns:
        ``(*shape)``; NaN with fewer than four draws, or where they are constant or not finite.
    """
    chains, draws = array.shape[:2]
    errors = np.full(_size(array), np.nan)
    if draws >= LEAST_DRAWS and chains:
        flat = array.reshape(chains, draws, errors.size)
        for which, values in _blocks(flat, np.arange(errors.size)):
            usable = np.isfinite(values).all(axis=(1, 2))
            usable &= values.max(axis=(1, 2)) > values.min(axis=(1, 2))
            if not usable.any():
                continue
            values = values[usable]
            if weights is not None:
                share = weights / weights.mean()
                values = share * (values - (share * values).mean(axis=(1, 2), keepdims=True))
            spread = values.std(axis=(1, 2), ddof=1)
            errors[which][usable] = spread / np.sqrt(effective_sample_size(split_chains(values)))
    return errors.reshape(array.shape[2:])


def add_diagnostics(
    tree: Any, *, between: Between = "chains", max_coordinates: MaxCoordinates = "auto"
) -> Convergence:
    """Write the group ``diagnostics`` into a result, and return its content.

    It has one variable for each of the posterior's, of dimensions (statistic, ...) with the
    statistics "r_hat", "ess_bulk" and "ess_tail"; its attribute ``notes`` lists what is not
    available and why, ``computed`` and ``coordinates`` how many coordinates were looked at.

    Args:
        tree: an `xarray.DataTree` with a group ``posterior``; changed in place.
        between: as in `convergence`.
        max_coordinates: as in `convergence`.

    Returns:
        What was written.

    Raises:
        InputError: as `convergence`.

    Example:
        >>> import xarray
        >>> draws = np.random.default_rng(0).normal(size=(4, 100))
        >>> tree = xarray.DataTree.from_dict(
        ...     {"posterior": xarray.Dataset({"theta": (("chain", "draw"), draws)})})
        >>> found = add_diagnostics(tree)
        >>> tree["diagnostics"]["theta"].shape
        (3,)
    """
    import xarray

    report = convergence(tree, between=between, max_coordinates=max_coordinates)
    source = posterior_group(tree)
    contents = {}
    for name in report.r_hat:
        of_draws = {"chain", "draw"}
        array = source[name]
        dims = ("statistic", *(dim for dim in array.dims if dim not in of_draws))
        coords = {key: c for key, c in array.coords.items() if not of_draws & {key, *c.dims}}
        statistics = np.stack([report.r_hat[name], report.ess_bulk[name], report.ess_tail[name]])
        contents[name] = xarray.DataArray(statistics, dims=dims, coords=coords)
    dataset = xarray.Dataset(
        contents,
        # Text of variable length: the one kind of text that Zarr's third format specifies.
        coords={"statistic": np.array(["r_hat", "ess_bulk", "ess_tail"], dtype=object)},
        attrs={
            "notes": "; ".join(report.notes()),
            "between": between,
            "computed": report.computed,
            "coordinates": report.coordinates,
        },
    )
    tree["diagnostics"] = xarray.DataTree(dataset=dataset)
    return report


def _given_each(
    arrays: Mapping[str, Any],
    numbers: np.ndarray,
    between: Between,
    max_coordinates: MaxCoordinates,
) -> Convergence:
    """Return the worst of what `convergence` returns given each imputation, draws counted up."""
    parts: dict[str, list[Any]] = {name: list(of_each(a, numbers)) for name, a in arrays.items()}
    diagnoses = [
        convergence(
            {name: np.asarray(part[index]) for name, part in parts.items()},
            between=between,
            max_coordinates=max_coordinates,
        )
        for index in range(len(np.unique(numbers)))
    ]
    first = diagnoses[0]

    def over(field: str, reduced: Any) -> dict[str, np.ndarray]:
        every = [vars(part)[field] for part in diagnoses]
        return {name: reduced([part[name] for part in every], axis=0) for name in every[0]}

    def reasons(field: str) -> dict[str, np.ndarray]:
        every = [vars(part)[field] for part in diagnoses]
        worst = {name: vars(first)[field][name].astype(object) for name in every[0]}
        for part in every:
            worst = {name: np.where(worst[name] == "", part[name], worst[name]) for name in worst}
        return worst

    return Convergence(
        over("r_hat", np.max),
        over("ess_bulk", np.sum),
        over("ess_tail", np.sum),
        reasons("r_hat_reason"),
        reasons("ess_reason"),
        first.computed,
        first.coordinates,
    )


# --- which coordinates ---------------------------------------------------------------------------


def _size(array: Any) -> int:
    return int(np.prod(array.shape[2:], dtype=np.int64))


def _allowed(
    max_coordinates: MaxCoordinates, arrays: Mapping[str, Any], total: int, values: int
) -> int:
    if max_coordinates == "all":
        return total
    if max_coordinates == "auto":
        chains, draws = next(iter(arrays.values())).shape[:2]
        return min(total, max(1, values // max(1, chains * draws)))
    if not isinstance(max_coordinates, int) or max_coordinates < 0:
        raise wrong("max_coordinates", f"={max_coordinates!r}: give 'auto', 'all' or a number.")
    return min(total, max_coordinates)


def _evenly_spaced(size: int, allowed: int, total: int) -> np.ndarray:
    """Return a variable's share of the allowed coordinates, one if any, over its entries."""
    count = min(size, max(1, allowed * size // total)) if size and allowed else 0
    return (2 * np.arange(count) + 1) * size // (2 * max(count, 1))


# --- why not -------------------------------------------------------------------------------------


def _not_computed(computed: int, coordinates: int) -> str:
    return f"not among the {computed} of {coordinates} coordinates that were checked"


def _reasons(chains: int, draws: int, computed: int, coordinates: int) -> list[str]:
    noun = "draw" if draws == 1 else "draws"
    return [
        "",
        _not_computed(computed, coordinates),
        f"{draws} {noun}; at least {LEAST_DRAWS} are needed",
        "non-finite draws",
        "constant draws",
        f"{chains} chain{'' if chains == 1 else 's'}",
        "the servers have different step sizes and sample different distributions; check one "
        "server at a time",
    ]


def _count(reasons: Mapping[str, np.ndarray]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for values in reasons.values():
        for reason, count in Counter(values.ravel().tolist()).items():
            if reason:
                counts[reason] = counts.get(reason, 0) + count
    return counts


# --- the statistics ------------------------------------------------------------------------------


def _of_variable(array: Any, picked: np.ndarray, between: Between) -> Sequence[np.ndarray]:
    """Return R-hat, bulk and tail ESS and the two codes of the reasons, (size,) each."""
    chains, draws = array.shape[:2]
    size = _size(array)
    r_hat, bulk, tail = (np.full(size, np.nan) for _ in range(3))
    code = np.full(size, _NOT_COMPUTED)
    code[picked] = _AVAILABLE if draws >= LEAST_DRAWS and chains else _FEW
    if draws >= LEAST_DRAWS and chains:
        columns, places = _columns(array, picked)
        for which, values in _blocks(columns, places):
            block = picked[which]
            halves = split_chains(values)
            finite = np.isfinite(values).all(axis=(1, 2))
            moving = halves.max(axis=(1, 2)) > halves.min(axis=(1, 2))
            code[block[~moving]] = _CONSTANT
            code[block[~finite]] = _NON_FINITE
            usable = finite & moving
            good = block[usable]
            if good.size:
                r_hat[good], bulk[good], tail[good] = rhat_and_ess_of(values[usable])
    r_hat_code = code
    if between == "chains" and chains < 2:
        r_hat_code = np.where(code == _AVAILABLE, _ONE_CHAIN, code)
        r_hat = np.full(size, np.nan)
    return r_hat, bulk, tail, r_hat_code, code


def _columns(array: Any, picked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return draws (chain, draw, k) with the picked coordinates, and their places among the k.

    An array in memory is returned whole. One in a store is read a slab of draws at a time, of
    which the picked coordinates are kept.
    """
    chains, draws = array.shape[:2]
    size = _size(array)
    if isinstance(array, np.ndarray):
        return array.reshape(chains, draws, size), picked
    step = max(1, SLAB_VALUES // max(1, chains * size))
    slabs = [
        np.asarray(array[:, first : first + step]).reshape(chains, -1, size)[:, :, picked]
        for first in range(0, draws, step)
    ]
    return np.concatenate(slabs, axis=1), np.arange(picked.size)


def _blocks(flat: np.ndarray, places: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield places of (chain, draw, k) by blocks: which of them, draws (block, chain, draw)."""
    chains, draws = flat.shape[:2]
    step = max(1, BLOCK_VALUES // (chains * draws))
    for first in range(0, places.size, step):
        which = slice(first, first + step)
        values = np.moveaxis(flat[:, :, places[which]], -1, 0)
        yield which, np.ascontiguousarray(values, dtype=np.float64)
