"""The frame of the five papers: claims, verdicts, stored records, generated pages."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import subprocess
import types
from pathlib import Path

import numpy as np
import pytest

import consortia
from consortia.oracles import fa_hmc_law
from experiments import claims, drawing, finished, pages, records
from experiments.claims import Claim, Finding, computed
from experiments.fa_hmc import classification, logistic, marginal_error

PAPERS = [claims.read(name) for name in claims.PAPERS]
STUDIES = [(paper, study) for paper in PAPERS for study in paper.studies]
MOST_BYTES = 200_000
CHEAP_SECONDS = 4.0
"""Of processor time that a stored quick run took, at most, for it to be repeated in a test.

Whichever two are chosen, they end within some ten seconds. A run by a launcher, whose processes are
not counted, says 0 and is none of them.
"""


def claim(**options: object) -> Claim:
    given = {"source": "text", "quote": "a gain of 1 in all runs", **options}
    if "number" in given or "near" in given:
        given = {"null": 0.0, **given}
    return Claim("one", "1", "a quantity", "a number", **given)


# --- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "finding", "share", "verdict"),
    [
        (claim(number=1.0, tolerance=0.1), computed(1.09), "", "reproduced"),
        (claim(number=1.0, tolerance=0.1), computed(1.11), "", "not reproduced"),
        (claim(number=1.0, tolerance=0.1), Finding(1.09), "", "undecided"),
        (claim(number=1.0, tolerance=0.1), Finding(1.11), "", "undecided"),
        (claim(number=1.0, tolerance=0.1), Finding(1.09, law=1.05), "", "reproduced"),
        (claim(number=1.0, tolerance=0.1), Finding(1.09, law=1.2), "", "undecided"),
        (claim(near=1.0, tolerance=0.05), Finding(0.2, 0.5), "", "undecided"),
        (claim(near=1.0, tolerance=0.05), Finding(4.0, 1.6), "", "undecided"),
        (claim(near=1.0, tolerance=0.05), Finding(0.2, 0.1), "", "not reproduced"),
        (claim(source="tick", band=(0.7, 0.9)), Finding(0.2, 5.0), "", "undecided"),
        (claim(above=1.0, tolerance=0.05, bound=True), computed(0.05), "",
         "beyond the bound as printed"),
        (claim(above=1.0, tolerance=0.05, bound=True), computed(1.6), "", "consistent with"),
        (claim(above=3.0, tolerance=0.1, bound=True, reading="p* = p + εg."), computed(2.0), "",
         "beyond the bound under this reading"),
        (claim(above=1.0, tolerance=0.1, bound=True), Finding(0.95, 0.04), "", "undecided"),
        (claim(number=1.0, tolerance=0.1), Finding(1.15, 0.03), "", "reproduced"),
        (claim(number=1.0, tolerance=0.1), Finding(1.17, 0.03), "", "not reproduced"),
        (claim(number=1.0, tolerance=0.1), Finding(0.9, 0.5), "", "undecided"),
        (claim(near=1.0, tolerance=0.1), computed(1.09), "", "reproduced"),
        (claim(above=0.0), Finding(0.05, 0.02), "", "reproduced"),
        (claim(above=0.0), Finding(0.05, 0.03), "", "undecided"),
        (claim(above=0.0), Finding(-0.07, 0.03), "", "not reproduced"),
        (claim(below=0.0), Finding(-0.05, 0.03), "", "undecided"),
        (claim(below=0.0), computed(-0.05), "", "reproduced"),
        (claim(above=0.0), Finding(None, shown="diverged"), "", "not reproduced"),
        (claim(above=0.0), Finding(math.inf), "", "not reproduced"),
        (claim(above=0.0, reading="A step h/N."), computed(1.0), "",
         "reproduced under this reading"),
        (claim(above=0.0, reading="A step h/N."), computed(-1.0), "",
         "not reproduced under this reading"),
        (claim(above=0.0), computed(1.0), "40 of 200 rounds", "smaller: 40 of 200 rounds; holds"),
        (claim(above=0.0), computed(-1.0), "40 of 200 rounds",
         "smaller: 40 of 200 rounds; does not hold"),
        (claim(above=0.0, reading="A step h/N."), computed(-1.0), "40 of 200 rounds",
         "smaller: 40 of 200 rounds; does not hold under this reading"),
        (claim(above=0.0, whole=True), computed(1.0), "40 of 200 rounds", "reproduced"),
        (claim(), Finding(1.0), "", "no published number"),
        (claim(above=0.0), None, "", "not run"),
        (claim(above=0.0, paired=True), Finding(1.0, 0.1, pairs=5), "", "reproduced"),
        (claim(above=0.0, paired=True), Finding(1.0, 0.1, pairs=4), "", "undecided"),
        (claim(above=0.0, paired=True), Finding(1.0), "", "undecided"),
        (claim(above=0.0, paired=True), Finding(-1.0, 0.1, pairs=1), "40 of 200 rounds",
         "smaller: 40 of 200 rounds; undecided"),
        (claim(above=0.0, paired=True), Finding(None, shown="refused", pairs=5), "",
         "not reproduced"),
        (claim(above=0.0, paired=True), Finding(None, shown="never reached", pairs=1), "",
         "undecided"),
        (claim(above=0.0), Finding(1.0, untuned="K = 1: one step size tried"), "", "untuned"),
        (claim(above=0.0), Finding(-1.0, untuned="K = 1: one step size tried"), "3 rounds",
         "smaller: 3 rounds; untuned"),
        (claim(above=0.0, bound=True), computed(1.0), "", "consistent with"),
        (claim(above=0.0, bound=True), computed(-1.0), "", "beyond the bound as printed"),
        (claim(source="ours", above=0.0), Finding(1.0), "", "ours: holds"),
        (claim(source="ours", above=0.0), Finding(-1.0), "", "ours: does not hold"),
        (claim(source="ours"), Finding(-1.0), "", "ours"),
        (claim(source="tick", band=(0.7, 0.9)), computed(0.8), "", "within the axis"),
        (claim(source="tick", band=(0.7, 0.9)), computed(0.95), "", "outside the axis"),
        (claim(source="tick", band=(0.7, 0.9), reading="From 0."), computed(0.8), "",
         "within the axis under this reading"),
    ],
)  # fmt: skip
def test_the_verdict_follows_from_claim_finding_and_tolerance(one, finding, share, verdict):
    assert one.verdict(finding, share) == verdict


@pytest.mark.parametrize(
    ("one", "finding", "reason"),
    [
        (claim(above=0.0), Finding(0.05), "One run, which has no standard error"),
        (claim(above=0.0), Finding(0.05, law=-0.01), "The exact law is on the other side"),
        (claim(above=0.0), Finding(0.06, 0.05), "1.2 of the 2 standard errors that decide"),
        (claim(above=0.0), Finding(0.06, 0.05, pairs=5),
         "1.2 of the 2 standard errors that decide: were it so in the long run, 14 pairs would"),
        (claim(above=0.0), Finding(0.0, 0.0), "0.0 of the 2 standard errors that decide"),
        (claim(above=0.0), Finding(0.0, 0.1, pairs=5), "0.0 of the 2 standard errors that decide"),
        (claim(above=0.0, paired=True), Finding(1.0, 0.1, pairs=4),
         "4 of the 5 pairs of runs that decide"),
        (claim(near=1.0, tolerance=0.05), Finding(0.2, 0.5), "The error is as wide as the effect"),
        (claim(source="tick", band=(0.7, 0.9)), Finding(0.2, 5.0),
         "The error is as wide as the axis"),
        (claim(above=0.0), Finding(0.06, 0.02), ""),
    ],
)  # fmt: skip
def test_what_is_undecided_says_why(one, finding, reason):
    assert one.open_because(finding) == reason
    assert (one.verdict(finding) == "undecided") == bool(reason)
    row = pages._row(one, finding, one.verdict(finding))
    assert reason in row.rpartition("**")[2]


def test_a_comparison_takes_the_pairs_together_and_not_the_runs_apart():
    one, other = [1.0, 2.0, 3.0, 4.0, 5.5], [0.9, 1.9, 2.9, 3.9, 5.3]
    parts = [
        {
            "label": label,
            "runs": [[{"nll": value}] for value in values],
            "tried": [{"step_size": step} for step in (1.0, 2.0, 3.0, 4.0)],
            "setting": {"step_size": 2.0},
        }
        for label, values in (("one", one), ("other", other))
    ]
    found = classification.better(parts, "nll", "other", "one")
    gains = 100 * (1 - np.array(other) / np.array(one))
    assert found.pairs == 5
    assert found.value == pytest.approx(gains.mean())
    assert found.error == pytest.approx(gains.std(ddof=1) / math.sqrt(5))
    assert "5 pairs" in found.text


def test_a_ratio_of_spreads_has_the_error_that_repetitions_of_it_have():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(500, 30, 1))  # each repetition's, which both methods share
    both = rows + 0.5 * rng.normal(size=(500, 30, 2))
    found = [claims.over_spreads(*pairs.T.tolist()) for pairs in both]
    apart = np.std([math.log(one.value) for one in found])
    told = np.array([one.error / one.value for one in found])
    assert np.sqrt((told**2).mean()) == pytest.approx(apart, rel=0.1)
    assert apart < 0.7 / math.sqrt(29)  # what independent repetitions would have is a third wider
    assert found[0].pairs == 30


def test_too_few_or_equal_repetitions_have_no_error_or_ratio():
    assert claims.over_spreads([1.0, 2.0], [1.0, 5.0]) == Finding(0.25, pairs=2)
    assert claims.over_spreads([1.0, 1.0, 1.0], [1.0, 4.0, 2.0]).value is None
    assert claims.over_spreads([1.0, 2.0, 4.0], [3.0, 3.0, 3.0]).value is None


def test_a_single_run_takes_the_error_of_shorter_ones_and_nothing_else_does(monkeypatch):
    study = claims.read("fa-hmc").chosen("fashion_mnist")[0]
    entries = {"one": {"value": 0.8}, "law": {"value": 1.0, "law": 1.0},
               "several": {"value": 1.0, "error": 0.3}, "none": {"value": None, "shown": "none"},
               "told": {"value": 2.0, "shown": "two"}}  # fmt: skip
    spread = {name: {"value": 9.0, "spread": 0.01} for name in entries}
    found = {
        scale: {"scale": scale, "commit": "c", "findings": one}
        for scale, one in {"small": spread, "full": entries}.items()
    }
    monkeypatch.setattr(records, "stored", lambda paper, study: found)
    best = records.best(PAPERS[0], study)
    findings = records.findings(best)
    assert findings["one"].error == 0.01
    assert findings["one"].text == "0.8 ± 0.01, by shorter runs"
    assert findings["told"].text == "two"
    for name in ("law", "several", "none"):
        assert best["findings"][name] == entries[name]
    band = claim(source="tick", band=(0.7, 0.9))
    assert band.verdict(findings["one"]) == "within the axis"
    assert band.verdict(Finding(0.8)) == "undecided"


def test_a_claim_with_an_unknown_key_is_refused_by_its_id(tmp_path, monkeypatch):
    folder = tmp_path / "fsgld"
    folder.mkdir()
    text = (claims.ROOT / "fsgld" / "claims.toml").read_text()
    (folder / "claims.toml").write_text(text.replace("whole = true", "hole = true", 1))
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"claim fig1-dsgld: .*hole"):
        claims.read("fsgld")


# --- the stored records --------------------------------------------------------------------------


@pytest.mark.parametrize(("paper", "study"), STUDIES, ids=lambda x: x.name)
def test_every_record_speaks_of_claims_of_its_study_and_is_small(paper, study):
    known = {one.id for one in study.claims}
    for scale, record in records.stored(paper, study).items():
        assert (record["paper"], record["study"], record["scale"]) == (
            paper.name,
            study.name,
            scale,
        )
        assert set(record["findings"]) <= known
        assert set(record["data"]) == set(study.data)
        assert records.path(paper, study, scale).stat().st_size < MOST_BYTES
        assert all(one.panel is None or one.panel < len(study.panels) for one in study.claims)
    # A claim that the largest stored run does not speak of must be of a larger one, or wait for it.
    best = records.best(paper, study)
    waiting = {one.id for one in study.claims if one.estimate}
    missing = known - waiting - set(best["findings"]) if best else set()
    assert not missing or best["scale"] == "quick"


@pytest.mark.parametrize(("paper", "study"), STUDIES, ids=lambda x: x.name)
def test_every_stored_finding_is_what_the_program_finds_in_the_stored_results(paper, study):
    module = records.program(paper, study)
    for scale, record in records.stored(paper, study).items():
        again = module.findings(record["results"])
        assert set(again) == set(record["findings"]), scale
        for name, kept in records.findings(record).items():
            # Results are stored to five digits, which differences of them feel.
            assert differs(again[name], kept) < 0.01, (scale, name)


def differs(one: Finding, other: Finding) -> float:
    """Return the relative distance of two findings, in parts of the larger one; 0 without any.

    What is smaller than a thousandth counts as that. Without the same tuning and pairs they are
    infinitely far apart: a verdict follows from these too.
    """
    if (one.untuned, one.pairs) != (other.untuned, other.pairs):
        return math.inf
    if one.value is None or other.value is None or not math.isfinite(one.value):
        return 0.0 if one.value == other.value or other.value is None else math.inf
    return abs(one.value - other.value) / max(abs(one.value), abs(other.value), 1e-3)


def test_a_finding_that_is_edited_by_hand_is_told_apart():
    paper, study = cheap()[0]
    record = records.stored(paper, study)["quick"]
    again = records.program(paper, study).findings(record["results"])
    name, kept = next((n, one) for n, one in records.findings(record).items() if one.value)
    edited = dataclasses.replace(kept, value=1.05 * kept.value)
    assert differs(again[name], kept) < 0.01 < differs(again[name], edited)


def test_an_edge_of_a_grid_that_is_planted_in_a_record_is_told_apart():
    (study,) = (one for paper, one in STUDIES if one.name == "fashion_mnist")
    record = records.stored(PAPERS[0], study)["full"]
    program = records.program(PAPERS[0], study)
    (part,) = (one for one in record["results"]["local"] if one["label"] == "T = 20")
    part["tried"] = [one for one in part["tried"] if one["step_size"] <= 0.0016]
    part["tried"].append({**part["tried"][0], "step_size": 0.0001})
    again, kept = program.findings(record["results"]), records.findings(record)
    assert again["fig4-nll"].untuned == "T = 20: the best step size is the largest of 4"
    assert differs(again["fig4-nll"], kept["fig4-nll"]) == math.inf
    assert differs(again["fig3-nll"], kept["fig3-nll"]) < 0.01


def test_every_picture_is_there_and_small():
    for paper, study in STUDIES:
        if records.best(paper, study) is not None:
            assert 1_000 < records.picture(paper, study).stat().st_size < MOST_BYTES, study.name
    for paper in PAPERS:
        sheet = records.RESULTS / paper.name / "sheet.svg"
        assert sheet.stat().st_size < MOST_BYTES, paper.name


WORDS = re.compile(r"<text[^>]*>(.*?)</text>", re.DOTALL)
DIGITS = re.compile(r"(?<![\d.])[-−]?\.?\d[\d.]*")


def unclaimed(paper: claims.Paper, texts: list[str]) -> list[str]:
    """Find numbers that a picture calls the paper's and no claim of the paper has."""
    given = [one for study in paper.studies for one in study.claims]
    known = {one.number for one in given if one.number is not None}
    quotes = " ".join(one.quote for one in given if one.source in claims.NUMBERED)
    after = [text.partition("paper")[2] for text in texts if "paper" in text]
    numbers = [
        (text, float(found.rstrip(".").replace("−", "-")))
        for text in after
        for found in DIGITS.findall(text)
    ]
    return [t for t, n in numbers if n not in known and not claims.in_words(n, quotes)]


