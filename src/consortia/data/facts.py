"""Facts of sites, gathered once before a run: all processes then compute the same from the list.

A process contributes one `SiteFacts` for each site whose rows it reads. Sizes, common types,
moments and classes are pure functions of the gathered list. No row is among the facts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from consortia.core import trees
from consortia.core.arguments import hinted
from consortia.core.contract import Method
from consortia.core.faults import Faults
from consortia.data import digest
from consortia.data.columns import TableFacts, is_name
from consortia.data.description import SiteDescription
from consortia.data.preparation import Moments, moments_of_all
from consortia.data.received import expect, read_as, read_fields
from consortia.data.sites import (
    SITE_ROWS_MAX,
    Rows,
    Sites,
    check_finite,
    of_common_types,
    read_rows,
    site_names,
)
from consortia.errors import InputError

Arrays = Mapping[str, np.ndarray]

ARRAYS_MAX, AXES_MAX = 1000, 16
ROW_NUMBERS_MAX = 2**27
"""Numbers in a row, of all arrays together."""

LABEL_MAX = 2**63 - 1
DIGEST = re.compile(r"[0-9a-f]{64}")

NUMBER_TYPES = frozenset(
    order + np.dtype(kind).str[1:]
    for kind in ("?", "b", "h", "i", "q", "B", "H", "I", "Q", "e", "f", "d", "F", "D")
    for order in "<>|"
)
"""NumPy's names of the types that a column may have."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class SiteFacts:
    """Facts of a site that all processes receive before a run; plain values, as in JSON."""

    rows: int  # n_c
    # shape of a row and NumPy type of each array, by name
    arrays: Mapping[str, tuple[tuple[int, ...], str]]
    digest: str  # of the rows as they were read
    columns: tuple[str, ...] = ()  # names of the features, empty when they have none
    # whether the responses are integers, the least and the largest; None without
    labels: tuple[bool, int, int] | None = None
    # `consortia.data.preparation.Moments.plain` of features ("x") and response ("y"), where they
    # are to be standardised
    moments: Mapping[str, Any] = field(default_factory=dict)
    table: TableFacts | None = None  # what a formula must know of the rows, where there is one
    # the facts of the same rows for another model, where two are compared
    beside: SiteFacts | None = None
    described: SiteDescription | None = None  # who the participants are, where that is requested
    # of the first site: moments of all sites' rows, by the names of either field, where those of
    # each site leave masked
    pooled: Mapping[str, Any] = field(default_factory=dict)

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
        """Return facts from another process's `plain`; nothing in them is taken on trust.

        Raises:
            ValueError: the values are no facts; the text says which, and holds none of them.
        """
        other_facts = values.get("beside") if isinstance(values, dict) else None
        several = isinstance(other_facts, dict) and other_facts.get("beside") is not None
        expect(not several, "there are facts for more than two models")
        fields = read_fields(
            cls,
            values,
            "these are no facts of a site",
            labels=read_labels,
            table=TableFacts.read,
            beside=cls.read,
            described=SiteDescription.read,
        )
        rows = f"the number of rows is not an integer from 1 to {SITE_ROWS_MAX}"
        expect(1 <= fields["rows"] <= SITE_ROWS_MAX, rows)
        right = DIGEST.fullmatch(fields["digest"]) is not None
        expect(right, "the digest is not 64 digits 0-9 and a-f")
        _check_arrays(fields["arrays"])
        columns, features = fields["columns"], fields["arrays"].get("x")
        expect(all(map(is_name, columns)), "the names of columns are not strings")
        right = not columns or (features is not None and features[0] == (len(columns),))
        expect(right, "there are not as many names as columns")
        _check_moments(fields["moments"], fields["rows"], fields["arrays"])
        for name, plain in fields["pooled"].items():
            of_all = isinstance(plain, list) and bool(plain) and type(plain[0]) is int
            expect(is_name(name) and of_all and plain[0] > 0, "the moments of all are of no rows")
            several = len(plain) > 1 and isinstance(plain[1], list)
            columns = len(plain[1]) if several else None
            Moments.check_plain(plain, plain[0], columns)
        return cls(**fields)

    @property
    def numbers(self) -> int:
        """Count of the numbers and names that depend on rows, shapes left out."""
        tables = [table and asdict(table) for table in (self.table, self.described)]
        facts = (self.rows, self.labels, self.moments, tables)
        return _count(facts) + (0 if self.beside is None else self.beside.numbers)

    @property
    def values(self) -> int:
        """Count of the numbers in the rows of all arrays."""
        return self.rows * sum(math.prod(shape) for shape, _ in self.arrays.values())

    def empty(self) -> dict[str, np.ndarray]:
        """Return arrays of these names, shapes and types without a row."""
        return {name: np.empty((0, *shape), kind) for name, (shape, kind) in self.arrays.items()}

    @property
    def unread(self) -> bool:
        """True of `UNREAD`."""
        return self.digest == UNREAD.digest


