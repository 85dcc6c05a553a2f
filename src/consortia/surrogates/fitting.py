"""Surrogates that the sites compute: once, each alone, before the first round."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from consortia.core import arguments
from consortia.core.contract import Evaluation, Phase, Site, Sum
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.errors import InputError
from consortia.gradients import exact, minibatch
from consortia.runtime.late import Array, jax, jnp
from consortia.surrogates import curvature as curvatures
from consortia.surrogates.examination import examine, row_bits
from consortia.surrogates.gaussian import Natural, apply, clipped

KINDS = ("anchored", "laplace", "sgld_moments")
CURVATURES = ("hessian", "empirical_fisher")
COVARIANCES = ("full", "diagonal")


@dataclass(frozen=True)
class Recipe:
    r"""The way in which Gaussian surrogates of the local likelihoods are computed.

    - ``"anchored"``: ∇log q_s equals the shard's gradient at one common point, the start of the
      first chain, and the precision is the shard's curvature there, negative parts set to zero.
      It is right where the chain is; start near the mode.
    - ``"laplace"``: mean and precision from the mode of p(x_s | θ) exp(−ridge/2 ‖θ − start‖²).
    - ``"sgld_moments"``: mean and covariance of local SGLD draws from the same density, as
      published. Draws that have not mixed make them too narrow, which turns chains away from the
      posterior.

    A local likelihood has no prior and can be improper (fewer rows than parameters) or have no
    mode (classes that are separable at the site), hence the ridge. It is part of the surrogate
    and, as everything in it, leaves the target alone.

    Args:
        kind: one of the three.
        curvature: of ``"anchored"`` and of the check before the run. ``"hessian"``: second
            derivatives, d products with it over up to 1,024 rows; for canonical links and
            networks of ReLU units its diagonal is Fisher's. ``"empirical_fisher"``: squared
            gradients of the rows, for large d; it needs a model that fits the rows.
        ridge: precision added to a local likelihood, in units of 1/θ².
        variance_floor: no surrogate has a smaller variance in any direction.
        draws: local SGLD draws; published: 3,000.
        warmup: local SGLD steps before them.
        step_size: h of the local SGLD; that of the algorithm's first round when None.
        batch_size: m of the local SGLD; that of the algorithm when None.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> Recipe("laplace", ridge=0.1).kind
        'laplace'

    Source: El Mekkaoui, Mesquita, Blomstedt, Kaski (2021), sections 3.1 and 5, appendix F.2;
    ``"anchored"`` is ours.
    """

    kind: str
    curvature: str = "hessian"
    ridge: float = 0.01
    variance_floor: float = 1e-10
    draws: int = 3000
    warmup: int = 1000
    step_size: float | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        arguments.one_of("surrogate", self.kind, KINDS)
        arguments.one_of("curvature", self.curvature, CURVATURES)
        keep: dict[str, Any] = {
            "ridge": arguments.number("ridge", self.ridge, 0.0, math.inf),
            "variance_floor": arguments.number(
                "variance_floor", self.variance_floor, 1e-30, math.inf
            ),
            "draws": arguments.whole("draws", self.draws, 2),
            "warmup": arguments.whole("warmup", self.warmup, 0),
            "batch_size": arguments.optional_whole("batch_size", self.batch_size, 1),
        }
        if self.step_size is not None:
            keep["step_size"] = arguments.number("step_size", self.step_size, 1e-30, math.inf)
        if self.kind == "laplace" and keep["ridge"] == 0:
            raise InputError(
                "ridge is 0: a Laplace surrogate needs a positive one, because a site's likelihood "
                "alone can be improper or have no mode."
            ).at("ridge")
        for name, value in keep.items():
            object.__setattr__(self, name, value)


class Settings(NamedTuple):
    """The parameters of the algorithm that uses the surrogates.

    Attributes:
        covariance: ``"full"`` or ``"diagonal"``.
        strength: α.
        step_size: h of the first round, as drift h/2 and noise variance h.
        local_steps: steps at a site between two exchanges.
        batch_size: rows of a minibatch, or None.
        replace: draw them with replacement.
    """

    covariance: str
    strength: float
    step_size: float
    local_steps: int
    batch_size: int | None
    replace: bool


class _Own(NamedTuple):
    """A site's state after the first phase.

    Attributes:
        reference: the start of the first chain.
        natural: the surrogate.
        converged: True if it could be computed.
        seen: the curvature of the likelihood at the start and the indices of the rows it is from,
            where they are known.
    """

    reference: Array
    natural: Natural
    converged: Array
    seen: tuple[Array, Array] | None


def fit_phases(
    recipe: Recipe,
    target: Target,
    settings: Settings,
    position_of: Callable[[Any], Array] = lambda inbox: inbox,
) -> tuple[Phase, Phase]:
    """Return two phases for ``Algorithm.fit``; `correction_of` reads what they leave.

    The sites fit and their natural parameters are summed, d² + d numbers a site (2d for diagonal
    ones); then each site forms its correction and examines it, d numbers.

    Args:
        recipe: how.
        target: the posterior.
        settings: of the algorithm.
        position_of: the position in the inbox of ``Algorithm.init``; there the surrogates refer to.
    """
    first = Phase(
        partial(_fit, recipe, target, settings, position_of),
        Sum(),
        noise=partial(_fit_randomness, recipe, target, settings),
        evaluation=lambda inbox: Evaluation(position_of(inbox)),
    )
    second = Phase(
        partial(examine, recipe.curvature, target, settings),
        Sum(),
        noise=row_bits,
        evaluation=None,  # at the start, and where the site itself finds the surrogates to point
    )
    return first, second


def _fit_randomness(recipe: Recipe, target: Target, settings: Settings, rng: RandomStreams) -> Any:
    if recipe.kind != "sgld_moments":
        return row_bits(rng)
    steps = recipe.warmup + recipe.draws
    oracle = _local_oracle(recipe, target, settings)
    rows = oracle.numbers(rng, "sgld", (steps, 1))
    return rows, rng.normal("sgld/noise", (steps, target.dimension))


def _local_oracle(recipe: Recipe, target: Target, settings: Settings) -> Any:
    batch_size = recipe.batch_size or settings.batch_size
    if batch_size is None:
        return exact(target)
    return minibatch(target, batch_size, replace=settings.replace)


def _fit(
    recipe: Recipe,
    target: Target,
    settings: Settings,
    position_of: Callable[[Any], Array],
    noise: Any,
    shared: Any,
    state: Any,
    inbox: Any,
    site: Site,
) -> Any:
    """Send the site's natural parameters around the start."""
    start = position_of(inbox)
    fit = {"anchored": _anchored, "laplace": _laplace, "sgld_moments": _moments}[recipe.kind]
    natural, converged, seen = fit(recipe, target, settings, noise, start, site)
    finite = jnp.all(jnp.isfinite(natural.gradient)) & jnp.all(jnp.isfinite(natural.precision))
    return _Own(start, natural, converged & finite, seen), natural, {}


