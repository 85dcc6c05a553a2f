"""Groups inside the sites, and groups that are at several of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import consortia
from consortia.data.columns import TableFacts
from consortia.data.tables import read_table
from consortia.models.regression.construction import contribution, question_of
from consortia.models.regression.formula import parse
from tests.refusals import refused

SITES = ("oslo", "lima", "bern")
SURGEONS = [f"surgeon {letter}" for letter in "abcdefgh"]


def operations(rows: int = 160, seed: int = 3) -> dict[str, dict[str, Any]]:
    """Return operations by eight surgeons, each of them at all three sites."""
    rng = np.random.default_rng(seed)
    skill = 0.8 * rng.normal(size=8)
    found = {}
    for place, site in enumerate(SITES):
        who, x = rng.integers(8, size=rows), rng.normal(size=rows)
        y = rng.normal(1 + 0.3 * place + 0.5 * x + skill[who])
        found[site] = {"y": y, "x": x, "surgeon": np.array(SURGEONS)[who]}
    return found


def test_the_words_of_group_terms() -> None:
    def groups(text: str) -> list[tuple[str, str]]:
        return [(one.by, one.kind) for one in parse(f"y ~ x + {text}").groups]

    assert groups("(1 | ward)") == [("ward", "plain")]
    assert groups("(1 | site:ward)") == [("ward", "own")]
    assert groups("(1 | ward:site)") == [("ward", "own")]
    assert groups("(1 | site/ward)") == [("site", "plain"), ("ward", "own")]
    assert groups("(1 + x | shared(surgeon)) + (1 | site)") == [
        ("surgeon", "shared"),
        ("site", "plain"),
    ]
    for wrong in ("(1 | a:b)", "(1 | shared(site))", "(1 | site/site)"):
        with refused(argument="formula", match="give one column after the bar"):
            parse(f"y ~ x + {wrong}")


def test_one_label_at_two_sites_is_refused_until_it_is_said_what_it_means() -> None:
    tables = operations()
    with refused(argument="formula", match=r"8 of the 8 labels of surgeon are at more than one"):
        consortia.regression("y ~ x + (1 | surgeon)", tables)
    own = consortia.regression("y ~ x + (1 | site:surgeon)", tables)
    assert any("surgeon: 24 groups, each site's its own" in note for note in own.notes)
    one_set = consortia.regression("y ~ x + (1 | shared(surgeon))", tables)
    assert list(one_set.labels["effects"][0]) == [f"Intercept | {name}" for name in SURGEONS]
    renamed = {
        site: {**table, "surgeon": np.char.add(f"{site} ", table["surgeon"])}
        for site, table in tables.items()
    }
    assert consortia.regression("y ~ x + (1 | surgeon)", renamed).model.by_site


def test_an_effect_of_a_group_at_several_sites_is_one_parameter() -> None:
    tables = operations()
    made = consortia.regression(
        "y ~ x + (1 | shared(surgeon)) + (1 | site)", tables, integrate=False
    )
    z = np.arange(8.0)
    params = {**made.model.init, "effects_in_sd": np.concatenate([z, np.zeros(3)])}
    params["log_sd"] = np.zeros(2)
    for site, rows in zip(SITES, made.sites, strict=True):
        eta = np.asarray(made.density.predictor(params, rows))
        without = {**params, "effects_in_sd": np.zeros(11)}
        added = eta - np.asarray(made.density.predictor(without, rows))
        wanted = [z[SURGEONS.index(name)] for name in tables[site]["surgeon"].tolist()]
        np.testing.assert_allclose(added, wanted, atol=1e-5)


def test_two_kinds_of_groups_one_of_them_integrated_out() -> None:
    tables = operations()
    for table in tables.values():
        table["ward"] = np.array(["north", "south"])[np.arange(len(table["y"])) % 2]
    both = consortia.regression("y ~ x + (1 | site/ward)", tables, integrate=True)
    assert [block.name for block in both.specification.blocks] == [
        "sd(Intercept | site)",
        "sd(Intercept | ward)",
    ]
    assert both.specification.grouping == "ward"
    assert len(both.model.init["effects_in_sd"]) == 3
    assert any("the levels of site are parameters" in note for note in both.notes)
    crossed = consortia.regression(
        "y ~ x + (1 | site) + (1 | shared(surgeon))", tables, integrate=True
    )
    assert crossed.specification.grouping == "site"
    assert len(crossed.model.init["effects_in_sd"]) == 8
    with refused(argument="formula", match="are both integrated out at the sites"):
        consortia.regression("y ~ x + (1 | site:surgeon) + (1 | site:ward)", tables)


def test_digests_of_labels_leave_a_site_with_a_key_only_and_no_small_number() -> None:
    table = read_table({"y": np.arange(6.0), "ward": ["x", "x", "y", "y", "z", "rare"]}, "oslo")
    question = question_of("y ~ 1 + (1 | ward)", "gaussian")
    told = contribution(question, table, "oslo", 5).table
    assert told is not None
    assert told.groups == {"ward": (0, ())}  # four groups, fewer than five
    keyed = contribution(question, table, "oslo", 1, b"secret").table
    assert keyed is not None
    assert keyed.groups["ward"][0] == 4
    assert "rare" not in str(keyed)
    other = contribution(question, table, "oslo", 1, b"another").table
    assert other is not None
    assert not set(keyed.groups["ward"][1]) & set(other.groups["ward"][1])
    # of groups that are one set over sites a label of few rows is not told
    shared = question_of("y ~ 1 + (1 | shared(ward))", "gaussian")
    found = contribution(shared, table, "oslo", 2).table
    assert found is not None
    assert found.levels == {"shared(ward)": ("x", "y")}
    plain = vars(found) | {"groups": {"ward": [9, []]}, "guesses": []}
    with pytest.raises(ValueError, match="groups are not a number and digests"):
        TableFacts.read(plain)


def test_a_prediction_takes_the_effect_of_its_group() -> None:
    tables = operations()
    made = consortia.regression("y ~ x + (1 | shared(surgeon))", tables)
    draws = {
        name: np.broadcast_to(np.asarray(value), (1, 2, *np.shape(value))).copy()
        for name, value in made.model.init.items()
    }
    draws["effects_in_sd"] = np.broadcast_to(np.arange(8.0), (1, 2, 8)).copy()
    draws["log_sd"] = np.zeros((1, 2, 1))
    rows = {"x": np.zeros(2), "surgeon": np.array(SURGEONS[1:3])}
    found = np.asarray(made.predict(draws, rows, site="oslo"))
    np.testing.assert_allclose(found[..., 1] - found[..., 0], 1, atol=1e-5)
