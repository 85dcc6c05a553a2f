"""Absolute risk of Cox's model beside R's survfit and cmprsk, and by its definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import integrate
from scipy.stats import norm

import consortia
from consortia.core.parameters import spaced
from consortia.models.regression.baseline import SiteRows, _drawn, site_baseline
from consortia.models.regression.risk import incidences, restricted_mean
from tests.models.regression.modes import mode_and_covariance
from tests.models.regression.test_propensity import sites_of as patients
from tests.models.regression.test_weighted_cox import WIDE, sites_of
from tests.refusals import refused

LUNG = "Surv(time, status) ~ age + sex + ecog"
BY_ENUM = "Surv(start, stop, event) ~ rx + number + size + strata(enum)"
PATIENTS = {"age": [60.0, 70.0], "sex": [1.0, 2.0], "ecog": [1.0, 0.0]}
FIRST, SECOND = ({name: values[i : i + 1] for name, values in PATIENTS.items()} for i in (0, 1))
BLADDER = {"rx": [2.0], "number": [2.0], "size": [1.0], "enum": [2.0]}
# cumulative hazards, standard errors, restricted mean to 12: tests/references/survival.R
R: dict[tuple[str, str, str], Any] = {
    ("lung", "efron", "s0"): (FIRST, (0.4041698, 0.8731644), (0.0928109, 0.1624453), 8.463711),
    ("lung", "efron", "s1"): (SECOND, (0.1328751, 0.4577003), (0.0405436, 0.1154056), 10.450404),
    ("lung", "breslow", "s0"): (FIRST, (0.3893010, 0.8416989), (0.0892979, 0.1568117), 8.562536),
    ("lung", "breslow", "s1"): (SECOND, (0.1340028, 0.4440019), (0.0408114, 0.1118586), 10.459289),
    ("bladder", "efron", "s1"): (BLADDER, (0.3331338, 1.9461558), (0.2318683, 0.9400635), None),
}
INCIDENCE = np.array([[0.0361367247, 0.0681023339], [0.256773326, 0.5088753]])
OF_SITE = np.array([[0.0375047838, 0.0696795993], [0.2776691353, 0.5041382426]])
OF_SITE_SD = np.sqrt([[0.000273157484, 0.000508838319], [0.001519462792, 0.002067798604]])


def made_of(name: str, ties: str = "efron", **more: Any) -> Any:
    formula, times = (LUNG, "time") if name == "lung" else (BY_ENUM, "stop")
    assert times in formula
    return consortia.regression(
        formula, sites_of(name, 3), family="cox", ties=ties, prior=WIDE, **more
    )


class Means:
    """A generator whose increments are their means."""

    def standard_gamma(self, shape: np.ndarray) -> np.ndarray:
        return np.asarray(shape)


def hazards(made: Any, site: str, patient: Any, times: Any, draws: np.ndarray, rng: Any) -> Any:
    """Return a patient's cumulative hazards, (draws, times), for draws of coefficients."""
    of_site = SiteRows(made.rows.site(site), made.tables[site])
    params = {"coefficients": draws}
    drawn = site_baseline(made.density, params, of_site, times, rng)
    given = made._prepared(tree_of(made, draws), patient, site, 0, new_groups=False)
    stratum = drawn.of_rows(made.specification, given.table, times, site)
    eta = made.density.predictor(params, given.rows)
    return (drawn.hazards[:, stratum] * np.exp(eta)[..., None])[:, 0]


def tree_of(made: Any, draws: np.ndarray, **more: np.ndarray) -> Any:
    """Return a result with these draws of coefficients, and of others, as they are sampled."""
    import xarray

    every = {"coefficients": draws, **more}
    data = xarray.Dataset(
        {name: (("chain", "draw", f"of_{name}"), values[None]) for name, values in every.items()}
    )
    return xarray.DataTree.from_dict({"unconstrained_posterior": data, "posterior": data})


@pytest.mark.parametrize("case", list(R))
def test_hazards_at_the_mode_are_those_of_survfit(case: tuple[str, str, str]) -> None:
    name, ties, site = case
    patient, expected, _, mean = R[case]
    made, times = made_of(name, ties), (6, 12) if name == "lung" else (6, 24)
    mode, _ = mode_and_covariance(made)
    found = hazards(made, site, patient, times, mode[None], Means())
    np.testing.assert_allclose(found[0], expected, rtol=2e-5)
    if mean is not None:
        grid, steps = made._curve_times(site, 12.0)
        curve = hazards(made, site, patient, grid[1:], mode[None], Means())
        area = restricted_mean(np.concatenate([[[0.0]], curve], axis=1), grid, steps=steps)
        np.testing.assert_allclose(area, mean, rtol=2e-6)


