r"""Section 5.1, figure 1, where clients are averaged after every T leapfrog steps, not iterations.

Algorithm 3 averages after T iterations of K leapfrog steps, and figure 2 comes out so. Section 5
says "every T local leapfrog step": so read, clients meet within a trajectory. Positions and momenta
are averaged then, and all take a new common momentum after K leapfrog steps. An average after every
TK leapfrog steps is algorithm 3 again.

The law is that of Gaussian clients around the mode (`experiments.fa_hmc.marginal_error`), by their
answers to the momenta of the last trajectories: older ones are forgotten. Gradient noise is added
as if all clients had the posterior's curvature, which they nearly have on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from experiments import records
from experiments.claims import Finding
from experiments.drawing import LAW
from experiments.fa_hmc import logistic
from experiments.fa_hmc.marginal_error import EPSILONS, NOISE, Clients, _answers, _distance

STEP, LEAPFROG_STEPS, EVERY = 0.01, 100, 10
"""η; K of panel (c), and for the others what ⌊π/(3η)⌋ = 104 is in whole rounds; their T."""
MEMORY = 6
"""Trajectories of a radian; of a momentum before them less than a thirtieth is left."""
SETTLED = 40
"""Trajectories until the mean has settled."""
PUBLISHED_BEST = 70
LEVELS = (np.arange(200) + 0.5) / 200

# d and n of panels (a) to (c), T of panel (c) beside 1
SCALES = {
    "quick": (60, (10, 50, 70, 100)),
    "small": (300, (5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)),
    "full": (1000, (5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)),
}


class Settled(NamedTuple):
    """The law of the averages in the long run, by coordinate.

    Attributes:
        shift: distance of the mean from the posterior's, (d,).
        sd: standard deviation, (d,).
        target: the posterior's, (d,).
    """

    shift: np.ndarray
    sd: np.ndarray
    target: np.ndarray

    def error(self, draws: float = math.inf) -> float:
        """Return the marginal error to expect of so many independent draws.

        The quantile u of n draws is nearly normal, with variance u(1 − u)/(n φ²) in units of sd².
        """
        if math.isinf(draws):
            return float(_distance(self.shift, self.sd - self.target).mean())
        score = norm.ppf(LEVELS)
        wide = np.sqrt(LEVELS * (1 - LEVELS) / draws) / norm.pdf(score)
        centre = self.shift[:, None] + (self.sd - self.target)[:, None] * score
        return float(_distance(centre, self.sd[:, None] * wide).mean())

    def draws_to(self, error: float) -> float:
        """Return the independent draws that come down to an error; infinity if none do."""
        if self.error() >= error:
            return math.inf
        found = brentq(lambda log: self.error(math.exp(log)) - error, 0, 40)
        return math.exp(float(found))


def averages(
    clients: Clients,
    kick: np.ndarray,
    leapfrogs: int,
    every: int,
    begin: int,
    end: int,
    centres: np.ndarray | None = None,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each average of the clients, after the leapfrog steps before it.

    Args:
        clients: around the posterior's mode, where all of them begin.
        kick: the momentum of the first trajectory, (d, columns); that of the others is 0.
        leapfrogs: K, steps of a trajectory.
        every: T, steps between averages.
        begin: steps before the first trajectory, a multiple of K.
        end: steps at the end.
        centres: the clients' own modes, (N, d, 1); without them at 0: answers to the momentum.
    """
    kind = kick.dtype
    angle = np.arccos(1 - STEP**2 * np.append(clients.values, 1.0) / 2)
    owned = [np.flatnonzero(clients.owner == client) for client in range(clients.count)]
    bases = [clients.vectors[:, own].astype(kind) for own in owned]
    middles = np.zeros((clients.count, 1, 1), kind) if centres is None else centres
    momenta, places, at = [kick] * clients.count, [np.zeros_like(kick)] * clients.count, begin
    while at < end:
        ahead = min(every - at % every, leapfrogs - at % leapfrogs)
        stay, drift, pull = (
            part.astype(kind)
            for part in (
                np.cos(ahead * angle),
                STEP * np.sin(ahead * angle) / np.sin(angle),
                -np.sin(angle) * np.sin(ahead * angle) / STEP,
            )
        )
        for client, (own, basis) in enumerate(zip(owned, bases, strict=True)):
            middle = middles[client]
            pair = basis, own, places[client] - middle, momenta[client]
            places[client] = _joined(stay, drift, *pair) + middle
            momenta[client] = _joined(pull, stay, *pair)
        at += ahead
        if at % every == 0:
            average = np.mean(places, axis=0)
            places = [average] * clients.count
            momenta = [np.mean(momenta, axis=0)] * clients.count
            yield at, average
        if at % leapfrogs == 0:
            momenta = [np.zeros_like(kick)] * clients.count


