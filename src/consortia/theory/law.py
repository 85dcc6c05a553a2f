"""The law of a method's draws on a Gaussian target: its moments at a time, and in the long run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from consortia.core import arguments
from consortia.core.gaussian import gaussian_wasserstein2
from consortia.errors import InputError, wrong
from consortia.theory.affine import Array, Averaged, Normal, Recursion
from consortia.theory.arguments import filled, floats


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and covariance of the draw at one time, beside the target's.

    Of a whole path the arrays have a leading axis of times.

    Attributes:
        mean: (d,).
        spread: covariance, (d, d), or the variances (d,) of independent coordinates.
        target: the moments of the target, None for the target itself.
        agents: those of each agent, where the draw is the average of several.

    Example:
        >>> Moments(np.zeros(2), np.array([4.0, 9.0])).sd
        array([2., 3.])
    """

    mean: Float[np.ndarray, "*times d"]
    spread: Array = field(repr=False)
    target: Moments | None = field(default=None, repr=False)
    agents: AgentMoments | None = field(default=None, repr=False)
    shift: Float[np.ndarray, " d"] | None = field(default=None, repr=False)
    """``mean`` less the target's, where it is known without cancellation."""

    @property
    def variance(self) -> Float[np.ndarray, "*times d"]:
        """Variance of every coordinate, (d,)."""
        if self.spread.ndim == self.mean.ndim:
            return self.spread
        return np.diagonal(self.spread, axis1=-2, axis2=-1).copy()

    @property
    def covariance(self) -> Float[np.ndarray, "d d"]:
        """Covariance of the coordinates, (d, d)."""
        return np.diag(self.spread) if self.spread.ndim == 1 else self.spread

    @property
    def sd(self) -> Float[np.ndarray, "*times d"]:
        """Standard deviation of every coordinate, (d,)."""
        return np.sqrt(self.variance)

    @property
    def bias(self) -> Float[np.ndarray, "*times d"]:
        """Mean less the target's, (d,)."""
        return self.mean - self._target.mean if self.shift is None else self.shift

    @property
    def variance_ratio(self) -> Float[np.ndarray, "*times d"]:
        """Variance over the target's, per coordinate, (d,); 1 is exact."""
        return self.variance / self._target.variance

    @property
    def sd_ratio(self) -> Float[np.ndarray, "*times d"]:
        """Standard deviation over the target's, per coordinate, (d,)."""
        return np.sqrt(self.variance_ratio)

    @cached_property
    def w2(self) -> float:
        """2-Wasserstein distance of the Gaussian law with these moments to the target.

        Between dense covariances it is a difference of nearly equal numbers near the target:
        distances below 1e-7 target standard deviations are rounding.
        """
        origin = np.zeros_like(self.bias)
        return gaussian_wasserstein2(self.bias, self.spread, origin, self._target.spread)

    @property
    def _target(self) -> Moments:
        if self.target is None:
            raise InputError("these moments have no target to be compared with.")
        return self.target


