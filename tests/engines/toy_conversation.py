"""A small conversation for tests: a mode by Newton's method, then importance sampling around it.

Executed by the ranks of a job as well: ``python toy_conversation.py ENGINE OUTPUT``.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import consortia
from consortia.core.contract import Claims, Disclosure, Evaluation, Fault, Site
from consortia.core.queries import (
    Batch,
    Conversation,
    Conversing,
    Known,
    Outcome,
    Query,
    SiteFunction,
    Size,
    in_width,
)
from consortia.core.target import Target
from consortia.dynamics import metropolis

SIZES = (5, 8, 11, 6, 7)
DIMENSION = 3


def differences(target: Target, arrays: Mapping[str, Any], site: Site) -> dict[str, Any]:
    """U_c at each point above U_c at the reference."""
    base = metropolis.potential(target, arrays["reference"], site)

    def at(position: Any) -> Any:
        return metropolis.potential(target, position, site).above(base)

    return {"above": metropolis.at_all(target, at, arrays["points"], site)}


def slopes(target: Target, arrays: Mapping[str, Any], site: Site) -> dict[str, Any]:
    """U_c, its gradient and its Hessian at a few points."""
    rows, mask = site.all()

    def potential(position: Any) -> Any:
        return target.potential(position, rows, mask, site)

    def at(position: Any) -> Any:
        value, gradient = jax.value_and_grad(potential)(position)
        return {"value": value, "gradient": gradient, "curvature": jax.hessian(potential)(position)}

    return metropolis.at_all(target, at, arrays["points"], site)


def rows_told(target: Target, arrays: Mapping[str, Any], site: Site) -> dict[str, Any]:
    """The rows of a site and its number, side by side."""
    return {"rows": site.size, "number": site.number, "weight": site.weight}


def drawn(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Points that need not travel: drawn at both ends from the seed that does."""
    rng = np.random.default_rng(arrays["seed"].astype(np.uint32))
    dtype = arrays["centre"].dtype
    normal = rng.standard_normal((int(arrays["count"]), len(arrays["centre"])))
    points = arrays["centre"] + normal @ arrays["root"].T
    return {"points": points.astype(dtype), "reference": arrays["centre"]}


def at_points(arrays: Mapping[str, Any]) -> Evaluation:
    return Evaluation(arrays["points"])


def nowhere(arrays: Mapping[str, Any]) -> Evaluation:
    return Evaluation(np.zeros((0, DIMENSION)))


def gradients(arrays: Mapping[str, Any]) -> Disclosure:
    return Disclosure(gradients=arrays["gradient"])


FUNCTIONS = {
    "differences": SiteFunction(
        differences, at_points, "The log-likelihood of all your rows at some points.", drawn
    ),
    "slopes": SiteFunction(
        slopes, at_points, "Slopes and curvatures at a few points.", disclosure=gradients
    ),
    "rows": SiteFunction(rows_told, nowhere, "How many rows you have.", summed=False),
}


def accepts(rng: np.random.Generator, gain: float) -> bool:
    """Return True if a point of so much more weight is taken."""
    return bool(np.log(rng.uniform()) < gain)


