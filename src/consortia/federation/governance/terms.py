"""Requirements of a study at a site, found from its files alone: before any data are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from consortia.core.queries import Conversation
from consortia.core.summed import GATHERED, unsummed
from consortia.engines.messages.secure_sums import MINIMUM_SITES
from consortia.run import quadrature, sandwich
from consortia.study.code import modules

if TYPE_CHECKING:
    from consortia.core.contract import Method, Phase
    from consortia.study.build import Study

BEFORE_PHASES = 2
"""Messages of a site before the first phase: its description, and that it agrees to the run; both
are one in a registered study."""

MASKED, PLAIN = "masked", "plain"
"""Treatments of answers that are sums."""

KINDS = {
    "description": "number of rows; names, types and shapes of the arrays; least and largest "
    "label; a digest of the rows",
    "moments": "of each column the mean and the sum of squared deviations, with standardise; with "
    "a formula those of its numbers, the levels of its factors, and how many values are missing; "
    "of three sites with keys moments leave masked; with describe numbers of participants, none of "
    "few rows",
    "fit": "what surrogates are made of, before the chains begin: modes, gradients, curvatures; of "
    "the method left_out sums over rows of how well each is predicted without it",
    "setup": "of each chain, before its first round: a gradient or a log-density at its start",
    "round": "of each chain and round: a position, a gradient or a log-density",
    "query": "answers to a server's questions: sums over all rows, such as log-densities, "
    "gradients or curvatures at points that it names; `consortia site check` lists them",
}
"""Kinds of messages that leave a site, in the order in which they do."""

DECIDING = ("data", "partition", "model", "registered", "compare", "algorithm", "run", "stop")
"""Tables of a study file that decide what is computed at a site and what leaves it."""


@dataclass(frozen=True)
class StudyTerms:
    """Requirements of a study at a site."""

    run: str  # which run, as its engine calls it; "" before there is one
    # SHA-256 of everything in the study file that decides what is computed, with the model: see
    # `terms_of`
    study: str
    model: str  # SHA-256 of the model alone
    algorithm: str  # its name
    parameters: Mapping[str, Any]  # the algorithm's parameters as plain values, defaults included
    rounds: int  # iterations, the warm-up included
    chains: int  # independent chains, each with a position in every message
    sites: int  # number of sites; 0 where one machine deals a data set out
    exchanges: int  # messages that a site sends in an undisturbed run, at most
    messages: tuple[str, ...]  # kinds of messages that leave the site, of `policy.KINDS`
    version: str  # of consortia, with which the study is run elsewhere
    # of each function that answers a server's questions its name and what it says of the rows,
    # where the algorithm asks any
    answers: tuple[tuple[str, str], ...] = ()
    usual: int | None = None  # questions after which such a run has ended as a rule
    # messages of an undisturbed run before its first question, phase or fit
    before: int = BEFORE_PHASES
    # whether a formula has what a site adds of its own, its level or slopes, as parameters of the
    # run, of which the server has draws
    own_levels: bool = False
    # all functions of the algorithm that answer questions, in the order of their indices
    functions: tuple[str, ...] = ()
    # by name how many answers of each a usual run has, None: any of its messages; one that is left
    # out is not answered in this study
    queried: Mapping[str, int | None] = field(default_factory=dict)
    # of these functions those whose answers are sums over rows with all their digits
    exact: tuple[str, ...] = ()
    # of the functions that answer a server's questions those to whose answers the site adds noise
    # from its own secret
    noisy: tuple[str, ...] = ()
    # whether the site measures, before each answer, how many rows are settled
    measured: bool = False
    # what becomes of answers that are sums: "" where there are none, or fewer than three sites;
    # "masked", so that nobody can take the sum apart; or "plain", as the study says
    sums: str = ""
    apart: str = ""  # why no secure sums are had of the method, where there are three sites or more
    # requirements of the studies that are run after it on the same rows, of the same model or of
    # the one that it is compared with
    besides: tuple[StudyTerms, ...] = ()

    @property
    def every(self) -> tuple[StudyTerms, ...]:
        """This study, and those that are run after it."""
        return (self, *self.besides)

    @property
    def leaving(self) -> tuple[str, ...]:
        """Kinds of messages that leave the site in any of them."""
        return tuple(kind for kind in KINDS if any(kind in terms.messages for terms in self.every))


def terms_of(study: Study, *, run: str = "", version: str | None = None) -> StudyTerms:
    """Return the terms of a study file; no data are read.

    ``model`` is the SHA-256 of the table ``[model]``, and of ``[compare]`` where there is one,
    defaults left out as written, of ``data.keep``, and of the text of the Python modules beside the
    study file that a ``factory`` is in or imports by an ``import`` statement. (The text of a
    factory that is installed as a package counts as well; what *that* imports does not, nor do the
    ready models of consortia: they are what is installed at the site.)
    ``study`` is that of ``model`` and of all tables but ``[output]`` and ``[reference]``, the title
    left out: rounds, seed, names of data files, the algorithm and each of its parameters.

    Args:
        study: what `consortia.study.build.load_study` returned.
        run: the run.
        version: of consortia elsewhere; this one when None.

    Raises:
        InputError: the module of the model's factory is not there, or is not Python.
    """
    from consortia.core.version import __version__

    method, question = study.method, study.model.question
    rounds = study.run.warmup + study.run.rounds
    # A registered run begins in one message, and a second one where it is resumed.
    before = BEFORE_PHASES - (study.registered is not None)
    several = len(study.data.files or ()) >= MINIMUM_SITES
    if isinstance(method, Conversation):
        queried = method.queried(robust=question is not None and question.robust)
        kinds = frozenset({"query"})
        apart, traffic = _of_queries(method, before + usual_messages(study, method), queried)
        traffic["measured"] &= question is None or question.has_rows
    else:
        kinds, apart, exchanges = _of_phases(method, rounds)
        traffic = {"exchanges": exchanges}
    summed = PLAIN if study.run.secure_sums is False else MASKED
    tables = study.model_dump(include=set(DECIDING), exclude_none=True)
    asked = {"table": tables["model"], "modules": modules(*study.code)}
    asked |= {name: tables[name] for name in ("registered", "compare") if name in tables}
    if study.harmonise:
        tables["harmonise"] = asked["harmonise"] = study.model_dump()["harmonise"]
    if study.data.keep is not None:
        asked["keep"] = study.data.keep
    model = _sha256(asked)
    return StudyTerms(
        run=run,
        study=_sha256({"tables": tables, "model": model}),
        model=model,
        algorithm=method.name,
        parameters=method.parameters(),
        rounds=rounds,
        chains=study.run.chains,
        sites=len(study.data.files or ()),
        messages=_messages_of(study, kinds),
        version=__version__ if version is None else version,
        before=before,
        own_levels=question is not None and question.tells_levels,
        sums=summed if several and not apart else "",
        apart=apart if several else "",
        besides=tuple(terms_of(successor, run=run, version=version) for successor in study.besides),
        **traffic,
    )


def usual_messages(study: Study, method: Conversation) -> int:
    """Return the queries of a study as a rule: those of its method, and those of its model.

    A model has more where rows have weights of a sample, and where levels are integrated out.
    """
    usual, question = method.usual_messages(method.dimension or 2), study.model.question
    if question is not None:
        usual += sandwich.MORE_MESSAGES * question.robust
        usual += quadrature.MORE_MESSAGES * any(map(question.stays, question.parsed.groups))
    return min(usual, method.most_messages)


def _of_queries(
    method: Conversation, usual: int, queried: Mapping[str, int | None]
) -> tuple[str, dict[str, Any]]:
    """Return the reason against secure sums, or "", and the terms that a conversation adds."""
    functions = {name: method.functions[name] for name in sorted(queried)}
    apart = "" if any(function.summed for function in functions.values()) else GATHERED
    return apart, {
        "exchanges": BEFORE_PHASES + method.most_messages,
        "answers": tuple((name, function.describes) for name, function in functions.items()),
        "usual": usual,
        "noisy": tuple(name for name, function in functions.items() if function.noise),
        "measured": all(function.reveals is not None for function in functions.values()),
        "functions": tuple(sorted(method.functions)),
        "queried": dict(queried),
        "exact": tuple(name for name, function in functions.items() if function.is_exact),
    }


def _of_phases(method: Method, rounds: int) -> tuple[frozenset[str], str, int]:
    """Return kinds of the messages of a method, why it has no secure sums, and how many leave."""
    from consortia.core.target import any_target

    # Any number of parameters will do where no argument fixes it.
    algorithm = method.build(any_target(method.dimension or 2))
    each = messages_of(algorithm.phases)
    before = BEFORE_PHASES + bool(algorithm.fit) + messages_of(algorithm.fit, algorithm.setup)
    stages = {"fit": algorithm.fit, "setup": algorithm.setup}
    kinds = {name for name, phases in stages.items() if any(phase.local for phase in phases)}
    return frozenset({"round", *kinds}), unsummed(algorithm) or "", before + rounds * each


def _messages_of(study: Study, kinds: frozenset[str]) -> tuple[str, ...]:
    """Return the kinds of messages that leave a site in a study."""
    sent = {"description", *kinds}
    agrees = study.model.formula is not None and study.registered is None
    if study.data.standardise or study.data.standardise_target or agrees:
        sent.add("moments")
    return tuple(kind for kind in KINDS if kind in sent)


def messages_of(*stages: tuple[Phase, ...]) -> int:
    """Return the messages to a site in these stages, at most."""
    return sum(phase.repeat for phases in stages for phase in phases if phase.local is not None)


def _sha256(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
