r"""Hamiltonian Monte Carlo with the force of a Gaussian surrogate: exact draws for few messages.

Along a trajectory the force may be that of any fixed function, as long as the Metropolis test is on
the true log-density. With the force :math:`\Lambda(\theta - m)` and the mass matrix Λ a trajectory
is a rotation, exactly: in white coordinates :math:`\theta = m + S\zeta`,
:math:`SS^\top = \Lambda^{-1}`, the angle t leads to :math:`\zeta' = \cos(t)\,\zeta +
\sin(t)\,\xi`, and the energy changes by :math:`U(\theta') - U(\theta) - \tfrac12(|\zeta'|^2 -
|\zeta|^2)`. Only its end is evaluated at the sites. One iteration is

1. ``_propose`` (server): K proposals; at a quarter turn none of them depends on the state;
2. ``_evaluate``: U_c at all of them, and their sum;
3. ``_decide`` (server): K Metropolis steps;
4. in the warm-up, now and then, what the answers teach (`surrogate_hmc.warmup`).

Before the first one U at points on lines (`surrogate_hmc.rays`) comes with U at the start.

Independent proposals are defensive: a share p of them comes from a Gaussian that is wider by the
factor s, so that their density is :math:`q \propto e^{-|\zeta|^2/2} \bigl(1 - p + p s^{-d}
e^{|\zeta|^2 (1 - s^{-2})/2} \bigr)`, and stands in the test in place of the first factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from consortia.algorithms.surrogate_hmc import rays, search, warmup
from consortia.algorithms.surrogate_hmc.state import (
    QUARTER,
    Hub,
    Place,
    Proposals,
    Rays,
    no_moments,
    start,
)
from consortia.core import arguments
from consortia.core.contract import (
    Adaptive,
    Algorithm,
    Claims,
    Cost,
    Draws,
    Fault,
    Info,
    Mean,
    Phase,
    Site,
    Sum,
    SurrogateBased,
)
from consortia.core.random import RandomStreams
from consortia.core.target import Target
from consortia.dynamics import metropolis
from consortia.errors import InputError
from consortia.runtime.late import Array, PyTree, jax, jnp
from consortia.surrogates import Gaussian

Vector = Float[Array, " d"]
Count = Int[Array, ""]

SHORTER_ANGLES = (0.9, 0.5)
"""Angles that are tried beside a quarter turn in the warm-up, in radians."""

SHORTER_EVERY = 4
"""Each fourth trajectory is a shorter one at least where the angle is chosen."""

DEFENSIVE_REACH = 2.0
"""The wider Gaussian's scale is 1 + this/√d; |ζ| has mean about √d and standard deviation 1/√2."""

LOWEST_RATE = 0.1
"""With a lower acceptance rate at the end of the warm-up a run is not worth its messages."""

LONGEST_STILL = 0.02
"""A chain that stands still for this share of its draws is warned of; so few effective draws, about
fifty, can be left of it."""

LEAST_STILL = 50
"""Rounds below which a run says nothing about light tails."""

FALLEN = 0.5
"""Ratio of acceptance rates, after the warm-up and at its end, below which a warning is given."""


