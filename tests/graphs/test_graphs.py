"""Graphs, mixing matrices as values, their checks, and the forms in which they are applied."""

from __future__ import annotations

import jax
import networkx
import numpy as np
import pytest
import scipy.sparse

from consortia import graphs
from consortia.engines import exchanges
from tests.refusals import refused

GRAPHS = {
    "complete": graphs.complete(7),
    "ring": graphs.ring(9),
    "path": graphs.path(6),
    "star": graphs.star(8),
    "grid": graphs.grid(3, 4),
    "torus": graphs.torus(3, 5),
    "erdos_renyi": graphs.erdos_renyi(20, 0.3, seed=1),
    "cliques": graphs.cliques(2, 5),
}
KINDS = ("metropolis", "laplacian", "max_degree", "lazy", "identity")


def dense(graph, kind, **options):
    return np.asarray(graphs.mixing_matrix(graph, kind, **options))


# --- graphs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "agents", "edges"),
    [
        ("complete", 7, 21),
        ("ring", 9, 9),
        ("path", 6, 5),
        ("star", 8, 7),
        ("grid", 12, 17),
        ("torus", 15, 30),
        ("cliques", 10, 20),
    ],
)
def test_a_graph_has_the_agents_and_edges_of_its_name(name, agents, edges):
    graph = GRAPHS[name]
    assert list(graph.nodes) == list(range(agents))
    assert graph.number_of_edges() == edges


def test_the_centre_of_a_star_is_agent_0():
    assert graphs.mixing_matrix(graphs.star(5)).neighbours(0).tolist() == [1, 2, 3, 4]


def test_a_grid_is_numbered_row_by_row():
    matrix = graphs.mixing_matrix(graphs.grid(3, 4))
    assert matrix.neighbours(5).tolist() == [1, 4, 6, 9]


def test_a_random_graph_is_the_same_for_the_same_seed_only():
    one, two, other = (graphs.erdos_renyi(30, 0.2, seed=seed) for seed in (3, 3, 4))
    assert set(one.edges) == set(two.edges) != set(other.edges)


def test_a_ring_of_two_is_one_edge():
    assert graphs.ring(2).number_of_edges() == 1


@pytest.mark.parametrize("make", [graphs.complete, graphs.ring, graphs.path, graphs.star])
@pytest.mark.parametrize("wrong", [0, -3, 2.5, "ten"])
def test_a_number_of_agents_that_is_none_is_refused(make, wrong):
    with refused(argument="agents"):
        make(wrong)


# --- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_symmetric_and_doubly_stochastic_on_every_graph(name, kind):
    matrix = dense(GRAPHS[name], kind)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=0), 1.0, rtol=0, atol=1e-15)
    assert matrix.min() >= 0
    linked = networkx.to_numpy_array(GRAPHS[name]) + np.eye(len(matrix)) > 0
    assert not np.any(matrix[~linked])


def test_metropolis_weights_are_those_of_the_degrees():
    expected = np.array([[0.75, 0.25, 0, 0], [0.25, 0.25, 0.25, 0.25], [0] * 4, [0] * 4])
    matrix = dense([(0, 1), (1, 2), (1, 3)], "metropolis", agents=4)
    np.testing.assert_array_equal(matrix[:2], expected[:2])


def test_lazy_weights_leave_no_negative_eigenvalue_where_metropolis_has_one():
    assert graphs.mixing_matrix(GRAPHS["torus"]).smallest_eigenvalue < -0.1
    assert graphs.mixing_matrix(GRAPHS["torus"], "lazy").smallest_eigenvalue > 0


def test_laplacian_weights_are_one_minus_delta_times_the_laplacian():
    laplacian = networkx.laplacian_matrix(GRAPHS["grid"]).toarray()
    np.testing.assert_allclose(
        dense(GRAPHS["grid"], "laplacian", delta=0.2), np.eye(12) - 0.2 * laplacian, atol=1e-15
    )


def test_a_delta_that_makes_an_own_weight_negative_is_refused_with_the_largest():
    with refused(argument="delta"):
        graphs.mixing_matrix(GRAPHS["grid"], "laplacian", delta=0.3)


def test_uniform_weights_are_one_over_n_if_complete_and_a_third_on_a_ring():
    np.testing.assert_array_equal(dense(GRAPHS["complete"], "uniform"), np.full((7, 7), 1 / 7))
    ring = dense(GRAPHS["ring"], "uniform")
    assert set(np.unique(ring)) == {0.0, 1 / 3}


