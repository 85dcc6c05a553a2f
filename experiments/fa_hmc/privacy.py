"""Sections 3 and 4.2: momenta of ρ < 1 and noisy gradients that only the site can draw.

Ten institutions in one process, each with a policy, a ledger and a secret of its own, from which it
draws its momenta and the noise on its gradients; what the server holds is the seed and what they
send. Rows are on the unit sphere, 100 at each site. A gradient that a site takes is that of
U_c/w_c, so that one row changed in place of another moves it by at most Δ = 2/w_c. With noise of
variance σ² it is (ε, δ)-private by the exact curve of the Gaussian mechanism: δ(ε) =
Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ). A run takes many: m of them have mΔ²/2σ² of zero-concentrated
privacy loss, which is turned into an ε at the same δ.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import load_study
from experiments import records
from experiments.claims import Finding
from experiments.drawing import LAW

SITES, DIMENSION, ROWS, TEST = 10, 10, 1000, 2000
SPREAD = 10.0
"""Of the true coefficients and of the prior."""

STEP, LEAPFROGS, LOCAL = 0.05, 5, 5
GRADIENTS = LOCAL * 2 * LEAPFROGS
"""At most so many noisy gradients a round."""

DELTA = 1e-5
COMPARED = 100.0
"""The paper's variance of the noise, at which secrets are compared with the seed."""

STUDY = """
[data]
files = [{files}]
target = "y"
[model]
kind = "logistic_regression"
prior_scale = {spread}
[algorithm]
name = "fa_hmc"
step_size = {step}
leapfrog_steps = {leapfrogs}
local_steps = {local}
momentum_correlation = {correlation}
gradient_noise = {noise}
[run]
rounds = {rounds}
warmup = {warmup}
chains = {chains}
seed = {seed}
"""


class Scale(NamedTuple):
    """Rounds that count, rounds before them, chains, variances of the noise."""

    rounds: int
    warmup: int
    chains: int
    noises: tuple[float, ...]


SCALES = {
    "quick": Scale(20, 10, 8, (0.0, COMPARED)),
    "small": Scale(80, 30, 16, (0.0, COMPARED, 1e3, 1e4)),
    "full": Scale(1000, 100, 32, (0.0, 10.0, COMPARED, 1e3, 1e4, 1e5)),
}


def epsilon_of_one(ratio: float) -> float:
    """Return ε of one gradient at δ, from Δ/σ."""

    def excess(epsilon: float) -> float:
        near, far = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
        return float(norm.cdf(near) - math.exp(epsilon + norm.logcdf(far))) - DELTA

    return float(brentq(excess, 1e-9, ratio**2 + 20 * ratio))


def epsilon_of_many(ratio: float, count: int) -> float:
    """Return an ε at δ of so many gradients, each of which knows the ones before."""
    loss = count * ratio**2 / 2
    return loss + 2 * math.sqrt(loss * math.log(1 / DELTA))


def rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features on the unit sphere and labels, test rows last."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS + TEST, DIMENSION))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    odds = x @ (SPREAD * rng.normal(size=DIMENSION))
    return x, (rng.uniform(size=len(x)) < 1 / (1 + np.exp(-odds))).astype(int)


