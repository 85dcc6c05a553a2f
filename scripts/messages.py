"""Writes tests/golden/messages.md: what users are told, file by file, for an editor to read.

`python scripts/messages.py` after a change of a message; a test compares the page with the source.
Of errors, warnings, help texts of options and descriptions of keys it has the text, with the names
of what is put into it in braces.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from consortia import errors

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, PAGE = ROOT / "src" / "consortia", ROOT / "tests" / "golden" / "messages.md"
SPEAKERS = {*errors.__all__, "wrong", "warn", "Guess", "Check"}
"""Functions and classes whose arguments users read."""
KEYWORDS = ("help", "description")
LONGEST_NAME = 24
HEAD = """# Messages

Written by `python scripts/messages.py`: read it from top to bottom, change the source.
"""


def words_of(node: ast.expr) -> str:
    """Return the text of a string, with names of what is put into it; "" of anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(words_of(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        name = ast.unparse(node.value)
        return f"{{{name if len(name) <= LONGEST_NAME else '...'}}}"
    text = node.value if isinstance(node, ast.Constant) else ""
    return text if isinstance(text, str) else ""


def messages(tree: ast.AST) -> Iterator[str]:
    """Yield the messages of a file, in the order of its lines."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        read = [word.value for word in node.keywords if word.arg in KEYWORDS]
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "wrong":
            yield "".join(map(words_of, node.args))
        elif name in SPEAKERS:
            read += node.args
        yield from (text for text in map(words_of, read) if " " in text)


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for path in sorted(PACKAGE.rglob("*.py")):
        texts = dict.fromkeys(messages(ast.parse(path.read_text(encoding="utf-8"))))
        if texts:
            lines = "\n".join(f"- {' '.join(text.split())}" for text in texts)
            parts.append(f"\n## {path.relative_to(PACKAGE).as_posix()}\n\n{lines}\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
