"""What answers give away of single rows, measured by the site before each of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federation.hospitals import HOSPITALS, NAMES, study
from scipy.optimize import least_squares
from scipy.special import log_ndtr, ndtr
from sparse import sparse

import consortia
from consortia.algorithms.few_rounds.algorithm import _withheld
from consortia.algorithms.few_rounds.site_functions import FUNCTIONS
from consortia.core.privacy import SecretNoise
from consortia.core.queries import Noise, Revealed, highest_sent, information
from consortia.core.target import Target
from consortia.dynamics.independence import metropolis_chains
from consortia.engines.messages import accounts, settled
from consortia.engines.messages.envelope import Envelope, decode
from consortia.engines.messages.settled import MOST_UNKNOWNS, Settled, Statement
from consortia.errors import PolicyError, SiteImplausibleError, SiteRefusedError
from consortia.federation.governance import Ledger, verify
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import terms_of
from consortia.federation.rehearsal.reading import rows_read
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import load_study
from consortia.surrogates.proposals.batches import Judged
from tests.refusals import refused


def stage_of(
    folder: Path,
    rows: int = 120,
    edit: Any = list,
    policy: Any = str,
    algorithm: str = 'name = "few_rounds"',
    **more: Any,
) -> Stage:
    """The three hospitals under the proposed policy; of north so many rows, edited."""
    folder.mkdir(exist_ok=True)
    files = {}
    for name in NAMES:
        lines = (HOSPITALS / f"{name}.csv").read_text().splitlines()
        files[name] = folder / f"{name}.csv"
        kept = edit(lines[: 1 + rows]) if name == "north" else lines
        files[name].write_text("\n".join(kept) + "\n")
    path = folder / "study.toml"
    path.write_text(study(algorithm))
    text = proposed(terms_of(load_study(path)))
    assert "maximum_settled_rows = 0" in text
    return Stage(path, files, folder / "sites", policy(text), **more)


WITH_GRADIENTS = 'name = "few_rounds"\ngradients = true'


def statements(folder: Path, name: str = "north") -> list[str]:
    """What the ledger of a site says of its answers, in order."""
    lines = verify(folder / "sites" / name / "ledger.jsonl").entries
    return [one.details["settled"] for one in lines if "settled" in one.details]


# --- a server that lies --------------------------------------------------------------------------


def test_a_server_that_asks_for_curvatures_at_cuts_is_refused_before_a_row_is_settled(
    tmp_path: Path,
) -> None:
    stage = stage_of(tmp_path, algorithm=WITH_GRADIENTS)
    stage.run(lambda request: request.kind == "query" and request.site == "north")
    first = stage.halted_at
    assert first is not None
    names = sorted(stage.study.method.functions)  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    places, gradients, curvatures, refused = [], [], [], ""
    for number in range(40):
        # As steep as ten standard deviations of the prior allow, in all directions.
        steep = np.zeros((8, 4), np.float32)
        for row in steep:
            direction = rng.normal(size=3)
            direction /= np.abs(direction).max()
            cut = rng.uniform(-2.5, 2.5)
            slope = min(9.9, 9.9 / abs(cut))
            row[:] = [*(slope * direction), -slope * cut]
        question = replace(
            first,
            label=(3, number, names.index("derivatives"), 0),
            values={"function": "derivatives"},
            arrays={"reference": np.zeros(4, np.float32), "points": steep},
        )
        answer = stage.ask("north", question)
        if answer.kind != "query":
            refused = answer.values["reason"]
            break
        places.append(steep)
        gradients.append(answer.arrays["gradients"])
        curvatures.append(answer.arrays["curvatures"])
    assert len(places) < 3
    assert "does not permit this (maximum_settled_rows); the site has the details" in refused
    errors = (tmp_path / "sites" / "north" / "errors.log").read_text()
    assert "maximum_settled_rows: the answers of this run" in errors
    assert all(one.startswith("0 of") for one in statements(tmp_path))
    if places:
        at, x = np.concatenate(places), patients(120)
        found = attack(at, np.concatenate(gradients), np.concatenate(curvatures), 120, rng)
        assert rows_read(found, x) == 0


def patients(count: int) -> np.ndarray:
    return np.loadtxt(HOSPITALS / "north.csv", delimiter=",", skiprows=1)[:count, :3]


def attack(
    at: np.ndarray, gradients: np.ndarray, curvatures: np.ndarray, count: int, rng: Any
) -> np.ndarray:
    """Rows by least squares from gradients and curvatures of all, from a random start."""
    upper, share = np.triu_indices(4), count / (290 + count)
    at, gradients = jnp.asarray(at, float), gradients - share * at
    curvatures = curvatures - share * np.eye(4)[upper]

    def residuals(flat: Any) -> Any:
        z = jnp.concatenate([flat[: 3 * count].reshape(count, 3), jnp.ones((count, 1))], 1)
        chance = jax.nn.sigmoid(at @ z.T)
        sums = chance @ z - flat[None, 3 * count :]  # labels enter by these four sums alone
        curved = jnp.einsum("mi,ij,ik->mjk", chance * (1 - chance), z, z)
        return jnp.concatenate(
            [(sums - gradients).ravel(), (curved[:, upper[0], upper[1]] - curvatures).ravel()]
        )

    start = np.r_[rng.normal(size=3 * count), np.zeros(4)]
    solved = least_squares(
        lambda v: np.asarray(jax.jit(residuals)(jnp.asarray(v)), float),
        start,
        lambda v: np.asarray(jax.jit(jax.jacfwd(residuals))(jnp.asarray(v)), float),
        max_nfev=30,
    )
    return solved.x[: 3 * count].reshape(count, 3)


# --- an honest run -------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", sparse([50, 80, 120], [50]))
def test_an_honest_run_settles_no_row(tmp_path: Path, rows: int) -> None:
    stage = stage_of(tmp_path, rows)
    tree = stage.run()
    assert tree.attrs["communication_rounds"] <= 5
    found = statements(tmp_path)
    assert len(found) == tree.attrs["communication_rounds"]
    assert all(one.startswith(f"0 of {rows} rows") for one in found)


def test_a_patient_far_from_all_others_costs_nobody_the_posterior(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, 120, edit=lambda lines: [*lines[:-1], "4.5,0.3,-0.2,1"])
    tree = stage.run()
    assert tree.attrs["communication_rounds"] <= 5
    assert all(one.startswith("0 of 120 rows") for one in statements(tmp_path))


def test_a_site_that_would_settle_a_row_adds_more_noise_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settled, "NEAR", 0.3)  # what an ordinary run nearly settles
    stage = stage_of(tmp_path, 50)
    tree = stage.run()
    factors = [one.answer.values.get("noise", 1.0) for one in stage.log["north"]]
    assert 1 < max(factors) <= 2**20
    assert json.loads(tree.attrs["site_noise"])["north"] == max(factors)
    assert all(one.startswith("0 of") for one in statements(tmp_path))
    asked = next(one for one in stage.log["north"] if "noise" in one.answer.values)
    again = stage.ask("north", asked.request)
    assert again.values["noise"] == asked.answer.values["noise"]
    for name, values in asked.answer.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], values)


def test_a_run_that_is_refused_tells_the_rule_if_the_policy_says_so_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settled, "NEAR", 1 - 1e-6)  # what an account adds is enough
    with pytest.raises(SiteRefusedError) as caught:
        stage_of(tmp_path / "told", 50).run()
    assert "(maximum_settled_rows); the site" in caught.value.reason
    assert "ask for fewer columns or parameters" in str(caught.value)
    silent = {"policy": lambda text: text.replace("tell_refusals = true", "")}
    stage = stage_of(tmp_path / "silent", 50, **silent)
    with pytest.raises(SiteRefusedError) as caught:
        stage.run()
    assert "settled" not in str(caught.value)


def test_a_column_that_no_question_touches_hides_no_other(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), rng.integers(0, 2, 20)
    x[:, 2] *= 1e-9
    points = rng.normal(size=(90, 4)) * 3
    points[:, 2] = 0
    statement = measured(tmp_path, logistic(3), x, y, Revealed(points, (1,)))
    assert statement.settled == 20


@pytest.mark.slow
@pytest.mark.parametrize("sites", [12, 25])
def test_many_small_hospitals_settle_no_row(tmp_path: Path, sites: int) -> None:
    tables = [(HOSPITALS / f"{name}.csv").read_text().splitlines() for name in NAMES]
    lines = [line for table in tables for line in table[1:]]
    files = {f"h{number}": tmp_path / f"h{number}.csv" for number in range(sites)}
    for number, path in enumerate(files.values()):
        mine = np.random.default_rng(number).choice(lines, 50, replace=False)
        path.write_text("\n".join([tables[0][0], *mine]) + "\n")
    path = tmp_path / "study.toml"
    named = ", ".join(f'"{name}.csv"' for name in files)
    path.write_text(study().replace('"north.csv", "south.csv", "west.csv"', named))
    text = proposed(terms_of(load_study(path)))
    tree = Stage(path, files, tmp_path / "sites", text).run()
    assert tree.attrs["communication_rounds"] <= 5
    assert all(one.startswith("0 of 50 rows") for one in statements(tmp_path, "h3"))


def test_noise_of_a_site_does_not_become_small_among_others() -> None:
    noise = FUNCTIONS["log_densities"].noise["potentials"]
    assert [round(noise.sd(sites), 3) for sites in (2, 7, 25, 400)] == [0.15, 0.15, 0.08, 0.02]
    assert [round(noise.sd(2, factor), 3) for factor in (4, 16, 1024)] == [0.3, 0.6, 4.8]
    assert [highest_sent(100, factor, 0.0) for factor in (1, 2, 16)] == [105, 17.5, 5]
    assert highest_sent(3000, 4, 1.0) == 45 + 1.5


class Grid:
    """Numbers in the place of those of a secret, spread so evenly that means are integrals."""

    def __init__(self, normal: np.ndarray, uniform: np.ndarray) -> None:
        self._normal, self._uniform = normal, uniform

    def standard_normal(self, shape: Any) -> np.ndarray:
        return self._normal

    def random(self, shape: Any) -> np.ndarray:
        return self._uniform


@pytest.mark.parametrize("factor", [1.0, 16.0, 64.0])
@pytest.mark.parametrize("above", [-20.0, -0.5, 0.0, 0.5, 3.0])
def test_what_leaves_of_a_number_leaves_the_law_of_draws(factor: float, above: float) -> None:
    noise, rows = FUNCTIONS["log_densities"].noise["potentials"], 100
    highest = highest_sent(rows, factor, noise.sd(3, factor))
    number = highest + above
    normal, uniform = np.linspace(-9, 9, 361), (np.arange(500) + 0.5) / 500
    grid: Any = Grid(*np.meshgrid(normal, uniform))
    sent, _ = noise.sent(np.full((500, 361), number), grid, 3, rows, factor)
    assert sent[np.isfinite(sent)].max() <= highest
    weights = np.exp(-(normal**2) / 2)
    mean = np.exp(number - sent).mean(axis=0) @ (weights / weights.sum())
    # With 500 uniform numbers the probability exp(-3) to be told is right to 2 %.
    assert mean == pytest.approx(1, rel=0.005 if above < 1 else 0.02)


@pytest.mark.parametrize("sd", [0.15, 0.6, 1.2])
def test_the_error_of_a_number_counts_all_that_its_law_tells(sd: float) -> None:
    step = 1e-4
    z = np.linspace(-14, 14, 400_001)
    unit = z[1] - z[0]

    for below in (-6.0, -2.0, -0.5, 0.5, 2.0, 30.0):
        noisy = z * (1 + sd) - below + sd**2 / 2

        def parts(moved: float, noisy: Any = noisy) -> np.ndarray:
            density = np.exp(-(((noisy + moved - sd**2 / 2) / sd) ** 2) / 2) * unit * (1 + sd)
            density /= sd * np.sqrt(2 * np.pi)
            stays, above = np.exp(np.minimum(-noisy, 0)), noisy > 0
            ends = [(density * stays)[above].sum(), (density * (1 - stays))[above].sum()]
            return np.concatenate([density[~above], ends])

        low, middle, high = (parts(below + move) for move in (-step, 0.0, step))
        seen = middle > 1e-200
        fisher = (((high - low)[seen] / (2 * step)) ** 2 / middle[seen]).sum()
        assert information(np.array([below]), sd)[0] == pytest.approx(fisher, rel=1e-3)


def test_a_number_far_above_the_height_says_nothing() -> None:
    noise = FUNCTIONS["log_densities"].noise["potentials"]
    depths = np.array([300.0, 1e3, 1e6, np.inf])
    sent, errors = noise.sent(depths, SecretNoise(bytes(32)), 3, 100, 1.0)
    assert np.isinf(sent).all()
    assert np.isinf(errors).all()
    near, errors = noise.sent(np.array([-50.0, 3.0]), SecretNoise(bytes(32)), 3, 100, 1.0)
    assert errors == pytest.approx(0.15)
    assert np.isfinite(near).all()


def test_the_best_attack_on_a_patient_far_out_is_no_better_than_the_measure() -> None:
    # Who knows all but one value x of a patient, and how numbers are sent, maximises their
    # likelihood: of counts with the mean exp(β x), where x is 8 standard deviations out.
    noise, rows, factor = FUNCTIONS["log_densities"].noise["potentials"], 100, 16.0
    sd, truth = float(noise.sd(3, factor)), 8.0
    slopes = np.random.default_rng(0).normal(0.15, 0.15, 1000)
    h = highest_sent(rows, factor, sd)

    def potentials(x: Any) -> np.ndarray:
        eta = slopes[:, None] * np.atleast_1d(x)
        return np.exp(eta) - 3 * eta - np.exp(0.15 * np.atleast_1d(x)) + 0.45 * np.atleast_1d(x)

    grid = np.linspace(truth - 1, truth + 1, 801)
    below = h - potentials(grid)
    t = below / sd - sd / 2
    of_height = np.exp(np.maximum(below, -500) + log_ndtr(-(t + sd)))
    of_lost = np.maximum(ndtr(-t) - of_height, 1e-300)
    guesses = []
    for number in range(40):
        secret = SecretNoise(number.to_bytes(32, "big"))
        sent, errors = noise.sent(potentials(truth)[:, 0], secret, 3, rows, factor)
        lost, high = np.isinf(sent), sent == h
        near = np.where(lost | high, 0.0, sent)[:, None]
        log_law = -((((near - h + below) - sd**2 / 2) / sd) ** 2) / 2
        log_law[lost], log_law[high] = np.log(of_lost[lost]), np.log(of_height[high] + 1e-300)
        guesses.append(grid[log_law.sum(axis=0).argmax()])
    step = (potentials(truth + 1e-4) - potentials(truth - 1e-4))[:, 0] / 2e-4
    least = 1 / np.sqrt(((step / errors) ** 2).sum())
    # Of 40 attacks a standard deviation is right to 11 %: three of these, and a sixth for bias.
    assert 0.65 < np.std(guesses) / least < 1.5


@pytest.mark.parametrize("tells", [True, False])
def test_draws_have_their_law_where_one_in_twenty_numbers_is_lost(tells: bool) -> None:
    noise, rng, count = Noise(0.001, 1.0, bounded=True), np.random.default_rng(1), 40_000
    points = rng.normal(size=(count, 2))
    numbers = (points**2).sum(axis=1) / 2
    lost = np.where(numbers > highest_sent(0, 100, 0.01) - 2.7, np.inf, numbers)  # above 2.3
    if tells:
        shifted, _ = noise.sent(numbers + 2.7, SecretNoise(bytes(32)), 3, 0, 100)
        lost = shifted - 2.7
    assert 0.04 < np.isinf(lost).mean() < 0.11
    start = points[:4], -numbers[:4], np.zeros(4)
    weights = numbers - lost  # proposals are draws of the law itself
    draws = metropolis_chains(points, -lost, weights, start, rng).draws.reshape(-1, 2)
    # Four standard errors of a variance of 80,000 numbers are 2 %, somewhat more in a chain; a
    # cut at the same height takes a quarter of it.
    assert draws.var() == pytest.approx(1 if tells else 0.74, abs=0.04)


def test_a_region_of_withheld_numbers_is_no_good_posterior() -> None:
    def judged(withheld: float) -> Judged:
        chains: Any = None
        return Judged(chains, 0.8, 0.0, 0.0, [], 1.0, 0.0, withheld=withheld)

    assert _withheld([judged(0.0), judged(0.05)]) == ()
    (fault,) = _withheld([judged(0.0), judged(0.15)])
    assert fault.unseen
    assert "15.0% of the proposals" in fault.text


def test_a_hospital_with_few_rows_takes_no_part(tmp_path: Path) -> None:
    with pytest.raises(SiteRefusedError) as caught:
        stage_of(tmp_path, 15).run()
    assert caught.value.sites == ("north",)
    assert "minimum_rows" in (tmp_path / "sites" / "north" / "errors.log").read_text()
    assert not Ledger(tmp_path / "sites" / "north" / "ledger.jsonl").numbers


def test_noise_is_the_site_s_own_and_the_same_for_the_same_question(tmp_path: Path) -> None:
    stage = stage_of(tmp_path)
    stage.run()
    asked = [one for one in stage.log["north"] if "potentials" in one.answer.arrays][-1]
    again = stage.ask("north", asked.request)
    np.testing.assert_array_equal(again.arrays["potentials"], asked.answer.arrays["potentials"])
    exact = stage_of(tmp_path / "exact", private=False)
    exact.run(lambda request: request.kind == "query" and request.site == "north")
    request = replace(asked.request, run=exact.halted_at.run)  # type: ignore[union-attr]
    plain = exact.ask("north", request)
    depths = plain.arrays["potentials"].astype(float)
    # Whether a row stands out depends on the secret: a site that adds more says by what factor.
    factor = float(asked.answer.values.get("noise", 1.0))
    sd = 0.15 * math.sqrt(factor)
    leaves = depths + 5 * sd < highest_sent(120, factor, sd)  # the few beyond may be lost
    assert leaves.mean() > 0.9
    noise = (asked.answer.arrays["potentials"] - depths - sd**2 / 2)[leaves] / sd
    assert noise.std() == pytest.approx(1, rel=0.05)
    assert noise.mean() == pytest.approx(0, abs=4 / np.sqrt(noise.size))
    moved = asked.answer.arrays["height"] - plain.arrays["height"]
    assert (moved != 0).all()
    assert (np.abs(moved) < 0.06).all()


# --- the statement against an attack -------------------------------------------------------------


def logistic(columns: int) -> consortia.Model:
    def log_likelihood(parameters: Any, rows: Any) -> Any:
        t = rows["x"] @ parameters[:-1] + parameters[-1]
        return rows["y"] * t - jnp.logaddexp(0, t)

    return consortia.Model(lambda at: -at @ at / 2, log_likelihood, jnp.zeros(columns + 1))


def linear(columns: int) -> consortia.Model:
    def log_likelihood(parameters: Any, rows: Any) -> Any:
        return -((rows["x"] @ parameters[:-1] + parameters[-1] - rows["y"]) ** 2) / 2

    return consortia.Model(lambda at: -at @ at / 2, log_likelihood, jnp.zeros(columns + 1))


def sums_of(model: consortia.Model, orders: tuple[int, ...], points: np.ndarray) -> Any:
    """Sums over rows, by x (n, k) and y, in the order in which they are compared."""

    def total(at: Any, x: Any, y: Any) -> Any:
        return jnp.sum(model.log_likelihood(at, {"x": x, "y": y}))

    derivatives = {0: total, 1: jax.grad(total), 2: jax.hessian(total)}

    def sums(x: Any, y: Any) -> Any:
        return jnp.concatenate(
            [
                jax.vmap(lambda at, of=derivatives[order]: of(at, x, y).ravel())(points).ravel()
                for order in orders
            ]
        )

    return sums


# The first eight have each model with each set of orders.
@pytest.mark.parametrize("case", sparse(range(20), range(8)))
def test_no_more_rows_are_read_than_the_statement_calls_settled(tmp_path: Path, case: int) -> None:
    rng = np.random.default_rng(case)
    columns, count = int(rng.integers(2, 4)), int(rng.integers(5, 12))
    orders = ((0,), (1,), (0, 1), (1, 2))[case % 4]
    model = (logistic, linear)[case // 4 % 2](columns)
    x, y = rng.normal(size=(count, columns)), rng.integers(0, 2, count).astype(np.float32)
    points = rng.normal(size=(int(rng.integers(2, 40)), columns + 1)) * rng.uniform(0.5, 3)
    noise = float(rng.choice([0.0, 0.01]))
    statement = measured(tmp_path, model, x, y, Revealed(points, orders), noise)
    sums = jax.jit(sums_of(model, orders, jnp.asarray(points)))
    jacobian = jax.jit(jax.jacfwd(lambda flat: sums(flat.reshape(count, columns), y)))
    answer = np.asarray(sums(x, y), float)
    if noise and 0 in orders:
        answer[: len(points)] += noise * rng.normal(size=len(points))
    starts = []
    for _ in range(3):
        solved = least_squares(
            lambda flat: np.asarray(sums(flat.reshape(count, columns), y), float) - answer,
            rng.normal(size=count * columns),
            lambda flat: np.asarray(jacobian(flat), float),
            max_nfev=60,
        )
        starts.append(solved.x.reshape(count, columns))
    # Who attacks takes for read what all starts agree on; the rest may be met by chance.
    first, *others = starts
    agreed = [row for row in first if all(rows_read(other, row[None]) for other in others)]
    read = rows_read(np.array(agreed).reshape(-1, columns), x)
    assert read <= statement.settled <= count


@pytest.mark.parametrize("case", range(6))
def test_products_settle_the_rows_that_a_factorisation_of_all_numbers_does(
    tmp_path: Path, case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(case)
    count, model = 30, logistic(2)
    x, y = rng.standard_t(3, size=(count, 2)), rng.integers(0, 2, count)
    revealed = Revealed(rng.normal(size=(400, 3)) * rng.uniform(0.2, 2))
    noise = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0][case]
    fast = measured(tmp_path / "fast", model, x, y, revealed, noise)
    monkeypatch.setattr(accounts, "MOST_PRODUCT", 0.0)
    assert measured(tmp_path / "slow", model, x, y, revealed, noise) == fast
    assert fast.settled > 0 or noise > 0.3


@pytest.mark.parametrize("most_product", [accounts.MOST_PRODUCT, 0.0], ids=["products", "QR"])
def test_one_factor_has_the_uncertainty_of_measured_and_of_all_values(
    most_product: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By inverses: of measured values with all others known, of the others with none."""
    monkeypatch.setattr(accounts, "MOST_PRODUCT", most_product)
    rng = np.random.default_rng(0)
    for case in range(40):
        size = int(rng.integers(1, 25))
        root = rng.normal(size=(int(rng.integers(0, 40)), size)) * 10 ** rng.uniform(-2, 2, size)
        is_measured = rng.random(size) < [0.0, 0.5, 1.0][case % 3]
        exact = np.diagonal(np.linalg.inv(root.T @ root + np.eye(size))).copy()
        block = root[:, is_measured]
        inverse = np.linalg.inv(block.T @ block + np.eye(block.shape[1]))
        exact[is_measured] = np.diagonal(inverse)
        made = settled._deviations(root, is_measured)
        np.testing.assert_allclose(made, np.sqrt(exact), rtol=1e-4)
        # What is known besides never makes a value less known than the inverse of all says.
        assert (
            made <= np.sqrt(np.diagonal(np.linalg.inv(root.T @ root + np.eye(size)))) + 1e-6
        ).all()


