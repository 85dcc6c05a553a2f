"""Predictions in the place of all draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core import fingerprints
from consortia.core import parameters as naming
from consortia.core.target import Target
from consortia.errors import InputError
from consortia.store.accumulators.kinds import Blocks, Kept


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