def _joined(
    one: np.ndarray,
    other: np.ndarray,
    basis: np.ndarray,
    own: np.ndarray,
    place: np.ndarray,
    momentum: np.ndarray,
) -> np.ndarray:
    """Return g(L) place + h(L) momentum from g and h at a client's eigenvalues, and at 1 last."""
    along = (one[own] - one[-1])[:, None] * (basis.T @ place)
    along += (other[own] - other[-1])[:, None] * (basis.T @ momentum)
    return one[-1] * place + other[-1] * momentum + basis @ along


def settled(clients: Clients, leapfrogs: int, every: int) -> Settled:
    """Return the law of the averages, of all their places along the trajectories together."""
    period = math.lcm(leapfrogs, every)
    squares: dict[int, Any] = {}
    kick = np.eye(len(clients.vectors), dtype=np.float32)
    for begin in range(0, period, leapfrogs):  # the momenta of other periods are answered alike
        last = begin + MEMORY * leapfrogs
        for at, average in averages(clients, kick, leapfrogs, every, begin, last):
            phase = at % period
            squares[phase] = squares.get(phase, 0.0) + np.einsum("ij,ij->i", average, average)
    inverse, centres = 1 / np.append(clients.values, 1.0), []
    for client, slope in enumerate(clients.pulls):
        own = np.flatnonzero(clients.owner == client)
        column = -slope[:, None]
        nothing = np.zeros_like(inverse)
        centres.append(_joined(inverse, nothing, clients.vectors[:, own], own, column, column))
    still = np.zeros((len(clients.vectors), 1))
    long = SETTLED * leapfrogs + period
    path = averages(clients, still, leapfrogs, every, 0, long, np.stack(centres))
    means = [average[:, 0] for at, average in path if at > long - period]
    variance = np.mean(list(squares.values()), axis=0) + np.var(means, axis=0)
    return Settled(np.mean(means, axis=0), np.sqrt(variance), np.sqrt(clients.variance))


def noisy(law: Settled, leapfrogs: int, clients: int) -> Settled:
    """Return the law with noise of variance 100 in each gradient, of clients that are alike."""
    curvature = 1 / law.target**2
    forced, kicked, inner = _answers(curvature, STEP, leapfrogs)
    added = STEP**2 / 4 * NOISE / clients * (kicked**2 + 2 * inner)
    added = added / (1 - (1 - curvature * forced) ** 2)
    return law._replace(sd=np.sqrt(law.sd**2 + added))


def study(scale: str, seed: int) -> dict[str, Any]:
    """Return ME at T = 10 by both readings (a, b, d), and ME and rounds by T (c)."""
    dimension, local = SCALES[scale]
    small, large = (_clients(*size, seed) for size in ((10, 1000), (dimension, dimension)))
    at_ten = [
        records.part(f"d{len(clients.vectors)}-T{EVERY}", partial(both_readings, clients))
        for clients in (large, small)
    ]
    by_local = []
    for every in (1, *local):
        found = records.part(f"d{dimension}-T{every}-noise", partial(with_noise, large, every))
        by_local.append(found)
        records.say(f"T = {every}: ME {found['error']:.4f}, rounds {found['rounds']}")
    return {"at_ten": at_ten, "local": by_local}


def both_readings(clients: Clients) -> dict[str, Any]:
    """Return ME at T = 10 leapfrog steps and iterations, without noise and with it."""
    exact = settled(clients, LEAPFROG_STEPS, EVERY)
    both = exact, noisy(exact, LEAPFROG_STEPS, clients.count)
    entry = {
        "dimension": len(clients.vectors),
        "steps": [law.error() for law in both],
        "iterations": clients.marginal_errors(STEP, LEAPFROG_STEPS, EVERY, (0.0, NOISE)),
    }
    records.say(f"T = {EVERY}: {entry}")
    return entry


