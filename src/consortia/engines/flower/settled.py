r"""Number of rows that the answers so far determine: measured by the site, before it answers.

What an answer holds are sums over rows of log p(z_i | θ) and of its derivatives at points θ
(`consortia.core.queries.Revealed`). To first order around the true rows these are linear in what is
unknown of the rows, with Jacobian J and rounding or noise of standard deviation σ. Whoever knows no
more than how wide each column is then knows the rows up to a normal error with the covariance

.. math:: \Bigl(\sum J^\top J / \sigma^2 + I\Bigr)^{-1}

in units of the columns' standard deviations, the sum being over all answers. A row is settled where
one of its values is known to within `NEAR` of that unit. Labels are taken for known, and
categorical columns, too, where measurements are counted, which can only make the count of settled
rows larger. Of large sites some rows are looked at, half of them those with the most far-out
values and half drawn from the site's secret, and all others are taken for known. Of models with a
likelihood of each site, which is not a sum over rows, it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from jaxtyping import Float

from consortia.core import trees
from consortia.core.queries import Revealed
from consortia.core.target import Target
from consortia.data.patterns import is_categorical, is_response
from consortia.runtime import compiler
from consortia.runtime.late import Array, jax, jnp
from consortia.runtime.threads import one_thread
from consortia.store.checkpoint import Checkpoint, read, write

NEAR = 0.1
"""Standard deviations of a column to within which a settled value is known: twice as far as a row
may be off that counts as read in a rehearsal."""

MOST_UNKNOWNS = 300
"""Values that are unknown together; of larger sites some rows are drawn."""

SKETCHED, SAFETY = 600, 2.0
"""Numbers of an answer above which they are added in groups, with random signs; and the factor of
the information by which that may err."""

ROUNDING = {4: 2.0**-24, 8: 2.0**-53}
"""Error of a sum that is called exact, by the bytes of a number; larger sums have larger ones."""

POINTS_AT_ONCE = 64


class Statement(NamedTuple):
    """Rows that the answers so far determine."""

    settled: int  # rows of which a value is known to within `NEAR`
    looked_at: int  # rows that were looked at
    rows: int  # of the site

    def __str__(self) -> str:
        looked = "" if self.looked_at == self.rows else f" (of {self.looked_at} that were drawn)"
        return f"{self.settled} of {self.rows} rows{looked}"


class Unknowns(NamedTuple):
    """The values of a site that are taken for unknown."""

    # for each array of the rows the indices of its columns that vary
    places: tuple[np.ndarray, ...]
    units: np.ndarray  # standard deviations of these columns, in the order of a row's values
    measured: np.ndarray  # which of them are measurements, the others being categorical
    counted: np.ndarray  # which of them are no responses, unless all are
    rows: np.ndarray  # indices of the rows that are looked at

    @property
    def each(self) -> int:
        """Unknown values of a row."""
        return self.units.size


class Settled:
    """The information that answers hold on a site's rows, over all runs of the same rows.

    Args:
        target: the posterior.
        rows: of the site, as they are held; padding may be at their end.
        count: of true rows.
        path: of the file in which the information lasts; its folder is made.
        seed: from the site's secret, by which rows and signs are drawn.
    """

    def __init__(self, target: Target, rows: Any, count: int, path: Path, seed: int) -> None:
        self._target, self._path, self._count = target, path, count
        self._rng = np.random.default_rng(seed)
        self.unknowns = unknowns_of(rows, self._count, self._rng)
        self._rows = trees.map_leaves(lambda leaf: np.asarray(leaf)[self.unknowns.rows], rows)

    @cached_property
    def _compiled(self) -> Callable[..., dict[int, Any]]:
        """The derivatives as a program."""
        of = partial(_derivatives, self._target)
        return jax.jit(of, static_argnums=0, compiler_options=compiler.for_once())

    def _derivatives(self, orders: Sequence[int], points: np.ndarray) -> dict[int, Any]:
        """Return derivatives by the unknowns of sums over rows, and of their derivatives by θ."""
        if self._target.model.host is not None:
            return _differences(self._target, self._rows, self.unknowns, orders, points)
        leaves, structure = jax.tree.flatten(self._rows)
        places = tuple(tuple(map(int, columns)) for columns in self.unknowns.places)
        return self._compiled(_Shape(places, structure, tuple(orders)), leaves, points)

    def add(
        self,
        revealed: Sequence[Revealed],
        permit: Callable[[Statement], None] = lambda statement: None,
        share: float = 1.0,
    ) -> Statement:
        """Note what one more answer reveals; return what all answers together settle.

        Args:
            revealed: by the answer.
            permit: raises where the answer must not leave; then it is not noted.
            share: of the information that settles a value, with which it counts for ``permit``.
        """
        new = [self._information(sums) for sums in revealed]
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(f"{self._path}.lock"):
            before = read(self._path).arrays["root"] if self._path.exists() else None
            stacked = np.concatenate(new if before is None else [before, *new])
            with one_thread():  # more wait longer than these QRs take
                root = triangular_root(stacked)
                deviations = self._deviations(root)
            permit(self._statement(deviations, NEAR / math.sqrt(share)))
            write(self._path, Checkpoint({}, {"root": root}))
        return self._statement(deviations, NEAR)

    def _statement(self, deviations: Float[np.ndarray, "n k"], near: float) -> Statement:
        known = (deviations < near)[:, self.unknowns.counted].any(axis=1)
        return Statement(int(known.sum()), len(self.unknowns.rows), self._count)

    def _deviations(self, root: Float[np.ndarray, "r N"]) -> Float[np.ndarray, "n k"]:
        """Return the uncertainty of each value, in standard deviations of its column."""
        unknowns = self.unknowns
        looked_at = len(unknowns.rows)
        found = np.ones((looked_at, unknowns.each))
        for which in (unknowns.measured, np.ones(unknowns.each, bool)):
            if which.any():
                sd = _deviations(root[:, np.tile(which, looked_at)]).reshape(looked_at, -1)
                found[:, which] = np.minimum(found[:, which], sd)
        return found

    def _information(self, revealed: Revealed) -> Float[np.ndarray, "m N"]:
        """Return the Jacobian of an answer in units of its error; of many numbers some sums."""
        if not self.unknowns.each or not len(revealed.points):
            return np.zeros((0, len(self.unknowns.rows) * self.unknowns.each))
        points, reference = np.asarray(revealed.points), revealed.reference
        if reference is not None:
            points = np.concatenate([points, reference[None]])
        made = self._derivatives(revealed.orders, points.astype(self._target.dtype))
        units = np.tile(self.unknowns.units, len(self.unknowns.rows))
        exact = ROUNDING[self._target.dtype.itemsize]
        found = []
        jacobians = {
            order: np.nan_to_num(np.asarray(values, float), nan=0.0, posinf=0.0, neginf=0.0)
            for order, values in made.items()
        }
        if revealed.away is not None:
            jacobians[1] = jacobians[1] + _from_afar(jacobians[2], revealed.away)
        for order, jacobian in jacobians.items():
            if order == 0 and reference is not None:
                jacobian, base = jacobian[:-1], jacobian[-1:]
                jacobian = jacobian - base
                if revealed.height is not None:
                    found.append(base * (units / math.hypot(revealed.height, exact)))
            elif reference is not None:
                jacobian = jacobian[: -(len(jacobian) // len(points))]
            error = np.hypot(np.ravel(revealed.errors.get(order, 0.0)), exact)
            found.append(self._fewer(jacobian / error[:, None]) * units)
        return np.concatenate(found)

    def _fewer(self, jacobian: Float[np.ndarray, "m N"]) -> Float[np.ndarray, "p N"]:
        """Return sums of groups of many rows with random signs, which hold the same information."""
        if len(jacobian) <= SKETCHED:
            return jacobian
        groups = self._rng.integers(0, SKETCHED, len(jacobian))
        signs = self._rng.choice((-1.0, 1.0), len(jacobian)) * math.sqrt(SAFETY)
        order = np.argsort(groups, kind="stable")
        first = np.flatnonzero(np.diff(groups[order], prepend=-1))
        signed = jacobian[order] * signs[order, None].astype(jacobian.dtype)
        return np.add.reduceat(signed, first, axis=0, dtype=np.float64)


def _deviations(root: Float[np.ndarray, "r N"]) -> Float[np.ndarray, " N"]:
    """Return the uncertainty of each value where no others are unknown."""
    from scipy.linalg import solve_triangular  # heavy, and only wanted at sites

    size = root.shape[1]
    whole = triangular_root(np.concatenate([root, np.eye(size)]))
    inverse = solve_triangular(whole, np.eye(size))
    return np.asarray(np.sqrt((inverse**2).sum(axis=1)))


def _from_afar(
    curvatures: Float[np.ndarray, "mt N"], away: Float[np.ndarray, "m d"]
) -> Float[np.ndarray, "md N"]:
    """Return the curvatures' part in gradients of quadratics around points that far away."""
    count, d = away.shape
    first, second = np.triu_indices(d)
    whole = np.zeros((count, d, d, curvatures.shape[1]))
    whole[:, first, second] = whole[:, second, first] = curvatures.reshape(count, len(first), -1)
    return -np.einsum("mjkn,mk->mjn", whole, away).reshape(count * d, -1)