def words(picture: Path) -> list[str]:
    text = picture.read_text()
    return [re.sub(r"<[^>]*>|\s+", " ", found).strip() for found in WORDS.findall(text)]


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_pictures_name_no_number_of_the_paper_that_no_claim_has(paper):
    for study in paper.studies:
        texts = words(records.picture(paper, study))
        assert len(texts) > 5
        assert unclaimed(paper, texts) == [], study.name
        numbered = any(one.number is not None for one in study.claims)
        assert numbered or "paper" not in texts, f"{study.name}: a legend without a claim"
    assert unclaimed(paper, words(records.RESULTS / paper.name / "sheet.svg")) == []


def test_pictures_without_a_claim_of_the_paper_name_none_of_its_sizes():
    whole = []
    for paper, study in STUDIES:
        kinds = {pages.kind(v) for one, _, _, v in pages.rows(paper) if one is study}
        if "At the paper's size." in " ".join(words(records.picture(paper, study))):
            assert not kinds <= set(claims.UNSIZED), study.name
            whole.append(study.name)
    assert {"dimension", "gaussian_mean"} <= set(whole)


def test_a_label_of_an_axis_that_a_picture_calls_the_papers_is_told_apart():
    assert unclaimed(PAPERS[0], ["paper 4332", "paper: T = 70 is best"]) == [" 4332"]


