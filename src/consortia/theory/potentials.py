"""Every site's −log-likelihood with its derivatives at a point, and the mode that follows.

Each is a few sums over a site's own rows, so that the posterior's expansion needs no pooled rows:
it is the same wherever the rows are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from consortia.core.model import Model
from consortia.core.target import Target, in_jax_width
from consortia.data.facts import Gatherer
from consortia.data.sites import Sites
from consortia.errors import InputError
from consortia.runtime import compiler
from consortia.runtime.late import Array, PyTree, jax, jnp
from consortia.surrogates.curvature import hessian
from consortia.surrogates.newton import Pieces, newton

Flat = Float[np.ndarray, " d"]
Answer = Mapping[str, np.ndarray]

TOGETHER = 512
"""Sites of one call, where there are more sites than that: a call a site would cost more than its
sums. How many there are in all decides, so that every engine computes the same numbers."""

POINTS, MOST_OPERATIONS = 3_000, 10_000_000
"""Rows times points, or squared parameters where these are more, up to which hardly optimised
programs are faster, their compilation included. Measured with logistic regressions of 600 to
100,000 rows and 30 and 100 parameters: values at a thousand points take five times as long then."""

VALUES = "values"
EXPANSION = "expansion"
ROWS = "rows"
GRADIENTS = "gradients"


class SitePotentials:
    """The sites' potentials at points, gathered from the processes that hold them.

    All processes make the same calls, and get the same numbers.

    Args:
        model: the model.
        sites: names and sizes of all sites, rows where they are.
        parameters: an example of the parameters.
        engine: gathers; this process alone when None.
    """

    anywhere: ClassVar[bool] = True
    """True if they can be evaluated at any point."""

    def __init__(
        self, model: Model, sites: Sites, parameters: PyTree, engine: Gatherer | None = None
    ) -> None:
        target = Target(model, parameters)
        leaves, structure = jax.tree.flatten(target.structure)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        small = sites.rows * max(target.dimension**2, POINTS) <= MOST_OPERATIONS
        self._functions = _compiled(model, structure, shapes, small)
        self._engine = engine or Gatherer()
        self._sites = sites
        self._rows, self._stacks = dict[int, PyTree](), dict[int, PyTree]()
        self._latest: tuple[Flat, dict[str, np.ndarray]] | None = None
        self._dtype = target.dtype
        self.start = target.flat(parameters).astype(np.float64)
        self.sizes = np.asarray(sites.sizes, np.float64)
        if engine is None and sites.elsewhere:
            sites.padded()  # says which rows are not here

    def expansion(
        self, position: Flat
    ) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S d"], Float[np.ndarray, "S d d"]]:
        """Return value, gradient and Hessian of every site's −log-likelihood."""
        if self._latest is None or not np.array_equal(self._latest[0], position):
            self._latest = position, self._gather(EXPANSION, position)
        answers = self._latest[1]
        return answers["value"], answers["gradient"], answers["hessian"]

    def rows(self, position: Flat) -> Float[np.ndarray, "S d d"]:
        """Return the covariance of the gradients of single rows, divided by n_c, at every site."""
        return self._gather(ROWS, position)["covariance"]

    def single_rows(
        self, index: int, position: Flat
    ) -> tuple[Float[np.ndarray, "n d d"], Float[np.ndarray, "n d"]]:
        """Return Hessian and gradient of every row's −log-likelihood at a site of this process."""
        hessians, gradients = self._functions.single_rows(self._to(position), self._of(index))
        n = int(self._sites.sizes[index])
        return np.asarray(hessians, np.float64)[:n], np.asarray(gradients, np.float64)[:n]

    def values(self, points: Float[np.ndarray, "K d"]) -> Float[np.ndarray, " K"]:
        """Return the log-density at some points, up to a constant."""
        likelihood = -self._gather(VALUES, points)["values"].sum(axis=0)
        prior = self._functions.prior_values(self._to(points))
        return likelihood + np.asarray(prior, np.float64)

    def scores(self, points: Float[np.ndarray, "K d"]) -> Float[np.ndarray, "K d"]:
        """Return the gradient of the log-density at some points, which the sites sum up to."""
        likelihood = -self.site_gradients(points).sum(axis=1)
        prior = self._functions.prior_gradients(self._to(points))
        return likelihood + np.asarray(prior, np.float64)

    def site_gradients(self, points: Float[np.ndarray, "K d"]) -> Float[np.ndarray, "K S d"]:
        """Return the gradient of every site's −log-likelihood at some points."""
        sent = self._gather(GRADIENTS, points)["gradients"]
        return np.asarray(sent, np.float64).swapaxes(0, 1)

    def prior(self, position: Flat) -> tuple[float, Flat, Float[np.ndarray, "d d"]]:
        """Return value, gradient and Hessian of −log-prior."""
        value, gradient, curvature = self._functions.prior(self._to(position))
        return float(value), np.asarray(gradient, np.float64), np.asarray(curvature, np.float64)

    def mode(self) -> Flat:
        """Return the posterior's mode downhill from the start, by damped Newton steps.

        Raises:
            InputError: it is not reached.
        """
        return mode_by(self.whole, self.start)

    def away(self, mode: Flat, covariance: Float[np.ndarray, "d d"]) -> Flat:
        """Return the point, two standard deviations from the mode, of the second Hessian."""
        return mode + 2 * np.sqrt(np.diagonal(covariance))

    def whole(self, position: Flat) -> tuple[float, Flat, Float[np.ndarray, "d d"]]:
        """Return value, gradient and Hessian of the posterior's −log-density."""
        values, gradients, hessians = self.expansion(position)
        value, gradient, curvature = self.prior(position)
        return (
            float(values.sum() + value),
            gradients.sum(axis=0) + gradient,
            hessians.sum(axis=0) + curvature,
        )

    def _gather(self, what: str, position: Float[np.ndarray, "*K d"]) -> dict[str, np.ndarray]:
        gathered = self._engine.allgather(lambda: self._own(what, position))
        answers: dict[int, Answer] = {}
        for process in gathered:
            for index, answer in process.items():
                answers.setdefault(int(index), answer)
        if len(answers) < len(self._sites):
            raise InputError("no process has the rows of all sites")
        names = answers[0]
        return {
            name: np.stack([answers[i][name] for i in range(len(answers))]).astype(np.float64)
            for name in names
        }

    def _own(self, what: str, position: Float[np.ndarray, "*K d"]) -> dict[str, Answer]:
        """Return the answers of the sites of this process."""
        function = getattr(self._functions, what)
        here, at = list(self._sites.here), self._to(position)
        if len(self._sites) <= TOGETHER:
            answers = [function(at, self._of(i), self._sites.sizes[i]) for i in here]
            return {str(i): jax.device_get(answer) for i, answer in zip(here, answers, strict=True)}
        by_site: dict[str, Answer] = {}
        for begin in range(0, len(here), TOGETHER):
            indices = here[begin : begin + TOGETHER]
            stacked = jax.device_get(_of_many(function)(at, *self._stacked(indices)))
            for row, index in enumerate(indices):
                by_site[str(index)] = {name: values[row] for name, values in stacked.items()}
        return by_site

    def _of(self, index: int) -> PyTree:
        """Return the rows of a site on the device, as many as the largest has."""
        if index not in self._rows:
            self._rows[index] = jax.device_put(self._padded(index))
        return self._rows[index]

    def _stacked(self, indices: list[int]) -> tuple[PyTree, Int[np.ndarray, " C"]]:
        """Return the rows of some sites and their sizes; the last site again up to `TOGETHER`."""
        full = np.pad(indices, (0, TOGETHER - len(indices)), mode="edge")
        first = indices[0]
        if first not in self._stacks:
            rows = [self._padded(index) for index in full]
            self._stacks[first] = jax.device_put(jax.tree.map(lambda *leaf: np.stack(leaf), *rows))
        return self._stacks[first], self._sites.sizes[full]

    def _padded(self, index: int) -> PyTree:
        take = np.minimum(np.arange(self._sites.sizes.max()), self._sites.sizes[index] - 1)
        return jax.tree.map(lambda leaf: in_jax_width(leaf[take]), self._sites.shards[index])

    def _to(self, position: Float[np.ndarray, "*K d"]) -> Array:
        return jax.device_put(np.asarray(position, self._dtype))  # without a program