@dataclass(frozen=True, kw_only=True)
class SurrogateHMC(Adaptive, SurrogateBased):
    r"""Hamiltonian Monte Carlo with the force of a Gaussian surrogate of the posterior.

    **Samples** exp(−U), U = Σ_c U_c, exactly, as `federated_hmc`: every draw passes a Metropolis
    test on the summed log-density. It needs every site in every round.

    **Draw**: θ after a Metropolis step, K of them a round.

    **Step size**: none: trajectories are exact, and their length is an angle.

    With the surrogate's precision as the mass matrix a trajectory is known in advance. After a
    quarter turn (the default) its end does not depend on where it started, so that K =
    ``proposals_per_round`` of them go out in one message, d K numbers down and 2 K up, and the
    server makes K Metropolis steps, K draws a round. The surrogate is sought before the first
    round, in eighteen messages: the mode by Newton steps, from there the Gaussian q with
    E_q ∇U = 0 and precision E_q ∇²U. It is fitted anew in the warm-up, from all proposals weighted
    by π/q (at a shorter angle from the draws); then it stands still. A surrogate with lighter
    tails than the posterior makes chains stand still in the tails; ``sample_stats`` has
    longest_rejection and largest_weight_share to see it, a warning is given where it matters, and
    a larger ``defensive_fraction`` or ``covariance_inflation``, or a shorter angle, helps. The
    message that brings U at the start also brings U at points on up to 32 lines through it; a
    warning is given where more than 1 % of the mass along a line lies beyond all draws.

    Args:
        surrogate: the Gaussian of the whole posterior to begin with, not of one site's likelihood;
            sought as above when None.
        proposals_per_round: K ≥ 1; more than one need a quarter turn.
        trajectory_angle: length of a trajectory in radians, in (0, π). Of single proposals it is
            chosen when None: π/2, 0.9 or 0.5, whichever has the largest bulk effective sample size
            a round, the smallest over the parameters, in trials in the last two fifths of the
            warm-up (of at least 40 draws each, 300 warm-up rounds in all; else π/2). Each fourth
            angle is then at most 0.9, which leads a chain out of a tail.
        covariance_inflation: factor of the surrogate's standard deviations, at least 1.
        defensive_fraction: share of a quarter turn's proposals that are drawn with standard
            deviations wider by the factor 1 + 2/√d, in [0, 0.9]; not where the angle is chosen.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> SurrogateHMC(proposals_per_round=16).angles
        (1.5707963267948966,)

    Source: ours; the force of a fixed function after Duane, Kennedy, Pendleton, Roweth (1987),
    defensive proposals after Hesterberg (1995).
    """

    surrogate: Gaussian | None = None
    proposals_per_round: int = 1
    trajectory_angle: float | None = None
    covariance_inflation: float = 1.04
    defensive_fraction: float = 0.1

    name = "surrogate_hmc"
    step_size = None
    claims = Claims(
        samples="the posterior (Metropolis test on the summed log-density)",
        bias="none, however unlike the sites are; every site answers in every round",
        draw="the position after a Metropolis step, proposals_per_round of them a round",
        step_size="none: trajectories are exact, and end at an angle",
        source="ours; the force of a fixed function after Duane, Kennedy, Pendleton, Roweth (1987)",
    )

    def __post_init__(self) -> None:
        if self.surrogate is not None and not isinstance(self.surrogate, Gaussian):
            raise InputError(
                f"surrogate is {self.surrogate!r}: give consortia.surrogates.Gaussian(mean, "
                "covariance) of the whole posterior, or leave it out."
            )
        angle = self.trajectory_angle
        if angle is not None:
            angle = arguments.positive("trajectory_angle", angle, math.pi)
        arguments.keep(
            self,
            proposals_per_round=arguments.whole("proposals_per_round", self.proposals_per_round, 1),
            trajectory_angle=angle,
            covariance_inflation=arguments.number(
                "covariance_inflation", self.covariance_inflation, 1.0, 10.0
            ),
            defensive_fraction=arguments.number(
                "defensive_fraction", self.defensive_fraction, 0.0, 0.9
            ),
        )
        if self.proposals_per_round > 1 and not self.independent:
            raise InputError(
                f"trajectory_angle={angle:g} with proposals_per_round={self.proposals_per_round}: "
                "after less than a quarter turn (π/2) a proposal depends on the state, so that "
                "each needs a round of its own; leave one of them out."
            )

    @property
    def angles(self) -> tuple[float, ...]:
        """Candidates in radians; the warm-up chooses the best of several."""
        if self.trajectory_angle is not None:
            return (self.trajectory_angle,)
        return (QUARTER,) if self.proposals_per_round > 1 else (QUARTER, *SHORTER_ANGLES)

    @property
    def independent(self) -> bool:
        """True if proposals do not depend on the state, at least in part of the warm-up."""
        return self.angles[0] == QUARTER

    @property
    def defensive(self) -> bool:
        """True if some proposals come from a wider Gaussian; shorter angles need none."""
        return self.defensive_fraction > 0 and self.angles == (QUARTER,)

    @property
    def adapts(self) -> bool:
        """Any warm-up will do; without one the surrogate stays as it was given or fitted."""
        return True

    @property
    def dimension(self) -> int | None:
        """The dimension of a given surrogate."""
        return None if self.surrogate is None else self.surrogate.dimension

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse a surrogate for another number of parameters."""
        if self.surrogate is not None and self.surrogate.dimension != dimension:
            raise InputError(
                f"surrogate is for {self.surrogate.dimension} parameters, the model has "
                f"{dimension}."
            )

    def check_fitted(
        self, fitted: tuple[PyTree, search.Found], names: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Refuse a fit without a mode, or that is not positive definite there."""
        if self.surrogate is not None:
            return ()
        precision, decrement = (
            np.asarray(v)[0] for v in (fitted[1].precision, fitted[1].decrement)
        )
        if not np.all(np.isfinite(precision)) or np.linalg.eigvalsh(precision)[0] <= 0:
            raise InputError(
                "surrogate_hmc: the log-density has no positive definite curvature where the "
                f"search for its mode ended after {search.NEWTON_STEPS} steps. Give init nearer to "
                "the mode, a surrogate=consortia.surrogates.Gaussian(mean, covariance) of the "
                "posterior, or use federated_hmc."
            )
        if not decrement < 1:
            raise InputError(
                f"surrogate_hmc: the search for the mode ended {decrement:.3g} squared standard "
                "deviations from it. Give init nearer to the mode, or a "
                "surrogate=consortia.surrogates.Gaussian(mean, covariance)."
            )
        return ()

    def check_learned(self, hub: Hub) -> str | None:
        """Return why a run should not go on after its warm-up; None when it should."""
        rate = float(np.min(np.asarray(hub.last_rate)))
        if rate >= LOWEST_RATE:
            return None
        return (
            f"the surrogate is too far from the posterior: {100 * rate:.2g} % of the proposals "
            "were accepted at the end of the warm-up. Give a longer warm-up or a shorter angle "
            "(trajectory_angle=0.5, proposals_per_round=1), or use federated_hmc."
        )

    def check_draws(self, hub: Hub) -> tuple[Fault, ...]:
        """Return warnings of chains that stood still, and of a rate that fell."""
        longest, rounds, rates = (np.asarray(value) for value in hub.seen)
        made = np.maximum(rounds, 1)
        texts = []
        still = float(np.max(longest / (made * self.proposals_per_round)))
        if still > LONGEST_STILL and np.max(longest) >= LEAST_STILL:
            texts.append(
                f"a chain stood still for {np.max(longest)} proposals, {100 * still:.2g} % "
                "of its draws: the surrogate's tails are lighter than the posterior's. Give a "
                f"wider one (covariance_inflation={self.covariance_inflation + 0.1:.2f}), a "
                "shorter angle, or more rounds"
            )
        rate, before = np.min(rates / made), np.min(np.asarray(hub.last_rate))
        if rate < FALLEN * before < FALLEN and np.min(rounds) >= LEAST_STILL:
            texts.append(
                f"the acceptance rate fell from {before:.2g} at the end of the warm-up to "
                f"{rate:.2g}: the warm-up has not seen all of the posterior. Give a longer one"
            )
        if isinstance(hub.rays, Rays):
            texts += self._unvisited(hub)
        return tuple(map(Fault, texts))

    def _unvisited(self, hub: Hub) -> list[str]:
        """Return a warning of mass that no chain has visited; of few draws, where it is much."""
        _, rounds, rates = (np.asarray(value) for value in hub.seen)
        renewed = rates / np.maximum(rounds, 1)
        renewed = renewed * (1 - np.cos(np.asarray(self.angles)[np.asarray(hub.chosen)]))
        # Of the positions of an autoregression of this rate so many are independent.
        effective = np.sum(rounds * self.proposals_per_round * renewed / (2 - renewed))
        beyond = rays.mass_beyond(hub.rays)
        if beyond < rays.MOST_BEYOND or beyond * effective < rays.BY_CHANCE:
            return []
        return [
            f"on a line through the surrogate's centre {beyond:.1%} of the posterior's mass lies "
            "beyond all draws: a tail or a mode that no chain has visited. Give a parameter "
            "without a proper prior one, a surrogate that covers the place "
            "(surrogate=consortia.surrogates.Gaussian(mean, covariance)), a larger "
            "defensive_fraction, or use few_rounds"
        ]

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """Return no gradients; K potentials a site, each counted as one."""
        return Cost(
            self.proposals_per_round * len(sizes), self.proposals_per_round * int(sizes.sum())
        )

    def build(self, target: Target) -> Algorithm:
        """Search for a surrogate unless one is given; then propose, evaluate, decide, learn."""
        evaluate = partial(_evaluate, target)
        propose = Phase(
            None,
            hub=partial(_propose, self),
            shared=partial(_proposal_randomness, self, target),
        )
        decide = Phase(
            evaluate,
            Sum(),
            hub=partial(_decide, self),
            shared=lambda rng: DecisionRandomness(
                rng.uniform("accept", (self.proposals_per_round,)), rng.iteration, rng.warmup
            ),
        )
        learn = Phase(
            None,
            hub=partial(warmup.learn, self.angles, self.covariance_inflation),
            repeats=warmup.due,
        )
        adopt = Phase(
            _recall, Mean(), hub=partial(_adopt, self), shared=rays.stagger, evaluation=None
        )
        if self.surrogate is not None:
            adopt = Phase(None, hub=partial(_adopt, self), shared=rays.stagger)
        look = Phase(evaluate, Sum(), hub=_keep_potentials, evaluation=rays.evaluation)
        return Algorithm(
            partial(_init, self),
            (propose, decide, learn),
            Draws(
                hub=lambda hub, inbox: hub.draws if hub.draws.shape[0] > 1 else hub.draws[0],
                per_iteration=self.proposals_per_round,
            ),
            fit=() if self.surrogate is not None else search.phases(target),
            setup=(adopt, look),
            gathers=False,
        )


