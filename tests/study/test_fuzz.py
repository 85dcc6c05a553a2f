"""Studies with random mistakes: always exit code 2 and a text that names the place."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from consortia.algorithms.registry import ALGORITHMS
from consortia.cli.commands import app
from consortia.errors import InputError
from consortia.study.build import Study, load_study
from consortia.study.model import MODELS
from consortia.study.options import SCHEDULES

STUDY: dict[str, Any] = {
    "title": "Irises",
    "data": {"dataset": "iris", "test_share": 0.2, "standardise": True},
    "partition": {"kind": "iid", "sites": 3},
    "model": {"kind": "softmax_regression"},
    "algorithm": {"name": "fa_hmc", "step_size": 0.1, "leapfrog_steps": 2, "local_steps": 2},
    "run": {"rounds": 40, "chains": 2},
    "stop": {"rhat": 1.01},
    "reference": {"draws": 60},
    "output": {"figure": False},
}
QUICK, MANY = 60, 1500

words = st.one_of(
    st.sampled_from(
        [*ALGORITHMS, *MODELS, *SCHEDULES, "iris", "iid", "none", "ring", "nuts", "", "float32"]
    ),
    st.text(alphabet="abcxyz_.:-µ'\" \n", max_size=8),
)
numbers = st.one_of(
    st.integers(-3, 5),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=True, allow_infinity=True),
)
scalars = st.one_of(words, numbers, st.booleans())
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["schedule", "model", "kind", "initial", "x"]), inner),
    ),
    max_leaves=4,
)
options = sorted(
    {key for table in STUDY.values() if isinstance(table, dict) for key in table}
    | {"weights", "batch_size", "mixing", "mass_matrix", "temperature", "latency", "friction"}
    | {"surrogate", "workers", "extrapolate", "debias", "factory", "files", "prior_scale", "wrong"}
)


@st.composite
def mistakes(draw: Any) -> dict[str, Any]:
    """A study with one to four keys set to anything, left out, or put where they do not belong."""
    study = copy.deepcopy(STUDY)
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(ALGORITHMS)))
        example = ALGORITHMS[name].example
        given = {key: value for key, value in example.items() if value is not None}  # no null here
        study["algorithm"] = {"name": name, **given}
    for _ in range(draw(st.integers(1, 4))):
        table = draw(st.sampled_from(sorted(STUDY)))
        kind = draw(st.sampled_from(["set", "drop", "table", "top"]))
        own = study.get(table)
        if kind == "set" and isinstance(own, dict):
            own[draw(st.sampled_from([*own, *options]))] = draw(values)
        elif kind == "drop" and isinstance(own, dict) and own:
            del own[draw(st.sampled_from(sorted(own)))]
        elif kind == "table":
            study[table] = draw(values)
        else:
            study[draw(words)] = draw(values)
    return study


def toml(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf"}.get(str(value), str(value))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    return str(value)


def refused(path: Path, study: dict[str, Any]) -> str | None:
    """What is said of the study, or None where it can be used."""
    path.write_text("".join(f"{json.dumps(k)} = {toml(v)}\n" for k, v in study.items()))
    try:
        load_study(path)
    except InputError as error:
        return str(error)
    return None


def names_a_place(text: str, path: Path, study: dict[str, Any]) -> bool:
    """Whether every line names the file and a table, a key, or a choice that has to be made."""
    known = {*Study.model_fields, *study}
    for table in study.values():
        known |= set(table) if isinstance(table, dict) else set()
    said = text.replace(str(path), "").replace("study", "")
    return text.startswith(str(path)) and any(str(name) in said for name in known if name)


def check(folder: Path, study: dict[str, Any]) -> None:
    path = folder / "fuzz.toml"
    text = refused(path, study)
    if text is not None:
        assert names_a_place(text, path, study), text


FUZZ: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@settings(max_examples=QUICK, **FUZZ)
@given(study=mistakes())
def test_a_mistaken_study_is_refused_by_name(tmp_path, study):
    check(tmp_path, study)


@pytest.mark.slow
@settings(max_examples=MANY, **FUZZ)
@given(study=mistakes())
def test_no_mistake_in_a_study_ends_in_a_traceback(tmp_path, study):
    check(tmp_path, study)


@settings(max_examples=15, **FUZZ)
@given(content=st.one_of(st.text(max_size=60), st.binary(max_size=60)))
def test_a_file_that_is_no_study_has_exit_code_2(tmp_path, content):
    path = tmp_path / "fuzz.toml"
    path.write_bytes(
        content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    )
    outcome = CliRunner().invoke(app, ["check", str(path)])
    assert outcome.exit_code == 2, outcome.output
    assert str(path) in outcome.stderr
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@settings(max_examples=150, **FUZZ)
@given(study=mistakes())
def test_the_command_answers_every_study_with_an_exit_code(tmp_path, study):
    path = tmp_path / "fuzz.toml"
    small = study.get("run")
    if isinstance(small, dict) and isinstance(small.get("chains"), int):
        small["chains"] = min(small["chains"], 4)
    refused(path, study)
    outcome = CliRunner().invoke(app, ["check", str(path), "--no-bias"])
    assert outcome.exit_code in (0, 2, 3, 5, 6), outcome.output
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit)


def test_the_fuzzed_study_itself_is_fine(tmp_path):
    assert refused(tmp_path / "fuzz.toml", STUDY) is None
