"""The plan of a run, what will run where, and its record."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from consortia.core.contract import Method, Plan, ServerBased
from consortia.core.target import Target
from consortia.core.words import size
from consortia.data.sites import Sites
from consortia.engines.contract import Run
from consortia.engines.exchanges import describe
from consortia.engines.panel import Panel
from consortia.engines.phases import Carry
from consortia.run import checks
from consortia.run.loop import RunLength
from consortia.run.quadrature import bias_of
from consortia.runtime import late
from consortia.runtime.late import jax
from consortia.store import results

MUCH = 10**8
"""Bytes of memory from which on a plan says what they are for."""


def plan_of(
    run: Run,
    carry: Carry,
    sites: Sites,
    method: Method,
    target: Target,
    engine: str,
    length: RunLength,
    most_kept: int | None = None,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Return the plan of a run that is ready to start, with at most ``most_kept`` draws a chain."""
    layout, chains = run.layout, run.layout.chains
    exchanges, phases = run.traffic(carry), run.program.algorithm.phases
    repeats = [phase.repeat for phase in phases]
    rounds, up, down = (int(np.dot(repeats, part)) for part in zip(*exchanges, strict=True))
    memory = run.memory(carry)
    draws = length.rounds * run.draws_per_iteration // length.thin
    draws = draws if most_kept is None else min(draws, most_kept)
    kept = draws * chains * target.dimension * target.dtype.itemsize
    used = run.devices
    order = "one after the other" if layout.map_nodes else "batched"
    varies = any(phase.repeats is not None for phase in phases)
    most = "at most " if varies else ""
    lines = [
        ("algorithm", described(method)),
        ("bias", bias_of(method.claims.bias, target)),
        ("nodes", f"{rows_of(np.asarray(sites.sizes))}; run {order}"),
        ("chains", f"{chains}, batched" if chains > 1 else "1"),
        ("parameters", f"{target.dimension}, {target.dtype}"),
        ("rounds", _rounds(length)),
        ("engine", f"{engine}, devices: {devices_of(used)}"),
        ("memory", f"{_memory(memory)}; kept draws {size(kept)}"),
    ]
    network = f"{most}{rounds} message{'s' if rounds != 1 else ''} each way a round,"
    lines.append(("network", f"{network} {size(up)} up and {size(down)} down"))
    if len(used) > 1:
        lines.append(("devices", _division(run.parts, len(sites), chains)))
    lines += [("graph", text) for text in _graphs(run)]
    lines += [("process", text) for text in run.where]
    expected = run.expected(rounds * length.total)
    if expected is not None:
        lines.append(("wall time", expected))
    notes = (*notes, *notes_on(sites))
    return Plan(tuple(lines), notes, up, down, rounds)


def notes_on(sites: Sites) -> tuple[str, ...]:
    """Return notes on the data for the user."""
    notes = tuple(checks.precision_notes(sites))
    if sites.padding_factor > 4:
        notes += (
            f"unequal sites are padded to the largest: the data take {sites.padding_factor:.1f} "
            "times their size, and so do full-batch gradients.",
        )
    return notes


def rows_of(sizes: np.ndarray) -> str:
    """Describe the number of sites and of their rows."""
    rows = f"{sizes.min()} rows each"
    if sizes.min() != sizes.max():
        rows = f"{sizes.min()} to {sizes.max()} rows, {sizes.sum()} in all"
    return f"{len(sizes)} sites, {rows}"


def devices_of(used: list[Any]) -> str:
    """Describe the devices: those in use, those present, and their kind."""
    count = len(jax.devices()) if late.is_loaded() else len(used)
    return f"{len(used)} of {count} ({used[0].device_kind}, {used[0].platform})"


def _graphs(run: Run) -> list[str]:
    """Describe each gossip exchange of an iteration, each once."""
    phases = run.program.algorithm.phases
    texts = [describe(phase.exchange, run.layout.nodes) for phase in phases]
    return list(dict.fromkeys(text for text in texts if text is not None))


