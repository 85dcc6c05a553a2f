"""The predicted bias of a method: the exact law of its settings on a posterior's Gaussian law.

`law_of` takes a method to its law on a posterior expanded around its mode; `predict_bias` compares
that law with the posterior, or says why there is no prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from copy import copy
from dataclasses import replace
from functools import cached_property, lru_cache, singledispatch
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float

from consortia import graphs, schedules
from consortia.algorithms.decentralized.hmc import DecentralizedExactHMC, DecentralizedHMC
from consortia.algorithms.fa_hmc import FAHMC
from consortia.algorithms.federated_hmc import FederatedHMC
from consortia.algorithms.few_rounds import FewRounds
from consortia.algorithms.gossip import DESGHMC, DESGLD
from consortia.algorithms.preconditioning import Preconditioned
from consortia.algorithms.stale import StaleGradients, StaleSGHMC, StaleSGLD
from consortia.algorithms.travelling import DSGLD, FSGLD
from consortia.core.contract import Method
from consortia.core.model import Model
from consortia.core.parameters import coordinate_names, variables
from consortia.core.start import starting_parameters
from consortia.core.target import Target
from consortia.data.facts import Gatherer
from consortia.data.sites import Sites
from consortia.diagnostics.prediction import OPTIMISER, BiasPrediction
from consortia.errors import InputError, wrong
from consortia.graphs.weights import Mixing
from consortia.latency import Recorded
from consortia.schedules.events import simulate
from consortia.surrogates import Correction, Gaussian, Recipe
from consortia.theory.adaptation import psgld_law
from consortia.theory.agents import GaussianAgents
from consortia.theory.arguments import full_matrices
from consortia.theory.arrivals import (
    MOST_ENTRIES,
    MOST_STATES,
    ArrivalRecursion,
    Arrivals,
    entries,
    has_exact_law,
    in_blocks,
)
from consortia.theory.coupled_modes import MOST_APART, CoupledModes
from consortia.theory.decentralized import decentralized_hmc_law
from consortia.theory.delays import DelayedModes
from consortia.theory.estimates import minibatch_noise
from consortia.theory.expansion import Expansion, expand, too_large
from consortia.theory.federated_averaging import fa_hmc_law
from consortia.theory.gossip import gossip_law
from consortia.theory.inheritance import has_algorithm_of, knows
from consortia.theory.law import Law, Moments
from consortia.theory.local_steps import TaskRecursion
from consortia.theory.potentials import SitePotentials, StoredPotentials
from consortia.theory.stability import server_of
from consortia.theory.staleness import site_noise, stale_server_law
from consortia.theory.travelling import MOST_TRAVELLED, travelling_law

PyTree = Any
T = TypeVar("T")

LARGEST_SYSTEM, COMPARED_SYSTEM = 700, 150
"""Rows of an iteration's matrix up to which a network's law is computed by it, in a second; and
while settings are compared. Beyond, it is computed by the network's modes."""

MOST_COUPLED = 2_000_000
"""Sites times squared parameters up to which it is computed by these."""

MOST_ROW_CURVATURES = 4_000_000
"""Rows times squared parameters up to which the noise of gossiped minibatches is computed."""

RESIDUALS = 64
"""Draws at which the sites' gradients are compared with their expansions: 64 mean squares are
within a fifth of their mean."""

MOST_WIDENED = 0.01
"""Largest part of the injected noise that such differences may add, half of which is the change of
a variance to first order; chosen: where they add more, what is left out is not small either."""

MOST_REACH = 1.5
"""Posterior standard deviations, in the mean square, that an agent may be away from the mode: the
curvature that it meets beyond is no longer that of the mode where the posterior is not Gaussian."""

MOST_DRIFT = 0.05
"""Posterior standard deviations by which drift may move the mean where a law says nothing of it:
half of what the verdict permits."""

SEEN_SHIFT = 0.02
"""Posterior standard deviations of the mean's bias from which on its cause is named."""

OWN_SITES = (
    "The mean is biased because a worker fetches right after its own update, when the parameters "
    "are displaced towards its own site: aggregate='latest' removes most of that."
)
ABSENT_SITES = (
    "Sites that are absent leave averages to the others, which pull them: give their availability, "
    "wait longer for all sites, or take fewer local steps."
)
TURNED = (
    "the sites' curvatures are taken along the posterior's principal directions, as there are too "
    "many parameters and workers for the whole matrices"
)
TRACE_UPDATES, TRACE_VALUES = 100_000, 4_000_000
"""Updates of a simulated trace, by which a shift is some 3 % off, and the most values of them."""
STRETCH, STRETCH_A_WORKER = 400, 40
"""Events of the part that is repeated, at least and a worker."""
BY_DELAYS = 4
"""Such parts from which delays are counted: their means are then some 1 % off."""

