"""The shapes that the engines' functions declare are those that they take and return."""

from __future__ import annotations

from typing import Any

import beartype
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError, jaxtyped

from consortia import graphs
from consortia.core import random
from consortia.core.contract import Mean, Phase
from consortia.engines import exchanges, rng


def checked(function: Any) -> Any:
    return jaxtyped(typechecker=beartype.beartype)(function)


@pytest.mark.parametrize("network", ["ring", "complete"])
def test_gossip_keeps_the_shape_of_the_state(network: str) -> None:
    mixing = graphs.weights.resolve_any(network, 5)
    for shape in ((5,), (5, 2), (5, 2, 3)):
        state = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
        assert checked(exchanges.mixed)(mixing, state).shape == shape
        assert checked(exchanges.changed)(mixing, state).shape == shape


def test_weights_have_one_number_a_node() -> None:
    outbox = jnp.ones((3, 2))
    assert checked(exchanges.message_of)(Mean(), outbox, jnp.full(3, 1 / 3)).shape == (2,)
    with pytest.raises(TypeCheckError):
        checked(exchanges.message_of)(Mean(), outbox, jnp.ones((3, 1)))


@pytest.mark.parametrize("chains", [1, 4])
def test_randomness_is_drawn_from_keys_of_two_words(chains: int) -> None:
    layout = rng.Layout(nodes=3, chains=chains, map_nodes=False, block=2, slots=1)
    phases = (Phase(None, noise=lambda streams: streams.normal("noise", (2,))),)
    keys = checked(rng.stage_keys)(phases, rng.ROUND, jnp.asarray(random.base_key(0)), layout)
    many = () if chains == 1 else (chains,)
    assert keys[0].private.shape == (3, *many, 2)
    counter = rng.Counter(jnp.int32(0), jnp.int32(0))
    source = rng.Source(layout, jnp.ones(3))
    (made,) = checked(rng.round_randomness)(phases, keys, counter, source)
    assert made.noise.shape == (3, *many, 2)
    with pytest.raises(TypeCheckError):
        checked(rng.stage_keys)(phases, rng.ROUND, jnp.zeros(3, jnp.uint32), layout)
