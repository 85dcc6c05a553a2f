r"""The exact law of workers that take several steps before they send, along a trace of events.

Worker c holds the point y and, where the server keeps the sites' last gradients, their sum G. With
H the curvature of its gradient as it is sent, and ε, ζ the noises of its T steps, a task is an
affine map of (y, G) to the sum ν of its noise and the mean g of its gradients. It is the power of
the map of one step of (z, a, G, ν, g)

.. math:: z \leftarrow z - h\,[H z + p + \varepsilon + s (G - a)] + \sqrt{2h}\,\zeta, \quad
          \nu \leftarrow \nu + \sqrt{2h}\,\zeta, \quad
          g \leftarrow g + \tfrac1T (H z + p + \varepsilon)

after a first one, whose gradient is the anchor a; s is 1 where the last gradients are kept, else 0.
The server then does

.. math:: \theta \leftarrow \theta - hT \sum_c g_c + \nu, \qquad
          y_c \leftarrow \theta, \qquad G_c \leftarrow \sum_c g_c

with g alone in the place of the sum where gradients are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from consortia.theory.affine import AffineMap, Array
from consortia.theory.arrivals import ArrivalRecursion, SiteGradients

POINT, ANCHOR, SUM, NOISE, GRADIENT = range(5)
"""Rows of the state of a task."""


@dataclass(frozen=True, eq=False)
class TaskRecursion(ArrivalRecursion):
    """Updates of a Langevin server along a trace, each of T steps at a worker."""

    steps: int  # T

    @property
    def _rows(self) -> tuple[int, int, int]:
        """Rows of θ and of the points, and of all: then last gradients, and sums that are held."""
        sites = len(self.gradients.pulls)
        return 1, 1 + sites, 1 + sites * (3 if self.latest else 1)

    @property
    def _step(self) -> float:
        return -float(self.server.force[0])

    @cached_property
    def _known(self) -> dict[int, list[AffineMap]]:
        """Tasks of gradients by the identity of these."""
        return {}

    def _tasks(self, sent: SiteGradients) -> list[AffineMap]:
        if id(sent) not in self._known:
            self._known[id(sent)] = [self._task(*site) for site in zip(*sent, strict=True)]
        return self._known[id(sent)]

    def _task(self, slopes: Array, pulls: Array, noise: Array) -> AffineMap:
        """Return the map of (y, G) to (ν, g) of one site, block by block."""
        h, s, width = self._step, float(self.latest), pulls.shape[-1]
        kicks = np.array([-h, 0, 0, 0, 1 / self.steps])  # the answers to a gradient
        moves = np.array([1.0, 0, 0, 1, 0])  # those to the injected noise

        def wide(rows: Array, parts: Array) -> Array:
            made = np.einsum("ij,...wv->...iwjv", rows, parts)
            return made.reshape(*made.shape[:-4], 5 * width, 5 * width)

        def step(carried: Array, kick: Array) -> AffineMap:
            eye = np.eye(width)
            spread = wide(np.outer(kick, kick), noise)
            return AffineMap(
                wide(carried, eye) + wide(np.outer(kick, np.eye(5)[POINT]), slopes),
                np.einsum("i,bw->biw", kick, pulls).reshape(len(pulls), -1),
                spread + wide(np.outer(moves, moves), 2 * h * eye),
            )

        later = np.eye(5)
        later[POINT, [ANCHOR, SUM]] = h * s, -h * s
        begin = np.diag([1.0, 0, 1, 0, 0])
        begin[POINT, SUM] = -h * s
        first = step(begin, kicks + s * np.array([h, 1, 0, 0, 0]))
        return step(later, kicks).power(self.steps - 1).after(first)

    def _apply(self, state: Array, event: int, sent: SiteGradients, *, pulled: bool) -> None:
        """Move a state (blocks, rows, w, columns) by an event in place; the last column pulls."""
        site, task = self.arrivals.worker[event], self._tasks(sent)
        _, points, _ = self._rows
        sums = 2 * points - 1
        if not self.arrivals.dropped[event]:
            blocks, _, width, columns = state.shape
            held = np.zeros((blocks, 5, width, columns))
            held[:, POINT] = state[:, 1 + site]
            if self.latest:
                held[:, SUM] = state[:, sums + site]
            rows = slice(GRADIENT * width, None)
            gradient = task[site].matrix[:, rows] @ held.reshape(blocks, -1, columns)
            if pulled:
                gradient[..., -1] += task[site].offset[:, rows]
            if self.latest:
                state[:, points + site] = gradient
                gradient = np.einsum("bswc->bwc", state[:, points:sums])
            state[:, 0] -= self.steps * self._step * gradient
        state[:, 1 + site] = state[:, 0]
        if self.latest:
            state[:, sums + site] = np.einsum("bswc->bwc", state[:, points:sums])

    def _noise(self, site: int, sent: SiteGradients) -> Float[np.ndarray, "blocks size size"]:
        """Return the covariance that a task adds, of the sum of its noise and its gradient."""
        _, points, rows = self._rows
        width = sent.pulls.shape[-1]
        answers = np.zeros((rows, 5))
        answers[[0, 1 + site], NOISE] = 1.0
        answers[[0, 1 + site], GRADIENT] = -self.steps * self._step
        if self.latest:
            answers[[points + site, 2 * points - 1 + site], GRADIENT] = 1.0
        spread = self._tasks(sent)[site].covariance.reshape(-1, 5, width, 5, width)
        both = np.einsum("ri,biwjv,sj->brwsv", answers, spread, answers)
        return both.reshape(len(both), rows * width, -1)
