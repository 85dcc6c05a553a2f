"""What the gossip samplers do, step by step, against loops written out here; and bad input."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia import graphs
from consortia.algorithms.gossip import de_sghmc, de_sgld
from consortia.oracles import GaussianAgents, largest_stable_step, step_bounds
from consortia.theory.stability import predict_divergence
from tests.refusals import refused

AGENTS, ROWS, STEP = 5, 6, 0.03
MODEL = consortia.models.linear_regression(2, prior_scale=2.0)
CORRECTED = {"correction": "extra", "noise": "common", "averaged_noise": True}
PATH = graphs.mixing_matrix(graphs.path(AGENTS))


def shards(seed=0, agents=AGENTS):
    rng = np.random.default_rng(seed)
    made = []
    for i in range(agents):
        x = rng.normal(size=(ROWS + i, 2))
        made.append({"x": x, "y": x @ [1.0 + i, -1.0] + rng.normal(size=len(x))})
    return made


SITES = consortia.Sites.from_list(shards())


def run(method, sites=SITES, **options):
    """Positions (draws, agents, d) of the first chain."""
    tree = consortia.sample(
        MODEL, sites, method, **({"rounds": 12, "chains": 1, "progress": False} | options)
    )
    return np.asarray(tree["agents"]["coefficients"])[0]


class Spied:
    """The method, which records each agent's standard normal numbers beside its position."""

    def build(self, target):
        made = super().build(target)
        phase = made.phases[0]

        def local(noise, shared, *rest):
            state, outbox, _ = phase.local(noise, shared, *rest)
            return state, outbox, {"numbers": noise.normal if len(noise.normal) else shared.normal}

        return made._replace(phases=(phase._replace(local=local),))


def like(kind, method, **changed):
    """The method as an instance of its class with another one mixed in."""
    mixed = type(kind.__name__, (kind, type(method)), {})
    return mixed(**(vars(method) | changed))


def positions_and_numbers(method, **options):
    """Positions and standard normal numbers, both (draws, agents, d)."""
    spied = like(Spied, method, draws="agents")
    tree = consortia.sample(MODEL, SITES, spied, rounds=12, chains=1, progress=False, **options)
    groups = tree["agents"]
    return np.asarray(groups["coefficients"])[0], np.asarray(groups["numbers"])[0]


def reference(matrix, numbers, *, friction=None, mutant=None, **options):
    """The methods' equations in numpy, for one matrix or a list of them, one an iteration.

    ``mutant`` names a planted bug, see `MUTANTS`.
    """
    x, y = ([shard[name] for shard in SITES.shards] for name in ("x", "y"))
    position, velocity = np.zeros((AGENTS, 2)), np.zeros((AGENTS, 2))
    q, last, before_y = np.zeros((3, AGENTS, 2))
    heat = options.get("temperature", 1.0) / (2 if mutant == "no root of two" else 1)
    scale = AGENTS if mutant == "common noise over N" else math.sqrt(AGENTS)
    prior = 4.0 if mutant == "a whole prior at each agent" else 4.0 * AGENTS
    result = []
    for k, normals in enumerate(numbers):
        step = options.get("schedule", lambda _: STEP)(k)
        fresh = normals / scale if options.get("noise") == "common" else normals
        used = (fresh + last) / 2 if options.get("averaged_noise") else fresh
        used = fresh if mutant == "the newest noise alone" else used
        old, new = position, position.copy()
        weights = matrix[k] if isinstance(matrix, list) else matrix
        heard = weights @ old
        for i in range(AGENTS):
            if mutant == "hears new positions":
                heard[i] = weights[i] @ new
            at = heard[i] if mutant == "gradient at what was heard" else old[i]
            force = x[i].T @ (x[i] @ at - y[i]) + at / prior
            moved = heard[i] - (q[i] if options.get("correction") else 0)
            if friction is None:
                new[i] = moved - step * force + math.sqrt(2 * step * heat) * used[i]
                landed = new[i].copy()
                new[i] += options.get("momentum", 0.0) * (landed - before_y[i])
                before_y[i] = old[i] if mutant == "a heavy ball" else landed
            else:
                before = velocity[i].copy()
                velocity[i] += -step * (friction * velocity[i] + force)
                velocity[i] += math.sqrt(2 * friction * step * heat) * used[i]
                new[i] = moved + step * (before if mutant == "the old velocity" else velocity[i])
        memory = new if mutant == "memory of new positions" else old
        q, last, position = q + (memory - weights @ memory) / 2, fresh, new
        result.append(new)
    return np.stack(result)


