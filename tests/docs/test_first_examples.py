"""The method of the first example of each page, beside those that are recommended."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from consortia.algorithms.registry import ALGORITHMS

pytestmark = pytest.mark.lint

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/tutorials/*.md"), *ROOT.rglob("r/**/*.Rmd")]
PAGES += [ROOT / name for name in ("README.md", "examples/README.md", "r/consortia/README.md")]

NAMES = "|".join(sorted(ALGORITHMS, key=len, reverse=True))
BLOCK = re.compile(
    r"^```[^\n]*\n(.*?)^```|((?:^    \S[^\n]*\n(?:^    [^\n]*\n|^\n)*)+)", re.S | re.M
)
METHOD = re.compile(
    rf'(?:name = "|consortia\.)({NAMES})\b((?:"\n(?:\w+ = [^\n]*\n)*)|\(.*?\))', re.S
)

OTHER = {
    "engines": "stale_sgld",  # replays the order of a run of asynchronous workers
    "privacy-budget": "private_posterior",  # is about it
}
"""Pages that are about a method."""


def recommended() -> dict[str, list[str]]:
    """Return the methods that the page on choosing recommends, with the arguments it gives."""
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\|[^|]*\| \[({NAMES})\]\([^)]*\)([^|]*)\|", page, re.M)
    return {name: re.findall(r"`(.*?)`", words) for name, words in rows}


def first_example(text: str) -> tuple[str, str] | None:
    """Return the first method in a page's code, and what it is given."""
    found = METHOD.search("".join(fenced or indented for fenced, indented in BLOCK.findall(text)))
    return None if found is None else (found[1], found[2])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_first_example_of_a_page_is_what_is_recommended(page: Path) -> None:
    methods, first = recommended(), first_example(page.read_text(encoding="utf-8"))
    assert {"few_rounds", "federated_hmc", "fa_hmc", "de_sgld"} <= methods.keys()
    if first is None:
        return
    name, given = first
    if page.stem in OTHER:
        assert name == OTHER[page.stem]
        return
    assert name in methods
    assert all(argument in given for argument in methods[name]), given


def test_most_pages_that_a_reader_begins_with_have_an_example() -> None:
    with_one = [page for page in PAGES if first_example(page.read_text(encoding="utf-8"))]
    assert len(with_one) >= 18, [page.stem for page in with_one]


def test_an_example_of_another_method_is_found() -> None:
    text = "so:\n\n    tree = consortia.sample(model, sites, consortia.fa_ld(0.1))\n"
    assert first_example(text) == ("fa_ld", "(0.1)")
    assert first_example('```toml\n[algorithm]\nname = "fa_hmc"\n```\n') == ("fa_hmc", '"\n')
    assert first_example("By `consortia.fa_ld(0.1)` it is not recommended.\n") is None
