"""Study files: what they build, and how a mistake in one is answered."""

from __future__ import annotations

import inspect
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consortia import sample, schedules
from consortia.errors import InputError
from consortia.run.stopping import stop_when
from consortia.study.build import Study, load_study
from consortia.study.schema import json_schema
from tests.refusals import refused

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STUDY = """
title = "A study"

[data]
dataset = "iris"
test_share = 0.2
standardise = true

[partition]
kind = "dirichlet"
sites = 3
concentration = 1.0

[model]
kind = "softmax_regression"
intercept = true

[algorithm]
name = "fa_hmc"
step_size = 0.05
leapfrog_steps = 2
local_steps = 3

[run]
rounds = 100
thin = 5
"""


def load(folder: Path, text: str = STUDY) -> Study:
    path = folder / "study.toml"
    path.write_text(text)
    return load_study(path)


def message(folder: Path, *replacements: tuple[str, str], build: bool = False) -> str:
    """The error of the study with these replacements."""
    text = STUDY
    for old, new in replacements:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    if build:
        study = load(folder, text)
    with pytest.raises(InputError) as caught:
        study.build() if build else load(folder, text)
    assert str(caught.value).startswith(str(folder / "study.toml"))
    return str(caught.value)


# --- the examples --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_builds(path):
    built = load_study(path).build()
    assert len(built.sites) > 1
    assert built.held_out is not None
    assert built.model.check is not None
    assert all(built.model.check(site) is None for site in built.sites)
    assert built.model.check(built.held_out) is None


def test_the_examples_are_those_that_their_readme_lists():
    names = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.toml")}
    text = (EXAMPLES / "README.md").read_text()
    assert names
    assert all(f"]({name})" in text for name in names)
    assert text.count(".toml](") == len(names)


def test_the_demo_has_four_sites_of_unlike_patients_and_31_parameters():
    path = EXAMPLES / "breast_cancer.toml"
    assert "sites = 4" in path.read_text().splitlines()
    built = load_study(path).build()
    assert len(built.sites) == 4
    shares = [float(np.mean(site["y"])) for site in built.sites]
    assert max(shares) - min(shares) > 0.9
    assert sum(np.size(leaf) for leaf in built.model.init.values()) == 31
    assert len(built.held_out["y"]) + built.sites.rows == 569


# --- what is built -------------------------------------------------------------------------------


def test_held_out_rows_are_scaled_by_the_train_rows(tmp_path):
    built = load(tmp_path).build()
    pooled = built.sites.pooled()
    np.testing.assert_allclose(pooled["x"].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(pooled["x"].std(axis=0), 1, atol=1e-12)
    assert len(built.held_out["y"]) == 30
    assert abs(built.held_out["x"].mean(axis=0)).max() > 1e-3


def test_labels_name_classes_and_features(tmp_path):
    labels = load(tmp_path).build().labels
    assert labels["coefficients"][0] == ("setosa", "versicolor", "virginica")
    assert labels["coefficients"][1][0] == "sepal length (cm)"
    assert labels["intercept"] == (("setosa", "versicolor", "virginica"),)


def test_an_equal_file_builds_an_equal_algorithm_and_equal_shards(tmp_path):
    one, two = load(tmp_path).build(), load(tmp_path).build()
    assert one.algorithm == two.algorithm
    for a, b in zip(one.sites, two.sites, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0.1", schedules.constant(0.1)),
        ("[0.2, 0.1]", schedules.as_schedule([0.2, 0.1])),
        (
            '{ schedule = "polynomial", initial = 0.1, offset = 10, power = 0.4 }',
            schedules.polynomial(0.1, 10, 0.4),
        ),
        (
            '{ schedule = "fa_hmc_stages", initial = 0.1, first_stage = 20 }',
            schedules.fa_hmc_stages(0.1, 20),
        ),
    ],
)
def test_a_step_size_is_a_number_an_array_or_a_schedule_by_name(tmp_path, written, expected):
    text = STUDY.replace("step_size = 0.05", f"step_size = {written}")
    assert load(tmp_path, text).build().algorithm.step_size == expected


