"""Predictive averages against a direct loop, and scores against scikit-learn and by hand."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from scipy.special import logsumexp
from sklearn import metrics

import consortia
from consortia import diagnostics
from consortia.core.model import Model
from consortia.errors import InputError
from tests.refusals import refused

CHAINS, DRAWS, FEATURES, CLASSES, ROWS = 2, 7, 3, 4, 11


def logits(params, batch):
    return batch["x"] @ params["weights"].T + params["layer"]["bias"]


def log_likelihood(params, batch):
    log_probabilities = jax.nn.log_softmax(logits(params, batch))
    return jnp.take_along_axis(log_probabilities, batch["y"][:, None], axis=1)[:, 0]


MODEL = Model(
    log_prior=None,
    log_likelihood=log_likelihood,
    init={
        "weights": np.zeros((CLASSES, FEATURES), np.float32),
        "layer": {"bias": np.zeros((), np.float32)},
    },
    predict=lambda params, batch: jax.nn.softmax(logits(params, batch)),
)


def rows(count: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "x": rng.normal(size=(count, FEATURES)).astype(np.float32),
        "y": rng.integers(0, CLASSES, size=count).astype(np.int32),
    }


def result(weights: np.ndarray | None = None) -> xarray.DataTree:
    rng = np.random.default_rng(2)
    sample = ("chain", "draw")
    posterior = xarray.Dataset(
        {
            "layer.bias": (sample, rng.normal(size=(CHAINS, DRAWS))),
            "weights": (
                (*sample, "class", "feature"),
                rng.normal(size=(CHAINS, DRAWS, CLASSES, FEATURES)),
            ),
        }
    )
    groups = {"/posterior": posterior}
    if weights is not None:
        groups["/sample_stats"] = xarray.Dataset({"weight": ("draw", weights)})
    return xarray.DataTree.from_dict(groups)


def in_a_loop(tree: xarray.DataTree, function, batch) -> np.ndarray:
    """(chain, draw, row, ...) of the function at every draw, one call each."""
    posterior = tree["posterior"]
    found = []
    for chain in range(CHAINS):
        for draw in range(DRAWS):
            one = posterior.isel(chain=chain, draw=draw)
            params = {
                "weights": jnp.asarray(one["weights"].values, dtype=jnp.float32),
                "layer": {"bias": jnp.asarray(one["layer.bias"].values, dtype=jnp.float32)},
            }
            found.append(np.asarray(function(params, batch), dtype=np.float64))
    return np.stack(found).reshape(CHAINS, DRAWS, *found[0].shape)


# Single precision sums of 14 terms: a few units of 6e-8 each.
CLOSE = {"rtol": 2e-6, "atol": 1e-7}


def test_predict_is_the_mean_over_all_chains_and_draws():
    expected = in_a_loop(result(), MODEL.predict, rows()).mean(axis=(0, 1))
    found = diagnostics.predict(result(), MODEL, rows())
    assert found.dims == ("row", "class")
    assert (found.attrs["draws"], found.attrs["weights"]) == (14, "equal")
    np.testing.assert_allclose(found.values, expected, **CLOSE)


@pytest.mark.parametrize("batch_rows", [1, 3, 4, 11, 100])
def test_blocks_of_rows_change_nothing(batch_rows):
    found = diagnostics.predict(result(), MODEL, rows(), batch_rows=batch_rows)
    np.testing.assert_allclose(found, diagnostics.predict(result(), MODEL, rows()), **CLOSE)


@pytest.mark.parametrize("numbers", [1, 13 * 4, 13 * 5])
def test_blocks_of_draws_change_nothing(numbers, monkeypatch):
    expected = diagnostics.predict(result(), MODEL, rows())
    density = diagnostics.log_predictive_density(result(), MODEL, rows())
    monkeypatch.setattr("consortia.diagnostics.predictive.BLOCK_VALUES", numbers)
    np.testing.assert_allclose(diagnostics.predict(result(), MODEL, rows()), expected, **CLOSE)
    np.testing.assert_allclose(
        diagnostics.log_predictive_density(result(), MODEL, rows()), density, **CLOSE
    )


def test_step_weights_weigh_every_chain_alike():
    weights = np.linspace(1.0, 0.1, DRAWS)
    each = in_a_loop(result(), MODEL.predict, rows())
    expected = np.einsum("s,cs...->...", weights, each) / (CHAINS * weights.sum())
    found = diagnostics.predict(result(weights), MODEL, rows())
    assert found.attrs["weights"] == "step sizes"
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_max_draws_takes_evenly_spaced_draws_of_the_pooled_chains():
    each = in_a_loop(result(), MODEL.predict, rows()).reshape(CHAINS * DRAWS, ROWS, CLASSES)
    found = diagnostics.predict(result(), MODEL, rows(), max_draws=2)
    assert found.attrs["draws"] == 2
    np.testing.assert_allclose(found, each[[3, 10]].mean(axis=0), **CLOSE)


def test_draws_of_another_model_are_refused_also_where_they_hold_more_than_it_has():
    smaller = dataclasses.replace(MODEL, init={"weights": MODEL.init["weights"]})
    with refused(argument="posterior", match=r"layer\.bias, .* weights"):
        diagnostics.predict(result(), smaller, rows())
    larger = dataclasses.replace(MODEL, init=MODEL.init | {"more": np.zeros(2, np.float32)})
    with refused(argument="posterior", match="'more'"):
        diagnostics.predict(result(), larger, rows())


def test_log_predictive_density_is_the_log_of_the_mean_density():
    each = in_a_loop(result(), MODEL.log_likelihood, rows())
    expected = logsumexp(each, axis=(0, 1)) - np.log(CHAINS * DRAWS)
    found = diagnostics.log_predictive_density(result(), MODEL, rows())
    assert found.dims == ("row",)
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_weighted_log_predictive_density_leaves_out_draws_of_weight_zero():
    weights = np.array([0.0, 2.0, 1.0, 0.0, 0.5, 1.0, 0.25])
    each = in_a_loop(result(), MODEL.log_likelihood, rows())
    share = np.broadcast_to(weights[:, None] / (CHAINS * weights.sum()), each.shape)
    expected = logsumexp(each, axis=(0, 1), b=share)
    found = diagnostics.log_predictive_density(result(weights), MODEL, rows())
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_log_predictive_density_does_not_underflow():
    far = Model(None, lambda params, batch: -1e4 - batch["x"] * params, init=np.zeros(()))
    tree = {"theta": np.ones((1, 3))}
    found = diagnostics.log_predictive_density(tree, far, {"x": np.ones(2, np.float32)})
    np.testing.assert_allclose(found, -10001, rtol=1e-6)


def test_a_bare_parameter_and_an_init_function_predict_a_mean_per_row():
    model = Model(
        None,
        lambda params, batch: batch["x"] @ params,
        init=lambda key: jax.random.normal(key, (FEATURES,)),
        predict=lambda params, batch: batch["x"] @ params,
    )
    draws = np.random.default_rng(0).normal(size=(2, 5, FEATURES)).astype(np.float32)
    found = diagnostics.predict({"theta": draws}, model, rows())
    assert found.dims == ("row",)
    np.testing.assert_allclose(found, rows()["x"] @ draws.mean(axis=(0, 1)), rtol=1e-5, atol=1e-6)


def test_the_mean_of_many_draws_that_are_sure_is_one_in_single_precision():
    # A plain sum of 3,000 shares of one third of a thousandth ends 2e-5 away from one.
    posterior = xarray.Dataset({"theta": (("chain", "draw"), np.zeros((1, 3000)))})
    model = Model(
        None,
        lambda theta, batch: 0.0 * batch,
        np.zeros((), np.float32),
        predict=lambda theta, batch: jnp.ones((len(batch), 2), jnp.float32) * jnp.exp(theta),
    )
    tree = xarray.DataTree.from_dict({"/posterior": posterior})
    found = diagnostics.predict(tree, model, np.zeros(3, np.float32))
    np.testing.assert_allclose(found, 1.0, rtol=0, atol=2e-7)


def test_predict_works_in_double_precision(x64):
    model = dataclasses.replace(
        MODEL, predict=lambda params, batch: params["weights"][:1] * batch["x"]
    )
    batch = {"x": np.random.default_rng(0).normal(size=(ROWS, FEATURES))}
    expected = batch["x"] * result()["posterior"]["weights"].values[:, :, 0].mean(axis=(0, 1))
    np.testing.assert_allclose(diagnostics.predict(result(), model, batch), expected, rtol=1e-13)


def test_a_second_prediction_with_the_same_model_compiles_nothing():
    diagnostics.predict(result(), MODEL, rows())
    traced = []
    model = dataclasses.replace(MODEL, predict=lambda p, b: traced.append(1) or logits(p, b))
    diagnostics.predict(result(), model, rows())
    first = len(traced)
    diagnostics.predict(result(np.linspace(1, 2, DRAWS)), model, rows())
    # The shape check traces; the compiled scan must not, and it traces twice when it is new.
    assert len(traced) - first < first


def test_a_model_without_predict_is_refused_with_its_remedy():
    with refused(argument="model", match="is None"):
        diagnostics.predict(result(), dataclasses.replace(MODEL, predict=None), rows())


def test_bad_rows_and_options_are_refused():
    with refused(argument="new_rows", match="have 3.*5"):
        diagnostics.predict(result(), MODEL, {"x": np.ones((3, 3)), "y": np.ones(5)})
    for argument in ("batch_rows", "max_draws"):
        with pytest.raises(InputError) as caught:
            diagnostics.predict(result(), MODEL, rows(), **{argument: 0})
        assert caught.value.argument == argument


def test_a_prediction_that_is_not_one_entry_a_row_is_refused():
    model = dataclasses.replace(MODEL, predict=lambda p, b: jnp.sum(logits(p, b), axis=0))
    with refused(argument="model", match=r"\(4,\).*for 11"):
        diagnostics.predict(result(), model, rows())


# --- scores --------------------------------------------------------------------------------------


def probabilities(count: int = 500, classes: int = CLASSES) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    table = rng.dirichlet(np.full(classes, 0.7), size=count)
    return table, np.array([rng.choice(classes, p=row) for row in table])


def test_scores_equal_scikit_learn():
    table, labels = probabilities()
    found = diagnostics.scores(table, labels)
    classes = np.arange(CLASSES)
    assert found["accuracy"] == metrics.accuracy_score(labels, table.argmax(axis=1))
    assert found["brier"] == pytest.approx(
        np.mean([np.sum((row - (classes == y)) ** 2) for row, y in zip(table, labels, strict=True)])
    )
    nll = metrics.log_loss(labels, table, normalize=False, labels=classes)
    assert found["nll"] == pytest.approx(nll)
    assert found["nll_per_row"] == pytest.approx(nll / 500)
    assert found["ece"] == diagnostics.expected_calibration_error(table, labels)


def test_brier_with_two_classes_is_twice_the_binary_score():
    table, labels = probabilities(classes=2)
    binary = metrics.brier_score_loss(labels, table[:, 1])
    assert diagnostics.brier(table, labels) == pytest.approx(2 * binary)
    assert diagnostics.brier(table[:, 1], labels) == pytest.approx(2 * binary)


def test_scores_by_hand():
    table = np.array([[0.5, 0.5, 0.0], [0.2, 0.7, 0.1]])
    assert diagnostics.accuracy(table, [1, 1]) == 0.5  # the first class wins the tie
    assert diagnostics.brier(table, [0, 2]) == pytest.approx((0.5 + 0.04 + 0.49 + 0.81) / 2)
    assert diagnostics.negative_log_likelihood(table, [0, 2]) == pytest.approx(-np.log(0.05))


def test_calibration_error_by_hand():
    # Bins of width 1/5: two rows of confidence .5 and .6 in (.4, .6], one of .9 in (.8, 1].
    table = np.array([[0.5, 0.5], [0.4, 0.6], [0.9, 0.1]])
    labels = [0, 0, 0]
    confidence, observed, share = diagnostics.calibration_curve(table, labels, bins=5)
    np.testing.assert_allclose(confidence, [np.nan, np.nan, 0.55, np.nan, 0.9])
    np.testing.assert_allclose(observed, [np.nan, np.nan, 0.5, np.nan, 1.0])
    np.testing.assert_allclose(share, [0, 0, 2 / 3, 0, 1 / 3])
    expected = 2 / 3 * 0.05 + 1 / 3 * 0.1
    found = diagnostics.expected_calibration_error(table, labels, bins=5)
    assert found == pytest.approx(expected)


def test_a_certain_prediction_lies_in_the_last_bin():
    _, _, share = diagnostics.calibration_curve([[1.0, 0.0]], [0])
    assert share.tolist() == [0.0] * 14 + [1.0]


def test_calibration_error_of_calibrated_probabilities_is_small_and_of_sharpened_ones_is_not():
    rng = np.random.default_rng(0)
    chance = rng.uniform(size=20_000)
    labels = rng.uniform(size=20_000) < chance
    # 15 bins of ≥ 1,000 rows: each |difference| is about .4·√(1/1300)·.8, so .009 in all.
    assert diagnostics.expected_calibration_error(chance, labels.astype(int)) < 0.02
    sharp = chance**3 / (chance**3 + (1 - chance) ** 3)
    assert diagnostics.expected_calibration_error(sharp, labels.astype(int)) > 0.05


def test_a_zero_probability_costs_a_finite_documented_amount():
    found = diagnostics.negative_log_likelihood([[1.0, 0.0]], [1])
    assert found == pytest.approx(-np.log(np.finfo(np.float32).tiny))
    assert diagnostics.negative_log_likelihood([[1.0, 0.0]], [1], smallest=1e-3) == pytest.approx(
        -np.log(1e-3)
    )


def test_the_smallest_single_precision_probability_is_not_clipped():
    tiny = 2e-38
    assert diagnostics.negative_log_likelihood([[1.0, tiny]], [1]) == pytest.approx(-np.log(tiny))


def test_scores_take_what_predict_returns():
    found = diagnostics.scores(diagnostics.predict(result(), MODEL, rows()), rows()["y"])
    assert set(found) == {"accuracy", "brier", "ece", "nll", "nll_per_row"}


def test_rmse_by_hand():
    assert diagnostics.rmse([1.0, 2.0, 3.0], [1.0, 2.0, 6.0]) == pytest.approx(np.sqrt(3))
    with refused(argument="predicted"):
        diagnostics.rmse([1.0, 2.0], [[1.0], [2.0]])


@pytest.mark.parametrize(
    ("table", "labels", "argument", "match"),
    [
        ([[0.5, 0.5]], [2], "labels", "between 2.*and 2"),
        ([[0.5, 0.5]], [0.5], "labels", "labels lie"),
        ([[0.5, 0.5]], [0, 1], "probabilities", "one label per row"),
        ([[3.0, -2.0]], [0], "probabilities", "not logits"),
        ([[np.nan, 0.5]], [0], "probabilities", "not finite"),
    ],
)
def test_bad_probabilities_and_labels_are_refused(table, labels, argument, match):
    with refused(argument=argument, match=match):
        diagnostics.accuracy(table, labels)


@pytest.mark.parametrize("family", ["bernoulli", "poisson", "gaussian", "categorical"])
def test_numpy_and_jax_average_the_same_predictions_of_a_formula(family):
    rng = np.random.default_rng(0)
    draws = {"gaussian": rng.normal, "poisson": rng.poisson}
    tables = {}
    for site in ("a", "b"):
        words = {"bernoulli": ["no", "yes"], "categorical": ["u", "v", "w"]}.get(family)
        y = rng.choice(words, 60) if words else draws[family](2.0, size=60)
        tables[site] = {"x": rng.normal(size=60), "group": rng.choice(["s", "t"], 60), "y": y}
    made = consortia.regression("y ~ x + group", tables, family=family)
    shapes = {name: np.shape(value) for name, value in made.model.init.items()}
    sampled = {name: rng.normal(0, 0.3, (2, 50, *shape)) for name, shape in shapes.items()}
    rows = {name: np.asarray(values) for name, values in made.sites.site("a").items()}
    compiled = dataclasses.replace(made.model, host=None)
    for function in (diagnostics.predict, diagnostics.log_predictive_density):
        numpy, other = (function(sampled, one, rows) for one in (made.model, compiled))
        assert numpy.dims == other.dims
        np.testing.assert_allclose(numpy, other, atol=1e-5)
