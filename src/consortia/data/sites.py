"""The data at the sites, on the host: one pytree of NumPy arrays per site."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from consortia.core import trees
from consortia.core.arguments import hinted
from consortia.data import digest
from consortia.errors import InputError, located, wrong
from consortia.runtime.late import PyTree, jax

NUMERIC_KINDS = "biufc"
"""Kinds of NumPy dtype that a leaf may have: bool, integer, unsigned, floating, complex."""

SITE_ROWS_MAX = 2**31 - 1
"""Row numbers are int32."""

ALIGNMENT = 64
"""Bytes: arrays that begin at a multiple are taken by JAX on the CPU as they are, not copied."""

VIEWS_PADDING = 1.25
"""Padding factor up to which the padded rows are kept instead of the sites' own arrays: a quarter
more memory, and no second copy. Chosen, not measured."""


@dataclass(frozen=True, eq=False, repr=False)
class Sites:
    r"""The rows of n = Σ_c n_c data that N sites hold, unequal sizes n_c being the normal case.

    Made by `Sites.from_list`, by the functions of `consortia.partition`, or by
    `consortia.read_sites` where each process of several reads its own sites only. Immutable:
    given arrays that could be changed are copied; read-only ones, those of JAX and files mapped for
    reading are kept as they are (``array.flags.writeable = False`` saves the copy). Compares and
    hashes by identity.

    Attributes:
        names: one name per site.
        sizes: n_c, rows per site, int32 (sites,), read-only.
        shards: one pytree of NumPy arrays per site, each leaf (n_c, ...), or (0, ...) where the
            rows are in another process.
        known_digests: digests of sites, by index, that were made as their rows were read.
        elsewhere: indices of the sites whose rows are in another process.

    Raises:
        InputError: of `Sites.from_list`: no sites, an empty one, or arrays that differ between
            sites in names, types or shapes of a row.

    Example:
        >>> import numpy as np
        >>> sites = Sites.from_list([dict(x=np.ones((3, 2))), dict(x=np.ones((5, 2)))])
        >>> len(sites), sites.rows, sites.sizes.tolist()
        (2, 8, [3, 5])
    """

    names: tuple[str, ...]
    sizes: np.ndarray
    shards: tuple[PyTree, ...]
    known_digests: Mapping[int, str] = field(default_factory=dict)
    elsewhere: frozenset[int] = frozenset()

    @classmethod
    @hinted
    def from_list(cls, shards: Sequence[PyTree], names: Sequence[str] | None = None) -> Sites:
        """Return sites of one pytree of arrays each.

        Args:
            shards: pytrees of one structure; every leaf has a leading row axis (rows, ...), the
                same number of rows in all leaves of a site. A list or tuple inside a pytree is a
                container of leaves, not an array. Leaves that differ between sites in width only
                (float32 and float64) are promoted together; narrow types are kept.
            names: one distinct name per site; "site 0", "site 1", ... by default.

        Raises:
            InputError: no site, an empty site, sites of different structure, trailing shape or
                type, leaves of different row counts, data that are not numbers or not finite. The
                message names the site and the leaf.
        """
        if isinstance(shards, (str, bytes, Mapping)) or not isinstance(shards, Iterable):
            raise InputError(
                f"shards is a {type(shards).__name__}: give a list with one pytree of arrays per "
                "site."
            ).at("shards")
        shards = list(shards)
        if not shards:
            raise wrong("shards", " is empty: give at least one site.")
        with located(argument="names"):
            names = site_names(names, len(shards))
        parts = []
        for shard, name in zip(shards, names, strict=True):
            with located(site=name):
                parts.append(read_rows(shard, f"site {name!r}"))
        parts = [replace(part, leaves=tuple(map(_unchanging, part.leaves))) for part in parts]
        kept = of_common_types(names, parts)
        for name, part in zip(names, parts, strict=True):
            check_finite(name, part)
        # A site whose rows are promoted keeps the digest of its rows as they are given.
        digests = {
            index: digest.of_rows(site_rows.structure.unflatten(site_rows.leaves))
            for index, (site_rows, other) in enumerate(zip(parts, kept, strict=True))
            if [leaf.dtype for leaf in site_rows.leaves] != [leaf.dtype for leaf in other.leaves]
        }
        return cls.of_rows(names, kept, digests)

    @classmethod
    def of_rows(
        cls,
        names: tuple[str, ...],
        parts: Sequence[Rows],
        digests: Mapping[int, str],
        elsewhere: Iterable[int] = (),
    ) -> Sites:
        """Return the sites of rows that have been checked."""
        sizes = _frozen(np.array([part.rows for part in parts], np.int32))
        shards = tuple(part.structure.unflatten(part.leaves) for part in parts)
        return cls(names, sizes, shards, digests, frozenset(elsewhere))

    def __len__(self) -> int:
        """Return the number of sites."""
        return len(self.names)

    def __iter__(self) -> Iterator[PyTree]:
        """Return the sites' pytrees, in order."""
        self._need(range(len(self)))
        return iter(self.shards)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{n}: {s}" for n, s in zip(self.names[:4], self.sizes[:4].tolist(), strict=True)
        )
        more = ", ..." if len(self) > 4 else ""
        away = f"; {len(self.elsewhere)} elsewhere" if self.elsewhere else ""
        return f"Sites({len(self)} sites, {self.rows} rows; {shown}{more}{away})"

    @property
    def rows(self) -> int:
        """n, the rows of all sites together."""
        return int(self.sizes.sum(dtype=np.int64))

    @property
    def padding_factor(self) -> float:
        """Rows of the padded arrays over true rows, N · max n_c / n; 1 when all sizes are equal."""
        return len(self) * int(self.sizes.max()) / self.rows

    @property
    def here(self) -> tuple[int, ...]:
        """Indices of the sites whose rows are in this process."""
        return tuple(number for number in range(len(self)) if number not in self.elsewhere)

    @property
    def held(self) -> dict[str, PyTree]:
        """The rows that are in this process, by the site's name."""
        return {self.names[number]: self.shards[number] for number in self.here}

    @property
    def first(self) -> PyTree:
        """The first site whose rows are here; one row of zeros where none is.

        For what follows from one site's types and shapes, which are those of all.
        """
        if self.here:
            return self.shards[self.here[0]]
        return trees.map_leaves(lambda x: np.zeros((1, *x.shape[1:]), x.dtype), self.shards[0])

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """SHA-256 of each site's names, types, shapes and content of arrays; made once and kept."""
        return tuple(
            self.known_digests[index] if index in self.known_digests else digest.of_rows(shard)
            for index, shard in enumerate(self.shards)
        )

    def site(self, which: int | str) -> PyTree:
        """Return the pytree of one site, by index or by name.

        Raises:
            InputError: there is no such site, or its rows are in another process.
        """
        if isinstance(which, str):
            if which not in self.names:
                raise wrong("which", f" is {which!r}: the sites are {', '.join(self.names)}.")
            which = self.names.index(which)
        if not 0 <= which < len(self):
            raise InputError(
                f"Site {which} does not exist: there are {len(self)} sites, numbered from 0."
            ).at("which")
        self._need([which])
        return self.shards[which]

    @property
    def structure(self) -> Any:
        """The pytree structure that all sites share."""
        return jax.tree.structure(self.shards[0])

    def only(self, which: Sequence[int] | np.ndarray) -> Sites:
        """Return some of the sites, by index; nothing is copied."""
        kept = [int(number) for number in which]
        return Sites(
            tuple(self.names[number] for number in kept),
            _frozen(self.sizes[kept]),
            tuple(self.shards[number] for number in kept),
            {i: self.known_digests[n] for i, n in enumerate(kept) if n in self.known_digests},
            frozenset(i for i, n in enumerate(kept) if n in self.elsewhere),
        )

    def pooled(self) -> PyTree:
        """Return all rows as one pytree, the sites one after the other; leaves (n, ...).

        Raises:
            InputError: the rows of a site are in another process.
        """
        self._need(range(len(self)))
        if len(self) == 1:
            return self.shards[0]
        return trees.map_leaves(lambda *leaves: np.concatenate(leaves), *self.shards)

    def padded(self) -> PyTree:
        """Return all sites in one pytree, leaves (sites, max n_c, ...), made once and kept.

        Shorter sites are filled by repeating their own first row. Which rows are true follows
        from ``sizes``. Where sites are of about equal sizes, ``shards`` are views of it from then
        on, so that the rows are held once.

        Raises:
            InputError: the rows of a site are in another process.
        """
        self._need(range(len(self)))
        return self._padded

    @cached_property
    def _padded(self) -> PyTree:
        length = int(self.sizes.max())

        def stack(*leaves: np.ndarray) -> np.ndarray:
            if len(leaves) == 1:
                return leaves[0][None]
            stacked = _aligned((len(leaves), length, *leaves[0].shape[1:]), leaves[0].dtype)
            for row, leaf in zip(stacked, leaves, strict=True):
                row[: len(leaf)] = leaf
                row[len(leaf) :] = leaf[0]
            return _frozen(stacked)

        padded = trees.map_leaves(stack, *self.shards)
        if len(self) > 1 and self.padding_factor <= VIEWS_PADDING:
            # Views of the same values, so that each row is held once.
            shards = [_rows_of(padded, i, size) for i, size in enumerate(self.sizes)]
            object.__setattr__(self, "shards", tuple(shards))
        return padded

    def map(self, function: Callable[[PyTree], PyTree]) -> Sites:
        """Return sites of the same names, ``function`` applied to the pytree of each."""
        return Sites.from_list([function(shard) for shard in self], self.names)

    def _need(self, numbers: Iterable[int]) -> None:
        """Refuse what needs the rows of these sites where they are not here."""
        missing = next((number for number in numbers if number in self.elsewhere), None)
        if missing is not None:
            held = ", ".join(repr(self.names[number]) for number in self.here) or "no site"
            raise InputError(
                f"the rows of site {self.names[missing]!r} are in another process; this one has "
                f"read {held}: sample with the engine and the algorithm for which the sites were "
                "read. Whatever needs all rows needs a process that has read all of them."
            ).at(site=self.names[missing])


