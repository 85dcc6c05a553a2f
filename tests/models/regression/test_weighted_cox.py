"""Cox's model with weights, strata, start and stop, ties and clusters, beside R's survival."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.algorithms.few_rounds.site_functions import FUNCTIONS
from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.surrogates.mode_search import symmetric
from tests.models.regression.modes import host_sites, mode_and_spread
from tests.refusals import refused

WIDE = {"coefficients": "normal(0, 1000)"}
FORMULAS = {
    "bladder": ("bladder", "Surv(start, stop, event) ~ rx + number + size + cluster(id)"),
    "by enum": ("bladder", "Surv(start, stop, event) ~ rx + number + size + strata(enum)"),
    "lung": ("lung", "Surv(time, status) ~ age + sex + ecog"),
}
# estimates and robust standard errors of tests/references/survival.R, R 4.2.2, survival 3.5-3
R = {
    ("bladder", "efron", 3): (
        (-0.602479148, 0.200465648, -0.0243407871),
        (0.267862291, 0.0602918139, 0.0882736795),
    ),
    ("by enum", "efron", 3): (
        (-0.763238265, 0.15866611, 0.0969056664),
        (0.242733729, 0.0554089779, 0.0738803526),
    ),
    ("lung", "efron", 3): (
        (0.00261704261, -0.577600858, 0.468356532),
        (0.0108544716, 0.18967071, 0.148972086),
    ),
    ("by enum", "breslow", 3): (
        (-0.760286377, 0.151159609, 0.0938288596),
        (0.237215092, 0.053722467, 0.0689353733),
    ),
    ("lung", "breslow", 3): (
        (0.00248522206, -0.555190769, 0.455168158),
        (0.0104073805, 0.182493219, 0.141764916),
    ),
    ("bladder", "breslow", 8): (
        (-0.498835733, 0.157288896, -0.00762548709),
        (0.239907231, 0.0618199139, 0.0758320747),
    ),
    ("by enum", "efron", 8): (
        (-0.485095764, 0.0777012312, 0.0126063794),
        (0.216647079, 0.0448636248, 0.0571303737),
    ),
    ("lung", "efron", 8): (
        (0.00209514309, -0.628700701, 0.516249643),
        (0.010138035, 0.186615531, 0.147138297),
    ),
}


def sites_of(name: str, count: int) -> dict[str, dict[str, np.ndarray]]:
    """Return a table of tests/references, dealt out by id."""
    path = Path(__file__).parents[2] / "references" / f"{name}.csv"
    with path.open() as lines:
        rows = list(csv.DictReader(lines))
    table = {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}
    return {
        f"s{place}": {key: values[table["id"] % count == place] for key, values in table.items()}
        for place in range(count)
    }


def made(what: str, ties: str, count: int, **more: Any) -> Any:
    name, formula = FORMULAS[what]
    if name == "bladder" and "cluster" not in formula:
        formula += " + cluster(id)"
    given = {"weights": "w", "weights_are": "sampling", "ties": ties, "prior": WIDE} | more
    return consortia.regression(formula, sites_of(name, count), family="cox", **given)


@pytest.mark.parametrize("case", list(R))
def test_mode_and_robust_spread_are_those_of_survival(case: tuple[str, str, int]) -> None:
    mode, spread = mode_and_spread(made(*case))
    np.testing.assert_allclose(mode, R[case][0], atol=1e-5)
    np.testing.assert_allclose(spread, R[case][1], rtol=1e-5)


@pytest.mark.parametrize("what", ["bladder", "lung"])
def test_compiled_sites_send_the_same_products(x64: None, what: str) -> None:
    one, at = made(what, "efron", 3), np.array([0.3, -0.2, 0.1])
    target = Target(one.model, one.model.init)
    rows = {key: jnp.asarray(a) for key, a in one.rows.site("s0").items()}
    padded = {k: jnp.concatenate([a, jnp.repeat(a[:1], 5, axis=0)]) for k, a in rows.items()}
    site = Site(padded, jnp.int32(len(rows["y"])), jnp.ones(()), jnp.ones(()))
    answer = FUNCTIONS["scores"].answer(target, {"points": jnp.asarray(at[None])}, site)
    host = host_sites(one)[0]
    scores = host.part_scores(at)
    products = symmetric(np.asarray(answer["products"]), 3)
    np.testing.assert_allclose(products, scores.T @ scores, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(scores.sum(axis=0), -host.gradients(at[None])[0], atol=1e-4)


def test_a_frequency_is_so_many_rows_with_ties_after_breslow(x64: None) -> None:
    tables = sites_of("lung", 3)
    times = {s: np.arange(len(one["w"])) % 3 for s, one in tables.items()}
    weighted = {s: {**one, "w": times[s].astype(float)} for s, one in tables.items()}
    repeated = {s: {k: np.repeat(a, times[s]) for k, a in one.items()} for s, one in tables.items()}
    formula, more = FORMULAS["lung"][1], {"family": "cox", "ties": "breslow", "prior": WIDE}
    found = mode_and_spread(consortia.regression(formula, weighted, weights="w", **more))
    wanted = mode_and_spread(consortia.regression(formula, repeated, **more))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.slow
def test_draws_have_the_robust_spread() -> None:
    case = ("bladder", "efron", 3)
    one = made(*case)
    tree = consortia.sample(
        one.model,
        one.sites,
        consortia.few_rounds(effective_size=2000),
        seed=1,
        progress=False,
        metadata=one.metadata,
    )
    draws = np.asarray(one.natural(tree)["coefficients"]).reshape(-1, 3)
    mode, spread = (np.array(values) for values in R[case])
    assert np.abs((draws.mean(axis=0) - mode) / spread).max() < 0.1
    np.testing.assert_allclose(draws.std(axis=0), spread, rtol=0.06)
    assert "clusters" in str(consortia.summary(tree))


@pytest.mark.parametrize(
    ("formula", "more", "argument", "match"),
    [
        ("Surv(time, status) ~ age + cluster(id, sex)", {}, "formula", "cluster.* stands once"),
        ("Surv(time, status) ~ age:cluster(id)", {}, "formula", "a separate term"),
        ("Surv(time, status) ~ s(age) + cluster(id)", {}, "weights", "no robust standard errors"),
        ("Surv(time, status) ~ age", {"ties": "exact"}, "ties", "'exact'"),
        ("Surv(time, status) ~ age", {"ties": "breslow", "family": "weibull"}, "ties", "'cox'"),
    ],
)
def test_what_cannot_be_is_refused(
    formula: str, more: dict[str, Any], argument: str, match: str
) -> None:
    with refused(argument=argument, match=match):
        consortia.regression(formula, sites_of("lung", 3), **{"family": "cox", **more})


def test_clusters_widen_rows_that_are_repeated() -> None:
    once = sites_of("lung", 3)
    twice = {s: {k: np.repeat(a, 2) for k, a in one.items()} for s, one in once.items()}
    given = {"family": "bernoulli", "prior": WIDE | {"intercept": "normal(0, 1000)"}}
    formula = "status ~ age + sex + cluster(id)"
    single, double = (
        mode_and_spread(consortia.regression(formula, one, **given)) for one in (once, twice)
    )
    np.testing.assert_allclose(double[0], single[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(double[1], single[1], rtol=1e-4)
