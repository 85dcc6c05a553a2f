"""Decentralized MA-HMC and ULA are what their equations say, number by number."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core import random
from consortia.core.contract import Site
from consortia.core.target import Target
from consortia.engines import rng
from consortia.engines.buffers import Window
from consortia.errors import InputError
from consortia.theory.stability import predict_divergence
from tests.refusals import refused

FEATURES = 2
SIZES = (4, 9, 6, 13)

# A doubly stochastic matrix that is not symmetric: a mixture of permutations.
ODD = 0.3 * np.eye(4) + 0.45 * np.eye(4)[[1, 2, 3, 0]] + 0.25 * np.eye(4)[[2, 0, 3, 1]]


@pytest.fixture(scope="module")
def model():
    return consortia.models.logistic_regression(FEATURES, intercept=False)


@pytest.fixture(scope="module")
def sites():
    rng = np.random.default_rng(8)
    shards = []
    for rows in SIZES:
        x = rng.normal(rng.normal(size=FEATURES), 1.0, size=(rows, FEATURES))
        y = (rng.uniform(size=rows) < 1 / (1 + np.exp(-x @ rng.normal(size=FEATURES)))) * 1
        shards.append({"x": x, "y": y.astype(np.int32)})
    return consortia.Sites.from_list(shards)


def target_of(model):
    return Target(model, jax.tree.map(jnp.asarray, model.init))


@functools.cache
def derivatives(model, sites):
    """``positions -> (∇U_i, ∇²U_i)`` of all agents, with the prior shared in equal parts."""
    target, share = target_of(model), jnp.asarray(1 / len(sites))
    padded, sizes = jax.tree.map(jnp.asarray, sites.padded()), jnp.asarray(sites.sizes, jnp.int32)

    @jax.jit
    @jax.vmap
    def of(theta, data, size):
        mask = jnp.arange(max(SIZES), dtype=jnp.int32) < size

        def potential(theta):
            return target.potential(theta, data, mask, Site(data, size, share, share))

        return jax.grad(potential)(theta), jax.hessian(potential)(theta)

    return lambda positions: jax.tree.map(np.asarray, of(jnp.asarray(positions), padded, sizes))


def private(position, stream, iterations, count=4, seed=0):
    """What each agent draws for itself in phase ``position``, (iterations, agents, ...)."""
    key = random.phase_key(random.base_key(seed), 0, rng.ROUND * 65536 + position)
    keys = random.node_key(key, np.arange(count, dtype=np.uint32))

    def at(iteration, key):
        return random.declared(stream, key, iteration, 0, None)

    agents = jax.vmap(at, in_axes=(None, 0))
    every = (jnp.arange(iterations, dtype=jnp.int32), keys)
    return np.asarray(jax.jit(jax.vmap(agents, in_axes=(0, None)))(*every))


def agents_of(tree):
    """Every agent's draws, (draws, agents, d)."""
    return np.asarray(tree["agents"]["coefficients"])[0]


def by_hand(model, sites, W, epsilon, variant, gossip_rounds, metropolis_from, iterations):
    """The algorithm in NumPy, with the engine's numbers: (positions, acceptances) over time."""
    both, count = derivatives(model, sites), len(sites)
    momenta = private(0, lambda rng: rng.normal("momentum", (FEATURES,)), iterations)
    levels = private(1, lambda rng: rng.uniform("accept"), iterations)
    x = np.zeros((count, FEATURES))
    g, c_before = np.zeros_like(x), np.zeros_like(x)
    aleph, a_before = np.zeros(count), np.zeros(count)
    history, accepted = [], []
    for t, (p, u) in enumerate(zip(momenta, levels, strict=True)):
        c, hessians = both(x)
        a = np.einsum("ni,nij,nj->n", p, hessians, p)
        g, aleph = g + c - c_before, aleph + a - a_before
        for _ in range(gossip_rounds):
            g, aleph = W @ g, W @ aleph
        c_before, a_before = c, a
        if variant == "corrected":
            x = W @ (x - epsilon * (p + epsilon / 2 * g))
        else:
            log_ratio = np.minimum(0, -0.5 * epsilon**2 * (aleph + np.sum(g**2, axis=1)))
            yes = (np.log(u) <= log_ratio) | (t < metropolis_from)
            x = W @ np.where(yes[:, None], x - epsilon * (p + epsilon * g), x)
            accepted.append(yes)
        history.append(x)
    return np.stack(history), np.array(accepted)


