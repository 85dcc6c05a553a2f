r"""The law of stale gradients by how late they are on average, direction by direction.

At an update the server reads the gradient of site c where it broadcast :math:`\tau` updates ago.
With :math:`P_c(z) = \operatorname{E} z^{-\tau}` over the updates of a trace, and the curvatures
:math:`H_c` of the sites along the principal axes of their sum, direction j follows

.. math::
    z y_j = b^\top (z - A)^{-1} F \bigl[ T_j(z)\,y_j + \nu_j \bigr], \qquad
    T_j(z) = \sum_c H_{c,jj} P_c(z)

where :math:`\nu` is the noise as it would come with a gradient. Variances are integrals of spectra
over the frequencies. What is left out is of second order in :math:`h\lambda\tau`: that delays
change from update to update. Curvatures that are not diagonal cancel in the sum, but sites whose
delays differ couple directions by

.. math:: K = \sum_c H_c\,(\bar\tau_c - \bar\tau), \qquad
          \delta T(z) = -\log z\; \bar P(z)\,(K - \operatorname{diag} K)

to first order. The time grows with the number of sites, of a covariance with d²; one event after
the other, as in `consortia.theory.arrivals`, it takes their square and d³.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from jaxtyping import Bool, Float, Int

from consortia.errors import InputError
from consortia.schedules.events import Trace
from consortia.theory.affine import Array, Normal, Recursion
from consortia.theory.staleness import LinearServer

FREQUENCIES, LOWEST = 800, 1e-12
"""Frequencies on a scale of logarithms, and the lowest of them: 4 % apart."""

A_DELAY, MOST_EQUAL = 2, 600
"""Equally spaced frequencies for each update of the longest delay, and in all."""

SLOWEST = 100 * LOWEST
"""Least 1 - ρ of a recursion whose spectrum is known down to where it is flat."""

BETWEEN = -0.5 + 0.7j
"""Logarithm, times the mean delay, of a place between a real root and a pair: that of a double root
is -1, and of a pair that just settles i π/2."""

NEWTON, SETTLED = 40, 1e-9
"""Steps to a root of the recursion, of which each halves the distance to a double one, and the
largest that the last may be."""


@dataclass(frozen=True, eq=False)
class Delays:
    """Delays of the gradients that a server reads at its updates."""

    chances: Float[np.ndarray, "sites delays"]  # of a delay of 0, 1, 2, ... updates; rows sum to 1
    held: Float[np.ndarray, "sites delays"]  # of a gradient, to be read at so many updates
    shares: Float[np.ndarray, " sites"]  # of the updates

    @staticmethod
    @lru_cache(maxsize=8)
    def of(trace: Trace, latest: bool) -> Delays:
        """Count the delays of a server's accepted updates.

        Args:
            trace: of one server.
            latest: every update reads the last gradient of every worker, else the one that came.
        """
        kept = ~trace.dropped
        worker, version = trace.worker[kept], trace.version[kept]
        each, held, shares = [], [], np.zeros(trace.workers)
        for site in range(trace.workers):
            at = np.flatnonzero(worker == site)
            shares[site] = at.size / worker.size
            if not at.size:  # all of its gradients are dropped, and others of the site's are not
                each.append(np.ones(1))
                held.append(np.ones(1))
                continue
            at = at[1:] if at.size > 1 else at  # the first one's point is the start
            late = at - version[at]
            spans = np.diff(at, append=at[-1] + 1) if latest else np.ones(at.size, int)
            late, spans = (late[:-1], spans[:-1]) if latest and at.size > 1 else (late, spans)
            edges = np.zeros(int((late + spans).max()) + 1)
            np.add.at(edges, late, 1)
            np.add.at(edges, late + spans, -1)
            each.append(np.cumsum(edges)[:-1] / spans.sum())
            held.append(np.bincount(spans) / spans.size)
        return Delays(_table(each), _table(held), shares)

    @property
    def means(self) -> Float[np.ndarray, " sites"]:
        """The mean delay of every site's gradient."""
        return self.chances @ np.arange(self.chances.shape[1])

    @cached_property
    def spectrum(self) -> tuple[Array, Array, Array]:
        """Frequencies up to π, the parts of an integral over them over π, and P there (w, S)."""
        lags = np.arange(self.chances.shape[1])
        equal = min(A_DELAY * lags.size, MOST_EQUAL)
        points = np.geomspace(LOWEST, np.pi, FREQUENCIES)
        points = np.union1d(points, np.linspace(0, np.pi, equal + 2)[1:-1])
        parts = np.diff(points, prepend=-points[0]) / 2  # flat below the first
        parts[:-1] += np.diff(points) / 2
        return points, parts / np.pi, np.exp(-1j * np.outer(points, lags)) @ self.chances.T


