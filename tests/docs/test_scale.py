"""The formulas of docs/scale.md are what the plans of runs say; its figures follow from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.core.contract import Plan

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
SITES, PARAMETERS, STEPS, PROPOSALS = 6, 7, 5, 256
NAMES = {
    "S": SITES,
    "d": PARAMETERS,
    "L": STEPS,
    "K": PROPOSALS,
    "E": 2 * SITES,
}
SCALES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "s": 1, "million": 1e6}


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    lines = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


class PlanSeenError(Exception):
    """The plan has been seen, and nothing need run."""


def plan_of(method: Any) -> Plan:
    rng = np.random.default_rng(0)
    sites = consortia.Sites.from_list(
        [
            {
                "x": rng.normal(size=(9, PARAMETERS)).astype(np.float32),
                "y": rng.integers(0, 2, 9).astype(np.float32),
            }
            for _ in range(SITES)
        ]
    )
    seen: list[Plan] = []

    def on_plan(plan: Plan) -> None:
        seen.append(plan)
        raise PlanSeenError

    model = consortia.models.logistic_regression(PARAMETERS)
    with pytest.raises(PlanSeenError):
        consortia.sample(
            model, sites, method, rounds=100, chains=1, progress=False, on_plan=on_plan
        )
    return seen[0]


RING = consortia.graphs.mixing_matrix(consortia.graphs.ring(SITES))
METHODS: dict[str, list[Any]] = {
    "`fa_ld`, `fa_hmc`": [consortia.fa_ld(0.001, 3), consortia.fa_hmc(0.001, 4, 3)],
    "`fa_hmc`, `debias=True`": [consortia.fa_hmc(0.001, 4, 3, debias=True)],
    "`federated_hmc`": [
        consortia.federated_hmc(step_size=0.01, leapfrog_steps=STEPS, mass_matrix="identity")
    ],
    "`decentralized_exact_hmc`, one step": [
        consortia.decentralized_exact_hmc(0.001, RING),
    ],
    "`de_sgld`, `de_sghmc`, `decentralized_ula`": [
        consortia.de_sgld(0.001, RING),
        consortia.de_sghmc(0.001, 0.1, RING),
        consortia.decentralized_ula(0.001, RING),
    ],
    "`decentralized_hmc`": [consortia.decentralized_hmc(0.001, RING)],
    "`dsgld`, `fsgld`": [consortia.dsgld(1e-5, 3, batch_size=4)],
    "`stale_sgld`, one update": [consortia.stale_sgld(1e-5, 4, workers=SITES)],
}
OF_FEW_ROUNDS = {
    "`few_rounds`, local fits": "local_fits",
    "`few_rounds`, a message of points": "log_densities",
}


def said_of(row: str) -> list[int]:
    (cells,) = (cells for cells in table("Messages") if cells[0] == row)
    return [eval(cell.strip("`"), {}, NAMES) for cell in cells[1:]]


def test_every_row_of_the_table_is_compared() -> None:
    assert {cells[0] for cells in table("Messages")} == {*METHODS, *OF_FEW_ROUNDS}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("row", METHODS)
def test_rounds_and_bytes_are_those_of_the_plan(row: str) -> None:
    rounds, up, down = said_of(row)
    for method in METHODS[row]:
        plan = plan_of(method)
        found = plan.communication_rounds, plan.bytes_up, plan.bytes_down
        assert found == (rounds, 4 * up, 4 * down)


def test_numbers_of_few_rounds_are_those_of_its_messages() -> None:
    sizes = consortia.few_rounds(proposals=PROPOSALS).message_sizes(PARAMETERS)
    for row, function in OF_FEW_ROUNDS.items():
        each = sizes[function]
        assert said_of(row) == [1, SITES * each.up, SITES * each.down]


def test_bytes_of_few_rounds_in_its_plan_are_those_of_its_largest_message() -> None:
    plan = plan_of(consortia.few_rounds(proposals=PROPOSALS))
    _, up, down = np.max([said_of(row) for row in OF_FEW_ROUNDS], axis=0)
    assert (plan.bytes_up, plan.bytes_down) == (4 * up, 4 * down)


def test_the_figures_of_large_studies_follow_from_their_formulas() -> None:
    rows = table("Three studies that do not fit here")
    assert len(rows) >= 10
    for *_, formula, figure in rows:
        number, unit = figure.split()
        digits = len(re.sub(r"^0?\.?0*", "", number.replace(".", ""))) or 1
        value = eval(formula.strip("`")) / SCALES[unit]
        assert float(f"{value:.{digits}g}") == float(number), (formula, value)
