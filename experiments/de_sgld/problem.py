"""The linear regression of figures 2 to 4: its data, networks, laws and runs.

5,000 rows in two dimensions, noise variance 1, prior variance 10, dealt out to 100 agents.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import consortia
from consortia.diagnostics import gaussian_wasserstein2
from consortia.oracles import GaussianAgents, Moments

ROWS, AGENTS, PRIOR_VARIANCE = 5000, 100, 10.0
NETWORKS = {"complete": "complete", "ring": "ring", "disconnected": "identity"}
SHOWN = 4
"""Agents whose curves are drawn, as in the figures: the first ones."""

CORRECTED: dict[str, Any] = {"correction": "extra", "noise": "common", "averaged_noise": True}


@dataclass(frozen=True)
class Problem:
    """A data set at its agents.

    Attributes:
        seed: of the data.
        alike: deal the rows out at random; else sorted by the response, so that agents disagree.
    """

    seed: int = 0
    alike: bool = True

    @cached_property
    def shards(self) -> list[dict[str, np.ndarray]]:
        """The agents' rows."""
        generator = np.random.default_rng(self.seed)
        coefficients = generator.normal(size=2) * math.sqrt(PRIOR_VARIANCE)
        x = generator.normal(size=(ROWS, 2))
        y = x @ coefficients + generator.normal(size=ROWS)
        order = generator.permutation(ROWS) if self.alike else np.argsort(y)
        return [{"x": x[part], "y": y[part]} for part in np.array_split(order, AGENTS)]

    @cached_property
    def agents(self) -> GaussianAgents:
        """As the exact laws read them."""
        return GaussianAgents.linear_regression(self.shards, prior_variance=PRIOR_VARIANCE)

    @cached_property
    def sites(self) -> consortia.Sites:
        """As the sampler reads them, in single precision."""
        return consortia.Sites.from_list(
            [{name: leaf.astype(np.float32) for name, leaf in s.items()} for s in self.shards]
        )

    @cached_property
    def model(self) -> consortia.Model:
        """The regression."""
        return consortia.models.linear_regression(2, prior_scale=math.sqrt(PRIOR_VARIANCE))

    def positions(self, method: Any, iterations: Sequence[int], runs: int, seed: int) -> np.ndarray:
        """All agents' positions after these iterations, (runs, iterations, agents, d).

        ``iterations`` must be equally spaced from the first one.
        """
        step = iterations[0]
        if list(iterations) != [step * (i + 1) for i in range(len(iterations))]:
            raise ValueError(f"iterations are not multiples of the first: {list(iterations)}")
        with warnings.catch_warnings():
            # Figures 2 and 3 have a disconnected network on purpose.
            warnings.filterwarnings("ignore", message="the network falls into")
            tree = consortia.sample(
                self.model,
                self.sites,
                method,
                rounds=iterations[-1],
                thin=step,
                chains=runs,
                seed=seed,
                progress=False,
                on_divergence="ignore",
            )
        return np.asarray(tree["agents"]["coefficients"], np.float64)

    def distances(self, positions: np.ndarray) -> dict[str, Any]:
        """W₂ by the runs' first two moments, of the average and of each agent, by iteration."""

        def distance(runs: np.ndarray) -> float:
            target = self.agents.target_mean, self.agents.target_covariance
            return gaussian_wasserstein2(runs.mean(axis=0), np.cov(runs.T), *target)

        kept, agents = positions.shape[1:3]
        return {
            "average": [distance(positions[:, k].mean(axis=1)) for k in range(kept)],
            "agents": [[distance(positions[:, k, i]) for k in range(kept)] for i in range(agents)],
        }


def figures_of(moments: Moments) -> dict[str, float]:
    """W₂ of the average and, on average over them, of an agent; variance over the posterior's."""
    return {
        "average": moments.w2,
        "agent": float(moments.agents.w2.mean()),
        "variance_ratio": float(moments.agents.variance_ratios.mean()),
    }


def curves_of(path: Sequence[Moments]) -> dict[str, Any]:
    """W₂ along the iterations, of the average and of each agent."""
    return {
        "average": [moments.w2 for moments in path],
        "agents": np.transpose([moments.agents.w2 for moments in path]),
    }


def worst_score(positions: np.ndarray, path: Sequence[Moments]) -> float:
    """The largest distance of runs from their exact law, in standard errors.

    Over means and variances of every coordinate of the average and of the agents, at every
    iteration kept: some thousand numbers, of which about one is beyond 3.5 by chance.
    """
    runs = len(positions)
    scores = []
    for k, moments in enumerate(path):
        own = np.diagonal(moments.agents.covariances, axis1=1, axis2=2)
        pairs = (
            (positions[:, k], moments.agents.means, own),
            (positions[:, k].mean(axis=1), moments.mean, moments.covariance),
        )
        for values, mean, variance in pairs:
            spread = np.diag(variance) if mean.ndim == 1 else variance
            squares = (values - mean) ** 2
            scores.append((values.mean(axis=0) - mean) / np.sqrt(spread / runs))
            error = np.maximum(squares.std(axis=0), math.sqrt(2) * spread) / math.sqrt(runs)
            scores.append((squares.mean(axis=0) - spread) / error)
    return float(max(np.abs(score).max() for score in scores))
