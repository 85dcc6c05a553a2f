"""A study by mail: CPU seconds of each command, and the share of a site's statement in its work.

Three hospitals with keys under the policy that is proposed, each command in a process of its own:
the pneumonia of the examples, and counts and a binary response of 280 rows and 8 columns. A site
measures before each answer how many of its rows all answers settle
(`consortia.engines.messages.settled`): that may take a tenth of what its processes compute. Of a
site whose process waits for messages, so that nothing is imported for each, the share is larger,
and stands in a row without a gate.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
formula = "{formula}"
family = "{family}"
missing = "complete"
[algorithm]
name = "few_rounds"
"""
STUDIES = {
    "pneumonia": ("bernoulli", "died ~ age + sex + crp + arm"),
    "counts": ("poisson", "y ~ a + b + c + d + e + f + g + arm"),
    "binary": ("bernoulli", "y ~ a + b + c + d + e + f + g + arm"),
}
MADE_ROWS = 280


def rows(scale: str) -> list[Row]:
    """The figures: the slowest command of each kind, and the greatest share of a site."""
    kinds = STUDIES if scale == "full" else ["pneumonia"]
    studies = {kind: [_study(kind) for _ in range(PAIRS[scale])] for kind in kinds}
    seconds = [study for study, _ in studies["pneumonia"]]
    made = [
        row_of(
            NAME,
            f"CPU seconds of {command}",
            np.array([each[command] for each in seconds]),
            None if command == LAST else SECONDS,
        )
        for command in seconds[0]
    ]
    for kind, pairs in studies.items():
        shares = np.array([share for _, share in pairs])
        made.append(row_of(NAME, f"share of the statement in a site's CPU, {kind}", shares, SHARE))
        warm = np.array([_warm(kind) for _ in pairs])
        made.append(row_of(NAME, f"the same of a process that waits, {kind}", warm, None))
    return made


def _write(kind: str, root: Path) -> dict[str, Path]:
    """Write a study and its tables; return these by site."""
    family, formula = STUDIES[kind]
    (root / "study.toml").write_text(STUDY.format(family=family, formula=formula))
    files = {site: root / site / f"{site}.csv" for site in NAMES}
    rng = np.random.default_rng(0)
    for site, path in files.items():
        path.parent.mkdir(exist_ok=True)
        if kind == "pneumonia":
            shutil.copy(ROOT / "examples" / "pneumonia" / f"{site}.csv", path)
            continue
        x = rng.normal(size=(MADE_ROWS, 8)).round(2)
        x[:, 7] = x[:, 7] > 0
        eta = x @ [0.3, -0.2, 0.2, 0.1, -0.1, 0.1, 0.0, 0.2]
        chance = 1 / (1 + np.exp(-eta))
        y = rng.poisson(np.exp(eta)) if family == "poisson" else rng.random(MADE_ROWS) < chance
        lines = [",".join(map(str, (int(of), *row))) for of, row in zip(y, x, strict=True)]
        path.write_text("\n".join(["y,a,b,c,d,e,f,g,arm", *lines]) + "\n")
    return files


def _policy(root: Path) -> str:
    from consortia.federation.governance.proposal import proposed
    from consortia.federation.governance.terms import terms_of
    from consortia.study.build import load_study

    return proposed(terms_of(load_study(root / "study.toml")))


def _study(kind: str) -> tuple[dict[str, float], float]:
    """Run a study; return the slowest command of each kind, and the greatest share of a site."""
    from consortia.engines.messages.identities import made_keys

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = _write(kind, root)
        rules = made_keys(root / "keys", {site: root / site for site in NAMES})
        policy = _policy(root).partition("\n[identities")[0]
        for site in NAMES:
            (root / site / "site-policy.toml").write_text(f"{policy}\n{rules}")
        keys, post = str(root / "keys"), root / "post"
        where = "--folder", str(root / "coordinator"), "--shared", str(post), "--keys", keys
        opened, _ = _command("open", str(root / "study.toml"), *where)
        of_sites: dict[str, list[tuple[float, float]]] = {site: [] for site in NAMES}
        coordinators: list[float] = []
        while (post / NAMES[0] / f"question-{len(coordinators) + 1:03d}.letter").exists():
            for site, spent in of_sites.items():
                letter = str(post / site / f"question-{len(coordinators) + 1:03d}.letter")
                its = "--folder", str(root / site), "--data", str(files[site])
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


def _warm(kind: str) -> float:
    """Return the share in the answers of sites that are functions of this process."""
    from consortia.federation.rehearsal.stage import Stage

    with tempfile.TemporaryDirectory() as folder:
        root, spent = Path(folder), [0.0]
        files = _write(kind, root)
        stage = Stage(root / "study.toml", files, root / "sites", _policy(root))
        stage.answers = {name: _timed(of, spent) for name, of in stage.answers.items()}
        with _timed_statements() as statements:
            stage.run()
    return sum(statements) / sum(spent)


def _command(*words: str) -> tuple[float, float]:
    """Run ``consortia letter``; return its CPU seconds, and those of its statement."""
    seconds, printed = run_python("-m", "benchmarks.letters", "letter", *words)
    return seconds, float(printed.splitlines()[-1])


def _timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """Return a function that notes the CPU seconds of each of its calls."""

    def timed(*arguments: Any, **named: Any) -> Any:
        began = time.process_time()
        try:
            return function(*arguments, **named)
        finally:
            spent.append(time.process_time() - began)

    return timed


@contextmanager
def _timed_statements() -> Iterator[list[float]]:
    """Note the CPU seconds of all that measures settled rows: what it is made of, and each use."""
    from consortia.engines.messages.conversing import QueryRuntime
    from consortia.engines.messages.settled import Settled

    spent, made, add = [0.0], QueryRuntime.__dict__["_settled"], Settled.add
    make = made.func
    made.func, Settled.add = _timed(make, spent), _timed(add, spent)  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        made.func, Settled.add = make, add  # type: ignore[method-assign]


def main(*words: str) -> None:
    """Run a command of consortia, and print the CPU seconds that its statement took."""
    from consortia.cli.commands import app

    with _timed_statements() as spent:
        status = app(list(words), standalone_mode=False)
    print(sum(spent))
    sys.exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