def _table(rows: list[Array]) -> Float[np.ndarray, "rows most"]:
    table = np.zeros((len(rows), max(row.size for row in rows)))
    for line, row in zip(table, rows, strict=True):
        line[: row.size] = row
    return table


@dataclass(frozen=True, eq=False)
class DelayedModes(Recursion):
    """Updates of a server whose gradients are late, along the axes of the sites' summed curvature.

    Its noise is along the answer to a gradient, as that of `langevin_server` and `sghmc_server`.
    """

    server: LinearServer  # one step, without the gradient's noise
    delays: Delays
    curvatures: Float[np.ndarray, "sites d d"]  # H_c along the axes
    noise: Float[np.ndarray, "sites d d"]  # covariance of H_c's gradient as it is sent
    latest: bool  # the server sums the latest gradients of all sites
    mean: Float[np.ndarray, " d"]  # of θ in the long run

    @classmethod
    def of(
        cls,
        server: LinearServer,
        trace: Trace,
        slopes: Float[np.ndarray, "sites d d"],
        pulls: Float[np.ndarray, "sites d"],
        noise: Float[np.ndarray, "sites d d"],
        *,
        latest: bool,
    ) -> DelayedModes:
        r"""Return the law from what each site sends, as `consortia.theory.arrivals` has it.

        Single gradients that differ from site to site are noise of the order in which they come,
        and pull the mean aside: after its own update a worker fetches what its gradient
        :math:`p_c` has moved by :math:`b^\top F p_c`.
        """
        delays = Delays.of(trace, latest)
        if latest:
            return cls(server, delays, slopes, noise, latest, np.zeros(pulls.shape[1]))
        curvatures = slopes * delays.shares[:, None, None]
        diagonals = np.einsum("sii->si", curvatures)
        moved = float(server.broadcast @ server.force)
        pulled = delays.shares @ pulls + moved * (diagonals * pulls).sum(axis=0)
        mean = -pulled / diagonals.sum(axis=0)
        noise = noise + pulls[:, :, None] * pulls[:, None]
        return cls(server, delays, curvatures, noise, latest, mean)

    @cached_property
    def _diagonals(self) -> Float[np.ndarray, "sites d"]:
        return np.einsum("sii->si", self.curvatures)

    @cached_property
    def _by_delay(self) -> Float[np.ndarray, "delays d"]:
        return self.delays.chances.T @ self._diagonals

    @cached_property
    def _polynomials(self) -> tuple[Array, Array, Array]:
        """det(z − A), and times (z − A)⁻¹F read by the broadcast and as θ."""
        plain = np.poly(self.server.transition)
        reads = self.server.broadcast, np.eye(self.server.force.size)[0]
        answers = [
            plain - np.poly(self.server.transition + np.outer(self.server.force, read))
            for read in reads
        ]
        return plain, answers[0], answers[1]

    def _pulled(self, z: Array, direction: Int[np.ndarray, " points"]) -> tuple[Array, Array]:
        """Return T and −z T' at points, each of a direction."""
        powers = np.tile(1 / z, (len(self._by_delay), 1))
        powers[0] = 1
        terms = np.cumprod(powers, axis=0) * self._by_delay[:, direction]
        return terms.sum(axis=0), np.arange(len(terms)) @ terms

    @cached_property
    def _roots(self) -> Float[np.ndarray, " d"]:
        r"""Largest root of each direction that is found from a few places, NaN where none is.

        They are the peak of its spectrum, 1, and one between the real root of short steps and the
        pair of long ones, as of :math:`y' = -\lambda y(t - \tau)` around :math:`\lambda\tau = 1/e`.
        """
        plain, sent, _ = self._polynomials
        peaks = np.exp(1j * self.delays.spectrum[0][np.abs(self._answers[0]).argmax(axis=0)])
        between = np.exp(BETWEEN / (1 + self.delays.means.mean()))
        starts = np.stack([peaks, np.ones_like(peaks), np.full_like(peaks, between)])
        roots = np.full(starts.shape, np.nan)
        at = np.arange(starts.size)  # those still on their way
        z = starts.ravel()
        with np.errstate(all="ignore"):
            for _ in range(NEWTON):
                force, late = self._pulled(z, at % peaks.size)
                slope = np.polyval(np.polyder(plain), z) + np.polyval(sent, z) * late / z
                slope = slope - np.polyval(np.polyder(sent), z) * force
                step = (np.polyval(plain, z) - np.polyval(sent, z) * force) / slope
                z, far = z - step, np.abs(step)
                roots.flat[at[far < SETTLED]] = np.abs(z[far < SETTLED])
                left = far >= SETTLED  # NaN stays NaN
                z, at = z[left], at[left]
        return np.fmax.reduce(roots)

    @cached_property
    def _answers(self) -> tuple[Array, Array]:
        """Answers (w, d) of θ and of the broadcast to what comes with a gradient."""
        plain, sent, moved = self._polynomials
        points, _, late = self.delays.spectrum
        z = np.exp(1j * points)
        left = np.polyval(plain, z)[:, None] - np.polyval(sent, z)[:, None] * (
            late @ self._diagonals
        )
        return np.polyval(moved, z)[:, None] / left, np.polyval(sent, z)[:, None] / left

    @cached_property
    def _settles(self) -> Bool[np.ndarray, " d"]:
        """True of directions without a root beyond the unit circle, by the argument's change."""
        plain, sent, _ = self._polynomials
        points = self.delays.spectrum[0]
        z, order = np.exp(1j * points), len(plain) - 1
        # of a step so short that its answer is lost in rounding it is NaN, which settles nowhere
        with np.errstate(divide="ignore", invalid="ignore"):
            left = np.polyval(sent, z)[:, None] / self._answers[1] / z[:, None] ** order
            angle = np.unwrap(np.angle(left), axis=0)
        return np.abs(angle[-1] - angle[0]) < np.pi / 2

    @cached_property
    def spectral_radius(self) -> float:
        """Factor by which the mean's distance grows an update; infinite where it does not fall.

        Where no root of the flattest direction is found it is infinite, too.
        """
        if not self._settles.all():
            return math.inf
        sizes, flattest = self._roots, self._diagonals.sum(axis=0).argmin()
        largest = sizes[np.isfinite(sizes)].max(initial=0.0)
        if math.isnan(sizes[flattest]) or largest > 1 - SLOWEST:
            return math.inf
        return float(largest)

    def _noise(self) -> tuple[Float[np.ndarray, " w"], Float[np.ndarray, "d d"]]:
        """Return the spectrum of gradients' noise and its covariance, of all directions one shape.

        A gradient that is read D times adds its noise D times.
        """
        points = self.delays.spectrum[0]
        if not (self.latest and self.noise.any()):
            return np.ones(points.size), np.tensordot(self.delays.shares, self.noise, axes=1)
        spans = np.arange(self.delays.held.shape[1])
        waves = (np.sin(points[:, None] * spans / 2) / np.sin(points[:, None] / 2)) ** 2
        each = waves @ self.delays.held.T * self.delays.shares
        still = self.delays.held @ spans**2 * self.delays.shares
        return each.mean(axis=1) / still.mean(), np.tensordot(still, self.noise, axes=1)

    def stationary(self) -> Normal:
        """Return the law of θ in the long run."""
        (points, parts, late), (moved, sent) = self.delays.spectrum, self._answers
        ratio = float(self.server.spread[0] / self.server.force[0])
        injected = ratio**2 * float(self.server.noise_variance)
        shape, gradients = self._noise()
        covariance = np.diag(injected * (parts @ np.abs(moved) ** 2))
        if gradients.any():
            waves = moved * np.sqrt(parts * shape)[:, None]
            covariance = covariance + np.real(waves.T @ waves.conj()) * gradients
        means = self.delays.means
        coupled = np.tensordot(means - means.mean(), self.curvatures, axes=1)
        coupled = coupled - np.diag(np.diagonal(coupled))
        if coupled.any():
            density = injected + np.outer(shape, np.diagonal(gradients))
            read = density * sent * moved.conj()
            turned = (parts * -1j * points * late.mean(axis=1))[:, None]
            brought = coupled * np.real(moved.T @ (turned * read))
            covariance = covariance + brought + brought.T
        return Normal(self.mean, covariance)

    def path(self, start: Normal) -> Iterator[Normal]:
        """Refuse: only the long run is known."""
        raise InputError("the law by mean delays is known in the long run only")