EXTRA_AND_COMMON = {"correction": "extra", "noise": "common"}
MUTANTS = {
    "hears new positions": (None, {}),  # Gauss-Seidel
    "gradient at what was heard": (None, {}),
    "no root of two": (None, {}),
    "a whole prior at each agent": (None, {}),
    "common noise over N": (None, CORRECTED),
    "the newest noise alone": (None, CORRECTED),
    "memory of new positions": (None, CORRECTED),  # so that the noise enters it
    "the old velocity": (4.0, EXTRA_AND_COMMON),
}
"""Planted bugs, each with the friction and the options of the method that it is looked for in."""


# In double precision, on positions of order one over a dozen stable iterations: rounding only.
ROUNDING = 1e-12


# --- identities ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param(CORRECTED, id="corrected"),
        pytest.param({"temperature": 0.6}, id="temperature", marks=pytest.mark.slow),
        pytest.param({"correction": "extra"}, id="extra", marks=pytest.mark.slow),
        pytest.param({"noise": "common"}, id="common", marks=pytest.mark.slow),
        pytest.param({"averaged_noise": True}, id="averaged", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("x64")
def test_de_sgld_is_its_equation(options):
    found, normals = positions_and_numbers(de_sgld(STEP, PATH, **options))
    expected = reference(np.asarray(PATH), normals, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("options", [{}, {"correction": "extra", "noise": "common"}])
@pytest.mark.usefixtures("x64")
def test_de_sghmc_is_its_equation(options):
    found, normals = positions_and_numbers(de_sghmc(STEP, 4.0, PATH, **options))
    expected = reference(np.asarray(PATH), normals, friction=4.0, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


@pytest.mark.usefixtures("x64")
def test_de_sgld_with_momentum_at_temperature_zero_is_d_asg_and_no_heavy_ball():
    settings = {"temperature": 0.0, "momentum": 0.25}
    found = run(de_sgld(STEP, PATH, draws="agents", **settings))
    nothing = np.zeros((len(found), AGENTS, 2))
    expected = reference(np.asarray(PATH), nothing, **settings)
    heavy_ball = reference(np.asarray(PATH), nothing, mutant="a heavy ball", **settings)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)
    assert np.abs(found - heavy_ball).max() > 1e-3


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0, "correction": "extra"}])
def test_momentum_that_samples_or_corrects_is_refused(options):
    with refused(argument="momentum", match="D-ASG"):
        de_sgld(STEP, PATH, momentum=0.5, **options)


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
def test_independent_noise_differs_between_agents_and_common_noise_does_not():
    _, own = positions_and_numbers(de_sgld(STEP, PATH))
    _, common = positions_and_numbers(de_sgld(STEP, PATH, noise="common"))
    assert np.ptp(own, axis=1).min() > 0
    assert np.ptp(common, axis=1).max() == 0