@pytest.mark.parametrize("case", list(R))
def test_their_spread_is_that_of_survfit(case: tuple[str, str, str]) -> None:
    name, ties, site = case
    patient, _, errors, _ = R[case]
    made, times = made_of(name, ties), (6, 12) if name == "lung" else (6, 24)
    mode, covariance = mode_and_covariance(made)
    rng = np.random.default_rng(0)
    # near the mode the delta method of survfit is exact; increments are then scaled alike
    near = rng.multivariate_normal(mode, covariance / 100, 40_000)
    of_coefficients = hazards(made, site, patient, times, near, Means()).var(axis=0) * 100
    at_mode = np.repeat(mode[None], 40_000, axis=0)
    of_increments = hazards(made, site, patient, times, at_mode, rng).var(axis=0)
    np.testing.assert_allclose(np.sqrt(of_coefficients + of_increments), errors, rtol=0.02)


@pytest.fixture(scope="module")
def lung() -> tuple[Any, Any]:
    made = made_of("lung")
    return made, run(made)


def run(made: Any) -> Any:
    return consortia.sample(
        made.model,
        made.sites,
        consortia.few_rounds(effective_size=2000),
        chains=2,
        seed=1,
        metadata=made.metadata,
        progress=False,
    )


def test_predictions_have_survfit_s_intervals(lung: tuple[Any, Any]) -> None:
    made, tree = lung
    for row, site in enumerate(("s0", "s1")):
        _, expected, errors, area = R["lung", "efron", site]
        found = made.predict(tree, PATIENTS, site=site, at=[6, 12])
        assert found.dims == ("chain", "draw", "row", "time")
        drawn = -np.log(found.values[:, :, row].reshape(-1, 2))
        # a gamma law's mean is its estimate; coefficients are skewed by some hundredths of an sd
        assert np.all(np.abs(drawn.mean(axis=0) - expected) < 0.15 * np.array(errors))
        np.testing.assert_allclose(drawn.std(axis=0), errors, rtol=0.08)
        means = made.restricted_mean(tree, PATIENTS, site=site, until=12).values[..., row]
        assert abs(means.mean() - area) < 0.15 * means.std()


def test_a_site_predicts_from_the_run_and_its_rows_alone(lung: tuple[Any, Any]) -> None:
    made, tree = lung
    rows = {"s0": sites_of("lung", 3)["s0"]}
    here = consortia.regression(LUNG, rows, family="cox", prior_from=tree)
    found = here.predict(tree, FIRST, site="s0", at=[6, 12], seed=4)
    np.testing.assert_allclose(
        found, made.predict(tree, FIRST, site="s0", at=[6, 12], seed=4), rtol=1e-6
    )


def test_effects_are_average_differences_of_predictions(lung: tuple[Any, Any]) -> None:
    made, tree = lung
    kept = {site: table for site, table in sites_of("lung", 3).items() if site == "s0"}
    found = made.marginal_effects(tree, kept, columns=["ecog"], at=[6], seed=3, draws=50_000)
    step = 1e-4
    up, down = (
        made.predict(tree, {**kept["s0"], "ecog": kept["s0"]["ecog"] + by}, "s0", at=[6], seed=3)
        for by in (step, -step)
    )
    # one baseline for both, as of the effects
    slopes = (up - down).values.reshape(-1, len(kept["s0"]["w"])).mean(axis=1) / (2 * step)
    draws = len(found.draws[0])
    np.testing.assert_allclose(
        found.draws[0].mean(), slopes[spaced(len(slopes), draws)].mean(), rtol=0.02
    )


def test_a_new_site_is_one_of_all(lung: tuple[Any, Any]) -> None:
    made, tree = lung
    of_sites = [made.predict(tree, FIRST, site=f"s{i}", at=[6, 12]).values for i in range(3)]
    new = made.predict(tree, FIRST, at=[6, 12]).values
    middle = np.mean([values.mean(axis=(0, 1)) for values in of_sites], axis=0)
    assert np.all(np.abs(new.mean(axis=(0, 1)) - middle) < 0.05)
    assert np.all(new.std(axis=(0, 1)) > np.min([v.std(axis=(0, 1)) for v in of_sites], axis=0))
    means = made.restricted_mean(tree, FIRST, until=12).values
    curve = made.predict(tree, FIRST, at=list(np.linspace(0.2, 12, 60))).values[:, :, 0]
    area = (np.trapezoid(curve, dx=0.2, axis=-1) + 0.1 * (1 + curve[..., 0])).mean()
    assert abs(means.mean() - area) < 0.01


