"""Sketch: federated HMC, exact, with a random number of steps in each chain.

hub draws momentum and length, half a kick, a drift;
(log-density and gradient at the inbox, `Sum`, the hub leaps) × L, L unlike in each chain;
hub accepts.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sparse import sparse

import consortia
from consortia.core.contract import Algorithm, Draws, Phase, Sum

pytestmark = pytest.mark.usefixtures("x64")

D, STEP, LONGEST = 3, 0.25, 6
SIZES = (2, 7, 4)

MODEL = consortia.models.logistic_regression(D)


def shards() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.normal(size=(n, D)) + i, "y": rng.integers(0, 2, n)} for i, n in enumerate(SIZES)
    ]


SITES = consortia.Sites.from_list(shards())


class Hub(NamedTuple):
    """Positions are those of the kept state (old) and of the trajectory (new)."""

    old: Any
    old_value: Any
    old_gradient: Any
    new: Any
    new_value: Any
    new_gradient: Any
    momentum: Any
    energy: Any
    level: Any
    length: Any
    leaps: Any


def sketch(target: Any) -> Algorithm:
    def begin(shared: Any, hub: Hub, message: Any) -> Any:
        momentum = shared["momentum"]
        length = 1 + jnp.floor(LONGEST * shared["length"]).astype(jnp.int32)
        energy = hub.old_value + momentum @ momentum / 2
        momentum = momentum - STEP / 2 * hub.old_gradient
        new = hub.old + STEP * momentum
        hub = hub._replace(
            new=new,
            momentum=momentum,
            energy=energy,
            level=shared["level"],
            length=length,
            leaps=jnp.int32(0),
        )
        return hub, new, {}

    def draw(rng: Any) -> Any:
        return {
            "momentum": rng.normal("momentum", (D,)),
            "length": rng.uniform("length"),
            "level": rng.uniform("level"),
        }

    def evaluate(noise: Any, shared: Any, state: Any, inbox: Any, site: Any) -> Any:
        rows, mask = site.all()
        return state, jax.value_and_grad(target.potential)(inbox, rows, mask, site), {}

    def leap(shared: Any, hub: Hub, message: Any) -> Any:
        value, gradient = message
        leaps = hub.leaps + 1
        last = leaps == hub.length
        momentum = hub.momentum - jnp.where(last, STEP / 2, STEP) * gradient
        new = jnp.where(last, hub.new, hub.new + STEP * momentum)
        hub = hub._replace(
            new=new, new_value=value, new_gradient=gradient, momentum=momentum, leaps=leaps
        )
        return hub, new, {}

    def accept(shared: Any, hub: Hub, message: Any) -> Any:
        energy = hub.new_value + hub.momentum @ hub.momentum / 2
        accepted = jnp.log(hub.level) < hub.energy - energy

        def choose(new: Any, old: Any) -> Any:
            return jnp.where(accepted, new, old)

        hub = hub._replace(
            old=choose(hub.new, hub.old),
            old_value=choose(hub.new_value, hub.old_value),
            old_gradient=choose(hub.new_gradient, hub.old_gradient),
        )
        info = {
            "accepted": accepted.astype(jnp.float64),
            "length": hub.length.astype(jnp.float64),
        }
        return hub, hub.old, info

    def start(shared: Any, hub: Hub, message: Any) -> Any:
        value, gradient = message
        return hub._replace(old_value=value, old_gradient=gradient), hub.old, {}

    def init(position: Any) -> Any:
        nil, none = jnp.zeros(()), jnp.int32(0)
        hub = Hub(position, nil, position, position, nil, position, position, nil, nil, none, none)
        return (), hub, position

    return Algorithm(
        init,
        (
            Phase(None, None, begin, shared=draw),
            Phase(evaluate, Sum(), leap, repeat=LONGEST, repeats=lambda hub: hub.length),
            Phase(None, None, accept),
        ),
        Draws(hub=lambda hub, inbox: hub.old),
        setup=(Phase(evaluate, Sum(), start),),
    )


# --- pooled HMC by hand --------------------------------------------------------------------------


def potential(theta: np.ndarray) -> tuple[float, np.ndarray]:
    """U and ∇U of all rows, with a standard normal prior."""
    x = np.concatenate([shard["x"] for shard in shards()])
    sign = 2.0 * np.concatenate([shard["y"] for shard in shards()]) - 1
    margin = sign * (x @ theta)
    value = np.logaddexp(0, -margin).sum() + theta @ theta / 2 + D / 2 * np.log(2 * np.pi)
    return value, -(x.T @ (sign / (1 + np.exp(margin)))) + theta


def pooled(theta: np.ndarray, numbers: list[dict[str, Any]]) -> np.ndarray:
    draws = []
    for number in numbers:
        momentum = number["momentum"]
        length = 1 + int(LONGEST * number["length"])
        value, gradient = potential(theta)
        energy, new = value + momentum @ momentum / 2, theta
        for _ in range(length):
            momentum = momentum - STEP / 2 * gradient
            new = new + STEP * momentum
            value, gradient = potential(new)
            momentum = momentum - STEP / 2 * gradient
        if np.log(number["level"]) < energy - value - momentum @ momentum / 2:
            theta = new
        draws.append(theta)
    return np.array(draws)


BY_ONE = {"node_mode": "map", "block": 1}


@pytest.mark.parametrize(
    ("chains", "engine"),
    sparse(itertools.product((1, 4), ({}, BY_ONE)), [(1, BY_ONE), (4, {})]),
)
def test_it_is_pooled_hmc_with_the_same_numbers(
    runner: Any, chains: int, engine: dict[str, Any]
) -> None:
    start = np.random.default_rng(1).normal(size=(chains, D))
    made = runner(sketch, MODEL, SITES, start, **engine)
    records = made.advance(25)
    shared = [made.numbers(at)[0].shared for at in range(25)]
    for chain in range(chains):
        own = [
            {name: leaf[chain] if chains > 1 else leaf for name, leaf in numbers.items()}
            for numbers in shared
        ]
        np.testing.assert_allclose(
            records.draws[chain], pooled(start[chain], own), rtol=0, atol=1e-10
        )
    lengths = records.hub_info["length"]
    assert set(lengths.reshape(-1).tolist()) <= set(range(1, LONGEST + 1))
    if chains > 1:
        assert any(len(set(column)) > 1 for column in lengths.T.tolist())
        accepted = records.hub_info["accepted"]
        assert 0 < accepted.mean() < 1  # both branches of the test were taken
