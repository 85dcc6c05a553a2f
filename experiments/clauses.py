"""Each figure, table and statement of the papers, with the rows that check it or why none does.

A paper's ``claims.toml`` lists its clauses; which rows bear on a clause follows from the rows' own
sections, and a clause without a row has a reason. Tests compare the list with the paper's text.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from experiments.claims import NOT_RUN, Paper

KINDS = {
    "fig": "Figure",
    "figs": "Figure",
    "figure": "Figure",
    "figures": "Figure",
    "table": "Table",
    "thm": "Theorem",
    "thms": "Theorem",
    "theorem": "Theorem",
    "lemma": "Lemma",
    "prop": "Proposition",
    "proposition": "Proposition",
    "cor": "Corollary",
    "corollary": "Corollary",
    "remark": "Remark",
}
NUMBER = r"(?:[A-Z]\.)?\d+(?:\.\d+)*"
NAMED = re.compile(
    rf"\b({'|'.join(KINDS)})\b\.? ?({NUMBER}[a-f]?(?:-[a-f])?(?:(?:, | to ){NUMBER}[a-f]?)*)",
    re.IGNORECASE,
)


def named(section: str) -> Iterator[str]:
    """Yield the clauses that a row's section names: of "figs 1b, 3" Figure 1 and Figure 3."""
    before = "Supplementary " if section.startswith("supplement") else ""
    for kind, numbers in NAMED.findall(section):
        for part in numbers.split(", "):
            first, _, last = (re.sub(r"[a-f](-[a-f])?$", "", end) for end in part.partition(" to "))
            whole = range(int(first), int(last) + 1) if last else (first,)
            for number in whole:
                name = f"{KINDS[kind.casefold()]} {number}"
                yield before + (name.casefold() if before else name)


def mentioned(text: str) -> set[str]:
    """Return the clauses that a paper's text names, its panels left out."""
    found = re.findall(rf"\b({'|'.join(KINDS)})\b\.?\s{{0,2}}({NUMBER})", text, re.IGNORECASE)
    return {f"{KINDS[kind.casefold()]} {number}" for kind, number in found}


def checked(paper: Paper) -> dict[str, list[str]]:
    """Return the ids of the rows of each clause that has any."""
    result: dict[str, list[str]] = defaultdict(list)
    for claim in (*(claim for study in paper.studies for claim in study.claims), *paper.others):
        for name in dict.fromkeys(named(claim.section)):
            result[name].append(claim.id)
    return result


def faults(paper: Paper) -> list[str]:
    """Return a line for each row whose clause is not listed, and each clause without a reason."""
    with_rows, lines = checked(paper), []
    lines += [f"{paper.name}: {name} is not a clause" for name in with_rows.keys() - paper.clauses]
    for name, reason in paper.clauses.items():
        if bool(reason) == (name in with_rows):
            lines.append(f"{paper.name}, {name}: give rows, or else a reason, and not both")
    return lines


def page(verdicts: Sequence[tuple[Paper, Mapping[str, str]]], generated: str) -> str:
    """Return the page of all clauses, from each paper's verdicts by row."""
    lines = [
        "# Every figure, table and statement",
        "",
        generated,
        "",
        "All figures, tables, theorems, propositions, corollaries, lemmas and remarks of the five",
        "papers, with the numbers of rows that check them by verdict, or why there are none. The",
        "rows are in `experiments/RESULTS.md`, where each begins with what it checks. *Ours*",
        "compares with nothing that is printed: bounds whose constants the paper does not give",
        "have only such rows.",
    ]
    for paper, verdict in verdicts:
        with_rows = checked(paper)
        ran = {row for row, outcome in verdict.items() if outcome != NOT_RUN}
        number = sum(not ran.isdisjoint(with_rows[name]) for name in paper.clauses)
        count = f"{number} of {len(paper.clauses)} have a row that was run."
        lines += ["", f"## {paper.name}", "", count, ""]
        lines += ["| clause | rows, by verdict | or why none |", "|---|---|---|"]
        for name, reason in paper.clauses.items():
            counts = Counter(verdict[row] for row in with_rows[name])
            listed = "; ".join(f"{number} {outcome}" for outcome, number in counts.items())
            lines.append(f"| {name} | {listed} | {reason} |")
    return "\n".join(lines) + "\n"
