"""Computation at a site in a conversation: the answers of its site functions to queries."""

from __future__ import annotations

import functools
import hashlib
import hmac
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from consortia.core import trees
from consortia.core.contract import Evaluation
from consortia.core.privacy import Dither, SecretNoise, simulated_generator, with_noise
from consortia.core.queries import Conversation, Rounded, SiteFunction, in_width
from consortia.data import digest
from consortia.data.patterns import rarest_pattern
from consortia.engines.host import COMPILED, HostPrograms, shares_of, way_of
from consortia.engines.kept import kept
from consortia.engines.messages.envelope import Envelope, EnvelopeError
from consortia.engines.messages.files import secret_of
from consortia.engines.messages.questions import (
    COARSEST,
    FACTORS,
    NOISE,
    NOWHERE,
    Place,
    Question,
    Spending,
    largest,
    question_of,
)
from consortia.engines.messages.runtime import Assignment, Permit, SiteWork
from consortia.engines.messages.settled import Settled, Statement
from consortia.engines.messages.stages import QUERY, Label, function_names
from consortia.engines.panel import Answer
from consortia.engines.phases import rows_of_sites
from consortia.engines.programs import SitePrograms
from consortia.errors import PolicyError

SETTLED, MEASURE = "settled", 3
"""Folder at the site of what answers have given away, and the version of how rows are chosen and
measured: what another one has stored is of other values."""

SHARES = (0.2, 0.5, 0.75, 0.9, 0.95)
"""Shares that a run's first answers use together of what earlier runs have left of the information
that settles a row, if more noise can keep them to it: one that used all would end the run at the
next. Local fits and an exploration come first; they shape proposals alone, so that noise costs less
there than where draws are made."""

SURELY_LESS = 4.0
"""Times that an answer tells less than by its larger noise alone, as far-out numbers are lost."""

LAST_EXACT = OrderedDict[Any, Answer]()

SPENT = "spent"
"""File of a run with the information that earlier runs had spent before its first answer."""