def with_noise(clients: Clients, every: int) -> dict[str, Any]:
    """Return ME with noisy gradients at T leapfrog steps, and rounds to each ε."""
    sd = np.sqrt(clients.variance)
    # T = 1: all clients meet after each leapfrog step
    law = settled(clients, LEAPFROG_STEPS, every) if every > 1 else Settled(0 * sd, sd, sd)
    law = noisy(law, LEAPFROG_STEPS, clients.count)
    rounds = [law.draws_to(epsilon) * LEAPFROG_STEPS / every for epsilon in EPSILONS]
    return {"local_steps": every, "error": law.error(), "rounds": rounds}


def _clients(dimension: int, rows: int, seed: int) -> Clients:
    data = logistic.rows(dimension, rows, seed + logistic.EVALUATION)
    x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
    return Clients.of(x, y, logistic.CLIENTS)


def findings(results: dict[str, Any]) -> dict[str, Finding]:
    """Return the findings of figure 1 so read; all of them by the law."""
    (exact, noise), (_, ten) = (entry["steps"] for entry in results["at_ten"])
    local = {entry["local_steps"]: entry for entry in results["local"]}
    reached = max(entry["error"] for count, entry in local.items() if count <= PUBLISHED_BEST)
    rounds = {t: [math.inf if r is None else r for r in e["rounds"]] for t, e in local.items()}
    best = min(rounds, key=lambda count: rounds[count][0])
    over = [
        hundred / most for hundred, most in zip(rounds[100], rounds[PUBLISHED_BEST], strict=True)
    ]
    told = ", ".join(f"T = {count}: {one[0]:.3g}" for count, one in rounds.items())
    found = {
        "sync-a": Finding(exact),
        "sync-b": Finding(noise),
        "sync-reach": Finding(reached),
        "sync-best": Finding(best, shown=f"T = {best}; rounds at {told}"),
        "sync-gain": Finding(rounds[1][0] / rounds[best][0]),
        "sync-hundred": Finding(
            over[0] / over[-1], shown=f"{over[0]:.2f} at ε = .1012, {over[-1]:.2f} at ε = .11"
        ),
        "sync-d": Finding(ten),
    }
    return {name: replace(one, law=one.value) for name, one in found.items()}


def draw(results: dict[str, Any], axes: Any) -> None:
    """Draw ME at T = 10 by both readings, and ME and rounds against T."""
    (exact, noise), (_, ten) = (entry["steps"] for entry in results["at_ten"])
    names = ["(a) exact", "(b) noise", "(d) d = 10"]
    (exact_a, noise_a), (_, ten_a) = (entry["iterations"] for entry in results["at_ten"])
    axes[0].plot(names, [exact, noise, ten], "s", ms=4, color="black", label="T leapfrog steps")
    axes[0].plot(names, [exact_a, noise_a, ten_a], "o", ms=4, color="C1", label="T iterations")
    axes[0].set(ylabel="ME in the long run, K = 100, η = .01", yscale="log", xlim=(-0.5, 2.5))
    axes[0].legend()
    times = [entry["local_steps"] for entry in results["local"]]
    axes[1].plot(times, [entry["error"] for entry in results["local"]], "s-", ms=3, **LAW)
    axes[1].axhline(EPSILONS[0], color="tab:red", lw=0.7, ls=":")
    axes[1].text(times[0], EPSILONS[0], "paper: ε around .101 is reached", va="bottom",
                 fontsize=5.5, color="tab:red")  # fmt: skip
    axes[1].set(xlabel="local leapfrog steps T", ylabel="ME in the long run", ylim=(0, 0.13))
    for place, epsilon in enumerate(EPSILONS):
        values = [math.nan if e["rounds"][place] is None else e["rounds"][place]
                  for e in results["local"]]  # fmt: skip
        axes[2].semilogy(times, values, "o-", ms=3, lw=0.8, label=f"ε = {epsilon:g}")
    axes[2].axvline(PUBLISHED_BEST, color="tab:red", lw=0.7, ls=":")
    axes[2].text(PUBLISHED_BEST - 1, 0.7, "paper: T = 70 is best", fontsize=5.5, color="tab:red",
                 ha="right", va="top", transform=axes[2].get_xaxis_transform())  # fmt: skip
    axes[2].set(xlabel="local leapfrog steps T", ylabel="rounds of independent trajectories")
    axes[2].legend()
