"""Studies whose model is a formula: what they build, what leaves a site, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import consortia
from consortia.core import fingerprints
from consortia.core.target import Target
from consortia.data.facts import Gathering, SiteFacts, merge_facts
from consortia.data.tables import read_table
from consortia.engines.local import LocalEngine
from consortia.federation.governance import terms_of
from consortia.federation.governance.explanation import sentences
from consortia.study.build import load_study
from consortia.study.schema import json_schema
from tests.refusals import refused

HEAD = '[data]\nfiles = ["oslo.csv", "lima.csv", "bern.csv"]\n'
TAIL = '[algorithm]\nname = "federated_hmc"\n[run]\nrounds = 10\nwarmup = 20\nchains = 1\n'
MODEL = """[model]
formula = "died ~ age * arm + stage"
family = "bernoulli"
missing = "complete"
prior = { age = "normal(0, 1)" }
"""
DIALECTS = {"oslo": (",", "."), "lima": (";", ","), "bern": ("\t", ".")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of three dialects, with texts and missing values; stage IV is at oslo alone."""
    rng = np.random.default_rng(2)
    for name, (separator, point) in DIALECTS.items():
        lines = [["id", "age", "arm", "stage", "died"]]
        for row in range(40):
            stage = "IV" if name == "oslo" and row < 2 else rng.choice(["I", "II"])
            age = f"{rng.normal(60, 9):.1f}".replace(".", point)
            line = [f"{name}{row}", age, rng.choice(["new", "old"]), stage, rng.choice(["n", "y"])]
            lines.append(["NA" if row == 5 and k == 1 else str(v) for k, v in enumerate(line)])
        text = "\n".join(separator.join(line) for line in lines) + "\n"
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


def study_of(folder: Path, model: str = MODEL, head: str = HEAD) -> Any:
    path = folder / "study.toml"
    path.write_text(head + model + TAIL)
    return load_study(path)


def test_a_study_needs_no_run_where_the_algorithm_ends_by_itself(folder: Path) -> None:
    path = folder / "study.toml"
    path.write_text(HEAD + MODEL + '[algorithm]\nname = "few_rounds"\n')
    assert load_study(path).run.rounds == 100
    path.write_text(HEAD + MODEL + '[algorithm]\nname = "federated_hmc"\n')
    with refused(argument="run.rounds"):
        load_study(path)


