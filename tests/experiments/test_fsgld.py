"""The studies of section 5 of the FSGLD paper, at their smallest scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.data.datasets import DatasetMissing
from experiments import records
from experiments.fsgld import (
    gaussian_mean,
    gradients,
    metric_learning,
    neural_network,
    susy,
    table,
    visits,
)

# --- figure 1 ------------------------------------------------------------------------------------


def test_the_shards_of_the_tosses_are_fair_together():
    np.testing.assert_allclose(gradients.SHARDS.mean(axis=1), [0.1, 0.5, 0.9])
    assert gradients.SHARDS.sum() == 15


def test_the_exact_variances_are_those_of_drawn_batches():
    results = records.plain(gradients.study("quick", 0))
    for check in results["checks"]:
        # 2,000 draws: a standard deviation is known to 1.6 %
        assert check["drawn"] == pytest.approx(check["deviation"], rel=0.08)
        assert abs(check["mean_z"]) < 4.5


def test_dsgld_has_the_widest_gradients_and_fsgld_the_narrowest():
    at = gradients.exact(np.array([0.5]))
    deviation = {name: float(value[1][0]) for name, value in at.items()}
    # At one half each gradient is ±2: 30 · 2/√5, and the shards' pulls −24, 0, 24 times 3/2 …
    assert deviation["sgld"] == pytest.approx(30 * 2 / np.sqrt(5))
    within = np.mean([0.36, 1.0, 0.36]) * 4 * 30**2 / 5
    between = np.var([-48.0, 0.0, 48.0])
    assert deviation["dsgld"] == pytest.approx(np.sqrt(within + between))
    assert deviation["fsgld"] == pytest.approx(np.sqrt(within))


# --- section 5.1 ---------------------------------------------------------------------------------


def test_the_law_of_the_study_has_the_known_inflation():
    rows = gaussian_mean.shards(0)
    inflation = gaussian_mean.law(rows, "fsgld", 100).stationary.variance_ratio
    assert inflation.mean() == pytest.approx(11.0, abs=0.05)


def test_all_epsilons_are_far_below_the_gammas():
    found = gaussian_mean.constants(gaussian_mean.shards(0), 13)
    ratio = np.array(found["epsilon_squared"]) / np.array(found["gamma_squared"])
    assert ratio.shape == (10,)
    assert ratio.max() < 0.05


@pytest.mark.predicted
@pytest.mark.slow
def test_the_quick_run_of_the_mean_agrees_with_its_laws():
    with pytest.warns(UserWarning, match="will not follow the posterior"):  # by moments
        results = records.plain(gaussian_mean.study("quick", 0))
    assert results["moments"]["drawn"] == pytest.approx(results["moments"]["forecast"], rel=0.1)
    for entry in results["runs"]:
        if entry["method"] == "fsgld":
            # 800 draws of four chains, those at small steps correlated over 200 updates
            assert entry["trace"] == pytest.approx(entry["exact_trace_of_ends"], rel=0.4)
            assert entry["mean_square_error"] < 20 * entry["exact_mean_square_error"]
        else:
            assert entry["trace"] > 50 * entry["posterior_trace"]


# --- section 5.2 ---------------------------------------------------------------------------------


def made_up_letters() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(26), 12)
    return {"x": rng.normal(size=(26, 20))[y] * 2 + rng.normal(size=(len(y), 20)), "y": y}


def test_shards_share_no_letter_and_half_of_their_pairs_are_similar(monkeypatch: Any):
    rows, seen = made_up_letters(), []
    original = metric_learning.pairs_of

    def watched(labels: Any, count: int, rng: Any) -> Any:
        first, second, similar = original(labels, count, rng)
        assert np.array_equal(labels[first] == labels[second], similar.astype(bool))
        assert np.all(first != second)
        seen.append(set(labels.tolist()))
        return first, second, similar

    monkeypatch.setattr(metric_learning, "pairs_of", watched)
    data = metric_learning.problem(0, 40, rows)
    shards, test = seen[:10], seen[10]
    assert sum(len(letters) for letters in shards) == 26
    assert set().union(*shards) == test
    assert all(shard["y"].mean() == 0.5 for shard in data.sites)
    assert len(data.test["y"]) == 1000


def test_squared_projections_of_the_shards_have_the_chosen_mean():
    data = metric_learning.problem(0, 40, made_up_letters())
    np.testing.assert_allclose(data.sites.pooled()["x"].mean(axis=0), 0.1, rtol=1e-5)


@pytest.mark.slow
def test_the_quick_run_of_metric_learning_predicts_better_than_chance(require_data: Any):
    require_data("isolet")
    results = records.plain(metric_learning.study("quick", 0))
    late = {entry["method"]: entry.get("late_test") for entry in results["runs"]}
    assert late["anchored"] > np.log(0.5)
    # Short local chains on classes that are nearly separable: the published recipe is refused.
    (published,) = (entry for entry in results["runs"] if entry["method"] == "sgld_moments")
    assert "away from the posterior" in published["refused"]


# --- section 5.3 ---------------------------------------------------------------------------------


def test_unlike_shards_have_unlike_labels_and_the_test_set_is_balanced():
    data = susy.problem(0, neural_network.UNLIKE, shards=30, rows=100, test_rows=200)
    shares = np.array([shard["y"].mean() for shard in data.sites])
    np.testing.assert_allclose(shares, data.shares, atol=0.005 + 1e-9)
    assert shares.std() > 0.25  # Beta(½, ½) has 0.35
    assert data.test["y"].mean() == 0.5
    alike = susy.problem(0, neural_network.ALIKE, shards=30, rows=100, test_rows=200)
    assert np.array([shard["y"].mean() for shard in alike.sites]).std() < 0.06


def test_no_row_of_the_made_up_set_is_used_twice():
    data = susy.problem(1, neural_network.UNLIKE, shards=5, rows=100, test_rows=200)
    x = np.concatenate([data.sites.pooled()["x"], data.test["x"]])
    assert len(np.unique(x, axis=0)) == len(x) == 700


def test_susy_is_read_from_its_folder(tmp_path: Path, monkeypatch: Any):
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.integers(0, 2, 400), rng.normal(size=(400, 18))])
    (tmp_path / "susy").mkdir()
    np.savetxt(tmp_path / "susy" / "SUSY.csv.gz", table, delimiter=",")
    monkeypatch.setenv("CONSORTIA_DATA", str(tmp_path))
    found = susy.load_susy(50)
    np.testing.assert_allclose(found["x"], table[:50, 1:], rtol=1e-6)
    np.testing.assert_array_equal(found["y"], table[:50, 0])
    data = susy.problem(0, 100.0, shards=2, rows=20, test_rows=10, real=True)
    assert [len(shard["y"]) for shard in data.sites] == [20, 20]


def test_an_absent_susy_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setenv("CONSORTIA_DATA", str(tmp_path))
    with pytest.raises(DatasetMissing, match="susy"):
        susy.load_susy(10)


@pytest.mark.slow
def test_the_quick_run_of_the_networks_writes_all_scores():
    results = records.plain(neural_network.study("quick", 0))
    assert {entry["shards"] for entry in results["settings"]} == {"unlike", "alike"}
    for entry in results["settings"]:
        assert np.isfinite(entry["logistic"]["difference"])
        for name in ("dsgld", "anchored"):
            assert np.isfinite(entry["network"][name]["test"])


# --- table 1 on the shard at hand ----------------------------------------------------------------


def test_the_shard_at_hand_is_the_one_that_the_chain_has_visited():
    centres = np.array([-30.0, 0.0, 30.0, 60.0])
    sites = consortia.Sites.from_list([{"x": np.full((50, 2), c, np.float32)} for c in centres])
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    tree = consortia.sample(
        gaussian_mean.model(),
        sites,
        consortia.dsgld(1e-3, 200, probabilities=shares),
        rounds=60,
        warmup=15,
        seed=7,
        chains=1,
        progress=False,
    )
    ends = np.asarray(tree["posterior"]["theta"])[0, :, 0]
    nearest = np.abs(ends[:, None] - centres).argmin(axis=1)
    np.testing.assert_array_equal(visits.visited(shares, 60, 15, 7), nearest)
    assert len(set(nearest)) == 4


def test_a_constant_that_knows_each_shards_share_scores_its_negative_entropy():
    assert table.constant(np.array([0.5, 0.5])) == pytest.approx(np.log(0.5))
    assert table.constant(np.array([0.0, 1.0])) == pytest.approx(0.0, abs=1e-9)
    # in the mean over Beta(½, ½)
    shares = np.random.default_rng(0).beta(0.5, 0.5, 200_000)
    assert table.constant(shares) == pytest.approx(1 - 2 * np.log(2), abs=0.002)
