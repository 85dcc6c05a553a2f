"""Matplotlib's figures as inline SVG that follows the colours of the page, light or dark.

Figures are drawn in stand-in colours; in the SVG each becomes a variable of the page's style sheet.
Text stays text, so that it can be read aloud, searched and copied.
"""

from __future__ import annotations

import contextlib
import html
import io
import re
from collections.abc import Iterator
from typing import Any

INK, MUTED, RULE = "#010203", "#020304", "#030405"
SERIES = ("#1f5fa8", "#d9822b", "#16826b", "#7d6bb5", "#b5446e", "#5f7a1f", "#8a5a2b", "#2b8a9a")
"""Colours of chains and runs; the first two are the federated run's and its reference's."""

_PAGE = {INK: "--ink", MUTED: "--muted", RULE: "--rule", "#000000": "--ink", "#333333": "--muted"}
_PAGE |= {"#b0b0b0": "--rule", "#cccccc": "--rule", "#262626": "--ink", "#bdbdbd": "--rule"}
_PAGE |= {colour: f"--series-{place}" for place, colour in enumerate(SERIES)}


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib's settings for figures of a report; figures left open are closed at the end."""
    import cycler
    import matplotlib
    import matplotlib.pyplot as plt

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
        "font.size": 9,
        "legend.frameon": False,
        "legend.labelcolor": INK,
        "lines.linewidth": 1.2,
        "svg.fonttype": "none",
        "text.color": INK,
        "xtick.color": RULE,
        "xtick.labelcolor": MUTED,
        "ytick.color": RULE,
        "ytick.labelcolor": MUTED,
    }
    already = set(plt.get_fignums())
    try:
        with matplotlib.rc_context(settings):
            yield
    finally:
        for number in set(plt.get_fignums()) - already:
            plt.close(number)


def svg_of(figure: Any, alt: str, key: str) -> str:
    """The figure as an ``<svg>`` element.

    Args:
        figure: a Matplotlib figure, drawn within `drawing`.
        alt: what is to be seen, in words.
        key: unlike that of every other figure of the page.
    """
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{key}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{key}-", text)
    text = re.sub(r"font-family:[^;\"]*;?", "", text)
    text = re.sub(r"font:\s*(\d+(?:\.\d+)?)px[^;\"]*", r"font-size:\1px", text)
    text = re.sub(r"#[0-9a-f]{6}\b", _variable, text)
    text = re.sub(r'="[^"]*"', _rounded, text)
    shape = re.search(r'viewBox="[^"]*"', text)
    assert shape is not None
    label = html.escape(alt, quote=True)
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = f'<svg {spaces} {shape[0]} role="img" aria-label="{label}">'
    return head + text[text.index(">") + 1 :].strip()


def _rounded(attribute: re.Match[str]) -> str:
    """Coordinates to a hundredth of a point; numbers that are read as text are left alone."""
    return re.sub(r"(\d+\.\d{2})\d+", r"\1", attribute[0])


def _variable(colour: re.Match[str]) -> str:
    name = _PAGE.get(colour[0])
    return colour[0] if name is None else f"var({name})"