def edited(texts: dict[Path, str]) -> list[Path]:
    """Return the generated pages whose text is not what claims and records generate."""
    made = pages.pages()
    assert set(texts) == set(made)
    return [path for path, text in texts.items() if text != made[path]]


def test_the_pages_are_what_claims_and_records_generate():
    assert not edited({path: path.read_text() for path in pages.pages()}), (
        "edited by hand: run `consortia papers write`"
    )


@pytest.mark.parametrize("column", range(6))
def test_a_row_that_is_edited_by_hand_is_told_apart(column):
    texts = pages.pages()
    for path in texts:
        mark, gaps = ("| Figure", 2) if path.name == "clauses.md" else ("**", 5)
        row = next(
            line for line in texts[path].splitlines() if line.count(" | ") == gaps and mark in line
        )
        cells = row.split(" | ")
        cells[column % len(cells)] += "1"
        assert edited(texts | {path: texts[path].replace(row, " | ".join(cells))}) == [path]


def commit() -> str:
    root = Path(__file__).parents[2]
    told = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return told.stdout.strip()


def cheap() -> list[tuple[claims.Paper, claims.Study]]:
    """Two studies without data whose quick run is cheap, chosen by the commit's hash."""
    candidates = [
        (paper, study)
        for paper, study in STUDIES
        if not study.data
        and 0
        < records.stored(paper, study).get("quick", {"cpu_seconds": math.inf})["cpu_seconds"]
        < CHEAP_SECONDS
    ]
    assert len(candidates) > 2
    order = sorted(
        candidates,
        key=lambda one: hashlib.sha256(f"{commit()} {one[0].name} {one[1].name}".encode()).digest(),
    )
    return order[:2]


