"""``consortia site check`` and ``consortia site ledger``."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import pytest
from federation.hospitals import HOSPITALS, NAMES, study
from typer.testing import CliRunner, Result

from consortia.cli.commands import app
from consortia.engines.messages.identities import coordinator_ring
from consortia.federation.bundle import app_hash, study_of
from consortia.federation.governance import Ledger, load_policy, verify
from consortia.federation.governance.ledger import WITNESS
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.study.build import load_study

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = Path(__file__).parent / "averaging.toml"
FILES = ROOT / "examples" / "three_hospitals" / "study.toml"
OTHER = Path(__file__).parent / "classes.toml"


def command(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["site", *map(str, words)])


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    made = command("check", "--study", EXAMPLE)
    assert made.exit_code == 0
    path = tmp_path / "site-policy.toml"
    path.write_text(made.stdout)
    return path


def test_the_policy_that_check_proposes_permits_the_study_and_refuses_another(policy: Path) -> None:
    asked = command("check", policy, "--study", EXAMPLE)
    assert asked.exit_code == 0
    assert "permits it, at a site with 50 rows or more" in asked.output
    refused = command("check", policy, "--study", OTHER)
    assert refused.exit_code == 9
    assert "studies:" in refused.output
    assert "models:" in refused.output


def test_check_says_in_sentences_what_a_data_manager_wants_to_know() -> None:
    north = FILES.parent / "north.csv"
    text = " ".join(command("check", "--study", FILES, "--data", north).stderr.split())
    for sentence in (
        "Does the dose help? Three hospitals",
        "The column 'ill' is the response; every other column of your file is used",
        "Model Bayesian logistic regression for two classes. Before any data each coefficient is "
        "taken to be normal around 0 with a standard deviation of 1.",
        "4 chains side by side: your site usually sends 5 messages, and at most 502.",
        "Once: how many rows you have",
        "(query; docs/threat-model.md#messages)",
        "Your file holds 480 numbers. All messages together hold 12,012 that depend on them "
        "usually, and a run stops at 48,030 under the policy that is proposed: 25.0 times as many",
        "Noise that only your site knows is added to what log_densities sends",
    ):
        assert sentence in text, sentence
    hashes = text.index("To compare with others")
    assert not any(len(word) == 64 for word in text[:hashes].split())
    assert "None" not in text[:hashes]


def test_a_study_is_named_in_one_way_by_check_and_rehearse(policy: Path, tmp_path: Path) -> None:
    assert command("check", EXAMPLE).stdout == policy.read_text()
    assert "is a policy" in command("check", policy).output
    oslo = tmp_path / "oslo.csv"
    oslo.write_bytes((FILES.parent / "north.csv").read_bytes())
    by_place = command("rehearse", FILES, "--data", oslo)
    by_name = command("rehearse", "--study", FILES, "--data", oslo)
    assert "not 'oslo': give --site" in " ".join(by_name.output.split())
    assert (by_name.exit_code, by_name.output) == (by_place.exit_code, by_place.output)
    for words in (["--data", oslo], [FILES, "--study", FILES, "--data", oslo]):
        refused = command("rehearse", *words)
        assert (refused.exit_code, "--study STUDY.toml" in refused.output) == (2, True)


def test_a_rehearsal_needs_a_file_of_the_study_s_sites(tmp_path: Path) -> None:
    north = FILES.parent / "north.csv"
    (tmp_path / "oslo.csv").write_bytes(north.read_bytes())
    made = command("rehearse", FILES, "--data", tmp_path / "oslo.csv")
    assert made.exit_code == 2
    text = " ".join(made.output.split())
    assert "the study has the sites north, south, west, not 'oslo': give --site" in text
    assert command("rehearse", EXAMPLE, "--data", north).exit_code == 2


def test_a_rehearsal_says_that_an_honest_run_would_end_without_a_result(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(study())
    policy = tmp_path / "site-policy.toml"
    text = proposed(terms_of(load_study(path)))
    policy.write_text(text.replace("minimum_rows = 50", "minimum_rows = 5000"))
    north = FILES.parent / "north.csv"
    made = command("rehearse", path, "--data", north, "--policy", policy, "--json")
    assert made.exit_code == 13, made.output
    honest = next(one for one in json.loads(made.stdout) if one["attack"] == "an honest run")
    assert "ends early, without a result: site 'north' refused" in honest["sentence"]
    assert honest["settled"] == 0


def test_two_sites_are_refused_with_the_reason_without_a_word(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(FILES.read_text().replace(', "west.csv"', ""))
    for words in (("site", "check", "--study"), ("flower", "new")):
        made = CliRunner().invoke(app, [*words, str(study)])
        assert made.exit_code == 2
        assert "each can compute the other's message from its own" in " ".join(made.output.split())
    assert "two_sites = true" in command("check", "--study", study, "--two-sites").stdout


def test_an_app_is_asked_by_its_hash_and_the_study_in_it(policy: Path, tmp_path: Path) -> None:
    app = tmp_path / "app.fab"
    with zipfile.ZipFile(app, "w") as packed:
        packed.writestr("inside/study.toml", EXAMPLE.read_text())
    refused = command("check", policy, "--app", app)
    assert refused.exit_code == 9
    assert "apps: the app" in refused.output
    assert "studies" not in refused.output.split("error:")[1]
    policy.write_text(command("check", "--app", app).stdout)
    assert hashlib.sha256(app.read_bytes()).hexdigest() in policy.read_text()
    assert command("check", policy, "--app", app).exit_code == 0


def test_an_app_that_unpacks_to_more_than_a_study_is_not_unpacked(tmp_path: Path) -> None:
    app = tmp_path / "app.fab"
    with zipfile.ZipFile(app, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("inside/study.toml", EXAMPLE.read_text())
        packed.writestr("inside/zeros", bytes(2**25))
    assert app.stat().st_size < 2**17
    refused = command("check", "--app", app)
    assert refused.exit_code == 2
    assert "it is not unpacked" in " ".join(refused.output.split())


def test_a_file_without_a_study_is_no_app(policy: Path, tmp_path: Path) -> None:
    assert "0" in command("check", policy, "--app", tmp_path).output
    assert command("check", policy, "--app", tmp_path).exit_code == 2
    assert command("check", policy, "--app", policy).exit_code == 2


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_an_app_s_hash_is_that_of_the_file_that_flower_sends(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    made = CliRunner().invoke(app, ["flower", "new", str(FILES), "--to", str(tmp_path / "new")])
    assert made.exit_code == 0, made.output
    from flwr.cli.build import build_fab_from_disk

    content = build_fab_from_disk(tmp_path / "new")
    (tmp_path / "new.fab").write_bytes(content)
    assert app_hash(tmp_path / "new") == app_hash(tmp_path / "new.fab")
    assert app_hash(tmp_path / "new") == hashlib.sha256(content).hexdigest()
    with study_of(tmp_path / "new.fab") as packed, study_of(tmp_path / "new") as folder:
        assert packed.read_text() == folder.read_text() == FILES.read_text()


@pytest.mark.filterwarnings("always:apps")
def test_a_policy_that_permits_any_app_beside_hashes_of_studies_is_warned_of(policy: Path) -> None:
    text = policy.read_text()
    policy.write_text(f'apps = ["any"]\n{text}')
    assert "protect nothing" in command("check", policy, "--study", EXAMPLE).stderr
    policy.write_text(text)
    assert "protect nothing" not in command("check", policy, "--study", EXAMPLE).stderr


def test_check_says_in_json_what_is_asked_and_which_rules_forbid_it(policy: Path) -> None:
    asked = json.loads(command("check", policy, "--study", EXAMPLE, "--json").stdout)
    assert asked["permitted"] is True
    assert asked["terms"]["algorithm"] == "fa_hmc"
    refused = json.loads(command("check", policy, "--study", OTHER, "--json").stdout)
    assert (refused["permitted"], refused["rules"]) == (False, ["studies", "models"])


def test_check_refuses_what_it_cannot_use(policy: Path, tmp_path: Path) -> None:
    assert command("check").exit_code == 2
    assert command("check", tmp_path / "none.toml").exit_code == 2
    assert command("check", policy, "--study", EXAMPLE, "--app", tmp_path).exit_code == 2
    assert command("check", policy).exit_code == 0
    policy.write_text(policy.read_text() + "maximum_row = 5\n")
    assert "did you mean" in command("check", policy).output


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    written = Ledger(tmp_path / "ledger.jsonl")
    written.append("opened", run="1", site="s")
    for number in range(4):
        run = "1" if number < 3 else "2"
        written.append(
            "released", run=run, site="s", kind="round", round=number, payload=bytes(100)
        )
    written.append("refused", run="2", site="s", payload=bytes(7))
    return tmp_path / "ledger.jsonl"


def test_ledger_shows_what_left_by_run_and_kind_and_the_head(ledger: Path) -> None:
    shown = command("ledger", ledger)
    assert shown.exit_code == 0
    assert "5 messages, 407 bytes in all" in shown.output
    assert f"The chain is intact: 6 lines. Head: {verify(ledger).head}" in shown.output
    of_folder = json.loads(command("ledger", ledger.parent, "--json", "--run", "2").stdout)
    assert of_folder["totals"] == [
        {"run": "2", "kind": "round", "messages": 1, "bytes": 100},
        {"run": "2", "kind": "refused", "messages": 1, "bytes": 7},
    ]


def test_ledger_names_the_changed_line_and_ends_with_its_own_code(ledger: Path) -> None:
    lines = ledger.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace('"bytes":100', '"bytes":10')
    ledger.write_text("".join(lines))
    shown = command("ledger", ledger)
    assert shown.exit_code == 10
    assert "line 3" in shown.output
    assert "The chain is intact" not in shown.output
    asked = command("ledger", ledger, "--json")
    assert asked.exit_code == 10
    assert json.loads(asked.stdout)["line"] == 3


def test_a_head_that_was_noted_before_is_looked_for(ledger: Path, tmp_path: Path) -> None:
    noted, sent = verify(ledger).head, verify(ledger).entries[-1].sha256
    Ledger(ledger).append("released", run="2", site="s", kind="round", round=9, payload=b"1")
    assert command("ledger", ledger, "--head", noted, "--message", sent).exit_code == 0
    older = command("ledger", ledger, "--message", "0" * 64)
    assert older.exit_code == 10
    assert "an older copy of the ledger was restored" in older.output
    ledger.unlink()
    Path(f"{ledger}.head").unlink()
    (ledger.parent / WITNESS).unlink()
    Ledger(ledger).append("opened", run="1", site="s")
    rewritten = command("ledger", ledger, "--head", noted)
    assert rewritten.exit_code == 10
    assert "the ledger was rewritten" in rewritten.output


def test_keys_are_made_and_stand_in_the_policy_that_check_proposes(tmp_path: Path) -> None:
    path, lines = tmp_path / "study.toml", []
    path.write_text(study('name = "few_rounds"'))
    for name in NAMES:
        shutil.copy(HOSPITALS / f"{name}.csv", tmp_path)
        lines.append(command("key", tmp_path / name).output.splitlines()[-1])
    own = command("key", tmp_path / "server", "--coordinator").output.splitlines()[-1]
    assert command("key", tmp_path / "north").exit_code == 2  # it is there already
    bare = command("check", "--study", path)
    assert "NEEDED: public keys of the coordinator and of all sites" in bare.stdout
    without = tmp_path / "without.toml"
    without.write_text(bare.stdout)
    refused = command("check", without, "--study", path)
    assert refused.exit_code == 9
    assert "each makes its own with `consortia site key`" in " ".join(refused.output.split())
    known = tmp_path / "server" / "identities.toml"
    known.write_text("\n".join([own, "[identities]", *lines]))
    proposal = tmp_path / "policy.toml"
    proposal.write_text(command("check", "--study", path, "--identities", known).stdout)
    assert command("check", proposal, "--study", path).exit_code == 0
    policy, ring = load_policy(proposal), coordinator_ring(tmp_path / "server")
    assert policy.coordinator == ring.coordinator.hex()
    assert policy.identities == {name: key.hex() for name, key in ring.sites.items()}
    assert set(policy.identities) == set(NAMES)


def test_an_absent_ledger_is_named(tmp_path: Path) -> None:
    assert command("ledger", tmp_path / "none.jsonl").exit_code == 10