class QueryRuntime(SiteWork):
    """One run of a conversation at one site.

    Args:
        assignment: the run.
        method: of the study; its functions alone are answered, whatever a server asks for.
    """

    def __init__(self, assignment: Assignment, method: Conversation) -> None:
        super().__init__(assignment, 1)
        self._method = method
        self._programs: SitePrograms | HostPrograms
        if way_of(self._target, self.rows) == COMPILED:
            self._programs = self._compiled()
        else:
            which, sites = np.array([self._number]), self._job.sites
            share = shares_of(method, sites, which)
            if self._job.registered:
                share = np.full(1, self._equal_share)
            parts = self._target, sites.only(which), share
            self._programs = HostPrograms(*parts, self._compiled)
        self._made: tuple[Envelope | None, Answer] = None, {}

    def _compiled(self) -> SitePrograms:
        return SitePrograms(self._target, self._arrays, self._number, 1, mapped=True)

    def _start_values(self) -> tuple[Any, Any, Any]:
        if isinstance(self._programs, HostPrograms):
            return self._programs.start_values(self._positions)
        return super()._start_values()

    def place(self, label: Label, request: Envelope) -> Place:
        """Return the place where a query asks for the rows' evaluation, and its answer's contents.

        Nothing is computed of the rows.
        """
        function, name = self._function(label, request), str(request.values["function"])
        arrays = self._completed(function, request)
        shapes = function.shapes_of(self._target, arrays, lambda: self._arrays)
        numbers = sum(math.prod(shape) for shape in shapes.values())
        sizes = self._method.declared_sizes(self.dimension)
        declared = sizes[name].up if name in sizes else 0
        evaluation = function.evaluation(arrays)
        spent = self._spent(function, request)
        fault = function.fault(arrays, len(self._job.sites))
        if fault is not None:
            raise PolicyError(f"messages: {fault}.", rules=("messages",))
        if not np.size(evaluation.positions):
            return Place(0, 0.0, 0.0, NOWHERE, numbers, declared, spent)
        reached = self._reached(label, evaluation, np.arange(1))
        farthest = max(reached.farthest, self._from_reference(arrays, evaluation))
        where = reached.points, farthest, reached.moved, reached.middles
        return Place(*where, numbers, declared, spent)

    def _from_reference(self, arrays: Answer, evaluation: Evaluation) -> float:
        """Return the distance of the reference; as points, half as far from their middle."""
        if "reference" not in arrays:
            return 0.0
        positions = np.asarray(evaluation.positions, np.float64).reshape(-1, self.dimension)
        between = (np.asarray(arrays["reference"], np.float64) + np.median(positions, axis=0)) / 2
        return largest(self._scale.distance(between))

    def _spent(self, function: SiteFunction, request: Envelope) -> Spending | None:
        if function.privacy is None:
            return None
        privacy = function.privacy(self.dimension)
        named = f"{self._run} {question_of(request).digest}"
        question = hashlib.sha256(named.encode()).hexdigest()
        return Spending(question, privacy.loss, privacy.share)

    def answered(
        self, label: Label, request: Envelope, permit: Permit | None
    ) -> tuple[dict[str, Any], Answer, Statement | None]:
        """Return plain values, the answer to a query, and the rows that all answers settle.

        Noise and units of rounding are larger, which is said, where an answer would settle too many
        rows otherwise.

        Args:
            label: of the query.
            request: the query.
            permit: raises where the answer must not leave; None: the query was answered before, or
                nothing is measured.
        """
        function = self._function(label, request)
        exact = self._exact(function, request)
        axis = () if function.summed else (0,)
        exact = {name: values[0] if axis else values for name, values in exact.items()}
        measured = self._secret is not None and self._target.model.has_rows
        asked, before = question_of(request), self._files.kept(NOISE)
        raised = {} if before is None else before.header["factors"]
        if permit is None or not measured or function.reveals is None:
            if permit is not None:
                permit(None)
            factor = raised.get(asked.digest, 1.0)
            values = {NOISE: factor} if factor > 1 else {}
            return values, self._leaving(function, request, exact, factor).arrays, None
        tried = [(1.0, 1.0)]
        if function.noise or function.rounding is not None:
            spent = self._spent_before
            share = spent + (1 - spent) * SHARES[min(label.iteration, len(SHARES) - 1)]
            last = FACTORS[-1] if function.rounding is None else COARSEST
            tried = [*((factor, share) for factor in FACTORS), (last, 1.0)]
        least = 0.0
        for factor, share in tried:
            if factor < least and (factor, share) != tried[-1]:
                continue
            leaving = self._leaving(function, request, exact, factor)
            try:
                arrays = self._completed(function, request)
                revealed = function.reveals(self._target, arrays, exact, leaving.errors)
                statement = self._settled.add(revealed, permit, share)  # unless it is refused
                break
            except PolicyError as error:
                if (factor, share) == tried[-1] or not error.of_rows:
                    raise
                least = factor * self._settled.excess / SURELY_LESS
        if factor == 1:
            return {}, leaving.arrays, statement
        # The same question has the same noise for ever, or two answers would tell it.
        self._files.keep(NOISE, {}, factors=raised | {asked.digest: factor})
        return {NOISE: factor}, leaving.arrays, statement

    def _exact(self, function: SiteFunction, request: Envelope) -> Answer:
        """Return an answer as it does not leave; copies of a site in one process share the last."""
        arrays, host = self._completed(function, request), self._target.model.host

        def make() -> Answer:
            return self._programs.answer(function, arrays)

        if host is None or not isinstance(self._programs, HostPrograms):
            return make()
        shares = [site.share for site in self._programs.sites]
        of = host.digest, self.digest, str(shares), function.describes, digest.of_rows(arrays)
        return kept(LAST_EXACT, of, make, 1)

    def _leaving(
        self, function: SiteFunction, request: Envelope, exact: Answer, factor: float
    ) -> Rounded:
        """Return an answer with noise, and rounded, in the function's type of number."""
        answer, errors = dict(exact), {name: np.zeros(np.shape(exact[name])) for name in exact}
        if function.rounding is not None:
            rng = self._dither(request)
            arrays, of_rounding = function.rounding(answer, self.rows, rng, factor)
            answer, errors = dict(arrays), errors | dict(of_rounding)
        if self._secret is not None and function.noise:
            normal = private_generator(self._secret, self._run, question_of(request))
            for name in sorted(function.noise.keys() & answer.keys()):
                of = normal, len(self._job.sites), self.rows, factor
                answer[name], errors[name] = function.noise[name].sent(answer[name], *of)
        if function.privacy is not None:
            privacy = function.privacy(self.dimension)
            sites = len(self._job.sites)
            # From the site's secret also in a simulation.
            secret = secret_of(self._files.folder.parent.parent)
            drawn_by = private_generator(secret, f"private {self._run}", question_of(request))
            answer = with_noise(privacy, answer, sites, drawn_by)
        dtype = function.number_type(self._target)
        with np.errstate(over="ignore"):  # far out a potential is infinite in these numbers
            return Rounded({name: values.astype(dtype) for name, values in answer.items()}, errors)

    def exact_cell(self, label: Label, request: Envelope) -> int | None:
        """Return the rows of the rarest pattern where exact sums over rows answer; else None."""
        return self._rarest_pattern if self._function(label, request).is_exact else None

    @functools.cached_property
    def _rarest_pattern(self) -> int:
        """Rows that share the rarest pattern of all categorical columns."""
        return rarest_pattern(self._job.sites.site(self._number))

    def check_noise(self, label: Label, request: Envelope, *, masked: bool) -> None:
        """Check that the noise of an answer protects it, before its cost is written down.

        Raises:
            PolicyError: it is a part of noise that protects sums alone, and the answer is seen.
        """
        function = self._function(label, request)
        if self._secret is None or function.privacy is None or masked:
            return
        if function.privacy(self.dimension).honest is not None:
            raise PolicyError(
                "algorithm.honest: a part of the noise protects a sum that nobody can take apart; "
                "the answers of this study are seen one by one. Leave algorithm.honest out, or let "
                "three sites or more send secure sums.",
                rules=("honest",),
            )

    def _dither(self, request: Envelope) -> Dither:
        """Return the generator of how this site rounds an answer."""
        if self._secret is None:
            name = str(request.values["function"])
            return simulated_generator(name, in_width(request.arrays), self._number)
        return private_generator(self._secret, self._run, question_of(request))

    def summands(
        self, label: Label, request: Envelope, answer: Mapping[str, np.ndarray]
    ) -> tuple[Mapping[str, np.ndarray], Mapping[str, float]]:
        """Return the answer itself, which is added over the sites, and bounds of its arrays."""
        return answer, self._function(label, request).bounds

    def summed(self, label: Label, request: Envelope) -> bool:
        """Return True if the server needs the sum over the sites of these answers only."""
        return self._function(label, request).summed

    @functools.cached_property
    def _settled(self) -> Settled:
        """Answers about the same values, in any study with a formula of any version of the file."""
        assert self._secret is not None
        rows = rows_of_sites(self._job.model, self._job.sites, np.array([self._number]))
        account, digests, host = self.digest, None, self._job.model.host
        if host is not None and host.labels and self._known is not None:
            data, digests = self._known()
            account = f"of {data}"
            if len(digests.cells) != self.rows:
                raise PolicyError(
                    f"{self.rows} rows are evaluated, and {len(digests.cells)} known: a fault of "
                    "consortia. What answers tell of each cannot be added up; report it.",
                    rules=("maximum_settled_rows",),
                )
        text = f"values {MEASURE} {account}"
        named = hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()
        path = self._files.folder.parent.parent / SETTLED / f"{named[:32]}.bin"
        whole = trees.map_leaves(lambda leaf: leaf[0], rows)
        seed = int(named[32:], 16)
        return Settled(self._target, whole, self.rows, path, seed, digests)

    @functools.cached_property
    def _spent_before(self) -> float:
        """Information that the answers of earlier runs hold, of what settles a row; 1 at most."""
        before = self._files.kept(SPENT)
        runs = {} if before is None else before.header["runs"]
        if self._run not in runs:
            runs = runs | {self._run: min(self._settled.spent(), 1.0)}
            self._files.keep(SPENT, {}, runs=runs)
        return float(runs[self._run])

    def _function(self, label: Label, request: Envelope) -> SiteFunction:
        """Return the function of the site's own study that a label names."""
        names = function_names(self._method)
        if label.stage != QUERY or label.phase >= len(names) or label.repetition:
            raise EnvelopeError("the study has no such site function")
        if request.values.get("function") != names[label.phase]:
            raise EnvelopeError("the site function has another name in this study")
        return self._method.functions[names[label.phase]]

    def _completed(self, function: SiteFunction, request: Envelope) -> Answer:
        """Return the arrays that the function takes; made once a request."""
        if self._made[0] is not request:
            self._made = request, in_width(function.complete(in_width(request.arrays)))
        return self._made[1]


def private_generator(secret: bytes, run: str, question: Question) -> SecretNoise:
    """Return the generator of a site's noise in an answer; the same question has the same noise."""
    text = f"noise {run} {question.place} {question.digest}"
    return SecretNoise(hmac.new(secret, text.encode(), hashlib.sha256).digest())
