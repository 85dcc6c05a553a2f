"""R-hat and ESS against arviz-stats, and every way in which they are not available."""

from __future__ import annotations

import numpy as np
import pytest
import xarray
from arviz_stats.base import array_stats

from consortia.diagnostics import Convergence, add_diagnostics, convergence, rhat_and_ess
from consortia.diagnostics.convergence import RUN_VALUES, error_of_mean
from tests.refusals import refused


def autoregressive(chains: int, draws: int, dimension: int, correlation: float) -> np.ndarray:
    rng = np.random.default_rng(7)
    noise = rng.normal(size=(chains, draws, dimension))
    noise[:, 1:] *= np.sqrt(1 - correlation**2)
    for draw in range(1, draws):
        noise[:, draw] += correlation * noise[:, draw - 1]
    return noise


def by_arviz(draws: np.ndarray) -> dict[str, np.ndarray]:
    axes = {"chain_axis": 0, "draw_axis": 1}
    return {
        "r_hat": array_stats.rhat(draws, **axes),
        "ess_bulk": array_stats.ess(draws, method="bulk", **axes),
        "ess_tail": array_stats.ess(draws, method="tail", prob=(0.05, 0.95), **axes),
    }


def assert_equals_arviz(draws: np.ndarray) -> None:
    found = convergence({"theta": draws}, max_coordinates="all")
    for name, expected in by_arviz(draws).items():
        # Two orders of summation in double precision; the pairs of the ESS are sums of ~10³ terms.
        np.testing.assert_allclose(getattr(found, name)["theta"], expected, rtol=1e-10)


@pytest.mark.parametrize("chains", [2, 4])
@pytest.mark.parametrize("draws", [4, 5, 6, 7, 8, 9, 13, 100, 101, 400])
@pytest.mark.parametrize("correlation", [-0.6, 0.0, 0.95])
def test_numbers_equal_arviz_for_every_length_and_correlation(chains, draws, correlation):
    assert_equals_arviz(autoregressive(chains, draws, 5, correlation))


@pytest.mark.parametrize("draws", [254, 255, 256, 257, 258, 1001])  # halves around LAGS, 128
def test_numbers_equal_arviz_where_some_sums_go_past_the_first_lags(draws):
    each = [autoregressive(2, draws, 2, correlation) for correlation in (0.0, 0.999, -0.6)]
    assert_equals_arviz(np.concatenate(each, axis=2))


def test_numbers_equal_arviz_when_draws_repeat_as_after_rejections():
    draws = np.repeat(autoregressive(4, 60, 6, 0.5), 5, axis=1)
    assert_equals_arviz(np.round(draws, 1))


def test_numbers_equal_arviz_for_chains_that_disagree():
    draws = autoregressive(4, 200, 3, 0.5)
    draws[0] += 3
    draws[:, :, 1] *= np.array([1, 1, 1, 9])[:, None]
    found = convergence({"theta": draws})
    assert_equals_arviz(draws)
    assert (found.r_hat["theta"] > 1.1).all()


def test_ess_of_one_chain_equals_arviz():
    draws = autoregressive(1, 41, 4, 0.3)
    found, expected = convergence({"theta": draws}), by_arviz(np.repeat(draws, 1, axis=0))
    np.testing.assert_allclose(found.ess_bulk["theta"], expected["ess_bulk"], rtol=1e-10)
    np.testing.assert_allclose(found.ess_tail["theta"], expected["ess_tail"], rtol=1e-10)


def test_blocks_of_coordinates_change_nothing(monkeypatch):
    draws = autoregressive(2, 50, 7, 0.5)
    whole = convergence({"theta": draws})
    # `consortia.diagnostics.convergence` is the function; its module is reached by its globals.
    monkeypatch.setitem(convergence.__globals__, "BLOCK_VALUES", 250)
    parts = convergence({"theta": draws})
    np.testing.assert_array_equal(parts.r_hat["theta"], whole.r_hat["theta"])
    np.testing.assert_array_equal(parts.ess_tail["theta"], whole.ess_tail["theta"])


