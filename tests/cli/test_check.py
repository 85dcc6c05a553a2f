"""What is said before a run: its plan, cost and bias; and the documents that list the commands."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main
from cli.irises import DATA, NO_FIGURE, invoke

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.cli import exits
from consortia.cli.commands import app
from consortia.cli.exits import EXIT_CODES, reported
from consortia.diagnostics.figures import comparison
from consortia.report.run_report import load_run
from consortia.study.build import load_study
from consortia.study.model import FROM_DATA, MODELS
from consortia.study.options import arguments
from consortia.study.schema import argument_schemas, json_schema
from consortia.theory import comparison as laws
from consortia.theory.bias import keeps_posterior

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
pytestmark = pytest.mark.usefixtures("one_model_object")
STUDY = (
    DATA.replace("step_size = 0.1", "step_size = 0.05")
    + "[run]\nrounds = 40\nwarmup = 10\nchains = 2\nthin = 2\n"
    + NO_FIGURE
)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "irises.toml"
    path.write_text(STUDY)
    return path


# --- check ---------------------------------------------------------------------------------------


def test_a_plot_has_the_methods_that_could_do_it_and_the_study(study, monkeypatch):
    drawn, write = [], comparison.write_figure
    some = {name: laws.candidates(3)[name] for name in ("fa_hmc", "fsgld", "de_sgld")}
    monkeypatch.setattr(laws, "candidates", lambda sites: some)  # each takes a second or more

    def noted(figure: Any, path: Path) -> Path:
        drawn.append(figure)
        return write(figure, path)

    monkeypatch.setattr(comparison, "write_figure", noted)
    shown = invoke("check", study, "--plot", "methods.png")
    assert shown.exit_code == 0, shown.output
    assert "Bias against messages: methods.png" in shown.stdout
    assert "  without fsgld: " in shown.stdout
    assert Path("methods.png").stat().st_size > 1000
    (axes,) = drawn[0].axes
    (legend,) = drawn[0].legends
    names = [text.get_text() for text in legend.get_texts()]
    assert {"fa_hmc", "de_sgld", "this study"} <= set(names)
    assert "few_rounds" in " ".join(text.get_text() for text in axes.texts)
    assert not any("$" in label.get_text() for label in axes.get_yticklabels())


@pytest.mark.parametrize("sites", [2, 3])
def test_every_method_of_a_plot_can_be_made(sites):
    for name, settings in laws.candidates(sites).items():
        assert ALGORITHMS[name].factory(**settings).name == name


def test_a_plot_of_another_kind_is_refused(study):
    refused = invoke("check", study, "--plot", "methods.txt")
    assert refused.exit_code == 2
    assert ".png, .svg, .pdf" in refused.output


def test_a_plot_of_levels_that_are_integrated_out_is_refused_by_name() -> None:
    pneumonia = Path(__file__).parents[2] / "examples" / "pneumonia" / "study.toml"
    refused = invoke("check", pneumonia, "--plot", "methods.png")
    assert refused.exit_code == 2
    assert "--plot: the laws of approximate methods need a likelihood of rows" in refused.output


def test_the_cost_that_check_tells_is_the_one_that_the_run_records(study):
    told = json.loads(invoke("check", study, "--no-bias", "--json").stdout)["cost"]
    assert not (study.parent / "runs").exists()
    assert invoke("run", study, "-q", "-o", study.parent / "run").exit_code == 0
    record = consortia.open_run(study.parent / "run").attrs
    for key in ("communication_rounds", "bytes_up", "bytes_down", "gradients", "row_gradients"):
        assert told[key] == record[key], key
    assert told["iterations"] == record["iterations_run"] == 50
    assert told["draws"] == 2 * 20


DIVERGING = STUDY.replace("step_size = 0.05", "step_size = 0.8")


@pytest.mark.predicted
def test_check_and_run_refuse_a_step_that_is_predicted_to_diverge(study):
    study.write_text(DIVERGING)
    told = invoke("check", study)
    assert told.exit_code == 11, told.output
    assert "BAD: Do not run these settings" in told.stdout
    assert "Run it with" not in told.stdout
    found = json.loads(invoke("check", study, "--json").stdout)
    assert found["verdict"] == "bad"
    assert found["bias"]["diverges"]
    refused = invoke("run", study, "-o", study.parent / "refused")
    assert refused.exit_code == 11, refused.output
    assert "Do not run these settings" in refused.stderr
    assert not (study.parent / "refused" / "run.json").exists()


@pytest.mark.predicted
def test_settings_that_are_run_anyway_are_bad_in_the_run_its_files_and_its_report(study):
    study.write_text(DIVERGING.replace("0.8", "0.4"))
    assert json.loads(invoke("check", study, "--json").stdout)["verdict"] == "bad"
    directory = study.parent / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        outcome = invoke("run", study, "-o", directory, "--anyway", "--seed", "1")
    assert outcome.exit_code in (0, 4), outcome.output
    if outcome.exit_code == 4:
        assert "not finite" in outcome.stderr
        return
    assert "BAD: Do not use this posterior" in outcome.stdout
    assert json.loads((directory / "summary.json").read_text())["verdict"] == "bad"
    assert load_run(directory).verdict.word == "bad"


def test_check_prints_plan_cost_and_predicted_bias(study):
    outcome = invoke("check", study)
    assert outcome.exit_code == 0, outcome.output
    words = ["nodes", "memory", "network", "Cost of the whole run", "bytes", "gradients"]
    words += ["Predicted means within", "The prediction rests on", "Run it with"]
    told = " ".join(outcome.stdout.split())  # wherever the lines end
    assert re.search(r"farthest: coefficients\[\w+, [a-z ]+", told)  # not a number
    places = [outcome.stdout.index(word) for word in words]
    assert places == sorted(places)


def test_of_moments_check_tells_how_many_draws_are_kept(study):
    lengths = "rounds = 40000\nkeep = 'moments'"
    study.write_text(STUDY.replace("rounds = 40", lengths))
    told = json.loads(invoke("check", study, "--no-bias", "--json").stdout)["cost"]
    assert (told["draws"], told["draws_kept"]) == (2 * 20_000, 2 * 1000)
    assert told["bytes_of_draws"] == 2 * 1000 * 12 * 4


def test_check_refuses_what_a_run_refuses(study):
    study.write_text(STUDY.replace("thin = 2", "thin = 100"))
    for command in ("check", "run"):
        outcome = invoke(command, study)
        assert outcome.exit_code == 2
        assert "run.thin" in outcome.stderr


@pytest.mark.slow
def test_check_can_time_the_run(study):
    study.write_text(STUDY.replace("rounds = 40", "rounds = 4000"))
    told = json.loads(invoke("check", study, "--time", "--no-bias", "--json").stdout)["cost"]
    assert told["seconds"] == pytest.approx(4010 / told["iterations_per_second"])
    assert told["seconds"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_passes_check_with_a_predicted_bias(path):
    outcome = invoke("check", path)
    assert outcome.exit_code == 0, outcome.output
    exact = keeps_posterior(load_study(path).method)
    said = "Predicted bias: none" if exact else "Predicted means within"
    assert said in outcome.stdout


# --- the schema ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_valid_and_names_its_schema(path):
    text = path.read_text()
    jsonschema.Draft202012Validator(json_schema()).validate(tomllib.loads(text))
    assert text.splitlines()[0] == "#:schema study.schema.json"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sites = 3", "site = 3"),
        ("local_steps = 2", 'local_steps = "two"'),
        ("local_steps = 2", "friction = 2.0\nlocal_steps = 2"),
        ("leapfrog_steps = 2", "leapfrog_steps = true"),
        ('"fa_hmc"', '"fa_hcm"'),
        ("rounds = 40", "rounds = 0"),
        ('kind = "softmax_regression"', 'kind = "softmax"'),
        ("step_size = 0.05", 'step_size = { schedule = "wrong" }'),
    ],
)
def test_the_schema_refuses_mistakes(old, new):
    judge = jsonschema.Draft202012Validator(json_schema())
    assert judge.is_valid(tomllib.loads(STUDY))
    assert STUDY.count(old) == 1
    assert not judge.is_valid(tomllib.loads(STUDY.replace(old, new)))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_example_of_every_algorithm_is_valid(name):
    content = tomllib.loads(STUDY)
    example = json.loads(json.dumps(ALGORITHMS[name].example))
    given = {key: "none" if value is None else value for key, value in example.items()}
    content["algorithm"] = {"name": name, **given}
    jsonschema.Draft202012Validator(json_schema()).validate(content)


def test_every_argument_has_a_text_and_a_default_unless_it_is_needed():
    factories = {name: entry.factory for name, entry in ALGORITHMS.items()} | MODELS
    for name, factory in factories.items():
        for argument, one in argument_schemas(factory).items():
            assert one.get("description"), f"{name}.{argument}"
            parameter = arguments(factory)[argument]
            needed = parameter.default is parameter.empty
            assert needed or "default" in one, f"{name}.{argument}"
    assert {"features", "classes"} == set(FROM_DATA)


def test_options_that_are_handed_on_are_those_of_the_algorithm_beside():
    found = arguments(ALGORITHMS["fa_ld"].factory)
    assert {"batch_size", "temperature"} <= set(found)
    assert not {"leapfrog_steps", "workers", "strength"} & set(found)


# --- the documents -------------------------------------------------------------------------------


def script(name: str) -> Any:
    found = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_page_of_the_study_file_and_the_schema_are_up_to_date():
    made = script("write_study_page")
    remedy = "run `make docs`"
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), remedy
    assert made.SCHEMA.read_text(encoding="utf-8") == made.schema_text(), remedy


def test_the_page_of_the_command_line_has_every_command_option_and_exit_code():
    text = (ROOT / "docs" / "command-line.md").read_text()
    group: Any = typer.main.get_command(app)
    listed = re.findall(r"^\| `consortia ([\w-]+)", text, re.MULTILINE)
    assert sorted(listed) == sorted(group.commands)
    for name, command in group.commands.items():
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                known = not option.startswith("--") or option in ("--help", "--bias", "--exact")
                assert known or option in text or option == "--stop", f"{name} {option}"
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in text


def helps(command: Any, name: str = "consortia") -> list[tuple[str, str]]:
    """Every help text of a command, of its options and of its commands."""
    texts = [command.help or "", *(getattr(one, "help", None) or "" for one in command.params)]
    further = getattr(command, "commands", {}).items()
    return [(name, text) for text in texts] + [
        pair for word, inner in further for pair in helps(inner, f"{name} {word}")
    ]


def test_no_help_text_has_a_word_in_brackets_that_a_terminal_takes_for_a_style():
    texts = helps(typer.main.get_command(app))
    assert len(texts) > 100
    for name, text in texts:
        assert not re.search(r"\[[a-z#/@]", text), f"{name}: {text}"


def test_the_table_of_methods_names_every_algorithm():
    section = (ROOT / "docs" / "methods" / "index.md").read_text()
    named = re.findall(
        r"`(\w+)(?:\([^`]*\))?`",
        "\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `")),
    )
    assert set(named) == set(ALGORITHMS), "docs/methods/index.md has a row for each method"


# --- papers --------------------------------------------------------------------------------------


def test_the_list_of_papers_has_every_study_with_its_data_and_verdicts(tmp_path, monkeypatch):
    monkeypatch.setenv("CONSORTIA_DATA", str(tmp_path))
    monkeypatch.setenv("CONSORTIA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a9a").mkdir()
    (tmp_path / "a9a" / "a9a").write_text("x")
    content = json.loads(invoke("papers", "--json").stdout)
    studies = {(entry["paper"], entry["study"]): entry for entry in content["studies"]}
    assert studies["stale-gradients", "speedup"]["data"] == {"a9a": True}
    assert studies["fsgld", "metric_learning"]["data"] == {"isolet": False}
    assert "reproduced" in studies["fa-hmc", "dimension"]["verdicts"].values()
    programs = {path.stem for path in (ROOT / "experiments").glob("*/*.py") if has_a_study(path)}
    assert {name for _, name in studies} == programs


def has_a_study(path: Path) -> bool:
    return "def study(scale: str, seed: int)" in path.read_text()


def test_a_paper_or_figure_that_is_not_there_is_refused_with_those_that_are():
    assert "fa-hmc" in invoke("papers", "run", "fa_hmc").stderr
    assert "dimension" in invoke("papers", "run", "fa-hmc", "--figure", "17").stderr
    assert "--all" in invoke("papers", "run").stderr


def test_without_a_source_tree_papers_says_where_they_are(tmp_path, monkeypatch):
    module = sys.modules["consortia.cli.papers"]  # the name in the package is the command
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "a" / "b" / "c" / "papers.py"))
    outcome = invoke("papers")
    assert outcome.exit_code == 2
    assert "are in the source tree" in outcome.stderr


def test_a_device_that_is_not_there_and_a_full_disk_for_the_output_are_said(tmp_path, monkeypatch):
    def no_device():
        raise AssertionError

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(exits, "_of_backends", lambda error: True)
    with pytest.raises(typer.Exit) as ended, reported(True):
        no_device()
    assert ended.value.exit_code == 2
    with pytest.raises(typer.Exit) as ended, reported(True):
        raise OSError(28, "No space left on device")
    assert ended.value.exit_code == 2
    monkeypatch.undo()
    with pytest.raises(AssertionError), reported(True):
        no_device()  # not JAX's: it is a mistake of ours, with its traceback


@pytest.mark.parametrize(
    ("formula", "integrate", "advised"),
    [
        ("y ~ x + (1 | site)", "integrate = false", True),
        ("y ~ x + (1 | site)", "", False),  # integrated out by default
        ("y ~ x + arm + (0 + arm | site)", "", False),  # three levels cannot be
        ("y ~ x", "integrate = false", False),
    ],
)
def test_levels_that_could_be_integrated_out_are_advised_to_be(
    formula, integrate, advised, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(1)
    for name in "abc":
        rows = [f"{rng.gauss(0, 1)},{x},{'uvw'[x % 3]}" for x in range(30)]
        Path(f"{name}.csv").write_text("\n".join(["y,x,arm", *rows, ""]))
    Path("study.toml").write_text(
        f'title = "t"\n[data]\nfiles = ["a.csv", "b.csv", "c.csv"]\n[model]\n'
        f'formula = "{formula}"\nfamily = "gaussian"\n{integrate}\n'
        '[algorithm]\nname = "few_rounds"\n'
    )
    told = json.loads(invoke("check", "study.toml", "--json", "--no-bias").stdout)
    assert any("integrates its own out" in note for note in told["notes"]) == advised
