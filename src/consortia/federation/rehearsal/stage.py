"""A study in one process, as between institutions: policies, ledgers, and messages to be seen."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import consortia
from consortia.engines.messages.engine import MessageEngine
from consortia.engines.messages.envelope import Envelope, decode
from consortia.engines.messages.transport import InProcess
from consortia.federation import app
from consortia.federation.governance.policy import load_policy
from consortia.federation.governance.terms import terms_of
from consortia.study.build import Study, load_study

DEADLINE = 60.0
"""Seconds that a site has for an answer: it answers at once, or what it answers is not used."""


Answer = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Exchange:
    """A message to a site, and what it answered."""

    request: Envelope
    answer: Envelope


class Stage:
    """A study whose sites are functions of this process.

    Args:
        study: the study file.
        files: data of each site, by its name.
        folder: for what sites keep; empty.
        policy: text of the policy of each site.
        copies_of: the site of whose file copies stand for the others'; None: each has its own.
        private: sites draw what is private from secrets of their own, as between institutions;
            else all random numbers follow from the seed.
        origin: where a copy of a study file comes from, beside which its other files are.

    Attributes:
        answers: the function by which each site answers a message.
        log: of each site the messages to it, and what it answered.
        halted_at: the first message that was not answered because a run was halted.
    """

    def __init__(
        self,
        study: Path,
        files: Mapping[str, Path],
        folder: Path,
        policy: str,
        copies_of: str | None = None,
        *,
        private: bool = True,
        origin: Path | None = None,
    ) -> None:
        self.path, self.folder = study, folder
        loaded = load_study(study, origin)
        self.study = loaded if copies_of is None else loaded.of_copies(copies_of)
        self.terms = terms_of(self.study)
        self.names = self.study.data.site_names
        self.log: dict[str, list[Exchange]] = {name: [] for name in self.names}
        self.halted_at: Envelope | None = None
        self._until: Callable[[Envelope], bool] | None = None
        self._nodes: dict[str, dict[str, str]] = {}
        for name in self.names:
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / app.POLICY).write_text(policy, encoding="utf-8")
            load_policy(folder / name / app.POLICY)
            parts = {"data": str(files[name]), "folder": str(folder / name)}
            self._nodes[name] = {"site": name} | parts
        self.answers = self._answers_of(self.study, private)

    def _answers_of(self, study: Study, private: bool = True) -> dict[str, Answer]:
        """Return the functions by which the sites answer messages of a study."""
        nodes = self._nodes.items()
        site_of = functools.partial(app.site_of, study, config={}, private=private, apart=True)
        return {name: site_of(node).answer for name, node in nodes}

    def _answered(self, name: str, message: bytes) -> bytes:
        request = decode(message)
        if self._until is not None and self._until(request):
            self.halted_at = request
            raise Halted
        answer = self.answers[name](message)
        self.log[name].append(Exchange(request, decode(answer)))
        return answer

    def ask(self, name: str, message: Envelope) -> Envelope:
        """Return a site's answer to any message."""
        self._until = None
        return decode(self._answered(name, message.encode()))

    def engine(self, **options: Any) -> MessageEngine:
        """Return the engine of an honest server, with further options of `MessageEngine`."""
        names = enumerate(self.names, 1)
        sites = {number: functools.partial(self._answered, name) for number, name in names}
        options = {"deadline": DEADLINE} | options
        return MessageEngine(InProcess(sites), self.names, study=self.terms.study, **options)

    def run(self, until: Callable[[Envelope], bool] | None = None) -> Any:
        """Return the result of an honest server's run.

        It is halted, and None returned, at the first request for which ``until`` returns True;
        that one is not answered, and is in ``halted_at``.

        Raises:
            SiteMissingError: a site refused, or was refused.
        """
        self._until = until
        try:
            return self.sample(self.engine())
        except Halted:
            return None

    def run_all(self) -> None:
        """Run the study beside its file, and what a comparison of models asks after it.

        Raises:
            SiteMissingError: a site refused, or was refused.
        """
        study, directory = self.study, self.path.parent / "run"
        tree = self.sample(self.engine(), store=directory)
        if study.left_out is not None:
            afterwards = app.Afterwards(self._engine_of, None, quiet=True)
            afterwards.leave_out(study.left_out, study.compared, directory, tree)

    def _engine_of(self, study: Study) -> MessageEngine:
        """Return the engine of a study that is run after this one."""
        sites = dict(enumerate(self._answers_of(study).values(), 1))
        return MessageEngine(InProcess(sites), self.names, study=terms_of(study).study)

    def sample(self, engine: MessageEngine, **options: Any) -> Any:
        """Return the result of the study with such an engine, and further options of a run."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            built = self.study.build(engine)
            run = self.study.run_options | options | {"engine": engine, "progress": False}
            return consortia.sample(built.model, built.rows, built.algorithm, **run)


class Halted(BaseException):
    """The run has gone far enough; no transport takes it for a lost node."""
