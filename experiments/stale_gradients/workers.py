"""Section 5.2, figures 3 and 4: test loss by iterations a worker, by time, and by servers.

Stale SGHMC (Euler) with the prior N(0, I). Caffe's solver with rate α and momentum m does
v' = m v − α ∇L, θ' = θ + v', L the mean loss of a row. With v = h q and ∇U ≈ N ∇L, algorithm 1 is
that step plus noise when

    1 − B h = m,  h² N = α,  so  h = √(α/N),  B = (1 − m)/h.

Its noise moves θ by √(2 (1 − m) α/N) a step. The solver's weight decay gives way to the prior, and
its doubled rate of biases and decaying rate are left out.

The step size is handed over as an array, which no check of stability looks at: networks leave the
curvature of their start, by which that check would refuse runs that go well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

import consortia
from consortia.errors import NonFiniteError
from consortia.schedules.events import simulate
from experiments import records
from experiments.claims import Finding, over_pairs, untuned

LATENCY = consortia.latency.lognormal(server_cost=0.1)
"""A task takes 1 on average, an update of the server .1."""

WORKERS = (1, 2, 4, 6, 9)
SERVERS = (1, 3, 5, 7)
WORKERS_PER_SERVER = 2
LINE: dict[str, Any] = {"lw": 0.9, "marker": "o", "ms": 1.5}
"""Of a curve: a short run has a single point."""
MARKS = 10
"""About so many on a curve, where it has more points."""


@dataclass(frozen=True)
class Problem:
    """A model, its data and the solver's settings.

    Attributes:
        model: rows stand for ``copies`` rows each.
        sites: one site.
        test: held-out rows.
        rows: N, copies counted.
        rate: α of Caffe's solver.
        batch: rows of a gradient.
        together: run several servers in one program; convolutions are faster one after the other.
        momentum: m.
    """

    model: consortia.Model
    sites: consortia.Sites
    test: dict[str, np.ndarray]
    rows: int
    rate: float
    batch: int
    together: bool
    momentum: float = 0.9

    @property
    def copies(self) -> float:
        """How many rows each row stands for."""
        return self.rows / self.sites.rows


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        iterations: of a worker.
        points: places of a curve.
        seeds: independent runs of every setting.
        factors: rates, in parts of the solver's own; servers are compared at the last one.
        workers: numbers of workers of one server.
        servers: numbers of servers.
    """

    iterations: int
    points: int
    seeds: int
    factors: tuple[float, ...] = (1.0,)
    workers: tuple[int, ...] = WORKERS
    servers: tuple[int, ...] = SERVERS


def settings(problem: Problem, factor: float) -> tuple[float, float]:
    """h and B of the solver's rate, times a factor, and of its momentum."""
    step = math.sqrt(factor * problem.rate / problem.rows)
    return step, (1 - problem.momentum) / step


def run(
    problem: Problem, scale: Scale, factor: float, workers: int, seed: int, servers: int = 1
) -> dict[str, Any]:
    """One run: log-probabilities of the test labels at the points of the curve.

    Returns:
        ``values`` (servers, points, test rows), NaN from where a chain turned non-finite;
        ``time`` (points,) of the first server; ``diverged``: iterations a worker until then, or
        None.
    """
    step, friction = settings(problem, factor)
    updates, each = scale.iterations * workers, scale.iterations // scale.points
    method = consortia.stale_sghmc(
        np.full(updates, step),
        friction,
        problem.batch,
        workers=workers,
        servers=servers,
        latency=LATENCY,
    )
    diverged = None
    try:
        tree = consortia.sample(
            problem.model,
            problem.sites,
            method,
            rounds=updates,
            thin=each * workers,
            seed=seed,
            progress=False,
            on_divergence="ignore",
            chains=1,
        )
    except NonFiniteError as error:
        tree, diverged = error.tree, error.round / workers
    values = np.full((servers, scale.points, len(problem.test["y"])), np.nan)
    if "posterior" in tree.children:
        drawn = {name: np.asarray(v) for name, v in tree["posterior"].data_vars.items()}
        kept = len(next(iter(drawn.values()))[0])
        for server in range(servers):
            for point in range(kept):
                position = {name: v[server, point] for name, v in drawn.items()}
                values[server, point] = _log_probabilities(problem, position)
    trace = simulate(LATENCY, workers=workers, updates=updates, seed=seed)
    finish = trace.accepted("finish")[0][each * workers - 1 :: each * workers]
    return {"values": values, "time": finish, "diverged": diverged}