class StoredPotentials(SitePotentials):
    """Potentials that the sites have sent once: at the mode, and their Hessians at a point away.

    ``left`` is the mode, the point, and of all sites gradients, Hessians and Hessians away.
    """

    anywhere = False

    def __init__(self, model: Model, sites: Sites, parameters: PyTree, left: Any) -> None:
        super().__init__(model, sites, parameters, Gatherer())
        self._mode, self._away, self._sent = left

    def mode(self) -> Flat:
        """Return the mode that was found."""
        return self._mode

    def expansion(
        self, position: Flat
    ) -> tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S d"], Float[np.ndarray, "S d d"]]:
        """Return gradient and Hessian of every site's −log-likelihood at the mode, or away."""
        gradients, hessians, away = self._sent
        at_mode = np.array_equal(position, self._mode)
        return np.zeros(len(gradients)), gradients, hessians if at_mode else away

    def away(self, mode: Flat, covariance: Float[np.ndarray, "d d"]) -> Flat:
        """Return the point at which the sites have evaluated their Hessians."""
        return self._away

    def _gather(self, what: str, position: Float[np.ndarray, "*K d"]) -> dict[str, np.ndarray]:
        """Refuse: nothing was evaluated elsewhere, and nothing is sent of single rows."""
        if what == ROWS:
            raise InputError(
                "the sites send nothing of single rows, which minibatches' noise needs"
            )
        raise InputError("the sites have evaluated their potentials at the mode only")


