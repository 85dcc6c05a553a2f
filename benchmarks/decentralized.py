"""Decentralized MA-HMC as published, against the same workload as a plain PyTorch loop over agents.

The small model is the linear regression of the paper's appendix (four agents, 354 rows, 13 features
and an intercept, each agent with some of the features), the large one logistic regression on 54,000
images of 784 pixels. In each iteration an agent of the loop computes a gradient by automatic
differentiation and a Hessian-vector product by `torch.autograd.functional.vhp`; trackers and
positions are mixed by a matrix product, and the agents' positions are kept. The library keeps every
draw, and its whole call is timed.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import consortia
from benchmarks.measure import Contender, Gate, Row, interleaved, throughput

NAME = "MA-HMC"
AGENTS = 4

SIZES: dict[str, dict[str, int]] = {
    "full": {"small": 100_000, "small_torch": 150, "rows": 54_000, "large": 20, "pairs": 5},
    "quick": {"small": 20_000, "small_torch": 40, "rows": 5400, "large": 10, "pairs": 3},
    "tiny": {"small": 20, "small_torch": 2, "rows": 60, "large": 2, "pairs": 1},
}


@dataclass(frozen=True)
class Problem:
    """Data at the agents, x (agents, rows, d), y (agents, rows); ``classes`` 0: a regression."""

    name: str
    x: np.ndarray
    y: np.ndarray
    classes: int
    step_size: float

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return self.x.shape[-1] * max(self.classes, 1)

    @classmethod
    def linear(cls) -> Problem:
        """Rows that all agents have, each with a quarter of the features and the intercept."""
        rng = np.random.default_rng(0)
        x = np.column_stack([rng.normal(size=(354, 13)), np.ones(354)]).astype(np.float32)
        y = (x @ rng.normal(size=14) + rng.normal(size=354)).astype(np.float32)
        seen = np.zeros((AGENTS, 14), np.float32)
        for agent, columns in enumerate(np.array_split(np.arange(13), AGENTS)):
            seen[agent, [*columns, 13]] = 1
        return cls("linear, 354 × 14", x[None] * seen[:, None], np.tile(y, (AGENTS, 1)), 0, 4e-4)

    @classmethod
    def logistic(cls, rows: int) -> Problem:
        """Random images, dealt out to the agents."""
        rng = np.random.default_rng(0)
        x = rng.uniform(size=(AGENTS, rows // AGENTS, 784)).astype(np.float32)
        y = rng.integers(0, 10, size=x.shape[:2]).astype(np.int32)
        return cls(f"logistic, {rows:,} × 784", x, y, 10, 5e-4)


def library(problem: Problem, iterations: int) -> Contender:
    """The whole call of `consortia.sample`."""
    features = problem.x.shape[-1]
    if problem.classes:
        model = consortia.models.softmax_regression(features, problem.classes)
    else:
        model = consortia.models.linear_regression(features)
    sites = consortia.Sites.from_list(
        [{"x": x, "y": y} for x, y in zip(problem.x, problem.y, strict=True)]
    )
    method = consortia.decentralized_hmc(problem.step_size, "complete", variant="published")

    def run(seed: int) -> Any:
        return consortia.sample(
            model, sites, method, rounds=iterations, seed=seed, progress=False, chains=1
        )

    return Contender(f"consortia.sample ({problem.name})", run, iterations)


def torch_potentials(problem: Problem) -> list[Callable[[Any], Any]]:
    """U_i of each agent, a function of the flat parameters."""
    import torch

    features, classes = problem.x.shape[-1], problem.classes

    def of(x: Any, y: Any) -> Callable[[Any], Any]:
        def potential(theta: Any) -> Any:
            prior = 0.5 * (theta**2).sum() / AGENTS
            if not classes:
                return 0.5 * ((y - x @ theta) ** 2).sum() + prior
            scores = x @ theta.view(classes, features).T
            return torch.nn.functional.cross_entropy(scores, y, reduction="sum") + prior

        return potential

    return [
        of(torch.from_numpy(x), torch.from_numpy(y).long() if classes else torch.from_numpy(y))
        for x, y in zip(problem.x, problem.y, strict=True)
    ]


def torch_trackers(
    potentials: list[Callable[[Any], Any]], positions: Any, momenta: Any
) -> tuple[Any, Any]:
    """∇U_i and p_iᵀ∇²U_i p_i of all agents, one agent after the other."""
    import torch

    gradients, curvatures = torch.empty_like(positions), torch.empty(len(potentials))
    for i, potential in enumerate(potentials):
        theta = positions[i].detach().requires_grad_(True)
        gradients[i] = torch.autograd.grad(potential(theta), theta)[0]
        product = torch.autograd.functional.vhp(potential, positions[i], momenta[i])[1]
        curvatures[i] = product @ momenta[i]
    return gradients, curvatures


def torch_chain(problem: Problem, iterations: int) -> Contender:
    """The published loop."""
    import torch

    torch.set_num_threads(1)
    potentials, step = torch_potentials(problem), problem.step_size
    mixing = torch.full((AGENTS, AGENTS), 1 / AGENTS)

    def run(seed: int) -> Any:
        torch.manual_seed(seed)
        positions = torch.zeros(AGENTS, problem.dimension)
        tracked, before = torch.zeros_like(positions), torch.zeros_like(positions)
        aleph, curved = torch.zeros(AGENTS), torch.zeros(AGENTS)
        draws = torch.empty(iterations, AGENTS, problem.dimension)
        for t in range(iterations):
            momenta = torch.randn_like(positions)
            gradients, curvatures = torch_trackers(potentials, positions, momenta)
            tracked = mixing @ (tracked + gradients - before)
            aleph = mixing @ (aleph + curvatures - curved)
            before, curved = gradients, curvatures
            moved = torch.empty_like(positions)
            for i in range(AGENTS):
                proposal = positions[i] - step * (momenta[i] + step * tracked[i])
                ratio = -0.5 * step**2 * (aleph[i] + (tracked[i] ** 2).sum())
                usable = torch.isfinite(proposal).all() and math.log(torch.rand(1)) <= ratio
                moved[i] = proposal if usable else positions[i]
            positions = mixing @ moved
            draws[t] = positions
        return draws

    return Contender(f"PyTorch loop over agents ({problem.name})", run, iterations)


def rows(scale: str) -> list[Row]:
    """The figures."""
    sizes = SIZES[scale]
    gates = (Gate(">=", 100), Gate(">=", 2.5))
    if importlib.util.find_spec("torch") is None:
        what = ("linear model", "logistic model")
        return [
            Row(NAME, f"throughput, consortia / PyTorch, {which}", gate=gate, skipped="no torch")
            for which, gate in zip(what, gates, strict=True)
        ]
    result = []
    problems = (Problem.linear(), Problem.logistic(sizes["rows"]))
    counts = ((sizes["small"], sizes["small_torch"]), (sizes["large"], sizes["large"]))
    for problem, (ours, theirs), gate in zip(problems, counts, gates, strict=True):
        contenders = [library(problem, ours), torch_chain(problem, theirs)]
        times = interleaved(contenders, sizes["pairs"])
        one, other = (contender.name for contender in contenders)
        result.append(throughput(NAME, times, one, other, gate=gate, unit="iteration"))
    return result
