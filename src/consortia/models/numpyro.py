"""Models written in NumPyro: their statements sorted into a prior and one likelihood a row."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core.model import Model
from consortia.core.tails import Tail
from consortia.data.sites import Sites
from consortia.errors import InputError, require_extra
from consortia.models import _integrated
from consortia.models._factoring import (
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


def from_numpyro(
    model: Callable[..., Any],
    rows: Sites | Mapping[str, Any],
    *,
    site_plate: str = "site",
    **constants: Any,
) -> Model:
    r"""Return the model of a NumPyro function, its log-likelihood cut into rows.

    .. math:: \log p(\theta, z) = \log p(\theta) + \sum_i \log p(z_i \mid \theta)

    or, with latent variables u in the plate of the site, into sites, u integrated out,

    .. math:: \log p(\theta, z) = \log p(\theta) + \sum_s \log \int p(u \mid \theta)
        \prod_{i \in s} p(z_i \mid \theta, u)\, du

    The function's keyword arguments are the columns of a site, arrays (rows, ...). It is called
    with one row at a time: the number of rows has to come from the columns, as in
    ``numpyro.plate("rows", x.shape[0])``. A statement whose density is the same whatever the rows
    are belongs to the prior; one whose density of several rows is the sum over single ones, to the
    likelihood; of both it is made sure with rows of the example, at parameters drawn at random.

    The group ``posterior`` of a result has the latent variables on the model's scale,
    deterministic statements included. They are sampled without their constraints, under names that
    say so, ``unconstrained(rate)``: these draws are in ``unconstrained_posterior``. ``Cauchy``
    and ``StudentT`` whose parameters are constants are sampled by scores with normal tails.

    What is drawn in the plate of the site, ``numpyro.plate("site", 1)``, is drawn for each site
    anew and is not a parameter of the chains: a site integrates it out by an adaptive Gauss-Hermite
    rule (15 nodes, 9 x 9 of two numbers, with `few_rounds` as many as it measures to be enough),
    and `consortia.recover` draws it there afterwards. It has to be normal or a function of normal
    variables (``Normal``, ``MultivariateNormal``, ``LogNormal``, ``TransformedDistribution`` of
    one), at most three numbers. A plate of all sites, ``numpyro.plate("site", sites)``, whose
    entries are picked by a column, is accepted, too: no site has rows of two entries.

    Args:
        model: the function.
        rows: the sites, or a dict of arrays like a site's, of which a few rows are looked at.
        site_plate: name of the plate of the site.
        constants: further keyword arguments of the function, the same for every row.

    Returns:
        The model. Chains start uniformly in (−1, 1) of each unconstrained parameter.

    Raises:
        InputError: the model does not factor over rows, or has a statement that cannot be used;
            the message names the statement.
        MissingExtraError: NumPyro is not installed.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> def eight(effect, error):
        ...     mean = numpyro.sample("mean", dist.Normal(0, 5))
        ...     with numpyro.plate("rows", effect.shape[0]):
        ...         numpyro.sample("y", dist.Normal(mean, error), obs=effect)
        >>> model = from_numpyro(eight, {"effect": np.array([28.0, 8.0]), "error": np.ones(2)})
        >>> {name: leaf.shape for name, leaf in model.init(jax.random.key(0)).items()}
        {'mean': ()}
    """
    with require_extra("numpyro", "from_numpyro needs NumPyro"):
        import numpyro  # noqa: F401 - optional
    example = example_rows("from_numpyro", rows)
    _check_arguments(model, example, constants)
    traced = _Traced(model, constants, {k: (v.shape[1:], v.dtype) for k, v in example.items()})
    sorted_ = _sorted(traced, example, site_plate)
    begin = partial(start, {each.sampled: each.shape for each in sorted_.latents.values()})
    both: dict[str, Any] = {"natural": sorted_.natural, "tails": sorted_.tails}
    if not sorted_.local:
        return Model(sorted_.log_prior, sorted_.log_likelihood, begin, **both)
    return Model(
        sorted_.log_prior,
        None,
        begin,
        check=sorted_.check,
        site_log_likelihood=sorted_.site_log_likelihood,
        recover=sorted_.recover,
        integration=_integrated.integration(sorted_.site_log_likelihood, sorted_.size),
        **both,
    )


class _Latent(NamedTuple):
    """A latent variable: its transform from the unconstrained, its shape and name there."""

    transform: Any
    shape: tuple[int, ...]
    sampled: str


class _ByScore(NamedTuple):
    """The map from scores to a latent variable, in the form of NumPyro's transforms."""

    tail: Tail

    def __call__(self, scores: Array) -> Array:
        """Return the latent variable."""
        return self.tail.value(scores)

    def log_abs_det_jacobian(self, scores: Array, value: Array) -> Array:
        """Return the logarithms of the slopes there."""
        return self.tail.log_slope(scores)