def draws(
    folder: Path, size: Scale, noise: float, correlation: float, seed: int, *, private: bool
) -> np.ndarray:
    """Return the draws (chains, draws, d) of a run between institutions of this process."""
    names = [f"site{number}" for number in range(SITES)]
    study = folder / f"{noise:g}-{correlation:g}-{private}.toml"
    files = ", ".join(f'"{name}.csv"' for name in names)
    study.write_text(
        STUDY.format(
            files=files, spread=SPREAD, step=STEP, leapfrogs=LEAPFROGS, local=LOCAL,
            correlation=correlation, noise=noise, rounds=size.rounds, warmup=size.warmup,
            chains=size.chains, seed=seed,
        )
    )  # fmt: skip
    stage = Stage(
        study,
        {name: folder / f"{name}.csv" for name in names},
        folder / study.stem,
        proposed(terms_of(load_study(study))),
        private=private,
    )
    return np.asarray(stage.run()["posterior"]["coefficients"], np.float64)


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return accuracy and ε by the noise, and the moments of runs with secrets and by the seed."""
    size = SCALES[scale]
    x, y = rows(seed)
    found = []
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        header = ",".join([*(f"x{i}" for i in range(DIMENSION)), "y"])
        for number, part in enumerate(np.array_split(np.arange(ROWS), SITES)):
            table = np.column_stack([x[part], y[part]])
            form = ["%.9g"] * DIMENSION + ["%d"]
            np.savetxt(folder / f"site{number}.csv", table, form, ",", header=header, comments="")
        for noise in size.noises:
            correlation = 0.0 if noise else 1.0
            drawn = draws(folder, size, noise, correlation, seed, private=True)
            flat = drawn.reshape(-1, DIMENSION)[:: max(drawn.shape[0] * drawn.shape[1] // 400, 1)]
            chance = np.mean(1 / (1 + np.exp(-flat @ x[ROWS:].T)), axis=0)
            likely = np.where(y[ROWS:] == 1, chance, 1 - chance)
            ratio = 2 * SITES / math.sqrt(noise) if noise else math.inf
            entry = {
                "noise": noise,
                "correlation": correlation,
                "accuracy": float(np.mean((chance > 0.5) == y[ROWS:])),
                "nll": float(-np.log(likely).mean()),
                "sd": drawn.std(axis=(0, 1)),
                "epsilon": epsilon_of_one(ratio) if noise else None,
                "epsilon_of_run": epsilon_of_many(ratio, GRADIENTS * (size.rounds + size.warmup))
                if noise
                else None,
            }
            found.append(entry)
            records.say(
                f"σ² = {noise:g}, ρ = {correlation:g}: accuracy {entry['accuracy']:.4f}, NLL "
                f"{entry['nll']:.4f}, ε of one gradient {entry['epsilon']}"
            )
            if noise == COMPARED:
                with_secrets = drawn
        by_seed = draws(folder, size, COMPARED, 0.0, seed, private=False)
    sd = with_secrets.std(axis=(0, 1))
    moments = {
        name: {"mean": one.mean(axis=1), "sd": one.std(axis=1)}
        for name, one in (("secrets", with_secrets), ("seed", by_seed))
    }
    apart = float(np.mean(np.abs(with_secrets - by_seed) / sd))
    return {"noises": found, "moments": moments, "apart": apart, "chains": size.chains}


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Test whether secrets change the draws and not the law, and ε beside the accuracy."""
    scores = []
    for name in ("mean", "sd"):
        one, other = (np.asarray(results["moments"][k][name]) for k in ("secrets", "seed"))
        error = np.sqrt((one.var(axis=0, ddof=1) + other.var(axis=0, ddof=1)) / len(one))
        scores.append(np.abs(one.mean(axis=0) - other.mean(axis=0)) / error)
    plain = results["noises"][0]
    at = next(entry for entry in results["noises"] if entry["noise"] == COMPARED)
    return {
        "privacy": Finding(results["apart"]),
        "privacy-law": Finding(float(np.max(scores))),
        "privacy-epsilon": Finding(
            at["epsilon"],
            shown=", ".join(
                f"σ² = {e['noise']:g}: ε = {e['epsilon']:.2g}, accuracy {e['accuracy']:.3f}"
                for e in results["noises"][1:]
            )
            + f"; no noise: {plain['accuracy']:.3f}",
        ),
        "privacy-run": Finding(at["epsilon_of_run"]),
    }


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw accuracy and NLL by ε of one gradient, and sds with secrets against those by seed."""
    plain, noisy = results["noises"][0], results["noises"][1:]
    for axis, name in ((axes[0], "accuracy"), (axes[1], "nll")):
        axis.semilogx([e["epsilon"] for e in noisy], [e[name] for e in noisy], "o-", ms=3, lw=0.9)
        axis.axhline(plain[name], color="0.5", lw=0.7, ls=":")
        axis.set(xlabel="ε of one gradient, δ = 10⁻⁵ (dots: no noise)", ylabel=name)
    axes[0].set_ylim(plain["accuracy"] - 0.02, plain["accuracy"] + 0.02)
    for entry in noisy:
        axes[0].annotate(
            f"σ² = {entry['noise']:g}",
            (entry["epsilon"], entry["accuracy"]),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=6,
        )
    axes[0].margins(x=0.15)
    secrets, seed = (
        np.asarray(results["moments"][name]["sd"]).mean(axis=0) for name in ("secrets", "seed")
    )
    axes[2].plot(seed, secrets, "o", ms=3)
    ends = [min(seed.min(), secrets.min()), max(seed.max(), secrets.max())]
    axes[2].plot(ends, ends, **LAW)
    axes[2].set(xlabel="sd of a coefficient, by the seed", ylabel="with secrets, σ² = 100")
