"""Asking sites and waiting for their answers: deadlines, and the checks that every reply passes."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from consortia.core.contract import Phase
from consortia.core.printable import printable
from consortia.data.facts import SiteFacts
from consortia.engines.messages.envelope import Envelope, EnvelopeError, decode, digest
from consortia.engines.messages.errors import PHRASES
from consortia.engines.messages.identities import (
    TO_COORDINATOR,
    TO_SITE,
    KeyRing,
    body_of,
    is_signed,
    signed,
)
from consortia.engines.messages.masked import Layout
from consortia.engines.messages.plausible import Judge, Sent
from consortia.engines.messages.pooled import Masked
from consortia.engines.messages.secure_sums import BEGUN, SUM_KEYS, Key, plain_key
from consortia.engines.messages.transport import Arrival, Transport
from consortia.errors import SiteImplausibleError, SiteMissingError, SiteRefusedError

Read = TypeVar("Read")

REFUSAL = "refusal"
"""Kind of the reply of a site that refuses a request."""

REQUEST = "request"
"""Key under which a reply names the request that it answers."""

AGAIN = 2.0
"""Seconds after a failure until the site receives the request again, once for each failure."""

GIVEN_UP = 2
"""Failures after which a site is not waited for until the deadline, where others are enough."""

POLLS = (0.02, 0.02, 0.05, 0.1, 0.2)
"""Seconds between two looks for replies, growing to the last; a look costs as much as a message."""

SHARE, LONGEST_PAUSE = 0.05, 3.0
"""Later the pause is this share of the time waited, at most so many seconds."""

FIRST_LOOK = 0.9
"""The first look for replies comes after this share of the wait before, or after the last pause."""

LONGEST_REASON = 300
"""Characters of a site's refusal that are shown."""

LONGEST_LINE = 500
"""Characters of a line on a reply that was not used."""

MOST_NAMED = 1000
"""Rejected replies that the record of a run describes; the others are counted."""


def pause(polls: int, waited: float) -> float:
    """Return the seconds until the next look for replies.

    Args:
        polls: looks without a reply.
        waited: seconds since the last reply.
    """
    if polls < len(POLLS):
        return POLLS[polls]
    return min(max(POLLS[-1], SHARE * waited), LONGEST_PAUSE)


