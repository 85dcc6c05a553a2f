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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike

from consortia import graphs
from consortia.core import arguments
from consortia.errors import InputError
from consortia.graphs.weights import Mixing
from consortia.theory.affine import (
    AffineMap,
    AffineRecursion,
    Array,
    Normal,
    Recursion,
    spectral_radius,
)
from consortia.theory.agents import GaussianAgents, block_diagonal
from consortia.theory.arguments import filled
from consortia.theory.law import Law, Moments, agent_blocks

ComplexOrReal = Shaped[np.ndarray, "..."]

_WORST_CONDITION = 1e8
"""Condition of the eigenvectors beyond which sums over modes would lose too many digits."""

_MOST_DENSE = 64
"""Entries of all agents' covariances up to which noise's feedback is a dense matrix."""

_MOST_BOUND_STEPS = 30
_SINGULAR = 1e-9


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
    matrix = resolved(agents, mixing)
    links, curvature = links_of(agents, matrix), agents.stacked_curvature()
    identity = np.eye(len(links))
    moved = links - eta * curvature
    offset = eta * agents.pulls.ravel()
    iteration, entry = moved, identity
    if _choice("correction", correction, (None, "extra")):
        # The state is the position and, below it, half the sum of the disagreements so far.
        iteration = np.block([[moved, -identity], [(identity - links) / 2, identity]])
        entry, offset = np.concatenate([identity, 0 * identity]), np.append(offset, 0 * offset)
        forget_sums(iteration, agents, matrix)
    if beta := arguments.number("momentum", momentum, 0.0):
        if beta >= 1 or heat > 0 or correction:
            raise InputError("momentum must be below 1, at temperature=0.0, without a correction.")
        # The state is the extrapolated position and, below it, β times the last change.
        onward = beta * (moved - identity)
        iteration = np.block([[moved + onward, beta * identity], [onward, beta * identity]])
        entry = np.concatenate([(1 + beta) * identity, beta * identity])
        offset = np.append((1 + beta) * offset, beta * offset)
    return agent_law(
        agents,
        iteration,
        offset,
        entry,
        noise=2 * eta * heat * _correlation(agents, noise),
        averaged=bool(averaged_noise),
        step=eta,
        batches=_batches(agents, batch_size, replace, control_variate),
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
    matrix = resolved(agents, mixing)
    links, curvature = links_of(agents, matrix), agents.stacked_curvature()
    identity = np.eye(len(links))
    nil = np.zeros_like(identity)
    kept = (1.0 - gamma * eta) * identity
    force = -eta * curvature
    # The position moves by the momentum of the same iteration, so that the force acts in both.
    blocks = [[links + eta * force, eta * kept], [force, kept]]
    entry = np.concatenate([eta * identity, identity])
    pulls = eta * agents.pulls.ravel()
    offset = np.concatenate([eta * pulls, pulls])
    if _choice("correction", correction, (None, "extra")):
        blocks[0].append(-identity)
        blocks[1].append(nil)
        blocks.append([(identity - links) / 2, nil, identity])
        entry, offset = np.concatenate([entry, nil]), np.append(offset, 0 * pulls)
    iteration = np.block(blocks)
    if correction:
        forget_sums(iteration, agents, matrix)
    return agent_law(
        agents,
        iteration,
        offset,
        entry,
        noise=2 * gamma * eta * heat * _correlation(agents, noise),
        step=eta,
        batches=_batches(agents, batch_size, replace, control_variate),
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


def _correlation(agents: GaussianAgents, noise: str) -> Array:
    """Return the covariance of ξ, (N d, N d)."""
    correlation = np.eye(agents.count)
    if _choice("noise", noise, ("independent", "common")) == "common":
        correlation = np.full((agents.count, agents.count), 1.0 / agents.count)
    return np.kron(correlation, np.eye(agents.dimension))


def _batches(
    agents: GaussianAgents, batch_size: int | None, replace: bool, anchor: ArrayLike | None
) -> BatchNoise | None:
    if batch_size is None:
        return None
    point = None if anchor is None else filled(anchor, (agents.dimension,), "control_variate")
    return BatchNoise(
        agents, arguments.whole("batch_size", batch_size, 1), replace=replace, anchor=point
    )


def _choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        raise InputError(f"{name} is {value!r}: use {' or '.join(map(repr, choices))}.")
    return value


# --- the recursion of all agents -----------------------------------------------------------------


def resolved(agents: GaussianAgents, mixing: Mixing) -> graphs.MixingMatrix:
    """Return the mixing matrix of these agents from what a user gives."""
    return graphs.resolve(graphs.as_mixing(mixing), agents.count)


def links_of(agents: GaussianAgents, matrix: graphs.MixingMatrix) -> Float[np.ndarray, "Nd Nd"]:
    """Return W ⊗ I."""
    return np.kron(np.asarray(matrix), np.eye(agents.dimension))


def forget_sums(
    iteration: Float[np.ndarray, "n n"], agents: GaussianAgents, matrix: graphs.MixingMatrix
) -> None:
    """Take out of an iteration the sum of its last variable over each part of the network.

    The sum stays 0, as no start and no noise reaches it, and would be an eigenvalue of one.
    """
    parts = matrix.component_of
    same = (parts[:, None] == parts[None, :]) / np.bincount(parts)[parts][:, None]
    size = agents.count * agents.dimension
    iteration[:, -size:] -= iteration[:, -size:] @ np.kron(same, np.eye(agents.dimension))


def agent_law(
    agents: GaussianAgents,
    iteration: Float[np.ndarray, "n n"],
    offset: Float[np.ndarray, " n"],
    entry: Float[np.ndarray, "n Nd"],
    *,
    noise: Float[np.ndarray, "Nd Nd"],
    step: float,
    averaged: bool = False,
    batches: BatchNoise | None = None,
    temperature: float = 1.0,
) -> Law:
    """Return the law of agents from one linear iteration of all of them.

    Args:
        agents: the problem.
        iteration: of the state, which begins with all positions.
        offset: what an iteration adds to the state.
        entry: where an agent's noise comes into the state.
        noise: covariance of the injected noise.
        step: factor of the gradients and so of their noise.
        averaged: the injected noise is the mean of this iteration's and the last one's.
        batches: noise of minibatch gradients, None with exact ones.
        temperature: of the target.
    """
    size = entry.shape[1]
    way = (entry + iteration @ entry) / 2 if averaged else entry
    injected = way @ noise @ way.T
    # Averaged noise is, in the state less its newest half, one that begins an iteration late.
    first = np.zeros_like(injected) if averaged else injected
    recursion = AgentRecursion(
        step=AffineMap(iteration[None], offset[None], injected[None]),
        first=AffineMap(iteration[None, :, :size], offset[None], first[None]),
        fresh=noise / 4 if averaged else 0.0,
        entry=entry,
        noise=noise,
        averaged=averaged,
        gradient_step=step,
        batches=batches,
    )
    target = Moments(agents.target_mean, temperature * agents.target_covariance)
    return Law(
        recursion,
        target,
        agents.count,
        remedy="Lower step_size; consortia.oracles.largest_stable_step gives the largest.",
        basis="the exact law of the average of the agents",
    )


@dataclass(frozen=True, eq=False)
class AgentRecursion(AffineRecursion):
    """Iterations of all agents together, positions first in the state.

    Attributes:
        entry: where an agent's noise comes in, (n, N d).
        noise: covariance of the injected noise, (N d, N d).
        averaged: it is the mean of this iteration's and the last one's.
        gradient_step: factor of the gradients, η.
        batches: minibatch noise, None with exact gradients.
    """

    entry: Float[np.ndarray, "n Nd"] = field(kw_only=True)
    noise: Float[np.ndarray, "Nd Nd"] = field(kw_only=True)
    averaged: bool = field(kw_only=True)
    gradient_step: float = field(kw_only=True)
    batches: BatchNoise | None = field(kw_only=True)

    @property
    def matrix(self) -> Float[np.ndarray, "n n"]:
        """One iteration of the state."""
        return self.step.matrix[0]

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
        shape = self.batches.shape
        size = math.prod(shape)
        start = np.broadcast_to(np.eye(shape[-1]), shape)
        if size <= _MOST_DENSE:
            rows = [self._feedback(unit).ravel() for unit in np.eye(size)]
            return spectral_radius(np.stack(rows))
        if not self._feedback(start).any():
            return 0.0
        from scipy.sparse.linalg import LinearOperator, eigs

        operator = LinearOperator(
            (size, size), lambda u: self._feedback(u).ravel(), dtype=np.float64
        )
        # It takes covariances to covariances, so that its largest eigenvalue is real and positive.
        found = eigs(operator, k=1, v0=start.ravel(), tol=1e-6, return_eigenvectors=False)
        return float(np.abs(found[0]))

    @property
    def instability(self) -> str:
        """The part that does not settle, in words; empty when all does."""
        if self.spectral_radius >= 1.0 or self._noise_settles:
            return super().instability
        return f"minibatch noise feeds itself by the factor {self.mean_square_radius:.6g}"

    def stationary_covariance(self) -> Float[np.ndarray, "1 Nd Nd"]:
        """Return the covariance of all positions in the long run."""
        noise = self.noise / 4 if self.averaged else self.noise
        covariance = self._sums.common(noise, averaged=self.averaged) + self.fresh
        if self.batches is not None:
            mean = np.linalg.solve(np.eye(len(self.matrix)) - self.matrix, self.step.offset[0])
            settled = self._settled_noise(self.batches.at(mean, covariance))
            covariance = covariance + self._sums.private_to_all(self.gradient_step**2 * settled)
        return covariance[None]

    def path(self, start: Normal) -> Iterator[Normal]:
        """Yield the law after 0, 1, 2, ... iterations."""
        if self.batches is None:
            yield from super().path(start)
            return
        yield start
        size = self.width
        mean = np.append(start.mean, np.zeros(len(self.matrix) - size))
        state = np.zeros_like(self.matrix)
        state[:size, :size] = start.full
        covariance = state[:size, :size]
        injected = self.first.covariance[0]
        while True:
            batch = block_diagonal(self.gradient_step**2 * self.batches.at(mean, covariance))
            carried = self.matrix @ state @ self.matrix.T
            state = carried + self.entry @ batch @ self.entry.T + injected
            covariance = state[:size, :size] + self.fresh
            mean = self.matrix @ mean + self.step.offset[0]
            injected = self.step.covariance[0]
            yield Normal(mean[:size], covariance)

    def along(self, counts: Sequence[int], start: Normal) -> list[Normal]:
        """Return the law after each number of iterations; with minibatches one after the other."""
        if self.batches is None:
            return super().along(counts, start)
        return Recursion.along(self, counts, start)

    @cached_property
    def _sums(self) -> Modes | Powers:
        modes = Modes.of(self)
        return modes if modes.accurate else Powers(self)

    @cached_property
    def _noise_settles(self) -> bool:
        """True if `mean_square_radius` is below one, by the first bound of it that says so.

        The feedback K of noise takes positive definite blocks u to such: K u ≤ c u bounds its
        radius by c from above, and K u ≥ c u from below.
        """
        if self.batches is None:
            return True
        noise = np.broadcast_to(np.eye(self.batches.shape[-1]), self.batches.shape)
        for _ in range(_MOST_BOUND_STEPS):
            after = self._feedback(noise)
            inverse = np.linalg.inv(np.linalg.cholesky(noise))
            ratios = np.linalg.eigvalsh(inverse @ after @ np.swapaxes(inverse, 1, 2))
            if ratios.max() < 1.0:
                return True
            if ratios.min() >= 1.0:
                return False
            if ratios.min() <= _SINGULAR * ratios.max():  # some agent's batches make no noise
                break
            noise = after / np.linalg.norm(after)
        return self.mean_square_radius < 1.0

    def _feedback(self, noise: Array) -> Float[np.ndarray, "N d d"]:
        """Return the gradient noise that comes of the spread that gradient noise makes."""
        assert self.batches is not None
        blocks = self.gradient_step**2 * noise.reshape(self.batches.shape)
        return self.batches.of_spread(self._sums.private(blocks))

    def _settled_noise(self, first: Float[np.ndarray, "N d d"]) -> Float[np.ndarray, "N d d"]:
        """Return the stationary covariances of the gradients: u = first + feedback(u), solved."""
        from scipy.sparse.linalg import LinearOperator, gmres

        size = first.size
        operator = LinearOperator(
            (size, size), lambda u: u.ravel() - self._feedback(u).ravel(), dtype=np.float64
        )
        noise, failed = gmres(operator, first.ravel(), rtol=1e-11, atol=0.0, restart=50)
        if failed:
            raise InputError("the minibatch noise did not settle: lower step_size")
        return noise.reshape(first.shape)


class Modes(NamedTuple):
    """A recursion in the coordinates of its eigenvectors, where sums of powers are divisions.

    Attributes:
        values: eigenvalues λ, (n,).
        entry: noise of the agents in these coordinates, (n, N d).
        positions: from these coordinates to the positions, (N d, n).
        accurate: the eigenvectors are far enough from parallel.
    """

    values: ComplexOrReal
    entry: ComplexOrReal
    positions: ComplexOrReal
    accurate: bool

    @classmethod
    def of(cls, recursion: AgentRecursion) -> Modes:
        """Return the modes of a recursion."""
        matrix, size = recursion.matrix, recursion.entry.shape[1]
        if np.array_equal(matrix, matrix.T):
            values, vectors = np.linalg.eigh(matrix)
            return cls(values, vectors.T @ recursion.entry, vectors[:size], True)
        values, vectors = np.linalg.eig(matrix)
        try:
            inverse = np.linalg.inv(vectors)
        except np.linalg.LinAlgError:
            return cls(values, recursion.entry, vectors[:size], False)
        # A matrix without a basis of eigenvectors may have an inverse of 1e200 here: not accurate.
        with np.errstate(over="ignore", invalid="ignore"):
            condition = np.linalg.norm(vectors) * np.linalg.norm(inverse)
            entry = inverse @ recursion.entry
        accurate = bool(condition < _WORST_CONDITION)
        return cls(values, entry, vectors[:size], accurate)

    def common(self, spread: Array, *, averaged: bool) -> Array:
        """Return the stationary covariance (N d, N d) of positions from noise of this covariance.

        ``averaged`` noise comes in twice, now and an iteration later.
        """
        entry = (1 + self.values)[:, None] * self.entry if averaged else self.entry
        return np.real(self.positions @ self._summed(entry @ spread, entry) @ self.positions.T)

    def private(self, blocks: Array) -> Array:
        """Return stationary covariances (N, d, d) of positions from independent noise ``blocks``.

        Only what concerns one agent at a time is formed.
        """
        agents, d, _ = blocks.shape
        summed = self.positions @ self._summed(self._spread(blocks), self.entry)
        own = self.positions.reshape(agents, d, -1)
        return np.real(summed.reshape(agents, d, -1) @ own.transpose(0, 2, 1))

    def private_to_all(self, blocks: Array) -> Array:
        """Return what `private` does with the covariances between agents, (N d, N d)."""
        summed = self._summed(self._spread(blocks), self.entry)
        return np.real(self.positions @ summed @ self.positions.T)

    def _summed(self, left: ComplexOrReal, right: ComplexOrReal) -> ComplexOrReal:
        """Return Σ_k (Λ^k left)(Λ^k right)ᵀ."""
        return (left @ right.T) / (1.0 - self.values[:, None] * self.values[None, :])

    def _spread(self, blocks: Array) -> ComplexOrReal:
        agents, d, _ = blocks.shape
        by_agent = self.entry.reshape(-1, agents, d).transpose(1, 0, 2) @ blocks
        return by_agent.transpose(1, 0, 2).reshape(-1, agents * d)


class Powers:
    """The same sums by repeated squaring, for recursions whose modes are not accurate."""

    def __init__(self, recursion: AgentRecursion) -> None:
        self._matrix, self._entry = recursion.matrix, recursion.entry

    def common(
        self, spread: Float[np.ndarray, "Nd Nd"], *, averaged: bool
    ) -> Float[np.ndarray, "Nd Nd"]:
        """Return the same as `Modes.common`."""
        entry = self._entry + self._matrix @ self._entry if averaged else self._entry
        noise = entry @ spread @ entry.T
        step = AffineMap(self._matrix, np.zeros(len(noise)), noise)
        size = entry.shape[1]
        return step.stationary_covariance()[:size, :size]

    def private(self, blocks: Array) -> Array:
        """Return the same as `Modes.private`."""
        return agent_blocks(self.private_to_all(blocks), blocks.shape[1])

    def private_to_all(self, blocks: Array) -> Array:
        """Return the same as `Modes.private_to_all`."""
        return self.common(block_diagonal(blocks), averaged=False)


class BatchNoise:
    """Second moments of every agent's minibatch gradient; ``shape`` is that of the blocks.

    Args:
        agents: with rows.
        batch_size: b.
        replace: rows with replacement.
        anchor: the point of a control variate, ``(d,)``, or None.
    """

    def __init__(
        self, agents: GaussianAgents, batch_size: int, *, replace: bool, anchor: Array | None
    ) -> None:
        if agents.rows is None:
            raise InputError(
                "batch_size: these agents have no rows to draw; make them with "
                "GaussianAgents.linear_regression or GaussianAgents.near."
            )
        self._rows, self._anchor = agents.rows, anchor
        self.shape = agents.curvatures.shape
        sizes = np.array([len(pulls) for _, pulls in agents.rows], np.float64)
        if not replace and batch_size > sizes.min():
            raise InputError(
                f"batch_size={batch_size} without replacement, but an agent has only "
                f"{int(sizes.min())} rows."
            )
        self._scale = sizes**2 / batch_size
        if not replace:
            self._scale = self._scale * (sizes - batch_size) / np.maximum(sizes - 1.0, 1.0)
        # The part that is linear in the covariance of the position, as matrices (N, d², d²).
        d = agents.dimension
        response = []
        for curvatures, pulls in agents.rows:
            pairs = np.einsum("jac,jbe->abce", curvatures, curvatures, optimize=True)
            mean = curvatures.mean(axis=0)
            response.append(pairs.reshape(d * d, d * d) / len(pulls) - np.kron(mean, mean))
        self._response = self._scale[:, None, None] * np.stack(response)

    def at(
        self, mean: Float[np.ndarray, " n"], covariance: Float[np.ndarray, "Nd Nd"]
    ) -> Float[np.ndarray, "N d d"]:
        """Return the covariances of the gradients at positions of this mean and covariance."""
        agents, d, _ = self.shape
        means = mean[: agents * d].reshape(agents, d)
        return self._at_mean(means) + self.of_spread(agent_blocks(covariance, d))

    def _at_mean(self, means: Array) -> Array:
        """Return covariances (N, d, d) of the gradients at fixed positions (N, d)."""
        result = []
        for scale, mean, (curvatures, pulls) in zip(self._scale, means, self._rows, strict=True):
            if self._anchor is None:
                gradients = curvatures @ mean - pulls
            else:
                gradients = curvatures @ (mean - self._anchor)
            centred = gradients - gradients.mean(axis=0)
            result.append(scale * centred.T @ centred / len(pulls))
        return np.stack(result)

    def of_spread(self, covariances: Array) -> Array:
        """Return what covariances (N, d, d) of the positions add to them, (N, d, d)."""
        flat = covariances.reshape(len(covariances), -1)
        return np.einsum("nij,nj->ni", self._response, flat).reshape(covariances.shape)