def test_two_quick_rows_chosen_by_the_commit_come_out_as_they_are_stored():
    for paper, study in cheap():
        kept = records.stored(paper, study)["quick"]
        again = records.findings(records.run(paper, study, "quick", kept["seed"]))
        for name, finding in records.findings(kept).items():
            # The same numbers in single precision on another processor, chaotic chains excluded
            # by their length; law rows agree to rounding.
            slack = 0.05 * abs(finding.value or 0) + 2 * (finding.error or 0)
            assert again[name].value == pytest.approx(finding.value, abs=slack + 1e-9), name


def test_a_stored_number_that_is_edited_by_hand_fails_the_repetition():
    paper, study = cheap()[0]
    kept = records.findings(records.stored(paper, study)["quick"])
    again = records.findings(records.run(paper, study, "quick", 0))
    name = next(n for n, one in kept.items() if one.value)
    slack = 0.05 * abs(kept[name].value) + 2 * (kept[name].error or 0)
    assert again[name].value != pytest.approx(2 * kept[name].value, abs=slack)


def test_the_verdict_stands_in_the_panel(tmp_path):
    paper = claims.read("fa-hmc")
    (study,) = paper.chosen("dimension")
    record = records.best(paper, study)
    drawing.save(paper, study, record, tmp_path / "figure.svg", "data absent")
    text = (tmp_path / "figure.svg").read_text()
    assert "reproduced · data absent" in text