surrogate_hmc = SurrogateHMC

# --- how a chain starts --------------------------------------------------------------------------


def _init(method: SurrogateHMC, position: Vector) -> tuple[tuple[()], Hub, search.Found]:
    begun = search.begin(position)
    hub = start(position, begun, method.proposals_per_round, len(method.angles))
    return (), hub, begun.found


def _recall(
    noise: PyTree, shared: PyTree, state: PyTree, inbox: PyTree, site: Site
) -> tuple[PyTree, PyTree, Info]:
    """Send the surrogate that the search has left here, the same at every site."""
    _, found = site.fitted
    return state, (found.mean, found.root), {}


def _adopt(
    method: SurrogateHMC, share: Float[Array, ""], hub: Hub, message: PyTree
) -> tuple[Hub, Array, Info]:
    """Take over the surrogate that was found, or the user's own, and start at its mean.

    The reply is the mean, and the points on rays.
    """
    if method.surrogate is None:
        mean, root = message
    else:
        mean, precision = method.surrogate.mean, method.surrogate.precision
        precision = np.diag(precision) if precision.ndim == 1 else precision
        root = np.linalg.inv(np.linalg.cholesky(precision)).T
    dtype = hub.mean.dtype
    mean, root = jnp.asarray(mean, dtype), jnp.asarray(method.covariance_inflation * root, dtype)
    here = hub.here._replace(position=mean, white=jnp.zeros_like(mean))
    widest = _defensive_scale(mean.size) if method.defensive else 1.0
    through = rays.drawn_through(mean, root, share, widest)
    hub = hub._replace(search=(), mean=mean, root=root, here=here, rays=through)
    return hub, rays.points_on(through, mean, root), {}


