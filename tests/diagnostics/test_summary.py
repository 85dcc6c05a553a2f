"""The table of the posterior: its numbers, its weights, its reference, its text."""

from __future__ import annotations

import numpy as np
import pytest
import xarray
from arviz_stats.base import array_stats

from consortia.diagnostics import summary
from tests.refusals import refused


def result(
    chains: int = 2,
    draws: int = 100,
    *,
    seed: int = 0,
    scale: float = 1.0,
    weights: np.ndarray | None = None,
) -> xarray.DataTree:
    rng = np.random.default_rng(seed)
    sample = ("chain", "draw")
    posterior = xarray.Dataset(
        {
            "bias": (sample, 3 + scale * rng.normal(size=(chains, draws))),
            "weights": ((*sample, "feature"), scale * rng.normal(size=(chains, draws, 2))),
        },
        coords={"feature": ["radius", "texture"]},
    )
    groups = {
        "/posterior": posterior,
        "/agents": posterior.rename(chain="agent") * 1000,
    }
    if weights is not None:
        groups["/sample_stats"] = xarray.Dataset({"weight": ("draw", weights)})
    return xarray.DataTree.from_dict(groups)


def test_numbers_are_those_of_numpy_and_arviz():
    tree = result()
    table = summary(tree, probabilities=(0.1, 0.5))
    draws = tree["posterior"]["weights"].values[:, :, 1]
    axes = {"chain_axis": 0, "draw_axis": 1}
    expected = {
        "mean": draws.mean(),
        "sd": draws.std(ddof=1),
        "10%": np.quantile(draws, 0.1),
        "50%": np.median(draws),
        "mcse_mean": array_stats.mcse(draws, method="mean", **axes),
        "r_hat": array_stats.rhat(draws, **axes),
        "ess_bulk": array_stats.ess(draws, method="bulk", **axes),
        "ess_tail": array_stats.ess(draws, method="tail", prob=(0.05, 0.95), **axes),
    }
    expected = {name: float(value) for name, value in expected.items()}
    assert table.row("weights[texture]") == pytest.approx(expected, rel=1e-10)
    assert list(table.columns) == list(expected)


def test_coordinates_carry_the_labels_of_the_result():
    assert summary(result()).coordinates == ("bias", "weights[radius]", "weights[texture]")
    plain = summary({"theta": np.random.default_rng(0).normal(size=(2, 9, 2, 2))})
    assert plain.coordinates == ("theta[0, 0]", "theta[0, 1]", "theta[1, 0]", "theta[1, 1]")


def test_weighted_moments_and_quantiles_by_hand():
    draws = np.array([[1.0, 2.0, 4.0, 8.0], [3.0, 2.0, 0.0, 1.0]])
    weights = np.array([4.0, 2.0, 1.0, 1.0])
    tree = xarray.DataTree.from_dict(
        {
            "/posterior": xarray.Dataset({"theta": (("chain", "draw"), draws)}),
            "/sample_stats": xarray.Dataset({"weight": ("draw", weights)}),
        }
    )
    table = summary(tree, probabilities=(0.5,))
    both = np.tile(weights, 2)
    total = both.sum()  # 16
    mean = (4 * 1 + 2 * 2 + 4 + 8 + 4 * 3 + 2 * 2 + 0 + 1) / total
    scatter = both @ (draws.ravel() - mean) ** 2
    assert table["mean"][0] == pytest.approx(mean)
    assert table["sd"][0] == pytest.approx(np.sqrt(scatter / (total - both @ both / total)))
    # In order: 0 (1), 1 (4 + 1), 2 (2 + 2), ...: half of 16 is reached among the twos.
    assert table["50%"][0] == 2
    assert "weighted by the step sizes" in str(table)


def test_equal_weights_change_no_moment():
    weighted, plain = summary(result(weights=np.full(100, 0.1))), summary(result())
    np.testing.assert_allclose(weighted["mean"], plain["mean"], rtol=1e-12)
    np.testing.assert_allclose(weighted["sd"], plain["sd"], rtol=1e-12)
    np.testing.assert_allclose(weighted["mcse_mean"], plain["mcse_mean"], rtol=1e-10)
    assert "weighted" not in str(plain)


def test_a_reference_stands_beside_in_its_own_standard_deviations():
    tree, reference = result(), result(seed=1, scale=2.0)
    table = summary(tree, reference=reference)
    a, b = (t["posterior"]["bias"].values for t in (tree, reference))
    row = table.row("bias")
    assert row["ref_mean"] == pytest.approx(b.mean())
    assert row["ref_sd"] == pytest.approx(b.std(ddof=1))
    assert row["shift"] == pytest.approx((a.mean() - b.mean()) / b.std(ddof=1))
    assert row["sd_ratio"] == pytest.approx(a.std(ddof=1) / b.std(ddof=1))
    assert "shift = (mean - ref_mean) / ref_sd" in str(table)