@pytest.mark.parametrize(
    ("graph", "argument", "match"),
    [
        ("ring", "graph", r"\(8\)"),
        ("torus", "graph", r"\(AGENTS\)"),
        ([(0, 1), (2,)], "graph", "a list of pairs of agents' indices"),
        ([("a", "b")], "graph", "a list of pairs of agents' indices"),
    ],
)
def test_what_is_no_graph_is_refused_with_what_to_give(graph, argument, match):
    with refused(argument=argument, match=match):
        graphs.mixing_matrix(graph, agents=8)


def test_uniform_weights_on_an_irregular_graph_are_refused_with_the_agents():
    with refused(argument="kind"):
        graphs.mixing_matrix(GRAPHS["path"], "uniform")


def test_self_loops_repeated_edges_and_edge_attributes_do_not_count():
    plain = graphs.mixing_matrix([(0, 1), (1, 2)], agents=3)
    assert graphs.mixing_matrix([(1, 0), (0, 1), (2, 2), (1, 2)], agents=3) == plain
    weighted = networkx.Graph()
    weighted.add_nodes_from("abc")
    weighted.add_weighted_edges_from([("a", "b", 9.0), ("b", "c", 2.0)])
    assert graphs.mixing_matrix(weighted) == plain


@pytest.mark.parametrize(
    ("make", "argument", "match"),
    [
        (lambda: graphs.mixing_matrix(graphs.ring(4), "fast"), "kind", "'fast'"),
        (lambda: graphs.mixing_matrix(graphs.ring(4), "lazy", delta=0.1), "delta", "delta is for"),
        (lambda: graphs.mixing_matrix(networkx.DiGraph([(0, 1)])), "graph", "directed"),
        (lambda: graphs.mixing_matrix(networkx.Graph()), "graph", "no nodes"),
        (lambda: graphs.mixing_matrix([(0, 1)]), "agents", "agents is missing"),
        (lambda: graphs.mixing_matrix([(0, 3)], agents=3), "graph", r"\(0, 3\)"),
        (lambda: graphs.resolve("ladder", 4), "mixing", "ladder"),
        (lambda: graphs.weights.as_mixing("ladder"), "mixing", "'ladder'"),
        (
            lambda: graphs.weights.as_mixing(np.ones(3)),
            "mixing",
            r"\(3,\).*\(agents, agents\)",
        ),
        (lambda: graphs.weights.as_mixing(object()), "mixing", "mixing is object"),
    ],
)
def test_a_wrong_argument_is_named(make, argument, match):
    with refused(argument=argument, match=match):
        make()


# --- checks of a matrix --------------------------------------------------------------------------


def test_a_row_that_does_not_sum_to_one_is_named():
    matrix = np.full((3, 3), 1 / 3)
    matrix[1, 2] += 0.1
    matrix[2, 2] -= 0.1
    with refused(argument="mixing", match="not doubly stochastic: row 1 sums to 1.1"):
        graphs.MixingMatrix.of(matrix)


def test_a_column_that_does_not_sum_to_one_is_named():
    with refused(argument="mixing", match="not doubly stochastic: column 0 sums to 1.7"):
        graphs.MixingMatrix.of([[0.8, 0.2], [0.9, 0.1]])


@pytest.mark.parametrize("bad", [-0.2, float("nan"), float("inf")])
def test_a_weight_that_is_negative_or_not_finite_is_named(bad):
    with refused(argument="mixing", match=f"agent 1 at agent 0 is {bad:g}"):
        graphs.MixingMatrix.of([[1.2, bad], [bad, 1.2]])


@pytest.mark.parametrize("sparse", [False, True])
def test_a_weight_on_an_edge_that_the_graph_lacks_is_named(sparse):
    matrix = dense(graphs.ring(5), "metropolis")
    given = scipy.sparse.csr_array(matrix) if sparse else matrix
    with refused(argument="mixing", match="agent 0 gives agent 4 the weight 0.33.*no edge"):
        graphs.mixing_matrix(graphs.path(5), given)
    assert graphs.mixing_matrix(graphs.ring(5), matrix) == graphs.mixing_matrix(graphs.ring(5))


