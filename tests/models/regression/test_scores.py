"""Coefficients that are sampled by the scores of their priors: the law, the start, the units."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import consortia
from consortia.core.tails import Tail
from consortia.core.target import Target
from consortia.models.regression.scores import Scores
from consortia.surrogates.proposals.unbent import Scored, Unbent, tail_of

LAWS = [(1.0, stats.cauchy(2, 3)), (1 / 3, stats.t(3, 2, 3)), (0.0, stats.norm(2, 3))]
PRIORS = {"intercept": "cauchy(1, 2)", "age": "student_t(3, 0.1, 0.2)"}


def made() -> consortia.Regression:
    rng = np.random.default_rng(0)
    table = {"y": np.arange(40) % 2, "age": rng.normal(60, 9, 40), "dose": rng.normal(size=40)}
    sites = {"a": table, "b": {name: values[::-1] for name, values in table.items()}}
    return consortia.regression("y ~ age + dose", sites, family="bernoulli", prior=PRIORS)


@pytest.mark.parametrize(("heaviness", "law"), LAWS)
def test_scores_of_a_law_have_normal_tails_and_the_mass_of_the_law(
    heaviness: float, law: stats.rv_continuous
) -> None:
    tail = Tail(heaviness, 2.0, 3.0)

    def density(u: float) -> float:
        at = np.float64(u)
        return float(np.exp(law.logpdf(tail.value(at)) + tail.log_slope(at)))

    assert integrate.quad(density, -12, 12)[0] == pytest.approx(1, abs=1e-7)
    assert density(0.5) < density(0.0)  # one mode
    # as a normal law: the log-density is -u²/2 but for a power of u, which is 1 of a Cauchy law
    fall = np.log(density(3.0) / density(6.0)) - 13.5
    assert abs(fall) < 0.1 if heaviness in (0, 1) else abs(fall) < 3 * np.log(2) + 0.2


@pytest.mark.parametrize(("heaviness", "law"), LAWS)
def test_the_score_is_the_inverse(heaviness: float, law: stats.rv_continuous) -> None:
    tail = Tail(heaviness, 2.0, 3.0)
    u = np.linspace(-50, 50, 401)  # guesses may lie that far
    np.testing.assert_allclose(tail.score(tail.value(u)), u, atol=1e-9)


def test_the_density_of_scores_is_that_of_the_parameters_with_the_jacobian(x64: None) -> None:
    one, rng = made(), np.random.default_rng(1)
    assert sorted(one.model.init) == ["coefficients_score", "intercept_score"]
    target = Target(one.model, one.model.init)
    flat = jnp.asarray(rng.normal(size=target.dimension))

    def natural(position: jax.Array) -> jax.Array:
        values = one.model.natural(target.unravel(position))
        values["intercept"] = (
            one.density.at_mean(Scores(one.density).params(target.unravel(position)))["intercept"]
            + values["coefficients"] @ shift
        )
        return jnp.concatenate([values["coefficients"], values["intercept"][None]])

    shift = np.array([one.specification.units[name].mean for name in ("age", "dose")])
    slopes, intercept = natural(flat)[:2], natural(flat)[2]
    laws = stats.t(3, 0.1, 0.2), one.priors["dose"]
    wanted = laws[0].logpdf(slopes[0]) + laws[1].log_density(float(slopes[1]))
    wanted += stats.cauchy(1, 2).logpdf(float(intercept))
    wanted += np.linalg.slogdet(jax.jacfwd(natural)(flat))[1]
    assert float(target.log_prior(flat)) == pytest.approx(float(wanted), rel=1e-10)


def test_the_start_is_that_of_the_parameters() -> None:
    one = made()
    start = Scores(one.density).params(one.model.init)
    for name, values in one.density.start.items():
        np.testing.assert_allclose(start[name], values, atol=1e-5)


def test_scores_can_be_unbent_and_back() -> None:
    tail = tail_of(Target(made().model, made().model.init))
    assert tail is not None
    rng = np.random.default_rng(2)
    map_, points = Unbent(rng.normal(size=3), tail), rng.normal(size=(5, 3))
    step = 1e-6 * np.eye(3)
    for either in (map_, Scored(tail)):
        z, volume = either.white(points)
        np.testing.assert_allclose(either.positions(z), points, atol=1e-9)
        for point, own in zip(points, volume, strict=True):
            change = (either.white(point + step)[0] - either.white(point - step)[0]) / 2e-6
            assert np.linalg.slogdet(change)[1] == pytest.approx(own, abs=1e-6)
    # around the mode it is the identity
    np.testing.assert_allclose(map_.white(map_.mode + step)[0], map_.mode + step, atol=1e-10)


def test_normal_priors_are_sampled_as_before() -> None:
    table = {"y": np.arange(20) % 2, "x": np.arange(20.0)}
    one = consortia.regression("y ~ x", {"a": table, "b": table}, family="bernoulli")
    assert sorted(one.model.init) == ["coefficients", "intercept"]
    assert one.model.tails == {}
