"""A report for who asked the question: effects in words, who contributed, priors, and on paper."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import xarray
from needs import needs

import consortia
from consortia.errors import MissingExtraError
from consortia.models.regression.estimates import shorts
from consortia.models.regression.families import FAMILIES
from consortia.report import accuracy, methods, paper
from consortia.report.document import _show_posterior, page, write_report
from consortia.report.effects import (
    NOUNS,
    Response,
    by_site,
    estimates,
    interpretation,
    known_from_prior,
    moved_by_priors,
    number,
    priors_beside,
)
from consortia.report.examined import Examined
from consortia.report.run_report import HeldOutScores, RunReport, report_of
from consortia.report.tables import (
    contribution_table,
    effect_table,
    prior_table,
    settings_table,
)
from tests.refusals import refused

needs("matplotlib", extra="plots")

NAMES = ("age", "arm[new]", "sex[M]", "site[lima]")
MEANS, SDS = np.array([0.05, -0.7, 0.1, 1.4]), np.array([0.01, 0.2, 0.3, 0.2])


def regression(
    family: str = "bernoulli",
    apart: float = 0.0,
    seed: int = 0,
    of_sex: Callable[[np.ndarray], np.ndarray] | None = None,
    **record: Any,
) -> RunReport:
    """Draws of coefficients of four columns; ``apart`` shifts one chain by so many sds.

    ``of_sex`` makes the draws of the third from standard normal ones.
    """
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(4, 1000, len(NAMES)))
    values = MEANS + SDS * z
    if of_sex is not None:
        values[..., 2] = of_sex(z[..., 2])
    values[0] += apart * SDS
    posterior = xarray.Dataset(
        {"coefficients": (("chain", "draw", "column"), values)}, {"column": list(NAMES)}
    )
    tree = xarray.DataTree.from_dict({"/posterior": posterior})
    settings = {
        "data": {"files": ["oslo.csv", "lima.csv"]},
        "model": {"formula": "died ~ age + arm + sex + site", "family": family},
        "regression": {
            "formula": "died ~ age + arm + sex + site",
            "family": family,
            "priors": dict.fromkeys(NAMES, "normal(0, 2.5)") | {"age": "normal(0, 0.2)"},
            "notes": ["3 rows are left out", "the event is died = 'yes'"],
            "event": "died = 'yes'",
        },
    }
    tree.attrs.update(
        {"algorithm": "few_rounds", "samples": "the posterior", "bias": "none, ever"}
        | {"sites": '["oslo", "lima"]', "site_rows": "[30, 50]", "seed": 7, "warmup": 4}
        | {"settings": json.dumps(settings), "versions": '{"consortia": "0.2.0"}'}
        | record
    )
    return report_of(tree)


def test_every_ratio_of_a_family_has_a_word_for_what_it_is_of():
    effects = {one.effect for one in FAMILIES.values() if one.effect is not None}
    assert effects <= NOUNS.keys()


# --- in words ------------------------------------------------------------------------------------


def test_the_sentence_states_sure_directions_the_surest_first_and_no_site():
    text = interpretation(regression())
    assert text.startswith("Each unit of age goes with higher odds of death (odds ratio 1.05")
    assert "arm new goes with lower odds of death (odds ratio 0.49" in text
    assert "For the other effect the direction is not clear." in text
    assert "lima" not in text
    assert "sex" not in text


def asking(column: str) -> RunReport:
    """Return the report of a study that is about a column."""
    report = regression()
    report.record["settings"]["question"] = column
    report.record["settings"]["regression"]["levels"] = {"arm": ["usual", "new"], "sex": ["F"]}
    return report


def test_the_column_that_the_study_is_about_comes_first_whatever_its_direction():
    assert interpretation(asking("arm")).startswith(
        "Arm new, against usual, goes with lower odds of death (odds ratio 0.49"
    )
    text = interpretation(asking("sex"))
    assert text.startswith(
        "Whether sex M, against F, goes with higher or lower odds of death is not clear (odds "
        "ratio 1.1"
    )
    assert "; higher with probability 0.6" in text.partition(")")[0]
    assert text.count("sex") == 1
    assert "each unit of age goes with higher odds" in text


def test_a_column_of_0_and_1_is_1_against_0() -> None:
    report = regression()
    counts = {"lima": {"0": 9, "1": 5}, "oslo": {"0": 3}}
    sites = {site: {"levels": {"age": [cells, 0]}} for site, cells in counts.items()}
    report.record["settings"]["regression"]["participants"] = {"sites": sites}
    assert interpretation(report).startswith("Age 1, against 0, goes with higher odds of death")
    sites["oslo"]["levels"]["age"] = [{"0": 3}, 7]  # what is merged may be anything
    assert interpretation(report).startswith("Each unit of age goes with")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Surv(start, stop, event)", "the event"),
        ("Surv(time, status == 1)", "the event"),
        ("Surv(time, status == 2)", "status 2"),
        ("Surv(futime, death)", "death"),
        ("Surv(time, status == 'dead')", "death"),
        ("Surv(time, I(status > 1))", "status above 1"),
        ("Surv(time, cause == 2)", "cause 2"),
        ("Surv(time, relapse == 1)", "relapse"),
        ("died = 'yes'", "death"),
        ("smokes = 'ja'", "smokes"),
        ("arm = 'new drug'", "arm new drug"),
        ("I(visits >= 3)", "visits at least 3"),
        ("bmi", "bmi"),
    ],
)
def test_a_sentence_has_no_words_of_a_formula(name, words):
    response = Response(name, "bernoulli", "odds ratio", {}, ())
    assert response.words == words


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("bernoulli", "goes with higher odds of"),
        ("poisson", "goes with a higher rate of"),
        ("cox", "goes with a higher hazard of"),
        ("lognormal", "goes with a higher median of"),
        ("gaussian", "goes with a higher died"),
    ],
)
def test_a_ratio_is_called_what_it_is_a_ratio_of(family, words):
    report = regression(family)
    report.record["settings"]["regression"]["notes"] = []
    assert words in interpretation(report)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("binomial", "logistic regression"),
        ("gaussian", "linear regression"),
        ("cox", "Cox regression"),
        ("negative_binomial", "negative binomial regression"),
        ("bernoulli(probit)", "bernoulli(probit) regression"),
    ],
)
def test_a_regression_is_called_as_in_a_paper(family, words):
    assert Response("died", family, None, {}, ()).regression == words


def test_of_chains_in_different_places_no_effect_is_stated():
    text = interpretation(regression(apart=6.0))
    assert "is not reliable" in text
    assert "odds" not in text


def test_without_a_sure_direction_the_sentence_says_so(monkeypatch):
    monkeypatch.setattr("consortia.report.effects.SURE", 1.1)
    assert "every 95 % interval includes no effect" in interpretation(regression())


def test_the_effects_are_ratios_with_their_quantiles():
    found = estimates(regression())
    assert found is not None
    assert found.effect == "odds ratio"
    assert found.names == NAMES
    np.testing.assert_allclose(np.log(found.median), MEANS, atol=5 * 1.25 * 0.3 / 4000**0.5)
    cells = {row[0]: row[1:] for row in effect_table(found).rows}
    assert cells["age"][-1] == "> 0.999"
    assert all("100" not in value for value in cells["age"])


def test_the_methods_paragraph_has_the_numbers_of_the_run_and_as_many_references():
    report = regression()
    text = methods.paragraph(report)
    for words in (
        "a Bayesian logistic regression (family bernoulli) with the formula died ~ age + arm + sex "
        "+ site to 80 rows at 2 sites",
        "consortia 0.2.0 [1]",
        "few_rounds [2], which samples the posterior, without bias",
        "1,000 draws of each of 4 chains, after 4 rounds of warm-up",
        f"the largest R-hat was {report.worst.r_hat:.3f}",
        "age normal(0, 0.2)",
        "3 rows are left out.",
        "odds ratios, given as posterior medians with central 95 % intervals",
    ):
        assert words in text, words
    assert len(methods.references(report)) == 4


def test_priors_stand_beside_what_the_data_made_of_them():
    age, *_ = priors_beside(regression())
    assert (age.name, age.words) == ("age", "normal(0, 0.2)")
    # The 97.5 % point of normal(0, 0.2) by 4,000 draws, within five of their standard errors.
    error = (0.025 * 0.975 / 4000) ** 0.5 / (0.0585 / 0.2)
    assert abs(age.prior[2] - 0.392) < 5 * error
    assert abs(age.posterior[2] - (0.05 + 1.96 * 0.01)) < 0.002


@pytest.mark.parametrize(
    ("of_sex", "known", "said"),
    [
        (lambda z: 2.5 * z, "all", "The effect of sex M is known from the prior only."),
        # of one outcome alone: half of the prior
        (lambda z: 2.5 * np.abs(z), "size", "The largest size of the effect of sex M is known"),
        (lambda z: -2.5 * np.abs(z), "size", "The largest size of the effect of sex M is known"),
        (lambda z: 0.1 + 1.5 * z, None, ""),
        # data that contradict the prior bound the effect on both sides
        (lambda z: 5.5 + 0.3 * z, None, ""),
    ],
)
def test_what_only_the_prior_says_is_named_and_is_no_finding(of_sex, known, said):
    report = regression(of_sex=of_sex)
    assert known_from_prior(report).get("sex[M]") == known
    text = interpretation(report)
    assert said in text
    assert ("prior only" in text) == (known is not None)
    if known == "all":
        assert text.count("sex M") == 1
        assert "direction is not clear" not in text
    if known == "size":
        assert "goes with" in text.partition("sex M")[2]


def conjugate(rows: int, seed: int = 0) -> tuple[RunReport, dict[str, float]]:
    """Return draws of the exact posterior under default priors, and the moves to least squares."""
    rng = np.random.default_rng(seed)
    dose, noise = rng.normal(5, 2, rows), rng.normal(size=rows)
    arm = np.arange(rows) % 3 == 0
    table = {"y": 4 + 0.8 * dose - 2 * arm + 2 * noise, "dose": dose}
    table["arm"] = np.where(arm, "new", "usual")
    options = {"levels": {"arm": ["usual", "new"]}, "prior": {"sigma": "exponential(1)"}}
    made = consortia.regression("y ~ dose + arm", {"oslo": table}, **options)
    columns = np.column_stack([dose - dose.mean(), arm - arm.mean(), np.ones(rows)])
    priors = [made.priors[name].arguments for name in (*made.names, "intercept")]
    centre, scale = np.array(priors).T
    told = columns.T @ columns / 4  # of a standard deviation of 2 that is known
    covariance = np.linalg.inv(told + np.diag(scale**-2.0))
    mean = covariance @ (columns.T @ table["y"] / 4 + centre / scale**2)
    drawn = rng.multivariate_normal(mean, covariance, (4, 2000))
    # at the means of the columns, as they are sampled
    posterior = xarray.Dataset(
        {
            "coefficients": (("chain", "draw", "column"), drawn[..., :2]),
            "intercept": (("chain", "draw"), drawn[..., 2]),
        },
        {"column": list(made.names)},
    )
    tree = xarray.DataTree.from_dict({"/posterior": posterior})
    tree.attrs["settings"] = json.dumps({"regression": dict(made.metadata.settings)})
    flat, *_ = np.linalg.lstsq(columns, table["y"], rcond=None)
    moves = (flat - mean) / np.sqrt(np.diag(covariance))
    return report_of(tree), dict(zip(made.names, moves, strict=False))


@pytest.mark.parametrize(("rows", "seed"), [(6, 0), (6, 1), (12, 1)])
def test_the_report_says_how_far_default_priors_move_a_mean(rows, seed):
    report, moves = conjugate(rows, seed)
    name = max(moves, key=lambda name: abs(moves[name]))
    assert abs(moves[name]) > 0.1
    beside = priors_beside(report)
    for prior in beside:
        # the precision of 8,000 draws has an error of some 2 %
        assert prior.without == pytest.approx(moves[prior.name], abs=0.03, rel=0.1)
    by = next(prior.without for prior in beside if prior.name == name)
    way = "higher" if moves[name] > 0 else "lower"
    said = f"the mean of {name} is {abs(by):.1f} standard deviations {way}"
    assert said in moved_by_priors(beside)


def test_the_page_has_the_sentence_on_the_priors_and_a_column_of_all_moves():
    report, moves = conjugate(6)
    (part,) = (one for one in _show_posterior(report, Examined(), None) if one.key == "priors")
    assert "The priors move estimates: without them, " in part.text
    (table,) = part.tables
    assert table is not None
    for row in table.rows:
        assert float(row[-1]) == pytest.approx(moves[row[0]], abs=0.04)


@pytest.mark.parametrize(("rows", "seed"), [(24, 1), (600, 0), (600, 1)])
def test_the_report_is_silent_on_priors_that_move_nothing(rows, seed):
    report, moves = conjugate(rows, seed)
    assert max(map(abs, moves.values())) < 0.05
    assert moved_by_priors(priors_beside(report)) == ""


@pytest.mark.parametrize("prior", ["normal(0, 2.5)", "student_t(3, 0, 2.5)"])
def test_where_a_normal_prior_tells_more_than_the_rows_no_move_is_claimed(prior):
    report = regression(of_sex=lambda z: 2.4 * z)  # the prior of a sd of 2.5, but for a little
    report.record["settings"]["regression"]["priors"]["sex[M]"] = prior
    text = moved_by_priors(priors_beside(report))
    assert ("Of sex[M] the data tell less than the priors" in text) == prior.startswith("normal")
    assert "mean of sex[M]" not in text


def test_of_too_few_draws_no_move_is_claimed():
    beside = priors_beside(report_of(conjugate(6)[0].tree.isel(draw=slice(12))))
    assert moved_by_priors(beside) == ""
    table = prior_table(beside, {})
    assert table is not None
    assert {row[-1] for row in table.rows} == {"n/a"}


def test_each_class_of_a_response_has_the_priors_of_all_classes():
    rng = np.random.default_rng(2)
    axes = ("chain", "draw", "class", "column")
    values = rng.normal([[1, 2.0], [0, 1]], 0.1, (2, 500, 2, 2))
    coordinates = {"class": ["fish", "bird"], "column": ["size", "depth, m"]}
    posterior = xarray.Dataset({"coefficients": (axes, values)}, coordinates)
    tree = xarray.DataTree.from_dict({"/posterior": posterior})
    settings = {"family": "categorical", "formula": "food ~ size"}
    settings["priors"] = {"size": "normal(0, 1)", "depth, m": "normal(0, 3)"}
    tree.attrs["settings"] = json.dumps({"regression": settings})
    found = {one.name: one.words for one in priors_beside(report_of(tree))}
    assert found == {
        "fish, size": "normal(0, 1)",
        "fish, depth, m": "normal(0, 3)",
        "bird, size": "normal(0, 1)",
        "bird, depth, m": "normal(0, 3)",
    }


def test_a_huge_ratio_is_a_power_of_ten():
    text = interpretation(regression(of_sex=lambda z: 400 + z))
    assert "(odds ratio 5.2" in text.replace("5.1", "5.2")
    assert "e+173, 95 % interval" in text
    assert number(1234.5) == "1,234"


def test_a_record_of_somebody_else_steers_nothing():
    priors = {"age": "system('x')", "arm[new]": 7, "sex[M]": "normal(0)"}
    settings = {"regression": {"family": "bernoulli", "formula": 3, "priors": priors}}
    report = regression(settings=json.dumps(settings))
    assert priors_beside(report) == []
    assert "odds ratio" in page([report])
    assert interpretation(regression(settings='{"regression": [1]}')) == ""


# --- by site -------------------------------------------------------------------------------------


def differing(between: Sequence[Any] = (["arm[new]", 1, 0, [0, 1, 2]],)) -> RunReport:
    """Draws of a slope that is -2, 0 and 1 sd from the common one at three sites."""
    report = regression(sites='["oslo", "lima", "bern"]', site_rows="[30, 50, 40]")
    rng = np.random.default_rng(5)
    names = [f"arm[new] | {site}" for site in ("oslo", "lima", "bern")]
    effects = np.array([-2.0, 0.0, 1.0]) + 0.1 * rng.normal(size=(4, 1000, 3))
    log_sd = np.log(0.5) + 0.05 * rng.normal(size=(4, 1000, 1))
    own = xarray.Dataset(
        {
            "effects_in_sd": (("chain", "draw", "e"), effects),
            "log_sd": (("chain", "draw", "s"), log_sd),
        },
        {"e": names, "s": ["log sd(arm[new] | site)"]},
    )
    tree = report.tree.copy()
    tree["posterior"] = xarray.DataTree(tree["posterior"].to_dataset().merge(own))
    settings = json.loads(tree.attrs["settings"])
    settings["regression"]["between"] = between
    tree.attrs["settings"] = json.dumps(settings)
    return report_of(tree)


def test_effects_by_site_are_made_from_the_draws_alone():
    found = by_site(differing())
    assert found is not None
    middle = {one.name: np.log(one.median) for one in found.rows if one.kind != "spread"}
    for site, sds in (("oslo", -2), ("lima", 0), ("bern", 1), ("all sites", 0)):
        # Of 4,000 draws with an sd of at most .25 within five standard errors of a median.
        assert abs(middle[site] - (-0.7 + 0.5 * sds)) < 5 * 1.25 * 0.25 / 4000**0.5, site
    new = next(one for one in found.rows if one.kind == "new site")
    wide = np.log(new.upper) - np.log(new.lower)
    assert abs(wide - 2 * 1.96 * (0.5**2 + 0.2**2) ** 0.5) < 0.2


def test_what_is_sampled_on_another_scale_than_its_label_says_so():
    names = differing().names
    assert "log sd(arm[new] | site)" in names
    assert "arm[new] | oslo, in sd" in names


@pytest.mark.parametrize(
    ("values", "effect", "texts"),
    [
        ((1.00361, 1.0, 1.00731), "odds ratio", ["1.0036", "1.0000", "1.0073"]),
        ((1.024, 1.0102, 1.041), "odds ratio", ["1.024", "1.010", "1.041"]),
        ((1.024, 0.8, 1.3), "odds ratio", ["1.02", "0.8", "1.3"]),
        ((1.00361, 1.0, 1.00731), "difference", ["1", "1", "1.01"]),
    ],
)
def test_ratios_near_1_have_the_digits_that_tell_them_from_it(values, effect, texts):
    assert shorts(values, effect) == texts


def test_the_sentence_says_how_far_an_effect_may_differ_at_another_site():
    text = interpretation(differing())
    assert "The effect of arm new may differ between sites: the common odds ratio is 0.49" in text
    assert "that of a new site is expected between" in text


def test_effects_by_site_of_the_draws_alone_are_those_of_the_regression():
    rng = np.random.default_rng(8)
    tables = {
        site: {"x": (x := rng.normal(size=30)), "y": slope * x + rng.normal(size=30)}
        for site, slope in (("oslo", 0.0), ("lima", 1.0), ("bern", 2.0))
    }
    made = consortia.regression(
        "y ~ x + (1 + x || site)", tables, family="gaussian", integrate=False
    )
    method = consortia.federated_hmc(step_size=0.05, leapfrog_steps=4, mass_matrix="identity")
    options = {"rounds": 40, "chains": 2, "metadata": made.metadata, "progress": False}
    tree = consortia.sample(made.model, made.sites, method, **options)
    rows, wanted = by_site(report_of(tree)).rows, made.by_site(tree).rows
    assert [row[:3] for row in rows] == [row[:3] for row in wanted]
    np.testing.assert_allclose([row[3:] for row in rows], [row[3:] for row in wanted], rtol=1e-5)


def test_effects_by_site_are_read_by_index_and_not_made_up():
    assert by_site(differing(between=())) is None  # as the record of correlated ones has it
    assert by_site(regression()) is None
    turned = by_site(differing(between=[["arm[new]", 1, 0, [2, 1, 0]]]))
    middle = {row.name: np.log(row.median) for row in turned.rows if row.kind == "site"}
    assert middle["oslo"] > middle["lima"] > middle["bern"]


def test_the_page_has_the_forest_by_site_with_its_numbers_under_the_pointer():
    text = page([differing()])
    assert "<h2>Between the sites</h2>" in text
    assert re.search(r"<title>oslo: 0\.\d+ \(", text)


# --- tables --------------------------------------------------------------------------------------


def test_who_contributed_what_has_rows_without_data_and_events_with_them():
    report = regression()
    table = contribution_table(report)
    assert table is not None
    assert table.rows == (("oslo", "30", "38 %"), ("lima", "50", "62 %"), ("all", "80", "100 %"))

    class Here:
        elsewhere = False
        shards = ({"y": np.arange(30) % 3 == 0}, {"y": np.arange(50) % 2})

    here = contribution_table(dataclasses.replace(report, sites=Here()))
    assert here is not None
    assert here.rows[0][3:] == ("10", "33.3 %")
    assert here.rows[-1][3:] == ("35", "43.8 %")
    Here.elsewhere = True
    assert contribution_table(dataclasses.replace(report, sites=Here())) == table


def test_the_settings_are_those_of_data_model_and_run():
    table = settings_table(regression())
    assert table is not None
    rows = dict(table.rows)
    assert rows["data.files"] == "oslo.csv, lima.csv"
    assert rows["model.family"] == "bernoulli"
    assert rows["versions.consortia"] == "0.2.0"


# --- predictions ---------------------------------------------------------------------------------


def test_probabilities_that_are_right_lie_on_the_line_and_their_area_is_that_of_ranks():
    rng = np.random.default_rng(3)
    event = rng.random(4000)
    observed = (rng.random(4000) < event).astype(int)
    values = {"rmse": 0.4, "log_density_per_row": -0.5}
    given = HeldOutScores(values, means=event, event=event)
    report = dataclasses.replace(
        regression(), scores=given, observed=observed, held_out_rows=len(event)
    )
    shown = accuracy.predictions(report)
    curve = accuracy.roc(report)
    assert shown is not None
    assert curve is not None
    said, seen = shown.figure.axes[0].lines[1].get_data()
    # Ten groups of 400 rows: within five standard errors of a share.
    np.testing.assert_allclose(seen, said, atol=5 * (0.25 / 400) ** 0.5)
    # Of uniform probabilities p, P(p of an event > p of another) = 5/6.
    assert abs(float(curve.alt.split()[-1].rstrip(".")) - 5 / 6) < 0.03
    wrong = dataclasses.replace(report, observed=1 - observed)
    below = accuracy.roc(wrong)
    assert below is not None
    assert float(below.alt.split()[-1].rstrip(".")) < 0.3


# --- page and paper ------------------------------------------------------------------------------


def test_the_page_says_the_sentence_before_the_verdict_and_folds_no_numbers_away():
    text = page([regression()])
    assert text.index('class="sentence"') < text.index('class="verdict')
    folded = text[text.index("<details") :] if "<details" in text else ""
    assert "<table" not in folded
    for title in ("The effects", "What each site contributed", "Priors", "Settings"):
        assert f"<h2>{title}</h2>" in text


def test_a_report_is_a_document_of_word_with_tables_and_pictures(tmp_path):
    docx = pytest.importorskip("docx", reason="needs the extra `docx`")
    path = write_report(regression(), tmp_path / "report.docx")
    made = docx.Document(str(path))
    headings = [one.text for one in made.paragraphs if one.style.name.startswith("Heading")]
    assert "The effects" in headings
    assert [cell.text for cell in made.tables[0].rows[0].cells][1] == "odds ratio"
    assert made.inline_shapes
    assert path.stat().st_size < 500_000
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as stored:
        assert b"Priors and posteriors of 4 coefficients" in stored.read("word/document.xml")


def test_a_report_is_printed_where_a_browser_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "BROWSERS", ("no-such-browser",))
    with pytest.raises(MissingExtraError, match="--format docx"):
        paper.pdf("<p>")
    monkeypatch.undo()
    if not any(map(paper.shutil.which, paper.BROWSERS)):
        pytest.skip("needs a browser that prints")
    assert write_report(regression(), tmp_path / "report.pdf").read_bytes()[:5] == b"%PDF-"


def test_another_kind_of_file_is_refused_before_anything_is_drawn(tmp_path):
    with refused(argument="output", match=r"report\.odt.*\.html, \.docx, \.pdf"):
        write_report(regression(), tmp_path / "report.odt")
