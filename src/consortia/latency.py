r"""The duration of a worker's task in simulated asynchrony; every model has mean 1 by default.

A duration is a function of (seed, server, worker, index of the task) only: the 64-bit words of
task k of a worker are block k of a Philox generator whose key is the seed and the worker. Nothing
is carried from one task to the next, so that traces of unlike length agree where they overlap.

Models compare and hash by value. ``mean`` is one number, or one for each worker of a server (the
same at every server), which is how a worker is made slow for good.
``server_cost`` is the time that a server takes for one update, during which it serves nobody else.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

import numpy as np

from consortia.core import arguments
from consortia.errors import InputError, wrong

Array = np.ndarray

__all__ = [
    "Constant",
    "Exponential",
    "Latency",
    "LogNormal",
    "Recorded",
    "Straggler",
    "constant",
    "exponential",
    "lognormal",
    "recorded",
    "straggler",
]

MODELS = ("constant", "lognormal", "exponential", "straggler")
"""The functions of this module that make a model from numbers, as a study file may name them."""


class Latency(Protocol):
    """A law of durations, as the simulation of events needs it.

    Attributes:
        server_cost: time that a server takes for one update.

    Example:
        >>> isinstance(constant(2.0).server_cost, float)
        True
    """

    @property
    def server_cost(self) -> float:
        """Time that a server takes for one update."""

    def check(self, workers: int) -> None:
        """Refuse a number of workers per server that the model is not for."""

    def durations(self, seed: int, server: int, worker: int, first: int, count: int) -> Array:
        """Return durations of ``count`` tasks of a worker from index ``first``, (count,)."""


@dataclass(frozen=True)
class _Model(metaclass=arguments.Hinted):
    """Means by worker, and the server's cost."""

    mean: Any = 1.0
    _: KW_ONLY
    server_cost: float = 0.0

    def __post_init__(self) -> None:
        cost = arguments.number("server_cost", self.server_cost, 0.0, math.inf)
        arguments.keep(self, mean=_means(self.mean), server_cost=cost)

    def check(self, workers: int) -> None:
        """Refuse means for another number of workers."""
        if isinstance(self.mean, tuple) and len(self.mean) != workers:
            raise InputError(
                f"latency: mean has {len(self.mean)} values for {workers} workers per server: "
                "give one number, or one for each."
            ).at("latency")

    def _mean(self, worker: int) -> float:
        return self.mean[worker] if isinstance(self.mean, tuple) else self.mean


@dataclass(frozen=True)
class Constant(_Model):
    """Equal durations of all tasks of a worker, also called `constant`; workers then take turns.

    Args:
        mean: duration, one number or one for each worker of a server.
        server_cost: time of a server for one update.

    Raises:
        InputError: a duration is not positive, or the cost is negative.

    Example:
        >>> constant(2.0)
        Constant(mean=2.0, server_cost=0.0)
        >>> constant((1.0, 5.0)).durations(0, 0, 1, 0, 2).tolist()
        [5.0, 5.0]
    """

    def durations(self, seed: int, server: int, worker: int, first: int, count: int) -> Array:
        """Return the mean, ``count`` times."""
        return np.full(count, self._mean(worker))


@dataclass(frozen=True)
class LogNormal(_Model):
    """Log-normal durations, also called `lognormal`.

    Args:
        mean: mean duration, one number or one for each worker of a server.
        spread: σ, the standard deviation of the logarithm of a duration.
        server_cost: time of a server for one update.

    Raises:
        InputError: a mean is not positive, or another argument is negative.

    Example:
        >>> lognormal(spread=0.0).durations(0, 0, 0, 0, 2).tolist()
        [1.0, 1.0]
    """

    _: KW_ONLY
    spread: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(self, spread=arguments.number("spread", self.spread, 0, math.inf))

    def durations(self, seed: int, server: int, worker: int, first: int, count: int) -> Array:
        """Return mean · exp(σz − σ²/2), z standard normal by the method of Box and Muller."""
        radius, angle = uniforms(seed, server, worker, first, count)
        # 1 - u lies in (0, 1], so that its logarithm is finite.
        normal = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * math.pi * angle)
        return self._mean(worker) * np.exp(self.spread * normal - self.spread**2 / 2)


@dataclass(frozen=True)
class Exponential(_Model):
    """Exponential durations, also called `exponential`; the staleness they cause has no bound.

    Args:
        mean: mean duration, one number or one for each worker of a server.
        server_cost: time of a server for one update.

    Raises:
        InputError: a mean is not positive, or the cost is negative.

    Example:
        >>> exponential(2.0).durations(0, 0, 0, 0, 3).shape
        (3,)
    """

    def durations(self, seed: int, server: int, worker: int, first: int, count: int) -> Array:
        """Return −mean · log(1 − u)."""
        return -self._mean(worker) * np.log1p(-uniforms(seed, server, worker, first, count)[0])


@dataclass(frozen=True)
class Straggler(_Model):
    """Equal durations, but of random tasks that take many times as long; called `straggler`.

    Args:
        mean: mean duration with the slow tasks included, one number or one for each worker.
        slowdown: how many times as long a slow task takes, at least 1.
        probability: that a task is slow.
        server_cost: time of a server for one update.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> straggler(slowdown=5.0).probability
        0.1
        >>> straggler(probability=0.0).durations(0, 0, 0, 0, 2).tolist()
        [1.0, 1.0]
    """

    _: KW_ONLY
    slowdown: float = 10.0
    probability: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(
            self,
            slowdown=arguments.number("slowdown", self.slowdown, 1, math.inf),
            probability=arguments.number("probability", self.probability, 0, 1),
        )

    def durations(self, seed: int, server: int, worker: int, first: int, count: int) -> Array:
        """Return a base duration, ``slowdown`` times as long in a fraction of the tasks."""
        slow = uniforms(seed, server, worker, first, count)[0] < self.probability
        base = self._mean(worker) / (1 + self.probability * (self.slowdown - 1))
        return np.where(slow, base * self.slowdown, base)


