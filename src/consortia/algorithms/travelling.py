r"""Chains that travel between sites: DSGLD, and FSGLD with conducive gradients.

A chain visits one site at a time, site s with probability :math:`f_s`, makes T updates there and is
passed on; several chains travel side by side. One update at site s is

.. math::
    \theta' = \theta + \tfrac h2 \bigl(d_s + \alpha g_s\bigr) + N(0, h I), \qquad
    d_s = \nabla\log p(\theta) + \frac{n_s}{f_s m}\sum_{i \in \text{batch}}\nabla\log p(z_i|\theta),
    \quad g_s = \nabla\log q(\theta) - \tfrac{1}{f_s}\nabla\log q_s(\theta)

with Gaussian surrogates :math:`q_s` of the sites' likelihoods and :math:`q = \prod_s q_s`. DSGLD is
α = 0. Nothing in an update grows with the number of sites.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from consortia import gradients, schedules, surrogates
from consortia.core import arguments
from consortia.core.contract import (
    Algorithm,
    Claims,
    Cost,
    Disclosure,
    Draws,
    Evaluation,
    Info,
    Phase,
    Route,
    SelfSetting,
    Site,
    SurrogateBased,
)
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.errors import InputError, wrong
from consortia.runtime.late import Array, PyTree, jax, jnp
from consortia.schedules import Schedule
from consortia.surrogates.fitting import COVARIANCES

Correct = Callable[[Site], surrogates.Correction]

MOST_COVARIANCE_ENTRIES = 2**28
"""Entries of all sites' covariances together: 1 GB in single precision."""

VISITS = (1, 2, 4, 8, 16, 32, 64)
"""Values of T that are tried where it is left open."""


