"""Hospitals whose folders stay while studies and files change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from consortia.federation import app
from consortia.federation.governance import verify
from consortia.federation.governance.gate import LEDGER
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import load_study
from tests.federation.hospitals import HOSPITALS, NAMES, study

METHOD = "\n".join(['name = "fa_ld"', "step_size = 0.05", "local_steps = 1"])


class Consortium:
    """Three hospitals whose folders stay while their processes, files and studies change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {name: folder / f"{name}.csv" for name in NAMES}
        for name, path in self.files.items():
            shutil.copy(HOSPITALS / f"{name}.csv", path)

    def lines(self, count: int) -> None:
        whole = (HOSPITALS / "north.csv").read_text().splitlines()
        self.files["north"].write_text("\n".join(whole[: 1 + count]) + "\n")

    def run(self, rounds: int = 2, policy: Any = None) -> Stage:
        path = self.folder / f"study{rounds}.toml"
        path.write_text(study(METHOD, rounds=rounds, chains=2))
        text = proposed(terms_of(load_study(path))).replace("maximum_runs = 3", "maximum_runs = 9")
        text = text if policy is None else policy(text)
        stage = Stage(path, self.files, self.folder / "sites", text)
        for name in NAMES:
            node = {"site": name, "data": str(self.files[name])}
            node["folder"] = str(self.folder / "sites" / name)
            answer = app.site_of(stage.study, node, {}, private=True).answer
            stage.answers[name] = answer
        stage.run()
        return stage


FORMULA = """[data]
files = ["north.csv", "south.csv", "west.csv"]
{require}
[model]
formula = "{formula}"
family = "bernoulli"
missing = "{missing}"
{more}
[algorithm]
name = "few_rounds"
[run]
chains = 4
seed = 1
"""
COMPARED = (
    '[compare]\nformula = "ill ~ age + dose + crp"\nfamily = "bernoulli"\nmissing = "complete"'
)


class Hospitals(Consortium):
    """The same with a column in which the values of one patient miss."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        rng = np.random.default_rng(0)
        for name, path in self.files.items():
            head, *lines = path.read_text().split()
            crp = [f"{value:.2f}" for value in rng.normal(size=len(lines))]
            crp[41] = "" if name == "north" else crp[41]
            rows = [f"{line},{value}" for line, value in zip(lines, crp, strict=True)]
            path.write_text("\n".join([f"{head},crp", *rows]) + "\n")

    def described(
        self,
        formula: str,
        require: str = "",
        more: str = "",
        loo: str = "",
        missing: str = "complete",
    ) -> Stage:
        """The stage of a study whose sites have described their rows."""
        path = self.folder / "study.toml"
        parts = {"formula": formula, "require": require, "more": more, "missing": missing}
        path.write_text(FORMULA.format(**parts) + loo)
        text = proposed(terms_of(load_study(path))).replace("maximum_runs = 3", "maximum_runs = 9")
        text = text.replace("minimum_rows = 50", "minimum_rows = 20")
        stage = Stage(path, self.files, self.folder / "sites", text)
        for name in NAMES:
            node = {"site": name, "data": str(self.files[name])}
            node["folder"] = str(self.folder / "sites" / name)
            answer = app.site_of(stage.study, node, {}, private=True, apart=True).answer
            stage.answers[name] = answer
        stage.run(lambda request: request.kind != "description")
        return stage

    @property
    def errors(self) -> str:
        return (self.folder / "sites" / "north" / "errors.log").read_text()

    @property
    def left(self) -> int:
        """Messages that have left north."""
        path = self.folder / "sites" / "north" / LEDGER
        entries = verify(path).entries if path.exists() else ()
        return [entry.event for entry in entries].count("released")