def test_none_as_text_is_none(tmp_path):
    text = STUDY.replace("local_steps = 3", 'local_steps = 3\nbatch_size = "none"')
    assert load(tmp_path, text).build().algorithm.batch_size is None


def test_options_that_one_factory_hands_on_to_another_are_known(tmp_path):
    text = STUDY.replace('"fa_hmc"', '"fa_ld"').replace("leapfrog_steps = 2", "batch_size = 8")
    assert load(tmp_path, text).build().algorithm.batch_size == 8


def test_the_stopping_rule_is_built(tmp_path):
    study = load(tmp_path, STUDY + "\n[stop]\nrhat = 1.01\ness = 400\n")
    assert study.build().stop == stop_when(rhat=1.01, ess=400)


def test_values_of_the_run_can_be_replaced(tmp_path):
    study = load(tmp_path).with_run(seed=7, rounds=None)
    assert (study.run.seed, study.run.rounds, study.name) == (7, 100, "study")


@pytest.mark.parametrize("kind", ["iid", "label_shards", "quantity", "by_column"])
def test_every_partition_builds(tmp_path, kind):
    own = {
        "iid": "",
        "label_shards": "shards_per_site = 2",
        "quantity": "exponent = 1.0",
        "by_column": 'column = "petal width (cm)"',
    }[kind]
    text = STUDY.replace('"dirichlet"', f'"{kind}"').replace("concentration = 1.0", own)
    assert len(load(tmp_path, text).build().sites) == 3


def test_groups_by_column_are_named_by_the_values_as_they_were_read(tmp_path):
    own = 'column = "petal width (cm)"'
    text = STUDY.replace('"dirichlet"', '"by_column"').replace("concentration = 1.0", own)
    names = load(tmp_path, text).build().sites.names
    assert names[0].startswith("petal width (cm)<0.")


def test_narrow_numbers_are_asked_for(tmp_path):
    text = STUDY.replace("standardise = true", 'standardise = true\ndtype = "float32"')
    pooled = load(tmp_path, text).build().sites.pooled()
    assert (pooled["x"].dtype, pooled["y"].dtype) == (np.float32, np.int32)


def test_a_measured_response_is_scaled_on_request(tmp_path):
    text = (EXAMPLES / "diabetes_linear.toml").read_text()
    built = load(tmp_path, text).build()
    assert built.sites.pooled()["y"].std() == pytest.approx(1, abs=1e-5)
    assert "log_noise_scale" in built.model.init


# --- one file per site ---------------------------------------------------------------------------


