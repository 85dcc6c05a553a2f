"""A registered study asks no site for anything before its first query."""

from __future__ import annotations

import functools
import json
import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import consortia
from consortia.cli.commands import app
from consortia.engines.messages.transport import InProcess
from consortia.errors import InputError, PolicyError, SiteRefusedError
from consortia.federation.app import serve, site_of
from consortia.federation.governance import terms_of, verify
from consortia.federation.letters.coordinating import open_study
from consortia.study.build import load_study, study_of
from tests.federation.correspondence import (
    POLICY,
    Correspondence,
    as_one_process,
    keep_sum_keys,
)
from tests.federation.hospitals import HOSPITALS, NAMES
from tests.refusals import refused

AGREED = """
[data]
files = ["north.csv", "south.csv", "west.csv"]
[model]
formula = "ill ~ age + dose"
family = "bernoulli"
[algorithm]
name = "few_rounds"
[run]
rounds = 60
seed = 1
"""


KINDS = 'messages = ["description", "moments", "query"]\n'


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the study with what its sites agree on."""
    folder = tmp_path_factory.mktemp("registered")
    for name in NAMES:
        (folder / f"{name}.csv").write_bytes((HOSPITALS / f"{name}.csv").read_bytes())
    (folder / "study.toml").write_text(AGREED)
    done = CliRunner().invoke(app, ["register", str(folder / "study.toml")])
    assert done.exit_code == 0, done.output
    text = (folder / "study.toml").read_text()
    assert text.startswith(AGREED.rstrip())
    assert terms_of(load_study(folder / "study.toml")).study in done.output
    return text


def of_one_process(path: Path, text: str) -> Any:
    path.write_text(text)
    built = load_study(path).build(data_folder=HOSPITALS)
    options = {"rounds": 60, "chains": 4, "seed": 1, "progress": False}
    return consortia.sample(built.model, built.rows, built.algorithm, **options)


@pytest.fixture(scope="module")
def alone(registered: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the draws of one process."""
    return of_one_process(tmp_path_factory.mktemp("one") / "study.toml", registered)


def assert_same_law(tree: Any, other: Any) -> None:
    """Units in two digits, or in all, make other draws of one posterior.

    Of 1,000 effective draws each a mean is within 0.15 standard deviations by 3.3 of its errors.
    """
    for name in tree.posterior:
        some, others = (run.posterior[name].values for run in (tree, other))
        away = np.abs(some.mean((0, 1)) - others.mean((0, 1))) / others.std((0, 1))
        assert np.max(away) < 0.15, name
        np.testing.assert_allclose(some.std((0, 1)), others.std((0, 1)), rtol=0.12)


@pytest.mark.slow
def test_registered_values_that_were_agreed_make_the_same_posterior(alone, tmp_path: Path) -> None:
    agreed = of_one_process(tmp_path / "study.toml", AGREED)
    assert_same_law(agreed, alone)
    assert alone.attrs["communication_rounds"] == 3


def test_the_digest_is_that_of_what_is_computed(registered: str, tmp_path: Path) -> None:
    def digest(text: str) -> str:
        return terms_of(study_of(tomllib.loads(text), tmp_path / "study.toml")).study

    first = digest(registered)
    spaced = registered.replace(" = ", "=").replace("[data]", 'title = "Another"\n# said\n[data]')
    assert digest(spaced) == first
    assert digest(registered.replace("seed = 1", "seed = 2")) != first
    number = registered.index("scale = ") + len("scale = 1.")
    assert digest(f"{registered[:number]}9{registered[number:]}") != first
    assert digest(AGREED) != first


@pytest.mark.parametrize(
    ("old", "new", "argument", "reason"),
    [
        (
            '"few_rounds"',
            '"private_posterior"\nepsilon = 1.0\ndelta = 1e-6',
            "registered",
            "numbers of rows of all sites",
        ),
        ("dose = {", "doze = {", "registered", "did you mean 'dose'"),
        ("dose = {", "# dose = {", "registered", "registered.numbers.dose = { centre = ..., scale"),
        ("seed = 1", "seed = 1\nloo = true", "run.loo", "run.loo"),
        ("scale = ", "scale = -", "registered.numbers.age.scale", "greater than 0"),
    ],
)
def test_a_table_that_cannot_be_is_refused(
    registered: str, tmp_path: Path, old: str, new: str, argument: str, reason: str
) -> None:
    file = tmp_path / "study.toml"
    with refused(argument=argument, file=str(file), match=re.escape(reason)):
        study_of(tomllib.loads(registered.replace(old, new)), file)


