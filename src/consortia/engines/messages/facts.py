"""The engine with which a site builds its study, once the facts of all sites are known to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from consortia.core.contract import Method
from consortia.core.target import Target
from consortia.data.facts import Gathering, SiteFacts
from consortia.data.sites import Sites
from consortia.engines.contract import Engine, Run
from consortia.engines.messages.errors import MismatchError


class SiteEngine(Engine):
    """Holds one site; the facts of the others are given.

    Args:
        index: of the site.
        facts: of all sites, and the root's value.
        make: what this site contributes, from the facts of its rows.
    """

    name = "flower"

    def __init__(
        self, index: int, facts: tuple[list[SiteFacts], Any], make: Callable[[SiteFacts], SiteFacts]
    ) -> None:
        self._index, self._facts, self._own = index, facts, make

    @property
    def root(self) -> bool:
        """False: the server keeps the draws."""
        return False

    def beside(self) -> SiteEngine:
        """Return the engine with the facts for the other one of two compared models.

        Raises:
            MismatchError: there are none.
        """
        facts, root = self._facts
        others = [site_facts.beside for site_facts in facts if site_facts.beside is not None]
        if len(others) < len(facts):
            raise MismatchError("facts")
        return SiteEngine(self._index, (others, root), self._own)

    def local_sites(self, nodes: int, method: Method) -> np.ndarray:
        """Return its own index."""
        return np.array([self._index])

    def gather_facts(self, gathering: Gathering) -> tuple[list[SiteFacts], Any]:
        """Return the given facts; the rows of this site are read, and must still have its own.

        Raises:
            MismatchError: the rows have changed since their facts were gathered.
        """
        facts, _ = self._facts
        if len(facts) != len(gathering.names):
            raise MismatchError("facts")
        own_facts = self._own(gathering.contribute(self._index))
        if own_facts != replace(facts[self._index], beside=None, pooled={}):
            raise MismatchError("facts")
        return self._facts

    def prepare(self, target: Target, sites: Sites, method: Method, chains: int) -> Run:
        """Refuse: a site runs nothing by itself."""
        raise MismatchError("study")
