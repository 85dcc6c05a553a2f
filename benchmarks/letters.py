"""A study by mail: CPU seconds of each command, and the share of a site's statement in its work.

Three hospitals with keys, each command in a process of its own. A site measures before each answer
how many of its rows all answers settle (`consortia.engines.messages.settled`): that may take a
tenth of what its processes compute.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import ROOT, run_python
from benchmarks.measure import Gate, Row, row_of

NAME = "letters"
NAMES = ("aarhus", "bilbao", "cork")
LAST = "the last letter next, with the report"
PAIRS = {"full": 3, "quick": 1, "tiny": 1}
SECONDS, SHARE = Gate("<=", 2.0), Gate("<=", 0.1)

STUDY = """
[data]
files = ["aarhus.csv", "bilbao.csv", "cork.csv"]
[model]
formula = "died ~ age + sex + crp + arm"
family = "bernoulli"
missing = "complete"
[algorithm]
name = "few_rounds"
"""

POLICY = """
models = ["any"]
maximum_rounds = 1000
minimum_rows = 50
messages = ["description", "moments", "query"]
"""


def rows(scale: str) -> list[Row]:
    """The figures: the slowest command of each kind, and the greatest share of a site."""
    studies = [_study() for _ in range(PAIRS[scale])]
    slowest = {kind: np.array([seconds[kind] for seconds, _ in studies]) for kind in studies[0][0]}
    shares = np.array([share for _, share in studies])
    return [
        *(
            row_of(NAME, f"CPU seconds of {kind}", seconds, None if kind == LAST else SECONDS)
            for kind, seconds in slowest.items()
        ),
        row_of(NAME, "share of the statement in a site's CPU", shares, SHARE),
    ]


def _study() -> tuple[dict[str, float], float]:
    """Run a study; return the slowest command of each kind, and the greatest share of a site."""
    from consortia.engines.messages.identities import made_keys

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "study.toml").write_text(STUDY)
        rules = made_keys(root / "keys", {site: root / site for site in NAMES})
        for site in NAMES:
            shutil.copy(ROOT / "examples" / "pneumonia" / f"{site}.csv", root / site)
            (root / site / "site-policy.toml").write_text(POLICY + rules)
        keys, post = str(root / "keys"), root / "post"
        where = "--folder", str(root / "coordinator"), "--shared", str(post), "--keys", keys
        opened, _ = _command("open", str(root / "study.toml"), *where)
        of_sites: dict[str, list[tuple[float, float]]] = {site: [] for site in NAMES}
        coordinators: list[float] = []
        while (post / NAMES[0] / f"question-{len(coordinators) + 1:03d}.letter").exists():
            for site, spent in of_sites.items():
                letter = str(post / site / f"question-{len(coordinators) + 1:03d}.letter")
                its = "--folder", str(root / site), "--data", str(root / site / f"{site}.csv")
                spent.append(_command("answer", letter, *its, "--yes"))
            coordinators.append(_command("next", str(root / "coordinator"))[0])
    sums = [np.sum(spent, axis=0) for spent in of_sites.values()]
    *between, last = coordinators
    seconds = {
        "letter open": opened,
        "letter answer": max(seconds for spent in of_sites.values() for seconds, _ in spent),
        "letter next": max(between),
        LAST: last,
    }
    return seconds, max(part / all_ for all_, part in sums)


def _command(*words: str) -> tuple[float, float]:
    """Run ``consortia letter``; return its CPU seconds, and those of its statement."""
    seconds, printed = run_python("-m", "benchmarks.letters", "letter", *words)
    return seconds, float(printed.splitlines()[-1])


def main(*words: str) -> None:
    """Run a command of consortia, and print the CPU seconds that its statement took."""
    from consortia.cli.commands import app
    from consortia.engines.messages.conversing import QueryRuntime

    settles, spent = QueryRuntime._settles, [0.0]

    def timed(*arguments: Any) -> Any:
        began = time.process_time()
        try:
            return settles(*arguments)
        finally:
            spent.append(time.process_time() - began)

    QueryRuntime._settles = timed  # type: ignore[method-assign]
    status = app(list(words), standalone_mode=False)
    print(sum(spent))
    sys.exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