@pytest.mark.slow
@pytest.mark.predicted
@pytest.mark.filterwarnings("ignore:Do not run these settings:UserWarning")  # they are published
@pytest.mark.parametrize(("paper", "study"), STUDIES, ids=lambda x: x.name)
def test_every_study_runs_quickly_speaks_of_its_claims_and_is_drawn(
    paper, study, tmp_path, require_data
):
    for name in study.data:
        require_data(name)
    record = records.run(paper, study, "quick", 0)
    assert set(record["findings"]) <= {one.id for one in study.claims}
    drawing.save(paper, study, record, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_shortening_a_picture_leaves_its_numbers_in_words(tmp_path):
    paper = claims.read("fa-hmc")
    study = paper.chosen("synchronisation")[0]
    (claim,) = (one for one in study.claims if one.id == "sync-gain")
    marked = dataclasses.replace(study, claims=(dataclasses.replace(claim, mark=True),))
    drawing.save(paper, marked, records.best(paper, study), tmp_path / "figure.svg")
    assert re.search(r">\s*65\s*<", (tmp_path / "figure.svg").read_text())


# --- long runs in parts --------------------------------------------------------------------------


def test_a_finished_part_is_taken_from_the_folder_of_the_run_and_only_there(tmp_path):
    made = []

    def make() -> dict[str, object]:
        made.append(1)
        return {"loss": np.array([1.0, np.nan]), "at": (3,)}

    first = records.part("one", make)  # no folder: nothing is kept
    with records.parts_in(tmp_path / "parts"):
        second, third = (records.part("one", make) for _ in range(2))
        records.part("two", make)
    with records.parts_in(tmp_path / "parts"):
        fourth = records.part("one", make)
    assert first == second == third == fourth == {"loss": [1.0, None], "at": [3]}
    assert len(made) == 3


def test_a_stopped_sweep_goes_on_within_the_part_and_has_the_same_scores(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(40, 3)).astype(np.float32), "y": rng.integers(0, 2, 40)}
    task = classification.Task("rows", consortia.partition.iid(rows, 10, seed=0), rows, "")
    model = consortia.models.softmax_regression(3, 2)
    sizes = [classification.Setting(2, 2, step, None) for step in (0.01, 0.02)]

    def swept() -> list[dict[str, object]]:
        return classification.sweep(
            model, task, {"K = 2": sizes}, classification.Lengths(6), seed=1
        )

    whole = swept()
    scores, calls = classification.scores, []

    def stopped(*arguments: object) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 6:  # in the scores of the second run, whose draws are stored by then
            raise KeyboardInterrupt
        return scores(*arguments)

    monkeypatch.setattr(classification, "scores", stopped)
    with records.parts_in(tmp_path), pytest.raises(KeyboardInterrupt):
        swept()
    monkeypatch.setattr(classification, "scores", scores)
    monkeypatch.setattr(consortia, "sample", None)  # nothing is to be sampled anew
    with records.parts_in(tmp_path):
        assert swept() == whole


