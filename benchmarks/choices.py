"""What a draw of `fa_hmc` costs with the settings that are chosen, beside the least of a grid.

Of twenty-one posteriors, eleven of them not Gaussian, by the exact law on the Gaussian law at the
mode and by messages; also with one step a message (K = T = 1), the longest within the target. Where
a posterior is not Gaussian the bias of draws is measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import Gate, Row

NAME = "choices"
KINDS = ("alike", "unlike", "ill-conditioned", "unlike and ill-conditioned")
GAUSSIAN: tuple[tuple[str, int, int, float], ...] = (
    *((kind, *size, 0.0) for kind in KINDS for size in ((3, 4), (8, 6))),
    ("unlike", 3, 30, 0.0),
    ("unlike", 3, 4, 400.0),
)
"""Kind, parameters, sites, and variance of the gradients' noise."""

NOT_GAUSSIAN: tuple[tuple[str, int, int, int, float], ...] = (
    ("logistic", 4, 5, 0, 0.3),
    ("logistic", 8, 6, 1, 0.5),
    ("logistic", 12, 8, 2, 0.5),
    ("logistic", 6, 20, 3, 1.0),
    ("logistic", 3, 4, 7, 0.0),
    ("logistic", 5, 5, 9, 1.5),
    ("poisson", 4, 5, 4, 0.2),
    ("poisson", 6, 6, 5, 0.4),
    ("poisson", 8, 8, 6, 0.3),
    ("poisson", 3, 10, 8, 0.6),
    ("last layer", 8, 5, 10, 0.3),
)
"""Kind, parameters, sites, seed, and how far the sites' columns lie apart."""

TARGETS: dict[str, tuple[Any, ...]] = {
    "full": (*GAUSSIAN, *NOT_GAUSSIAN),
    "quick": (GAUSSIAN[3], NOT_GAUSSIAN[0]),
    "tiny": (NOT_GAUSSIAN[4],),
}
VALUES = (1, 2, 3, 5, 8), (1, 2, 4, 8, 16), (False, True), (None, "curvature")
"""K, T, de-biasing and mass matrix of the grid: 100 settings, with twelve step sizes each."""

SEVERAL = 4.0
"""Standard errors by which the bias of draws may be off."""


class Compared(NamedTuple):
    """Rounds that an independent draw takes, and whether the bias is within the target."""

    chosen: float
    least: float  # of the grid
    plain: float | None  # with K = T = 1; None: no step meets the target
    met: bool


def rows(scale: str) -> Iterator[Row]:
    """The figures."""
    met = 0
    for target in TARGETS[scale]:
        found = compare(target)
        met += found.met
        detail = f"{found.chosen:.3g} / {found.least:.3g} rounds a draw"
        figure, what = found.chosen / found.least, f"fa_hmc, {in_words(target)}"
        yield Row(
            NAME, f"chosen / least of a grid: {what}", figure, gate=Gate("<=", 1.3), detail=detail
        )
        many = np.inf if found.plain is None else found.plain / found.chosen
        yield Row(NAME, f"K = T = 1 / chosen: {what}", many, gate=Gate(">=", 3))
        if target in NOT_GAUSSIAN:
            shift, spread, size = bias_of_draws(target, 2500 if scale == "full" else 400)
            off = max(shift - SEVERAL / size**0.5, spread - SEVERAL / (2 * size) ** 0.5)
            detail = f"means {shift:.3f} sd, sds {spread:.3f}, of {size:.0f} effective draws"
            what = f"bias of draws less {SEVERAL:g} standard errors: {what}"
            yield Row(NAME, what, max(off, 0.0), gate=Gate("<=", 0.05), detail=detail)
    yield Row(
        NAME,
        "posteriors whose bias is within the target, by the law, of all",
        met / len(TARGETS[scale]),
        gate=Gate(">=", 0.95),
    )


def in_words(target: Any) -> str:
    """The kind of a posterior and its size."""
    more = f", noise {target[3]:g}" if target in GAUSSIAN and target[3] else ""
    return f"{target[0]}, {target[1]} parameters, {target[2]} sites{more}"


def problem(target: Any) -> Any:
    """The problem of a posterior whose chains start near its mode."""
    from consortia.theory.bias import Problem

    made = regression(*target) if target in NOT_GAUSSIAN else gaussian(*target[:3])
    return Problem(*made, from_mode=True)


def compare(target: Any) -> Compared:
    """The rounds of `fa_hmc` with its choice, of a grid, and with one step a message."""
    from dataclasses import replace

    import consortia as c
    from consortia.theory import settings, tuning
    from consortia.theory.bias import known_law

    there, noise = problem(target), target[3] if target in GAUSSIAN else 0.0
    method, aim = c.fa_hmc(gradient_noise=noise), tuning.BiasTarget.read(None, "messages")
    choice = tuning.choose_step(there, method, aim, rounds=10**8, chains=4)
    aim, least = aim.halved() if choice.margin else aim, np.inf
    steepest = float(np.linalg.eigvalsh(there.near.precision)[-1])
    for index in itertools.product(*VALUES):
        given = dict(zip(settings.open_settings(method), index, strict=True))
        filled = settings.with_settings(method, given, there)
        for step in np.geomspace(0.05, 2, 12) / (1 if index[3] else steepest**0.5):
            law = known_law(replace(filled, step_size=float(step)), there)
            if law.rounds_per_draw < least and law.stable and aim.met(law, there.near):
                least = law.rounds_per_draw
    met = aim.met(known_law(choice.method, there), there.near)
    plain = tuning.largest_step(there, c.fa_hmc(None, 1, 1, gradient_noise=noise), aim)
    return Compared(
        choice.rounds_per_draw, least, None if plain is None else plain.rounds_per_draw, met
    )