@dataclass(frozen=True)
class Rows:
    """The leaves of one pytree with a common leading axis, taken apart."""

    names: tuple[str, ...]
    leaves: tuple[np.ndarray, ...]
    structure: Any
    rows: int

    def take(self, index: np.ndarray) -> PyTree:
        """Return the pytree of the rows with these indices, read-only."""
        taken = [leaf[index] for leaf in self.leaves]
        for leaf in taken:
            leaf.flags.writeable = False
        return self.structure.unflatten(taken)


def read_rows(tree: PyTree, where: str) -> Rows:
    """Return a pytree as NumPy leaves (rows, ...) of numbers, one common count of rows >= 1.

    Args:
        tree: pytree of arrays.
        where: what the tree is, for the messages.

    Raises:
        InputError: a leaf without a row axis or not of numbers, unlike row counts, no row.
    """
    tree_leaves = trees.leaves_of(tree)
    if not tree_leaves:
        raise InputError(f"{_capital(where)} holds no array: give a pytree with at least one.")
    names = tuple("/".join(leaf.keys) or "data" for leaf in tree_leaves)
    for name, (_, _, value) in zip(names, tree_leaves, strict=True):
        if isinstance(value, np.ma.MaskedArray):
            raise InputError(
                f"{_capital(where)}, leaf {name!r}: a masked array, whose masked values would be "
                "used. Remove their rows, or fill the values in: leaf.filled(...)."
            ).at(name)
    leaves = tuple(np.asarray(leaf.value) for leaf in tree_leaves)
    for name, leaf in zip(names, leaves, strict=True):
        at = f"{_capital(where)}, leaf {name!r}"
        if leaf.dtype.kind not in NUMERIC_KINDS:
            raise InputError(
                f"{at}: the type is {leaf.dtype}, not a NumPy number. Encode categories as "
                "integers, and cast other types (bfloat16, dates) to float32 or float64."
            ).at(name)
        if leaf.ndim == 0:
            raise InputError(
                f"{at}: a single number without a row axis. Give an array (rows, ...); "
                "lists inside a pytree are containers of leaves, so wrap them in np.asarray."
            ).at(name)
    rows = len(leaves[0])
    for name, leaf in zip(names, leaves, strict=True):
        if len(leaf) != rows:
            raise InputError(
                f"{_capital(where)}, leaf {name!r}: {len(leaf)} rows, but leaf {names[0]!r} has "
                f"{rows}. All leaves must have the same number of rows."
            ).at(name)
    if rows == 0:
        raise InputError(f"{_capital(where)} is empty: omit it, or give it at least one row.")
    if rows > SITE_ROWS_MAX:
        raise InputError(
            f"{_capital(where)} has {rows} rows; at most {SITE_ROWS_MAX} are permitted."
        )
    return Rows(names, leaves, trees.structure_of(tree), rows)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def site_names(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """Return the names of so many sites, as given or made."""
    if names is None:
        return tuple(f"site {i}" for i in range(count))
    if isinstance(names, str):
        raise wrong("names", f" is the single string {names!r}: give one name per site.")
    names = tuple(names)
    if len(names) != count:
        raise wrong("names", f" has {len(names)} entries for {count} sites: give one per site.")
    for name in names:
        if not isinstance(name, str) or not name:
            raise wrong("names", f" holds {name!r}: give non-empty strings.")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise wrong("names", f" holds {', '.join(map(repr, doubled))} more than once.")
    return names


def of_common_types(names: Sequence[str], parts: Sequence[Rows]) -> list[Rows]:
    """Return the rows of all sites, read-only and of common types.

    Raises:
        InputError: they differ in structure, in the shape of a row or in kinds of number.
    """
    for name, part in zip(names, parts, strict=True):
        _same_structure(name, part, names[0], parts[0])
    dtypes = _common_dtypes(names, parts)
    return [
        replace(
            part,
            leaves=tuple(
                _frozen(leaf.astype(dtype, copy=False))
                for leaf, dtype in zip(part.leaves, dtypes, strict=True)
            ),
        )
        for part in parts
    ]


def check_finite(name: str, part: Rows) -> None:
    """Refuse NaN and infinities at a site."""
    for leaf_name, leaf in zip(part.names, part.leaves, strict=True):
        with located(argument=leaf_name, site=name):
            _finite(leaf, f"site {name!r}, leaf {leaf_name!r}")


def _same_structure(name: str, part: Rows, first_name: str, first: Rows) -> None:
    if not trees.are_same(part.structure, first.structure):
        if part.names == first.names:
            difference = f"{part.structure} against {first.structure}"
        else:
            difference = f"leaves {', '.join(part.names)} against {', '.join(first.names)}"
        raise InputError(
            f"Site {name!r} differs in structure from site {first_name!r}: {difference}. Give "
            "all sites the same pytree."
        ).at(site=name)
    for leaf_name, leaf, model in zip(part.names, part.leaves, first.leaves, strict=True):
        if leaf.shape[1:] != model.shape[1:]:
            raise InputError(
                f"Site {name!r}, leaf {leaf_name!r}: rows of shape {leaf.shape[1:]}, but at site "
                f"{first_name!r} they have shape {model.shape[1:]}. All sites need the same "
                "shape."
            ).at(site=name)


def _common_dtypes(names: Sequence[str], parts: Sequence[Rows]) -> list[np.dtype]:
    """Return per leaf the type that holds every site's values; kinds of number may not mix."""
    common = []
    for i, leaf_name in enumerate(parts[0].names):
        first = widest = parts[0].leaves[i].dtype
        for name, part in zip(names, parts, strict=True):
            dtype = part.leaves[i].dtype
            widest = np.result_type(widest, dtype)
            if not _kind(dtype) == _kind(first) == _kind(widest):
                raise InputError(
                    f"Site {name!r}, leaf {leaf_name!r}: the type is {dtype}, but {first} at "
                    f"site {names[0]!r}, and no single type of that kind can hold the values of "
                    "all sites. Cast them to one type."
                ).at(site=name)
        common.append(widest)
    return common


def _kind(dtype: np.dtype) -> str:
    return "i" if dtype.kind == "u" else dtype.kind


def _finite(leaf: np.ndarray, where: str) -> None:
    """Refuse NaN and infinities, without a temporary the size of the data."""
    if leaf.dtype.kind not in "fc":
        return
    step = max(1, 2**20 // max(1, math.prod(leaf.shape[1:])))
    bad = 0
    for start in range(0, len(leaf), step):
        block = np.isfinite(leaf[start : start + step])
        if not block.all():
            bad += int((~block.reshape(len(block), -1).all(axis=1)).sum())
    if bad:
        raise InputError(
            f"{_capital(where)}: {bad} of {len(leaf)} rows hold NaN or an infinity. "
            "Remove or impute them at the site."
        )


def _unchanging(array: np.ndarray) -> np.ndarray:
    """Return the array, or a copy where it or what it is a view of could be changed."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            copied = _aligned(array.shape, array.dtype)
            copied[...] = array
            return _frozen(copied)
        owner = owner.base
    return array


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array without values that begins at a multiple of `ALIGNMENT`."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size].view(dtype).reshape(shape)


def _rows_of(padded: PyTree, site: int, size: int) -> PyTree:
    """Return the rows of one site as views of the padded ones."""
    return trees.map_leaves(lambda leaf: leaf[site, :size], padded)


def _frozen(array: np.ndarray) -> np.ndarray:
    """Return an array of this module, read-only with all that it is a view of."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner.flags.writeable = False
        owner = owner.base
    return array
