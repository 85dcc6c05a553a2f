"""Rows and sites left out, as sums that the sites of a study tell after its run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from federation.test_verification import config, network
from parity import flower_study
from parity.flower_sites import Sites

import consortia
from consortia.core.target import Target
from consortia.diagnostics import leave_one_site_out
from consortia.diagnostics.left_out import LEAST_DRAWS
from consortia.diagnostics.site_sums import LEFT_OUT, SiteSums, told_by_sites
from consortia.errors import SiteRefusedError
from consortia.federation import app
from consortia.federation.governance import terms_of, verify
from consortia.federation.governance.explanation import sentences
from consortia.study.build import load_study
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("width_of_before")


def written(folder: Path) -> Path:
    path = flower_study.write(folder, rounds=100, chains=2, **flower_study.FA_HMC)
    path.write_text(path.read_text().replace("seed = 5", "seed = 5\nloo = true"))
    return path


@pytest.mark.engines
def test_sites_over_messages_tell_what_one_process_finds(tmp_path):
    path = written(tmp_path / "study")
    study = load_study(path)
    with jax.enable_x64(True):
        app.serve(path, network(path, tmp_path, terms_of(study)), config(tmp_path))
        alone, built = flower_study.alone(path), study.build()
        given = (alone, built.model, built.sites)
        rows, sites = consortia.loo({"the model": given}), leave_one_site_out(*given)
    run = tmp_path / "run"
    assert (run / "left-out.txt").read_text() == f"{rows}\n\n{sites}\n"
    lines = verify(tmp_path / "oslo" / "ledger.jsonl").entries
    first, second = dict.fromkeys(line.run for line in lines)
    kinds = [line.kind for line in lines if line.run == second and line.event == "released"]
    assert kinds == ["description", "description", "fit", "fit"]
    assert "fit" not in {line.kind for line in lines if line.run == first}


TWO = """
[data]
files = ["oslo.csv", "lima.csv", "pune.csv"]

[model]
formula = "died ~ arm"
family = "bernoulli"

[compare]
formula = "died ~ age * arm"
family = "bernoulli"

[algorithm]
name = "federated_hmc"
step_size = 0.1
leapfrog_steps = 2
mass_matrix = "identity"

[run]
rounds = 50
chains = 2
seed = 5

[output]
figure = false
"""


def with_two_models(folder: Path) -> Path:
    path = flower_study.write_with_formula(folder)
    path.write_text(TWO)
    return path


@pytest.mark.engines
def test_two_models_over_messages_are_compared_as_in_one_process(tmp_path):
    path = with_two_models(tmp_path / "study")
    study = load_study(path)
    with jax.enable_x64(True):
        transport = network(path, tmp_path, terms_of(study))
        app.serve(path, transport, config(tmp_path))
        other = study.compared
        assert other is not None
        results = {}
        for name, one in (("model", study), ("compare", other)):
            built = one.build()
            options = {**one.run_options, "progress": False}
            tree = consortia.sample(built.model, built.sites, built.algorithm, **options)
            results[name] = (tree, built.model, built.rows)
        rows = consortia.loo(results)
    text = (tmp_path / "run" / "left-out.txt").read_text()
    assert text.startswith(f"{rows}\n\n")
    assert consortia.open_run(tmp_path / "run" / "compare").attrs["state"] == "finished"
    lines = verify(tmp_path / "oslo" / "ledger.jsonl").entries
    *_, last = dict.fromkeys(line.run for line in lines)
    kinds = [line.kind for line in lines if line.run == last and line.event == "released"]
    assert kinds == ["moments", "description", "fit", "fit"]
    app.serve(path, transport, config(tmp_path))  # finished: no site is asked again
    assert verify(tmp_path / "oslo" / "ledger.jsonl").entries == lines


def test_a_site_is_told_of_the_other_model_and_may_refuse_it_alone(tmp_path):
    path = with_two_models(tmp_path / "study")
    study = load_study(path)
    terms = terms_of(study)
    text = " ".join(text for _, text in sentences(study, terms))
    assert "The regression died ~ age * arm, family bernoulli. It is compared with" in text
    assert "it uses the columns 'died', 'arm', 'age' of yours" in text
    main, other, sums = terms.every
    assert len({main.study, other.study, sums.study, other.model}) == 4
    assert sums.model not in (other.model, replace(main, besides=()).study)
    allowed = replace(main, besides=(sums,))
    with jax.enable_x64(True), refused(SiteRefusedError, sites=("oslo",), match=r"\(studies"):
        app.serve(path, network(path, tmp_path, allowed), config(tmp_path))


def test_all_numbers_are_those_of_one_process_and_of_too_few_points_none_is_told(tmp_path):
    """In 64 bits: sums over rows are taken in another order, nothing else differs."""
    with jax.enable_x64(True):
        case = Sites(tmp_path, "fa_hmc", 3, 2)
        tree = case.sampled(consortia.LocalEngine(devices=1), rounds=300)
        wanted = consortia.loo({"the model": (tree, case.model, case.sites)})
        without = leave_one_site_out(tree, case.model, case.sites)
        rows, sites = told_by_sites(
            [tree], case.model, case.sites, consortia.LocalEngine(devices=1)
        )
    for name in ("sums", "products", "parameters", "waic", "shapes"):
        np.testing.assert_allclose(getattr(rows, name), getattr(wanted, name), rtol=1e-9)
    for name in ("mean", "sd", "means", "sds", "k_hat"):
        np.testing.assert_allclose(getattr(sites, name), getattr(without, name), rtol=1e-6)

    few = SiteSums(positions=tuple((n / 100, 0.0, 0.0) for n in range(LEAST_DRAWS - 1)))
    target = Target(case.model, case.model.init)
    run = consortia.LocalEngine(devices=1).prepare(target, case.sites, few, 1)
    run.start(0, np.zeros((1, 3), target.dtype))
    assert all(np.isnan(told).all() for told in run.fitted[0])


def test_a_site_that_permits_the_study_alone_is_asked_nothing(tmp_path):
    path = written(tmp_path / "study")
    alone = replace(terms_of(load_study(path)), besides=())
    with jax.enable_x64(True), refused(SiteRefusedError, sites=("oslo",), match=r"\(studies"):
        app.serve(path, network(path, tmp_path, alone), config(tmp_path))
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_site_is_told_of_the_second_run_before_the_first(tmp_path):
    study = load_study(written(tmp_path))
    terms = terms_of(study)
    text = dict(sentences(study, terms))["Then"]
    assert LEFT_OUT in text
    assert "4 messages" in text
    assert terms.every[0].study != terms.every[1].study