# --- identities ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("variant", "gossip_rounds"), [("corrected", 1), ("published", 1), ("published", 2)]
)
def test_every_agent_goes_where_the_equations_send_it(model, sites, variant, gossip_rounds):
    start = 10 if variant == "published" else 0
    method = consortia.decentralized_hmc(
        0.5, ODD, variant=variant, gossip_rounds=gossip_rounds, metropolis_from=start,
        draws="agents",
    )  # fmt: skip
    tree = consortia.sample(model, sites, method, rounds=30, progress=False, chains=1)
    expected, accepted = by_hand(model, sites, ODD, 0.5, variant, gossip_rounds, start, 30)
    np.testing.assert_allclose(agents_of(tree), expected, rtol=0, atol=1e-10)
    average = np.asarray(tree["posterior"]["coefficients"])[0]
    np.testing.assert_allclose(average, expected.mean(axis=1), rtol=0, atol=1e-10)
    if variant == "published":
        np.testing.assert_array_equal(np.asarray(tree["agents"]["accepted"])[0], accepted)
        assert accepted[:10].all()
        assert not accepted[10:].all()


@pytest.mark.usefixtures("x64")
def test_agents_before_mixing_are_what_is_mixed(model, sites):
    runs = [
        agents_of(
            consortia.sample(
                model, sites,
                consortia.decentralized_hmc(0.3, ODD, draws="agents", draw_before_mixing=before),
                rounds=10, progress=False, chains=1,
            )
        )
        for before in (True, False)
    ]  # fmt: skip
    np.testing.assert_allclose(ODD @ runs[0], runs[1], rtol=0, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("mixing", "gossip_rounds"), [("ring", 1), ("complete", 2), ("identity", 1), (ODD, 1), (ODD, 5)]
)
def test_the_trackers_hold_the_average_gradient_and_curvature(model, sites, mixing, gossip_rounds):
    rounds, switch = 40, 20
    method = consortia.decentralized_hmc(
        0.4, mixing, variant="published", gossip_rounds=gossip_rounds, metropolis_from=switch,
        draws="agents",
    )  # fmt: skip
    both = derivatives(model, sites)
    run = consortia.LocalEngine().prepare(target_of(model), sites, method, 1)
    carry = run.start(0, jnp.zeros((1, FEATURES)))
    buffers = run.buffers(carry)
    for t in range(rounds):
        here = np.asarray(carry.inbox)  # the agents' positions before this iteration
        carry, buffers, _ = run.advance(carry, buffers, Window(t, t + 1, 0, 1, 0))
        if t not in (0, 1, switch - 1, switch, rounds - 1):
            continue
        c, hessians = both(here)
        p = np.asarray(carry.node.momentum)
        a = np.einsum("ni,nij,nj->n", p, hessians, p)
        tracked = np.asarray(carry.node.mixed.gradient).mean(axis=0)
        np.testing.assert_allclose(tracked, c.mean(axis=0), rtol=0, atol=1e-10)
        assert np.asarray(carry.node.mixed.curvature).mean() == pytest.approx(a.mean(), abs=1e-10)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("leapfrog_steps", [1, 3])
