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
values and half drawn from the site's secret; of all others some sums are unknown. Where levels are
integrated out the derivative of log L by a row is the mean of that row's over the levels given all
rows of the site. Of other likelihoods that are no sum over rows, as a partial one, it is not known.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from jaxtyping import Bool, Float

from consortia.core import trees
from consortia.core.arrays import VALUES_AT_ONCE
from consortia.core.host import HostDensity, RowValues, SiteLikelihood
from consortia.core.queries import Revealed
from consortia.core.target import Target
from consortia.data.digest import RowDigests, of_rows
from consortia.data.patterns import is_categorical, is_response
from consortia.engines.kept import kept
from consortia.engines.messages.accounts import (
    Account,
    Columns,
    Looks,
    digests_of_sums,
    products_of,
    same_rows,
    triangular_root,
)
from consortia.runtime import compiler
from consortia.runtime.late import Array, jax, jnp
from consortia.runtime.threads import one_thread

NEAR = 0.1
"""Standard deviations of a column to within which a settled value is known: twice as far as a row
may be off that counts as read in a rehearsal."""

MOST_UNKNOWNS, ALL_UNKNOWN = 300, 600
"""Values that are unknown together where some rows are drawn, and up to which all rows are looked
at, or those of earlier studies again: rows that are not looked at are known but for sums, and of
few rows that makes the others stand out."""

ROUNDING = {4: 2.0**-24, 8: 2.0**-53}
"""Error of a sum that is called exact, by the bytes of a number; larger sums have larger ones."""

MOST_SUMS, MOST_SUMMED = 200, 2000
"""Values of sums over other rows that are unknown together, and such rows. One row stands out of
many whose values are as unknown as its own by far less than of many that are known: of 1,700 rows
the sums take nine tenths of what a fit tells of the row farthest out."""

MOST_NOTED = 20_000
"""Rows of a site up to which an account has all that are not looked at, so that it can tell those
that the next version adds. At larger sites they count as known."""

POINTS_AT_ONCE = 64

KEPT = 2
"""Derivatives that are kept: of one answer those at its points and those of rules of quadrature."""

TRIED_LAST = OrderedDict[Any, dict[int, Any]]()

NODES = 3
"""Nodes of the mean over a level that is integrated out, along each dimension: it is to be right in
two digits. Beside 15 nodes the derivatives of seven models are off by 1.6 % of their size at most
with 14 rows, by 0.2 % with 60."""

TRIED = {True: (2, 30), False: (0, 70)}
"""Ordinary studies that ended early, and all of them: where a row is nearly all that a mean exp(η)
says of a column, and others. They are of `benchmarks.disclosure` 300 to 399."""

EQUAL = 1 - 1e-6
"""Correlation of two columns from which on they say the same, as numbers of 24 bits can."""


class Statement(NamedTuple):
    """Rows that the answers so far determine."""

    settled: int  # rows of which a value is known to within `NEAR`, of other versions, too
    looked_at: int  # rows that were looked at
    rows: int  # of the site

    def __str__(self) -> str:
        looked = "" if self.looked_at == self.rows else f" (of {self.looked_at} that were drawn)"
        return f"{self.settled} of {self.rows} rows{looked}"


class Unknowns(NamedTuple):
    """The values of a site that are taken for unknown."""

    # for each array of the rows which unknown moves which column, by how many of its own steps:
    # columns that say the same, as a slope's, are one unknown
    moves: tuple[tuple[tuple[int, int, float], ...], ...]
    units: np.ndarray  # standard deviations of these columns, in the order of a row's values
    columns: Columns  # of them, no responses being counted, unless all are
    rows: np.ndarray  # indices of the rows that are looked at
    others: np.ndarray  # indices of rows of which sums are unknown
    sums: np.ndarray  # weights of these rows in sums, orthonormal columns

    @property
    def each(self) -> int:
        """Unknown values of a row."""
        return self.units.size

    @property
    def total(self) -> int:
        """Rows that are looked at, and sums over others."""
        return len(self.rows) + self.sums.shape[1]


