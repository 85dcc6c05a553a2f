"""Section 5.1, figures 2, 3 and 4: the mean of normal rows at ten unlike shards.

S = 10 shards of 200 rows from N(μ_s, I), μ_s uniform on [−6, 6]², prior N(0, I), h = 1e-4, m = 10,
f_s = 1/10, 220,000 updates of which the first 20,000 are dropped and every hundredth is kept. The
surrogates N(x̄_s, I/200) (our copy of the paper reads N in the place of the shard's N_s, perhaps a
lost subscript) are the likelihoods themselves. Minibatches are drawn without replacement.

The mean of FSGLD is exact whatever T. Its covariance is not the posterior's: 11 times that at these
settings, all of it from minibatches, as the exact law says beside each run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

import consortia
from consortia.oracles import Law, location_shards, travelling_law
from consortia.surrogates import Gaussian, Recipe
from experiments import records
from experiments.claims import Finding, computed
from experiments.drawing import LAW

SHARDS, ROWS, BOX = 10, 200, 6.0
STEP, BATCH, THIN = 1e-4, 10, 100
SETTINGS = (("dsgld", 1), ("dsgld", 100), ("dsgld", 1000), ("fsgld", 100), ("fsgld", 1000))
FULL_BATCH_STEP = 1e-5


@dataclass(frozen=True)
class Scale:
    """Updates of a chain after the first tenth of them, and chains."""

    updates: int
    chains: int


SCALES = {
    "quick": Scale(20_000, 4),
    "small": Scale(200_000, 20),
    "full": Scale(200_000, 100),
}


def shards(seed: int) -> list[np.ndarray]:
    """The rows of each shard, (200, 2)."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-BOX, BOX, (SHARDS, 2))
    return [centre + rng.normal(size=(ROWS, 2)) for centre in centres]


def model() -> consortia.Model:
    """Rows N(θ, I), prior N(0, I)."""

    def log_prior(theta: Any) -> Any:
        return -0.5 * jnp.sum(theta**2)

    def log_likelihood(theta: Any, batch: Any) -> Any:
        return -0.5 * jnp.sum((batch["x"] - theta[None, :]) ** 2, axis=1)

    return consortia.Model(log_prior, log_likelihood, np.zeros(2, np.float32))


def gradient_constants(rows: np.ndarray, surrogate: np.ndarray) -> tuple[float, float]:
    """Return γ_s² and ε_s² of a shard (assumption 1, lemma 2): maxima over a grid.

    Args:
        rows: ∇log p(x_i | θ) at each point of the grid, (points, rows, d).
        surrogate: ∇log q_s(θ) there, (points, d).
    """
    squares = [(part**2).sum(axis=-1) for part in (rows, rows - surrogate[:, None] / rows.shape[1])]
    return float(squares[0].max()), float(squares[1].mean(axis=1).max())


def law(
    rows: list[np.ndarray],
    name: str,
    local_steps: int,
    *,
    step_size: float = STEP,
    batch_size: int | None = BATCH,
    strength: float = 1.0,
) -> Law:
    """The exact law of a run."""
    return travelling_law(
        **location_shards(rows, batch_size, replace=False),
        step_size=step_size,
        local_steps=local_steps,
        prior_precision=1.0,
        strength=strength if name == "fsgld" else 0.0,
    )


def method(
    rows: list[np.ndarray],
    name: str,
    local_steps: int,
    *,
    step_size: float = STEP,
    batch_size: int | None = BATCH,
    strength: float = 1.0,
) -> Any:
    """The sampler of a run; draws are updates, so that thinning counts those."""
    common: dict[str, Any] = {"replace": False, "record": "updates"}
    if name == "dsgld":
        return consortia.dsgld(step_size, local_steps, batch_size, **common)
    given = [Gaussian(x.mean(axis=0), 1 / len(x)) for x in rows]
    return consortia.fsgld(
        step_size, local_steps, batch_size, surrogate=given, strength=strength, **common
    )


