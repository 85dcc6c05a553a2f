"""Errors carry where they were: the argument or key, the site, the file and the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import consortia
from consortia.core import arguments
from consortia.core.faults import Faults
from consortia.data.tables import read_table
from consortia.errors import (
    ConsortiaError,
    InputError,
    KeywordError,
    LedgerError,
    located,
    wrong,
)
from consortia.federation.governance.ledger import Ledger
from consortia.federation.governance.policy import load_policy
from consortia.models.regression.formula import parse
from consortia.study.build import load_study
from consortia.study.dictionary import read_dictionary
from tests.refusals import refused


def places(error: ConsortiaError) -> tuple[Any, ...]:
    return error.argument, error.site, error.file, error.line


@pytest.mark.parametrize(
    "check",
    [
        lambda: arguments.whole("rounds", 0, 1),
        lambda: arguments.whole("rounds", True, 1),
        lambda: arguments.number("rounds", "many"),
        lambda: arguments.positive("rounds", -1.0),
        lambda: arguments.flag("rounds", "yes"),
        lambda: arguments.one_of("rounds", "c", ("a", "b")),
        lambda: arguments.array("rounds", ["x"], "numbers"),
        lambda: arguments.site_weights([0.5, 0.6], "rounds"),
        lambda: arguments.weights_fit([1.0], ("a", "b"), "rounds"),
        lambda: _raise(wrong("rounds", ": give more.")),
    ],
)
def test_a_check_names_the_argument(check) -> None:
    with refused(argument="rounds") as caught:
        check()
    assert places(caught.value) == ("rounds", None, None, None)


def sampled(**options: Any) -> Any:
    sites = consortia.Sites.from_list([{"y": np.ones(3)}])
    model = consortia.Model(
        init={"a": 0.0},
        log_prior=lambda p: -(p["a"] ** 2),
        log_likelihood=lambda p, batch: -((batch["y"] - p["a"]) ** 2),
    )
    given = {"algorithm": consortia.fa_ld(step_size=0.1, local_steps=1), "rounds": 2, "seed": 0}
    return consortia.sample(model, sites, **{**given, **options})


def _raise(error: InputError) -> None:
    raise error


GRAPH = consortia.graphs.ring(3)
RAISED = {
    "graph": lambda: consortia.graphs.mixing_matrix("ring"),
    "kind": lambda: consortia.graphs.mixing_matrix(GRAPH, kind="even"),
    "delta": lambda: consortia.graphs.mixing_matrix(GRAPH, delta=0.1),
    "latency": lambda: consortia.stale_sgld(step_size=0.1, workers=2, latency=3),
    "jitter": lambda: consortia.federated_hmc(jitter=1),
    "mass_matrix": lambda: consortia.federated_hmc(mass_matrix="even"),
    "probabilities": lambda: consortia.summary(GRAPH, probabilities=[2.0]),
    "on_divergence": lambda: sampled(on_divergence="go on"),
    "algorithm": lambda: sampled(algorithm="nuts"),
    "thin": lambda: sampled(thin=9),
    "stop": lambda: sampled(stop="soon"),
    "store": lambda: sampled(store=3),
    "metadata": lambda: sampled(metadata="none"),
    "formula": lambda: consortia.regression("y ~ poly(x, 2)", {}, family="gaussian"),
    "family": lambda: consortia.regression("y ~ x", {}, family="normal"),
    "describe": lambda: consortia.regression("y ~ x", {}, family="gaussian", describe=5),
    "prior": lambda: consortia.regression(
        "y ~ x", {"a": {"y": [1.0, 2.0], "x": [0.0, 1.0]}}, family="gaussian", prior="flat"
    ),
}


@pytest.mark.parametrize("argument", RAISED)
def test_an_error_about_an_argument_has_its_name(argument: str) -> None:
    with pytest.raises(InputError) as caught:
        RAISED[argument]()
    assert caught.value.argument == argument


def test_a_method_names_the_argument_that_it_refuses_or_does_not_know() -> None:
    with pytest.raises(InputError) as caught:
        consortia.fa_hmc(step_size=-1.0)
    assert caught.value.argument == "step_size"
    with pytest.raises(KeywordError) as unknown:
        consortia.fa_hmc(stepsize=1.0)
    assert unknown.value.argument == "stepsize"


@pytest.mark.parametrize("text", ["died", "died ~ ", "died ~ age + sine(age)", "died ~ (1 | )"])
def test_a_formula_is_the_argument_that_is_wrong(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert caught.value.argument == "formula"


TABLES = {
    "too many fields": ("age,died\n60,no\n61,no,5\n", 3),
    "a title above the header": ("Patients of 2020\nage,died\n60,no\n", 1),
    "a quote that never ends": ('age,died\n60,no\n61,"no\n', 3),
    "nothing below the header": ("age,died\n", None),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_names_its_site_file_and_line(name: str, tmp_path: Path) -> None:
    text, line = TABLES[name]
    path = tmp_path / "oslo.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_table(path, "site 'oslo'", site="oslo")
    assert places(caught.value) == (None, "oslo", str(path), line)


def test_a_value_that_is_not_finite_has_its_column_and_line(tmp_path: Path) -> None:
    rows = [f"{age},{age % 2},{age / 10}" for age in range(40, 60)]
    for name, dose in (("oslo", "3"), ("lima", "0")):
        lines = ["age,died,dose", *rows, f"70,1,{dose}", *rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    files = [tmp_path / "oslo.csv", tmp_path / "lima.csv"]
    with pytest.raises(InputError) as caught:
        consortia.regression("died ~ age + log(dose)", files, family="bernoulli")
    assert places(caught.value) == ("dose", "lima", str(files[1]), 22)


def test_of_several_faults_each_has_its_site_and_the_error_that_of_the_first(tmp_path) -> None:
    for name in ("oslo", "lima", "pune"):
        text = "age,died\n60,0\n61,1\n" if name == "lima" else "age,died\n60,0\n61,1,7\n"
        (tmp_path / f"{name}.csv").write_text(text)
    files = [tmp_path / f"{name}.csv" for name in ("lima", "oslo", "pune")]
    with pytest.raises(InputError) as caught:
        consortia.regression("died ~ age", files, family="bernoulli")
    wanted = [(None, name, str(tmp_path / f"{name}.csv"), 3) for name in ("oslo", "pune")]
    assert [places(fault) for fault in caught.value.faults] == wanted
    assert places(caught.value) == wanted[0]
    assert str(caught.value).count("\n") == 1


def test_a_table_in_memory_names_its_site_alone() -> None:
    good = pd.DataFrame({"age": [60.0, 61.0, 70.0], "died": [0, 1, 1]})
    with pytest.raises(InputError) as caught:
        consortia.regression(
            "died ~ log(age)", {"oslo": good, "lima": good - 60}, family="bernoulli"
        )
    assert caught.value.site == "lima"
    assert (caught.value.file, caught.value.line) == (None, None)


def test_arrays_name_their_site() -> None:
    with pytest.raises(InputError) as caught:
        consortia.Sites.from_list([np.ones(3), np.ones(0)], names=["oslo", "lima"])
    assert caught.value.site == "lima"
    with pytest.raises(InputError) as unlike:
        consortia.Sites.from_list([np.ones((3, 2)), np.ones((3, 1))], names=["oslo", "lima"])
    assert unlike.value.site == "lima"
    with pytest.raises(InputError) as doubled:
        consortia.Sites.from_list([np.ones(3), np.ones(3)], names=["oslo", "oslo"])
    assert doubled.value.argument == "names"


def test_files_of_toml_name_the_file_and_the_key_or_the_line(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('[model]\nfamily = "bernoulli\n')
    for load in (load_study, load_policy):
        with pytest.raises(InputError) as caught:
            load(path)
        assert places(caught.value) == (None, None, str(path), 2)
    path.write_text('[model]\nformula = "y ~ x"\n[run]\nchains = "many"\n')
    with pytest.raises(InputError) as caught:
        load_study(path)
    assert (caught.value.argument, caught.value.file) == ("run.chains", str(path))
    with pytest.raises(InputError) as absent:
        load_study(tmp_path / "none.toml")
    assert absent.value.file == str(tmp_path / "none.toml")


def test_a_data_dictionary_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "dictionary.csv"
    path.write_text("column,low,high,levels\nage,0,120,\nsex,,,F\n")
    with pytest.raises(InputError) as caught:
        read_dictionary(path)
    assert places(caught.value) == (None, None, str(path), 3)


def test_a_broken_ledger_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"not": "an entry"}\n')
    with pytest.raises(LedgerError) as caught:
        Ledger(path)
    assert (caught.value.file, caught.value.line) == (str(path), 1)


def test_a_place_that_is_known_stays() -> None:
    def raised() -> None:
        with located(site="oslo", file="a.csv"), located(site="lima", line=3):
            raise InputError("wrong")

    with pytest.raises(InputError) as caught:
        raised()
    assert places(caught.value) == (None, "lima", "a.csv", 3)


def test_faults_are_flat_and_without_any_nothing_is_raised() -> None:
    faults = Faults()
    faults.check()
    for site in ("oslo", "lima"):
        with faults.noted(site=site):
            inner = Faults()
            inner.add("first", argument="x")
            inner.add("second")
            inner.check()
    with pytest.raises(InputError) as caught:
        faults.check()
    assert [fault.argument for fault in caught.value.faults] == ["x", None] * 2
    assert caught.value.site == "oslo"