@dataclass(frozen=True)
class DSGLD(SelfSetting):
    r"""Distributed stochastic gradient Langevin dynamics (DSGLD): chains that travel.

    **Samples** a law near exp(−U) for T = 1 and sites that agree. Sites that differ add variance,
    up to the spread of the local posteriors' means as T grows: the chain then samples a mixture of
    p(θ) p(x_s | θ)^(1/f_s), each as narrow as a posterior of all rows. The mean over the ends of
    visits is right only if the sites' curvatures are in proportion to f_s, or T = 1. Minibatches
    add variance, often many times the posterior's. `consortia.oracles.travelling_law` gives the law
    exactly on Gaussian targets; `fsgld` removes most of the bias.

    **Draw**: θ at the end of each visit, or after each update (``record="updates"``). Thinning the
    updates by a multiple of T keeps ends of visits only, where the spread is largest.

    **Step size**: h, drift h/2, noise variance h: one update equals an SGLD step with h' = h/2
    (θ − h'∇U + N(0, 2h')). A round is a visit, within which h is constant, or changes by
    ``step_factors``.

    Args:
        step_size: h > 0: a number, an array over rounds (warm-up included) or a function of the
            round's index; see `consortia.schedules`. None: chosen by the exact law, as is the next,
            see `consortia.theory.settings`.
        local_steps: T ≥ 1, updates a visit.
        batch_size: m rows an update, at most as many as the smallest site has; None takes all rows
            of the visited site.
        replace: minibatches with replacement; without costs more.
        probabilities: f_s > 0 summing to one; n_s/n when None.
        record: ``"visits"`` or ``"updates"``.
        step_factors: h_t/h of the T updates of a visit, h_t being the step sizes of algorithm 1;
            None: 1.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> import consortia
        >>> consortia.dsgld(1e-4, local_steps=100, batch_size=10).local_steps
        100

    Source: Ahn, Shahbaba, Welling (2014), as in El Mekkaoui, Mesquita, Blomstedt, Kaski, "Federated
    stochastic gradient Langevin dynamics" (2021), equations 3 and 4.
    """

    step_size: Schedule | Any = None
    local_steps: int | None = None
    batch_size: int | None = None
    _: KW_ONLY
    replace: bool = True
    probabilities: tuple[float, ...] | Any = None
    record: str = "visits"
    step_factors: tuple[float, ...] | Any = None

    name = "dsgld"
    claims = Claims(
        samples="a law between the posterior and a mixture of p(θ) p(x_s | θ)^(1/f_s) over sites s",
        bias="variance: the spread of the sites' pulls, growing with T, and that of the "
        "minibatches, O(h); mean O(h T) with different curvatures",
        draw="the position after each visit, or after each update (record='updates')",
        step_size="h: drift h/2, noise variance h, h' = h/2",
        source="El Mekkaoui, Mesquita, Blomstedt, Kaski (2021), equations 3 and 4, "
        "after Ahn, Shahbaba, Welling (2014)",
    )

    @property
    def lightly_compiled(self) -> bool:
        """True of minibatches."""
        return self.batch_size is not None

    def __post_init__(self) -> None:
        steps = arguments.optional_whole("local_steps", self.local_steps, 1)
        factors = self.step_factors
        if factors is not None:
            values = arguments.array("step_factors", factors, "one positive number an update")
            steps, factors = steps or max(values.size, 1), tuple(values.ravel().tolist())
            if values.shape != (steps,) or min(factors) <= 0 or self.record != "visits":
                raise InputError(
                    f"step_factors has shape {values.shape}: give one positive number for each of "
                    f"{steps} updates of a visit, and record='visits'."
                ).at("step_factors")
        arguments.keep(
            self,
            step_size=schedules.as_schedule(self.step_size),
            step_factors=factors,
            local_steps=steps,
            batch_size=arguments.optional_whole("batch_size", self.batch_size, 1),
            replace=arguments.flag("replace", self.replace),
            probabilities=arguments.site_weights(self.probabilities, "probabilities"),
            record=arguments.one_of("record", self.record, ("visits", "updates")),
        )

    @property
    def open_settings(self) -> Mapping[str, tuple[Any, ...]]:
        """T, where it is not given."""
        return {"local_steps": VISITS} if self.local_steps is None else {}

    @property
    def keeps_path(self) -> bool:
        """True if every local update is a draw (with T = 1 the end of a visit is)."""
        return self.record == "updates" and self.given("local_steps") > 1

    @property
    def corrects(self) -> bool:
        """True if conducive gradients are added."""
        return False

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse probabilities for another number of sites, and batches too large."""
        arguments.weights_fit(self.probabilities, names, "probabilities")
        instead = "use all rows of the visited site with batch_size=None"
        arguments.batch_fits(self.batch_size, sizes, names, "", instead)

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """Return f_s: as given, else n_s/n; with λ_s = f_s, ∇U_s/f_s holds the whole prior."""
        if self.probabilities is None:
            return super().site_weights(sizes)
        return np.asarray(self.probabilities, np.float64)

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """Return T gradients, at one site."""
        rows = self.batch_size
        if rows is None:
            rows = round(float(self.site_weights(sizes) @ sizes))
        steps = self.given("local_steps")
        return Cost(steps, steps * rows, in_turn=True)

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """Return h' = h/2 of each round; None when h is constant."""
        steps = schedules.varying(self.step_size, iterations)
        return None if steps is None else steps / 2

    def build(self, target: Target) -> Algorithm:
        """Return the fit of the surrogates, if any; then T updates and on to the next site."""
        phase = Phase(
            partial(_visit, self, target),
            Route(),
            noise=partial(_noise, self, target),
            shared=partial(_shared, self, target),
            evaluation=lambda inbox: Evaluation(inbox.position),
            disclosure=lambda outbox: Disclosure(outbox.position),
        )
        draws = Draws(hub=lambda hub, inbox: inbox.position)
        if self.keeps_path:
            draws = Draws(
                hub=lambda hub, inbox: inbox.path, per_iteration=self.given("local_steps")
            )
        return Algorithm(partial(_init, self), (phase,), draws, fit=self._fit(target))

    def _oracle(self, target: Target) -> gradients.GradientOracle:
        """Return the estimate of ∇U_s."""
        return gradients.estimate(target, self.batch_size, replace=self.replace)

    def _correct(self) -> Correct | None:
        """Return a site's knowledge of the surrogates, as a function of the site."""
        return None

    def _fit(self, target: Target) -> tuple[Phase, ...]:
        """Return the phases that find or examine the surrogates."""
        return ()


