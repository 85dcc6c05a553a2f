"""Sites of which each process reads its own: the same sites, and the same numbers, everywhere."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import pretty_printer

import consortia
from consortia.core import density, fingerprints
from consortia.core.target import Target
from consortia.data import digest, facts
from consortia.data.preparation import Moments, moments_of_all
from consortia.data.sites import Sites
from consortia.engines.mpi import MPIEngine
from consortia.errors import InputError, RankError
from consortia.run import checks
from consortia.study.build import load_study
from tests.refusals import refused

NAMES = ("oslo", "lima", "rome", "bern")
SIZES = (5, 2, 7, 3)
METHOD = consortia.fa_ld(step_size=0.1, local_steps=2)
STALE = consortia.stale_sgld(step_size=1e-3, batch_size=2, workers=2)


class Talk:
    """What `MPIEngine` needs of a communicator, for ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size, self.said = size, [""] * size
        self.barrier = threading.Barrier(size, timeout=30)

    def of(self, rank: int) -> Any:
        talk = self

        class Communicator:
            size = talk.size

            def texts(self, own: str) -> list[str]:
                talk.said[rank] = own
                talk.barrier.wait()
                every = list(talk.said)
                talk.barrier.wait()
                return every

        made = Communicator()
        made.rank = rank  # type: ignore[attr-defined]
        return made


def everywhere(ranks: int, work: Any) -> list[Any]:
    """What ``work(engine)`` returns, or raises, at each rank of an `MPIEngine`."""
    talk, results = Talk(ranks), [None] * ranks

    def at(rank: int) -> None:
        engine = object.__new__(MPIEngine)
        engine._communicator, engine._local = talk.of(rank), consortia.LocalEngine()
        try:
            results[rank] = work(engine)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=at, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def of_sites(sites: Sites) -> str:
    return digest.of_sites(sites.names, sites.digests)


def refusal(ranks: int, work: Any) -> str:
    """The one message with which all ranks refuse."""
    results = everywhere(ranks, work)
    assert all(isinstance(result, InputError) for result in results), results
    (text,) = {str(result) for result in results}
    return text


