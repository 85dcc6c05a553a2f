r"""Sums that a site sends after a run, in one message: with each row, and with itself, left out.

.. math::
    \sum_{i \in c} \mathrm{elpd}_i, \quad \sum_{i \in c} \mathrm{elpd}_i^2, \quad \dots
    \qquad\text{and}\qquad
    \mathrm{E}_w\,\theta, \quad \mathrm{sd}_w\,\theta
    \quad\text{with}\quad w_s \propto 1/L_c(\theta_s)\ \text{smoothed}

at draws θ_s that the server sends: what `consortia.loo` and `leave_one_site_out` need. Of rows,
seven numbers leave; sixteen of two models, with the sum of products of their terms, on which the
standard error of their difference depends. It is a method whose ``fit`` phase leaves them at the
site, so that an engine carries it like any other, and a site's policy permits it or not as a study
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from consortia.core import arguments
from consortia.core.contract import (
    Algorithm,
    Claims,
    Draws,
    Evaluation,
    Info,
    Method,
    Phase,
    Site,
    Sum,
)
from consortia.core.fingerprints import of_value
from consortia.core.model import Model
from consortia.core.parameters import is_function, spaced, structure_of
from consortia.core.start import check_start_values, starting_parameters
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.diagnostics.influence import (
    Labels,
    WithoutSites,
    moments_of,
    natural_of,
    smoothed,
)
from consortia.diagnostics.left_out import (
    AT_ONCE,
    LEAST_DRAWS,
    MOST_DRAWS,
    LeftOut,
    check_same_rows,
    other_rows,
    positions_of,
    sums_of,
    terms_of,
)
from consortia.engines.contract import Engine
from consortia.errors import InputError
from consortia.runtime.late import Array, PyTree, jax, jnp

LEFT_OUT = "left_out"
"""Name of the method."""

POINTS_AT_ONCE = 64

SEED = 0


class Asked(NamedTuple):
    """The draws, filled up to their usual number by the last one, and how many there are."""

    positions: Float[Array, "S d"]
    number: Int[Array, ""]


class Message(NamedTuple):
    """The message of a site: sums over its rows, and the posterior's moments without it."""

    # of m models Σ elpd (m), Σ elpd elpd' (m, m), effective parameters (m), WAIC (m), and three
    # counts of k-hat each (m, 3)
    rows: Float[Array, " m*(m+6)"]
    mean: Float[Array, " p"]  # of the natural parameters of the first model without this site
    sd: Float[Array, " p"]  # likewise
    k_hat: Float[Array, ""]  # of the weights without this site


@dataclass(frozen=True)
class SiteSums(Method):
    """Sums over each site's rows at draws of the posterior; it samples nothing.

    Args:
        draws: places for draws in the message.
        positions: the draws, (draws or fewer, d); known to the server alone.

    Raises:
        InputError: an argument is out of its range.
    """

    draws: int = MOST_DRAWS
    positions: tuple[tuple[float, ...], ...] = ()

    name = LEFT_OUT
    step_size = None
    claims = Claims(
        samples="none: it uses existing draws",
        bias="that of the draws, and that of smoothed weights if k-hat is high",
        draw="none",
        step_size="none",
        source="Vehtari, Gelman, Gabry (2017)",
    )

    def __post_init__(self) -> None:
        arguments.keep(self, draws=arguments.whole("draws", self.draws, 1))

    def parameters(self) -> dict[str, Any]:
        """Return the number of draws, which is all that a site knows beforehand."""
        return {"draws": self.draws}

    def build(self, target: Target) -> Algorithm:
        """Return one message to each site, and no rounds of draws."""
        given = np.zeros((self.draws, target.dimension))
        if self.positions:
            places = np.minimum(np.arange(self.draws), len(self.positions) - 1)
            given = np.asarray(self.positions)[places]
        asked = Asked(jnp.asarray(given, target.dtype), jnp.asarray(len(self.positions), jnp.int32))
        ask = Phase(
            partial(_tell, _parts_of(target)),
            Sum(),
            evaluation=lambda inbox: Evaluation(inbox.positions),
        )
        rest = Phase(None)
        return Algorithm(
            lambda position: ((), position, asked),
            (rest,),
            Draws(hub=lambda hub, inbox: hub),
            fit=(ask,),
        )


class _Part(NamedTuple):
    """One of the models: its target, where its parameters and its rows are; None: all there is."""

    target: Target
    at: slice
    rows: str | None


def _parts_of(target: Target) -> tuple[_Part, ...]:
    """Return the models that are compared, or the one that there is."""
    model = target.model
    if not isinstance(model, Compared):
        return (_Part(target, slice(None), None),)
    parts, begin = [], 0
    for name, part in model.parts.items():
        part_target = Target(part, target.structure[name])
        parts.append(_Part(part_target, slice(begin, begin + part_target.dimension), name))
        begin += part_target.dimension
    return tuple(parts)


