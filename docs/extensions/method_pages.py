"""The directive ``algorithm``: what the registry, the docstrings and a run say of an algorithm."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import law_figures
import reference_pages
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from consortia.algorithms.registry import ALGORITHMS, Entry

ENGINES = {"local": "one process", "mpi": "MPI", "flower": "Flower"}


class MethodPage(SphinxDirective):
    """Equation, claims, law against a run, and arguments of one algorithm of the registry."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the page's generated part."""
        name = self.arguments[0]
        entry = ALGORITHMS[name]
        for source in _sources(entry):
            self.env.note_dependency(source)
        figures = Path(self.env.app.outdir) / "_images"
        figures.mkdir(parents=True, exist_ok=True)
        found = law_figures.draw(name, figures / f"law-{name}.svg")
        text = "\n\n".join(
            [
                _claims(entry),
                "Equation\n--------",
                _equation(entry),
                "Its law and a run\n-----------------",
                found.sentence,
                "Arguments\n---------",
                reference_pages.described(f"consortia.{name}", entry.factory, self.config),
            ]
        )
        parsed = self.parse_text_to_nodes(text, allow_section_headings=True)
        return _with_figure(parsed, name, found.alt)


def _sources(entry: Entry) -> list[str]:
    modules = [inspect.getmodule(one) for one in entry.factory.__mro__]
    return [m.__file__ for m in modules if m is not None and m.__name__.startswith("consortia")]


def _claims(entry: Entry) -> str:
    method = entry.factory(**entry.example)
    claims = type(method).claims if not isinstance(type(method).claims, property) else method.claims
    rows = {
        "samples": claims.samples,
        "bias": claims.bias,
        "draw": claims.draw,
        "step size": claims.step_size,
        "paper": claims.source,
        "runs on": ", ".join(ENGINES[one] for one in entry.engines),
    }
    lines = [f"   * - {key}\n     - {_escaped(value)}" for key, value in rows.items()]
    head = ".. list-table::\n   :widths: 15 85\n   :stub-columns: 1\n   :class: claims\n\n"
    return head + "\n".join(lines)


def _escaped(text: str) -> str:
    return re.sub(r"([*_`|\\])", r"\\\1", text)


def _equation(entry: Entry) -> str:
    """Return the module's docstring, which has the equation, without its title."""
    return inspect.cleandoc(inspect.getmodule(entry.factory).__doc__)


def _with_figure(parsed: list[nodes.Node], name: str, alt: str) -> list[nodes.Node]:
    """Put the figure at the end of its section."""
    for node in parsed:
        for section in node.findall(nodes.section):
            if section.next_node(nodes.title).astext() == "Its law and a run":
                source = f'<img class="law" src="../_images/law-{name}.svg" alt="{alt}">'
                section += nodes.raw("", source, format="html")
    return parsed


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("algorithm", MethodPage)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
