"""Programs by which the sites of one process answer a query: their sum, or all answers.

The sum is taken on the device, over a few sites at a time, so that nothing of the size of all
answers is held. In single precision it is compensated; the host adds the parts in double precision.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int32

from consortia.core.contract import Site
from consortia.core.queries import SiteFunction
from consortia.core.target import Target
from consortia.dynamics.metropolis import NUMBERS_OF_ROW, add_in_pairs, two_sum
from consortia.engines.kept import kept
from consortia.engines.panel import Answer, evaluated_points
from consortia.engines.phases import SiteArrays
from consortia.engines.sharding import ARRAYS, NODES, Sharding
from consortia.runtime import compiler
from consortia.runtime.late import Array, PyTree, jax, jnp

VALUES_TOGETHER = {"cpu": 2**18}
"""Row values that sites computed side by side hold; more, 1 MiB in single precision,
leave a processor's cache."""

VALUES_ELSEWHERE = 2**22
"""The same on an accelerator, 16 MiB in single precision. Chosen, not measured."""

FEW_EVALUATIONS = 1_000_000
"""Rows that a query reads at all its points, up to which its program is hardly optimised.

Measured on a logistic regression: 1.1e-7 s a row against 1.2e-8 s lightly optimised, whose programs
compile .5 s longer (one function, a few calls a run); full optimisation runs no faster than that.
"""

KEPT_PROGRAMS = 64
"""Programs that are kept for later runs, those that were used last."""

_programs: OrderedDict[Any, Callable[..., Any]] = OrderedDict()


def _here(tree: PyTree) -> PyTree:
    """Return arrays of one device, which are here."""
    return tree


def structure_key(target: Target) -> tuple[Any, ...]:
    """Return structure and shapes of a target's parameters, by which programs are kept."""
    leaves, structure = jax.tree.flatten(target.structure)
    return str(structure), tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


