"""Refuse a commit whose subject is no imperative of at most 72 characters.

pre-commit runs it with the file of the message: `python scripts/commit_subject.py FILE`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MAX_CHARACTERS = 72

NOT_IMPERATIVE = re.compile(r"(?i)(a|an|the|this|some|\w+ed|\w+ing|\w*[^s\W]s)$")
"""First words that begin no imperative: articles, past tenses, participles, third persons."""

IMPERATIVE = {
    "Bring",
    "Embed",
    "Feed",
    "Focus",
    "Need",
    "Proceed",
    "Seed",
    "Shed",
    "Speed",
    "Swing",
}
"""Imperatives that have such an ending."""


def complaints(message: str) -> list[str]:
    """List the faults of the subject of a commit's message, a sentence each."""
    subject = message.split("\n", 1)[0].rstrip()
    if not subject:
        return ["the subject is empty: expected an imperative, such as 'Add a method'"]
    first = subject.split()[0].rstrip(",:;")
    found = []
    if len(subject) > MAX_CHARACTERS:
        found.append(f"the subject has {len(subject)} characters, at most {MAX_CHARACTERS} are due")
    if not first[0].isupper():
        found.append(f"the subject begins with {first!r}: expected a capital letter")
    elif first not in IMPERATIVE and NOT_IMPERATIVE.match(first):
        found.append(f"the subject begins with {first!r}: expected an imperative, such as 'Add'")
    if subject.endswith("."):
        found.append("the subject ends with a full stop: leave it out")
    return found


def main(path: str) -> int:
    """Print what is wrong with the message in this file; return 1 if anything is."""
    found = complaints(Path(path).read_text(encoding="utf-8"))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
