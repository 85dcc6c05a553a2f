"""`MessageEngine`: the same run, with each site in its own institution, behind a transport."""

from __future__ import annotations

import copy
import json
import math
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from consortia.core import arguments, fingerprints
from consortia.core.contract import Method
from consortia.core.model import Model
from consortia.core.queries import Conversation
from consortia.core.start import start_values
from consortia.core.target import Target
from consortia.data.facts import UNREAD, Gathering, SiteFacts
from consortia.data.sites import Sites, site_names
from consortia.engines.contract import Engine
from consortia.engines.messages.agreement import Beginning
from consortia.engines.messages.asking import RequestChannel
from consortia.engines.messages.envelope import HEADER_BYTES
from consortia.engines.messages.handshake import joined
from consortia.engines.messages.identities import KeyRing
from consortia.engines.messages.panel import MessagePanel
from consortia.engines.messages.plausible import MAXIMUM_POSITION, MAXIMUM_STEP
from consortia.engines.messages.pooled import MOMENTS, pooled_in
from consortia.engines.messages.run import MessageRun
from consortia.engines.messages.stages import Stages, check_method
from consortia.engines.phases import Program, SiteArrays, row_of_zeros
from consortia.errors import InputError, SiteRefusedError
from consortia.runtime.late import jax, jnp

MOST_FACTS = HEADER_BYTES - 2**14
"""Characters of the facts of all sites, which each site is sent."""

LONGEST_DEADLINE = 1e6
"""Seconds."""

ON_MISSING = ("stop", "continue")


