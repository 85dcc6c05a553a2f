r"""What a site tells after a run, in one message: sums with each row, and with itself, left out.

.. math::
    \sum_{i \in c} \mathrm{elpd}_i, \quad \sum_{i \in c} \mathrm{elpd}_i^2, \quad \dots
    \qquad\text{and}\qquad
    \mathrm{E}_w\,\theta, \quad \mathrm{sd}_w\,\theta
    \quad\text{with}\quad w_s \propto 1/L_c(\theta_s)\ \text{smoothed}

at draws θ_s that the server sends: what `consortia.loo` and `leave_one_site_out` need. Of rows,
seven numbers leave. It is a method whose ``fit`` phase leaves them at the site, so that an engine
carries it like any other, and a site's policy permits it or not as a study of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

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
from consortia.core.model import Model
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
    positions_of,
    sums_of,
    terms_of,
)
from consortia.engines.contract import Engine

LEFT_OUT = "left_out"
"""Name of the method."""

POINTS_AT_ONCE = 64

SEED = 0


class Asked(NamedTuple):
    """The draws, filled up to their usual number by the last one, and how many there are."""

    positions: Float[Array, "S d"]
    number: Int[Array, ""]


class Told(NamedTuple):
    """What a site tells: sums over its rows, and the posterior's moments without it.

    Attributes:
        rows: Σ elpd, Σ elpd², effective parameters, WAIC, and three counts of k-hat.
        mean: of the natural parameters without this site.
        sd: likewise.
        k_hat: of the weights without this site.
    """

    rows: Float[Array, " 7"]
    mean: Float[Array, " p"]
    sd: Float[Array, " p"]
    k_hat: Float[Array, ""]


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
        samples="none: it takes draws that there are",
        bias="that of the draws, and of smoothed weights where k-hat is high",
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
            partial(_tell, target),
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


def _tell(
    target: Target, noise: Any, shared: Any, state: Any, asked: Asked, site: Site
) -> tuple[Told, Float[Array, ""], Info]:
    """Leave the sums at the site, which tells them when the fit ends."""
    rows, mask = site.all()
    parts, logs = _over_rows(target, asked, rows, mask)
    values = _natural(target, asked.positions)
    d = values.shape[1]
    shape = jax.ShapeDtypeStruct((2 * d + 1,), target.dtype)
    without = _on_host(_without, shape, values, logs, asked.number)
    told = Told(parts, without[:d], without[d : 2 * d], without[-1])
    return told, jnp.zeros((), target.dtype), {}


def _over_rows(
    target: Target, asked: Asked, rows: PyTree, mask: Bool[Array, " n"]
) -> tuple[Float[Array, " 7"], Float[Array, " S"]]:
    """Return the sums over all rows, and log L_c at the draws; some rows at a time."""
    shape = jax.ShapeDtypeStruct((7,), target.dtype)
    whole = mask.shape[0]
    size = whole if target.model.by_site else min(whole, AT_ONCE)

    def some(begin: Array) -> tuple[Array, Array]:
        at = begin + jnp.arange(size, dtype=jnp.int32)
        held = jnp.minimum(at, whole - 1)
        here = mask[held] & (at < whole)
        part = jax.tree.map(lambda leaf: leaf[held], rows)
        values = jax.lax.map(
            lambda one: target.summands(one, part, here),
            asked.positions,
            batch_size=POINTS_AT_ONCE,
        )
        kept = here if values.shape[1] == size else jnp.ones(1, bool)
        sums = _on_host(_row_sums, shape, values, kept, asked.number)
        return sums, values.sum(axis=1)

    begins = jnp.arange(0, whole, size, dtype=jnp.int32)
    sums, logs = jax.lax.map(some, begins)
    return sums.sum(axis=0), logs.sum(axis=0)


def _natural(target: Target, positions: Float[Array, "S d"]) -> Float[Array, "S p"]:
    """Return the parameters on the model's natural scale, as `leave_one_site_out` orders them."""
    natural = target.model.natural
    if natural is None:
        return positions

    def at(one: Array) -> Array:
        made = natural(target.unravel(one))
        return jnp.concatenate([jnp.ravel(made[name]) for name in sorted(made)])

    return jax.lax.map(at, positions)


def _on_host(function: Any, shape: Any, *given: Array) -> Array:
    """Return what ArviZ's smoothing makes of the numbers: it computes with NumPy."""
    return jax.pure_callback(function, shape, *given, vmap_method="sequential")


def _row_sums(values: Any, kept: Any, count: Any) -> np.ndarray:
    held = np.asarray(values, np.float64)[: int(count), np.asarray(kept)]
    if int(count) < LEAST_DRAWS:  # of a few points the sums are densities there: no site tells it
        return np.full(7, np.nan, np.asarray(values).dtype)
    if not held.size:
        return np.zeros(7, np.asarray(values).dtype)
    found = sums_of([terms_of(held)])
    told = [*found["sums"], *found["products"][0], *found["parameters"], *found["waic"]]
    return np.array([*told, *found["shapes"][0]], np.asarray(values).dtype)


def _without(values: Any, logs: Any, count: Any) -> np.ndarray:
    if int(count) < LEAST_DRAWS:
        return np.full(2 * values.shape[1] + 1, np.nan, np.asarray(values).dtype)
    natural, known = (np.asarray(one, np.float64)[: int(count)] for one in (values, logs))
    share, k_hat = smoothed(-known)
    # a k-hat that cannot be found is as bad as any
    known_k = np.nan_to_num(np.array([k_hat]), nan=1e9, posinf=1e9)
    told = np.concatenate([*moments_of(natural, share), known_k])
    return told.astype(np.asarray(values).dtype)


def told_by_sites(
    tree: Any,
    model: Model,
    sites: Sites,
    engine: Engine,
    *,
    draws: int = MOST_DRAWS,
    labels: Labels | None = None,
) -> tuple[LeftOut, WithoutSites]:
    """Ask every site once, over an engine; return what `loo` and `leave_one_site_out` find.

    Args:
        tree: result of a run; None in processes that keep nothing.
        model: of the run.
        sites: of the run.
        engine: made for this; all its processes call this alike.
        draws: at most so many draws are sent.
        labels: names along the axes of the parameters.

    Raises:
        InputError: the draws have weights or are fewer than 100.
        SiteRefusedError: a site's policy does not permit it.
        SiteMissingError, RankError: as `consortia.sample`.
    """
    given = positions_of("loo", [(tree, model)], engine, draws)[0]
    method = SiteSums(draws, tuple(tuple(one) for one in given.tolist()))
    start = starting_parameters(model, None, SEED, 1)[0]
    target = Target(model, start)
    run = engine.prepare(target, sites, method, 1)
    positions: Any = target.flat(start)[None]
    check_start_values(run.start_values(positions), sites.names)
    run.start(SEED, positions)
    told = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), run.fitted[0])
    total = told.rows.sum(axis=0)
    by_site = model.by_site
    found = LeftOut(
        ("the model",),
        "site" if by_site else "row",
        len(sites) if by_site else sites.rows,
        sums=total[:1],
        products=total[1:2, None],
        parameters=total[2:3],
        waic=total[3:4],
        shapes=total[None, 4:],
    )
    names, values = natural_of(model, target, given, labels)
    moments = moments_of(values, np.full(len(values), 1 / len(values)))
    return found, WithoutSites(
        names, sites.names, *moments, told.mean, told.sd, np.asarray(told.k_hat)
    )