def write_sites(folder: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tables = {}
    for name, rows in (("oslo", 12), ("lima", 30)):
        x, y = rng.normal(size=(rows, 2)), rng.integers(0, 2, size=rows)
        tables[name] = np.column_stack([x[:, 0], y, x[:, 1]])
        header = "age,outcome,dose"
        np.savetxt(folder / f"{name}.csv", tables[name], delimiter=",", header=header, comments="")
    return tables


FILES = """
[data]
files = ["oslo.csv", "lima.csv"]
target = "outcome"

[model]
kind = "logistic_regression"

[algorithm]
name = "fa_ld"
step_size = 0.1
local_steps = 2

[run]
rounds = 10
"""


def test_a_csv_file_is_a_site_under_its_own_name(tmp_path):
    tables = write_sites(tmp_path)
    built = load(tmp_path, FILES).build()
    assert built.sites.names == ("oslo", "lima")
    assert built.labels["coefficients"][-1] == ("age", "dose")
    assert built.held_out is None
    for name, table in tables.items():
        np.testing.assert_allclose(built.sites.site(name)["x"], table[:, [0, 2]])
        np.testing.assert_array_equal(built.sites.site(name)["y"], table[:, 1])


@pytest.mark.parametrize(
    "dialect",
    [
        lambda text: text.replace(",", ";").replace(".", ","),
        lambda text: text.replace(",", "\t"),
        lambda text: "sep=,\n" + text,
        lambda text: text.replace("\n", "\r\n") + "\r\n\r\n",
        lambda text: re.sub(r"[^,\n]+", r'"\g<0>"', text),
    ],
    ids=["semicolons", "tabs", "declared", "blank lines", "quotes"],
)
def test_files_of_every_dialect_give_the_same_rows(tmp_path, dialect):
    write_sites(tmp_path)
    expected = load(tmp_path, FILES).build().sites.site("lima")
    path = tmp_path / "lima.csv"
    path.write_bytes(dialect(path.read_text()).encode())
    read = load(tmp_path, FILES).build().sites.site("lima")
    for name, rows in expected.items():
        np.testing.assert_array_equal(read[name], rows)


def test_every_site_holds_out_its_own_share(tmp_path):
    write_sites(tmp_path)
    text = FILES.replace('"outcome"', '"outcome"\ntest_share = 0.5\nstandardise = true')
    built = load(tmp_path, text).build()
    assert built.sites.sizes.tolist() == [6, 15]
    assert len(built.held_out["y"]) == 21


def test_npz_files_and_a_model_of_ones_own(tmp_path):
    for name, rows in (("a", 4), ("b", 6)):
        np.savez(tmp_path / f"{name}.npz", counts=np.arange(rows), hours=np.ones(rows))
    (tmp_path / "own_model_of_counts.py").write_text(
        "import jax.numpy as jnp\n"
        "import consortia\n"
        "def build(scale=1.0):\n"
        "    def log_likelihood(params, batch):\n"
        "        rate = params['log_rate'] + jnp.log(batch['hours'])\n"
        "        return batch['counts'] * rate - jnp.exp(rate)\n"
        "    prior = lambda params: -0.5 * (params['log_rate'] / scale) ** 2\n"
        "    return consortia.Model(prior, log_likelihood, {'log_rate': jnp.zeros(())})\n"
    )
    text = FILES.replace('["oslo.csv", "lima.csv"]', '["a.npz", "b.npz"]')
    text = text.replace('target = "outcome"\n', "")
    text = text.replace('kind = "logistic_regression"', 'factory = "own_model_of_counts:build"')
    built = load(tmp_path, text).build()
    assert set(built.sites.pooled()) == {"counts", "hours"}
    assert set(built.model.init) == {"log_rate"}
    assert built.labels == {}
    np.savez(tmp_path / "test.npz", counts=np.array(["a"]), hours=np.ones(1))
    text = text.replace("[data]", '[data]\ntest_file = "test.npz"')
    with refused(match="test.npz: array 'counts' holds <U1, not numbers"):
        load(tmp_path, text).build()


@pytest.mark.parametrize(
    ("content", "argument", "line", "match"),
    [
        (None, None, None, "no such file"),
        ("age,outcom,dose\n1,1,2\n", None, None, "did you mean 'outcom'?"),
        ("age,outcome,dose\n1,yes,2\n", "outcome", 2, "it is text, not a number; a model.formula"),
        ("age,outcome,dose\n1,1,2\n#2,1,2\n", "age", 3, "it is text"),
        ("age,outcome,dose\n1,1,2\n1,1\n", None, 3, "2 fields under 3 names"),
        ("age,outcome,dose\n1,1\n", None, 2, "2 fields under 3 names"),
        (
            ",age,outcome,dose\n0,1,1,2\n",
            None,
            None,
            "line 1 has a column without a name: remove it",
        ),
        ("age,outcome,age\n1,1,2\n", None, None, "line 1 has the name 'age' twice"),
        ("size,outcome,dose\n1,1,2\n", None, None, "not have the same columns as"),
        ("size,outcome,dose\n1,1,2\n", None, None, "(it lacks age; only the former has size)"),
        ("dose,outcome,age\n1,1,2\n", None, None, "(or a different order)"),
        ("age,outcome,dose\n1,,2\n", "outcome", 2, "the value is missing"),
        ("age,outcome,dose\n1,1,NA\n", "dose", 2, "the value is missing; remove or impute"),
        ("age;outcome;dose\n1.5;1;2\n1,5;1;2\n", "age", 2, "its decimal mark is ambiguous"),
        ("age,outcome,dose\n1,1,2024-01-31\n", "dose", 2, "it is text"),
    ],
)
def test_an_unusable_file_is_named(tmp_path, content, argument, line, match):
    write_sites(tmp_path)
    (tmp_path / "lima.csv").unlink()
    if content is not None:
        (tmp_path / "lima.csv").write_text(content)
    file, match = str(tmp_path / "lima.csv"), re.escape(match)
    with refused(argument=argument, file=file, line=line, match=match):
        load(tmp_path, FILES).build()


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "key", "nearest"),
    [
        ("title =", "titel =", "titel", "title"),
        ("[run]", "[runn]", "[runn]", "run"),
        ("standardise", "standardize", "data.standardize", "standardise"),
        ("sites = 3", "site = 3", "partition.site", "sites"),
        ("intercept", "intercepts", "model.intercepts", "intercept"),
        ("leapfrog_steps", "leapfrog_step", "algorithm.leapfrog_step", "leapfrog_steps"),
        ("thin", "thinn", "run.thinn", "thin"),
        ('"iris"', '"irish"', "data.dataset", "iris"),
        ('"dirichlet"', '"dirichelet"', "partition.kind", "dirichlet"),
        ('"softmax_regression"', '"softmax"', "model.kind", "softmax_regression"),
        ('"fa_hmc"', '"fa-hmc"', "algorithm.name", "fa_hmc"),
        (
            "step_size = 0.05",
            'step_size = { schedule = "polynom", initial = 1 }',
            "algorithm.step_size.schedule",
            "polynomial",
        ),
        (
            "step_size = 0.05",
            'step_size = { schedule = "constant", valu = 1 }',
            "algorithm.step_size.valu",
            "value",
        ),
    ],
)
def test_an_unknown_name_is_answered_with_its_key_and_the_nearest_known_one(
    tmp_path, old, new, key, nearest
):
    text = message(tmp_path, (old, new))
    assert key in text
    assert f"did you mean {nearest!r}?" in text


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("sites = 3", 'sites = "3"', "partition.sites = '3': it should be a valid integer"),
        ("sites = 3", "sites = 0", "partition.sites = 0"),
        ("rounds = 100", "rounds = true", "run.rounds = True"),
        ("rounds = 100", "rounds = 1.5", "run.rounds = 1.5"),
        ('"softmax_regression"', '"local_losses"', "model.kind = 'local_losses'"),
        ("rounds = 100", "", "run.rounds is missing"),
        ("thin = 5", "thin = 101", "run.thin = 101 is larger than run.rounds = 100"),
        ("test_share = 0.2", "test_share = 1.0", "data.test_share = 1.0"),
        ("concentration = 1.0", "", "partition.concentration is missing"),
        ('kind = "dirichlet"', "", "partition.kind is missing"),
        ('"fa_hmc"', '"surrogate_hmc"', "surrogate_hmc was removed: use few_rounds"),
        ("step_size = 0.05", "step_size = -1", "[algorithm] step_size is -1"),
        (
            '"fa_hmc"\nstep_size = 0.05\nleapfrog_steps = 2\nlocal_steps = 3',
            '"private_posterior"\nclip = 1.0',
            "algorithm.epsilon is missing",
        ),
        ('dataset = "iris"', "", "[data] give exactly one of dataset and files"),
        ('kind = "softmax_regression"', "", "give exactly one of formula, kind and factory"),
    ],
)
def test_a_wrong_value_is_answered_with_its_key(tmp_path, old, new, expected):
    assert expected in message(tmp_path, (old, new))


