"""Appendix I, figures 6 to 11: more numbers of workers, servers by time, workers of a server.

The appendix prints curves and no numbers. Here a9a, and LeNet and Cifar10-quick from the scale
``small`` on; settings are those of figures 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from experiments import records
from experiments.claims import Finding, over_pairs, untuned
from experiments.stale_gradients import cifar, images, lenet, logistic, workers

WORKERS = tuple(range(1, 10))
OF_A_SERVER = (1, 2, 4, 6)
NETWORKS = {"lenet": lenet, "cifar": cifar}
QUARTER = (0.25,)
"""The networks' rate, in parts of the solver's own."""


class Scale(NamedTuple):
    """Of a9a, and of each network, which has its images too."""

    a9a: workers.Scale
    networks: Mapping[str, tuple[images.Size, workers.Scale]] = {}


SCALES = {
    "quick": Scale(workers.Scale(20, 4, 1, workers=(1, 4), servers=(1, 3))),
    "small": Scale(
        workers.Scale(100, 20, 8, workers=WORKERS),
        {
            "lenet": (
                images.Size(1000, 1000),
                workers.Scale(20, 10, 1, QUARTER, servers=(1, 3, 5)),
            ),
            "cifar": (images.Size(1000, 500), workers.Scale(20, 10, 1, QUARTER, servers=(1, 3))),
        },
    ),
    "full": Scale(
        workers.Scale(1000, 50, 10, workers=WORKERS),
        {
            "lenet": (images.Size(None, None), workers.Scale(10_000, 50, 3, QUARTER)),
            "cifar": (images.Size(None, None), workers.Scale(4000, 50, 3, QUARTER)),
        },
    ),
}


def of_a_server(problem: workers.Problem, scale: workers.Scale, seed: int) -> dict[str, Any]:
    """Return the comparison of servers, and their time, by the workers of each."""
    most, factor = max(scale.servers), scale.factors[-1]
    found = {}
    for number in OF_A_SERVER:
        if problem.together:
            ran = workers.run(problem, scale, factor, number, seed, most)
            values = ran["values"]
        else:
            each = [workers.run(problem, scale, factor, number, seed + s) for s in range(most)]
            ran, values = each[0], np.concatenate([one["values"] for one in each])
        entries = workers.compare_servers(values, scale.servers)
        found[str(number)] = {"time": ran["time"], "servers": entries}
        last = entries[-1]
        records.say(
            f"  {number} workers a server: loss {entries[0]['loss_of_the_average'][-1]:.4f} with 1 "
            f"server, {last['loss_of_the_average'][-1]:.4f} with {last['servers']}"
        )
    return found


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return the numbers of workers on a9a, and the workers of a server on both problems."""
    size = SCALES[scale]
    own = replace(size.a9a, servers=(1,))
    results = {"workers": workers.study(logistic.problem(), own, seed)["rates"][0]["workers"]}
    cases: dict[str, tuple[Callable[[], workers.Problem], workers.Scale]] = {
        "a9a": (logistic.problem, size.a9a)
    }
    for name, (chosen, lengths) in size.networks.items():
        cases[name] = (partial(_network, name, chosen, seed), lengths)
    results["servers"] = {}
    for name, (problem, lengths) in cases.items():
        records.say(name)
        results["servers"][name] = of_a_server(problem(), lengths, seed)
        results.setdefault("places", {})[name] = (
            lengths.iterations // lengths.points * np.arange(1, lengths.points + 1)
        )
    return results


def _network(name: str, size: images.Size, seed: int) -> workers.Problem:
    network = NETWORKS[name]
    return network.problem(images.load(*network.IMAGES, size, seed))


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Test whether more workers are better, and measure the gain of servers by workers of each."""
    first, last = results["workers"][0], results["workers"][-1]
    ends = [np.array(entry["loss"], float)[:, -1] for entry in (first, last)]
    paired = over_pairs(list(ends[1] - ends[0]))
    found = {
        "app-i-workers": replace(
            paired,
            shown=f"{paired.text}: {first['final'][0]:.4f} with 1 worker, {last['final'][0]:.4f} "
            f"with {last['workers']}",
            untuned=untuned("rate", [logistic.RATE], logistic.RATE),
        )
    }
    for name, by_workers in results["servers"].items():
        shown, gains = [], []
        for number, part in by_workers.items():
            alone, most = (part["servers"][i]["loss_of_the_average"][-1] for i in (0, -1))
            gains.append(100 * (alone - most) / alone)
            shown.append(f"{number}: {gains[-1]:.2g} %")
        found[f"app-i-servers-{name}"] = Finding(
            float(min(gains)), shown="by workers of a server " + ", ".join(shown)
        )
    return found


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw figure 6, figure 7 and the servers' losses by the workers of each, for each problem."""
    for entry in results["workers"]:
        loss = np.array(entry["loss"], float).mean(axis=0)
        style = "-" if entry["workers"] < 9 else "--"  # the ninth has the colour of the first
        axes[0].plot(entry["iterations"], loss, style, lw=0.8, label=f"W = {entry['workers']}")
    axes[0].set(xlabel="iterations a worker", ylabel="test loss")
    axes[0].legend(ncols=2)
    two = results["servers"]["a9a"]["2"]
    for entry in two["servers"]:
        axes[1].semilogy(two["time"], entry["loss_of_the_average"], lw=0.8,
                         label=f"S = {entry['servers']}")  # fmt: skip
    axes[1].set(xlabel="simulated time, two workers a server")
    axes[1].legend()
    panels = [
        (axes[2 + 3 * i + j], name, number)
        for i, name in enumerate(results["servers"])
        for j, number in enumerate(("1", "4", "6"))
    ]
    for axis, name, number in panels:
        for entry in results["servers"][name][number]["servers"]:
            axis.semilogy(results["places"][name], entry["loss_of_the_average"], lw=0.8,
                          label=f"S = {entry['servers']}")  # fmt: skip
        axis.set(xlabel="iterations a worker", ylabel="loss of the averaged predictions")
        axis.legend()
    for axis in axes[: 2 + len(panels)]:
        workers.logarithmic(axis)
