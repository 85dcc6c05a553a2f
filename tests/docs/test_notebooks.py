"""Each page that runs can be had as a notebook, with the cells that the site shows."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="the group docs is not installed")
pytest.importorskip("myst_nb", reason="the group docs is not installed")
DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_a_page_that_runs_has_a_link_to_a_valid_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    import notebooks

    builder = SimpleNamespace(name="html")
    app: Any = SimpleNamespace(env=SimpleNamespace(), builder=builder, outdir=tmp_path, srcdir=DOCS)
    for page in sorted(DOCS.rglob("*.md")):
        source = [page.read_text(encoding="utf-8")]
        runs = "{code-cell}" in source[0]
        notebooks.link(app, page.relative_to(DOCS).with_suffix("").as_posix(), source)
        assert (f"../notebooks/{page.stem}.ipynb" in source[0]) == runs
    notebooks.write(app, None)
    sys.modules.pop("notebooks")
    files = sorted((tmp_path / "notebooks").glob("*.ipynb"))
    assert len(files) > 10
    for file in files:
        book = nbformat.read(file, 4)
        nbformat.validate(book)
        page = next(DOCS.rglob(f"{file.stem}.md")).read_text(encoding="utf-8")
        cells = [cell for cell in book.cells if cell.cell_type == "code"]
        assert len(cells) == page.count("\n```{code-cell}")
