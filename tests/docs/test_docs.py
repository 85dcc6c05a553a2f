"""What the documentation says of code is so: its blocks run, and give the numbers beside them."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command

import consortia
from consortia.cli.commands import app
from consortia.models.regression.families import FAMILIES
from consortia.models.regression.priors import FORMS
from consortia.study.build import Study, load_study

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def blocks(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", ["decentralized-hmc", "theory"])
def test_the_blocks_of_a_page_run_and_give_the_numbers_beside_them(page: str) -> None:
    names: dict[str, object] = {}
    checked = 0
    for block in blocks(DOCS / f"{page}.md"):
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            text = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
            said = re.search(r"  # (-?\d+\.\d+)$", text)
            if said is None:
                exec(text, names)
                continue
            value = float(np.ravel(eval(text, names))[0])
            digits = len(said[1].split(".")[1])
            assert value == pytest.approx(float(said[1]), abs=0.5 * 10.0**-digits)
            checked += 1
    assert checked >= 1


def patients() -> list[dict[str, np.ndarray]]:
    """Three tables of the columns that the pages name."""
    rng = np.random.default_rng(0)
    found = []
    for size in (60, 40, 50):
        age = rng.normal(60, 9, size).round()
        columns = {"age": age, "days": rng.integers(3, 30, size), "count": rng.poisson(0.5, size)}
        columns["arm"] = rng.choice(["control", "treated"], size)
        columns["stage"] = rng.choice(["I", "II"], size)
        columns["died"] = rng.random(size) < 1 / (1 + np.exp(-0.05 * (age - 60)))
        found.append(columns)
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of R-hat: the second run is short
def test_the_blocks_on_formulas_run_from_three_files(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    files = [f"{site}.csv" for site in ("oslo", "lima", "bern")]
    for file, columns in zip(files, patients(), strict=True):
        pd.DataFrame(columns).to_csv(file, index=False)
    effects, by_site, margins, weighted, compared, checked = blocks(DOCS / "formulas.md")
    first: dict[str, Any] = {}
    exec(effects, first)
    assert "odds ratio" in capsys.readouterr().out
    made, rest = by_site.split("...\n")
    second: dict[str, Any] = {"consortia": consortia, "sites": files}
    exec(made, second)
    own = second["made"]
    method = consortia.federated_hmc()
    second["tree"] = consortia.sample(
        own.model, own.sites, method, rounds=100, warmup=100, metadata=own.metadata, progress=False
    )
    exec(rest, second)
    assert "a new site" in capsys.readouterr().out
    assert Path("forest.png").exists()
    exec(margins, second)
    assert "on the probability of died" in capsys.readouterr().out
    exec(weighted, first | {"sites": files})
    exec(compared, {**first, "other": first["made"], "other_tree": first["tree"]})
    assert "elpd" in capsys.readouterr().out
    exec(checked, first)
    assert "Bayesian R" in capsys.readouterr().out


@pytest.mark.slow
def test_the_block_on_numpyro_runs(capsys) -> None:
    pytest.importorskip("numpyro")
    of_all, of_each = blocks(DOCS / "numpyro.md")
    names: dict[str, Any] = {"sites": of_falls()}
    exec(of_all, names)
    assert "slope" in capsys.readouterr().out
    exec(of_each.replace("oslo", "site 0"), names)
    assert names["level"].dims == ("chain", "draw")


@pytest.mark.slow
def test_the_block_on_pymc_runs(capsys) -> None:
    pytest.importorskip("pymc", reason="the extra pymc is not installed")
    (block,) = blocks(DOCS / "pymc.md")
    exec(block, {"sites": of_falls()})
    assert "slope" in capsys.readouterr().out


def of_falls() -> consortia.Sites:
    numbers = ("count", "days", "age")
    rows = [{key: np.float32(one[key]) for key in numbers} for one in patients()]
    for one in rows:
        one["age"] = (one["age"] - 60) / 10
    return consortia.Sites.from_list(rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of a network's R-hat
def test_the_block_on_networks_predicts_shares_of_classes() -> None:
    pytest.importorskip("flax")
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(300, 4)).astype(np.float32), "y": rng.integers(0, 10, 300)}
    sites = consortia.partition.iid(rows, 3, seed=0)
    (block,) = blocks(DOCS / "networks.md")
    names: dict[str, Any] = {"sites": sites, "test": rows}
    exec(block, names)
    np.testing.assert_allclose(names["shares"].sum("class"), 1, atol=1e-5)


def test_the_block_on_runs_stores_resumes_and_lengthens(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(DOCS / "runs.md")
    names = {
        "model": consortia.models.linear_regression(1),
        "sites": consortia.Sites.from_list(
            [{"x": np.ones((3, 1), np.float32), "y": np.ones(3, np.float32)}]
        ),
        "algorithm": consortia.fa_ld(0.1, 1),
    }
    exec(block.replace("00_000", "0"), names)  # 10 and 20 rounds say as much as 100,000
    assert len(names["tree"]["posterior"].draw) == 20


def test_every_page_with_python_has_a_test_that_runs_it() -> None:
    run = {"decentralized-hmc", "theory", "formulas", "networks", "numpyro", "pymc", "runs"}
    run |= {"nvflare", "vantage6"}  # in tests/federation/test_carried.py
    assert {page.stem for page in PAGES if blocks(page)} == run


def commands() -> list[tuple[str, str]]:
    pages = [*PAGES, *DOCS.glob("tutorials/*.md"), ROOT / "README.md", ROOT / "examples/README.md"]
    found = []
    for page in pages:
        for line in page.read_text(encoding="utf-8").splitlines():
            said = re.match(r"    (?:\$ |mpiexec -n \d+ )?consortia (.*)", line)
            if said and said[1][0].islower():
                found.append((page.stem, said[1]))
    return found


def test_every_command_on_a_page_exists_with_its_options() -> None:
    shown, program = commands(), get_command(app)
    assert len(shown) > 40
    for page, line in shown:
        words = shlex.split(re.split(r"\s(?:#|>|&)", line)[0])
        command: Any = program
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        if hasattr(command, "commands"):
            assert command.invoke_without_command, f"{page}: consortia {line}"
            assert not words or words[0].startswith("-"), f"{page}: consortia {line}"
        options = {name for one in command.params for name in [*one.opts, *one.secondary_opts]}
        given = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert given <= options | {"--help"}, f"{page}: consortia {line}"


def test_a_study_shown_whole_is_a_study() -> None:
    shown = [study for page in DOCS.rglob("*.md") for study in blocks(page, "toml")]
    assert shown
    for study in shown:
        Study.model_validate(tomllib.loads(study))


def test_the_template_for_ones_own_data_as_it_stands_gives_a_good_posterior(tmp_path) -> None:
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    template = text.split("Without a formula")[1].split("## ")[0]
    lines = [line[4:] for line in template.splitlines() if line.startswith("    ")]
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for site in ("oslo", "lima", "pune"):
        age, dose = rng.normal(60, 9, 80), rng.gamma(2, 5, 80)
        died = rng.random(80) < 1 / (1 + np.exp(-0.08 * (age - 60)))
        rows = [f"{a:.1f},{d:.2f},{int(y)}" for a, d, y in zip(age, dose, died, strict=True)]
        (tmp_path / "data" / f"{site}.csv").write_text("\n".join(["age,dose,outcome", *rows, ""]))
    (tmp_path / "study.toml").write_text("\n".join(lines))
    study = load_study(tmp_path / "study.toml")
    built = study.build()
    tree = consortia.sample(
        built.model,
        built.sites,
        built.algorithm,
        **study.run_options,
        metadata=built.metadata,
        progress=False,
    )
    table = consortia.summary(tree)
    assert table.verdict is not None
    assert table.verdict.word == "good", table.verdict.lines()
    # The true coefficient of age, within four of the posterior's own standard deviations.
    assert abs(table.row("coefficients[age]")["mean"] - 0.08) < 4 * table["sd"][0]


def test_the_study_on_the_page_of_formulas_is_one_of_at_most_fifteen_lines() -> None:
    text = (ROOT / "docs" / "formulas.md").read_text(encoding="utf-8")
    study = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0]
    assert len([line for line in study.splitlines() if line.strip()]) <= 15
    assert Study.model_validate(tomllib.loads(study)).model.options["family"] == "bernoulli"
    for name in FAMILIES:
        assert f"| `{name}` |" in text
    for name in FORMS:
        assert name in text