class Settled:
    """The information that answers hold on a site's rows, over all runs of the same file.

    Args:
        target: the posterior.
        rows: of the site, as they are held; padding may be at their end.
        count: of true rows.
        path: of the file in which the information lasts; its folder is made.
        seed: from the site's secret, by which rows are drawn.
        digests: by which the rows are known again in another version of them; by default the
            account is of these rows alone.

    Attributes:
        excess: information on the best known value after the last answer, by what settles one.
    """

    def __init__(
        self,
        target: Target,
        rows: Any,
        count: int,
        path: Path,
        seed: int,
        digests: RowDigests | None = None,
    ) -> None:
        self._target, self._path, self._count, self.excess = target, path, count, 0.0
        self._given, self._seed = rows, seed
        if digests is None:
            digests = RowDigests(np.zeros(1, np.uint64), np.arange(count, dtype=np.uint64)[:, None])
        self._digests = digests
        self._choose(Account.read(path))

    def _choose(self, before: Account | None) -> None:
        """Choose what is looked at, by what an account has already."""
        digests, count, host = self._digests, self._count, self._target.model.host
        if before is None or not np.isin(before.rows.names, digests.names).any():
            before = Account.empty(digests.names)
        rng = np.random.default_rng(self._seed)
        self.unknowns, looks = unknowns_of(self._given, count, rng, host, before, digests)
        self._account = before.begun(looks)
        chosen, others = self.unknowns.rows, self.unknowns.others
        self._rows = trees.map_leaves(lambda leaf: np.asarray(leaf)[chosen], self._given)
        self._others = trees.map_leaves(lambda leaf: np.asarray(leaf)[others], self._given)
        self._every = trees.map_leaves(lambda leaf: np.asarray(leaf)[:count], self._given)
        self._same: Any = object()
        if host is not None:
            which = (getattr(self.unknowns, name).tobytes() for name in ("rows", "others", "sums"))
            parts = of_rows(self._every), *which, self.unknowns.moves
            self._same = host.digest, str(self._target.dtype), *parts

    @cached_property
    def _compiled(self) -> Callable[..., dict[int, Any]]:
        """The derivatives as a program."""
        of = partial(_derivatives, self._target)
        return jax.jit(of, static_argnums=0, compiler_options=compiler.for_once())

    @cached_property
    def _site(self) -> SiteLikelihood | None:
        """The likelihood of all rows, of a model that NumPy evaluates."""
        host = self._target.model.host
        return None if host is None else host.site(self._every)

    def _derivatives(
        self, orders: Sequence[int], points: np.ndarray, rules: Sequence[int]
    ) -> dict[int, Any]:
        """Return derivatives by the unknowns of sums over rows, and of their derivatives by θ."""
        if self._site is None:
            leaves, structure = jax.tree.flatten(self._rows)
            shape = _Shape(self.unknowns.moves, self.unknowns.each, structure, tuple(orders))
            return self._compiled(shape, leaves, points)
        if len(rules) < 2:
            return self._differences(self._site, orders, points, NODES)
        each = (self._differences(self._site, orders, points, nodes)[0] for nodes in rules)
        *others, last = each
        apart = [values - last for values in (*others, last)]
        return {0: np.stack(apart, axis=1).reshape(-1, last.shape[1])}

    def _differences(
        self, site: SiteLikelihood, orders: Sequence[int], points: np.ndarray, nodes: int
    ) -> dict[int, np.ndarray]:
        """Return the same of a model that NumPy evaluates, the derivatives by θ as differences."""
        flat, d, unknowns = self._target.layout, self._target.dimension, self.unknowns
        upper, every = np.triu_indices(d), np.arange(d)
        steps, moved = CELL_STEP * unknowns.units, _moved(self._rows, unknowns)
        of = RowValues(self._rows, moved, steps, self._others, unknowns.sums)

        def values(at: np.ndarray) -> np.ndarray:
            params = flat.params(at)
            if max(orders) == 0:  # nothing is differentiated by differences
                params = {name: part.astype(np.float32) for name, part in params.items()}
            with np.errstate(all="ignore"):  # far out: what is not finite tells nothing
                made = site.by_values(params, of, nodes)
            return np.swapaxes(made, 1, 2).reshape(len(at), -1)

        def gradients(at: np.ndarray) -> np.ndarray:
            return np.moveaxis(flat.differences(values, at, every), 0, 1)

        jacobians: dict[int, list[np.ndarray]] = {order: [] for order in orders}
        each = unknowns.each * unknowns.total * (2 * d) ** max(orders)
        width = max(VALUES_AT_ONCE // each, 1)
        for begin in range(0, len(points), width):
            at = points[begin : begin + width]
            if 0 in orders:
                jacobians[0].append(values(at))
            if 1 in orders:
                jacobians[1] += list(gradients(at))
            if 2 in orders:
                curvatures = np.moveaxis(flat.differences(gradients, at, every), 0, 1)
                jacobians[2] += list(curvatures[:, *upper])
        return {order: np.concatenate(parts) for order, parts in jacobians.items()}

    def _derivatives_once(self, revealed: Revealed, points: np.ndarray) -> dict[int, Any]:
        """Return the same; they are kept while an answer is tried with more and more noise.

        Copies of a site in one process, as a rehearsal has them, share them.
        """
        asked = revealed.orders, points.tobytes(), revealed.rules

        def make() -> dict[int, Any]:
            return self._derivatives(revealed.orders, points, revealed.rules)

        return kept(TRIED_LAST, (self._same, *asked), make, KEPT)

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
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(f"{self._path}.lock"), one_thread():  # more wait longer than products take
            before = self._current()
            blocks = [self._among_all(self._information(sums)) for sums in revealed]
            account = before.and_more(np.concatenate(blocks))
            deviations = self._deviations(account)
            self.excess = _information_on(deviations) / share
            permit(self._statement(deviations, 1 / math.sqrt(1 + share * (1 / NEAR**2 - 1))))
            account.write(self._path)
        return self._statement(deviations, NEAR)

    def _current(self) -> Account:
        """Return the account as it is now; other studies may have changed what is looked at."""
        stored = Account.read(self._path)
        if stored is None or not stored.has_values_of(self._account):
            self._choose(stored)
            return self._account
        return stored

    def spent(self) -> float:
        """Return the share that all answers so far hold of the information that settles a value."""
        return _information_on(self._deviations(self._current()))

    def _statement(self, deviations: Float[np.ndarray, "n k"], near: float) -> Statement:
        known = (deviations < near).any(axis=1)
        return Statement(int(known.sum()), len(self.unknowns.rows), self._count)

    def _deviations(self, account: Account) -> Float[np.ndarray, "n k"]:
        """Return the uncertainty of the values that count, in standard deviations of their columns.

        Those of rows that another version or study left out count, too.
        """
        columns, rows = account.columns, len(account.are_sums)
        deviations = _deviations(account.root, np.tile(columns.measured, rows))
        return deviations.reshape(account.known.shape)[~account.are_sums][:, columns.counted]

    def _among_all(self, information: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "m N"]:
        """Return information on the study's columns among those of all studies."""
        names = self._account.columns.names
        made = np.zeros((len(information), self.unknowns.total, len(names)))
        made[..., : self.unknowns.each] = information.reshape(*made.shape[:2], self.unknowns.each)
        return made.reshape(len(information), -1)

    def _information(self, revealed: Revealed) -> Float[np.ndarray, "m N"]:
        """Return the Jacobian of an answer in units of its error; of many numbers some sums."""
        if not self.unknowns.each or not len(revealed.points):
            return np.zeros((0, self.unknowns.total * self.unknowns.each))
        points, reference = np.asarray(revealed.points), revealed.reference
        if reference is not None:
            points = np.concatenate([points, reference[None]])
        places = points.astype(self._target.dtype)
        made = self._derivatives_once(revealed, places)
        units = np.tile(self.unknowns.units, self.unknowns.total)
        exact = ROUNDING[self._target.dtype.itemsize]
        blocks = []
        # What is not finite, far out, tells nothing.
        jacobians = {n: np.where(np.isfinite(of), of, 0) for n, of in made.items()}
        if revealed.away is not None:
            jacobians[1] = jacobians[1] + _from_afar(jacobians[2], revealed.away)
        if revealed.turn is not None:
            jacobians = {n: _turned(jacobians[n], revealed.turn, n) for n in (1, 2)}
        for order, jacobian in jacobians.items():
            base: np.ndarray | float = 0.0
            if order == 0 and reference is not None:
                jacobian, base = jacobian[:-1], jacobian[-1:].astype(float)
                if revealed.height is not None:
                    blocks.append(base * (units / math.hypot(revealed.height, exact)))
            elif reference is not None:
                jacobian = jacobian[: -(len(jacobian) // len(points))]
            error = np.hypot(np.ravel(revealed.errors.get(order, 0.0)), exact)
            information = np.subtract(jacobian, base, dtype=np.float64)
            information /= error[:, None]
            if len(information) > information.shape[1]:
                information = triangular_root(information)
            blocks.append(information * units)
        return np.concatenate(blocks)


def _information_on(deviations: Float[np.ndarray, "n k"]) -> float:
    """Return the information on the best known value, as a share of that on a settled one."""
    return float((1 / deviations.min(initial=1.0) ** 2 - 1) / (1 / NEAR**2 - 1))


def _deviations(
    root: Float[np.ndarray, "r N"], measured: Bool[np.ndarray, " N"]
) -> Float[np.ndarray, " N"]:
    """Return the uncertainty of each value, of measured ones where categorical ones are known.

    With the measured values first, the blocks of one factor L of all are factors of what is wanted:
    the first of the measured values' own matrix, the last of the others' given these.
    """
    from scipy import linalg  # heavy, and only wanted at sites

    order, split = np.argsort(~measured, kind="stable"), int(measured.sum())
    ordered, size = root[:, order], np.eye(root.shape[1])
    if (products := products_of(ordered)) is not None:
        factor = np.linalg.cholesky(products + size)
    else:
        factor = np.transpose(np.linalg.qr(np.concatenate([ordered, size]), mode="r"))
    deviations = np.ones(root.shape[1])
    for part in (slice(split), slice(split, None)):
        if order[part].size:
            inverse, fault = linalg.lapack.dtrtri(factor[part, part], lower=1)
            assert fault == 0, fault
            deviations[order[part]] = np.sqrt((inverse**2).sum(axis=0))
    return deviations


def _from_afar(
    curvatures: Float[np.ndarray, "mt N"], away: Float[np.ndarray, "m d"]
) -> Float[np.ndarray, "md N"]:
    """Return the curvatures' part in gradients of quadratics around points that far away."""
    whole = _whole(curvatures, *away.shape)
    return -np.einsum("mjkn,mk->mjn", whole, away).reshape(away.size, -1)


def _whole(
    curvatures: Float[np.ndarray, "mt N"], count: int, d: int
) -> Float[np.ndarray, "m d d N"]:
    """Return symmetric matrices of upper triangles."""
    first, second = np.triu_indices(d)
    whole = np.zeros((count, d, d, curvatures.shape[1]))
    whole[:, first, second] = whole[:, second, first] = curvatures.reshape(count, len(first), -1)
    return whole


def _turned(
    jacobian: Float[np.ndarray, "mk N"], turn: Float[np.ndarray, "m d d"], order: int
) -> Float[np.ndarray, "mk N"]:
    """Return the derivatives of T g from those of gradients g, of T A T' from those of A."""
    count, d, _ = turn.shape
    if order == 1:
        gradients = jacobian.reshape(count, d, -1)
        return np.asarray(np.einsum("mij,mjn->min", turn, gradients).reshape(jacobian.shape))
    whole = _whole(jacobian, count, d)
    made = np.einsum("mij,mjkn,mlk->miln", turn, whole, turn, optimize=True)
    return np.asarray(made[:, *np.triu_indices(d)].reshape(jacobian.shape))


def _moved(rows: Any, unknowns: Unknowns) -> Any:
    """Return the rows with each unknown moved up, and then down, one copy after the other."""
    leaves, structure = trees.leaves_of(rows), trees.structure_of(rows)
    count, tables = len(unknowns.rows), []
    for leaf, moves in zip(leaves, unknowns.moves, strict=True):
        values = np.asarray(leaf.value)
        wide = values.astype(np.float64) if values.dtype.kind == "f" else values
        table = np.concatenate([wide] * (2 * unknowns.each))
        copies = table.reshape(2, unknowns.each, count, -1)
        for index, column, ratio in moves:
            step = CELL_STEP * ratio * unknowns.units[index]
            copies[:, index, :, column] += np.array([[step], [-step]])
        tables.append(table)
    return structure.unflatten(tables)


CELL_STEP = 1e-3
"""Step of a central difference by a value of the rows, in standard deviations of its column."""


class _Shape(NamedTuple):
    """Sizes that a program is compiled for, hashable."""

    moves: tuple[tuple[tuple[int, int, float], ...], ...]  # see `Unknowns`
    each: int  # unknowns of a row
    structure: Any  # of the arrays of the rows
    orders: tuple[int, ...]  # of the derivatives


def _derivatives(
    target: Target, shape: _Shape, leaves: Sequence[Array], points: Float[Array, "m d"]
) -> dict[int, Float[Array, "k N"]]:
    """Return derivatives by the unknowns of sums over rows, and of their derivatives by θ.

    A row's log-density is a function of that row alone, so that one shift of all rows together has
    the derivatives by the measurements of each.
    """

    def summands(shift: Float[Array, " k"], position: Float[Array, " d"]) -> Float[Array, " n"]:
        shifted = []
        for leaf, moves in zip(leaves, shape.moves, strict=True):
            flat = leaf.reshape(leaf.shape[0], -1)
            added = np.zeros((shape.each, flat.shape[1]), flat.dtype)
            for index, column, ratio in moves:
                added[index, column] = ratio
            if moves:
                flat = flat + shift.astype(flat.dtype)[None] @ added
            shifted.append(flat.reshape(leaf.shape))
        return target.log_likelihood(position, jax.tree.unflatten(shape.structure, shifted))

    def of_order_0(position: Float[Array, " d"]) -> dict[int, Array]:
        zeros = jnp.zeros(shape.each, points.dtype)
        return {0: jax.jacfwd(summands)(zeros, position).ravel()}

    function: Callable[[Array], dict[int, Array]] = of_order_0
    for order in range(max(shape.orders)):
        function = _with_next(function, order)

    def at(position: Float[Array, " d"]) -> dict[int, Array]:
        derivatives = function(position)
        made = {0: derivatives[0][None]}
        if 1 in derivatives:
            made[1] = derivatives[1].T
        if 2 in derivatives:
            made[2] = derivatives[2].T[np.triu_indices(position.size)]
        return {order: made[order] for order in shape.orders}

    made = compiler.map_in_blocks(at, points, POINTS_AT_ONCE)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1]), made)