class MessageEngine(Engine):
    """The server of a run whose sites answer messages; it holds no row and no site's state.

    Args:
        transport: carries the messages.
        sites: names of all sites; these and what follows as of `consortia.FlowerEngine`.

    Raises:
        InputError: an argument is out of its range.
    """

    name = "flower"  # as stored records call it, whatever the transport

    def __init__(
        self,
        transport: Any,
        sites: Sequence[str],
        *,
        deadline: float = 600.0,
        resend: float = 120.0,
        minimum_sites: int | None = None,
        on_missing: str = "stop",
        join_deadline: float | None = None,
        run: str | None = None,
        study: str = "",
        keys: KeyRing | None = None,
        registered: bool = False,
        maximum_position: float = MAXIMUM_POSITION,
        maximum_step: float = MAXIMUM_STEP,
    ) -> None:
        names = site_names(sites, len(sites))
        arguments.one_of("on_missing", on_missing, ON_MISSING)
        if (minimum_sites is None) != (on_missing == "stop"):
            raise InputError(
                "minimum_sites and on_missing='continue' need each other: a run that continues "
                "without a site samples another density, so state the smallest number of sites."
            ).at("minimum_sites")
        self.minimum_sites = None
        if minimum_sites is not None:
            self.minimum_sites = arguments.whole("minimum_sites", minimum_sites, 1, len(names))
        self.deadline = arguments.number("deadline", deadline, 0.0, LONGEST_DEADLINE)
        resend = arguments.number("resend", resend, 0.0, LONGEST_DEADLINE)
        self._bounds = (
            arguments.positive("maximum_position", maximum_position, math.inf),
            arguments.positive("maximum_step", maximum_step, math.inf),
        )
        run = secrets.token_hex(16) if run is None else run
        terms = names, run, study, self.deadline, resend, keys
        self._channel = RequestChannel(self.transport_of(transport), *terms)
        join_deadline = self.deadline if join_deadline is None else join_deadline
        limits = 0.0, LONGEST_DEADLINE
        self._join_deadline = arguments.number("join_deadline", join_deadline, *limits)
        self._facts: dict[str, Any] = {"sites": [], "root": None}
        self._of_other, self._registered = False, registered

    def transport_of(self, network: Any) -> Any:
        """Return the transport over what the engine was given: itself."""
        return network

    def beside(self) -> MessageEngine:
        """Return this engine, gathering what the sites tell for the other model."""
        other = copy.copy(self)
        other._of_other = True
        return other

    def barrier(self) -> None:
        """Wait until all sites have described themselves, and run what the server runs."""
        if len(self._channel.node) < len(self._channel.names) and not self._registered:
            self._join()

    def _join(self, begin: Beginning | None = None) -> None:
        joined(self._channel, self._join_deadline, begin)
        # All sites mask what they send, or none: else masks would stay in the sum.
        channel, names = self._channel, self._channel.names
        for masking, what in ((channel.masking, "secure sums"), (channel.moments, MOMENTS)):
            plain = tuple(name for site, name in enumerate(names) if site not in masking)
            if plain and len(plain) < len(names):
                reason = f"it sends no {what}, others do"
                raise SiteRefusedError(plain, reason=reason, waited=0.0)

    def local_sites(self, nodes: int, method: Method) -> np.ndarray:
        """Return the indices of the sites whose rows this process needs: of none."""
        check_method(method)
        if nodes != len(self._channel.names):
            raise InputError(
                f"the study has {nodes} sites, the engine was given {len(self._channel.names)} "
                "names."
            )
        return np.zeros(0, int)

    def gather_facts(self, gathering: Gathering) -> tuple[list[SiteFacts], Any]:
        """Return the facts of all sites, as they have described themselves.

        Raises:
            SiteRefusedError: a site cannot; why stands in its own log.
            SiteMissingError: a site did not answer.
        """
        names = gathering.names
        self.local_sites(len(names), gathering.method)
        from_root = gathering.contribute_root()
        self.barrier()
        facts = [UNREAD] * len(names) if self._registered else self._gathered()
        self._facts = {"sites": [site_facts.plain() for site_facts in facts], "root": from_root}
        if len(json.dumps(self._facts)) > MOST_FACTS:
            raise InputError(
                f"the facts of {len(names)} sites are longer than the {MOST_FACTS:,} characters "
                "that a message to a site may have: scale the columns at the sites instead of "
                "data.standardise, or give files without names of columns (.npz)."
            )
        if not self._of_other:
            return facts, from_root
        others = [site_facts.beside for site_facts in facts if site_facts.beside is not None]
        if len(others) < len(facts):
            raise InputError("a site gave no facts for the model that is compared.")
        return others, from_root

    def _gathered(self) -> list[SiteFacts]:
        """Return the facts of all sites, with the sums of what they have masked."""
        channel = self._channel
        facts = [channel.facts[site] for site in sorted(channel.facts)]
        masked = [channel.moments[site] for site in sorted(channel.moments)]
        try:
            return pooled_in(facts, masked) if masked else facts
        except ValueError as error:
            raise InputError(f"the sites' moments cannot be added: {error}.") from error

    def prepare(self, target: Target, sites: Sites, method: Method, chains: int) -> MessageRun:
        """Make the server's program; compile nothing yet."""
        self.local_sites(len(sites), method)
        self.barrier()
        stages = Stages(target, sites, method, chains, _shapes(target.model, sites))
        algorithm = stages.own.algorithm
        start = partial(start_values, target, most=method.gradient_rows)
        parts = Program(algorithm, stages.whole, start), stages, sites, target
        begin = self._beginning(target, sites)
        return MessageRun(*parts, self._channel, begin, self.minimum_sites, self._bounds)

    def panel(self, target: Target, sites: Sites, method: Conversation) -> MessagePanel:
        """Connect to the sites for a conversation.

        Raises:
            InputError: there is another number of sites, or a run may go on without one.
            SiteMissingError: a site did not come.
        """
        if self.minimum_sites is not None:
            raise InputError(
                "on_missing='continue': the answers to a query are summed, and a sum without a "
                "site belongs to another posterior; use on_missing='stop'."
            ).at("on_missing")
        self.local_sites(len(sites), method)
        self.barrier()
        arrays = partial(_shapes, target.model, sites)
        begin = self._beginning(target, sites)
        join = self._join if self._registered else None
        parts = arrays, self._channel, begin, self._bounds, join
        return MessagePanel(target, sites, method, *parts)

    def _beginning(self, target: Target, sites: Sites) -> dict[str, Any]:
        """Return the terms of a run's beginning, for the sites to agree to."""
        return {"facts": self._facts, "model": fingerprints.of_model(target, sites.first)}


def _shapes(model: Model, sites: Sites) -> SiteArrays:
    """Return the shapes of the data of one site, whose rows are not here."""
    rows = int(sites.sizes.max())

    def shape(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, rows, *leaf.shape[2:]), leaf.dtype)

    whole: Any = jax.ShapeDtypeStruct((1,), jnp.int32)
    real: Any = jax.ShapeDtypeStruct((1,), jnp.result_type(float))
    return SiteArrays(jax.tree.map(shape, row_of_zeros(model, sites)), whole, real, real, ())
