"""One verdict: what is good, what needs care, what is bad, and what is not known."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import xarray

import consortia
from consortia.diagnostics.prediction import BiasPrediction
from consortia.diagnostics.verdict import Severity, Verdict, judge

NAMES = ("theta[0]", "theta[1]")
SMALL = BiasPrediction(
    basis="the exact law",
    names=NAMES,
    mean=np.zeros(2),
    sd=np.ones(2),
    shift=np.array([0.0, 0.02]),
    sd_ratio=np.array([1.0, 1.01]),
    gaussian=True,
)
DIVERGES = BiasPrediction(reason="the chain diverges near the mode", diverges=True)
EXACT = BiasPrediction(basis="a Metropolis test keeps the posterior")


def draws(chains: int = 4, count: int = 1000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(chains, count, 2))


def judged(values: np.ndarray, prediction: BiasPrediction | None = SMALL, **more: Any) -> Verdict:
    """The verdict that `consortia.summary` gives on a result with these draws."""
    tree = xarray.DataTree.from_dict(
        {"/posterior": xarray.Dataset({"theta": (("chain", "draw", "theta_dim_0"), values)})}
    )
    tree.attrs.update({"algorithm": "fa_hmc", "end": "all rounds", "stopped": "all rounds"} | more)
    if prediction is not None:
        tree.attrs["prediction"] = prediction.plain()
    found = consortia.summary(tree).verdict
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("prediction", "word"),
    [
        (SMALL, "good"),
        (EXACT, "good"),
        (None, "unknown"),
        (BiasPrediction(reason="fa_hmc has no oracle"), "unknown"),
        (dataclasses.replace(SMALL, sd_ratio=None), "unknown"),
        (dataclasses.replace(SMALL, gaussian=False, k_hat=0.9), "unknown"),
        (dataclasses.replace(SMALL, gaussian=False, unsure="agents are far apart"), "unknown"),
        (dataclasses.replace(SMALL, shift=np.array([0.84, 0]), gaussian=False, k_hat=0.9), "care"),
        (dataclasses.replace(SMALL, shift=np.array([0.2, 0.0])), "care"),
        (dataclasses.replace(SMALL, shift=np.array([0.84, 0.0])), "bad"),
        (dataclasses.replace(SMALL, sd_ratio=np.array([1.0, 1.3])), "bad"),
        (DIVERGES, "bad"),
    ],
)
def test_settings_are_judged_by_their_predicted_bias_before_and_after_a_run(prediction, word):
    before, after = judge(prediction), judged(draws(), prediction)
    assert before.word == word
    # Draws that are not as predicted count too, and these are of the posterior itself.
    assert after.word == word or after.severity > before.severity
    for verdict in (before, after):
        assert all(check.reason for check in verdict.reasons)
        assert all(check.action for check in verdict.reasons)


def stuck(values: np.ndarray) -> np.ndarray:
    values[1] = values[1, :1]
    return values


def infinite(values: np.ndarray) -> np.ndarray:
    values[0, 5, 1] = np.nan
    return values


def apart(values: np.ndarray) -> np.ndarray:
    return values + 5 * np.arange(4)[:, None, None]


def antithetic(values: np.ndarray) -> np.ndarray:
    values[:, 1::2] = -0.9 * values[:, ::2] + 0.2 * values[:, 1::2]
    return values


def far(values: np.ndarray) -> np.ndarray:
    return 30 * values


@pytest.mark.parametrize(
    ("spoil", "word", "said"),
    [
        (stuck, "bad", "stuck"),
        (infinite, "bad", "not finite"),
        (apart, "bad", "R-hat"),
        (antithetic, "care", "of 4,000 draws"),
        (far, "bad", "where they should be"),
        (lambda values: values[:, :20], "bad", "ESS"),
        (lambda values: values[:1], "unknown", "R-hat n/a"),
    ],
)
def test_draws_that_are_not_what_they_should_be_are_never_good(spoil, word, said):
    verdict = judged(spoil(draws()))
    assert verdict.word == word
    assert said in " ".join(verdict.lines())


def test_rounds_that_are_too_few_for_a_slow_chain_need_care_before_they_are_run():
    slow = dataclasses.replace(SMALL, rounds_per_draw=50.0)
    assert judge(slow, rounds=400 * 50).word == "good"
    verdict = judge(slow, rounds=100 * 50)
    assert verdict.word == "care"
    assert "Take 20,000 rounds" in " ".join(verdict.lines())


def test_fewer_draws_than_an_interval_needs_are_never_good_whatever_makes_them():
    for prediction in (SMALL, EXACT):
        assert judge(prediction, draws=240).word == "care"
        assert judge(prediction, draws=400).word == "good"


def test_draws_of_the_predicted_law_are_good():
    verdict = judged(draws())
    assert verdict.word == "good", verdict.lines()
    limits = "within 0.1 sd for means and 10 % for standard deviations"
    assert verdict.lines() == [f"GOOD: This posterior can be used {limits}."]
    exact = judged(draws(), EXACT)
    assert exact.lines() == ["GOOD: This posterior can be used."]


def test_where_nobody_looked_for_other_modes_the_verdict_is_unknown():
    """It was GOOD, with the words that nobody had looked."""
    for prediction in (SMALL, EXACT):
        verdict = judged(draws(), prediction, modes_sought=json.dumps(False))
        assert verdict.word == "unknown"
        assert "Are there other modes? not looked for" in verdict.lines()[1]
        assert judged(draws(), prediction, modes_sought=json.dumps(True)).word == "good"
        looked = dataclasses.replace(prediction, other_modes=())
        assert judged(draws(), looked, modes_sought=json.dumps(False)).word == "good"
        looked = dataclasses.replace(prediction, other_modes=((3.0, 1.5),))
        seen = judged(draws(), BiasPrediction.read(looked.plain()))
        assert seen.word == "unknown"
        assert "near (3, 1.5)" in seen.lines()[1]


@pytest.mark.parametrize(
    ("q", "words"), [(9.0, "hardly more than chance explains (I² 0 %)"), (40.0, "(I² 75 %)")]
)
def test_how_much_sites_disagree_is_a_sentence_and_no_fault(q, words):
    by_record = judged(draws(), EXACT, disagreement=json.dumps([q, 10]))
    by_law = judged(draws(), dataclasses.replace(SMALL, disagreement=(q, 10)))
    for verdict in (by_record, by_law):
        assert verdict.word == "good"
        (found,) = [check for check in verdict.checks if "disagree" in check.title]
        assert words in found.reason
        assert bool(found.action) == (q > 20)
    assert not any("disagree" in check.title for check in judged(draws()).checks)


@pytest.mark.parametrize("family", ["cox", "weibull", "bernoulli", "gaussian"])
def test_every_family_takes_the_terms_that_are_advised_where_sites_disagree(family):
    verdict = judged(draws(), EXACT, disagreement=json.dumps([40.0, 10]))
    (action,) = (check.action for check in verdict.checks if "disagree" in check.title)
    right = action.partition(": ")[2].rstrip(".")
    rng = np.random.default_rng(0)
    table = {"t": rng.exponential(3, 40), "d": np.arange(40) % 2, "x": rng.normal(size=40)}
    left = {"bernoulli": "d", "gaussian": "t"}.get(family, "Surv(t, d)")
    made = consortia.regression(f"{left} ~ {right}", {"a": table, "b": table}, family=family)
    assert made.names == ("x",)
    assert made.differs_by_site


def test_an_exact_method_is_good_without_a_reference_and_says_nothing_of_unseen_bias():
    verdict = judged(antithetic(draws()), EXACT)  # antithetic draws are no fault there
    assert verdict.word == "good"
    assert not any("cannot be seen" in check.text for check in verdict.checks)


@pytest.mark.parametrize("nested", [True, False])
def test_a_reading_that_nobody_has_confirmed_withholds_good_and_is_named(nested):
    doubt = "oslo: age: 999 is taken as a number, in 8 rows"
    settings = {"doubts": [doubt], "readings": [doubt, "arm holds words: 2 levels"]}
    settings = {"regression": settings} if nested else settings
    verdict = judged(draws(), settings=json.dumps(settings))
    assert verdict.word == "unknown"
    assert verdict.lines()[1:] == [f"Were the tables read correctly? 1 guess to confirm: {doubt}."]
    assert judged(draws(), settings=json.dumps({"readings": [doubt]})).word == "good"
    assert judge(SMALL, doubts=[doubt]).word == "unknown"
    assert judge(SMALL).word == "good"


@pytest.mark.parametrize(
    ("shift", "x64", "word"), [(3e6, False, "care"), (3e6, True, "good"), (3e3, False, "good")]
)
def test_a_parameter_that_32_bits_do_not_resolve_is_named_with_the_remedy(shift, x64, word):
    prediction = dataclasses.replace(SMALL, mean=SMALL.mean + shift)
    verdict = judged(draws() + shift, prediction, x64=json.dumps(x64))
    assert verdict.word == word, verdict.lines()
    if word == "care":
        assert "JAX_ENABLE_X64=1" in verdict.lines()[1]


def test_what_was_not_measured_is_shown_as_unknown_and_does_not_count():
    (shown,) = [one for one in judged(draws()).checks if one.value == "not measured"]
    assert shown.severity is Severity.UNKNOWN
    assert not shown.counts


def test_of_an_exact_method_nothing_is_left_to_be_measured():
    exact = BiasPrediction(basis="A Metropolis test keeps the posterior exactly")
    verdict = judged(draws(), exact)
    assert "How large is the measured bias?" not in [one.title for one in verdict.checks]
    assert verdict.explanation == "All checks passed."
    for prediction in (SMALL, DIVERGES, None):
        shown = judged(draws(), prediction).checks
        assert "not measured" in [one.value for one in shown]


def test_a_prediction_comes_back_from_a_record_as_it_was():
    again = BiasPrediction.read(SMALL.plain())
    assert again.plain() == SMALL.plain()
    np.testing.assert_array_equal(again.shift, SMALL.shift)


def test_a_prediction_shows_itself_in_words():
    assert repr(SMALL).splitlines() == SMALL.lines()
    assert repr(DIVERGES) == "No prediction: the chain diverges near the mode."


def test_a_table_of_draws_without_a_record_has_no_verdict():
    table = consortia.summary({"theta": draws()})
    assert table.verdict is None
    assert repr(table) == str(table)
    assert "<table>" in table._repr_html_()
    assert list(table.to_dataframe().index) == list(table.coordinates)