def test_exact_is_centralized_hmc_with_the_same_numbers(model, sites, leapfrog_steps):
    options = {"rounds": 300, "chains": 2, "seed": 4, "progress": False}
    exact = consortia.decentralized_exact_hmc(0.4, "ring", leapfrog_steps=leapfrog_steps)
    central = consortia.federated_hmc(
        step_size=0.4, leapfrog_steps=leapfrog_steps, mass_matrix="identity", jitter=0.0
    )
    whole = consortia.Sites.from_list([sites.pooled()])
    one = consortia.sample(model, sites, exact, **options)
    two = consortia.sample(model, whole, central, **options)
    np.testing.assert_allclose(
        np.asarray(one["posterior"]["coefficients"]),
        np.asarray(two["posterior"]["coefficients"]),
        rtol=0,
        atol=1e-10,
    )
    assert 0 < float(one["sample_stats"]["acceptance_rate"].mean()) < 1


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("mixing", "noise"),
    [
        ("ring", "corrected"),
        ("complete", "published"),
        ("star", "corrected"),
        ("path", "published"),
        (ODD, "corrected"),
    ],
)
def test_every_agent_of_ula_goes_where_the_equations_send_it(model, sites, mixing, noise):
    method = consortia.decentralized_ula(0.2, mixing, noise=noise, draws="agents")
    tree = consortia.sample(model, sites, method, rounds=12, progress=False, chains=1)
    neighbours = {
        "ring": [(0, 1), (1, 2), (2, 3), (3, 0)],
        "complete": [(i, j) for i in range(4) for j in range(i)],
        "star": [(0, 1), (0, 2), (0, 3)],
        "path": [(0, 1), (1, 2), (2, 3)],
    }.get(str(mixing), [(i, j) for i in range(4) for j in range(i) if ODD[i, j] + ODD[j, i] > 0])
    A = np.zeros((4, 4))
    for i, j in neighbours:
        A[i, j] = A[j, i] = 1
    both = derivatives(model, sites)
    noises = private(0, lambda rng: rng.normal("noise", (FEATURES,)), 12)
    agents = agents_of(tree)
    x, m = np.zeros((4, FEATURES)), 4
    for t, v in enumerate(noises):
        alpha, beta = 0.2 / (t + 230) ** 0.55, 0.48 / (t + 230) ** 0.01
        c, _ = both(x)
        apart = A.sum(axis=1)[:, None] * x - A @ x
        heat = m if noise == "corrected" else 1
        x = x - beta * apart - alpha * m * c + np.sqrt(2 * alpha * heat) * v
        np.testing.assert_allclose(agents[t], x, rtol=0, atol=1e-10)


# --- bad input and faults ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "argument", "match"),
    [
        ({"variant": "best"}, "variant", "'best'"),
        ({"draws": "all"}, "draws", "'all'"),
        ({"variant": "exact"}, "variant", "consortia.decentralized_exact_hmc"),
        ({"metropolis_from": 5}, "metropolis_from", "metropolis_from=5.*variant='published'"),
        ({"gossip_rounds": 0}, "gossip_rounds", "gossip_rounds is 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, argument, match):
    with refused(argument=argument, match=match):
        consortia.decentralized_hmc(0.1, "ring", **arguments)


def test_exact_trajectories_have_at_least_one_step():
    with refused(argument="leapfrog_steps", match="is 0"):
        consortia.decentralized_exact_hmc(0.1, "ring", leapfrog_steps=0)


@pytest.mark.parametrize("factory", [consortia.decentralized_hmc, consortia.decentralized_ula])
def test_a_matrix_that_is_not_doubly_stochastic_is_refused_with_the_row_or_column(factory):
    W = np.full((3, 3), 1 / 3)
    W[1, 1] += 0.1
    with refused(argument="mixing", match=r"row 1.*to 1\.1"):
        factory(0.1, W)
    W = np.full((3, 3), 1 / 3)
    W[0] = [0.5, 0.2, 0.3]
    with refused(argument="mixing", match=r"column 0.*to 1\.16"):
        factory(0.1, W)


def test_exact_on_a_network_in_parts_is_refused_and_the_others_warn(model, sites):
    parts = np.kron(np.eye(2), np.full((2, 2), 0.5))
    exact = consortia.decentralized_exact_hmc(0.1, parts)
    with refused(argument="mixing", match="2"):
        consortia.sample(model, sites, exact, rounds=2, progress=False, chains=1)
    for method in (
        consortia.decentralized_hmc(0.1, parts),
        consortia.decentralized_ula(0.1, parts),
    ):
        with pytest.warns(UserWarning, match="2 parts that never communicate"):
            method.check(np.array(SIZES), sites.names, FEATURES)


def test_ula_warns_of_a_consensus_step_at_which_the_agents_part():
    names, sizes = tuple("abcde"), np.full(5, 3)
    with pytest.warns(UserWarning, match=r"largest eigenvalue of the Laplacian is 2\.27"):
        consortia.decentralized_ula(1e-4, "complete").check(sizes, names, 2)
    consortia.decentralized_ula(1e-4, "complete", consensus=(0.4, 0.01, 230.0)).check(
        sizes, names, 2
    )
    consortia.decentralized_ula(1e-4, "ring").check(sizes, names, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"decay": 0.5}, {"decay": (0.5, 0.0)}, {"decay": (-0.1, 1.0)}, {"consensus": (0.1, 0.2)},
        {"consensus": (0.1, 0.2, 0.0)}, {"noise": "loud"}, {"draws": "all"},
    ],
)  # fmt: skip
def test_a_bad_argument_of_ula_is_named(arguments):
    with pytest.raises(InputError, match=next(iter(arguments))):
        consortia.decentralized_ula(0.1, "ring", **arguments)


