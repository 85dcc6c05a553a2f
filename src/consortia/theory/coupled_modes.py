r"""The law of many agents with many parameters, to second order in how their curvatures differ.

In the eigenbasis of W, with eigenvectors :math:`u_k` of which the first is the average, and that of
the agents' mean curvature, agents of equal curvatures fall apart into small maps :math:`a_{kj}` of
the copies of one coordinate. Curvatures that differ couple the average with the other modes by

.. math:: D_k = \sum_i u_{i0} u_{ik} (A_i - \bar A), \qquad
          E_{k0} = D_k \otimes L_k e^\top, \quad E_{0k} = D_k \otimes L_0 e^\top

where a force moves mode k by :math:`L_k` and e reads the position. The covariance of the average
then is

.. math::
    P_{0k} = a_0 P_{0k} a_k^\top + a_0 P_{00} E_{k0}^\top + E_{0k} P_{kk} a_k^\top, \qquad
    P_{00} = a_0 P_{00} a_0^\top + Q + \sum_k \bigl[ a_0 P_{0k} E_{0k}^\top + \ldots^\top
             + E_{0k} P_{kk} E_{0k}^\top \bigr]

with :math:`P_{kk}` of equal curvatures: what the other modes do to one another is left out. Means
are solved for with all couplings. The time grows with N d³; the whole matrix takes (N d)³.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from consortia.errors import InputError
from consortia.theory.affine import Array, Averaged, Normal, Recursion
from consortia.theory.agents import GaussianAgents

ROUNDS, SETTLED = 6, 1e-3
"""Most times that the average's covariance is put into what it feeds, each of which leaves a tenth
or less, and the relative change that ends them."""

WATCHED, GROWING, TINY = 30, 1.02, 1e-300
"""Iterations between two peaks of a mean, its growth an iteration by which it diverges where equal
agents do not, and the least size of one."""

MOST_APART = 0.15
"""Largest change of the average's standard deviations up to which the second order is taken: there
it was up to 0.9 % off the exact law, over 48 settings of 17 posteriors."""

SAME = 1e-12
"""Difference of the maps of two modes up to which they are one, as modes of a ring are in pairs."""

ACCURACY = 1e-8
"""Largest residual of the means of all agents, relative to the first one."""


@dataclass(frozen=True, eq=False)
class CoupledModes(Recursion):
    """Iterations of agents, by the modes of their network."""

    agents: GaussianAgents
    vectors: Float[np.ndarray, "N N"]  # u, columns, the average first
    still: Float[np.ndarray, "K c c"]  # a_k without a force
    force: Float[np.ndarray, "K c"]  # L_k
    entry: Float[np.ndarray, "K c"]  # where the noise comes in
    noise: float  # variance of the injected noise
    averaged: bool  # the noise is the mean of this iteration's and the last one's

    @cached_property
    def _maps(self) -> Float[np.ndarray, "K d c c"]:
        reads = np.eye(self.force.shape[1])[0]
        pulled = self.force[:, :, None] * reads
        return self.still[:, None] + self.agents.apart[0][:, None, None] * pulled[:, None]

    @cached_property
    def _modes(self) -> tuple[Array, Array, Array]:
        values, right = np.linalg.eig(self._maps)
        return values, right, np.linalg.inv(right)

    def _moved(self, state: Float[np.ndarray, "K d c"]) -> Float[np.ndarray, "K d c"]:
        """Return a mean after an iteration, without the pulls."""
        at_agents = self.vectors @ state[..., 0]
        forces = self.vectors.T @ (self.agents.apart[2] @ at_agents[..., None])[..., 0]
        return (
            np.einsum("kjab,kjb->kja", self._maps, state) + forces[..., None] * self.force[:, None]
        )

    @cached_property
    def spectral_radius(self) -> float:
        """Factor by which the mean's distance grows an iteration, as with equal curvatures."""
        equal = float(np.abs(self._modes[0]).max())
        if equal >= 1:
            return equal
        state = np.random.default_rng(0).normal(size=self._maps.shape[:3])
        state[0, :, 1:] *= np.any(self.still[0, 1:], axis=1)
        sizes = np.empty(3 * WATCHED)
        for i in range(len(sizes)):
            state = self._moved(state)
            sizes[i] = np.linalg.norm(state)
            if not sizes[i] < math.inf:
                return math.inf
            state = state / max(sizes[i], TINY)
        # Peaks, as a momentum oscillates. What grows slowly is taken for what settles slowly.
        _, before, after = np.log(np.maximum(sizes, TINY)).cumsum().reshape(3, -1).max(axis=1)
        grows = math.exp((after - before) / WATCHED)
        return max(equal, grows if grows > GROWING else 0.0)

    @cached_property
    def _means(self) -> Float[np.ndarray, "N d"]:
        from scipy.sparse.linalg import LinearOperator, gmres

        shape = self._maps.shape[:3]
        back = np.linalg.inv(np.eye(shape[2]) - self._maps)
        axes = self.agents.apart[1]
        pulls = self.vectors.T @ self.agents.pulls @ axes

        def solved(state: Array) -> Array:
            return np.einsum("kjab,kjb->kja", back, state).ravel()

        def left(flat: Array) -> Array:
            state = flat.reshape(shape)
            return solved(state - self._moved(state))

        operator = LinearOperator((back.size // shape[2],) * 2, left, dtype=np.float64)
        start = solved(-pulls[..., None] * self.force[:, None])
        means, failed = gmres(operator, start, rtol=ACCURACY, atol=0.0, restart=60, maxiter=5)
        if failed:
            raise InputError("the means of so many agents were not found: lower step_size")
        return self.vectors @ means.reshape(shape)[..., 0] @ axes.T

    @cached_property
    def _alone(self) -> tuple[Float[np.ndarray, "K d c"], Float[np.ndarray, "K d c c"]]:
        """Entries of the noise, and the covariances with equal curvatures."""
        way = np.broadcast_to(self.entry[:, None], self._maps.shape[:3])
        if self.averaged:
            way = (way + np.einsum("kjab,kjb->kja", self._maps, way)) / 2
        values, right, inverse = self._modes
        ways = np.einsum("kjab,kjb->kja", inverse, way)
        left = 1 - values[..., :, None] * values[..., None, :]
        inner = self.noise * ways[..., :, None] * ways[..., None, :] / left
        return way, np.real(right @ inner @ right.mT)

    @cached_property
    def _average(self) -> Float[np.ndarray, "d d"]:
        """The covariance of the first mode's position, along the axes of the mean curvature."""
        (ways, alone), (values, right, inverse) = self._alone, self._modes
        # By the eigenvalue p of the average's maps and coordinate.
        first, left, reads = values[0].T, inverse[0].swapaxes(0, 1), right[0, :, 0].T
        pull, way = left @ self.force[0], np.einsum("pja,ja->pj", left, ways[0])
        late = self.noise / 2 if self.averaged else 0.0
        turned = self.agents.apart[2]
        couplings = np.tensordot(self.vectors[:, :1] * self.vectors, turned, axes=(0, 0))
        around, answers = np.zeros_like(couplings[0]), []
        # Those without memory are fed nothing, and of a pair the second is the first's conjugate.
        some, second = (first != 0) & (first.imag >= 0), first.imag < 0
        roots, pulled, at = first[some], pull[some][:, None], np.nonzero(some)[1]
        for k in range(1, len(values)):
            sent = np.einsum("jab,jb->ja", self._maps[k], alone[k][..., 0])
            sent = sent + late * self.entry[k, 0] * ways[k]
            wide = alone[k][:, 0, 0] + late / 2 * self.entry[k, 0] ** 2
            around += couplings[k] * wide @ couplings[k]
            # e'(1 - λ a_k)⁻¹ times what comes into mode k, for each λ of the average.
            if k == 1 or np.abs(self.still[k] - self.still[k - 1]).max() > SAME:
                falls = 1 / (1 - roots[:, None] * values[k].T[:, None])
                kicked = right[k][:, 0] * (inverse[k] @ self.force[k])
                brought = right[k][:, 0] * np.einsum("mqa,ma->mq", inverse[k], sent)
                answer, other = (np.einsum("qrm,mq->rm", falls, to) for to in (kicked, brought))
                other = pulled * other
            answers.append((answer, other * couplings[k][at]))
        size, eye = len(around), np.eye(len(around))
        begins = late * self.entry[0, 0] * way[..., None] * eye
        column = np.einsum("pja,ja->pj", left, alone[0][..., 0])[..., None] * eye
        for _ in range(ROUNDS):
            sent = (first[..., None] * column + begins)[some]
            rows = np.zeros_like(sent)
            for coupling, (answer, fixed) in zip(couplings[1:], answers, strict=True):
                rows += _times(answer * _times(sent, coupling) + fixed, coupling)
            fed = np.zeros((*first.shape, size), values.dtype)
            fed[some] = roots[:, None] * rows
            fed[second] = fed[np.roll(second, -1, axis=0)].conj()
            last, column = column, np.zeros_like(fed)
            for p, q in np.ndindex(len(first), len(first)):
                brought = fed[p] * pull[q] + (fed[q] * pull[p]).T
                brought += around * np.outer(pull[p], pull[q])
                brought += self.noise * np.diag(way[p] * way[q])
                column[p] += brought / (1 - np.outer(first[p], first[q])) * reads[q]
            if np.abs(column - last).max() < SETTLED * np.abs(column).max():
                break
        return np.real(np.einsum("pj,pjm->jm", reads, column))

    @property
    def apart(self) -> float:
        """Largest relative change of the average's sds along the axes by curvatures that differ.

        It is infinite where the second order leaves no covariance.
        """
        equal = self._alone[1][0, :, 0, 0]
        if not (np.isfinite(self._average).all() and (equal > 0).all()):
            return math.inf
        changed = self._average / np.sqrt(np.outer(equal, equal))
        if np.linalg.eigvalsh((changed + changed.T) / 2)[0] <= 0:
            return math.inf
        return float(np.abs(np.sqrt(np.diagonal(changed)) - 1).max())

    def stationary(self) -> Averaged:
        """Return the law of the average in the long run, with means and variances of all agents."""
        axes, count = self.agents.apart[1], len(self.vectors)
        fresh = self.noise / 4 if self.averaged else 0.0
        covariance = (axes @ self._average @ axes.T + fresh * np.eye(len(axes))) / count
        each = self.vectors**2 @ self._alone[1][..., 0, 0] @ (axes**2).T + fresh
        average = Averaged(self._means.mean(axis=0), covariance)
        average.each = self._means, each
        return average

    def path(self, start: Normal) -> Iterator[Normal]:
        """Refuse: only the long run is known."""
        raise InputError("the law of so many agents is known in the long run only")


def _times(numbers: Array, matrix: Float[np.ndarray, "d d"]) -> Array:
    """Return numbers, complex ones too, times a real matrix, by real products."""
    if not np.iscomplexobj(numbers):
        return numbers @ matrix
    return numbers.real @ matrix + 1j * (numbers.imag @ matrix)
