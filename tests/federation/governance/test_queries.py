"""A site's limits on the queries of a conversation: where, how much, and which functions."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from engines import toy_conversation as toy
from federation import hospitals
from parity import flower_sites

import consortia
from consortia.engines.messages.questions import Leaving, Place, Question
from consortia.errors import PolicyError, SiteRefusedError
from consortia.federation.governance import StudyTerms, open_gate, verify
from consortia.federation.governance.declared import declared_numbers
from consortia.federation.governance.explanation import sentences
from consortia.federation.governance.gate import LEDGER
from consortia.federation.governance.policy import load_policy
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import load_study
from tests.refusals import refused

TERMS = StudyTerms(
    run="",
    study="a" * 64,
    model="b" * 64,
    algorithm="toy",
    parameters={},
    rounds=3,
    chains=2,
    sites=5,
    exchanges=2 + toy.Toy.most_messages,
    messages=("description", "query"),
    version=consortia.__version__,
    functions=tuple(sorted(toy.Toy.functions)),
    queried=dict.fromkeys(toy.Toy.functions),
)


def gate_of(folder, run="41", **limits):
    values = {"studies": ["a" * 64], "maximum_rounds": 20, "minimum_rows": 5} | limits
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "site-policy.toml"
    lines = (f"{key} = {json.dumps(value)}" for key, value in values.items())
    path.write_text("\n".join(line.replace('": ', '" = ') for line in lines))
    terms = dataclasses.replace(TERMS, run=run)
    return open_gate(folder / "site", path, site="north", terms=terms)


def query_at(number, digest="aa"):
    return Question("query", (3, number, 0, 0), digest)


def rules_of(function, *arguments, **options):
    with pytest.raises(PolicyError) as caught:
        function(*arguments, **options)
    return caught.value.rules


def governed(folder, method=None, **limits):
    """The sites of the toy, each with a gate and a policy."""
    network = flower_sites.Sites(
        folder, "fa_hmc", 5, 2, model=toy.MODEL, sites=toy.sites(sizes=(8,)), warmup=0, seed=11
    )
    network.method = toy.Toy() if method is None else method
    for number, handler in enumerate(network.handlers):
        own = folder / f"governed-{number}"
        gates = {}

        def gate(run, own=own, gates=gates):
            if run not in gates:
                gates[run] = gate_of(own, run, **limits)
            return gates[run]

        handler._open = gate
        handler._refuse = lambda error, run, wrap: wrap(str(error))
    return network


def ledger_of(folder, number=0):
    return verify(folder / f"governed-{number}" / "site" / LEDGER).entries


TOLD = 1 + 2
"""Numbers before the first query: of rows, and two flags of the start."""


def test_every_answer_has_its_line_and_its_numbers_are_counted(tmp_path):
    governed(tmp_path, maximum_numbers=TOLD + 3 + 4 * 13 + 3 * 64).sampled(rounds=3)
    lines = [one for one in ledger_of(tmp_path) if one.kind == "query"]
    assert [one.round for one in lines] == list(range(8))
    assert [sum(int(np.prod(s)) for _, _, s in one.arrays) for one in lines] == [
        *(3, 13, 13, 13, 13),
        *(64, 64, 64),
    ]


def test_a_run_that_asks_for_more_numbers_than_permitted_is_refused(tmp_path):
    network = governed(tmp_path, maximum_numbers=TOLD + 3 + 4 * 13 + 3 * 64 - 1)
    with refused(SiteRefusedError, sites=("site 0",), match="maximum_numbers") as caught:
        network.sampled(rounds=3)
    assert caught.value.round == 7
    assert len([one for one in ledger_of(tmp_path) if one.kind == "query"]) == 7


def test_a_query_that_evaluates_too_far_out_is_refused(tmp_path):
    with refused(SiteRefusedError, sites=("site 0",), match="maximum_position") as caught:
        governed(tmp_path, toy.Toy(far=200.0)).sampled(rounds=3)
    assert caught.value.round == 5  # after the sizes and four steps of the search


def test_a_query_with_too_many_points_is_refused(tmp_path):
    with refused(SiteRefusedError, sites=("site 0",), match="maximum_points"):
        governed(tmp_path, maximum_points=63).sampled(rounds=3)


def test_a_policy_without_the_kind_answers_no_query(tmp_path):
    gate = gate_of(tmp_path, messages=["description", "query"])
    gate.admit("query", query_at(0))
    with refused(PolicyError, rules=("messages",), match="query"):
        gate_of(tmp_path, messages=["description", "round"])


def test_there_are_no_more_questions_than_the_study_has(tmp_path):
    gate = gate_of(tmp_path)
    gate.admit("query", query_at(49))
    assert rules_of(gate.admit, "query", query_at(50)) == ("maximum_messages",)


def test_another_question_at_the_same_place_is_refused_and_the_same_counts_once(tmp_path):
    gate = gate_of(tmp_path, maximum_numbers=6)
    arrays = {"above": np.zeros(4)}
    for _ in range(2):
        again = gate.admit("query", query_at(0))
        gate.place(Place(1, 0.0, 0.0, np.zeros((1, 3)), 4), again=again)
        gate.release(Leaving("query", query_at(0), arrays["above"].tobytes(), arrays))
    assert rules_of(gate.admit, "query", query_at(0, "bb")) == ("maximum_answers",)
    place = Place(1, 0.0, 0.0, np.zeros((1, 3)), 3)
    assert rules_of(gate.place, place, again=False) == ("maximum_numbers",)


# --- the study -----------------------------------------------------------------------------------

STUDY = """
[data]
files = ["oslo.npz", "lima.npz", "pune.npz"]