def _tell(
    parts: tuple[_Part, ...], noise: Any, shared: Any, state: Any, asked: Asked, site: Site
) -> tuple[Message, Float[Array, ""], Info]:
    """Leave the sums at the site, which tells them when the fit ends."""
    rows, mask = site.all()
    sums, logs = _over_rows(parts, asked, rows, mask)
    first = parts[0]
    values = _natural(first.target, asked.positions[:, first.at])
    d = values.shape[1]
    shape = jax.ShapeDtypeStruct((2 * d + 1,), first.target.dtype)
    without = _on_host(_without, shape, values, logs, asked.number)
    message = Message(sums, without[:d], without[d : 2 * d], without[-1])
    return message, jnp.zeros((), first.target.dtype), {}


def _over_rows(
    parts: tuple[_Part, ...], asked: Asked, rows: PyTree, mask: Bool[Array, " n"]
) -> tuple[Float[Array, " m*(m+6)"], Float[Array, " S"]]:
    """Return the sums over all rows, and the first log L_c at the draws; some rows at a time."""
    first = parts[0].target
    m = len(parts)
    shape = jax.ShapeDtypeStruct((m * (m + 6),), first.dtype)
    whole = mask.shape[0]
    size = whole if first.model.by_site else min(whole, AT_ONCE)

    def some(begin: Array) -> tuple[Array, Array]:
        at = begin + jnp.arange(size, dtype=jnp.int32)
        held = jnp.minimum(at, whole - 1)
        here = mask[held] & (at < whole)
        taken = jax.tree.map(lambda leaf: leaf[held], rows)

        def values_of(part: _Part) -> Array:
            part_rows = taken if part.rows is None else taken[part.rows]
            return jax.lax.map(
                lambda position: part.target.summands(position, part_rows, here),
                asked.positions[:, part.at],
                batch_size=POINTS_AT_ONCE,
            )

        values = jnp.stack([values_of(part) for part in parts])
        kept = here if values.shape[2] == size else jnp.ones(1, bool)
        sums = _on_host(_row_sums, shape, values, kept, asked.number)
        return sums, values[0].sum(axis=1)

    begins = jnp.arange(0, whole, size, dtype=jnp.int32)
    sums, logs = jax.lax.map(some, begins)
    return sums.sum(axis=0), logs.sum(axis=0)


def _natural(target: Target, positions: Float[Array, "S d"]) -> Float[Array, "S p"]:
    """Return the parameters on the model's natural scale, as `leave_one_site_out` orders them."""
    natural = target.model.natural
    if natural is None:
        return positions

    def at(point: Array) -> Array:
        made = natural(target.unravel(point))
        return jnp.concatenate([jnp.ravel(made[name]) for name in sorted(made)])

    return jax.lax.map(at, positions)


def _on_host(function: Any, shape: Any, *given: Array) -> Array:
    """Smooth the numbers by ArviZ, which computes with NumPy."""
    return jax.pure_callback(function, shape, *given, vmap_method="sequential")


def _row_sums(values: Any, kept: Any, count: Any) -> np.ndarray:
    """Return the sums of some rows from their log-likelihoods (m, S, rows)."""
    dtype, m = np.asarray(values).dtype, len(values)
    held = np.asarray(values, np.float64)[:, : int(count), np.asarray(kept)]
    if int(count) < LEAST_DRAWS:  # of a few points the sums are densities there: no site tells it
        return np.full(m * (m + 6), np.nan, dtype)
    if not held.size:
        return np.zeros(m * (m + 6), dtype)
    sums = sums_of([terms_of(log_likelihoods) for log_likelihoods in held])
    order = ("sums", "products", "parameters", "waic", "shapes")
    return np.concatenate([np.ravel(sums[name]) for name in order]).astype(dtype)


def _without(values: Any, logs: Any, count: Any) -> np.ndarray:
    if int(count) < LEAST_DRAWS:
        return np.full(2 * values.shape[1] + 1, np.nan, np.asarray(values).dtype)
    natural, known = (np.asarray(array, np.float64)[: int(count)] for array in (values, logs))
    share, k_hat = smoothed(-known)
    # a k-hat that cannot be found is as bad as any
    known_k = np.nan_to_num(np.array([k_hat]), nan=1e9, posinf=1e9)
    sent = np.concatenate([*moments_of(natural, share), known_k])
    return sent.astype(np.asarray(values).dtype)


