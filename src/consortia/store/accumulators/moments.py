"""Means, covariances and evenly spaced draws in the place of all draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.core import arguments, parameters
from consortia.core.target import Target
from consortia.errors import InputError
from consortia.store.accumulators.kinds import Blocks, Kept


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
    return KeepMoments(covariance, arguments.whole("draws", draws, 4))


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

    def groups(self, variables: Sequence[parameters.Variable]) -> dict[str, Any]:
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
        arrays = {
            f"{name}_mean": value for name, value in parameters.split(mean, variables).items()
        }
        for name, value in parameters.split(variance, variables).items():
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
            parameters.split(kept, variables),
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
