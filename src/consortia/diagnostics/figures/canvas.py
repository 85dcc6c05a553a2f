"""The colours and settings of a report's figures, and how a figure becomes SVG or PNG.

Figures are drawn in the colours of light pages. On a page the style sheet maps each of them to a
variable, which is another colour on dark pages; the SVG is left as it is. Text stays text, so that
it can be read aloud, searched and copied.
"""

from __future__ import annotations

import contextlib
import html
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from consortia.errors import MissingExtraError, wrong
from consortia.store.durable import written_beside

COLOURS = {
    "ink": ("#1d2126", "#e9ecef"),
    "muted": ("#59626c", "#a5afb9"),
    "rule": ("#c3c8ce", "#4d565f"),
    "series-0": ("#1f5fa8", "#6aa9ec"),
    "series-1": ("#d9822b", "#f0a35a"),
    "series-2": ("#16826b", "#4cc3a6"),
    "series-3": ("#7d6bb5", "#ac9ce6"),
    "series-4": ("#b5446e", "#e883a8"),
    "series-5": ("#5f7a1f", "#a9c75c"),
    "series-6": ("#8a5a2b", "#cf9f70"),
    "series-7": ("#2b8a9a", "#68c6d6"),
}
"""Colours by variable of the style sheet: on light pages, as in figures, and on dark ones."""

INK, MUTED, RULE, *SERIES = (light for light, _ in COLOURS.values())
"""Text, lesser text, lines, and chains or runs: first the federated run's, then its reference's."""

DPI = 160
FORMATS = (".png", ".svg", ".pdf")
"""Endings of a figure's file."""

MOST_NAMED = 32
"""Letters of a name beside a figure."""

TIP = "tip: "
"""Prefix of the group of an artist whose rest is shown when the pointer is over it."""

GAP = 0.15
"""Between the figures of a picture, in inches."""


@dataclass(frozen=True, eq=False)
class Plot:
    """A figure."""

    figure: Any  # of Matplotlib, drawn within `drawing`
    alt: str  # what is to be seen, in words
    caption: str = ""  # one or two sentences below it
    of: str = ""  # the parameter that it is of, where the reader may choose one

    def svg(self, key: str) -> str:
        """Return the figure as an ``<svg>`` element; ``key`` is its own among those of a page."""
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        target = io.StringIO()
        no_metadata = dict.fromkeys(("Date", "Type", "Format", "Creator"))
        for part in (self.figure, *self.figure.axes):
            part.patch.set(facecolor="none", edgecolor="none")
        with drawing({"svg.fonttype": "none", "svg.hashsalt": key}):
            # `savefig` would draw twice, first for the layout, which a drawing begins with anyway
            FigureCanvasSVG(self.figure).print_svg(target, metadata=no_metadata)
        # What comes first is a style sheet, which would hold for the whole page.
        body = target.getvalue().partition("</defs>")[2].strip()
        # Names of groups, which occur in every figure; what is referred to has a salted hash.
        body = re.sub(rf'<g id="{TIP}([^"]*)">', r"<g><title>\1</title>", body)
        body = re.sub(r'<g id="[^"]*"', "<g", body)
        # Numbers of attributes, to a hundredth of a point, are two thirds of a page less.
        body = re.sub(r'="[^"]*"', lambda match: re.sub(r"(\d+\.\d{2})\d+", r"\1", match[0]), body)
        width, height = 72 * self.figure.get_size_inches()
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'viewBox="0 0 {width:g} {height:g}" role="img" '
            f'aria-label="{html.escape(self.alt, quote=True)}">{body}'
        )


def write_png(columns: Sequence[Sequence[Any]], path: Path) -> None:
    """Write figures that stand below one another in columns as one picture on white."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.image import imsave

    gap = round(GAP * DPI)
    with drawing():
        drawn = [[_pixels(FigureCanvasAgg(figure)) for figure in column] for column in columns]
    widths = [max(pixels.shape[1] for pixels in column) for column in drawn]
    height = max(sum(pixels.shape[0] + gap for pixels in column) for column in drawn)
    picture = np.full((height + gap, sum(widths) + gap * (len(widths) + 1), 3), 255, np.uint8)
    left = gap
    for column, width in zip(drawn, widths, strict=True):
        top = gap
        for pixels in column:
            rows, across = pixels.shape[:2]
            picture[top : top + rows, left : left + across] = pixels
            top += rows + gap
        left += width + gap
    with written_beside(path) as temporary:
        imsave(temporary, picture, dpi=DPI, format="png")


def _pixels(canvas: Any) -> np.ndarray:
    canvas.figure.set_dpi(DPI)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3]


def check_extra() -> None:
    """Refuse early, and say what to install, where the extra is missing."""
    for name in ("jinja2", "matplotlib"):
        if find_spec(name) is None:
            raise MissingExtraError(
                f'figures of a report need the module {name}: pip install "consortia[plots]"'
            )


def check_picture(path: Path) -> None:
    """Refuse a figure's file of no known kind, and where the extra is missing."""
    if path.suffix not in FORMATS:
        raise wrong("path", f" is {str(path)!r}: give a name that ends in {', '.join(FORMATS)}.")
    check_extra()


def write_figure(figure: Any, path: Path) -> Path:
    """Write a figure of Matplotlib, whole or not at all; return the file."""
    with written_beside(path) as temporary:
        figure.savefig(temporary, dpi=DPI, format=path.suffix[1:])
    return path


def skip_docstrings() -> None:
    """Keep Matplotlib from writing docstrings when it is imported, a fifth of that time.

    For a command, where nobody reads them: they list the properties of each kind of artist.

    Raises:
        MissingExtraError: Matplotlib is not installed.
    """
    check_extra()
    from matplotlib import artist as artists

    artists.kwdoc = lambda artist: ""


@contextlib.contextmanager
def drawing(more: dict[str, Any] | None = None) -> Iterator[None]:
    """Set Matplotlib up for a report's figure."""
    import cycler
    import matplotlib

    settings: dict[str, Any] = {
        "axes.edgecolor": RULE,
        "axes.labelcolor": MUTED,
        "axes.prop_cycle": cycler.cycler(color=SERIES),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": INK,
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
        "axes.labelsize": 9,
        "figure.constrained_layout.use": True,
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9,
        "legend.frameon": False,
        "legend.labelcolor": INK,
        "lines.linewidth": 1.2,
        "text.color": INK,
        "text.parse_math": False,
        "xtick.color": RULE,
        "xtick.labelcolor": MUTED,
        "ytick.color": RULE,
        "ytick.labelcolor": MUTED,
    }
    with matplotlib.rc_context(settings | (more or {})):
        yield


def axes_of(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure of this size in inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def cut(name: str) -> str:
    """Return a name that fits beside a figure."""
    return name if len(name) <= MOST_NAMED else name[: MOST_NAMED - 1] + "…"
