r"""Thousands of short chains on one message, which learn from each other and not over time.

All W chains share a step size, a metric and a length of trajectories, so that a leapfrog step of
all of them is one communication round:

.. math:: p \leftarrow p - \tfrac{\epsilon}{2} R^\top\nabla U(\zeta), \quad
          \zeta \leftarrow \zeta + \epsilon R p, \quad
          p \leftarrow p - \tfrac{\epsilon}{2} R^\top\nabla U(\zeta), \qquad p \sim N(0, I)

After each trajectory of the warm-up all chains together teach what the next one needs: the step
size from acceptance rates, since in the warm-up every chain tries its own, the metric
:math:`RR^\top` from the spread of the chains, the length from the correlation of where trajectories
began and where they ended. Chains are started in
groups, the *superchains*, each at one place: when the groups are alike their starts are forgotten,
which nested R-hat measures. Then all stands still, and draws are kept.

Source: Hoffman, Radul, Sountsov, "An adaptive MCMC scheme for setting trajectory lengths in HMC"
(2021); Hoffman, Sountsov, "Tuning-free generalized HMC" (2022); Margossian, Hoffman, Sountsov,
Riou-Durand, Vehtari, Gelman, "Nested R-hat" (2024). What is learned how is ours.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from consortia.dynamics import metropolis

Scalar = Float[Array, ""]
Count = Int[Array, ""]
Vector = Float[Array, " d"]
Root = Float[Array, "d d"] | Float[Array, " d"]

SUPERCHAINS, FEWEST = 48, 8
"""Groups of chains that start at one place, at most; and the fewest chains of one."""

WANTED_RATE = 0.8
"""Mean acceptance rate that the step size is adapted to."""

LONGEST = 20
"""Leapfrog steps of a trajectory, at most."""

SHORTEST = 3
"""Trajectories of the warm-up, at least."""

LARGER, FIRST_LADDER, LADDER, JITTER = 1.4, 24.0, 3.0, 1.25
"""In the warm-up chains have step sizes from 1.4 ε down to a third of that, at first a 24th; those
that are kept have from ε down to ε / 1.25, which breaks resonances."""

RUNGS = 8
"""Of the ladder of step sizes."""

FARTHEST = 1e3
"""A trajectory that comes further from the centre, in white coordinates, is rejected."""

FORGOTTEN = 0.01
"""Variance between superchains by that within, beyond that of their size and its noise, when they
are alike: of a bias of all starts together its square root is left, less with each trajectory."""

MOST_DRIFT = 0.05
"""By so many standard deviations, beyond the noise, means and spreads may still move in a
trajectory: superchains that all began too near to one another may be alike and yet wrong."""

CAREFUL = 1.5
"""By so much the step size is made smaller where a few chains do not move, or diverge."""

LONG_IDLE = 5
"""Rejections in a row that mark a chain as one that does not move."""

MOST_IDLE, MOST_DIVERGENT, LEAST_SPREAD = 0.002, 0.002, 0.3
"""Share of chains that do not move, share of divergent trajectories, and spread of energies by that
of a Gaussian: what is beyond them is not explored by trajectories of one step size."""


class Points(NamedTuple):
    """Positions ζ in white coordinates, U and ∇U there, of all chains."""

    places: Float[Array, "W d"]
    heights: Float[Array, " W"]
    gradients: Float[Array, "W d"]


class Measured(NamedTuple):
    """Of the last trajectory.

    Attributes:
        rate: mean acceptance rate.
        nested_r_hat: largest, over the coordinates, their distances to the mean, and U.
        excess: variance between superchains by that within, beyond what their numbers explain.
        drift: of means and standard deviations in the trajectory, in standard deviations, beyond
            the noise.
        correlation: of begin and end of the trajectory, of the coordinate where it is largest in
            absolute value.
        idle: share of chains that have not moved for long.
        divergent: share of trajectories whose energy error is above 1000.
        spread: the E-BFMI of the energies.
    """

    rate: Scalar
    nested_r_hat: Scalar
    excess: Scalar
    drift: Scalar
    correlation: Scalar
    idle: Scalar
    divergent: Scalar
    spread: Scalar


class Ensemble(NamedTuple):
    """All chains, and what they share.

    Attributes:
        here: where the chains are.
        trial: where their trajectories have come.
        momenta: p there.
        energies: U + p²/2 at the begin of the trajectories.
        lost: a trajectory was not finite or went too far.
        idle: rejections in a row.
        rates: acceptance rates of the last trajectory.
        root: R, (d, d) lower triangular or, of a diagonal metric, (d,).
        step_size: ε.
        length: of a trajectory, ε times its steps.
        used: ε of each chain in this trajectory.
        step: of this trajectory.
        steps: that it has; 0 where only its begin is evaluated.
        trajectories: so far.
        measured: of the last one.
    """

    here: Points
    trial: Points
    momenta: Float[Array, "W d"]
    energies: Float[Array, " W"]
    lost: Bool[Array, " W"]
    idle: Int[Array, " W"]
    rates: Float[Array, " W"]
    root: Root
    step_size: Scalar
    length: Scalar
    used: Float[Array, " W"]
    step: Count
    steps: Count
    trajectories: Count
    measured: Measured


def start(places: Float[Array, "W d"], root: Root) -> Ensemble:
    """Return the chains before their first message, which evaluates where they start."""
    count, d = places.shape
    zero, none = jnp.zeros((), places.dtype), jnp.zeros((), jnp.int32)
    here = Points(places, jnp.zeros(count, places.dtype), jnp.zeros_like(places))
    nothing = Measured(*[jnp.full((), jnp.nan, places.dtype)] * len(Measured._fields))
    # With this step a Gaussian of d dimensions has about the wanted acceptance rate.
    step_size = zero + 1.5 * d**-0.25
    return Ensemble(
        here,
        here,
        momenta=jnp.zeros_like(places),
        energies=here.heights,
        lost=jnp.zeros(count, bool),
        idle=jnp.zeros(count, jnp.int32),
        rates=here.heights,
        root=root,
        step_size=step_size,
        length=zero + math.pi / 2,
        used=here.heights,
        step=none,
        steps=none,
        trajectories=none,
        measured=nothing,
    )


def due(ensemble: Ensemble) -> Count:
    """Return the communication rounds of a trajectory: its steps, and one for the very start."""
    return jnp.maximum(ensemble.steps, 1)


def begun(ensemble: Ensemble, normals: Float[Array, "W d"], learning: Bool[Array, ""]) -> Ensemble:
    """Return the chains with new momenta, after half a kick and the first drift.

    Before anything is known of where they are they stay there.

    Args:
        ensemble: between two trajectories.
        normals: ξ of the momenta.
        learning: every chain tries its own step size.
    """
    seen, here = ensemble.trajectories, ensemble.here
    known = seen > 0
    widest, spread = _ladder(seen, learning)
    levels = (_rungs(seen, normals.shape[0]).astype(normals.dtype) + 0.5) / RUNGS
    used = jnp.where(known, ensemble.step_size * widest * spread**-levels, 0)
    steps = jnp.clip(jnp.round(ensemble.length / ensemble.step_size), 1, LONGEST)
    momenta = normals - used[:, None] / 2 * against(ensemble.root, here.gradients)
    ensemble = ensemble._replace(
        trial=here,
        momenta=momenta,
        energies=here.heights + jnp.sum(normals**2, axis=1) / 2,
        lost=jnp.zeros_like(ensemble.lost),
        used=used,
        step=jnp.zeros((), jnp.int32),
        steps=jnp.where(known, steps, 0).astype(jnp.int32),
    )
    return _drifted(ensemble, used)


def _ladder(seen: Count, learning: Bool[Array, ""] | bool) -> tuple[Scalar, Scalar]:
    """Return the largest step size by ε, and by how much the smallest is smaller."""
    ladder = jnp.where(seen > 1, LADDER, FIRST_LADDER)
    return jnp.where(learning, LARGER, 1.0), jnp.where(learning, ladder, JITTER)


def _rungs(seen: Count, count: int) -> Int[Array, " W"]:
    """Return the rung of each chain on the ladder; it changes with each trajectory."""
    return (jnp.arange(count, dtype=jnp.int32) + seen) % RUNGS


def _drifted(ensemble: Ensemble, time: Float[Array, " W"]) -> Ensemble:
    """Return the chains after a drift; what goes too far stays where it began."""
    there = ensemble.trial.places + time[:, None] * along(ensemble.root, ensemble.momenta)
    near = jnp.all(jnp.abs(there) <= FARTHEST, axis=1)
    lost = ensemble.lost | ~near
    places = jnp.where(lost[:, None], ensemble.here.places, there)
    return ensemble._replace(trial=ensemble.trial._replace(places=places), lost=lost)


def moved(
    ensemble: Ensemble, heights: Float[Array, " W"], gradients: Float[Array, "W d"]
) -> Ensemble:
    """Return the chains after the kick of a message, and a drift unless it was the last."""
    finite = jnp.isfinite(heights) & jnp.all(jnp.isfinite(gradients), axis=1)
    gradients = jnp.where(finite[:, None], gradients, 0)
    ensemble = ensemble._replace(
        trial=Points(ensemble.trial.places, heights, gradients), lost=ensemble.lost | ~finite
    )
    last = ensemble.step + 1 >= ensemble.steps
    kick = jnp.where(last, ensemble.used / 2, ensemble.used)
    momenta = ensemble.momenta - kick[:, None] * against(ensemble.root, gradients)
    ensemble = ensemble._replace(momenta=momenta, step=ensemble.step + 1)
    return _drifted(ensemble, jnp.where(last, 0, ensemble.used))


def ended(ensemble: Ensemble, levels: Float[Array, " W"]) -> Ensemble:
    """Return the chains after their Metropolis tests, with what was measured."""
    here, trial = ensemble.here, ensemble.trial
    known = ensemble.steps > 0
    errors = trial.heights + jnp.sum(ensemble.momenta**2, axis=1) / 2 - ensemble.energies
    errors = jnp.where(ensemble.lost, jnp.inf, errors)
    rates = metropolis.acceptance(errors)
    # Before the first trajectory the chains are where they were; U there is now known.
    accepted = jnp.where(known, levels < rates, True)
    after = Points(
        jnp.where(accepted[:, None], trial.places, here.places),
        jnp.where(accepted, trial.heights, here.heights),
        jnp.where(accepted[:, None], trial.gradients, here.gradients),
    )
    idle = jnp.where(accepted, 0, ensemble.idle + 1)
    between, within = _variances(monitored(after))
    groups, size = _groups(accepted.size)
    # The variance of so many means is known so well, and the largest of many is looked at.
    noise = 4 * math.sqrt(2 / (groups - 1)) / size
    ratio = jnp.max(jnp.where(within > 0, between / within, jnp.inf))
    d = after.places.shape[1]
    measured = Measured(
        rate=jnp.mean(rates),
        nested_r_hat=jnp.sqrt(1 + ratio),
        excess=ratio - 1 / size - noise,
        drift=_drift(here.places, after.places) - 4 * math.sqrt(2 / accepted.size),
        correlation=_largest(_correlation(here.places, after.places)),
        idle=jnp.mean((idle >= LONG_IDLE).astype(rates.dtype)),
        # Of larger steps than will be used they say nothing.
        divergent=jnp.mean(
            (~(errors <= metropolis.DIVERGENT) & (ensemble.used <= ensemble.step_size)).astype(
                rates.dtype
            )
        ),
        spread=d / (jnp.var(after.heights) + d / 2),
    )
    nothing = jax.tree.map(lambda value: jnp.full_like(value, jnp.nan), measured)
    return ensemble._replace(
        here=after,
        idle=idle,
        rates=rates,
        trajectories=ensemble.trajectories + 1,
        measured=jax.tree.map(lambda a, b: jnp.where(known, a, b), measured, nothing),
    )


def monitored(points: Points) -> Float[Array, "W q"]:
    """Return what superchains are compared by: coordinates, their distances to the mean, and U."""
    places = points.places
    away = jnp.abs(places - jnp.mean(places, axis=0, keepdims=True))
    return jnp.concatenate([places, away, points.heights[:, None]], axis=1)


def nested_r_hat(values: Float[Array, "W q"]) -> Float[Array, " q"]:
    """Return nested R-hat of one draw of each chain, √(1 + B/W) over the superchains."""
    between, within = _variances(values)
    return jnp.sqrt(1 + between / within)


def superchains(count: int) -> Int[Array, " W"]:
    """Return for each chain to which superchain it belongs; neighbours belong together."""
    groups, each = _groups(count)
    return jnp.minimum(jnp.arange(count, dtype=jnp.int32) // each, groups - 1)


def _groups(count: int) -> tuple[int, int]:
    """Return the number of superchains, and of the chains in each."""
    groups = min(SUPERCHAINS, count // FEWEST)
    return groups, count // groups


def _variances(values: Float[Array, "W q"]) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
    """Return the variance of the superchains' means, and their mean variance within."""
    groups, each = _groups(values.shape[0])
    parts = values[: groups * each].reshape(groups, each, -1)
    between = jnp.var(jnp.mean(parts, axis=1), axis=0, ddof=1)
    return between, jnp.mean(jnp.var(parts, axis=1, ddof=1), axis=0)


