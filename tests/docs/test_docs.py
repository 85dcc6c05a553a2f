"""What the documentation says of code is so: its blocks run, and give the numbers beside them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import consortia
from consortia.models.regression.families import FAMILIES
from consortia.models.regression.priors import FORMS
from consortia.study.build import Study, load_study

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "decentralized-hmc.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_blocks_on_decentralized_hmc_run_and_give_the_numbers_beside_them() -> None:
    names: dict[str, object] = {}
    checked = 0
    for block in blocks():
        for line in block.splitlines():
            said = re.search(r"\S.*  # (\d\.\d+)", line)
            if said is None:
                exec(line, names)
                continue
            value = float(np.ravel(eval(line, names))[0])
            digits = len(said[1].split(".")[1])
            assert value == pytest.approx(float(said[1]), abs=0.5 * 10.0**-digits)
            checked += 1
    assert checked >= 1


def test_the_template_for_ones_own_data_as_it_stands_gives_a_good_posterior(tmp_path) -> None:
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    template = text.split("Without a formula")[1].split("## ")[0]
    lines = [line[4:] for line in template.splitlines() if line.startswith("    ")]
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for site in ("oslo", "lima", "pune"):
        age, dose = rng.normal(60, 9, 80), rng.gamma(2, 5, 80)
        died = rng.random(80) < 1 / (1 + np.exp(-0.08 * (age - 60)))
        rows = [f"{a:.1f},{d:.2f},{int(y)}" for a, d, y in zip(age, dose, died, strict=True)]
        (tmp_path / "data" / f"{site}.csv").write_text("\n".join(["age,dose,outcome", *rows, ""]))
    (tmp_path / "study.toml").write_text("\n".join(lines))
    study = load_study(tmp_path / "study.toml")
    built = study.build()
    tree = consortia.sample(
        built.model,
        built.sites,
        built.algorithm,
        **study.run_options,
        metadata=built.metadata,
        progress=False,
    )
    table = consortia.summary(tree)
    assert table.verdict is not None
    assert table.verdict.word == "good", table.verdict.lines()
    # The true coefficient of age, within four of the posterior's own standard deviations.
    assert abs(table.row("coefficients[age]")["mean"] - 0.08) < 4 * table["sd"][0]


def test_the_study_on_the_page_of_formulas_is_one_of_at_most_fifteen_lines() -> None:
    text = (ROOT / "docs" / "formulas.md").read_text(encoding="utf-8")
    study = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0]
    assert len([line for line in study.splitlines() if line.strip()]) <= 15
    assert Study.model_validate(tomllib.loads(study)).model.options["family"] == "bernoulli"
    for name in FAMILIES:
        assert f"| `{name}` |" in text
    for name in FORMS:
        assert name in text