def test_single_precision_draws_are_judged_in_double():
    draws = autoregressive(2, 300, 2, 0.9).astype(np.float32)
    assert_equals_arviz(draws.astype(np.float64))
    narrow, wide = convergence({"t": draws}), convergence({"t": draws.astype(np.float64)})
    np.testing.assert_array_equal(narrow.ess_bulk["t"], wide.ess_bulk["t"])


def test_scalars_and_matrices_keep_their_shapes():
    rng = np.random.default_rng(0)
    found = convergence(
        {"scale": rng.normal(size=(2, 50)), "weights": rng.normal(size=(2, 50, 3, 2))}
    )
    assert found.r_hat["scale"].shape == ()
    assert found.ess_reason["weights"].shape == (3, 2)
    assert (found.computed, found.coordinates) == (7, 7)


# --- not available -------------------------------------------------------------------------------


def reasons(draws: np.ndarray, **options) -> tuple[Convergence, str, str]:
    found = convergence({"theta": draws}, **options)
    return found, str(found.r_hat_reason["theta"][0]), str(found.ess_reason["theta"][0])


def test_one_chain_has_ess_but_no_rhat_and_says_why():
    found, r_hat, ess = reasons(autoregressive(1, 100, 3, 0.5))
    assert (r_hat, ess) == ("1 chain", "")
    assert np.isnan(found.r_hat["theta"]).all()
    assert np.isfinite(found.ess_bulk["theta"]).all()
    assert found.notes() == ["R-hat not available: 1 chain"]


def test_halves_give_one_chain_the_rhat_of_its_two_halves():
    draws = autoregressive(1, 100, 3, 0.5)
    found, r_hat, _ = reasons(draws, between="halves")
    assert r_hat == ""
    halves = np.concatenate([draws[:, :50], draws[:, 50:]])
    # The rank-normalised statistic of two chains without another split, by arviz-stats' pieces.
    z_scaled = array_stats.rhat(_normal_scores(halves), 0, 1, method="identity")
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    z_folded = array_stats.rhat(_normal_scores(folded), 0, 1, method="identity")
    np.testing.assert_allclose(found.r_hat["theta"], np.maximum(z_scaled, z_folded), rtol=1e-10)


def _normal_scores(draws: np.ndarray) -> np.ndarray:
    from scipy import stats

    flat = draws.reshape(-1, draws.shape[-1])
    rank = stats.rankdata(flat, axis=0)
    return stats.norm.ppf((rank - 0.375) / (len(flat) + 0.25)).reshape(draws.shape)


def test_halves_and_chains_agree_when_there_are_several_chains():
    draws = autoregressive(3, 100, 2, 0.5)
    chains = convergence({"t": draws}, between="chains")
    halves = convergence({"t": draws}, between="halves")
    np.testing.assert_array_equal(chains.r_hat["t"], halves.r_hat["t"])


@pytest.mark.parametrize(("draws", "text"), [(0, "0 draws"), (1, "1 draw;"), (3, "3 draws")])
def test_fewer_than_four_draws_are_not_judged(draws, text):
    found, r_hat, ess = reasons(np.random.default_rng(0).normal(size=(4, draws, 2)))
    assert r_hat == ess
    assert r_hat.startswith(text)
    assert r_hat.endswith("at least 4 are needed")
    assert np.isnan(found.ess_tail["theta"]).all()


def test_constant_draws_are_named_and_leave_the_others_alone():
    draws = autoregressive(4, 50, 3, 0.2)
    expected = convergence({"theta": draws[..., 1:]})
    draws[..., 0] = 2.5
    found, r_hat, ess = reasons(draws)
    assert r_hat == ess == "constant draws"
    np.testing.assert_array_equal(found.r_hat["theta"][1:], expected.r_hat["theta"])
    assert found.notes() == ["R-hat and ESS not available: constant draws (1 of 3 coordinates)"]


def test_draws_that_move_only_in_the_middle_draw_left_out_are_constant():
    draws = np.ones((2, 5, 1))
    draws[:, 2] = 7
    assert reasons(draws)[1] == "constant draws"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_draws_are_named(value):
    draws = autoregressive(2, 50, 2, 0.2)
    draws[1, 7, 0] = value
    found, r_hat, ess = reasons(draws)
    assert r_hat == ess == "non-finite draws"
    assert np.isfinite(found.r_hat["theta"][1])