def _correlation(first: Float[Array, "W d"], second: Float[Array, "W d"]) -> Vector:
    first = first - jnp.mean(first, axis=0, keepdims=True)
    second = second - jnp.mean(second, axis=0, keepdims=True)
    squares = jnp.sum(first**2, axis=0) * jnp.sum(second**2, axis=0)
    product = jnp.sum(first * second, axis=0)
    return jnp.where(squares > 0, product / jnp.sqrt(squares), 0)


def _drift(first: Float[Array, "W d"], second: Float[Array, "W d"]) -> Scalar:
    """Return the largest change of a mean or a standard deviation, in standard deviations."""
    sd, means = jnp.std(second, axis=0), jnp.mean(second - first, axis=0)
    spreads = sd - jnp.std(first, axis=0)
    return jnp.max(jnp.maximum(jnp.abs(means), jnp.abs(spreads)) / jnp.maximum(sd, 1e-30))


def _largest(values: Vector) -> Scalar:
    return values[jnp.argmax(jnp.abs(values))]


# --- what all chains teach -----------------------------------------------------------------------


def learned(ensemble: Ensemble) -> Ensemble:
    """Return the chains with the step size, metric and length that the last trajectory taught."""
    seen, measured = ensemble.trajectories, ensemble.measured
    root = jnp.where(seen > 1, _metric(ensemble), _first_metric(ensemble))
    root = jnp.where(jnp.all(jnp.isfinite(root)), root, ensemble.root)
    # Where all but a few chains move everywhere these need smaller steps than the rest.
    careful = (measured.excess <= FORGOTTEN) & ~_moves(measured)
    step_size = _step_size(ensemble) / jnp.where(careful, CAREFUL, 1)
    # Trajectories whose end still has a part of their begin become longer, those that come back
    # shorter; the first begin at few places, and say nothing of it.
    noise = 4 / math.sqrt(ensemble.lost.size)
    change = jnp.sign(measured.correlation) * jnp.maximum(jnp.abs(measured.correlation) - noise, 0)
    length = ensemble.length * jnp.where(seen > 2, jnp.exp(change / 2), 1)
    length = jnp.clip(length, step_size, LONGEST * step_size)
    known = ensemble.steps > 0
    return ensemble._replace(
        root=root,
        step_size=jnp.where(known, step_size, ensemble.step_size),
        length=jnp.where(known, length, ensemble.length),
    )


