"""NumPy's evaluation of formulas against JAX's, at many points: values, slopes and sums of rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import consortia
from consortia.core.arrays import softplus
from consortia.core.host import Flat
from consortia.core.target import Target
from consortia.models.regression import evaluation
from consortia.models.regression.families import FAMILIES
from tests.refusals import refused

ROWS = 40


def table(family: str, rows: int = ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    """Return a table that any formula of these tests can use."""
    rng = np.random.default_rng(seed)
    count, base = rng.poisson(2.0, rows), FAMILIES[family].response
    y: Any = {
        "number": 10 + 3 * rng.normal(size=rows),
        "two": count % 2,
        "count": count,
        "share": rng.uniform(0.05, 0.95, rows),
        "positive": rng.gamma(2.0, 1.0, rows),
        "ordered": np.arange(rows) % 4,
        "levels": np.arange(rows) % 3,
        "time": rng.exponential(2.0, rows),
    }[base]
    columns = {"y": y, "x": rng.normal(size=rows), "z": rng.normal(50, 9, rows)}
    columns |= {"arm": np.array(list("abc"))[np.arange(rows) % 3], "n": count + 4.0}
    columns |= {"w": rng.uniform(0.5, 2.0, rows), "ward": np.arange(rows) % 4}
    return columns | {"event": (np.arange(rows) % 3 > 0).astype(float)}


def made(family: str, terms: str, sites: int = 2, rows: int = ROWS, **more: Any) -> Any:
    response = "y"
    if FAMILIES[family].response == "time":
        response = "Surv(y, event)"
    if FAMILIES[family].response in ("ordered", "levels"):
        more["levels"] = {"y": sorted(set(table(family)["y"].tolist()))}
    if FAMILIES[family].base == "binomial":
        more["trials"] = "n"
    if family != "cox" and "weights" not in more:
        more["weights"] = "w"
    tables = {f"site{k}": table(family, rows + 3 * k, k) for k in range(sites)}
    return consortia.regression(f"{response} ~ {terms}", tables, family=family, **more)


def points(regression: Any, count: int = 7) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return parameters near the start by name, and as flat positions."""
    rng = np.random.default_rng(5)
    start = regression.model.init
    params = {
        name: np.asarray(values) + 0.3 * rng.normal(size=(count, *np.shape(values)))
        for name, values in sorted(start.items())
    }
    flat = [values.reshape(count, -1) for values in params.values()]
    return params, np.concatenate(flat, axis=1)


def compiled(regression: Any, rows: Any, params: dict[str, np.ndarray]) -> np.ndarray:
    """Return the log-likelihoods of a site's rows as JAX has them."""
    model, mask = regression.model, np.ones(len(rows["y"]), bool)

    def value(at: Any) -> jax.Array:
        if model.by_site:
            return model.site_log_likelihood(at, rows, mask)
        return jnp.sum(model.log_likelihood(at, rows))

    return np.asarray(jax.jit(jax.vmap(value))(jax.tree.map(jnp.asarray, params)))


@pytest.mark.parametrize("family", FAMILIES)
def test_both_libraries_give_every_family_the_same_density(family: str, x64: None) -> None:
    regression = made(family, "x + z + arm")
    params, flat = points(regression)
    prior = np.asarray(jax.vmap(regression.model.log_prior)(jax.tree.map(jnp.asarray, params)))
    target = Target(regression.model, regression.model.init)
    np.testing.assert_allclose(target.log_priors(flat), prior, rtol=1e-10)
    for rows in regression.sites:
        values = regression.model.host.site(rows).values(params, None)
        # JAX's log B(a, b) has eight digits
        np.testing.assert_allclose(values, compiled(regression, rows, params), rtol=1e-7)


HEAVY = {"intercept": "student_t(3, 1, 2)", "x": "cauchy(0.5, 2)"}
"""Priors by whose scores these are sampled, beside normal ones."""

HIERARCHIES = [
    ("bernoulli", "x + (1 | site)", {}),
    ("bernoulli", "x + (1 + x | site)", {"integrate": True}),
    ("poisson", "x + arm + (1 + x || site)", {"integrate": True}),
    ("bernoulli", "x + arm + (arm | site)", {}),
    ("gaussian", "x + (1 | site:ward)", {}),
    ("gaussian", "x + (1 + x | site) + offset(n)", {"integrate": True}),
    ("gaussian", "s(x) + (1 + z || site:ward)", {}),
    ("gaussian", "arm + (1 | site)", {"integrate": True, "prior": {"arm": "cauchy(0, 1)"}}),
    ("student", "s(x)", {}),
    ("categorical", "x + (1 + x | site)", {}),
    ("ordinal", "z + (1 | site)", {"integrate": True}),
    ("weibull", "x + (1 | site)", {"integrate": True}),
    ("negative_binomial", "x + (1 | site)", {"integrate": True}),
    ("bernoulli", "x + (1 + x | site)", {"integrate": True, "prior": HEAVY}),
    ("categorical", "x + arm", {"prior": HEAVY}),
]


