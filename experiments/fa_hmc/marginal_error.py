r"""Section 5.1, figure 1, in the long run and at the paper's own size: d = n = 1000, 20 clients.

The posterior is taken as Gaussian at its mode, where FA-HMC has an exact law. A client's curvature
is I plus a matrix of the rank of its rows, so that every function of it costs one thin product: the
law of `consortia.oracles.fa_hmc_law`, which a test compares with this one, in a dimension too large
for it.

The marginal error (ME) is the mean over coordinates of the 1-Wasserstein distance of the marginals,
here of two normal laws, without the noise of a finite run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from experiments import records
from experiments.claims import Finding, computed, untuned
from experiments.drawing import LAW
from experiments.fa_hmc import logistic

NOISE = logistic.NOISE_VARIANCE
EPSILONS = (0.1012, 0.105, 0.11)
STEPS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
TUNED = (2, 5, 10)
LONG_STEP, LONG_TRAJECTORY = 0.01, 100
MATCHED = 0.2

# d and n of panels (a) to (c), T of panel (c)
SCALES = {
    "quick": (60, 60, (1, 2, 10, 70)),
    "small": (1000, 1000, (1, 2, 5, 10, 20, 40, 70)),
    "full": (1000, 1000, (1, 2, 5, 10, 20, 40, 70, 100)),
}


@dataclass(frozen=True, eq=False)
class Clients:
    """Gaussian clients around the mode: curvature I + (vectors, of its columns) per client.

    Attributes:
        vectors: orthonormal columns of all clients side by side, (d, r).
        values: eigenvalues of the clients' curvatures along them, (r,); all others are 1.
        owner: the client of each column, (r,).
        pulls: ∇f_c at the mode, (N, d).
        variance: of the posterior's marginals, (d,).
    """

    vectors: np.ndarray
    values: np.ndarray
    owner: np.ndarray
    pulls: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, clients: int) -> Clients:
        """Return the clients of a logistic regression with the prior N(0, I), of equal weights."""
        mode = np.zeros(x.shape[1])
        for _ in range(30):
            p = 1 / (1 + np.exp(-x @ mode))
            precision = (x.T * (p * (1 - p))) @ x + np.eye(len(mode))
            mode = mode - np.linalg.solve(precision, x.T @ (p - y) + mode)
        p = 1 / (1 + np.exp(-x @ mode))
        parts = np.array_split(np.arange(len(y)), clients)
        columns, values, owner, pulls = [], [], [], []
        for client, part in enumerate(parts):
            rows = x[part] * np.sqrt(clients * p[part] * (1 - p[part]))[:, None]
            _, found, directions = np.linalg.svd(rows, full_matrices=False)
            columns.append(directions.T)
            values.append(1 + found**2)
            owner.append(np.full(len(found), client))
            pulls.append(clients * x[part].T @ (p[part] - y[part]) + mode)
        variance = np.diag(np.linalg.inv(precision)).copy()
        joined = np.concatenate(columns, axis=1)
        return cls(joined, np.concatenate(values), np.concatenate(owner), np.stack(pulls), variance)

    @cached_property
    def count(self) -> int:
        """N."""
        return len(self.pulls)

    def averaged(self, along: np.ndarray, elsewhere: float) -> np.ndarray:
        """Return Σ_c g(L_c)/N from g along the columns and g(1)."""
        scaled = self.vectors * ((along - elsewhere) / self.count)
        return scaled @ self.vectors.T + elsewhere * np.eye(len(self.vectors))

    def marginal_errors(
        self, step: float, leapfrog_steps: int, local_steps: int, noises: tuple[float, ...]
    ) -> list[float]:
        """Return the stationary ME of FA-HMC with a common momentum, for each gradient noise."""
        curvature = np.append(self.values, 1.0)
        forced, kicked, inner = _answers(curvature, step, leapfrog_steps)
        decay = 1 - curvature * forced
        power, series, memory = np.ones_like(decay), np.zeros_like(decay), np.zeros_like(decay)
        spread = np.zeros((len(self.vectors),) * 2)
        for _ in range(local_steps):
            series, memory = series + power, memory + power**2
            common = self.averaged((kicked * power)[:-1], (kicked * power)[-1])
            spread += common @ common
            power = power * decay
        noisy = step**2 / 4 * (kicked**2 + 2 * inner) * memory
        widened = self.averaged(noisy[:-1], noisy[-1]) / self.count
        own = curvature * forced * series
        alpha = np.eye(len(self.vectors)) - self.averaged(own[:-1], own[-1])
        pull = self._pull(forced * series)
        values, axes = np.linalg.eigh(alpha)
        if np.abs(values).max() >= 1:
            return [math.inf] * len(noises)
        shift = axes @ ((axes.T @ pull) / (1 - values))
        found = []
        for noise in noises:
            turned = axes.T @ (spread + noise * widened) @ axes / (1 - np.outer(values, values))
            variance = np.einsum("ij,jk,ik->i", axes, turned, axes, optimize=True)
            found.append(float(_distance(shift, np.sqrt(variance) - np.sqrt(self.variance)).mean()))
        return found

    def _pull(self, answer: np.ndarray) -> np.ndarray:
        """Return −Σ_c g(L_c) ∇f_c / N: what the clients' unlike pulls add to a round."""
        result = -answer[-1] * self.pulls.mean(axis=0)
        for client in range(self.count):
            own = self.vectors[:, self.owner == client]
            along = answer[:-1][self.owner == client] - answer[-1]
            result -= own @ (along * (own.T @ self.pulls[client])) / self.count
        return result


