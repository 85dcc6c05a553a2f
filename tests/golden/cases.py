"""The cases of the golden draws: what is run over every engine; see `golden.draws`.

Executed by a job of `draws.py`, ``python cases.py ENGINE OUTPUT PART ...``, with the sources and
the tests of the tree in question on the path.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from golden.signatures import signatures
from parity import flower_sites, problem

import consortia
from consortia.core.privacy import SecretNoise

ALGORITHMS = problem.ALGORITHMS
SEED, WARMUP, LEARNING, THIN = 11, 4, 20, 3
FRESH, CUT, LONGER = 12, 7, 14
"""Rounds; the cut is in the middle of a block of thinned draws."""
UPDATES = 4
"""Updates of asynchronous workers for each such round."""

RICH: dict[str, Any] = {
    "batch_size": 3,
    "temperature": 0.8,
    "step_size": tuple((0.05 / (1 + 0.1 * np.arange(100))).tolist()),
}
EXTRA: dict[str, dict[str, Any]] = {
    "fa_hmc-rich": RICH
    | {
        "momentum_correlation": 0.3,
        "gradient_noise": 0.5,
        "debias": True,
        "mass_matrix": ((2.0, 0.3, 0.0), (0.3, 1.0, 0.1), (0.0, 0.1, 0.7)),
    },
    "fsgld-rich": {"batch_size": 3, "replace": False, "covariance": "diagonal"},
    "dsgld-rich": {"batch_size": 3, "record": "updates"},
    "de_sgld-rich": RICH | {"correction": "extra", "noise": "common", "draws": "agents"},
    "de_sghmc-rich": RICH | {"draws": "agents"},
    "federated_hmc-learned": {"step_size": None, "leapfrog_steps": None, "mass_matrix": "diagonal"},
    "decentralized_hmc-exact": {"variant": "exact", "gossip_rounds": 1},
    "decentralized_hmc-published": {"variant": "published", "draws": "agents"},
    "decentralized_ula-published": {"noise": "published", "draws": "agents"},
    "stale_sghmc-rich": {
        "integrator": "splitting",
        "extrapolate": True,
        "temperature": 0.8,
        "servers": 2,
    },
    "stale_sgnht-elementwise": {"thermostat": "elementwise"},
}
"""Settings that the tests of parity have not, with two chains: on the local engine."""
CASES = problem.CASES | problem.ASYNCHRONOUS | {"stale_sghmc-2": ("stale_sghmc", 1, 2, {})}
for _label, _more in EXTRA.items():
    _name = _label.split("-")[0]
    CASES[_label] = _name, ALGORITHMS[_name].sites or 5, 2, _more
if "decentralized_exact_hmc" in ALGORITHMS:  # a method of its own: the same draws
    CASES["decentralized_hmc-exact"] = "decentralized_exact_hmc", 5, 2, {"leapfrog_steps": 1}
SINGLE = {"fa_hmc-1", "fsgld-1", "de_sgld-1", "federated_hmc-1"}
"""Cases of a single chain that run over all engines: one of each exchange."""
LEARNERS = {"federated_hmc"}
SITES = {"sharded": 6, "flower": 3}
"""Sites, where they are not those of the case; of Flower's, each compiles for itself."""
TRAVELLING = {"dsgld", "fsgld"}
GROUPS = "posterior", "sample_stats", "agents"


# --- what is run -----------------------------------------------------------------------------


def mesh_of(label: str) -> str | None:
    """Return NODESxCHAINS: the devices over which a case is divided; None where it is not."""
    name, _, chains, _ = CASES[label]
    nodes = 1 if name in TRAVELLING or problem.is_asynchronous(name) else 2
    undivided = nodes * chains == 1 or label == "fsgld-given" or "servers" in CASES[label][3]
    return None if undivided else f"{nodes}x{chains}"


def method_of(name: str, more: dict[str, Any]) -> Any:
    """Return a method: an algorithm's example with further arguments."""
    return ALGORITHMS[name].factory(**(ALGORITHMS[name].example | more))


def constructible(label: str) -> bool:
    """Return False if this tree has other arguments: the case is then reported as gone."""
    try:
        method_of(CASES[label][0], CASES[label][3])
    except (TypeError, ValueError):
        return False
    return True


def supported(label: str, engine: str) -> bool:
    """Return True if the case is run on the engine."""
    name = CASES[label][0]
    asynchronous = problem.is_asynchronous(name)
    kind = {"single": "local", "sharded": "local"}.get(engine, engine.rstrip("23"))
    if kind not in ALGORITHMS[name].engines or (kind == "mpi" and asynchronous):
        return False
    plain, single = label in (f"{name}-2", f"{name}-replay"), label in SINGLE
    further = not (plain or single or label == f"{name}-1" or label in EXTRA)
    return {
        "local": True,
        "single": plain,
        "sharded": mesh_of(label) is not None and (plain or single or further),
        "mpi2": plain or single,
        "mpi3": plain or further,
        "flower": plain or single or further,
    }[engine]