def test_a_matrix_of_another_size_than_the_graph_or_the_sites_is_refused():
    matrix = graphs.mixing_matrix(graphs.ring(5))
    with refused(argument="matrix", match="for 5.*has 6"):
        graphs.mixing_matrix(graphs.ring(6), matrix)
    with refused(argument="mixing", match="for 5 agents, there are 3 sites"):
        graphs.resolve(matrix, 3)


# --- as a value ----------------------------------------------------------------------------------


def test_equal_content_is_one_value_however_it_was_given():
    matrix = graphs.mixing_matrix(GRAPHS["grid"])
    array = np.asarray(matrix)
    rows = tuple(map(tuple, array.tolist()))
    others = [array, rows, scipy.sparse.coo_array(array), scipy.sparse.csc_matrix(array)]
    for other in (graphs.MixingMatrix.of(given) for given in others):
        assert other == matrix
        assert hash(other) == hash(matrix)
    assert graphs.mixing_matrix(GRAPHS["grid"], "lazy") != matrix


def test_a_mixing_matrix_cannot_be_changed_through_its_arrays():
    matrix = graphs.mixing_matrix(GRAPHS["grid"])
    with pytest.raises(ValueError, match="read-only"):
        matrix.values[0] = 1.0


def test_a_name_says_the_same_as_the_graph():
    assert graphs.resolve("ring", 9) == graphs.mixing_matrix(GRAPHS["ring"], "uniform")
    assert graphs.resolve("star", 8) == graphs.mixing_matrix(GRAPHS["star"])
    np.testing.assert_array_equal(np.asarray(graphs.resolve("identity", 4)), np.eye(4))


# --- the network ---------------------------------------------------------------------------------


def test_the_spectral_gap_of_a_ring_is_the_known_one():
    matrix = graphs.resolve("ring", 100)
    assert matrix.spectral_gap == pytest.approx(2 / 3 * (1 - np.cos(2 * np.pi / 100)), rel=1e-9)
    assert matrix.smallest_eigenvalue == pytest.approx(-1 / 3)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("kind", ["metropolis", "lazy"])
def test_the_spectral_gap_is_that_of_the_dense_matrix(name, kind, monkeypatch):
    values = np.sort(np.abs(np.linalg.eigvalsh(dense(GRAPHS[name], kind))))
    expected = max(1.0 - values[-2], 0.0)
    matrix = graphs.mixing_matrix(GRAPHS[name], kind)
    assert matrix.spectral_gap == pytest.approx(expected, abs=1e-12)
    # The way of large networks, which computes extreme eigenvalues only.
    monkeypatch.setattr("consortia.graphs.mixing.MOST_EIGENVALUES", 1)
    iterated = graphs.mixing_matrix(GRAPHS[name], kind)
    assert iterated.spectral_gap == pytest.approx(expected, abs=1e-9)
    assert iterated.smallest_eigenvalue == pytest.approx(matrix.smallest_eigenvalue, abs=1e-9)


def test_a_network_in_two_parts_has_no_gap():
    matrix = graphs.mixing_matrix(GRAPHS["cliques"])
    assert matrix.components == 2
    assert matrix.component_of.tolist() == [0] * 5 + [1] * 5
    assert matrix.spectral_gap == 0


def test_a_directed_ring_is_doubly_stochastic_and_not_symmetric():
    matrix = graphs.MixingMatrix.of((np.eye(5) + np.roll(np.eye(5), 1, axis=1)) / 2)
    assert not matrix.symmetric
    assert matrix.spectral_gap == pytest.approx(1 - np.cos(np.pi / 5))


# --- forms ---------------------------------------------------------------------------------------

FORMS = {
    "roll": graphs.mixing_matrix(graphs.ring(300)),
    "mean": graphs.mixing_matrix(graphs.complete(30)),
    "dense": graphs.mixing_matrix(graphs.erdos_renyi(40, 0.3, seed=0)),
    "slots": graphs.mixing_matrix(graphs.torus(12, 11)),
    "edges": graphs.mixing_matrix(graphs.star(200)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(), (2,), (3, 2)])
