"""A subclass that builds another algorithm has neither the law nor the limits of its base."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

import consortia
from consortia.algorithms.fa_hmc import FALD
from consortia.algorithms.federated_hmc import FederatedHMC
from consortia.algorithms.gossip import DESGLD
from consortia.algorithms.registry import ALGORITHMS
from consortia.theory.bias import keeps_posterior, law_of, predict_bias
from consortia.theory.inheritance import has_algorithm_of, knows
from consortia.theory.stability import has_prediction


@dataclass(frozen=True, kw_only=True)
class Renamed(FALD):
    """Federated averaging under another name."""

    name = "renamed"


@dataclass(frozen=True, kw_only=True)
class Hotter(FALD):
    """Federated averaging at four times the temperature."""

    name = "hotter"

    def build(self, target: Any) -> Any:
        return FALD.build(replace(self, temperature=4.0), target)


@dataclass(frozen=True, kw_only=True)
class Unchecked(FederatedHMC):
    """HMC without its Metropolis test."""

    name = "unchecked"

    def build(self, target: Any) -> Any:
        return super().build(target)


def test_a_law_is_inherited_with_the_algorithm_alone() -> None:
    rng = np.random.default_rng(0)
    sites = consortia.Sites.from_list([{"y": rng.normal(size=9)} for _ in range(3)])
    model = consortia.Model(
        lambda theta: -0.5 * theta[0] ** 2,
        lambda theta, rows: -0.5 * (rows["y"] - theta[0]) ** 2,
        np.zeros(1),
    )
    options = {"step_size": 0.01, "local_steps": 2}
    base, same = (predict_bias(model, sites, one(**options)) for one in (FALD, Renamed))
    assert base.sd_ratio is not None
    assert same.sd_ratio.tolist() == base.sd_ratio.tolist()
    other = predict_bias(model, sites, Hotter(**options))
    assert other.sd_ratio is None
    assert other.reason == "hotter has no oracle"


def test_a_subclass_that_builds_another_algorithm_is_not_called_exact() -> None:
    assert keeps_posterior(FederatedHMC())
    assert not keeps_posterior(Unchecked())


def test_no_limit_of_a_step_size_is_inherited_with_another_algorithm() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Other(DESGLD):
        """Gossip with an algorithm of its own."""

        def build(self, target: Any) -> Any:
            return super().build(target)

    method = consortia.de_sgld(**ALGORITHMS["de_sgld"].example)
    options = {one.name: getattr(method, one.name) for one in fields(method)}
    assert has_prediction(method)
    assert not has_prediction(Other(**options))


def test_what_is_known_is_known_of_every_registered_class() -> None:
    for name, entry in ALGORITHMS.items():
        kind = type(entry.factory(**entry.example))
        found = law_of.dispatch(kind)
        assert knows(law_of, kind) == (found is not law_of.dispatch(object)), name
        assert has_algorithm_of(kind, kind)
    assert not has_algorithm_of(FALD, FederatedHMC)


def test_a_law_of_ones_own_counts() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Lawful(Hotter):
        """The same with a law of its own."""

    assert not knows(law_of, Lawful)
    law_of.register(Lawful, lambda method, problem: None)
    assert knows(law_of, Lawful)
