"""Every mistake gets one clear error that names the argument, the place and the remedy."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import consortia
from consortia.core import start
from consortia.core.target import Target
from consortia.errors import InputError, StoreError
from consortia.run import checks
from tests.refusals import refused


def log_prior(params):
    return -0.5 * jnp.sum(params["beta"] ** 2)


def log_likelihood(params, batch):
    return -0.5 * (batch["y"] - batch["x"] @ params["beta"]) ** 2


MODEL = consortia.Model(log_prior, log_likelihood, {"beta": jnp.zeros(2)})
ALGORITHM = consortia.fa_hmc(0.05, 2, 2)


def site(rows, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(rows, 2)).astype(np.float32),
        "y": rng.normal(size=rows).astype(np.float32),
    }


SITES = consortia.Sites.from_list([site(5), site(9, 1)], names=["north", "south"])


def sample(model=MODEL, sites=SITES, algorithm=ALGORITHM, **options):
    arguments = {"chains": 1, "rounds": 10, "progress": False, **options}
    return consortia.sample(model, sites, algorithm, **arguments)


def changed(**fields):
    return dataclasses.replace(MODEL, **fields)


@pytest.fixture(autouse=True)
def no_sampler_is_compiled(monkeypatch):
    """A refused run never reaches the compiled loop."""

    def never(*arguments):
        raise AssertionError("the sampler was started")

    monkeypatch.setattr("consortia.engines.local.LocalRun.advance", never)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda p, b: jnp.sum(log_likelihood(p, b)), "returns a scalar"),
        (lambda p, b: log_likelihood(p, b)[:, None], r"\(3, 1\).*\(3,\)"),
        (
            lambda p, b: jnp.zeros_like(b["y"]) + jnp.mean(log_likelihood(p, b)),
            "other rows",
        ),
        (lambda p, b: b["z"] * 1.0, "KeyError: 'z'"),
    ],
)
def test_a_log_likelihood_that_is_not_one_value_per_row_is_refused(function, match):
    with refused(argument="log_likelihood", match=match):
        sample(changed(log_likelihood=function))


def test_a_log_prior_that_is_not_a_scalar_is_refused():
    with refused(argument="log_prior", match=r"\(2,\)"):
        sample(changed(log_prior=lambda p: -0.5 * p["beta"] ** 2))


def test_a_start_outside_the_support_of_the_prior_is_refused():
    outside = changed(log_prior=lambda p: jnp.where(jnp.all(p["beta"] > 1), 0.0, -jnp.inf))
    with refused(argument="init", match="log_prior is -inf"):
        sample(outside)


def test_a_density_that_is_not_finite_at_the_start_names_the_site():
    def only_south_breaks(params, batch):
        return log_likelihood(params, batch) + jnp.where(batch["y"] > 100, -jnp.inf, 0.0)

    bad = site(9, 1)
    bad["y"][3] = 1000.0
    sites = consortia.Sites.from_list([site(5), bad], names=["north", "south"])
    with refused(argument="init", site="south", match="is -inf"):
        sample(changed(log_likelihood=only_south_breaks), sites)


def test_a_gradient_that_is_not_finite_at_the_start_names_the_site():
    def kinked(params, batch):
        return log_likelihood(params, batch) - jnp.sqrt(jnp.sum(params["beta"] ** 2))

    with refused(argument="init", site="north", match="gradient"):
        sample(changed(log_likelihood=kinked))


def test_starts_are_looked_at_alike_side_by_side_and_one_after_the_other(monkeypatch):
    positions = jnp.array([[0.0, 0.0], [0.3, -1.0], [jnp.nan, 0.0]], jnp.float32)
    data = consortia.Sites.from_list([site(50), site(20)])
    found = []
    for at_once, loops in ((start.AT_ONCE, False), (0, True)):
        monkeypatch.setattr(start, "AT_ONCE", at_once)
        model = changed()  # of which no program has been made
        method = consortia.fa_ld(0.01, local_steps=1)
        run = consortia.LocalEngine().prepare(Target(model, model.init), data, method, 3)
        program = run.program.start_values.lower(run._arrays, positions).as_text()
        assert ("while" in program) == loops
        found.append(run.start_values(positions))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_array_equal(found[0][2], [[True, True, False]] * 2)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_at_the_start_as_many_rows_are_looked_at_as_the_method_s_gradients_read(batch_size):
    """Of a network on a processor all rows of all sites would take minutes, and be said to none."""
    looked_at = []

    def counted(params, batch):
        looked_at.append(batch["y"].shape[0])  # as it is traced
        return log_likelihood(params, batch)

    data = consortia.Sites.from_list([site(50), site(50)])
    method = consortia.fa_ld(0.01, local_steps=1, batch_size=batch_size)
    model = changed(log_likelihood=counted)
    engine = consortia.LocalEngine()
    run = engine.prepare(Target(model, model.init), data, method, 1)
    looked_at.clear()
    run.start_values(jnp.zeros((1, 2)))
    assert set(looked_at) == {50 if batch_size is None else 2}


@pytest.mark.parametrize(
    ("init", "argument", "match"),
    [
        ({"gamma": jnp.zeros(2)}, "init", "init has the structure"),
        (jnp.zeros(2), "init", "init has the structure"),
        ({"beta": jnp.zeros(3)}, "init", r"init\['beta'\] has shape \(3,\)"),
        ({"beta": jnp.zeros(2, jnp.int32)}, "init", "'beta'.*type int32"),
        (
            {"beta": jnp.array([0.0, jnp.nan])},
            "init",
            r"init\['beta'\] holds a value that is not finite",
        ),
        (lambda key: {"beta": jnp.zeros(3)}, "init", r"init\['beta'\] has shape \(3,\)"),
    ],
)
def test_a_start_unlike_the_models_parameters_is_refused(init, argument, match):
    with refused(argument=argument, match=match):
        sample(init=init)


def test_integer_parameters_are_refused():
    with refused(argument="init", match=r"\['beta'\] is of type int"):
        sample(changed(init={"beta": np.zeros(2, int)}))


def test_a_model_without_parameters_is_refused():
    with refused(argument="Model.init", match="no parameters"):
        sample(changed(init={}))


def test_labels_outside_the_classes_name_the_site():
    good = {"x": np.ones((4, 2), np.float32), "y": np.array([0, 1, 2, 1])}
    bad = {"x": np.ones((4, 2), np.float32), "y": np.array([0, 1, 3, 1])}
    sites = consortia.Sites.from_list([good, bad], names=["north", "south"])
    model = consortia.models.softmax_regression(2, 3)
    with refused(site="south", match=r"site 'south': .*3"):
        sample(model, sites)


@pytest.mark.parametrize(
    ("options", "argument", "match"),
    [
        ({"chains": 0}, "chains", "chains is 0.*least 1"),
        ({"rounds": 0}, "rounds", "rounds is 0.*least 1"),
        ({"thin": 0}, "thin", "thin is 0.*least 1"),
        ({"thin": 11}, "thin", "thin=11.*the 10"),
        ({"warmup": -1}, "warmup", "warmup is -1.*least 0"),
        ({"rounds": 2.5}, "rounds", "rounds is 2.5"),
        ({"seed": -1}, "seed", "seed is -1"),
        ({"rounds": 2**31}, "rounds", "rounds is 2147483648"),
        ({"rounds": 2**31 - 5, "warmup": 9}, "rounds", "rounds . warmup"),
        ({"stop": 1.01}, "stop", "stop is 1.01.*consortia.stop_when"),
        ({"engine": "local"}, "engine", "'local'"),
    ],
)
def test_run_lengths_out_of_range_are_refused(options, argument, match):
    with refused(argument=argument, match=match):
        sample(**options)


@pytest.mark.parametrize(
    ("make", "argument", "match"),
    [
        (lambda: consortia.fa_hmc(0.0, 2, 2), "step_size", None),
        (lambda: consortia.fa_hmc(-0.1, 2, 2), "step_size", None),
        (lambda: consortia.fa_hmc([0.1, -0.1], 2, 2), "step_size", None),
        (lambda: consortia.fa_hmc(float("nan"), 2, 2), "step_size", None),
        (lambda: consortia.fa_hmc(0.1, 0, 2), "leapfrog_steps", "leapfrog_steps is 0"),
        (lambda: consortia.fa_hmc(0.1, 2, 0), "local_steps", "local_steps is 0"),
        (
            lambda: consortia.fa_hmc(0.1, 2, 2, momentum_correlation=1.1),
            "momentum_correlation",
            "is 1.1",
        ),
        (
            lambda: consortia.fa_hmc(0.1, 2, 2, momentum_correlation=-0.1),
            "momentum_correlation",
            None,
        ),
        (lambda: consortia.fa_hmc(0.1, 2, 2, batch_size=0), "batch_size", "batch_size is 0"),
        (
            lambda: consortia.fa_hmc(0.1, 2, 2, gradient_draws=3),
            "gradient_draws",
            "gradient_draws is 3",
        ),
        (lambda: consortia.fa_hmc(0.1, 2, 2, gradient_noise=-1.0), "gradient_noise", None),
        (lambda: consortia.fa_hmc(0.1, 2, 2, temperature=-1.0), "temperature", None),
        (lambda: consortia.fa_hmc(0.1, 2, 2, weights=[0.5, 0.6]), "weights", "to 1.1"),
        (
            lambda: consortia.fa_hmc(0.1, 2, 2, weights=[1.5, -0.5]),
            "weights",
            "site 1.*is -0.5",
        ),
        (
            lambda: consortia.fa_hmc(0.1, 2, 2, mass_matrix=[1.0, 0.0]),
            "mass_matrix",
            "mass_matrix.*positive",
        ),
        (
            lambda: consortia.fa_hmc(0.1, 2, 2, mass_matrix=[[1.0, 2], [2, 1]]),
            "mass_matrix",
            "not positive def",
        ),
        (lambda: consortia.fa_ld(0.1, 0), "local_steps", "local_steps is 0"),
        (lambda: consortia.stop_when(), "rhat", "ess and budget"),
        (lambda: consortia.stop_when(rhat=0.9), "rhat", "rhat is 0.9"),
        (lambda: consortia.LocalEngine(node_mode="fast"), "node_mode", "'fast'"),
        (lambda: consortia.LocalEngine(block=0), "block", "block is 0"),
    ],
)
def test_arguments_of_factories_out_of_range_are_refused(make, argument, match):
    with refused(argument=argument, match=match):
        make()


def test_a_step_size_array_shorter_than_the_run_is_refused():
    with refused(argument="step_size"):
        sample(algorithm=consortia.fa_hmc([0.1] * 5, 2, 2), warmup=2)


def test_weights_for_another_number_of_sites_are_refused():
    with refused(argument="weights"):
        sample(algorithm=consortia.fa_hmc(0.1, 2, 2, weights=[0.2, 0.3, 0.5]))


def test_a_mass_matrix_of_another_dimension_is_refused():
    with refused(argument="mass_matrix"):
        sample(algorithm=consortia.fa_hmc(0.1, 2, 2, mass_matrix=[1.0, 1.0, 1.0]))


def test_a_batch_without_replacement_larger_than_a_site_names_the_site():
    with refused(argument="batch_size"):
        sample(algorithm=consortia.fa_hmc(0.1, 2, 2, batch_size=6, replace=False))


def test_things_of_the_wrong_kind_are_refused():
    with refused(argument="sites"):
        sample(sites=[site(5)])
    with refused(argument="model", match=r"model is a function: .*from_numpyro makes one"):
        sample(model=log_likelihood)
    with refused(argument="algorithm", match=r"algorithm is 'fa_hmc': give what consortia.fa_hmc"):
        sample(algorithm="fa_hmc")
    with refused(argument="algorithm", match=r"algorithm is few_rounds itself: write few_rounds\("):
        sample(algorithm=consortia.few_rounds)
    made = consortia.regression("y ~ x", {"north": {"x": [1.0, 2.0, 4.0], "y": [1.0, 3.0, 2.0]}})
    with refused(argument="model", match=r"model is a Regression: give its \.model, and its \.s"):
        sample(made)


@pytest.mark.parametrize(
    ("shards", "site", "match"),
    [
        ([], None, "at least one site"),
        ([site(5), site(0)], "site 1", None),
        ([site(5), {"x": site(5)["x"]}], "site 1", None),
        ([site(5), {**site(5), "y": np.full(5, np.nan, np.float32)}], "site 1", "site 1.*y"),
        ([{**site(5), "y": np.zeros(4, np.float32)}], "site 0", None),
    ],
)
def test_data_that_are_not_rows_name_the_site(shards, site, match):
    with refused(site=site, match=match):
        consortia.Sites.from_list(shards)


def test_a_store_that_holds_something_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("keep me")
    with refused(StoreError, argument="store", match="is not empty"):
        sample(store=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_refused_run_leaves_no_directory_behind(tmp_path):
    with pytest.raises(InputError):
        sample(store=tmp_path / "run", chains=0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("prior", [None, lambda p: jnp.zeros(())])
def test_a_model_without_a_prior_is_warned_about(prior):
    with (
        pytest.warns(UserWarning, match="no prior"),
        pytest.raises(AssertionError, match="the sampler was started"),
    ):
        sample(changed(log_prior=prior))


def test_a_model_with_a_prior_is_not_warned_about():
    with pytest.raises(AssertionError, match="the sampler was started"):  # warnings are errors
        sample()


def test_data_that_32_bits_cannot_hold_are_said_once_in_the_plan():
    wide = jax.tree.map(lambda a: a.astype(np.float64), site(5))
    plans = []
    for offset in (0.0, 1e7):  # of numbers near 1e7 floats of 32 bits are 1 apart
        shifted = {**wide, "x": wide["x"] + offset}
        with pytest.raises(AssertionError, match="the sampler was started"):
            sample(sites=consortia.Sites.from_list([shifted]), on_plan=plans.append)
    assert [len(plan.warnings) for plan in plans] == [0, 1]
    assert "32 bits round values of 'x'" in plans[1].warnings[0]


@pytest.mark.parametrize(
    "likelihood",
    [
        lambda x, rows: np.exp(x[0]) * rows["y"],
        lambda x, rows: rows["y"] if x[0] > 0 else -rows["y"],
    ],
    ids=["numpy", "if"],
)
def test_what_jax_cannot_trace_is_answered_with_jax_numpy(likelihood):
    model = consortia.Model(lambda x: -jnp.sum(x**2), likelihood, jnp.zeros(1))
    sites = consortia.Sites.from_list([{"y": np.ones(3, np.float32)}])
    with refused(argument="log_likelihood", match="use jax.numpy .* jnp.where"):
        consortia.sample(model, sites, consortia.fa_ld(0.1, 1), rounds=2, chains=1)


def test_draws_say_how_long_a_run_is_in_place_of_rounds():
    options = {"chains": 1, "seed": 0, "warmup": 0, "rounds": None}
    assert checks.check_arguments(MODEL, SITES, ALGORITHM, **options, draws=3, thin=2) == 6
    method = consortia.dsgld(1e-3, local_steps=4, record="updates")
    each = method.build(Target(MODEL, MODEL.init)).draws.per_iteration
    assert each > 1
    assert checks.check_arguments(MODEL, SITES, method, **options, draws=2 * each + 1, thin=1) == 3
    with refused(argument="draws", match="rounds"):
        consortia.sample(MODEL, SITES, ALGORITHM, draws=3, rounds=3)
    with refused(argument="draws"):
        consortia.sample(MODEL, SITES, consortia.few_rounds(), draws=3)


def test_dir_of_a_method_shows_its_settings_and_nothing_of_the_plumbing():
    shown = set(dir(ALGORITHM))
    assert shown == {one.name for one in dataclasses.fields(ALGORITHM) if one.init} | {
        *("claims", "name", "parameters", "title")
    }
    assert not [name for name in shown if name.startswith("_") or name.startswith("check")]
    assert all(hasattr(ALGORITHM, name) for name in shown)
