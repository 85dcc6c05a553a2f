"""Whether a claim's quote is printed in its paper, where the paper's text is at hand.

Texts come from extraction, which loses spaces, line breaks and markup: a quote and a text are
compared by their letters and digits alone. An ellipsis in a quote stands for what is left out.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from experiments.claims import Claim, Paper

VARIABLE = "CONSORTIA_PAPERS"
PRINTED = ("text", "table", "caption", "slide")
"""Sources whose quotes are words of the paper; labels and legends of a panel are described."""


def text_of(name: str) -> str | None:
    """Return the text of a paper, or None where it is not at hand.

    ``NAME*.txt`` is looked for in the directory ``CONSORTIA_PAPERS``, or in ``papers`` beside the
    directory ``CONSORTIA_DATA``.
    """
    folders = []
    if VARIABLE in os.environ:
        folders.append(Path(os.environ[VARIABLE]))
    elif "CONSORTIA_DATA" in os.environ:
        folders.append(Path(os.environ["CONSORTIA_DATA"]).resolve().parent / "papers")
    found = [path for folder in folders for path in sorted(folder.glob(f"{name}*.txt"))]
    return found[0].read_text(encoding="utf-8") if found else None


def letters(text: str) -> str:
    """Return the letters and digits of a text, in lower case, without the commands of LaTeX."""
    text = re.sub(r"\\[a-zA-Z]+", "", text)
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def printed(quote: str, text: str) -> bool:
    """Return True if the parts of a quote stand in a text, one after the other."""
    bare, begin = letters(text), 0
    for part in filter(None, map(letters, quote.split("…"))):
        found = bare.find(part, begin)
        if found < 0:
            return False
        begin = found + len(part)
    return True


def every(paper: Paper) -> Iterator[Claim]:
    """Yield all claims of a paper."""
    for study in paper.studies:
        yield from study.claims
    yield from paper.others


def faults(paper: Paper, text: str) -> list[str]:
    """Return a line for each claim whose quote the paper's text does not have."""
    return [
        f"{paper.name}, claim {claim.id}: not in the paper's text: {claim.quote!r}"
        for claim in every(paper)
        if claim.source in PRINTED and not printed(claim.quote, text)
    ]
