"""A proposal names a column that a site may call otherwise, and levels that it may."""

from __future__ import annotations

import pandas as pd
import pytest

from consortia.data.tables import read_table
from consortia.study.proposal import Proposal, propose

ARMS = {"graz": ("control", "new"), "lyon": ("témoin", "nouveau"), "oslo": ("control", "new")}


def proposed(arms: dict[str, tuple[str, ...]], named: dict[str, str]) -> Proposal:
    tables = {}
    for site, words in arms.items():
        rows = [
            {
                named.get(site, "arm"): words[row % len(words)],
                "x": float(row % 7),
                "y": row % 11 / 2,
            }
            for row in range(60)
        ]
        tables[site] = read_table(pd.DataFrame(rows), f"site {site!r}", site=site)
    return propose(tables, "y")


def note_on(made: Proposal, name: str) -> str:
    return next(used.note for used in made.used if used.name == name)


def test_a_site_that_shares_no_level_with_others_may_have_other_words_for_the_same() -> None:
    note = note_on(proposed(ARMS, {}), "arm")
    assert "lyon shares no level with others" in note
    assert '[harmonise.lyon.recode.arm] "nouveau" = ...' in note
    assert "graz shares" not in note


@pytest.mark.parametrize(
    "arms",
    [
        ARMS | {"lyon": ("control", "nouveau")},
        {"graz": ("control", "new"), "lyon": ("control", "new", "other")},
        {"graz": ("control", "new")},
    ],
)
def test_a_site_that_shares_a_level_or_is_alone_is_not_asked(arms) -> None:
    assert "shares no level" not in note_on(proposed(arms, {}), "arm")


def test_a_column_that_one_site_lacks_may_have_another_name_there() -> None:
    left_out = dict(proposed(ARMS, {"lyon": "bras"}).left_out)
    assert left_out["arm"].startswith("lyon has none; where it has another name")
    assert '[harmonise.lyon.rename] NAME = "arm"' in left_out["arm"]
    assert left_out["bras"] == "only lyon has it"
    assert dict(proposed(ARMS, {"lyon": "bras", "oslo": "gruppe"}).left_out)["arm"] == (
        "only graz has it"
    )