def settled(ensemble: Ensemble) -> Bool[Array, ""]:
    """Return True if the chains have forgotten their starts, and move everywhere."""
    measured = ensemble.measured
    forgotten = (measured.excess <= FORGOTTEN) & (measured.drift <= MOST_DRIFT)
    return (ensemble.trajectories > SHORTEST) & forgotten & _moves(measured)


def _moves(measured: Measured) -> Bool[Array, ""]:
    moves = (measured.idle <= MOST_IDLE) & (measured.divergent <= MOST_DIVERGENT)
    return moves & (measured.spread >= LEAST_SPREAD)


def obstacles(measured: Measured) -> list[str]:
    """Return in words what keeps the chains from being settled; on the host."""
    found = {
        f"nested R-hat is {float(measured.nested_r_hat):.3g}": measured.excess > FORGOTTEN,
        f"means or spreads still drift by {float(measured.drift):.2g} sd": measured.drift
        > MOST_DRIFT,
        f"{float(measured.idle):.2%} of the chains do not move": measured.idle > MOST_IDLE,
        f"{float(measured.divergent):.2%} of the trajectories diverge": measured.divergent
        > MOST_DIVERGENT,
        f"the E-BFMI is {float(measured.spread):.2g}": measured.spread < LEAST_SPREAD,
    }
    return [text for text, holds in found.items() if holds]