def measured(
    folder: Path, model: Any, x: np.ndarray, y: np.ndarray, revealed: Revealed, noise: float = 0.0
) -> Statement:
    rows, target = {"x": x.astype(np.float32), "y": y.astype(np.float32)}, Target(model, model.init)
    of_heights = {0: np.full((len(revealed.points), 1), noise)}
    revealed = revealed._replace(errors=of_heights)
    path = folder / "settled" / "one.bin"
    return Settled(target, rows, len(x), path, 1).add([revealed])


def test_an_answer_that_is_refused_is_not_counted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y, model = rng.normal(size=(20, 2)), rng.integers(0, 2, 20), logistic(2)
    revealed = Revealed(rng.normal(size=(60, 3)))
    rows = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    path = tmp_path / "settled" / "one.bin"
    counted = Settled(Target(model, model.init), rows, len(x), path, 1)

    def refuse(statement: Statement) -> None:
        raise PolicyError("too many")

    with pytest.raises(PolicyError):
        counted.add([revealed], permit=refuse)
    assert not path.exists()
    counted.add([revealed])
    assert path.exists()


def test_what_answers_settle_adds_up_over_answers_and_runs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y, model = rng.normal(size=(20, 2)), rng.integers(0, 2, 20), logistic(2)
    found = []
    for _ in range(12):
        points = rng.normal(size=(8, 3)) * 3
        found.append(measured(tmp_path, model, x, y, Revealed(points, (1,))).settled)
    assert found[0] == 0
    assert found[-1] == 20
    assert sorted(found) == found


