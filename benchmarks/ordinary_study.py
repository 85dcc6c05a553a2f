"""An ordinary study, from the sites' files to the report: `consortia run` and `consortia report`.

A first time with nothing kept of programs, a second time with what the first has kept, each command
in a process of its own: CPU seconds of all of them, and the most memory that one of them held. The
same model of the pooled rows is fitted by what else is installed; other libraries read one table of
rows without missing values, with 0 and 1 for words, and need not agree on anything between sites.
Without groups the line of lme4 is R's own `glm`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.environment import ROOT, run_python
from benchmarks.measure import Row
from consortia.data import datasets
from consortia.data.columns import as_levels
from consortia.data.tables import read_table

NAME = "ordinary study"
ROWS = {"full": 10**6, "quick": 10**5, "tiny": 2000}
SITES = {"full": 10**4, "quick": 1000, "tiny": 20}
LIMIT = 300
"""Seconds after which a fit of another library is given up: `timeout` ends it with 124."""

SAMPLED = 10**5
"""Rows beyond which no library that draws chains is tried: each of its fits would meet `LIMIT`."""

STUDY = """
[data]
files = {files}
[model]
formula = "{formula}"
family = "{family}"
{options}
[algorithm]
name = "few_rounds"
[run]
chains = 4
seed = 1
"""

MEASURED = """
import json, resource, subprocess, sys
for command in json.loads(sys.argv[1]):
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ended.returncode:
        print(json.dumps(f"ended with {ended.returncode}: {' '.join(ended.stderr.split())[-300:]}"))
        sys.exit()
used = resource.getrusage(resource.RUSAGE_CHILDREN)
peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([used.ru_utime + used.ru_stime, peak]))
"""


class Study(NamedTuple):
    """A study whose files lie in a folder, and the same model of the pooled rows."""

    name: str
    write: Callable[[Path], pd.DataFrame]  # writes files and study; returns the pooled rows
    formula: str  # of the pooled rows, as lme4 and Bambi write it
    family: str


class Peer(NamedTuple):
    """Another library, and a program that fits ``formula`` to the rows of ``table``."""

    name: str
    program: str
    suffix: str = ".py"
    groups: bool = True  # it fits effects of groups
    chains: bool = True  # it draws from the posterior


PEERS = (
    Peer(
        "statsmodels",
        """
import pandas, statsmodels.api as sm, statsmodels.formula.api as smf
family = sm.families.{Family}()
print(smf.glm("{formula}", pandas.read_csv("{table}"), family=family).fit().summary())
""",
        groups=False,
        chains=False,
    ),
    Peer(
        "bambi",
        """
import arviz, bambi, pandas
if __name__ == "__main__":
    model = bambi.Model("{formula}", pandas.read_csv("{table}"), family="{family}")
    print(arviz.summary(model.fit(chains=4, cores=1, progressbar=False)))
""",
    ),
    Peer(
        "lme4",
        """
rows <- read.csv("{table}")
formula <- {formula}
family <- "{r_family}"
fitted <- if (!{groups}) glm(formula, family, rows) else
  if (family == "gaussian") lme4::lmer(formula, rows) else lme4::glmer(formula, rows, family)
print(summary(fitted))
""",
        ".R",
        chains=False,
    ),
    Peer(
        "rstanarm",
        """
fit <- if ({groups}) rstanarm::stan_glmer else rstanarm::stan_glm
print(summary(fit({formula}, data = read.csv("{table}"), family = "{r_family}", chains = 4,
                  cores = 1, refresh = 0)))
