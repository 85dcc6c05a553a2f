r"""The baseline hazard of Cox's model: of a site, given its rows, and of a new one.

Given coefficients β, the increments of a site's cumulative hazard at its events are independent,

.. math::
    \Delta\Lambda_i \mid \beta \sim \mathrm{Gamma}\bigl(w_i,\; R_i(\beta)\bigr), \qquad
    R_i = \sum_{j \text{ at risk}} w_j e^{\eta_j} - f_i \sum_{j \text{ tied}} w_j e^{\eta_j}

in the limit of a gamma process that says nothing: their mean is the estimate of Breslow, or of
Efron, their variance Aalen's. They need the site's rows, and stay there as levels do.

Of a new site the hazard is λ_k e^u between quantiles of all events. With d_sk events and
E_sk = Σ e^η t_ik, over its rows' times t_ik in k, a site s says

.. math:: d_{sk} \mid \beta \sim \mathrm{Poisson}(\lambda_k e^{u_s} E_{sk}), \qquad
          u_s \sim N(0, \tau^2), \qquad \tau \sim \text{half-}t_3(0, 2.5)

and λ, u, τ are drawn by Gibbs steps, once for each draw of β.

Source: Kalbfleisch (1978); Efron (1977); Liu and Sabatti (2000) for the common shift of λ and u.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from consortia.data.columns import Table, as_levels, rows_of
from consortia.errors import InputError
from consortia.models.regression.density import WIDE, Density
from consortia.models.regression.families import at_risk
from consortia.models.regression.prediction import blocks_of
from consortia.models.regression.specification import Specification

PIECES, GIBBS_SWEEPS, NEWTON_STEPS, SPREADS = 32, 25, 6, 60
"""Pieces of a new site's hazard; sweeps for each draw; steps to the mode of a site's level; and
values of the spread between sites that are compared."""

ROUNDED = 1 + 1e-9
"""Factor by which a wanted time may be below an event's that is computed otherwise."""


class Baseline(NamedTuple):
    """Draws of cumulative baseline hazards at some times."""

    strata: tuple[tuple[str, ...], ...]  # the levels of the columns of ``strata(...)``
    hazards: Float[np.ndarray, "draws strata times"]  # NaN beyond the end of a stratum's follow-up
    ends: Float[np.ndarray, " strata"]  # of follow-up

    def of_rows(
        self, agreed: Specification, table: Table, times: Sequence[float], where: str
    ) -> Int[np.ndarray, " rows"]:
        """Return the index of each row's stratum.

        Raises:
            InputError: the stratum is unknown, or a time is beyond its follow-up.
        """
        known = {labels: index for index, labels in enumerate(self.strata)}
        wanted = _labels(agreed, table)
        for labels in dict.fromkeys(wanted):
            words = ", ".join(labels)
            if labels not in known:
                raise InputError(f"{where}: no row is in the stratum {words!r}.").at("stratum")
            end = float(self.ends[known[labels]])
            if max(times) > end * ROUNDED:
                of_stratum = f" of the stratum {words!r}" if words else ""
                raise InputError(
                    f"at: {where}{of_stratum}: follow-up ends at {end:g}, and nothing is known "
                    f"about {max(times):g}: give earlier times."
                ).at("at")
        return np.array([known[labels] for labels in wanted], int)


class SiteRows(NamedTuple):
    """A site's rows, as the model takes them and as they were read."""

    rows: Mapping[str, np.ndarray]
    table: Table


def _labels(agreed: Specification, table: Table) -> list[tuple[str, ...]]:
    """Return the levels of each row's stratum."""
    columns = [as_levels(table[name]).tolist() for name in agreed.question.parsed.strata]
    return list(zip(*columns, strict=True)) if columns else [()] * rows_of(table)


def _strata(
    agreed: Specification, site: SiteRows
) -> list[tuple[tuple[str, ...], Int[np.ndarray, " n"]]]:
    """Return each stratum and its rows, in the order of rising times."""
    first = np.asarray(site.rows.get("first", np.zeros(len(site.rows["y"]), int)))
    labels = sorted(set(_labels(agreed, site.table)))
    return [
        (label, np.flatnonzero(first == begin)[::-1])
        for label, begin in zip(labels, np.unique(first), strict=True)
    ]


def site_baseline(
    density: Density,
    params: Mapping[str, np.ndarray],
    site: SiteRows,
    times: Sequence[float],
    rng: np.random.Generator,
) -> Baseline:
    """Draw a site's cumulative baseline hazards, one for each of the draws of ``params``."""
    rows, agreed = site.rows, density.specification
    strata, wide = _strata(agreed, site), {k: np.asarray(v, float) for k, v in params.items()}
    y, mask = np.asarray(rows["y"], float), np.ones(len(rows["y"]), bool)
    draws, wanted = len(next(iter(wide.values()))), np.asarray(times, float) * ROUNDED
    hazards = np.full((draws, len(strata), len(wanted)), np.nan)
    for block in blocks_of(draws, len(y)):
        eta = density.predictor({name: values[block] for name, values in wide.items()}, rows)
        top = eta.max(axis=-1, keepdims=True)
        risk = at_risk(eta, rows, mask)
        if agreed.question.samples:  # of a sample the weights are no counts
            noise = risk.tie_weight * rng.standard_exponential(eta.shape)
        else:
            noise = rng.standard_gamma(np.broadcast_to(risk.tie_weight, eta.shape))
        steps = np.where(risk.event > 0, noise / np.asarray(risk.inside, float), 0.0) * np.exp(-top)
        for index, (_, of) in enumerate(strata):
            sums = np.cumsum(steps[:, of], axis=-1)
            reached = np.searchsorted(y[of], wanted, side="right")
            there = wanted <= y[of][-1] * ROUNDED**2
            hazards[block, index, there] = np.where(
                reached[there] > 0, sums[:, np.maximum(reached[there], 1) - 1], 0.0
            )
    ends = np.array([y[of][-1] for _, of in strata])
    return Baseline(tuple(label for label, _ in strata), hazards, ends)


