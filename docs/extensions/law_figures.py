"""Each method beside its exact law: three unlike sites, one parameter, thousands of chains.

Settings are such that a bias can be seen, and worse than anybody would choose. The figure is not
drawn where the run is not within 4.5 standard errors of its law: then the build ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import consortia
from consortia.oracles import decentralized_ula_moments
from consortia.theory.bias import Problem, keeps_posterior, law_of

GATE = 4.5
"""Standard errors; a comparison of the right law fails by chance once in 150,000."""

CENTRES, PRECISIONS, ROWS = (3.0, -1.0, 0.5), (1.0, 0.25, 0.5), 8


@dataclass(frozen=True)
class Case:
    """Settings of one figure, and how far the chains run."""

    settings: dict[str, Any]
    rounds: int
    chains: int = 4000
    warmup: int = 0
    pooled: bool = False


STALE = {"workers": 4, "latency": consortia.latency.constant()}
CASES = {
    "few_rounds": Case({"effective_size": None, "proposals": 512}, 40, 4),
    "private_posterior": Case({"epsilon": 9e4, "delta": 1e-4, "clip": 9.0}, 4, 4),
    "federated_hmc": Case({}, 500, 8, warmup=200),
    "decentralized_exact_hmc": Case(
        {"step_size": 0.1, "mixing": "complete", "leapfrog_steps": 4}, 500, 8, warmup=50
    ),
    "fa_hmc": Case({"step_size": 0.12, "leapfrog_steps": 3, "local_steps": 4}, 40),
    "fa_ld": Case({"step_size": 0.25, "local_steps": 4}, 60),
    "dsgld": Case({"step_size": 0.02, "local_steps": 4}, 150),
    "fsgld": Case({"step_size": 0.05, "local_steps": 4, "batch_size": 2}, 80),
    "de_sgld": Case({"step_size": 0.05, "mixing": "ring"}, 120),
    "de_sghmc": Case({"step_size": 0.1, "friction": 3.0, "mixing": "ring"}, 150),
    "stale_sgld": Case({"step_size": 0.02, "batch_size": None, **STALE}, 120, pooled=True),
    "stale_sghmc": Case(
        {"step_size": 0.08, "friction": 4.0, "batch_size": None, **STALE}, 250, pooled=True
    ),
    "stale_sgnht": Case(
        {"step_size": 0.08, "friction": 4.0, "batch_size": None, **STALE}, 400, pooled=True
    ),
    "decentralized_hmc": Case({"step_size": 0.5, "mixing": "complete"}, 120),
    "decentralized_ula": Case({"step_size": 0.4, "mixing": "ring"}, 120),
}


@dataclass(frozen=True)
class Found:
    """What a figure shows, in words."""

    sentence: str
    alt: str


def model_and_sites(*, pooled: bool) -> tuple[consortia.Model, consortia.Sites]:
    """Return a Gaussian posterior of one parameter whose sites disagree."""
    rng = np.random.default_rng(0)
    model = consortia.Model(
        lambda theta: -0.5 * jnp.sum(theta**2),
        lambda theta, rows: -0.5 * rows["precision"] * (rows["y"] - theta[0]) ** 2,
        jnp.zeros(1),
    )
    sites = consortia.Sites.from_list(
        [
            {
                "y": (centre + rng.normal(size=ROWS)).astype(np.float32),
                "precision": np.full(ROWS, precision, np.float32),
            }
            for centre, precision in zip(CENTRES, PRECISIONS, strict=True)
        ]
    )
    return model, consortia.Sites.from_list([sites.pooled()]) if pooled else sites


def draw(name: str, path: Path) -> Found:
    """Run a method, compare it with its law, draw both; return what came of it in words."""
    case = CASES[name]
    model, sites = model_and_sites(pooled=case.pooled)
    method = getattr(consortia, name)(**case.settings)
    problem = Problem(model, sites)
    centre, spread = float(problem.near.mode[0]), float(problem.near.sd[0])
    draws, errors = _draws(model, sites, method, case)
    law = _law(name, method, problem, case)
    if law is not None:
        # The law of the mean and of the standard deviation over independent draws.
        apart = (draws.mean() - law[0]) / law[1] * np.sqrt(errors)
        wider = (draws.std() / law[1] - 1) * np.sqrt(2 * errors)
        if max(abs(apart), abs(wider)) > GATE:
            raise ValueError(
                f"{name}: the run is {apart:.1f} and {wider:.1f} standard errors from its law"
            )
    _figure(path, draws, law, (centre, spread))
    return _said(draws, law, (centre, spread), exact=keeps_posterior(method))


def _draws(
    model: consortia.Model, sites: consortia.Sites, method: Any, case: Case
) -> tuple[np.ndarray, float]:
    """Return draws and how many independent ones they are worth."""
    long = case.chains < 100
    tree = consortia.sample(
        model,
        sites,
        method,
        rounds=case.rounds,
        warmup=case.warmup,
        chains=case.chains,
        thin=1 if long else case.rounds,
        seed=5,
        progress=False,
        on_divergence="ignore",  # settings are bad on purpose
    )
    values = np.asarray(tree["posterior"]["theta"], float)[..., 0]
    if not long:
        return values.ravel(), values.size
    table = consortia.summary(tree)
    return values.ravel(), min(float(table["ess_bulk"][0]), float(table["ess_tail"][0]))


def _law(name: str, method: Any, problem: Problem, case: Case) -> tuple[float, float] | None:
    """Return mean and standard deviation of the law; None where there is no closed form."""
    near = problem.near
    if keeps_posterior(method):
        return float(near.mode[0]), float(near.sd[0])
    if name in ("stale_sgnht", "private_posterior"):
        return None
    if name == "decentralized_ula":
        moments = decentralized_ula_moments(
            problem.agents(1, case.settings["mixing"], rows=False, modes=False),
            case.settings["mixing"],
            step_size=case.settings["step_size"],
            iterations=case.rounds,
            start=-near.mode,
        )
    else:
        moments = law_of(method, problem).stationary
    return float(near.mode[0] + moments.mean[0]), float(moments.sd[0])


def _said(
    draws: np.ndarray,
    law: tuple[float, float] | None,
    posterior: tuple[float, float],
    *,
    exact: bool,
) -> Found:
    run = f"mean {draws.mean():.3f}, standard deviation {draws.std():.3f}"
    right = f"{posterior[0]:.3f} and {posterior[1]:.3f}"
    if law is None:
        said = f"There is no closed form. The run has {run}; the posterior has {right}."
    elif exact:
        said = f"The law is the posterior, {right}. The run has {run}."
    else:
        said = (
            f"The law has mean {law[0]:.3f} and standard deviation {law[1]:.3f}, the run {run}; "
            f"the posterior has {right}."
        )
    coarse = "" if exact else "; settings are coarse, to make the bias visible"
    return Found(
        f"{said} The model has one parameter, and the sites disagree{coarse}.",
        f"Histogram of the run with the density of its law and of the posterior. {said}",
    )


def _figure(
    path: Path,
    draws: np.ndarray,
    law: tuple[float, float] | None,
    posterior: tuple[float, float],
) -> None:
    style: dict[str, Any] = {"svg.hashsalt": "consortia", "svg.fonttype": "none", "font.size": 11}
    with mpl.rc_context(style):
        figure = Figure(figsize=(7, 3), layout="constrained")
        axes = figure.add_subplot()
        low, high = np.quantile(draws, [0.001, 0.999])
        reach = 3 * posterior[1]
        ends = min(low, posterior[0] - reach), max(high, posterior[0] + reach)
        grid = np.linspace(*ends, 300)
        axes.hist(draws, bins=50, range=(grid[0], grid[-1]), density=True, color="#c9d6ea")
        if law is not None:
            axes.plot(grid, _density(grid, *law), color="#14477e", lw=2, label="its law")
        axes.plot(grid, _density(grid, *posterior), "--", color="#9c3d10", label="the posterior")
        axes.set(xlabel="θ", yticks=[])
        axes.spines[["top", "left", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})


def _density(at: np.ndarray, mean: float, sd: float) -> np.ndarray:
    return np.exp(-0.5 * ((at - mean) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))
