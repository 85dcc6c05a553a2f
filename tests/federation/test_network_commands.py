"""``consortia flower certificates | key | node | loopback`` before anything is started."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from needs import needs
from typer.testing import CliRunner, Result

from consortia.cli.commands import app
from consortia.federation.governance import load_policy, terms_of
from consortia.study.build import load_study

needs("flwr")

HOSPITALS = Path(__file__).resolve().parents[2] / "examples" / "three_hospitals"


def command(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["flower", *map(str, words)])


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    made = command("new", HOSPITALS / "study.toml", "--to", tmp_path / "app")
    assert made.exit_code == 0, made.output
    return tmp_path / "app"


def test_a_node_is_told_what_it_lacks_one_after_the_other(hospitals: Path, tmp_path: Path) -> None:
    site, data = tmp_path / "north", HOSPITALS / "north.csv"
    words = ("node", site, "--superlink", "127.0.0.1:1", "--data", data)
    refused = command(*words)
    assert refused.exit_code == 2
    assert "consortia flower key" in refused.output
    assert command("key", site).exit_code == 0
    assert "ca.crt is not there" in command(*words).output
    assert command("certificates", tmp_path / "made", "--host", "127.0.0.1").exit_code == 0
    shutil.copy(tmp_path / "made" / "ca.crt", site)
    assert "site-policy.toml is not there" in command(*words).output
    policy = CliRunner().invoke(app, ["site", "check", "--app", str(hospitals)]).stdout
    (site / "site-policy.toml").write_text(policy.replace("apps = ", "# "))
    unapproved = command(*words)
    assert unapproved.exit_code == 9
    assert "approves no app" in unapproved.output
    (site / "site-policy.toml").write_text(policy + "maximum_row = 1\n")
    assert command(*words).exit_code == 2


def test_loopback_gives_each_site_a_policy_for_this_app_and_nothing_else(
    hospitals: Path, tmp_path: Path
) -> None:
    from consortia.cli.network import prepared_sites
    from consortia.federation.bundle import app_hash

    nodes = prepared_sites(hospitals, HOSPITALS, tmp_path / "place", 70)
    assert [node.name for node in nodes] == ["north", "south", "west"]
    study = load_study(HOSPITALS / "study.toml")
    for node in nodes:
        policy = load_policy(tmp_path / "place" / "sites" / node.name / "site-policy.toml")
        policy.permits(terms_of(study), app_hash(hospitals))
        assert policy.minimum_rows == 70
        assert node.apps == (app_hash(hospitals),)
        assert node.config["data"] == str(HOSPITALS / f"{node.name}.csv")


def test_loopback_refuses_what_it_cannot_run(hospitals: Path, tmp_path: Path) -> None:
    words = ("loopback", hospitals, "--data", tmp_path, "--folder", tmp_path / "new")
    absent = command(*words)
    assert absent.exit_code == 2
    assert "north.csv: no such file" in absent.output
    assert command(*words).exit_code == 2
    full = ("loopback", hospitals, "--data", HOSPITALS, "--folder", hospitals)
    assert command(*full).exit_code == 3
