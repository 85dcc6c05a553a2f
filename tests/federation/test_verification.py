"""A study whose draws are compared: a second run, which the policies of its sites permit or not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from parity import flower_study
from parity.comparing import assert_same_run

import consortia
from consortia.engines.messages.identities import made_keys
from consortia.engines.messages.transport import InProcess
from consortia.errors import SiteRefusedError
from consortia.federation import app
from consortia.federation.governance import terms_of, verify
from consortia.federation.governance.explanation import sentences
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import StudyTerms
from consortia.run.verification import EXACT
from consortia.study.build import Study, load_study
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("width_of_before")


def written(folder: Path) -> Path:
    path = flower_study.write(folder, rounds=200, chains=2, **flower_study.FA_HMC)
    path.write_text(path.read_text().replace("seed = 5", "seed = 5\nverify = true"))
    return path


def network(path: Path, folder: Path, terms: StudyTerms) -> InProcess:
    """Sites with a policy that permits what these terms say."""

    keys = made_keys(folder / "server", {name: folder / name for name in flower_study.NAMES})

    def site(name: str) -> Any:
        node = {
            "site": name,
            "data": str(next(path.parent.glob(f"{name}.*"))),
            "folder": str(folder / name),
        }
        text = proposed(terms, rows=1, keys=keys)  # of thirty rows the first answer settles one
        text = text.replace("maximum_settled_rows = 0", "maximum_settled_rows = 30")
        # moments leave with all digits, as one process has them
        text = re.sub("minimum_pattern_rows = .*", "minimum_pattern_rows = 1", text)
        (folder / name / app.POLICY).write_text(text)
        return lambda message: app.answer(path, message, node, {"x64": True})

    return InProcess({number: site(name) for number, name in enumerate(flower_study.NAMES)})


def config(folder: Path) -> dict[str, Any]:
    keys = str(folder / "server")
    return {"output": str(folder / "run"), "origin": "", "x64": True, "keys": keys}


def without(study: Study) -> StudyTerms:
    """The terms of the study itself, as a site permits it that permits nothing beside it."""
    return replace(terms_of(study), besides=())


def assert_same_law(other: Any, alone: Any) -> None:
    """Draws with noise of the sites' own have the means and spreads of those without."""
    for name, variable in alone["posterior"].data_vars.items():
        noisy = other["posterior"][name].values
        spread = variable.values.std(axis=(0, 1))
        gap = np.abs(noisy.mean(axis=(0, 1)) - variable.values.mean(axis=(0, 1)))
        assert (gap > 0).all()
        assert (gap < 0.2 * spread).all()
        assert (np.abs(noisy.std(axis=(0, 1)) / spread - 1) < 0.2).all()


@pytest.mark.engines
def test_a_run_over_sites_is_compared_with_the_exact_sampler_of_one_process(tmp_path, capsys):
    path = written(tmp_path / "study")
    study = load_study(path)
    with jax.enable_x64(True):
        app.serve(path, network(path, tmp_path, terms_of(study)), config(tmp_path))
        beside = study.verification
        assert beside is not None
        alone = flower_study.alone(path)
        built = beside.build()
        exact = consortia.verify(alone, built.model, built.sites, progress=False).reference
        assert_same_run(consortia.open_run(tmp_path / "run"), alone)
        assert_same_law(consortia.open_run(tmp_path / "run" / "reference"), exact)
    assert f"then {EXACT}: expected wall time" in capsys.readouterr().out
    checks = json.loads((tmp_path / "run" / "summary.json").read_text())["checks"]
    (measured,) = (one for one in checks if one["title"] == "How large is the measured bias?")
    assert measured["counts"]
    runs = {entry.run for entry in verify(tmp_path / "oslo" / "ledger.jsonl").entries}
    assert len(runs) == 2


def test_a_site_that_permits_the_study_alone_is_asked_nothing(tmp_path):
    path = written(tmp_path / "study")
    transport = network(path, tmp_path, without(load_study(path)))
    with jax.enable_x64(True), refused(SiteRefusedError, sites=("oslo",), match=r"\(studies"):
        app.serve(path, transport, config(tmp_path))
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_site_is_told_of_the_second_run_before_the_first(tmp_path):
    study = load_study(written(tmp_path))
    terms = terms_of(study)
    text = dict(sentences(study, terms))["Then"]
    assert EXACT in text
    assert f"{terms.every[1].exchanges:,} messages" in text
    assert terms.every[0].study != terms.every[1].study