def shard(number: int, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(number)
    x = generator.normal(number, 1, (SIZES[number], 2)).astype(dtype)
    return {"x": x, "y": (x[:, 0] > number).astype(np.int32)}


def in_one_process() -> Sites:
    return Sites.from_list([shard(number) for number in range(4)], NAMES)


def spread(ranks: int, read: Any = shard, method: Any = METHOD, names: Any = NAMES) -> list[Sites]:
    return everywhere(ranks, lambda engine: consortia.read_sites(read, names, method, engine))


# --- sites of which some are elsewhere -----------------------------------------------------------


@pytest.mark.parametrize(("ranks", "held"), [(1, [4]), (2, [2, 2]), (3, [1, 1, 2]), (4, [1] * 4)])
def test_a_process_reads_its_own_sites_and_knows_of_the_others(ranks: int, held: list[int]) -> None:
    read: list[int] = []
    whole = in_one_process()
    parts = spread(ranks, lambda number: read.append(number) or shard(number))
    assert sorted(read) == [0, 1, 2, 3]
    assert [len(part.here) for part in parts] == held
    for part in parts:
        assert part.names == whole.names
        assert part.structure == whole.structure
        np.testing.assert_array_equal(part.sizes, whole.sizes)
        for number in part.here:
            np.testing.assert_array_equal(part.site(number)["x"], whole.site(number)["x"])


def test_the_fingerprint_of_the_data_is_that_of_one_process() -> None:
    whole = of_sites(in_one_process())
    assert {digest.of_sites(part.names, part.digests) for part in spread(3)} == {whole}
    changed = spread(3, lambda number: {**shard(number), "y": np.ones(SIZES[number], np.int32)})
    assert whole not in {digest.of_sites(part.names, part.digests) for part in changed}
    renamed = Sites.from_list(list(in_one_process()), ("a", *NAMES[1:]))
    assert digest.of_sites(renamed.names, renamed.digests) != whole


def test_types_that_differ_between_processes_are_promoted_together() -> None:
    def mixed(number: int) -> dict[str, np.ndarray]:
        return shard(number, np.float32 if number else np.float64)

    whole = Sites.from_list([mixed(number) for number in range(4)], NAMES)
    for part in spread(4, mixed):
        assert part.first["x"].dtype == np.float64
        assert part.digests == whole.digests


def test_rows_that_are_elsewhere_are_asked_for_in_vain() -> None:
    part = spread(2)[0]
    for ask in (
        lambda: part.site("rome"),
        lambda: part.site(2),
        part.pooled,
        part.padded,
        lambda: list(part),
        lambda: part.map(lambda rows: rows),
        lambda: part.only([1, 2]).padded(),
    ):
        with refused(site="rome", match="another process.*lima"):
            ask()
    assert part.only([0, 1]).padded()["x"].shape == (2, 5, 2)
    assert part.only([1, 3]).here == (0,)
    assert "2 elsewhere" in repr(part)


def test_a_server_has_no_rows_and_the_workers_of_one_site_have_the_same() -> None:
    server, *workers = spread(3, method=STALE, names=NAMES[:1])
    assert server.here == ()
    assert server.first["x"].shape == (1, 2)
    assert not server.first["x"].any()
    assert [worker.here for worker in workers] == [(0,), (0,)]
    shares = consortia.stale_sgld(step_size=1e-3, batch_size=2, workers=2, shares=(0.5, 0.5))
    places = [part.here for part in spread(3, method=shares, names=NAMES[:2])]
    assert places == [(), (0,), (1,)]


def test_the_checks_of_a_run_pass_over_sites_that_are_elsewhere() -> None:
    seen: list[int] = []
    model = consortia.Model(
        lambda theta: -0.5 * jnp.sum(theta**2),
        lambda theta, rows: rows["x"] @ theta,
        jnp.zeros(2),
        check=lambda rows: seen.append(len(rows["y"])),
    )
    part = spread(2)[1]
    density.check_data(model, part.held)
    assert seen == [7, 3]
    target = Target(model, model.init)
    whole = in_one_process()
    density.check_density(target, part.first)
    assert fingerprints.of_model(target, part.first) == fingerprints.of_model(target, whole.first)
    blank = spread(3, method=STALE, names=NAMES[:1])[0]
    density.check_density(target, blank.first)
    density.check_values(target, blank.first, jnp.zeros(2))
    assert fingerprints.of_model(target, blank.first) == fingerprints.of_model(target, whole.first)


def test_a_model_is_the_same_at_a_terminal_in_a_notebook_and_elsewhere(monkeypatch) -> None:
    model = consortia.models.logistic_regression(2)
    target = Target(model, model.init)
    found = []
    for coloured in (False, True):
        monkeypatch.setattr(pretty_printer, "CAN_USE_COLOR", coloured)
        assert ("\x1b" in str(jax.make_jaxpr(jnp.exp)(0.0).jaxpr)) == coloured
        found.append(fingerprints.of_model(target, in_one_process().first))
    assert found[0] == found[1]


def test_a_step_that_cannot_be_judged_is_said_not_to_be() -> None:
    model = consortia.models.logistic_regression(2)
    hasty = consortia.de_sgld(step_size=10.0, mixing="ring", batch_size=None)
    parameters = model.init
    part = checks.judged_stability(hasty, model, spread(2)[0], parameters)
    whole = checks.judged_stability(hasty, model, in_one_process(), parameters)
    assert part is None
    assert whole
    assert "not judged" in checks.check_stability([None, None])[0][0]
    with pytest.warns(UserWarning, match="unstable"):
        assert checks.check_stability([None, whole]) == ((), True)
    assert checks.check_stability([""]) == ((), False)


def test_sampling_without_the_rows_is_refused() -> None:
    model = consortia.models.logistic_regression(2)
    with refused(site="rome", match="another process"):
        consortia.sample(model, spread(2)[0], METHOD, rounds=2, progress=False, chains=1)


# --- what is refused in one process is refused in all --------------------------------------------


def unusable(number: int, value: Any) -> dict[str, np.ndarray]:
    return shard(number) if number != 2 else shard(number) | value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"x": np.full((7, 2), np.nan)}, "rank 1: Site 'rome', leaf 'x': 7 of 7 rows"),
        ({"x": np.ones((6, 2))}, "rank 1: Site 'rome', leaf 'y': 7 rows, but leaf 'x' has 6"),
        ({"x": np.ones((7, 3))}, "Site 'rome', leaf 'x': rows of shape (3,)"),
        ({"z": np.ones(7)}, "Site 'rome' differs in structure from site 'oslo'"),
        ({"y": np.ones(7)}, "Site 'rome', leaf 'y': the type is float64"),
        ({"y": {"deep": np.ones(7)}}, "rank 1: site 'rome': give a dict of arrays"),
    ],
)
def test_unusable_rows_are_refused_by_all(value: Any, expected: str) -> None:
    text = refusal(
        2,
        lambda engine: consortia.read_sites(
            lambda number: unusable(number, value), NAMES, METHOD, engine
        ),
    )
    assert expected in text