@pytest.mark.usefixtures("x64")
def test_every_form_gives_the_product_with_the_dense_matrix(form, shape):
    matrix = FORMS[form]
    assert matrix.form == form
    values = np.random.default_rng(0).normal(size=(matrix.agents, *shape)) + 3.0
    product = np.tensordot(np.asarray(matrix), values, axes=1)
    mixed = jax.jit(lambda values: exchanges.mixed(matrix, values))(values)
    np.testing.assert_allclose(mixed, product, rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_where_all_agents_agree_mixing_changes_nothing_at_all(form):
    # 0.9 is not a number of single precision, and sums of it round.
    matrix = FORMS[form]
    values = np.full((matrix.agents, 2), 0.9, np.float32)
    assert not np.asarray(exchanges.changed(matrix, values)).any()
    np.testing.assert_array_equal(exchanges.mixed(matrix, values), values)


def test_a_lazy_complete_network_is_applied_as_a_mean_too():
    matrix = graphs.mixing_matrix(graphs.complete(30), "lazy")
    assert matrix.form == "mean"
    values = np.arange(30.0, dtype=np.float32)
    # single precision on numbers up to 30
    np.testing.assert_allclose(
        exchanges.mixed(matrix, values), np.asarray(matrix) @ values, atol=2e-5
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_sum_over_the_agents_does_not_drift_in_single_precision(form):
    # With plain weights Σ_j W_ij x_j the rounding of 1/3 alone would add 3e-8 of 1,000 in each of
    # 3,000 multiplications, 0.09 in all; differences leave the rounding of the result, which is
    # random: half a unit in the last place of 1,000 (3e-5) times sqrt(3,000 / agents).
    import jax

    matrix = FORMS[form]
    values = np.float32(1000) + np.random.default_rng(1).normal(size=matrix.agents)
    values = values.astype(np.float32)
    many = jax.jit(lambda x: jax.lax.fori_loop(0, 3000, lambda _, y: exchanges.mixed(matrix, y), x))
    drift = np.mean(np.asarray(many(values), np.float64)) - np.mean(values.astype(np.float64))
    assert abs(drift) < 2e-3


@pytest.mark.parametrize("form", ["roll", "slots", "edges"])
def test_no_array_of_agents_times_agents_is_made(form):
    import jax

    matrix = FORMS[form]
    text = str(jax.make_jaxpr(lambda x: exchanges.mixed(matrix, x))(np.zeros((matrix.agents, 2))))
    sizes = [
        int(np.prod([int(n) for n in part.split("]")[0].split(",") if n.isdigit()]))
        for part in text.split("[")[1:]
    ]
    assert max(sizes) <= 8 * matrix.agents < matrix.agents**2


def test_the_plan_text_says_how_the_matrix_is_applied():
    from consortia.core.contract import Mix

    assert exchanges.describe(Mix("ring"), 300) == (
        "300 agents, 300 edges; W applied as 3 shifts of the agents; spectral gap 0.000146"
    )
    assert "never communicate" in exchanges.describe(
        Mix(graphs.mixing_matrix(graphs.cliques(2, 5))), 10
    )
    assert exchanges.describe(None, 5) is None


def test_messages_are_counted_along_every_link():
    from consortia.core.contract import Mix

    rows = tuple(map(tuple, np.asarray(graphs.resolve("path", 4)).tolist()))
    assert exchanges.communication(Mix(rows, times=2), 8, 0, 4) == (2, 2 * 6 * 8, 0)


# --- networks that change ------------------------------------------------------------------------


def test_a_lost_link_gives_its_weight_to_both_of_its_ends():
    matrix = graphs.mixing_matrix(graphs.grid(4, 5))
    schedule = graphs.lost_links(matrix, 0.3, turns=40, seed=2)
    whole = np.asarray(matrix)
    off = ~np.eye(20, dtype=bool)
    lost = 0
    for turn in schedule.matrices:
        now = np.asarray(turn)
        np.testing.assert_array_equal(now, now.T)
        assert np.all((now == whole)[off] | (now[off] == 0))
        lost += np.count_nonzero(now[off] != whole[off])
    # 31 edges, 40 turns: 372 losses expected, standard deviation 16; five of them.
    assert abs(lost / 2 - 0.3 * 31 * 40) < 80


def test_the_losses_are_those_of_the_seed():
    matrix = graphs.mixing_matrix(graphs.ring(9))
    one, two, other = (graphs.lost_links(matrix, 0.4, turns=6, seed=s) for s in (1, 1, 2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != other
    assert graphs.lost_links(matrix, 0.0, turns=2, seed=0).matrices == (matrix, matrix)


def test_a_schedule_is_connected_when_its_turns_are_together():
    halves = [graphs.mixing_matrix(pairs, agents=4) for pairs in ([(0, 1), (2, 3)], [(1, 2)])]
    schedule = graphs.MixingSchedule(halves)
    assert [matrix.components for matrix in halves] == [2, 3]
    assert schedule.components == 1
    assert schedule.links == 3
    with refused(argument="mixing", match="only one can be used here"):
        graphs.resolve(schedule, 4)


@pytest.mark.usefixtures("x64")
def test_the_turn_in_the_outbox_chooses_the_matrix():
    from consortia.core.contract import InTurn, Mix

    schedule = graphs.lost_links(graphs.mixing_matrix(graphs.torus(3, 4)), 0.5, turns=5, seed=0)
    values = np.random.default_rng(0).normal(size=(12, 3, 2))
    weights = np.full(12, 1 / 12)
    for turn in range(5):
        outbox = InTurn(values, np.full((12, 3), turn, np.int32))
        inbox = exchanges.message_of(Mix(schedule), outbox, weights)
        expected = np.tensordot(np.asarray(schedule.matrices[turn]), values, axes=1)
        np.testing.assert_allclose(inbox.value, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "argument", "match"),
    [
        (
            lambda w: graphs.lost_links(w, 1.0, turns=3, seed=0),
            "probability",
            "no link would ever hold",
        ),
        (lambda w: graphs.lost_links(w, 0.1, turns=0, seed=0), "turns", None),
        (lambda w: graphs.MixingSchedule([]), "matrices", "matrices is empty"),
        (lambda w: graphs.MixingSchedule([w, np.eye(3)]), "matrices", r"for \[3.*5"),
    ],
)
def test_a_wrong_schedule_is_refused(make, argument, match):
    with refused(argument=argument, match=match):
        make(graphs.mixing_matrix(graphs.ring(5)))


# --- what a run says of its network --------------------------------------------------------------


def tree_of(agents):
    import xarray

    def group(array, dims):
        return xarray.Dataset({"theta": (dims, array)})

    dims = ("chain", "draw", "agent", "theta_dim_0")
    posterior = group(agents.mean(axis=2), ("chain", "draw", "theta_dim_0"))
    return xarray.DataTree.from_dict({"/posterior": posterior, "/agents": group(agents, dims)})


def test_disagreement_is_the_root_mean_square_distance_from_the_average():
    agents = np.random.default_rng(0).normal(size=(2, 7, 5, 3))
    found = graphs.disagreement(tree_of(agents))
    assert found.dims == ("chain", "draw")
    centred = agents - agents.mean(axis=2, keepdims=True)
    np.testing.assert_allclose(found, np.sqrt((centred**2).sum(axis=(2, 3)) / 5))


def test_the_error_of_an_agent_is_its_distance_to_the_law():
    agents = np.random.default_rng(0).normal(size=(4, 5000, 3, 2))
    agents[:, :, 1] += 3
    agents[:, :, 2] *= 2
    errors = graphs.agent_errors(tree_of(agents), np.zeros(2), np.eye(2))
    # W₂ of N(0, I) to itself, of a mean that is 3 off in both coordinates, of twice the spread;
    # 20,000 draws leave about .01.
    np.testing.assert_allclose(errors, [0.0, 3 * np.sqrt(2), np.sqrt(2)], atol=0.03)


def test_a_run_without_the_agents_series_is_refused_with_the_remedy():
    import xarray

    tree = xarray.DataTree.from_dict({"/posterior": xarray.Dataset()})
    with refused(argument="draws"):
        graphs.disagreement(tree)


@pytest.mark.parametrize("graph", [graphs.ring(8), graphs.grid(3, 3), graphs.cliques(2, 3)])
def test_the_picture_has_a_coloured_point_for_each_agent_and_a_line_for_each_edge(graph):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    matrix = graphs.mixing_matrix(graph)
    values = np.arange(float(matrix.agents))
    axes = graphs.picture(matrix, values, label="error")
    lines, points = axes.collections
    assert len(lines.get_segments()) == graph.number_of_edges()
    np.testing.assert_array_equal(points.get_array(), values)
    assert axes.figure.axes[-1].get_ylabel() == "error"
    plt.close(axes.figure)
    with refused(argument="values"):
        graphs.picture(matrix, values[1:])
