"""What a site between institutions tells of its table is what its policy lets it tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app as command
from consortia.engines.messages.transport import InProcess
from consortia.errors import SiteRefusedError
from consortia.federation.app import answer, serve, site_of
from consortia.federation.governance import terms_of, verify
from consortia.report.participants import participants
from consortia.report.run_report import load_run
from consortia.study.build import load_study
from tests.refusals import refused

STUDY = """[data]
files = ["oslo.csv", "lima.csv"]
[model]
formula = "died ~ stage"
family = "bernoulli"
[algorithm]
name = "federated_hmc"
[run]
rounds = 10
warmup = 20
"""
ROWS = "stage,died\n" + "I,0\nII,1\n" * 5 + "IV,1\n" * 2


@pytest.mark.parametrize(
    ("limit", "told"), [("", ("I", "II")), ("minimum_level_rows = 2", ("I", "II", "IV"))]
)
def test_a_policy_keeps_the_names_of_rare_levels_back(
    tmp_path: Path, limit: str, told: tuple[str, ...]
) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "oslo.csv").write_text(ROWS)
    (tmp_path / "policy.toml").write_text(
        f'studies = ["any"]\nmaximum_rounds = 100\nminimum_rows = 1\n{limit}\n'
    )
    node = {
        "site": "oslo",
        "data": str(tmp_path / "oslo.csv"),
        "policy": str(tmp_path / "policy.toml"),
        "state": str(tmp_path / "state"),
    }
    facts = site_of(load_study(tmp_path / "study.toml"), node, {})._contribute()
    assert facts.table is not None
    assert facts.table.levels == {"stage": told}
    assert facts.described is None


def test_means_and_spreads_leave_in_two_digits(tmp_path: Path) -> None:
    formula = STUDY.replace("died ~ stage", "died ~ age + scale(dose)")
    (tmp_path / "study.toml").write_text(formula)
    rng, died = np.random.default_rng(1), np.arange(400) < 3
    table = np.column_stack([rng.normal(61, 9, 400), rng.gamma(2, 1, 400), died])
    for name in ("oslo", "lima"):
        np.savetxt(
            tmp_path / f"{name}.csv", table, "%.4f", ",", header="age,dose,died", comments=""
        )
    (tmp_path / "policy.toml").write_text(
        'studies = ["any"]\nmaximum_rounds = 100\nminimum_rows = 1\n'
    )
    node = {"site": "oslo", "data": str(tmp_path / "oslo.csv"), "folder": str(tmp_path)}
    node["policy"] = str(tmp_path / "policy.toml")
    facts = site_of(load_study(tmp_path / "study.toml"), node, {})._contribute()
    assert facts.table is not None
    moments = {name: found[:3] for name, found in facts.table.moments.items()}
    rows, mean, squares = moments["age"]
    sd = float(f"{np.sqrt(squares / rows):.6g}")
    assert sd == float(f"{table[:, 0].std():.1e}")
    assert mean / sd * 20 == pytest.approx(round(table[:, 0].mean() / sd * 20))
    # it defines the term, so that two digits would be another model
    assert moments["scale(dose)"][1] == pytest.approx(table[:, 1].mean(), rel=1e-3)
    assert moments["scale(dose)"][1] != float(f"{moments['scale(dose)'][1]:.2g}")
    assert moments["response()"][1] == 0.0075  # an event stays one, however rare


def test_the_smallest_number_of_participants_is_the_study_s_or_the_policy_s(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(f"{STUDY}[model.describe]\ncells = 4\n")
    (tmp_path / "oslo.csv").write_text(ROWS)
    told = []
    for limit in ("", "minimum_pattern_rows = 6\n"):
        (tmp_path / "policy.toml").write_text(
            f'studies = ["any"]\nmaximum_rounds = 100\nminimum_rows = 1\n{limit}'
        )
        node = {"site": "oslo", "data": str(tmp_path / "oslo.csv"), "folder": str(tmp_path)}
        node["policy"] = str(tmp_path / "policy.toml")
        told.append(site_of(load_study(tmp_path / "study.toml"), node, {})._contribute().described)
    assert [one.cells for one in told] == [4, 6]
    assert [one.levels["stage"].counts for one in told] == [{}, {}]  # I 5, II 5, IV 2
    assert told[0].levels["died"] == ({"0": 5, "1": 7}, 0)
    assert told[1].levels["died"] == ({}, 12)
    made = CliRunner().invoke(command, ["site", "check", "--study", str(tmp_path / "study.toml")])
    assert "none of fewer rows than 4" in " ".join(made.stderr.split())


BY_SITE = """[data]
files = ["oslo.csv", "lima.csv", "pune.csv"]
[model]
formula = "died ~ age + stage + (1 | site)"
family = "bernoulli"
integrate = {integrate}
[algorithm]
name = "federated_hmc"
step_size = 0.1
leapfrog_steps = 1
mass_matrix = "identity"
[run]
rounds = 3
chains = 2
secure_sums = false
[output]
figure = false
"""
POLICY = """studies = ["any"]
messages = ["description", "moments", "setup", "round"]
maximum_rounds = 100
minimum_rows = 10
secure_sums = false
own_levels = false
"""
NAMES = ("oslo", "lima", "pune")


HARMONISE = """
[harmonise.lima]
encoding = "latin-1"
decimal = ","
[harmonise.lima.rename]
"Âge" = "age"
[harmonise.lima.recode.stage]
un = "I"
deux = "II"
"""


def ran(
    folder: Path,
    *,
    integrate: bool,
    policy: str = POLICY,
    unlike: bool = False,
    more: str = "",
) -> Path:
    """Run a study between three sites, each with policy and ledger; return the run's directory.

    Args:
        folder: of study, sites and run.
        integrate: whether the sites' levels stay there.
        policy: of each site.
        unlike: lima writes its table in a way of its own, and the study says which.
        more: at the end of the study file.
    """
    folder.mkdir()
    study, rng = folder / "study.toml", np.random.default_rng(5)
    text = BY_SITE.format(integrate=str(integrate).lower())
    study.write_text(text + (HARMONISE if unlike else "") + more)

    def site(name: str) -> Any:
        own = folder / name
        own.mkdir()
        lines = [
            f"{rng.normal(60, 9):.1f},{rng.choice(['I', 'II'])},{rng.integers(0, 2)}"
            for _ in range(30)
        ]
        lines = ["age,stage,died", *lines, ""]
        if unlike and name == "lima":
            lines = [one.replace(",", ";").replace(".", ",") for one in lines]
            lines = [one.replace(";II;", ";deux;").replace(";I;", ";un;") for one in lines]
            lines[0] = "Âge;stage;died"
        (own / "rows.csv").write_bytes("\n".join(lines).encode("latin-1"))
        (own / "site-policy.toml").write_text(policy)
        node = {"site": name, "data": str(own / "rows.csv"), "folder": str(own)}
        return lambda message: answer(study, message, node, {})

    transport = InProcess({number: site(name) for number, name in enumerate(NAMES)})
    serve(study, transport, {"output": str(folder / "run"), "join-deadline": 5})
    return folder / "run"


def lengths(folder: Path) -> set[int]:
    """Return the lengths of the arrays that left a site in setup and rounds, from its ledger."""
    lines = verify(folder / "ledger.jsonl")
    assert lines.problem is None
    released = [one for one in lines.entries if one.event == "released"]
    assert {one.kind for one in released} == {"description", "moments", "setup", "round"}
    return {
        int(np.prod(shape, dtype=int))
        for one in released
        if one.kind in ("setup", "round")
        for _, _, shape in one.arrays
    }


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a study whose levels stay at their sites, after its run."""
    return ran(tmp_path_factory.mktemp("levels") / "kept", integrate=True).parent