def test_workers_with_unlike_rows_of_one_site_are_refused() -> None:
    def work(engine: Any) -> Any:
        def read(number: int) -> dict[str, np.ndarray]:
            return {"x": np.full((3, 1), float(engine.rank))}

        return consortia.read_sites(read, ["one"], STALE, engine)

    assert "processes 1 and 2 have read different rows for site 'one'" in refusal(3, work)


def test_too_many_ranks_and_workers_without_a_site_are_refused_before_anything_is_read() -> None:
    assert "5 ranks for 4 sites" in refusal(
        5, lambda engine: consortia.read_sites(shard, NAMES, METHOD, engine)
    )
    shares = consortia.stale_sgld(step_size=1e-3, batch_size=2, workers=2, shares=(0.5, 0.5))
    assert "4 sites for 2 workers" in refusal(
        3, lambda engine: consortia.read_sites(shard, NAMES, shares, engine)
    )


def test_another_error_is_raised_where_it_was_and_told_to_the_others() -> None:
    def work(engine: Any) -> Any:
        return facts.run_on_all(engine, lambda: {}["no key"] if engine.rank == 1 else engine.rank)

    zero, one, two = everywhere(3, work)
    assert isinstance(one, KeyError)
    for other in (zero, two):
        assert isinstance(other, RankError)
        assert "rank 1 failed: 'no key'" in str(other)


# --- statistics of all sites ---------------------------------------------------------------------


def test_moments_of_parts_are_those_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal(1e4, [1.0, 1e-2, 1e3], (400, 3))
    parts = np.split(rows, [3, 4, 150])
    found = moments_of_all(Moments.of(part).plain() for part in parts)
    exact = rows.astype(np.longdouble)
    assert found.rows == 400
    # A rounding or two of numbers of size 1e4, with spreads from 1e-2.
    np.testing.assert_allclose(found.centre, exact.mean(0).astype(float), rtol=1e-15)
    np.testing.assert_allclose(found.sd, exact.std(0).astype(float), rtol=1e-9)


def test_moments_of_one_part_have_the_bits_of_numpy() -> None:
    rows = np.random.default_rng(1).normal(3, 2, (57, 2)).astype(np.float32)
    found = moments_of_all([Moments.of(rows).plain()])
    np.testing.assert_array_equal(found.centre, rows.mean(axis=0, dtype=np.float64))
    np.testing.assert_array_equal(found.sd, rows.std(axis=0, dtype=np.float64))


def test_a_column_is_constant_when_it_is_at_all_sites_with_one_value() -> None:
    same = np.full((3, 1), 0.1)
    assert moments_of_all([Moments.of(same).plain(), Moments.of(same).plain()]).sd == 0
    unlike = moments_of_all([Moments.of(same).plain(), Moments.of(same + 1).plain()])
    np.testing.assert_allclose(unlike.sd, 0.5)


def test_no_row_is_told_with_the_moments() -> None:
    rows = np.random.default_rng(3).normal(size=(20, 3))
    told = np.concatenate([np.ravel(part) for part in Moments.of(rows).plain()])
    assert not np.isin(rows, told).any()


# --- studies -------------------------------------------------------------------------------------