@functools.cache
def found_of(friction, options):
    """What the library does at these settings, and its normal numbers."""
    method = de_sgld(STEP, PATH, **dict(options))
    if friction is not None:
        method = de_sghmc(STEP, friction, PATH, **dict(options))
    return positions_and_numbers(method)


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.usefixtures("x64")
def test_each_planted_bug_is_told_apart_from_the_method(mutant):
    friction, options = MUTANTS[mutant]
    found, normals = found_of(friction, tuple(options.items()))
    right = reference(np.asarray(PATH), normals, friction=friction, **options)
    wrong = reference(np.asarray(PATH), normals, friction=friction, mutant=mutant, **options)
    np.testing.assert_allclose(found, right, rtol=0, atol=ROUNDING)
    assert np.abs(found - wrong).max() > 1e-3


@pytest.mark.usefixtures("x64")
def test_momentum_that_hears_new_positions_is_another_method():
    found, normals = found_of(4.0, tuple(EXTRA_AND_COMMON.items()))
    mutant = "hears new positions"
    wrong = reference(np.asarray(PATH), normals, friction=4.0, mutant=mutant, **EXTRA_AND_COMMON)
    assert np.abs(found - wrong).max() > 1e-3


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
def test_a_schedule_gives_every_iteration_its_step():
    steps = 0.03 / (1 + 0.2 * np.arange(12))
    found, normals = positions_and_numbers(de_sgld(steps, PATH, **CORRECTED))
    expected = reference(np.asarray(PATH), normals, schedule=lambda k: steps[k], **CORRECTED)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
def test_de_sghmc_with_the_friction_of_one_over_the_step_is_de_sgld():
    hamiltonian = run(de_sghmc(0.2, 5.0, "ring", draws="agents"))
    langevin = run(de_sgld(0.04, "ring", draws="agents"))
    np.testing.assert_allclose(hamiltonian, langevin, rtol=0, atol=ROUNDING)


class Alone:
    """The method without an exchange: an agent's next inbox is that nothing changes."""

    def build(self, target):
        made = super().build(target)
        phase = made.phases[0]

        def local(*arguments):
            state, outbox, info = phase.local(*arguments)
            return state, jnp.zeros_like(outbox), info

        return made._replace(phases=(phase._replace(local=local, exchange=None),))