@pytest.mark.parametrize(("family", "terms", "more"), HIERARCHIES)
def test_levels_smooths_and_correlations_are_the_same(
    family: str, terms: str, more: dict[str, Any], x64: None
) -> None:
    regression = made(family, terms, **more)
    params, flat = points(regression)
    of_one = jax.vmap(regression.model.log_prior)(jax.tree.map(jnp.asarray, params))
    target = Target(regression.model, regression.model.init)
    np.testing.assert_allclose(target.log_priors(flat), np.asarray(of_one), rtol=1e-10)
    natural = jax.vmap(regression.model.natural)(jax.tree.map(jnp.asarray, params))
    for name, values in regression.model.natural(params).items():
        np.testing.assert_allclose(values, np.asarray(natural[name]), rtol=1e-9, atol=1e-12)
    for rows in regression.sites:
        values = regression.model.host.site(rows).values(params, None)
        wanted = compiled(regression, rows, params)
        # the searches for the mode end a last step apart, to which a rule of 15 nodes is blind
        np.testing.assert_allclose(values, wanted, atol=1e-4)


def test_the_nodes_that_a_user_insists_on_are_taken(x64: None) -> None:
    made_with_two = made("bernoulli", "x + (1 | site)", rows=4, integrate=True, nodes=2)
    params, _ = points(made_with_two)
    params["log_sd"] = params["log_sd"] + 1.5
    rows = made_with_two.sites.site(0)
    site = made_with_two.model.host.site(rows)
    wanted = compiled(made_with_two, rows, params)
    assert np.abs(site.values(params, 15) - wanted).max() > 1e-3
    np.testing.assert_allclose(site.values(params, None), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "terms", "more"),
    [
        ("gaussian", "x + z", {}),
        ("bernoulli(cloglog)", "x + (1 + x | site)", {}),
        ("beta", "x + (1 | site)", {"integrate": True}),
        ("categorical", "x + arm", {}),
        ("ordinal", "x", {}),
        ("cox", "x + z", {}),
        ("zero_inflated_poisson", "x + (1 | site:ward)", {}),
        ("bernoulli", "x + z + arm + x:z", {"prior": HEAVY}),
        ("categorical", "x + arm", {"prior": HEAVY}),
        ("gaussian", "x + z", {"prior": HEAVY}),
    ],
)
def test_gradients_and_curvatures_of_a_site_are_those_of_jax(
    family: str, terms: str, more: dict[str, Any], x64: None
) -> None:
    regression = made(family, terms, **more)
    _, flat = points(regression, 3)
    target, rows = Target(regression.model, regression.model.init), regression.sites.site(0)
    site = target.host_site(rows, len(rows["y"]), 0.5)
    mask = np.ones(len(rows["y"]), bool)

    def potential(position: jax.Array) -> jax.Array:
        total = jnp.sum(target.summands(position, rows, mask))
        return -total - 0.5 * target.log_prior(position)

    each = jax.jit(jax.vmap(jax.value_and_grad(potential)))
    values, gradients = (np.asarray(part) for part in each(jnp.asarray(flat)))
    size = np.abs(gradients).max()
    np.testing.assert_allclose(site.potentials(flat), values, rtol=1e-6)
    # an integral's gradient is that of the integral here, and of a rule with held nodes there
    np.testing.assert_allclose(site.gradients(flat), gradients, atol=1e-4 * size)
    matrices = np.asarray(jax.jit(jax.vmap(jax.hessian(potential)))(jnp.asarray(flat)))
    if not target.model.by_site:  # second derivatives of a rule with held nodes are others
        bound = 1e-4 * np.abs(matrices).max()
        np.testing.assert_allclose(site.derivatives(flat).matrices, matrices, atol=bound)


