"""Weights of a sample: the spread of a sandwich, beside one computed from pooled rows."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import consortia
from consortia.algorithms.few_rounds.site_functions import FUNCTIONS
from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.surrogates.mode_search import symmetric
from consortia.surrogates.sandwich import adjustment
from tests.refusals import refused

WIDE = {"coefficients": "normal(0, 1000)", "intercept": "normal(0, 1000)"}


def table(seed: int, rows: int) -> dict[str, np.ndarray]:
    """Return rows whose probability of being in the sample has nothing to do with the response."""
    rng = np.random.default_rng(seed)
    x = rng.normal(2, 1.5, 4 * rows)
    y = (rng.random(4 * rows) < 1 / (1 + np.exp(0.5 - 0.4 * x))).astype(float)
    chance = np.where(rng.random(4 * rows) < 0.5, 0.06, 0.5)
    taken = np.flatnonzero(rng.random(4 * rows) < chance)
    return {"x": x[taken], "y": y[taken], "w": 1 / chance[taken]}


SITES = {"oslo": table(1, 400), "lima": table(2, 250)}
FORMULA: dict[str, Any] = {"family": "bernoulli", "weights": "w", "weights_are": "sampling"}


def pooled_sandwich() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return estimates, their covariance by the sandwich, and the inverse curvature."""
    x, y, w = (np.concatenate([one[name] for one in SITES.values()]) for name in "xyw")
    w, X = w / w.mean(), np.column_stack([np.ones(len(x)), x])

    def loss(b: np.ndarray) -> float:
        return float(np.sum(w * (np.logaddexp(0, X @ b) - y * (X @ b))))

    b = optimize.minimize(loss, np.zeros(2), tol=1e-12).x
    p = 1 / (1 + np.exp(-X @ b))
    bread = np.linalg.inv((X.T * (w * p * (1 - p))) @ X)
    scores = (w * (y - p))[:, None] * X
    return b, bread @ (scores.T @ scores) @ bread, bread


def test_sites_send_the_sum_of_products_of_scores(x64: None) -> None:
    made = consortia.regression("y ~ x", SITES, prior=WIDE, **FORMULA)
    spec, at = made.specification, np.array([0.3, -0.2])  # coefficients, intercept
    target = Target(made.model, made.model.init)
    rows = {key: jnp.asarray(one) for key, one in made.rows.site("oslo").items()}
    site = Site(rows, jnp.int32(len(rows["y"])), jnp.ones(()), jnp.ones(()))
    answer = FUNCTIONS["scores"].answer(target, {"points": jnp.asarray(at[None])}, site)
    products = symmetric(np.asarray(answer["products"]), 2)
    x, y, w = SITES["oslo"].values()
    w = w / np.concatenate([one["w"] for one in SITES.values()]).mean()
    X = np.column_stack([(x - spec.units["x"].mean) / spec.units["x"].sd, np.ones(len(x))])
    scores = (w * (y - 1 / (1 + np.exp(-X @ at))))[:, None] * X
    np.testing.assert_allclose(products, scores.T @ scores, rtol=1e-10)


@pytest.mark.slow
def test_draws_have_the_spread_of_the_sandwich_of_pooled_rows() -> None:
    made = consortia.regression("y ~ x", SITES, prior=WIDE, **FORMULA)
    tree = consortia.sample(
        made.model,
        made.sites,
        consortia.few_rounds(effective_size=2000),
        seed=1,
        progress=False,
        metadata=made.metadata,
    )
    found = made.natural(tree)
    draws = np.stack([np.ravel(found["intercept"]), np.ravel(found["coefficients"])])
    b, V, bread = pooled_sandwich()
    sd = np.sqrt(np.diag(V))
    np.testing.assert_allclose(draws.mean(axis=1), b, atol=0.06 * sd.max())
    np.testing.assert_allclose(draws.std(axis=1), sd, rtol=0.05)
    np.testing.assert_allclose(np.corrcoef(draws)[0, 1], V[0, 1] / sd.prod(), atol=0.03)
    assert (sd / np.sqrt(np.diag(bread)) > 1.3).all()  # else the test shows nothing
    said = str(consortia.summary(tree))
    assert "widths are those of a sandwich estimator" in said
    assert "UNKNOWN: No problem was found in these estimates" in said
    titles = [one.title for one in consortia.summary(tree).verdict.checks]
    assert "What do the interval widths mean?" in titles
    assert "How large is the predicted bias?" not in titles
    assert "no posterior" in tree.attrs["bias"]
    assert "not from a posterior" in str(made)
    assert "log_evidence" not in tree.attrs
    assert "lp" not in tree["sample_stats"]
    # also where a stopping rule ends it
    rule, more = consortia.stop_when(ess=4, every=4), {"seed": 1, "progress": False}
    stopped = consortia.sample(made.model, made.sites, consortia.few_rounds(), stop=rule, **more)
    assert "widths are those of a sandwich estimator" in str(consortia.summary(stopped))
    with refused(argument="weights"):
        consortia.loo({"it": (tree, made.model, made.sites)})