@pytest.mark.parametrize("make", [lambda w: de_sgld(STEP, w), lambda w: de_sghmc(STEP, 4.0, w)])
@pytest.mark.parametrize("batch_size", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_the_identity_gives_independent_chains_bit_for_bit(make, batch_size):
    method = dataclasses.replace(make("identity"), draws="agents", batch_size=batch_size)
    alone = like(Alone, method)
    with pytest.warns(UserWarning, match="never communicate"):
        together = run(method, rounds=40)
    with pytest.warns(UserWarning, match="never communicate"):
        apart = run(alone, rounds=40)
    np.testing.assert_array_equal(together, apart)


@pytest.mark.filterwarnings("ignore:the network falls into")
@pytest.mark.slow
def test_with_the_identity_no_bit_of_an_agent_depends_on_the_others_data():
    method = de_sgld(STEP, np.eye(AGENTS), draws="agents")
    other = [shards()[0], *shards(seed=9)[1:]]
    changed = run(method, consortia.Sites.from_list(other))
    usual = run(method)
    np.testing.assert_array_equal(changed[:, 0], usual[:, 0])
    assert np.abs(changed[:, 1] - usual[:, 1]).max() > 1e-3


@pytest.mark.usefixtures("x64")
@pytest.mark.slow
def test_a_matrix_means_the_same_however_it_is_given():
    import scipy.sparse

    usual = run(de_sgld(STEP, PATH, draws="agents"))
    for given in (np.asarray(PATH), scipy.sparse.csr_array(np.asarray(PATH)), "path"):
        method = de_sgld(STEP, given, draws="agents")
        np.testing.assert_allclose(run(method), usual, rtol=0, atol=ROUNDING)
        if not isinstance(given, str):
            assert method == de_sgld(STEP, PATH, draws="agents")


@pytest.mark.parametrize("options", [{}, CORRECTED], ids=["plain", "corrected"])
@pytest.mark.usefixtures("x64")
def test_links_that_come_and_go_mix_each_iteration_by_its_own_matrix(options):
    schedule = graphs.lost_links(PATH, 0.4, turns=5, seed=3)
    found, normals = positions_and_numbers(de_sgld(STEP, schedule, **options))
    matrices = [np.asarray(schedule.matrices[k % 5]) for k in range(12)]
    expected = reference(matrices, normals, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)
    # A schedule that began one turn late would be another run.
    late = reference(matrices[1:] + matrices[:1], normals, **options)
    assert np.abs(found - late).max() > 1e-3


# --- what is drawn -------------------------------------------------------------------------------


def test_the_draw_is_the_plain_average_of_the_agents():
    options = {"chains": 1, "rounds": 9, "progress": False}
    tree = consortia.sample(MODEL, SITES, de_sgld(STEP, "ring", draws="agents"), **options)
    agents = np.asarray(tree["agents"]["coefficients"])
    assert tree["agents"]["coefficients"].dims[2] == "agent"
    np.testing.assert_allclose(
        tree["posterior"]["coefficients"], agents.mean(axis=2), rtol=1e-6, atol=1e-6
    )
    averaged = consortia.sample(MODEL, SITES, de_sgld(STEP, "ring"), **options)
    assert "agents" not in averaged.children
    np.testing.assert_array_equal(
        averaged["posterior"]["coefficients"], tree["posterior"]["coefficients"]
    )


def test_the_agents_carry_equal_shares_of_the_prior_whatever_their_rows():
    method = de_sgld(STEP, "ring")
    np.testing.assert_array_equal(method.prior_shares(np.array([6, 7, 11])), np.full(3, 1 / 3))


@pytest.mark.usefixtures("x64")
def test_at_temperature_zero_the_corrected_method_finds_the_mode():
    x, y = (np.concatenate([shard[name] for shard in SITES.shards]) for name in ("x", "y"))
    mode = np.linalg.solve(x.T @ x + np.eye(2) / 4, x.T @ y)
    method = de_sgld(STEP, "ring", correction="extra", temperature=0.0, draws="agents")
    final = run(method, rounds=1500)[-1]
    np.testing.assert_allclose(final, np.tile(mode, (AGENTS, 1)), atol=1e-9)
    uncorrected = run(de_sgld(STEP, "ring", temperature=0.0, draws="agents"), rounds=1500)[-1]
    assert np.abs(uncorrected - mode).max() > 0.01


@pytest.mark.parametrize(
    ("network", "noisy"),
    [
        ("complete", True),
        ("ring", False),
        pytest.param("complete", False, marks=pytest.mark.slow),
        pytest.param("ring", True, marks=pytest.mark.slow),
        pytest.param("star", True, marks=pytest.mark.slow),
    ],
)
def test_the_memory_of_the_correction_does_not_drift_in_single_precision(network, noisy):
    # 20,000 iterations of a problem whose mode is at 1,000. An error of 3e-8 of the position, of
    # one sign in each step, would have moved the average by its sum divided by step times
    # curvature, about 1,000 · 3e-8 · 20,000 / 2 / (.02 · 10) = 1.5; rounding that is random, as
    # where all agents agree but for noise, by .01. Positions themselves are known to 6e-5.
    far = [{"x": s["x"], "y": s["x"] @ [1000.0, -1000.0]} for s in shards(agents=20)]
    flat = consortia.models.linear_regression(2, prior_scale=1e6)
    options = {"noise": "common"} if noisy else {"temperature": 0.0}
    method = de_sgld(0.02, network, correction="extra", **options)
    tree = consortia.sample(
        flat,
        consortia.Sites.from_list(far),
        method,
        rounds=20_000,
        thin=10,
        progress=False,
        chains=1,
    )
    late = np.asarray(tree["posterior"]["coefficients"], np.float64)[0, 1000:]
    if not noisy:
        np.testing.assert_allclose(late[-1], [1000.0, -1000.0], atol=0.002)
        return
    # The posterior's standard deviations are about .06, and 1,000 draws are nearly independent.
    x = np.concatenate([shard["x"] for shard in far])
    deviation = np.sqrt(np.diag(np.linalg.inv(x.T @ x)))
    assert np.all(np.abs(late.mean(axis=0) - [1000.0, -1000.0]) < 0.3 * deviation)


# --- minibatches and their control variate -------------------------------------------------------


def mean_square_move(method):
    """Of 200 chains' first step, at temperature 0, from the start (1, 1): about the mean move."""
    tree = consortia.sample(
        MODEL,
        SITES,
        method,
        rounds=1,
        chains=200,
        init={"coefficients": jnp.ones(2)},
        progress=False,
    )
    moved = np.asarray(tree["agents"]["coefficients"])[:, 0]
    return float(moved.var(axis=0).sum()), moved.mean(axis=0)


@pytest.mark.slow
def test_a_control_variate_at_the_position_itself_leaves_no_noise():
    options = {"draws": "agents", "temperature": 0.0}
    plain, _ = mean_square_move(de_sgld(STEP, "ring", batch_size=2, **options))
    _, exact = mean_square_move(de_sgld(STEP, "ring", **options))
    anchored = de_sgld(STEP, "ring", batch_size=2, control_variate=np.ones(2), **options)
    left, mean = mean_square_move(anchored)
    assert plain > 0.1
    assert left < 1e-10
    np.testing.assert_allclose(mean, exact, atol=1e-4)


def test_an_anchor_can_be_parameters_like_the_models():
    one = de_sgld(STEP, "ring", batch_size=2, control_variate={"coefficients": [1.0, 2.0]})
    assert one == de_sgld(STEP, "ring", batch_size=2, control_variate=(1.0, 2.0))


def test_a_minibatch_costs_one_gradient_an_agent_and_an_anchored_one_two():
    sizes = np.array([6, 7, 8])
    plain = de_sgld(STEP, "ring", batch_size=2).cost(sizes, 3)
    anchored = de_sgld(STEP, "ring", batch_size=2, control_variate=(0.0, 0.0)).cost(sizes, 3)
    exact = de_sgld(STEP, "ring").cost(sizes, 3)
    assert (plain.gradients, plain.row_gradients) == (3, 6)
    assert (anchored.gradients, anchored.row_gradients) == (6, 12)
    assert (exact.gradients, exact.row_gradients) == (3, 21)


# --- the record ----------------------------------------------------------------------------------


def test_messages_of_an_iteration_are_one_position_along_every_link():
    seen = []
    consortia.sample(
        MODEL, SITES, de_sgld(STEP, PATH), rounds=3, progress=False, on_plan=seen.append, chains=1
    )
    size = 2 * jnp.zeros(()).dtype.itemsize
    assert (seen[0].communication_rounds, seen[0].bytes_up) == (1, 8 * size)


def test_plan_and_record_say_how_the_network_is_carried_out():
    seen = []
    tree = consortia.sample(
        MODEL, SITES, de_sgld(STEP, PATH), rounds=3, progress=False, on_plan=seen.append, chains=1
    )
    text = "5 agents, 4 edges; W applied as a dense 5 × 5 matrix; spectral gap "
    text += f"{PATH.spectral_gap:.3g}"
    assert dict(seen[0].lines)["graph"] == tree.attrs["graph"] == text


@pytest.mark.slow
def test_ten_thousand_agents_on_a_ring_move_by_the_equation():
    # One row each, at temperature 0, three iterations: single precision on positions below ten.
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(10_000, 2)), rng.normal(size=10_000)
    x, y = x.astype(np.float32), y.astype(np.float32)
    sites = consortia.Sites.from_list(
        [{"x": a[None], "y": b[None]} for a, b in zip(x, y, strict=True)]
    )
    method = de_sgld(STEP, "ring", temperature=0.0, draws="agents")
    found = run(method, sites, rounds=3)
    position = np.zeros((10_000, 2))
    for k in range(3):
        heard = (position + np.roll(position, 1, axis=0) + np.roll(position, -1, axis=0)) / 3
        force = x * (np.sum(x * position, axis=1) - y)[:, None] + position / 4e4
        position = heard - STEP * force
        np.testing.assert_allclose(found[k], position, rtol=0, atol=1e-6)