def _keep_potentials(
    shared: PyTree, hub: Hub, message: metropolis.Potential
) -> tuple[Hub, Array, Info]:
    """Keep U at the start, and what is above it on the rays."""
    potential = jax.tree.map(lambda leaf: leaf[0], message)
    here, moments = hub.here._replace(potential=potential), no_moments(hub.mean, potential)
    hub = hub._replace(here=here, moments=moments, rays=rays.evaluated(hub.rays, message))
    return hub, hub.proposals.positions, {}


# --- one round -----------------------------------------------------------------------------------


class ProposalRandomness(NamedTuple):
    """ξ of K proposals, which of them come from the wider Gaussian, and the time."""

    normals: Float[Array, "K d"]
    wide: PyTree[Bool[Array, " K"]]
    iteration: Count
    warmup: Count


class DecisionRandomness(NamedTuple):
    """u of K Metropolis tests, and the time."""

    levels: Float[Array, " K"]
    iteration: Count
    warmup: Count


def _proposal_randomness(
    method: SurrogateHMC, target: Target, rng: RandomStreams
) -> ProposalRandomness:
    count = method.proposals_per_round
    normals = rng.normal("proposals", (count, target.dimension))
    wide = rng.uniform("guard", (count,)) < method.defensive_fraction if method.defensive else ()
    return ProposalRandomness(normals, wide, rng.iteration, rng.warmup)


