"""Prints how many lines of code each feature takes, as the table that CONTRIBUTING.md shows.

A feature is the files that would go with it, in whichever folders they lie: a folder gets shorter
when code moves, a feature does not. Lines of code are those with a token that is neither comment
nor docstring. ``tests/test_rooms.py`` holds the budgets; a commit that raises one says why.
"""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "consortia"

BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
"""Tokens that make no line one of code."""


@dataclass(frozen=True)
class Feature:
    """Files by folder or name below the package, and the most lines of code that they may have."""

    name: str
    parts: tuple[str, ...]
    most: int

    @property
    def files(self) -> list[Path]:
        """Its source files; each part names at least one."""
        return sorted(file for part in self.parts for file in files_of(part))

    @property
    def lines(self) -> int:
        """Its lines of code."""
        return sum(code_lines(file.read_text(encoding="utf-8")) for file in self.files)


FEATURES = (
    Feature(
        "few_rounds with its proposals",
        ("algorithms/few_rounds", "surrogates", "dynamics/ensemble", "core/host.py"),
        4720,
    ),
    Feature(
        "formulas",
        ("models/regression", "models/_integrated.py", "core/arrays.py", "study/formulas.py"),
        8975,
    ),
    Feature(
        "between institutions",
        ("federation", "engines/messages", "engines/flower", "engines/letters"),
        9187,
    ),
    Feature("run and store", ("run", "store"), 4851),
    Feature("report", ("report", "diagnostics/figures"), 3581),
    Feature("theory", ("theory",), 4608),
)


def files_of(part: str) -> list[Path]:
    """Return the source files of a folder, or the file itself.

    Raises:
        FileNotFoundError: nothing of that name lies in the package.
    """
    path = PACKAGE / part
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    if not files:
        raise FileNotFoundError(f"{path}: no source file; mend FEATURES in {__file__}")
    return files


def code_lines(text: str) -> int:
    """Count the lines of a source that hold code."""
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            value = each.value if isinstance(each, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                documentation.update(range(each.lineno, (each.end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documentation)


def table() -> str:
    """Return the features with their files and budgets, in Markdown."""
    rows = ["| feature | files | most lines of code |", "|---|---|---|"]
    for feature in FEATURES:
        files = ", ".join(f"`{part}`" for part in feature.parts)
        rows.append(f"| {feature.name} | {files} | {feature.most:,} |")
    return "\n".join(rows)


def main() -> None:
    """Print the table, and the lines that each feature and the whole package have today."""
    print(table(), end="\n\n")
    for feature in FEATURES:
        print(f"{feature.name}: {feature.lines:,} of {feature.most:,}")
    print(f"all of src: {sum(code_lines(file.read_text('utf-8')) for file in files_of('.')):,}")


if __name__ == "__main__":
    main()