def one_chain(
    problem: Problem, scale: Scale, factor: float, workers: int, seed: int
) -> dict[str, Any]:
    """Return a run of one server with the test loss at the points of the curve as its values."""
    found = run(problem, scale, factor, workers, seed)
    return {
        "loss": -found["values"][0].mean(axis=1),
        "time": found["time"],
        "diverged": found["diverged"],
    }


def _log_probabilities(problem: Problem, position: Any) -> np.ndarray:
    values = _compiled(problem.model)(position, problem.test)
    return np.asarray(values, np.float64) / problem.copies


_functions: dict[consortia.Model, Any] = {}


def _compiled(model: consortia.Model) -> Any:
    """The model's log-likelihood, compiled once."""
    return _functions.setdefault(model, jax.jit(model.log_likelihood))


# --- workers ---------------------------------------------------------------------------------


def reached(curve: np.ndarray, places: np.ndarray, level: float) -> float:
    """Where a curve falls to a level for good, between its points linearly; NaN if it does not."""
    above = np.flatnonzero(~(curve <= level))
    if not above.size:
        return float(places[0])
    last = int(above[-1])
    if last + 1 == len(curve):
        return math.nan
    share = (curve[last] - level) / (curve[last] - curve[last + 1])
    return float(places[last] + share * (places[last + 1] - places[last]))


def jackknife(statistic: Callable[[np.ndarray], float], runs: int) -> tuple[float, float]:
    """A statistic of all runs and its standard error, from leaving out one run at a time.

    Args:
        statistic: of the numbers of the runs that take part.
        runs: how many there are.
    """
    everyone = np.arange(runs)
    value = statistic(everyone)
    if runs < 2:
        return value, math.nan
    without = np.array([statistic(np.delete(everyone, i)) for i in everyone])
    return value, float(np.sqrt((runs - 1) / runs * np.sum((without - without.mean()) ** 2)))


def compare_workers(
    runs: dict[int, list[dict[str, Any]]], places: np.ndarray
) -> list[dict[str, Any]]:
    """Curves, and how much sooner the average curve has the final loss of the fewest workers'.

    Args:
        runs: of each number of workers, one for each seed; seeds share a start.
        places: iterations a worker of the points.
    """
    losses, times = (
        {w: np.stack([np.array(r[name], float) for r in one]) for w, one in runs.items()}
        for name in ("loss", "time")
    )
    fewest = min(runs)

    def speedup(workers: int, along: dict[int, np.ndarray], chosen: np.ndarray) -> float:
        alone, curve = (losses[w][chosen].mean(axis=0) for w in (fewest, workers))
        here = [along[w][chosen].mean(axis=0) for w in (fewest, workers)]
        return float(here[0][-1] / reached(curve, here[1], alone[-1]))

    entries = []
    iterations = {w: np.tile(places, (len(one), 1)) for w, one in runs.items()}
    for workers, found in runs.items():
        curves = losses[workers]
        entries.append(
            {
                "workers": workers,
                "iterations": places,
                "time": times[workers].mean(axis=0),
                "loss": curves,
                "final": jackknife(lambda i, c=curves: float(c[i, -1].mean()), len(found)),
                "iteration_speedup": jackknife(partial(speedup, workers, iterations), len(found)),
                "time_speedup": jackknife(partial(speedup, workers, times), len(found)),
                "diverged": [r["diverged"] for r in found],
            }
        )
    return entries


# --- servers ---------------------------------------------------------------------------------


