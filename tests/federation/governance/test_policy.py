"""The policy: each rule refuses what breaks it alone, and a refusal has all reasons."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import consortia
from consortia.errors import InputError, PolicyError
from consortia.federation.governance import Policy, StudyTerms, load_policy, terms_of
from consortia.federation.governance.policy import Noise
from consortia.federation.governance.proposal import proposed
from consortia.study.build import load_study
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = Path(__file__).parent / "averaging.toml"

TERMS = StudyTerms(
    run="1",
    study="a" * 64,
    model="b" * 64,
    algorithm="fa_hmc",
    parameters={
        "batch_size": 16,
        "gradient_noise": 0.5,
        "temperature": 1.0,
        "momentum_correlation": 0.75,
    },
    rounds=100,
    chains=4,
    sites=3,
    exchanges=103,
    messages=("description", "round"),
    version=consortia.__version__,
    measured=True,
)
STRICTEST: dict[str, Any] = {
    "studies": ["a" * 64],
    "models": ["b" * 64],
    "algorithms": ["fa_hmc"],
    "messages": ["description", "round"],
    "maximum_rounds": 100,
    "minimum_rows": 50,
    "own_levels": False,
    "functions": {"log_densities": 3},
    "maximum_settled_rows": 0,
    "minimum_batch": 16,
    "maximum_chains": 4,
    "versions": [consortia.__version__],
    "noise": {"gradient_noise": 0.5, "temperature": 1.0, "private_momentum": 0.25},
}
"""All that `TERMS` can meet."""

BROKEN: dict[str, dict[str, Any]] = {
    "unmeasured": {"measured": False},
    "studies": {"study": "c" * 64},
    "models": {"model": "c" * 64},
    "algorithms": {"algorithm": "fa_ld"},
    "messages": {"messages": ("description", "moments", "round")},
    "maximum_rounds": {"rounds": 101},
    "own_levels": {"own_levels": True},
    "functions": {"queried": {"log_densities": None, "slopes": None}},
    "secure_sums": {"sums": "plain"},
    "minimum_batch": {"parameters": TERMS.parameters | {"batch_size": 15}},
    "maximum_chains": {"chains": 5},
    "two_sites": {"sites": 2},
    "noise.gradient_noise": {"parameters": TERMS.parameters | {"gradient_noise": 0.49}},
    "noise.temperature": {"parameters": TERMS.parameters | {"temperature": 0.9}},
    "noise.private_momentum": {"parameters": TERMS.parameters | {"momentum_correlation": 0.8}},
    "versions": {"version": "0.0.1"},
}


def policy_of(**changes: Any) -> Policy:
    return Policy.model_validate(STRICTEST | changes)


def rules_of(policy: Policy, terms: StudyTerms, app: str | None = None) -> tuple[str, ...]:
    try:
        policy.permits(terms, app)
    except PolicyError as error:
        found = error
    else:
        return ()
    assert all(rule in str(found) for rule in found.rules)
    return found.rules


def test_terms_at_every_limit_are_permitted() -> None:
    assert rules_of(policy_of(), TERMS) == ()


@pytest.mark.parametrize("rule", BROKEN)
def test_a_rule_refuses_what_breaks_it_and_names_itself_alone(rule: str) -> None:
    assert rules_of(policy_of(), dataclasses.replace(TERMS, **BROKEN[rule])) == (rule,)


def test_a_refusal_has_every_reason() -> None:
    changes: dict[str, Any] = {}
    for change in BROKEN.values():
        changes |= change
    parameters = {"batch_size": 1}
    everything = dataclasses.replace(TERMS, **changes | {"parameters": parameters})
    assert set(rules_of(policy_of(), everything)) == set(BROKEN)


def test_every_key_of_a_policy_is_tried_here_or_at_the_gate() -> None:
    of_gate = {"apps", "minimum_rows", "maximum_bytes", "maximum_norm"}
    of_gate |= {"minimum_pattern_rows", "maximum_settled_rows", "tell_refusals"}
    of_gate |= {"maximum_messages", "maximum_runs", "maximum_parameters_per_row"}
    of_gate |= {
        "maximum_numbers",
        "maximum_numbers_per_value",
        "minimum_rows_changed",
        "maximum_points",
        "minimum_level_rows",
    }  # the latter where facts are made
    of_gate |= {"maximum_epsilon", "delta"}  # tests/federation/test_private_budget.py
    of_gate |= {"maximum_position", "maximum_step", "maximum_answers", "maximum_refusals"}
    of_gate |= {"coordinator", "identities"}  # where messages are read
    tried = {rule for rule in BROKEN if "." not in rule} | of_gate
    assert set(Policy.model_fields) - {"noise"} == tried
    assert {f"noise.{name}" for name in Noise.model_fields} <= BROKEN.keys()
    for model in (Policy, Noise):
        for name, field in model.model_fields.items():
            assert field.description or name == "noise"


def test_an_algorithm_without_noise_is_refused_where_noise_is_required() -> None:
    bare = dataclasses.replace(TERMS, parameters={"batch_size": None})
    found = rules_of(policy_of(), bare)
    assert found == ("noise.gradient_noise", "noise.temperature", "noise.private_momentum")


def test_a_gradient_of_all_rows_is_of_no_small_batch() -> None:
    whole = dataclasses.replace(TERMS, parameters=TERMS.parameters | {"batch_size": None})
    assert rules_of(policy_of(), whole) == ()


def test_the_server_must_run_the_version_of_the_site_also_when_none_is_listed() -> None:
    other = dataclasses.replace(TERMS, version="99.0")
    assert rules_of(policy_of(versions=None), other) == ("versions",)
    assert rules_of(policy_of(versions=["99.0"]), other) == ("versions",)
    assert rules_of(policy_of(versions=["99.0"]), TERMS) == ("versions",)


def test_any_permits_every_hash_of_its_list_only() -> None:
    other = dataclasses.replace(TERMS, study="c" * 64, model="d" * 64)
    assert rules_of(policy_of(studies=["any"]), other) == ("models",)
    assert rules_of(policy_of(studies=["any"], models=["any"]), other) == ()
    assert rules_of(policy_of(studies=[]), other) == ("models",)
    assert rules_of(policy_of(models=[]), other) == ("studies",)


def test_an_app_is_permitted_by_its_hash() -> None:
    policy = policy_of(apps=["e" * 64])
    assert rules_of(policy, TERMS) == ()
    assert rules_of(policy, TERMS, "e" * 64) == ()
    assert rules_of(policy, TERMS, "f" * 64) == ("apps",)
    assert rules_of(policy_of(apps=["any"]), TERMS, "f" * 64) == ()
    assert rules_of(policy_of(), TERMS, "f" * 64) == ("apps",)


def test_two_sites_need_a_word() -> None:
    two = dataclasses.replace(TERMS, sites=2)
    with refused(PolicyError, rules=("two_sites",)):
        policy_of().permits(two)
    assert rules_of(policy_of(two_sites=True), two) == ()
    with refused(argument="two_sites", match="--two-sites"):
        proposed(two)
    assert "two_sites = true" in proposed(two, two_sites=True)
    assert "two_sites" not in proposed(TERMS)


def test_too_few_rows_are_refused() -> None:
    policy_of().permits_rows(50)
    with refused(PolicyError, rules=("minimum_rows",), match="minimum_rows") as caught:
        policy_of().permits_rows(49)
    assert caught.value.rules == ("minimum_rows",)


# --- the file ------------------------------------------------------------------------------------


def loaded(folder: Path, text: str) -> Policy:
    path = folder / "site-policy.toml"
    path.write_text(text)
    return load_policy(path)


NEEDED = f'studies = ["{"a" * 64}"]\nmaximum_rounds = 5\nminimum_rows = 5\n'


@pytest.mark.parametrize(
    ("text", "argument", "match"),
    [
        ("", "maximum_rounds", "is missing"),
        ("maximum_rounds = 5\nminimum_rows = 5", None, "give studies or models"),
        (
            NEEDED + "maximum_round = 5",
            "maximum_round",
            "= 5: .*'maximum_rounds'",
        ),
        (NEEDED + "[noise]\ntemprature = 1.0", "noise.temprature", "= 1.0: .*'te"),
        (NEEDED + "[limits]\nrows = 1", "limits", "unknown"),
        (NEEDED + 'models = ["abc"]', "models", "'abc'"),
        (NEEDED + 'messages = ["rounds"]', None, "'rounds': .*'round'"),
        (NEEDED.replace("= 5", '= "5"', 1), "maximum_rounds", "= '5'"),
        (NEEDED.replace("= 5", "= 0", 1), "maximum_rounds", "equal to 1"),
        (NEEDED + "maximum_norm = nan", "maximum_norm", "= nan"),
        (NEEDED + "x = [", None, "is not TOML"),
    ],
)
def test_a_policy_with_a_mistake_is_refused_with_what_to_do(
    tmp_path: Path, text: str, argument: str | None, match: str
) -> None:
    with refused(argument=argument, file=str(tmp_path / "site-policy.toml"), match=match):
        loaded(tmp_path, text)


def test_an_absent_policy_permits_nothing(tmp_path: Path) -> None:
    with refused(file=str(tmp_path / "site-policy.toml"), match="no such file"):
        load_policy(tmp_path / "site-policy.toml")


VALUES = st.one_of(
    st.integers(-3, 3).map(str),
    st.sampled_from(["true", "1.5", "nan", "inf", '"any"', '["any"]', "[]", "[1]", "{}", '"1"']),
)


@given(
    st.dictionaries(
        st.sampled_from([*Policy.model_fields, "rounds", "Maximum_rounds", "max"]), VALUES
    )
)
@settings(max_examples=300, deadline=None)
def test_whatever_a_policy_says_it_is_read_or_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, str]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    needed = {"studies": '["any"]', "maximum_rounds": "5", "minimum_rows": "5"}
    text = "\n".join(f"{key} = {value}" for key, value in (needed | table).items())
    try:
        policy = loaded(folder, text)
    except InputError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert message.startswith(str(folder / "site-policy.toml"))
        return
    given = tomllib.loads(text)
    assert set(given) <= set(Policy.model_fields)
    assert given["maximum_rounds"] >= 1
    assert given["minimum_rows"] >= 1
    assert {"studies", "models"} & set(given)
    assert policy.digest


# --- what a study asks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.stem
)
def test_a_proposed_policy_permits_its_study_and_no_other(example: Path, tmp_path: Path) -> None:
    study = load_study(example)
    policy = loaded(tmp_path, proposed(terms_of(study)))
    policy.permits(terms_of(study))
    longer = study.with_run(rounds=study.run.rounds + 1)
    assert rules_of(policy, terms_of(longer)) == ("studies", "maximum_rounds")
    assert rules_of(policy, terms_of(study.with_run(seed=77))) == ("studies",)


def changed(folder: Path, text: str, old: str, new: str) -> StudyTerms:
    assert old in text
    path = folder / "study.toml"
    path.write_text(text.replace(old, new))
    return terms_of(load_study(path))


def test_the_study_s_hash_follows_what_is_computed_and_not_how_it_is_shown(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    whole = terms_of(load_study(EXAMPLE))
    titled = changed(tmp_path, text, "Breast tumours at", "At")
    assert (titled.study, titled.model) == (whole.study, whole.model)
    stepped = changed(tmp_path, text, "step_size = 0.04", "step_size = 0.05")
    assert stepped.study != whole.study
    assert stepped.model == whole.model
    bare = changed(tmp_path, text, "intercept = true", "intercept = false")
    assert bare.model != whole.model
    assert bare.study != whole.study


FACTORY = """
from consortia.models import logistic_regression
from parts.prior import width