def test_a_reference_of_another_order_and_length_is_matched_by_name():
    reference = result(4, 30, seed=1)["posterior"].to_dataset()[["weights", "bias"]]
    table = summary(result(), reference=reference)
    expected = reference["bias"].mean()
    assert table.row("bias")["ref_mean"] == pytest.approx(float(expected))


def test_a_reference_of_another_model_is_refused():
    with refused(argument="reference", match="'bias'"):
        summary(result(), reference={"weights": np.zeros((1, 5, 2))})
    with refused(argument="reference", match=r"\(3,\)"):
        summary(result(), reference={"bias": np.zeros((1, 5, 3)), "weights": np.zeros((1, 5, 2))})


def test_text_is_aligned_and_explains_what_is_not_available():
    lines = str(summary(result(chains=1))).splitlines()
    header, rows, notes = lines[0], lines[1:4], lines[4:]
    assert header.split() == [
        *("mean", "sd", "5%", "95%", "mcse_mean", "r_hat", "ess_bulk", "ess_tail")
    ]
    for column in ("mean", "r_hat", "ess_bulk"):
        end = header.index(column) + len(column)
        assert all(row[end - 1] != " " and row[end : end + 1] in ("", " ") for row in rows)
    assert all(" n/a " in row for row in rows)
    assert notes == ["* R-hat not available: 1 chain"]


def test_decimals_follow_the_standard_deviation():
    rng = np.random.default_rng(0)
    scales = np.array([2e-3, 2.0, 2e3])
    rows = str(summary({"t": 7 * scales + scales * rng.normal(size=(2, 400, 3))})).splitlines()[1:]
    decimals = [len(row.split()[2].partition(".")[2]) for row in rows]
    assert decimals == [5, 2, 0]


def test_long_tables_are_cut_and_say_so():
    table = summary({"theta": np.random.default_rng(0).normal(size=(2, 20, 100))})
    assert len(table) == 100
    lines = table.text(max_rows=5).splitlines()
    assert len(lines) == 7
    assert lines[-1] == "* the first 5 of 100 coordinates"


def test_a_subset_of_coordinates_for_convergence_is_said():
    draws = {"theta": np.random.default_rng(0).normal(size=(2, 20, 10))}
    table = summary(draws, max_coordinates=2)
    assert np.isfinite(table["r_hat"]).sum() == 2
    assert np.isfinite(table["mean"]).all()
    assert "computed for 2 of 10 coordinates" in str(table)


@pytest.mark.parametrize("kind", ["one draw", "three draws", "constant", "nan", "inf"])
def test_poor_draws_give_a_table_with_reasons_and_no_warning(kind):
    draws = np.random.default_rng(0).normal(size=(1, 20, 2))
    if kind == "one draw":
        draws = draws[:, :1]
    elif kind == "three draws":
        draws = draws[:, :3]
    elif kind == "constant":
        draws[..., 0] = 1.0
    else:
        draws[0, 3, 0] = float(kind)
    text = str(summary({"theta": draws}))
    assert "n/a" in text
    assert "not available" in text


def test_no_draws_at_all_are_refused():
    with refused(argument="tree", match="no draws"):
        summary({"theta": np.zeros((1, 0, 2))})


def test_a_probability_outside_its_range_is_refused():
    with refused(argument="probabilities", match=r"\(5, 95\)"):
        summary(result(), probabilities=(5, 95))


def test_an_unknown_coordinate_is_refused():
    with refused(argument="coordinate", match="'slope'"):
        summary(result()).row("slope")


def test_the_table_is_a_dataset_too():
    table = summary(result(chains=1))
    dataset = table.to_dataset()
    assert float(dataset["mean"].sel(coordinate="bias")) == table.row("bias")["mean"]
    assert dataset.attrs["notes"] == "R-hat not available: 1 chain"


@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.995])
@pytest.mark.parametrize("law", ["normal", "cauchy"])
def test_a_tail_is_judged_by_effective_draws(correlation: float, law: str) -> None:
    """One excursion of a slow chain has many draws, and is no power law."""
    lfilter = pytest.importorskip("scipy.signal").lfilter
    stats = pytest.importorskip("scipy.stats")
    for seed in range(3):
        noise = np.random.default_rng(seed).normal(size=(4, 6000))
        chains = lfilter([(1 - correlation**2) ** 0.5], [1, -correlation], noise)[:, 2000:]
        if law == "cauchy":
            chains = stats.cauchy.ppf(stats.norm.cdf(chains))
        tree = xarray.DataTree.from_dict(
            {"/posterior": xarray.Dataset({"x": (("chain", "draw"), chains)})}
        )
        tree.attrs["algorithm"] = "fa_ld"
        assert np.isnan(summary(tree)["sd"][0]) == (law == "cauchy"), seed
