"""LOO and WAIC from sums that leave the sites, against ArviZ on pooled rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import consortia
from consortia.diagnostics import leave_one_site_out
from consortia.diagnostics.site_sums import compared, side_by_side, told_by_sites
from consortia.engines.local import LocalEngine
from tests.refusals import refused

RNG = np.random.default_rng(0)
N, CUTS = 60, (30, 59)
X = RNG.normal(size=N)
Y = RNG.poisson(np.exp(0.3 + 0.5 * X)).astype(float)
Y[7] = 25.0  # an outlier, with a large k-hat
SITES = {
    name: {"x": part[0], "y": part[1]}
    for name, part in zip(
        ("oslo", "lima", "bern"),
        zip(np.split(X, CUTS), np.split(Y, CUTS), strict=True),
        strict=True,
    )
}


def fitted(right: str, family: str = "poisson", **more: Any) -> tuple[Any, dict[str, np.ndarray]]:
    made = consortia.regression(f"y ~ {right}", SITES, family=family, **more)
    params = {
        name: np.asarray(0.1 * RNG.normal(size=(2, 300, *np.shape(start))) + start, np.float32)
        for name, start in made.model.init.items()
    }
    return made, params


ONE, OTHER = fitted("x"), fitted("1")
RESULTS = {
    name: (draws, made.model, made.sites) for name, (made, draws) in (("x", ONE), ("1", OTHER))
}


def reads(sites: consortia.Sites, which: list[int]) -> consortia.Sites:
    """Return the sites as a process knows them that reads some of them."""
    elsewhere = frozenset(range(len(sites))) - set(which)
    return replace(sites, elsewhere=elsewhere)


def pointwise(made: Any, draws: Any) -> np.ndarray:
    """Return the log-likelihood of pooled rows, (chain, draw, rows)."""
    pooled = made.sites.pooled()
    of_draw = jax.vmap(jax.vmap(lambda one: made.model.log_likelihood(one, pooled)))
    return np.asarray(jax.jit(of_draw)(draws), float)


def test_the_sums_are_those_of_arviz_on_pooled_rows() -> None:
    arviz_stats = pytest.importorskip("arviz_stats")
    import xarray

    found = consortia.loo(RESULTS)
    terms = []
    for place, (made, draws) in enumerate((ONE, OTHER)):
        values = pointwise(made, draws)
        array = xarray.DataArray(values, dims=("chain", "draw", "row"))
        tree = xarray.DataTree.from_dict(
            {
                "/log_likelihood": xarray.Dataset({"y": array}),
                "/posterior": xarray.Dataset({"a": array[..., 0]}),
            }
        )
        with pytest.warns(UserWarning, match="shape parameter of Pareto distribution"):
            wanted = arviz_stats.loo(tree, pointwise=True, reff=1.0)
        assert found.sums[place] == pytest.approx(wanted.elpd, rel=1e-4)
        assert found.parameters[place] == pytest.approx(wanted.p, rel=1e-3)
        assert found.standard_error(np.eye(2)[place]) == pytest.approx(wanted.se, rel=0.02)
        k = np.asarray(wanted.pareto_k)
        assert found.shapes[place].tolist() == [
            (k < 0.7).sum(),
            ((k >= 0.7) & (k < 1)).sum(),
            (k >= 1).sum(),
        ]
        terms.append(np.asarray(wanted.elpd_i))
        flat = values.reshape(-1, N)
        waic = np.log(np.exp(flat).mean(axis=0)) - flat.var(axis=0, ddof=1)
        assert found.waic[place] == pytest.approx(waic.sum(), rel=1e-4)
    # the error of a difference is that of paired rows
    gap = terms[0] - terms[1]
    error = np.sqrt(N) * gap.std(ddof=1)
    assert found.standard_error(np.array([1.0, -1.0])) == pytest.approx(error, rel=1e-3)
    unpaired = np.hypot(*(np.sqrt(N) * one.std(ddof=1) for one in terms))
    assert abs(error / unpaired - 1) > 0.05  # which the test above can tell apart
    text = str(found)
    assert "k-hat above 0.7" in text
    assert found.to_dataframe().loc["x", "elpd"] == found.sums[0]


def test_of_a_likelihood_of_each_site_a_site_is_left_out() -> None:
    made, draws = fitted("x + (1 | site)", integrate=True)
    found = consortia.loo({"integrated": (draws, made.model, made.sites)})
    assert (found.unit, found.rows) == ("site", 3)
    assert found.shapes.sum() == 3


@pytest.mark.parametrize(
    ("right", "family"),
    # of student natural parameters stand in another order than by name: sigma before nu
    [("x", "poisson"), ("x + (1 | site)", "poisson"), ("x", "student")],
)
def test_one_message_of_each_site_tells_all_of_it(right: str, family: str) -> None:
    """In 32 bits, and summed in another order: the smoothing of a tail passes the rounding on."""
    made, draws = fitted(right, family, integrate="site" in right)
    given = draws, made.model, made.sites
    engine = LocalEngine(devices=1)
    rows, sites = told_by_sites([given[0]], *given[1:], engine, labels=made.labels)
    wanted = consortia.loo({"the model": given})
    assert (rows.unit, rows.rows) == (wanted.unit, wanted.rows)
    for name in ("sums", "products", "parameters", "waic", "shapes"):
        np.testing.assert_allclose(getattr(rows, name), getattr(wanted, name), rtol=1e-3)
    without = leave_one_site_out(*given, labels=made.labels)
    assert (sites.names, sites.sites) == (without.names, without.sites)
    for name in ("mean", "sd", "means", "sds", "k_hat"):
        np.testing.assert_allclose(getattr(sites, name), getattr(without, name), rtol=1e-3)


def test_two_models_are_compared_by_one_message_of_each_site() -> None:
    wanted = consortia.loo(RESULTS)
    order = sorted(RESULTS)
    model = compared({name: RESULTS[name][1] for name in order})
    sites = side_by_side({name: RESULTS[name][2] for name in order})
    trees = [RESULTS[name][0] for name in order]
    found, without = told_by_sites(trees, model, sites, LocalEngine(devices=1), names=order)
    places = [wanted.names.index(name) for name in order]
    for name in ("sums", "parameters", "waic", "shapes"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name)[places], rtol=1e-3)
    np.testing.assert_allclose(found.products, wanted.products[np.ix_(places, places)], rtol=1e-3)
    first, second = np.eye(2)
    error = found.standard_error(first - second)
    np.testing.assert_allclose(error, wanted.standard_error(first - second), rtol=1e-3)
    alone = told_by_sites(trees[:1], *RESULTS[order[0]][1:], LocalEngine(devices=1))[1]
    np.testing.assert_allclose(without.means, alone.means, rtol=1e-3, atol=1e-5)


def test_models_of_other_rows_or_another_response_are_not_compared() -> None:
    made, draws = fitted("x")
    halved = made.sites.map(lambda rows: {**rows, "y": rows["y"] / 2})
    fewer = made.sites.map(lambda rows: {name: one[:1] for name, one in rows.items()})
    with refused(argument="results", site="oslo", match="responses"):
        consortia.loo({"one": RESULTS["x"], "other": (draws, made.model, halved)})
    with refused(argument="sites", match="sizes differ"):
        side_by_side({"one": made.sites, "other": fewer})
    model = compared({"one": made.model, "other": made.model})
    together = side_by_side({"one": made.sites, "other": halved})
    assert model.check is not None
    assert "different responses" in str(model.check(together.site("lima")))


def test_processes_that_read_some_sites_give_the_sums_of_all() -> None:
    whole = consortia.loo(RESULTS)
    answers: list[Any] = []

    class First(LocalEngine):
        """Notes what one process would send."""

        def allgather(self, make: Any) -> list[Any]:
            answers.append(make())
            return [answers[-1]]

    parts = {name: (t, m, reads(s, [0, 1])) for name, (t, m, s) in RESULTS.items()}
    with refused(argument="engine"):
        consortia.loo(parts, engine=First())
    positions, early = answers

    class Second(LocalEngine):
        """Has the other site and no result."""

        def allgather(self, make: Any) -> list[Any]:
            own = make()
            return [positions, own] if own is None else [early, own]

    rest = {name: (None, m, reads(s, [2])) for name, (_, m, s) in RESULTS.items()}
    found = consortia.loo(rest, engine=Second())
    np.testing.assert_allclose(found.sums, whole.sums, rtol=1e-6)
    np.testing.assert_allclose(found.products, whole.products, rtol=1e-6)
    assert "y" not in early
    assert all(len(np.ravel(site["products"])) == 4 for site in early.values())


def test_what_cannot_be_compared_is_refused() -> None:
    draws, model, sites = RESULTS["x"]
    few = {name: value[:, :30] for name, value in draws.items()}
    with refused(argument="draws", match="60.*keep 100"):
        consortia.loo({"x": (few, model, sites)})
    made, own = fitted("x + (1 | site)", integrate=True)
    with refused(argument="results", match="another of sites"):
        consortia.loo({"x": (draws, model, sites), "z": (own, made.model, made.sites)})
    shorter = consortia.regression(
        "y ~ x", {**SITES, "oslo": {k: v[1:] for k, v in SITES["oslo"].items()}}, family="poisson"
    )
    with refused(argument="sites", match="different rows"):
        consortia.loo({"x": (draws, model, sites), "z": (draws, shorter.model, shorter.sites)})
    with refused(argument="results", match="a dict of names"):
        consortia.loo({})
