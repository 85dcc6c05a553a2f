"""Sites that send an estimate, beside sites with rows: the same as all rows, and its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import consortia
from tests.refusals import refused

# cases and others, vaccinated and controls, of 13 trials of BCG: Colditz et al. (1994)
BCG = np.array(
    [
        *([4, 119, 11, 128], [6, 300, 29, 274], [3, 228, 11, 209], [62, 13536, 248, 12619]),
        *([33, 5036, 47, 5761], [180, 1361, 372, 1079], [8, 2537, 10, 619]),
        *([505, 87886, 499, 87892], [29, 7470, 45, 7232], [17, 1699, 65, 1600]),
        *([186, 50448, 141, 27197], [5, 2493, 3, 2338], [27, 16886, 29, 17825]),
    ],
    float,
)
FORMULA = "cases ~ site + bcg + (0 + bcg | site)"
PRIOR = {"intercept": "normal(-5, 5)", "site": "normal(0, 10)", "bcg": "normal(0, 5)"}
PRIOR["sd"] = "half_normal(2)"


def rows_of(trial: np.ndarray) -> dict[str, np.ndarray]:
    """Return a trial's two arms, the controls first."""
    return {
        "cases": trial[[2, 0]],
        "people": np.array([trial[2] + trial[3], trial[0] + trial[1]]),
        "bcg": np.array([0.0, 1.0]),
    }


def sent_by(trial: np.ndarray) -> dict[str, Any]:
    """Return a trial's log odds ratio, and its variance."""
    ratio = np.log(trial[0] * trial[3] / trial[1] / trial[2])
    return {"estimate": {"bcg": ratio}, "covariance": [[(1 / trial).sum()]]}


def exact() -> tuple[np.ndarray, np.ndarray]:
    """Return means and sds of the log odds ratio and its sd between trials, from all rows.

    Levels of each trial are integrated on a grid, and so are the two.
    """
    mu, tau = np.linspace(-2.2, 0.8, 121), np.linspace(0.02, 2.5, 120)
    b = np.linspace(-5, 4, 1801)
    height = stats.norm.logpdf(mu, 0, 5)[:, None] + stats.halfnorm.logpdf(tau, 0, 2)
    for vaccinated, others, cases, controls in BCG:
        rate = np.log(cases / controls)
        a = rate + np.linspace(-6, 6, 241) * np.sqrt(1 / cases + 1 / controls)
        eta = a[:, None] + b
        of_arms = (cases * a - (cases + controls) * np.log1p(np.exp(a)))[:, None]
        of_arms = of_arms + vaccinated * eta - (vaccinated + others) * np.log1p(np.exp(eta))
        of_slope = np.exp(of_arms - of_arms.max()).sum(axis=0)
        z = (b - mu[:, None, None]) / tau[None, :, None]
        height = height + np.log(np.exp(-(z**2) / 2) @ of_slope / tau)
    share = np.exp(height - height.max())
    share /= share.sum()
    parts = [(mu, share.sum(axis=1)), (tau, share.sum(axis=0))]
    means = np.array([x @ p for x, p in parts])
    return means, np.sqrt([(x - m) ** 2 @ p for (x, p), m in zip(parts, means, strict=True)])


def made(rows: int, **more: Any) -> Any:
    names = [f"t{place}" for place in range(len(BCG))]
    tables = {name: rows_of(trial) for name, trial in zip(names[:rows], BCG, strict=False)}
    sent = {name: sent_by(trial) for name, trial in zip(names[rows:], BCG[rows:], strict=True)}
    given = {"family": "binomial", "trials": "people", "prior": PRIOR, "summaries": sent} | more
    return consortia.regression(FORMULA, tables, **given)