@dataclass(frozen=True, eq=False)
class AgentMoments:
    """Mean and covariance of all agents' positions at one time, beside the target's.

    Attributes:
        means: of each agent, (N, d).
        covariance: of all positions, agent by agent, (N d, N d), or the variances (N, d) alone.
        target: the moments of the target.

    Example:
        >>> target = Moments(np.zeros(1), np.ones(1))
        >>> AgentMoments(np.array([[-1.0], [1.0]]), np.eye(2), target).average.variance
        array([0.5])
    """

    means: Float[np.ndarray, "N d"]
    covariance: Float[np.ndarray, "Nd Nd"] = field(repr=False)
    target: Moments = field(repr=False)

    @property
    def covariances(self) -> Float[np.ndarray, "N d d"]:
        """Covariance of each agent's position, (N, d, d)."""
        return agent_blocks(self.covariance, self.means.shape[1])

    @property
    def variance_ratios(self) -> Float[np.ndarray, "N d"]:
        """Variance of each agent's coordinates over the target's, (N, d)."""
        return self.variances / self.target.variance

    @property
    def variances(self) -> Float[np.ndarray, "N d"]:
        """Variance of each agent's coordinates, (N, d)."""
        if self.covariance.shape == self.means.shape:
            return self.covariance
        return np.diagonal(self.covariance).reshape(self.means.shape)

    @property
    def disagreement(self) -> float:
        """Expected squared distance of an agent from the average, over all agents."""
        spread = np.trace(self.covariance) / len(self.means) - np.trace(self.average.covariance)
        return float(spread + np.sum((self.means - self.average.mean) ** 2) / len(self.means))

    @cached_property
    def w2(self) -> Float[np.ndarray, " N"]:
        """2-Wasserstein distance of each agent's law to the target, (N,)."""
        laws = zip(self.means, self.covariances, strict=True)
        return np.array([Moments(mean, covariance, self.target).w2 for mean, covariance in laws])

    @property
    def average(self) -> Moments:
        """Moments of the average over the agents."""
        agents, d = self.means.shape
        blocks = self.covariance.reshape(agents, d, agents, d)
        return Moments(self.means.mean(axis=0), blocks.mean(axis=(0, 2)), self.target, self)