@dataclass
class Rejected:
    """The replies that were not used, each described in one line."""

    count: int = 0
    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Add one reply, in a line that sites have written parts of."""
        self.count += 1
        if len(self.lines) < MOST_NAMED:
            self.lines.append(printable(line, most=LONGEST_LINE))


@dataclass(eq=False)
class RequestChannel:
    """The server's side of all messages.

    Args:
        transport: what carries them.
        names: of the sites.
        run: identity of the run.
        study: fingerprint of the study.
        deadline: seconds that a site has for an answer.
        resend: seconds after which a request without an answer is sent again.
        keys: of coordinator and sites, with which messages are signed; None: they are not.

    Attributes:
        node: node of each site, by its number.
        facts: of each site, as it has described itself.
        moments: of each site, masked, where they are.
        private: sites that draw what is private from secrets of their own.
        masking: sites whose answers leave masked, so that only their sum is known.
        sum_keys: of each site its key of the study, by name, as it has described itself.
        begun: digest of what the run began with.
        rejected: replies that were not used.
        unused: the last of them of each site, since the last request, with the reason.
        received: of each node the messages and bytes that came from it, used or not.
        answered: of each site the SHA-256 of its last answer that was used.
        last: of each node the SHA-256 of the last of them, which is in its site's ledger.
        messages: requests that were answered, and ``seconds`` what the slowest of each took.
        since: time of the request to each site that has not answered yet, by `time.monotonic`.
        took: seconds that the last answer of each site took.
    """

    transport: Transport
    names: tuple[str, ...]
    run: str
    study: str
    deadline: float
    resend: float
    keys: KeyRing | None = None

    def __post_init__(self) -> None:
        self.node: dict[int, int] = {}
        self.facts: dict[int, SiteFacts] = {}
        self.moments: dict[int, Masked] = {}
        self.private: set[int] = set()
        self.masking: set[int] = set()
        self.sum_keys: dict[str, Key] = {}
        self.begun = ""
        self.before = 0
        self.rejected = Rejected()
        self.unused: dict[int, str] = {}
        self.received: dict[int, tuple[int, int]] = {}
        self.last: dict[int, str] = {}
        self.answered: dict[int, str] = {}
        self.messages, self.seconds = 0, 0.0
        self.since: dict[int, float] = {}
        self.took: dict[int, float] = {}
        self._wait = 0.0
        self._open: dict[str, int] = {}
        self._closed: set[str] = set()

    @property
    def keys_of_all(self) -> dict[str, Any]:
        """Plain values of a message whose answers leave masked; none where they leave plain."""
        if not self.masking:
            return {}
        keys = {name: plain_key(self.sum_keys[name]) for name in self.names}
        return {SUM_KEYS: keys, BEGUN: self.begun}

    def request(self, kind: str, site: int, **more: Any) -> Envelope:
        """Return a message of this run to a site."""
        return Envelope(kind, self.run, self.names[site], self.study, **more)

    def sealed(self, body: bytes) -> bytes:
        """Return a message to a site, signed where there are keys."""
        return body if self.keys is None else signed(body, self.keys.private, TO_SITE)

    def forged(self, arrival: Arrival, site: str) -> str | None:
        """Check the signature of a site's message; return the fault, None where there is none."""
        if self.keys is None or arrival.granted:
            return None
        if is_signed(arrival.payload or b"", self.keys.sites.get(site), TO_COORDINATOR):
            return None
        return (
            f"it is not signed by the key that the coordinator has of {printable(site, most=60)!r}"
        )

    def count(self, arrival: Arrival) -> None:
        """Count what came, whatever it is, in ``received`` and ``last``."""
        if arrival.payload is not None:
            messages, size = self.received.get(arrival.sender, (0, 0))
            self.received[arrival.sender] = (messages + 1, size + len(arrival.payload))
            self.last[arrival.sender] = hashlib.sha256(arrival.payload).hexdigest()

    def ask(
        self,
        requests: Mapping[int, Envelope],
        read: Callable[[int, Envelope], Read],
        *,
        iteration: int = 0,
        enough: int | None = None,
    ) -> dict[int, Read]:
        """Return ``read`` of each site's answer; `EnvelopeError` rejects one.

        Args:
            requests: by the site's number.
            read: checks and reads an answer.
            iteration: for the messages of errors.
            enough: so many answers are enough at the deadline, or once the others have failed
                twice; all must answer when None.

        Raises:
            SiteMissingError: fewer answered in time.
            SiteRefusedError: a site does not do it.
        """
        bodies = {site: request.encode() for site, request in requests.items()}
        wanted = {site: digest(body) for site, body in bodies.items()}
        answers: dict[int, Read] = {}
        failures, unused = dict.fromkeys(bodies, 0), self.unused
        unused.clear()
        began = time.monotonic()
        self.since = dict.fromkeys(bodies, began)

        def open_sites(left: float) -> list[int] | None:
            open_now = [site for site in bodies if site not in answers]
            given_up = all(failures[site] >= GIVEN_UP for site in open_now)
            if (left <= 0 or given_up) and enough is not None and len(answers) >= enough:
                return None
            if left <= 0 and open_now:
                raise SiteMissingError(
                    tuple(self.names[site] for site in open_now),
                    waited=self.deadline,
                    round=iteration,
                    rejected="; ".join(unused[site] for site in open_now if site in unused),
                )
            return open_now or None

        def take(arrival: Arrival) -> int | None:
            asked, answer = self._opened(arrival, wanted, requests, iteration)
            if asked is None or asked in answers:
                return None
            try:
                if answer is not None:
                    answers[asked] = read(asked, answer)
                    self.answered[asked] = self.last[arrival.sender]
                    self.took[asked] = time.monotonic() - self.since.pop(asked, began)
                    self._open.pop(arrival.message)
                    return None
            except EnvelopeError as error:
                self._reject(iteration, asked, f"malformed: {error}")
            failures[asked] += 1  # sent again once: the next may take long, too
            self.check_lasting(asked, iteration)
            return asked

        def message(site: int) -> tuple[int, bytes]:
            return self.node[site], self.sealed(bodies[site])

        self.deliver(self._open, message, open_sites, take, self.deadline)
        self._closed.update(wanted.values())
        self._open = {m: site for m, site in self._open.items() if site not in answers}
        self.messages += 1
        self.seconds += time.monotonic() - began
        return answers

    def ask_sum(
        self,
        requests: Mapping[int, Envelope],
        like: Mapping[str, np.ndarray],
        bounds: Mapping[str, float],
        iteration: int,
        note: Callable[[int, Envelope], Envelope] = lambda site, answer: answer,
    ) -> dict[str, np.ndarray]:
        """Return the sums of the answers of all sites, of which the server learns no other.

        Args:
            requests: to all sites, in their order.
            like: arrays of the shapes of an answer.
            bounds: as of `consortia.engines.messages.masked.Layout`.
            iteration: for the messages of errors.
            note: sees each answer, as it came, and returns it.

        Raises:
            SiteMissingError: a site did not answer, or refused.
        """
        layout = Layout.of(like, bounds, len(self.names))
        answers = self.ask(
            requests, lambda site, answer: layout.read(note(site, answer)), iteration=iteration
        )
        return layout.total([answers[site] for site in requests])

    def deliver(
        self,
        sent: dict[str, int],
        message: Callable[[int], tuple[int, bytes]],
        receivers: Callable[[float], list[int] | None],
        take: Callable[[Arrival], int | None],
        deadline: float,
    ) -> None:
        """Send messages and wait for replies; what is not answered or has failed is sent again.

        Args:
            sent: receiver of each message by the transport's name; new ones are added.
            message: node and bytes for a receiver.
            receivers: those that have not answered, by the seconds left; None at the end.
            take: takes a reply; returns the receiver that has failed, or None.
            deadline: seconds.
        """
        began = last = time.monotonic()
        due_at: dict[int, float] = {}
        polls, waiting = 0, None
        while (to := receivers(left := began + deadline - time.monotonic())) is not None:
            now = began + deadline - left
            due = [receiver for receiver in to if now >= due_at.get(receiver, now)]
            due_at.update(dict.fromkeys(due, now + self.resend))
            if due:
                names = self.transport.push([message(receiver) for receiver in due], left)
                sent.update(zip(names, due, strict=True))
            if waiting is None:
                waiting = time.monotonic()
                time.sleep(min(FIRST_LOOK * self._wait, POLLS[-1], left))
            arrivals = self.transport.replies(list(sent))
            last = time.monotonic() if arrivals else last
            for arrival in arrivals:
                self.count(arrival)
                failed = take(arrival)
                if failed is not None:
                    due_at[failed] = min(due_at[failed], last + AGAIN)
            polls = 0 if arrivals else polls + 1
            if receivers(math.inf) is not None:
                now = time.monotonic()
                time.sleep(min(pause(polls, now - last), max(began + deadline - now, 0.0)))
        self._wait = max(last - (waiting or last), 0.0)

    def _opened(
        self,
        arrival: Arrival,
        wanted: Mapping[int, str],
        requests: Mapping[int, Envelope],
        iteration: int,
    ) -> tuple[int | None, Envelope | None]:
        """Return the site whose request is answered, and the answer if it is one to be read."""
        site = self._open.get(arrival.message)
        if arrival.payload is None:
            if site is not None:
                self._open.pop(arrival.message)
                self._reject(iteration, site, f"no answer: {arrival.error}")
            return (site if site in wanted else None), None
        sender = next((s for s, node in self.node.items() if node == arrival.sender), None)
        if site is None:
            self._reject(iteration, sender, "replayed: it answers no open message")
            return None, None
        if arrival.sender != self.node[site]:
            self._reject(iteration, sender, f"forged: it answers for site {self.names[site]!r}")
            return None, None
        try:
            answer = decode(body_of(arrival.payload))
            problem = self.forged(arrival, self.names[site])
            problem = problem or self._problem(answer, site, wanted, requests)
        except EnvelopeError as error:
            problem = f"malformed: {error}"
        if problem is not None:
            self._reject(iteration, site, problem)
            return site, None
        if answer.kind == REFUSAL:
            raise refused(self.names[site], answer, iteration)
        return site, answer

    def _problem(
        self,
        answer: Envelope,
        site: int,
        wanted: Mapping[int, str],
        requests: Mapping[int, Envelope],
    ) -> str | None:
        """Check that an answer is that of the open request; return the fault or None."""
        if answer.site != self.names[site]:
            return f"forged: it says that it is from site {answer.site[:60]!r}"
        if answer.run != self.run or answer.study != self.study:
            return "of another run"
        named = answer.values.get(REQUEST)
        if named != wanted.get(site):
            known = isinstance(named, str) and named in self._closed
            return "late: its round is over" if known else "it answers no request of this run"
        request = requests[site]
        if answer.kind not in (request.kind, REFUSAL) or answer.label != request.label:
            return "malformed: it is of another kind or round than its request"
        return None

    def check_lasting(self, site: int, iteration: int = 0) -> None:
        """Raise where an answer that cannot be used comes again however often it is requested.

        Raises:
            SiteImplausibleError: with the reason for which it was not used last.
        """
        if self.transport.stored:
            raise self.implausible(site, self.unused.get(site, "it cannot be used"), iteration)

    def check_plausible(
        self, judge: Judge, phase: Phase, sent: Mapping[int, Sent], iteration: int
    ) -> None:
        """Refuse implausible messages.

        Raises:
            SiteImplausibleError: it names the site.
        """
        fault = judge.implausible(phase, sent)
        if fault is not None:
            raise self.implausible(*fault, iteration)

    def implausible(self, site: int, reason: str, iteration: int) -> SiteImplausibleError:
        """Return the error of a site's message that cannot be an honest one."""
        names = (self.names[site],)
        return SiteImplausibleError(names, reason=reason, waited=0.0, round=iteration)

    def _reject(self, iteration: int, site: int | None, why: str) -> None:
        name = "an unknown node" if site is None else f"site {self.names[site]!r}"
        self.rejected.add(f"round {iteration}: {name}: {why}")
        if site is not None:
            self.unused[site] = printable(f"{name}: {why}", most=LONGEST_LINE)


ADVICE = {
    "maximum_settled_rows": "A patient stands out there, rows are few, or many studies used them "
    "before: ask for fewer columns or parameters, bound far-out values (such as a term log(crp)), "
    "merge small sites, or narrow the prior, and run the study again",
    "minimum_rows_changed": "Another study or run there used all but a few of the same rows: take "
    "the same file; name the columns that any of the studies needs in data.require of all; or take "
    'model.missing = "impute"',
    "test_share": "An institution holds at most 0.3 of its rows out: give a smaller "
    "data.test_share, or leave it out",
}
"""Remedies by the name of the rule that a site's refusal tells."""


def refused(site: str, answer: Envelope, iteration: int) -> SiteRefusedError:
    """Return the error that a site's refusal is."""
    code, text = answer.values.get("mismatch"), answer.values.get("reason")
    reason = PHRASES.get(code) if isinstance(code, str) else None
    if reason is None:
        explanation = text if isinstance(text, str) else "it does not say why"
        reason = printable(explanation, most=LONGEST_REASON)
        reason += "".join(f". {advice}" for rule, advice in ADVICE.items() if rule in reason)
    return SiteRefusedError((site,), reason=reason, waited=0.0, round=iteration)
