"""Sites of which each process reads its own: the rest is told by the process that has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from consortia.core import fingerprints
from consortia.core.contract import Method
from consortia.data.sites import Rows, Sites, alike, check_finite, read_rows, site_names
from consortia.errors import InputError, RankError

Arrays = Mapping[str, np.ndarray]
Result = TypeVar("Result")


def read_sites(
    read: Callable[[int], Arrays], names: Sequence[str], algorithm: Method, engine: Any
) -> Sites:
    """The sites of a run in which every process reads the rows of the sites that it runs.

    All processes of the engine call it alike. Of its rows a process tells the others their number,
    the names, types and widths of the arrays and a digest, and nothing else. With `LocalEngine`
    every site is read.

    Args:
        read: from a site's number, counted from 0, its rows: a dict of arrays (rows, ...). It is
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
        >>> read = lambda number: {"x": np.ones((list(files.values())[number], 2))}
        >>> consortia.read_sites(read, list(files), algorithm, engine)
        Sites(2 sites, 10 rows; oslo: 4, lima: 6)
    """
    names = site_names(names, len(names))
    check_same(engine, names)
    held = [int(number) for number in engine.local_sites(len(names), algorithm)]
    own: dict[int, Rows] = {}

    def look() -> dict[int, Any]:
        for number in held:
            own[number] = _table(read(number), f"site {names[number]!r}")
        return {number: _outline(rows) for number, rows in own.items()}

    told = engine.allgather(look)
    outlines = merged(told, names)
    parts = [own[n] if n in own else _without_rows(outlines[n]) for n in range(len(names))]
    kept = alike(names, parts)

    def judge() -> dict[int, str]:
        for number in held:
            check_finite(names[number], kept[number])
        if len(told) == 1:  # nobody is to be told
            return {}
        return {n: engine.digest(_tree(kept[n])) for n in held}

    digests = engine.allgather(judge)
    elsewhere: dict[int, str] = {}
    if len(told) > 1:
        all_digests = merged(digests, names)
        elsewhere = {n: all_digests[n] for n in range(len(names)) if n not in own}
    return Sites.of_rows(names, kept, elsewhere)


def jointly(engine: Any, work: Callable[[], Result]) -> Result:
    """What ``work`` returns in this process, once it has succeeded in all.

    Raises:
        InputError: in all processes when ``work`` raises it in one.
    """
    done: list[Result] = []
    engine.allgather(lambda: done.append(work()))
    return done[0]


def check_same(engine: Any, value: Any) -> None:
    """Refuses to go on where processes have been given something else.

    Raises:
        RankError: in all processes.
    """
    told = engine.allgather(lambda: fingerprints.of_value(value))
    if not engine.compares:  # another process does
        return
    others = [str(rank) for rank, one in enumerate(told) if one != told[0]]
    if others:
        raise RankError(
            f"rank {', '.join(others)} runs another study than rank 0: start all ranks with the "
            "same study file."
        )


def merged(told: Sequence[Mapping[Any, Any]], names: Sequence[str]) -> dict[int, Any]:
    """What is known of each site, by number, from what every process has told of its own.

    Raises:
        InputError: two processes with the same site have told something else of it.
    """
    found: dict[int, tuple[int, Any]] = {}
    for process, facts in enumerate(told):
        for key, fact in facts.items():
            number = int(key)
            first, known = found.setdefault(number, (process, fact))
            if json.dumps(known) != json.dumps(fact):  # as text: NaN equals itself
                raise InputError(
                    f"processes {first} and {process} have read other rows for site "
                    f"{names[number]!r}: give both the same."
                )
    return {number: found[number][1] for number in range(len(names))}


def _table(rows: Any, where: str) -> Rows:
    result = read_rows(rows, where)
    flat = isinstance(rows, dict) and all(isinstance(name, str) for name in rows)
    if not flat or result.structure != jax.tree.structure(dict.fromkeys(rows, 0)):
        raise InputError(f"{where}: give a dict of arrays, with texts as keys.")
    return result


def _outline(rows: Rows) -> dict[str, Any]:
    """What is told of a site's rows before they are compared."""
    leaves = zip(rows.names, rows.leaves, strict=True)
    arrays = {name: [list(leaf.shape[1:]), leaf.dtype.str] for name, leaf in leaves}
    return {"rows": rows.rows, "arrays": arrays}


def _without_rows(outline: Mapping[str, Any]) -> Rows:
    arrays = {
        name: np.empty((0, *shape), dtype) for name, (shape, dtype) in outline["arrays"].items()
    }
    leaves, structure = jax.tree.flatten(arrays)
    return Rows(tuple(sorted(arrays)), tuple(leaves), structure, outline["rows"])


def _tree(rows: Rows) -> Any:
    return rows.structure.unflatten(rows.leaves)