@pytest.mark.parametrize(
    ("replacements", "expected"),
    [
        ([("standardise = true", "standardise_target = true")], "data.standardise_target"),
        ([('kind = "softmax_regression"', 'factory = "no_such:f"')], "no_such"),
        ([('kind = "softmax_regression"', 'factory = "math:f"')], "math has no function 'f'"),
        ([("intercept = true", "prior_scale = -1")], "prior_scale"),
        ([("sites = 3", "sites = 3_000")], "sites is 3000"),
        (
            [('"dirichlet"', '"by_column"'), ("concentration = 1.0", 'column = "petal widt (cm)"')],
            "did you mean 'petal width (cm)'?",
        ),
    ],
)
def test_a_mistake_that_only_the_data_show_names_the_file(tmp_path, replacements, expected):
    assert expected in message(tmp_path, *replacements, build=True)


def test_all_mistakes_of_a_file_are_answered_together(tmp_path):
    lines = message(tmp_path, ("sites = 3", "site = 3"), ("thin = 5", "thin = 0")).splitlines()
    assert len(lines) == 3  # site is unknown, sites is missing, thin is 0
    assert all(line.startswith(str(tmp_path / "study.toml")) for line in lines)


def test_a_syntax_error_is_answered_with_its_line(tmp_path):
    assert "line 10" in message(tmp_path, ('kind = "dirichlet"', "kind = = 1"))