def triangular_root(stacked: Float[np.ndarray, "m N"]) -> Float[np.ndarray, "r N"]:
    """Return R of A = QR, which has the same products A'A."""
    return np.asarray(np.linalg.qr(stacked, mode="r"))


def _differences(
    target: Target, rows: Any, unknowns: Unknowns, orders: Sequence[int], points: np.ndarray
) -> dict[int, np.ndarray]:
    """Return the same derivatives of a model that NumPy evaluates, as central differences."""
    host, flat, every = target.model.host, target.layout, np.arange(target.dimension)
    assert host is not None
    leaves, structure = trees.leaves_of(rows), trees.structure_of(rows)
    upper = np.triu_indices(target.dimension)

    def of_rows(shifted: Any) -> dict[int, np.ndarray]:
        """Return log-densities of rows and derivatives by θ, (points, numbers, rows)."""
        likelihood = host.site(shifted)

        def values(at: np.ndarray) -> np.ndarray:
            return likelihood.of_rows(flat.params(at), slice(None))

        def gradients(at: np.ndarray) -> np.ndarray:
            return np.moveaxis(flat.differences(values, at, every), 0, 1)

        made = {0: values(points)[:, None]} if 0 in orders else {}
        if 1 in orders:
            made[1] = gradients(points)
        if 2 in orders:
            made[2] = np.moveaxis(flat.differences(gradients, points, every), 0, 1)[:, *upper]
        return made

    count = len(unknowns.rows)
    jacobians: dict[int, list[np.ndarray]] = {order: [] for order in orders}
    columns = [(leaf, column) for leaf, own in enumerate(unknowns.places) for column in own]
    for (leaf, column), unit in zip(columns, unknowns.units, strict=True):
        ends = []
        for sign in (1, -1):
            moved = [np.array(part.value, np.float64) for part in leaves]
            moved[leaf].reshape(count, -1)[:, column] += sign * CELL_STEP * unit
            ends.append(of_rows(structure.unflatten(moved)))
        for order in orders:
            jacobians[order].append((ends[0][order] - ends[1][order]) / (2 * CELL_STEP * unit))
    return {
        order: np.stack(parts, axis=-1).reshape(-1, count * len(columns))
        for order, parts in jacobians.items()
    }