UNREAD = SiteFacts(1, {"": ((), "<f8")}, "0" * 64)
"""Placeholder for the facts of a site that has sent none yet, in a registered study."""


def moments_over(facts: Sequence[SiteFacts]) -> dict[str, Moments]:
    """Return the moments of all sites' rows by name, of `SiteFacts.moments` or those of tables."""
    if facts[0].pooled:
        return {name: Moments(*plain) for name, plain in facts[0].pooled.items()}
    parts: dict[str, list[Any]] = {}
    for site in facts:
        for name, plain in (site.moments if site.table is None else site.table.moments).items():
            parts.setdefault(name, []).append(plain)
    return {name: moments_of_all(every) for name, every in parts.items()}


def _count(values: Any) -> int:
    """Count the numbers and strings in a nest of plain values, keys left out."""
    if isinstance(values, Mapping):
        return sum(map(_count, values.values()))
    if isinstance(values, (list, tuple, set, frozenset)):
        return sum(map(_count, values))
    return int(values is not None)


def read_labels(values: Any) -> tuple[bool, int, int] | None:
    """Return the labels of `SiteFacts` from plain values.

    Raises:
        ValueError: they are none.
    """
    text = "the labels are not a bool and two integers"
    labels = read_as(tuple[bool, int, int] | None, values, text)
    if labels is not None:
        whole, low, high = labels
        most = LABEL_MAX if whole else 0
        text = "the least and the largest label are not integers in order"
        expect(-most <= low <= high <= most, text)
    return labels