def test_chains_that_stand_still_at_different_places_have_infinite_rhat():
    draws = np.arange(3.0)[:, None, None] * np.ones((3, 20, 1))
    assert convergence({"theta": draws}).r_hat["theta"][0] == np.inf


def test_two_values_in_equal_numbers_give_finite_numbers():
    draws = np.random.default_rng(0).permuted(np.tile([0.0, 1.0], (4, 50)), axis=1)[..., None]
    found = convergence({"theta": draws})
    assert np.isfinite(found.r_hat["theta"][0])
    assert np.isfinite(found.ess_tail["theta"][0])


def test_huge_draws_raise_no_warning():
    draws = np.clip(autoregressive(2, 20, 1, 0.0), -1.7, 1.7) * 1e308
    assert reasons(draws)[1] == ""


def test_a_bare_number_of_axes_is_refused_with_its_remedy():
    with refused(argument="posterior", match=r"'theta'.*\(9,\)"):
        convergence({"theta": np.zeros(9)})


def test_unknown_options_are_refused():
    with refused(argument="between"):
        convergence({"theta": np.zeros((1, 9))}, between="sites")
    with refused(argument="max_coordinates"):
        convergence({"theta": np.zeros((1, 9))}, max_coordinates=-1)


# --- bounded cost --------------------------------------------------------------------------------


def test_a_subset_is_counted_spread_out_and_equal_to_the_full_numbers():
    draws = autoregressive(2, 30, 100, 0.3)
    some = convergence({"theta": draws}, max_coordinates=4)
    full = convergence({"theta": draws}, max_coordinates="all")
    picked = np.flatnonzero(np.isfinite(some.r_hat["theta"]))
    assert picked.tolist() == [12, 37, 62, 87]
    np.testing.assert_array_equal(some.r_hat["theta"][picked], full.r_hat["theta"][picked])
    assert some.notes() == ["R-hat and ESS: computed for 4 of 100 coordinates"]
    assert some.r_hat_reason["theta"][0] == "not among the 4 of 100 coordinates that were checked"


def test_every_variable_has_one_coordinate_at_least_in_a_subset():
    rng = np.random.default_rng(0)
    arrays = {"bias": rng.normal(size=(2, 20, 2)), "weights": rng.normal(size=(2, 20, 998))}
    found = convergence(arrays, max_coordinates=10)
    assert np.isfinite(found.r_hat["bias"]).sum() == 1
    assert np.isfinite(found.r_hat["weights"]).sum() == 9


def test_the_automatic_subset_follows_from_the_sizes_alone():
    draws = np.broadcast_to(np.random.default_rng(0).normal(size=(2, 64, 1)), (2, 64, 8000))
    found = convergence({"theta": draws})
    assert found.computed == RUN_VALUES // 128
    assert convergence({"theta": draws[..., :100]}).computed == 100


def test_very_long_chains_have_one_coordinate_at_least():
    draws = np.random.default_rng(0).normal(size=(1, RUN_VALUES + 1, 2))
    assert convergence({"theta": draws}).computed == 1


# --- for a stopping rule, in a tree, of the mean -------------------------------------------------


def test_a_stopping_rule_is_given_the_worst_numbers():
    draws = autoregressive(4, 100, 5, 0.7)
    expected = by_arviz(draws)
    max_r_hat, min_ess, reason = rhat_and_ess(draws)
    assert max_r_hat == pytest.approx(expected["r_hat"].max(), rel=1e-10)
    assert min_ess == pytest.approx(
        min(expected["ess_bulk"].min(), expected["ess_tail"].min()), rel=1e-10
    )
    assert reason is None


def test_a_stopping_rule_never_passes_on_numbers_that_are_not_available():
    draws = autoregressive(4, 100, 5, 0.0)
    draws[..., 2] = 1.0
    max_r_hat, min_ess, reason = rhat_and_ess(draws)
    assert not max_r_hat <= 10
    assert not min_ess >= 1
    assert reason == "R-hat and ESS not available: constant draws (1 of 5 coordinates)"


