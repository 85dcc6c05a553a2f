r"""The exact law of DE-SGLD and DE-SGHMC on Gaussian agents, agent by agent.

With :math:`f_i(x) = \tfrac12 x^\top A_i x - b_i^\top x` an iteration of all N agents is linear in
their positions, with :math:`\mathcal{W} = W \otimes I_d` and A the block diagonal matrix of the
curvatures

.. math::
    \text{DE-SGLD} \quad & x' = (\mathcal{W} - \eta A) x - q + \eta b + \sqrt{2\eta}\,\xi \\
    \text{DE-SGHMC} \quad & v' = (1 - \gamma\eta) v - \eta (A x - b) + \sqrt{2\gamma\eta}\,\xi,
    \qquad x' = \mathcal{W} x - q + \eta v' \\
    \text{EXTRA} \quad & q' = q + \tfrac12 (1 - \mathcal{W}) x, \qquad q_0 = 0

(q = 0 without the correction). With a momentum, at temperature 0 (D-ASG), a step to x' is followed
by :math:`v' = \beta(x' - x + v)`, and the position is x' + v'. So means and covariances are known
at every iteration.

A row's share of a minibatch gradient is :math:`g_j(x) = H_j x - p_j`. For b rows drawn with
replacement from agent i's n, at a position of mean m and covariance S, with averages over the rows,

.. math:: \operatorname{Cov} = \frac{n^2}{b}\Bigl[\overline{g_j(m) g_j(m)^\top + H_j S H_j}
          - \bar g(m) \bar g(m)^\top - \bar H S \bar H\Bigr]

which the covariance of the positions feeds, and which feeds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from consortia import graphs
from consortia.core import arguments
from consortia.errors import InputError, wrong
from consortia.graphs.weights import Mixing
from consortia.theory.affine import (
    AffineMap,
    AffineRecursion,
    Array,
    Normal,
    Recursion,
    operator_radius,
)
from consortia.theory.agents import GaussianAgents, block_diagonal
from consortia.theory.arguments import filled
from consortia.theory.coupled_modes import CoupledModes
from consortia.theory.estimates import minibatch_noise
from consortia.theory.law import Law, Moments, agent_blocks

_WORST_CONDITION = 1e3
"""Condition of the eigenvectors beyond which sums over modes, whose error grows with its square,
lose more than six of their digits."""

LEAST_MODE = 1e-6
"""Eigenvalue that a mode of W has at least."""

BY_MODES = (
    "the law of the average of the agents, to second order in how their curvatures differ as there "
    "are too many for the matrix of an iteration"
)

LOOKED, GROWN = 40, 1e9
"""Iterations by which a mean that grows so much is known to diverge: a third more each time."""

_MOST_RESTARTS = 10
"""Restarts, of 50 steps each, within which the settled noise of minibatches is found."""


def de_sgld_law(
    agents: GaussianAgents,
    mixing: Mixing,
    *,
    step_size: float,
    correction: str | None = None,
    noise: str = "independent",
    averaged_noise: bool = False,
    batch_size: int | None = None,
    replace: bool = True,
    control_variate: ArrayLike | None = None,
    temperature: float = 1.0,
    momentum: float = 0.0,
) -> Law:
    """Return the exact law of `consortia.de_sgld` on Gaussian agents.

    Args:
        agents: the problem.
        mixing: W, as in `consortia.de_sgld`.
        step_size: η.
        correction: None or ``"extra"``.
        noise: ``"independent"`` or ``"common"``.
        averaged_noise: average the noise over two steps.
        batch_size: rows a gradient (of agents that have rows); None for all.
        replace: rows with replacement.
        control_variate: the anchor, ``(d,)``, or None.
        temperature: factor of the noise's variance.
        momentum: β, of D-ASG, at temperature 0 and without a correction.

    Returns:
        The law. It is returned for unstable settings too: see ``stable``.

    Raises:
        InputError: an argument has a wrong shape or value.

    Example:
        >>> agents = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])
        >>> moments = de_sgld_law(agents, "complete", step_size=0.01).stationary
        >>> print(round(moments.w2, 4), moments.agents.w2.round(4))
        0.0152 [0.048  0.0172]
    """
    eta = arguments.positive("step_size", step_size)
    heat = arguments.number("temperature", temperature, 0.0)
    beta = arguments.number("momentum", momentum, 0.0)
    corrected = arguments.one_of("correction", correction, (None, "extra")) is not None
    if beta and (beta >= 1 or heat > 0 or corrected):
        raise wrong("momentum", " must be below 1, at temperature=0.0, without a correction.")

    def iteration(agents: GaussianAgents, network: Network) -> list[Array]:
        count = 1 + (corrected or beta > 0)
        x, *more, pulls, xi = symbols(agents, network, count, balanced=corrected)
        mixed = over_agents(network.links, x)
        moved = mixed - eta * (at_agents(agents.curvatures, x) - pulls) + xi
        if corrected:
            moved, more = moved - more[0], [more[0] + (x - mixed) / 2]
        elif beta:
            more = [beta * (moved - x + more[0])]
            moved = moved + more[0]
        return [moved, *more]

    batches = None
    if batch_size is not None:
        batches = BatchNoise(agents, eta, batch_size, replace=replace, anchor=control_variate)
    return agent_law(
        agents,
        mixing,
        iteration,
        noise=2 * eta * heat * _correlation(agents, noise),
        averaged=bool(averaged_noise),
        batches=batches,
        temperature=heat,
    )


def de_sghmc_law(
    agents: GaussianAgents,
    mixing: Mixing,
    *,
    step_size: float,
    friction: float,
    correction: str | None = None,
    noise: str = "independent",
    batch_size: int | None = None,
    replace: bool = True,
    control_variate: ArrayLike | None = None,
    temperature: float = 1.0,
) -> Law:
    """Return the exact law of `consortia.de_sghmc` on Gaussian agents.

    Args:
        agents: the problem.
        mixing: W, as in `consortia.de_sgld`.
        step_size: η.
        friction: γ.
        correction: None or ``"extra"``.
        noise: ``"independent"`` or ``"common"``.
        batch_size: rows a gradient (of agents that have rows); None for all.
        replace: rows with replacement.
        control_variate: the anchor, ``(d,)``, or None.
        temperature: factor of the noise's variance.

    Returns:
        The law of the positions. It is returned for unstable settings too: see ``stable``.

    Raises:
        InputError: an argument has a wrong shape or value.

    Example:
        >>> agents = GaussianAgents([1.0, 3.0], means=[0.0, 4.0])
        >>> law = de_sghmc_law(agents, "complete", step_size=0.1, friction=2.0)
        >>> law.stationary.sd_ratio.round(3)
        array([1.011])
    """
    eta = arguments.positive("step_size", step_size)
    gamma = arguments.positive("friction", friction)
    heat = arguments.number("temperature", temperature, 0.0)
    corrected = arguments.one_of("correction", correction, (None, "extra")) is not None

    def iteration(agents: GaussianAgents, network: Network) -> list[Array]:
        x, v, *sums, pulls, xi = symbols(agents, network, 2 + corrected, balanced=corrected)
        mixed = over_agents(network.links, x)
        v = (1 - gamma * eta) * v - eta * (at_agents(agents.curvatures, x) - pulls) + xi
        moved = mixed + eta * v
        if corrected:
            moved, sums = moved - sums[0], [sums[0] + (x - mixed) / 2]
        return [moved, v, *sums]

    batches = None
    if batch_size is not None:
        batches = BatchNoise(agents, eta, batch_size, replace=replace, anchor=control_variate)
    return agent_law(
        agents,
        mixing,
        iteration,
        noise=2 * gamma * eta * heat * _correlation(agents, noise),
        batches=batches,
        temperature=heat,
    )


def gossip_law(
    agents: GaussianAgents,
    mixing: Mixing,
    step_size: float,
    friction: float | None = None,
    **options: Any,
) -> Law:
    """Return the law of DE-SGLD, or of DE-SGHMC where there is a friction; options are theirs."""
    if friction is None:
        return de_sgld_law(agents, mixing, step_size=step_size, **options)
    return de_sghmc_law(agents, mixing, step_size=step_size, friction=friction, **options)


def _correlation(agents: GaussianAgents, noise: str) -> Array | float:
    """Return the covariance of ξ, (N d, N d), or 1.0 times the identity."""
    if arguments.one_of("noise", noise, ("independent", "common")) == "independent":
        return 1.0
    correlation = np.full((agents.count, agents.count), 1.0 / agents.count)
    return np.kron(correlation, np.eye(agents.dimension))


# --- the recursion of all agents -----------------------------------------------------------------


class Network(NamedTuple):
    """W, and the projection to what is equal over each part of the network."""

    links: Float[np.ndarray, "N N"]
    equal: Float[np.ndarray, "N N"]

    @classmethod
    def of(cls, matrix: graphs.MixingMatrix) -> Network:
        """Return the network of a mixing matrix."""
        parts = matrix.component_of
        equal = (parts[:, None] == parts) / np.bincount(parts)[parts][:, None]
        return cls(np.asarray(matrix), equal)


Iteration = Callable[[GaussianAgents, Network], Sequence[Float[np.ndarray, "Nd columns"]]]
"""The variables after an iteration, positions first, as expressions of `symbols`."""


def resolved(agents: GaussianAgents, mixing: Mixing) -> graphs.MixingMatrix:
    """Return the mixing matrix of these agents from what a user gives."""
    return graphs.resolve(graphs.weights.as_mixing(mixing), agents.count)


def over_agents(matrix: Float[np.ndarray, "N N"], columns: Array) -> Array:
    """Return W ⊗ I times columns, (N d, columns)."""
    return (matrix @ columns.reshape(len(matrix), -1)).reshape(columns.shape)


def at_agents(blocks: Float[np.ndarray, "N d d"], columns: Array) -> Array:
    """Return diag(A_1, …, A_N) times columns, (N d, columns)."""
    return (blocks @ columns.reshape(*blocks.shape[:2], -1)).reshape(columns.shape)


def symbols(
    agents: GaussianAgents, network: Network, count: int, *, balanced: bool
) -> list[Float[np.ndarray, "Nd columns"]]:
    """Return the variables of an iteration, the agents' pulls and noise as linear expressions.

    An expression has in its columns the coefficients of all variables, of the noise and of 1, so
    that arithmetic with expressions writes an iteration down as its equations have it.

    Args:
        agents: the problem.
        network: of the agents.
        count: number of variables, the position being the first.
        balanced: the sum of the last variable over each part of the network stays 0, as no start
            and no noise reaches it. It is taken out: it would be an eigenvalue of one.
    """
    size = agents.pulls.size
    *variables, noise = np.eye((count + 1) * size, (count + 1) * size + 1).reshape(
        count + 1, size, -1
    )
    pulls = np.zeros_like(noise)
    pulls[:, -1] = agents.pulls.ravel()
    if balanced:
        variables[-1] = variables[-1] - over_agents(network.equal, variables[-1])
    return [*variables, pulls, noise]


def agent_law(
    agents: GaussianAgents,
    mixing: Mixing,
    iteration: Iteration,
    *,
    noise: Float[np.ndarray, "Nd Nd"] | float,
    averaged: bool = False,
    batches: BatchNoise | None = None,
    temperature: float = 1.0,
) -> Law:
    """Return the law of agents from one linear iteration of all of them.

    Args:
        agents: the problem.
        mixing: the network.
        iteration: of all agents.
        noise: covariance of the injected noise; a number is times the identity.
        averaged: the injected noise is the mean of this iteration's and the last one's.
        batches: noise of minibatch gradients, None with exact ones.
        temperature: of the target.
    """
    matrix, target = resolved(agents, mixing), Moments(agents.target_mean, agents.target_covariance)
    target = replace(target, spread=temperature * target.spread)
    remedy = "Lower step_size; consortia.oracles.largest_stable_step gives the largest."
    if agents.by_modes:
        if batches is not None or not isinstance(noise, float):
            raise InputError(
                f"{agents.count} agents with {agents.dimension} parameters each are too many for "
                "the matrix of an iteration, which minibatches and common noise need"
            ).at("mixing")
        modes = _by_modes(agents, matrix, iteration, noise, averaged=averaged)
        return Law(modes, target, remedy=remedy, basis=BY_MODES)
    whole, size = np.concatenate(iteration(agents, Network.of(matrix))), agents.pulls.size
    n = len(whole)
    step, entry, offset = whole[:, :n], whole[:, n:-1], whole[:, -1]
    way = (entry + step @ entry) / 2 if averaged else entry
    white = isinstance(noise, float)
    injected = noise * (way @ way.T) if white else way @ noise @ way.T
    # Averaged noise is, in the state less its newest half, one that begins an iteration late.
    first = np.zeros_like(injected) if averaged else injected
    recursion = AgentRecursion(
        step=AffineMap(step[None], offset[None], injected[None]),
        first=AffineMap(step[None, :, :size], offset[None], first[None]),
        fresh=(noise * np.eye(size) if white else noise) / 4 if averaged else 0.0,
        entry=entry,
        injects=(way, noise),
        batches=batches,
    )
    basis = "the exact law of the average of the agents"
    return Law(recursion, target, agents.count, remedy=remedy, basis=basis)


def _by_modes(
    agents: GaussianAgents,
    matrix: graphs.MixingMatrix,
    iteration: Iteration,
    noise: float,
    *,
    averaged: bool,
) -> CoupledModes:
    """Return the recursion in the modes of W, from the iteration of one coordinate of each.

    A mode with the eigenvalue 0 has a map without a basis of eigenvectors: it gets a small one.
    """
    values, vectors = np.linalg.eigh(np.asarray(matrix))
    if not matrix.symmetric or matrix.components > 1:
        raise wrong("mixing", ": so many agents have a law where W is symmetric and connected")
    values, vectors = values[::-1].copy(), vectors[:, ::-1]
    values[np.abs(values) < LEAST_MODE] = LEAST_MODE
    values[0], count = 1.0, agents.count
    network = Network(np.diag(values), np.diag(np.eye(count)[0]))
    maps: list[Array] = []
    entries: Array = np.zeros(())
    for curvature in (1.0, 2.0):  # an iteration is linear in it
        alone = GaussianAgents(np.full(count, curvature), pulls=np.zeros(count))
        whole = np.concatenate(iteration(alone, network))
        copies = len(whole) // count
        each = whole[:, :-1].reshape(copies, count, copies + 1, count)
        each = each[:, np.arange(count), :, np.arange(count)]
        maps, entries = [*maps, each[:, :, :-1]], each[:, :, -1]
    force = (maps[1] - maps[0])[:, :, 0]
    still = 2 * maps[0] - maps[1]
    return CoupledModes(agents, vectors, still, force, entries, noise, averaged)


@dataclass(frozen=True, eq=False)
class AgentRecursion(AffineRecursion):
    """Iterations of all agents together, positions first in the state."""

    # where an agent's noise comes in, (n, N d)
    entry: Float[np.ndarray, "n Nd"] = field(kw_only=True)
    # where the injected noise comes in, and its covariance; a number is times the identity
    injects: tuple[Float[np.ndarray, "n Nd"], Array | float] = field(kw_only=True)
    batches: BatchNoise | None = field(kw_only=True)  # minibatch noise, None with exact gradients

    @cached_property
    def spectral_radius(self) -> float:
        """Largest modulus of an eigenvalue; infinite when the map overflows."""
        if not np.isfinite(self.step.matrix).all():
            return math.inf
        return float(np.abs(self._response.values).max())

    @cached_property
    def mean_square_radius(self) -> float:
        """Factor by which minibatch noise feeds itself; one or more: the variance diverges.

        The covariance of the gradients' noise grows with the covariance of the positions, which
        that noise makes. 0 with exact gradients; infinite where the mean already diverges.
        """
        if self.batches is None:
            return 0.0
        if self.spectral_radius >= 1.0:
            return math.inf
        return operator_radius(self._feedback, self.batches.shape)

    @cached_property
    def stable(self) -> bool:
        """True if the mean settles, and noise that feeds itself.

        It does where u = 1 + feedback(u) has a positive solution. One that is not accurate will do:
        1 is positive by far more than the error.
        """
        if self._grows:
            return False
        if self.batches is None or not super().stable:
            return super().stable
        shape = self.batches.shape
        noise = self._settled(np.broadcast_to(np.eye(shape[-1]), shape), 1e-3)
        if noise is None:
            return self.mean_square_radius < 1.0
        return bool(np.linalg.eigvalsh(noise).min() > 0)

    @property
    def _grows(self) -> bool:
        """True if a few iterations show that the mean diverges, without eigenvalues."""
        mean = np.random.default_rng(0).normal(size=len(self.entry))
        most = GROWN * np.linalg.norm(mean)
        for _ in range(LOOKED):
            mean = self.step.matrix[0] @ mean
            if not np.linalg.norm(mean) < most:
                return True
        return False

    @property
    def instability(self) -> str:
        """The part that does not settle, in words; empty when all does."""
        if self.stable or self.spectral_radius >= 1.0:
            return super().instability
        return f"minibatch noise feeds itself by the factor {self.mean_square_radius:.6g}"

    def stationary_covariance(self) -> Float[np.ndarray, "1 Nd Nd"]:
        """Return the covariance of all positions in the long run."""
        if self._response.accurate:
            way, injected = self.injects
            covariance = self._response(injected, way)[None] + self.fresh
        else:
            covariance = super().stationary_covariance()
        if self.batches is None:
            return covariance
        mean = np.linalg.solve(np.eye(len(self.entry)) - self.step.matrix[0], self.step.offset[0])
        noise = self._settled(self.batches.at(mean, covariance[0]), 1e-11)
        if noise is None:
            raise InputError("the minibatch noise did not settle: lower step_size")
        return covariance + self._response(block_diagonal(noise))

    def path(self, start: Normal) -> Iterator[Normal]:
        """Yield the law after 0, 1, 2, ... iterations."""
        if self.batches is None:
            yield from super().path(start)
            return
        yield start
        size, matrix, entry = self.width, self.step.matrix[0], self.entry
        mean = np.append(start.mean, np.zeros(len(matrix) - size))
        state = np.zeros_like(matrix)
        state[:size, :size] = covariance = start.full
        injected = self.first.covariance[0]
        while True:
            batch = block_diagonal(self.batches.at(mean, covariance))
            state = matrix @ state @ matrix.T + entry @ batch @ entry.T + injected
            covariance = state[:size, :size] + self.fresh
            mean = matrix @ mean + self.step.offset[0]
            injected = self.step.covariance[0]
            yield Normal(mean[:size], covariance)

    def along(self, counts: Sequence[int], start: Normal) -> list[Normal]:
        """Return the law after each number of iterations; with minibatches one after the other."""
        if self.batches is None:
            return super().along(counts, start)
        return Recursion.along(self, counts, start)

    @cached_property
    def _response(self) -> Response:
        return Response(self.step.matrix[0], self.entry)

    def _feedback(self, noise: Float[np.ndarray, "N d d"]) -> Float[np.ndarray, "N d d"]:
        """Return the gradient noise that comes of the spread that gradient noise makes."""
        assert self.batches is not None
        spread = self._response(block_diagonal(noise))
        return self.batches.of_spread(agent_blocks(spread, noise.shape[-1]))

    def _settled(
        self, first: Float[np.ndarray, "N d d"], accuracy: float
    ) -> Float[np.ndarray, "N d d"] | None:
        """Return the noise u = first + feedback(u), or None if it is not found."""
        from scipy.sparse.linalg import LinearOperator, gmres

        def rest(u: Array) -> Array:
            return u.ravel() - self._feedback(u.reshape(first.shape)).ravel()

        operator = LinearOperator((first.size, first.size), rest, dtype=np.float64)
        noise, failed = gmres(
            operator, first.ravel(), rtol=accuracy, atol=0.0, restart=50, maxiter=_MOST_RESTARTS
        )
        return None if failed else noise.reshape(first.shape)


class Response:
    """The covariance that positions have in the long run from noise of all agents' gradients.

    By the modes of an iteration, where sums of powers are divisions; by repeated squaring where its
    eigenvectors are too close to parallel, and so not ``accurate``.

    Args:
        matrix: of the iteration, (n, n), positions first.
        entry: where the noise comes in, (n, N d).
    """

    def __init__(self, matrix: Float[np.ndarray, "n n"], entry: Float[np.ndarray, "n Nd"]) -> None:
        self._matrix, self._entry = matrix, entry
        self._symmetric = np.array_equal(matrix, matrix.T)
        diagonalise = np.linalg.eigh if self._symmetric else np.linalg.eig
        self.values, self._vectors = diagonalise(matrix)

    @cached_property
    def _inverse(self) -> Array:
        if self._symmetric:
            return self._vectors.T
        try:
            return np.linalg.inv(self._vectors)
        except np.linalg.LinAlgError:
            return np.full_like(self._vectors, np.inf)

    @cached_property
    def accurate(self) -> bool:
        """True if the eigenvectors are far from parallel."""
        # A matrix without a basis of eigenvectors may have an inverse of 1e200: not accurate.
        with np.errstate(over="ignore", invalid="ignore"):
            condition = np.linalg.norm(self._vectors) * np.linalg.norm(self._inverse)
        return bool(condition < _WORST_CONDITION * len(self._matrix))

    def __call__(
        self, noise: Float[np.ndarray, "Nd Nd"] | float, way: Array | None = None
    ) -> Float[np.ndarray, "Nd Nd"]:
        """Return the covariance from noise of this covariance in each iteration.

        A number is times the identity; it comes in at ``way``, at the entry when None.
        """
        way = self._entry if way is None else way
        size = way.shape[1]
        if not self.accurate:
            injected = way @ noise @ way.T if np.ndim(noise) else noise * (way @ way.T)
            step = AffineMap(self._matrix, np.zeros(len(injected)), injected)
            return step.stationary_covariance()[:size, :size]
        ways, positions = self._inverse @ way, self._vectors[:size]
        spread = ways @ noise @ ways.T if np.ndim(noise) else noise * (ways @ ways.T)
        summed = spread / (1 - np.multiply.outer(self.values, self.values))
        return np.real(positions @ summed @ positions.T)


class BatchNoise:
    """Noise that every agent's minibatch gradient brings into its state; ``shape`` is (N, d, d).

    Args:
        agents: with rows.
        step: factor of the gradients.
        batch_size: b.
        replace: rows with replacement.
        anchor: the point of a control variate, ``(d,)``, or None.
    """

    def __init__(
        self,
        agents: GaussianAgents,
        step: float,
        batch_size: int,
        *,
        replace: bool,
        anchor: ArrayLike | None,
    ) -> None:
        if agents.rows is None:
            raise InputError(
                "batch_size: these agents have no rows to draw; make them with "
                "GaussianAgents.linear_regression or GaussianAgents.near."
            ).at("batch_size")
        self.shape = agents.curvatures.shape
        self._rows = agents.rows
        if anchor is not None:  # it leaves of a row's gradient H x − p the part H (x − anchor)
            point = filled(anchor, (agents.dimension,), "control_variate")
            self._rows = tuple((h, h @ point) for h, _ in agents.rows)
        self._scale = [
            step**2 * minibatch_noise(1.0, len(p), batch_size, replace=replace)
            for _, p in self._rows
        ]
        # The part that is linear in the covariance of the position, as matrices (N, d², d²).
        d = agents.dimension
        response = []
        for scale, (curvatures, pulls) in zip(self._scale, self._rows, strict=True):
            pairs = np.einsum("jac,jbe->abce", curvatures, curvatures, optimize=True)
            mean = curvatures.mean(axis=0)
            square = pairs.reshape(d * d, d * d) / len(pulls)
            response.append(scale * (square - np.kron(mean, mean)))
        self._response = np.stack(response)

    def at(
        self, mean: Float[np.ndarray, " n"], covariance: Float[np.ndarray, "Nd Nd"]
    ) -> Float[np.ndarray, "N d d"]:
        """Return the covariances of the noise at positions of this mean and covariance."""
        d = self.shape[-1]
        fixed = []
        for i, (curvatures, pulls) in enumerate(self._rows):
            gradients = curvatures @ mean[i * d : (i + 1) * d] - pulls
            centred = gradients - gradients.mean(axis=0)
            fixed.append(self._scale[i] * centred.T @ centred / len(pulls))
        return np.stack(fixed) + self.of_spread(agent_blocks(covariance, d))

    def of_spread(self, covariances: Float[np.ndarray, "N d d"]) -> Float[np.ndarray, "N d d"]:
        """Return the contribution of the positions' covariances."""
        flat = covariances.reshape(len(covariances), -1)
        return np.einsum("nij,nj->ni", self._response, flat).reshape(covariances.shape)
