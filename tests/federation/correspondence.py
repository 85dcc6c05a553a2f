"""Three hospitals and a coordinator by letters: directories that share nothing but a folder."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from consortia.cli.commands import app
from consortia.engines.messages.identities import FILE, RING, made_keys
from consortia.federation.app import prepared_key, site_of
from consortia.federation.governance import terms_of
from consortia.federation.governance.proposal import proposed
from consortia.federation.letters import answering
from consortia.federation.letters.answering import Answered, Permit, answer_letter
from consortia.federation.letters.coordinating import Coordinator, Progress, open_study
from consortia.study.build import load_study
from tests.federation.hospitals import HOSPITALS, NAMES, study

POLICY = """models = ["any"]
maximum_rounds = 1000
minimum_rows = 50
"""


class Correspondence:
    """A study by letters in one folder, which may be copied.

    Args:
        root: of everything; new, or that of an earlier correspondence.
        algorithm: of the study.
        asked: the study file; by default `study` with this algorithm.
        keys: messages are signed, and answers leave as sums that nobody can take apart.
        prepared: the sites have prepared the keys of the sums before the run.
        data: folder of the sites' files.
        after: an earlier correspondence of the same sites, whose ledgers they go on with.
    """

    def __init__(
        self,
        root: Path,
        algorithm: str = 'name = "few_rounds"',
        *,
        keys: bool = False,
        asked: str = "",
        prepared: bool = False,
        data: Path = HOSPITALS,
        after: Correspondence | None = None,
    ) -> None:
        self.root, self.coordinator, self.shared = root, root / "coordinator", root / "post"
        if not root.exists():
            root.mkdir()
            asked = asked or study(algorithm)
            if not keys:
                asked = asked.replace("[run]", "[run]\nsecure_sums = false")
            (root / "study.toml").write_text(asked)
            for name in NAMES:
                if after is not None:
                    theirs = shutil.ignore_patterns(FILE, "runs")
                    shutil.copytree(after.site(name), self.site(name), ignore=theirs)
                self.site(name).mkdir(parents=True, exist_ok=True)
                shutil.copy(data / f"{name}.csv", self.site(name) / "rows.csv")
            of_coordinator = root / "keys" if keys else None
            more = "secure_sums = false\n"
            if of_coordinator is not None:
                more = made_keys(of_coordinator, {name: self.site(name) for name in NAMES})
            for name in NAMES:
                (self.site(name) / "site-policy.toml").write_text(POLICY + more)
            if prepared:
                assert of_coordinator is not None
                keep_sum_keys(of_coordinator, {name: self.sum_key(name) for name in NAMES})
            open_study(root / "study.toml", self.coordinator, self.shared, keys=of_coordinator)

    def site(self, name: str) -> Path:
        """Return the folder of a site."""
        return self.root / "sites" / name

    def sum_key(self, name: str) -> str:
        """Return the key that a site prepares for the sums of the study."""
        study, folder = load_study(self.root / "study.toml"), self.site(name)
        return prepared_key(study, name, folder / "rows.csv", folder)

    def question(self, name: str, number: int) -> Path:
        """Return the file of a letter to a site."""
        return self.shared / name / f"question-{number:03d}.letter"

    def reply(self, name: str, number: int) -> Path:
        """Return the file of a site's answer."""
        return self.shared / name / f"answer-{number:03d}.letter"

    def proceed(self, *more: Path, again: Sequence[str] = ()) -> Progress:
        """Let the coordinator read what has come."""
        return Coordinator(self.coordinator).proceed(more, again)

    def answer(self, name: str, number: int, permit: Permit = lambda shown: True) -> Answered:
        """Let a site answer a letter."""
        folder = self.site(name)
        path = self.question(name, number)
        return answer_letter(path, permit=permit, data=folder / "rows.csv", folder=folder)

    def answered(self) -> Path:
        """Let all sites answer until there is a result; return where it is."""
        progress = self.proceed()
        while progress.result is None:
            for name, number in progress.awaited.items():
                error = self.answer(name, number).error
                assert error is None, f"{name}, letter {number}: {error}"
            progress = self.proceed()
        return progress.result

    def permit_as_proposed(self) -> None:
        """Give each site the policy that it is proposed for the study and its own rows."""
        for name in NAMES:
            folder = self.site(name)
            words: dict[str, Path] = {"--study": self.root / "study.toml", "--folder": folder}
            words |= {"--data": folder / "rows.csv", "--identities": self.root / "keys" / RING}
            every = [str(word) for pair in words.items() for word in pair]
            done = CliRunner().invoke(app, ["site", "check", *every])
            assert done.exit_code == 0, done.output
            (folder / "site-policy.toml").write_text(done.stdout)

    def copied(self, to: Path) -> Correspondence:
        """Return a copy, whose letters lie in a folder of its own."""
        shutil.copytree(self.root, to)
        state = to / "coordinator" / "letters.json"
        state.write_text(state.read_text().replace(str(self.shared), str(to / "post")))
        return Correspondence(to)


def published(root: Path, asked: str, rows: Mapping[str, Mapping[str, Sequence[Any]]]) -> Path:
    """Return the run that letters with masks have made under the proposed policy."""
    root.mkdir(exist_ok=True)
    for name, columns in rows.items():
        lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        (root / f"{name}.csv").write_text("\n".join([",".join(columns), *lines]))
    now = Correspondence(root / "letters", keys=True, asked=asked, data=root)
    for name in NAMES:
        policy = now.site(name) / "site-policy.toml"
        keys = policy.read_text()
        keys = keys[keys.index("coordinator =") :]
        policy.write_text(proposed(terms_of(load_study(now.root / "study.toml")), keys=keys))
    progress, letters = now.proceed(), 0
    while progress.result is None:
        for name, number in progress.awaited.items():
            error = now.answer(name, number).error
            assert error is None, str(error)
        progress, letters = now.proceed(), letters + 1
    print(letters, "letters")
    return progress.result


def keep_sum_keys(folder: Path, keys: Mapping[str, str]) -> None:
    """Write the keys of the sums that sites have prepared into the coordinator's file."""
    path = folder / RING
    before = path.read_text().partition("[sums]")[0].rstrip()
    lines = "\n".join(f'"{name}" = "{key}"' for name, key in keys.items())
    path.write_text(f"{before}\n\n[sums]\n{lines}\n")


def as_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sites add no noise of their own, so that draws are those of one process."""
    simulated = functools.partial(site_of, private=False)
    monkeypatch.setattr(answering, "site_of", simulated)