STUDY = """
[data]
files = ["oslo.csv", "lima.csv", "rome.csv"]
standardise = true
intercept = true
{more}

[model]
kind = "{model}"

[algorithm]
{algorithm}

[run]
rounds = 10
"""
FEDERATED = 'name = "fa_ld"\nstep_size = 0.1\nlocal_steps = 2'
SERVED = 'name = "stale_sgld"\nstep_size = 0.001\nbatch_size = 2\nworkers = 3\n'
SERVED += "shares = [0.3, 0.3, 0.4]"


def write(
    folder: Path,
    files: dict[str, np.ndarray],
    more: str = "",
    algorithm: str = FEDERATED,
    model: str = "softmax_regression",
) -> Path:
    folder.mkdir(exist_ok=True)
    for name, table in files.items():
        np.savetxt(folder / f"{name}.csv", table, "%.17g", ",", header="a,b,y", comments="")
    (folder / "study.toml").write_text(STUDY.format(more=more, algorithm=algorithm, model=model))
    return folder / "study.toml"


def tables() -> dict[str, np.ndarray]:
    """Features and labels; the largest label is at one site only."""
    rng = np.random.default_rng(2)
    return {
        name: np.column_stack([rng.normal(number, 3, (rows, 2)), rng.permutation(rows) % top])
        for number, (name, rows, top) in enumerate(
            [("oslo", 40, 2), ("lima", 11, 2), ("rome", 25, 4)]
        )
    }


def built(tmp_path: Path, ranks: int, **options: Any) -> tuple[Any, list[Any]]:
    """A study built in one process, and at ranks of which each has its own files only."""
    asynchronous = options.get("algorithm") == SERVED
    whole = load_study(write(tmp_path / "all", tables(), **options)).build()
    names = list(tables())
    studies = []
    for rank in range(ranks):
        mine = names[rank * 3 // ranks : (rank + 1) * 3 // ranks]
        if asynchronous:
            mine = [] if rank == 0 else [names[rank - 1]]
        own = {name: table for name, table in tables().items() if name in mine}
        studies.append(load_study(write(tmp_path / str(rank), own, **options)))
    return whole, everywhere(ranks, lambda engine: studies[engine.rank].build(engine))


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, {}),
        (3, {}),
        (3, {"more": "test_share = 0.2\nscale = 0.3"}),
        (3, {"more": 'dtype = "float32"'}),
        (4, {"algorithm": SERVED}),
    ],
)
def test_a_study_has_the_same_bits_on_any_number_of_processes(
    tmp_path: Path, ranks: int, options: dict[str, str]
) -> None:
    whole, parts = built(tmp_path, ranks, **options)
    assert whole.model.init["coefficients"].shape == (4, 3)
    read: list[int] = []
    for part in parts:
        read += part.sites.here
        assert part.sites.digests == whole.sites.digests
        assert part.labels == whole.labels
        assert part.model.init["coefficients"].shape == (4, 3)
        for number in part.sites.here:
            for name, leaf in part.sites.site(number).items():
                np.testing.assert_array_equal(leaf, whole.sites.site(number)[name])
    assert sorted(read) == [0, 1, 2]


def test_standardised_rows_have_the_statistics_of_all_sites(tmp_path: Path) -> None:
    whole, _ = built(tmp_path, 2)
    pooled = whole.sites.pooled()["x"]
    np.testing.assert_allclose(pooled.mean(0), [0, 0, 1], atol=1e-14)
    np.testing.assert_allclose(pooled.std(0), [1, 1, 0], atol=1e-14)


def test_a_measured_response_is_standardised_over_all_sites(tmp_path: Path) -> None:
    options = {"more": "standardise_target = true", "model": "linear_regression"}
    fractions = {name: table + np.array([0, 0, 0.25]) for name, table in tables().items()}
    whole = load_study(write(tmp_path / "all", fractions, **options)).build()
    studies = [
        load_study(write(tmp_path / name, {name: fractions[name]}, **options)) for name in fractions
    ]
    parts = everywhere(3, lambda engine: studies[engine.rank].build(engine))
    np.testing.assert_allclose(whole.sites.pooled()["y"].std(), 1)
    assert {part.sites.digests for part in parts} == {whole.sites.digests}


