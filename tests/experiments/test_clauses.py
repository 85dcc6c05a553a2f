"""The list of the papers' clauses: complete, and each with rows or a reason."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from experiments import claims, clauses, pages, sources

PAPERS = [claims.read(name) for name in claims.PAPERS]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("5.1, figs 1b, 1d", ["Figure 1", "Figure 1"]),
        ("5.1, fig. 2, 3a", ["Figure 2", "Figure 3"]),
        ("appendix I, figs 7 to 9", ["Figure 7", "Figure 8", "Figure 9"]),
        ("5.4, fig. 5d-f, footnote 2", ["Figure 5"]),
        ("fig. 2; prop. 4.3", ["Figure 2", "Proposition 4.3"]),
        ("thm 3, cor. 5", ["Theorem 3", "Corollary 5"]),
        ("thm C.1, I.1", ["Theorem C.1", "Theorem I.1"]),
        ("thm 1 (cont.)", ["Theorem 1"]),
        ("supplement, figs 1, 2", ["Supplementary figure 1", "Supplementary figure 2"]),
        ("6, algorithm B.2", []),
    ],
)
def test_a_section_names_its_clauses(section, names):
    assert list(clauses.named(section)) == names


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_each_clause_has_rows_or_a_reason(paper):
    assert clauses.faults(paper) == []


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_the_list_has_each_clause_that_the_paper_names(paper):
    text = sources.text_of(paper.name)
    if text is None:
        pytest.skip("the papers' texts are not at hand")
    assert clauses.mentioned(text) - paper.clauses.keys() == set(paper.cited)
    assert clauses.mentioned(text + " By Theorem 9.9, ") - paper.clauses.keys() > set(paper.cited)


def test_what_is_missing_or_too_much_is_told_apart():
    paper = PAPERS[0]
    without = {name: why for name, why in paper.clauses.items() if name != "Theorem 4.1"}
    more = {**paper.clauses, "Figure 8": "", "Figure 2": "no reason is needed"}
    assert clauses.faults(dataclasses.replace(paper, clauses=without)) == [
        "fa-hmc: Theorem 4.1 is not a clause"
    ]
    assert [line[: line.index(":")] for line in clauses.faults(
        dataclasses.replace(paper, clauses=more)
    )] == ["fa-hmc, Figure 2", "fa-hmc, Figure 8"]  # fmt: skip


def test_a_clause_whose_rows_were_not_run_does_not_count():
    (paper,) = (one for one in PAPERS if one.name == "decentralized-ma-hmc")
    verdicts = {one.id: pages.kind(verdict) for _, one, _, verdict in pages.rows(paper)}
    told = clauses.page([(paper, verdicts)], "")
    assert "| Figure 1 | 1 not run |  |" in told
    assert "5 of 11 have a row that was run." in told


def test_tests_that_a_reason_names_exist():
    reasons = " ".join(why for paper in PAPERS for why in paper.clauses.values())
    found = re.findall(r"(tests/\S+\.py)::(\w+)", reasons)
    assert found
    for path, name in found:
        assert f"def {name}(" in (ROOT / path).read_text()
