"""Models written in PyMC: their statements sorted into a prior and one likelihood a row, in JAX."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core import arguments
from consortia.core.model import Model
from consortia.core.tails import Tail
from consortia.data.sites import Sites
from consortia.errors import InputError, require_extra, wrong
from consortia.models._factoring import (
    RADIUS,
    TOLERANCE,
    check_law,
    example_rows,
    is_sum_over_rows,
    one_row,
    reads_rows,
    single_rows,
    start,
)
from consortia.models._shared import Array, PyTree

CALLER = "from_pymc"


@arguments.hinted
def from_pymc(model: Any, rows: Sites | Mapping[str, Any]) -> Model:
    r"""Return the model of a PyMC model, its log-likelihood cut into rows.

    .. math:: \log p(\theta, z) = \log p(\theta) + \sum_i \log p(z_i \mid \theta)

    The columns of a site, arrays (rows, ...), take the places of the model's ``pm.Data`` of the
    same names; all that the rows decide, the observed values too, has to be such. What else the
    model holds is the same for every row. A statement (an observed variable, a potential) whose
    density is the same whatever the rows are belongs to the prior; one whose density of several
    rows is the sum over single ones, to the likelihood; of both it is made sure with rows of the
    example, at parameters drawn at random. PyTensor translates the densities to JAX.

    The group ``posterior`` of a result has the latent variables on the model's scale,
    ``pm.Deterministic`` included. They are sampled without their constraints, under names that
    say so, ``unconstrained(rate)``: these draws are in ``unconstrained_posterior``. ``Cauchy``
    and ``StudentT`` whose parameters are constants are sampled by scores with normal tails.

    Args:
        model: a ``pymc.Model``; its own data are not used.
        rows: the sites, or a dict of arrays like a site's, of which a few rows are looked at.

    Returns:
        The model. Chains start uniformly in (−1, 1) of each unconstrained parameter.

    Raises:
        InputError: the model does not factor over rows, or has a statement that cannot be used;
            the message names the statement.
        MissingExtraError: PyMC is not installed.

    Example:
        >>> import pymc as pm  # doctest: +SKIP
        >>> with pm.Model() as eight:  # doctest: +SKIP
        ...     effect, error = pm.Data("effect", [28.0, 8.0]), pm.Data("error", [15.0, 10.0])
        ...     mean = pm.Normal("mean", 0, 5)
        ...     pm.Normal("y", mean, error, observed=effect)
        >>> model = consortia.from_pymc(eight, sites)  # doctest: +SKIP
    """
    translate = _translator()
    import pymc

    if not isinstance(model, pymc.Model):
        raise wrong("model", f" of {CALLER} is a {type(model).__name__}: give a pymc.Model.")
    example = example_rows(CALLER, rows)
    graph = _Graph(model, translate, _columns(model, example), tuple(model.free_RVs))
    return _sorted(graph, example)


def _translator() -> Callable[..., Callable[..., Any]]:
    """Return PyMC's translation of graphs to functions of JAX."""
    # In a thread of its own, where no `jax.enable_x64` of the caller hides the process' width.
    with require_extra("pymc", f"{CALLER} needs PyMC"), ThreadPoolExecutor(1) as alone:
        return alone.submit(_loaded).result()


def _loaded() -> Callable[..., Callable[..., Any]]:
    """Import PyMC's part for JAX, and undo what that does to XLA's flags and JAX's width."""
    flags, wide = os.environ.get("XLA_FLAGS"), jax.config.read("jax_enable_x64")
    try:
        from pymc.sampling.jax import get_jaxified_graph  # optional
    finally:
        jax.config.update("jax_enable_x64", wide)
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags
    return get_jaxified_graph