def _propose(
    method: SurrogateHMC, shared: ProposalRandomness, hub: Hub, message: PyTree
) -> tuple[Hub, Float[Array, "K d"], Info]:
    """Turn by an angle; the reply is where the K trajectories end.

    Of several angles the one that is on trial, or that was chosen, is taken; but each fourth is a
    shorter one at least, which leads a chain back from a tail where the surrogate would leave it
    alone.
    """
    angles, white, index = method.angles, shared.normals, jnp.zeros((), jnp.int32)
    trial = warmup.angle_on_trial(angles, shared.iteration, shared.warmup)
    if len(angles) > 1:
        warming = shared.iteration < shared.warmup
        index = jnp.where(warming, jnp.maximum(trial, 0), hub.chosen)
        shorter = shared.iteration % SHORTER_EVERY == 0
        index = jnp.where(shorter, jnp.maximum(index, 1), index)
    if method.defensive:
        scale = _defensive_scale(white.shape[1])
        white = white * jnp.where(shared.wide, scale, 1).astype(white.dtype)[:, None]
    if angles != (QUARTER,):
        # Exactly zero for a quarter turn, whose proposals depend on nothing.
        cosines = [0.0 if angle == QUARTER else math.cos(angle) for angle in angles]
        sines = [math.sin(angle) for angle in angles]
        cosine, sine = (jnp.asarray(values, white.dtype)[index] for values in (cosines, sines))
        white = cosine * hub.here.white[None] + sine * white
    positions = hub.mean[None] + white @ hub.root.T
    return hub._replace(proposals=Proposals(positions, white, index, trial)), positions, {}


def _evaluate(
    target: Target,
    noise: PyTree,
    shared: PyTree,
    state: PyTree,
    inbox: Float[Array, "K d"],
    site: Site,
) -> tuple[PyTree, metropolis.Potential, Info]:
    """Send U_c at all proposals."""
    potentials = metropolis.at_all(
        target, lambda at: metropolis.potential(target, at, site), inbox, site
    )
    return state, potentials, {}


