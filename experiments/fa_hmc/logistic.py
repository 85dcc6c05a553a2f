"""Section 5.1, figure 1: FA-HMC against FA-LD on Bayesian logistic regression.

The recipe of the data is not printed in the paper. Here x_i = z_i/|z_i| with z_i ~ N(0, I),
θ* ~ N(0, I), y_i ~ Bernoulli(σ(x_iᵀθ*)), prior N(0, I). "The dataset of size 1000" split "equally
into 20 local nodes" is read as n rows in total, so that a client has n/20 of them, and n = d.

The marginal error (ME) of the draws is taken against Metropolis-adjusted HMC on the pooled rows:
that of one chain, as in the paper, and that of all chains' draws together. More draws favour less
bias, and so shorter trajectories; every comparison is tuned for its own number of draws.
Step sizes are tuned on some data sets, and the methods are compared on others: otherwise the method
with more settings to choose from would win by chance.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

import consortia
from consortia.diagnostics import marginal_error
from experiments import records
from experiments.claims import Finding, over_pairs, untuned
from experiments.fa_hmc.reference import reference_draws

CLIENTS = 20
LOCAL_STEPS = 10
NOISE_VARIANCE = 100.0
KINDS = ("one chain", "pooled")
EVALUATION = 1000
"""Data seeds from here on belong to the comparison, those before to the tuning."""

REFERENCE_STEP = 0.25
LEAST_ESS = 1000


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        dimension: d, and the number of rows in total.
        rounds: rounds whose draws count.
        warmup: rounds before them.
        thin: rounds a draw.
        chains: independent chains.
        reference: kept draws of each of four reference chains.
        leapfrog_steps: K of FA-HMC to choose from.
        trajectories: Kη to choose from, for FA-HMC and FA-LD alike.
        noises: variances added to the gradients.
        tuning: data sets for the choice.
        evaluation: data sets for the comparison.
        rule: η at which K = floor(π/(3η)) is tried.
        rule_data: on so many of the latter, since it is slow and far off.
        local_steps: T of the study of local steps.
        long_trajectory: K and η of that study.
    """

    dimension: int
    rounds: int
    warmup: int
    thin: int
    chains: int
    reference: int
    leapfrog_steps: tuple[int, ...]
    trajectories: tuple[float, ...]
    noises: tuple[float, ...]
    tuning: int
    evaluation: int
    rule: float
    rule_data: int
    local_steps: tuple[int, ...]
    long_trajectory: tuple[int, float]


SCALES = {
    "quick": Scale(
        dimension=60,
        rounds=400,
        warmup=50,
        thin=1,
        chains=2,
        reference=1000,
        leapfrog_steps=(5,),
        trajectories=(0.2,),
        noises=(0.0,),
        tuning=1,
        evaluation=2,
        rule=0.1,
        rule_data=1,
        local_steps=(),
        long_trajectory=(5, 0.2),
    ),
    "small": Scale(
        dimension=100,
        rounds=1200,
        warmup=300,
        thin=1,
        chains=2,
        reference=5000,
        leapfrog_steps=(5,),
        trajectories=(0.14, 0.17, 0.2, 0.23),
        noises=(0.0, NOISE_VARIANCE),
        tuning=1,
        evaluation=5,
        rule=0.1,
        rule_data=2,
        local_steps=(1, 2, 5, 10, 20, 70),
        long_trajectory=(10, 0.1),
    ),
    # As printed: 2·10⁷ steps of which the second half is kept; days of computing.
    "full": Scale(
        dimension=1000,
        rounds=1_000_000,
        warmup=1_000_000,
        thin=20,
        chains=1,
        reference=50_000,
        leapfrog_steps=(2, 5, 10, 50),
        trajectories=(0.01, 0.02, 0.05, 0.1, 0.15, 0.2),
        noises=(0.0, NOISE_VARIANCE),
        tuning=1,
        evaluation=5,
        rule=0.01,
        rule_data=5,
        local_steps=(1, 10, 20, 40, 70, 100),
        long_trajectory=(100, 0.01),
    ),
}


class Setting(NamedTuple):
    """One sampler: K, the trajectory Kη, T and the variance of the gradient's noise."""

    leapfrog_steps: int
    trajectory: float
    local_steps: int
    noise: float


class Problem(NamedTuple):
    """One data set at its clients, with reference draws (draws, d) of its posterior."""

    sites: consortia.Sites
    reference: np.ndarray


def rows(dimension: int, count: int, seed: int) -> dict[str, np.ndarray]:
    """Simulated rows: x on the unit sphere, labels by logistic regression with θ* ~ N(0, I)."""
    generator = np.random.default_rng(seed)
    directions = generator.normal(size=(count, dimension))
    x = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    log_odds = x @ generator.normal(size=dimension)
    labels = generator.uniform(size=count) < 1 / (1 + np.exp(-log_odds))
    return {"x": x.astype(np.float32), "y": labels.astype(np.int32)}