class _Own(NamedTuple):
    """A latent variable of the site: its shape at one site, and the axis of its plate."""

    shape: tuple[int, ...]
    axis: int

    @property
    def size(self) -> int:
        """Count of numbers."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class _Traced:
    """A NumPyro function whose statements can be listed."""

    model: Callable[..., Any]  # the function
    constants: Mapping[str, Any]  # arguments that are no columns
    kinds: Mapping[str, tuple[tuple[int, ...], Any]]  # shape of a row and type of each column

    def statements(
        self,
        values: Mapping[str, Any],
        rows: PyTree,
        seed: int = 0,
        normals: Mapping[str, Array] | None = None,
    ) -> dict[str, Any]:
        """Return the statements of a run at these values of latent variables; others are drawn.

        Those in ``normals`` are made of the standard normal variables given there.
        """
        import numpyro
        from numpyro import handlers

        def value_of(statement: Any) -> Array | None:
            name = statement["name"]
            if normals is not None and name in normals:
                return _of_normals(statement["fn"], normals[name])
            return values.get(name)

        with numpyro.validation_enabled(False):  # a row of zeros may lie outside of a support
            seeded = handlers.seed(self.model, jax.random.key(seed))
            run = handlers.substitute(seeded, substitute_fn=value_of)
            return dict(handlers.trace(run).get_trace(**rows, **self.constants))

    def row(self) -> dict[str, Array]:
        """Return one row of zeros, for what does not depend on rows."""
        return one_row(self.kinds)


def _log_density(statement: Mapping[str, Any]) -> Array:
    """Return the log-density of a statement, summed, with its scale."""
    value = statement["fn"].log_prob(statement["value"])
    if statement["scale"] is not None:
        value = statement["scale"] * value
    return jnp.sum(value)


@dataclass(frozen=True, eq=False)
class _Sorted:
    """A model whose statements are sorted."""

    traced: _Traced  # the function
    latents: Mapping[str, _Latent]  # of the latent variables, by name
    local: Mapping[str, _Own]  # of those that are drawn for each site anew, by name
    # names of the statements that do not depend on rows, besides the latents
    prior: tuple[str, ...]
    likelihood: tuple[str, ...]  # names of those that are sums over rows
    derived: tuple[str, ...]  # names of the deterministic ones that do not depend on rows
    # of these, names of those that depend on what is the site's own
    derived_of_own: tuple[str, ...]
    point: Mapping[str, np.ndarray]  # a value of each latent variable, ``local`` included

    @property
    def tails(self) -> dict[str, Tail]:
        """Laws by whose scores latent variables are sampled, by the names of these."""
        each = self.latents.values()
        return {
            latent.sampled: latent.transform.tail
            for latent in each
            if isinstance(latent.transform, _ByScore)
        }

    def constrained(self, params: PyTree) -> dict[str, Array]:
        """Return the latent variables on their own scale."""
        return {name: var.transform(params[var.sampled]) for name, var in self.latents.items()}

    def log_prior(self, params: PyTree) -> Array:
        """Return log p(θ) of the unconstrained parameters, Jacobians included."""
        values = self.constrained(params)
        statements = self.traced.statements(values, self.traced.row())
        total = sum(_log_density(statements[name]) for name in (*self.latents, *self.prior))
        for name, var in self.latents.items():
            total += jnp.sum(var.transform.log_abs_det_jacobian(params[var.sampled], values[name]))
        return jnp.asarray(total)

    def log_likelihood(self, params: PyTree, batch: PyTree) -> Array:
        """Return log p(z_i | θ), (rows,)."""
        return self._of_rows(self.constrained(params), {}, batch)

    def _of_rows(
        self, values: Mapping[str, Any], normals: Mapping[str, Array], batch: PyTree
    ) -> Array:
        def of_row(row: PyTree) -> Array:
            single = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], row)
            statements = self.traced.statements(values, single, normals=normals)
            return jnp.sum(jnp.stack([_log_density(statements[name]) for name in self.likelihood]))

        wanted = {name: jnp.asarray(batch[name]) for name in self.traced.kinds}
        return jax.vmap(of_row)(wanted)

    # --- what is the site's own ---

    @cached_property
    def size(self) -> int:
        """Numbers that a site integrates over."""
        return sum(latent.size for latent in self.local.values())

    def _normals(self, z: Array) -> dict[str, Array]:
        """Return the numbers z, (size,), as the standard normal variables of each name."""
        ends = np.cumsum([latent.size for latent in self.local.values()])[:-1]
        parts = jnp.split(z, ends)
        return {
            name: part.reshape(latent.shape)
            for (name, latent), part in zip(self.local.items(), parts, strict=True)
        }

    def _given_own(self, params: PyTree, rows: PyTree, mask: Array) -> _integrated.GroupDensity:
        """Return the log-likelihood of the site, (1,), given z (1, size)."""
        values = self.constrained(params)

        def of_site(z: Array) -> Array:
            densities = self._of_rows(values, self._normals(z[0]), rows)
            return jnp.sum(jnp.where(mask, densities, 0))[None]

        return _integrated.differentiated(of_site)

    def site_log_likelihood(
        self, params: PyTree, rows: PyTree, mask: Array, nodes: int | tuple[int, ...] | None = None
    ) -> Array:
        """Return the log-likelihood of all rows of a site, what is its own integrated out."""
        like = jnp.asarray(jax.tree.leaves(params)[0])
        given = partial(self._given_own, rows=rows, mask=mask)
        return _integrated.log_integrals(given, params, ((), 1, self.size), like, nodes)[..., 0]

    def recover(self, params: PyTree, rows: PyTree, key: Array) -> dict[str, Array]:
        """Draw the site's own parameters given its rows, and those that follow from them."""
        dtype = jax.tree.leaves(params)[0].dtype
        mask = jnp.ones(jax.tree.leaves(rows)[0].shape[0], bool)
        shape, like = (1, self.size), jnp.zeros((), dtype)
        noise = _integrated.noise_of_key(key, shape, dtype)
        z = _integrated.resampled(self._given_own(params, rows, mask), shape, like, noise)[0]
        values, row = self.constrained(params), self.traced.row()
        trace = self.traced.statements(values, row, normals=self._normals(z))
        drawn = {
            name: jnp.take(trace[name]["value"], 0, axis=var.axis)
            for name, var in self.local.items()
        }
        return drawn | {name: trace[name]["value"] for name in self.derived_of_own}

    def check(self, batch: PyTree) -> str | None:
        """Find a fault in the rows of a site, if they have two entries of its plate."""
        wide = [name for name in self.local if self.point[name].shape != self.local[name].shape]
        others = {name: value for name, value in self.point.items() if name not in wide}

        @jax.jit
        @jax.grad
        def slope(entries: Mapping[str, Array]) -> Array:
            return jnp.sum(self._of_rows({**others, **entries}, {}, batch))

        at = slope({name: jnp.asarray(self.point[name]) for name in wide}) if wide else {}
        for name, values in at.items():
            by_entry = np.moveaxis(np.asarray(values), self.local[name].axis, 0)
            entries = np.flatnonzero(np.any(by_entry.reshape(len(by_entry), -1) != 0, axis=1))
            if len(entries) > 1:
                return (
                    f"its rows take entries {entries[0]} and {entries[1]} of {name!r}, which is "
                    "drawn in the plate of the site: all rows of a site take one. Give the plate "
                    "another name, or from_numpyro another site_plate, to sample all entries."
                )
        return None

    def natural(self, params: PyTree) -> dict[str, Array]:
        """Return the latent variables and what follows from them."""
        values = self.constrained(params)
        statements = self.traced.statements(values, self.traced.row())
        return values | {name: statements[name]["value"] for name in self.derived}