def mode_by(function: Pieces, start: Flat) -> Flat:
    """Return the minimum downhill from a start of a function given with two derivatives.

    The values are sums in single precision, and may cost a message each.

    Raises:
        InputError: it is not reached.
    """
    minimum = newton(function, start, width=np.float32)
    if not minimum.converged:
        raise InputError(
            "the search for the posterior's mode did not end: it has none near the start, or is "
            "not log-concave there"
        ).at("start")
    return minimum.position


@lru_cache(maxsize=32)
def _of_many(function: Callable[..., Any]) -> Callable[..., Any]:
    many = jax.vmap(inspect.unwrap(function), in_axes=(None, 0, 0))
    return jax.jit(many, compiler_options=compiler.lightly())


class _Functions(NamedTuple):
    expansion: Callable[[Array, PyTree, Array], dict[str, Array]]
    rows: Callable[[Array, PyTree, Array], dict[str, Array]]
    single_rows: Callable[[Array, PyTree], tuple[Array, Array]]
    values: Callable[[Array, PyTree, Array], dict[str, Array]]
    gradients: Callable[[Array, PyTree, Array], dict[str, Array]]
    prior: Callable[[Array], tuple[Array, Array, Array]]
    prior_values: Callable[[Array], Array]
    prior_gradients: Callable[[Array], Array]


@lru_cache(maxsize=8)
def _compiled(
    model: Model,
    structure: jax.tree_util.PyTreeDef,
    shapes: tuple[tuple[tuple[int, ...], str], ...],
    small: bool,
) -> _Functions:
    options = compiler.for_once() if small else compiler.lightly()
    few_times = partial(jax.jit, compiler_options=options)
    example = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    target = Target(model, jax.tree.unflatten(structure, example))

    def likelihood(x: Array, rows: PyTree, size: Int[Array, ""]) -> Array:
        values = target.log_likelihood(x, rows)
        # Rows beyond the size are padding, which repeats a row.
        return -jnp.sum(jnp.where(jnp.arange(len(values), dtype=size.dtype) < size, values, 0))

    def of_row(x: Array, row: PyTree) -> Array:
        return -target.log_likelihood(x, jax.tree.map(lambda leaf: leaf[None], row))[0]

    @few_times
    def expansion(x: Array, rows: PyTree, size: Int[Array, ""]) -> dict[str, Array]:
        def of(at: Array) -> Array:
            return likelihood(at, rows, size)

        value, gradient = jax.value_and_grad(of)(x)
        return {"value": value, "gradient": gradient, "hessian": hessian(of, x, full=True)}

    @few_times
    def rows_at(x: Array, rows: PyTree, size: Int[Array, ""]) -> dict[str, Array]:
        # Row by row: all gradients at once would take rows × parameters of memory.
        def add(total: Array, each: tuple[Array, PyTree]) -> tuple[Array, None]:
            index, row = each
            value = jax.grad(of_row)(x, row)
            return total + jnp.where(index < size, jnp.outer(value, value), 0), None

        indices = jnp.arange(jax.tree.leaves(rows)[0].shape[0], dtype=size.dtype)
        square, _ = jax.lax.scan(add, jnp.zeros((x.size, x.size), x.dtype), (indices, rows))
        gradient, count = jax.grad(likelihood)(x, rows, size), size.astype(x.dtype)
        return {"covariance": square / count - jnp.outer(gradient, gradient) / count**2}

    @few_times
    def single_rows(x: Array, rows: PyTree) -> tuple[Array, Array]:
        def of(row: PyTree) -> tuple[Array, Array]:
            return hessian(lambda at: of_row(at, row), x, full=True), jax.grad(of_row)(x, row)

        return jax.vmap(of)(rows)

    @few_times
    def values(points: Array, rows: PyTree, size: Int[Array, ""]) -> dict[str, Array]:
        return {"values": jax.lax.map(lambda x: likelihood(x, rows, size), points)}

    @few_times
    def gradients(points: Array, rows: PyTree, size: Int[Array, ""]) -> dict[str, Array]:
        return {"gradients": jax.lax.map(lambda x: jax.grad(likelihood)(x, rows, size), points)}

    def negative_prior(x: Array) -> Array:
        return -target.log_prior(x)

    @few_times
    def prior(x: Array) -> tuple[Array, Array, Array]:
        return (*jax.value_and_grad(negative_prior)(x), hessian(negative_prior, x, full=True))

    return _Functions(
        expansion,
        rows_at,
        single_rows,
        values,
        gradients,
        prior,
        prior_values=few_times(lambda points: jax.lax.map(target.log_prior, points)),
        prior_gradients=few_times(lambda points: jax.lax.map(jax.grad(target.log_prior), points)),
    )