def _division(parts: tuple[int, int], nodes: int, chains: int) -> str:
    """Show the division of a run over several devices."""
    counts = [count // part for count, part in zip((nodes, chains), parts, strict=True)]
    text = (
        f"each runs {counts[0]} of {nodes} site{'s' * (nodes > 1)} "
        f"and {counts[1]} of {chains} chain{'s' * (chains > 1)}"
    )
    if parts[0] == 1:
        return f"{text}; each holds all data"
    return f"{text}; messages cross between {parts[0]} devices"


def _rounds(length: RunLength) -> str:
    text = f"{length.rounds}"
    if length.warmup:
        text += f" after {length.warmup} of warm-up"
    return text + (f", every {length.thin}th draw kept" if length.thin > 1 else ", each draw kept")


def _memory(parts: Mapping[str, int]) -> str:
    """Estimate the memory of a run; its parts only where that is much."""
    whole = sum(parts.values())
    if whole < MUCH:
        return f"{size(whole)} while it runs"
    return ", ".join(f"{name} {size(value)}" for name, value in parts.items())


def record_of(
    run: Run, sites: Sites, method: Method, engine: str, length: RunLength, seed: int
) -> dict[str, Any]:
    """Return the record of how a run is made."""
    record = common_record(run, sites, method, engine, run.layout.chains, seed) | {
        "rounds": length.rounds,
        "warmup": length.warmup,
        "thin": length.thin,
        "node_mode": "map" if run.layout.map_nodes else "vmap",
        "block": run.layout.block,
        "graph": "; ".join(_graphs(run)) or "star",
    }
    return record | (run.arrivals.record() if run.arrivals is not None else {})


def described(method: Method) -> str:
    """Describe a method and its posterior."""
    if method.optimises:
        return f"{method.title}: finds a mode, and samples nothing"
    return f"{method.title}: samples {method.claims.samples}"


def common_record(
    run: Run | Panel, sites: Sites, method: Method, engine: str, chains: int, seed: int
) -> dict[str, Any]:
    """Return the record of what runs where, of loops and of conversations."""
    return ({"optimises": True} if method.optimises else {}) | {
        "algorithm": method.name,
        "title": method.title,
        "parameters": method.parameters(),
        "samples": "nothing: it finds a mode" if method.optimises else method.claims.samples,
        "bias": method.claims.bias,
        "seed": seed,
        "chains": chains,
        "engine": engine,
        "devices": [f"{device.platform}:{device.id}" for device in run.devices],
        "x64": late.float_type() == np.float64,
        "participation": "full",
        "staleness": 0,
        "processes": run.where,
        "servers_alike": not isinstance(method, ServerBased) or method.servers_alike,
        "sites": list(sites.names),
        "site_rows": [int(size) for size in sites.sizes],
        "versions": results.versions(),
    }


def measured(run: Run, method: Method, target: Target, carry: Carry, done: int) -> dict[str, Any]:
    """Describe a method's measurements at the end of a run, where the chains ended.

    Only where the engine has all sites in this process; elsewhere it would cost rounds.
    """
    gradients = run.gradients(target)
    if done == 0 or gradients is None or not isinstance(method, ServerBased):
        return {}
    shares = None
    if run.arrivals is not None and run.layout.nodes > 1:
        shares = run.arrivals.shares
    return method.measure(gradients, shares, partial(run.positions, carry), done - 1)


def cost_of(
    plan: Plan,
    method: Method,
    target: Target,
    sites: Sites,
    chains: int,
    done: int,
    full: float,
) -> dict[str, Any]:
    """Return the cost of ``done`` iterations of all chains, ``full`` of the longest ones."""
    rounds, up, down = (
        full * each for each in (plan.communication_rounds, plan.bytes_up, plan.bytes_down)
    )
    cost = method.cost(np.asarray(sites.sizes, np.int64), target.dimension)
    return {
        "iterations_run": done,
        "communication_rounds": round(rounds),
        "bytes_up": round(up),
        "bytes_down": round(down),
        "bytes_sent": round(up + down),
        "gradients": round(cost.gradients * chains * full),
        "row_gradients": round(cost.row_gradients * chains * full),
    }
