r"""The safeguarded search for the mode: several candidates a message.

The sites send U, ∇U and ∇²U at M candidates. From the best of them, in coordinates in which the
curvature has a unit diagonal, the next candidates are the steps

.. math:: -\ell\, V (|\lambda| + \delta)^{-1} V^\top \nabla U

for a ladder of dampings δ and lengths ℓ, so that line search and trust region cost no message of
their own; negative curvature counts as positive, and leads away from a saddle.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from consortia.core.queries import Arrays, Query

LADDER = (
    (0.0, 1.0),
    (0.0, 2.0),
    (0.0, 0.35),
    (0.1, 1.0),
    (1.0, 1.0),
    (0.0, 4.0),
    (10.0, 1.0),
    (0.0, 0.1),
)
"""Dampings, in units of the mean curvature, and lengths of the candidates' steps."""

CANDIDATES = 8
"""Points of a message."""

LENGTHS = (1.0, 2.0, 0.5, 4.0, 0.2, 10.0, 0.05, 0.01)
"""Lengths of the candidates' steps of a search by gradients."""

FIRST_LENGTHS = tuple(10.0**power for power in range(1, -7, -1))
"""Lengths of its first steps, along the gradient: nothing is known of the curvature yet."""

MEMORY = 20
"""Moves from which it estimates the curvature."""

TINY = 1e-300
"""Curvature that stands for none."""

CURVATURE_FLOOR = 1e-6
"""Smallest eigenvalue of the scaled curvature, relative to the largest."""

CONVERGED = 0.25
"""Squared length of the Newton step, in posterior standard deviations, at which a search ends. The
step is still taken."""

ROUNDED = 1.0
"""Larger such bound where no candidate of the last message is better: the rest is rounding."""

CONVERGED_BY_GRADIENTS = 0.01
"""Squared length of the step at which a search by gradients ends, by the number of parameters."""

MOST_IDLE = 4
"""Messages without a better point after which a search has failed."""

FAR, NEARLY_FAR = 8.0, 0.8
"""Distance from the centre of the prior that no candidate exceeds, in its standard deviations, and
the share of it from which on a best point may move twice as far out."""

Bound = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""``(best (d,), candidates (M, d)) -> candidates``, moved towards the best where too far."""


class Local(NamedTuple):
    """U relative to the reference, ∇U and ∇²U at a point."""

    position: Float[np.ndarray, " d"]
    potential: float
    gradient: Float[np.ndarray, " d"]
    curvature: Float[np.ndarray, "d d"]


class Newton(NamedTuple):
    """The curvature at a point: scales, eigenvalues and axes; and the step that it suggests."""

    scale: Float[np.ndarray, " d"]
    values: Float[np.ndarray, " d"]
    axes: Float[np.ndarray, "d d"]
    gradient: Float[np.ndarray, " d"]

    @property
    def size(self) -> Float[np.ndarray, " d"]:
        """Eigenvalues by absolute value, with a floor."""
        size = np.abs(self.values)
        return np.maximum(size, max(CURVATURE_FLOOR * size.max(), TINY))

    @property
    def decrement(self) -> float:
        """Squared length of the Newton step, in standard deviations."""
        return float((self.gradient**2 / self.size).sum())

    @property
    def convex(self) -> bool:
        """True if the curvature is positive."""
        return bool(self.values[0] > CURVATURE_FLOOR * self.values[-1])

    @property
    def root(self) -> Float[np.ndarray, "d d"]:
        """A root of the inverse curvature."""
        return self.axes / np.sqrt(self.size) / self.scale[:, None]


def newton(local: Local) -> Newton:
    """Return the curvature in coordinates in which its diagonal is one."""
    diagonal = np.abs(np.diag(local.curvature))
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, axes = np.linalg.eigh(local.curvature / scale[:, None] / scale[None])
    return Newton(scale, values, axes, axes.T @ (local.gradient / scale))


def symmetric(upper: Float[np.ndarray, " t"], d: int) -> Float[np.ndarray, "d d"]:
    """Return the symmetric matrix with an upper triangle, given row by row."""
    matrix, (first, second) = np.empty((d, d)), np.triu_indices(d)
    matrix[first, second] = matrix[second, first] = upper
    return matrix


def solved(precision: Float[np.ndarray, "d d"], pull: Float[np.ndarray, " d"]) -> np.ndarray:
    """Compute A⁻¹ p, the smallest where A is singular, whatever units the parameters have."""
    size = np.sqrt(np.abs(np.diagonal(precision)))
    size = np.where(size > 0, size, 1.0)
    scaled: np.ndarray = np.linalg.lstsq(precision / np.outer(size, size), pull / size, rcond=None)[
        0
    ]
    return scaled / size


def inverse_root(curvature: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """Return a root of the inverse of a curvature, its eigenvalues made positive."""
    zero = np.zeros(len(curvature))
    return newton(Local(zero, 0.0, zero, curvature)).root


def candidates(local: Local, idle: int) -> Float[np.ndarray, "M d"]:
    """Return the ends of the ladder's steps; shorter ones after idle messages."""
    scaled = newton(local)
    steps = []
    for damping, length in LADDER:
        step = -length * 0.1**idle * scaled.gradient / (scaled.size + damping * scaled.size.mean())
        steps.append(step)
    if scaled.values[0] < 0:  # at a saddle the gradient may vanish: along its steepest descent
        for side, index in ((-1, -2), (1, -1)):
            steps[index] = steps[index].copy()
            steps[index][0] += side / math.sqrt(scaled.size[0])
    return local.position + np.stack(steps) @ scaled.axes.T / scaled.scale