class SitePrograms:
    """The compiled site functions over the sites of this process.

    Args:
        target: the posterior.
        arrays: their data; where they are divided over devices, repeated to fill the last one.
        first: index of the first of them among all sites.
        count: how many of them there are.
        mapped: always compute them one after the other.
        division: the devices that they are divided over; None: one.
    """

    def __init__(
        self,
        target: Target,
        arrays: SiteArrays,
        first: int,
        count: int,
        *,
        mapped: bool,
        division: Sharding | None = None,
    ) -> None:
        self._target, self.arrays, self._first, self._count = target, arrays, first, count
        self._mapped, self._division = mapped, division
        self._model = target.model, *structure_key(target)

    def answer(
        self, function: SiteFunction, arrays: Answer, gather: Callable[[PyTree], PyTree] = _here
    ) -> Answer:
        """Return these sites' answer to completed arrays, in double precision.

        Args:
            function: the site function.
            arrays: arguments of the function, completed by the root.
            gather: brings arrays of several devices to this process.
        """
        points = evaluated_points(function, arrays)
        program = self._program(function, points)
        # among all sites: the first of this process, and the one after its last
        numbers = np.array([self._first, self._first + self._count], np.int32)
        reply = gather(program(self._width(points), self.arrays, arrays, numbers))
        if not function.summed:
            return {n: np.asarray(v, np.float64)[: self._count] for n, v in reply.items()}
        totals, errors = reply
        with np.errstate(invalid="ignore"):  # +inf and -inf from two devices are NaN, as in a sum
            return {
                name: (_host(totals[name]) + _host(errors[name])).sum(axis=0) for name in totals
            }

    def _program(self, function: SiteFunction, points: int) -> Callable[..., Any]:
        """Return the compiled program of a function, which is kept for later runs."""
        key = (self._model, function.answer, function.summed, self._division)
        options = self._options(points)
        full_key = (*key, tuple(sorted(options.items())))
        combine = _summed if function.summed else _side_by_side
        body = partial(combine, function.answer, self._target)
        make = partial(_compiled, body, self._division, options)
        return kept(_programs, full_key, make, KEPT_PROGRAMS)

    def _options(self, points: int) -> dict[str, Any]:
        """Return the compiler's effort: little, unless this query repays more.

        Other options may round otherwise: they follow from the query, and not from earlier runs.
        """
        rows = max(points, 1) * self._rows * self._nodes
        rows *= NUMBERS_OF_ROW if self._target.model.by_site else 1
        return compiler.for_once() if rows <= FEW_EVALUATIONS else compiler.lightly()

    @property
    def memory(self) -> int:
        """Bytes of the rows."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.arrays.data))

    @property
    def _rows(self) -> int:
        return int(jax.tree.leaves(self.arrays.data)[0].shape[1])

    @property
    def _nodes(self) -> int:
        return int(self.arrays.sizes.shape[0])

    def _width(self, points: int) -> int:
        """Count the sites that are computed side by side."""
        if self._mapped:
            return 1
        d = self._target.dimension
        # values of the rows, and of an answer, which may be a d x d matrix such as a curvature
        each = self._rows * (NUMBERS_OF_ROW if self._target.model.by_site else 1) + d * d
        most = VALUES_TOGETHER.get(jax.default_backend(), VALUES_ELSEWHERE)
        site_count = self._nodes // (1 if self._division is None else self._division.nodes)
        return int(np.clip(most // (each * max(points, 1)), 1, site_count))


def _host(leaf: Any) -> np.ndarray:
    return np.asarray(leaf).astype(np.float64)


def _compiled(
    body: Callable[..., Any], division: Sharding | None, options: dict[str, Any]
) -> Callable[..., Any]:
    """Return ``(width, sites, arrays, numbers) -> reply`` as a program, parts of devices first."""
    if division is None:

        def whole(width: int, sites: SiteArrays, arrays: PyTree, numbers: Array) -> PyTree:
            return body(width, sites, arrays, numbers, 0)
    else:

        def whole(width: int, sites: SiteArrays, arrays: PyTree, numbers: Array) -> PyTree:
            def part(sites: SiteArrays, arrays: PyTree, numbers: Array) -> PyTree:
                return body(width, sites, arrays, numbers, jax.lax.axis_index(NODES))

            everywhere = jax.sharding.PartitionSpec()
            return jax.shard_map(
                part,
                mesh=division.mesh,
                in_specs=(division.specs(ARRAYS), everywhere, everywhere),
                out_specs=jax.sharding.PartitionSpec(NODES),
                check_vma=False,
            )(sites, arrays, numbers)

    return jax.jit(whole, static_argnums=0, compiler_options=options)


Function = Callable[[Target, Mapping[str, Array], Site], Mapping[str, Array]]


def _replies(
    function: Function,
    target: Target,
    sites: SiteArrays,
    arrays: Mapping[str, Array],
    nodes: Int32[Array, " width"],
    numbers: Int32[Array, " width"],
) -> PyTree:
    """Return the replies of some sites, site axis first, in the target's type of number.

    Integers stay what they are: noise that protects a row is for exact sums.
    """

    def in_width(leaf: Array) -> Array:
        exact = jnp.issubdtype(leaf.dtype, jnp.integer)
        return leaf if exact else jnp.asarray(leaf, target.dtype)

    def at(node: Array, number: Array) -> PyTree:
        reply = function(target, arrays, sites.site(node, number))
        return jax.tree.map(in_width, dict(reply))

    if nodes.shape[0] == 1:  # a batch of one computes otherwise, and slower
        return jax.tree.map(lambda leaf: leaf[None], at(nodes[0], numbers[0]))
    return jax.vmap(at)(nodes, numbers)


def _blocks(
    width: int, sites: SiteArrays, numbers: Int32[Array, " 2"], part: Any
) -> tuple[Array, Array, Array]:
    """Return, each (blocks, width), indices of sites, their numbers, and which of them are real.

    An index counts the sites of a device, a number all sites. Not real are repetitions of the last
    site that fill a block or a device.
    """
    site_count = sites.sizes.shape[0]
    count = -(-site_count // width) * width
    index = jnp.arange(count, dtype=jnp.int32)
    node = jnp.minimum(index, site_count - 1)
    number = numbers[0] + jnp.asarray(part, jnp.int32) * site_count + node
    real = (index < site_count) & (number < numbers[1])
    return tuple(values.reshape(-1, width) for values in (node, number, real))  # type: ignore[return-value]


def _summed(
    function: Function,
    target: Target,
    width: int,
    sites: SiteArrays,
    arrays: Mapping[str, Array],
    numbers: Int32[Array, " 2"],
    part: Any,
) -> tuple[PyTree, PyTree]:
    """Return the sum over the sites and its compensation, each with an axis for this device."""
    nodes, site_numbers, real = _blocks(width, sites, numbers, part)
    replies = jax.jit(partial(_replies, function, target, sites, arrays))  # traced once
    like = jax.eval_shape(replies, nodes[0], site_numbers[0])
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), like)

    def add(so_far: tuple[PyTree, PyTree], block: tuple[Array, Array, Array]) -> Any:
        nodes, site_numbers, real = block
        totals, errors = so_far

        def add_values(total: Array, error: Array, values: Array) -> tuple[Array, Array]:
            counted = jnp.where(real.reshape(-1, *(1,) * (values.ndim - 1)), values, 0)
            value, lost = _folded(counted)
            if value.dtype == jnp.float64:
                return total + value, error
            total, rounding = two_sum(total, value)
            return total, error + (rounding + lost)

        values = replies(nodes, site_numbers)
        pairs = {name: add_values(totals[name], errors[name], values[name]) for name in values}
        after = tuple({name: pair[i] for name, pair in pairs.items()} for i in (0, 1))
        return after, None

    (totals, errors), _ = jax.lax.scan(add, (zeros, zeros), (nodes, site_numbers, real))
    # What is not finite has no rounding error, and two_sum makes it NaN.
    errors = jax.tree.map(lambda t, e: jnp.where(jnp.isfinite(t), e, 0), totals, errors)
    return jax.tree.map(lambda leaf: leaf[None], (totals, errors))


def _folded(values: Array) -> tuple[Array, Array]:
    """Return the sum over the first axis and its compensation."""
    if values.dtype == jnp.float64:
        return jnp.sum(values, axis=0), jnp.zeros(values.shape[1:], values.dtype)
    values, errors = add_in_pairs(values, 1)
    return values[0], errors[0]


def _side_by_side(
    function: Function,
    target: Target,
    width: int,
    sites: SiteArrays,
    arrays: Mapping[str, Array],
    numbers: Int32[Array, " 2"],
    part: Any,
) -> PyTree:
    """Return the replies of the sites, site axis first."""
    nodes, site_numbers, _ = _blocks(width, sites, numbers, part)
    replies = jax.lax.map(
        lambda block: _replies(function, target, sites, arrays, *block), (nodes, site_numbers)
    )
    site_count = sites.sizes.shape[0]
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:site_count], replies)