@pytest.mark.engines
def test_three_letters_each_and_the_draws_of_one_process(
    registered: str, alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_one_process(monkeypatch)
    now = Correspondence(tmp_path / "letters", asked=registered)
    found = now.proceed()
    for number in (1, 2, 3):
        assert found.awaited == dict.fromkeys(NAMES, number)
        assert [now.answer(name, number).error for name in NAMES] == [None] * 3
        found = now.proceed()
    assert found.result is not None
    assert len(list((now.shared / "north").iterdir())) == 6
    assert sum(now.reply("north", number).stat().st_size for number in (1, 2, 3)) < 60_000
    tree = consortia.open_run(found.result)
    assert tree.attrs["communication_rounds"] == 3
    assert tree.attrs["messages_before"] == 0
    assert json.loads(tree.attrs["site_rows"]) == [120, 200, 90]
    for name in tree.posterior:
        np.testing.assert_allclose(tree.posterior[name], alone.posterior[name], atol=1e-4)
    entries = verify(now.site("north") / "ledger.jsonl").entries
    kinds = [one.kind for one in entries if one.left]
    assert kinds == ["description", "query", "query", "query"]  # and no moments


@pytest.mark.slow
@pytest.mark.parametrize("prepared", [False, True])
def test_four_letters_with_keys_and_three_where_they_were_prepared(
    registered: str, alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: bool
) -> None:
    """Else the keys of all sites are in the answers to the first letter."""
    as_one_process(monkeypatch)
    now = Correspondence(tmp_path / "letters", keys=True, asked=registered, prepared=prepared)
    found = now.proceed()
    for number in range(1, 5 - prepared):
        assert found.awaited == dict.fromkeys(NAMES, number)
        assert [now.answer(name, number).error for name in NAMES] == [None] * 3
        found = now.proceed()
    assert found.result is not None
    tree = consortia.open_run(found.result)
    assert tree.attrs["messages_before"] == 1 - prepared
    assert sum(now.reply("north", number).stat().st_size for number in (1, 2, 3)) < 60_000
    for name in tree.posterior:
        np.testing.assert_allclose(tree.posterior[name], alone.posterior[name], atol=1e-4)


def test_a_prepared_key_of_other_rows_is_refused_by_the_site_and_named_to_all(
    registered: str, tmp_path: Path
) -> None:
    rows = tmp_path / "letters" / "sites" / "north" / "rows.csv"
    now = Correspondence(tmp_path / "letters", keys=True, asked=registered, prepared=True)
    text = rows.read_text()
    rows.write_text("".join(text.splitlines(keepends=True)[:-20]))
    assert now.proceed().awaited == dict.fromkeys(NAMES, 1)
    error = now.answer("north", 1).error
    assert isinstance(error, PolicyError)
    assert "the key of 'north' is not its own: its rows have changed" in str(error)
    with refused(SiteRefusedError, sites=("north",), match="have changed"):
        now.proceed()


def test_a_prepared_key_of_another_study_is_refused_by_name(
    registered: str, tmp_path: Path
) -> None:
    now = Correspondence(tmp_path / "now", keys=True, asked=registered, prepared=True)
    another = tmp_path / "another.toml"
    another.write_text(registered.replace("seed = 1", "seed = 2"))
    with refused(argument="sums", site="north", match="not one that"):
        open_study(another, tmp_path / "one", tmp_path / "post", keys=now.root / "keys")
    keep_sum_keys(now.root / "keys", {"north": now.sum_key("north")[:-1]})
    with refused(argument="sums", site="north", match="public key"):
        open_study(another, tmp_path / "two", tmp_path / "post", keys=now.root / "keys")
    keep_sum_keys(now.root / "keys", {"nord": now.sum_key("north")})
    with refused(argument="sums", match="'nord'"):
        open_study(now.root / "study.toml", tmp_path / "two", tmp_path, keys=now.root / "keys")
    keep_sum_keys(now.root / "keys", {"north": now.sum_key("north")})
    with pytest.warns(UserWarning, match="no key of south, west"):
        open_study(now.root / "study.toml", tmp_path / "three", tmp_path, keys=now.root / "keys")


def test_the_command_prints_the_key_that_a_site_prepares(registered: str, tmp_path: Path) -> None:
    now = Correspondence(tmp_path / "now", keys=True, asked=registered)
    words = ["site", "key", str(now.site("west")), "--study", str(now.root / "study.toml")]
    done = CliRunner().invoke(app, [*words, "--data", str(now.site("west") / "rows.csv")])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == f'"west" = "{now.sum_key("west")}"'
    assert CliRunner().invoke(app, words).exit_code == 2
    (now.root / "study.toml").write_text(AGREED)
    with refused(argument="study"):
        now.sum_key("west")


@pytest.mark.engines
def test_over_messages_it_is_one_less_and_rows_do_not_change_in_a_run(
    registered: str, alone, tmp_path: Path
) -> None:
    before, options = {}, {"quiet": True, "run": "1" * 32}
    for word, text in (("agreed", AGREED), ("registered", registered)):
        folder = tmp_path / word
        folder.mkdir()
        (folder / "study.toml").write_text(text.replace("[run]", "[run]\nsecure_sums = false"))
        transport = transport_of(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            serve(folder / "study.toml", transport, options | {"output": str(folder / "run")})
        tree = consortia.open_run(folder / "run")
        before[word] = tree.attrs["messages_before"], tree.attrs["communication_rounds"]
        assert_same_law(tree, alone)
    for name in tree.posterior:  # of the same registered values
        np.testing.assert_allclose(tree.posterior[name], alone.posterior[name], atol=1e-4)
    assert before == {"agreed": (2, 3), "registered": (1, 3)}
    rows = folder / "west" / "rows.csv"
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:-20]))
    with refused(SiteRefusedError, sites=("west",), match="rows have changed"):
        serve(folder / "study.toml", transport_of(folder), options | {"output": str(folder / "2")})