def _decide(
    method: SurrogateHMC, shared: DecisionRandomness, hub: Hub, message: metropolis.Potential
) -> tuple[Hub, Float[Array, "K d"], Info]:
    """Make K Metropolis steps; in the warm-up `warmup.observe` keeps their answers."""
    proposals = hub.proposals
    trials = Place(proposals.positions, proposals.white, message)
    lifts = _lift(method, trials.white)

    def test(carry: PyTree, arriving: PyTree) -> PyTree:
        (here, lift), rejections, longest = carry
        trial, trial_lift, level = arriving
        # |ζ'|² − |ζ|² as a product, which cancels no digits of large squares.
        gained = jnp.sum((trial.white - here.white) * (trial.white + here.white)) / 2
        gained = gained - (trial_lift - lift)
        rate = metropolis.acceptance(trial.potential.above(here.potential) - gained)
        accepted = level < rate
        place = jax.tree.map(
            lambda a, b: jnp.where(accepted, a, b), (trial, trial_lift), (here, lift)
        )
        rejections = jnp.where(accepted, 0, rejections + 1)
        return (place, rejections, jnp.maximum(longest, rejections)), (place[0], rate)

    first = (hub.here, _lift(method, hub.here.white)), hub.rejections, hub.rejections
    ((here, _), rejections, longest), (draws, rates) = jax.lax.scan(
        test, first, (trials, lifts, shared.levels)
    )
    log_weights = jnp.zeros_like(rates)
    if method.independent:
        log_weights = _log_weights(trials, lifts, hub.moments.reference)
    weights = jnp.exp(log_weights - jnp.max(log_weights))
    rate = jnp.mean(rates)
    info = {
        "acceptance_rate": rate,
        "largest_weight_share": jnp.max(weights) / jnp.sum(weights),
        "longest_rejection": longest,
        "trajectory_angle": jnp.asarray(method.angles, rates.dtype)[proposals.angle],
    }
    white = trials.white if method.independent else draws.white
    time = shared.iteration, shared.warmup
    hub = hub._replace(here=here, draws=draws.position, rejections=rejections)
    hub = warmup.observe(method.angles, *time, hub, log_weights, white, rate)
    seen = hub.seen
    watched = seen._replace(
        longest=jnp.maximum(seen.longest, longest),
        rounds=seen.rounds + 1,
        rates=seen.rates + rate,
    )
    reached = rays.visited(hub.rays, draws.white)
    # What is seen in the warm-up says nothing of the draws: the proposal still changes.
    after = shared.iteration >= shared.warmup
    seen, reached = jax.tree.map(
        lambda a, b: jnp.where(after, a, b), (watched, reached), (seen, hub.rays)
    )
    return hub._replace(seen=seen, rays=reached), trials.position, info


def _defensive_scale(dimension: int) -> float:
    """Return the wider standard deviations in white coordinates: |ζ| is about 2 larger."""
    return 1 + DEFENSIVE_REACH / math.sqrt(dimension)


def _lift(method: SurrogateHMC, white: Float[Array, "*K d"]) -> Float[Array, "*K"]:
    """Return log q + |ζ|²/2 up to a constant; 0 where no proposal is defensive."""
    squares = jnp.sum(white**2, axis=-1)
    if not method.defensive:
        return jnp.zeros_like(squares)
    share, d, scale = method.defensive_fraction, white.shape[-1], _defensive_scale(white.shape[-1])
    wide = math.log(share) - d * math.log(scale) + squares * (1 - scale**-2) / 2
    return jnp.logaddexp(jnp.full_like(squares, math.log1p(-share)), wide)


def _log_weights(
    trials: Place, lifts: Float[Array, " K"], reference: metropolis.Potential
) -> Float[Array, " K"]:
    """Return log π/q at the proposals, up to a constant; very low where U is not finite."""
    logarithm = jnp.sum(trials.white**2, axis=1) / 2 - lifts
    gaps = trials.potential.above(reference) - logarithm
    lowest = jnp.finfo(gaps.dtype).min / 4
    return jnp.where(jnp.isfinite(gaps), jnp.maximum(-gaps, lowest), lowest)