def _check_arguments(
    model: Callable[..., Any], example: Mapping[str, Any], constants: Mapping[str, Any]
) -> None:
    known = inspect.signature(model).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    given = {**example, **constants}
    unknown = [name for name in given if name not in known and not takes_any]
    needed = [
        name
        for name, parameter in known.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and name not in given
    ]
    if needed:
        raise InputError(
            f"from_numpyro: the model's argument {needed[0]!r} is none of the columns "
            f"({', '.join(example)}): give it by name, as a constant."
        ).at(needed[0])
    if unknown:
        raise InputError(
            f"from_numpyro: the model takes no argument {unknown[0]!r}, which is a column or a "
            "constant; leave the column out of the sites, or let the model take **others."
        ).at(unknown[0])


def _sorted(traced: _Traced, example: Mapping[str, np.ndarray], site_plate: str) -> _Sorted:
    """Return the statements sorted, or refuse one by name."""
    from numpyro.distributions import biject_to

    def of(rows: Mapping[str, Any], values: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
        try:
            return traced.statements(values, {k: jnp.asarray(v) for k, v in rows.items()}, seed)
        except (TypeError, ValueError, IndexError) as error:
            count = len(next(iter(rows.values())))
            raise InputError(
                f"from_numpyro: the model cannot be run with {count} of its rows: {error}. The "
                "number of rows has to come from the columns, as in x.shape[0]."
            ).at("model") from error

    singles = single_rows(example)
    first, other = of(example, {}, 0), of(example, {}, 1)
    of_one_row = jax.eval_shape(lambda rows: _shapes(of(rows, {}, 0)), singles[0])
    latents: dict[str, _Latent] = {}
    local: dict[str, _Own] = {}
    observed: list[str] = []
    derived: list[str] = []
    for name, statement in first.items():
        kind = statement["type"]
        if kind in ("sample", "deterministic") and name not in of_one_row:
            raise InputError(f"from_numpyro: {name!r} exists only for some numbers of rows.")
        if kind in ("param", "mutable"):
            raise InputError(f"from_numpyro: {name!r} is a numpyro.{kind}: give it a prior.").at(
                name
            )
        if kind == "plate":
            size, subsample = statement["args"]
            if subsample not in (None, size):
                raise InputError(
                    f"from_numpyro: the plate {name!r} subsamples: methods take minibatches by "
                    "themselves; leave subsample_size out."
                ).at(name)
        elif kind == "deterministic":
            if np.shape(statement["value"]) == of_one_row[name].shape:
                derived.append(name)
        elif kind == "sample" and statement["is_observed"]:
            observed.append(name)
        elif kind == "sample" and (axis := _axis_of(statement, site_plate)) is not None:
            local[name] = _own(name, statement, of_one_row[name], axis)
        elif kind == "sample":
            latents[name] = _latent(name, statement, other[name], of_one_row[name], biject_to)
    if not latents:
        raise InputError("from_numpyro: the model has no latent variable that sites share.")
    if (size := sum(each.size for each in local.values())) > max(_integrated.NODES):
        raise InputError(
            f"from_numpyro: a site has {size} numbers of its own ({', '.join(local)}): a rule of "
            f"quadrature takes at most {max(_integrated.NODES)}. Give the plate another name, with "
            "all sites in it, and pick their entries by a column: all are sampled then."
        ).at("model")
    drawn = (*latents, *local)
    points = [{name: np.asarray(run[name]["value"]) for name in drawn} for run in (first, other)]

    @jax.jit
    def densities(rows: Any, point: Any) -> dict[str, Array]:
        run = of(rows, point)
        return {name: _log_density(run[name]) for name in (*observed, *drawn)}

    prior: list[str] = []
    likelihood: list[str] = []
    together = [densities(example, point) for point in points]
    apart = [[densities(single, point) for single in singles] for point in points]
    reads = reads_rows(lambda rows: densities(rows, points[0]), example)

    def judged(judge: Callable[..., Any], name: str) -> Any:
        whole = np.array([float(run[name]) for run in together])
        parts = np.array([[float(run[name]) for run in runs] for runs in apart])
        return judge("from_numpyro", name, whole, parts, reads[name])

    for name in observed:
        (likelihood if judged(is_sum_over_rows, name) else prior).append(name)
    if not likelihood:
        raise InputError("from_numpyro: no statement with obs= depends on the rows.").at("model")
    for name in drawn:
        judged(check_law, name)
    elsewhere = points[0] | {name: points[1][name] for name in local}
    moved = densities(example, elsewhere)
    for name in (*latents, *prior):
        if not np.isclose(moved[name], together[0][name], TOLERANCE, TOLERANCE):
            raise InputError(
                f"from_numpyro: {name!r} depends on {' or '.join(map(repr, local))}, which each "
                "site draws for itself, and on no row: sites share it, so it cannot."
            ).at(name)
    shared, of_own = _derived(of, derived, example, points[0], elsewhere if local else None)
    parts = tuple(prior), tuple(likelihood)
    return _Sorted(traced, latents, local, *parts, shared, of_own, points[0])


def _derived(
    of: Callable[..., dict[str, Any]],
    names: Sequence[str],
    example: Mapping[str, np.ndarray],
    point: Mapping[str, np.ndarray],
    elsewhere: Mapping[str, np.ndarray] | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the deterministic values that all sites share, and those of each site's own.

    ``of`` takes rows and values of the latents to the statements; ``point`` has such values, and
    ``elsewhere`` the same with others of the site's own, None without such.
    """

    @jax.jit
    def values_of(rows: Any, at: Any) -> dict[str, Array]:
        run = of(rows, at)
        return {name: run[name]["value"] for name in names}

    read = reads_rows(lambda rows: values_of(rows, point), example)
    free = [name for name in names if not read[name]]
    if not free:
        return (), ()
    first, *others = (values_of(single, point) for single in single_rows(example))
    # A value that changes from row to row is none of the model's: it would differ by site.
    free = [
        name
        for name in free
        if all(np.allclose(run[name], first[name], TOLERANCE) for run in others)
    ]
    moved = first if elsewhere is None else values_of(single_rows(example)[0], elsewhere)
    of_own = tuple(
        name for name in free if not np.allclose(moved[name], first[name], TOLERANCE, TOLERANCE)
    )
    return tuple(name for name in free if name not in of_own), of_own


def _shapes(run: Mapping[str, Any]) -> dict[str, Array]:
    """Return the values of statements that have some."""
    return {
        name: jnp.asarray(statement["value"])
        for name, statement in run.items()
        if statement["type"] in ("sample", "deterministic")
    }


def _latent(name: str, statement: Any, other: Any, of_one_row: Any, biject_to: Any) -> _Latent:
    shape = np.shape(statement["value"])
    if shape != of_one_row.shape:
        raise InputError(
            f"from_numpyro: the latent variable {name!r} has shape {shape} with several rows and "
            f"{of_one_row.shape} with one: a value of each row cannot be sampled by the "
            "server. Integrate it out, or give groups by a column with their number as a constant."
        ).at(name)
    if statement["fn"].support.is_discrete:
        raise InputError(
            f"from_numpyro: the latent variable {name!r} is discrete: sum it out, as "
            "numpyro.distributions.MixtureSameFamily does."
        ).at(name)
    supports = [biject_to(run["fn"].support) for run in (statement, other)]
    at = supports[0].inv(statement["value"])
    if not np.allclose(supports[0](at), supports[1](at), equal_nan=True):
        raise InputError(
            f"from_numpyro: the support of {name!r} depends on other latent variables: write it "
            "as a constant range, and what follows from it as numpyro.deterministic."
        ).at(name)
    law, again = (_tail_of(run["fn"]) for run in (statement, other))
    # the same in two runs: it depends on no other latent variable
    if law is not None and again is not None and all(map(np.array_equal, law, again)):
        return _Latent(_ByScore(law), shape, f"unconstrained({name})")
    free = np.array_equal(at, statement["value"])
    return _Latent(supports[0], np.shape(at), name if free else f"unconstrained({name})")


def _tail_of(law: Any) -> Tail | None:
    """Return the tail of a law by whose scores a latent variable is sampled; None of others."""
    import numpyro.distributions as dist

    if isinstance(law, (dist.ExpandedDistribution, dist.Independent)):
        return _tail_of(law.base_dist)
    if isinstance(law, dist.Cauchy):
        return Tail(1.0, np.asarray(law.loc), np.asarray(law.scale))
    if isinstance(law, dist.StudentT):
        return Tail(1 / np.asarray(law.df), np.asarray(law.loc), np.asarray(law.scale))
    return None


def _axis_of(statement: Mapping[str, Any], plate: str) -> int | None:
    """Return the axis along which a plate lies in a statement's value, or None."""
    batch = len(statement["fn"].batch_shape)
    frames = [frame for frame in statement["cond_indep_stack"] if frame.name == plate]
    return batch + frames[0].dim if frames else None


def _own(name: str, statement: Any, of_one_row: Any, axis: int) -> _Own:
    """Return a latent variable of the site, or refuse it."""
    shape = np.shape(statement["value"])
    if shape != of_one_row.shape:
        raise InputError(
            f"from_numpyro: {name!r} has a value of each row in the plate of the site: give this "
            "plate the size 1, or the number of sites."
        ).at(name)
    of_site = (*shape[:axis], 1, *shape[axis + 1 :])
    if statement["scale"] is not None:
        raise InputError(f"from_numpyro: the density of {name!r}, a site's own, cannot be scaled.")
    try:
        value = np.asarray(_of_normals(statement["fn"], jnp.zeros(of_site)))
    except TypeError as error:
        raise InputError(
            f"from_numpyro: {name!r} is drawn in the plate of the site from {error}: a site "
            "integrates out what is normal, or a function of normal variables (Normal, "
            "MultivariateNormal, LogNormal, TransformedDistribution of a Normal)."
        ).at(name) from error
    if value.shape != shape or not np.allclose(value, np.take(value, [0], axis=axis), TOLERANCE):
        raise InputError(
            f"from_numpyro: the law of {name!r} differs over the plate of the site: its mean and "
            "scale have to be the same for all sites; write what differs as a column."
        ).at(name)
    return _Own(of_site, axis)


def _of_normals(law: Any, z: Array) -> Array:
    """Return a value of a distribution made of standard normal variables, of the shape of both.

    Raises:
        TypeError: it is of another kind, which the message names.
    """
    import numpyro.distributions as dist

    if isinstance(law, (dist.ExpandedDistribution, dist.Independent)):
        value = _of_normals(law.base_dist, z)
    elif isinstance(law, dist.Normal):
        value = law.loc + law.scale * z
    elif isinstance(law, dist.MultivariateNormal):
        value = law.loc + jnp.einsum("...ij,...j->...i", law.scale_tril, z)
    elif isinstance(law, dist.TransformedDistribution) and law.event_shape == (
        law.base_dist.event_shape
    ):
        value = _of_normals(law.base_dist, z)
        for transform in law.transforms:
            value = transform(value)
    else:
        raise TypeError(type(law).__name__)
    return jnp.broadcast_to(value, np.broadcast_shapes(value.shape, law.shape()))