NOTED_SHIFT = 0.1
"""Posterior standard deviations of the mean's bias from which on a remedy is named."""

UNFITTED = (
    "the law of the draws depends on the surrogates that the sites fit: a run, and `consortia "
    "check`, predict it once they are fitted"
)


_KNOWN: WeakKeyDictionary[Sites, WeakKeyDictionary[Model, tuple[bytes, dict[Hashable, Any]]]]
_KNOWN = WeakKeyDictionary()
"""Results of problems by living sites and models, from the latest start."""


class Problem:
    """A posterior of which a law is wanted.

    What it finds is kept for others of the same sites and model with the same start, as long as
    these are alive: all of them are immutable.

    Args:
        model: the model.
        sites: the data, all rows in this process.
        init: where the search for the mode starts, instead of ``model.init``.
        engine: gathers what the sites send, where their rows are in several processes.
        left: what the sites have sent already, see `consortia.theory.potentials.StoredPotentials`.
        corrections: what the surrogates come to that the sites have fitted, node axis first.
        participation: which sites take part in which round, bool (rounds, sites), where not all do.
        from_mode: chains start near the mode, so that sites fit their surrogates there.
    """

    def __init__(
        self,
        model: Model,
        sites: Sites,
        init: PyTree = None,
        engine: Gatherer | None = None,
        left: Any = None,
        corrections: Correction | None = None,
        participation: np.ndarray | None = None,
        from_mode: bool = False,
    ) -> None:
        self.model, self.sites, self._engine, self._left = model, sites, engine, left
        self.corrections, self.from_mode = corrections, from_mode
        given = participation if engine is None else engine.participation
        self.participation = None if given is None or np.all(given) else np.asarray(given, bool)
        self.start = starting_parameters(model, init, 0, 1)[0]
        self.largest_system = LARGEST_SYSTEM

    @cached_property
    def potentials(self) -> SitePotentials:
        """The sites' potentials at points."""
        given = self.model, self.sites, self.start
        if self._left is not None:
            return StoredPotentials(*given, self._left)
        return SitePotentials(*given, self._engine)

    @property
    def too_large(self) -> str | None:
        """The reason not to expand the posterior, if it is too large for that."""
        return too_large(self.potentials)

    @cached_property
    def near(self) -> Expansion:
        """The Gaussian law that the posterior has near its mode, which is the origin there.

        Raises:
            InputError: it is too large, or has no mode.
        """
        return self._expanded

    @property
    def _expanded(self) -> Expansion:
        return self.once("near", lambda: expand(self.potentials))

    @property
    def row_covariances(self) -> Float[np.ndarray, "S d d"]:
        """Covariance of the gradients of single rows (divided by n_c) at every site."""
        units = self.near.units * np.ones_like(self.near.mode)
        covariances = self.once("rows", lambda: self.potentials.rows(self._expanded.mode))
        return covariances * np.outer(units, units)

    @property
    def site_residuals(self) -> Float[np.ndarray, "K S d"]:
        """Gradients of the sites less those of their expansions, at draws of the Gaussian law."""

        def make() -> Float[np.ndarray, "K S d"]:
            near = self._expanded
            rng = np.random.default_rng(0)
            away = rng.multivariate_normal(np.zeros_like(near.mode), near.covariance, RESIDUALS)
            sent = self.potentials.site_gradients(near.mode + away)
            return sent - near.gradients - np.einsum("sij,kj->ksi", near.curvatures, away)

        return self.once("residuals", make)

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """Call ``make``, and keep its result where all processes have it."""
        gatherer = self._engine or Gatherer()
        if not all(gatherer.allgather(lambda: name in self._known)):
            self._known[name] = make()
        return self._known[name]

    @cached_property
    def _known(self) -> dict[Hashable, Any]:
        if self._left is not None:
            return {}
        flat = Target(self.model, self.start).flat(self.start)
        start = flat.dtype.str.encode() + flat.tobytes()
        of_sites = _KNOWN.setdefault(self.sites, WeakKeyDictionary())
        if self.model not in of_sites or of_sites[self.model][0] != start:
            of_sites[self.model] = start, {}
        return of_sites[self.model][1]

    def seen_by(self, method: Method) -> Problem:
        """Return the problem in the coordinates in which a method samples it.

        Raises:
            InputError: the scales of a preconditioner are still to be found.
        """
        if not isinstance(method, Preconditioned):
            return self
        if method.scales is None:
            raise InputError("the scales of the preconditioner are found by a run")
        made = copy(self)
        vars(made)["near"] = self.near.scaled(np.array(method.scales))
        return made

    def compared(self, *, few: bool) -> Problem:
        """Return a problem by which settings are compared, in a few directions if ``few``."""
        made = copy(self)
        made.largest_system = COMPARED_SYSTEM
        if few:
            vars(made)["near"] = self.near.projected()
        return made

    def agents(
        self, copies: int, mixing: Mixing, *, rows: bool, modes: bool = True
    ) -> GaussianAgents:
        """Return the sites as agents of equal shares.

        Args:
            copies: variables of an agent.
            mixing: W.
            rows: with every row's expansion.
            modes: the method has a law by the modes of its network, where that has such.

        Raises:
            InputError: a network that changes, or too large a one.
        """
        if isinstance(mixing, graphs.MixingSchedule):
            raise InputError("the network changes from round to round")
        near = self.near
        count, d = near.gradients.shape
        matrix = graphs.resolve(graphs.weights.as_mixing(mixing), count)
        modes = modes and not rows and matrix.symmetric and matrix.components == 1
        many = copies * count * d > (self.largest_system if modes else LARGEST_SYSTEM)
        if many and (not modes or count * d**2 > MOST_COUPLED):
            raise InputError(
                f"{count} agents with {d} parameters each are too many for the matrix of an "
                "iteration"
            )
        if rows and self.sites.elsewhere:
            raise InputError("the noise of minibatches needs the rows of all sites in one process")
        if rows and self.sites.rows * near.mode.size**2 > MOST_ROW_CURVATURES:
            raise InputError("the noise of minibatches of so many rows is too large to be computed")
        agents = copy(near.agents) if rows else near.agents
        agents.by_modes = many
        if rows:
            units = near.units * np.ones_like(near.mode)
            square, mode = np.outer(units, units), near.mode * units
            each = [self.potentials.single_rows(i, mode) for i in range(len(near.sizes))]
            agents.rows = tuple((h * square, -slopes * units) for h, slopes in each)
        return agents


