"""Queries over the engines of one process: sums, widths, devices, programs that are kept."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import insides
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from engines import toy_conversation as toy
from jax._src import compiler as jax_compiler
from threadpoolctl import threadpool_info, threadpool_limits

import consortia
from consortia.core.queries import Query, SiteFunction, in_width
from consortia.core.target import Target
from consortia.engines import programs
from consortia.engines.panel import evaluated_points
from consortia.models.regression.evaluation import RowByRow
from tests.refusals import refused


def panel_of(engine=None, sites=None, method=None, model=toy.MODEL, **more):
    target = Target(model, model.init)
    engine = consortia.LocalEngine() if engine is None else engine
    rows = toy.sites() if sites is None else sites
    return engine.panel(target, rows, toy.Toy() if method is None else method, **more)


def answers_of(panel, queries=None):
    asked_for = toy.queries() if queries is None else queries
    return [panel.ask(one._replace(arrays=in_width(one.arrays))) for one in asked_for]


def assert_same_answers(some, others, tolerance):
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        for name, values in one.items():
            assert values.dtype == np.float64
            np.testing.assert_allclose(values, other[name], rtol=tolerance, atol=tolerance)


def by_hand(sites):
    """The same answers from pooled rows, in NumPy."""
    shards = [sites.site(number) for number in range(len(sites))]
    x = np.concatenate([np.asarray(one["x"], np.float64) for one in shards])
    y = np.concatenate([np.asarray(one["y"], np.float64) for one in shards])
    design = np.column_stack([x, np.ones(len(x))])

    def potential(theta):
        at = design @ theta
        prior = Target(toy.MODEL, toy.MODEL.init).log_prior(jax.numpy.asarray(theta))
        return np.logaddexp(0, at).sum() - y @ at - float(prior)

    drawing, slopes, _ = toy.queries()
    points = toy.drawn(in_width(drawing.arrays))["points"]
    above = [potential(one) - potential(np.zeros(3)) for one in points]
    return np.array(above), np.array([potential(one) for one in slopes.arrays["points"]])


def test_an_answer_is_the_sum_over_the_sites(x64):
    found = answers_of(panel_of())
    above, values = by_hand(toy.sites())
    np.testing.assert_allclose(found[0]["above"], above, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found[1]["value"], values, rtol=1e-9)


def test_an_answer_that_is_not_summed_has_the_sites_first():
    (told,) = answers_of(panel_of(), toy.queries()[2:])
    assert told["rows"].tolist() == list(toy.SIZES)
    assert told["number"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_sites_side_by_side_answer_as_one_after_the_other(x64, monkeypatch, width):
    insides.compute_side_by_side(monkeypatch, width)
    assert_same_answers(answers_of(panel_of()), answers_of(panel_of(mapped())), 1e-12)


def mapped():
    return consortia.LocalEngine(node_mode="map")


@pytest.mark.parametrize("width", [1, 7])
def test_single_precision_loses_nothing_over_many_sites(monkeypatch, width):
    def odd(target, arrays, site):
        return {"a": 1e4 + jax.numpy.sin(site.number.astype(target.dtype))}

    answering = {
        "sum": SiteFunction(odd, toy.nowhere, "Nothing."),
        "each": SiteFunction(odd, toy.nowhere, "Nothing.", summed=False),
    }

    class Odd(toy.Toy):
        functions = answering

    insides.compute_side_by_side(monkeypatch, width)
    panel = panel_of(sites=toy.sites(3000), method=Odd())
    each = panel.ask(Query("each", {}, "each"))["a"]
    total = panel.ask(Query("sum", {}, "sum"))["a"]
    assert abs(each.astype(np.float32).sum(dtype=np.float32) - each.sum()) > 1e-1
    # The compensation itself is rounded: to 1e-7 of what it gathers, some hundred.
    assert abs(total - each.sum()) < 1e-4


def test_what_is_not_finite_at_one_site_is_not_finite_in_the_sum():
    def lost(target, arrays, site):
        infinite = jax.numpy.where(site.number == 2, jax.numpy.inf, 1.0)
        return {"a": infinite, "b": -infinite, "c": jax.numpy.ones(2)}

    losing = {"lost": SiteFunction(lost, toy.nowhere, "Nothing.")}

    class Losing(toy.Toy):
        functions = losing

    for width in (1, 2, 4):
        with pytest.MonkeyPatch.context() as patch:
            insides.compute_side_by_side(patch, width)
            found = panel_of(method=Losing()).ask(Query("lost", {}, "lost"))
        assert found["a"] == np.inf
        assert found["b"] == -np.inf
        assert found["c"].tolist() == [5.0, 5.0]


def test_an_unknown_function_is_named():
    with refused(argument="method", match="'heights'"):
        panel_of().ask(Query("heights", {}, "none"))


@pytest.fixture
def compilations(monkeypatch):
    """The programs that are compiled, or read from disk."""
    made = []
    plain = jax_compiler.compile_or_get_cached

    def counted(*arguments, **options):
        made.append(arguments)
        return plain(*arguments, **options)

    monkeypatch.setattr(jax_compiler, "compile_or_get_cached", counted)
    return made


def test_a_second_run_of_equal_shapes_compiles_nothing(compilations, monkeypatch):
    insides.forget_programs(monkeypatch)  # nothing that other tests have run
    toy.sampled(seed=1)
    first = len(compilations)
    toy.sampled(seed=2)
    assert 0 < first == len(compilations)


def test_programs_are_optimised_where_a_query_repays_it_whatever_ran_before(monkeypatch):
    monkeypatch.setattr(programs.compiler, "for_once", lambda: {"once": 1})
    monkeypatch.setattr(programs.compiler, "lightly", lambda: {"lightly": 1})
    model = replace(consortia.models.logistic_regression(2, intercept=True), host=None)

    def chosen(points):
        panel = panel_of(model=model)
        first = insides.compiler_options(panel, points)
        for _ in range(20):
            assert insides.compiler_options(panel, points) == first
        return first

    rows = 5 * 11  # padded
    most = programs.FEW_EVALUATIONS // rows
    assert chosen(most + 1) == {"lightly": 1}
    assert chosen(most) == {"once": 1}


def test_a_plan_traces_nothing(monkeypatch):
    plans = []
    toy.sampled(on_plan=plans.append)
    monkeypatch.setattr(SiteFunction, "shapes_of", None)
    toy.sampled(on_plan=plans.append)
    plan = plans[1]
    lines = dict(plan.lines)
    assert lines["rounds"] == "at most 3 batches of draws"
    assert lines["network"].startswith("usually 8 messages, at most 50, in each at most 1.")
    # 64 log-densities of single precision from each of 5 sites; 2 + 3 + 9 numbers to each.
    assert (plan.bytes_up, plan.bytes_down) == (64 * 4 * 5, 14 * 4 * 5)
    assert plan.whole == (8, 8 * 1280, 8 * 280)


def test_the_row_dependent_numbers_of_an_answer_are_counted():
    panel = panel_of()
    arrays = in_width(toy.queries()[1].arrays)
    data = insides.data_of(panel)
    shapes = toy.FUNCTIONS["slopes"].shapes_of(panel.target, arrays, lambda: data)
    assert sum(map(math.prod, shapes.values())) == 3 * (1 + 3 + 9)


def test_many_sites_are_summed_without_all_their_answers():
    """The program of 10,000 sites and 4,000 points needs little more than their rows."""
    many = toy.sites(10_000)
    panel = panel_of(sites=many)
    query = Query(
        "differences",
        in_width(toy.queries()[0].arrays | {"count": np.int32(4000)}),
        "draws",
    )
    function = toy.FUNCTIONS["differences"]
    arrays = panel.completed(query)
    needed = insides.memory_of_program(panel, function, arrays, 4000)
    all_answers = 10_000 * 4000 * 4
    assert needed.temp_size_in_bytes < all_answers / 10
    assert needed.argument_size_in_bytes < 10_000 * 11 * 4 * 8


@pytest.mark.engines
def test_devices_that_cannot_be_used_are_said():
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices: JAX_NUM_CPU_DEVICES=2")
    panel = panel_of(consortia.LocalEngine(devices=2), toy.sites(1))
    assert panel.notes[0].startswith("1 of 2 devices is used: each takes whole sites")


def test_sums_of_integers_are_exact_in_single_precision():
    """Noise for privacy is scaled to them: 2^24 + 1 is no number of 32 bits."""
    number = 2**24 + 1

    def count(target, arrays, site):
        return {"rows": jnp.int32(number), "share": jnp.float32(1.0)}

    target, sites = SimpleNamespace(dtype=np.float32), SimpleNamespace(site=lambda *place: None)
    found = insides.replies_of_sites(count, target, sites, {}, *np.zeros((2, 3), np.int32))
    assert found["rows"].tolist() == 3 * [number]
    assert found["share"].dtype == np.float32


def test_points_are_counted_once_for_all_arrays_of_one_shape():
    looked = []

    def evaluation(arrays):
        looked.append(arrays["points"].shape)
        return toy.at_points(arrays)

    function = SiteFunction(toy.differences, evaluation, "")
    for count in (3, 3, 5, 3):
        assert evaluated_points(function, {"points": np.zeros((count, 2))}) == count
    assert looked == [(3, 2), (5, 2)]


def test_sites_evaluate_on_one_thread_of_linear_algebra(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[int] = set()
    values = RowByRow.values

    def recorded(self: RowByRow, *arguments: Any, **more: Any) -> Any:
        used.update(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")
        return values(self, *arguments, **more)

    monkeypatch.setattr(RowByRow, "values", recorded)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=50), "y": rng.integers(0, 2, 50)})
    made = consortia.regression("y ~ x", {"a": table[:20], "b": table[20:]}, family="bernoulli")
    with threadpool_limits(2, "blas"):
        consortia.sample(made.model, made.sites, consortia.few_rounds(), progress=False)
    assert used == {1}