def compare_servers(values: np.ndarray, numbers: tuple[int, ...]) -> list[dict[str, Any]]:
    """The loss averaged over S servers, and the loss of their averaged predictions.

    Both are averages over all runs of S servers that stand in a row, round the circle. Of one
    server there is no standard deviation.

    Args:
        values: log-probabilities of the test labels, (servers, points, rows).
        numbers: S.
    """
    count = len(values)
    losses = -values.mean(axis=2)
    spread = losses.std(axis=0, ddof=1) if count > 1 else np.full(losses.shape[1], np.nan)
    entries = []
    for number in numbers:
        of_mean, of_predictions = [], []
        for first in range(count):
            chosen = values[(first + np.arange(number)) % count]
            of_mean.append(-chosen.mean(axis=(0, 2)))
            mixed = np.logaddexp.reduce(chosen, axis=0) - math.log(number)
            of_predictions.append(-mixed.mean(axis=1))
        entries.append(
            {
                "servers": number,
                "loss": np.mean(of_mean, axis=0),
                "standard_deviation": spread / math.sqrt(number),
                "loss_of_the_average": np.mean(of_predictions, axis=0),
            }
        )
    return entries


# --- the study -------------------------------------------------------------------------------


def study(problem: Problem, scale: Scale, seed: int) -> dict[str, Any]:
    """Both comparisons on one problem."""
    places = scale.iterations // scale.points * np.arange(1, scale.points + 1)
    seeds = [100 * (seed + i) for i in range(scale.seeds)]
    results: dict[str, Any] = {"rates": [], "servers": []}
    for factor in scale.factors:
        step, friction = settings(problem, factor)
        records.say(f"rate {factor * problem.rate:g}: h = {step:.4g}, B = {friction:.4g}")
        runs: dict[int, list[dict[str, Any]]] = {}
        for workers in scale.workers:
            runs[workers] = [
                records.part(
                    f"rate{factor:g}-W{workers}-{s}",
                    partial(one_chain, problem, scale, factor, workers, s),
                )
                for s in seeds
            ]
            records.say(f"  W = {workers}: {_said(runs[workers])}")
        entries = compare_workers(runs, places)
        rate = {"rate": factor * problem.rate, "step_size": step, "friction": friction}
        results["rates"].append(rate | {"workers": entries})
        for entry in entries:
            (speed, error), (clock, _) = entry["iteration_speedup"], entry["time_speedup"]
            records.say(
                f"  W = {entry['workers']}: final loss {entry['final'][0]:.4f} ± "
                f"{entry['final'][1]:.4f}, iteration speed-up {speed:.2f} ± {error:.2f}, time "
                f"speed-up {clock:.2f}"
            )
    most, factor = max(scale.servers), scale.factors[-1]
    if problem.together:
        values = run(problem, scale, factor, WORKERS_PER_SERVER, seeds[0], most)["values"]
    else:
        found = [run(problem, scale, factor, WORKERS_PER_SERVER, seeds[0] + s) for s in range(most)]
        values = np.concatenate([r["values"] for r in found])
    results["servers"] = compare_servers(values, scale.servers)
    for entry in results["servers"]:
        records.say(
            f"  S = {entry['servers']}: final loss {entry['loss'][-1]:.4f} (sd over runs "
            f"{entry['standard_deviation'][-1]:.4f}), of the averaged predictions "
            f"{entry['loss_of_the_average'][-1]:.4f}"
        )
    return results


def _said(found: list[dict[str, Any]]) -> str:
    texts = []
    for one in found:
        loss, end = one["loss"][-1], one["diverged"]
        texts.append(f"{loss:.3f}" if end is None else f"non-finite after {end:.1f}")
    return "final loss " + ", ".join(texts)