def run(
    rows: list[np.ndarray],
    name: str,
    local_steps: int,
    scale: Scale,
    seed: int,
    posterior: consortia.Model,
    **settings: Any,
) -> np.ndarray:
    """Draws (chains, draws, 2) of chains that start at zero."""
    warmup = max(1, scale.updates // 10 // local_steps)
    tree = consortia.sample(
        posterior,
        consortia.Sites.from_list([{"x": x.astype(np.float32)} for x in rows]),
        method(rows, name, local_steps, **settings),
        rounds=max(1, scale.updates // local_steps),
        warmup=warmup,
        thin=THIN,
        chains=scale.chains,
        seed=seed,
        progress=False,
        on_divergence="ignore",
    )
    return np.asarray(tree["posterior"]["theta"], np.float64)


def by_moments(
    rows: list[np.ndarray], scale: Scale, seed: int, posterior: consortia.Model
) -> dict[str, float]:
    """FSGLD(100) with surrogates by the moments of local SGLD: trace ratios, forecast and drawn.

    The forecast is the run's own, from the surrogates that its sites fitted.
    """
    warmup, local_steps = max(1, scale.updates // 10 // 100), 100
    method = consortia.fsgld(
        STEP,
        local_steps,
        BATCH,
        surrogate=Recipe("sgld_moments"),
        replace=False,
        examination="warn",
    )
    tree = consortia.sample(
        posterior,
        consortia.Sites.from_list([{"x": x.astype(np.float32)} for x in rows]),
        method,
        rounds=scale.updates // local_steps,
        warmup=warmup,
        chains=scale.chains,
        seed=seed,
        progress=False,
    )
    draws = np.asarray(tree["posterior"]["theta"], np.float64).reshape(-1, 2)
    total = sum(len(x) for x in rows)
    forecast = json.loads(tree.attrs["prediction"])
    return {
        "drawn": float(draws.var(axis=0).sum()) * (total + 1) / 2,
        "forecast": float(np.mean(np.square(forecast["sd_ratio"]))),
    }


def summary(draws: np.ndarray, exact: Law, updates: int) -> dict[str, Any]:
    """Error of the mean and covariance of the draws, with what the exact law says of them."""
    settled = exact.stationary
    of_updates = replace(exact.recursion, record="updates").stationary()
    errors = np.sum((draws.mean(axis=1) - exact.target.mean) ** 2, axis=1)
    late = [updates // 10, updates]
    pooled = np.cov(draws.reshape(-1, 2).T, bias=True)
    return {
        "mean_square_error": float(errors.mean()),
        "mean_square_error_error": float(errors.std(ddof=1) / np.sqrt(len(errors))),
        "exact_mean_square_error": exact.recursion.mean_square_error(updates, THIN),
        "trace": float(np.trace(pooled)),
        # draws at every hundredth update lie late in the visits: the law of those, not of all
        "exact_trace_of_ends": float(np.trace(settled.covariance)),
        "exact_trace_of_updates": float(np.trace(of_updates.covariance)),
        "posterior_trace": float(np.trace(exact.target.covariance)),
        "variance_inflation": settled.variance_ratio,
        "exact_slope": slope_of([exact.recursion.mean_square_error(n, THIN) for n in late], late),
    }


def slope_of(errors: list[float], counts: list[int]) -> float:
    """Return the slope of log error against the logarithm of a number of draws."""
    return float(np.polyfit(np.log(counts), np.log(errors), 1)[0])


def late_slope(curve: dict[str, Any]) -> float:
    """Return the slope of log error in the last decade of the draws."""
    late = [n >= curve["draws"][-1] / 10 for n in curve["draws"]]
    draws, error = (np.array(curve[k])[late] for k in ("draws", "error"))
    return slope_of(error, draws)


def mixture_trace(rows: list[np.ndarray]) -> float:
    """Return the trace of the covariance of the mixture of p(θ) p(x_s | θ)^(1/f_s)."""
    weight = np.array([len(x) * len(rows) for x in rows], float)
    means = np.array([w * x.mean(axis=0) / (w + 1) for w, x in zip(weight, rows, strict=True)])
    return float(means.var(axis=0).sum() + np.mean(2 / (weight + 1)))


def constants(rows: list[np.ndarray], points: int) -> dict[str, list[float]]:
    """ε_s² and γ_s² over a grid on [−6, 6]², figure 4."""
    axis = np.linspace(-BOX, BOX, points)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    pairs = [
        gradient_constants(x[None] - grid[:, None], len(x) * (x.mean(axis=0) - grid)) for x in rows
    ]
    return {"gamma_squared": [p[0] for p in pairs], "epsilon_squared": [p[1] for p in pairs]}


def curve(draws: np.ndarray, target: np.ndarray, points: int = 40) -> dict[str, Any]:
    """Mean square error of the mean of the first draws, figure 3b."""
    counts = np.unique(np.geomspace(1, draws.shape[1], points).astype(int))
    running = np.cumsum(draws, axis=1)[:, counts - 1] / counts[None, :, None]
    return {"draws": counts, "error": np.mean(np.sum((running - target) ** 2, axis=-1), axis=0)}


def study(scale: str, seed: int) -> dict[str, Any]:
    """All runs of figures 2 and 3, full batches, and the constants of figure 4."""
    size, rows, posterior = SCALES[scale], shards(seed), model()
    target = law(rows, "fsgld", 100)
    results: dict[str, Any] = {
        "runs": [],
        "constants": constants(rows, 13),
        "centres": [x.mean(axis=0) for x in rows],
        "posterior": {"mean": target.target.mean, "covariance": target.target.covariance},
        "mixture_trace": mixture_trace(rows),
        "inflation": float(target.stationary.variance_ratio.mean()),
    }
    results["moments"] = by_moments(rows, size, seed, posterior)
    records.say(f"surrogates by moments: {results['moments']}")
    full: dict[str, Any] = {"step_size": FULL_BATCH_STEP, "batch_size": None}
    cases = [(*case, {}) for case in SETTINGS] + [("fsgld", 100, full)]
    for name, local_steps, settings in cases:
        draws = run(rows, name, local_steps, size, seed, posterior, **settings)
        exact = law(rows, name, local_steps, **settings)
        entry = {
            "method": name,
            "local_steps": local_steps,
            **settings,
            **summary(draws, exact, size.updates),
            "curve": curve(draws, exact.target.mean),
            "sample": draws[0, :: max(1, draws.shape[1] // 200)],
        }
        results["runs"].append(entry)
        records.say(
            f"{name}({local_steps}) {settings or ''}: error {entry['mean_square_error']:.3g} "
            f"(exact {entry['exact_mean_square_error']:.3g}), trace {entry['trace']:.4g} "
            f"(exact {entry['exact_trace_of_ends']:.4g}, posterior "
            f"{entry['posterior_trace']:.4g}); variance inflation "
            f"{np.mean(entry['variance_inflation']):.3g}"
        )
    return results


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figures 2, 3 and 4."""
    runs = {f"{e['method']}-{e['local_steps']}": e for e in results["runs"] if "step_size" not in e}
    full = results["runs"][-1]
    found = {}
    base = runs["fsgld-100"]
    for name, entry in runs.items():
        mixed = name in ("dsgld-100", "dsgld-1000")
        unit = results["mixture_trace"] if mixed else entry["posterior_trace"]
        found[f"fig2-{name}"] = Finding(
            entry["trace"] / unit, law=entry["exact_trace_of_ends"] / unit
        )
        if name == "fsgld-100":
            continue
        ratio = entry["mean_square_error"] / base["mean_square_error"]
        parts = [e["mean_square_error_error"] / e["mean_square_error"] for e in (entry, base)]
        found[f"fig3b-{name}"] = Finding(
            ratio,
            ratio * float(np.hypot(*parts)),
            law=entry["exact_mean_square_error"] / base["exact_mean_square_error"],
        )
    slopes = [late_slope(runs[name]["curve"]) for name in ("dsgld-100", "fsgld-100")]
    laws = [runs[name]["exact_slope"] for name in ("dsgld-100", "fsgld-100")]
    found["fig3b-plateau"] = Finding(slopes[0], law=laws[0])
    found["fig3b-as-fast"] = Finding(slopes[0] / slopes[1], law=laws[0] / laws[1])
    found["full-batch"] = Finding(
        full["trace"] / full["posterior_trace"],
        law=full["exact_trace_of_ends"] / full["posterior_trace"],
    )
    if "moments" in results:
        moments = results["moments"]
        found["recipe-moments"] = Finding(moments["drawn"], law=moments["forecast"])
        found["recipe-forecast"] = Finding(moments["forecast"] / moments["drawn"])
    ratio = (
        np.array(results["constants"]["epsilon_squared"]) / results["constants"]["gamma_squared"]
    )
    found["fig4"] = computed(float(ratio.max()))
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw figure 2 (draws by method and T), 3a, 3b and 4."""
    mean, covariance = np.asarray(results["posterior"]["mean"]), results["posterior"]["covariance"]
    small, names = [], []
    for axis, entry in zip(axes[:5], results["runs"][:5], strict=True):
        sample = np.asarray(entry["sample"])[::4]  # a figure needs no more
        for centre in results["centres"]:
            axis.plot(*centre, "o", ms=4, alpha=0.5)
        axis.plot(sample[:, 0], sample[:, 1], "k.", ms=1.5)
        axis.plot(*mean, "+", color="tab:red", ms=8)
        axis.set(xlabel="θ₁", ylabel="θ₂", xlim=(-7, 7), ylim=(-7, 7))
        if entry["method"] == "fsgld":
            small.append(sample)
            names.append(entry["local_steps"])
    angle = np.linspace(0, 2 * np.pi, 60)
    root = np.linalg.cholesky(np.asarray(covariance))
    for steps, sample in zip(names, small, strict=True):
        axes[5].plot(sample[:, 0], sample[:, 1], ".", ms=2, label=f"FSGLD({steps})")
    for inflation, style in ((1.0, "-"), (results["inflation"], ":")):
        edge = mean[:, None] + 2 * np.sqrt(inflation) * root @ np.stack(
            [np.cos(angle), np.sin(angle)]
        )
        axes[5].plot(
            *edge, style, **LAW, label=f"2 sd of {'the posterior' if style == '-' else 'its law'}"
        )
    axes[5].set(xlabel="θ₁", ylabel="θ₂", ymargin=0.3)
    axes[5].legend(loc="upper center", ncols=2)
    for entry in results["runs"]:
        label = f"{entry['method'].upper()}({entry['local_steps']})"
        if "batch_size" in entry:
            label += " full batch"
        axes[6].loglog(entry["curve"]["draws"], entry["curve"]["error"], lw=0.9, label=label)
    axes[6].set(xlabel="draws", ylabel="squared error of the mean")
    axes[6].set_ylim(top=1e5)
    axes[6].legend(loc="upper right", ncols=2)
    place = np.arange(SHARDS)
    axes[7].bar(place - 0.2, results["constants"]["gamma_squared"], 0.4, label="γ²")
    axes[7].bar(place + 0.2, results["constants"]["epsilon_squared"], 0.4, label="ε²")
    axes[7].set(xlabel="shard", yscale="log", ylim=(1, 2000))
    axes[7].legend(loc="upper right", ncols=2)
