"""A study whose prior is an earlier posterior, by letters with masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app
from consortia.study.build import load_study
from tests.federation.correspondence import Correspondence
from tests.federation.hospitals import HOSPITALS
from tests.federation.test_registered import AGREED, of_one_process


def done(*words: str) -> str:
    found = CliRunner().invoke(app, list(words))
    assert found.exit_code == 0, found.output
    return found.output


@pytest.fixture(scope="module")
def stated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return this year's study, with the posterior of last year's run of other sites."""
    folder = tmp_path_factory.mktemp("years")
    for name in ("north", "south"):
        (folder / f"{name}.csv").write_bytes((HOSPITALS / f"{name}.csv").read_bytes())
    earlier = AGREED.replace(', "west.csv"', "").replace("rounds = 60", "rounds = 400")
    (folder / "earlier.toml").write_text(earlier)
    done("run", str(folder / "earlier.toml"), "--output", str(folder / "2025"), "--no-reference")
    (folder / "study.toml").write_text(AGREED)
    weighted = ("--prior-from", str(folder / "2025"), "--weight", "0.5")
    text = done("register", str(folder / "study.toml"), *weighted)
    assert "Its prior is the posterior of" in text
    assert ", k-hat " in text
    return (folder / "study.toml").read_text()


def test_the_study_states_numbers_and_no_site_reads_a_path(stated: str, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(stated)
    built = load_study(tmp_path / "study.toml").build(data_folder=HOSPITALS)
    assert built.regression is not None
    earlier = built.regression.density.earlier
    assert earlier is not None
    assert earlier.weight == 0.5
    assert earlier.labels == ("coefficients[age]", "coefficients[dose]", "intercept")
    assert "its rows counted 0.5 times" in str(built.metadata.settings["regression"]["notes"])


@pytest.mark.slow
def test_letters_with_masks_have_the_posterior_of_one_process(stated: str, tmp_path: Path) -> None:
    alone = of_one_process(tmp_path / "study.toml", stated)
    now = Correspondence(tmp_path / "letters", keys=True, asked=stated)
    found = now.proceed()
    while found.result is None:
        for name, number in found.awaited.items():
            assert now.answer(name, number).error is None
        found = now.proceed()
    tree = consortia.open_run(found.result)
    for name in tree.posterior:
        there, wanted = np.asarray(tree.posterior[name]), np.asarray(alone.posterior[name])
        apart = (there.mean(axis=(0, 1)) - wanted.mean(axis=(0, 1))) / wanted.std(axis=(0, 1))
        assert np.abs(apart).max() < 0.15
        np.testing.assert_allclose(there.std(axis=(0, 1)), wanted.std(axis=(0, 1)), rtol=0.1)
