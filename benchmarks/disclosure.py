"""Ordinary studies under the policy that is proposed: how many end with a posterior.

Each has 3 to 25 sites of 60 to 3,000 rows and 2 to 12 columns: a measurement, a skewed laboratory
value, factors, and one patient far from all others; every fourth integrates the sites' levels out.
Run ``python -m benchmarks.disclosure COUNT [FIRST]``; policies, gates and ledgers are a site's own.
Beside each stand the messages of the same run without a policy and the largest difference of a mean
or of a standard deviation from that run, in standard deviations; of one that is refused, whether
the rehearsal of the site that refused had predicted it.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import consortia
from consortia.errors import ConsortiaError, SiteRefusedError
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal import rehearsed
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import load_study

FAMILIES = ("bernoulli", "gaussian", "poisson")
STUDY = """[data]
files = {files}
[model]
formula = "{formula}"
family = "{family}"
{more}
[algorithm]
name = "few_rounds"
[run]
chains = 4
seed = 1
"""


def write_study(seed: int, folder: Path) -> dict[str, Path]:
    """Write one study and the tables of its sites; return the files by site."""
    rng = np.random.default_rng(seed)
    sites = int(rng.choice([3, 4, 5, 8, 12, 25], p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.1]))
    most = 3000 if sites < 12 else 400
    family, columns = FAMILIES[seed % 3], int(rng.integers(2, 13))
    kinds = [("age", "crp", "arm", "lab")[index % 4] + str(index) for index in range(columns)]
    effects = rng.normal(0, 0.2, columns)
    files = {f"s{site}": folder / f"s{site}.csv" for site in range(sites)}
    for index, path in enumerate(files.values()):
        rows = int(np.exp(rng.uniform(np.log(max(60, 4 * columns)), np.log(most))))
        table, scores = {}, []
        for kind in kinds:
            values = rng.normal(0, 1, rows)
            if kind.startswith(("crp", "lab")):
                table[kind] = np.exp(2 + values).round(1)
            elif kind.startswith("arm"):
                values = rng.integers(0, 2, rows).astype(float)
                table[kind] = np.where(values > 0, "treated", "control")
            else:
                table[kind] = (60 + 10 * values).round()
            scores.append(values)
        if index == 0:
            table["age0"][0] = 60 + 45  # 4.5 standard deviations
        eta = np.transpose(scores) @ effects + rng.normal(0, 0.3 * (seed % 4 == 0))
        if family == "bernoulli":
            y = (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(int)
        elif family == "poisson":
            y = rng.poisson(np.exp(np.clip(eta, -3, 3)))
        else:
            y = (eta + rng.normal(size=rows)).round(2)
        lines = zip(y, *table.values(), strict=True)
        text = [",".join(["y", *kinds]), *(",".join(map(str, line)) for line in lines)]
        path.write_text("\n".join(text) + "\n")
    terms = [f"log({kind})" if kind.startswith("lab") else kind for kind in kinds]
    formula = " + ".join(terms + ["(1 | site)"] * (seed % 4 == 0))
    named = [path.name for path in files.values()]
    parts = {"files": named, "formula": f"y ~ {formula}", "family": family}
    more = "integrate = true" if seed % 4 == 0 else ""
    (folder / "study.toml").write_text(STUDY.format(**parts, more=more))
    return files


def compare(study: Path, tree: Any) -> str:
    """Return the messages of the same run without a policy, and how far the draws are apart."""
    built = load_study(study).build()
    run = load_study(study).run_options | {"progress": False}
    plain = consortia.sample(built.model, built.rows, built.algorithm, **run)
    apart = []
    for name in plain.posterior.data_vars:
        here, there = (of.posterior[name] for of in (tree, plain))
        axes, sd = ("chain", "draw"), there.std(("chain", "draw"))
        apart.append(float(abs((here.mean(axes) - there.mean(axes)) / sd).max()))
        apart.append(float(abs(here.std(axes) / sd - 1).max()))
    count = plain.attrs["communication_rounds"]
    return f"{count} without a policy, at most {max(apart):.2f} sd apart"


def predict(study: Path, file: Path) -> str:
    """Return whether the rehearsal at a site says that the run would end early."""
    findings = rehearsed(study, file)
    ends = next(finding.refused for finding in findings if finding.attack == "an honest run")
    findings.close()
    return "predicted" if ends else "not predicted"


def run_study(seed: int) -> bool:
    """Run one study; print how it ended, and return True if it has a posterior."""
    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(home)
        files = write_study(seed, folder)
        terms = terms_of(load_study(folder / "study.toml"))
        stage = Stage(folder / "study.toml", files, folder / "sites", proposed(terms))
        began, ended = time.process_time(), True
        try:
            tree = stage.run()
            text = f"{tree.attrs['communication_rounds']} messages, noise raised at "
            text += str(tree.attrs.get("site_noise", "no site"))
            text += f"; {compare(folder / 'study.toml', tree)}"
        except SiteRefusedError as error:
            ended, text = False, f"refused ({error.reason[:90]})"
            for site in error.sites:
                text += f"; at {site} {predict(folder / 'study.toml', files[site])}"
        except ConsortiaError as error:
            ended, text = False, f"{type(error).__name__}: {str(error)[:200]}"
        seconds = time.process_time() - began
    print(f"{seed}: {terms.sites} sites, {text} ({seconds:.1f} CPU s)", flush=True)
    return ended


def main() -> None:
    """Run as many studies as are wanted, and print the share with a posterior."""
    given = [int(text) for text in sys.argv[1:]]
    count, first = (given + [100, 0][len(given) :])[:2]
    ended = [run_study(seed) for seed in range(first, first + count)]
    print(f"{sum(ended)} of {count} studies have a posterior")


if __name__ == "__main__":
    main()
