r"""The exact law of FA-HMC, FA-LD and de-biased FA-HMC on Gaussian clients.

Client c has :math:`f_c(x) = \tfrac12 (x - m_c)^\top L_c (x - m_c)`, where :math:`f_c = U_c / w_c`,
so that the target is :math:`\exp(-\sum_c w_c f_c / \text{temperature})`. One round, T iterations of
K leapfrog steps at every client and one average, is then an affine map plus Gaussian noise,

.. math::
    x_{r+1} = \alpha x_r + \beta + N(0, V), \qquad
    \alpha = \sum_c w_c a_c^T, \quad \beta = \sum_c w_c (1 - a_c^T) m_c, \quad a_c = \cos(K\phi_c),

with :math:`\cos\phi_c = 1 - \eta^2\lambda_c/2` for a curvature :math:`\lambda_c`; matrices are
functions of :math:`L_c`. The de-biased variant adds :math:`\beta' x_{r-1}`, the average that served
as the anchor, with :math:`\beta' = \sum_c w_c (1 - a_c^T)(1 - \bar\lambda / \lambda_c)`. Where
sites are absent at random a round is a map drawn from several, one for each set of sites: the law
is then a mixture, as that of a travelling chain.

Source: Liang, Zhang, Deng, Song, Lin, "Bayesian federated learning with Hamiltonian Monte Carlo:
algorithm and theory" (2024), algorithms 1-3, B.1 and B.2, and section 4.2 (the momenta). The
formulas are derived here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from consortia.core import arguments
from consortia.core.parameters import spaced
from consortia.diagnostics.prediction import ABSENT
from consortia.errors import InputError, wrong
from consortia.theory.affine import AffineMap, AffineRecursion, Array, Normal
from consortia.theory.arguments import filled, floats
from consortia.theory.clients import Blocks, GaussianClients, applied, read_clients
from consortia.theory.law import Law, Moments
from consortia.theory.travelling import MOST_TRAVELLED, TravellingRecursion
from consortia.theory.within_trajectories import WindowRecursion, Windows, window

MOST_LISTED, MOST_SETS = 10, 1000
"""Clients up to which all sets of them are listed, and the most sets that are taken else."""


def fa_hmc_law(
    means: ArrayLike,
    curvatures: ArrayLike,
    weights: ArrayLike,
    *,
    step_size: float,
    leapfrog_steps: int,
    local_steps: int,
    momentum_correlation: float = 1.0,
    gradient_noise: ArrayLike = 0.0,
    gradient_draws: int = 2,
    debias: bool = False,
    mass_matrix: ArrayLike | None = None,
    temperature: float = 1.0,
    average_every: int | None = None,
    participation: ArrayLike | None = None,
    averaging: ArrayLike | None = None,
) -> Law:
    r"""Return the exact law of FA-HMC (FA-LD with ``leapfrog_steps=1``) on Gaussian clients.

    .. math::
        V = \sum_{j<T} \Bigl[\rho \bigl(\textstyle\sum_c w_c b_c a_c^j\bigr)^2
        + (1-\rho) \sum_c w_c b_c^2 a_c^{2j}\Bigr] + \sum_c w_c^2 q_c \sum_{j<T} a_c^{2j}

    where :math:`a_c` and :math:`b_c` answer a unit position and a unit momentum after K leapfrog
    steps, and :math:`q_c` is the variance from noisy gradients in one iteration, kicks of half a
    step: with :math:`B_k` the answer of the position to a unit momentum after k steps,

    .. math::
        q = \sigma^2 \tfrac{\eta^2}{4} \Bigl[B_K^2 + 2 \sum_{k<K} B_k^2\Bigr]
        \text{ (two draws)}, \qquad
        q = \sigma^2 \tfrac{\eta^2}{4} \Bigl[B_K^2 + 4 \sum_{k<K} B_k^2\Bigr] \text{ (one draw).}

    A client whose own posterior piece is :math:`U_c` enters with the curvature of
    :math:`f_c = U_c / w_c`: two nodes with posteriors N(20, 1) and N(1, 4), of equal weight,
    enter with curvatures 1 and 1/4; the target is N(16.2, 1.6).

    Args:
        means: :math:`m_c`, ``(N,)`` (the same in every coordinate) or ``(N, d)``.
        curvatures: :math:`L_c`: ``(N,)`` (times the identity), ``(N, d)`` (diagonals) or
            ``(N, d, d)`` (symmetric). None may be negative; their weighted sum must be positive.
        weights: :math:`w_c`, ``(N,)``, positive, of sum one.
        step_size: η.
        leapfrog_steps: K.
        local_steps: T, the iterations of a round.
        momentum_correlation: ρ in [0, 1]: share of the momentum's variance that is common.
        gradient_noise: σ², variance per coordinate added to every :math:`\nabla f_c` (when
            ``debias`` to the whole force, and to the gradient that is sent); a number or ``(N,)``.
        gradient_draws: 2, independent noise at the end of a step and at the start of the next,
            2K - 1 draws an iteration (the paper's); 1, the same noise for both, K draws.
        debias: the de-biased variant; round 0 has no correction yet.
        mass_matrix: M, None (the identity), ``(d,)`` or ``(d, d)``; the momentum is N(0, M).
        temperature: factor of the momentum's variance.
        average_every: leapfrog steps between averages of positions and momenta within trajectories;
            an iteration of the law is then such a window, and ``local_steps`` is 1.
        participation: probability of each client to take part in a round, ``(N,)``, independent and
            given that one does; or, bool ``(rounds, N)``, who takes part, each row as often as any
            other, in a random order. An average is over those that do. None: all do.
        averaging: weights in such averages, ``(N,)``, to be scaled to a sum of one; None: w_c.

    Returns:
        The law. It is returned for unstable settings too: ask ``.stable``.

    Raises:
        InputError: an argument has a wrong shape or value.

    Example:
        >>> found = fa_hmc_law([20.0, 1.0], [1.0, 0.25], [0.5, 0.5], step_size=0.1,
        ...                    leapfrog_steps=5, local_steps=10).stationary
        >>> print(found.bias.round(3), found.variance_ratio.round(3))
        [-1.345] [1.115]
    """
    clients = read_clients(means, curvatures, weights, mass_matrix)
    noise = filled(gradient_noise, clients.weights.shape, "gradient_noise")
    more = noise, gradient_draws, temperature
    given = _checked(step_size, leapfrog_steps, momentum_correlation, *more)
    local = arguments.whole("local_steps", local_steps, 1)
    every = arguments.optional_whole("average_every", average_every, 1)
    if participation is not None:
        weights = clients.weights if averaging is None else floats(averaging, "averaging")
        some = takers(participation, weights)
        return _absent(clients, some, local, given, plain=not (every or debias))
    if every is not None:
        return _within(clients, every, whole=local == 1 and not debias, **given)
    # A step far beyond stability overflows: the law then has an infinite spectral radius.
    with np.errstate(over="ignore", invalid="ignore"):
        everyone = clients.weights[None]
        response, (spread,) = _one_round(clients, everyone, local_steps=local, **given)
        sent = float(clients.weights**2 @ noise)
        return _law(clients, response, spread, given["heat"], sent, debias=debias)


def _within(clients: GaussianClients, every: int, *, whole: bool, rho: float, **given: Any) -> Law:
    """Return the law where clients meet within trajectories, the iterations being windows."""
    if not whole:
        raise wrong("average_every", ": give local_steps=1 and debias=False with it")
    settings = Windows(average_every=every, momentum_correlation=rho, **given)
    starts = [r * every % settings.leapfrog_steps for r in range(settings.period)]
    with np.errstate(over="ignore", invalid="ignore"):
        recursion = WindowRecursion(tuple(window(clients, settings, start) for start in starts))
    covariance = settings.heat * np.linalg.inv(clients.precision)
    return Law(
        recursion,
        Moments(*Normal.of(clients.target_mean, covariance)),
        centred=True,
        remedy="Lower step_size, leapfrog_steps or average_every.",
        basis=f"the exact law of averages after every {every} leapfrog steps",
    )


def _checked(
    step: float, leapfrogs: int, rho: float, noise: Array, draws: int, heat: float
) -> dict[str, Any]:
    """Return the settings of a round, checked, as `_one_round` takes them."""
    if np.any(noise < 0.0):
        raise wrong("gradient_noise", ": a variance is negative; give variances of at least zero")
    return {
        "step_size": arguments.positive("step_size", step),
        "leapfrog_steps": arguments.whole("leapfrog_steps", leapfrogs, 1),
        "rho": arguments.number("momentum_correlation", rho, 0.0, 1.0),
        "gradient_noise": noise,
        "gradient_draws": arguments.whole("gradient_draws", draws, 1, 2),
        "heat": arguments.positive("temperature", heat),
    }


def takers(
    participation: ArrayLike, weights: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "sets N"], Float[np.ndarray, " sets"]]:
    """Return the weights in the average of each set of clients, and how often each is drawn.

    Of many sets evenly spaced ones are taken.
    """
    given = np.asarray(participation)
    n = weights.size
    if given.shape == (n,) and given.dtype != bool:
        chance = floats(given, "participation")
        if not ((chance > 0) & (chance <= 1)).all():
            raise wrong("participation", ": give probabilities above 0 and up to 1.")
        if n <= MOST_LISTED:
            sets = np.array(list(itertools.product((False, True), repeat=n)))[1:]
            often = np.where(sets, chance, 1 - chance).prod(axis=1)
        else:
            sets = np.random.default_rng(0).random((MOST_SETS, n)) < chance
            sets = sets[sets.any(axis=1)]
            often = np.ones(len(sets))
    elif given.ndim == 2 and given.shape[1] == n and given.any(axis=1).all():
        sets, often = np.unique(given.astype(bool), axis=0, return_counts=True)
        some = spaced(len(sets), MOST_SETS)
        sets, often = sets[some], often[some]
    else:
        raise InputError(
            f"participation: shape {given.shape}; give ({n},) probabilities, or bool (rounds, {n}) "
            "with a client in every row"
        ).at("participation")
    averages = sets * weights
    return averages / averages.sum(axis=1, keepdims=True), often / often.sum()


def _absent(
    clients: GaussianClients,
    some: tuple[Float[np.ndarray, "sets N"], Float[np.ndarray, " sets"]],
    local: int,
    given: dict[str, Any],
    *,
    plain: bool,
) -> Law:
    """Return the law of rounds whose average is over a random set of clients."""
    averages, often = some
    if not plain:
        raise InputError(
            "where sites are absent no law is known with debias or average_every: an absent site "
            "keeps an old anchor. Give debias=False"
        )
    if clients.means[0].size > MOST_TRAVELLED:
        raise InputError(
            f"the law of averages over some of the sites is too large in {clients.means[0].size} "
            "parameters"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        response, spreads = _one_round(clients, averages, local_steps=local, **given)
    relaxation = response @ clients.curvatures
    pulls = np.tensordot(averages, applied(relaxation, clients.means - clients.target_mean), axes=1)
    falls = np.tensordot(averages, relaxation, axes=1)
    maps = [_whole(np.eye(falls.shape[-1]) - falls), pulls.reshape(len(often), -1), _whole(spreads)]
    recursion = TravellingRecursion(often, AffineMap(*maps), 1)
    covariance = given["heat"] * _whole(np.linalg.inv(clients.precision)[None])[0]
    return Law(
        recursion,
        Moments(clients.target_mean.reshape(-1), covariance),
        centred=True,
        remedy="Lower step_size, leapfrog_steps or local_steps.",
        basis=f"the exact law of {ABSENT}, drawn anew each round",
    )


def _whole(
    blocks: Float[np.ndarray, "sets blocks w w"],
) -> Float[np.ndarray, "sets d d"]:
    """Return the matrices of all coordinates from those of blocks of them."""
    sets, count, width, _ = blocks.shape
    full = np.zeros((sets, count, width, count, width))
    full[:, np.arange(count), :, np.arange(count)] = blocks.swapaxes(0, 1)
    return full.reshape(sets, count * width, -1)


def _one_round(
    clients: GaussianClients,
    averages: Float[np.ndarray, "sets N"],
    *,
    step_size: float,
    leapfrog_steps: int,
    local_steps: int,
    rho: float,
    gradient_noise: Float[np.ndarray, " N"],
    gradient_draws: int,
    heat: float,
) -> tuple[Array, Array]:
    """Run T iterations at every client and take averages of these weights, by linear answers.

    Returns:
        H_c, minus the answer of a client's position to a unit constant force, (N, blocks, w, w),
        so that H_c L_c = 1 - a_c^T; and the covariance V of each average, (sets, blocks, w, w).
    """
    curvature, slowness = clients.curvatures, np.linalg.inv(clients.mass)
    identity, turned = np.eye(curvature.shape[-1]), step_size**2 * slowness
    pulled = turned @ curvature
    # Leapfrogs from rest at the origin, in differences, which keeps 1 - cos(Kφ) exact for small
    # steps: `kicked` answers a unit momentum (B_k), `forced` a unit constant force.
    kicked, forced = np.zeros_like(curvature), np.zeros_like(curvature)
    kicked_change, forced_change = kicked + step_size * slowness, forced + turned / 2
    inner, noises = np.zeros_like(curvature), bool(np.any(gradient_noise))
    for step in range(leapfrog_steps):
        inner += kicked @ kicked.mT if noises else 0.0
        kicked = kicked + kicked_change
        forced = forced + forced_change
        if step < leapfrog_steps - 1:
            kicked_change = kicked_change - pulled @ kicked
            forced_change = forced_change + turned - pulled @ forced

    decay, power = identity - forced @ curvature, np.zeros_like(curvature) + identity
    spread = np.zeros((len(averages), *curvature.shape[1:]))
    if noises or rho < 1.0:
        # Noise at an inner point is two half kicks, independent of each other or equal.
        factor = 2.0 if gradient_draws == 2 else 4.0
        noisy = (kicked @ kicked.mT + factor * inner) * step_size**2 / 4.0
        private = (1.0 - rho) * heat * kicked @ clients.mass @ kicked.mT
        innovation = private + (clients.weights * gradient_noise)[:, None, None, None] * noisy
        still = np.zeros(curvature.shape[:-1])
        alone = AffineMap(decay, still, innovation).power(local_steps).covariance
        spread += np.tensordot(averages**2 / clients.weights, alone, axes=1)
    series = np.zeros_like(curvature)
    for step in range(local_steps):
        series += power
        common = np.tensordot(averages, power @ kicked, axes=1)
        spread += rho * heat * common @ clients.mass @ common.mT
        power = power @ decay if step < local_steps - 1 else power
    return series @ forced, spread


@dataclass(frozen=True, eq=False)
class FederatedRounds(AffineRecursion):
    r"""Rounds of federated averaging around the target's mean, in independent blocks.

    .. math:: x_{r+1} = \alpha x_r + \beta' x_{r-1} + \beta + N(0, V), \qquad \beta' = 0
        \text{ without de-biasing}

    Round 0 of the de-biased variant has no anchor yet and is a plain round.
    """

    alpha: Blocks = field(kw_only=True)  # α, (blocks, w, w)
    beta: Float[np.ndarray, " d"] = field(kw_only=True)  # β, (d,)
    innovation_covariance: Blocks = field(kw_only=True)  # V, (blocks, w, w)


def _law(
    clients: GaussianClients,
    response: Float[np.ndarray, "N blocks w w"],
    spread: Blocks,
    heat: float,
    sent: float,
    *,
    debias: bool,
) -> Law:
    """Return the law from what a round does to every client's position.

    ``sent`` is the variance per coordinate of the average of the gradients that the clients send,
    which is a constant force of a whole round at all of them.
    """
    centre, precision = clients.target_mean, clients.precision
    relaxations, shared = response @ clients.curvatures, response @ precision
    identity, nil = np.zeros_like(precision) + np.eye(centre.shape[1]), np.zeros_like(precision)
    alpha = identity - clients.average(relaxations)
    anchor = clients.average(relaxations - shared) if debias else nil
    relaxation = clients.average(shared if debias else relaxations)
    # What a plain round adds to the centred mean, Σ_c w_c (1 - a_c^T)(m_c - m*).
    pull = clients.average(applied(relaxations, clients.means - centre))
    still = np.zeros_like(pull)
    common = clients.average(response)
    innovation = spread + sent * common @ common.mT if debias else spread
    if debias:  # the state is (u_r, u_{r-1}) with u = x - m*
        step = AffineMap(
            np.block([[alpha, anchor], [identity, nil]]),
            np.concatenate([still, still], axis=-1),
            np.block([[innovation, nil], [nil, nil]]),
        )
        # β' acts on an anchor that does not exist yet: only the columns of the position remain,
        # and no gradient has been sent.
        first = AffineMap(
            np.concatenate([alpha, identity], axis=-2),
            np.concatenate([pull, still], axis=-1),
            np.block([[spread, nil], [nil, nil]]),
        )
    else:
        step = first = AffineMap(alpha, pull, spread)
    recursion = FederatedRounds(
        step=step,
        first=first,
        relaxation=None if debias else relaxation,
        alpha=alpha,
        beta=((0.0 if debias else pull) + applied(relaxation, centre)).reshape(-1),
        innovation_covariance=innovation,
    )
    covariance = heat * np.linalg.inv(precision)
    return Law(
        recursion,
        Moments(*Normal.of(centre, covariance)),
        centred=True,
        remedy="Lower step_size, leapfrog_steps or local_steps"
        + (", or set debias=False." if debias else "."),
        basis="the exact law of federated averaging",
    )
