"""Names in a formula, taken out of its text so that nothing reads them as anything else.

Every name of a column, quoted or not, becomes a placeholder before terms and Python's parser see
the formula, and a name again in the factor. So a quoted name is never an expression, a name may
have dots, and no letter becomes another (Python writes identifiers in NFKC).
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from consortia.errors import wrong

TOKEN = re.compile(
    r"`(?P<quoted>[^`]*)`|'[^']*'|\"[^\"]*\"|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    r"|(?P<name>[^\W\d][\w.]*)|.",
    re.DOTALL,
)
NOT_NAMES = ("True", "False", "None")
CALLED, KEYWORD = re.compile(r"\s*\("), re.compile(r"\s*=(?!=)")
AMBIGUOUS = re.compile(r".*[()\[\]:|].*|[0-9]+|Intercept")
"""Names that would be something else in the label of a coefficient."""


class Code(NamedTuple):
    """A formula, or a part of one, with placeholders for its names."""

    text: str  # with placeholders
    columns: dict[str, str]  # name of the column by placeholder
    written: dict[str, str]  # what was written, by placeholder

    def part(self, text: str) -> Code:
        """Return a part of it."""
        return self._replace(text=text)

    @property
    def shown(self) -> str:
        """The text as it was written; a name by itself without needless quotes."""
        if self.text in self.columns:
            return label(self.columns[self.text])
        return re.sub(
            r"\w+", lambda match: self.written.get(match[0], match[0]), self.text, flags=re.ASCII
        )


def coded(text: str) -> Code:
    """Return a formula with placeholders for its names.

    Raises:
        InputError: a name in back-ticks is empty, or one is not closed.
    """
    text = unicodedata.normalize("NFC", text)
    prefix = "q_"
    while prefix in text:
        prefix += "_"
    placeholders: dict[str, str] = {}
    written: dict[str, str] = {}
    parts: list[str] = []
    for match in TOKEN.finditer(text):
        name, bare = match["quoted"], match["name"]
        if name is None and bare is not None and bare not in NOT_NAMES:
            rest = text[match.end() :]
            inside = parts.count("(") > parts.count(")")
            if not CALLED.match(rest) and not (inside and KEYWORD.match(rest)):
                name = bare
        if name is None:
            if match[0] == "`":
                raise wrong("formula", f" {text!r}: a back-tick is not closed.")
            parts.append(match[0])
            continue
        name = name.strip()
        if not name:
            raise wrong("formula", f" {text!r}: two back-ticks enclose no name.")
        placeholder = placeholders.setdefault(name, f"{prefix}{len(placeholders)}_")
        written.setdefault(placeholder, match[0])
        parts.append(placeholder)
    columns = {placeholder: name for name, placeholder in placeholders.items()}
    return Code("".join(parts), columns, written)


def label(name: str) -> str:
    """Return a column's name as the text of a factor."""
    return f"`{name}`" if AMBIGUOUS.fullmatch(name) else name
