"""The sites of a study as a conversation asks them: a query goes to all, and their answers return.

An engine prepares a panel as it prepares a run. The root asks; other processes of a job serve.
"""

# ruff: noqa: B027 (to do nothing is what suits one process)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.core.privacy import SecretNoise, simulated_generator, with_noise
from consortia.core.queries import Arrays, Conversation, Query, SiteFunction, in_width
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.engines.kept import kept
from consortia.errors import InputError
from consortia.runtime import late
from consortia.runtime.late import Array, jax

Answer = dict[str, np.ndarray]
"""Arrays of an answer in double precision: sums over the sites, or site axis first."""


class Processor(NamedTuple):
    """The processor, as JAX calls it, of a process in which it is not loaded."""

    platform: str = "cpu"
    device_kind: str = "cpu"
    id: int = 0


class Prepared(ABC):
    """A method on the sites of a study, placed by an engine: what a run and a panel have in common.

    Args:
        sites: names and sizes of all sites.

    Attributes:
        names: names of all sites.
        sizes: rows of all sites, (sites,).
        root: this process keeps the draws and writes to the terminal.
        serves: this process only answers others while the run lasts, see ``serve``.
        parts: into how many parts sites and chains are divided, each on its own device.
        notes: sentences for the plan.
    """

    root: bool = True
    serves: bool = False
    parts: tuple[int, int] = (1, 1)
    notes: tuple[str, ...] = ()

    def __init__(self, sites: Sites) -> None:
        self.names, self.sizes = sites.names, np.asarray(sites.sizes, np.int64)

    @abstractmethod
    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, (nodes, chains).

        ``positions`` is (chains, d). All processes call it, before the start.
        """

    def finish(self) -> None:
        """End the processes that serve."""

    def expected(self, messages: int) -> str | None:
        """Predict the time of so many messages, where messages decide that."""
        return None

    def answering(self) -> dict[str, tuple[float | None, float | None]]:
        """Return of each site the seconds of its last answer, and those waited for one so far.

        It may be called from another thread while a run lasts. Empty where no site is remote.
        """
        return {}

    @property
    def devices(self) -> list[Any]:
        """Devices that this process uses."""
        return jax.local_devices()[:1] if late.is_loaded() else [Processor()]

    @property
    def where(self) -> list[str]:
        """Sites of each process, one line each, if there are several processes."""
        return []


class Panel(Prepared):
    """All sites of a study, ready to answer the queries of one conversation."""

    mapped: bool = False  # sites are always computed one after the other
    way: str | None = None  # how rows are evaluated; None: each site decides that by its own
    farthest: float = float("inf")  # prior standard deviations beyond which sites do not answer

    def __init__(self, target: Target, sites: Sites, method: Conversation) -> None:
        super().__init__(sites)
        self.target, self.method = target, method
        self._completed: tuple[Arrays, Answer] = {}, {}

    # --- queries ----------------------------------------------------------------------------------

    @abstractmethod
    def ask(self, query: Query, number: int = 0) -> Answer:
        """Return the answer of all sites; only the root asks.

        Args:
            query: the function and its arrays, in JAX's own width.
            number: index of the message in its run.

        Raises:
            SiteMissingError: a site did not answer, or refused.
            RankError: another process is gone, late or has failed.
        """

    def serve(self) -> None:
        """Answer the root's queries until it ends; only where ``serves`` is true."""

    # --- identity over interruptions --------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """Return plain values by which the sites know the run again, to be kept with it."""
        return {}

    def progress(self) -> dict[str, Any]:
        """Return plain values by which sites know what they answered last, kept with an answer."""
        return {}

    def continue_as(self, identity: Mapping[str, Any]) -> None:
        """Take identity and progress of a stored run, before the first message to a site."""

    # --- plan and record --------------------------------------------------------------------------

    def memory(self) -> dict[str, int]:
        """Return the bytes that this process holds, by what they are for."""
        return {}

    def outcome(self) -> dict[str, Any]:
        """Return attributes of the record that only the panel knows."""
        return {}

    # --- what all engines share ------------------------------------------------------------------

    def function(self, query: Query) -> SiteFunction:
        """Return the site function that answers a query.

        Raises:
            InputError: the method has none of this name.
        """
        site_function = self.method.functions.get(query.function)
        if site_function is None:
            raise InputError(
                f"{self.method.name} asks for {query.function!r}, expected one of "
                f"{', '.join(self.method.functions)}: correct the method."
            ).at("method")
        return site_function

    def completed(self, query: Query) -> Answer:
        """Return the arrays that the site function takes, in JAX's own width; made once a query."""
        if self._completed[0] is not query.arrays:
            made = query.completed
            if made is None:
                made = self.function(query).complete(query.arrays)
            self._completed = query.arrays, in_width(made)
        return self._completed[1]

    def bytes_up(self, function: SiteFunction, answer: Answer) -> int:
        """Return the bytes of the arrays in a site's answer, from those of the sum."""
        return self.target.dtype.itemsize * sum(values.size for values in answer.values())

    def points(self, query: Query) -> int:
        """Return at how many points each site evaluates its rows for a query."""
        return evaluated_points(self.function(query), self.completed(query))


def simulated_noise(function: SiteFunction, query: Query, summed: Answer, sites: int) -> Answer:
    """Return a sum over sites with the noise of all of them, where one job holds all rows."""
    if function.privacy is None:
        return summed
    privacy = function.privacy(np.size(query.arrays["position"]))
    for _ in range(sites):
        summed = with_noise(privacy, summed, sites, SecretNoise())
    return summed


def rounded_sum(
    function: SiteFunction, query: Query, each: Answer, sizes: np.ndarray, first: int
) -> Answer:
    """Return the sum of answers that each site has rounded, where one job holds all rows.

    Args:
        function: which rounds; its answers are summed.
        query: from which the dither follows, as in every engine.
        each: the answers, site axis first.
        sizes: rows of all sites.
        first: index of the first of these sites.
    """
    assert function.rounding is not None
    totals: Answer = {}
    for index in range(len(next(iter(each.values())))):
        rng = simulated_generator(query.function, query.arrays, first + index)
        answer = {name: values[index] for name, values in each.items()}
        rounded = function.rounding(answer, int(sizes[first + index]), rng, 1.0).arrays
        with np.errstate(invalid="ignore"):  # +inf and -inf of two sites are NaN, as in a sum
            totals = {name: totals.get(name, 0.0) + made for name, made in rounded.items()}
    return totals


_counts: OrderedDict[Any, int] = OrderedDict()
"""Points of the site functions in use, by the shapes of their arrays."""

KEPT_COUNTS = 64


def evaluated_points(function: SiteFunction, arrays: Arrays) -> int:
    """Return at how many points a site evaluates its rows for completed arrays, 0 for none.

    The shapes of the arrays decide it: what lies where is worked out once for all of one shape.
    """
    shapes = tuple((name, np.shape(values)) for name, values in sorted(arrays.items()))

    def count() -> int:
        positions = np.shape(function.evaluation(arrays).positions)
        return int(np.prod(positions[:-1], dtype=np.int64)) if positions else 0

    return kept(_counts, (function.evaluation, shapes), count, KEPT_COUNTS)
