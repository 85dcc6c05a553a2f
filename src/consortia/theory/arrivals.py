r"""The exact law of stale gradients whose workers hold sites of their own, along a trace of events.

A worker fetches its parameters right after its own update, and so always sees the point displaced
towards its own site's mode: to leading order the mean is off by :math:`h W \sum_c \lambda_c g_c /
\lambda`, with g_c the gradient of site c there. No constant staleness has that. Here every event
of a simulated trace is an affine map of the server's state z, the points y_c that the workers hold
and, where the server sums the latest gradients of all sites, those:

.. math:: G_c \leftarrow a_c (H_c y_c + g_c) + \varepsilon_c, \qquad
          z \leftarrow A z + F G + N \zeta, \qquad y_c \leftarrow b^\top z

with :math:`G = G_c`, a_c one over the site's share, or :math:`G = \sum_c G_c` and a_c = 1. The law
in the long run is averaged over the updates: its mean along the whole trace, and its covariance,
which feels the order of events much less, along a first stretch that is repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from consortia.errors import InputError
from consortia.theory.affine import AffineMap, Array, Normal, Recursion, spectral_radius
from consortia.theory.staleness import LinearServer

LOOKED, DIVERGED = 20, 1e60
"""Events after which it is looked whether a map has grown so much that it diverges."""

COUPLED = 1e-9
"""Part of the largest curvature that directions must share to be taken together."""

MOST_STATES = 160
"""Entries of a state up to which all directions are taken together, in seconds."""

MOST_ENTRIES = 200_000
"""Entries of a state's covariance, all directions apart, up to which there is a law."""


class Arrivals(NamedTuple):
    """Events of one server in their order: whose gradient came, and whether it was dropped."""

    worker: Int[np.ndarray, " events"]
    dropped: Bool[np.ndarray, " events"]


class SiteGradients(NamedTuple):
    """The gradients as sites send them, in independent blocks of directions of width w."""

    slopes: Float[np.ndarray, "sites blocks w w"]  # a_c H_c
    pulls: Float[np.ndarray, "sites blocks w"]  # a_c g_c, the gradient at the origin
    noise: Float[np.ndarray, "sites blocks w w"]  # covariance of ε_c


def entries(workers: int, dimension: int) -> int:
    """Return the entries of a state's covariance, all directions apart."""
    return 2 * (workers + 1) * workers * dimension


def in_blocks(slopes: Array, pulls: Array, noise: Array) -> tuple[SiteGradients, bool]:
    """Return gradients in blocks: one of all directions, or one of each where they are apart.

    Args:
        slopes: a_c H_c, (sites, d, d).
        pulls: (sites, d).
        noise: (sites, d, d).

    Returns:
        The blocks, and whether what couples directions was left out as too large.
    """
    sites, d = pulls.shape
    if entries(sites, d) > MOST_ENTRIES:
        raise InputError(f"{sites} workers' sites with {d} parameters are too many for a law")
    apart = _are_apart(slopes)
    if not apart and _few_states(sites, d):
        return SiteGradients(slopes[:, None], pulls[:, None], noise[:, None]), False
    diagonal = [np.einsum("sii->si", part)[..., None, None] for part in (slopes, noise)]
    return SiteGradients(diagonal[0], pulls[..., None], diagonal[1]), not apart


def has_exact_law(slopes: Float[np.ndarray, "sites d d"]) -> bool:
    """Return True if `in_blocks` leaves nothing out that couples directions."""
    sites, d, _ = slopes.shape
    return entries(sites, d) <= MOST_ENTRIES and (_few_states(sites, d) or _are_apart(slopes))


def _few_states(sites: int, dimension: int) -> bool:
    return (2 * sites + 2) * dimension <= MOST_STATES


def _are_apart(slopes: Array) -> bool:
    coupling = np.abs(slopes * (1 - np.eye(slopes.shape[-1]))).max()
    return bool(coupling <= COUPLED * np.abs(slopes).max())