def transport_of(folder: Path) -> InProcess:
    """Return three sites with policies of their own, which add no noise."""
    study = load_study(folder / "study.toml")
    sites = {}
    for number, name in enumerate(NAMES):
        own = folder / name
        if not own.exists():
            own.mkdir()
            (own / "rows.csv").write_bytes((HOSPITALS / f"{name}.csv").read_bytes())
            (own / "site-policy.toml").write_text(f"{KINDS}{POLICY}secure_sums = false\n")
        node = {"site": name, "data": str(own / "rows.csv"), "folder": str(own)}
        sites[number] = functools.partial(site_of(study, node, {}, private=False).answer)
    return InProcess(sites)


@pytest.mark.engines
def test_a_site_with_a_level_that_is_not_registered_refuses_and_says_where(tmp_path: Path) -> None:
    text = AGREED.replace("age + dose", "C(ill)").replace("ill ~", "dose ~")
    text = text.replace('"bernoulli"', '"gaussian"')
    stated = 'levels."C(ill)" = ["0", "2"]\nnumbers."response()" = { centre = 0.2, scale = 1.0 }\n'
    text += f"[registered]\n{stated}"
    now = Correspondence(tmp_path / "letters", asked=text)
    now.proceed()
    found = now.answer("north", 1)
    assert isinstance(found.error, InputError)
    assert (found.error.argument, found.error.site) == ("ill", "north")
    assert re.search(r"rows\.csv, line .* the levels that the study registers", str(found.error))
    with refused(SiteRefusedError, sites=("north",)):
        now.proceed()


@pytest.mark.slow
def test_the_posterior_does_not_depend_on_a_scale_where_priors_are_stated(
    registered: str, alone, tmp_path: Path
) -> None:
    priors = '[model.prior]\nage = "normal(0, 2)"\ndose = "normal(0, 2)"\n[algorithm]'
    means = []
    for scale in (None, 1e-3, 1e3):
        text = registered.replace("[algorithm]", priors)
        if scale is not None:
            begin = text.index("scale = ", text.index("dose = { centre"))
            text = f"{text[:begin]}scale = {scale}{text[text.index(',', begin) :]}"
        path = tmp_path / f"{scale}.toml"
        path.write_text(text)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            built = load_study(path).build(data_folder=HOSPITALS)
        assert (scale is None) == (not caught)
        options = {"chains": 4, "seed": 1, "progress": False}
        tree = consortia.sample(built.model, built.rows, built.algorithm, **options)
        draws = built.regression.natural(tree)["coefficients"]
        means.append(draws.mean(("chain", "draw")).values / draws.std(("chain", "draw")).values)
    np.testing.assert_allclose(means[1], means[0], atol=0.12)
    np.testing.assert_allclose(means[2], means[0], atol=0.12)