def test_of_a_large_site_some_rows_are_looked_at(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5000, 3)), rng.integers(0, 2, 5000)
    points = rng.normal(size=(2000, 4))
    statement = measured(tmp_path, logistic(3), x, y, Revealed(points, (0,), points[0]), 1.0)
    assert statement == Statement(0, MOST_UNKNOWNS // 3, 5000)
    assert str(statement) == "0 of 5000 rows (of 100 that were drawn)"


def test_columns_that_are_all_categorical_have_no_measurements(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 2, (40, 2)).astype(float)
    statement = measured(tmp_path, logistic(2), x, x[:, 0], Revealed(np.ones((9, 3)), (0, 1)))
    assert statement == Statement(0, 40, 40)


# --- a site that lies ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lambda values: np.full_like(values, np.nan), "it sent numbers that are not finite"),
        (np.zeros_like, "numbers of 'potentials' are 0"),
    ],
    ids=["not finite", "zeros"],
)
def test_a_site_whose_answers_are_no_sums_over_rows_is_named(
    tmp_path: Path, lie: Any, reason: str
) -> None:
    def south(request: Envelope, honest: bytes) -> bytes:
        answer = decode(honest)
        if "potentials" not in answer.arrays:
            return honest
        lies = {n: lie(a) for n, a in answer.arrays.items() if a.dtype.kind == "f"}
        return replace(answer, arrays={**answer.arrays, **lies}).encode()

    stage = stage_of(tmp_path)
    honest = stage.answers["south"]
    stage.answers["south"] = lambda message: south(decode(message), honest(message))
    with refused(SiteImplausibleError, sites=("south",)) as caught:
        stage.run()
    assert reason in caught.value.reason


