"""A study whose rows have weights of a sample: what is refused, left out, and told to a site."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.engines.local import LocalEngine
from consortia.federation import app
from consortia.federation.governance import terms_of
from consortia.federation.governance.explanation import sentences
from consortia.report import effects, study_run
from consortia.study.build import Study, load_study
from consortia.study.reference import left_away
from consortia.study.runs import compared_over
from tests.refusals import refused

STUDY = """
[data]
files = ["oslo.csv", "lima.csv"]
[model]
formula = "y ~ x"
weights = "w"
weights_are = "sampling"
[algorithm]
name = "few_rounds"
[reference]
[run]
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    rng = np.random.default_rng(1)
    for name in ("oslo", "lima"):
        rows = [f"{one:.3f},{one + 1:.3f},{abs(one) + 1:.3f}" for one in rng.normal(size=20)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,y,w", *rows, ""]))
    (tmp_path / "study.toml").write_text(STUDY)
    return load_study(tmp_path / "study.toml")


def test_what_needs_a_posterior_is_known_before_sampling(study: Study) -> None:
    built = study.build()
    assert "not from a posterior" in str(left_away(built, wanted=True))
    with refused(argument="weights", match="^verify: .*'sampling'"):
        compared_over(built, LocalEngine(), quiet=True)


def test_a_site_is_told_of_the_sandwich_and_of_its_messages(study: Study) -> None:
    terms = terms_of(study)
    told = dict(sentences(study, terms))
    assert "with the spread of a sandwich" in told["Method"]
    assert "products of scores" in told["Method"]
    assert "is the posterior" not in told["Method"]
    assert terms.usual == 2 + 5


def test_effects_that_rows_do_not_allow_are_told_and_end_nothing() -> None:
    rows = {"x": np.array([0.0, 1.0, 2.0, 3.0]), "y": np.arange(4.0)}
    made = consortia.regression("y ~ sqrt(x)", {"s": rows})
    draws: Any = {"intercept": np.zeros((1, 1)), "log_sigma": np.zeros((1, 1))}
    draws["coefficients"] = np.ones((1, 1, 1))
    skipped: list[str] = []
    built: Any = SimpleNamespace(regression=made)
    assert study_run._margins_of(built, draws, skipped) is None
    assert skipped[0].startswith("marginal effects: ")
    report: Any = SimpleNamespace(regression=made, tree=draws)
    found, why = effects.margins(report)
    assert found is None
    assert "not finite in 1 of 4 rows" in why


def test_a_study_over_a_network_is_refused_before_sampling(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = STUDY.replace("[reference]\n[run]", "[run]\nverify = true")
    (tmp_path / "study.toml").write_text(text)
    for name in ("_set_width", "compute_inline", "_coordinators"):
        monkeypatch.setattr(app, name, lambda *_: None)
    monkeypatch.setattr(app, "_make_engine", lambda *_, **__: LocalEngine())
    config: Any = {"quiet": True, "output": str(tmp_path / "run"), "origin": ""}
    transport: Any = None
    with refused(argument="weights", match=r"run\.verify: .*'sampling'"):
        app.serve(tmp_path / "study.toml", transport, config)
    assert not (tmp_path / "run").exists()