@singledispatch
def law_of(method: Method, problem: Problem) -> Law:
    """Return the exact law of a method on a posterior's Gaussian law, with the mode as origin.

    A method of one's own joins in by ``law_of.register``; the law of its base class is its own
    only while it builds the same algorithm, see `known_law`.

    Raises:
        InputError: the method has no oracle, its settings have none, or the problem is too large.
    """
    raise InputError(f"{method.name} has no oracle")


def known_law(method: Method, problem: Problem) -> Law:
    """Return `law_of`, where that is of the algorithm that the method itself builds.

    Raises:
        InputError: it is not, or there is none.
    """
    if not knows(law_of, type(method)):
        raise InputError(f"{method.name} has no oracle")
    return law_of(method, problem)


def _constant(method: Method) -> float:
    """Return the step size, where it is one number."""
    given = method.step_schedules
    if isinstance(given[0], schedules.Unchosen):
        raise wrong("step_size", " is None: `consortia.sample` chooses it for a run")
    if len(given) > 1:
        raise InputError("servers have step sizes of their own, and so laws of their own")
    if not isinstance(given[0], schedules.Constant):
        raise InputError("the step size varies from round to round, and the bias with it")
    return float(given[0].value)


def _own_modes(
    curvatures: Float[np.ndarray, "S d d"], gradients: Float[np.ndarray, "S d"]
) -> Float[np.ndarray, "S d"]:
    """Return −H_c⁻¹ g_c of every site; a flat direction is left where it is."""
    newton_steps = np.einsum("sij,sj->si", np.linalg.pinv(curvatures, hermitian=True), gradients)
    left = np.einsum("sij,sj->si", curvatures, newton_steps) - gradients
    if np.abs(left).max() > 1e-3 * max(np.abs(gradients).max(), 1e-12):
        raise InputError("a site's potential has no minimum of its own near the mode")
    return -newton_steps