def test_a_study_builds_what_the_function_builds(folder: Path) -> None:
    study = study_of(folder)
    built = study.build()
    made = consortia.regression(
        "died ~ age * arm + stage",
        {name: folder / f"{name}.csv" for name in DIALECTS},
        family="bernoulli",
        missing="complete",
        prior={"age": "normal(0, 1)"},
    )
    assert built.sites.digests == made.sites.digests
    for one, other in zip(built.sites, made.sites, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert str(built.regression) == str(made)
    assert built.metadata.labels == {"coefficients": [list(made.names)]}
    assert built.metadata.settings["regression"]["priors"]["age"] == "normal(0, 1)"
    assert "left out: 3 rows with missing values (oslo 1 of 40" in built.regression.notes[0]


def test_the_settings_of_a_formula_are_those_that_it_uses(folder: Path) -> None:
    settings = study_of(folder).build().metadata.settings["data"]
    assert settings["files"] == ["oslo.csv", "lima.csv", "bern.csv"]
    assert not settings.keys() & {"target", "standardise", "standardise_target", "intercept"}


def test_imputed_values_are_a_choice_of_the_study(folder: Path) -> None:
    impute = MODEL.replace('"complete"', '"impute"\nimputations = 3')
    built = study_of(folder, impute).build()
    assert built.imputations == len(built.sites) == 3
    assert built.rows is built.sites[0]
    assert built.rows.rows == 120  # none is left out
    for more, argument in (("test_share = 0.2\n", "data.test_share"), ("", "run.keep")):
        tail = "" if more else 'keep = "moments"\n'
        path = folder / "study.toml"
        path.write_text(HEAD + more + impute + TAIL + tail)
        with refused(argument=argument, match="impute"):
            load_study(path)
    with refused(argument="model.imputations"):
        study_of(folder, MODEL + "imputations = 1\n")


class OneOf(LocalEngine):
    """A process that reads one site; of the others it knows what they have told, as text."""

    def __init__(self, index: int, told: dict[int, str]) -> None:
        super().__init__()
        self._index, self._told = index, told

    def gather_facts(self, gathering: Gathering) -> tuple[list[SiteFacts], Any]:
        own = {str(self._index): gathering.contribute(self._index).plain()}
        others = {str(index): json.loads(text) for index, text in self._told.items()}
        return merge_facts([own, others], gathering.names), None


def test_a_process_that_reads_one_site_makes_the_same_rows_and_the_same_model(
    folder: Path,
) -> None:
    study = study_of(folder)
    everything = study.build()
    told = {
        index: json.dumps(study.contribution(folder / f"{name}.csv", index).plain())
        for index, name in enumerate(DIALECTS)
    }
    for index in range(3):
        built = study.build(OneOf(index, told))
        assert built.sites.here == (index,)
        assert built.sites.digests == everything.sites.digests
        for name, array in built.sites.site(index).items():
            np.testing.assert_array_equal(array, everything.sites.site(index)[name])
        for name, array in built.sites.shards[index - 1].items():  # a site without rows here
            like = everything.sites.site(index)[name]
            assert (array.shape[1:], array.dtype) == (like.shape[1:], like.dtype)
        assert built.regression.priors == everything.regression.priors


def test_a_server_that_reads_no_row_has_the_same_model(folder: Path) -> None:
    study = study_of(folder)
    everything = study.build()
    told = {
        str(index): study.contribution(folder / f"{name}.csv", index).plain()
        for index, name in enumerate(DIALECTS)
    }

    class Server(LocalEngine):
        def gather_facts(self, gathering: Gathering) -> tuple[list[SiteFacts], Any]:
            return merge_facts([json.loads(json.dumps(told))], gathering.names), None

    built = study.build(Server())
    assert built.sites.here == ()
    assert built.sites.digests == everything.sites.digests
    one, other = (
        fingerprints.of_model(Target(each.model, each.model.init), each.sites.first)
        for each in (built, everything)
    )
    assert one == other


def test_what_is_told_of_a_table_holds_no_row_and_no_rare_level(folder: Path) -> None:
    study = study_of(folder)
    text = json.dumps(study.contribution(folder / "oslo.csv", 0, least=3).plain())
    table = read_table(folder / "oslo.csv", "it")
    assert "IV" not in text
    assert "oslo0" not in text
    ages = table["age"].values[~table["age"].missing]
    assert not any(f"{age}" in text for age in ages)
    with refused(argument="stage", match="'oslo': .*levels="):
        study.build(least=3)
    wide = MODEL.replace("prior", 'levels = { stage = ["I", "II", "IV"] }\nprior')
    assert study_of(folder, wide).build(least=3).regression.names[2:4] == ("stage[II]", "stage[IV]")


def test_the_terms_name_the_message_of_means_and_levels(folder: Path) -> None:
    terms = terms_of(study_of(folder))
    assert "moments" in terms.messages
    assert terms.model != terms_of(study_of(folder, MODEL.replace("* arm", "+ arm"))).model


def test_rows_are_held_out_of_the_agreement(folder: Path) -> None:
    built = study_of(folder, head=HEAD + "test_share = 0.25\n").build()
    assert built.sites.rows + len(built.held_out["y"]) == 117
    assert built.held_out["x"].shape[1] == built.sites.pooled()["x"].shape[1]


def test_a_data_set_has_its_columns_by_name() -> None:
    text = (
        '[data]\ndataset = "breast_cancer"\n[partition]\nkind = "iid"\nsites = 3\n'
        '[model]\nformula = "y ~ log(`mean radius`) + scale(`mean texture`)"\n'
        'family = "bernoulli"\n'
    )
    import tomllib

    from consortia.study.build import Study

    built = Study.model_validate(tomllib.loads(text + TAIL)).build()
    assert built.regression.names == ("log(`mean radius`)", "scale(`mean texture`)")
    assert (len(built.sites), built.sites.rows) == (3, 569)


WRONG = [
    (MODEL.replace("family", "famly"), "model", "model.famly: unknown; did you mean 'family'"),
    (
        MODEL.replace("bernoulli", "bernouli"),
        "model.family",
        "'bernouli': unknown; did you mean 'bernoulli'",
    ),
    (MODEL + 'kind = "mlp"\n', "model", "give exactly one of formula, kind and factory"),
    (
        MODEL.replace("age * arm", "age * foo(arm)"),
        "model.formula",
        "'foo' is not a function of formulas",
    ),
    (MODEL.replace("died ~", "died"), "model.formula", "one ~ in it"),
]


@pytest.mark.parametrize(("model", "argument", "message"), WRONG)
def test_a_wrong_formula_is_refused_before_any_file_is_read(
    tmp_path: Path, model: str, argument: str, message: str
) -> None:
    with refused(argument=argument, file=str(tmp_path / "study.toml"), match=re.escape(message)):
        study_of(tmp_path, model)


@pytest.mark.parametrize("key", ["standardise = true", "intercept = true", 'target = "died"'])
def test_keys_that_a_formula_has_no_use_for_are_refused(tmp_path: Path, key: str) -> None:
    with refused(argument=f"data.{key.split(' ')[0]}"):
        study_of(tmp_path, head=f"{HEAD}{key}\n")


def test_an_unknown_column_is_named_with_the_nearest_and_the_site(folder: Path) -> None:
    where = "study.toml: .*oslo.csv, line 1: 'agee' .*'age'"
    with refused(argument="agee", site="oslo", match=where):
        study_of(folder, MODEL.replace("age *", "agee *")).build()


def test_editors_know_the_keys_of_a_formula() -> None:
    import tomllib

    check = jsonschema.Draft202012Validator(json_schema())
    assert not list(check.iter_errors(tomllib.loads(HEAD + MODEL + TAIL)))
    wrong = tomllib.loads(HEAD + MODEL.replace("missing", "mising") + TAIL)
    assert list(check.iter_errors(wrong))


@pytest.mark.parametrize(
    ("other", "argument", "match"),
    [
        ('formula = "died"', "compare.formula", "one ~ in it"),
        (
            'formula = "died ~ age"\nmissing = "impute"',
            "compare",
            "compare.*imputation has its own likelihood",
        ),
        ('kind = "logistic_regression"', "compare", "compare: both models must have a formula"),
        ('factory = "mine:model"', "compare.factory", "compare.factory: give formula or kind"),
        (
            'formula = "died ~ (1 | site)"\nfamily = "bernoulli"\nintegrate = true',
            "compare",
            "per site",
        ),
    ],
)
def test_a_model_that_cannot_be_compared_is_refused(
    folder: Path, other: str, argument: str, match: str
) -> None:
    path = folder / "study.toml"
    path.write_text(f"{HEAD}{MODEL}[compare]\n{other}\n{TAIL}")
    with refused(argument=argument, match=match):
        load_study(path)


def test_both_models_are_built_from_facts_that_a_site_tells_at_once(folder: Path) -> None:
    path = folder / "study.toml"
    path.write_text(
        f'{HEAD}{MODEL}[compare]\nformula = "died ~ stage"\nfamily = "bernoulli"\n{TAIL}'
    )
    study = load_study(path)
    assert study.left_out is not None
    assert [one.algorithm.name for one in study.besides] == ["federated_hmc", "left_out"]
    told = study.left_out.contribution(folder / "oslo.csv", 0)
    assert told.beside is not None
    assert (set(told.arrays), set(told.beside.arrays)) == (
        {"age", "arm", "stage", "died"},
        {"stage", "died"},
    )
    assert SiteFacts.read(told.plain()) == told
    with pytest.raises(ValueError, match="more than two models"):
        SiteFacts.read({**told.plain(), "beside": told.plain()})


def test_rows_that_the_study_keeps_are_counted_and_are_part_of_what_a_site_permits(
    folder: Path,
) -> None:
    kept = study_of(folder, head=HEAD + "keep = \"stage != 'IV'\"\n")
    built = kept.build()
    assert built.regression.specification.rows == (37, 39, 39)
    assert "IV" not in str(built.regression.specification.levels)
    flow = {line.variable: line.cells for line in built.regression.table_one().flow}
    assert flow["left out, not stage != 'IV'"] == ("2", "0", "0", "2")
    every = study_of(folder)
    assert terms_of(kept).model != terms_of(every).model
    text = str(sentences(kept, terms_of(kept)))
    assert "stage != 'IV' is true, and no other" in text


@pytest.mark.parametrize(
    ("keep", "argument", "match"),
    [
        ("stagee == 'I'", "stagee", "'stage'"),
        ("stage in ('I')", "formula", "evaluated"),
        ("open('x')", "formula", "'open'"),
    ],
)
def test_what_is_kept_is_an_expression_of_columns(
    folder: Path, keep: str, argument: str, match: str
) -> None:
    with refused(argument=argument, match=match):
        study_of(folder, head=f"{HEAD}keep = {json.dumps(keep)}\n").build()


def test_keep_goes_with_a_formula_and_files(folder: Path) -> None:
    model = '[model]\nkind = "logistic_regression"\n'
    with refused(argument="data.keep"):
        study_of(folder, model, HEAD + 'target = "died"\nkeep = "age > 0"\n')


def test_the_question_is_a_column_of_a_term_and_is_kept_in_the_record(folder: Path) -> None:
    study = study_of(folder, head='question = "arm"\n' + HEAD)
    assert study.build().metadata.settings["question"] == "arm"
    assert terms_of(study).model == terms_of(study_of(folder)).model
    for wrong in ("amr", "died"):
        with refused(argument="question", match=wrong):
            study_of(folder, head=f'question = "{wrong}"\n{HEAD}')