def told_by_sites(
    trees: Sequence[Any],
    model: Model,
    sites: Sites,
    engine: Engine,
    *,
    draws: int = MOST_DRAWS,
    labels: Labels | None = None,
    names: Sequence[str] = ("the model",),
) -> tuple[LeftOut, WithoutSites]:
    """Ask every site once, over an engine; return what `loo` and `leave_one_site_out` find.

    Args:
        trees: result of a run; of `Compared` models of a run of each. None in processes that keep
            nothing.
        model: of the run, or `Compared`.
        sites: of the run, or of `side_by_side`.
        engine: made for this; all its processes make the same call.
        draws: at most so many draws are sent.
        labels: names along the axes of the parameters of the first model.
        names: of the models.

    Returns:
        Sums over rows left out, of all models; the posterior of the first without each site.

    Raises:
        InputError: the draws have weights or are fewer than 100.
        SiteRefusedError: a site's policy does not permit it.
        SiteMissingError, RankError: as `consortia.sample`.
    """
    models = list(model.parts.values()) if isinstance(model, Compared) else [model]
    given = positions_of("loo", list(zip(trees, models, strict=True)), engine, draws)
    # Models are compared draw by draw, so that all need equally many.
    count = min(map(len, given))
    points = np.concatenate([flat[spaced(len(flat), count)] for flat in given], axis=1)
    method = SiteSums(draws, tuple(tuple(flat) for flat in points.tolist()))
    start = starting_parameters(model, None, SEED, 1)[0]
    target = Target(model, start)
    run = engine.prepare(target, sites, method, 1)
    positions: Any = target.flat(start)[None]
    check_start_values(run.start_values(positions), sites.names)
    run.start(SEED, positions)
    sent = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), run.fitted[0])
    m = len(models)
    ends = np.cumsum([m, m * m, m, m])
    sums, products, parameters, waic, shapes = np.split(sent.rows.sum(axis=0), ends)
    by_site = model.by_site
    left_out = LeftOut(
        tuple(names),
        "site" if by_site else "row",
        len(sites) if by_site else sites.rows,
        sums=sums,
        products=products.reshape(m, m),
        parameters=parameters,
        waic=waic,
        shapes=shapes.reshape(m, 3),
    )
    first = points[:, _parts_of(target)[0].at]
    first_target = Target(models[0], structure_of(models[0].init))
    of, values = natural_of(models[0], first_target, first, labels)
    moments = moments_of(values, np.full(len(values), 1 / len(values)))
    return left_out, WithoutSites(
        of, sites.names, *moments, sent.mean, sent.sd, np.asarray(sent.k_hat)
    )


# --- two models of the same rows -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Compared(Model):
    """Models of the same rows, side by side: parameters and rows of each under its name."""

    # the models by name, in the order of the names
    parts: Mapping[str, Model] = field(default_factory=dict)


def compared(models: Mapping[str, Model]) -> Compared:
    """Return models side by side, whose density is the product of theirs.

    Raises:
        InputError: one has a likelihood of rows, another of sites.
    """
    parts = {name: models[name] for name in sorted(models)}  # as JAX orders a dict
    if len({part.by_site for part in parts.values()}) > 1:
        raise InputError("loo: one model has a likelihood of rows, another of sites.")

    def init(key: Any) -> PyTree:
        return {n: p.init(key) if is_function(p.init) else p.init for n, p in parts.items()}

    def log_prior(params: PyTree) -> Any:
        return sum(p.log_prior(params[n]) for n, p in parts.items() if p.log_prior is not None)

    def likelihood(params: PyTree, rows: PyTree) -> Any:
        return sum(p.log_likelihood(params[n], rows[n]) for n, p in parts.items())

    def of_site(params: PyTree, rows: PyTree, mask: Any) -> Any:
        return sum(
            p.site_log_likelihood(params[n], rows[n], mask)
            for n, p in parts.items()
            if p.site_log_likelihood is not None
        )

    def check(rows: PyTree) -> str | None:
        faults = [p.check(rows[n]) for n, p in parts.items() if p.check is not None]
        faults.append(other_rows([rows[n] for n in parts]))
        return next((fault for fault in faults if fault), None)

    def arrange(rows: PyTree) -> PyTree:
        return {n: p.arrange(rows[n]) if p.arrange else rows[n] for n, p in parts.items()}

    by_site = next(iter(parts.values())).by_site
    return Compared(
        log_prior,
        None if by_site else likelihood,
        init,
        check=check,
        arrange=arrange,
        site_log_likelihood=of_site if by_site else None,
        parts=parts,
    )


def side_by_side(sites: Mapping[str, Sites]) -> Sites:
    """Return the rows of each model's sites under its name.

    Raises:
        InputError: they are not of the same rows.
    """
    names = sorted(sites)
    check_same_rows([sites[name] for name in names])
    first = sites[names[0]]
    shards = tuple(
        {name: sites[name].shards[index] for name in names} for index in range(len(first))
    )
    digests = {
        index: of_value([sites[name].digests[index] for name in names])
        for index in range(len(first))
    }
    return Sites(first.names, first.sizes, shards, digests, first.elsewhere)