class Found(NamedTuple):
    """The end of a search.

    Attributes:
        position: the mode, one Newton step from the best point where the search has converged.
        root: of the inverse curvature, (d, d); of a search by gradients one scale, (d,).
        decrement: squared length of the Newton step, in posterior standard deviations.
        converged: whether the mode was reached.
        messages: used.
        reason: why the search ended.
        best: the best point that was evaluated.
        potential: U there relative to the reference.
    """

    position: Float[np.ndarray, " d"]
    root: Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]
    decrement: float
    converged: bool
    messages: int
    reason: str
    best: Float[np.ndarray, " d"]
    potential: float


Search = Generator[Query, Arrays, Found]


def within(centre: Float[np.ndarray, " d"], sd: Float[np.ndarray, " d"]) -> Bound:
    """Return the bound that shortens steps from the best point that lead too far in the prior.

    No parameter goes farther than `FAR` standard deviations from the centre of its prior: sites
    refuse to answer there (`maximum_position` of a policy). Once the best point is nearly as far,
    it may go twice as far as that.
    """

    def bound(best: np.ndarray, points: np.ndarray) -> np.ndarray:
        steps, away = points - best, best - centre
        most = np.where(np.abs(away) > NEARLY_FAR * FAR * sd, 2 * np.abs(away), FAR * sd)
        left, size = most - np.sign(steps) * away, np.abs(steps)
        share = np.divide(left, size, out=np.ones_like(size), where=size > left).min(axis=1)
        return best + share[:, None] * steps

    return bound


def find_mode(
    starts: Float[np.ndarray, "m d"],
    reference: Float[np.ndarray, " d"],
    along: Bound,
    most_messages: int,
    near: float = CONVERGED,
) -> Search:
    """Search for the mode by gradients and curvatures, from the best of up to eight starts.

    Args:
        starts: first candidates.
        reference: where U is zero. Later messages are relative to the best point, so that
            differences stay exact in single precision.
        along: bound of the candidates, see `within`.
        most_messages: of the search.
        near: in the place of `CONVERGED`, where the mode is explored widely anyway.
    """
    if len(starts) > CANDIDATES:
        raise ValueError(f"expected at most {CANDIDATES} starts, got {len(starts)}")
    return _search(_ByCurvature(starts.shape[1], near), starts, reference, along, most_messages)


def find_mode_by_gradients(
    start: Float[np.ndarray, " d"],
    reference: Float[np.ndarray, " d"],
    along: Bound,
    most_messages: int,
) -> Search:
    r"""Search for the mode by gradients alone, for more parameters than a curvature can be sent of.

    Candidates are steps of several lengths along :math:`-H\nabla U`, with H the inverse curvature
    by the last moves of the best point and changes of its gradient (limited-memory BFGS). The
    arguments are those of `find_mode`; the first candidates lie between start and reference.

    Source: Liu, Nocedal, "On the limited memory BFGS method for large scale optimization" (1989).
    """
    starts = reference + np.array([1.0, 0.5, 0.2, 0.0])[:, None] * (start - reference)
    return _search(_ByGradients(start.size), starts, reference, along, most_messages)


