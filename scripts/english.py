"""Print where the English of the package breaks its rules: `python scripts/english.py [PATH ...]`.

Two rules, which CONTRIBUTING.md explains under "Words":

- the docstring of a function begins with an imperative verb, every other one (of a module, class,
  property or constant) with a noun phrase;
- no docstring, comment, message or page has a word of the deny list outside quotes.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

DENIED = {
    "told": "given, informed",
    "asked": "requested, queried",
    "heard": "received",
    "teaches": "shows, determines",
    "alike": "equal, similar, identically",
    "dear": "expensive",
    "sooner": "earlier",
    "is no": "is not a",
    "at hand": "available, observed",
    "texts": "strings",
    "whole number": "integer",
    "whole numbers": "integers",
    "truth value": "bool",
    "truth values": "bools",
    "goes on": "continues, resumes",
    "that does not do": "poorly fitting",
}
"""Words and phrases that are refused, each with those to put in their place."""

FRAGMENTS = {
    *("Of", "That", "Those", "As", "What", "Whether", "Where", "How", "Which", "Why", "Whose"),
    *("In", "From", "For", "By", "On", "At", "When"),
}
"""First words that make a fragment of a docstring."""

VERBS = frozenset(
    re.findall(
        r"\w+",
        """
    Accept Add Adjust Advance Advise Allow Answer Append Apply Approximate Ask Assemble Assess
    Assign Average Begin Bind Bound Build Calibrate Call Centre Check Choose Climb Close Collect
    Combine Compare Compile Complete Compute Connect Continue Convert Copy Count Create Cut Decide
    Declare Decode Define Delete Derive Describe Detect Divide Do Draw Drop Encode End Ensure Enter
    Escape Estimate Evaluate Examine Execute Expand Explain Export Extract Fail Fetch Fill Filter
    Find Fit Flush Forget Fork Format Gather Generate Give Group Handle Hash Hide Hold Ignore Import
    Inform Initialise Insert Install Integrate Interpolate Interpret Interrupt Invert Iterate Join
    Judge Keep Kick Kill Label Leave Let Limit Link List Listen Load Lock Log Look Make Map Mark
    Mask Match Measure Merge Mix Move Multiply Name Normalise Note Open Order Parse Perform Permute
    Place Plan Plot Point Predict Prepare Print Process Propagate Propose Put Query Raise Read
    Receive Record Recover Reduce Refine Refit Refuse Register Reject Release Remove Rename Reorder
    Repeat Replace Replay Reply Report Request Require Reset Reshape Resolve Restore Resume Return
    Reuse Rotate Round Run Sample Save Say Scale Schedule Score Search Seed Select Send Serve Set
    Shift Shorten Show Shrink Shuffle Simulate Skip Sleep Smooth Solve Sort Split Standardise Start
    State Step Stop Store Sum Summarise Swap Take Test Trace Track Transform Treat Truncate Try Turn
    Undo Unlock Unpack Update Use Validate Verify Wait Walk Warm Warn Weight Withdraw Word Wrap
    Write Yield
    """,
    )
)
"""First words of the docstrings of functions."""

QUESTION = re.compile(r"Return (what|which|where|how|whether|why)\b")
"""Beginnings that put a question where a reader looks for an answer."""

QUOTED = re.compile(r"``[^`]*``|`[^`]*`|\"[^\"\n]*\"|“[^”]*”|(?<!\w)'[^'\n]*'(?!\w)")
IDIOMS = re.compile(r"(?i)\bthere\s+is\s+no\b|\bis\s+no\s+longer\b")
"""Idioms in which a denied phrase is good English."""

FENCED = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
WORDS = re.compile(
    r"(?<![\w-])(" + "|".join(word.replace(" ", r"\s+") for word in DENIED) + r")(?![\w-])"
)


class Offence(NamedTuple):
    """One breach of a rule.

    Attributes:
        path: relative to the root of the repository.
        line: from 1.
        rule: ``docstring`` or ``word``.
        text: a sentence with what to write instead.
    """

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def offences(path: Path) -> list[Offence]:
    """Return the breaches of a Python file, or of a page in Markdown or reStructuredText."""
    text = path.read_text(encoding="utf-8")
    name = path.resolve().relative_to(ROOT).as_posix()
    if path.suffix in (".py", ".pyi"):
        return list(_python(name, text))
    return list(_denied(name, 1, FENCED.sub(_blank, text)))


def checked_files(root: Path = ROOT) -> list[Path]:
    """Return every file that the rules hold for: the package, the pages and the two guides."""
    pages = [root / "README.md", root / "CONTRIBUTING.md"]
    for suffix in ("md", "rst"):
        pages += (root / "docs").rglob(f"*.{suffix}")
    return sorted([*(root / "src").rglob("*.py"), *pages])


def _python(name: str, text: str) -> Iterator[Offence]:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if _is_string(node) and " " in node.value:
            yield from _denied(name, node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _denied(name, token.start[0], token.string)
    for line, docstring, verb in _docstrings(tree):
        if reason := _beginning(docstring, verb):
            yield Offence(name, line, "docstring", reason)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Yield each docstring with its line, and whether it is a function's."""
    for node in ast.walk(tree):
        documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            yield node.body[0].lineno, docstring, _is_function(node)
        if isinstance(node, ast.Module | ast.ClassDef):
            for before, after in itertools.pairwise(node.body):
                constant = isinstance(before, ast.Assign | ast.AnnAssign)
                if constant and isinstance(after, ast.Expr) and _is_string(after.value):
                    yield after.lineno, ast.literal_eval(after.value), False


def _is_function(node: ast.AST) -> bool:
    """Return True for a function that is called, and False for a property."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    names = {ast.unparse(each).split(".")[-1] for each in node.decorator_list}
    return not names & {"property", "cached_property", "abstractproperty"}


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _beginning(docstring: str, verb: bool) -> str:
    """Describe the fault of a docstring's first words; empty if there is none."""
    first = docstring.split()[0].rstrip(".,:;")
    if first in FRAGMENTS:
        return f"a docstring begins with '{first}': write a noun phrase, or an imperative verb"
    if verb and first not in VERBS:
        return f"a function's docstring begins with '{first}', which is not an imperative verb"
    if asked := QUESTION.match(docstring):
        return f"a docstring begins with '{asked.group()}': name the thing, or say what is done"
    if not verb and first in ("Return", "Returns", "Raise", "Refuse", "Yield"):
        return f"the docstring of a class, property or constant begins with the verb '{first}'"
    return ""


def _denied(name: str, line: int, text: str) -> Iterator[Offence]:
    """Yield the words of the deny list that stand outside quotes."""
    plain = IDIOMS.sub(_blank, QUOTED.sub(_blank, text))
    for found in WORDS.finditer(plain):
        word = " ".join(found.group().split())
        at = line + plain.count("\n", 0, found.start())
        yield Offence(name, at, "word", f"'{word}': write {DENIED[word]}")


def _blank(found: re.Match[str]) -> str:
    """Return as many lines as a match has, and nothing else."""
    return "\n" * found.group().count("\n")


def main(paths: list[str]) -> int:
    """Print the breaches of these files, or of all; return 1 if there are any."""
    files = [Path(path) for path in paths] or checked_files()
    found = [offence for path in files for offence in offences(path)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
