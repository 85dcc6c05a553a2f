"""Formulas as MathML, which browsers draw by themselves: no script, no font, no network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer under the name ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_displayed, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


SPELLINGS = (
    (r"\\dots", r"\\ldots"),
    (r"\\[bB]igg?(?![A-Za-z])", ""),  # a size without a side
    (r"\\textstyle|\\!", ""),
    (r"\\mathrel\{(.)\}", r"\1"),
)
"""Commands that the converter does not know, and what it knows for them."""


TOKEN = r"\\[A-Za-z]+|[A-Za-z0-9]"
BARE = re.compile(rf"(\\[td]?frac)\s*({TOKEN}|\{{[^{{}}]*\}})\s*({TOKEN}|\{{)")
"""A fraction, perhaps of single tokens without braces: TeX takes them one by one."""


def _braced(found: re.Match[str]) -> str:
    command, upper, lower = found.groups()
    upper = upper if upper.startswith("{") else f"{{{upper}}}"
    return command + upper + (lower if lower == "{" else f"{{{lower}}}")


def _mathml(formula: str, *, displayed: bool) -> str:
    formula = BARE.sub(_braced, formula)
    for unknown, known in SPELLINGS:
        formula = re.sub(unknown + r"(?![A-Za-z])", known, formula)
    return tex2mathml(formula, as_block=displayed)


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_mathml(node.astext(), displayed=False))
    raise nodes.SkipNode


def _displayed(self: HTML5Translator, node: nodes.math_block) -> None:
    formula = _mathml(node.astext(), displayed=True)
    self.body.append(f'<div class="formula">{formula}</div>')
    raise nodes.SkipNode
