"""Sources of published values: what they permit, and that they are printed."""

from __future__ import annotations

import re

import numpy as np
import pytest

import consortia
from experiments import claims, pages, records, sources
from experiments.claims import Claim
from experiments.fa_hmc import classification
from experiments.fsgld import gaussian_mean, theorems

PAPERS = [claims.read(name) for name in claims.PAPERS]


def made(**options: object) -> Claim:
    return Claim("one", "1", "a quantity", "a number", **options)


def planted(tmp_path, monkeypatch, name: str, old: str, new: str) -> claims.Paper:
    """Return a paper whose claims have one text in the place of another."""
    folder = claims.PAPERS[name]
    text = (claims.ROOT / folder / "claims.toml").read_text()
    assert old in text
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "claims.toml").write_text(text.replace(old, new, 1))
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    return claims.read(name)


# --- what a source permits ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"above": 0.0}, "no verdict without one of"),
        ({"source": "memory", "quote": "better"}, "no verdict without one of"),
        ({"source": "text", "above": 0.0}, "needs a quote"),
        ({"source": "tick", "quote": "label .847", "number": 0.847, "null": 0.0}, "no number"),
        ({"source": "slide", "quote": "about 5", "number": 5.0, "null": 0.0}, "no number"),
        ({"source": "tick", "quote": "label .847", "above": 0.0}, "give a band"),
        ({"source": "text", "quote": "better", "band": (0.0, 1.0)}, "give a band"),
        ({"source": "legend", "quote": "T = 100", "above": 0.0}, "gives no verdict"),
        ({"source": "text", "quote": "5 %", "number": 7.0, "null": 0.0}, "not in its quote"),
        ({"source": "text", "quote": "5 %", "number": 5.0}, "null = None"),
        ({"source": "text", "quote": "5 %", "number": 5.0, "null": 4.0, "tolerance": 1.0},
         "further from 5"),
        ({"source": "text", "quote": "as wide", "near": 0.7071, "null": 0.0}, "has neither"),
        ({"source": "text", "quote": "the same", "near": 1.0}, "null = None"),
        ({"source": "text", "quote": "at most 2", "near": 2.0, "null": 0.0, "bound": True},
         "one side"),
        ({"source": "text", "quote": "much larger", "above": 100.0}, "is no tie"),
        ({"source": "text", "quote": "larger", "above": 1.0, "tolerance": 0.1}, "no tolerance"),
    ],
)  # fmt: skip
def test_a_claim_whose_source_does_not_permit_a_verdict_is_refused(options, fault):
    with pytest.raises(ValueError, match=fault):
        made(**options)


def test_a_planted_number_is_refused(tmp_path, monkeypatch):
    text = (claims.ROOT / "fa_hmc" / "claims.toml").read_text()
    own = text[text.index('id = "sync-gain"') :].partition("[[")[0]
    changed = own.replace("number = 65.0", "number = 7.0")
    with pytest.raises(ValueError, match=r"claim sync-gain: the number 7 is not in its quote"):
        planted(tmp_path, monkeypatch, "fa-hmc", own, changed)


def test_a_planted_tick_is_refused(tmp_path, monkeypatch):
    band = "band = [0.748, 0.848]"
    with pytest.raises(ValueError, match=r"claim fig3-accuracy: source = 'tick' gives no number"):
        planted(tmp_path, monkeypatch, "fa-hmc", band, "number = 0.847\nnull = 0.1")


# --- what is printed ------------------------------------------------------------------------------


def text_of(name: str) -> str:
    text = sources.text_of(name)
    if text is None:
        pytest.skip(f"the text of {name} is not at hand (CONSORTIA_PAPERS)")
    return text


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_every_quote_stands_in_the_text_of_its_paper(paper):
    assert sources.faults(paper, text_of(paper.name)) == []


def test_a_number_that_is_planted_in_the_quote_too_is_found(tmp_path, monkeypatch):
    paper = planted(tmp_path, monkeypatch, "fsgld", "-0.69 ± 0.001 -0.44 ± 0.062",
                    "-0.69 ± 0.001 -0.43 ± 0.062")  # fmt: skip
    (fault,) = sources.faults(paper, text_of("fsgld"))
    assert fault.startswith("fsgld, claim dsgld-alike-train: not in the paper's text")


def test_a_quote_is_found_across_lines_hyphens_and_markup():
    text = "the num-\nber of $\\mathbf{steps}$ is\nlarge. Later: it is 65 times."
    assert sources.printed("The number of steps … 65 times", text)
    assert not sources.printed("65 times … number of steps", text)
    assert not sources.printed("66 times", text)


