"""A subclass that builds another algorithm has neither the law nor the limits of its base."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.algorithms.expanding import expanding
from consortia.algorithms.fa_hmc import FALD
from consortia.algorithms.federated_hmc import FederatedHMC
from consortia.algorithms.few_rounds import FewRounds
from consortia.algorithms.gossip import DESGLD
from consortia.algorithms.preconditioning import preconditioned
from consortia.algorithms.registry import ALGORITHMS
from consortia.core.contract import Adaptive
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


def test_a_member_that_varies_within_a_family_makes_another_algorithm() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Louder(DESGLD):
        """Gossip whose agents take other steps."""

        def agent_step(self, target: Any) -> Any:
            return super().agent_step(target)

    class Fewer(FewRounds):
        """Messages with site functions of its own."""

        functions = None

    assert knows(law_of, DESGLD)
    assert not knows(law_of, Louder)
    assert not has_algorithm_of(Fewer, FewRounds)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_method_in_a_wrapper_is_judged_as_the_method_itself(name: str) -> None:
    plain = ALGORITHMS[name].factory(**ALGORITHMS[name].example)
    wrapped = [expanding(plain)]
    if plain.step_schedules and not (isinstance(plain, Adaptive) and plain.adapts):
        wrapped.append(preconditioned(plain))
    for one in wrapped:
        assert keeps_posterior(one) == keeps_posterior(plain), one
        assert knows(law_of, type(one)) or not knows(law_of, type(plain)), one
        assert has_prediction(one) or not has_prediction(plain), one


def test_the_law_in_a_wrapper_is_that_of_the_method_in_its_units() -> None:
    sites = consortia.Sites.from_list([{"y": np.array([0.0, 2.0])} for _ in range(3)])
    model = consortia.Model(
        lambda theta: -0.5 * theta[0] ** 2,
        lambda theta, rows: -0.5 * (rows["y"] - theta[0]) ** 2,
        np.zeros(1),
    )
    for step, diverges in ((0.05, False), (5.0, True)):
        method = preconditioned(FALD(step_size=step, local_steps=2), scales=(1.0,))
        found = predict_bias(model, sites, method)
        assert found.reason != "fa_ld has no oracle"
        assert found.diverges == diverges


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