def findings(results: dict[str, Any], name: str) -> dict[str, Finding]:
    """Return the findings of figures 3 and 4 and of appendix I, at the smallest rate.

    That of Caffe's examples is printed, any other is chosen here.
    """
    rate = results["rates"][-1]
    printed = name != "a9a" and rate is results["rates"][0]
    tried = [one["rate"] for one in results["rates"]]
    coarse = "" if printed else untuned("rate", tried, rate["rate"])
    two, last = rate["workers"][1], rate["workers"][-1]

    servers = results["servers"]
    alone, most = (entry["loss_of_the_average"][-1] for entry in (servers[0], servers[-1]))
    diverged = [w["workers"] for w in results["rates"][0]["workers"] if any_value(w["diverged"])]
    found = {
        f"fig3-{name}-two": replace(over_workers(two, "iteration_speedup"), untuned=coarse),
        f"fig3-{name}-most": replace(over_workers(last, "iteration_speedup"), untuned=coarse),
        f"fig3-{name}-time": over_workers(last, "time_speedup"),
        f"fig3-{name}-stable": Finding(
            float(len(diverged)), shown=f"W = {diverged} run away" if diverged else "all stable"
        ),
        f"fig4-{name}": Finding(
            100 * (alone - most) / alone,
            shown=f"{alone:.4f} with 1 server, {most:.4f} with {servers[-1]['servers']}",
            untuned=coarse,
        ),
    }
    ends = {w["workers"]: [run[-1] for run in w["loss"]] for w in rate["workers"]}
    if name == "cifar" and {4, 6, 9} <= set(ends):
        six, nine = (over_pairs(list(np.subtract(ends[w], ends[4]))) for w in (6, 9))
        lesser = min(six, nine, key=lambda one: one.value)
        told = f"six {six.text}; nine {nine.text}"
        found["fig3-cifar-worse"] = replace(lesser, shown=told, untuned=coarse)
    return found


def over_workers(entry: dict[str, Any], kind: str) -> Finding:
    """Return a speed-up of `compare_workers` over the number of workers."""
    value, error = entry[kind]
    count, pairs = entry["workers"], len(entry["diverged"])
    if value is None:
        return Finding(None, shown=f"never reached with {count} workers", pairs=pairs)
    return Finding(value / count, None if error is None else error / count, pairs=pairs)


def any_value(values: list[Any]) -> bool:
    """Return True if one of them is not None."""
    return any(value is not None for value in values)


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw loss by iterations a worker and by time, by servers, and at the solver's own rate."""
    part = results["rates"][-1]
    places = part["workers"][0]["iterations"]
    style = LINE | {"markevery": max(len(places) // MARKS, 1)}
    for entry in part["workers"]:
        loss = np.array(entry["loss"], float)
        label = f"W = {entry['workers']}"
        for axis, name in zip(axes[:2], ("iterations", "time"), strict=True):
            (line,) = axis.plot(entry[name], loss.mean(axis=0), **style, label=label)
            axis.fill_between(
                entry[name], loss.min(axis=0), loss.max(axis=0), color=line.get_color(), alpha=0.2
            )
    axes[0].set(xlabel=f"iterations a worker, rate {part['rate']:g}", ylabel="test loss")
    axes[1].set(xlabel="simulated time (bands: all runs)")
    axes[0].legend()
    for entry in results["servers"]:
        (line,) = axes[2].plot(
            places, entry["loss_of_the_average"], **style, label=f"S = {entry['servers']}"
        )
        axes[2].plot(places, entry["loss"], ":", lw=0.9, color=line.get_color())
    axes[2].set(xlabel="iterations a worker; dots: loss of one")
    axes[2].legend()
    own = results["rates"][0]
    for entry in own["workers"]:
        loss = np.array(entry["loss"], float)
        shown = np.minimum(loss.mean(axis=0), 10.0)
        axes[3].plot(entry["iterations"], shown, **style, label=f"W = {entry['workers']}")
    axes[3].set(xlabel=f"iterations a worker, rate {own['rate']:g}", ylabel="test loss, cut at 10")
    for axis in axes:
        logarithmic(axis)
        axis.xaxis.get_major_locator().set_params(integer=True)


def logarithmic(axis: Any) -> None:
    """Make the vertical axis logarithmic, with plain numbers: losses span less than a decade."""
    axis.set_yscale("log")
    for ticks in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        ticks(lambda value, _: f"{value:.5g}")