def new_baseline(
    density: Density,
    params: Mapping[str, np.ndarray],
    sites: Sequence[SiteRows],
    times: Sequence[float],
    rng: np.random.Generator,
) -> Baseline:
    """Draw the cumulative baseline hazards of a site that is none of these."""
    agreed = density.specification
    of_sites = [dict(_strata(agreed, site)) for site in sites]
    labels = sorted({label for strata in of_sites for label in strata})
    y = [np.asarray(site.rows["y"], float) for site in sites]
    seen = np.concatenate([t[site.rows["event"] > 0] for t, site in zip(y, sites, strict=True)])
    cuts = np.quantile(seen, np.linspace(0, 1, PIECES + 1)[1:]) if len(seen) else []
    edges = np.array([0.0, *np.unique(cuts), np.inf])
    draws, shape = len(next(iter(params.values()))), (len(sites), len(labels), len(edges) - 1)
    events, exposures = np.zeros(shape), np.zeros((draws, *shape))
    ends = np.zeros(len(labels))
    for s, (site, strata) in enumerate(zip(sites, of_sites, strict=True)):
        rows = site.rows
        weight = np.asarray(rows.get("weight", np.ones(len(y[s]))), float)
        start = np.asarray(rows.get("start", np.zeros(len(y[s]))), float)[:, None]
        spent = np.diff(np.clip([start, y[s][:, None]], edges[:-1], edges[1:]), axis=0)[0]
        piece = np.searchsorted(edges, y[s], side="left") - 1
        for label, of in strata.items():
            g = labels.index(label)
            ends[g] = max(ends[g], y[s][of].max())
            np.add.at(events[s, g], piece[of], (weight * rows["event"])[of])
            for block in blocks_of(draws, len(y[s])):
                some = {name: np.asarray(values, float)[block] for name, values in params.items()}
                sizes = np.exp(density.predictor(some, rows)[:, of]) * weight[of]
                exposures[block, s, g] = sizes @ spent[of]
    rates, level = _drawn(events.reshape(len(sites), -1), exposures.reshape(draws, len(sites), -1),
                          rng)  # fmt: skip
    rates = rates.reshape(draws, *shape[1:]) * np.exp(level)[:, None, None]
    reached = np.clip(np.asarray(times, float)[:, None], edges[:-1], edges[1:]) - edges[:-1]
    return Baseline(tuple(labels), rates @ reached.T, ends)


def _drawn(
    events: Float[np.ndarray, "sites k"],
    exposures: Float[np.ndarray, "draws sites k"],
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, "draws k"], Float[np.ndarray, " draws"]]:
    """Draw λ of all sites and the level u of a new one, given each draw's exposures."""
    draws, sites, _ = exposures.shape
    totals, pooled = events.sum(axis=1), events.sum(axis=0)
    spreads = WIDE * np.geomspace(1e-3, 1e2, SPREADS)
    # the prior's density times the step of the logarithmic grid
    log_prior = np.log(spreads) - 2 * np.log1p((spreads / WIDE) ** 2 / 3)
    u, tau = np.zeros((draws, sites)), np.ones(draws)
    rates = np.zeros((draws, len(pooled)))
    for _ in range(GIBBS_SWEEPS):
        at_all = np.einsum("ns,nsk->nk", np.exp(u), exposures)
        rates = rng.standard_gamma(np.broadcast_to(pooled, at_all.shape)) / np.maximum(
            at_all, np.finfo(float).tiny
        )
        expected, precision = np.einsum("nk,nsk->ns", rates, exposures), tau[:, None] ** -2
        mode = u.copy()
        for _ in range(NEWTON_STEPS):
            size = expected * np.exp(mode)
            step = (totals - size - precision * mode) / (size + precision)
            mode += np.clip(step, -1.0, 1.0)
        width = (expected * np.exp(mode) + precision) ** -0.5
        new = mode + width * rng.standard_normal(u.shape)
        apart = totals * (new - u) - expected * (np.exp(new) - np.exp(u))
        apart += ((new - mode) ** 2 - (u - mode) ** 2) / (2 * width**2)
        apart -= precision * (new**2 - u**2) / 2
        u = np.where(np.log(rng.random(u.shape)) < apart, new, u)
        shift = -u.mean(axis=1) + tau / math.sqrt(sites) * rng.standard_normal(draws)
        u, rates = u + shift[:, None], rates * np.exp(-shift)[:, None]
        squares = (u**2).sum(axis=1)[:, None]
        heights = log_prior - sites * np.log(spreads) - squares / (2 * spreads**2)
        shares = np.cumsum(np.exp(heights - heights.max(axis=1, keepdims=True)), axis=1)
        tau = spreads[(shares < rng.random((draws, 1)) * shares[:, -1:]).sum(axis=1)]
    return rates, tau * rng.standard_normal(draws)
