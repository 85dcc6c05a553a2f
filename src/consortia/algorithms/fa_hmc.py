r"""Federated averaging HMC: FA-HMC, FA-LD and the de-biased variant.

A round is T HMC iterations of K leapfrog steps at every site, then one weighted average:

.. math::
    \theta' = \theta + \eta p - \tfrac{\eta^2}{2} g_c(\theta, \xi_k), \quad
    p' = p - \tfrac{\eta}{2}[g_c(\theta, \xi_k) + g_c(\theta', \xi_{k+1/2})], \quad
    \theta \leftarrow \sum_c w_c \theta_c

with :math:`f_c = U_c / w_c`, :math:`g_c` an estimate of :math:`\nabla f_c` and the momentum
:math:`p_c = \sqrt{\rho}\,\xi + \sqrt{1-\rho}\,\xi_c/\sqrt{w_c}`, ξ common to all sites, drawn anew
for each HMC iteration. There is no Metropolis step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from consortia import gradients, schedules
from consortia.core import arguments
from consortia.core.contract import (
    CURVATURE,
    Algorithm,
    Claims,
    Cost,
    Disclosure,
    Draws,
    Evaluation,
    Info,
    Mean,
    Phase,
    SelfSetting,
    Site,
)
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import MassMatrix, leapfrog
from consortia.errors import InputError
from consortia.gradients import GradientOracle
from consortia.runtime.late import Array, PyTree, jax, jnp
from consortia.schedules import Schedule
from consortia.schedules.participation import fair_weights, probabilities

LEAPFROGS, ITERATIONS = (1, 2, 3, 5, 8, 12), (1, 2, 4, 8, 16)
"""Values of K and T that are tried where they are left open."""


@dataclass(frozen=True)
class FAHMC(SelfSetting):
    r"""Federated averaging HMC (FA-HMC).

    **Samples** a law near exp(−U/temperature), U = Σ_c U_c, not that law itself: there is no
    Metropolis test, and local steps bias the average where sites differ. On Gaussian targets
    `consortia.oracles.fa_hmc_law` gives the exact law. To leading order the bias of the mean is
    −κ Σ_c w_c λ_c² (m_c − m*)/λ̄ with κ = (Kη)²[(T−1)/4 + (1 − 1/K²)/12], which vanishes only for
    K = T = 1 or equal curvatures; the variance is wrong by O(η²), for one site by the factor
    1/(1 − η²λ/4). Minibatches add O(η²) to the variance. ``debias=True`` removes the bias of the
    mean on Gaussian targets, whenever the method is stable.

    **Draw**: the averaged θ, one a round. The sites' own θ_c are not posterior draws.

    **Step size**: η, drift η²/2, noise variance η²: one leapfrog step equals an SGLD step with
    h' = η²/2 (θ − h'∇U + N(0, 2h')).

    **Settings that are left open**, η, K, T, and with T the de-biasing and the mass matrix, are
    chosen by the exact law for a Gaussian approximation of the posterior: the cheapest settings
    whose bias is within the target of a run, see `consortia.theory.settings`.

    Args:
        step_size: η > 0: a number, an array over rounds (warm-up included) or a function of the
            round's index; see `consortia.schedules`. None: chosen, as are the next two.
        leapfrog_steps: K ≥ 1.
        local_steps: T ≥ 1, HMC iterations between two averages.
        batch_size: B rows a gradient draw; None takes all rows of the site.
        replace: minibatches with replacement; without costs more and bounds B by the smallest site.
        gradient_noise: variance per coordinate of Gaussian noise added to each draw of ∇f_c.
        gradient_draws: independent draws at each inner leapfrog point: 2 as published (2K − 1
            stochastic gradients per HMC iteration), or 1 (K of them).
        momentum_correlation: ρ in [0, 1], the part of the momentum's variance that all sites share.
        debias: the force becomes ∇f_c(θ) − ∇f_c(a) + ∇f(a), the anchor a being the average of the
            previous synchronisation, with the same rows at θ and a and one full gradient a round;
            ``gradient_noise`` is added once to the whole force, and to the gradient that a site
            sends, whose average acts in the next round. Can be unstable when the sites' curvatures
            differ much; the oracle gives the spectral radius. None: chosen where T is, else False.
        weights: w_c > 0 summing to one; n_c/n when None. The target does not depend on them.
        mass_matrix: M, the diagonal (d,) or dense (d, d) in the order of the flat parameters;
            None: chosen where T is, else the identity. Momentum N(0, M), drift
            η M⁻¹p − (η²/2) M⁻¹g.
        temperature: momentum variance is multiplied by it; the target is exp(−U/temperature).
        keep_gradients: with ``debias`` and ``batch_size``, of `fa_ld`: within a round a site keeps
            the gradient of each row at its last visit, at first at the round's start, and uses
            these instead of those at the anchor (SAGA). It takes d numbers a row and chain.
        availability: probability that each site answers in a round, where some may be absent. The
            average is then over the sites that answer, with weights by which each site's share is
            w_c on average, so that the bias of the mean is that with all sites. None: weights in
            proportion to w_c.
        average_every: A leapfrog steps after which positions and momenta are averaged, within
            trajectories of K, as in section 5 of the paper; a round is then such a window, and its
            draw the averaged θ. With ``local_steps=1`` and without ``debias``.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> import consortia
        >>> consortia.fa_hmc(0.02, leapfrog_steps=5, local_steps=10).leapfrog_steps
        5
        >>> sorted(consortia.fa_hmc().open_settings)
        ['debias', 'leapfrog_steps', 'local_steps', 'mass_matrix']

    Source: Liang, Zhang, Deng, Song, Lin, "Bayesian federated learning with Hamiltonian Monte
    Carlo" (2024), algorithms 1–3; ``debias`` is its B.2.
    """

    step_size: Schedule | Any = None
    leapfrog_steps: int | None = None
    local_steps: int | None = None
    _: KW_ONLY
    batch_size: int | None = None
    replace: bool = True
    gradient_noise: float = 0.0
    gradient_draws: int = 2
    momentum_correlation: float = 1.0
    debias: bool | None = None
    weights: tuple[float, ...] | Any = None
    mass_matrix: MassMatrix | Any = None
    temperature: float = 1.0
    average_every: int | None = None
    availability: tuple[float, ...] | Any = None
    keep_gradients: bool = False

    name = "fa_hmc"

    @property
    def claims(self) -> Claims:
        """The sampled law and its bias, which `debias` changes."""
        return self._claims("mean O((K eta)^2 T)", "algorithms 1-3, B.1, B.2")

    def _claims(self, mean: str, where: str) -> Claims:
        unlike = f"{mean} where sites differ (debias=True removes it on Gaussian targets)"
        shown = "mean exact on Gaussian targets" if self.debias else unlike
        return Claims(
            samples="a law near the posterior (no Metropolis test)",
            bias=f"{shown}, variance O(eta^2)",
            draw="the weighted average of the sites, one a round",
            step_size="eta: drift eta^2/2, noise variance eta^2, h' = eta^2/2",
            source=f"Liang, Zhang, Deng, Song, Lin (2024), {where}",
        )

    def __post_init__(self) -> None:
        debias = self.debias
        if debias is not None or self.local_steps is not None:
            debias = arguments.flag("debias", False if debias is None else debias)
        arguments.keep(
            self,
            step_size=schedules.as_schedule(self.step_size),
            leapfrog_steps=arguments.optional_whole("leapfrog_steps", self.leapfrog_steps, 1),
            local_steps=arguments.optional_whole("local_steps", self.local_steps, 1),
            batch_size=arguments.optional_whole("batch_size", self.batch_size, 1),
            replace=arguments.flag("replace", self.replace),
            gradient_noise=arguments.number("gradient_noise", self.gradient_noise, 0.0, math.inf),
            gradient_draws=arguments.whole("gradient_draws", self.gradient_draws, 1, 2),
            momentum_correlation=arguments.number(
                "momentum_correlation", self.momentum_correlation, 0.0, 1.0
            ),
            debias=debias,
            weights=arguments.site_weights(self.weights),
            mass_matrix=MassMatrix.of(self.mass_matrix),
            temperature=arguments.number("temperature", self.temperature, 0.0, math.inf),
            average_every=arguments.optional_whole("average_every", self.average_every, 1),
            availability=probabilities(self.availability),
            keep_gradients=arguments.flag("keep_gradients", self.keep_gradients),
        )
        given = self.leapfrog_steps is not None and self.local_steps == 1 and not self.debias
        if self.average_every is not None and not given:
            raise InputError(
                f"average_every={self.average_every} counts leapfrog steps between averages: give "
                f"leapfrog_steps and local_steps=1, not {self.local_steps}, and debias=False."
            ).at("average_every")

        kept = self.debias and self.batch_size and self.leapfrog_steps == 1
        if self.keep_gradients and (not kept or self.gradient_noise):
            raise InputError(
                "keep_gradients is for fa_ld with debias=True and batch_size, without "
                "gradient_noise: give these, or leave it out."
            ).at("keep_gradients")

    @property
    def lengths(self) -> tuple[int, int]:
        """K and T.

        Raises:
            InputError: one is still to be chosen.
        """
        if self.leapfrog_steps is None or self.local_steps is None:
            raise InputError(
                "leapfrog_steps or local_steps is None: `consortia.sample` chooses them; here they "
                "must be given."
            ).at("leapfrog_steps")
        return self.leapfrog_steps, self.local_steps

    @property
    def open_settings(self) -> Mapping[str, tuple[Any, ...]]:
        """K, T, and with T the de-biasing and the mass matrix, as far as they are not given."""
        values: dict[str, tuple[Any, ...]] = {}
        if self.leapfrog_steps is None:
            values["leapfrog_steps"] = LEAPFROGS
        if self.local_steps is None:
            values["local_steps"] = ITERATIONS
            if self.debias is None:
                values["debias"] = (False, True)
            if self.mass_matrix.values is None:
                values["mass_matrix"] = (CURVATURE, None)
        return values

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse weights for another number of sites, batches too large, a wrong mass matrix."""
        arguments.weights_fit(self.weights, names)
        arguments.weights_fit(self.availability, names, "availability")
        self.averaging_weights(sizes)
        if not self.replace:
            arguments.batch_fits(self.batch_size, sizes, names)
        self.mass_matrix.check(dimension)

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """Return w_c: as given, else n_c/n."""
        if self.weights is None:
            return super().site_weights(sizes)
        return np.asarray(self.weights, np.float64)

    def averaging_weights(self, sizes: np.ndarray) -> np.ndarray:
        """Return those with which each site's part is w_c on average, where some are absent."""
        weights = self.site_weights(sizes)
        if self.availability is None:
            return weights
        return fair_weights(weights, np.array(self.availability))

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """Return the gradients of one round: K T exact ones a site, (2K − 1) T of minibatches."""
        leapfrogs, iterations = self.lengths
        if self.average_every is not None:
            inner = self.average_every - 1
            draws = 2 + inner * (1 if self.batch_size is None else self.gradient_draws)
            rows = int(sizes.sum()) if self.batch_size is None else len(sizes) * self.batch_size
            return Cost(draws * len(sizes), draws * rows, vectors=2)
        inner = leapfrogs - 1
        if self.batch_size is None:
            draws = iterations * (1 + inner)
            rows = draws * int(sizes.sum())
        else:
            draws = iterations * (1 + inner * self.gradient_draws)
            draws *= 2 if self.debias and not self.keep_gradients else 1
            rows = draws * len(sizes) * self.batch_size
        extra = 1 if self.debias else 0
        total = rows + extra * int(sizes.sum())
        return Cost((draws + extra) * len(sizes), total, vectors=1 + extra)

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """Return h' = η²/2 of each round; None when η is constant."""
        steps = schedules.varying(self.step_size, iterations)
        return None if steps is None else steps**2 / 2

    @property
    def dimension(self) -> int | None:
        """The dimension of a given mass matrix."""
        return self.mass_matrix.dimension

    def build(self, target: Target) -> Algorithm:
        """Return one phase: T iterations of K leapfrogs at every site, then the average."""
        if self.average_every is not None:
            return _within_trajectories(self, target)
        phase = Phase(
            partial(_local, self, target),
            Mean(),
            noise=partial(_noise, self, target),
            shared=partial(_shared, self, target),
            disclosure=Disclosure,
        )
        if not self.debias:
            draws = Draws(hub=lambda hub, inbox: inbox)
            return Algorithm(lambda position: ((), (), position), (phase,), draws)
        phase = phase._replace(
            local=partial(_local_debiased, self, target),
            evaluation=lambda inbox: Evaluation(inbox.position),
            disclosure=lambda outbox: Disclosure(outbox.position, outbox.gradient),
        )
        return Algorithm(_init_debiased, (phase,), Draws(hub=lambda hub, inbox: inbox.position))


@dataclass(frozen=True)
class FALD(FAHMC):
    r"""Federated averaging Langevin dynamics (FA-LD): `fa_hmc` with one leapfrog step.

    .. math:: \theta'_c = \theta_c - \tfrac{\eta^2}{2} g_c(\theta_c) + \eta p_c, \qquad
              \theta \leftarrow \sum_c w_c\theta_c \text{ after } T \text{ steps}

    **Samples** a law near exp(−U/temperature); the mean is wrong by O(η²) unless T = 1 or the
    sites' curvatures are equal, the variance by O(η²). **Draw**: the averaged θ, one a round.

    Args:
        step_size: η; drift η²/2, noise variance η².
        local_steps: T ≥ 1, Langevin steps between two averages.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> FALD(0.1, 5).leapfrog_steps
        1

    All other arguments and the errors are those of `fa_hmc`.

    Source: Liang et al. (2024), algorithm 3 with K = 1.
    """

    leapfrog_steps: int = field(default=1, init=False)

    name = "fa_ld"

    @property
    def claims(self) -> Claims:
        """The sampled law and its bias."""
        return self._claims("mean O(eta^2 (T - 1))", "algorithm 3 with K = 1")


fa_hmc, fa_ld = FAHMC, FALD


# --- what is drawn, kept and sent ----------------------------------------------------------------


class Shared(NamedTuple):
    """Noise of all sites: η of this round, and ξ of its T iterations; () where ρ = 0.

    Of averages within trajectories ξ are those that the window may begin, and ``start`` is the
    number of leapfrog steps of its trajectory before it.
    """

    step_size: Float[Array, ""]
    momentum: PyTree[Float[Array, "T d"]]
    start: PyTree[Float[Array, ""]] = ()


class Noise(NamedTuple):
    """Noise of one site: T first and T (K − 1) inner gradients, and ξ_c; () where ρ = 1.

    ``report`` is the noise of the gradient that is sent, () where there is none. Of averages within
    trajectories there are the first, inner and ``last`` gradients of a window.
    """

    first: PyTree
    inner: PyTree
    momentum: PyTree[Float[Array, "T d"]]
    report: PyTree[Float[Array, " d"]] = ()
    last: PyTree = ()


class Anchor(NamedTuple):
    """The state of a site that de-biases: a, ∇U_c(a), and False as long as there is none."""

    position: Float[Array, " d"]
    gradient: Float[Array, " d"]
    active: Bool[Array, ""]


class Report(NamedTuple):
    """The message of a site that de-biases: θ_c and ∇f_c at the round's start, the next anchor."""

    position: Float[Array, " d"]
    gradient: Float[Array, " d"]


def _init_debiased(position: Float[Array, " d"]) -> tuple[Anchor, tuple[()], Report]:
    zero = jnp.zeros_like(position)
    return Anchor(position, zero, jnp.zeros((), bool)), (), Report(position, zero)


def _shared(method: FAHMC, target: Target, rng: RandomStreams) -> Shared:
    step_size = jnp.asarray(method.step_size(rng.iteration), target.dtype)
    if method.momentum_correlation == 0:
        return Shared(step_size, ())
    return Shared(step_size, _common(method, rng, (method.lengths[1], target.dimension)))


def _common(method: FAHMC, rng: RandomStreams, shape: tuple[int, int]) -> Float[Array, "T d"]:
    """Return √ρ ξ: a product made here is rounded equally wherever the sites are computed."""
    return math.sqrt(method.momentum_correlation) * rng.normal("momentum", shape)


def _noise(method: FAHMC, target: Target, rng: RandomStreams) -> Noise:
    declare = _oracle(method, target).numbers
    inner, steps = method.lengths[0] - 1, method.lengths[1]
    reported = bool(method.debias) and method.gradient_noise > 0
    return Noise(
        declare(rng, "first", (steps, 1)),
        declare(rng, "inner", (steps, inner, method.gradient_draws)) if inner else (),
        rng.normal("momentum", (steps, target.dimension))
        if method.momentum_correlation < 1
        else (),
        rng.normal("report", (target.dimension,)) if reported else (),
    )


# --- averages within trajectories ----------------------------------------------------------------


class Moving(NamedTuple):
    """The message within a trajectory: θ_c and v_c = M⁻¹p_c."""

    position: Float[Array, " d"]
    velocity: Float[Array, " d"]


def _within_trajectories(method: FAHMC, target: Target) -> Algorithm:
    """Return one phase: A leapfrog steps at every site, then the average of θ and v."""
    phase = Phase(
        partial(_window, method, target),
        Mean(),
        noise=partial(_window_noise, method, target),
        shared=partial(_window_shared, method, target),
        evaluation=lambda inbox: Evaluation(inbox.position),
        disclosure=lambda outbox: Disclosure(outbox.position),
    )
    draws = Draws(hub=lambda hub, inbox: inbox.position)
    return Algorithm(lambda at: ((), (), Moving(at, jnp.zeros_like(at))), (phase,), draws)


def _begun(method: FAHMC) -> int:
    """Return the most trajectories that begin in a window."""
    return -(-method.given("average_every") // method.lengths[0])


def _window_shared(method: FAHMC, target: Target, rng: RandomStreams) -> Shared:
    (steps, _), every = method.lengths, method.given("average_every")
    # In turns of K windows, so that no product overflows.
    start = rng.iteration % steps * every % steps
    shape = _begun(method), target.dimension
    drawn = _common(method, rng, shape) if method.momentum_correlation > 0 else ()
    step_size = jnp.asarray(method.step_size(rng.iteration), target.dtype)
    return Shared(step_size, drawn, start)


def _window_noise(method: FAHMC, target: Target, rng: RandomStreams) -> Noise:
    declare, every = _oracle(method, target).numbers, method.given("average_every")
    inner = declare(rng, "inner", (every - 1, method.gradient_draws)) if every > 1 else ()
    first, last = declare(rng, "first", (1,)), declare(rng, "last", (1,))
    shape = _begun(method), target.dimension
    momentum = rng.normal("momentum", shape) if method.momentum_correlation < 1 else ()
    return Noise(first, inner, momentum, last=last)


def _window(
    method: FAHMC,
    target: Target,
    noise: Noise,
    shared: Shared,
    state: tuple[()],
    inbox: Moving,
    site: Site,
) -> tuple[tuple[()], Moving, Info]:
    """Make A leapfrog steps, with a new momentum where a trajectory begins."""
    oracle, weight = _oracle(method, target), jnp.asarray(site.weight, inbox.position.dtype)
    evaluate, eta = oracle.bind(site), shared.step_size
    every, (steps, _) = method.given("average_every"), method.lengths

    def force(rows: PyTree, theta: Array) -> Array:
        return method.mass_matrix.solve(evaluate(rows, theta) / weight)

    new = _velocities(method, noise, shared, weight)
    first, last = (oracle.prepare(part, site) for part in (noise.first, noise.last))
    begins = shared.start == 0
    begun = begins.astype(jnp.int32)
    velocity = jnp.where(begins, new[0], inbox.velocity) - eta / 2 * force(first, inbox.position)

    def step(at: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        theta, v, count = carry
        theta = theta + eta * v
        kick = force(jax.tree.map(lambda leaf: leaf[at - 1], inner), theta)
        begins = (shared.start + at) % steps == 0
        fresh = new[jnp.minimum(count, len(new) - 1)] - eta / 2 * kick
        v = jnp.where(begins, fresh, v - eta * kick)
        return theta, v, count + begins.astype(jnp.int32)

    def end(_: Array, at: Moving) -> Moving:
        theta = at.position + eta * at.velocity
        return Moving(theta, at.velocity - eta / 2 * force(last, theta))

    # 1, as the compiler cannot know: a loop of one step would be dissolved, and be rounded
    # otherwise in a program for fewer sites.
    once = jax.lax.optimization_barrier(jnp.int32(1))
    carry = inbox.position, velocity, begun
    if every > 1:
        inner = oracle.prepare(noise.inner, site)
        carry = jax.lax.fori_loop(1, once + every - 1, step, carry)
    return state, jax.lax.fori_loop(0, once, end, Moving(*carry[:2])), {}


# --- a round at a site ---------------------------------------------------------------------------


def _local(
    method: FAHMC,
    target: Target,
    noise: Noise,
    shared: Shared,
    state: tuple[()],
    inbox: Float[Array, " d"],
    site: Site,
) -> tuple[tuple[()], Array, Info]:
    """Return θ_c after T iterations as the message."""
    return state, _iterate(method, _oracle(method, target), noise, shared, inbox, site), {}


def _local_debiased(
    method: FAHMC,
    target: Target,
    noise: Noise,
    shared: Shared,
    state: Anchor,
    inbox: Report,
    site: Site,
) -> tuple[Anchor, Report, Info]:
    """Return the same with the force ∇f_c(θ) − ∇f_c(a) + ∇f(a); this θ is the next anchor.

    The gradient that is sent is as noisy as any other; the site keeps the exact one.
    """
    position = inbox.position
    weight = jnp.asarray(site.weight, position.dtype)
    here = gradients.exact(target).bind(site)((), position)
    anchored = (state.position, state.gradient, weight * inbox.gradient, state.active)
    if method.keep_gradients:
        moved = jnp.where(state.active, anchored[2] - state.gradient, 0)
        proposed = _by_kept_gradients(method, target, noise, shared, position, site, here, moved)
    else:
        oracle = _oracle(method, target, anchored)
        proposed = _iterate(method, oracle, noise, shared, position, site)
    sent = here / weight
    if method.gradient_noise > 0:
        sent = sent + math.sqrt(method.gradient_noise) * noise.report
    return Anchor(position, here, jnp.ones((), bool)), Report(proposed, sent), {}


def _by_kept_gradients(
    method: FAHMC,
    target: Target,
    noise: Noise,
    shared: Shared,
    position: Float[Array, " d"],
    site: Site,
    mean: Float[Array, " d"],
    moved: Float[Array, " d"],
) -> Float[Array, " d"]:
    """Return the end of T Langevin steps by gradients of rows that are kept, whose mean is given.

    ``moved`` is added to the force. A kept gradient is that of U_c as its row alone estimates it.
    """
    weight = jnp.asarray(site.weight, position.dtype)

    def each(theta: Array, rows: Array) -> Array:
        return jax.vmap(
            lambda row: jax.grad(target.batch_potential)(theta, site.rows(row[None]), site)
        )(rows)

    def step(carry: tuple[Array, Array, Array], drawn: tuple[Array, Array]) -> tuple[Any, None]:
        theta, kept, mean = carry
        velocity, rows = drawn
        change = each(theta, rows) - kept[rows]
        force = method.mass_matrix.solve((jnp.mean(change, axis=0) + mean + moved) / weight)
        theta = theta + shared.step_size * velocity - shared.step_size**2 / 2 * force
        # A row that is drawn twice changes once.
        times = jnp.sum(rows[:, None] == rows[None], axis=1)
        change = change / times[:, None].astype(change.dtype)
        mean = mean + jnp.sum(change, axis=0) / site.size.astype(change.dtype)
        return (theta, kept.at[rows].add(change), mean), None

    rows = _oracle(method, target).prepare(noise.first, site)
    every = jnp.arange(len(site.all()[1]), dtype=rows.dtype)
    scanned = _velocities(method, noise, shared, weight), rows.reshape(len(rows), -1)
    return jax.lax.scan(step, (position, each(position, every), mean), scanned)[0][0]


def _iterate(
    method: FAHMC,
    oracle: GradientOracle,
    noise: Noise,
    shared: Shared,
    position: Float[Array, " d"],
    site: Site,
) -> Float[Array, " d"]:
    """Return the end of T HMC iterations with the force ∇f_c = ∇U_c / w_c."""
    evaluate = oracle.bind(site)
    weight = jnp.asarray(site.weight, position.dtype)
    inner_steps = method.lengths[0] - 1

    def force(rows: PyTree, theta: Array) -> Array:
        return method.mass_matrix.solve(evaluate(rows, theta) / weight)

    def iteration(theta: Array, drawn: tuple[Array, PyTree, PyTree]) -> tuple[Array, None]:
        return leapfrog(force, theta, drawn[0], shared.step_size, *drawn[1:], inner_steps), None

    first = oracle.prepare(noise.first, site)
    inner = oracle.prepare(noise.inner, site) if inner_steps else ()
    velocities = _velocities(method, noise, shared, weight)
    scanned = (velocities, first, inner)
    return jax.lax.scan(iteration, position, scanned, length=method.lengths[1])[0]


def _velocities(
    method: FAHMC, noise: Noise, shared: Shared, weight: Float[Array, ""]
) -> Float[Array, "T d"]:
    """Return v = M⁻¹p of the T iterations."""
    correlation = method.momentum_correlation
    if correlation == 1:
        momentum = shared.momentum
    elif correlation == 0:
        momentum = noise.momentum / jnp.sqrt(weight)
    else:
        private = math.sqrt(1 - correlation) * noise.momentum / jnp.sqrt(weight)
        momentum = shared.momentum + private
    return method.mass_matrix.velocity(math.sqrt(method.temperature) * momentum)


def _oracle(
    method: FAHMC,
    target: Target,
    anchored: tuple[Array, Array, Array, Array] | None = None,
) -> GradientOracle:
    """Return the estimate of ∇U_c: exact or of minibatches, de-biased and noisy where wanted."""
    oracle = gradients.estimate(target, method.batch_size, replace=method.replace)
    if anchored is not None:
        oracle = gradients.control_variate(oracle, *anchored)
    if method.gradient_noise > 0:
        oracle = gradients.noisy(oracle, method.gradient_noise, target.dimension)
    return oracle