@pytest.mark.slow
def test_a_sweep_is_tuned_on_few_rounds_and_its_best_run_goes_on_from_there(tmp_path):
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(40, 3)).astype(np.float32), "y": rng.integers(0, 2, 40)}
    task = classification.Task("rows", consortia.partition.iid(rows, 10, seed=0), rows, "")
    model = consortia.models.softmax_regression(3, 2)
    by_leapfrog = {
        f"K = {k}": [classification.Setting(k, 2, step, None) for step in (0.01, 0.02)]
        for k in (1, 2)
    }
    lengths = classification.Lengths(5, tune_rounds=2, best_runs=2)
    with records.parts_in(tmp_path):
        swept = classification.sweep(model, task, by_leapfrog, lengths, seed=1)
    for one in swept:
        assert [entry["round"] for entry in one["tried"]] == [2, 2]
        assert one["runs"][0][-1]["round"] == 5
        chosen = classification.Setting(**one["setting"])
        alone = classification.curve(model, task, chosen, rounds=5, seed=1)
        assert one["runs"][0] == records.plain(alone)  # tuned and gone on, or in one piece
    best = min(swept, key=lambda one: one["runs"][0][-1]["nll"])
    assert [len(one["runs"]) for one in swept] == [2 if one is best else 1 for one in swept]

    (unfinished,) = [one for one in swept if one is not best]
    step = unfinished["setting"]["step_size"]
    (part,) = tmp_path.glob(f"rows-{unfinished['label'].replace(' = ', '')}-T2-step{step:g}-*-5-*")
    part.unlink()
    with records.parts_in(tmp_path), records.finished_only():
        first, begun = classification.sweep(model, task, by_leapfrog, lengths, seed=1)
    assert first == best
    assert begun["label"] == f"{unfinished['label']}, 2 rounds"
    assert begun["runs"][0][-1]["round"] == 2
    assert begun["tried"] == unfinished["tried"]