@dataclass(frozen=True)
class Toy(Conversation):
    """Independence Metropolis around the mode.

    Args:
        points: of a batch.
        far: prior standard deviations from the centre at which the last query asks, to be refused.
        fails: the conversation ends with a failure after its search.
        most_rounds: batches.
    """

    points: int = 64
    far: float = 0.0
    fails: bool = False
    most_rounds: int = 3

    name = "toy"
    step_size = None
    claims = Claims("the posterior", "none", "the position", "none", "ours, for tests")
    functions = FUNCTIONS
    most_messages = 50
    search = 4

    def parameters(self) -> dict[str, Any]:
        return {"points": self.points}

    def usual_messages(self, dimension: int) -> int:
        return 1 + self.search + self.most_rounds

    def message_sizes(self, dimension: int) -> dict[str, Size]:
        d = dimension
        return {
            "differences": Size(2 + d + d * d, self.points),
            "slopes": Size(d, 1 + d + d * d),
            "rows": Size(0, 3),
        }

    def converse(self, known: Known) -> Conversing:
        chains, d = known.chains, len(known.start)
        rng = np.random.default_rng(known.seed)
        told = yield Query("rows", {}, "sizes")
        assert told["rows"].tolist() == known.sizes.tolist()
        at = np.asarray(known.start, np.float64)
        for _ in range(self.search):
            found = yield Query("slopes", {"points": at[None]}, "search")
            at = at - np.linalg.solve(found["curvature"][0], found["gradient"][0])
        if self.far:
            yield Query("slopes", {"points": (at + self.far)[None]}, "too far")
        if self.fails:
            return Outcome("refused", {}, (), "no mode was found: give other data")
        root = np.linalg.cholesky(np.linalg.inv(found["curvature"][0])) * 1.2
        held, level = np.repeat(at[None], chains, axis=0), np.zeros(chains)
        accepted = 0
        for batch in range(known.batches):
            arrays = {
                "seed": np.array([known.seed % 2**31, batch], np.int32),
                "count": np.int32(self.points),
                "centre": at,
                "root": root,
            }
            sent = yield Query("differences", arrays, "draws")
            points = drawn(in_width(arrays))["points"].astype(np.float64)
            z = np.linalg.solve(root, (points - at).T).T
            weights = -sent["above"] + 0.5 * (z**2).sum(axis=1)
            weights = np.where(np.isfinite(weights), weights, -np.inf)
            each = self.points // chains
            draws = np.empty((chains, each, d))
            rate = np.empty((chains, each))
            for chain in range(chains):
                for step in range(each):
                    index = chain * each + step
                    taken = accepts(rng, weights[index] - level[chain])
                    if taken:
                        held[chain], level[chain] = points[index], weights[index]
                    accepted += taken
                    draws[chain, step], rate[chain, step] = held[chain], taken
            yield Batch(draws, {"acceptance_rate": rate})
        faults = (Fault("a fault of the toy"),) if accepted == 0 else ()
        return Outcome("all batches were drawn", {"accepted": int(accepted)}, faults)


MODEL = replace(consortia.models.logistic_regression(2, intercept=True), host=None)  # compiled


def sites(count: int = 5, sizes: tuple[int, ...] = SIZES) -> consortia.Sites:
    """Unlike sites of unlike sizes; those of one size share their compiled functions."""
    rng = np.random.default_rng(0)
    rows = [sizes[number % len(sizes)] for number in range(count)]
    return consortia.Sites.from_list(
        [
            {
                "x": rng.normal(number % 5 / 2, 1, (size, 2)),
                "y": (rng.uniform(size=size) < 0.4).astype(np.int32),
            }
            for number, size in enumerate(rows)
        ]
    )


def queries() -> list[Query]:
    """One of each function."""
    rng = np.random.default_rng(1)
    drawing = {
        "seed": np.array([1, 2], np.int32),
        "count": np.int32(40),
        "centre": np.zeros(DIMENSION),
        "root": np.eye(DIMENSION),
    }
    return [
        Query("differences", drawing, "draws"),
        Query("slopes", {"points": rng.normal(size=(3, DIMENSION))}, "search"),
        Query("rows", {}, "sizes"),
    ]


def sampled(engine: Any = None, method: Any = None, **more: Any) -> Any:
    """The result of the toy."""
    options = {"chains": 2, "seed": 11, "progress": False} | more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return consortia.sample(MODEL, sites(), method or Toy(), engine=engine, **options)


def main() -> None:
    """One process's part."""
    jax.config.update("jax_enable_x64", True)
    kind, output = sys.argv[1:]
    if kind == "mpi":
        engine: Any = consortia.MPIEngine(deadline=60)
    elif kind == "devices-mesh":
        devices = np.asarray(jax.devices()[:4]).reshape(2, 2)
        engine = consortia.LocalEngine(jax.sharding.Mesh(devices, ("nodes", "chains")))
    elif kind.startswith("devices-"):
        engine = consortia.LocalEngine(devices=int(kind.removeprefix("devices-")))
    else:
        from consortia.engines.sharding import join

        port, processes, number = kind.split("/")
        join(f"127.0.0.1:{port}", int(processes), int(number))
        engine = consortia.LocalEngine()
    target = Target(MODEL, jax.tree.map(jnp.asarray, MODEL.init))
    panel = engine.panel(target, sites(), Toy())
    if panel.serves:
        panel.serve()
    else:
        for number, query in enumerate(queries()):
            np.savez(Path(output) / f"answer-{number}.npz", **panel.ask(query))
        panel.finish()
    store = Path(output) / "run"
    tree = sampled(engine, store=store, rounds=1)
    if kind.startswith("devices"):
        engine = None  # the devices of the stored run
    tree = consortia.resume(store, MODEL, sites(), Toy(), rounds=3, engine=engine, progress=False)
    if tree is not None:
        tree.to_zarr(Path(output) / "tree.zarr")


if __name__ == "__main__":
    main()