CELL_STEP = 1e-3
"""Step of a central difference by a value of the rows, in standard deviations of its column."""


class _Shape(NamedTuple):
    """Sizes that a program is compiled for, hashable."""

    places: tuple[tuple[int, ...], ...]  # columns of measurements of each array of the rows
    structure: Any  # of these arrays
    orders: tuple[int, ...]  # of the derivatives


def _derivatives(
    target: Target, shape: _Shape, leaves: Sequence[Array], points: Float[Array, "m d"]
) -> dict[int, Float[Array, "k N"]]:
    """Return derivatives by the unknowns of sums over rows, and of their derivatives by θ.

    A row's log-density is a function of that row alone, so that one shift of all rows together has
    the derivatives by the measurements of each.
    """
    each = sum(map(len, shape.places))

    def summands(shift: Float[Array, " k"], position: Float[Array, " d"]) -> Float[Array, " n"]:
        shifted, begin = [], 0
        for leaf, columns in zip(leaves, shape.places, strict=True):
            flat = leaf.reshape(leaf.shape[0], -1)
            added = np.zeros((len(columns), flat.shape[1]), flat.dtype)
            added[np.arange(len(columns)), list(columns)] = 1
            if len(columns):
                part = shift[begin : begin + len(columns)].astype(flat.dtype)
                flat = flat + part[None] @ added
            shifted.append(flat.reshape(leaf.shape))
            begin += len(columns)
        return target.log_likelihood(position, jax.tree.unflatten(shape.structure, shifted))

    def of_order_0(position: Float[Array, " d"]) -> dict[int, Array]:
        zeros = jnp.zeros(each, points.dtype)
        return {0: jax.jacfwd(summands)(zeros, position).ravel()}

    function: Callable[[Array], dict[int, Array]] = of_order_0
    for order in range(max(shape.orders)):
        function = _with_next(function, order)

    def at(position: Float[Array, " d"]) -> dict[int, Array]:
        found = function(position)
        made = {0: found[0][None]}
        if 1 in found:
            made[1] = found[1].T
        if 2 in found:
            made[2] = found[2].T[np.triu_indices(position.size)]
        return {order: made[order] for order in shape.orders}

    made = compiler.map_in_blocks(at, points, POINTS_AT_ONCE)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1]), made)