def runs(label: str, kind: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield how a case was run and its result, for each way."""
    name, count, chains, more = CASES[label]
    asynchronous = problem.is_asynchronous(name)
    scale = UPDATES if asynchronous else 1
    if count > 1 and not asynchronous and kind in SITES:
        count = SITES[kind]
        if "surrogate" in more:
            more = more | {"surrogate": more["surrogate"][:count]}
    method = method_of(name, more)
    warmup = LEARNING if name in LEARNERS else WARMUP * scale
    lengths = {"warmup": warmup, "chains": chains, "seed": SEED}
    network: Any = None

    def began() -> tuple[Any, dict[str, Any]]:
        if network is not None:
            engine = network.engine()
            sites = consortia.read_sites(network.sites.site, network.names, method, engine)
        else:
            engine = engine_of(label, kind)
            sites = problem.sites(count)
        return (problem.MODEL, sites, method), {"engine": engine, "progress": False}

    if kind == "flower":
        network = flower_sites.Sites(
            folder / f"{label}-fresh", name, count, chains, warmup=warmup, seed=SEED, **more
        )
    arguments, options = began()
    fresh = consortia.sample(*arguments, rounds=FRESH * scale, **lengths, **options)
    yield "fresh", fresh
    if asynchronous and kind == "local":
        log = event_log(3, more.get("servers", 1), more.get("max_staleness"))
        latency = {"latency": consortia.latency.recorded(log)}
        again = method_of(name, more | latency)
        replay = problem.MODEL, problem.sites(count), again
        yield "replayed", consortia.sample(*replay, rounds=FRESH * scale, **lengths, **options)
    if asynchronous and count > 1:
        return
    if kind == "flower":
        network = flower_sites.Sites(
            folder / f"{label}-resumed", name, count, chains, warmup=warmup, seed=SEED, **more
        )
    arguments, options = began()
    store = folder / f"{label}-store"
    lengths |= {"rounds": CUT * scale, "thin": THIN}
    consortia.sample(*arguments, **lengths, store=store, **options)
    if kind == "flower":
        for number in range(count):
            network.restart(number)
    arguments, options = began()
    yield "resumed", consortia.resume(store, *arguments, rounds=LONGER * scale, **options)


def count_keys(label: str) -> Callable[..., None]:
    """Return an initialiser of `SecretNoise` whose keys follow from the case and their order.

    The noise of `private_posterior` is a secret of each site, and no other run has it.
    """
    numbers = itertools.count()

    def begin(noise: SecretNoise, key: bytes | None = None) -> None:
        text = f"{label} {next(numbers)}"
        noise._key, noise._counter = hashlib.sha256(text.encode()).digest(), 0

    return begin


def event_log(workers: int, servers: int, most: int | None) -> list[tuple[int, int, int]]:
    """Return rows (server, worker, version) of unlike workers; staler than ``most`` is dropped."""
    rng, rows = np.random.default_rng(SEED), []
    speeds = np.arange(1, workers + 1) / np.arange(workers + 1).sum()
    for server in range(servers):
        done, held = 0, [0] * workers
        while done < 2 * UPDATES * (WARMUP + FRESH):
            worker = int(rng.choice(workers, p=speeds))
            rows.append((server, worker, held[worker]))
            done += most is None or done - held[worker] <= most
            held[worker] = done
    return rows


def engine_of(label: str, kind: str) -> Any:
    """Return the engine of a case."""
    if kind.startswith("mpi"):
        return problem.engine_of("mpi")
    return problem.engine_of(mesh_of(label)) if kind == "sharded" else consortia.LocalEngine()


def hashes(tree: Any) -> dict[str, str]:
    """Return GROUP/VARIABLE: hash of type, shape and values, for all that was drawn."""
    made = {}
    for group in GROUPS:
        for name, variable in sorted(tree[group].variables.items() if group in tree else ()):
            values = np.ascontiguousarray(variable.values)
            values = values.astype(str) if values.dtype == object else values
            data = f"{values.dtype.str} {values.shape} ".encode() + values.tobytes()
            made[f"{group}/{name}"] = hashlib.sha256(data).hexdigest()[:24]
    return made


def main() -> None:
    """Run the cases of an engine in this process, or as one rank; store their hashes."""
    kind, output, *only = sys.argv[1:]
    folder = Path(output).parent / kind
    if not Path(consortia.__file__).is_relative_to(Path(__file__).parents[2]):
        sys.exit(f"{consortia.__file__} would be run: it is not of the tree of {__file__}")
    warnings.simplefilter("ignore", UserWarning)
    jax.config.update("jax_enable_x64", kind != "single")
    made: dict[str, Any] = {}
    if kind == "public":
        made = {name: text for name, text in signatures().items() if chosen(name, only)}
    for label in CASES if kind != "public" else ():
        if supported(label, kind) and chosen(f"{label}/{kind}/", only):
            if not constructible(label):
                print(f"{label}: its arguments are refused", file=sys.stderr, flush=True)
                continue
            SecretNoise.__init__ = count_keys(label)  # type: ignore[method-assign]
            try:
                results = [(how, tree) for how, tree in runs(label, kind, folder) if tree]
            except Exception as error:
                error.add_note(f"in the case {label} over {kind}")
                raise
            made |= {f"{label}/{kind}/{how}": hashes(tree) for how, tree in results}
    if made:
        Path(output).write_text(json.dumps(made))


def chosen(case: str, only: list[str]) -> bool:
    """Return True if the name of a case holds one of these strings, or there are none."""
    return not only or any(part in case for part in only)


if __name__ == "__main__":
    main()