@law_of.register
def _averaging(method: FAHMC, problem: Problem) -> Law:
    """Return the law of clients whose potentials have their minima at their own modes."""
    step, near = _constant(method), problem.near
    weights = method.site_weights(near.sizes)
    curvatures, gradients = near.pieces(weights, method.prior_shares(near.sizes))
    law = fa_hmc_law(
        _own_modes(curvatures, gradients),
        curvatures,
        weights,
        step_size=step,
        leapfrog_steps=method.lengths[0],
        local_steps=method.lengths[1],
        momentum_correlation=method.momentum_correlation,
        gradient_noise=method.gradient_noise,
        gradient_draws=method.gradient_draws,
        debias=bool(method.debias),
        mass_matrix=method.mass_matrix.values,
        temperature=method.temperature,
        average_every=method.average_every,
        participation=problem.participation,
        averaging=method.averaging_weights(near.sizes),
    )
    notes: tuple[str, ...] = ()
    if not method.debias and law.stable:
        away = np.abs(law.stationary.bias) / law.target.sd
        remedy = "debias=True removes the bias of the mean."
        if problem.participation is not None:
            remedy = ABSENT_SITES
        notes = (remedy,) * bool(away.max() > NOTED_SHIFT)
    unsure = "" if method.debias else _drifting(method, near, gradients)
    law = law.noted(*notes, unsure=unsure)
    if method.batch_size is None:
        return law
    note = "Minibatches widen the draws by an amount that is not predicted."
    return replace(law, variance_known=False, notes=(note, *notes))


def _drifting(method: FAHMC, near: Expansion, gradients: Float[np.ndarray, "S d"]) -> str:
    """Describe the drift of the sites between averages, if it moves the mean of a skewed posterior.

    From rest a site moves half its force times the squared time of its trajectories, at most. The
    mean square along the way is about a third of that at its end; what it moves the mean by is
    that of `errors_of`.
    """
    leapfrogs, local = method.lengths
    mass = method.mass_matrix.values
    if mass is not None:
        gradients = np.linalg.solve(full_matrices(np.array([mass]))[0], gradients.T).T
    drift = (_constant(method) * leapfrogs) ** 2 / 2 * local * gradients / near.sd
    squares = method.site_weights(near.sizes) @ drift**2 / 3
    if (squares * np.abs(near.offset) / near.sd).max() <= MOST_DRIFT:
        return ""
    return (
        f"sites drift up to {np.abs(drift).max():.2g} posterior sd apart between averages, where a "
        "posterior that is not Gaussian has another curvature: debias=True prevents it"
    )


@law_of.register
def _preconditioned(method: Preconditioned, problem: Problem) -> Law:
    """Return the law of the method itself in φ, in the units of θ."""
    law = known_law(method.inner(), problem.seen_by(method))
    return law.in_units(np.array(method.scales))


@law_of.register
def _gossip(method: DESGLD | DESGHMC, problem: Problem) -> Law:
    step, batches = _constant(method), method.batch_size is not None
    copies = 1 + method.corrected + method.moves
    modes = method.noise == "independent" and method.temperature > 0
    agents = problem.agents(copies, method.mixing, rows=batches, modes=modes)
    options: dict[str, Any] = {"correction": method.correction or None, "noise": method.noise}
    options |= {"temperature": method.temperature}
    if batches:
        options |= {"batch_size": method.batch_size, "replace": method.replace}
        if method.control_variate is not None:
            options["control_variate"] = np.asarray(method.control_variate) - problem.near.mode
    friction = method.given("friction") if isinstance(method, DESGHMC) else None
    if friction is None:
        options |= {"averaged_noise": bool(method.averaged_noise), "momentum": method.momentum}
    law = gossip_law(agents, method.mixing, step, friction, **options)
    return _noted(law, final=problem.largest_system == LARGEST_SYSTEM)


@law_of.register
def _tracked(method: DecentralizedHMC, problem: Problem) -> Law:
    step = _constant(method)
    law = decentralized_hmc_law(
        problem.agents(2, method.mixing, rows=False),
        method.mixing,
        step_size=step,
        variant=method.variant,
        gossip_rounds=method.given("gossip_rounds"),
    )
    note = "Published variant: while every proposal is accepted."
    final = problem.largest_system == LARGEST_SYSTEM
    return _noted(law, *([note] if method.published else []), final=final)


def _noted(law: Law, *notes: str, final: bool) -> Law:
    """Add to a network's law how far a single agent's standard deviations are off.

    Raises:
        InputError: it is ``final`` and does not cover how much sites' curvatures differ.
    """
    if not law.stable:
        return law
    modes = law.recursion
    if isinstance(modes, CoupledModes) and final and not modes.apart <= MOST_APART:
        raise InputError(
            f"the curvatures of the sites differ so much that the spread changes by "
            f"{100 * modes.apart:.0f} %, too much for the law of so many agents and parameters"
        )
    agents = law.stationary.agents
    assert agents is not None
    ratio = np.sqrt(agents.variance_ratios)
    away = (agents.means - agents.target.mean) / agents.target.sd
    reach = float(np.sqrt(ratio**2 + away**2).max())
    unsure = ""
    if reach > MOST_REACH:
        unsure = (
            f"single agents are {reach:.2g} posterior sd from its mode, where a posterior that is "
            "not Gaussian has another curvature, which moves the average by more than is predicted"
        )
    agent_note = (
        f"A single agent's standard deviations: {ratio.min():.3g} to {ratio.max():.3g} times the "
        "posterior's."
    )
    return law.noted(agent_note, *notes, unsure=unsure)