def test_a_resumed_run_counts_the_processor_time_of_the_parts_that_it_takes(tmp_path, monkeypatch):
    paper = claims.read("fa-hmc")
    (study,) = paper.chosen("dimension")
    program = types.SimpleNamespace(
        study=lambda scale, seed: {"one": records.part("one", lambda: sum(range(3_000_000)))},
        findings=lambda results: {},
    )
    monkeypatch.setattr(records, "program", lambda paper, study: program)
    with records.parts_in(tmp_path):
        first = records.run(paper, study, "full", 0)
        kept = json.loads((tmp_path / "one.json").read_text())
        there = {"cpu_seconds": 100.0, "commit": "0123456789", "machine": "another machine"}
        (tmp_path / "one.json").write_text(json.dumps(kept | there))
        second = records.run(paper, study, "full", 0)
    assert first["cpu_seconds"] < 50
    assert 100 <= second["cpu_seconds"] < 150
    assert second["machine"] == f"another machine; {first['machine']}"
    assert second["commit"] == f"0123456789, {first['commit']}"
    assert second["results"] == first["results"]
    with records.finished_only(), pytest.raises(records.UnfinishedError, match="two is not"):
        records.part("two", dict)
    with pytest.raises(FileNotFoundError, match="run the study with --resume first"):
        finished.collect(paper, study, "full", 0, tmp_path)
    folder = records.parts_of(paper, study, "full", 0, tmp_path)
    folder.mkdir(parents=True)
    (folder / "one.json").write_text((tmp_path / "one.json").read_text())
    record = json.loads(finished.collect(paper, study, "full", 0, tmp_path).read_text())
    assert record["results"] == first["results"]
    assert record["cpu_seconds"] >= 100
    assert record["machine"] == "another machine"