@pytest.mark.parametrize("family", ["bernoulli", "gamma"])
def test_both_libraries_find_what_sums_say_of_rows(family: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    table = {"x": rng.normal(size=20), "z": rng.normal(60, 9, 20), "w": rng.uniform(1, 2, 20)}
    table["y"] = rng.gamma(2.0, size=20) if family == "gamma" else rng.integers(0, 2, 20)
    made = consortia.regression("y ~ x + z", {"a": table}, family=family, weights="w")
    rows = {name: np.float32(values) for name, values in made.sites.site("a").items()}
    dimension = Target(made.model, made.model.init).dimension
    points = np.random.default_rng(5).normal(0, 0.3, (4, dimension))
    revealed, found = Revealed(points, (0, 1, 2), points[0]), []
    for model in (made.model, replace(made.model, host=None)):
        measure = Settled(Target(model, model.init), rows, 20, tmp_path / "one.bin", 1)
        found.append(measure._information(revealed))
    # Differences of differences on one side, of single precision on the other.
    np.testing.assert_allclose(found[0], found[1], atol=2e-4 * np.abs(found[1]).max())


def test_both_libraries_find_the_same_of_a_logistic_regression_with_padding(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 7)), rng.integers(0, 2, 20).astype(float)
    model = consortia.models.logistic_regression(7)
    assert model.arrange is not None
    held = model.arrange({"x": x[None], "y": y[None]})
    rows = {name: np.float32(values[0]) for name, values in held.items()}
    revealed, found = Revealed(rng.normal(size=(3, 7)), (0, 1, 2)), []
    for one in (model, replace(model, host=None)):
        measure = Settled(Target(one, one.init), rows, 20, tmp_path / "one.bin", 1)
        found.append(measure._information(revealed))
    assert rows["x"].shape[1] > 7
    np.testing.assert_allclose(found[0], found[1], atol=2e-4 * np.abs(found[1]).max())