def test_whole_numbers_at_one_site_and_fractions_at_another_are_one_type(tmp_path: Path) -> None:
    mixed = tables()
    mixed["rome"][0, 2] = 0.5
    options = {"model": "linear_regression"}
    whole = load_study(write(tmp_path / "all", mixed, **options)).build()
    assert whole.sites.site("oslo")["y"].dtype == np.float64
    studies = [load_study(write(tmp_path / n, {n: mixed[n]}, **options)) for n in mixed]
    parts = everywhere(3, lambda engine: studies[engine.rank].build(engine))
    assert {part.sites.digests for part in parts} == {whole.sites.digests}


def test_held_out_rows_of_other_processes_are_missed_with_a_reason(tmp_path: Path) -> None:
    whole, parts = built(tmp_path, 3, more="test_share = 0.2")
    assert len(whole.held_out["y"]) == 8 + 2 + 5
    assert whole.skipped == ()
    for part in parts:
        assert part.held_out is None
        assert "held-out rows are in other processes" in part.skipped[0]


def test_the_test_file_is_read_by_the_root_alone(tmp_path: Path) -> None:
    for folder in ("all", "0"):
        write(tmp_path / folder, {"new": tables()["lima"]})
    whole, parts = built(tmp_path, 3, more='test_file = "new.csv"')
    assert parts[1].held_out is parts[2].held_out is None
    for name, rows in whole.held_out.items():
        np.testing.assert_array_equal(parts[0].held_out[name], rows)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "rank 2: {}: no such file"),
        ("a,c,y\n1,2,3\n", "{} does not have the same columns as"),
        ("a,b,y\n1,x,3\n", "rank 2: {}, line 2, column 'b': it is text"),
        ("a,b,y\n1,nan,3\n2,1,0\n", "rank 2: {}, line 2, column 'b': the value is missing"),
        ("a,b,y\n1,inf,3\n2,1,0\n", "rank 2: Site 'rome', leaf 'x': 1 of 2 rows hold NaN"),
    ],
)
def test_a_file_that_one_process_cannot_use_ends_all_alike(
    tmp_path: Path, content: str | None, expected: str
) -> None:
    names = list(tables())
    studies = [load_study(write(tmp_path / n, {n: tables()[n]})) for n in names]
    file = tmp_path / "rome" / "rome.csv"
    file.unlink()
    if content is not None:
        file.write_text(content)
    results = everywhere(3, lambda engine: studies[engine.rank].build(engine))
    for result, name in zip(results, names, strict=True):
        assert isinstance(result, InputError)
        seen = file if "rank 2" in expected else tmp_path / name / "rome.csv"
        assert str(result).startswith(str(tmp_path / name / "study.toml"))
        assert expected.format(seen) in str(result)


def test_ranks_with_other_studies_are_named_before_anything_is_read(tmp_path: Path) -> None:
    studies = [load_study(write(tmp_path / n, {}, more="seed = 1")) for n in ("a", "b", "c")]
    studies[1] = studies[1].with_run(rounds=11)
    for result in everywhere(3, lambda engine: studies[engine.rank].build(engine)):
        assert isinstance(result, RankError)
        assert "Different from rank 0: rank 1 in study" in str(result)
    names = [NAMES, NAMES[::-1]]
    for result in everywhere(
        2, lambda engine: consortia.read_sites(shard, names[engine.rank], METHOD, engine)
    ):
        assert isinstance(result, RankError)


def test_a_data_set_is_read_by_every_process(tmp_path: Path) -> None:
    text = (write(tmp_path, {})).read_text()
    start = text.index("standardise")
    text = '[data]\ndataset = "iris"\n' + text[start:]
    text = text.replace("[model]", '[partition]\nkind = "iid"\nsites = 3\n\n[model]')
    (tmp_path / "study.toml").write_text(text)
    studies = [load_study(tmp_path / "study.toml") for _ in range(2)]
    one, other = everywhere(2, lambda engine: studies[engine.rank].build(engine))
    assert one.sites.elsewhere == other.sites.elsewhere == frozenset()
    jax.tree.map(np.testing.assert_array_equal, one.sites.pooled(), other.sites.pooled())