def test_draws_stay_where_they_are_if_scores_scatter_as_the_curvature_says() -> None:
    rng = np.random.default_rng(0)
    root, prior = rng.normal(size=(3, 3)), np.diag([0.1, 2.0, 0.0])
    curvature = np.linalg.inv(root @ root.T)
    found = adjustment(np.zeros(3), root, curvature - prior, prior)
    np.testing.assert_allclose(found.matrix, np.eye(3), atol=1e-10)
    np.testing.assert_allclose(found.ratios, 1.0)
    V = root @ root.T @ (2 * curvature) @ root @ root.T
    other = adjustment(np.zeros(3), root, 2 * curvature - prior, prior).matrix
    np.testing.assert_allclose(other @ root @ root.T @ other.T, V, atol=1e-10)


def test_the_scale_of_weights_does_not_matter() -> None:
    larger = {name: {**one, "w": 50 * one["w"]} for name, one in SITES.items()}
    rows = consortia.regression("y ~ x", SITES, **FORMULA).rows.site("lima")["weight"]
    scaled = consortia.regression("y ~ x", larger, **FORMULA).rows.site("lima")["weight"]
    np.testing.assert_allclose(scaled, rows, rtol=1e-6)


def test_a_column_that_is_called_weight_keeps_its_unit() -> None:
    heavy = {name: {**one, "weight": 80 + one["x"]} for name, one in SITES.items()}
    units = consortia.regression("y ~ weight", heavy, **FORMULA).specification.units
    assert 80 < units["weight"].mean < 84


def test_the_plan_counts_the_messages_of_the_sandwich() -> None:
    made = consortia.regression("y ~ x", SITES, **FORMULA)

    class PlannedError(Exception):
        pass

    def seen(plan: Any) -> None:
        assert "usually 5 messages" in str(plan)
        raise PlannedError

    method = consortia.few_rounds()
    with pytest.raises(PlannedError):
        consortia.sample(made.model, made.sites, method, progress=False, on_plan=seen)


@pytest.mark.parametrize(
    ("formula", "changed", "argument", "match"),
    [
        ("y ~ x", {"weights": None}, "weights_are", "give weights"),
        ("y ~ x + (1 | site)", {}, "weights", "no robust standard errors"),
        ("y ~ s(x)", {}, "weights", "no robust standard errors"),
        ("y ~ x", {"missing": "impute"}, "missing", "missing='complete'"),
        ("y ~ x", {"weights_are": "survey"}, "weights_are", "'survey'"),
    ],
)
def test_what_has_no_sandwich_is_refused(
    formula: str, changed: Any, argument: str, match: str
) -> None:
    with refused(argument=argument, match=match):
        consortia.regression(formula, SITES, **{**FORMULA, **changed})


def test_other_methods_refuse_weights_of_a_sample() -> None:
    made = consortia.regression("y ~ x", SITES, **FORMULA)
    with refused(argument="weights_are", match="use few_rounds"):
        consortia.sample(made.model, made.sites, consortia.federated_hmc(), progress=False)


def test_frequencies_are_named() -> None:
    made = consortia.regression("y ~ x", SITES, family="bernoulli", weights="w")
    assert "weights w are frequencies" in str(made)