@law_of.register
def _stale(method: StaleSGLD | StaleSGHMC, problem: Problem) -> Law:
    step = _constant(method)
    if method.temperature != 1.0:
        raise InputError("the oracle is for temperature 1")
    if isinstance(method, StaleSGHMC) and isinstance(method.subtract_noise, tuple):
        raise InputError("there is no oracle for subtract_noise with a value a parameter")
    late = method.workers - 1
    adapts = isinstance(method, StaleSGLD) and method.adaptation is not None
    drops = method.max_staleness is not None and method.max_staleness < 2 * late
    unlike = late and (drops or len(problem.near.sizes) > 1)
    if not adapts and (unlike or method.steps_a_task > 1):
        return _along_arrivals(method, step, problem)
    if drops:
        raise InputError("dropped gradients change the staleness, which only the run will tell")
    at_server = _noise_at_server(method, problem)
    if isinstance(method, StaleSGLD) and method.adaptation is not None:
        if method.adaptation < 1:
            raise wrong("adaptation", " must be 1: else the preconditioner follows the chain")
        curvature, floor = problem.near.precision, method.floor
        return psgld_law(step, curvature, floor=floor, staleness=late, gradient_noise=at_server)
    values, axes, _, _ = problem.near.turned
    noise = np.sum(axes * (at_server @ axes), axis=0)
    law = stale_server_law(server_of(method, step, np.maximum(noise, 0)), values, late)
    basis = (
        f"the exact law with a constant staleness of {late}, the average of {method.workers} "
        "workers, and the gradients' noise at the mode, along each principal direction"
    )
    target = Moments(np.zeros_like(values), problem.near.covariance)
    return replace(law, target=target, axes=axes, basis=basis)


def _along_arrivals(method: StaleSGLD | StaleSGHMC, step: float, problem: Problem) -> Law:
    """Return the law along a simulated trace, in which workers hold their own sites."""
    near, sites = problem.near, len(problem.near.sizes)
    values, axes, slopes, prior_slope = near.turned
    prior = method.prior_shares(near.sizes)
    slopes = slopes + prior[:, None, None] * prior_slope
    latest, coupled = method.latest_only and sites > 1, False
    stretch = max(STRETCH, STRETCH_A_WORKER * method.workers)
    if latest or sites == 1:
        rows = server_of(method, step).force.size + method.workers * (1 + latest)
        final = rows * len(near.sd) <= MOST_STATES
    else:
        final = has_exact_law(slopes)
        coupled = not final and entries(sites, len(near.sd)) <= MOST_ENTRIES
    whole = problem.largest_system == LARGEST_SYSTEM
    final, coupled = final and whole, coupled and whole  # what couples directions is left out
    by_delays = not final and method.steps_a_task == 1
    updates = BY_DELAYS * stretch
    if not by_delays:
        updates = _trace_updates(method, sites, stretch, len(near.sd))
    elif isinstance(method.latency, Recorded):
        updates = min(updates, method.latency.updates(method.max_staleness))
    names = tuple(problem.sites.names) if sites > 1 else None
    cap = method.max_staleness
    trace = _trace(
        method.latency, workers=method.workers, updates=updates, max_staleness=cap, sites=names
    )
    share = trace.shares[0] if sites > 1 else np.ones(1)
    if method.latest_only:
        share = np.ones(sites)
    elif method.shares is not None:
        share = np.asarray(method.shares)
    pulls = (near.gradients + np.outer(prior, near.prior_gradient)) @ axes / share[:, None]
    noise = _minibatch_noise(method, problem)
    noise = axes.T @ noise @ axes if noise.any() else noise
    times = method.workers if sites == 1 else 1  # the workers of one site have all of its rows
    sent = (
        np.repeat(slopes / share[:, None, None], times, axis=0),
        np.repeat(pulls, times, axis=0),
        np.repeat(noise / share[:, None, None] ** 2, times, axis=0),
    )
    server, turned, recursion = server_of(method, step), False, None
    if not by_delays:
        gradients, turned = in_blocks(*sent)
        events = server, Arrivals(trace.worker, trace.dropped), gradients
        stretch = min(stretch, len(trace.worker))
        recursion = ArrivalRecursion(*events, latest=latest, stretch=stretch)
        if method.steps_a_task > 1:
            recursion = TaskRecursion(*events, latest, stretch, steps=method.steps_a_task)
    kind = "law by the mean delays of" if recursion is None else "exact law along"
    law = Law(
        recursion or DelayedModes.of(server, trace, *sent, latest=latest),
        Moments(np.zeros_like(values), near.covariance),
        axes=axes,
        remedy="Lower the step size, or take fewer workers.",
        basis=f"the {kind} a simulated trace of {trace.updates:,} updates, with the gradients' "
        "noise at the mode",
        unsure=TURNED if turned or coupled else "",
        tries=len(trace.worker) / trace.updates,
    )
    if recursion is None or not law.stable or recursion.latest or sites == 1:
        return law
    away = np.abs(law.stationary.bias) / near.sd
    return law.noted(OWN_SITES) if away.max() > SEEN_SHIFT else law


