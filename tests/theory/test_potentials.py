"""What sites tell of their potentials: the same prediction wherever the rows are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import insides
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base.array import array_stats

import consortia
from consortia.core.pareto import shape_of
from consortia.diagnostics.verdict import judge
from consortia.theory import bias, potentials
from consortia.theory.bias import predict_bias
from consortia.theory.potentials import SitePotentials, mode_by
from tests.refusals import refused


class Gathering(SitePotentials):
    """Potentials of a process whose engine sees each request, for the other process's part."""

    def _gather(self, what: str, position: np.ndarray) -> dict[str, np.ndarray]:
        self._engine.request = what, position
        found = super()._gather(what, position)
        self._engine.request = None
        return found


class Engine:
    """Gathers from this process and from another one, which has the other sites' rows."""

    request: tuple[str, np.ndarray] | None = None
    participation = None

    def __init__(self, other: SitePotentials, there: set[int]) -> None:
        self._other, self._there = other, there

    def allgather(self, make: Callable[[], Any]) -> list[Any]:
        if self.request is None:
            return [make()]
        what, position = self.request
        return [make(), insides.own_answer(self._other, what, position) if self._there else {}]


def problem() -> tuple[consortia.Model, list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 2))
    y = (x @ [1.0, -1.0] + rng.normal(size=60) > 0).astype(np.int32)
    rows = [{"x": x[part], "y": y[part]} for part in (slice(0, 20), slice(20, 45), slice(45, 60))]
    return consortia.models.logistic_regression(2, intercept=True), rows


def apart(rows: list[dict[str, np.ndarray]], here: set[int]) -> consortia.Sites:
    """The sites as a process has them that has read only some."""
    whole = consortia.Sites.from_list(rows)
    shards = tuple(
        shard if n in here else {name: leaf[:0] for name, leaf in shard.items()}
        for n, shard in enumerate(whole.shards)
    )
    others = frozenset(range(len(rows))) - here
    return consortia.Sites(whole.names, whole.sizes, shards, {}, others)


@pytest.mark.parametrize(
    "method",
    [
        consortia.fa_ld(step_size=0.05, local_steps=3),
        consortia.stale_sgld(step_size=0.002, workers=3, batch_size=5),
    ],
    ids=lambda method: method.name,
)
def test_rows_in_several_processes_give_the_prediction_of_rows_in_one(method, monkeypatch):
    model, rows = problem()
    whole = predict_bias(model, consortia.Sites.from_list(rows), method)
    assert whole.reason is None
    monkeypatch.setattr(bias, "SitePotentials", Gathering)
    for here, there in (({0, 2}, {1}), ({1}, {0, 2}), (set(), {0, 1, 2})):
        other = SitePotentials(model, apart(rows, there), model.init, engine=object())
        one = predict_bias(model, apart(rows, here), method, engine=Engine(other, there))
        for name in ("shift", "sd_ratio", "mean", "sd"):
            np.testing.assert_array_equal(getattr(one, name), getattr(whole, name))
        assert one.k_hat == whole.k_hat


def test_what_one_process_has_not_found_is_evaluated_by_all():
    model, rows = problem()
    found, sites = [], consortia.Sites.from_list(rows)

    class Other:
        """Gathers from this process and from one that has found nothing."""

        participation = None

        def allgather(self, make: Callable[[], Any]) -> list[Any]:
            return [make(), False]

    for engine, evaluated in ((None, 1), (None, 1), (Other(), 2), (None, 2)):
        bias.Problem(model, sites, engine=engine).once("it", lambda: found.append("evaluated"))
        assert len(found) == evaluated


def test_many_sites_are_evaluated_together_with_the_numbers_of_each_alone(monkeypatch, x64):
    model, rows = problem()
    rows += [{name: leaf[:n] for name, leaf in rows[0].items()} for n in (1, 7)]
    sites, at = consortia.Sites.from_list(rows), np.array([0.3, -0.2, 0.1])
    alone = SitePotentials(model, sites, model.init)
    monkeypatch.setattr(potentials, "TOGETHER", 2)  # three calls, the last one not full
    together = SitePotentials(model, sites, model.init)
    for one, other in zip(together.expansion(at), alone.expansion(at), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    np.testing.assert_allclose(together.rows(at), alone.rows(at), atol=1e-12)
    points = np.stack([at, 2 * at])
    np.testing.assert_allclose(together.values(points), alone.values(points), rtol=1e-12)
    for one, other in zip(together.single_rows(2, at), alone.single_rows(2, at), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_mixture_is_not_taken_for_its_gaussian_law_and_a_logistic_posterior_is():
    def log_likelihood(x: Any, rows: Any) -> Any:
        return jnp.logaddexp(-0.5 * (rows["y"] - x[0]) ** 2, -0.5 * (rows["y"] + x[0] + 0.8) ** 2)

    mixture = consortia.Model(lambda x: -0.05 * jnp.sum(x**2), log_likelihood, jnp.ones(1))
    sites = consortia.Sites.from_list([{"y": np.ones(1, np.float32)}])
    method = consortia.fa_ld(step_size=0.01, local_steps=1)
    prediction = predict_bias(mixture, sites, method)
    assert prediction.k_hat > 0.7
    assert judge(prediction).word == "unknown"
    model, rows = problem()
    found = predict_bias(model, consortia.Sites.from_list(rows), method)
    assert not found.gaussian
    assert found.k_hat < 0.7


def test_the_mode_of_a_quadratic_is_found_and_its_absence_is_said():
    matrix = np.array([[2.0, 0.5], [0.5, 1.0]])

    def look(x: np.ndarray) -> Any:
        return 0.5 * (x - 3) @ matrix @ (x - 3), matrix @ (x - 3), matrix

    np.testing.assert_allclose(mode_by(look, np.zeros(2)), 3.0, rtol=1e-6)
    with refused(argument="start", match="mode"):
        mode_by(lambda x: (-float(x @ x), -2 * x, -2 * np.eye(2)), np.ones(2))


def test_k_hat_is_the_shape_of_the_largest_importance_ratios() -> None:
    # exp(0.9 E) of an exponential E has a Pareto law of shape 0.9; 4000 ratios know it to 0.1
    log_ratios = 0.9 * np.random.default_rng(0).exponential(size=4000)
    assert shape_of(log_ratios) == pytest.approx(0.9, abs=0.25)
    assert shape_of(-log_ratios) < 0  # of the inverse ratios, which are bounded


@pytest.mark.parametrize("scale", [0.0, 0.3, 0.9, 2.0])
def test_k_hat_is_that_of_arviz(scale: float) -> None:
    log_ratios = scale * np.random.default_rng(1).normal(size=500)
    log_ratios += 1e-12 * np.arange(500)  # it refuses ratios that are all the same
    # It takes 67 of them where the source has 68: measured, the shapes differ by less than .03.
    assert shape_of(log_ratios) == pytest.approx(
        float(array_stats.psislw(-log_ratios)[1]), abs=0.05
    )