""",
        ".R",
    ),
)


def rows(scale: str) -> Iterator[Row]:
    """The figures, study by study."""
    for study in _studies(scale):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            table = folder / "pooled.csv"
            pooled = study.write(folder)
            pooled.to_csv(table, index=False)
            yield from _of_library(study, folder)
            for peer in PEERS:
                yield of_peer(study, peer, table, len(pooled))


def _of_library(study: Study, folder: Path) -> Iterator[Row]:
    kept = {"CONSORTIA_COMPILATION_CACHE": "1", "CONSORTIA_CACHE": str(folder / "kept")}
    consortia = [sys.executable, "-m", "consortia"]
    for which in ("first", "second"):
        run, report = str(folder / which), str(folder / f"{which}.html")
        commands = [
            [*consortia, "run", str(folder / "study.toml"), "--output", run, "--quiet"],
            [*consortia, "report", run, "--output", report],
        ]
        yield _row(f"{study.name}: consortia, {which} time", commands, kept)


def of_peer(study: Study, peer: Peer, table: Path, count: int) -> Row:
    """The figure of another library, or why there is none."""
    what = f"{study.name}: {peer.name}, pooled rows"
    groups = "|" in study.formula
    if not is_installed(peer):
        return Row(NAME, what, skipped="not installed")
    if groups and not peer.groups:
        return Row(NAME, what, skipped="it does not fit this model")
    if peer.chains and count > SAMPLED:
        return Row(NAME, what, skipped=f"not tried on more than {SAMPLED:,} rows")
    program = table.with_name(f"fit{peer.suffix}")  # a name that no library has
    program.write_text(
        peer.program.format(
            formula=study.formula,
            table=table,
            family=study.family,
            Family={"gaussian": "Gaussian", "bernoulli": "Binomial"}[study.family],
            r_family={"gaussian": "gaussian", "bernoulli": "binomial"}[study.family],
            groups=str(groups).upper(),
        )
    )
    command = [sys.executable if peer.suffix == ".py" else "Rscript", str(program)]
    row = _row(what, [["timeout", str(LIMIT), *command]], {})
    ended = row.skipped.startswith("ended with 124:")
    return replace(row, skipped=f"given up after {LIMIT} s") if ended else row


def is_installed(peer: Peer) -> bool:
    """Return True if Python, or R, has the library."""
    if peer.suffix == ".py":
        return find_spec(peer.name) is not None
    if shutil.which("Rscript") is None:
        return False
    asked = f'quit(status = !requireNamespace("{peer.name}", quietly = TRUE))'
    return subprocess.run(["Rscript", "-e", asked], check=False).returncode == 0


def _row(what: str, commands: list[list[str]], extra: dict[str, str]) -> Row:
    _, printed = run_python("-c", MEASURED, json.dumps(commands), extra=extra)
    figures = json.loads(printed.splitlines()[-1])
    if isinstance(figures, str):
        return Row(NAME, what, skipped=figures)
    seconds, peak = figures
    detail = f"CPU seconds; peak memory {peak / 1e6:,.0f} MB"
    return Row(NAME, what, seconds, seconds, seconds, 1, detail=detail)


# --- the studies ---------------------------------------------------------------------------------


def _studies(scale: str) -> list[Study]:
    columns = [f"x{index}" for index in range(10)]
    terms = " + ".join(columns)
    many, sites = ROWS[scale], SITES[scale]

    def of_rows(family: str) -> Callable[[Path], pd.DataFrame]:
        return lambda folder: _write(
            folder, _drawn(4, many // 4, 10, family, ()), family, terms, ""
        )

    def of_hospitals(folder: Path) -> pd.DataFrame:
        drawn = _drawn(25, 100, 1, "bernoulli", (0.8, 0.5))
        return _write(folder, drawn, "bernoulli", "x0 + (1 + x0 | site)", "integrate = true")

    def of_sites(folder: Path) -> pd.DataFrame:
        drawn = _drawn(sites, 20, 2, "bernoulli", (0.8,))
        return _write(folder, drawn, "bernoulli", "x0 + x1 + (1 | site)", "integrate = true")

    readme = "died ~ age + sex + smoker + crp + arm + (1 | site) + (0 + arm | site)"
    cancer = "y ~ " + " + ".join(f"x{index}" for index in range(30))
    size = f"{many:,} rows × 10"
    return [
        Study("README's, 3 hospitals", _write_readme, readme, "bernoulli"),
        Study("breast cancer, d = 30, 5 sites", _write_cancer, cancer, "bernoulli"),
        Study("25 hospitals, slopes", of_hospitals, "y ~ x0 + (1 + x0 | site)", "bernoulli"),
        Study(f"linear, {size}", of_rows("gaussian"), f"y ~ {terms}", "gaussian"),
        Study(f"logistic, {size}", of_rows("bernoulli"), f"y ~ {terms}", "bernoulli"),
        Study(f"{sites:,} sites × 20 rows", of_sites, "y ~ x0 + x1 + (1 | site)", "bernoulli"),
    ]


def _write_readme(folder: Path) -> pd.DataFrame:
    example = ROOT / "examples" / "pneumonia"
    parts = []
    for path in sorted(example.iterdir()):
        shutil.copy(path, folder)
        if path.suffix == ".csv":
            table, columns = read_table(path, path.stem), ["age", "crp"]
            part: dict[str, Any] = {name: table[name].values for name in columns}
            words = {"sex": "M", "smoker": "yes", "arm": "treated", "died": "yes"}
            part |= {name: as_levels(table[name]) == word for name, word in words.items()}
            missing = np.any([table[name].missing for name in part], axis=0)
            missing |= as_levels(table["smoker"]) == "NA"
            frame = pd.DataFrame(part).astype(float).assign(site=path.stem)
            parts.append(frame[~missing])
    return pd.concat(parts)


def _write_cancer(folder: Path) -> pd.DataFrame:
    found, _ = datasets.standardise(datasets.load("breast_cancer").rows)
    columns = [f"x{index}" for index in range(found["x"].shape[1])]
    frame = pd.DataFrame(found["x"], columns=columns).assign(y=found["y"])
    frame["site"] = [f"s{index}" for index in np.arange(len(frame)) % 5]
    return _write(folder, frame, "bernoulli", " + ".join(columns), "")


def _drawn(
    sites: int, rows: int, columns: int, family: str, spread: tuple[float, ...]
) -> pd.DataFrame:
    """Draw rows of sites; ``spread`` are the sds of levels and of slopes, correlated by .5."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(sites * rows, columns))
    site = np.repeat(np.arange(sites), rows)
    eta = x @ np.linspace(-0.5, 0.5, columns) if columns > 1 else 0.5 * x[:, 0]
    if spread:
        correlation = np.full((len(spread), len(spread)), 0.5) + 0.5 * np.eye(len(spread))
        effects = rng.normal(size=(sites, len(spread))) @ np.linalg.cholesky(correlation).T
        design = np.column_stack([np.ones(len(x)), x])[:, : len(spread)]
        eta = eta + np.sum(design * (effects * spread)[site], axis=1)
    y = eta + rng.normal(size=len(x))
    if family == "bernoulli":
        y = (rng.random(len(x)) < 1 / (1 + np.exp(-eta))).astype(int)
    frame = pd.DataFrame(x, columns=[f"x{index}" for index in range(columns)])
    return frame.assign(y=y, site=[f"s{index}" for index in site])


def _write(
    folder: Path, frame: pd.DataFrame, family: str, terms: str, options: str
) -> pd.DataFrame:
    """Write the files of the sites and the study; return the frame."""
    files = []
    for site, part in frame.groupby("site", sort=False):
        files.append(f"{site}.csv")
        part.drop(columns="site").to_csv(folder / files[-1], index=False)
    study = STUDY.format(
        files=json.dumps(files), formula=f"y ~ {terms}", family=family, options=options
    )
    (folder / "study.toml").write_text(study)
    return frame