def test_the_record_names_the_matrix_by_its_content():
    parameters = de_sgld(STEP, PATH).parameters()
    assert parameters["mixing"]["agents"] == AGENTS
    assert parameters["mixing"]["sha256"] == PATH.digest
    assert de_sgld(STEP, "ring").parameters()["mixing"] == "ring"


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "argument", "match"),
    [
        (lambda: de_sgld(STEP, [[0.5, 0.5], [0.4, 0.6]]), "mixing", "column 1.*to 1.1"),
        (lambda: de_sgld(STEP, "ladder"), "mixing", "'ladder'"),
        (lambda: de_sgld(-0.1, "ring"), "step_size", None),
        (lambda: de_sgld(STEP, "ring", correction="tracking"), "correction", "'tracking'"),
        (lambda: de_sgld(STEP, "ring", noise="none"), "noise", "'independent'.*'common'"),
        (lambda: de_sgld(STEP, "ring", draws="all"), "draws", "'all'"),
        (lambda: de_sgld(STEP, "ring", batch_size=0), "batch_size", None),
        (lambda: de_sgld(STEP, "ring", temperature=-1.0), "temperature", None),
        (
            lambda: de_sgld(STEP, "ring", control_variate=(0.0,)),
            "control_variate",
            "for minibatches",
        ),
        (
            lambda: de_sgld(STEP, "ring", batch_size=2, control_variate=(math.nan,)),
            "control_variate",
            "not finite",
        ),
        (
            lambda: de_sgld(STEP, "ring", batch_size=2, control_variate="mode"),
            "control_variate",
            "must be a point",
        ),
        (lambda: de_sghmc(STEP, 0.0, "ring"), "friction", "friction is 0"),
        (lambda: de_sghmc(0.5, 3.0, "ring"), "friction", "most 1"),
    ],
)
def test_a_wrong_argument_is_named(make, argument, match):
    with refused(argument=argument, match=match):
        make()