@dataclass(frozen=True, eq=False)
class Law:
    """The law of a method's draws on a Gaussian target, after any number of iterations.

    It is Gaussian but where minibatches or random routes make mixtures of Gaussians: means and
    covariances are exact then too. It exists for unstable settings as well: see ``stable``.

    Attributes:
        recursion: an iteration; it has what is peculiar to the method.
        target: the moments of the target.
        agents: number N of agents whose average is the draw; None where there is one position.
        centred: the recursion is in coordinates around the target's mean.
        remedy: what to do where the law does not settle.
        basis: what the law is, in words.
        notes: what it leaves out, and what else it says.
        variance_known: False where it leaves out noise that widens the draws.
        axes: columns are the directions along which the recursion runs; the coordinates when None.
        scales: units of the recursion's coordinates, (d,); those of the target when None.
        unsure: why it may not hold on a posterior that is not Gaussian, "" where nothing is known.
        tries: messages that an iteration takes on average, dropped ones included, for one.

    Example:
        >>> from consortia.oracles import stale_sgld_law
        >>> law = stale_sgld_law(0.1, 1.0, 0)
        >>> law.stable, law.stationary.variance.round(3)
        (True, array([1.053]))
    """

    recursion: Recursion = field(repr=False)
    target: Moments
    agents: int | None = None
    centred: bool = False
    remedy: str = "Lower step_size."
    basis: str = "the exact law"
    notes: tuple[str, ...] = ()
    variance_known: bool = True
    axes: Float[np.ndarray, "d d"] | None = field(default=None, repr=False)
    scales: Float[np.ndarray, " d"] | None = field(default=None, repr=False)
    unsure: str = ""
    tries: float = 1.0

    @property
    def spectral_radius(self) -> float:
        """Factor by which the mean's distance grows an iteration; below one it settles."""
        return self.recursion.spectral_radius

    @property
    def rounds_per_draw(self) -> float:
        """Iterations that an independent draw takes in the slowest direction, (1 + ρ)/(1 − ρ)."""
        radius = min(self.spectral_radius, 1 - 1e-12)
        return (1 + radius) / (1 - radius)

    @property
    def mean_square_radius(self) -> float:
        """Factor by which noise that grows with the spread feeds itself; 0 without such noise.

        Below one the covariance settles where the mean does.
        """
        return self.recursion.mean_square_radius

    @property
    def instability(self) -> str:
        """The part that does not settle, in words; empty when all does."""
        return self.recursion.instability

    @property
    def stable(self) -> bool:
        """True if mean and covariance settle."""
        return self.recursion.stable

    @cached_property
    def stationary(self) -> Moments:
        """Moments of the draw in the long run.

        Raises:
            InputError: they do not settle.
        """
        if not self.stable:
            raise InputError(
                f"the chain diverges and has no stationary law: {self.instability}. {self.remedy}"
            ).at("step_size")
        return self.moments(self.recursion.stationary())

    def after(self, iterations: int, start: ArrayLike, covariance: ArrayLike = 0.0) -> Moments:
        """Return the moments of the draw after some iterations.

        Args:
            iterations: k ≥ 0.
            start: mean of the start: a number, (d,), or (N, d) for agents.
            covariance: of the start: a number (times the identity), the variances (d,), or (d, d);
                with agents that of all their positions.
        """
        return self.along([iterations], start, covariance)[0]

    def along(
        self, iterations: Sequence[int], start: ArrayLike, covariance: ArrayLike = 0.0
    ) -> list[Moments]:
        """Return the moments after several numbers of iterations, in the order given."""
        steps = [arguments.whole("iterations", k, 0) for k in iterations]
        return [
            self.moments(n) for n in self.recursion.along(steps, self._start(start, covariance))
        ]

    def rounds_to_w2_squared(
        self, threshold: float, start: ArrayLike, maximum: int = 100_000
    ) -> int | None:
        """Return the first iteration after which the draw's W₂² to the target is below a bound.

        Args:
            threshold: the bound on the squared distance, positive.
            start: where the chain starts, as in `after`.
            maximum: number of iterations to try.

        Returns:
            0 when the start itself is close enough; None when the distance stays above.
        """
        bound = arguments.positive("threshold", threshold)
        tries = range(arguments.whole("maximum", maximum, 0) + 1)
        path = self.recursion.path(self._start(start, 0.0))
        for iteration, normal in zip(tries, path, strict=False):
            if self.moments(normal).w2 ** 2 < bound:
                return iteration
        return None

    def in_units(self, scales: Float[np.ndarray, " d"]) -> Law:
        """Return the law of the draw times ``scales``, coordinate by coordinate."""
        scaled = Normal(self.target.mean, self.target.spread).scaled(scales)
        return replace(self, target=Moments(scaled.mean, scaled.covariance), scales=scales)

    def noted(self, *notes: str, unsure: str = "") -> Law:
        """Return the law with notes, and with its moments where they are known."""
        made = replace(self, notes=notes, unsure=unsure or self.unsure)
        known = {name: value for name, value in vars(self).items() if name == "stationary"}
        vars(made).update(known)
        return made

    def moments(self, normal: Normal) -> Moments:
        """Return the moments of the draw from those of the recursion's positions."""
        if self.axes is not None:
            normal = normal.turned(self.axes)
        if self.scales is not None:
            normal = normal.scaled(self.scales)
        if self.centred:
            mean = self.target.mean + normal.mean
            return Moments(mean, normal.covariance, self.target, shift=normal.mean)
        if self.agents is None:
            agents = None
            if isinstance(normal, Averaged):
                agents = AgentMoments(*normal.each, self.target)
            return Moments(normal.mean, normal.covariance, self.target, agents)
        means = normal.mean.reshape(self.agents, -1)
        return AgentMoments(means, normal.full, self.target).average

    def _start(self, start: ArrayLike, covariance: ArrayLike) -> Normal:
        d = self.target.mean.size
        shape = (d,) if self.agents is None else (self.agents, d)
        given = floats(start, "start")
        if given.shape not in ((), (d,), shape):
            raise wrong("start", f": shape {given.shape}; give a number or shape {shape}")
        mean = np.broadcast_to(given, shape).reshape(-1)
        size = mean.size
        spread = floats(covariance, "covariance")
        if spread.shape != (size, size):
            spread = filled(spread, (size,), "covariance")
        law = Normal(mean - self.target.mean if self.centred else mean, spread)
        if self.scales is not None:
            law = law.scaled(1 / self.scales)
        return law if self.axes is None else law.turned(self.axes.T)


def agent_blocks(
    covariance: Float[np.ndarray, "Nd Nd"], dimension: int
) -> Float[np.ndarray, "N d d"]:
    """Return the diagonal blocks (N, d, d) of a matrix (N d, N d)."""
    agents = len(covariance) // dimension
    blocks = covariance.reshape(agents, dimension, agents, dimension)
    return blocks[np.arange(agents), :, np.arange(agents)]
