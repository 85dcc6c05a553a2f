"""The pages of the papers: their numbers, commands and figures are what the programs have."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest

from experiments import claims
from tests.docs.test_docs import DOCS, blocks

COMMAND = re.compile(r"^    consortia papers run (\S+) --figure (\S+)", re.MULTILINE)
PAGES = {name: DOCS / "papers" / f"{name}.md" for name in claims.PAPERS}


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run_and_give_the_numbers_beside_them(name: str) -> None:
    names: dict[str, object] = {}
    for block in blocks(PAGES[name]):
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            text = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            number = re.search(r"  # (-?\d+\.\d+)$", text)
            if number is None:
                exec(text, names)
                continue
            digits = len(number[1].split(".")[1])
            value = float(np.ravel(eval(text, names))[0])
            assert value == pytest.approx(float(number[1]), abs=0.5 * 10.0**-digits)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_command_for_every_study_of_its_paper(name: str) -> None:
    paper = claims.read(name)
    shown = COMMAND.findall(PAGES[name].read_text(encoding="utf-8"))
    assert {paper for paper, _ in shown} == {name}
    chosen = [paper.chosen(figure) for _, figure in shown]
    assert all(chosen)
    assert {study.name for studies in chosen for study in studies} == {
        study.name for study in paper.studies
    }
