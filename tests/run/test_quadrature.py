"""Rules of quadrature inside a model: chosen, measured, and said in plan, record and verdict."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.algorithms.few_rounds import MOST_RULES
from consortia.algorithms.few_rounds import quadrature as few_rounds_quadrature
from consortia.algorithms.few_rounds.quadrature import with_rule
from consortia.algorithms.few_rounds.site_functions import FUNCTIONS
from consortia.core.model import Integration
from consortia.core.prior import PriorScale
from consortia.core.queries import Batch, Outcome, Query
from consortia.core.target import Target
from consortia.diagnostics.verdict import Severity
from consortia.models._integrated import integration
from consortia.surrogates.quadrature import effect_of, points_among, points_around
from tests.refusals import refused

TITLE = "Is the model's quadrature accurate enough?"


def visits(sites: int, patients: int, spread: float, seed: int = 5) -> dict[str, Any]:
    """Return binary visits, seven a patient, of patients that differ by so much."""
    rng = np.random.default_rng(seed)
    found = {}
    for site in range(sites):
        who = np.repeat(np.arange(patients), 7)
        x = rng.normal(size=len(who))
        eta = 0.3 + 0.5 * x + (spread * rng.normal(size=patients))[who]
        y = rng.binomial(1, 1 / (1 + np.exp(-eta)))
        found[f"s{site}"] = {"patient": who, "x": x, "y": y}
    return found


def made(tables: dict[str, Any], **more: Any) -> Any:
    return consortia.regression("y ~ x + (1 | site:patient)", tables, family="bernoulli", **more)


def run(one: Any, **more: Any) -> Any:
    plans: list[Any] = []
    method = more.pop("method", consortia.few_rounds())
    tree = consortia.sample(
        one.model,
        one.sites,
        method,
        seed=1,
        progress=False,
        metadata=one.metadata,
        on_plan=plans.append,
        **{"chains": 4, **more},
    )
    return tree, plans[0]


def verdict(tree: Any) -> Any:
    (check,) = (one for one in consortia.summary(tree).verdict.checks if one.title == TITLE)
    return check


def log_density(one: Any, tree: Any, nodes: int, count: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the log-likelihood with so many nodes at draws of a run, and these."""
    sampled = tree["unconstrained_posterior"]
    draws = {name: np.asarray(sampled[name], float) for name in one.model.init}
    chains, kept = next(iter(draws.values())).shape[:2]
    some = slice(None, None, max(chains * kept // count, 1))
    flat = {name: a.reshape(-1, *a.shape[2:])[some] for name, a in draws.items()}
    of_site = one.model.integration.with_nodes(nodes)

    def at(point: Any) -> Any:
        return sum(of_site(point, rows, np.ones(len(rows["y"]), bool)) for rows in one.sites)

    values = jax.jit(lambda all: jax.lax.map(at, all))(jax.tree.map(jnp.asarray, flat))
    return np.asarray(values), flat


def test_the_effect_of_an_error_is_that_on_a_normal_posterior() -> None:
    covariance = np.array([[1.0, 0.6], [0.6, 4.0]])
    points = points_around(np.array([1.0, -1.0]), covariance)
    # an error a θ₁ moves the mean by Σ a; −b (θ₁ − 1)²/2 adds b to the precision
    tilted = effect_of(0.05 * points[:, 0])
    assert tilted.shift == pytest.approx(0.05)
    assert (tilted.low, tilted.high) == pytest.approx((1, 1))
    bent = effect_of(-0.5 * 0.02 * (points[:, 0] - 1) ** 2)
    assert bent.low == pytest.approx(1.02**-0.5, abs=2e-3)
    assert bent.shift == pytest.approx(0)


KNOWN: Any = SimpleNamespace(
    target=SimpleNamespace(dtype=np.float32), start=np.zeros(1), farthest=math.inf
)
RULES = Integration(
    9, (5, 9, 18, 36), lambda used: (5, 9, 18, 36, 72)[: 4 if used < 18 else 5], lambda nodes: None
)
FINE = {5: 1e-4, 9: 1e-5, 18: 1e-6, 36: 1e-7}
COARSE = {**FINE, 5: 1.0}


def drawn(centre: float) -> np.ndarray:
    return centre + np.random.default_rng(0).normal(size=(4, 200, 1))


def farthest_square(centre: float) -> float:
    places = points_among(drawn(centre).reshape(-1, 1)) ** 2
    return float(np.abs(places - places[0]).max())


def test_a_rule_is_measured_where_draws_are() -> None:
    """A law without a tail on one side, and one that bends away from every line."""
    first = np.random.default_rng(1).normal(size=20_000)
    skewed = np.exp(first)
    points = points_among(np.stack([skewed, skewed**2], axis=1))
    assert points.shape == (9, 2)
    levels = np.exp([0.0, 2, -2, 3, -3])
    np.testing.assert_allclose(points[1::2, 0], levels[1:], rtol=0.15)
    np.testing.assert_allclose(points[1:, 1], points[1:, 0] ** 2, rtol=0.1)
    alike = np.random.default_rng(2).multivariate_normal([1, -1], [[1, 0.6], [0.6, 4]], 200_000)
    around = points_around(np.array([1.0, -1.0]), np.array([[1.0, 0.6], [0.6, 4.0]]))
    np.testing.assert_allclose(points_among(alike), around, atol=0.3)


def test_a_rule_that_is_coarse_where_no_draw_is_is_measured_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, report = spoken(
        lambda number: dict.fromkeys(FINE, 1.0 if number < 3 else 1e-4), 0.0, monkeypatch
    )
    assert asked == [("draws", 5), ("draws", 36), ("quadrature", 36), [2]]
    assert report["error"] < 1e-2


def spoken(
    errors: Any,
    draws: float,
    monkeypatch: pytest.MonkeyPatch,
    purposes: tuple[str, ...] = ("draws",),
) -> tuple[list[Any], Any]:
    """Return the queries of a conversation of one batch, and the report on its rule.

    ``errors`` are those of the rules one standard deviation away, at a query of its number.
    """
    scale = PriorScale(np.zeros(1), np.ones(1))
    monkeypatch.setattr(few_rounds_quadrature, "prior_scale", lambda *_: scale)
    received = []

    def converse() -> Any:
        measured = points_around(np.zeros(1), np.eye(1))
        for purpose in purposes:
            if purpose == "chains":
                query = Query("slopes", {"points": measured}, purpose)
            else:
                query = Query("log_densities", {"points": measured, "measured": measured}, purpose)
            received.append((yield query)["number"])
        yield Batch(drawn(draws), {})
        return Outcome("end")

    sent: list[Any] = []
    talk = with_rule(converse, KNOWN, RULES)
    answer: Any = None
    while True:
        item = talk.send(answer)
        if isinstance(item, Batch):
            return [*sent, received], item.report["quadrature"]
        sent.append((item.purpose, len(item.arrays.get("rule", range(9)))))
        answer = {"number": len(sent)}
        if "measured" in item.arrays:
            each = [errors(len(sent))[one] for one in RULES.measured(sent[-1][1])[:-1]]
            answer["errors"] = item.arrays["measured"] ** 2 * np.array([*each, 0.0])


def test_a_message_whose_rule_is_too_coarse_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, report = spoken(lambda number: FINE, 0.0, monkeypatch)
    assert asked == [("draws", 5), [1]]
    assert (report["nodes"], report["against"]) == (5, 36)
    asked, report = spoken(lambda number: COARSE, 0.0, monkeypatch)
    # the conversation hears the second answer alone
    assert asked == [("draws", 5), ("draws", 9), [2]]
    assert report["nodes"] == 9
    # none of those compared is: of the next the first answer says nothing
    none = {5: 1.0, 9: 1.0, 18: 0.1, 36: 1e-6}
    asked, report = spoken(lambda number: none, 0.0, monkeypatch)
    assert asked == [("draws", 5), ("draws", 36), [2]]
    assert (report["nodes"], report["against"]) == (36, 72)
    asked, report = spoken(lambda number: {**none, 36: 0.8}, 0.0, monkeypatch)
    # the last rule is too coarse around the proposals: it is measured among the draws
    assert asked == [("draws", 5), ("draws", 36), ("quadrature", 36), [2]]
    assert report["error"] == pytest.approx(0.8 * farthest_square(0.0))


def test_a_rule_that_the_model_lacks_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server names it by the length of an array, and 10,000 nodes squared fill a memory."""
    one = made(visits(2, 3, 1.0))
    target = Target(one.model, one.model.init)
    point = np.zeros((1, target.dimension), np.float32)
    given = {"reference": point[0], "points": point, "measured": point}
    monkeypatch.setattr(np.polynomial.hermite, "hermgauss", None)
    nowhere: Any = None
    for name in ("log_densities", "slopes", "derivatives"):
        with refused(argument="nodes", match="with 5000"):
            FUNCTIONS[name].answer(target, {**given, "rule": np.zeros(5000, np.int8)}, nowhere)


def test_an_exploration_with_small_errors_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    both = ("exploration", "draws")
    small = {**FINE, 5: 0.19 / 9}  # nine times as large at three standard deviations
    asked, report = spoken(lambda number: small, 0.0, monkeypatch, both)
    assert asked == [("exploration", 5), ("draws", 9), [1, 2]]
    assert report["nodes"] == 9
    larger = {**FINE, 5: 0.21 / 9}
    asked, report = spoken(lambda number: larger, 0.0, monkeypatch, both)
    assert asked == [("exploration", 5), ("exploration", 9), ("draws", 9), [2, 3]]
    # nothing is known of the next rule, and it is measured before its draws are kept
    unknown = {5: 0.05, 9: 0.05, 18: 0.05, 36: 1e-6}
    asked, report = spoken(
        lambda number: {one: error / 9 for one, error in unknown.items()},
        0.0,
        monkeypatch,
        ("exploration",),
    )
    assert asked == [("exploration", 5), ("quadrature", 36), [1]]
    assert (report["nodes"], report["against"]) == (36, 72)


def test_chains_have_the_model_s_own_rule_and_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    both = ("exploration", "chains")
    asked, report = spoken(lambda number: FINE, 0.0, monkeypatch, both)
    # what was measured of five nodes is not what the draws have
    assert asked == [("exploration", 5), ("chains", 9), ("quadrature", 9), [1, 2]]
    worst = farthest_square(0.0)
    assert (report["nodes"], report["error"]) == (9, pytest.approx(worst * FINE[9]))
    # a finer one is kept
    asked, _ = spoken(lambda number: {**COARSE, 9: 1.0}, 0.0, monkeypatch, both)
    assert asked == [("exploration", 5), ("exploration", 18), ("chains", 18), [2, 3]]


def test_draws_elsewhere_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, _ = spoken(lambda number: FINE, 3.0, monkeypatch)
    assert asked == [("draws", 5), ("quadrature", 5), [1]]
    # a finer rule is needed there: the conversation begins again with it
    asked, report = spoken(lambda number: COARSE if number > 1 else FINE, 3.0, monkeypatch)
    assert asked[:3] == [("draws", 5), ("quadrature", 5), ("draws", 9)]
    assert report["nodes"] == 9


def test_all_batches_have_the_last_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    two = ("draws", "draws")
    asked, report = spoken(lambda number: COARSE if number == 2 else FINE, 0.0, monkeypatch, two)
    # sent again, and then both with 9
    assert asked[:-1] == [("draws", 5), ("draws", 5), ("draws", 9), ("draws", 9), ("draws", 9)]
    assert asked[-1] == [1, 3, 4, 5]
    assert report["nodes"] == 9
    # of an exploration no draw is kept
    two = ("exploration", "draws")
    asked, report = spoken(lambda number: COARSE if number == 2 else FINE, 0.0, monkeypatch, two)
    assert asked == [("exploration", 5), ("draws", 5), ("draws", 9), [1, 3]]
    assert report["nodes"] == 9


def test_sites_that_fit_their_rows_exactly_have_a_posterior() -> None:
    one = consortia.regression("y ~ x + (1 | site)", hospitals(10, (2, 4)), integrate=True)
    tree, _ = run(one, method=consortia.few_rounds(effective_size=100))
    # it was an error; σ² is .64, and with the levels' .49 it would be 1.13
    assert 0.4 < float(tree["posterior"]["sigma"].mean()) ** 2 < 1.1


@pytest.mark.parametrize(("dimension", "points"), [(3, 64), (30, 64), (120, 400), (300, None)])
def test_declared_sizes_have_room_for_the_measurement(dimension: int, points: Any) -> None:
    declared = consortia.few_rounds(proposals=points).declared_sizes(dimension)["log_densities"]
    many = 4 * dimension + 1
    assert declared.up >= many + 2 + 5 * many  # four rules and the finest
    assert declared.down >= 2 * many * dimension


def hospitals(count: int, rows: tuple[int, int] = (20, 120)) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    found = {}
    for index in range(count):
        x = rng.normal(size=int(rng.integers(*rows)))
        y = 0.7 * rng.normal() + 0.6 * x + 0.8 * rng.normal(size=len(x))
        found[f"h{index}"] = {"x": x, "y": y}
    return found


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("within", [False, True])
def test_a_site_is_asked_about_as_many_rules_as_a_policy_was_told(size: int, within: bool) -> None:
    rules = integration(lambda *_: None, size, within=within)
    most = max(len(rules.measured(nodes)) for nodes in (rules.default, *rules.choices))
    assert most <= MOST_RULES


def test_25_hospitals_with_their_own_levels_take_three_messages() -> None:
    one = consortia.regression("y ~ x + (1 | site)", hospitals(25), integrate=True)
    tree, _ = run(one)
    asked = [message["for"] for message in json.loads(tree.attrs["messages"])]
    assert asked == ["local fits", "exploration", "draws"]
    kept = json.loads(tree.attrs["quadrature"])
    assert kept["nodes"] == 7
    assert kept["error"] < 1e-3


@pytest.mark.slow
def test_few_rounds_chooses_nodes_and_the_verdict_says_what_is_left() -> None:
    few = consortia.few_rounds(effective_size=100, proposals=400)
    tree, plan = run(made(visits(2, 12, 3.0)), method=few)
    kept = json.loads(tree.attrs["quadrature"])
    asked = [message["for"] for message in json.loads(tree.attrs["messages"])]
    # the rule of the exploration is not fine enough for draws, and will do for a surrogate
    assert asked[:3] == ["local fits", "exploration", "draws"]
    assert "quadrature" not in asked
    assert kept["nodes"] > 15
    assert kept["error"] <= 0.01
    assert "quadrature inside the model" in dict(plan.lines)["bias"]
    assert verdict(tree).severity is Severity.GOOD
    tree.attrs["quadrature"] = {**kept, "shift": 0.2}
    assert verdict(tree).severity is Severity.WARNING
    assert "means ≤ 0.2 sd" in verdict(tree).value
    for error in (0.4, math.inf, math.nan):  # three standard deviations out alone
        tree.attrs["quadrature"] = {**kept, "error": error}
        assert verdict(tree).severity is Severity.UNKNOWN
        assert "outer quantiles" in verdict(tree).reason
    tree.attrs["quadrature"] = {"nodes": 15}  # nobody has measured it
    assert verdict(tree).severity is Severity.UNKNOWN
    # one that a stopping rule ends was measured too
    stopped, _ = run(made(visits(2, 12, 3.0)), method=few, stop=consortia.stop_when(ess=4, every=4))
    assert "stopping" in stopped.attrs["end"]
    assert json.loads(stopped.attrs["quadrature"]) == kept
    assert verdict(stopped).severity is Severity.GOOD


def test_other_methods_measure_the_rule_where_the_rows_are() -> None:
    one = made(visits(2, 20, 1.0))
    method = consortia.federated_hmc(step_size=0.15, leapfrog_steps=4, mass_matrix="identity")
    tree, plan = run(one, method=method, rounds=60, chains=2)
    assert "quadrature inside the model" in dict(plan.lines)["bias"]
    assert json.loads(tree.attrs["quadrature"])["nodes"] == 15
    assert verdict(tree).severity is not Severity.UNKNOWN


def test_nodes_that_no_rule_can_have_are_refused() -> None:
    tables = visits(2, 20, 1.0)
    for nodes in (1, 1000, 2.5):
        with refused(argument="nodes"):
            made(tables, nodes=nodes)
    with refused(argument="nodes", match="the formula integrates nothing out"):
        consortia.regression("y ~ x", tables, family="bernoulli", nodes=20)


@pytest.mark.slow
def test_a_spread_of_four_has_the_posterior_of_250_nodes() -> None:
    """300 patients of seven visits at five sites."""
    one = made(visits(5, 60, 4.0))
    tree, _ = run(one, method=consortia.few_rounds())
    nodes = json.loads(tree.attrs["quadrature"])["nodes"]
    with jax.enable_x64(True):
        fine, flat = log_density(one, tree, 250, 300)
        own, _ = log_density(one, tree, nodes, 300)
        coarse, _ = log_density(one, tree, 15, 300)
    off = own - fine
    print(nodes, "nodes: log-density off by", np.abs(off).max(), "15:", np.abs(coarse - fine).max())
    assert np.abs(off).max() < 0.02
    share = np.exp(-off) / np.exp(-off).sum()
    spread = np.exp(flat["log_sd"][:, 0])
    mean = share @ spread
    ratio = spread.std() / np.sqrt(share @ (spread - mean) ** 2)
    print("sd of the spread by that of 250 nodes", ratio)
    assert abs(ratio - 1) < 0.03
    # what the verdict says of 15 nodes is what weights say of its draws
    forced_one = made(visits(5, 60, 4.0), nodes=15)
    forced, _ = run(forced_one, method=consortia.few_rounds())
    with jax.enable_x64(True):
        fine, flat = log_density(forced_one, forced, 250, 1000)
        own, _ = log_density(forced_one, forced, 15, 1000)
    share = np.exp(fine - own)
    share /= share.sum()
    columns = np.concatenate([a.reshape(len(share), -1) for a in flat.values()], axis=1)
    moved = np.abs(columns.mean(axis=0) - share @ columns) / columns.std(axis=0)
    kept = json.loads(forced.attrs["quadrature"])
    print("moved", moved.max(), "said", kept, verdict(forced).value)
    assert kept["shift"] == pytest.approx(moved.max(), abs=0.02)


def test_levels_of_a_gaussian_response_need_no_rule():
    rng = np.random.default_rng(4)
    tables = {
        name: {"y": level + x + rng.normal(size=40), "x": x}
        for name, level in {"oslo": 3.0, "lima": 5.0, "bern": 4.0}.items()
        for x in [rng.normal(size=40)]
    }
    made = consortia.regression("y ~ x + (1 | site)", tables, family="gaussian")
    plans = list[Any]()
    tree = consortia.sample(
        *(made.model, made.sites, consortia.few_rounds()),
        seed=1,
        progress=False,
        on_plan=plans.append,
    )
    [check] = [row for row in consortia.summary(tree).verdict.checks if row.title == TITLE]
    assert (check.value, check.severity.name) == ("exact", "GOOD")
    assert "quadrature" not in dict(plans[0].lines)["bias"]