@dataclass(frozen=True)
class FSGLD(DSGLD, SurrogateBased):
    r"""Federated stochastic gradient Langevin dynamics (FSGLD): `dsgld` with conducive gradients.

    **Samples** a law near exp(−U), with the variance that the minibatches add: on Gaussian sites
    with exact surrogates the mean is exact and the covariance independent of T, but with small
    batches it is many times the posterior's (11 times in the published example at h = 1e-4, m = 10;
    1.05 times with full batches). `consortia.oracles.travelling_law` predicts it. With surrogates
    that are not exact the biases of `dsgld` return in proportion to their error.

    **Draw** and **step size**: as in `dsgld`.

    A surrogate that is narrower than its likelihood can reverse the drift at its site. This is
    checked before the run, which is refused if the chain would diverge (``examination="warn"`` runs
    it all the same); a chain that diverges later ends the run with
    `consortia.errors.NonFiniteError`, which names the site and says whether its surrogate made the
    chain diverge.

    Args:
        surrogate: ``"anchored"``, ``"laplace"`` or ``"moments"`` (the published one, of local
            SGLD; also ``"sgld_moments"``), a
            `consortia.surrogates.Recipe` with their options, the user's own
            `consortia.surrogates.Gaussian`, one a site, or None: DSGLD.
        strength: α ≥ 0; 1 is the published method, 0 is DSGLD bit for bit.
        covariance: ``"full"`` or ``"diagonal"``, of surrogates that are computed.
        examination: ``"refuse"`` or ``"warn"``, if surrogates would make the chain diverge.

    All other arguments are those of `dsgld`.

    Raises:
        InputError: an argument is out of its range, or a surrogate is not positive definite.

    Example:
        >>> import consortia
        >>> consortia.fsgld(1e-4, 100, batch_size=10, surrogate="laplace").strength
        1.0

    Source: El Mekkaoui, Mesquita, Blomstedt, Kaski (2021), equation 5 and algorithm 1. Equation 7
    drops the prior; it is kept here. The anchored surrogate is ours.
    """

    _: KW_ONLY
    surrogate: surrogates.Recipe | tuple[surrogates.Gaussian, ...] | Any = "anchored"
    strength: float = 1.0
    covariance: str = "full"
    examination: str = "refuse"

    name = "fsgld"
    claims = Claims(
        samples="a law near the posterior, the nearer the better the surrogates",
        bias="variance O(h) from minibatches, often many times the posterior's; mean and the rest "
        "in proportion to the surrogates' error",
        draw="the position after each visit, or after each update (record='updates')",
        step_size="h: drift h/2, noise variance h, h' = h/2",
        source="El Mekkaoui, Mesquita, Blomstedt, Kaski (2021), equation 5, algorithm 1",
    )

    def __post_init__(self) -> None:
        surrogate = self.surrogate
        if isinstance(surrogate, str):
            surrogate = surrogates.Recipe("sgld_moments" if surrogate == "moments" else surrogate)
        elif surrogate is not None and not isinstance(surrogate, surrogates.Recipe):
            surrogate = surrogates.read_gaussians(surrogate)
        super().__post_init__()
        arguments.keep(
            self,
            surrogate=surrogate,
            strength=arguments.number("strength", self.strength, 0.0, math.inf),
            covariance=arguments.one_of("covariance", self.covariance, COVARIANCES),
            examination=arguments.one_of("examination", self.examination, ("refuse", "warn")),
        )

    @property
    def corrects(self) -> bool:
        """True if conducive gradients are added."""
        return self.surrogate is not None and self.strength > 0

    @property
    def title(self) -> str:
        """The name, with what the surrogates are."""
        if not self.corrects:
            return self.name
        recipe = self.surrogate
        if not isinstance(recipe, surrogates.Recipe):
            return f"{self.name} (FSGLD, surrogates given)"
        if recipe.kind == "sgld_moments" and self.strength == 1:
            return f"{self.name} (FSGLD as published)"
        return f"{self.name} (FSGLD, {recipe.kind} surrogates instead of the published ones)"

    @property
    def fits_surrogates(self) -> bool:
        """True if surrogates are computed by a recipe."""
        return self.corrects and isinstance(self.surrogate, surrogates.Recipe)

    @property
    def dimension(self) -> int | None:
        """The dimension of given surrogates."""
        return self.surrogate[0].dimension if isinstance(self.surrogate, tuple) else None

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse also surrogates that do not fit, or are too large."""
        super().check(sizes, names, dimension)
        sites = len(names)
        if isinstance(self.surrogate, tuple):
            if len(self.surrogate) != sites:
                raise InputError(
                    f"surrogate has {len(self.surrogate)} Gaussians for {sites} sites: one each"
                ).at("surrogate")
            if self.dimension != dimension:
                raise InputError(
                    f"surrogate: the Gaussian of site {names[0]!r} is for {self.dimension} "
                    f"parameters, the model has {dimension}."
                ).at("surrogate")
        elif self.corrects and self.covariance == "full":
            entries = sites * dimension**2
            if entries > MOST_COVARIANCE_ENTRIES:
                raise InputError(
                    f"covariance='full' of {dimension} parameters at {sites} sites takes "
                    f"{entries:.2g} numbers: use covariance='diagonal'."
                ).at("covariance")

    def check_fitted(self, fitted: PyTree, names: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse surrogates with which the chain diverges; warn of those that come near."""
        if not self.corrects:
            return ()
        steps: dict[str, Any] = {
            "step_size": self._first_step,
            "local_steps": self.given("local_steps"),
        }
        kind = "given"
        if isinstance(self.surrogate, surrogates.Recipe):
            kind = repr(self.surrogate.kind)
        else:
            fitted = surrogates.examined(self.surrogate, fitted[0], strength=self.strength, **steps)
        reason, warnings = surrogates.explain_divergence(fitted, names, **steps)
        if reason is None:
            return warnings
        if self.examination == "refuse":
            raise wrong("surrogate", f" {kind}: {reason}")
        return (f"surrogate {kind}: {reason}", *warnings)

    def explain_end(self, target: Target, site: Site, name: str, position: Array) -> str:
        """Explain the surrogates' part in a chain that ended; empty without them."""
        correct = self._correct()
        if correct is None:
            return ""
        recipe = self.surrogate
        reason = surrogates.explain_end(
            target,
            site,
            name,
            correct(site),
            position,
            kind=recipe.curvature if isinstance(recipe, surrogates.Recipe) else "hessian",
            strength=self.strength,
            step_size=self._first_step,
        )
        return (
            "A chain a thousand times further out than its start and the surrogates counts as "
            f"non-finite. {reason}"
        )

    def parameters(self) -> dict[str, Any]:
        """Return the parameters as plain values, given surrogates by their numbers."""
        plain = super().parameters()
        if isinstance(self.surrogate, tuple):
            plain["surrogate"] = [
                {"mean": gaussian.mean.tolist(), "precision": gaussian.precision.tolist()}
                for gaussian in self.surrogate
            ]
        return plain

    def _oracle(self, target: Target) -> gradients.GradientOracle:
        oracle, correct = super()._oracle(target), self._correct()
        return oracle if correct is None else surrogates.conducive(oracle, self.strength, correct)

    def _correct(self) -> Correct | None:
        if not self.corrects:
            return None
        if isinstance(self.surrogate, surrogates.Recipe):
            return surrogates.correction_of
        return surrogates.given_correction(self.surrogate)

    def _fit(self, target: Target) -> tuple[Phase, ...]:
        if not self.corrects:
            return ()
        if not isinstance(self.surrogate, surrogates.Recipe):
            return (surrogates.look_phase(self.surrogate, target, _position),)
        settings = surrogates.Settings(
            self.covariance,
            self.strength,
            self._first_step,
            self.given("local_steps"),
            self.batch_size,
            self.replace,
        )
        return surrogates.fit_phases(self.surrogate, target, settings, _position)

    @property
    def _first_step(self) -> float:
        """h of the first visit, the mean of its updates."""
        mean = 1.0 if self.step_factors is None else float(np.mean(self.step_factors))
        return mean * float(schedules.evaluate(self.step_size, range(1))[0])


