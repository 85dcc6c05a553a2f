"""A report as a document of Word, by python-docx, or as PDF, printed by a browser."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consortia.core.printable import printable
from consortia.diagnostics.figures.canvas import DPI, drawing
from consortia.errors import MissingExtraError, require_extra
from consortia.report.chapters import Chapter, Part
from consortia.report.tables import Table

BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
    *("msedge", "microsoft-edge", "microsoft-edge-stable"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
"""Programs that print a page without a window; all are of one engine."""

SECONDS = 120.0
"""Seconds that printing may take."""

LINES_MAX = 60
"""Rows of a table on paper."""

WIDTH = 6.0
"""Width of a figure on paper, in inches."""

COLOURS_MAX = 64
"""Most colours of a figure on paper, with those that smooth its lines."""


def check_extra() -> None:
    """Refuse early, and say what to install, where the extra is missing."""
    with require_extra("docx", "a report for Word needs python-docx"):
        import docx  # noqa: F401


def docx(title: str, chapters: Sequence[Chapter]) -> bytes:
    """Return a document of Word with headings, tables and figures of its own.

    Raises:
        MissingExtraError: python-docx is not installed.
    """
    check_extra()
    from docx import Document  # optional
    from docx.shared import Pt

    made = Document()
    made.styles["Normal"].font.size = Pt(10)
    made.add_heading(_text(title), 0)
    for chapter in chapters:
        if len(chapters) > 1:
            made.add_heading(_text(chapter.name), 1)
        if chapter.sentence:
            made.add_paragraph(_text(chapter.sentence), style="Intense Quote")
        made.add_heading(_text(chapter.verdict.headline), 1)
        made.add_paragraph(_text(chapter.verdict.explanation))
        for check in chapter.verdict.checks:
            line = made.add_paragraph(style="List Bullet")
            line.add_run(_text(f"{check.severity.word.upper()}: {check.title} {check.value}. "))
            line.add_run(_text(check.reason))
            if check.action:
                line.add_run(_text(f" {check.action}")).bold = True
        made.add_paragraph(_text(chapter.lead))
        for part in chapter.parts:
            _add(made, part)
    target = io.BytesIO()
    made.save(target)
    return target.getvalue()


def _add(made: Any, part: Part) -> None:
    from docx.shared import Inches  # optional

    made.add_heading(_text(part.title), 1)
    if part.text:
        made.add_paragraph(_text(part.text))
    for plot in part.plots:
        if plot is None:
            continue
        inches = min(WIDTH, 1.2 * plot.figure.get_size_inches()[0])
        made.add_picture(_picture(plot.figure), width=Inches(inches))
        made.inline_shapes[-1]._inline.docPr.set("descr", _text(plot.alt))
        if plot.caption:
            made.add_paragraph(_text(plot.caption), style="Caption")
    for table in part.tables:
        if table is not None:
            _add_table(made, table)
    if part.quote:
        made.add_paragraph(_text(part.quote))
    for line in part.numbered:
        made.add_paragraph(_text(line), style="List Number")
    for note in part.notes:
        made.add_paragraph(_text(note), style="List Bullet")


def _picture(figure: Any) -> io.BytesIO:
    """Return a figure as a PNG of few colours, a quarter of the size of one of all."""
    from PIL import Image  # Matplotlib needs it, and is optional

    drawn, reduced = io.BytesIO(), io.BytesIO()
    with drawing():
        figure.savefig(drawn, format="png", dpi=DPI, facecolor="white")
    with Image.open(drawn) as image:
        few = image.convert("RGB").quantize(COLOURS_MAX, dither=Image.Dither.NONE)
        few.save(reduced, "png", optimize=True, dpi=(DPI, DPI))
    return reduced


def _add_table(made: Any, table: Table) -> None:
    from docx.enum.text import WD_ALIGN_PARAGRAPH  # optional

    rows = [table.columns, *table.rows[:LINES_MAX]]
    grid = made.add_table(len(rows), len(table.columns), style="Light List")
    for cells, row in zip(rows, grid.rows, strict=True):
        for column_index, (text, cell) in enumerate(zip(cells, row.cells, strict=True)):
            cell.text = _text(text)
            if column_index and len(text) < 25:
                cell.paragraphs[0].alignment = WD_ALIGN_PARAGRAPH.RIGHT
    left = len(table.rows) - LINES_MAX
    made.add_paragraph(f"{left:,} more rows are in the HTML page." if left > 0 else "")


def _text(text: str) -> str:
    return printable(text, lines=True)


def pdf(page: str) -> bytes:
    """Return a page as a browser prints it.

    Raises:
        MissingExtraError: there is no browser that does, or it did not.
    """
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    otherwise = "open report.html and print it there, or use --format docx"
    if program is None:
        raise MissingExtraError(
            f"PDF needs Chromium, Chrome or Edge, and none was found: {otherwise}."
        )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        source, target = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(page, encoding="utf-8")
        options = ["--headless", "--disable-gpu", "--no-pdf-header-footer", "--no-first-run"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # a browser refuses to run as root with one
        command = [program, *options, f"--user-data-dir={folder}/profile"]
        command += [f"--print-to-pdf={target}", source.as_uri()]
        try:
            subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
            return target.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise MissingExtraError(f"{program} did not print the page: {otherwise}.") from error