def bias_of_draws(target: Any, rounds: int) -> tuple[float, float, float]:
    """Errors of means in sds and of sds beside those of exact draws, and the effective size."""
    import consortia as c

    model, sites = regression(*target)
    options: dict[str, Any] = {"chains": 4, "seed": 1, "progress": False}
    tree = c.sample(model, sites, c.fa_hmc(), rounds=rounds, **options)
    exact = c.sample(model, sites, c.few_rounds(effective_size=20_000), rounds=200, **options)
    size = float(np.min(c.summary(tree)["ess_bulk"]))
    draws, others = (
        each["posterior"]["x"].to_numpy().reshape(-1, target[1]) for each in (tree, exact)
    )
    sd = others.std(axis=0)
    shift = np.abs((draws.mean(axis=0) - others.mean(axis=0)) / sd).max()
    return float(shift), float(np.abs(draws.std(axis=0) / sd - 1).max()), size


def gaussian(kind: str, d: int = 3, count: int = 4) -> tuple[Any, Any]:
    """A model and Gaussian sites, each with one row that holds its mean and its precision."""
    import jax.numpy as jnp

    import consortia

    rng = np.random.default_rng(3)
    rows = []
    for _ in range(count):
        sizes = np.logspace(0, 2, d) if "ill" in kind else np.full(d, 20.0)
        mean, turn = 0.02 * rng.normal(size=d), np.eye(d)
        if "unlike" in kind:
            turn, _ = np.linalg.qr(np.eye(d) + 0.1 * rng.normal(size=(d, d)))
            sizes, mean = sizes * rng.uniform(0.3, 3.0, d), 20 * mean / np.sqrt(sizes)
        precision = turn @ np.diag(sizes) @ turn.T
        rows.append({"m": mean[None], "A": precision[None]})

    def log_likelihood(p: Any, b: Any) -> Any:
        off = p["x"][None] - b["m"]
        return -0.5 * jnp.einsum("ni,nij,nj->n", off, b["A"], off)

    def log_prior(p: Any) -> Any:
        return -0.5e-4 * jnp.sum(p["x"] ** 2)

    init = {"x": np.zeros(d, np.float32)}
    model = consortia.Model(log_prior=log_prior, log_likelihood=log_likelihood, init=init)
    return model, consortia.Sites.from_list(rows)


def _hidden_layer(seed: int, width: int) -> np.ndarray:
    """Weights of ReLU units of three inputs, of a network that gradient descent has fitted."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(500, 3))
    y = np.tanh(2 * x[:, 0] * x[:, 1]) + np.sin(2 * x[:, 2])
    hidden, last = rng.normal(size=(3, width)), rng.normal(size=width) / width
    for _ in range(400):
        units = np.maximum(x @ hidden, 0)
        off = (units @ last - y) / len(x)
        back = np.outer(off, last) * (units > 0)
        last, hidden = last - 0.1 * units.T @ off, hidden - 0.1 * x.T @ back
    return hidden


def regression(kind: str, d: int, count: int, seed: int, shift: float) -> Any:
    """A logistic or Poisson regression at sites whose columns lie apart: a model and sites.

    Of the kind "last layer" the columns are the units of one fitted network.
    """
    import jax
    import jax.numpy as jnp

    import consortia

    rng = np.random.default_rng(seed)
    slopes, rows = 0.4 * rng.normal(size=d), []
    hidden = _hidden_layer(seed, d - 1) if kind == "last layer" else None
    for _ in range(count):
        x = rng.normal(size=(int(rng.integers(60, 400)), d)) + shift * rng.normal(size=d)
        if hidden is not None:
            x[:, 1:] = np.maximum(x[:, 1:4] @ hidden, 0)
        x[:, 0] = 1
        eta = x @ slopes
        event = rng.random(len(eta)) < 1 / (1 + np.exp(-eta))
        y = event if kind != "poisson" else rng.poisson(np.exp(np.clip(eta, -4, 2)))
        rows.append({"x": x.astype(np.float32), "y": y.astype(np.float32)})

    def log_likelihood(p: Any, b: Any) -> Any:
        eta = b["x"] @ p["x"]
        return b["y"] * eta - (jnp.exp(eta) if kind == "poisson" else jax.nn.softplus(eta))

    init = {"x": np.zeros(d, np.float32)}
    model = consortia.Model(
        log_prior=lambda p: -jnp.sum(p["x"] ** 2) / 8, log_likelihood=log_likelihood, init=init
    )
    return model, consortia.Sites.from_list(rows)