def test_levels_of_a_new_site_are_those_of_the_exact_law() -> None:
    events, exposures = np.array([12.0, 30.0, 45.0, 20.0]), np.array([20.0, 20.0, 20.0, 20.0])
    rng = np.random.default_rng(2)
    given = np.broadcast_to(exposures[None, :, None], (20_000, 4, 1))
    rates, level = _drawn(events[:, None], given, rng)
    drawn = np.log(rates[:, 0]) + level
    # the law of m and tau, each site's level integrated on a grid
    tau, m, z = np.geomspace(0.01, 60, 60), np.linspace(-6, 6, 161), np.linspace(-8, 8, 161)
    height = np.log(tau) - 2 * np.log1p((tau / 2.5) ** 2 / 3) + np.zeros((len(m), 1))
    for d, e in zip(events, exposures, strict=True):
        at = m[:, None, None] + tau[None, :, None] * z
        # wide laws: the grid of z is too coarse there, and the likelihood is normal in log
        fine = d * at - e * np.exp(np.minimum(at, 50)) - z**2 / 2
        narrow = np.log(np.exp(fine - fine.max()).sum(axis=2) + 1e-300) + fine.max()
        theta = np.linspace(np.log(d / e) - 2, np.log(d / e) + 2, 161)
        wide = d * theta - e * np.exp(theta) - ((theta - m[:, None, None]) / tau[:, None]) ** 2 / 2
        wide = np.log(np.exp(wide - fine.max()).sum(axis=2) + 1e-300) + fine.max()
        wide += np.log((theta[1] - theta[0]) / (z[1] - z[0]) / tau)
        height = height + np.where(tau > 0.3, wide, narrow)
    share = np.exp(height - height.max())
    share /= share.sum()
    # the predictive distribution at some values
    for value in np.quantile(drawn, [0.05, 0.25, 0.5, 0.75, 0.95]):
        exact = (share * norm.cdf((value - m[:, None]) / tau)).sum()
        assert abs(exact - np.mean(drawn <= value)) < 0.015


@pytest.mark.slow
def test_competing_causes_have_the_incidence_of_their_hazards() -> None:
    tables, causes = sites_of("mgus", 3), {}
    for number, cause in enumerate(("progression", "death"), start=1):
        formula = f"Surv(months, cause == {number}) ~ age + male"
        made = consortia.regression(formula, tables, family="cox", prior=WIDE)
        causes[cause] = made, run(made)
    patient = {"age": [70.0], "male": [1.0]}
    found = consortia.cumulative_incidence(causes, patient, "s1", at=[60, 120])
    assert found.dims == ("chain", "draw", "row", "cause", "time")
    assert list(found.cause.values) == ["progression", "death"]
    drawn = found.values[:, :, 0].reshape(-1, 2, 2)
    assert np.all(np.abs(drawn.mean(axis=0) - INCIDENCE) < 0.15 * drawn.std(axis=0))
    of_new = consortia.cumulative_incidence(causes, patient, at=[60])
    assert of_new.values.min() > 0
    assert of_new.sum("cause").values.max() < 1 + 1e-9
    with refused(argument="causes", match="two or more"):
        consortia.cumulative_incidence({"death": causes["death"]}, patient, "s1", at=[60])


def test_without_effects_the_incidence_is_that_of_cmprsk() -> None:
    tables, causes = sites_of("mgus", 3), {}
    for number in (1, 2):
        formula = f"Surv(months, cause == {number}) ~ age + male"
        made = consortia.regression(formula, tables, family="cox", prior=WIDE)
        causes[str(number)] = made, tree_of(made, np.zeros((6000, 2)))
    patient = {"age": [tables["s0"]["age"].mean()], "male": [1.0]}
    found = consortia.cumulative_incidence(causes, patient, "s1", at=[60, 120]).values[0, :, 0]
    assert np.all(np.abs(found.mean(axis=0) - OF_SITE) < 0.12 * OF_SITE_SD)
    np.testing.assert_allclose(found.std(axis=0), OF_SITE_SD, rtol=0.05)


def test_incidences_and_survival_add_up_to_one() -> None:
    steps = np.random.default_rng(1).gamma(0.5, 0.2, (3, 4, 20))
    steps[:, :, 7] = 0  # a time without an event
    sums = np.concatenate([np.zeros((3, 4, 1)), np.cumsum(steps, axis=-1)], axis=-1)
    np.testing.assert_allclose(
        incidences(sums).sum(axis=0) + np.exp(-sums.sum(axis=0)), 1, rtol=1e-12
    )


