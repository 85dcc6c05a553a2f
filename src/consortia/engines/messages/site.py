"""A site's side: it answers one message at a time, and keeps what must last on its own disk.

What it needs of the run it makes from its own study and its own data; of the server it takes
positions and what the hub replies. Whatever it answers leaves through one gate.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from consortia.core import density, trees
from consortia.core.queries import Conversation
from consortia.data.digest import RowDigests
from consortia.data.facts import UNREAD, SiteFacts
from consortia.data.patterns import smallest_cell
from consortia.engines.messages import nonfinite
from consortia.engines.messages.asking import REFUSAL, REQUEST
from consortia.engines.messages.conversing import QueryRuntime
from consortia.engines.messages.envelope import (
    Envelope,
    EnvelopeError,
    decode,
    digest,
    digest_of_any,
)
from consortia.engines.messages.errors import MismatchError
from consortia.engines.messages.facts import SiteEngine
from consortia.engines.messages.files import IDENTITY, RunFiles, identity_of, secret_of
from consortia.engines.messages.identities import (
    TO_COORDINATOR,
    TO_SITE,
    KeyRing,
    body_of,
    is_signed,
    signed,
)
from consortia.engines.messages.masked import PACKED_NUMBERS, Layout, is_masked
from consortia.engines.messages.pooled import MOMENTS, Masked, MaskedMoments, count_masked
from consortia.engines.messages.questions import (
    LAST,
    Leaving,
    Place,
    Question,
    Spending,
    Wrap,
    question_of,
)
from consortia.engines.messages.runtime import Assignment, Job, SiteRuntime
from consortia.engines.messages.secure_sums import (
    BEGUN,
    SUM_KEYS,
    Key,
    SumMember,
    keys_of,
    plain_key,
)
from consortia.engines.messages.settled import Statement
from consortia.engines.messages.stages import QUERY, STAGES, Label
from consortia.errors import PolicyError
from consortia.runtime import late
from consortia.store import results

DESCRIPTION, AGREEMENT, FITTED = "description", "agreement", "fitted"
"""Kinds of messages beside the names of the stages."""

LEAVES = {DESCRIPTION: "description", AGREEMENT: "description", FITTED: "fit"} | {
    name: name for name in STAGES.values()
}
"""Kind of a site's answer to each kind of message; a description may hold moments."""

KNOWN = "known"
"""Plain value of an agreement: whether the site's ledger has the message named by `LAST`."""

KEPT_FROM = 1.0
"""Seconds of work from which on an answer is kept; on a repeated request others are recomputed."""


