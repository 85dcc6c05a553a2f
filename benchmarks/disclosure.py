"""Ordinary studies under the policy that is proposed: how many end with a posterior.

Each has 3 to 25 sites of 60 to 3,000 rows and 2 to 12 columns: a measurement, a skewed laboratory
value, factors, and one patient far from all others; every fourth integrates the sites' levels out.
Policies, gates and ledgers are a site's own; the sites are functions of one process, as letters
would change no number. In pieces, in any order, each study a line of a file::

    python -m benchmarks.disclosure FILE SEED [SEED ...] [--rehearse]
    python -m benchmarks.disclosure FILE

A seed that the file has is not run again; without seeds the table of the file is printed. Beside
each study stand the messages of the same run without a policy and the largest difference of a mean
from that run, in standard deviations, or of the middle 68 %'s width, in widths. Where a run ends
early the rehearsal of the site that refused, or else of the one that raised its noise most, says
whether it had predicted that; with ``--rehearse`` also where it does not, at the site of the
far-out patient.
"""

from __future__ import annotations

import json
import sys
import tempfile
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


def compare(study: Path, tree: Any) -> dict[str, Any]:
    """Return the messages of the same run without a policy, and how far the draws are apart."""
    built = load_study(study).build()
    run = load_study(study).run_options | {"progress": False}
    plain = consortia.sample(built.model, built.rows, built.algorithm, **run)
    apart = []
    for name in plain.posterior.data_vars:
        here, there = (of.posterior[name] for of in (tree, plain))
        axes, sd = ("chain", "draw"), there.std(("chain", "draw"))
        apart.append(float(abs((here.mean(axes) - there.mean(axes)) / sd).max()))
        # Not standard deviations: of the spread of few levels chance alone moves these by .2.
        widths = [np.ptp(of.quantile((0.16, 0.84), axes).values, axis=0) for of in (here, there)]
        apart.append(float(abs(widths[0] / widths[1] - 1).max()))
    return {"without": plain.attrs["communication_rounds"], "apart": max(apart)}


def predict(study: Path, file: Path) -> dict[str, Any]:
    """Return the runs of a site's rehearsal, and how many of them end early."""
    findings = rehearsed(study, file)
    honest = next(finding for finding in findings if finding.attack == "an honest run")
    findings.close()
    return {"rehearsed": honest.numbers["runs"], "predicted": honest.numbers["ended_early"]}


def most_noise(stage: Stage) -> str:
    """Return the site that raised its noise most, of equal ones the first."""
    noise = {
        name: max((each.answer.values.get("noise", 1.0) for each in log), default=1.0)
        for name, log in stage.log.items()
    }
    return max(noise, key=lambda name: noise[name])


def run_study(seed: int, rehearse: bool) -> dict[str, Any]:
    """Run one study; return how it ended."""
    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(home)
        files = write_study(seed, folder)
        study = folder / "study.toml"
        terms = terms_of(load_study(study))
        stage = Stage(study, files, folder / "sites", proposed(terms))
        made: dict[str, Any] = {"seed": seed, "family": FAMILIES[seed % 3], "sites": terms.sites}
        made["levels"] = seed % 4 == 0
        try:
            tree = stage.run()
            made |= {"messages": tree.attrs["communication_rounds"], **compare(study, tree)}
            made["noise"] = tree.attrs.get("site_noise", "{}")
            return made | (predict(study, files["s0"]) if rehearse else {})
        except SiteRefusedError as error:
            (site, *_), made["ended"] = error.sites, error.reason[:90]
        except ConsortiaError as error:
            site, made["ended"] = most_noise(stage), f"{type(error).__name__}: {str(error)[:90]}"
        return made | {"at": site} | predict(study, files[site])


RIGHT, MORE_MESSAGES = 0.15, 2
"""Standard deviations to within which two runs of 1,000 effective draws and more agree in each of
up to 28 figures, and the messages beyond those without a policy that a study may take."""


def table(studies: list[dict[str, Any]]) -> str:
    """Return the counts of studies by family and of those with levels, and those that differ."""
    ended = [study for study in studies if "ended" in study]
    passed = [study for study in studies if "ended" not in study]
    more = [study for study in passed if study["messages"] > study["without"] + MORE_MESSAGES]
    wrong = [study for study in passed if not study["apart"] <= RIGHT]
    lines = [f"{len(passed)} of {len(studies)} studies have a posterior"]
    for levels in (False, True):
        for family in FAMILIES:
            of = [s for s in studies if (s["family"], s["levels"]) == (family, levels)]
            count = sum("ended" not in study for study in of)
            name = family + ", levels" * levels
            lines += [f"  {name}: {count} of {len(of)}"] if of else []
    lines.append(f"{len(more)} take over {MORE_MESSAGES} messages more, {len(wrong)} differ")
    tried = [study for study in passed if "predicted" in study]
    foreseen, alarms = (sum(study["predicted"] > 0 for study in of) for of in (ended, tried))
    lines.append(f"early ends predicted: {foreseen} of {len(ended)}")
    lines.append(f"and of {len(tried)} with a posterior that were rehearsed: {alarms}")
    return "\n".join(lines + [str(study) for study in [*ended, *more, *wrong]])


def main() -> None:
    """Run the studies that are wanted and not in the file; without any print the file's table."""
    rehearse = "--rehearse" in sys.argv
    file, *seeds = (word for word in sys.argv[1:] if word != "--rehearse")
    path = Path(file)
    lines = path.read_text().splitlines() if path.exists() else []
    studies = {study["seed"]: study for study in map(json.loads, lines)}
    for seed in map(int, seeds):
        before = studies.get(seed, {})
        if not before or (rehearse and "predicted" not in before):
            studies[seed] = run_study(seed, rehearse)
            with path.open("a") as stream:
                stream.write(json.dumps(studies[seed]) + "\n")
    if not seeds:
        print(table([*studies.values()]))


if __name__ == "__main__":
    main()