def test_a_missing_file_is_named(tmp_path):
    with refused(file=str(tmp_path / "absent.toml"), match="no such file"):
        load_study(tmp_path / "absent.toml")


def test_a_data_set_needs_a_partition_and_files_need_none(tmp_path):
    start, end = STUDY.index("[partition]"), STUDY.index("[model]")
    with refused(argument="partition", match="needs it"):
        load(tmp_path, STUDY[:start] + STUDY[end:])
    with refused(argument="partition", match="remove it"):
        load(tmp_path, STUDY.replace('dataset = "iris"', 'files = ["a.csv"]'))


# --- the schema ----------------------------------------------------------------------------------


def test_every_key_has_a_description():
    schema = json_schema()
    undescribed = [
        f"{name}.{key}"
        for name, table in schema["$defs"].items()
        for key, field in table["properties"].items()
        if "description" not in field and "const" not in field
    ]
    assert undescribed == []


def test_the_schema_has_the_arguments_of_every_algorithm():
    branches = json_schema()["$defs"]["AlgorithmTable"]["allOf"]
    found = {branch["if"]["properties"]["name"]["const"]: branch["then"] for branch in branches}
    assert "debias" in found["fa_hmc"]["properties"]


def test_the_examples_use_only_keys_of_the_schema():
    defined = json_schema()
    for path in EXAMPLES.glob("*.toml"):
        content: dict[str, Any] = tomllib.loads(path.read_text())
        assert set(content) <= set(defined["properties"])


def test_a_study_is_read_from_wherever_it_lies(tmp_path):
    shutil.copy(EXAMPLES / "wine_softmax.toml", tmp_path / "mine.toml")
    assert load_study(tmp_path / "mine.toml").name == "mine"


def test_standardise_takes_columns_and_leaves_the_others_as_they_were_read(tmp_path):
    write_sites(tmp_path)
    raw = load(tmp_path, FILES).build().sites.pooled()["x"]
    text = FILES.replace('"outcome"', '"outcome"\nstandardise = ["dose"]')
    built = load(tmp_path, text).build()
    x = built.sites.pooled()["x"]
    np.testing.assert_array_equal(x[:, 0], raw[:, 0])
    np.testing.assert_allclose([x[:, 1].mean(), x[:, 1].std()], [0, 1], atol=1e-12)
    sampled = {"coefficients": np.ones(2)}
    natural = built.model.natural(sampled)
    np.testing.assert_allclose(natural["coefficients"], [1, 1 / raw[:, 1].std()])
    np.testing.assert_allclose(natural["intercept"], -raw[:, 1].mean() / raw[:, 1].std())
    with refused(argument="data.standardise", match="'dose'"):
        load(tmp_path, FILES.replace('"outcome"', '"outcome"\nstandardise = ["does"]')).build()


def test_a_study_has_as_many_chains_as_python_has_by_default(tmp_path):
    asked = inspect.signature(sample).parameters["chains"].default
    assert asked == load(tmp_path).run.chains == 4


def test_a_study_may_ask_for_a_preconditioner(tmp_path):
    with_it = STUDY.replace("rounds = 100", "rounds = 100\nprecondition = true")
    assert load(tmp_path, with_it).method.parameters()["scales"] is None
    assert "scales" not in load(tmp_path).method.parameters()
