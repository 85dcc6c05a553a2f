"""Missing values drawn at sites that only messages reach: a run of each imputation."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from federation.test_verification import config, network
from parity import flower_study

import consortia
from consortia.errors import SiteRefusedError
from consortia.federation import app
from consortia.federation.governance import terms_of, verify
from consortia.federation.governance.explanation import sentences
from consortia.study.build import load_study
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("width_of_before")

STUDY = """
[data]
files = ["oslo.csv", "lima.csv", "pune.csv"]

[model]
formula = "died ~ age + arm"
family = "bernoulli"
missing = "impute"
imputations = 2

[algorithm]
name = "federated_hmc"
step_size = 0.1
leapfrog_steps = 2
mass_matrix = "identity"

[run]
rounds = 20
chains = 2
seed = 5

[output]
figure = false
"""


def written(folder: Path, missing: str = "NA") -> Path:
    """A study; of every third patient the age is ``missing``."""
    path = flower_study.write_with_formula(folder)
    path.write_text(STUDY)
    for name in flower_study.NAMES:
        head, *lines = (folder / f"{name}.csv").read_text().splitlines()
        lines[::3] = [re.sub("^[0-9.]+", missing, line) for line in lines[::3]]
        (folder / f"{name}.csv").write_text("\n".join([head, *lines, ""]))
    return path


def draws_of(tree: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(values) for name, values in tree["posterior"].data_vars.items()}


@pytest.mark.engines
def test_every_imputation_is_sampled_over_messages_as_in_one_process(tmp_path):
    path = written(tmp_path / "study")
    study = load_study(path)
    transport = network(path, tmp_path, terms_of(study))
    with jax.enable_x64(True):
        app.serve(path, transport, config(tmp_path))
        over, alone = consortia.open_run(tmp_path / "run"), flower_study.alone(path)
    assert over.attrs["state"] == "finished"
    numbers = np.asarray(over["posterior"].coords["imputation"])
    np.testing.assert_array_equal(numbers, np.repeat([0, 1], 20))
    for name, wanted in draws_of(alone).items():
        np.testing.assert_allclose(draws_of(over)[name], wanted, rtol=1e-9, atol=1e-12)
    first, second = (draws_of(over)["coefficients"][:, part] for part in (slice(20), slice(20, 40)))
    assert np.abs(first - second).max() > 0.01  # of other completed rows
    lines = verify(tmp_path / "oslo" / "ledger.jsonl").entries
    runs = dict.fromkeys(line.run for line in lines)
    assert len(runs) == 3  # one that tells what is missing, and one of each imputation
    app.serve(path, transport, config(tmp_path))  # finished: no site is asked again
    assert verify(tmp_path / "oslo" / "ledger.jsonl").entries == lines


@pytest.mark.engines
def test_a_run_that_was_cut_within_an_imputation_goes_on_to_the_same_draws(tmp_path, monkeypatch):
    path = written(tmp_path / "study")
    transport = network(path, tmp_path, terms_of(load_study(path)))
    pushed, push = [], transport.push

    def cut(messages: Any, ttl: float) -> list[str]:
        pushed.append(messages)
        if len(pushed) == 50:
            raise ConnectionError("cut")
        return push(messages, ttl)

    monkeypatch.setattr(transport, "push", cut)
    with jax.enable_x64(True):
        with pytest.raises(ConnectionError):
            app.serve(path, transport, config(tmp_path))
        kept = sorted(one.name for one in (tmp_path / "run" / "imputations").iterdir())
        assert kept == ["0", "1"]
        app.serve(path, transport, config(tmp_path))
        over, alone = consortia.open_run(tmp_path / "run"), flower_study.alone(path)
    assert over.attrs["state"] == "finished"
    for name, wanted in draws_of(alone).items():
        np.testing.assert_allclose(draws_of(over)[name], wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.engines
def test_without_gaps_there_is_one_run(tmp_path):
    path = written(tmp_path / "study", missing="61.5")
    study = load_study(path)
    with jax.enable_x64(True):
        app.serve(path, network(path, tmp_path, terms_of(study)), config(tmp_path))
        over, alone = consortia.open_run(tmp_path / "run"), flower_study.alone(path)
    for name, wanted in draws_of(alone).items():
        np.testing.assert_allclose(draws_of(over)[name], wanted, rtol=1e-9, atol=1e-12)
    assert len({line.run for line in verify(tmp_path / "oslo" / "ledger.jsonl").entries}) == 1


def test_what_needs_one_posterior_is_refused_before_the_first_round(tmp_path):
    path = written(tmp_path / "study")
    path.write_text(path.read_text().replace("seed = 5", "seed = 5\nloo = true"))
    transport = network(path, tmp_path, terms_of(load_study(path)))
    with jax.enable_x64(True), refused(argument="run.verify", match="'impute'"):
        app.serve(path, transport, config(tmp_path))
    assert not (tmp_path / "run").exists()


def test_a_site_is_told_of_the_runs_and_may_refuse_them(tmp_path):
    path = written(tmp_path / "study")
    study = load_study(path)
    terms = terms_of(study)
    text = " ".join(text for _, text in sentences(study, terms))
    assert "2 runs of the same model, each with missing values drawn anew there" in text
    assert len({one.study for one in terms.every}) == 3
    transport = network(path, tmp_path, replace(terms, besides=()))
    with jax.enable_x64(True), refused(SiteRefusedError, sites=("oslo",), match=r"\(studies"):
        app.serve(path, transport, config(tmp_path))


def test_an_answer_of_all_imputations_is_described_once(tmp_path):
    path = written(tmp_path / "study")
    path.write_text(STUDY.split("[algorithm]")[0] + '[algorithm]\nname = "few_rounds"\n')
    study = load_study(path)
    texts = [text for _, text in sentences(study, terms_of(study))]
    assert sum("(log_densities)" in text for text in texts) == 1
