"""The identity of a run as plain values: kept with its draws, and compared before it is resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from consortia.algorithms.registry import GONE
from consortia.core import arguments, fingerprints
from consortia.engines.contract import Run
from consortia.engines.panel import Panel
from consortia.errors import InputError, StoreError
from consortia.run.stopping import StopWhen
from consortia.runtime import late
from consortia.store import results
from consortia.store.ending import Ending, RunEnd

CHAINS = 4
"""Independent chains where nobody says how many: R-hat and ESS need some."""

DIFFERENCES_LISTED_MAX = 6
"""Parameters that a refusal lists."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The length and the seed of a run: the scalar arguments of `sample`.

    ``chains`` are those of one server; several servers multiply them.
    """

    rounds: int
    chains: int = CHAINS
    seed: int = 0
    thin: int = 1
    warmup: int = 0


def rounding_of(run: Run, engine: str) -> dict[str, Any]:
    """Return the conditions of a run's rounding: programs, machine, versions."""
    given = run.participation
    participation = {} if given is None else {"participation": fingerprints.of_value(given)}
    layout = {"node_mode": "map" if run.layout.map_nodes else "vmap", "block": run.layout.block}
    return participation | layout | _machine(run, engine)


def rounding_of_answers(panel: Panel, engine: str) -> dict[str, Any]:
    """Return the conditions of a conversation's rounding."""
    layout = {"node_mode": "map" if panel.mapped else "auto", "block": 1}
    return layout | {"evaluation": panel.way} | _machine(panel, engine)


def _machine(run: Run | Panel, engine: str) -> dict[str, Any]:
    versions = results.versions()
    return {
        "engine": engine,
        "processes": max(len(run.where), 1),
        "device": f"{run.devices[0].platform} ({run.devices[0].device_kind})",
        "devices": list(run.parts),
        "processor": fingerprints.of_processor(),
        "x64": late.float_type() == np.float64,
        "versions": {name: versions[name] for name in ("consortia", "jax", "jaxlib", "numpy")},
    }


# --- comparing -----------------------------------------------------------------------------------


def check_same(then: Mapping[str, Any], now: Mapping[str, Any], path: Any, *, exact: bool) -> None:
    """Refuse to resume a run of something else.

    Args:
        then: the specification in the run directory.
        now: that of the objects that were given.
        path: the run directory, for the message.
        exact: refuse other versions, devices and layouts too, with which bits would differ.

    Raises:
        StoreError: they differ; the message says in what, and what to do.
    """
    where = f"{str(path)!r} was made with"
    _check_algorithm(then["algorithm"], now["algorithm"], where)
    # another version of JAX traces the same model to another program, so to another fingerprint
    same_tracing = then["rounding"]["versions"]["jax"] == now["rounding"]["versions"]["jax"]
    if then["model"]["dimension"] != now["model"]["dimension"]:
        raise StoreError(
            f"{where} a model of {then['model']['dimension']} parameters, this one has "
            f"{now['model']['dimension']}: give the model of that run."
        )
    if then["data"] != now["data"]:
        raise StoreError(
            f"{where} other data ({then['data']['rows']} rows at {then['data']['sites']} sites; "
            f"these are {now['data']['rows']} at {now['data']['sites']}): give the data of that "
            "run, sites in the same order."
        )
    if then["rounding"]["x64"] != now["rounding"]["x64"]:
        bits = "64" if then["rounding"]["x64"] else "32"
        value = "1" if then["rounding"]["x64"] else "0"
        raise StoreError(
            f"{where} {bits}-bit numbers: set JAX_ENABLE_X64={value} before the start."
        )
    if same_tracing and then["model"]["fingerprint"] != now["model"]["fingerprint"]:
        raise StoreError(
            f"{where} another model: its densities, or constants in them, are not the same. Give "
            "the model of that run."
        )
    if exact:
        _check_rounding(then["rounding"], now["rounding"], where)


def _check_algorithm(then: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    if then["name"] != now["name"]:
        advice = GONE.get(then["name"], "give that algorithm")
        raise StoreError(f"{where} the algorithm {then['name']}, not {now['name']}: {advice}.")
    if then["fingerprint"] == now["fingerprint"]:
        return
    before, after = then["parameters"], now["parameters"]
    changed = [
        f"{name} {_short(before.get(name))}, not {_short(after.get(name))}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    differing = (
        "; ".join(changed[:DIFFERENCES_LISTED_MAX]) or "another function or array among them"
    )
    raise StoreError(
        f"{where} other parameters of {then['name']} ({differing}): give that algorithm."
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_rounding(then: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    changed = []
    for name in then:
        if name == "versions":
            changed += [
                f"{package} {version}, not {now[name].get(package)}"
                for package, version in then[name].items()
                if now[name].get(package) != version
            ]
        elif name == "devices" and then[name] != now.get(name):
            changed.append(f"{_parts(then[name])}, not {_parts(now.get(name, [1, 1]))}")
        elif now.get(name) != then[name]:
            changed.append(f"{name} {then[name]}, not {now.get(name)}")
    if changed:
        raise StoreError(
            f"{where} {'; '.join(changed)}: rounding would differ from that of an uninterrupted "
            "run. Continue there, or give exact=False (the command: --inexact) for the same chain "
            "up to rounding."
        )


def _parts(parts: Any) -> str:
    nodes, chains = parts
    if nodes == chains == 1:
        return "one device"
    return f"{nodes * chains} devices (nodes in {nodes}, chains in {chains} parts)"


# --- extending -----------------------------------------------------------------------------------


def extended(
    specification: Mapping[str, Any],
    rounds: int | None,
    *,
    done: int,
    warmup: int,
    ended: Ending | None,
    stop: StopWhen | None,
) -> Request:
    """Return the request of a run that is resumed, perhaps to another number of rounds.

    Raises:
        InputError: fewer rounds than are done; or a stopping rule that ended the run already.
    """
    request = Request(**specification["request"])
    if rounds is None or rounds == request.rounds:
        return request
    rounds = arguments.whole("rounds", rounds, 1)
    if warmup + rounds < done:
        raise InputError(
            f"rounds is {rounds}, but {max(done - warmup, 0)} are done: give that number or more."
        ).at("rounds")
    if ended is not None and ended.kind is RunEnd.STOPPING_RULE and stop is not None:
        raise InputError(
            f"the stopping rule ended this run ({ended.text}), and would end a longer one there "
            "too: give stop=None (the command: --no-stop) to continue without it."
        )
    return dataclasses.replace(request, rounds=rounds)


def check_extensible(before: Mapping[str, Any], request: Request, run: Run) -> None:
    """Refuse another length where it would change the target of the rounds that are done.

    Raises:
        InputError: sites are weighted by their shares of the updates of all rounds.
    """
    mailbox = run.program.mailbox
    if request.rounds == before["request"]["rounds"] or mailbox is None:
        return
    if len(run.names) > 1 and mailbox.by_share and mailbox.shares is None:
        raise InputError(
            "rounds: this run weights each site by its share of the updates of all rounds, so with "
            "another number of rounds its draws would be of another density. Start a new run of "
            "that length, declare the sites' shares, or take aggregate='latest'."
        ).at("rounds")