def _with_next(
    function: Callable[[Array], dict[int, Array]], order: int
) -> Callable[[Array], dict[int, Array]]:
    """Return a function of the same and of the derivative of its part of this order."""

    def both(position: Array) -> dict[int, Array]:
        def parts(at: Array) -> tuple[Array, dict[int, Array]]:
            lower_orders = function(at)
            return lower_orders[order], lower_orders

        derivative, lower_orders = jax.jacfwd(parts, has_aux=True)(position)
        return lower_orders | {order + 1: derivative}

    return both


def unknowns_of(
    rows: Any,
    count: int,
    rng: np.random.Generator,
    host: HostDensity | None,
    before: Account,
    digests: RowDigests,
) -> tuple[Unknowns, Looks]:
    """Select the values of a site that count as unknown.

    Args:
        rows: a pytree of arrays, padding included.
        count: of true rows.
        rng: by which half of the rows are drawn where there are many; the others lie far out.
        host: of the model, which labels columns.
        before: account of earlier studies.
        digests: of the true rows.
    """
    moves, units, measured, covariates = [], list[float](), list[bool](), list[bool]()
    axes = [] if host is None else [of for each in host.labels.values() for of in each]
    names, every = list[str](), [[*map(str, of)] for of in axes]
    model = "".join(sorted(str(labels) for labels in every))
    known: list[np.ndarray] = []  # the columns in their units
    for leaf in trees.leaves_of(rows):
        values = np.asarray(leaf.value)
        flat = values.reshape(len(values), -1)[:count].astype(np.float64)
        columns = np.arange(flat.shape[1]) if values.dtype.kind == "f" else np.zeros(0, int)
        numbers = [index for index in columns if not is_categorical(flat[:, index])]
        response, leaf_moves = is_response(leaf), list[tuple[int, int, float]]()
        kept = numbers if response else [index for index in columns if np.ptp(flat[:, index]) > 0]
        for index in kept:
            unit = flat[:, index].std()
            scaled = (flat[:, index] - flat[:, index].mean()) / unit
            same = [float(scaled @ other) / count for other in known]
            equal = [k for k, r in enumerate(same) if abs(r) > EQUAL and covariates[k] != response]
            if equal:
                ratio = unit / units[equal[0]] * math.copysign(1, same[equal[0]])
                leaf_moves.append((equal[0], int(index), float(ratio)))
                continue
            leaf_moves.append((len(units), int(index), 1.0))
            labels = [of for of in every if len(of) == flat.shape[1] and not response]
            names.append(labels[0][index] if labels else f"{leaf.path} {index} of {model}")
            known.append(scaled)
            units.append(unit)
            measured.append(index in numbers)
            covariates.append(not response)
        moves.append(tuple(leaf_moves))
    counted = np.array(covariates, bool)
    of_all = Columns(tuple(names), np.array(measured, bool), counted if counted.any() else ~counted)
    known_as = same_rows(
        RowDigests(
            before.rows.names, np.concatenate([before.rows.cells[~before.are_sums], before.others])
        ),
        digests,
    )
    looked_at = (known_as >= 0) & (known_as < (~before.are_sums).sum())
    is_new = (known_as < 0) & (before.whole or not looked_at.any())
    chosen = _chosen(known, of_all, before, looked_at, is_new, rng)
    weights = np.zeros((count, before.weights.shape[1]))
    summed = known_as - (~before.are_sums).sum()
    weights[summed >= 0] = before.weights[summed[summed >= 0]]
    if weights[chosen].any():  # their values cannot be unknown twice
        weights = weights[:, :0]
    old_sums, others = weights.shape[1], np.setdiff1d(np.flatnonzero(is_new), chosen)
    more, whole = others, before.whole and count <= MOST_NOTED
    if len(others) > MOST_SUMMED:
        others = others[np.linspace(0, len(others) - 1, MOST_SUMMED).astype(int)]
    wide = sorted(range(len(known)), key=lambda index: -np.abs(known[index]).max())
    most = MOST_SUMS // max(len(units), 1) - old_sums
    table = np.array([np.ones(count), *(known[index] for index in wide)])[: max(most, 0), others]
    if host is not None and table.size:
        added = np.linalg.qr(table[: len(others)].T)[0]
        weights = np.pad(weights, ((0, 0), (0, added.shape[1])))
        weights[others, old_sums:] = added
    more = more if whole else others
    new_sums = digests_of_sums(
        RowDigests(digests.names, digests.cells[more]), weights[more, old_sums:]
    )
    looks = Looks(of_all, digests, known_as, chosen, more, weights[more], old_sums, new_sums, whole)
    others = np.flatnonzero(weights.any(axis=1))
    of_each = tuple(moves), np.array(units), of_all
    return Unknowns(*of_each, chosen.astype(np.int32), others, weights[others]), looks