@pytest.mark.parametrize(
    ("method", "argument", "match"),
    [
        (de_sgld(STEP, np.eye(3)), "mixing", "for 3.*are 5"),
        (de_sgld(STEP, "ring", batch_size=7, replace=False), "batch_size", "'site 0'.*only 6"),
        (
            de_sgld(STEP, "ring", batch_size=2, control_variate=(0.0,)),
            "control_variate",
            "has 1.*model 2",
        ),
        (
            de_sgld(STEP, (np.eye(5) + np.roll(np.eye(5), 1, axis=1)) / 2, correction="extra"),
            "correction",
            "needs a symmetric",
        ),
    ],
)
def test_a_method_that_does_not_fit_the_sites_is_refused(method, argument, match):
    with refused(argument=argument, match=match):
        run(method)


def test_one_agent_is_refused():
    with refused(argument="sites"):
        run(de_sgld(STEP, "ring"), consortia.Sites.from_list(shards(agents=1)))


def test_a_network_in_parts_warns_of_what_is_sampled():
    parts = graphs.mixing_matrix([(0, 1), (2, 3), (3, 4)], agents=5)
    with pytest.warns(
        UserWarning, match=r"2 parts that never communicate \(the first: site 0, site 1\)"
    ):
        run(de_sgld(STEP, parts, draws="agents"))