class _ByCurvature:
    """Damped Newton steps."""

    function = "derivatives"

    def __init__(self, d: int, near: float) -> None:
        self.local = Local(np.zeros(d), 0.0, np.zeros(d), np.eye(d))
        self.near, self.decrement = near, math.inf

    def accept(self, position: np.ndarray, potential: float, answer: Arrays, index: int) -> None:
        """Take a candidate as the best point."""
        curvature = symmetric(answer["curvatures"][index], position.size)
        self.local = Local(position, potential, answer["gradients"][index], curvature)
        self.decrement = newton(self.local).decrement

    def converged(self, idle: int) -> bool:
        """Return True if the best point is near enough to the mode."""
        bound = max(ROUNDED, self.near) if idle else self.near
        return self.decrement < bound and newton(self.local).convex

    def candidates(self, idle: int) -> Float[np.ndarray, "M d"]:
        """Return the next candidates."""
        return candidates(self.local, idle)

    def mode(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mode of the local parabola, and a root of the inverse curvature."""
        root = newton(self.local).root
        return self.local.position - root @ (root.T @ self.local.gradient), root


class _ByGradients:
    """Steps of limited-memory BFGS."""

    function = "slopes"

    def __init__(self, d: int) -> None:
        self.position, self.gradient = np.zeros(d), np.zeros(d)
        self.moves: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=MEMORY)
        self.decrement = math.inf

    def accept(self, position: np.ndarray, potential: float, answer: Arrays, index: int) -> None:
        """Take a candidate as the best point, and keep the move if it shows positive curvature."""
        gradient = answer["gradients"][index]
        move, change = position - self.position, gradient - self.gradient
        if np.isfinite(self.decrement) and move @ change > 0:
            self.moves.appendleft((move, change))
        self.position, self.gradient = position, gradient
        # Nothing is known of the distance before the first move.
        self.decrement = gradient @ self._step() if self.moves else 2.0 * position.size

    def converged(self, idle: int) -> bool:
        """Return True if the best point is near enough to the mode for chains to begin there."""
        return self.decrement < CONVERGED_BY_GRADIENTS * self.position.size

    def candidates(self, idle: int) -> Float[np.ndarray, "M d"]:
        """Return the next candidates, with shorter steps after idle messages."""
        if self.moves:
            lengths, step = np.array(LENGTHS) * 0.1**idle, self._step()
        else:
            lengths = np.array(FIRST_LENGTHS)
            step = self.gradient / max(float(np.linalg.norm(self.gradient)), 1e-300)
        return self.position - lengths[:, None] * step

    def mode(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the best point, and one scale of all parameters."""
        return self.position, np.full(self.position.size, math.sqrt(self._inverse_curvature()))

    def _inverse_curvature(self) -> float:
        """Return s'y / y'y of the last move; 1 before there is one."""
        return float(
            np.divide(*(at @ self.moves[0][1] for at in self.moves[0])) if self.moves else 1
        )

    def _step(self) -> Float[np.ndarray, " d"]:
        """Return H times the gradient, by the two loops over the moves."""
        step, parts = self.gradient, []
        for move, change in self.moves:
            parts.append(move @ step / (move @ change))
            step = step - parts[-1] * change
        step = self._inverse_curvature() * step
        for (move, change), part in zip(reversed(self.moves), reversed(parts), strict=True):
            step = step + (part - change @ step / (move @ change)) * move
        return step


def _search(
    steps: _ByCurvature | _ByGradients,
    starts: Float[np.ndarray, "m d"],
    reference: Float[np.ndarray, " d"],
    along: Bound,
    most_messages: int,
) -> Search:
    """Evaluate candidates and step on from the best, until it is the mode or no step helps."""
    points, best, potential, idle, message = starts, starts[0], 0.0, 0, 0
    converged, reason = False, f"the mode was not reached within {most_messages} messages"
    for message in range(1, most_messages + 1):
        points = np.resize(points, (CANDIDATES, best.size))
        answer = yield Query(steps.function, {"reference": reference, "points": points}, "mode")
        index = _best(answer)
        change = math.inf if index is None else float(answer["potentials"][index])
        # The first point is an improvement whatever it is: nothing is known of the reference.
        if index is not None and (change < 0 or message == 1):
            best, potential, idle = points[index], potential + change, 0
            steps.accept(best, potential, answer, index)
        elif message == 1:
            reason = "no start has a finite log-density with finite derivatives"
            break
        else:
            idle += 1
        if steps.converged(idle):
            converged, reason = True, "the mode was reached"
            break
        if idle >= MOST_IDLE:
            reason = f"no step of the last {idle} messages leads to a better point"
            break
        reference, points = best, along(best, steps.candidates(idle))
    mode, root = steps.mode()
    position = mode if converged else best
    return Found(position, root, steps.decrement, converged, message, reason, best, potential)


def _best(answer: Arrays) -> int | None:
    """Return the index of the best candidate whose answer is finite; None where there is none."""
    values = np.array(answer["potentials"], float)
    for part in answer.values():
        values[~np.isfinite(part).reshape(len(values), -1).all(axis=1)] = np.inf
    index = int(values.argmin())
    return index if np.isfinite(values[index]) else None