def test_a_published_proposal_that_is_not_finite_is_rejected(model, sites):
    # Each step overflows; the agents stay where they were, and the record says so.
    method = consortia.decentralized_hmc(1e25, "ring", variant="published", draws="agents")
    with pytest.warns(UserWarning, match=r"step_size 1e\+25 is unstable"):
        tree = consortia.sample(model, sites, method, rounds=3, progress=False, chains=1)
    assert np.all(np.asarray(tree["agents"]["accepted"]) == 0)
    assert np.all(np.isfinite(agents_of(tree)))


@pytest.mark.parametrize(("variant", "share"), [("corrected", 4), ("published", 2)])
def test_a_step_beyond_the_limit_is_warned_of_with_the_limit(sites, variant, share):
    # Linear regression: the curvature is known, and the limit exact.
    model = consortia.models.linear_regression(FEATURES)
    shards = [{"x": s["x"], "y": s["x"][:, 0]} for s in sites.shards]
    x = np.concatenate([shard["x"] for shard in shards])
    strongest = np.linalg.eigvalsh(x.T @ x + np.eye(FEATURES))[-1]
    limit = np.sqrt(4 * share / strongest)
    these, start = consortia.Sites.from_list(shards), {"coefficients": np.zeros(FEATURES)}
    for step, wanted in ((0.99 * limit, False), (1.01 * limit, True)):
        method = consortia.decentralized_hmc(step, "complete", variant=variant)
        reason = predict_divergence(method, model, these, start)
        assert (reason is not None) == wanted
    assert f"give less than {limit:.3g}" in reason


def test_what_varies_weights_the_estimates():
    steps = np.array([0.1, 0.2])
    np.testing.assert_allclose(
        consortia.decentralized_hmc(steps, "ring").step_weights(np.arange(2)),
        steps**2 / 2,
        rtol=1e-6,
    )
    assert consortia.decentralized_hmc(0.1, "ring").step_weights(np.arange(2)) is None
    assert consortia.decentralized_exact_hmc(steps, "ring").step_weights(np.arange(2)) is None
    np.testing.assert_allclose(
        consortia.decentralized_ula(2.0, "ring").step_weights(np.array([0, 70])),
        2 / np.array([230.0, 300.0]) ** 0.55,
        rtol=1e-6,
    )
    assert consortia.decentralized_ula(2.0, "ring", decay=(0, 1)).step_weights(np.arange(2)) is None