def test_no_level_of_a_hospital_is_in_its_ledger_or_at_the_server_where_the_policy_keeps_it(
    kept: Path,
) -> None:
    run = kept / "run"
    tree = consortia.open_run(run)
    # two coefficients, the common level and the spread: nothing of a site's own
    assert set(tree["posterior"].data_vars) == {"coefficients", "intercept", "sd"}
    assert tree["posterior"]["coefficients"].coords["coefficients_dim_0"].values.tolist() == [
        "age",
        "stage[II]",
    ]
    text = (run / "estimates.txt").read_text()
    assert all(word in text for word in ("age", "stage[II]", "odds ratio", "sd between sites"))
    assert not any(f"\n{name} " in text for name in NAMES)
    for name in NAMES:
        assert max(lengths(kept / name)) == 2 * 4, name


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "least"), [("", 4), ("minimum_pattern_rows = 9\n", 9)])
def test_participants_are_told_in_numbers_that_study_and_policy_allow(
    tmp_path: Path, limit: str, least: int
) -> None:
    policy = f"{POLICY}{limit}"
    more = "[model.describe]\ncells = 4\n"
    run = ran(tmp_path / "told", integrate=True, policy=policy, more=more)
    report = load_run(run)
    told, curves = participants(report) or (None, None)
    assert told is not None
    assert curves is None
    assert told.columns == (*NAMES, "all sites")
    assert f"1 to {least - 1} rows" in told.notes[1]
    sites = report.fitted_settings["participants"]["sites"]
    assert {one["cells"] for one in sites.values()} == {least}
    for one in sites.values():
        for counts, rest in one["levels"].values():
            assert all(n == 0 or n >= least for n in [*counts.values(), rest])


def test_a_harmonised_table_gives_the_draws_of_the_one_that_is_meant(
    kept: Path, tmp_path: Path
) -> None:
    unlike = ran(tmp_path / "unlike", integrate=True, unlike=True).parent
    trees = [consortia.open_run(each / "run")["posterior"].to_dataset() for each in (kept, unlike)]
    for name in trees[0].data_vars:
        np.testing.assert_array_equal(trees[0][name], trees[1][name])
    studies = [load_study(each / "study.toml") for each in (kept, unlike)]
    hashes = [(terms.study, terms.model) for terms in map(terms_of, studies)]
    assert hashes[0][0] != hashes[1][0]
    assert hashes[0][1] != hashes[1][1]


@pytest.mark.engines
def test_a_ledger_shows_the_levels_of_hospitals_where_they_are_parameters(tmp_path: Path) -> None:
    ran(tmp_path / "told", integrate=False, policy=POLICY.replace("own_levels = false\n", ""))
    assert max(lengths(tmp_path / "told" / "oslo")) == 2 * (4 + len(NAMES))


def test_a_policy_that_keeps_the_site_s_level_refuses_a_study_that_tells_it(tmp_path: Path) -> None:
    with refused(SiteRefusedError, sites=("oslo",), match="own_levels"):
        ran(tmp_path / "refused", integrate=False)


def test_a_data_manager_is_told_what_a_formula_uses_and_what_stays(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    for integrate, sentence in (
        ("true", "What your site, or a group in it, adds of its own stays with you."),
        ("false", "What your site adds of its own is estimated, and the server sees it."),
    ):
        study.write_text(BY_SITE.format(integrate=integrate))
        made = CliRunner().invoke(command, ["site", "check", "--study", str(study)])
        text = " ".join(made.stderr.split())
        assert sentence in text
        assert "it uses the columns 'died', 'age', 'stage' of yours." in text
        assert "code of the coordinator" not in text
    assert load_study(study).model.question is not None