def _check_arrays(arrays: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    expect(0 < len(arrays) <= ARRAYS_MAX, f"there are not 1 to {ARRAYS_MAX} arrays")
    expect(all(map(is_name, arrays)), "an array is not a name, a shape and a type")
    for shape, kind in arrays.values():
        right = len(shape) <= AXES_MAX and all(0 <= n <= ROW_NUMBERS_MAX for n in shape)
        expect(right, "the shape of a row is not a list of lengths")
        expect(kind in NUMBER_TYPES, "an array holds no numbers")
    numbers = sum(math.prod(shape) for shape, _ in arrays.values())
    expect(numbers <= ROW_NUMBERS_MAX, f"a row has more than {ROW_NUMBERS_MAX} numbers")


def _check_moments(
    moments: Mapping[str, Any], rows: int, arrays: Mapping[str, tuple[tuple[int, ...], str]]
) -> None:
    right = moments.keys() <= {"x", "y"} & arrays.keys()
    expect(right, "there are moments of other arrays than x and y")
    for name, plain in moments.items():
        numbers = math.prod(arrays[name][0])
        if name == "x":
            Moments.check_plain(plain, rows, numbers)
        else:
            Moments.check_plain(plain, rows * numbers, None)


class Gathering(NamedTuple):
    """Facts that all processes of an engine gather from the sites."""

    names: Sequence[str]  # of all sites
    method: Any  # decides which process reads which sites
    contribute: Callable[[int], SiteFacts]  # reads a site of this process, by its index
    contribute_root: Callable[[], Any] = lambda: None  # called at the root
    # what else than the names all processes must have been given, see `Gatherer.allgather`
    same: Callable[[], Mapping[str, Any]] = dict


class Gatherer:
    """The part of an engine that reading sites needs, of one process that reads them all.

    Attributes:
        participation: which sites take part in which round, bool (rounds, sites); None: all.
    """

    participation: Any = None

    def allgather(
        self, make: Callable[[], Any], same: Callable[[], Mapping[str, Any]] = dict
    ) -> list[Any]:
        """Return the results of ``make`` in every process that has sites.

        Args:
            make: returns plain values as in JSON, NumPy arrays among them; called in every process.
            same: makes, after that, what all processes must have been given, by name; any values.

        Raises:
            InputError: ``make`` raised it in one process; it is raised in all.
            RankError: in every process, with the processes and the arguments that differ.
        """
        return [make()]

    def gather_facts(self, gathering: Gathering) -> tuple[list[SiteFacts], Any]:
        """Return the facts of all sites in order, and a plain value from the root.

        Raises:
            InputError: sites cannot be used; with what is wrong with each.
        """
        faults, facts = Faults(), []
        for index in range(len(gathering.names)):
            with faults.noted(site=gathering.names[index]):
                facts.append(gathering.contribute(index))
        faults.check()
        return facts, gathering.contribute_root()


@hinted
def read_sites(
    read: Callable[[int], Arrays], names: Sequence[str], algorithm: Method, engine: Gatherer
) -> Sites:
    """Return the sites of a run in which every process reads the rows of the sites that it runs.

    All processes of the engine make the same call. Of its rows a process sends the others their
    count, the names, types and widths of the arrays and a digest, and nothing else. With
    `LocalEngine` every site is read.

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
    here: dict[int, Rows] = {}

    def contribute(index: int) -> SiteFacts:
        here[index] = read_table(read(index), f"site {names[index]!r}")
        check_finite(names[index], here[index])
        return SiteFacts.of(here[index])

    facts, _ = engine.gather_facts(Gathering(names, algorithm, contribute))
    parts = [
        here[n] if n in here else rows_of(fact.empty(), fact.rows) for n, fact in enumerate(facts)
    ]
    digests = {n: fact.digest for n, fact in enumerate(facts)}
    return Sites.of_rows(names, of_common_types(names, parts), digests, set(digests) - set(here))


def merge_facts(gathered: Sequence[Mapping[Any, Any]], names: Sequence[str]) -> list[SiteFacts]:
    """Return the facts of each site in order, from what every process has contributed.

    Each process gives `SiteFacts.plain` by the index of the site.

    Raises:
        InputError: two processes with the same site have contributed different facts.
    """
    merged: dict[int, tuple[int, Any]] = {}
    for process, contributed in enumerate(gathered):
        for key, facts in contributed.items():
            first, known = merged.setdefault(int(key), (process, facts))
            if json.dumps(known) != json.dumps(facts):  # as text: NaN equals itself
                raise InputError(
                    f"processes {first} and {process} have read different rows for site "
                    f"{names[int(key)]!r}: give both the same rows."
                )
    try:
        return [SiteFacts.read(merged[index][1]) for index in range(len(names))]
    except ValueError as error:
        raise InputError(f"the facts of a site cannot be used: {error}.") from error


def run_on_all(
    engine: Gatherer,
    work: Callable[[], Result],
    same: Callable[[], Mapping[str, Any]] = dict,
) -> Result:
    """Return the result of ``work`` in this process, once it has succeeded in all.

    ``same`` makes what all processes must have been given, by name.

    Raises:
        InputError: in all processes when ``work`` raises it in one.
        RankError: the processes have been given something else.
    """
    done: list[Result] = []
    engine.allgather(lambda: done.append(work()), same)
    return done[0]


def read_table(rows: Any, where: str) -> Rows:
    """Return the leaves of a flat dict of arrays.

    Raises:
        InputError: it is something else, or as `consortia.data.sites.read_rows`.
    """
    result = read_rows(rows, where)
    flat = isinstance(rows, dict) and all(isinstance(name, str) for name in rows)
    if not flat or not trees.are_same(result.structure, trees.Names(tuple(sorted(rows)))):
        raise InputError(f"{where}: give a dict of arrays, with strings as keys.")
    return result


def rows_of(arrays: Arrays, count: int) -> Rows:
    """Return the leaves of arrays whose ``count`` rows are in another process."""
    names = tuple(sorted(arrays))
    return Rows(names, tuple(arrays[name] for name in names), trees.Names(names), count)