dsgld, fsgld = DSGLD, FSGLD


# --- what is drawn and sent ----------------------------------------------------------------------


class Noise(NamedTuple):
    """Noise of one visit: of T gradients, and the ξ of T updates."""

    gradient: PyTree
    normal: Float[Array, "T d"]


class Chain(NamedTuple):
    """The state that travels: θ, and the updates of the visit where these are recorded, else ()."""

    position: Float[Array, " d"]
    path: PyTree[Float[Array, "T d"]]


def _init(method: DSGLD, position: Float[Array, " d"]) -> tuple[tuple[()], tuple[()], Chain]:
    path: PyTree = ()
    if method.keeps_path:
        path = jnp.broadcast_to(position[None], (method.given("local_steps"), position.size))
    return (), (), Chain(position, path)


def _position(inbox: Chain) -> Float[Array, " d"]:
    return inbox.position


def _shared(method: DSGLD, target: Target, rng: RandomStreams) -> Float[Array, ""]:
    """Return h of this round."""
    return jnp.asarray(method.step_size(rng.iteration), target.dtype)


def _noise(method: DSGLD, target: Target, rng: RandomStreams) -> Noise:
    steps = method.given("local_steps")
    rows = method._oracle(target).numbers(rng, "gradient", (steps, 1))
    return Noise(rows, rng.normal("normal", (steps, target.dimension)))