def _answers(
    curvature: np.ndarray, step: float, leapfrog_steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the answers to a unit force and a unit momentum, and Σ_k B_k² of inner points."""
    kicked, kicked_change = np.zeros_like(curvature), np.full_like(curvature, step)
    forced, forced_change = np.zeros_like(curvature), np.full_like(curvature, step**2 / 2)
    inner = np.zeros_like(curvature)
    for _ in range(leapfrog_steps):
        inner = inner + kicked**2
        kicked, forced = kicked + kicked_change, forced + forced_change
        kicked_change = kicked_change - step**2 * curvature * kicked
        forced_change = forced_change + step**2 * (1 - curvature * forced)
    return forced, kicked, inner


def _distance(shift: np.ndarray, wider: np.ndarray) -> np.ndarray:
    """Return W₁ of normal laws: E|shift + wider z|, z standard normal."""
    from scipy.stats import norm

    sd = np.maximum(np.abs(wider), 1e-300)
    ratio = shift / sd
    return 2 * sd * norm.pdf(ratio) + shift * (1 - 2 * norm.cdf(-ratio))


def by_step(clients: Clients, steps: tuple[float, ...]) -> list[dict[str, Any]]:
    """Return ME by η with exact and noisy gradients: FA-LD, and FA-HMC with K as in the paper."""
    entries = []
    for step in steps:
        rule = (math.floor(math.pi / (3 * step)),) if step <= 0.01 else TUNED
        found = {k: clients.marginal_errors(step, k, 10, (0.0, NOISE)) for k in (1, *rule)}
        entry: dict[str, Any] = {"step": step, "fa_ld": found.pop(1)}
        for place, name in enumerate(("exact", "noisy")):
            best = min(found, key=lambda k: found[k][place])
            entry[name] = {"leapfrog_steps": best, "error": found[best][place]}
        entries.append(entry)
        records.say(
            f"η = {step}: FA-LD {entry['fa_ld']}, FA-HMC {entry['exact']}, {entry['noisy']}"
        )
    return entries


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return ME by η (a, b; d for ten dimensions) and by T (c)."""
    dimension, rows, local = SCALES[scale]
    steps = STEPS[1::2] if scale == "quick" else STEPS
    data = logistic.rows(dimension, rows, seed + logistic.EVALUATION)
    large = Clients.of(data["x"].astype(np.float64), data["y"].astype(np.float64), logistic.CLIENTS)
    data = logistic.rows(10, 1000, seed + logistic.EVALUATION)
    small = Clients.of(data["x"].astype(np.float64), data["y"].astype(np.float64), logistic.CLIENTS)
    by_local = []
    for count in local:
        (error,) = large.marginal_errors(LONG_STEP, LONG_TRAJECTORY, count, (NOISE,))
        by_local.append({"local_steps": count, "error": error})
        records.say(f"K = 100, η = .01, noise, T = {count}: ME {error:.4f}")
    matched = {
        "fa_ld": large.marginal_errors(MATCHED, 1, 10, (0.0, NOISE)),
        "fa_hmc": large.marginal_errors(MATCHED / 5, 5, 10, (0.0, NOISE)),
    }
    records.say(f"Kη = {MATCHED}: {matched}")
    return {
        "dimension": dimension,
        "matched": matched,
        "large": by_step(large, steps),
        "small": by_step(small, steps),
        "local": by_local,
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 1."""
    at = {entry["step"]: entry for entry in results["large"]}
    ten = {entry["step"]: entry for entry in results["small"]}
    later = [entry["error"] for entry in results["local"] if entry["local_steps"] > 1]
    rule, tenth = at[0.01], ten[0.01]
    matched = results["matched"]
    gain = 100 * (1 - np.array(matched["fa_hmc"]) / np.array(matched["fa_ld"]))
    single = untuned("Kη", [MATCHED], MATCHED)
    return {
        "fig1a-rule": computed(rule["exact"]["error"]),
        "fig1b-rule": computed(rule["noisy"]["error"]),
        "fig1a-long-run": replace(computed(float(gain[0])), untuned=single),
        "fig1b-long-run": replace(computed(float(gain[1])), untuned=single),
        "fig1c-reach": computed(min(later), f"never: ME ≥ {min(later):.3f} for all T ≥ 2"),
        "fig1d-rule": computed(tenth["noisy"]["error"]),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw figure 1: ME against η (a, b), against T (c), and against η for d = 10 (d)."""
    panels = ((0, "large", 0, "exact"), (1, "large", 1, "noisy"), (3, "small", 1, "noisy"))
    for place, size, column, name in panels:
        axis, entries = axes[place], results[size]
        steps = [entry["step"] for entry in entries]
        langevin = np.array([entry["fa_ld"][column] for entry in entries], float)
        axis.loglog(steps, langevin, "o--", ms=3, **{**LAW, "color": "0.45"}, label="FA-LD")
        hamiltonian = [entry[name]["error"] for entry in entries]
        axis.loglog(steps, hamiltonian, "s-", ms=3, **LAW, label="FA-HMC, K by rule or best")
        axis.set(xlabel="step size η", ylabel="ME in the long run")
        axis.legend()
    times = [entry["local_steps"] for entry in results["local"]]
    axes[2].plot(times, [entry["error"] for entry in results["local"]], "s-", ms=3, **LAW)
    for epsilon in EPSILONS:
        axes[2].axhline(epsilon, color="tab:red", lw=0.7, ls=":")
    axes[2].set(xlabel="local steps T", ylabel="ME in the long run", ylim=(0, None))