class Comparison:
    """Runs settings on data sets and keeps what it has run.

    Args:
        scale: how much is run.
        seed: of data and samplers.
    """

    def __init__(self, scale: Scale, seed: int) -> None:
        self._scale, self._seed = scale, seed
        self.model = consortia.models.logistic_regression(scale.dimension)
        self.problem = functools.cache(self._problem)
        self._errors_of = functools.cache(self._errors)

    def _problem(self, data_seed: int) -> Problem:
        """The data set with this seed, and its reference, which must be good."""
        scale = self._scale
        data = rows(scale.dimension, scale.dimension, 10_000 * self._seed + data_seed)
        found = reference_draws(
            self.model, data, draws=scale.reference, step_size=REFERENCE_STEP, seed=data_seed
        )
        if found.r_hat > 1.01 or found.ess < LEAST_ESS:
            raise RuntimeError(f"poor reference: R-hat {found.r_hat:.3f}, ESS {found.ess:.0f}")
        sites = consortia.partition.iid(data, min(CLIENTS, scale.dimension // 5), seed=data_seed)
        return Problem(sites, found.draws.reshape(-1, scale.dimension))

    def draws(self, setting: Setting, data_seed: int) -> np.ndarray:
        """The sampler's draws, (chains, draws, d)."""
        algorithm = consortia.fa_hmc(
            setting.trajectory / setting.leapfrog_steps,
            setting.leapfrog_steps,
            setting.local_steps,
            gradient_noise=setting.noise,
        )
        tree = consortia.sample(
            self.model,
            self.problem(data_seed).sites,
            algorithm,
            rounds=self._scale.rounds,
            warmup=self._scale.warmup,
            thin=self._scale.thin,
            chains=self._scale.chains,
            seed=self._seed + data_seed,
            progress=False,
            on_divergence="ignore",
        )
        return np.asarray(tree["posterior"]["coefficients"])

    def _errors(self, setting: Setting, data_seed: int) -> dict[str, float]:
        draws = self.draws(setting, data_seed)
        reference = self.problem(data_seed).reference
        return {
            "one chain": float(np.mean([marginal_error(chain, reference) for chain in draws])),
            "pooled": marginal_error(draws.reshape(-1, draws.shape[-1]), reference),
        }

    def errors(self, setting: Setting, data_seeds: range, kind: str) -> np.ndarray:
        """The ME on each of these data sets, of "one chain" (the mean over chains) or "pooled"."""
        return np.array([self._errors_of(setting, data_seed)[kind] for data_seed in data_seeds])


def tune(
    comparison: Comparison, scale: Scale, steps: tuple[int, ...], noise: float, kind: str
) -> tuple[Setting, list[dict[str, float]]]:
    """The setting with the least mean ME on the tuning data, and the whole grid."""
    grid = []
    for leapfrog_steps in steps:
        for trajectory in scale.trajectories:
            setting = Setting(leapfrog_steps, trajectory, LOCAL_STEPS, noise)
            error = float(comparison.errors(setting, range(scale.tuning), kind).mean())
            grid.append((error, setting))
            records.say(f"  K = {leapfrog_steps}, Kη = {trajectory}: ME {error:.4f}")
    return min(grid)[1], [
        {"leapfrog_steps": s.leapfrog_steps, "trajectory": s.trajectory, "error": error}
        for error, s in grid
    ]


def paired(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Mean and standard error of 100 (first − second)/first over data sets, in per cent."""
    gain = 100 * (first - second) / first
    return {
        "per_cent": float(gain.mean()),
        "standard_error": float(gain.std(ddof=1) / math.sqrt(len(gain))),
    }


def compare(comparison: Comparison, scale: Scale, noise: float, kind: str) -> dict[str, Any]:
    """Tuned FA-LD, tuned FA-HMC, and K = floor(π/(3η)), on data that did not tune them."""
    records.say(f"gradient noise of variance {noise:g}, {kind}: tuning")
    langevin, langevin_grid = tune(comparison, scale, (1,), noise, kind)
    hamiltonian, hamiltonian_grid = tune(comparison, scale, scale.leapfrog_steps, noise, kind)
    steps = math.floor(math.pi / (3 * scale.rule))
    rule = Setting(steps, steps * scale.rule, LOCAL_STEPS, noise)
    settings = {"fa_ld": langevin, "fa_hmc": hamiltonian, "rule": rule}
    counts = {"rule": scale.rule_data}
    errors = {}
    for name, setting in settings.items():
        count = counts.get(name, scale.evaluation)
        errors[name] = comparison.errors(setting, range(EVALUATION, EVALUATION + count), kind)
        records.say(
            f"  {name}: K = {setting.leapfrog_steps}, Kη = {setting.trajectory:.3g}: "
            f"ME {errors[name].mean():.4f} over {count} data sets"
        )
    gain = paired(errors["fa_ld"], errors["fa_hmc"])
    best = np.minimum(errors["fa_ld"], errors["fa_hmc"])[: scale.rule_data]
    ratio = float(np.mean(errors["rule"] / best))
    records.say(
        f"  FA-HMC better than FA-LD by {gain['per_cent']:.2f} ± {gain['standard_error']:.2f} %, "
        f"K = floor(π/(3η)) at {ratio:.2f} times the least ME"
    )
    return {
        "noise": noise,
        "draws": kind,
        "tuning": {"fa_ld": langevin_grid, "fa_hmc": hamiltonian_grid},
        "settings": {name: setting._asdict() for name, setting in settings.items()},
        "errors": errors,
        "gain_of_fa_hmc": gain,
        "rule_over_best": ratio,
    }


def local_steps(comparison: Comparison, scale: Scale) -> list[dict[str, Any]]:
    """ME along the rounds for several T, a long trajectory, noisy gradients; see figure 1(c)."""
    steps, step_size = scale.long_trajectory
    reference = comparison.problem(EVALUATION).reference
    curves = []
    for count in scale.local_steps:
        draws = comparison.draws(
            Setting(steps, steps * step_size, count, NOISE_VARIANCE), EVALUATION
        )[0]
        ends = [end for end in (10, 20, 50, 100, 200, 400, 1200) if end <= len(draws)]
        errors = [marginal_error(draws[:end], reference) for end in ends]
        curves.append({"local_steps": count, "draws": ends, "error": errors})
        records.say(f"T = {count}, Kη = {steps * step_size:.3g}: ME {errors[-1]:.4f} at the end")
    return curves


def study(scale: str, seed: int) -> dict[str, Any]:
    """The comparison with exact and with noisy gradients, and the study of T."""
    chosen = SCALES[scale]
    comparison = Comparison(chosen, seed)
    return {
        "gradients": [
            compare(comparison, chosen, noise, kind)
            for noise in chosen.noises
            for kind in KINDS[: chosen.chains]
        ],
        "local_steps": local_steps(comparison, chosen),
    }


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 1 by sampling."""
    found = {}
    for part in results["gradients"]:
        if part["draws"] == KINDS[0]:
            panel = "b" if part["noise"] else "a"
            one, other, rule = (np.array(part["errors"][n]) for n in ("fa_ld", "fa_hmc", "rule"))
            gain = part["gain_of_fa_hmc"]
            reasons = [coarse(part, name) for name in part["tuning"]]
            single = "; ".join(filter(None, reasons))
            found[f"fig1{panel}-sampled"] = Finding(
                gain["per_cent"], gain["standard_error"], pairs=len(one), untuned=single
            )
            best = np.minimum(one, other)[: len(rule)]
            found[f"fig1{panel}-rule-sampled"] = replace(
                over_pairs(list(rule / best)), untuned=single
            )
            if part["noise"]:
                langevin, hamiltonian = (rise(part, name) for name in ("fa_ld", "fa_hmc"))
                found["fig1b-robust"] = Finding(
                    hamiltonian / langevin,
                    shown=f"ME rises by {100 * langevin:.2g} % with FA-LD, by "
                    f"{100 * hamiltonian:.2g} % with FA-HMC",
                    untuned=single,
                )
    return found


def along(part: dict[str, Any], name: str) -> dict[float, float]:
    """Return the ME by trajectory of a method's grid, at the K that was chosen."""
    chosen = part["settings"][name]["leapfrog_steps"]
    grid = [entry for entry in part["tuning"][name] if entry["leapfrog_steps"] == chosen]
    return {entry["trajectory"]: entry["error"] for entry in grid}


def coarse(part: dict[str, Any], name: str) -> str:
    """Explain why a method's trajectory counts as untuned, or return ""."""
    return untuned(name, list(along(part, name)), part["settings"][name]["trajectory"])


def rise(part: dict[str, Any], name: str) -> float:
    """Return the rise of the largest ME of a method's grid above the least, in parts of it."""
    errors = along(part, name).values()
    return max(errors) / min(errors) - 1


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw ME against the trajectory for each kind of gradient, and against rounds for each T."""
    single = [part for part in results["gradients"] if part["draws"] == KINDS[0]]
    for axis, part in zip(axes, single, strict=False):
        for name, grid in part["tuning"].items():
            for steps in sorted({entry["leapfrog_steps"] for entry in grid}):
                line = [entry for entry in grid if entry["leapfrog_steps"] == steps]
                axis.plot(
                    [entry["trajectory"] for entry in line],
                    [entry["error"] for entry in line],
                    "o-",
                    ms=3,
                    label=f"{name}, K = {steps}",
                )
        axis.set(xlabel="trajectory Kη", ylabel="ME of one chain")
        axis.legend()
    for curve in results["local_steps"]:
        axes[2].loglog(
            curve["draws"], curve["error"], "o-", ms=3, label=f"T = {curve['local_steps']}"
        )
    axes[2].set(xlabel="rounds", ylabel="ME")
    if results["local_steps"]:
        axes[2].legend()
