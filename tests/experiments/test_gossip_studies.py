"""Figures 2 to 4 of the DE-SGLD paper, the corrections, and logistic regression."""

from __future__ import annotations

from typing import Any

import pytest

from experiments import records
from experiments.de_sgld import correction, logistic, networks, settings


def results_of(program: Any) -> dict[str, Any]:
    return records.plain(program.study("quick", 0))


def near(value: float, figure: float) -> bool:
    """Within 1 %, or within half a unit of the last digit of a figure as it is printed."""
    digits = len(f"{figure:f}".rstrip("0").partition(".")[2])
    return abs(value / figure - 1) < 0.01 or abs(value - figure) <= 0.5000001 * 10**-digits


# Scores are the largest of some hundred; five standard errors are passed by chance by one of two
# million, and by one of ten thousand where minibatches make the tails heavy.


@pytest.mark.slow
def test_the_complete_network_has_the_figures_of_the_table_and_runs_have_its_law() -> None:
    results = results_of(networks)
    assert len(results["panels"]) == 2
    for part in results["panels"]:
        _, average, agent, _ = part["expected"]
        assert near(part["stationary"]["average"], average)
        assert near(part["stationary"]["agent"], agent)
        assert part["worst_score"] < 5
    violated = results["conditions"]["de_sghmc, complete"]
    assert list(violated.values()) == [False, False]


@pytest.mark.slow
def test_batches_have_the_figures_of_the_table_and_one_row_diverges() -> None:
    panels = results_of(settings)["panels"]
    one, five = panels["batch size"]
    assert one["stationary"] is None
    assert "feeds itself" in one["instability"]
    assert near(five["stationary"]["average"], settings.EXPECTED_BATCHES[5][0])
    assert near(five["stationary"]["agent"], settings.EXPECTED_BATCHES[5][1])
    for part in panels["step size"]:
        assert near(part["stationary"]["agent"], settings.EXPECTED_STEPS[part["step_size"]])
        assert part["worst_score"] < 6


@pytest.mark.slow
def test_the_corrected_sampler_has_its_law_and_the_figures_of_the_table() -> None:
    results = results_of(correction)
    for name, by_network in results["table"].items():
        for network, part in by_network.items():
            average, agent = correction.EXPECTED[name][network]
            assert near(part["stationary"]["average"], average)
            assert near(part["stationary"]["agent"], agent)
    assert results["sampler"]["worst_score"] < 5


@pytest.mark.slow
def test_corrected_agents_classify_as_well_as_the_average_and_plain_ones_are_far_off() -> None:
    results = results_of(logistic)
    for part in results.values():
        by = {(row["method"], row["network"]): row for row in part["long"]}
        plain, corrected = by["DE-SGLD", "complete"], by["DE-SGLD, corrected", "complete"]
        assert plain["w2_agent"] > 3 * corrected["w2_agent"]
        assert corrected["accuracy_average"] > part["reference_accuracy"] - 0.05