def _anchored(
    recipe: Recipe, target: Target, settings: Settings, noise: Array, start: Array, site: Site
) -> tuple[Natural, Array, tuple[Array, Array]]:
    rows, weights = curvatures.all_rows(site, start.dtype)
    gradient = jax.grad(lambda at: curvatures.log_likelihood(target, at, rows, weights))(start)
    rows, weights = curvatures.some_rows(site, noise, start.dtype)
    full = settings.covariance == "full"
    matrix = curvatures.curvature(target, start, rows, weights, recipe.curvature, full=full)
    # A flat direction stays flat: the gradient alone is matched there.
    precision = clipped(matrix, 0.0, 1 / recipe.variance_floor)
    return Natural(gradient, precision), jnp.ones((), bool), (matrix, noise)


def _laplace(
    recipe: Recipe, target: Target, settings: Settings, noise: Array, start: Array, site: Site
) -> tuple[Natural, Array, None]:
    rows, weights = curvatures.all_rows(site, start.dtype)

    def negative(theta: Array) -> Array:
        penalty = recipe.ridge / 2 * jnp.sum((theta - start) ** 2)
        return penalty - curvatures.log_likelihood(target, theta, rows, weights)

    mode, matrix, converged = curvatures.mode_of(negative, start)
    precision = clipped(matrix, recipe.ridge, 1 / recipe.variance_floor)
    if settings.covariance == "diagonal":
        precision = 1 / jnp.diag(jnp.linalg.inv(precision))
    return Natural(apply(precision, mode - start), precision), converged, None


def _moments(
    recipe: Recipe, target: Target, settings: Settings, noise: Any, start: Array, site: Site
) -> tuple[Natural, Array, None]:
    oracle = _local_oracle(recipe, target, settings)
    # The surrogate is of the likelihood alone: a share of the prior would count it once a site.
    likelihood = dataclasses.replace(site, prior_share=jnp.zeros_like(site.prior_share))
    gradient = oracle.bind(likelihood)
    h = recipe.step_size or settings.step_size
    full = settings.covariance == "full"

    def step(theta: Array, numbers: Any) -> Array:
        rows, normal = numbers
        drift = gradient(rows, theta) + recipe.ridge * (theta - start)
        return theta - h / 2 * drift + math.sqrt(h) * normal

    rows, normal = noise
    numbers = (oracle.prepare(rows, likelihood), normal)
    before = jax.tree.map(lambda leaf: leaf[: recipe.warmup], numbers)
    after = jax.tree.map(lambda leaf: leaf[recipe.warmup :], numbers)
    theta = jax.lax.scan(lambda at, n: (step(at, n), None), start, before, length=recipe.warmup)[0]

    def collect(carry: Any, numbers: Any) -> Any:
        at, first, second = carry
        at = step(at, numbers)
        deviation = at - theta  # from the end of the warm-up: squares of large means lose digits
        square = deviation[:, None] * deviation[None, :] if full else deviation**2
        return (at, first + deviation, second + square), None

    d = start.size
    empty = (theta, jnp.zeros_like(start), jnp.zeros((d, d) if full else (d,), start.dtype))
    (_, first, second), _ = jax.lax.scan(collect, empty, after, length=recipe.draws)
    mean = first / recipe.draws
    square = mean[:, None] * mean[None, :] if full else mean**2
    covariance = (second / recipe.draws - square) * (recipe.draws / (recipe.draws - 1))
    if full:
        values, vectors = jnp.linalg.eigh(covariance)
        precision = (vectors / jnp.maximum(values, recipe.variance_floor)[None, :]) @ vectors.T
    else:
        precision = 1 / jnp.maximum(covariance, recipe.variance_floor)
    return Natural(apply(precision, theta + mean - start), precision), jnp.ones((), bool), None
