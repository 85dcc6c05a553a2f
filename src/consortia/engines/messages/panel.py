"""A panel whose sites answer messages: the server's side, which holds no row."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from consortia.core.contract import Phase, Sum
from consortia.core.prior import prior_scale
from consortia.core.queries import LEEWAY, Conversation, Query, SiteFunction
from consortia.core.target import Target
from consortia.data.sites import Sites
from consortia.engines.kept import kept
from consortia.engines.messages import nonfinite
from consortia.engines.messages.agreement import Beginning, begun, values_of
from consortia.engines.messages.asking import RequestChannel
from consortia.engines.messages.envelope import Envelope, EnvelopeError
from consortia.engines.messages.masked import Layout
from consortia.engines.messages.plausible import Judge, Sent, unlike_sums
from consortia.engines.messages.questions import COARSEST, FACTORS, LAST, NOISE
from consortia.engines.messages.reporting import SUMS, Remote, facts_of
from consortia.engines.messages.settled import TRIED
from consortia.engines.messages.stages import QUERY, STAGES, Label, check_shapes, function_names
from consortia.engines.panel import Answer, Panel
from consortia.engines.phases import SiteArrays
from consortia.runtime.late import Array

FLOWER_RUN = "flower run"
"""Entry of an identity: the run, as the sites know it."""

KEPT_SHAPES = 32

FARTHEST = 16.0
"""Prior standard deviations beyond which sites are not queried: a proposed policy refuses
middles of points beyond 10, and of points that show tails counts half the distance."""


ENDS = (
    "sites with the policy that is proposed answer {count} messages. A run that needs more, "
    "such as one whose draws are left to chains (at most {most}), ends there without a result: "
    "give it a larger maximum_messages at every site. It also ends where an answer would settle a "
    "row, or the noise that prevents it leaves no draws: of {runs} ordinary studies {ended} did, "
    "{exposed} of them with a mean exp(...) and a value of a column far out. consortia site "
    "rehearse gives the probability at a site."
)


class MessagePanel(Remote, Panel):
    """The sites of a study as nodes of a network; every query is one message to each.

    Args:
        target: the posterior.
        sites: names and sizes of all sites.
        method: whose site functions answer.
        arrays: makes the shapes of one site's data, for functions that are traced.
        channel: to the sites.
        begin: what the run begins with, for the sites to agree to.
        bounds: farthest position and step that a site may send.
        join: asks the nodes who they are in the message with which the run begins, of a registered
            study; None: they have joined before.
    """

    def __init__(
        self,
        target: Target,
        sites: Sites,
        method: Conversation,
        arrays: Callable[[], SiteArrays],
        channel: RequestChannel,
        begin: Mapping[str, Any],
        bounds: tuple[float, float],
        join: Callable[[Beginning], None] | None = None,
    ) -> None:
        super().__init__(target, sites, method)
        self._arrays, self._channel, self._begin = arrays, channel, begin
        self._bounds, self._join = bounds, join
        self._judge: Judge | None = None
        self._weights = method.site_weights(self.sizes)
        self._shapes: OrderedDict[Any, Any] = OrderedDict()
        self._noise: dict[str, float] = {}

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Conditions under which sites' policies end a run, and effects of secure sums."""
        if not self._channel.private:
            return ()
        usual = self.method.usual_messages(self.target.dimension)
        most = min(LEEWAY * usual, self.method.most_messages)
        ended, runs = np.sum([*TRIED.values()], axis=0)
        tried = {"ended": ended, "runs": runs, "exposed": TRIED[True][0]}
        ends = ENDS.format(count=most, most=self.method.most_messages, **tried)
        if not self._channel.masking:
            return (ends,)
        plain = [name for name, function in self.method.functions.items() if not function.summed]
        plainly = f" Sent plainly by each site: {', '.join(plain)}." if plain else ""
        return ends, SUMS.format(sites=len(self.names)) + plainly

    def bytes_up(self, function: SiteFunction, answer: Answer) -> int:
        """Return the bytes of the arrays in a site's answer, more of those that are masked."""
        if self._masked(function):
            return Layout.of(answer, function.bounds, len(self.names)).size
        return super().bytes_up(function, answer)

    def _masked(self, function: SiteFunction) -> bool:
        return function.summed and bool(self._channel.masking)

    @property
    def farthest(self) -> float:  # type: ignore[override]
        """Distance up to which sites answer: between institutions their policies bound it."""
        return FARTHEST if self._channel.private else float("inf")

    def start_values(self, positions: Float[Array, "chains d"]) -> tuple[Any, Any, Any]:
        """Return log-prior (chains,), U_c and whether its gradient is finite, both (nodes, chains).

        Of U_c the sites tell no more than whether it is finite; it is 0 here where it is.
        """
        scale = prior_scale(self.target, np.asarray(positions)[0])
        self._judge = Judge(scale, self._weights, *self._bounds)
        begin = begun(self._channel, self._begin, positions, self._join)
        if self._join is not None:  # they had no facts before
            facts = self._channel.facts
            self.sizes = np.array([facts[site].rows for site in range(len(self.names))], np.int64)
        return values_of(self.target, positions, begin)

    def ask(self, query: Query, number: int = 0) -> Answer:
        """Return the answer of all sites, added in double precision in their order.

        Raises:
            SiteMissingError: a site did not answer, or refused.
            SiteImplausibleError: a site's answer cannot be an honest one.
        """
        function = self.function(query)
        like = self._reply_of(function, self.completed(query))
        index = function_names(self.method).index(query.function)
        label = tuple(Label(QUERY, number, index, 0))
        channel = self._channel
        values: dict[str, Any] = {"function": query.function}
        masked = self._masked(function)
        if masked:
            values |= channel.keys_of_all
        asked = {"label": label, "values": values, "arrays": query.arrays}
        requests = {
            site: channel.request(STAGES[QUERY], site, **asked) for site in range(len(self.names))
        }
        if masked:
            return channel.ask_sum(requests, like, function.bounds, number, self._noted)
        arrays = self.completed(query)
        distinct = len(np.unique(np.asarray(function.evaluation(arrays).positions), axis=0)) > 1

        def read(site: int, envelope: Envelope) -> Answer:
            reason = unlike_sums(self._noted(site, envelope).arrays, distinct=distinct)
            if reason is not None:
                raise channel.implausible(site, reason, number)
            return _read(like, envelope)

        answers = channel.ask(requests, read, iteration=number)
        if self._judge is not None:
            phase = Phase(
                None, Sum(), evaluation=function.evaluation, disclosure=function.disclosure
            )
            sent = {site: Sent(arrays, answer) for site, answer in answers.items()}
            channel.check_plausible(self._judge, phase, sent, number)
        stacked = {n: np.stack([answers[s][n].astype(np.float64) for s in requests]) for n in like}
        if not function.summed:
            return stacked
        with np.errstate(invalid="ignore"):
            return {name: np.asarray(values.sum(axis=0)) for name, values in stacked.items()}

    def _noted(self, site: int, answer: Envelope) -> Envelope:
        """Note more noise than usual, with which a site settles no row; return the answer."""
        factor = answer.values.get(NOISE)
        if factor in (*FACTORS, COARSEST):
            name = self.names[site]
            self._noise[name] = max(float(factor), self._noise.get(name, 1.0))
        return answer

    def _reply_of(self, function: SiteFunction, arrays: Answer) -> dict[str, np.ndarray]:
        """Return zeros of the shapes of a site's answer, without memory; found once for each."""
        key = function.answer, str({name: np.shape(values) for name, values in arrays.items()})

        def make() -> dict[str, np.ndarray]:
            shapes = function.shapes_of(self.target, arrays, self._arrays)
            zero = np.zeros((), function.number_type(self.target))
            return {name: np.broadcast_to(zero, shape) for name, shape in shapes.items()}

        return kept(self._shapes, key, make, KEPT_SHAPES)

    # --- identity over interruptions --------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """Return the run as the sites know it."""
        return {FLOWER_RUN: self._channel.run}

    def continue_as(self, identity: Mapping[str, Any]) -> None:
        """Resume that run; the sites then know what they have answered, and say if they do not."""
        self._channel.run = str(identity.get(FLOWER_RUN, self._channel.run))
        last = {} if self._channel.transport.stored else identity.get(LAST, {})
        self._channel.answered = {
            site: str(last[name]) for site, name in enumerate(self.names) if name in last
        }

    def progress(self) -> dict[str, Any]:
        """Return of each site the SHA-256 of its last answer, by name."""
        return {LAST: {self.names[site]: digest for site, digest in self._channel.answered.items()}}

    # --- plan and record --------------------------------------------------------------------------

    def outcome(self) -> dict[str, Any]:
        """Return the messages that came, replies that were not used, and sites with more noise."""
        raised = {"site_noise": self._noise} if self._noise else {}
        return facts_of(self._channel) | raised


def _read(like: Mapping[str, Any], answer: Envelope) -> Answer:
    """Return a site's arrays, checked."""
    arrays = nonfinite.unmarked(answer.arrays)
    if arrays.keys() != like.keys():
        raise EnvelopeError("it holds other arrays than this function answers")
    check_shapes(arrays, like)
    return arrays
