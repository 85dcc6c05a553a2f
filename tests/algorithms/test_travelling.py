"""DSGLD and FSGLD: one visit against its equations, identities, bad input.

Planted mistakes and what finds them: no 1/f_s, the other sign of g_s, the number of all rows for
that of the site, no prior: `test_a_visit_follows_the_equations`, whose reference is told apart from
each of them by `test_the_reference_tells_the_planted_mistakes_apart`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import consortia
from consortia.algorithms.travelling import Chain
from consortia.core import random
from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.engines.buffers import Window
from consortia.errors import InputError, NonFiniteError
from consortia.surrogates import Gaussian, Recipe
from tests.refusals import refused

SIZES, SHARES = (8, 5, 7), (0.5, 0.2, 0.3)
H, STEPS, BATCH = 3e-3, 6, 4
PRIOR_MEAN, PRIOR_PRECISION = np.array([0.5, -1.0]), np.array([1.5, 0.7])


def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.normal(size=(size, 2)) + 2 * rng.normal(size=2) for size in SIZES]


def gaussians() -> list[Gaussian]:
    rng = np.random.default_rng(8)
    return [
        Gaussian.from_precision(x.mean(axis=0) + 0.3 * rng.normal(size=2), [[6.0, c], [c, 4.0]])
        for x, c in zip(rows(), (0.3, -1.0, 2.0), strict=True)
    ]


def model(dtype: Any = np.float64) -> consortia.Model:
    def log_prior(theta: Any) -> Any:
        prior = jnp.asarray(PRIOR_PRECISION, theta.dtype), jnp.asarray(PRIOR_MEAN, theta.dtype)
        return -0.5 * jnp.sum(prior[0] * (theta - prior[1]) ** 2)

    def log_likelihood(theta: Any, batch: Any) -> Any:
        return -0.5 * jnp.sum((batch["x"] - theta[None, :]) ** 2, axis=1)

    return consortia.Model(log_prior, log_likelihood, np.zeros(2, dtype))


MODEL = model(np.float32)
"""One object, so that runs share their compiled programs."""


def sites() -> consortia.Sites:
    return consortia.Sites.from_list(
        [{"x": x.astype(np.float32)} for x in rows()], names=["north", "east", "south"]
    )


def draws(method: Any, **options: Any) -> np.ndarray:
    arguments: dict[str, Any] = {"chains": 1, "rounds": 12, "progress": False, "seed": 4} | options
    return np.asarray(consortia.sample(MODEL, sites(), method, **arguments)["posterior"]["theta"])


# --- one visit -----------------------------------------------------------------------------------


def one_visit(method: Any, node: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """End of a visit at a node from the point (0.2, 0.4), and the rows and noise it used."""
    target = Target(model(), np.zeros(2))
    phase = method.build(target).phases[0]
    key = random.node_key(jnp.asarray(random.base_key(1)), node)
    noise, shared = jax.jit(
        lambda key: [random.declared(d, key, 0, 0, None) for d in (phase.noise, phase.shared)]
    )(key)
    data = np.zeros((3, max(SIZES), 2))
    for place, x in zip(data, rows(), strict=True):
        place[: len(x)], place[len(x) :] = x, x[0]
    size = jnp.asarray(SIZES[node], jnp.int32)
    share = jnp.asarray(method.site_weights(np.array(SIZES))[node])
    assert method.prior_shares(np.array(SIZES))[node] == share
    number = jnp.asarray(node)
    site = Site({"x": jnp.asarray(data)}, size, share, share, (), number, number)
    begin = Chain(jnp.array([0.2, 0.4]), ())
    _, (end, _), _ = jax.jit(lambda *drawn: phase.local(*drawn, (), begin, site))(noise, shared)
    index = jax.jit(lambda words: site.index(words, replace=method.replace))(noise.gradient)
    return np.asarray(end), np.asarray(index)[:, 0], np.asarray(noise.normal)


def reference(
    node: int,
    index: np.ndarray,
    normal: np.ndarray,
    strength: float,
    *,
    shares: Any = SHARES,
    rows_of_site: Any = SIZES,
    divided: bool = True,
    prior: bool = True,
) -> np.ndarray:
    """The equations of the algorithm, written out; the options are planted mistakes."""
    f = shares[node] if divided else 1.0
    x, given = rows()[node], gaussians()
    theta = np.array([0.2, 0.4])
    for chosen, xi in zip(index, normal, strict=True):
        batch = (x[chosen] - theta).sum(axis=0)
        d = rows_of_site[node] / len(chosen) / f * batch
        if prior:
            d = d - PRIOR_PRECISION * (theta - PRIOR_MEAN)
        each = [q.precision @ (q.mean - theta) for q in given]
        g = np.sum(each, axis=0) - each[node] / f
        theta = theta + H / 2 * (d + strength * g) + np.sqrt(H) * xi
    return theta


METHODS = {
    "dsgld": (0.0, lambda **more: consortia.dsgld(H, STEPS, BATCH, **more)),
    "fsgld": (1.0, lambda **more: consortia.fsgld(H, STEPS, BATCH, surrogate=gaussians(), **more)),
    "strength": (
        0.4,
        lambda **more: consortia.fsgld(
            H, STEPS, BATCH, surrogate=gaussians(), strength=0.4, **more
        ),
    ),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("kind", METHODS)
def test_a_visit_follows_the_equations(kind: str, replace: bool, node: int):
    strength, make = METHODS[kind]
    end, index, normal = one_visit(make(probabilities=SHARES, replace=replace), node)
    if not replace:
        assert all(len(set(chosen)) == BATCH for chosen in index.tolist())
    np.testing.assert_allclose(end, reference(node, index, normal, strength), rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_probabilities_are_the_shares_of_the_rows_unless_given():
    end, index, normal = one_visit(METHODS["fsgld"][1](), 1)
    shares = np.array(SIZES) / sum(SIZES)
    np.testing.assert_allclose(end, reference(1, index, normal, 1.0, shares=shares), rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "mistake",
    [
        {"divided": False},
        {"strength": -1.0},
        {"rows_of_site": (sum(SIZES),) * 3},
        {"prior": False},
    ],
    ids=["no 1/f_s", "sign of g", "N for N_s", "no prior"],
)
def test_the_reference_tells_the_planted_mistakes_apart(mistake: dict[str, Any]):
    end, index, normal = one_visit(METHODS["fsgld"][1](probabilities=SHARES), 1)
    wrong = reference(1, index, normal, **({"strength": 1.0} | mistake))
    assert np.abs(wrong - end).max() > 1e-3


# --- identities ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("off", "chains"),
    [
        ({"strength": 0.0}, 1),
        ({"surrogate": None}, 3),
        ({"strength": 0.0, "surrogate": gaussians()}, 3),
    ],
)
def test_without_conducive_gradients_it_is_dsgld_bit_for_bit(off: dict[str, Any], chains: int):
    plain = draws(consortia.dsgld(H, STEPS, BATCH), chains=chains)
    off_again = draws(consortia.fsgld(H, STEPS, BATCH, **off), chains=chains)
    np.testing.assert_array_equal(off_again, plain)


def test_with_conducive_gradients_it_is_not_dsgld():
    plain = draws(consortia.dsgld(H, STEPS, BATCH))
    assert np.abs(draws(consortia.fsgld(H, STEPS, BATCH)) - plain).max() > 1e-3


def test_the_exact_surrogates_agree_however_they_are_made():
    # On Gaussian rows the anchored and the Laplace surrogate are the likelihood itself. Single
    # precision: 72 updates of numbers of order one, so some 1e-6; the ridge moves a site's
    # Gaussian by 1e-6 / 5.
    exact = [Gaussian(x.mean(axis=0), 1 / len(x)) for x in rows()]
    wanted = draws(consortia.fsgld(H, STEPS, BATCH, surrogate=exact))
    laplace = Recipe("laplace", ridge=1e-6)
    for surrogate, covariance in (("anchored", "full"), (laplace, "diagonal")):
        method = consortia.fsgld(H, STEPS, BATCH, surrogate=surrogate, covariance=covariance)
        np.testing.assert_allclose(draws(method), wanted, atol=2e-5)


def test_each_update_is_recorded_and_the_last_of_a_visit_is_its_end():
    arguments: dict[str, Any] = {"surrogate": "anchored", "probabilities": SHARES}
    visits = draws(consortia.fsgld(H, STEPS, BATCH, **arguments), chains=2)
    updates = draws(consortia.fsgld(H, STEPS, BATCH, record="updates", **arguments), chains=2)
    assert updates.shape == (2, 12 * STEPS, 2)
    # another program may round differently
    np.testing.assert_allclose(updates[:, STEPS - 1 :: STEPS], visits, rtol=1e-5)
    assert np.all(np.any(np.diff(updates, axis=1) != 0, axis=-1))


def test_thinned_updates_are_every_so_many_updates():
    method = consortia.dsgld(H, STEPS, BATCH, record="updates")
    every = draws(method)
    np.testing.assert_allclose(draws(method, thin=4), every[:, 3::4], rtol=1e-5)


def test_one_update_a_visit_is_recorded_alike_either_way():
    visits = draws(consortia.dsgld(H, 1, BATCH), rounds=30)
    np.testing.assert_array_equal(
        draws(consortia.dsgld(H, 1, BATCH, record="updates"), rounds=30), visits
    )


def test_a_step_size_that_falls_weighs_the_draws_by_it():
    method = consortia.dsgld([H / (1 + r) for r in range(12)], 2)
    tree = consortia.sample(MODEL, sites(), method, rounds=12, progress=False, chains=1)
    weight = np.asarray(tree["sample_stats"]["weight"])
    np.testing.assert_allclose(weight, [H / (1 + r) / 2 for r in range(12)], rtol=1e-6)


def test_the_cost_is_that_of_one_site():
    sizes = np.array(SIZES)
    cost = consortia.dsgld(H, STEPS, BATCH).cost(sizes, 3)
    assert (cost.gradients, cost.row_gradients) == (STEPS, STEPS * BATCH)
    whole = consortia.dsgld(H, STEPS, probabilities=SHARES).cost(sizes, 3)
    # 0.5 · 8 + 0.2 · 5 + 0.3 · 7 = 7.1 rows on average
    assert whole.row_gradients == STEPS * 7


def largest_array_made(method: Any) -> int:
    """Numbers in the largest array that a program of two chains computes, by its trace."""
    rng = np.random.default_rng(0)
    shards = [{"x": rng.normal(size=(100_000, 2)).astype(np.float32)} for _ in range(3)]
    wide = consortia.Sites.from_list(shards)
    run = consortia.LocalEngine().prepare(Target(MODEL, np.zeros(2)), wide, method, 2)
    carry = run.start(0, jnp.zeros((2, 2)), 5, 0)
    arguments = (carry, run.buffers(carry), run._arrays, run.keys, Window(*map(np.int32, range(5))))

    def sizes(jaxpr: Any) -> Any:
        for equation in jaxpr.eqns:
            yield from (variable.aval.size for variable in equation.outvars)
            for inner in jaxprs_in_params(equation.params):
                yield from sizes(inner)

    return max(sizes(jax.make_jaxpr(run.program._advance)(*arguments).jaxpr))


def test_only_the_rows_of_a_minibatch_are_read_of_a_visited_site():
    given = [Gaussian([0.0, 0.0], 1.0)] * 3
    assert largest_array_made(consortia.fsgld(H, STEPS, BATCH, surrogate=given)) < 100_000
    # The negative control: a full batch does read a shard for each chain.
    assert largest_array_made(consortia.fsgld(H, STEPS, surrogate=given)) >= 2 * 200_000


def test_a_record_names_the_given_surrogates_by_their_numbers():
    parameters = consortia.fsgld(H, STEPS, surrogate=gaussians()).parameters()
    first = parameters["surrogate"][0]
    np.testing.assert_allclose(first["mean"], gaussians()[0].mean)
    np.testing.assert_allclose(first["precision"], gaussians()[0].precision)


# --- what cannot run -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "argument", "match"),
    [
        ({"probabilities": [0.5, 0.5, 0.0]}, "probabilities", "site 2.*is 0.0"),
        ({"probabilities": [0.5, 0.6, -0.1]}, "probabilities", "site 2"),
        ({"probabilities": [0.5, 0.4, 0.2]}, "probabilities", "to 1.1"),
        ({"probabilities": "even"}, "probabilities", "probabilities must be"),
        ({"probabilities": []}, "probabilities", "probabilities has shape"),
        ({"local_steps": 0}, "local_steps", "local_steps is 0"),
        ({"local_steps": 2.5}, "local_steps", "is 2.5"),
        ({"batch_size": 0}, "batch_size", "batch_size is 0"),
        ({"record": "everything"}, "record", "'everything'"),
        ({"strength": -0.5}, "strength", "strength is -0.5"),
        ({"covariance": "low-rank"}, "covariance", "'low-rank'"),
        ({"surrogate": "mode"}, "surrogate", "'mode'"),
        ({"step_size": 0.0}, "step_size", None),
    ],
)
def test_a_bad_argument_is_refused_by_its_name(
    arguments: dict[str, Any], argument: str, match: str | None
):
    with refused(argument=argument, match=match):
        consortia.fsgld(**({"step_size": H, "local_steps": STEPS} | arguments))


@pytest.mark.parametrize(
    ("arguments", "argument", "match"),
    [
        ({"probabilities": [0.5, 0.5]}, "probabilities", "2.*for 3"),
        ({"surrogate": gaussians()[:2]}, "surrogate", "2.*for 3"),
        ({"surrogate": [Gaussian([0.0] * 3, 1.0)] * 3}, "surrogate", "'north'.*for 3"),
        ({"batch_size": 6, "replace": False}, "batch_size", "'east'.*only 5"),
        ({"batch_size": 6}, "batch_size", "'east'.*only 5"),
    ],
)
def test_what_does_not_fit_the_sites_is_refused(
    arguments: dict[str, Any], argument: str, match: str
):
    with refused(argument=argument, match=match):
        draws(consortia.fsgld(H, STEPS, **arguments))


def test_full_covariances_beyond_memory_are_refused():
    method = consortia.fsgld(H, STEPS)
    with refused(argument="covariance", match="covariance='diagonal'"):
        method.check(np.full(30, 100), tuple(f"site {i}" for i in range(30)), 10_000)
    consortia.fsgld(H, STEPS, covariance="diagonal").check(
        np.full(30, 100), tuple(f"site {i}" for i in range(30)), 10_000
    )


# --- divergence ----------------------------------------------------------------------------------


def narrow(variance: float) -> list[Gaussian]:
    """Gaussians of which that of the first site is too narrow: rows there have the variance 1/8."""
    return [Gaussian(x.mean(axis=0), v) for x, v in zip(rows(), (variance, 0.2, 0.2), strict=True)]


NARROW_SHARES = (0.2, 0.4, 0.4)


@pytest.mark.parametrize(
    ("surrogate", "kind"),
    [
        (narrow(0.01), "surrogate given"),
        (Recipe("sgld_moments", draws=20, warmup=0, step_size=1e-6), "surrogate 'sgld_moments'"),
    ],
)
def test_surrogates_with_which_the_chain_diverges_are_refused_before_the_run(
    surrogate: Any, kind: str
):
    method = consortia.fsgld(H, 60, BATCH, surrogate=surrogate, probabilities=NARROW_SHARES)
    with pytest.raises(InputError, match=f"^{kind}: at site '.*away from the posterior"):
        draws(method)


def test_surrogates_with_which_the_chain_diverges_run_where_a_warning_is_asked_for():
    options = {"surrogate": narrow(0.01), "probabilities": NARROW_SHARES, "examination": "warn"}
    method = consortia.fsgld(H, 60, BATCH, **options)
    with (
        pytest.warns(UserWarning, match="^surrogate given: at site '.*away from the posterior"),
        pytest.raises(NonFiniteError),
    ):
        draws(method, rounds=200)


def test_a_surrogate_that_drives_chains_away_for_a_while_is_a_warning():
    method = consortia.fsgld(H, STEPS, BATCH, surrogate=narrow(0.05), probabilities=NARROW_SHARES)
    with pytest.warns(UserWarning, match=r"at site 'north' .* by exp\(0\.26\) a visit"):
        draws(method)


def flattening() -> tuple[consortia.Model, consortia.Sites]:
    """Likelihoods that are quadratic within 0.15 and linear beyond, of 150 and 50 rows at zero."""

    def log_likelihood(theta: Any, batch: Any) -> Any:
        deviation = (batch["x"] - theta[None, :]) / 0.15
        return -(0.15**2) * jnp.sum(jnp.sqrt(1 + deviation**2) - 1, axis=1)

    model = consortia.Model(
        lambda theta: -0.5 * jnp.sum(theta**2), log_likelihood, np.zeros(2, np.float32)
    )
    shards = [{"x": np.zeros((count, 2), np.float32)} for count in (150, 50)]
    return model, consortia.Sites.from_list(shards, names=["north", "south"])


@pytest.mark.slow
def test_a_chain_that_runs_away_ends_the_run_and_is_explained():
    # In the middle the surrogates are the likelihoods. Further out, where a chain comes now and
    # then, that of the north is far too narrow.
    model, both = flattening()
    arguments: dict[str, Any] = {"rounds": 2000, "chains": 1, "seed": 1, "progress": False}
    method = consortia.fsgld(1e-4, 500, probabilities=(0.5, 0.5))
    with refused(NonFiniteError, site="north", match="the correction drives") as caught:
        consortia.sample(model, both, method, **arguments)
    kept = np.asarray(caught.value.tree["posterior"]["theta"])
    assert kept.shape[1] == caught.value.round > 0
    # A thousand deviations of the surrogate, 1 / sqrt(200), in each of two directions.
    assert np.abs(kept).max() < 1.01 * np.sqrt(2) * 1000 / np.sqrt(200)
    np.testing.assert_array_equal(caught.value.position, kept[0, -1])
    # The negative control: fewer steps a visit, and nothing runs away.
    shorter = consortia.fsgld(1e-4, 100, probabilities=(0.5, 0.5))
    tree = consortia.sample(model, both, shorter, **arguments)
    assert np.abs(np.asarray(tree["posterior"]["theta"])).max() < 1


def test_a_step_size_that_is_too_large_in_mid_run_is_called_that():
    steps = np.full(40, H)
    steps[20:] = 1.0  # 4 over the curvature, 21.5, is 0.19
    with refused(NonFiniteError, site="east", match="step_size") as caught:
        draws(consortia.fsgld(steps, STEPS, BATCH), rounds=40)
    assert "drives" not in str(caught.value)
    assert caught.value.round >= 20


def test_the_end_of_a_chain_without_surrogates_is_not_laid_upon_them():
    with pytest.raises(NonFiniteError) as caught:
        draws(consortia.dsgld(1.0, STEPS, BATCH), rounds=100)
    assert "surrogate" not in str(caught.value)
