"""Bayesian logistic regression on the three networks.

The slides name the experiment and print nothing of it. Here: 5,000 simulated rows in three
dimensions at 100 agents, and the breast cancer data at 20 agents. Steps are a share of the largest
stable one by the curvatures at the mode, which the corrected method finds itself at temperature 0.
The reference is NUTS on the pooled rows. W₂ is that of Gaussian laws with the draws' moments.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any, NamedTuple

import numpy as np

import consortia
from consortia import graphs
from consortia.diagnostics import gaussian_wasserstein2
from consortia.diagnostics.reference import nuts
from consortia.oracles import GaussianAgents, largest_stable_step
from experiments import records
from experiments.claims import Finding
from experiments.de_sgld.problem import CORRECTED, NETWORKS

SHARE = 0.3
"""Of the largest stable step of the plain method on the least stable of the networks."""

FRICTION = 7.0
METHODS = ("DE-SGLD", "DE-SGHMC", "DE-SGLD, corrected")
TEST_SHARE = 0.2


class Scale(NamedTuple):
    """Iterations of the long runs by data set, of the short ones, their runs, and so on.

    A fifth of the long runs comes before them as a warm-up.
    """

    iterations: dict[str, int]
    short: int
    runs: int
    reference: int
    networks: tuple[str, ...] = tuple(NETWORKS)


SCALES = {
    "quick": Scale({"synthetic": 2000}, 20, 20, 400, ("complete",)),
    "small": Scale({"synthetic": 20_000, "breast_cancer": 120_000}, 100, 100, 2000),
    "full": Scale({"synthetic": 200_000, "breast_cancer": 1_000_000}, 400, 100, 5000),
}


class Problem:
    """A data set at its agents, with draws of its posterior.

    Args:
        name: "synthetic" or "breast_cancer".
        seed: of the data, the split and the partition.
        draws: of each of four reference chains.
    """

    def __init__(self, name: str, seed: int, draws: int) -> None:
        rows, test, agents, scale = self._rows(name, seed)
        self.test = test
        self.sites = consortia.partition.iid(rows, agents, seed=seed)
        self.dimension = rows["x"].shape[1]
        self.model = consortia.models.logistic_regression(self.dimension, prior_scale=scale)
        tree = nuts(self.model, self.sites, draws=draws, warmup=draws, seed=seed)
        self.reference = np.asarray(tree["posterior"]["coefficients"], np.float64).reshape(
            -1, self.dimension
        )
        self.mean, self.covariance = self.reference.mean(axis=0), np.cov(self.reference.T)

    @staticmethod
    def _rows(name: str, seed: int) -> tuple[Any, Any, int, float]:
        """Train rows, test rows, number of agents, prior standard deviation."""
        if name == "synthetic":
            generator = np.random.default_rng(seed)
            x = generator.normal(size=(5000, 3))
            odds = x @ (generator.normal(size=3) * math.sqrt(10))
            y = generator.uniform(size=5000) < 1 / (1 + np.exp(-odds))
            rows: Any = {"x": x.astype(np.float32), "y": y.astype(np.int32)}
            agents, scale = 100, math.sqrt(10)
        else:
            rows, _ = consortia.datasets.standardise(consortia.datasets.load(name).train)
            rows = consortia.datasets.with_intercept(rows)
            rows = {"x": rows["x"].astype(np.float32), "y": rows["y"].astype(np.int32)}
            agents, scale = 20, 1.0
        split = consortia.datasets.train_test_split
        train, test = split(rows, test_share=TEST_SHARE, seed=seed)
        return train, test, agents, scale

    @functools.cached_property
    def mode(self) -> np.ndarray:
        """The mode, found on the complete network by the corrected method at temperature 0."""
        start = {"coefficients": np.zeros(self.dimension)}
        agents = GaussianAgents.near(self.model, self.sites, start, rows=False)
        # The curvature of a logistic regression is largest at 0: this step is stable everywhere.
        step = 0.9 * largest_stable_step(agents, "complete")
        method = consortia.de_sgld(step, "complete", correction="extra", temperature=0.0)
        tree = self._sample(method, rounds=2, warmup=20_000, chains=1)
        return np.asarray(tree["posterior"]["coefficients"], np.float64)[0, -1]

    @functools.cached_property
    def steps(self) -> dict[str, float]:
        """The step size of each method, one for all networks."""
        point = {"coefficients": self.mode}
        agents = GaussianAgents.near(self.model, self.sites, point, rows=False)
        plain, momentum = (
            min(largest_stable_step(agents, w, friction=gamma) for w in NETWORKS.values())
            for gamma in (None, FRICTION)
        )
        steps = (SHARE * plain, SHARE * momentum, SHARE * plain)
        return dict(zip(METHODS, steps, strict=True))

    def method(self, name: str, network: str) -> Any:
        """A sampler that keeps the agents' series."""
        if name == "DE-SGHMC":
            return consortia.de_sghmc(self.steps[name], FRICTION, network, draws="agents")
        options = CORRECTED if name == "DE-SGLD, corrected" else {}
        return consortia.de_sgld(self.steps[name], network, draws="agents", **options)

    def _sample(self, method: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            # One network is disconnected on purpose; steps are judged at the mode, not at 0.
            warnings.filterwarnings("ignore", message="the network falls into")
            warnings.filterwarnings("ignore", message="step_size .* is unstable")
            return consortia.sample(
                self.model, self.sites, method, progress=False, on_divergence="ignore", **options
            )

    def accuracy(self, positions: np.ndarray) -> np.ndarray:
        """Share of test rows that coefficients (..., d) classify rightly, (...)."""
        return np.mean((positions @ self.test["x"].T > 0) == self.test["y"], axis=-1)

    def predictive_accuracy(self, positions: np.ndarray) -> float:
        """Share of test rows that the mean over draws (draws, d) classifies rightly."""
        kept = positions[:: max(len(positions) // 400, 1)]
        probability = np.mean(1 / (1 + np.exp(-(kept @ self.test["x"].T))), axis=0)
        return float(np.mean((probability > 0.5) == self.test["y"]))

    def long_run(self, name: str, label: str, iterations: int, seed: int) -> dict[str, Any]:
        """W₂ to the reference and accuracy, of the average and of the agents."""
        tree = self._sample(
            self.method(name, NETWORKS[label]),
            rounds=iterations,
            warmup=iterations // 5,
            thin=max(iterations // 1000, 1),
            chains=4,
            seed=seed,
        )
        average = np.asarray(tree["posterior"]["coefficients"], np.float64)
        average = average.reshape(-1, self.dimension)
        agents = np.asarray(tree["agents"]["coefficients"], np.float64)
        agents = np.moveaxis(agents, 2, 0).reshape(len(self.sites), -1, self.dimension)
        target = self.mean, self.covariance
        w2 = gaussian_wasserstein2(average.mean(axis=0), np.cov(average.T), *target)
        errors = graphs.agent_errors(tree, *target)
        result = {
            "method": name,
            "network": label,
            "w2_average": w2,
            "w2_agent": float(errors.mean()),
            "accuracy_average": self.predictive_accuracy(average),
            "accuracy_agent": float(np.mean([self.predictive_accuracy(own) for own in agents])),
        }
        records.say(
            f"  {name}, {label}: W₂ of the average {w2:.3f}, of an agent "
            f"{result['w2_agent']:.3f}; accuracy of the average "
            f"{result['accuracy_average']:.3f}, of an agent {result['accuracy_agent']:.3f}"
        )
        return result

    def short_runs(self, label: str, scale: Scale, seed: int) -> dict[str, Any]:
        """Accuracy of single draws of DE-SGLD along the first iterations, mean over runs."""
        tree = self._sample(
            self.method("DE-SGLD", NETWORKS[label]),
            rounds=scale.short,
            chains=scale.runs,
            seed=seed,
        )
        average = self.accuracy(np.asarray(tree["posterior"]["coefficients"]))
        agent = self.accuracy(np.asarray(tree["agents"]["coefficients"])[:, :, 0])
        return {
            "network": label,
            "average": average.mean(axis=0),
            "agent": agent.mean(axis=0),
        }


def study(scale: str, seed: int) -> dict[str, Any]:
    """Both data sets."""
    chosen = SCALES[scale]
    result = {}
    for name, iterations in chosen.iterations.items():
        problem = Problem(name, seed, chosen.reference)
        point = math.sqrt(np.trace(problem.covariance))
        reference = problem.predictive_accuracy(problem.reference)
        halves = np.array_split(problem.reference, 2)
        floor = gaussian_wasserstein2(
            *(value for half in halves for value in (half.mean(axis=0), np.cov(half.T)))
        )
        apart = float(np.linalg.norm(problem.mode - problem.mean))
        records.say(
            f"{name}: {len(problem.sites)} agents, d = {problem.dimension}; NUTS accuracy "
            f"{reference:.3f}, W₂ between halves of its draws {floor:.3f}, of a point mass at its "
            f"mean {point:.3f}; mode {apart:.3f} from its mean; steps "
            + ", ".join(f"{step:.4g}" for step in problem.steps.values())
        )
        pairs = [(method, label) for method in METHODS for label in chosen.networks]
        result[name] = {
            "point_mass": point,
            "reference_accuracy": reference,
            "floor": floor,
            "steps": problem.steps,
            "long": [problem.long_run(*pair, iterations, seed) for pair in pairs],
            "short": [problem.short_runs(label, chosen, seed) for label in chosen.networks],
        }
    return result


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return W₂ to NUTS on the complete network, over that of a point mass at its mean."""
    found = {}
    for name, part in results.items():
        rows = {(r["method"], r["network"]): r for r in part["long"]}
        for method, short in (("DE-SGLD", "plain"), ("DE-SGLD, corrected", "corrected")):
            row = rows[method, "complete"]
            found[f"{name}-{short}"] = Finding(row["w2_agent"] / part["point_mass"])
        found[f"{name}-accuracy"] = Finding(
            rows["DE-SGLD", "complete"]["accuracy_agent"] - part["reference_accuracy"]
        )
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw for each data set the accuracy along the iterations, and W₂ in the long run."""
    colours = dict(zip(NETWORKS, ("C0", "C1", "C2"), strict=True))
    for i, part in enumerate(results.values()):
        curves, bars = axes[2 * i], axes[2 * i + 1]
        for line in part["short"]:
            k = np.arange(1, len(line["average"]) + 1)
            colour = colours[line["network"]]
            curves.plot(
                k, line["average"], color=colour, lw=0.9, label=f"average, {line['network']}"
            )
            curves.plot(k, line["agent"], "--", color=colour, lw=0.9, label="an agent")
        curves.axhline(part["reference_accuracy"], color="k", lw=0.6)
        curves.set(xlabel="iteration k", ylabel="accuracy of a draw")
        curves.set_ymargin(0.35)
        curves.legend(loc="lower right", ncols=2)
        for j, row in enumerate(part["long"]):
            colour = colours[row["network"]]
            bars.semilogy(j, row["w2_average"], "o", ms=3, color=colour)
            bars.semilogy(j, row["w2_agent"], "s", ms=4, mfc="none", color=colour)
        bars.axhline(part["point_mass"], color="0.6", lw=0.6)
        bars.axhline(part["floor"], color="0.6", lw=0.6, ls=":")
        places = np.arange(3) * len(part["short"]) + (len(part["short"]) - 1) / 2
        bars.set_xticks(places, [method.replace(", ", ",\n") for method in METHODS])
        for label in dict.fromkeys(row["network"] for row in part["long"]):
            bars.plot([], [], "o", ms=3, color=colours[label], label=label)
        for label, style in (("point mass at the mean", "-"), ("half of NUTS's draws", ":")):
            bars.plot([], [], style, color="0.6", lw=0.8, label=label)
        bars.set_ylim(top=100 * bars.get_ylim()[1])
        bars.legend(loc="upper center", ncols=2)
        bars.set(ylabel="W₂ to NUTS (dot: average, box: agent)")
