"""Moments of columns of which the coordinator learns those of all sites together.

They leave with what a site says of itself, before keys of secure sums are known. So each pair of
sites agrees on masks with the identities that all policies name: Ed25519 keys are those of X25519,
too. A mask is bound to the names and keys of all sites, study, run and question. In a run a site
has moments of the same rows only, and its ledger refuses a second answer to one question.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from consortia.data.facts import SiteFacts
from consortia.data.received import expect
from consortia.data.summands import BITS, Summands, coarse, hidden, of_names, pooled
from consortia.engines.messages.identities import KeyRing, exchanging, montgomery
from consortia.engines.messages.secure_sums import MINIMUM_SITES, framed, mask_bytes, pair_keys
from consortia.errors import PolicyError

MOMENTS = "masked moments"
"""Plain value of a description: by model, the first or the one that is compared, and by name."""

DIGITS = re.compile(rf"[0-9a-f]{{{BITS // 4}}}")

Masked = list[dict[str, list[str]]]
"""Masked summands in hexadecimal digits, of each model's numbers by name."""


class MaskedMoments(NamedTuple):
    """Moments of a study that leave its sites masked."""

    sites: Sequence[str]  # of the study
    names: Sequence[Sequence[str]]  # of the numbers that some site may have, of each model
    columns: Collection[str]  # those of them that are columns, each once

    def hides(self, ring: KeyRing | None) -> bool:
        """Return True if a site with these keys can mask them: it has those of enough sites.

        Raises:
            PolicyError: it has those of some other sites, and not of all.
        """
        if ring is None or len(self.sites) < MINIMUM_SITES:
            return False
        lacking = [name for name in self.sites if name not in ring.sites]
        if lacking and len(lacking) < len(self.sites) - 1:
            text = (
                f"the policy names no key of {', '.join(map(repr, lacking))}, which the study has"
            )
            raise PolicyError(f"identities: {text}.", rules=("identities",))
        return not lacking

    def shown(self, facts: SiteFacts) -> SiteFacts:
        """Return a site's facts with what it shows of its moments, `coarse` of columns."""
        seen = {
            name: coarse(plain) if name in self.columns else hidden(plain)
            for name, plain in _moments(facts).items()
        }
        other = None if facts.beside is None else self.shown(facts.beside)
        return _with_moments(replace(facts, beside=other), seen)

    def masked(self, site: str, ring: KeyRing, facts: SiteFacts, session: bytes) -> Masked:
        """Return the terms of a site, which are added over all.

        Args:
            site: its name.
            ring: its keys.
            facts: of its rows.
            session: study, run and question.
        """
        public = {name: ring.sites[name] for name in sorted(self.sites)}
        parts = (framed(name.encode()) + key for name, key in public.items())
        roster = hashlib.sha256(b"".join(parts)).digest()
        exchanged = {name: montgomery(key) for name, key in public.items()}
        secret = exchanging(ring.private)
        pairs = pair_keys(site, secret, exchanged, roster, b" moments", session)
        made = []
        for number, (model, names) in enumerate(zip(_models(facts), self.names, strict=True)):
            columns = of_names(_moments(model), names)
            made.append(
                {
                    name: _hidden(site, pairs, f"{number} {name}".encode(), values)
                    for name, values in columns.items()
                }
            )
        return made


def _hidden(site: str, pairs: Mapping[str, bytes], label: bytes, values: Summands) -> list[str]:
    size = BITS // 8
    totals = list(values)
    for peer, key in pairs.items():
        stream = mask_bytes(key, framed(label), size * len(values))
        sign = 1 if site < peer else -1
        for index in range(len(values)):
            part = stream[index * size : (index + 1) * size]
            totals[index] += sign * int.from_bytes(part, "little")
    return [f"{total % (1 << BITS):0{BITS // 4}x}" for total in totals]


def numbers_of(facts: SiteFacts, names: Sequence[Sequence[str]]) -> int:
    """Count the numbers that a site would mask."""
    models = zip(_models(facts), names, strict=True)
    return sum(len(v) for model, of in models for v in of_names(_moments(model), of).values())


def count_masked(masked: Masked) -> int:
    """Count the numbers."""
    return sum(len(values) for columns in masked for values in columns.values())


def check_masked(masked: Any, facts: SiteFacts) -> Masked:
    """Refuse what are no masked moments that go with the facts of a site.

    Raises:
        ValueError: with what is wrong.
    """
    models = _models(facts)
    right = isinstance(masked, list) and len(masked) == len(models)
    expect(right, "the masked moments are not those of its models")
    for columns, model in zip(masked, models, strict=True):
        right = isinstance(columns, dict) and columns.keys() >= _moments(model).keys()
        expect(right, "the masked moments are not by the names of its moments")
        for values in columns.values():
            right = isinstance(values, list) and len(values) % 2 == 1
            right = right and all(isinstance(v, str) and DIGITS.fullmatch(v) for v in values)
            expect(right, "the masked moments are not numbers in digits")
    return list(masked)


def pooled_in(facts: Sequence[SiteFacts], masked: Sequence[Masked]) -> list[SiteFacts]:
    """Return the facts of all sites, those of the first with the moments of all.

    Raises:
        ValueError: the masks do not cancel, or sites mask other numbers.
    """
    models: list[SiteFacts] = []
    expect(len({*map(len, masked)}) == 1, "sites mask numbers of other models")
    for number, every in enumerate(zip(*map(_models, facts), strict=True)):
        columns = [site[number] for site in masked]
        names = columns[0].keys()
        expect(all(site.keys() == names for site in columns), "sites mask different numbers")
        of_all = {}
        for name in sorted(names):
            values = [[int(digits, 16) for digits in site[name]] for site in columns]
            expect(len({*map(len, values)}) == 1, "sites mask different numbers")
            parts = [_moments(model)[name] for model in every if name in _moments(model)]
            if (made := pooled(list(map(sum, zip(*values, strict=True))), parts)) is not None:
                of_all[name] = made
        models.append(replace(every[0], pooled=of_all, beside=None))
    whole = models[0] if len(models) == 1 else replace(models[0], beside=models[1])
    return [whole, *facts[1:]]


def _models(facts: SiteFacts) -> list[SiteFacts]:
    """Return the facts for each model that is compared."""
    return [facts] if facts.beside is None else [facts, facts.beside]


def _moments(facts: SiteFacts) -> Mapping[str, Any]:
    return facts.moments if facts.table is None else facts.table.moments


def _with_moments(facts: SiteFacts, moments: Mapping[str, Any]) -> SiteFacts:
    if facts.table is None:
        return replace(facts, moments=moments)
    return replace(facts, table=replace(facts.table, moments=moments))