# --- a visit -------------------------------------------------------------------------------------


def _visit(
    method: DSGLD,
    target: Target,
    noise: Noise,
    step_size: Float[Array, ""],
    state: tuple[()],
    inbox: Chain,
    site: Site,
) -> tuple[tuple[()], Chain, Info]:
    """Return the chain after T updates at one site.

    With λ_s = w_s = f_s the estimate of ∇U_s divided by f_s is minus the drift d_s, prior included.
    """
    oracle, correct = method._oracle(target), method._correct()
    evaluate = oracle.bind(site)
    varies = method.step_factors is not None
    steps = step_size * jnp.asarray(method.step_factors, target.dtype) if varies else ()

    def update(position: Array, drawn: tuple[Noise, PyTree]) -> tuple[Array, PyTree]:
        numbers, step = drawn if varies else (drawn[0], step_size)
        half_step = step / (2 * jnp.asarray(site.weight, target.dtype))
        kick = jnp.sqrt(step) * numbers.normal
        position = position - half_step * evaluate(numbers.gradient, position) + kick
        return position, position if method.keeps_path else ()

    drawn = Noise(oracle.prepare(noise.gradient, site), noise.normal), steps
    position, path = jax.lax.scan(update, inbox.position, drawn, length=method.given("local_steps"))
    if correct is not None:
        # A runaway that is still finite would otherwise be returned as draws.
        position = jnp.where(correct(site).runaway(position), jnp.nan, position)
    return state, Chain(position, path.at[-1].set(position) if method.keeps_path else ()), {}