@pytest.mark.parametrize("terms", ["x + (1 + x | site)", "x + (1 | site:ward)"])
def test_no_difference_is_taken_of_rows_in_single_precision(
    terms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    regression = made("bernoulli", terms, weights=None)
    _, flat = points(regression, 3)
    target, rows = Target(regression.model, regression.model.init), regression.sites.site(0)
    site = target.host_site(rows, len(rows["y"]), 0.5)
    few = site.derivatives(flat)
    monkeypatch.setattr(evaluation, "FEW_VALUES", 0)
    many = site.derivatives(flat)
    for each, same in zip(many, few, strict=True):
        np.testing.assert_array_equal(each, same)
    rounded = site.potentials(flat, single=True) - few.values
    assert 0 < np.abs(rounded).max() < 1e-4


@pytest.mark.parametrize("family", [name for name, one in FAMILIES.items() if one.slopes])
def test_slopes_are_those_of_the_log_likelihood(family: str) -> None:
    regression = made(family, "x")
    params, _ = points(regression, 2)
    (rows, *_), density = regression.sites, regression.density
    slopes = FAMILIES[family].slopes
    assert slopes is not None
    own = density._own(params)
    eta = density.predictor(params, rows)
    step = 1e-4

    def at(moved: np.ndarray) -> np.ndarray:
        return FAMILIES[family].log_likelihood(moved, rows, own)

    first, second = slopes(eta, rows, own)
    if density.lead:
        for k in range(eta.shape[-1]):
            along = step * np.eye(eta.shape[-1])[k]
            change = (at(eta + along) - at(eta - along)) / (2 * step)
            np.testing.assert_allclose(first[..., k], change, rtol=1e-5, atol=1e-7)
            high, low = (slopes(eta + sign * along, rows, own)[0] for sign in (1, -1))
            np.testing.assert_allclose(second[..., k], (high - low) / (2 * step), atol=1e-6)
        return
    change = (at(eta + step) - at(eta - step)) / (2 * step)
    np.testing.assert_allclose(first, change, rtol=1e-5, atol=1e-6)
    high, low = (slopes(eta + sign * step, rows, own)[0] for sign in (1, -1))
    np.testing.assert_allclose(second, (high - low) / (2 * step), rtol=1e-5, atol=1e-6)


def test_a_thousand_points_in_single_precision_are_within_two_thousandths(x64: None) -> None:
    regression = made("bernoulli", "x + z + arm + (1 + x | site)", integrate=True, rows=300)
    params, _ = points(regression, 1000)
    rows = regression.sites.site(0)
    site = regression.model.host.site(rows)
    assert evaluation.in_single(regression.density, rows) is not None
    values = site.values(params, None)
    np.testing.assert_allclose(values, compiled(regression, rows, params), atol=2e-3)


def test_equal_rows_are_one_row_with_a_count() -> None:
    rng = np.random.default_rng(3)
    cells = {"y": rng.integers(0, 2, 600), "arm": np.array(list("ab"))[rng.integers(0, 2, 600)]}
    tables = {"a": cells, "b": {name: values[:90] for name, values in cells.items()}}
    for formula, more in (("y ~ arm", {}), ("y ~ arm + (1 | site)", {"integrate": True})):
        regression = consortia.regression(formula, tables, family="bernoulli", **more)
        params, _ = points(regression)
        rows = regression.sites.site(0)
        few = evaluation.counted(rows)
        assert len(few["y"]) == 4
        assert few["weight"].sum() == 600
        apart = evaluation.RowByRow(regression.density, rows)
        together = regression.model.host.site(rows)
        np.testing.assert_allclose(together.values(params, 15), apart.values(params, 15), rtol=1e-9)
        for name, slopes in apart.slopes(params, 15).items():
            np.testing.assert_allclose(together.slopes(params, 15)[name], slopes, rtol=1e-7)


def test_sums_and_blocks_of_rows_are_the_sums_over_rows() -> None:
    rows = evaluation.ROWS_AT_ONCE + 3
    for family, way in (("gaussian", "sums"), ("bernoulli", "NumPy")):
        regression = made(family, "x + z", sites=1, rows=rows)
        params, _ = points(regression)
        table = regression.sites.site(0)
        site = regression.model.host.site(table)
        assert site.way == way == regression.model.host.way(rows)
        whole = regression.density.log_likelihood(params, table).sum(axis=-1)
        np.testing.assert_allclose(site.values(params, None), whole, rtol=1e-10)


def by_covariance(density: Any, rows: Any, params: dict[str, np.ndarray]) -> list[float]:
    """Return log-likelihoods of gaussian rows with levels, by the covariance of the rows."""
    mean, S = density.predictor(params, rows), np.asarray(rows["slopes"], float)
    same = np.equal.outer(*2 * [rows.get("group", np.zeros(len(S)))])
    values = []
    for k, A in enumerate(density.group_scale(params, density.specification.staying)):
        noise = np.exp(2 * params["log_sigma"][k]) * np.eye(len(S))
        law = scipy.stats.multivariate_normal(mean[k], (S @ A) @ (S @ A).T * same + noise)
        values.append(law.logpdf(rows["y"]))
    return values


@pytest.mark.parametrize("group", ["site", "site:ward"])
def test_levels_of_a_gaussian_response_are_integrated_out_without_a_rule(group: str) -> None:
    more = {"integrate": True} if group == "site" else {}
    regression = made("gaussian", f"x + (1 + x || {group})", weights=None, **more)
    params, _ = points(regression)
    params["log_sd"] = params["log_sd"] + np.linspace(0, 6, 7)[:, None]  # levels far from zero
    params["log_sigma"] = params["log_sigma"] - np.linspace(0, 4, 7)
    rows = regression.sites.site(0)
    site = regression.model.host.site(rows)
    assert site.way == "sums"
    wanted = by_covariance(regression.density, rows, params)
    np.testing.assert_allclose(site.values(params, 3), wanted, rtol=1e-7)
    assert not site.errors(params, (5, 36)).any()
    flat = Flat({name: values[0] for name, values in params.items()}, {})
    positions = np.concatenate([params[name].reshape(7, -1) for name in sorted(params)], axis=1)

    def values_at(moved: np.ndarray) -> np.ndarray:
        return site.values(flat.params(moved), 3)

    given = flat.gradients(lambda at: site.slopes(at, 3), values_at, positions)
    differences = flat.gradients(lambda at: {}, values_at, positions)
    np.testing.assert_allclose(given, differences, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 30])