def _step_size(ensemble: Ensemble) -> Scalar:
    """Return the largest step size of the ladder that is accepted as often as wanted."""
    before = ensemble.trajectories - 1
    widest, spread = _ladder(before, learning=True)
    usable = ensemble.rates[: ensemble.rates.size // RUNGS * RUNGS]
    rates = jnp.mean(usable.reshape(-1, RUNGS), axis=0)
    rates = rates[(jnp.arange(RUNGS, dtype=jnp.int32) - before) % RUNGS]
    accepted = rates >= WANTED_RATE
    place = (jnp.argmax(accepted).astype(rates.dtype) + 0.5) / RUNGS
    place = jnp.where(jnp.any(accepted), place, 1.2)
    return ensemble.step_size * widest * spread**-place


def _first_metric(ensemble: Ensemble) -> Root:
    """Return R before the first trajectory; a diagonal one from how the gradient varies."""
    root, here = ensemble.root, ensemble.here
    if root.ndim == 2:
        return root
    return jnp.sqrt(jnp.std(here.places, axis=0) / jnp.std(here.gradients, axis=0))


def _metric(ensemble: Ensemble) -> Root:
    """Return R from the spread of the chains, shrunk towards the one in use."""
    root, here = ensemble.root, ensemble.here
    if root.ndim == 1:
        return jnp.sqrt(jnp.std(here.places, axis=0) / jnp.std(here.gradients, axis=0))
    count, d = here.places.shape
    away = here.places - jnp.mean(here.places, axis=0, keepdims=True)
    # So many chains are independent as long as the superchains are not yet alike.
    groups = count * jnp.clip(ensemble.measured.excess, 0, 1)
    effective = count / (1 + groups / SUPERCHAINS)
    share = effective / (effective + 4 * d)
    covariance = share * (away.T @ away) / count + (1 - share) * root @ root.T
    return jnp.linalg.cholesky((covariance + covariance.T) / 2)


def along(root: Root, vectors: Float[Array, "W d"]) -> Float[Array, "W d"]:
    """Return R v of each chain."""
    return vectors * root[None] if root.ndim == 1 else vectors @ root.T


def against(root: Root, vectors: Float[Array, "W d"]) -> Float[Array, "W d"]:
    """Return Rᵀ g of each chain."""
    return vectors * root[None] if root.ndim == 1 else vectors @ root
