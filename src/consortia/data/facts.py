"""Facts of sites, gathered once before a run: all processes then compute the same from the list.

A process contributes one `SiteFacts` for each site whose rows it reads. Sizes, common types,
moments and classes are pure functions of the gathered list. No row is among the facts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from consortia.core.contract import Method
from consortia.data import digest
from consortia.data.sites import Rows, Sites, alike, check_finite, read_rows, site_names
from consortia.errors import InputError

Arrays = Mapping[str, np.ndarray]
Result = TypeVar("Result")


@dataclass(frozen=True)
class SiteFacts:
    """What all processes learn of a site before a run; plain values, as in JSON.

    Attributes:
        rows: n_c.
        arrays: shape of a row and NumPy type of each array, by name.
        digest: of the rows as they were read.
        columns: names of the features, empty when they have none.
        labels: whether the responses are whole numbers, the least and the largest; None without.
        moments: `consortia.data.preparation.Moments.plain` of features ("x") and response ("y"),
            where they are to be standardised.
    """

    rows: int
    arrays: Mapping[str, tuple[tuple[int, ...], str]]
    digest: str
    columns: tuple[str, ...] = ()
    labels: tuple[bool, int, int] | None = None
    moments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Rows, **more: Any) -> SiteFacts:
        """Return the facts of a table of rows; ``more`` are the further attributes."""
        leaves = zip(rows.names, rows.leaves, strict=True)
        arrays = {name: (leaf.shape[1:], leaf.dtype.str) for name, leaf in leaves}
        return cls(rows.rows, arrays, digest.of_rows(rows.structure.unflatten(rows.leaves)), **more)

    def plain(self) -> dict[str, Any]:
        """Return the facts as JSON holds them."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def read(cls, values: Any) -> SiteFacts:
        """Return facts from another process's `plain`.

        Raises:
            ValueError: the values are no facts.
        """
        try:
            arrays = {
                str(name): (tuple(int(length) for length in shape), np.dtype(kind).str)
                for name, (shape, kind) in values["arrays"].items()
            }
            labels = values["labels"]
            if labels is not None:
                labels = (bool(labels[0]), int(labels[1]), int(labels[2]))
            facts = cls(
                rows=int(values["rows"]),
                arrays=arrays,
                digest=str(values["digest"]),
                columns=tuple(str(name) for name in values["columns"]),
                labels=labels,
                moments=dict(values["moments"]),
            )
        except (TypeError, KeyError, AttributeError, IndexError, ValueError) as error:
            raise ValueError(f"these are no facts of a site: {error!r}") from None
        if facts.rows < 1 or not facts.arrays:
            raise ValueError("these are no facts of a site: it has no rows")
        return facts

    def empty(self) -> dict[str, np.ndarray]:
        """Return arrays of these names, shapes and types without a row."""
        return {name: np.empty((0, *shape), kind) for name, (shape, kind) in self.arrays.items()}


class Gatherer(Protocol):
    """The part of an engine that reading sites needs; see `consortia.engines.contract.Engine`."""

    def gather_facts(
        self, names: Sequence[str], method: Method, contribute: Callable[[int], SiteFacts]
    ) -> tuple[list[SiteFacts], Any]:
        """Return the facts of all sites, each from the process that reads it."""
        ...

    def allgather(self, make: Callable[[], Any]) -> list[Any]:
        """Return what ``make`` returns in every process that has sites."""
        ...

    def check_same_arguments(self, arguments: Callable[[], Mapping[str, Any]]) -> None:
        """Refuse to go on where processes were given different arguments."""
        ...


def read_sites(
    read: Callable[[int], Arrays], names: Sequence[str], algorithm: Method, engine: Gatherer
) -> Sites:
    """Return the sites of a run in which every process reads the rows of the sites that it runs.

    All processes of the engine call it alike. Of its rows a process sends the others their count,
    the names, types and widths of the arrays and a digest, and nothing else. With `LocalEngine`
    every site is read.

    Args:
        read: from a site's index, counted from 0, its rows: a dict of arrays (rows, ...). It is
            called for the sites of this process only.
        names: one distinct name for each site, of all of them.
        algorithm: what will be sampled with: it decides which process runs which sites.
        engine: the engine that will run it.

    Returns:
        The sites, which have names and sizes everywhere and rows where they were read.

    Raises:
        InputError: as `Sites.from_list`, in all processes when it is so in one; or two processes
            that run one site have read other rows.
        RankError: the processes have been given other names.

    Example:
        >>> import consortia
        >>> engine, files = consortia.LocalEngine(), {"oslo": 4, "lima": 6}
        >>> algorithm = consortia.fa_ld(step_size=0.1, local_steps=2)
        >>> read = lambda index: {"x": np.ones((list(files.values())[index], 2))}
        >>> consortia.read_sites(read, list(files), algorithm, engine)
        Sites(2 sites, 10 rows; oslo: 4, lima: 6)
    """
    names = site_names(names, len(names))
    engine.check_same_arguments(lambda: {"names": names})
    own: dict[int, Rows] = {}

    def contribute(index: int) -> SiteFacts:
        own[index] = read_table(read(index), f"site {names[index]!r}")
        check_finite(names[index], own[index])
        return SiteFacts.of(own[index])

    facts, _ = engine.gather_facts(names, algorithm, contribute)
    parts = [own[n] if n in own else rows_of(one.empty(), one.rows) for n, one in enumerate(facts)]
    digests = {n: one.digest for n, one in enumerate(facts)}
    return Sites.of_rows(names, alike(names, parts), digests, set(digests) - set(own))


def merge_facts(gathered: Sequence[Mapping[Any, Any]], names: Sequence[str]) -> list[SiteFacts]:
    """Return the facts of each site in order, from what every process has contributed.

    Args:
        gathered: of each process, `SiteFacts.plain` by the index of the site.
        names: of all sites.

    Raises:
        InputError: two processes with the same site have contributed different facts.
    """
    found: dict[int, tuple[int, Any]] = {}
    for process, contributed in enumerate(gathered):
        for key, facts in contributed.items():
            first, known = found.setdefault(int(key), (process, facts))
            if json.dumps(known) != json.dumps(facts):  # as text: NaN equals itself
                raise InputError(
                    f"processes {first} and {process} have read other rows for site "
                    f"{names[int(key)]!r}: give both the same."
                )
    return [SiteFacts.read(found[index][1]) for index in range(len(names))]


def run_on_all(engine: Gatherer, work: Callable[[], Result]) -> Result:
    """Return what ``work`` returns in this process, once it has succeeded in all.

    Raises:
        InputError: in all processes when ``work`` raises it in one.
    """
    done: list[Result] = []
    engine.allgather(lambda: done.append(work()))
    return done[0]


def read_table(rows: Any, where: str) -> Rows:
    """Return the leaves of a flat dict of arrays.

    Raises:
        InputError: it is something else, or as `consortia.data.sites.read_rows`.
    """
    result = read_rows(rows, where)
    flat = isinstance(rows, dict) and all(isinstance(name, str) for name in rows)
    if not flat or result.structure != jax.tree.structure(dict.fromkeys(rows, 0)):
        raise InputError(f"{where}: give a dict of arrays, with texts as keys.")
    return result


def rows_of(arrays: Arrays, count: int) -> Rows:
    """Return the leaves of arrays whose ``count`` rows are in another process."""
    leaves, structure = jax.tree.flatten(dict(arrays))
    return Rows(tuple(sorted(arrays)), tuple(leaves), structure, count)
