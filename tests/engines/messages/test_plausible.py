"""Messages that no honest site can have sent are found, and the site that sent them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core.contract import Disclosure, Evaluation, Mean, Phase, Sum
from consortia.core.prior import PriorScale, prior_scale
from consortia.core.target import Target
from consortia.engines.messages.plausible import Judge, Sent


class Report(NamedTuple):
    position: Any
    gradient: Any


def phase_of(exchange: Any) -> Phase:
    return Phase(
        lambda *_: None,
        exchange,
        evaluation=lambda inbox: Evaluation(inbox.position),
        disclosure=lambda outbox: Disclosure(outbox.position, outbox.gradient),
    )


SCALE = PriorScale(np.zeros(2), np.array([1.0, 10.0]))
JUDGE = Judge(SCALE, np.array([0.2, 0.3, 0.5]), position=20.0, step=5.0)
INBOX = Report(np.zeros((4, 2), np.float32), np.ones((4, 2), np.float32))


def verdict(
    changes: dict[int, Any], exchange: Any = None, sites: int = 3
) -> tuple[int, str] | None:
    honest = Report(np.full((4, 2), 0.5, np.float32), np.full((4, 2), 3.0, np.float32))
    sent = {n: Sent(INBOX, changes.get(n, honest)) for n in range(sites)}
    return JUDGE.implausible(phase_of(exchange or Mean()), sent)


def at(position: Any, gradient: Any = 3.0) -> Report:
    """A report whose second chain is there."""
    positions = np.full((4, 2), 0.5, np.float32)
    positions[1] = position
    return Report(positions, np.full((4, 2), gradient, np.float32))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, None),
        ({1: at([4.9, -49.0])}, None),
        ({1: at([5.1, 0.0])}, (1, "moved by 5.1")),
        ({2: at([0.0, -51.0])}, (2, "moved by 5.1")),
        ({0: at([21.0, 0.0])}, (0, "21 prior standard deviations off")),
        ({0: at([3e38, 0.0])}, (0, "prior standard deviations off")),
        ({0: at([np.nan, np.inf])}, None),  # the run ends with an error of its own
        ({2: at(0.5, 2.9e3)}, None),
        ({2: at(0.5, 3.1e3)}, (2, "gradient is 1.03e+03 times")),
        ({0: at([21.0, 0.0]), 1: at([21.0, 0.0])}, None),  # the chain is there
    ],
)
def test_a_message_beyond_a_bound_is_named_and_one_within_it_is_not(changes, found) -> None:
    got = verdict(changes)
    assert (got is None) == (found is None)
    if found is not None:
        assert got[0] == found[0]
        assert found[1] in got[1]


def test_gradients_that_are_summed_are_compared_by_row() -> None:
    shares = {n: at(0.5, 1e6 * JUDGE.weights[n]) for n in range(3)}
    assert verdict(shares, Sum()) is None
    shares[0] = at(0.5, 1e6)  # five times as much for its weight
    assert verdict(shares, Sum()) is None


def test_of_two_sites_neither_is_unlike_a_median() -> None:
    assert verdict({0: at(0.5, 1e9)}, sites=2) is None
    assert verdict({0: at([6.0, 0.0])}, sites=2) is not None


def test_a_normal_prior_has_its_mean_and_its_standard_deviations() -> None:
    means, sds = jnp.array([3.0, -40.0, 0.1]), jnp.array([0.5, 20.0, 1e-3])
    model = consortia.Model(
        lambda theta: -0.5 * jnp.sum(((theta - means) / sds) ** 2),
        lambda theta, rows: rows["y"],
        jnp.zeros(3),
    )
    found = prior_scale(Target(model, jnp.zeros(3)), np.array([1.0, 1.0, 1.0]))
    # Single precision: the third is a difference of numbers a thousand times its sd.
    np.testing.assert_allclose(found.centre, means, rtol=1e-4)
    np.testing.assert_allclose(found.sd, sds, rtol=1e-5)


def test_without_a_curvature_the_unit_is_one_around_the_start() -> None:
    model = consortia.Model(None, lambda theta, rows: rows["y"], jnp.zeros(2))
    found = prior_scale(Target(model, jnp.zeros(2)), np.array([1.0, 2.0]))
    np.testing.assert_array_equal(found.centre, [1.0, 2.0])
    np.testing.assert_array_equal(found.sd, 1.0)