def _columns(model: Any, example: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the model's data that are columns, by name."""
    from pytensor.compile.sharedvalue import SharedVariable

    data: dict[str, Any] = {
        n: shared for n, shared in model.named_vars.items() if isinstance(shared, SharedVariable)
    }
    for name, column in example.items():
        if name not in data:
            known = f"there are {', '.join(data)}" if data else "there is none"
            raise InputError(
                f"{CALLER}: the model has no pm.Data {name!r}, which is a column ({known}): add "
                "it, or leave the column out of the sites."
            )
        if data[name].ndim != column.ndim:
            raise InputError(
                f"{CALLER}: the column {name!r} has {column.ndim} axes, pm.Data of this name "
                f"{data[name].ndim}."
            )
    return {name: data[name] for name in example}


@dataclass(frozen=True, eq=False)
class _Graph:
    """A PyMC model whose pieces can be had as functions of JAX."""

    model: Any
    translate: Callable[..., Callable[..., Any]]  # see `_translator`
    columns: Mapping[str, Any]  # the shared variables in whose place columns stand, by name
    latents: tuple[Any, ...]  # the free random variables

    @property
    def values(self) -> list[Any]:
        """The unconstrained values of the latent variables."""
        return [self.model.rvs_to_values[latent] for latent in self.latents]

    @property
    def sampled(self) -> list[str]:
        """Names of the latent variables as they are sampled."""
        return [
            f"unconstrained({latent.name})" if tail or transform else latent.name
            for latent, tail, transform in zip(
                self.latents, self._tails, self._transforms, strict=True
            )
        ]

    @property
    def tails(self) -> dict[str, Tail]:
        """Laws by whose scores latent variables are sampled, by the names of these."""
        return {n: tail for n, tail in zip(self.sampled, self._tails, strict=True) if tail}

    @property
    def _transforms(self) -> list[Any]:
        return [self.model.rvs_to_transforms[latent] for latent in self.latents]

    @cached_property
    def _tails(self) -> list[Tail | None]:
        pairs = zip(self.latents, self._transforms, strict=True)
        return [None if transform else _tail_of(latent) for latent, transform in pairs]

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the unconstrained values."""
        start = self.model.initial_point(0)
        return [np.shape(start[value.name]) for value in self.values]

    def densities(self, statements: Sequence[Any]) -> Callable[..., list[Array]]:
        """Build the log-densities of statements, each summed, Jacobians included."""
        terms = self.model.logp(vars=list(statements), sum=False) if statements else []
        return self.function([term.sum(dtype="float64") for term in terms])

    def function(self, outputs: Sequence[Any]) -> Callable[..., list[Array]]:
        """Return outputs as a function of parameters and rows."""
        from pytensor.graph.replace import clone_replace

        places = {shared: shared.type() for shared in self.columns.values()}
        made = clone_replace(list(outputs), replace=places)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what PyTensor finds on this machine
            run = self.translate(inputs=[*self.values, *places.values()], outputs=made)
        names, tails = self.sampled, self.tails

        def of(params: PyTree, rows: PyTree) -> list[Array]:
            with (
                jax.numpy_dtype_promotion("standard"),
                jax.numpy_rank_promotion("allow"),
                warnings.catch_warnings(),
            ):
                # PyTensor's own types are of 64 bits, whatever JAX computes in.
                warnings.filterwarnings("ignore", "Explicitly requested dtype")
                given = [jnp.asarray(params[name]) for name in names]
                given = [
                    tails[name].value(leaf) if name in tails else leaf
                    for name, leaf in zip(names, given, strict=True)
                ]
                return list(run(*given, *(jnp.asarray(rows[name]) for name in self.columns)))

        return of

    def latent_shapes(self, rows: Mapping[str, np.ndarray]) -> list[tuple[int, ...]]:
        """Return the shapes of the latent variables on their own scale with these rows."""
        from pytensor import tensor
        from pytensor.compile.function import function
        from pytensor.compile.mode import Mode

        shared = {
            var: var.type.filter(rows[n], allow_downcast=True) for n, var in self.columns.items()
        }
        given = {variable: tensor.constant(value) for variable, value in shared.items()}
        mode = Mode(linker="py", optimizer="fast_compile")
        shapes = [latent.shape for latent in self.latents]
        arrays = function([], shapes, givens=given, mode=mode, on_unused_input="ignore")()
        return [tuple(np.asarray(shape).tolist()) for shape in arrays]


def _tail_of(latent: Any) -> Tail | None:
    """Return the tail of a law by whose scores a latent variable is sampled; None of others."""
    from pymc.pytensorf import constant_fold
    from pytensor.graph.basic import Variable
    from pytensor.tensor.random.basic import CauchyRV, StudentTRV

    if latent.owner is None or not isinstance(latent.owner.op, CauchyRV | StudentTRV):
        return None
    *freedom, centre, scale = constant_fold(
        latent.owner.op.dist_params(latent.owner), raise_not_constant=False
    )
    if any(isinstance(part, Variable) for part in (*freedom, centre, scale)):
        return None  # it depends on another latent variable, or on rows
    return Tail(1 / np.asarray(freedom[0], float) if freedom else 1.0, centre, scale)


def _sorted(graph: _Graph, example: Mapping[str, np.ndarray]) -> Model:
    """Return the model with its statements sorted, or refuse one by name."""
    model, latents = graph.model, graph.latents
    if not latents:
        raise InputError(f"{CALLER}: the model has no latent variable.")
    for latent in latents:
        if np.dtype(latent.dtype).kind not in "fc":
            raise InputError(
                f"{CALLER}: the latent variable {latent.name!r} is discrete: sum it out, as "
                "pm.Mixture does."
            )
    singles, shapes = single_rows(example), graph.shapes()
    count = len(singles)

    def tried(work: Callable[[], Any], rows: int) -> Any:
        try:
            return work()
        except NotImplementedError as error:
            raise InputError(f"{CALLER}: PyTensor has no such operation in JAX: {error}") from error
        except (TypeError, ValueError, IndexError) as error:
            first = str(error).split("\n")[0]
            raise InputError(
                f"{CALLER}: the model cannot be computed with {rows} of its rows: {first}. All "
                "that has a value of each row, the observed values too, has to be a pm.Data whose "
                "name is a column."
            ) from error

    whole = tried(lambda: graph.latent_shapes(example), count)
    alone = tried(lambda: graph.latent_shapes(singles[0]), 1)
    for latent, several, single in zip(latents, whole, alone, strict=True):
        if several != single:
            raise InputError(
                f"{CALLER}: the latent variable {latent.name!r} has shape {several} with several "
                f"rows and {single} with one: a value of each row cannot be sampled by the "
                "server. Integrate it out, or give groups by a column with their number as a "
                "constant."
            )
    from pymc.variational.minibatch_rv import MinibatchRandomVariable

    for observed in model.observed_RVs:
        if observed.owner is not None and isinstance(observed.owner.op, MinibatchRandomVariable):
            raise InputError(
                f"{CALLER}: the observed variable {observed.name!r} has a total_size: methods take "
                "minibatches by themselves; leave it out."
            )
    statements = [*model.observed_RVs, *model.potentials]
    every = [*latents, *statements]
    names = [variable.name for variable in every]
    densities = tried(lambda: jax.jit(graph.densities(every)), count)
    points = [
        {
            name: rng.uniform(-RADIUS, RADIUS, shape)
            for name, shape in zip(graph.sampled, shapes, strict=True)
        }
        for rng in map(np.random.default_rng, (0, 1))
    ]

    def table(rows: Mapping[str, Any], count: int) -> np.ndarray:
        runs = tried(lambda: [densities(point, rows) for point in points], count)
        return np.array([[float(value) for value in run] for run in runs])

    together = table(example, count)
    apart = np.stack([table(single, 1) for single in singles], axis=-1)
    reads = reads_rows(lambda rows: densities(points[0], rows), example)
    for at, latent in enumerate(latents):
        check_law(CALLER, latent.name, together[:, at], apart[:, at], reads[at])
    prior, likelihood = list(latents), list[Any]()
    for at, statement in enumerate(statements, len(latents)):
        is_sum = is_sum_over_rows(CALLER, names[at], together[:, at], apart[:, at], reads[at])
        (likelihood if is_sum else prior).append(statement)
    if not likelihood:
        raise InputError(f"{CALLER}: no observed variable or potential depends on the rows.")
    kinds = {name: (column.shape[1:], column.dtype) for name, column in example.items()}
    return _model(
        graph,
        shapes,
        graph.densities(prior),
        graph.densities(likelihood),
        _constants(graph, points[0], example, singles[0]),
        kinds,
    )


def _model(
    graph: _Graph,
    shapes: Sequence[tuple[int, ...]],
    prior: Callable[..., list[Array]],
    likelihood: Callable[..., list[Array]],
    derived: Sequence[Any],
    kinds: Mapping[str, tuple[tuple[int, ...], Any]],
) -> Model:
    tails = graph.tails

    def log_prior(params: PyTree) -> Array:
        slopes = [jnp.sum(tail.log_slope(jnp.asarray(params[n]))) for n, tail in tails.items()]
        return sum([*prior(params, one_row(kinds)), *slopes], jnp.zeros(()))

    def log_likelihood(params: PyTree, batch: PyTree) -> Array:
        def of_row(row: PyTree) -> Array:
            batch_of_one = {name: leaf[None] for name, leaf in row.items()}
            return jnp.sum(jnp.stack(likelihood(params, batch_of_one)))

        return jax.vmap(of_row)({name: jnp.asarray(batch[name]) for name in kinds})

    names = [variable.name for variable in (*graph.latents, *derived)]
    on_own_scale = graph.function(graph.model.replace_rvs_by_values([*graph.latents, *derived]))

    def natural(params: PyTree) -> dict[str, Array]:
        return dict(zip(names, on_own_scale(params, one_row(kinds)), strict=True))

    begin = partial(start, dict(zip(graph.sampled, shapes, strict=True)))
    return Model(log_prior, log_likelihood, begin, natural=natural, tails=tails)


def _constants(
    graph: _Graph,
    point: PyTree,
    several: Mapping[str, np.ndarray],
    single: Mapping[str, np.ndarray],
) -> list[Any]:
    """Return the deterministic variables that depend neither on rows nor on their number."""
    every = list(graph.model.deterministics)
    if not every:
        return []
    values = jax.jit(graph.function(graph.model.replace_rvs_by_values(every)))
    reads = reads_rows(lambda rows: values(point, rows), several)
    pairs = zip(values(point, several), values(point, single), strict=True)
    return [
        variable
        for variable, of_rows, (all_of, first) in zip(every, reads, pairs, strict=True)
        if not of_rows
        and np.shape(all_of) == np.shape(first)
        and np.allclose(all_of, first, TOLERANCE)
    ]