_trace = lru_cache(maxsize=8)(simulate)
"""A simulated trace of one server, made once for all steps that are tried."""


def _trace_updates(method: StaleGradients, sites: int, least: int, dimension: int) -> int:
    """Return the updates of a trace; the mean of summed gradients does not depend on the order."""
    still = sites == 1 or method.latest_only
    wanted = max(least, 0 if still else min(TRACE_UPDATES, TRACE_VALUES // dimension))
    if isinstance(method.latency, Recorded):
        return min(wanted, method.latency.updates(method.max_staleness))
    return wanted


def _noise_at_server(method: StaleGradients, problem: Problem) -> Float[np.ndarray, "d d"]:
    """Return the covariance of a gradient of U as it reaches the server, at the mode."""
    near = problem.near
    shares, prior = method.site_weights(near.sizes), method.prior_shares(near.sizes)
    noise = np.tensordot(1 / shares, _minibatch_noise(method, problem), axes=1)
    if len(near.sizes) == 1:
        return noise
    return noise + site_noise(near.gradients + np.outer(prior, near.prior_gradient), shares)


def _minibatch_noise(
    method: StaleGradients | DSGLD, problem: Problem
) -> Float[np.ndarray, "S d d"]:
    """Return the covariance of the gradient that each site estimates, at the mode."""
    if method.batch_size is None:  # a few directions have no rows
        return np.zeros_like(problem.near.curvatures)
    pairs = zip(problem.row_covariances, problem.near.sizes, strict=True)
    noise = [
        minibatch_noise(rows, int(size), method.batch_size, replace=method.replace)
        for rows, size in pairs
    ]
    return np.stack(noise)


@law_of.register
def _travelling(method: DSGLD, problem: Problem) -> Law:
    step, near = _constant(method), problem.near
    if near.mode.size > MOST_TRAVELLED:
        raise InputError(
            f"the law of a travelling chain in {near.mode.size} parameters is too large to compute"
        )
    options: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    unsure = ""
    noise = _minibatch_noise(method, problem)
    if isinstance(method, FSGLD) and method.corrects:
        options["strength"] = method.strength
        fitted = problem.corrections
        fits = fitted is None and not near.gaussian and _expands(method)
        if fitted is not None or fits:
            if fitted is not None:
                options["corrections"] = _around(fitted, near.mode)
            else:
                options["corrections"] = _expansions(method, problem)
            notes = (f"From the surrogates that the sites {'will fit' if fits else 'fitted'}.",)
            if not near.gaussian:
                bent, unsure = _bent(method, problem, step)
                noise = noise + bent
        elif isinstance(method.surrogate, tuple):
            # The law is around the mode, and so are its surrogates.
            options["surrogates"] = [
                Gaussian.from_precision(surrogate.mean - near.mode, surrogate.precision)
                for surrogate in method.surrogate
            ]
        else:
            if not _expands(method):
                unsure = "the surrogates of sites whose likelihoods are not Gaussian are worse"
            notes = (
                "Surrogates are taken as each site's own Gaussian law at the mode; worse ones add "
                "bias.",
            )
    prior = near.prior_curvature
    law = travelling_law(
        _own_modes(near.curvatures, near.gradients),
        near.curvatures,
        method.site_weights(near.sizes),
        step_size=step,
        local_steps=method.given("local_steps"),
        # A flat direction of the prior has no mean: the pseudo-inverse leaves it at the mode.
        prior_mean=-np.linalg.pinv(prior, hermitian=True) @ near.prior_gradient,
        prior_precision=prior,
        gradient_noise=noise,
        record=method.record,
        step_factors=method.step_factors,
        **options,
    )
    if method.batch_size is not None:
        law = replace(law, basis=f"{law.basis}, with the minibatches' noise as it is at the mode")
    return replace(law, notes=notes, unsure=unsure)


def _expands(method: FSGLD) -> bool:
    """Return True if surrogates are the sites' own expansions to second order."""
    recipe = method.surrogate
    expansion = ("anchored", "hessian", "full")
    return (
        isinstance(recipe, Recipe)
        and (recipe.kind, recipe.curvature, method.covariance) == expansion
    )


def _expansions(
    method: FSGLD, problem: Problem
) -> tuple[Float[np.ndarray, "S d"], Float[np.ndarray, "S d d"]]:
    """Return corrections as `_around`, of the sites' expansions where the chains start.

    Raises:
        InputError: the sites evaluate nothing there, or it is not the mode and settings are
            compared in a few directions.
    """
    start, near = problem.potentials.start, problem.near
    shares = method.site_weights(near.sizes)[:, None]
    gradients, curvatures, away = near.gradients, near.curvatures, np.zeros_like(near.mode)
    if not problem.from_mode:
        if not problem.potentials.anywhere or near.mode.size != start.size:
            raise InputError("the surrogates that the sites fit at the start are not known")
        _, gradients, curvatures = problem.once(
            "start", lambda: problem.potentials.expansion(start)
        )
        units = near.units * np.ones_like(start)
        gradients, curvatures = gradients * units, curvatures * np.outer(units, units)
        away = near.mode - start / units
    values, axes = np.linalg.eigh(curvatures)
    slopes = (axes * np.maximum(values, 0)[:, None]) @ axes.mT
    slopes = slopes - shares[:, None] * slopes.sum(axis=0)
    return shares * gradients.sum(axis=0) - gradients - slopes @ away, slopes


def _bent(method: FSGLD, problem: Problem, step: float) -> tuple[Float[np.ndarray, "S d d"], str]:
    r"""Return the noise of gradients that leave their expansion, and why it may be too much.

    .. math:: V = \operatorname{E} \sum_c f_c \left\|\frac{r_c}{f_c} - \sum_b r_b\right\|^2

    with r the residuals over the posterior, along the direction where it is largest. A visit has T
    steps with one site's, so that each of them adds T V to a step's noise; V is taken in all
    directions, as a margin.
    """
    if not problem.potentials.anywhere:
        return np.zeros_like(problem.near.curvatures), "the sites' likelihoods are not Gaussian"
    steps, shares = method.given("local_steps"), method.site_weights(problem.near.sizes)
    residuals = problem.site_residuals * problem.near.units
    apart = residuals / shares[:, None] - residuals.sum(axis=1, keepdims=True)
    squares = np.einsum("s,ksi,ksj->ij", shares, apart, apart) / len(residuals)
    added = math.inf  # where the likelihood is not finite over the posterior
    if np.isfinite(squares).all():
        added = steps * float(np.linalg.eigvalsh(squares)[-1])
    unsure = ""
    if not step / 4 * added <= MOST_WIDENED:  # of the injected noise
        unsure = "the likelihoods of the sites are far from Gaussian for so long a visit"
        added = added if math.isfinite(added) else 0.0
    return added * shares[:, None, None] ** 2 * np.eye(problem.near.mode.size), unsure


def _around(
    fitted: Correction, mode: Float[np.ndarray, " d"]
) -> tuple[Float[np.ndarray, "S d"], Float[np.ndarray, "S ..."]]:
    """Return the sites' corrections at the mode, and minus their derivatives."""
    reference, constant, slope = (
        np.asarray(part, np.float64) for part in (fitted.reference, fitted.constant, fitted.slope)
    )
    away = mode - reference
    moved = np.einsum("sij,sj->si", slope, away) if slope.ndim == 3 else slope * away
    return constant - moved, slope


def unfitted(method: Method, problem: Problem) -> bool:
    """Return True if a law takes surrogates as ideal that the sites are still to fit.

    An anchored one with second derivatives is ideal where everything is Gaussian, and at the mode.
    """
    if not isinstance(method, FSGLD) or not method.corrects or problem.corrections is not None:
        return False
    if not isinstance(method.surrogate, Recipe):
        return False
    return not (_expands(method) and (problem.near.gaussian or problem.from_mode))


def keeps_posterior(method: Method) -> bool:
    """Return True if a Metropolis test on the summed log-density makes the method exact.

    Nothing is known of a subclass that builds another algorithm.
    """
    exact = (DecentralizedExactHMC, FederatedHMC, FewRounds)
    return any(has_algorithm_of(type(method), base) for base in exact)


def predict_bias(
    model: Model,
    sites: Sites,
    algorithm: Method,
    *,
    init: PyTree = None,
    engine: Gatherer | None = None,
) -> BiasPrediction:
    """Predict the bias that a method has at its settings, without running it.

    Args:
        model: the model.
        sites: the data.
        algorithm: what `consortia.fa_hmc` or another factory returns.
        init: where the search for the mode starts, instead of ``model.init``.
        engine: that of the run, where the rows are in several processes, which all make the same
            call: the sites send value, gradient and Hessian at about ten points, gradients at 2d
            and values at some thousand.

    Returns:
        The prediction. Where there is none (no oracle for the method or its settings, a posterior
        without a mode, a step that diverges) it says why under ``reason``.

    Example:
        >>> import consortia, jax.numpy as jnp
        >>> model = consortia.Model(
        ...     log_prior=lambda x: -0.5 * jnp.sum(x**2),
        ...     log_likelihood=lambda x, rows: -0.5 * (rows["y"] - x[0]) ** 2,
        ...     init=jnp.zeros(1))
        >>> sites = consortia.Sites.from_list([{"y": np.float32([1, 2])}, {"y": np.float32([5])}])
        >>> found = predict_bias(model, sites, consortia.fa_ld(step_size=0.5, local_steps=2))
        >>> found.gaussian, found.mean.round(3), found.sd_ratio.round(3)
        (True, array([2.]), array([1.155]))
    """
    if keeps_posterior(algorithm):
        basis = "a Metropolis test on the summed log-density keeps the posterior exactly"
        return BiasPrediction(basis=basis)
    return predicted(algorithm, Problem(model, sites, init, engine))


def predicted(method: Method, problem: Problem) -> BiasPrediction:
    """Return the predicted bias of a method, or why there is none; found once for equal methods."""
    if method.optimises:
        return BiasPrediction(reason=OPTIMISER, settled=True)

    def make() -> BiasPrediction:
        try:
            law = known_law(method, problem)
            if law.stable and unfitted(method, problem):
                return BiasPrediction(reason=UNFITTED)
            return prediction_by(method, problem, law)
        except InputError as error:
            return BiasPrediction(reason=str(error).rstrip("."))

    if problem.corrections is not None:
        return make()
    # Equal methods have other laws where another one has been registered since.
    present = None if problem.participation is None else problem.participation.tobytes()
    return problem.once((method, present, *law_of.registry.values()), make)


def prediction_by(algorithm: Method, problem: Problem, law: Law) -> BiasPrediction:
    """Return the prediction from a method's law on a posterior."""
    try:
        if not law.stable:
            return BiasPrediction(
                reason=f"the chain diverges near the mode ({law.instability}): lower step_size",
                diverges=True,
            )
        gaussian = problem.near
        shift, ratio = errors_of(law, gaussian)
    except InputError as error:
        return BiasPrediction(reason=str(error).rstrip("."))
    parts = variables(Target(problem.model, problem.start).structure)
    names = [coordinate_names(part.name, part.shape) for part in parts]
    near = "the Gaussian law of the posterior, which is exact here"
    if not gaussian.gaussian:
        skewed = "" if gaussian.k_hat is None else " and its skewness to first order"
        near = f"the Gaussian law near the posterior's mode{skewed}; the rest is not in it"
    return BiasPrediction(
        basis=f"{law.basis}, on {near}",
        notes=law.notes,
        names=tuple(chain.from_iterable(names)),
        mean=gaussian.mode + gaussian.offset,
        sd=gaussian.sd,
        shift=shift,
        sd_ratio=ratio if law.variance_known else None,
        gaussian=gaussian.gaussian,
        k_hat=gaussian.k_hat,
        rounds_per_draw=law.rounds_per_draw,
        disagreement=gaussian.disagreement,
        other_modes=gaussian.others,
        unsure=None if gaussian.gaussian or not law.unsure else law.unsure,
    )


def errors_of(law: Law, near: Expansion) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    r"""Return the shifts of a law's means in posterior sds, and the ratios of its sds to these.

    Where the curvature changes, the posterior's mean differs from its mode by
    :math:`m = -\tfrac12 H^{-1}\,\nabla^3 U : \Sigma` to first order. A method that evaluates
    gradients at positions whose second moments around the mode are :math:`r^2` times as large has
    its mean at :math:`r^2 m`. The positions are the agents of a network, which spread more than
    their average, the draw; of other methods they are taken to spread as the draws. What sites
    drift between two averages is left out.

    Raises:
        InputError: the law does not settle.
    """
    moments = law.stationary
    shift, ratio = moments.mean / near.sd, moments.sd / near.sd
    squares = ratio**2 + shift**2
    if moments.agents is not None:
        means = moments.agents.means
        seconds = moments.agents.variances + means**2
        squares = seconds.mean(axis=0) / near.sd**2
    return shift + (squares - 1) * near.offset / near.sd, ratio