constant, lognormal, exponential, straggler = Constant, LogNormal, Exponential, Straggler


@dataclass(frozen=True)
class Recorded:
    """The order of events of a run that has happened; see `recorded`.

    Attributes:
        servers: of each event.
        workers: of each event, the index within its server.
        versions: updates that the server had done when the worker fetched its parameters.
        times: when the server answered.

    Example:
        >>> recorded([(0, 0), (1, 0)]).summary()
        {'kind': 'Recorded', 'events': 2}
    """

    servers: tuple[int, ...]
    workers: tuple[int, ...]
    versions: tuple[int, ...]
    times: tuple[float, ...]

    @property
    def server_cost(self) -> float:
        """Nothing is added to what was recorded."""
        return 0.0

    def updates(self, max_staleness: int | None) -> int:
        """Return the updates of the first server, without gradients that are too stale."""
        done = 0
        for server, version in zip(self.servers, self.versions, strict=True):
            kept = max_staleness is None or done - version <= max_staleness
            done += server == 0 and kept
        return done

    def check(self, workers: int) -> None:
        """Refuse events of workers that do not exist."""
        for event, worker in enumerate(self.workers):
            if not 0 <= worker < workers:
                raise InputError(
                    f"recorded trace: event {event} names worker {worker}, but there are {workers} "
                    f"workers per server (0 to {workers - 1})."
                ).at("latency")

    def durations(self, seed: int, server: int, worker: int, first: int, count: int) -> Array:
        """Refuse: a recorded trace holds an order of events, not durations."""
        raise InputError("a recorded trace is replayed unchanged; it has no law of durations.")

    def summary(self) -> dict[str, Any]:
        """Return a short description for the record of a run."""
        return {"kind": "Recorded", "events": len(self.workers)}


@arguments.hinted
def recorded(events: Any, *, times: Any = None) -> Recorded:
    """Return the replay of a log: which worker's gradient came next, computed at which version.

    A version is the number of updates that the server had done when the worker fetched its
    parameters. Gradients that the run dropped belong into the log too.

    Args:
        events: rows (worker, version) of the only server, or (server, worker, version), in the
            order in which each server took them.
        times: when the server had answered each event; 1, 2, ... of its server when None.

    Returns:
        The order of events, for ``latency`` of an asynchronous method.

    Raises:
        InputError: the log is empty or not of this form, a number is negative, or an event names a
            version from the future. Unknown workers are found when the number of workers is known.

    Example:
        >>> recorded([(0, 0), (1, 0), (0, 1)]).workers
        (0, 1, 0)
    """
    try:
        table = np.asarray(events)
    except ValueError:
        raise InputError("recorded trace: rows of different lengths.") from None
    if table.ndim != 2 or table.shape[1] not in (2, 3) or not len(table):
        raise InputError(
            f"recorded trace: shape {table.shape}; give rows (worker, version) or "
            "(server, worker, version)."
        )
    if not np.issubdtype(table.dtype, np.integer):
        raise InputError(f"recorded trace: it holds {table.dtype} values; give integers.")
    negative = np.flatnonzero((table < 0).any(axis=1))
    if negative.size:
        raise InputError(f"recorded trace: event {negative[0]} holds a negative number.")
    servers = table[:, 0] if table.shape[1] == 3 else np.zeros(len(table), int)
    when = _times(times, servers)
    return Recorded(*(tuple(c.tolist()) for c in (servers, *table[:, -2:].T, when)))


def uniforms(seed: int, server: int, worker: int, first: int, count: int) -> tuple[Array, Array]:
    """Return two uniform variates in [0, 1) for each of ``count`` tasks, (count,) each."""
    key = np.array([seed, (server << 32) | worker], np.uint64)
    # A Philox counter yields four words, of which a task has one counter and uses two words.
    words = np.random.Philox(key=key, counter=first).random_raw(4 * count).reshape(count, 4)
    values = (words[:, :2] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return values[:, 0], values[:, 1]


# --- arguments -----------------------------------------------------------------------------------


def _means(mean: Any) -> float | tuple[float, ...]:
    wanted = "a number, or one for each worker"
    values = arguments.array("mean", mean, wanted)
    if values.ndim > 1 or not values.size:
        raise wrong("mean", f" has shape {values.shape}: give {wanted}.")
    if values.min() <= 0:
        raise wrong("mean", f" is {mean!r}: durations must be positive and finite.")
    return float(values) if values.ndim == 0 else tuple(values.tolist())


def _times(times: Any, servers: Array) -> Array:
    if times is None:
        result = np.empty(servers.size)
        for server in np.unique(servers):
            here = servers == server
            result[here] = np.arange(1, here.sum() + 1)
        return result
    values = np.asarray(times, np.float64)
    if values.shape != servers.shape or not np.all(np.isfinite(values)):
        raise InputError(
            f"times: shape {values.shape}; give one finite time for each of {servers.size} events."
        ).at("times")
    return values
