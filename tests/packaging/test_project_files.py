"""Files for hosts, indexes and contributors: valid, of one mind, and nothing in them stale."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from consortia.core.version import __version__

pytestmark = pytest.mark.lint

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
yaml = pytest.importorskip("ruamel.yaml", reason="a tool of the group test is not installed")


def read(name: str) -> Any:
    return yaml.YAML(typ="safe").load(ROOT / name)


def listed(pattern: str) -> list[str]:
    return [str(one.relative_to(ROOT)) for one in sorted(ROOT.glob(pattern))]


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("dependabot", ".github/dependabot.yml"),
        ("readthedocs", ".readthedocs.yaml"),
    ],
)
def test_a_file_for_a_host_keeps_its_schema(schema: str, pattern: str) -> None:
    files = listed(pattern)
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_hooks_are_a_valid_configuration_at_the_locked_versions() -> None:
    command = [sys.executable, "-m", "pre_commit", "validate-config"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    locked = "".join(
        (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
        for name in ("base", "dev", "flower")
    )
    tools = {"ruff-pre-commit": "ruff", "mirrors-mypy": "mypy", "check-jsonschema": None}
    for repo in read(".pre-commit-config.yaml")["repos"]:
        name = repo["repo"].rpartition("/")[2]
        if name in tools:
            assert f"\n{tools[name] or name}=={repo['rev'].removeprefix('v')} " in locked
        for hook in repo["hooks"]:
            for pin in hook.get("additional_dependencies", ()):
                assert f"\n{pin} " in locked


def test_the_review_of_scientific_python_finds_nothing_but_what_is_declared() -> None:
    command = [sys.executable, "-m", "repo_review", ".", "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    checks = json.loads(done.stdout)["checks"]
    assert len(checks) > 50
    failed = {name: one["description"] for name, one in checks.items() if one["result"] is False}
    assert failed == {}


def test_the_recipes_need_what_the_project_needs() -> None:
    needed = {re.sub(r"\s*(>=)", r" \1", one) for one in PROJECT["project"]["dependencies"]}
    recipe, environment = read("conda/recipe.yaml"), read("environment.yml")
    assert needed == set(recipe["requirements"]["run"][1:])
    assert needed == {one for one in environment["dependencies"] if isinstance(one, str)} - {
        "python " + PROJECT["project"]["requires-python"],
        "pip",
    }
    built = {re.sub(r"\s*(>=)", r" \1", one) for one in PROJECT["build-system"]["requires"]}
    assert built <= set(recipe["requirements"]["host"])
    assert recipe["context"]["version"] == __version__
    assert read("CITATION.cff")["version"] == __version__


def test_the_placeholder_of_the_owner_has_one_place() -> None:
    tracked = subprocess.run(
        ["git", "grep", "-lw", "OWNER"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = {one for one in tracked.stdout.split() if not one.startswith(("src/", "tests/"))}
    assert files <= {"pyproject.toml", "RELEASING.md"}


def test_workflows_test_each_python_of_the_classifiers() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    jobs = read(".github/workflows/tests.yml")["jobs"]
    matrix = jobs["quick"]["strategy"]["matrix"]
    assert matrix["python"] == named
    assert len(matrix["os"]) == 2


def test_publishing_holds_no_secret_and_waits_for_the_environment() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    publish = read(".github/workflows/release.yml")["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"] == "pypi"
    assert "secrets." not in text


def test_the_paper_cites_what_its_bibliography_has() -> None:
    text = (ROOT / "paper/paper.md").read_text(encoding="utf-8")
    entries = re.findall(r"@\w+\{(\w+),", (ROOT / "paper/paper.bib").read_text(encoding="utf-8"))
    assert set(re.findall(r"@(\w+)", text)) == set(entries)
