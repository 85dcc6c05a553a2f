"""What is kept of the draws of models that are too large, or runs too long, to keep them all.

Draws are taken up in blocks whose length follows from the size of a draw alone, so that neither
chunks nor a resumption change a bit of a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from consortia import checks, fingerprints, naming
from consortia.errors import InputError
from consortia.target import Target

BLOCK_BYTES = 2**20
"""Draws in double precision that are taken up at once."""

LONGEST_BLOCK = 1024


class Kept(Protocol):
    """Takes draws and gives the groups of the result; made by a `Keep`."""

    def take(self, draws: np.ndarray, weights: np.ndarray | None) -> None:
        """The next draws, (chains, draws, d), and their step weights if these vary."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """Everything it knows, by name."""
        ...

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes up where another stood."""
        ...

    def groups(self, variables: Sequence[naming.Variable]) -> dict[str, Any]:
        """Datasets by the name of their group."""
        ...


class Keep(Protocol):
    """What to keep; made by `keep_moments` or `keep_predictions`."""

    def describe(self) -> dict[str, Any]:
        """As plain values, for the specification of the run."""
        ...

    def start(self, target: Target, chains: int) -> Kept:
        """For a run of this posterior, before its first draw."""
        ...


def keep_moments(*, covariance: str = "diagonal", draws: int = 1000) -> KeepMoments:
    r"""Keep means and covariances over all draws, and some draws evenly spaced over the run.

    .. math:: \bar\theta = \sum_s w_s\theta_s \Big/ W,\qquad
              C = \frac{n}{n-1}\sum_s w_s(\theta_s-\bar\theta)(\theta_s-\bar\theta)^T \Big/ W,
              \qquad W = \sum_s w_s

    for each chain, in double precision, by merging blocks (Chan, Golub, LeVeque 1983); w_s is the
    step weight where the step size varies, else 1. The result has them in its group ``moments``:
    ``NAME_mean``, ``NAME_variance`` and, where asked for, ``covariance`` (chain, d, d). The group
    ``posterior`` holds between ``draws``/2 and ``draws`` draws of each chain, at equal distances
    (every 2^k-th, k growing with the run), from which quantiles, predictions and diagnostics are
    computed as usual: an estimated p-quantile has an error in probability of about
    √(p(1−p)/ESS of these draws).

    Args:
        covariance: ``"diagonal"``, or ``"full"`` for chains × d × d numbers more.
        draws: draws of each chain to keep at most, at least 4: chains × draws × d numbers.

    Raises:
        InputError: an argument is out of its range.
    """
    if covariance not in ("diagonal", "full"):
        raise InputError(f"covariance is {covariance!r}: use 'diagonal' or 'full'.")
    return KeepMoments(covariance, checks.whole("draws", draws, 4))


def keep_predictions(rows: Any, *, log_density: bool = True) -> KeepPredictions:
    r"""Keep nothing but the predictions at some rows.

    .. math:: \bar f_i = \sum_s w_s f(\theta_s, z_i),\qquad
              \log p_i = \log\sum_s w_s\,p(z_i\mid\theta_s),\qquad \sum_s w_s = 1

    over all draws of all chains. The result has no draws, but the group ``predictions``: ``mean``
    and ``sd`` (over the draws) of ``model.predict``, (row, ...), and ``log_density`` (row,).

    Args:
        rows: held-out rows, a pytree of arrays (rows, ...) as one site's data.
        log_density: with the rows' responses: their log predictive density too.
    """
    return KeepPredictions(rows, bool(log_density))


@dataclass(frozen=True)
class KeepMoments:
    """The parameters of `keep_moments`."""

    covariance: str
    draws: int

    def describe(self) -> dict[str, Any]:
        """As plain values."""
        return {"kind": "moments", "covariance": self.covariance, "draws": self.draws}

    def start(self, target: Target, chains: int) -> Kept:
        """Before the first draw."""
        return Moments(chains, target.dimension, np.dtype(target.dtype), self)