class Gate(Protocol):
    """Through which everything leaves; see `consortia.federation.governance.open_gate`."""

    def admit(self, kind: str, question: Question) -> bool:
        """Refuse a question, before anything is read; return True if it was answered before."""

    def rows(self, number: int, parameters: int | None = None, cell: int | None = None) -> None:
        """Take note of how many rows the site has read for how many parameters, or refuse them.

        ``cell`` of them share the rarest pattern of covariates.
        """

    def data(self, rows: Sequence[RowDigests], values: int) -> None:
        """Take note of which rows they are, of each model of the study, or refuse them."""

    def holds(self) -> str:
        """Return the name of the data that the run is about; "" where that is not known."""

    def place(self, where: Place, *, again: bool) -> None:
        """Refuse to look at rows there, before anything is computed."""

    def spend(self, spent: Spending) -> None:
        """Write down what an answer costs of a privacy budget, or refuse it."""

    def knows(self, message: str) -> bool:
        """Return True if a message with this SHA-256 has left in this run."""

    def settled(self, statement: Statement | None) -> None:
        """Refuse an answer with which too many rows, or it is not known how many, are settled."""

    def before_masks(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse numbers that may not leave, before masks hide what they are."""

    def release(self, leaving: Leaving) -> bytes:
        """Return the message, when it may leave."""

    def refusal(self, error: BaseException, wrap: Wrap, question: Question | None = None) -> bytes:
        """Word an error for others: a fixed phrase, and where the site has its text.

        ``wrap`` makes the message of it that leaves.
        """


class MessageSite:
    """One site of a study, for as long as its process lives.

    Args:
        name: of the site.
        number: of the site among all.
        folder: where it keeps what must last.
        study: fingerprint of the study.
        contribute: reads this site's rows and returns their facts.
        build: builds the study with an engine.
        gate: opens the gate of a run, before ``build``; it may refuse the study.
        refuse: the same as the gate's ``refusal``, where there is no gate, with the run.
        private: what the phases declare as private comes from the site's own secret, not from the
            seed of the study.
        digests: digests of the rows that the study uses, of each of its models, under the site's
            secret; None where rows are not known again.
        moments: of the study, which leave masked where there are keys.
        keys: reads the keys of all that the site's policy names, with which messages are signed;
            None where it names none.
        sums: answers that are sums leave masked, so that nobody can take the sum apart.

    Attributes:
        error: of the last refusal, for the site's own people; None while all was answered.
    """

    def __init__(
        self,
        name: str,
        number: int,
        folder: Path,
        study: str,
        contribute: Callable[[], SiteFacts],
        build: Callable[[SiteEngine], Job],
        gate: Callable[[str], Gate],
        refuse: Callable[[BaseException, str, Wrap], bytes],
        *,
        private: bool = False,
        digests: Callable[[bytes], Sequence[RowDigests]] | None = None,
        moments: MaskedMoments | None = None,
        keys: Callable[[], KeyRing | None] = lambda: None,
        sums: bool = False,
    ) -> None:
        self.name, self.number, self.folder, self.study = name, number, Path(folder), study
        self._contribute, self._build, self._open, self._refuse = contribute, build, gate, refuse
        self.error: Exception | None = None
        self._private, self._digests = private, digests
        self._keys, self._sums, self._moments = keys, sums, moments
        self._hides = False
        self._members: dict[str, SumMember] = {}
        self._gates: dict[str, Gate] = {}
        self._files: dict[str, RunFiles] = {}
        self._work: dict[str, SiteRuntime | QueryRuntime] = {}

    def answer(self, message: bytes) -> bytes:
        """Return the reply to a message of the server; an error at the site is a refusal."""
        request = Envelope("", "", self.name, self.study)
        gate: Gate | None = None
        question: Question | None = None
        ring: KeyRing | None = None
        body = body_of(message)
        try:
            request = decode(body)
            ring = self._keys()
            self._hides = self._moments is not None and self._moments.hides(ring)
            if ring is not None and not is_signed(message, ring.coordinator, TO_SITE):
                text = "the message is not signed by the coordinator that the site's policy names"
                raise PolicyError(f"identities: {text}.", rules=("identities",))
            self._check(request)
            question = question_of(request)
            gate = self._gates.get(request.run)
            if gate is None:
                gate = self._gates[request.run] = self._open(request.run)
            again = gate.admit(LEAVES[request.kind], question)
            files = self._files.get(request.run)
            if files is None:  # only now, or whoever is refused could fill the disk
                files = self._files[request.run] = RunFiles(self.folder, request.run)
            named = digest(body)
            before, statement = files.reply(named), None
            if before is not None:
                kind, values, arrays = before.header["kind"], before.header["values"], before.arrays
            else:
                began = time.monotonic()
                kind, values, arrays, statement = self._answer(
                    request, files, gate, ring, again=again
                )
                masked = is_masked(arrays) and request.kind == STAGES[QUERY]
                long = time.monotonic() - began > KEPT_FROM or masked
                if long and request.kind in STAGES.values():
                    files.keep_reply(named, arrays, kind=kind, values=values)
            answer = replace(request, site=self.name, values={REQUEST: named, **values})
            reply = _sealed(replace(answer, arrays=arrays).encode(), ring)
            numbers = SiteFacts.read(values["facts"]).numbers if "facts" in values else 0
            numbers += values.get(PACKED_NUMBERS, 0) + count_masked(values.get(MOMENTS, []))
            masked_values = json.dumps(values.get(MOMENTS)).encode()
            content = hashlib.sha256(masked_values).hexdigest() if MOMENTS in values else ""
            return gate.release(Leaving(kind, question, reply, arrays, numbers, statement, content))
        except Exception as error:
            self.error = error
            code = error.code if isinstance(error, MismatchError) else None

            def wrap(reason: str) -> bytes:
                values = {REQUEST: digest_of_any(body), "reason": reason, "mismatch": code}
                labelled = (request.run, self.name, self.study, request.label, values)
                return _sealed(Envelope(REFUSAL, *labelled).encode(), ring)

            if gate is None:
                return self._refuse(error, identity_of(request.run), wrap)
            return gate.refusal(error, wrap, question)

    def _check(self, request: Envelope) -> None:
        if request.site != self.name and request.kind != DESCRIPTION:
            raise MismatchError("site")
        if request.study != self.study:
            raise MismatchError("study")
        if not IDENTITY.fullmatch(request.run):
            raise EnvelopeError("the run has no identity")
        labelled = STAGES.get(request.label[0]) if request.label else None
        if request.kind not in LEAVES or labelled != (
            request.kind if request.kind in STAGES.values() else None
        ):
            raise EnvelopeError("there are no messages of this kind and label")

    # --- requests -----------------------------------------------------------------------------

    def _answer(
        self, request: Envelope, files: RunFiles, gate: Gate, ring: KeyRing | None, *, again: bool
    ) -> tuple[str, Any, Any, Statement | None]:
        """Return the kind of what leaves, plain values, arrays, and what these settle of rows."""
        if request.kind == DESCRIPTION:
            contributed = self._contribute()
            facts = self._own(contributed)
            gate.rows(facts.rows)
            self._know_rows(gate, facts.values)
            values = description() | {"private": self._private, "facts": facts.plain()}
            values["sums"] = self._sums
            if self._sums:
                values[SUM_KEYS] = plain_key(self._sum_member(facts, ring).key)
            of_columns = bool(facts.moments) or facts.table is not None
            kind = "moments" if of_columns else "description"
            if of_columns and self._hides and self._moments is not None and ring is not None:
                values[MOMENTS] = self._masked(self._moments, request, files, ring, contributed)
            flags: dict[str, np.ndarray] = {}
            if request.values:  # of a registered study, whose run can begin at once
                more, flags = self._begun(request, files, gate, facts)
                values |= more
            return kind, values, flags, None
        if request.kind == AGREEMENT:
            return "description", *self._begun(request, files, gate), None
        work = self._worked(request.run, files, gate)
        if request.kind == FITTED:
            return "fit", {}, work.finish_fit(request), None
        label = Label(*request.label)
        keys = keys_of(request.values[SUM_KEYS]) if SUM_KEYS in request.values else None
        if self._sums and work.summed(label, request):
            if keys is None or ring is None:
                text = "answers of this study leave masked, and the question has no keys of sites"
                raise PolicyError(f"secure sums: {text}.", rules=("secure_sums",))
            member = self._member(request, files, ring, keys)
        else:
            member = None
        work.check_noise(label, request, masked=member is not None)
        where = work.place(label, request)
        gate.place(where, again=again)
        if (cell := work.exact_cell(label, request)) is not None:
            gate.rows(work.rows, cell=cell)
        if where.spent is not None:
            gate.spend(where.spent)
        permit = gate.settled if self._private and not again else None
        values, arrays, statement = work.answered(label, request, permit)
        if not again:
            work.keep_place(label, where)
        left = nonfinite.marked(arrays)
        if member is not None:
            gate.before_masks(left)
            question = question_of(request)
            summands, bounds = work.summands(label, request, arrays)
            left = member.masked(summands, question.place, question.digest, bounds)
            packed = Layout.of(summands, bounds, len(ring.sites)).packed_numbers if ring else 0
            values = values | ({PACKED_NUMBERS: packed} if packed else {})
        return request.kind, values, left, statement

    def _masked(
        self,
        moments: MaskedMoments,
        request: Envelope,
        files: RunFiles,
        ring: KeyRing,
        facts: SiteFacts,
    ) -> Masked:
        """Return masked moments, in a run always of the same rows: two would tell what changed.

        Raises:
            MismatchError: the rows are not those of which the run has moments.
        """
        shown = self._own(facts)
        rows = [shown.digest, "" if shown.beside is None else shown.beside.digest]
        before = files.kept("moments")
        if before is None:
            files.keep("moments", {}, rows=rows)
        elif before.header["rows"] != rows:
            raise MismatchError("facts")
        session = "\0".join((request.run, self.study, question_of(request).digest))
        return moments.masked(self.name, ring, facts, session.encode())

    def _begun(
        self,
        request: Envelope,
        files: RunFiles,
        gate: Gate,
        site_facts: SiteFacts | None = None,
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return this site's terms of a run's beginning, as plain values and flags.

        Raises:
            MismatchError: the site has another model or start; or, where the server does not know
                its facts, its rows are not those with which this run began.
        """
        every, model = (request.values.get(name) for name in ("facts", "model"))
        if not isinstance(every, dict) or not isinstance(model, str):
            raise EnvelopeError("the run begins without facts of the sites, or a model")
        sites, before = every.get("sites"), files.kept("begun")
        if not isinstance(sites, list) or len(sites) <= self.number:
            raise EnvelopeError("the run begins without facts of the sites")
        unread = sites[self.number] == UNREAD.plain()
        if unread:
            site_facts = self._own(self._contribute()) if site_facts is None else site_facts
            sites = [*sites[: self.number], site_facts.plain(), *sites[self.number + 1 :]]
        facts = json.dumps(every | {"sites": sites})
        if unread and before is not None and before.header["facts"] != facts:
            raise MismatchError("facts")
        # The same for both messages with which a run can begin, also where it is resumed.
        session = question_of(replace(request, kind=AGREEMENT)).digest
        files.keep("begun", request.arrays, facts=facts, session=session)
        self._work.pop(request.run, None)
        self._members.pop(request.run, None)
        work = self._worked(request.run, files, gate)
        work.check_model(model)
        values: dict[str, Any] = {}
        last = request.values.get(LAST)
        if isinstance(last, str):
            values[KNOWN] = gate.knows(last)
        return values, work.start_flags()

    def _member(
        self, request: Envelope, files: RunFiles, ring: KeyRing, keys: Mapping[str, Key]
    ) -> SumMember:
        """Return this site as one of those whose answers are added, agreed on the keys of all.

        Raises:
            MismatchError: the run began with something else here than the question says.
            PolicyError: the keys are not those of the sites that the policy names.
        """
        begun = files.kept("begun")
        if begun is None or request.values.get(BEGUN) != begun.header["session"]:
            raise MismatchError("beginning")
        member = self._members.get(request.run)
        if member is None:
            facts, _ = _facts(begun.header["facts"])
            member = self._members[request.run] = self._sum_member(facts[self.number], ring)
        parts = request.run, self.study, begun.header["session"]
        member.agree(keys, ring.sites, hashlib.sha256("\0".join(parts).encode()).digest())
        return member

    def _sum_member(self, facts: SiteFacts, ring: KeyRing | None) -> SumMember:
        assert ring is not None  # a policy without keys was refused before
        return sum_member(self.folder, self.name, self.study, ring.private, facts)

    def _know_rows(self, gate: Gate, values: int) -> None:
        if self._digests is not None:
            gate.data(self._digests(secret_of(self.folder)), values)

    def _own(self, facts: SiteFacts) -> SiteFacts:
        if self._hides and self._moments is not None:
            facts = self._moments.shown(facts)
        return keyed(self.folder, facts)

    def _worked(self, run: str, files: RunFiles, gate: Gate) -> SiteRuntime | QueryRuntime:
        work = self._work.get(run)
        if work is None:
            begun = files.kept("begun")
            if begun is None:
                raise MismatchError("begun")
            job = self._build(SiteEngine(self.number, _facts(begun.header["facts"]), self._own))
            density.check_data(job.model, job.sites.held)
            secret = secret_of(self.folder) if self._private else None
            assignment = Assignment(job, self.number, files, begun.arrays, run, secret)
            if (digests := self._digests) is not None:
                key = secret_of(self.folder)
                assignment = assignment._replace(known=lambda: (gate.holds(), digests(key)[0]))
            if isinstance(job.algorithm, Conversation):
                # Two studies of one run must not have the same noise.
                named = assignment._replace(run=f"{self.study} {run}")
                work = QueryRuntime(named, job.algorithm)
            else:
                work = SiteRuntime(assignment)
            rows = job.sites.site(self.number)
            if not gate.holds():  # a server that left the description out
                self._know_rows(gate, sum(leaf.value.size for leaf in trees.leaves_of(rows)))
            gate.rows(int(job.sites.sizes[self.number]), work.dimension, smallest_cell(rows))
            self._work[run] = work
        return work


def keyed(folder: Path, facts: SiteFacts) -> SiteFacts:
    """Return facts with a digest that nobody can check without the secret in a site's folder."""
    digest = hmac.new(secret_of(folder), facts.digest.encode(), hashlib.sha256).hexdigest()
    compared = None if facts.beside is None else keyed(folder, facts.beside)
    return replace(facts, digest=digest, beside=compared)


def sum_member(folder: Path, name: str, study: str, identity: bytes, facts: SiteFacts) -> SumMember:
    """Return a site as a member of the secure sums of a study.

    Args:
        folder: of the site, with its secret.
        name: of the site.
        study: fingerprint of the study.
        identity: the site's Ed25519 private key.
        facts: of its rows, as `keyed` returns them; other rows have another key.
    """
    compared_digest = "" if facts.beside is None else facts.beside.digest
    rows = f"sums {facts.digest} {compared_digest}".encode()
    secret = hmac.new(secret_of(folder), rows, hashlib.sha256).digest()
    return SumMember(name, identity, study, secret)


def _sealed(body: bytes, ring: KeyRing | None) -> bytes:
    """Return a message to the coordinator, signed where there are keys."""
    return body if ring is None else signed(body, ring.private, TO_COORDINATOR)


def _facts(text: str) -> tuple[list[SiteFacts], Any]:
    """Return the facts of all sites, and of the root, with which the server began."""
    facts = json.loads(text)
    if facts.keys() != {"sites", "root"} or not isinstance(facts["sites"], list):
        raise EnvelopeError("the run began with something else than facts of the sites")
    try:
        return [SiteFacts.read(site_facts) for site_facts in facts["sites"]], facts["root"]
    except ValueError as error:
        raise EnvelopeError(str(error)) from None


def description() -> dict[str, Any]:
    """Return the settings that must be the same everywhere for a run to be one."""
    versions = results.versions()
    names = ("consortia", "jax", "numpy")
    x64 = late.float_type() == np.float64
    return {"versions": {name: versions[name] for name in names}, "x64": bool(x64)}
