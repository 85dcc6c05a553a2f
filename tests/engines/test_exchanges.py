"""Exchanges as array operations: averages, sums, gossip, and what they cost."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from consortia.core.contract import Mean, Mix, Phase, Sum
from consortia.engines.exchanges import (
    MOST_IN_ORDER,
    communication,
    inbox_per_node,
    is_in_order,
    message_of,
    reply_per_node,
)

pytestmark = pytest.mark.usefixtures("x64")

NODES = 4
WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4])
# A ring of four, with links 0-1, 1-2, 2-3 and 3-0.
RING = (
    (0.5, 0.25, 0.0, 0.25),
    (0.25, 0.5, 0.25, 0.0),
    (0.0, 0.25, 0.5, 0.25),
    (0.25, 0.0, 0.25, 0.5),
)


def outbox() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {
        "position": jnp.asarray(rng.normal(size=(NODES, 2, 3))),
        "scalar": jnp.asarray(rng.normal(size=NODES)),
    }


def test_mean_weighs_every_leaf_of_the_outboxes() -> None:
    made = message_of(Mean(), outbox(), jnp.asarray(WEIGHTS))
    for name, leaf in outbox().items():
        expected = sum(w * part for w, part in zip(WEIGHTS, np.asarray(leaf), strict=True))
        np.testing.assert_allclose(made[name], expected, rtol=1e-13)


def test_sum_is_plain_whatever_the_weights() -> None:
    made = message_of(Sum(), outbox(), jnp.asarray(WEIGHTS))
    for name, leaf in outbox().items():
        np.testing.assert_allclose(made[name], np.asarray(leaf).sum(axis=0), rtol=1e-13)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_mix_multiplies_by_a_power_of_the_matrix(times: int) -> None:
    made = message_of(Mix(RING, times), outbox(), jnp.asarray(WEIGHTS))
    power = np.linalg.matrix_power(np.array(RING), times)
    for name, leaf in outbox().items():
        expected = np.tensordot(power, np.asarray(leaf), axes=1)
        np.testing.assert_allclose(made[name], expected, rtol=0, atol=1e-13)


def test_mix_leaves_the_average_as_it_is_in_single_precision_too() -> None:
    leaf = jnp.asarray(np.random.default_rng(1).normal(size=(NODES, 50)).astype(np.float32)) + 100
    made = message_of(Mix(RING, 200), {"x": leaf}, jnp.asarray(WEIGHTS, jnp.float32))["x"]
    # 200 roundings of numbers near 100 in 24 bits, 2⁻²⁴ · 100 each, as a random walk.
    np.testing.assert_allclose(made.mean(axis=0), leaf.mean(axis=0), rtol=0, atol=2e-4)


def test_nothing_is_exchanged_without_an_exchange() -> None:
    assert message_of(None, outbox(), jnp.asarray(WEIGHTS)) == ()


def test_a_star_sends_up_and_down_and_gossip_along_its_links() -> None:
    assert communication(Mean(), 100, 10, NODES) == (1, 400, 40)
    assert communication(Sum(), 100, 10, NODES) == (1, 400, 40)
    # Eight directed links, three times over.
    assert communication(Mix(RING, 3), 100, 100, NODES) == (3, 3 * 8 * 100, 0)
    assert communication(None, 100, 100, NODES) == (0, 0, 0)


def at_node(noise, shared, state, inbox, site):
    return state, inbox, {}


def at_hub(shared, state, message):
    return state, message, {}


@pytest.mark.parametrize(
    ("phase", "before", "after"),
    [
        (Phase(at_node, Mix(RING)), False, True),
        (Phase(at_node, Mean()), True, False),
        (Phase(at_node, Sum(), at_hub), True, False),
        (Phase(at_node), False, True),  # what a node sends to itself
        (Phase(None, None, at_hub), True, False),
        (Phase(None), True, True),
        (Phase(None), False, False),
    ],
)
def test_whose_the_reply_is(phase: Phase, before: bool, after: bool) -> None:
    assert reply_per_node(phase, before) is after


def test_the_inbox_of_an_iteration_is_what_the_one_before_leaves() -> None:
    mix, mean = Phase(at_node, Mix(RING)), Phase(at_node, Mean())
    assert inbox_per_node((mix, mean)) is False
    assert inbox_per_node((mean, mix)) is True
    assert inbox_per_node((mean, Phase(None))) is False


def test_sums_are_in_order_up_to_the_limit_that_the_docs_give():
    def in_order(numbers: int) -> bool:  # of six nodes, two of them here
        message = {"a": np.zeros((2, numbers - 1)), "b": np.zeros(2)}
        return is_in_order(message, nodes=6, nodes_here=2)

    most = MOST_IN_ORDER // 6
    assert in_order(most)
    assert not in_order(most + 1)
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    assert f"at most {MOST_IN_ORDER:,} numbers" in " ".join(page.split())