def test_restricted_means_of_a_smooth_family_are_integrals() -> None:
    made = consortia.regression(LUNG, sites_of("lung", 3), family="weibull")
    tree = run(made)
    found = made.restricted_mean(tree, FIRST, site="s0", until=12).values.ravel()
    params = made._flat(tree)
    for draw in (0, 7):
        some = {name: values[draw : draw + 1] for name, values in params.items()}

        def at(time: float, some: Any = some) -> float:
            given = made._prepared(tree, FIRST, "s0", 0, new_groups=False)
            given = given._replace(params=some, shift=given.shift[:1])
            return float(np.exp(-made._hazards(given, [time]))[0, 0, 0])

        area, _ = integrate.quad(at, 1e-12, 12, epsabs=1e-7)
        np.testing.assert_allclose(found[draw], area, rtol=1e-4)


def test_restricted_means_and_their_difference_are_those_of_survrm2() -> None:
    # of the arms of pbc.csv, as its vignette has them: -0.137, -0.939 to 0.665
    formula = "Surv(time, died) ~ age + strata(arm)"
    made = consortia.regression(formula, sites_of("pbc", 1), family="cox", prior=WIDE)
    arms = {"age": [50.0, 50.0], "arm": [0.0, 1.0]}
    tree = tree_of(made, np.zeros((6000, 1)))
    means = made.restricted_mean(tree, arms, site="s0", until=10).values.reshape(-1, 2)
    # exp(-H) is a little above the product of Kaplan and Meier
    np.testing.assert_allclose(means.mean(axis=0), [7.283, 7.146], atol=0.035)
    np.testing.assert_allclose(means.std(axis=0), [0.295, 0.283], rtol=0.05)
    apart = means[:, 1] - means[:, 0]
    assert abs(apart.mean() + 0.137) < 0.02
    np.testing.assert_allclose(np.quantile(apart, [0.025, 0.975]), [-0.939, 0.665], atol=0.05)


def test_agreed_breaks_have_nearly_the_risks_of_survfit() -> None:
    # at 1 and 5 years, of pooled rows: what is recommended between institutions
    formula, breaks = "Surv(months, event) ~ arm + nodes", [12, 24, 36, 60]
    more: dict[str, Any] = {"levels": {"arm": ["none", "hormone"]}, "breaks": breaks}
    made = consortia.regression(formula, patients(3), family="piecewise_exponential", **more)
    draws = np.random.default_rng(0).multivariate_normal(*mode_and_covariance(made), 20_000)
    tree = tree_of(made, draws[:, :2], hazard_contrasts=draws[:, 2:])
    two = {"arm": ["none", "hormone"], "nodes": [3.0, 8.0]}
    found = made.predict(tree, two, at=[12, 60]).values[0]
    expected = np.array([[0.920807478, 0.485578871], [0.925807339, 0.509157505]])
    errors = np.array([[0.0108464833, 0.0287335348], [0.0114991503, 0.0376394774]])
    assert np.abs((found.mean(axis=0) - expected) / errors).max() < 0.25
    np.testing.assert_allclose(found.std(axis=0), errors, rtol=0.1)
    means = made.restricted_mean(tree, two, until=60).values[0].mean(axis=0)
    apart = (means - [43.8312491, 44.6742999]) / np.array([0.783248157, 0.806584543])
    assert np.abs(apart).max() < 0.5  # the hazard of the first months is not that of the year


def test_what_is_not_known_is_refused(lung: tuple[Any, Any]) -> None:
    made, tree = lung
    with refused(argument="at", match=r"site 's0': follow-up ends at 3\d, and nothing is known"):
        made.predict(tree, FIRST, site="s0", at=[50])
    with refused(argument="at"):
        made.predict(tree, FIRST, site="s0")
    single = consortia.regression(LUNG, {"a": sites_of("lung", 1)["s0"]}, family="cox", prior=WIDE)
    with refused(argument="site"):
        single.predict(tree_of(single, np.zeros((30, 3))), FIRST, at=[6])
    by_enum = made_of("bladder")
    at = tree_of(by_enum, np.zeros((30, 3)))
    with refused(argument="stratum", match="'9'"):
        by_enum.predict(at, {**BLADDER, "enum": [9.0]}, site="s1", at=[6])
    with refused(argument="at", match="of the stratum '2': follow-up ends at"):
        by_enum.predict(at, BLADDER, site="s1", at=[600])


def test_incidences_stay_numbers_where_an_event_is_certain() -> None:
    hazards = np.array([[[0.0, 1.0, np.inf, np.inf]], [[0.0, 0.5, 0.5, 0.5]]])
    shares = incidences(hazards)
    assert np.isfinite(shares).all()
    np.testing.assert_allclose(shares[:, 0, -1].sum(), 1.0)
    assert (np.diff(shares, axis=-1) >= 0).all()
