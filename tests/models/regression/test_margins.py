"""Marginal effects beside closed formulas and differences of predictions, draw by draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.errors import InputError
from consortia.models.regression import margins
from consortia.models.regression.margins import ALL, MarginalEffects
from tests.refusals import refused

RNG = np.random.default_rng(11)
ROWS = {"oslo": 5, "lima": 40, "bern": 9}
DRAWS = 7


def table(rows: int, place: int) -> dict[str, Any]:
    return {
        "age": RNG.normal(60 + 5 * place, 10, rows),
        "crp": RNG.exponential(3.0 + place, rows),
        "arm": np.array(["new", "old", "none"])[RNG.integers(0, 3, rows)],
        "smoker": RNG.integers(0, 2, rows) > 0,
        "ward": np.array(["w1", "w2", "w3"])[np.arange(rows) % 3],
        "beds": RNG.uniform(1, 9, rows),
        "n": RNG.integers(3, 9, rows).astype(float),
        "died": RNG.integers(0, 2, rows),
        "y": RNG.normal(size=rows),
        "count": RNG.poisson(3.0, rows),
        "sick": RNG.integers(0, 3, rows).astype(float),
        "grade": np.array(["a", "b", "c"])[np.arange(rows) % 3],
        "time": RNG.exponential(3.0, rows),
    }


SITES = {name: table(rows, place) for place, (name, rows) in enumerate(ROWS.items())}
TOTAL = sum(ROWS.values())


def column(name: str) -> np.ndarray:
    return np.concatenate([one[name] for one in SITES.values()])


def made(right: str, left: str = "died", family: str = "bernoulli", **more: Any) -> Any:
    return consortia.regression(f"{left} ~ {right}", SITES, family=family, **more)


def draws_of(one: Any, count: int = DRAWS) -> dict[str, np.ndarray]:
    params = one.density.draw(np.random.default_rng(1), count)
    return {name: (0.3 * value)[None] for name, value in params.items()}


def effect(found: MarginalEffects, name: str, site: str = ALL) -> np.ndarray:
    """Return the draws of one line."""
    (place,) = (
        place for place, one in enumerate(found.lines) if str(one.key) == name and one.site == site
    )
    return found.draws[place]


def slopes(one: Any, raw: Any) -> np.ndarray:
    return np.asarray(one.natural(raw)["coefficients"])[0]


def test_a_logistic_interaction_has_its_closed_formula_at_each_draw(x64: None) -> None:
    one = made("age * crp")
    raw = draws_of(one)
    found = one.marginal_effects(raw)
    a = np.asarray(one.natural(raw)["intercept"])[0][:, None]
    b = slopes(one, raw)
    assert one.names == ("age", "crp", "age:crp")
    age, crp = column("age"), column("crp")
    eta = a + b @ np.stack([age, crp, age * crp])
    p = 1 / (1 + np.exp(-eta))
    by_row = p * (1 - p) * (b[:, :1] + b[:, 2:] * crp)
    np.testing.assert_allclose(effect(found, "age, per unit"), by_row.mean(axis=1), rtol=1e-6)
    # at each site its own rows, and all rows count alike
    ends = np.cumsum([0, *ROWS.values()])
    for place, site in enumerate(ROWS):
        own = by_row[:, ends[place] : ends[place + 1]].mean(axis=1)
        np.testing.assert_allclose(effect(found, "age, per unit", site), own, rtol=1e-6)
    of_sites = np.mean([effect(found, "age, per unit", site) for site in ROWS], axis=0)
    assert np.abs(of_sites / by_row.mean(axis=1) - 1).max() > 0.02  # sites of unlike size


def test_levels_are_differences_of_predictions(x64: None) -> None:
    one = made("age * arm + smoker")
    raw = draws_of(one)
    found = one.marginal_effects(raw, columns=["arm", "smoker"])
    assert [str(line.key) for line in found.over_all.lines] == [
        "arm, none − new",
        "arm, old − new",
        "smoker, True − False",
    ]

    def mean(**values: Any) -> np.ndarray:
        rows = {name: column(name) for name in ("age", "arm", "smoker")}
        rows |= {name: np.full(TOTAL, value) for name, value in values.items()}
        return np.asarray(one.predict(raw, rows, "oslo"))[0].mean(axis=1)

    for level in ("none", "old"):
        wanted = mean(arm=level) - mean(arm="new")
        np.testing.assert_allclose(effect(found, f"arm, {level} − new"), wanted, rtol=1e-9)
    wanted = mean(smoker=True) - mean(smoker=False)
    np.testing.assert_allclose(effect(found, "smoker, True − False"), wanted, rtol=1e-9)


def test_numbers_as_levels_have_their_reference(x64: None) -> None:
    tables = {name: {**one, "stage": 1 + one["sick"]} for name, one in SITES.items()}
    one = consortia.regression("y ~ C(stage, 2)", tables)
    raw = draws_of(one)
    found = one.marginal_effects(raw)
    b = slopes(one, raw)
    assert one.names == ("C(stage, 2)[1]", "C(stage, 2)[3]")
    for place, level in enumerate("13"):
        np.testing.assert_allclose(effect(found, f"stage, {level} − 2"), b[:, place], rtol=1e-9)


def test_a_gaussian_slope_is_the_coefficient(x64: None) -> None:
    one = made("age + center(crp) + (1 | site)", "y", "gaussian")
    raw = draws_of(one)
    found = one.marginal_effects(raw)
    b = slopes(one, raw)
    # a difference of centred numbers loses as many digits as the step, 1e-5, is small
    np.testing.assert_allclose(effect(found, "age, per unit"), b[:, 0], rtol=1e-8)
    np.testing.assert_allclose(effect(found, "crp, per unit", "lima"), b[:, 1], rtol=1e-8)
    assert found.over_all.lines[0].above == np.mean(b[:, 0] > 0)
    assert found.over_all.lines[0].mean == pytest.approx(b[:, 0].mean())


def test_a_count_is_that_of_the_row_s_exposure_and_offset(x64: None) -> None:
    one = made("log(crp) + offset(log(beds))", "count", "poisson", exposure="n")
    raw = draws_of(one)
    a, b = np.asarray(one.natural(raw)["intercept"])[0], slopes(one, raw)[:, 0]
    crp, mean = column("crp"), column("n") * column("beds")
    mu = mean * np.exp(a[:, None] + b[:, None] * np.log(crp))
    found = one.marginal_effects(raw)
    # the derivative of log at the smallest value: (h/x)²/3 with h = 1e-5 x at most
    wanted = (mu * b[:, None] / crp).mean(axis=1)
    np.testing.assert_allclose(effect(found, "crp, per unit"), wanted, rtol=1e-7)
    assert [line.column for line in found.over_all.lines] == ["crp"]


def test_binomial_is_what_its_trials_are_as_rows_of_their_own(x64: None) -> None:
    one = made("age + arm", "sick", "binomial", trials="n")
    raw = draws_of(one)
    found = one.marginal_effects(raw)
    repeated = np.repeat(np.arange(TOTAL), column("n").astype(int))
    a, b = np.asarray(one.natural(raw)["intercept"])[0], slopes(one, raw)
    age, arm = column("age")[repeated], column("arm")[repeated]
    x = np.stack([age, arm == "none", arm == "old"]).astype(float)
    p = 1 / (1 + np.exp(-(a[:, None] + b @ x)))
    wanted = (p * (1 - p)).mean(axis=1) * b[:, 0]
    np.testing.assert_allclose(effect(found, "age, per unit"), wanted, rtol=1e-7)


def test_a_spline_and_a_term_of_two_columns_follow_the_column(x64: None) -> None:
    one = made("s(age, k=5) + I(age * crp)", "y", "gaussian")
    raw = draws_of(one)
    found = one.marginal_effects(raw)
    rows = {"age": column("age"), "crp": column("crp")}
    step = 1e-3
    up, down = (
        np.asarray(one.predict(raw, {**rows, "age": rows["age"] + way * step}, "oslo"))[0]
        for way in (1, -1)
    )
    # a cubic: the step's square times its third derivative, far below 1e-5 of the slope
    wanted = ((up - down) / (2 * step)).mean(axis=1)
    np.testing.assert_allclose(effect(found, "age, per unit"), wanted, rtol=1e-5)


def test_levels_of_a_site_enter_where_they_stay_and_where_they_are_drawn(x64: None) -> None:
    right = "age + (1 + age | site)"
    apart, joint = made(right, integrate=True), made(right, integrate=False)
    raw = draws_of(apart)
    found = apart.marginal_effects(raw, seed=4)
    own = np.stack(
        [np.asarray(apart.levels_of(raw, site, seed=4))[0] for site in ROWS], axis=-1
    )  # (draws, coefficients, sites)
    centre = apart.specification.units["age"].mean
    a, b = np.asarray(apart.natural(raw)["intercept"])[0], slopes(apart, raw)[:, 0]
    by_site = []
    for place, site in enumerate(ROWS):
        age, slope = SITES[site]["age"], b + own[:, 1, place]
        eta = a[:, None] + b[:, None] * age + own[:, :1, place]
        eta = eta + own[:, 1:, place] * (age - centre)
        p = 1 / (1 + np.exp(-eta))
        by_site.append((p * (1 - p)).mean(axis=1) * slope)
        np.testing.assert_allclose(effect(found, "age, per unit", site), by_site[-1], rtol=1e-6)
    wanted = np.average(by_site, axis=0, weights=list(ROWS.values()))
    np.testing.assert_allclose(effect(found, "age, per unit"), wanted, rtol=1e-6)
    raw = draws_of(joint)  # as parameters: prediction knows them
    rows, step = SITES["lima"], 1e-3
    up, down = (
        np.asarray(joint.predict(raw, {"age": rows["age"] + way * step}, "lima"))[0]
        for way in (1, -1)
    )
    wanted = ((up - down) / (2 * step)).mean(axis=1)
    found = joint.marginal_effects(raw)
    np.testing.assert_allclose(effect(found, "age, per unit", "lima"), wanted, rtol=1e-5)


def test_groups_inside_a_site_have_their_own_levels_and_new_rows_new_ones(x64: None) -> None:
    one = made("age + (1 | site:ward)")
    raw = draws_of(one)
    found = one.marginal_effects(raw, seed=2)
    a, b = np.asarray(one.natural(raw)["intercept"])[0], slopes(one, raw)[:, 0]
    own = one.levels_of(raw, "lima", seed=2)
    at = np.stack([np.asarray(own.sel(group=ward))[0] for ward in SITES["lima"]["ward"]], axis=1)
    p = 1 / (1 + np.exp(-(a[:, None] + b[:, None] * SITES["lima"]["age"] + at)))
    wanted = (p * (1 - p)).mean(axis=1) * b
    np.testing.assert_allclose(effect(found, "age, per unit", "lima"), wanted, rtol=1e-6)
    new = one.marginal_effects(raw, {"lima": {**SITES["lima"], "ward": ["w1"] * 40}}, seed=2)
    assert len(new.lines) == 2  # one site, and all
    assert np.abs(effect(new, "age, per unit", "lima") / wanted - 1).max() > 1e-3


@pytest.mark.parametrize("family", ["ordinal", "categorical"])
def test_probabilities_of_levels_change_by_nothing_together(family: str, x64: None) -> None:
    more = {"levels": {"grade": ["a", "b", "c"]}} if family == "ordinal" else {}
    one = made("age + arm", "grade", family, **more)
    raw = draws_of(one)
    found = one.marginal_effects(raw)
    assert found.scale == "the probability of a level of grade"
    together = sum(effect(found, f"age, per unit: {level}") for level in "abc")
    np.testing.assert_allclose(together, 0, atol=1e-9)
    rows = {"age": column("age"), "arm": column("arm")}
    first, second = (
        np.asarray(one.predict(raw, {**rows, "arm": np.full(TOTAL, level)}, "oslo"))[0]
        for level in ("new", "old")
    )
    wanted = (second - first).mean(axis=1)[:, 2]
    np.testing.assert_allclose(effect(found, "arm, old − new: c"), wanted, rtol=1e-6)


@pytest.mark.parametrize("family", ["weibull", "piecewise_exponential"])
def test_a_time_has_an_effect_on_the_probability_of_no_event(family: str, x64: None) -> None:
    one = made("age + arm", "Surv(time, died)", family)
    raw = draws_of(one)
    with refused(argument="at", match=f"'{family}'"):
        one.marginal_effects(raw)
    found = one.marginal_effects(raw, at=[1.0, 4.0])
    rows = {"age": column("age"), "arm": column("arm")}

    def shares(moved: dict[str, Any]) -> np.ndarray:
        return np.asarray(one.predict(raw, rows | moved, "oslo", at=[1.0, 4.0]))[0].mean(axis=1)

    wanted = (shares({"arm": ["old"] * TOTAL}) - shares({"arm": ["new"] * TOTAL}))[:, 1]
    np.testing.assert_allclose(effect(found, "arm, old − new: time 4"), wanted, rtol=1e-6)
    step = 1e-3
    up, down = (shares({"age": rows["age"] + way * step}) for way in (1, -1))
    slope = ((up - down) / (2 * step))[:, 0]
    np.testing.assert_allclose(effect(found, "age, per unit: time 1"), slope, rtol=1e-5)


def test_a_row_in_which_the_column_misses_has_no_part_in_its_effect(x64: None) -> None:
    holes = {name: dict(one) for name, one in SITES.items()}
    holes["lima"]["age"] = np.where(np.arange(40) < 10, np.nan, SITES["lima"]["age"])
    holes["lima"]["arm"] = [None] * 5 + SITES["lima"]["arm"][5:].tolist()
    holes["bern"]["age"] = np.full(9, np.nan)
    one = consortia.regression("y ~ age * crp + arm", holes, missing="indicator")
    raw = draws_of(one)
    found = one.marginal_effects(raw)
    b = dict(zip(one.names, slopes(one, raw).T, strict=True))
    crp = np.concatenate([SITES["oslo"]["crp"], SITES["lima"]["crp"][10:]])
    wanted = b["age"] + b["age:crp"] * crp.mean()
    np.testing.assert_allclose(effect(found, "age, per unit"), wanted, rtol=1e-7)
    assert {line.site for line in found.lines if line.column == "age"} == {ALL, "oslo", "lima"}
    assert [line.contrast for line in found.over_all.lines if line.column == "arm"] == [
        "none − new",
        "old − new",
    ]


def test_each_imputation_s_draws_are_averaged_over_its_rows(x64: None) -> None:
    xarray = pytest.importorskip("xarray")
    holes = {name: dict(one) for name, one in SITES.items()}
    holes["lima"]["crp"] = np.where(np.arange(40) < 20, np.nan, SITES["lima"]["crp"])
    one = consortia.regression("y ~ age * crp", holes, missing="impute", imputations=3)
    raw = draws_of(one, 12)
    numbers = np.array([0, 1, 2, 0, 1, 2])
    posterior = xarray.Dataset(
        {
            name: (("chain", "draw", *[f"{name}_{i}" for i in range(v.ndim - 2)]), v)
            for name, v in ((n, v.reshape(2, 6, *v.shape[2:])) for n, v in raw.items())
        },
        coords={"imputation": ("draw", numbers)},
    )
    found = one.marginal_effects(xarray.DataTree.from_dict({"/posterior": posterior}))
    parts = [
        effect(one.imputation(number).marginal_effects(raw), "age, per unit") for number in range(3)
    ]
    assert np.ptp(parts, axis=0).max() > 1e-4  # the completed rows differ
    wanted = np.choose(np.tile(numbers, 2), parts)
    np.testing.assert_allclose(effect(found, "age, per unit"), wanted, rtol=1e-9)
    with refused(argument="draws", match="imputation"):
        one.marginal_effects(raw)


def test_other_rows_and_fewer_draws(x64: None) -> None:
    one = made("age * arm", "y", "gaussian")
    raw = draws_of(one, 40)
    given = {"bern": {"age": [50.0, 70.0], "arm": ["new", "none"]}}
    found = one.marginal_effects(raw, given, ["age"], draws=5)
    assert found.draws.shape == (2, 5)
    b = dict(zip(one.names, slopes(one, raw)[[0, 10, 20, 29, 39]].T, strict=True))
    wanted = b["age"] + 0.5 * b["age:arm[none]"]
    np.testing.assert_allclose(effect(found, "age, per unit"), wanted, rtol=1e-7)


def test_what_has_no_marginal_effect_is_refused() -> None:
    one = made("age + arm + offset(log(beds))")
    raw = draws_of(one)
    with refused(argument="agee", match="'age'"):
        one.marginal_effects(raw, columns=["agee"])
    with refused(argument="beds", match="not a column"):
        one.marginal_effects(raw, columns=["beds"])
    with refused(argument="data"):
        one.marginal_effects(raw, {"limma": SITES["lima"]})
    with refused(argument="arm", match="'lima': 'arm' is not"):
        one.marginal_effects(raw, {"lima": {"age": [1.0], "beds": [1.0]}})
    with refused(argument="at"):
        one.marginal_effects(raw, at=[1.0])
    cox = made("age", "Surv(time, died)", "cox")
    with refused(argument="at", match="'cox'"):
        cox.marginal_effects(draws_of(cox))
    empty = made("1")
    with refused(argument="formula"):
        empty.marginal_effects(draws_of(empty))


def test_a_column_that_cannot_be_moved_is_left_out_and_the_others_are_not(x64: None) -> None:
    tables = {name: {**one, "z": one["crp"].copy()} for name, one in SITES.items()}
    tables["lima"]["z"][3] = 0.0  # beside which a square root is none, or has no derivative
    one = consortia.regression("y ~ sqrt(z) * age + crp", tables)
    raw = draws_of(one)
    found = one.marginal_effects(raw)
    assert [str(line.key) for line in found.over_all.lines] == ["age, per unit", "crp, per unit"]
    assert set(found.by_site) == {line.key for line in found.over_all.lines}
    (said,) = (note for note in found.notes if note.startswith("no effect of z: "))
    assert "site 'lima': sqrt(z) is not finite in 1 of 40 rows" in said
    b = dict(zip(one.names, slopes(one, raw).T, strict=True))
    z = np.concatenate([part["z"] for part in tables.values()])
    wanted = b["age"] + b["sqrt(z):age"] * np.sqrt(z).mean()
    np.testing.assert_allclose(effect(found, "age, per unit"), wanted, rtol=1e-6)
    with pytest.raises(InputError, match="is not finite"):
        one.marginal_effects(raw, columns=["z"])


def test_a_jump_is_told_as_a_derivative_cannot_see_it() -> None:
    one = made("I(age > 65) + crp", "y", "gaussian")
    found = one.marginal_effects(draws_of(one))
    assert found.over_all.lines[0].mean == 0
    assert found.notes == ("I(age > 65): a derivative ignores a jump; make it a column",)
    assert one.marginal_effects(draws_of(one), columns=["crp"]).notes == ()


def test_the_table_has_all_sites_and_each(tmp_path: Path) -> None:
    one = made("age + arm")
    found = one.marginal_effects(draws_of(one))
    text = str(found)
    assert text.startswith("on the probability of died = 1")
    assert text.count("lima") == 3
    frame = found.to_dataframe()
    assert len(frame) == 3 * 4
    assert str(found.over_all) == text.split("\n\n")[0]
    assert list(frame.columns[:4]) == ["column", "contrast", "outcome", "site"]
    assert "<table" in found._repr_html_()
    pytest.importorskip("matplotlib")
    drawn = found.forest(tmp_path / "margins.svg").read_text(encoding="utf-8")
    for word in ("arm, old − new", "all sites", "bern"):
        assert word in drawn


def test_levels_that_two_tables_need_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from consortia.models.regression import model

    made_of, seeds = model.levels_given_rows, []

    def counted(*arguments: Any) -> Any:
        seeds.append(arguments[-1])
        return made_of(*arguments)

    monkeypatch.setattr(model, "levels_given_rows", counted)
    one = made("age + (1 | site)", integrate=True)
    raw, others = draws_of(one), draws_of(one, DRAWS + 1)
    first = one.marginal_effects(raw)
    one.by_site(raw)
    again = one.marginal_effects(raw)
    one.marginal_effects(raw, draws=DRAWS // 2)
    assert len(seeds) == len(ROWS)
    np.testing.assert_array_equal(effect(again, "age, per unit"), effect(first, "age, per unit"))
    one.by_site(others)
    one.by_site(others, seed=1)
    assert len(seeds) == len(set(seeds)) + len(ROWS) == 3 * len(ROWS)


@pytest.mark.parametrize(
    ("formula", "family", "options"),
    [
        ("died ~ age * crp + arm + (1 | site)", "bernoulli", {"integrate": True}),
        ("count ~ log(crp) + arm", "poisson", {"weights": "beds"}),
        ("grade ~ age + arm", "categorical", {}),
        ("sick ~ age + crp", "binomial", {"trials": "n"}),
    ],
)
def test_some_of_many_rows_say_how_an_effect_differs_between_draws(
    formula: str, family: str, options: Any, monkeypatch: pytest.MonkeyPatch, x64: None
) -> None:
    # A site has 8 times as many rows as are drawn; draws have about the spread of a posterior.
    tables = {"oslo": table(4000, 0), "lima": table(300, 1)}
    one = consortia.regression(formula, tables, family=family, **options)
    rng = np.random.default_rng(3)
    raw = {
        name: value + 0.05 * rng.normal(size=(1, 200, *value.shape[2:]))
        for name, value in draws_of(one, 1).items()
    }
    every = one.marginal_effects(raw)
    assert not any("draws" in note for note in every.notes)
    monkeypatch.setattr(margins, "MANY", 500)
    some = one.marginal_effects(raw)
    assert any("500 in how" in note for note in some.notes)
    apart = (some.draws - every.draws) / every.draws.std(axis=1, keepdims=True)
    # measured: .11 and .011 of bernoulli's products, .05 and .01 of categorical, else less
    assert np.sqrt((apart**2).mean(axis=1)).max() < 0.16
    assert np.abs(apart.mean(axis=1)).max() < 0.02
    assert np.abs(apart).max() > 0


def test_many_rows_of_a_linear_effect_are_as_all_of_them(
    monkeypatch: pytest.MonkeyPatch, x64: None
) -> None:
    one = made("age + arm", "y", "gaussian")
    raw = draws_of(one)
    every = one.marginal_effects(raw).draws
    monkeypatch.setattr(margins, "MANY", 3)
    np.testing.assert_allclose(one.marginal_effects(raw).draws, every, rtol=1e-6)