@dataclass(frozen=True, eq=False)
class ArrivalRecursion(Recursion):
    """Updates of a server along a trace; a worker's site is its own index."""

    server: LinearServer  # one step, without the gradient's noise
    arrivals: Arrivals
    gradients: SiteGradients
    latest: bool  # the server sums the latest gradients of all sites
    stretch: int  # events that are repeated for what needs the covariance

    @property
    def _rows(self) -> tuple[int, int, int]:
        """Rows of z and of the points, and of all with the gradients that are kept."""
        n, sites = self.server.force.size, len(self.gradients.pulls)
        return n, n + sites, n + sites * (2 if self.latest else 1)

    @cached_property
    def _repeated(self) -> SiteGradients:
        """The gradients by the sites' shares of the stretch, so that its curvature is the whole's.

        The sum of the latest gradients needs no shares.
        """
        if self.latest:
            return self.gradients
        taken = self.arrivals.worker[~self.arrivals.dropped]
        early = self.arrivals.worker[: self.stretch][~self.arrivals.dropped[: self.stretch]]
        whole, part = (np.bincount(x, minlength=len(self.gradients.pulls)) / x.size
                       for x in (taken, early))  # fmt: skip
        ratio = whole / np.maximum(part, 1 / early.size)
        slopes, pulls, noise = self.gradients
        wide = ratio[:, None, None, None]
        return SiteGradients(slopes * wide, pulls * ratio[:, None, None], noise * wide**2)

    def _apply(self, state: Array, event: int, sent: SiteGradients, *, pulled: bool) -> None:
        """Move a state (blocks, rows, w, columns) by an event in place; the last column pulls."""
        n, points, _ = self._rows
        site = self.arrivals.worker[event]
        if not self.arrivals.dropped[event]:
            gradient = sent.slopes[site] @ state[:, n + site]
            if pulled:
                gradient[..., -1] += sent.pulls[site]
            if self.latest:
                state[:, points + site] = gradient
                gradient = np.einsum("bswc->bwc", state[:, points:])
            moved = np.einsum("ij,bjwc->biwc", self.server.transition, state[:, :n])
            state[:, :n] = moved + self.server.force[:, None, None] * gradient[:, None]
        state[:, n + site] = np.einsum("i,biwc->bwc", self.server.broadcast, state[:, :n])

    def _noise(self, site: int, sent: SiteGradients) -> Float[np.ndarray, "blocks size size"]:
        """Return the covariance that an update adds, of the server and of the site's gradient."""
        n, points, size = self._rows
        spread, kick = np.zeros(size), np.zeros(size)
        for row, direction in ((spread, self.server.spread), (kick, self.server.force)):
            row[:n], row[n + site] = direction, self.server.broadcast @ direction
        kick[points + site :][:1] = 1.0  # nothing where no gradient is kept
        site_noise = sent.noise[site]
        injected = float(self.server.noise_variance) * np.eye(site_noise.shape[-1])
        both = np.einsum("i,j,wv->iwjv", spread, spread, injected)
        both = both + np.einsum("i,j,bwv->biwjv", kick, kick, site_noise)
        return both.reshape(len(site_noise), size * site_noise.shape[-1], -1)

    def _spread(
        self, covariance: Array, event: int, sent: SiteGradients, noises: list[Array]
    ) -> None:
        """Move a covariance, (blocks, size, size), by an event in place."""
        _, _, rows = self._rows
        blocks, size, _ = covariance.shape
        for side in (covariance, covariance.mT):  # from the left and from the right
            state = side.reshape(blocks, rows, size // rows, size)  # a view: an axis is split
            self._apply(state, event, sent, pulled=False)
        if not self.arrivals.dropped[event]:
            covariance += noises[self.arrivals.worker[event]]

    def _noises(self, sent: SiteGradients) -> list[Array]:
        return [self._noise(site, sent) for site in range(len(sent.pulls))]

    @cached_property
    def _stretch(self) -> tuple[AffineMap, Array]:
        """The whole trace as one map, and the sum of what its own noise adds to θ's covariance."""
        _, _, rows = self._rows
        _, blocks, width = self.gradients.pulls.shape
        size, sent = rows * width, self._repeated
        maps, noises = np.tile(np.eye(size, size + 1), (blocks, 1, 1)), self._noises(sent)
        covariance = np.zeros((blocks, size, size))
        wide = np.zeros((blocks, width, width))
        with np.errstate(over="ignore", invalid="ignore"):
            for event in range(self.stretch):
                self._apply(maps.reshape(blocks, rows, width, -1), event, sent, pulled=True)
                if event % LOOKED == 0 and not np.abs(maps).max() < DIVERGED:
                    maps[:] = np.inf
                    break
                self._spread(covariance, event, sent, noises)
                if not self.arrivals.dropped[event]:
                    wide += covariance[:, :width, :width]
        return AffineMap(maps[..., :-1], maps[..., -1], covariance), wide

    @cached_property
    def spectral_radius(self) -> float:
        """Factor by which the mean's distance grows an update."""
        updates = (~self.arrivals.dropped[: self.stretch]).sum()
        return spectral_radius(self._stretch[0].matrix) ** (1 / float(updates))

    def stationary(self) -> Normal:
        """Return the law of θ after all updates of the trace together."""
        _, _, rows = self._rows
        width, (repeated, wide) = self.gradients.pulls.shape[-1], self._stretch
        values, axes = np.linalg.eigh(repeated.stationary_covariance())
        # Columns whose products are the covariance, and stay so from event to event.
        roots = axes * np.sqrt(np.maximum(values, 0))[:, None]
        state = roots.reshape(len(roots), rows, width, -1)
        taken, wide = 0, wide.copy()
        for event in range(self.stretch):
            self._apply(state, event, self._repeated, pulled=False)
            if not self.arrivals.dropped[event]:
                wide, taken = wide + state[:, 0] @ state[:, 0].mT, taken + 1
        means = self._means()
        mean = means.mean(axis=0)
        away = means - mean
        # The order of events moves all directions together, also where noise does not.
        wide = Normal.of(mean, wide / taken).full
        return Normal(mean, wide + away.T @ away / len(means))

    def _means(self) -> Float[np.ndarray, "updates d"]:
        """Return the mean of θ after each update, from rest at the origin."""
        _, points, rows = self._rows
        sites, blocks, width = self.gradients.pulls.shape
        wide, pulls = np.zeros((blocks, rows, width)), self.gradients.pulls.swapaxes(0, 1)
        wide[:, points : points + sites] = pulls[:, : rows - points]
        state = np.append(wide.reshape(blocks, -1, 1), np.ones((blocks, 1, 1)), axis=1)
        known: dict[tuple[int, bool], Array] = {}
        means = np.empty((len(self.arrivals.worker), blocks, width))
        for event, kind in enumerate(zip(*self.arrivals, strict=True)):
            if kind not in known:
                # Moved once, the unit matrix is the event itself, and one product does it again.
                unit = np.tile(np.eye(rows * width, rows * width + 1), (blocks, 1, 1))
                moved = unit.reshape(blocks, rows, width, -1)
                self._apply(moved, event, self.gradients, pulled=True)
                known[kind] = moved.reshape(unit.shape)
            state[:, :-1] = known[kind] @ state
            means[event] = state[:, :width, 0]
        return means[~self.arrivals.dropped].reshape(-1, blocks * width)

    def path(self, start: Normal) -> Iterator[Normal]:
        """Yield the law of θ after 0, 1, 2, ... updates; all workers hold the start."""
        yield start
        n, points, rows = self._rows
        _, blocks, width = self.gradients.pulls.shape
        begin = np.zeros(rows)
        begin[0], begin[n:points] = 1.0, self.server.broadcast[0]
        state = np.einsum("r,bw->brw", begin, start.mean.reshape(blocks, width))[..., None]
        covariance = np.einsum("r,s,bwv->brwsv", begin, begin, start.blocks(width))
        covariance = covariance.reshape(blocks, rows * width, -1)
        sent, noises = self.gradients, self._noises(self.gradients)
        for event, dropped in itertools.cycle(enumerate(self.arrivals.dropped)):
            self._apply(state, event, sent, pulled=True)
            self._spread(covariance, event, sent, noises)
            if not dropped:
                yield Normal.of(state[:, 0, :, 0].copy(), covariance[:, :width, :width].copy())
