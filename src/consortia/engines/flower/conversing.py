"""What a site computes in a conversation: the answers of its site functions to queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from consortia.core.queries import Conversation, SiteFunction, in_width
from consortia.engines.flower.envelope import Envelope, EnvelopeError
from consortia.engines.flower.files import RunFiles
from consortia.engines.flower.questions import NOWHERE, Place, place_of
from consortia.engines.flower.runtime import Job, SiteWork
from consortia.engines.flower.stages import QUERY, Label, function_names
from consortia.engines.panel import Answer
from consortia.engines.programs import SitePrograms


class QueryRuntime(SiteWork):
    """One run of a conversation at one site.

    Args:
        job: the study, with the rows of this site.
        number: of this site.
        files: of the run.
        begun: the arrays that the run began with: positions (1, d).
        method: of the study; its functions alone are answered, whatever a server asks for.
    """

    def __init__(
        self,
        job: Job,
        number: int,
        files: RunFiles,
        begun: Mapping[str, np.ndarray],
        method: Conversation,
    ) -> None:
        super().__init__(job, number, files, begun, method, 1)
        self._method = method
        parts = self._target, self._arrays, number, 1
        self._programs = SitePrograms(*parts, mapped=True, lasting=True)
        self._made: tuple[Envelope | None, Answer] = None, {}

    def place(self, label: Label, request: Envelope) -> Place:
        """Return where a query asks the site to evaluate its rows, and what an answer would hold.

        Nothing is computed of the rows.
        """
        function = self._function(label, request)
        arrays = self._completed(function, request)
        site = self._arrays.site(0, self._number)
        numbers = function.numbers(self._target, arrays, site)
        sizes = self._method.declared_sizes(self.dimension)
        declared = sizes[name].up if (name := self._name(label)) in sizes else 0
        evaluation = function.evaluation(arrays)
        if not np.size(evaluation.positions):
            return Place(0, 0.0, 0.0, NOWHERE, numbers, declared)
        before, iterations = self._last_evaluated(QUERY)
        messages = np.maximum(label.iteration - iterations, 1)
        found = place_of(evaluation, 1, self._scale, before, messages)
        where = found.points, found.farthest, found.moved, found.middles
        return Place(*where, numbers, declared)

    def keep_place(self, label: Label, request: Envelope, place: Place) -> None:
        """Note where the last query evaluated, for the next one."""
        if place.points:
            iterations = np.full(1, label.iteration)
            self._note_evaluated(QUERY, place.middles, iterations)

    def step(self, label: Label, request: Envelope) -> tuple[dict[str, Any], Answer]:
        """Return the answer to a query, in the target's type of number."""
        function = self._function(label, request)
        found = self._programs.answer(function, self._completed(function, request))
        axis = () if function.summed else (0,)
        dtype = np.dtype(self._target.dtype)
        return {}, {
            name: (values[0] if axis else values).astype(dtype) for name, values in found.items()
        }

    def _function(self, label: Label, request: Envelope) -> SiteFunction:
        """Return the function of the site's own study that a label names.

        Raises:
            EnvelopeError: there is none, or the name is that of another.
        """
        names = function_names(self._method)
        if label.stage != QUERY or label.phase >= len(names) or label.repetition:
            raise EnvelopeError("the study has no such site function")
        if request.values.get("function") != names[label.phase]:
            raise EnvelopeError("the site function has another name in this study")
        return self._method.functions[names[label.phase]]

    def _name(self, label: Label) -> str:
        return function_names(self._method)[label.phase]

    def _completed(self, function: SiteFunction, request: Envelope) -> Answer:
        """Return the arrays that the function takes; made once a request."""
        if self._made[0] is not request:
            self._made = request, in_width(function.complete(in_width(request.arrays)))
        return self._made[1]