@pytest.mark.slow
def test_a_panel_that_the_largest_run_leaves_empty_is_drawn_from_a_smaller_one(
    tmp_path, monkeypatch
):
    (study,) = claims.read("fa-hmc").chosen("images")
    small = records.stored(PAPERS[0], study)["small"]
    results = {**small["results"], "kmnist": {"leapfrog": [], "local": []}}
    full = {**small, "scale": "full", "results": results}
    monkeypatch.setattr(records, "stored", lambda *_: {"small": small, "full": full})
    drawing.save(PAPERS[0], study, full, tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    titles = re.findall(r"(\S+)[^<>,]*, accuracy by \w(, smaller run)?", text)
    assert [bool(late) for _, late in titles] == [False, True, False, True], titles


def test_what_the_largest_run_lacks_is_found_in_a_smaller_one_with_its_own_share(monkeypatch):
    paper = claims.read("fa-hmc")
    study = dataclasses.replace(
        paper.chosen("fashion_mnist")[0], shares={"small": "a tenth", "full": "all but K = 50"}
    )
    found = {
        "small": {"fig3-nll": {"value": 3.0}, "fig4-worst": {"value": 2.0, "law": 2.0}},
        "full": {"fig3-nll": {"value": 1.0, "law": 1.0}},
    }
    found = {
        scale: {"scale": scale, "commit": f"of {scale}", "findings": one}
        for scale, one in found.items()
    }
    monkeypatch.setattr(records, "stored", lambda paper, study: found)
    record = records.best(paper, study)
    findings, full = records.findings(record), study.shares[record["scale"]]
    above = claim(above=0.0)
    assert findings["fig3-nll"].value == 1.0
    assert above.verdict(findings["fig3-nll"], full) == "smaller: all but K = 50; holds"
    assert above.verdict(findings["fig4-worst"], full) == "smaller: a tenth; holds"
    assert above.verdict(findings["fig4-worst"], "") == "smaller: a tenth; holds"
    assert "fig4-worst" not in found["full"]["findings"]
    assert record["borrowed"] == {"small": ("of small", ["fig4-worst"])}
    assert list(pages._borrowed(record)) == [
        "It lacks one finding, which the record of scale small, commit of small, has."
    ]


@pytest.mark.parametrize("found", ["within the axis under this reading", "consistent with"])
def test_a_smaller_run_is_not_counted_among_those_at_the_papers_size(found):
    whole = found.removesuffix(" under this reading")
    assert pages.kind(f"smaller: a tenth; {found}") == f"smaller: {whole}"
    assert pages.kind(found) == whole
    assert pages.kind("smaller: a tenth; ours") == "ours"


def test_no_sampler_runs_where_only_finished_parts_are_taken(tmp_path):
    expected = pytest.raises(records.UnfinishedError, match="one run")
    with records.parts_in(tmp_path), records.finished_only(), expected:
        records.sampled("one run", None, None, None, rounds=1)


# --- figure 1 of FA-HMC by the law ---------------------------------------------------------------


def test_the_law_by_thin_products_is_the_law_of_federated_averaging():
    data = logistic.rows(12, 60, 3)
    x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
    clients = marginal_error.Clients.of(x, y, 5)
    curvatures, means = [], []
    for client, pull in enumerate(clients.pulls):
        own = clients.vectors[:, clients.owner == client]
        along = clients.values[clients.owner == client] - 1
        curvatures.append(np.eye(12) + (own * along) @ own.T)
        means.append(-np.linalg.solve(curvatures[-1], pull))
    for step, leapfrogs, local, noise in ((0.1, 5, 3, 0.0), (0.05, 1, 10, 100.0)):
        law = fa_hmc_law(
            means, curvatures, np.full(5, 0.2), step_size=step, leapfrog_steps=leapfrogs,
            local_steps=local, gradient_noise=noise,
        )  # fmt: skip
        wider = law.stationary.sd - law.target.sd
        expected = marginal_error._distance(law.stationary.bias, wider).mean()
        (found,) = clients.marginal_errors(step, leapfrogs, local, (noise,))
        assert found == pytest.approx(expected, rel=1e-10)


def test_the_distance_of_two_normal_laws_is_that_of_their_quantiles():
    from scipy.stats import norm

    levels = (np.arange(200_000) + 0.5) / 200_000
    for shift, wider in ((0.3, 0.5), (-1.0, 0.1), (0.0, -0.4)):
        exact = float(marginal_error._distance(np.array([shift]), np.array([wider]))[0])
        assert exact == pytest.approx(np.abs(shift + wider * norm.ppf(levels)).mean(), rel=1e-4)