def test_an_unstable_step_warns_with_the_largest_and_ends_the_run_with_the_site():
    agents = GaussianAgents.linear_regression(SITES.shards, prior_variance=4.0)
    limit = largest_stable_step(agents, "ring")
    with (
        pytest.warns(UserWarning, match=f"largest stable step_size is {limit:.3g}"),
        pytest.raises(consortia.errors.NonFiniteError, match="at site 'site .'"),
    ):
        run(de_sgld(5.0, "ring"), rounds=500)


def test_one_row_a_gradient_warns_that_its_noise_feeds_itself():
    method = de_sgld(0.06, "ring", batch_size=1, draws="agents")
    with pytest.warns(UserWarning, match="minibatch noise feeds itself by the factor"):
        run(method, rounds=2)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(lambda h: de_sgld(h, "ring"), {}, id="plain"),
        pytest.param(lambda h: de_sgld(h, "ring", correction="extra"), {"correction": "extra"}),
        pytest.param(lambda h: de_sgld(h, "ring", batch_size=1), {"batch_size": 1}),
        pytest.param(lambda h: de_sghmc(h, 1.0, "ring"), {"friction": 1.0}, id="momentum"),
        pytest.param(
            lambda h: de_sghmc(h, 1.0, "ring", correction="extra"),
            {"friction": 1.0, "correction": "extra"},
        ),
    ],
)
def test_the_warning_names_the_largest_stable_step(make, options):
    agents = GaussianAgents.linear_regression(SITES.shards, prior_variance=4.0)
    limit = largest_stable_step(agents, "ring", tolerance=1e-3, **options)
    start = {"coefficients": np.zeros(2)}
    assert predict_divergence(make(0.98 * limit), MODEL, SITES, start) is None
    text = predict_divergence(make(1.02 * limit), MODEL, SITES, start)
    named = float(text.split("largest stable step_size is ")[1].split()[0].rstrip(".,"))
    assert named == pytest.approx(limit, rel=0.015)  # it is asked for with a tolerance of 1 %


def test_a_network_too_large_for_its_modes_gets_bounds(monkeypatch):
    monkeypatch.setattr("consortia.theory.stability.MOST_COORDINATES", 1)
    agents = GaussianAgents.linear_regression(SITES.shards, prior_variance=4.0)
    start = {"coefficients": np.zeros(2)}
    for options in ({}, {"correction": "extra"}):
        below, beyond = step_bounds(agents, "ring", **options)
        assert below <= largest_stable_step(agents, "ring", **options) <= beyond
        quiet, loud = (de_sgld(f * beyond, "ring", **options) for f in (0.99, 1.01))
        assert predict_divergence(quiet, MODEL, SITES, start) is None
        text = predict_divergence(loud, MODEL, SITES, start)
        assert f"between {below:.3g} and {beyond:.3g}" in text


def test_nothing_is_said_of_steps_that_vary_and_of_potentials_that_are_not_convex():
    start = {"coefficients": np.zeros(2)}
    assert predict_divergence(de_sgld([5.0] * 9, "ring"), MODEL, SITES, start) is None
    changing = graphs.lost_links(PATH, 0.2, turns=3, seed=0)
    assert predict_divergence(de_sgld(5.0, changing), MODEL, SITES, start) is None
    double_well = consortia.Model(
        lambda p: -jnp.sum((p["coefficients"] ** 2 - 1) ** 2),
        lambda p, rows: 0.0 * rows["y"],
        start,
    )
    assert predict_divergence(de_sgld(5.0, "ring"), double_well, SITES, start) is None


def test_a_method_is_a_value():
    assert de_sgld(STEP, PATH) == de_sgld(STEP, np.asarray(PATH))
    assert hash(de_sghmc(0.1, 2.0, PATH)) == hash(de_sghmc(0.1, 2.0, PATH))
    assert de_sgld(STEP, PATH) != de_sgld(STEP, "ring")
    assert jax.tree.leaves(de_sgld(STEP, PATH)) == [de_sgld(STEP, PATH)]