@pytest.mark.parametrize("correlated", ["|", "||"])
def test_columns_of_levels_that_depend_on_one_another_are_no_fault(
    rows: int, correlated: str
) -> None:
    rng = np.random.default_rng(0)
    tables = {
        name: {"y": 5 + rng.normal(size=n), "arm": arm(n), "dose": 1e7 * rng.normal(size=n)}
        for name, n, arm in (
            ("all treated", rows, np.ones),
            ("both", 40, lambda n: np.arange(n) % 2),
            ("others", 40, lambda n: np.arange(n) % 2),
        )
    }
    formula = f"y ~ arm + dose + (1 + arm + dose {correlated} site)"
    regression = consortia.regression(formula, tables, family="gaussian")
    params, _ = points(regression)
    for index in range(2):
        table = regression.sites.site(index)
        values = regression.model.host.site(table).values(params, None)
        wanted = by_covariance(regression.density, table, params)
        np.testing.assert_allclose(values, wanted, rtol=1e-8)
        site, rank = regression.model.host.site(table), 1 if rows == 1 else 2
        ends = [
            site.values(params | {"log_sd": params["log_sd"] + by}, None) for by in (30, 100, 200)
        ]
        if not index:  # the density falls by the power of the spread that the rows tell
            np.testing.assert_allclose((ends[2] - ends[1]) / 100, -rank, rtol=0.05)
        assert np.isfinite(ends).all()


def test_a_rule_of_three_dimensions_is_exact_for_a_gaussian_response(x64: None) -> None:
    regression = made("gaussian", "x + (1 + x + z | site)")
    params, _ = points(regression)
    for table in regression.sites:
        exact = regression.model.host.site(table).values(params, None)
        rule = evaluation.RowByRow(regression.density, table)
        for nodes in (5, 7):
            np.testing.assert_allclose(rule.values(params, nodes), exact, rtol=1e-9)
        np.testing.assert_allclose(compiled(regression, table, params), exact, rtol=1e-9)


def test_who_evaluates_follows_from_the_rows_and_from_what_the_user_wants() -> None:
    host = made("bernoulli", "x").model.host
    assert (host.way(400), host.way(10**7)) == ("NumPy", "compiled")
    assert made("gaussian", "x").model.host.way(10**7) == "sums"
    assert made("gaussian", "x + (1 | site:ward)").model.host.way(10**7) == "sums"
    within = made("student", "x + (1 | site:ward)").model.host
    few, many = evaluation.MOST_SITES, evaluation.MOST_SITES + 1
    assert [within.way(400, sites) for sites in (1, few, many)] == ["NumPy", "NumPy", "compiled"]
    assert made("gaussian", "x", evaluate="compiled").model.host.way(400) == "compiled"
    with refused(argument="evaluate"):
        made("gaussian", "x", evaluate="fast")


def test_softplus_does_not_overflow() -> None:
    for dtype in (np.float32, np.float64):
        values = np.array([-800.0, -20.0, 0.0, 3.0, 79.0, 800.0], dtype)
        wanted = np.logaddexp(values.astype(float), 0)
        np.testing.assert_allclose(softplus(values), wanted, atol=1e-7, rtol=1e-6)
