"""Pages that run, as notebooks: a link at the top of each, and the files beside the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig
from sphinx.application import Sphinx

FOLDER = "notebooks"


def link(app: Sphinx, name: str, source: list[str]) -> None:
    """Put a link to the notebook under the title of a page that runs."""
    if not source[0].startswith("---\nfile_format: mystnb\n"):
        return
    notebooks(app).add(name)
    head, title, rest = source[0].partition("\n# ")
    line, _, rest = rest.partition("\n")
    up = "../" * name.count("/")
    file = f"{up}{FOLDER}/{Path(name).name}.ipynb"
    note = f'<p class="notebook"><a href="{file}" download>This page as a notebook</a></p>'
    source[0] = f"{head}{title}{line}\n\n```{{raw}} html\n{note}\n```\n{rest}"


def notebooks(app: Sphinx) -> set[str]:
    """Return the names of the pages that run, which a later build reads from its environment."""
    if not hasattr(app.env, "consortia_notebooks"):
        app.env.consortia_notebooks = set()  # type: ignore[attr-defined]
    return app.env.consortia_notebooks  # type: ignore[attr-defined,no-any-return]


def write(app: Sphinx, failure: Exception | None) -> None:
    """Write each page that runs as a notebook, without outputs."""
    if failure is not None or app.builder.name != "html":
        return
    folder = Path(app.outdir) / FOLDER
    folder.mkdir(exist_ok=True)
    for name in sorted(notebooks(app)):
        text = (Path(app.srcdir) / f"{name}.md").read_text(encoding="utf-8")
        book = read_myst_markdown_notebook(text, MdParserConfig())
        nbformat.write(book, folder / f"{Path(name).name}.ipynb")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the two steps."""
    app.connect("source-read", link)
    app.connect("build-finished", write)
    return {"parallel_read_safe": False}