def _chosen(
    known: Sequence[np.ndarray],
    columns: Columns,
    before: Account,
    looked_at: np.ndarray,
    is_new: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Choose the rows that are looked at: those with far-out values, those before, and some more.

    A row that was not looked at has no values that can be unknown, unless a column is new.
    """
    every = columns.and_those_of(before.columns)
    width = max(len(every.names), 1)
    usable = looked_at | is_new
    if len(usable) * width <= ALL_UNKNOWN and usable.all():
        return np.arange(len(usable))
    most, room = max(MOST_UNKNOWNS // width, 1), max(ALL_UNKNOWN // width, 1)
    if len(every.names) > len(before.columns.names):
        usable = np.ones(len(usable), bool)
    sizes = [np.abs(part) for part, is_one in zip(known, columns.counted, strict=True) if is_one]
    farthest = np.max(sizes, axis=0, initial=0.0) if sizes else np.zeros(len(usable))
    order = np.argsort(-farthest, kind="stable")
    order = order[usable[order]]
    if len(order) <= most:
        return np.sort(order)
    far, others = order[: most // 2], rng.permutation(order[most // 2 :])
    again, more = others[looked_at[others]][: room - len(far)], others[is_new[others]]
    return np.sort(np.concatenate([far, again, more[: max(most - len(far) - len(again), 0)]]))
