"""What a server or a site that lies, or only looks, reads of a hospital's patients."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consortia
from consortia.engines.messages.envelope import Envelope, decode
from consortia.errors import SiteImplausibleError, SiteMissingError, SiteRefusedError
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal import attacks, rehearsed
from consortia.federation.rehearsal.course import _membership, _without
from consortia.federation.rehearsal.membership import found_out, most_draws
from consortia.federation.rehearsal.reading import rows_read
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import load_study
from tests.federation.hospitals import study as hospitals_study
from tests.refusals import refused

HOSPITALS = Path(__file__).resolve().parents[2] / "examples" / "three_hospitals"
NAMES = ("north", "south", "west")
CHANCE = 2
"""So few of 120 patients are within .05 in all features by chance."""

STUDY = """
[data]
files = [{files}]
target = "ill"
[model]
kind = "logistic_regression"
intercept = true
[algorithm]
name = "fa_ld"
step_size = 0.05
local_steps = 1
{more}
[run]
rounds = {rounds}
chains = {chains}
seed = 1
"""


def study_of(
    folder: Path, names: tuple[str, ...], more: str = "", rounds: int = 14, chains: int = 16
) -> Path:
    path = folder / "study.toml"
    files = ", ".join(f'"{name}.csv"' for name in names)
    path.write_text(STUDY.format(files=files, more=more, rounds=rounds, chains=chains))
    return path


def stage_of(study: Path, folder: Path, policy: Any = None, **more: Any) -> Stage:
    names = [Path(name).stem for name in load_study(study).data.files or []]
    text = proposed(terms_of(load_study(study)), two_sites=True)
    text = text if policy is None else policy(text)
    return Stage(study, {name: HOSPITALS / f"{name}.csv" for name in names}, folder, text, **more)


def let_lie(stage: Stage, name: str, lie: Any) -> Stage:
    """A stage of which one site answers what ``lie`` makes of a request and its honest answer."""
    honest = stage.answers[name]
    stage.answers[name] = lambda message: lie(decode(message), honest(message))
    return stage


def built_of(study: Path) -> Any:
    return load_study(study).build(data_folder=HOSPITALS)


def patients(name: str) -> np.ndarray:
    return np.loadtxt(HOSPITALS / f"{name}.csv", delimiter=",", skiprows=1)[:, :3]


# --- a server that lies --------------------------------------------------------------------------


def test_a_lying_server_reads_no_row_and_its_first_question_is_refused(tmp_path: Path) -> None:
    study = study_of(tmp_path, NAMES, "debias = true")
    found = attacks.lying_server(
        stage_of(study, tmp_path / "sites"), "north", built_of(study), attacks.STEEP
    )
    assert found.rows < CHANCE
    assert found.messages == 0
    assert "maximum_position" in found.refused


@pytest.mark.engines
def test_a_server_that_lies_within_the_limits_reads_no_row(tmp_path: Path) -> None:
    study = study_of(tmp_path, NAMES, "debias = true")
    stage = stage_of(study, tmp_path / "sites")
    found = attacks.lying_server(stage, "north", built_of(study), 10 / 4.2)
    assert found.rows < CHANCE
    assert found.messages <= stage.terms.rounds


@pytest.mark.slow
def test_without_the_limits_the_lying_server_reads_all_rows(tmp_path: Path) -> None:
    study = study_of(tmp_path, NAMES, "debias = true")
    stage = stage_of(study, tmp_path / "sites", _without)
    found = attacks.lying_server(stage, "north", built_of(study), attacks.STEEP)
    assert found.rows == 120


# --- a site that lies ----------------------------------------------------------------------------


class South:
    """Sends the chains where the gradient of the others is a sum over few rows.

    The average is linear: it takes the others' part away and puts its own wish in their place. As
    the next question it gets the mean gradient there, to which it has given nothing itself.
    """

    def __init__(self, rounds: int, chains: int) -> None:
        self.rounds, self.chains, self.steep = rounds, chains, 2e5
        self.cuts = np.linspace(-3.6, 3.6, (rounds - 2) * chains).reshape(rounds - 2, chains)
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []

    def __call__(self, request: Envelope, honest: bytes) -> bytes:
        answer = decode(honest)
        if request.kind != "round" or answer.kind != "round":
            return honest
        position, gradient = (
            next(request.arrays[key] for key in request.arrays if key.endswith(name))
            for name in ("position", "gradient")
        )
        self.seen.append((position.astype(float), gradient.astype(float)))
        want = np.zeros((self.chains, 4))
        if request.label[1] < self.rounds - 2:
            cuts = self.cuts[request.label[1]]
            want[:, 0], want[:, 3] = self.steep, -self.steep * cuts
        others = position - 0.05**2 / 2 * position  # but for terms that are small there
        sent = {
            key: ((want - 120 / 320 * others) / (200 / 320))[None].astype(np.float32)
            if key.endswith("position")
            else np.zeros((1, self.chains, 4), np.float32)
            for key in answer.arrays
        }
        return replace(answer, arrays=sent).encode()

    def read(self) -> int:
        """How many patients of north it has read."""
        if len(self.seen) < 3:
            return 0
        at = np.concatenate([seen[0] for seen in self.seen[1:-1]])
        gradients = np.concatenate([seen[1] for seen in self.seen[2:]]) - 120 / 320 * at
        with np.errstate(all="ignore"):
            cut = -at[:, 3] / at[:, 0]
        order = np.argsort(cut)
        cut, gradients = cut[order], gradients[order]
        steps = gradients[:-1] - gradients[1:]
        rows = [
            ((cut[i] + cut[i + 1]) / 2, step[1], step[2])
            for i, step in enumerate(steps)
            if abs(step[3] - 1) < 0.3
        ]
        return rows_read(np.array(rows).reshape(-1, 3), patients("north"))


def run_with(south: South, folder: Path, policy: Any = None, **options: Any) -> Any:
    study = study_of(folder, NAMES[:2], "debias = true", south.rounds, south.chains)
    stage = let_lie(stage_of(study, folder / "sites", policy), "south", south)
    return stage.sample(stage.engine(**options))


def test_a_lying_site_is_refused_and_named_by_the_server_at_its_first_lie(tmp_path: Path) -> None:
    south = South(rounds=20, chains=4)
    with refused(SiteImplausibleError, sites=("south",)) as caught:
        run_with(south, tmp_path)
    assert caught.value.sites == ("south",)
    assert caught.value.round < 3
    assert len(south.seen) <= 3
    assert south.read() < CHANCE


@pytest.mark.engines
def test_a_careless_server_s_sites_refuse_where_a_lying_site_leads_them(tmp_path: Path) -> None:
    south = South(rounds=20, chains=4)
    with pytest.raises(SiteRefusedError, match=r"'(north|south)' refused.*maximum_position"):
        run_with(south, tmp_path, maximum_position=1e300, maximum_step=1e300)
    assert len(south.seen) <= 3
    assert south.read() < CHANCE


@pytest.mark.slow
def test_without_the_bounds_the_lying_site_reads_most_rows(tmp_path: Path) -> None:
    south = South(rounds=120, chains=16)
    run_with(south, tmp_path, _without, maximum_position=1e300, maximum_step=1e300)
    assert south.read() > 90


# --- a server that only looks --------------------------------------------------------------------


@pytest.mark.slow
def test_a_looking_server_guesses_where_only_the_site_knows_the_minibatches(tmp_path: Path) -> None:
    study = study_of(tmp_path, NAMES, "batch_size = 32", rounds=200, chains=4)
    built, rows = built_of(study), patients("north")
    guess = np.median(np.abs(rows - np.median(rows, axis=0)))
    secret = attacks.looking_server(stage_of(study, tmp_path / "secret"), "north", built)
    assert secret.error > 0.9 * guess
    assert secret.rows < CHANCE
    # With numbers that follow from the seed, as in one process, it reads most.
    known = attacks.looking_server(
        stage_of(study, tmp_path / "seed", private=False), "north", built
    )
    assert known.error < 0.05 * guess
    assert known.rows > 60


# --- refusals ------------------------------------------------------------------------------------


def test_refusals_tell_nothing_of_rows(tmp_path: Path) -> None:
    study = study_of(tmp_path, NAMES, "debias = true", rounds=3, chains=4)

    def limits(text: str) -> str:
        return (
            text.replace("maximum_messages = 5", "maximum_messages = 3")
            .replace("# maximum_norm = 1e6", "maximum_norm = 2e4")
            .replace("maximum_refusals = 3", "maximum_refusals = 6")
        )

    stage = stage_of(study, tmp_path / "sites", limits)
    stage.run(lambda request: request.kind == "round" and request.site == "north")
    first = stage.halted_at
    assert first is not None

    def said(position: float, iteration: int) -> str:
        arrays = {
            key: np.full_like(array, position if key.endswith("position") else 0)
            for key, array in first.arrays.items()
        }
        label = (2, iteration, 0, 0)
        answer = stage.ask("north", replace(first, label=label, arrays=arrays))
        return str(answer.values.get("reason", "answered")).partition(" under number")[0]

    assert said(0, 0) == said(0, 0) == "answered"  # the budget of three is spent
    rules = "the site's policy does not permit this (maximum_messages); the site has the details"
    assert said(0, 1) == said(9, 1) == said(9, 2) == said(-9, 2) == rules
    beyond = said(9, 999)
    assert beyond == said(0, 999)
    assert "maximum_rounds" in beyond
    assert {said(0, 1), said(9, 2), said(0, 0)} == {"the run is closed at the site"}
    # Further runs than the policy permits leave no folder.
    hello = replace(first, kind="description", label=(), values={}, arrays={})
    for number in range(8):
        stage.ask("north", replace(hello, run=f"{number:032x}"))
    runs = (tmp_path / "sites" / "north" / "runs").iterdir()
    assert len([one for one in runs if one.is_dir()]) == 3


def test_one_refusal_that_depends_on_rows_is_the_last_and_names_nothing(tmp_path: Path) -> None:
    study = study_of(tmp_path, NAMES, "debias = true", rounds=9, chains=4)
    stage = stage_of(
        study,
        tmp_path / "sites",
        lambda text: text.replace("# maximum_norm = 1e6", "maximum_norm = 1e-3"),
    )
    with pytest.raises(SiteRefusedError) as caught:
        stage.run()
    assert "does not permit this; the site has the details" in caught.value.reason
    again = stage.ask(caught.value.sites[0], stage.log[caught.value.sites[0]][-1].request)
    assert again.values["reason"] == "the run is closed at the site"


# --- honest runs ---------------------------------------------------------------------------------


def draws(tree: Any) -> np.ndarray:
    return np.concatenate(
        [
            values.values.reshape(*values.shape[:2], -1)
            for _, values in sorted(tree["posterior"].data_vars.items())
        ],
        axis=2,
    )


def sampled(stage: Stage, store: Path | None = None) -> Any:
    return stage.sample(stage.engine(run="ab" * 16, deadline=0.5), store=store)


def test_a_study_that_learns_its_steps_keeps_within_the_policy_that_is_proposed(
    tmp_path: Path,
) -> None:
    # Dual averaging tries a step ten times the first guess: without the reach of the warm-up its
    # trajectories go 48 prior standard deviations out, and are refused.
    study = study_of(tmp_path, NAMES, rounds=4, chains=2)
    study.write_text(
        study.read_text()
        .replace('"fa_ld"\nstep_size = 0.05\nlocal_steps = 1', '"federated_hmc"')
        .replace("rounds = 4", "warmup = 35\nrounds = 4")
    )
    stage = stage_of(study, tmp_path / "sites")
    tree = stage.run()
    assert np.isfinite(draws(tree)).all()
    asked = [
        np.abs(array).max()
        for one in stage.log["north"]
        for name, array in one.request.arrays.items()
        if one.request.kind == "round" and name.startswith("inbox")
    ]
    assert 1.0 < max(asked) < 5.0  # standard deviations: the prior's are 1


def test_where_nothing_private_is_asked_for_draws_are_those_of_the_seed(tmp_path: Path) -> None:
    study = study_of(tmp_path, NAMES, rounds=4, chains=2)
    secret = sampled(stage_of(study, tmp_path / "secret"))
    seed = sampled(stage_of(study, tmp_path / "seed", private=False))
    np.testing.assert_array_equal(draws(secret), draws(seed))
    assert secret.attrs["private_numbers"] == "from secrets of north, south, west"
    assert seed.attrs["private_numbers"] == "none: from the seed"


@pytest.mark.engines
def test_private_numbers_are_of_the_site_s_secret_and_a_resumed_run_has_them_again(
    tmp_path: Path,
) -> None:
    study = study_of(tmp_path, NAMES, "batch_size = 8", rounds=6, chains=2)
    stage = stage_of(study, tmp_path / "sites")
    whole = draws(sampled(stage))
    seed = draws(sampled(stage_of(study, tmp_path / "seed", private=False)))
    assert np.abs(whole - seed).max() > 1e-3

    fault = []

    def dies(request: Envelope, honest: bytes) -> bytes:
        if request.label[:2] == (2, 4) and not fault:
            fault.append(request)
            raise ConnectionError
        return honest

    for name in NAMES:  # the same secrets in other folders, and other processes
        (tmp_path / "cut" / name).mkdir(parents=True)
        secret = (tmp_path / "sites" / name / "secret").read_bytes()
        (tmp_path / "cut" / name / "secret").write_bytes(secret)
    cut = let_lie(stage_of(study, tmp_path / "cut"), "south", dies)
    with pytest.raises(SiteMissingError):
        sampled(cut, tmp_path / "run")
    engine = cut.engine()
    built = cut.study.build(engine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        again = consortia.resume(
            tmp_path / "run",
            built.model,
            built.sites,
            built.algorithm,
            engine=engine,
            progress=False,
        )
    np.testing.assert_array_equal(draws(again), whole)


@pytest.mark.engines
def test_private_numbers_of_a_travelling_chain_are_the_visited_site_s(tmp_path: Path) -> None:
    study = study_of(tmp_path, NAMES, rounds=6, chains=2)
    study.write_text(study.read_text().replace('"fa_ld"', '"dsgld"'))
    secret = draws(sampled(stage_of(study, tmp_path / "secret")))
    again = draws(sampled(stage_of(study, tmp_path / "secret" / "other")))
    seed = draws(sampled(stage_of(study, tmp_path / "seed", private=False)))
    assert np.isfinite(secret).all()
    assert np.abs(secret - seed).max() > 1e-3
    assert np.abs(secret - again).max() > 1e-3  # other secrets


# --- who took part -------------------------------------------------------------------------------


def test_the_chance_to_be_found_out_is_that_of_the_likelihood_ratio() -> None:
    # One normal parameter: 20 rows of variance 1 around it, with and without the row z.
    rng, rows, trials = np.random.default_rng(0), 20, 20_000
    z = 1.5
    for effective in (5, 25):
        without = rng.normal(0, 1 / np.sqrt(rows - 1), (trials, effective))
        with_it = rng.normal(z / rows, 1 / np.sqrt(rows), (trials, effective))
        ratio = [-0.5 * np.sum((z - draws) ** 2, axis=1) for draws in (without, with_it)]
        power = np.mean(ratio[1] > np.quantile(ratio[0], 0.95))
        values = -0.5 * (z - with_it.reshape(-1, 1)) ** 2
        # The normal approximation of the logarithm, to which this is off by some hundredths.
        assert found_out(values, effective)[0] == pytest.approx(power, abs=0.04)
        assert abs(found_out(values, 4 * effective)[0] - power) > 0.1
        assert found_out(values, most_draws(values)).max() == pytest.approx(0.5)


@pytest.mark.slow
def test_the_rehearsal_tells_what_was_read_and_what_is(tmp_path: Path) -> None:
    method = (
        'name = "fa_hmc"\nstep_size = 0.05\nleapfrog_steps = 5\nlocal_steps = 40\ndebias = true'
    )
    study = tmp_path / "study.toml"
    text = hospitals_study(method, rounds=12, chains=16)
    study.write_text(text.replace("seed = 1", "seed = 1\nwarmup = 2"))
    found = {one.attack: one for one in rehearsed(study, HOSPITALS / "north.csv")}
    assert found["equations against unknowns"].numbers["equations"] == 14 * 16 * 8 + 32 + 4
    server = found["a server that lies"].numbers
    assert server["read_before"] == 120
    assert server["read_after"] == server["read_within_limits"] == 0
    assert "it reads 120 of 120 patients" in found["a server that lies"].sentence
    assert 0.05 < found["who took part, from the draws alone"].numbers["median"] < 1
    # What cannot be measured, or was not tried, is no result.
    assert [name for name, one in found.items() if not one.known] == [
        "an honest run",
        "a server that only observes",
    ]


@pytest.mark.slow
def test_the_rehearsal_of_a_method_that_is_measured_knows_all(tmp_path: Path) -> None:
    study = study_of(tmp_path, NAMES, chains=4)
    study.write_text(
        study.read_text()
        .replace('"fa_ld"\nstep_size = 0.05\nlocal_steps = 1', '"few_rounds"\ngradients = true')
        .replace("rounds = 14", "rounds = 20")
    )
    found = {one.attack: one for one in rehearsed(study, HOSPITALS / "north.csv")}
    assert all(one.known for one in found.values())
    assert found["an honest run"].numbers["settled"] == 0
    assert "settle 0 of 120 rows" in found["an honest run"].sentence
    server = found["a server that lies"].numbers
    assert server["settled_before"] == 120  # of so few rows all are looked at
    assert server["settled_after"] == 0
    assert server["messages_after"] <= 3  # each with as much noise as keeps rows from being settled
    assert "the site's policy does not permit this" in str(server["refused"])


def test_a_rehearsal_says_that_membership_in_integrated_levels_was_not_tried() -> None:
    """What such a rehearsal measures before it is in tests/hostile/test_settled_levels.py."""
    study = load_study(Path(__file__).parents[2] / "examples" / "pneumonia" / "study.toml")
    last = _membership(study, study.build(), 0)
    assert last.attack == "who took part, from the draws alone"
    assert not last.known
    assert "no row has a likelihood of its own" in last.sentence