# --- tuning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tried", "best", "reason"),
    [
        ([1.0], 1.0, "K = 1: one step size tried"),
        ([1.0, 2.0, 3.0], 2.0, "K = 1: 3 step sizes tried"),
        ([1.0, 2.0, 3.0, 4.0], 4.0, "K = 1: the best step size is the largest of 4"),
        ([1.0, 2.0, 3.0, 4.0], 1.0, "K = 1: the best step size is the smallest of 4"),
        ([1.0, 2.0, 3.0, 4.0], 3.0, ""),
    ],
)
def test_a_step_size_is_tuned_inside_a_grid_of_four(tried, best, reason):
    assert claims.untuned("K = 1", tried, best) == reason


def part(label: str, nll: list[float]) -> dict[str, object]:
    """Return a label's sweep with these last NLLs by step size, and five runs of the best."""
    steps = [0.001 * 2**i for i in range(len(nll))]
    best = int(np.argmin(nll))
    tried = [{"step_size": step, "nll": value} for step, value in zip(steps, nll, strict=True)]
    runs = [[{"nll": nll[best] + 0.01 * run}] for run in range(5)]
    return {"label": label, "setting": {"step_size": steps[best]}, "tried": tried, "runs": runs}


def test_a_planted_edge_of_a_grid_leaves_no_verdict():
    better = made(source="text", quote="better", above=0.0, paired=True)
    good, inside = part("K = 10", [5.0, 3.0, 2.0, 3.0]), part("K = 1", [5.0, 4.0, 3.0, 4.0])
    edge = part("K = 1", [6.0, 5.0, 4.0, 3.0])
    found = [classification.better([good, one], "nll", "K = 10", "K = 1") for one in (inside, edge)]
    assert [better.verdict(one) for one in found] == ["reproduced", "untuned"]
    assert found[1].untuned == "K = 1: the best step size is the largest of 4"


@pytest.mark.parametrize(
    ("paper", "study", "rows", "reason"),
    [
        ("stale-gradients", "logistic", ["fig3-a9a-most", "fig4-a9a"], "rate: one step"),
        ("stale-gradients", "appendix", ["app-i-workers"], "rate: one step"),
        ("stale-gradients", "lenet", ["fig3-lenet-most", "fig4-lenet"], "rate: 2 step sizes"),
        ("stale-gradients", "cifar", ["fig3-cifar-most", "fig3-cifar-worse"], "rate: 2 step"),
        ("fsgld", "neural_network", ["anchored-unlike"], "networks: one step"),
    ],
)
def test_a_step_that_is_ours_and_that_few_others_were_tried_beside_gives_no_verdict(
    paper, study, rows, reason
):
    found = {
        claim.id: (finding, verdict)
        for one, claim, finding, verdict in pages.rows(claims.read(paper))
        if one is not None and one.name == study
    }
    for row in rows:
        finding, verdict = found[row]
        assert finding.untuned.startswith(reason), row
        assert verdict.split("; ")[-1] == "untuned", row


def test_a_rate_that_the_paper_prints_needs_no_tuning():
    paper = claims.read("stale-gradients")
    (study,) = paper.chosen("lenet")
    results = records.stored(paper, study)["small"]["results"]
    own = {**results, "rates": results["rates"][:1]}
    assert records.program(paper, study).findings(own)["fig3-lenet-most"].untuned == ""


def test_a_sweep_makes_its_grid_longer_until_the_best_step_is_inside(monkeypatch):
    def attempt(model, task, setting, *, rounds, seed):
        if setting.step_size > 0.02:
            return {"diverged_in_round": 1}
        nll = abs(np.log(setting.step_size / 0.008))
        return {"curve": [{"round": 1, "accuracy": 0.0, "brier": 0.0, "ece": 0.0, "nll": nll}]}

    monkeypatch.setattr(classification, "attempt", attempt)
    task = classification.Task("rows", consortia.Sites.from_list([{"y": np.zeros(2)}]), {}, "")
    start = [classification.Setting(1, 1, step, None) for step in (0.001, 0.002)]
    for most, reason in ((9, ""), (0, "K = 1: 2 step sizes tried")):
        lengths = classification.Lengths(1, most=most)
        found = classification.sweep(None, task, {"K = 1": start}, lengths, seed=0)
        assert classification.coarse(found) == reason
    assert len(found[0]["tried"]) == 2


# --- verdicts on papers ---------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_who_is_said_to_be_wrong_is_quoted(paper):
    for _, claim, finding, verdict in pages.rows(paper):
        if "not reproduced" in verdict or "does not hold" in verdict:
            assert claim.source == "ours" or sources.letters(claim.quote), claim.id
            assert not claim.bound, claim.id
            assert finding is not None


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_a_page_opens_with_three_sentences_of_its_message(paper):
    card = pages.card(paper)
    message = paper.message.strip()
    assert card.index(message) < card.index("consortia papers run")
    assert len(re.findall(r"\.(?=\s|$)", message)) == 3


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_ratio_of_bounds_judges_no_ratio_of_errors(seed):
    (claim,) = (one for one in sources.every(PAPERS[1]) if one.id == "thm1-unequal")
    found = theorems.uneven(gaussian_mean.shards(seed))
    assert claim.verdict(claims.computed(found["uneven"] / found["even"])) == "ours"
