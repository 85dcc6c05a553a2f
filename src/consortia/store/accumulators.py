"""Sums over draws in place of the draws, for models too large or runs too long to keep all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.core import arguments, fingerprints
from consortia.core import parameters as naming
from consortia.core.predictions import sums_over_draws
from consortia.core.target import Target
from consortia.errors import InputError
from consortia.runtime.late import jax, jnp
from consortia.store.results import MOMENTS, dataset_of

BLOCK_BYTES = 2**20
"""Draws in double precision that are added at once."""

BLOCK_DRAWS_MAX = 1024

KEPT_BYTES = 2**28
LEAST_KEPT, MOST_KEPT = 4, 1000
"""Draws of each chain beside the moments: as many as so many bytes hold."""


class AccumulatorSpec(ABC):
    """A choice of what to keep; made by `keep_moments` or `keep_predictions`."""

    @abstractmethod
    def draws_kept(self, target: Target, chains: int) -> int:
        """Count the draws of each chain that are kept at most."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return it as plain values, for the specification of the run."""

    @abstractmethod
    def start(self, target: Target, chains: int) -> Accumulator:
        """Return the accumulator of a run of this posterior, before its first draw."""


class Accumulator(ABC):
    """Sums over draws, to which these are added in blocks of equal length.

    The length of a block follows from the size of a draw alone, so that neither chunks nor a
    resumption change a bit of a result.
    """

    _sums: tuple[Any, ...]

    def __init__(self, chains: int, dimension: int) -> None:
        length = int(np.clip(BLOCK_BYTES // (8 * chains * dimension), 1, BLOCK_DRAWS_MAX))
        self._block = np.zeros((chains, length, dimension))
        self._block_weights = np.zeros((chains, length))
        self._filled = 0

    @abstractmethod
    def _added(self, draws: np.ndarray, weights: np.ndarray) -> tuple[Any, ...]:
        """Return the sums with draws (chains, block, d) and weights (chains, block) added."""

    def take(self, draws: np.ndarray, weights: np.ndarray | None) -> None:
        """Add the next draws, (chains, draws, d), with their step weights if these vary."""
        for block, block_weights in self._blocks(draws, weights):
            self._sums = self._added(block, block_weights)

    def state(self) -> dict[str, np.ndarray]:
        """Return everything by name, for a checkpoint."""
        rest, weights = self._rest()
        sums = {f"kept/sum {index}": np.asarray(value) for index, value in enumerate(self._sums)}
        return sums | {"kept/rest": rest, "kept/rest_weights": weights}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take the state of another accumulator."""
        self._sums = tuple(state[f"kept/sum {index}"] for index in range(len(self._sums)))
        for _ in self._blocks(state["kept/rest"], state["kept/rest_weights"]):
            raise ValueError("a rest is shorter than a block")

    @abstractmethod
    def groups(self, variables: Sequence[naming.Variable]) -> dict[str, Any]:
        """Return the datasets of the result by the name of their group."""

    def _blocks(self, draws: np.ndarray, weights: np.ndarray | None) -> Iterator[Any]:
        """Yield whole blocks (draws, weights), and hold what does not fill one."""
        taken, length = 0, self._block.shape[1]
        every = np.broadcast_to(1.0 if weights is None else weights, draws.shape[:2])
        while taken < draws.shape[1]:
            count = min(length - self._filled, draws.shape[1] - taken)
            into = slice(self._filled, self._filled + count)
            self._block[:, into] = draws[:, taken : taken + count]
            self._block_weights[:, into] = every[:, taken : taken + count]
            self._filled, taken = self._filled + count, taken + count
            if self._filled == length:
                self._filled = 0
                yield self._block, self._block_weights

    def _rest(self) -> tuple[np.ndarray, np.ndarray]:
        return self._block[:, : self._filled], self._block_weights[:, : self._filled]

    def _all_sums(self) -> tuple[Any, ...]:
        """Return the sums over all draws, those that have not filled a block included."""
        return self._added(*self._rest()) if self._filled else self._sums


def read_spec(keep: Any) -> AccumulatorSpec | None:
    """Return None for all draws; "moments" stands for `keep_moments` with its defaults."""
    if isinstance(keep, str) and keep == "draws":
        return None
    if isinstance(keep, str) and keep == "moments":
        return keep_moments()
    if isinstance(keep, AccumulatorSpec):
        return keep
    raise InputError(
        f"keep is {keep!r}: use 'draws', 'moments', consortia.keep_moments(...) or "
        "consortia.keep_predictions(rows)."
    ).at("keep")


# --- means and covariances -----------------------------------------------------------------------


@arguments.hinted
def keep_moments(*, covariance: str = "diagonal", draws: int | None = None) -> MomentSpec:
    r"""Keep means and covariances over all draws, and some draws evenly spaced over the run.

    .. math:: \bar\theta = \sum_s w_s\theta_s \Big/ W,\qquad
              C = \frac{n}{n-1}\sum_s w_s(\theta_s-\bar\theta)(\theta_s-\bar\theta)^T \Big/ W,
              \qquad W = \sum_s w_s

    for each chain, in double precision, by merging blocks (Chan, Golub, LeVeque 1983); w_s is the
    step weight where the step size varies, else 1. The result has them in its group ``moments``
    (``unconstrained_moments`` where the model has natural quantities: they are of the coordinates):
    ``NAME_mean``, ``NAME_variance`` and, with "full", ``covariance`` (chain, d, d). The group
    ``posterior`` holds between ``draws``/2 and ``draws`` draws of each chain, at equal distances
    (every 2^k-th, k growing with the run), from which quantiles, predictions and diagnostics are
    computed as usual: an estimated p-quantile has an error in probability of about
    √(p(1−p)/ESS of these draws).

    Args:
        covariance: ``"diagonal"``, or ``"full"`` for chains × d × d values more.
        draws: draws of each chain to keep at most, at least 4: chains × draws × d values. 1,000
            when None, and fewer where they would take more than 256 MiB.

    Returns:
        What to keep, for ``keep`` of `consortia.sample`.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> keep_moments(draws=500).draws
        500
    """
    covariance = arguments.one_of("covariance", covariance, ("diagonal", "full"))
    most = None if draws is None else arguments.whole("draws", draws, LEAST_KEPT)
    return MomentSpec(covariance, most)


@dataclass(frozen=True)
class MomentSpec(AccumulatorSpec):
    """The parameters of `keep_moments`."""

    covariance: str
    draws: int | None

    def describe(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"kind": "moments", "covariance": self.covariance, "draws": self.draws}

    def draws_kept(self, target: Target, chains: int) -> int:
        """Return the number in the spec, else as many as fit."""
        if self.draws is not None:
            return self.draws
        fit = KEPT_BYTES // (chains * target.dimension * np.dtype(target.dtype).itemsize)
        return int(np.clip(fit, LEAST_KEPT, MOST_KEPT))

    def start(self, target: Target, chains: int) -> Accumulator:
        """Return moments of no draws."""
        draws = self.draws_kept(target, chains)
        dtype = np.dtype(target.dtype)
        return MomentAccumulator(chains, target.dimension, dtype, self.covariance, draws)


class MomentAccumulator(Accumulator):
    """Means, covariances and evenly spaced draws so far."""

    def __init__(
        self, chains: int, dimension: int, dtype: np.dtype, covariance: str, draws: int
    ) -> None:
        super().__init__(chains, dimension)
        self._full = covariance == "full"
        shape = (chains, dimension, dimension) if self._full else (chains, dimension)
        self._sums = np.zeros(chains), np.zeros((chains, dimension)), np.zeros(shape)
        self._draws = np.zeros((chains, draws, dimension), dtype)
        self._draw_weights = np.zeros((chains, draws))
        self._weighted = False
        self._kept, self._stride, self._count = 0, 1, 0

    def take(self, draws: np.ndarray, weights: np.ndarray | None) -> None:
        """Add the next draws, and keep every so many of them."""
        super().take(draws, weights)
        self._weighted |= weights is not None
        every = np.broadcast_to(1.0 if weights is None else weights, draws.shape[:2])
        first, count = self._count, draws.shape[1]
        end = first  # draws up to the next one to look at
        while (end := (end // self._stride + 1) * self._stride) <= first + count:
            if self._kept == self._draws.shape[1]:
                self._thin()
                if end % self._stride:
                    continue
            self._draws[:, self._kept] = draws[:, end - first - 1]
            self._draw_weights[:, self._kept] = every[:, end - first - 1]
            self._kept += 1
        self._count += count

    def _thin(self) -> None:
        """Leave every second of the kept draws, and keep half as many of those to come."""
        half = self._kept // 2
        self._draws[:, :half] = self._draws[:, 1 : 2 * half : 2].copy()
        self._draw_weights[:, :half] = self._draw_weights[:, 1 : 2 * half : 2].copy()
        self._kept, self._stride = half, 2 * self._stride

    def _added(self, draws: np.ndarray, weights: np.ndarray) -> tuple[Any, ...]:
        total, mean, spread = self._sums
        added = weights.sum(axis=1)
        added_mean = (weights[:, :, None] * draws).sum(axis=1) / added[:, None]
        away = draws - added_mean[:, None]
        heavy = weights[:, :, None] * away
        after = total + added
        step = added_mean - mean
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
        """Return everything by name, for a checkpoint."""
        return super().state() | {
            "kept/draws": self._draws[:, : self._kept],
            "kept/draw_weights": self._draw_weights[:, : self._kept],
            "kept/counts": np.array([self._stride, self._count, self._weighted], np.int64),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take the state of another accumulator."""
        super().restore(state)
        self._kept = state["kept/draws"].shape[1]
        self._draws[:, : self._kept] = state["kept/draws"]
        self._draw_weights[:, : self._kept] = state["kept/draw_weights"]
        stride, count, weighted = state["kept/counts"].tolist()
        self._stride, self._count, self._weighted = stride, count, bool(weighted)

    def groups(self, variables: Sequence[naming.Variable]) -> dict[str, Any]:
        """Return ``moments`` and ``posterior``, and ``sample_stats`` of weighted draws."""
        import xarray

        total, mean, spread = self._all_sums()
        scale = self._count / max(self._count - 1, 1) / total
        spread = spread * scale.reshape(-1, *([1] * (spread.ndim - 1)))
        variance = np.diagonal(spread, axis1=1, axis2=2) if self._full else spread
        arrays = {f"{name}_mean": value for name, value in naming.split(mean, variables).items()}
        for name, value in naming.split(variance, variables).items():
            arrays[f"{name}_variance"] = value
        if self._full:
            arrays["covariance"] = spread
        chain = {"chain": np.arange(len(mean))}
        draws = chain | {"draw": self._stride * np.arange(1, self._kept + 1) - 1}
        moments = dataset_of(arrays, chain, ["chain"]).assign_attrs(draws=self._count)
        kept = naming.split(self._draws[:, : self._kept], variables)
        posterior = dataset_of(kept, draws, ["chain", "draw"])
        groups = {MOMENTS: moments, naming.POSTERIOR: posterior}
        if self._weighted:
            weight = xarray.DataArray(
                self._draw_weights[:, : self._kept], dims=("chain", "draw"), coords=draws
            )
            groups["sample_stats"] = xarray.Dataset({"weight": weight})
        return groups


# --- predictions ---------------------------------------------------------------------------------


@arguments.hinted
def keep_predictions(rows: Any, *, log_density: bool = True) -> PredictionSpec:
    r"""Keep nothing but the predictions at some rows.

    .. math:: \bar f_i = \sum_s w_s f(\theta_s, z_i),\qquad
              \log p_i = \log\sum_s w_s\,p(z_i\mid\theta_s),\qquad \sum_s w_s = 1

    over all draws of all chains. The result has no draws, but the group ``predictions``: ``mean``
    and ``sd`` (over the draws) of ``model.predict``, (row, ...), and ``log_density`` (row,).

    Args:
        rows: held-out rows, a pytree of arrays (rows, ...) as one site's data.
        log_density: with the rows' responses: their log predictive density too.

    Returns:
        What to keep, for ``keep`` of `consortia.sample`.

    Raises:
        InputError: in `consortia.sample`: the model has no ``predict``, or the arrays of rows have
            no common row axis.

    Example:
        >>> spec = keep_predictions({"x": np.ones((2, 1), np.float32)}, log_density=False)
        >>> spec.log_density
        False
    """
    return PredictionSpec(rows, arguments.flag("log_density", log_density))


@dataclass(frozen=True, eq=False)
class PredictionSpec(AccumulatorSpec):
    """The parameters of `keep_predictions`."""

    rows: Any
    log_density: bool

    def draws_kept(self, target: Target, chains: int) -> int:
        """Return none."""
        return 0

    def describe(self) -> dict[str, Any]:
        """Return it as plain values; the rows by their fingerprint."""
        leaves = jax.tree_util.tree_leaves_with_path(self.rows)
        named = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
        return {
            "kind": "predictions",
            "rows": fingerprints.of_value(named),
            "log_density": self.log_density,
        }

    def start(self, target: Target, chains: int) -> Accumulator:
        """Return predictions of no draws."""
        return PredictiveAccumulator(chains, target, self)


class PredictiveAccumulator(Accumulator):
    """The weight of the draws so far, and sums of predictions over them."""

    def __init__(self, chains: int, target: Target, spec: PredictionSpec) -> None:
        if target.model.predict is None:
            raise InputError(
                "keep_predictions needs Model.predict: give the model "
                "predict=(params, batch) -> (rows, ...)."
            )
        super().__init__(chains, target.dimension)
        self._target, self._log_density = target, spec.log_density
        self._sums_of = sums_over_draws
        self._rows = jax.tree.map(jnp.asarray, spec.rows)
        lengths = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(spec.rows)}
        if len(lengths) != 1 or 0 in lengths:
            raise InputError("keep_predictions: the arrays of rows need one common row axis.")
        shapes = jax.eval_shape(lambda: self._of_block(self._block, self._block_weights))
        count = lengths.pop()
        if shapes[0].shape[:1] != (count,):
            raise InputError(
                f"Model.predict returned shape {shapes[0].shape} for {count} rows: it must return "
                "one entry a row."
            )
        starts = (0.0, 0.0, -np.inf)
        sums = (np.full(shape.shape, at) for shape, at in zip(shapes, starts, strict=False))
        self._sums = np.zeros(()), *sums
        self._count = 0

    def _of_block(self, draws: np.ndarray, weights: np.ndarray) -> Any:
        """Return the sums over the draws of all chains, as `core.predictions` makes them."""
        flat = jnp.asarray(draws.reshape(-1, draws.shape[-1]), self._target.dtype)
        given = jnp.asarray(weights.reshape(-1), self._target.dtype)
        parameters = jax.vmap(self._target.unravel)(flat)
        return self._sums_of(self._target.model, self._log_density, parameters, given, self._rows)

    def take(self, draws: np.ndarray, weights: np.ndarray | None) -> None:
        """Add the predictions of the next draws."""
        super().take(draws, weights)
        self._count += draws.shape[0] * draws.shape[1]

    def _added(self, draws: np.ndarray, weights: np.ndarray) -> tuple[Any, ...]:
        made = [np.asarray(part, np.float64) for part in self._of_block(draws, weights)]
        total, first, second, *logs = self._sums
        if logs:
            logs = [np.logaddexp(logs[0], made[2])]
        return total + weights.sum(), first + made[0], second + made[1], *logs

    def state(self) -> dict[str, np.ndarray]:
        """Return everything by name, for a checkpoint."""
        return super().state() | {"kept/counts": np.array([self._count], np.int64)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take the state of another accumulator."""
        super().restore(state)
        self._count = int(state["kept/counts"][0])

    def groups(self, variables: Sequence[naming.Variable]) -> dict[str, Any]:
        """Return ``predictions``."""
        import xarray

        total, first, second, *logs = self._all_sums()
        mean = first / total
        sd = np.sqrt(np.maximum(second / total - mean**2, 0))
        dims = ("row", "class", *(f"output_{i}" for i in range(2, mean.ndim)))[: mean.ndim]
        arrays = {"mean": (dims, mean), "sd": (dims, sd)}
        if logs:
            arrays["log_density"] = (("row",), logs[0] - np.log(total))
        return {"predictions": xarray.Dataset(arrays, attrs={"draws": self._count})}
