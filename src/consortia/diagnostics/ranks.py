"""Simulation-based calibration: ranks of true parameters among the draws of their posterior.

Where parameters are drawn from the prior and data from the model, the rank of a parameter among L
independent draws of the posterior is uniform on 0, ..., L. Too wide a posterior has ranks in the
middle, too narrow a one at the ends, a shifted one on one side.

Source: Talts, Betancourt, Simpson, Vehtari, Gelman, "Validating Bayesian inference algorithms with
simulation-based calibration" (2018); the band of the figure: Säilynoja, Bürkner, Vehtari,
"Graphical test for discrete uniformity and its applications in goodness-of-fit evaluation and
multiple sample comparison" (2022), by ArviZ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from consortia.diagnostics.summary import aligned

SIGNIFICANCE = 0.01
"""Probability that calibrated ranks of all quantities together are called uneven."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Ranks of many simulations; `str` renders what they say."""

    names: tuple[str, ...]  # of the quantities
    ranks: np.ndarray  # (simulations, quantities), each from 0 to ``draws``
    draws: int  # L, of each simulation
    # smallest effective sample size of a quantity's L draws, the median of the simulations
    ess: float
    seed: int = 0  # of what is drawn here

    @cached_property
    def shares(self) -> np.ndarray:
        """The ranks as numbers that are uniform on (0, 1), ties broken at random."""
        noise = np.random.default_rng(self.seed).random(self.ranks.shape)
        return (self.ranks + noise) / (self.draws + 1)

    @cached_property
    def p_values(self) -> np.ndarray:
        """The p-value of each quantity, by the test of Kolmogorov and Smirnov, (quantities,)."""
        import scipy.stats  # heavy, and only wanted here

        return np.array([scipy.stats.kstest(column, "uniform").pvalue for column in self.shares.T])

    @property
    def calibrated(self) -> bool:
        """True if no quantity's ranks are uneven, by Bonferroni's bound over all of them."""
        return bool(self.p_values.min() * len(self.names) > SIGNIFICANCE)

    def __str__(self) -> str:
        """Return the quantities with their p-values, and a sentence."""
        header = ["", "p-value", "mean rank", "sd of rank"]
        rows = [
            [name, f"{p:.2g}", f"{column.mean():.3f}", f"{column.std():.3f}"]
            for name, p, column in zip(self.names, self.p_values, self.shares.T, strict=True)
        ]
        word = (
            "are uniform"
            if self.calibrated
            else "are not uniform: the draws are not from the posterior"
        )
        lines = [
            *aligned([header, *rows]),
            f"ranks of {len(self.ranks)} simulations among {self.draws} draws {word} "
            f"(uniform: mean 0.5, sd 0.289)",
        ]
        if self.ess < 0.5 * self.draws:
            lines.append(
                f"the draws are autocorrelated (effective sample size {self.ess:.0f}), which "
                "alone makes ranks uneven: run more rounds"
            )
        return "\n".join(lines)

    __repr__ = __str__

    def plain(self) -> dict[str, Any]:
        """Return ranks and p-values as plain values."""
        return {
            "names": list(self.names),
            "ranks": self.ranks.tolist(),
            "draws": self.draws,
            "ess": self.ess,
            "p_values": self.p_values.tolist(),
            "calibrated": self.calibrated,
        }

    def figure(self, path: str | Path) -> Path:
        """Draw for each quantity how far its ranks are from uniform; return the file.

        Args:
            path: of the picture, .png, .svg or .pdf.

        Raises:
            MissingExtraError: the extra ``plots`` is not installed.
        """
        from consortia.diagnostics.figures.uniformity import (
            draw_uniformity,  # Matplotlib is optional
        )

        return draw_uniformity(self.names, self.shares, Path(path))