@pytest.mark.slow
def test_half_with_rows_and_half_with_estimates_are_all_rows() -> None:
    mixed = made(7)
    assert mixed.specification.sites == tuple(f"t{place}" for place in range(7))
    assert "site 't7' sent an estimate of bcg, and no rows" in mixed.metadata.settings["notes"]
    tree = consortia.sample(
        mixed.model,
        mixed.sites,
        consortia.few_rounds(effective_size=2000),
        seed=1,
        metadata=mixed.metadata,
        progress=False,
    )
    natural = mixed.natural(tree)
    slopes = natural["coefficients"].values[..., mixed.names.index("bcg")].ravel()
    drawn = np.stack([slopes, natural["sd"].values.ravel()])
    means, sds = exact()
    assert np.all(np.abs(drawn.mean(axis=1) - means) < 0.12 * sds)
    np.testing.assert_allclose(drawn.std(axis=1), sds, rtol=0.1)


def test_the_density_is_that_of_the_estimate_with_the_levels_of_its_site() -> None:
    rng, covariance = np.random.default_rng(5), np.array([[0.5, 0.1, 0.0], [0.1, 0.4, -0.1],
                                                          [0.0, -0.1, 0.3]])  # fmt: skip
    tables = {
        name: {"x": rng.normal(7, 2, 30), "z": rng.normal(size=30), "y": rng.integers(0, 2, 30)}
        for name in "ab"
    }
    estimate = {"z": 0.4, "intercept": -1.0, "x": 0.2}
    summaries = {"c": {"estimate": estimate, "covariance": covariance.tolist()}}
    formula = "y ~ x + z + (1 + x | site)"
    given = {"family": "bernoulli", "integrate": True}
    with_it = consortia.regression(formula, tables, summaries=summaries, **given).density
    without = consortia.regression(formula, tables, **given).density
    params = {
        name: 0.4 * rng.normal(size=(5, *np.shape(values)))
        for name, values in without.start.items()
    }
    found = with_it.log_prior(params) - without.log_prior(params)
    natural = without.natural(params)
    at = np.stack(
        [natural["coefficients"][:, 1], natural["intercept"], natural["coefficients"][:, 0]], axis=1
    )
    for draw in range(5):
        sd, correlation = natural["sd"][draw], natural["correlation"][draw, 0]
        level = np.outer(sd, sd) * np.array([[1, correlation], [correlation, 1]])
        every = covariance.copy()
        every[1:, 1:] += level  # of the intercept and x, at zero of the columns
        expected = stats.multivariate_normal.logpdf(list(estimate.values()), at[draw], every)
        np.testing.assert_allclose(found[draw], expected, rtol=1e-8)
    assert with_it.site_estimates[0].names == ("z", "intercept", "x")


@pytest.mark.parametrize(
    ("sent", "argument", "match"),
    [
        ({"t0": {"estimate": {"bcg": 1}, "covariance": [[1]]}}, "summaries.t0", "has rows"),
        (
            {"p": {"estimate": {"bgc": 1}, "covariance": [[1]]}},
            "summaries.p.estimate",
            "'bgc': .*'bcg'",
        ),
        (
            {"p": {"estimate": {"bcg": 1}, "covariance": [[1, 0]]}},
            "summaries.p.covariance",
            r"\(1, 2\): give 1",
        ),
        ({"p": {"estimate": {"bcg": 1}, "covariance": [[-1]]}}, "summaries.p", "symmetric"),
        (
            {"p": {"estimate": {"bcg": "a"}, "covariance": [[1]]}},
            "summaries.p",
            "other than numbers",
        ),
        ({"p": {"estimate": {"bcg": 1}}}, "summaries.p", "give estimate"),
        ({"p": {"estimate": 0.7, "covariance": [[1]]}}, "summaries.p.estimate", "is 0.7: .* {'"),
        ({"p": {"estimate": [], "covariance": []}}, "summaries.p.estimate", r"is \[\]"),
        ([1], "summaries", "a dict, by site"),
    ],
)
def test_estimates_that_cannot_be_used_are_refused(sent: Any, argument: str, match: str) -> None:
    with refused(argument=argument, match=match):
        made(13, summaries=sent)


def test_nothing_is_drawn_of_a_prior_with_estimates() -> None:
    mixed = made(7)
    with refused(argument="summaries"):
        mixed.prior_predictive(draws=2, seed=0)
    assert mixed.model.host.digest != made(7, summaries=None).model.host.digest