def test_a_stopping_rule_for_one_chain_compares_halves():
    draws = autoregressive(1, 100, 2, 0.0)
    assert np.isnan(rhat_and_ess(draws).max_r_hat)
    assert rhat_and_ess(draws).min_ess > 1
    assert rhat_and_ess(draws, between="halves").max_r_hat < 1.2


def result(chains: int = 2, draws: int = 50) -> xarray.DataTree:
    rng = np.random.default_rng(1)
    posterior = xarray.Dataset(
        {
            "bias": (("chain", "draw"), rng.normal(size=(chains, draws))),
            "weights": (("chain", "draw", "feature"), rng.normal(size=(chains, draws, 3))),
        },
        coords={"feature": np.array(["a", "b", "c"], dtype=object)},
    )
    agents = xarray.Dataset(
        {"weights": (("chain", "draw", "agent"), rng.normal(size=(chains, draws, 4)))}
    )
    return xarray.DataTree.from_dict({"/posterior": posterior, "/agents": agents})


def test_the_group_diagnostics_holds_every_statistic_by_variable():
    tree = result()
    found = add_diagnostics(tree)
    group = tree["diagnostics"]
    assert set(group.data_vars) == {"bias", "weights"}
    np.testing.assert_array_equal(
        group["weights"].sel(statistic="ess_bulk").values, found.ess_bulk["weights"]
    )
    assert group["weights"].dims == ("statistic", "feature")
    assert float(group["weights"].sel(statistic="r_hat", feature="b")) == pytest.approx(
        found.r_hat["weights"][1]
    )


def test_the_group_diagnostics_states_its_reasons():
    tree = result(chains=1)
    add_diagnostics(tree, max_coordinates=2)
    assert tree["diagnostics"].attrs["notes"] == (
        "R-hat and ESS: computed for 2 of 4 coordinates; R-hat not available: 1 chain"
    )
    assert (tree["diagnostics"].attrs["computed"], tree["diagnostics"].attrs["coordinates"]) == (
        2,
        4,
    )


def test_a_stored_result_is_read_in_slabs_and_judged_alike(tmp_path, monkeypatch):
    tree = result(draws=53)
    add_diagnostics(tree)
    tree.to_zarr(tmp_path / "run", consolidated=False)
    monkeypatch.setitem(convergence.__globals__, "SLAB_VALUES", 60)
    stored = convergence(
        xarray.open_datatree(tmp_path / "run", engine="zarr", chunks=None, consolidated=False)
    )
    np.testing.assert_array_equal(stored.r_hat["weights"], convergence(tree).r_hat["weights"])


@pytest.mark.parametrize("draws", [50, 51])
def test_the_error_of_the_mean_equals_arviz(draws):
    array = autoregressive(3, draws, 4, 0.8)
    expected = array_stats.mcse(array, chain_axis=0, draw_axis=1, method="mean")
    np.testing.assert_allclose(error_of_mean(array), expected, rtol=1e-10)


def test_equal_weights_leave_the_error_of_the_mean_as_it_is():
    array = autoregressive(2, 80, 3, 0.5)
    np.testing.assert_allclose(
        error_of_mean(array, np.full(80, 0.25)), error_of_mean(array), rtol=1e-10
    )


def test_the_error_of_a_weighted_mean_covers_its_true_spread():
    # 500 weighted means of 2 × 200 independent draws: their spread is known to 1/√1000 = 3 %, the
    # estimated error scatters less than that on average; 15 % is past four of these.
    rng = np.random.default_rng(3)
    weights = np.arange(1, 201) ** -0.5
    draws = rng.normal(size=(2, 200, 500))
    means = np.einsum("s,csd->d", weights, draws) / (2 * weights.sum())
    errors = error_of_mean(draws, weights)
    assert errors.mean() == pytest.approx(means.std(), rel=0.15)
    # Without the weights it would be too small by √(1 + var w / mean² w) = 1.24.
    assert error_of_mean(draws).mean() < 0.9 * means.std()


def test_a_constant_or_short_variable_has_no_error_of_the_mean():
    assert np.isnan(error_of_mean(np.ones((2, 50, 2)))).all()
    assert np.isnan(error_of_mean(np.random.default_rng(0).normal(size=(2, 3)))).all()
