"""The site functions: sums of clipped, rounded gradients and curvatures, one row at a time.

The gradient of a row is clipped to a norm C, the upper triangle of its curvature, whose other
entries count twice in the norm, to C²/4. Both are rounded to integers, of which a row's gradient
has a norm of `LEVELS` at most, so that sums are exact and a row's part in them is bounded, whatever
its values are. A last number counts the rows that were clipped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from consortia.core.arrays import VALUES_AT_ONCE, namespace
from consortia.core.contract import Evaluation, Site
from consortia.core.host import HostSite
from consortia.core.privacy import Privacy
from consortia.core.queries import Arrays, Reply, SiteFunction
from consortia.core.target import Target
from consortia.runtime import compiler
from consortia.runtime.late import Array, jax, jnp

LEVELS = 2048
"""Largest norm of a row's gradient in integers."""

CURVATURE_LEVELS, COUNT_LEVELS = LEVELS // 2, LEVELS // 4
"""The same of a curvature, and what a clipped row counts."""

MOST_ROWS = 2**31 // (LEVELS + 1)
"""Rows of all sites, of which no sum of 32-bit integers overflows."""

ROWS_AT_ONCE = 4096
DRAWS = 1000
"""Independent draws of each chain."""


class Stage(NamedTuple):
    """One message."""

    name: str  # of its site function
    share: float  # part of the budget
    curved: bool  # it brings the curvature, too


STAGES = (
    Stage("private_start", 0.10, True),
    Stage("private_step", 0.06, False),
    Stage("private_near", 0.09, False),
    Stage("private_last", 0.75, True),
)
"""All messages of a run, in order: three come near the mode, the last one is the result."""


def default_clip(dimension: int) -> float:
    """Return 1.25 √d: rows of a logistic regression on standardised columns are hardly clipped."""
    return 1.25 * math.sqrt(dimension)


class Units(NamedTuple):
    """Units of the integers of an answer."""

    gradient: float  # of a gradient
    curvature: float  # of a curvature; entries beside the diagonal have a factor 1/√2
    clipped: float  # of the number of clipped rows


def units_of(clip: float) -> Units:
    """Return the units of an answer."""
    return Units(clip / LEVELS, clip**2 / 4 / CURVATURE_LEVELS, 1 / COUNT_LEVELS)


def sensitivity(dimension: int, curved: bool) -> int:
    """Return the largest norm of a row's integers, rounding included."""
    triangle = dimension * (dimension + 1) // 2
    parts = [LEVELS + math.sqrt(dimension) / 2, COUNT_LEVELS]
    if curved:
        parts.append(CURVATURE_LEVELS + math.sqrt(triangle) / 2)
    return math.ceil(math.hypot(*parts))


@functools.lru_cache(maxsize=64)
def functions_of(
    loss: float, clip: float | None, honest: float | None
) -> Mapping[str, SiteFunction]:
    """Return the site functions of a method whose run may lose so much."""
    return {
        stage.name: SiteFunction(
            functools.partial(_sums, stage.curved, clip),
            lambda arrays: Evaluation(np.asarray(arrays["position"])[None]),
            f"the {'slope and the curvature' if stage.curved else 'slope'} of the log-likelihood "
            "of all rows of the site, each row's part bounded and hidden by noise: "
            f"{stage.share:.0%} of the run's privacy budget",
            privacy=functools.partial(_privacy, loss, stage, honest),
            evaluate=functools.partial(_host_sums, stage.curved, clip),
            shapes=functools.partial(_shapes, stage.curved),
        )
        for stage in STAGES
    }


def _privacy(loss: float, stage: Stage, honest: float | None, dimension: int) -> Privacy:
    bound = sensitivity(dimension, stage.curved)
    return Privacy(bound, bound / math.sqrt(loss * stage.share), stage.share, honest)


def _sums(
    curved: bool, clip: float | None, target: Target, given: Mapping[str, Array], site: Site
) -> Reply:
    """Return sums over the rows of integers."""
    rows, mask = site.all()
    position = given["position"]

    def of_row(both: tuple[Array, Array]) -> dict[str, Int[Array, " k"]]:
        row, present = both
        alone = jax.tree.map(lambda leaf: leaf[None], row)

        def positive(at: Array) -> Array:
            return target.log_likelihood(at, alone)[0]

        curvature = jax.hessian(positive)(position) if curved else None
        levels = _levels(clip, jax.grad(positive)(position), curvature)
        return {
            name: jnp.where(present, values, 0).astype(jnp.int32) for name, values in levels.items()
        }

    each = compiler.map_in_blocks(of_row, (rows, mask), ROWS_AT_ONCE)
    return {name: values.sum(axis=0, dtype=jnp.int32) for name, values in each.items()}


def _host_sums(
    curved: bool, clip: float | None, target: Target, given: Arrays, site: HostSite
) -> Arrays:
    """Return the same sums by NumPy."""
    position, parts = np.asarray(given["position"], np.float64), []
    # as many rows as leave their second derivatives, by as many differences, in memory
    width = max(VALUES_AT_ONCE // (4 * target.dimension**2), 1)
    for at in range(0, site.size, width):
        rows = slice(at, at + width)
        curvatures = site.row_hessians(position, rows) if curved else None
        levels = _levels(clip, site.scores(position[None], rows)[0], curvatures)
        parts.append({name: values.sum(axis=0) for name, values in levels.items()})
    return {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}


def _levels(clip: float | None, scores: Any, hessians: Any) -> dict[str, Any]:
    """Return the integers of rows, of derivatives (..., d) and (..., d, d) of log p, or None."""
    xp, d = namespace(scores), scores.shape[-1]
    bound = default_clip(d) if clip is None else clip
    units = units_of(bound)
    gradients, factors = _clipped(-scores, bound)
    levels = {
        "gradient": xp.rint(gradients / units.gradient),
        "clipped": xp.where(factors < 1, COUNT_LEVELS, 0),
    }
    if hessians is not None:
        upper = np.triu_indices(d)
        weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
        curvatures, _ = _clipped(-hessians[..., *upper] * weights, bound**2 / 4)
        levels["curvature"] = xp.rint(curvatures / units.curvature)
    return levels


def _shapes(curved: bool, target: Target, given: Arrays) -> Mapping[str, tuple[int, ...]]:
    d = target.dimension
    triangle = {"curvature": (d * (d + 1) // 2,)} if curved else {}
    return {"gradient": (d,), "clipped": (1,)} | triangle


def _clipped(values: Any, bound: float) -> tuple[Any, Any]:
    """Return vectors of this norm at most, zero where one is not finite, and factors (..., 1)."""
    xp = namespace(values)
    finite = xp.isfinite(values).all(axis=-1, keepdims=True)
    values = xp.where(finite, values, 0)
    largest = xp.maximum(xp.abs(values).max(axis=-1, keepdims=True), 1e-30)  # no square overflows
    norm = largest * xp.sqrt(xp.sum((values / largest) ** 2, axis=-1, keepdims=True))
    factor = xp.minimum(1.0, bound / norm)
    return values * factor, factor