@dataclass(frozen=True, eq=False)
class KeepPredictions:
    """The parameters of `keep_predictions`."""

    rows: Any
    log_density: bool

    def describe(self) -> dict[str, Any]:
        """As plain values; the rows by their fingerprint."""
        leaves = jax.tree_util.tree_leaves_with_path(self.rows)
        named = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
        return {
            "kind": "predictions",
            "rows": fingerprints.of_value(named),
            "log_density": self.log_density,
        }

    def start(self, target: Target, chains: int) -> Kept:
        """Before the first draw."""
        return Predictions(chains, target, self)


def read_keep(keep: Any) -> Keep | None:
    """None for all draws; "moments" stands for `keep_moments` with its defaults."""
    if keep == "draws":
        return None
    if keep == "moments":
        return keep_moments()
    if hasattr(keep, "describe") and hasattr(keep, "start"):
        return keep
    raise InputError(
        f"keep is {keep!r}: use 'draws', 'moments', consortia.keep_moments(...) or "
        "consortia.keep_predictions(rows)."
    )


# --- blocks --------------------------------------------------------------------------------------


class Blocks:
    """Draws on their way into a sum, in blocks of equal length.

    Args:
        chains: number of chains.
        dimension: d.
    """

    def __init__(self, chains: int, dimension: int) -> None:
        length = int(np.clip(BLOCK_BYTES // (8 * chains * dimension), 1, LONGEST_BLOCK))
        self.draws = np.zeros((chains, length, dimension))
        self.weights = np.zeros((chains, length))
        self.filled = 0

    def cut(self, draws: np.ndarray, weights: np.ndarray | None) -> Any:
        """Yields whole blocks (draws, weights), and keeps the rest."""
        taken, length = 0, self.draws.shape[1]
        every = np.ones(draws.shape[:2]) if weights is None else weights
        every = np.broadcast_to(every, draws.shape[:2])
        while taken < draws.shape[1]:
            count = min(length - self.filled, draws.shape[1] - taken)
            place = slice(self.filled, self.filled + count)
            self.draws[:, place] = draws[:, taken : taken + count]
            self.weights[:, place] = every[:, taken : taken + count]
            self.filled, taken = self.filled + count, taken + count
            if self.filled == length:
                self.filled = 0
                yield self.draws, self.weights

    def rest(self) -> tuple[np.ndarray, np.ndarray]:
        """What has not filled a block."""
        return self.draws[:, : self.filled], self.weights[:, : self.filled]


# --- moments -------------------------------------------------------------------------------------


class Moments:
    """Means, covariances and evenly spaced draws so far."""

    def __init__(self, chains: int, dimension: int, dtype: np.dtype, keep: KeepMoments) -> None:
        self._full = keep.covariance == "full"
        self._blocks = Blocks(chains, dimension)
        shape = (chains, dimension, dimension) if self._full else (chains, dimension)
        self._sums: tuple[np.ndarray, ...] = (
            np.zeros(chains),
            np.zeros((chains, dimension)),
            np.zeros(shape),
        )
        self._draws = np.zeros((chains, keep.draws, dimension), dtype)
        self._draw_weights = np.zeros((chains, keep.draws))
        self._weighted = False
        self._filled, self._stride, self._count = 0, 1, 0

    def take(self, draws: np.ndarray, weights: np.ndarray | None) -> None:
        """The next draws."""
        self._weighted |= weights is not None
        for block, block_weights in self._blocks.cut(draws, weights):
            self._sums = self._merged(block, block_weights)
        every = np.broadcast_to(1.0 if weights is None else weights, draws.shape[:2])
        first, count = self._count, draws.shape[1]
        number = first  # draws before the next one to look at
        while (number := (number // self._stride + 1) * self._stride) <= first + count:
            if self._filled == self._draws.shape[1]:
                self._thin()
                if number % self._stride:
                    continue
            self._draws[:, self._filled] = draws[:, number - first - 1]
            self._draw_weights[:, self._filled] = every[:, number - first - 1]
            self._filled += 1
        self._count += count

    def _thin(self) -> None:
        """Every second of the kept draws, and half as many of those to come."""
        half = self._filled // 2
        self._draws[:, :half] = self._draws[:, 1 : 2 * half : 2].copy()
        self._draw_weights[:, :half] = self._draw_weights[:, 1 : 2 * half : 2].copy()
        self._filled, self._stride = half, 2 * self._stride

    def _merged(self, block: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
        """The sums with a block added."""
        total, mean, spread = self._sums
        added = weights.sum(axis=1)
        own = (weights[:, :, None] * block).sum(axis=1) / added[:, None]
        away = block - own[:, None]
        heavy = weights[:, :, None] * away
        after = total + added
        step = own - mean
        factor = total * added / after
        if self._full:
            inside = np.matmul(heavy.transpose(0, 2, 1), away)
            between = factor[:, None, None] * step[:, :, None] * step[:, None, :]
        else:
            inside = (heavy * away).sum(axis=1)
            between = factor[:, None] * step**2
        mean = mean + step * (added / after)[:, None]
        return after, mean, spread + inside + between

    def state(self) -> dict[str, np.ndarray]:
        """Everything."""
        total, mean, spread = self._sums
        draws, weights = self._blocks.rest()
        return {
            "kept/total": total,
            "kept/mean": mean,
            "kept/spread": spread,
            "kept/rest": draws,
            "kept/rest_weights": weights,
            "kept/draws": self._draws[:, : self._filled],
            "kept/draw_weights": self._draw_weights[:, : self._filled],
            "kept/counts": np.array([self._stride, self._count, self._weighted], np.int64),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes up where another stood."""
        self._sums = (state["kept/total"], state["kept/mean"], state["kept/spread"])
        for _ in self._blocks.cut(state["kept/rest"], state["kept/rest_weights"]):
            raise ValueError("a rest is shorter than a block")
        self._filled = state["kept/draws"].shape[1]
        self._draws[:, : self._filled] = state["kept/draws"]
        self._draw_weights[:, : self._filled] = state["kept/draw_weights"]
        stride, count, weighted = state["kept/counts"].tolist()
        self._stride, self._count, self._weighted = stride, count, bool(weighted)

    def groups(self, variables: Sequence[naming.Variable]) -> dict[str, Any]:
        """``moments`` and ``posterior``."""
        import xarray
        from arviz_base import dict_to_dataset

        draws, weights = self._blocks.rest()
        _, mean, spread = self._merged(draws, weights) if draws.size else self._sums
        total = self._sums[0] + weights.sum(axis=1)
        scale = self._count / max(self._count - 1, 1) / total
        coordinates: dict[Any, Any] = {"chain": np.arange(len(mean))}
        spread = spread * scale.reshape(-1, *([1] * (spread.ndim - 1)))
        variance = np.diagonal(spread, axis1=1, axis2=2) if self._full else spread
        arrays = {f"{name}_mean": value for name, value in naming.split(mean, variables).items()}
        for name, value in naming.split(variance, variables).items():
            arrays[f"{name}_variance"] = value
        if self._full:
            arrays["covariance"] = spread
        made = dict_to_dataset(
            arrays, sample_dims=["chain"], check_conventions=False, coords=coordinates
        )
        made.attrs.clear()
        made.attrs["draws"] = self._count
        kept = self._draws[:, : self._filled]
        places = self._stride * np.arange(1, self._filled + 1) - 1
        posterior = dict_to_dataset(
            naming.split(kept, variables),
            check_conventions=False,
            coords={**coordinates, "draw": places},
        )
        posterior.attrs.clear()
        found = {"moments": made, "posterior": posterior}
        if self._weighted:
            weight = xarray.DataArray(
                self._draw_weights[:, : self._filled],
                dims=("chain", "draw"),
                coords={**coordinates, "draw": places},
            )
            found["sample_stats"] = xarray.Dataset({"weight": weight})
        return found


# --- predictions ---------------------------------------------------------------------------------


class Predictions:
    """Sums of predictions so far."""

    def __init__(self, chains: int, target: Target, keep: KeepPredictions) -> None:
        from consortia.diagnostics import predictive

        if target.model.predict is None:
            raise InputError(
                "keep_predictions needs Model.predict: give the model "
                "predict=(params, batch) -> (rows, ...)."
            )
        self._target, self._blocks = target, Blocks(chains, target.dimension)
        self._rows = jax.tree.map(jnp.asarray, keep.rows)
        self._sums_of = predictive.sums_over_draws
        self._log_density = keep.log_density
        lengths = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(keep.rows)}
        if len(lengths) != 1 or 0 in lengths:
            raise InputError("keep_predictions: the arrays of rows need one common row axis.")
        shapes = jax.eval_shape(
            lambda: self._sums_of(
                target.model, keep.log_density, *self._block(self._blocks.draws), self._rows
            )
        )
        count = lengths.pop()
        if shapes[0].shape[:1] != (count,):
            raise InputError(
                f"Model.predict returned shape {shapes[0].shape} for {count} rows: it must return "
                "one entry a row."
            )
        self._total, self._count = np.zeros(()), 0
        self._sums = [np.zeros(shape.shape) for shape in shapes]
        self._sums[2:] = [np.full(shape.shape, -np.inf) for shape in shapes[2:]]

    def _block(self, draws: np.ndarray, weights: np.ndarray | None = None) -> tuple[Any, Any]:
        """Parameters with a leading axis, and their weights, of all chains."""
        flat = jnp.asarray(draws.reshape(-1, draws.shape[-1]), self._target.dtype)
        weights = np.ones(draws.shape[:2]) if weights is None else weights
        parameters = jax.vmap(self._target.unravel)(flat)
        return parameters, jnp.asarray(weights.reshape(-1), self._target.dtype)

    def take(self, draws: np.ndarray, weights: np.ndarray | None) -> None:
        """The next draws."""
        self._count += draws.shape[0] * draws.shape[1]
        for block, block_weights in self._blocks.cut(draws, weights):
            self._total, self._sums = self._added(block, block_weights)

    def _added(self, draws: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, Any]:
        made = self._sums_of(
            self._target.model, self._log_density, *self._block(draws, weights), self._rows
        )
        sums = [
            total + np.asarray(part, np.float64)
            for total, part in zip(self._sums[:2], made[:2], strict=True)
        ]
        sums += [
            np.logaddexp(total, np.asarray(part, np.float64))
            for total, part in zip(self._sums[2:], made[2:], strict=True)
        ]
        return self._total + weights.sum(), sums

    def state(self) -> dict[str, np.ndarray]:
        """Everything."""
        draws, weights = self._blocks.rest()
        sums = {f"kept/sum {place}": value for place, value in enumerate(self._sums)}
        return sums | {
            "kept/rest": draws,
            "kept/rest_weights": weights,
            "kept/total": self._total,
            "kept/counts": np.array([self._count], np.int64),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes up where another stood."""
        self._sums = [state[f"kept/sum {place}"] for place in range(len(self._sums))]
        for _ in self._blocks.cut(state["kept/rest"], state["kept/rest_weights"]):
            raise ValueError("a rest is shorter than a block")
        self._total, self._count = state["kept/total"], int(state["kept/counts"][0])

    def groups(self, variables: Sequence[naming.Variable]) -> dict[str, Any]:
        """``predictions``."""
        import xarray

        draws, weights = self._blocks.rest()
        total, sums = self._added(draws, weights) if draws.size else (self._total, self._sums)
        mean = sums[0] / total
        sd = np.sqrt(np.maximum(sums[1] / total - mean**2, 0))
        dims = ("row", "class", *(f"output_{i}" for i in range(2, mean.ndim)))[: mean.ndim]
        arrays = {"mean": (dims, mean), "sd": (dims, sd)}
        if len(sums) > 2:
            arrays["log_density"] = (("row",), sums[2] - np.log(total))
        return {"predictions": xarray.Dataset(arrays, attrs={"draws": self._count})}