[model]
kind = "logistic_regression"
intercept = true

[algorithm]
name = "fa_hmc"
step_size = 0.02
leapfrog_steps = 3
local_steps = 2

[run]
rounds = 3
chains = 2
seed = 5
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    given = load_study(path)
    monkeypatch.setattr(type(given), "method", property(lambda self: toy.Toy()))
    return given


def test_the_terms_of_a_study_know_its_queries(study):
    terms = terms_of(study)
    assert terms.messages == ("description", "query")
    assert (terms.exchanges, terms.usual) == (52, 10)
    assert [name for name, _ in terms.answers] == ["differences", "rows", "slopes"]


def test_a_site_is_told_what_each_answer_says_and_how_many_numbers(study):
    numbers = [declared_numbers(study.method, 3, 2, 3)]
    told = sentences(study, terms_of(study), rows=40, columns=3, numbers=numbers)
    texts = [text for _, text in told]
    assert "The log-likelihood of all your rows at some points. (differences)" in texts
    assert any("52" in text and "10 messages" in text for text in texts)
    # 8 answers of at most 64 numbers as a rule, four times as many permitted; the file has 120.
    counted = next(text for text in texts if text.startswith("Your file holds 120 numbers"))
    assert "hold 514 that depend on them usually, and a run stops at 2,050" in counted
    assert "4.3 times as many as your rows hold" in counted


def test_the_proposed_policy_permits_the_study_and_its_queries(study, tmp_path):
    terms = terms_of(study)
    path = tmp_path / "proposed.toml"
    path.write_text(proposed(terms))
    load_policy(path).permits(terms)
    assert '"query"' in path.read_text()
    assert "maximum_messages = 34" in path.read_text()
    assert "functions = { differences = 32, slopes = 32, rows = 32 }" in path.read_text()
    path.write_text(path.read_text().replace(", rows = 32", ""))
    assert rules_of(load_policy(path).permits, terms) == ("functions",)


def test_a_function_answers_as_often_as_the_policy_permits(tmp_path):
    network = governed(tmp_path, functions={"differences": 2, "rows": 1, "slopes": 40})
    with refused(SiteRefusedError, sites=("site 0",), match=r"\(functions\)") as caught:
        network.sampled(rounds=3)
    assert caught.value.round == 7
    answered = [one.details["place"] for one in ledger_of(tmp_path) if one.kind == "query"]
    index = sorted(toy.Toy.functions).index("differences")
    assert sum(place.split()[3] == str(index) for place in answered) == 2


def test_a_function_that_the_study_does_not_query_is_not_answered(tmp_path, monkeypatch):
    queried = {name: None for name in toy.Toy.functions if name != "slopes"}
    monkeypatch.setattr(toy.Toy, "queried", lambda self, robust: queried)
    monkeypatch.setitem(globals(), "TERMS", dataclasses.replace(TERMS, queried=queried))
    with refused(SiteRefusedError, sites=("site 0",), match=r"\(functions\)"):
        governed(tmp_path).sampled(rounds=3)
    assert len(ledger_of(tmp_path)) > 2


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_study_between_institutions_runs_under_its_proposed_policy(study, tmp_path):
    rng = np.random.default_rng(0)
    files = {}
    for name, count in (("oslo", 30), ("lima", 45), ("pune", 60)):
        files[name] = tmp_path / f"{name}.npz"
        x, y = rng.normal(size=(count, 2)).astype(np.float32), rng.uniform(size=count) < 0.4
        np.savez(files[name], x=x, y=y.astype(np.int32))
    stage = Stage(study.path, files, tmp_path / "sites", proposed(terms_of(study), rows=1))
    tree = stage.run()
    assert tree.attrs["communication_rounds"] == 8
    assert [one.request.kind for one in stage.log["oslo"]][2:] == ["query"] * 8
    alone = study.build()
    expected = consortia.sample(
        alone.model, alone.rows, alone.algorithm, **study.run_options, progress=False
    )
    np.testing.assert_allclose(
        tree["posterior"]["intercept"], expected["posterior"]["intercept"], atol=1e-4
    )


@pytest.mark.parametrize("more", ["", "\ngradients = true"])
def test_the_officer_reads_which_answers_are_exact(tmp_path, more):
    path = tmp_path / "study.toml"
    path.write_text(hospitals.study(f'name = "few_rounds"{more}'))
    study = load_study(path)
    terms = terms_of(study)
    texts = [text for _, text in sentences(study, terms)]
    named = {name for name, _ in terms.answers}
    exact = {name for name in named if any(f"({name}). EXACT" in text for text in texts)}
    assert exact == (set() if not more else {"derivatives", "scores", "slopes"})
    assert named - exact == {"local_fits", "log_densities"}
    counts = "local_fits = 4, log_densities = 12"
    counts += ", scores = 4, derivatives = 12, slopes = 12" if more else ""
    assert f"functions = {{ {counts} }}" in proposed(terms)
