"""The site names every method and module, its links lead somewhere, and it needs no network."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sparse import sparse

import consortia
from consortia.algorithms.registry import ALGORITHMS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_every_method_has_a_page_that_says_when_to_use_it() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in DOCS.glob("methods/*.rst")}
    assert set(pages) == set(ALGORITHMS), "docs/methods/ has a page NAME.rst for each method"
    index = (DOCS / "methods" / "index.md").read_text(encoding="utf-8")
    for name, text in pages.items():
        assert "**Use it" in text
        assert f".. algorithm:: {name}\n" in text
        assert f"\n{name}\n" in index, f"{name} is not among the contents of docs/methods/index.md"


def test_every_method_has_a_figure_of_its_law() -> None:
    source = (DOCS / "extensions" / "law_figures.py").read_text(encoding="utf-8")
    named = {
        key.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES"
        for key in node.value.keys  # type: ignore[attr-defined]
    }
    assert named == set(ALGORITHMS), "CASES in docs/extensions/law_figures.py has a case for each"


def test_every_public_module_has_a_page_in_the_reference() -> None:
    public = {
        f"consortia.{name}"
        for name in consortia.__all__
        if type(getattr(consortia, name)).__name__ == "module"
    }
    named = {
        re.search(r"^\.\. reference:: (\S+)$", page.read_text(), re.MULTILINE)[1]  # type: ignore[index]
        for page in DOCS.glob("reference/*.rst")
    }
    assert named == public | {"consortia", "consortia.errors", "consortia.sklearn"}


def test_every_page_is_in_a_list_of_pages() -> None:
    lists = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    for page in DOCS.glob("*.md"):
        assert page.stem == "index" or lists.count(f"\n{page.stem}\n") == 1, page.name


def test_links_between_pages_lead_to_files() -> None:
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


EVERY = sorted(
    page.stem for page in DOCS.glob("tutorials/*.md") if "{code-cell}" in page.read_text()
)
"""Pages that run, each in a process of its own."""

FEW = ["cox", "flower-study", "three-hospitals"]
"""Pages that run in less time than most."""

BUILD = """
import json, sys
from sphinx.application import Sphinx

*folders, options = sys.argv[1:]
site = Sphinx(*folders, "html", json.loads(options), warningiserror=True)
site.build()
sys.exit(site.statuscode)
"""


@pytest.mark.engines  # a process for each notebook
@pytest.mark.parametrize("run", sparse([EVERY, FEW], [FEW]), ids=len)
def test_the_site_builds_without_a_warning_and_asks_nothing_of_a_network(
    tmp_path: Path, run: list[str]
) -> None:
    pytest.importorskip("myst_nb")
    assert {*run} <= {*EVERY}
    options = {
        # of pages that do not run no kernel tells the language
        "suppress_warnings": [] if run == EVERY else ["myst-nb.lexer"],
        "nb_execution_cache_path": str(tmp_path / "notebooks"),
        "nb_execution_excludepatterns": [f"tutorials/{name}.md" for name in {*EVERY} - {*run}],
    }
    folders = [DOCS, DOCS, tmp_path / "site", tmp_path / "doctrees"]
    # Its notebooks compute for longer than they compile.
    environment = {k: v for k, v in os.environ.items() if k != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, *map(str, folders), json.dumps(options)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    asked = r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="(?:https?:)?//'
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(asked, text), page
        assert "@import" not in text
        assert ("cell_output" in text) == (page.stem in run and page.parent.name == "tutorials")
    assert len(list((tmp_path / "site" / "_images").glob("law-*.svg"))) == len(ALGORITHMS)
