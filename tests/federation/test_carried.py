"""A study that travels as text with each message: by hand, by vantage6's tasks, by NVFlare's."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import consortia
from consortia.engines.messages.identities import made_keys
from consortia.engines.messages.transport import InProcess
from consortia.federation.carried import answer_carried, keep_study, serve_carried
from consortia.federation.governance import verify
from consortia.federation.governance.gate import LEDGER
from tests.federation.correspondence import POLICY
from tests.federation.hospitals import HOSPITALS, NAMES, check_posterior, study
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, language: str = "python") -> list[str]:
    """Return what a page has in a language."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def made(root: Path, *, keys: bool = True) -> dict[str, Path]:
    """Return the folders of three sites with keys, policies and rows, and of the coordinator."""
    folders = {name: root / name for name in (*NAMES, "coordinator")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    sites = {name: folders[name] for name in NAMES}
    more = made_keys(folders["coordinator"] / "keys", sites) if keys else ""
    for name, folder in sites.items():
        (folder / "site-policy.toml").write_text(POLICY + more)
        (folder / "site.toml").write_text(f'data = "{HOSPITALS / name}.csv"\n')
    return folders


def check(run: Path, sites: dict[str, Path]) -> None:
    """Check the posterior of a run, and that each site has written down its answers."""
    check_posterior(consortia.open_run(run))
    for name in NAMES:
        assert verify(sites[name] / LEDGER).problem is None


def test_three_sites_answer_a_study_that_comes_as_text(tmp_path: Path) -> None:
    folders, text = made(tmp_path), study()

    def site(name: str):
        return lambda message: answer_carried(text, message, folders[name], name)

    transport = InProcess(dict(enumerate(map(site, NAMES))))
    said = serve_carried(text, transport, folders["coordinator"])
    assert "coefficients[age]" in said
    (run,) = (folders["coordinator"] / "studies").glob("*/run")
    check(run, folders)
    assert serve_carried(text, transport, folders["coordinator"]) == said  # it is finished


def test_masked_sums_without_keys_are_refused_over_a_network(tmp_path: Path) -> None:
    folders = made(tmp_path, keys=False)
    transport = InProcess({})
    transport.remote = True
    with refused(argument="keys"):
        serve_carried(study(), transport, folders["coordinator"])


@pytest.mark.parametrize(
    ("text", "argument", "match"),
    [
        ("[data", "study", "is not TOML"),
        (
            study().replace('kind = "log', 'factory = "a:b"\nkind = "log'),
            "model",
            "give|carry no code",
        ),
        (
            study('name = "fa_hmc"\nstep_size = 0.1\nleapfrog_steps = 1\nlocal_steps = 1'),
            "algorithm.name",
            "thousan",
        ),
    ],
)
def test_a_study_that_tasks_do_not_carry_is_refused(
    tmp_path: Path, text: str, argument: str, match: str
) -> None:
    with refused(argument=argument, match=match):
        keep_study(text, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_site_that_does_not_know_its_rows_names_the_file_and_the_key(tmp_path: Path) -> None:
    with refused(argument="data", file=str(tmp_path / "site.toml")):
        answer_carried(study(), b"", tmp_path, "north")


def test_three_organizations_run_a_study_over_the_mock_client_of_vantage6(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock = pytest.importorskip("vantage6.algorithm.tools.mock_client", reason="no vantage6")
    import pandas as pd

    from consortia.federation import vantage6

    folders = made(tmp_path)
    for name in NAMES:
        (folders[name] / "site.toml").unlink()
    data = [[{"database": pd.DataFrame({"a": [1]})}] for _ in NAMES]
    numbers = [11, 12, 13]
    package = "consortia.federation.vantage6"
    client = mock.MockAlgorithmClient(data, package, organization_ids=numbers)
    create = client.task.create

    def at_its_node(input_, organizations, name):
        """Run a task with the environment that the node of its organization gives it."""
        site = NAMES[numbers.index(organizations[0])]
        with monkeypatch.context() as patched:
            patched.setenv("CONSORTIA_SITE", site)
            patched.setenv("CONSORTIA_FOLDER", str(folders[site]))
            patched.setenv("USER_REQUESTED_DATABASE_LABELS", "default")
            patched.setenv("DEFAULT_DATABASE_URI", str(HOSPITALS / f"{site}.csv"))
            return create(input_=input_, organizations=organizations, name=name)

    monkeypatch.setattr(client.task, "create", at_its_node)
    monkeypatch.setenv("CONSORTIA_FOLDER", str(folders["coordinator"]))
    said = vantage6.central(mock_client=client, study=study())
    assert "coefficients[age]" in said
    (run,) = (folders["coordinator"] / "studies").glob("*/run")
    check(run, folders)


def test_a_task_that_fails_is_an_arrival_without_a_message() -> None:
    pytest.importorskip("vantage6.algorithm.tools.mock_client", reason="no vantage6")
    from consortia.federation.vantage6 import TaskTransport

    states = iter(["active", "crashed"])
    client = SimpleNamespace(
        task=SimpleNamespace(create=lambda **given: {"id": 7}),
        run=SimpleNamespace(from_task=lambda task: [{"status": next(states)}]),
    )
    transport = TaskTransport(client, [3], "study")
    (name,) = transport.push([(3, b"a")], 10)
    assert transport.replies([name]) == []
    (arrival,) = transport.replies([name])
    assert (arrival.sender, arrival.payload, arrival.error) == (3, None, "its task failed")


def test_the_entry_of_the_algorithm_store_names_the_functions_and_their_arguments() -> None:
    entry = json.loads((ROOT / "docker" / "vantage6" / "algorithm_store.json").read_text())
    source = (ROOT / "src" / "consortia" / "federation" / "vantage6.py").read_text()
    assert {one["name"]: one["type"] for one in entry["functions"]} == {
        "central": "central",
        "answer": "federated",
    }
    assert entry.keys() >= {"image", "partitioning", "vantage6_version", "code_url"}  # required
    types = {one["type"] for function in entry["functions"] for one in function["arguments"]}
    assert types <= {"string", "organization_list", "float"}  # of those that the store 4.15 knows
    defined = {node.name: node for node in ast.parse(source).body if hasattr(node, "args")}
    for function in entry["functions"]:
        given = [argument.arg for argument in defined[function["name"]].args.args]
        names = [one["name"] for one in function["arguments"]]
        assert names == [name for name in given if name != "client"]


def test_the_page_on_vantage6_calls_the_central_function_with_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict] = []
    page = (ROOT / "docs" / "vantage6.md").read_text(encoding="utf-8")
    (asks,) = blocks("vantage6")
    (tmp_path / "study.toml").write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    monkeypatch.chdir(tmp_path)

    # as that of the client 4.15, which has no default for the first five
    def create(organizations, name, image, description, input_, collaboration, databases):
        asked.append({"input_": input_})
        return {"id": 1}

    client = SimpleNamespace(
        authenticate=lambda *words: None,
        setup_encryption=lambda key: None,
        task=SimpleNamespace(create=create),
        wait_for_results=lambda task: {"data": [{"result": "the summary"}]},
    )
    package = SimpleNamespace(UserClient=lambda *words: client)
    monkeypatch.setitem(sys.modules, "vantage6", SimpleNamespace(client=package))
    monkeypatch.setitem(sys.modules, "vantage6.client", package)
    exec(asks, {})
    kwargs = asked[0]["input_"]["kwargs"]
    assert keep_study(kwargs.pop("study"), tmp_path / "folder").is_file()
    assert (asked[0]["input_"]["method"], kwargs) == ("central", {})


def job_of_nvflare(root: Path) -> tuple[Path, str]:
    """Lay out the folders of a job; return its workspace, and the page's code that runs it."""
    workspace = root / "workspace" / "consortia"
    for name, folder in made(root / "made").items():
        to = workspace / "local" / "consortia"
        shutil.copytree(folder, to if name == "coordinator" else to / name, dirs_exist_ok=True)
    (root / "study.toml").write_text(study())
    (permitted,) = blocks("nvflare", "json")
    (workspace / "local" / "resources.json").write_text(permitted)
    return workspace, blocks("nvflare")[-1].replace("WORKSPACE", str(root / "workspace"))


@pytest.mark.engines
def test_three_client_processes_run_a_study_as_a_job_of_nvflare(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="no nvflare: pip install nvflare")
    workspace, code = job_of_nvflare(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert not list(workspace.rglob("custom"))  # the job brings no code
    (run,) = workspace.rglob("run.json")
    check(run.parent, {name: workspace / name / "local" / "consortia" / name for name in NAMES})