def _with_next(
    function: Callable[[Array], dict[int, Array]], order: int
) -> Callable[[Array], dict[int, Array]]:
    """Return a function of the same and of the derivative of its part of this order."""

    def both(position: Array) -> dict[int, Array]:
        def parts(at: Array) -> tuple[Array, dict[int, Array]]:
            found = function(at)
            return found[order], found

        derivative, found = jax.jacfwd(parts, has_aux=True)(position)
        return found | {order + 1: derivative}

    return both


def unknowns_of(rows: Any, count: int, rng: np.random.Generator) -> Unknowns:
    """Select the values of a site that count as unknown.

    Args:
        rows: a pytree of arrays, padding included.
        count: of true rows.
        rng: by which half of the rows are drawn where there are many; the others lie far out.
    """
    places, units, measured, covariates = [], [], [], []
    farthest = np.zeros(count)
    for leaf in trees.leaves_of(rows):
        values = np.asarray(leaf.value)
        flat = values.reshape(len(values), -1)[:count].astype(np.float64)
        columns = np.arange(flat.shape[1]) if values.dtype.kind == "f" else np.zeros(0, int)
        numbers = [index for index in columns if not is_categorical(flat[:, index])]
        response = is_response(leaf)
        kept = numbers if response else [index for index in columns if np.ptp(flat[:, index]) > 0]
        places.append(np.array(kept, int))
        for index in kept if not response else ():
            away = np.abs(flat[:, index] - np.median(flat[:, index]))
            farthest = np.maximum(farthest, away / flat[:, index].std())
        units += [flat[:, index].std() for index in kept]
        measured += [index in numbers for index in kept]
        covariates += [not response] * len(kept)
    counted = np.array(covariates, bool)
    each = max(len(units), 1)
    most = max(MOST_UNKNOWNS // each, 1)
    chosen = np.arange(count)
    if count > most:
        order = np.argsort(-farthest, kind="stable")
        drawn = rng.choice(order[most // 2 :], most - most // 2, replace=False)
        chosen = np.sort(np.concatenate([order[: most // 2], drawn]))
    return Unknowns(
        tuple(places),
        np.array(units),
        np.array(measured, bool),
        counted if counted.any() else ~counted,
        chosen.astype(np.int32),
    )