def model(features):
    return logistic_regression(features=features, prior_sd=width())
"""


def test_the_model_s_hash_follows_the_code_of_its_factory(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    prior = tmp_path / "parts" / "prior.py"
    prior.write_text("from . import numbers\n\ndef width():\n    return numbers.ONE\n")
    numbers = tmp_path / "parts" / "numbers.py"
    numbers.write_text("ONE = 1.0\n")
    mine = tmp_path / "mine.py"
    mine.write_text(FACTORY)
    (tmp_path / "beside.py").write_text("x = 1\n")
    text = EXAMPLE.read_text()
    old = 'kind = "logistic_regression"\nintercept = true'

    def terms() -> StudyTerms:
        return changed(tmp_path, text, old, 'factory = "mine:model"')

    first = terms()
    (tmp_path / "beside.py").write_text("x = 2\n")
    assert terms() == first
    for file in (mine, prior, numbers, tmp_path / "parts" / "__init__.py"):
        before = file.read_text()
        file.write_text(before + "# another text\n")
        assert terms().model != first.model
        assert terms().study != first.study
        file.write_text(before)
    assert terms() == first
    mine.write_text("def model(:")
    with refused(file=str(mine), match="not Python"):
        terms()
    mine.unlink()
    with refused(argument="model.factory"):
        terms()


@pytest.mark.parametrize(
    ("algorithm", "kinds"),
    [
        ('name = "fa_ld"\nstep_size = 0.1\nlocal_steps = 2', ("round",)),
        ('name = "dsgld"\nstep_size = 0.1\nlocal_steps = 2\nbatch_size = 4', ("round",)),
        ('name = "fsgld"\nstep_size = 0.1\nlocal_steps = 2\nbatch_size = 4', ("fit", "round")),
        ('name = "federated_hmc"', ("setup", "round")),
    ],
)
def test_the_terms_say_which_messages_a_study_sends(
    tmp_path: Path, algorithm: str, kinds: tuple[str, ...]
) -> None:
    text = EXAMPLE.read_text()
    start, end = text.index("[algorithm]"), text.index("[run]")
    path = tmp_path / "study.toml"
    path.write_text(f"{text[:start]}[algorithm]\n{algorithm}\n\n{text[end:]}")
    assert terms_of(load_study(path)).messages == ("description", "moments", *kinds)
