"""What `import consortia` loads, and what it does not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import consortia

RESULTS = {
    "arviz",
    "arviz_base",
    "arviz_stats",
    "blackjax",
    "flwr",
    "matplotlib",
    "mpi4py",
    "networkx",
    "pandas",
    "pooch",
    "pydantic",
    "rich",
    "scipy",
    "sklearn",
    "typer",
    "xarray",
    "zarr",
}
"""What has no part in drawing: loaded with the first result, file, graph, figure or command."""
HEAVY = RESULTS | {"jax", "numpy"}


def loaded(code: str) -> set[str]:
    """Return the names of the top-level modules that a process has loaded after some code."""
    listing = f"{code}\nimport sys; print(*sys.modules)"
    outcome = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in outcome.stdout.split()}


def test_the_import_alone_loads_nothing_heavy():
    assert not loaded("import consortia; consortia.__version__") & HEAVY


def test_all_that_samples_loads_jax_and_nothing_of_results_files_and_figures():
    found = loaded("from consortia import *")
    assert not found & RESULTS
    assert {"jax", "numpy"} <= found


def test_every_public_name_is_there_and_of_the_stub():
    assert {"fa_hmc", "sample", "graphs", "__version__"} <= set(consortia.__all__)
    assert set(consortia.__all__) <= set(dir(consortia))
    for name in consortia.__all__:
        assert getattr(consortia, name) is not None


def test_a_module_of_the_package_is_an_attribute_and_another_name_is_not():
    assert consortia.errors.InputError.__name__ == "InputError"
    with pytest.raises(AttributeError, match="has no attribute 'nowhere'"):
        _ = consortia.nowhere


def test_a_method_that_is_gone_is_no_public_name_and_names_another():
    assert "surrogate_hmc" not in consortia.__all__
    with pytest.raises(AttributeError, match="surrogate_hmc was removed: use few_rounds"):
        consortia.surrogate_hmc(proposals_per_round=8)


PNEUMONIA = Path(__file__).resolve().parents[2] / "examples" / "pneumonia"
TABLES = ["aarhus.csv", "bilbao.csv", "cork.csv"]

PROCESSES: tuple[dict[str, list[str]], ...] = (
    {
        "help": ["--help"],
        "schema": ["schema"],
        "init": ["init", *TABLES, "--response", "died", "--yes", "--output", "made.toml"],
        "check": ["check", "study.toml"],
        "describe": ["describe", "study.toml"],
        "site key": ["site", "key", "aarhus"],
        "site check": ["site", "check", "--study", "study.toml", "--data", "aarhus.csv"],
        "register": ["register", "letters.toml"],
    },
    {"site rehearse": ["site", "rehearse", "letters.toml", "--data", "aarhus.csv"]},
    {"letter open": ["letter", "open", "letters.toml", "--folder", "letters", "--shared", "post"]},
    {
        "letter answer": [
            *("letter", "answer", "post/aarhus/question-001.letter", "--data", "aarhus.csv"),
            *("--folder", "aarhus", "--yes"),
        ]
    },
    {
        "letter next": ["letter", "next", "letters"],
        "run": ["run", "study.toml", "--output", "made"],
        "run without levels": ["run", "letters.toml", "--output", "plain"],
        "run privately": ["run", "private.toml"],
    },
    {"report": ["report", "made"], "report without levels": ["report", "plain"]},
)
"""Commands on a formula that compile nothing, in the order in which they are run.

Those of one process load what those before them have loaded, too: the first that fails is at fault.
"""

WITHOUT_JAX = [name for commands in PROCESSES for name in commands]

COMMANDS = """
import json, sys
from consortia.cli import main
for name, arguments in json.loads(sys.argv[1]).items():
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (name, ended.code)
    print("modules:", name, *sys.modules, sep="|")
"""


LETTERS = f"""
[data]
files = {TABLES}
[model]
formula = "died ~ age + sex + crp + arm"
family = "bernoulli"
missing = "complete"
[algorithm]
name = "few_rounds"
[run]
secure_sums = false
"""

PRIVATE = LETTERS.replace(
    'name = "few_rounds"', 'name = "private_posterior"\nepsilon = 3.0\ndelta = 1e-6\nclip = 3.0'
)

POLICY = """
models = ["any"]
maximum_rounds = 1000
minimum_rows = 50
secure_sums = false
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the top-level modules that each command has loaded at its end."""
    folder = tmp_path_factory.mktemp("commands")
    for name in [*TABLES, "study.toml"]:
        shutil.copy(PNEUMONIA / name, folder)
    (folder / "letters.toml").write_text(LETTERS)
    (folder / "private.toml").write_text(PRIVATE)
    (folder / "aarhus").mkdir()
    (folder / "aarhus" / "site-policy.toml").write_text(POLICY)
    modules_by_command = {}
    for commands in PROCESSES:
        outcome = subprocess.run(
            [sys.executable, "-c", COMMANDS, json.dumps(commands)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert outcome.returncode == 0, (list(commands), outcome.stderr)
        for line in outcome.stdout.splitlines():
            if line.startswith("modules:|"):
                _, name, *names = line.split("|")
                modules_by_command[name] = {module.split(".")[0] for module in names}
    return modules_by_command


@pytest.mark.parametrize("command", WITHOUT_JAX)
def test_a_command_on_a_formula_does_not_load_jax(command, modules):
    assert "consortia" in modules[command]
    assert "jax" not in modules[command]


RUNNING = "letter open", "letter next", "site rehearse"
"""Other commands that run a study, or a part of it."""

UNUSED = {"arviz_base", "arviz_stats", "sklearn", "networkx", "pooch", "flwr"}
"""What no command but a report uses, which smooths weights by ArviZ."""


@pytest.mark.parametrize("command", [name for name in WITHOUT_JAX if "report" not in name])
def test_a_command_loads_nothing_that_it_does_not_use(command, modules):
    assert not modules[command] & UNUSED
    if not command.startswith("run") and command not in RUNNING:
        assert not modules[command] & {"matplotlib", "pandas", "xarray", "zarr"}


APPS = """
import os, shutil, sys
from pathlib import Path
from consortia.engines.messages.transport import InProcess
from consortia.federation.app import answer, client_app, serve, server_app

study = Path("letters.toml")
server_app(study), client_app(study)  # whose functions are called here without Flower's network

def site(name):
    os.makedirs(f"nodes/{name}")
    shutil.copy("aarhus/site-policy.toml", f"nodes/{name}")
    node = {"site": name, "data": f"{name}.csv", "folder": f"nodes/{name}"}
    return lambda message: answer(study, message, node, {})

sites = {number: site(name) for number, name in enumerate(["aarhus", "bilbao", "cork"])}
serve(study, InProcess(sites), {"output": "network", "join-deadline": 60, "quiet": True})
print("modules:", *sys.modules)
"""


def test_the_apps_of_flower_do_not_load_jax_for_a_formula(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    for name in TABLES:
        shutil.copy(PNEUMONIA / name, tmp_path)
    (tmp_path / "letters.toml").write_text(LETTERS)
    (tmp_path / "aarhus").mkdir()
    permitted = 'messages = ["description", "moments", "query"]\n'
    (tmp_path / "aarhus" / "site-policy.toml").write_text(POLICY + permitted)
    outcome = subprocess.run(
        [sys.executable, "-c", APPS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert (tmp_path / "network" / "summary.txt").exists()
    loaded_modules = outcome.stdout.rpartition("modules:")[2].split()
    assert "flwr.clientapp" in loaded_modules
    assert "jax" not in loaded_modules
