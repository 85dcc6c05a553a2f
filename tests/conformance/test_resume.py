"""A run that is cut anywhere and gone on with makes the bits of one that was not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.run import execution, loop
from consortia.store import checkpoint
from tests.refusals import refused

LENGTH: dict[str, Any] = {"rounds": 29, "warmup": 4, "thin": 3, "chains": 2, "seed": 5}


class Cut(Exception):  # noqa: N818 - no error, a cut
    """Stands for a kill: nothing in the package catches it."""


@pytest.fixture
def cut(monkeypatch: Any) -> Any:
    """``cut(round)``: the next run ends there without a word; ``cut(None)``: it does not."""
    monkeypatch.setattr(loop, "SECONDS_PER_CALL", 0.0)
    monkeypatch.setattr(loop, "SECONDS_PER_CHUNK", -1.0)  # saved after each call
    monkeypatch.setattr(execution, "STORED_BYTES", 1)
    call = loop.RunLoop._call
    at: list[int | None] = [None]

    def short(self: Any, end: int, thin: int) -> None:
        if at[0] is not None and self.done >= at[0]:
            raise Cut
        call(self, min(end, self.done + 2), thin)  # two rounds: cut in the middle of blocks

    monkeypatch.setattr(loop.RunLoop, "_call", short)
    return lambda where: at.__setitem__(0, where)


def assert_same(one: Any, two: Any) -> None:
    """All groups but the diagnostics, bit by bit; and what they say of themselves."""
    assert set(one.children) == set(two.children)
    for name in set(one.children) - {"diagnostics"}:
        left, right = one[name].to_dataset(), two[name].to_dataset()
        assert set(left.variables) == set(right.variables)
        for variable in left.variables:
            np.testing.assert_array_equal(left[variable], right[variable], err_msg=str(variable))
    changing = {"seconds", "resumed_at", "state"}
    for name in set(one.attrs) - changing:
        assert two.attrs[name] == one.attrs[name], name


def assert_cuts_change_nothing(method: Any, model: Any, sites: Any, cut: Any, path: Path) -> None:
    whole = consortia.sample(model, sites, method, progress=False, **LENGTH)
    cut(2)
    with pytest.raises(Cut):
        consortia.sample(model, sites, method, store=path, progress=False, **LENGTH)
    for where in (9, 20, 31):
        cut(where)
        with pytest.raises(Cut):
            consortia.resume(path, model, sites, method, progress=False)
    cut(None)
    resumed = consortia.resume(path, model, sites, method, progress=False)
    assert_same(whole, resumed)
    assert_same(whole, consortia.open_run(path))
    assert len(json.loads(resumed.attrs["resumed_at"])) == 4


def assert_made_longer(method: Any, model: Any, sites: Any, cut: Any, path: Path) -> None:
    # 29 rounds end in the middle of a block of three.
    cut(None)
    longer = consortia.sample(model, sites, method, progress=False, **LENGTH | {"rounds": 47})
    consortia.sample(model, sites, method, store=path, progress=False, **LENGTH)
    again = consortia.resume(path, model, sites, method, progress=False)
    assert "resumed_at" not in again.attrs  # it was finished, and nothing was run
    made = consortia.resume(path, model, sites, method, rounds=47, progress=False)
    assert_same(longer, made)


@pytest.mark.usefixtures("with_rounds")
@pytest.mark.slow
def test_a_run_cut_in_the_warm_up_and_later_has_the_bits_of_a_whole_one(
    case: Any, model: Any, sites: Any, cut: Any, tmp_path: Path
) -> None:
    assert_cuts_change_nothing(case.method(), model, sites, cut, tmp_path / "run")


@pytest.mark.slow
def test_a_finished_run_made_longer_has_the_bits_of_a_longer_one(
    example: Any, model: Any, sites: Any, cut: Any, tmp_path: Path
) -> None:
    assert_made_longer(example.method(), model, sites, cut, tmp_path / "run")


@pytest.mark.slow
def test_a_preconditioner_resumes_with_the_sums_that_it_is_made_of(
    model: Any, one_site: Any, cut: Any, tmp_path: Path
) -> None:
    method = consortia.stale_sgld(0.05, 4, workers=3, adaptation=0.9)
    assert_cuts_change_nothing(method, model, one_site, cut, tmp_path / "cut")
    assert_made_longer(method, model, one_site, cut, tmp_path / "long")


# One algorithm of each exchange; all of them with the slow tests.
@pytest.mark.parametrize("name", ["fa_hmc", "dsgld", "de_sghmc", "stale_sghmc"])
def test_cuts_and_length_change_no_bit_whatever_the_exchange(
    name: str, model: Any, three_sites: Any, one_site: Any, cut: Any, tmp_path: Path
) -> None:
    entry = ALGORITHMS[name]
    sites = one_site if entry.sites == 1 else three_sites
    method = entry.factory(**entry.example)
    assert_cuts_change_nothing(method, model, sites, cut, tmp_path / "cut")
    assert_made_longer(method, model, sites, cut, tmp_path / "long")


def test_a_checkpoint_holds_no_keys_and_nothing_pickled(
    model: Any, three_sites: Any, tmp_path: Path
) -> None:
    path, entry = tmp_path / "run", ALGORITHMS["fsgld"]
    method = entry.factory(**entry.example)
    consortia.sample(model, three_sites, method, store=path, progress=False, **LENGTH)
    for name in checkpoint.NAMES:
        saved = checkpoint.read(path / name)
        assert all(array.dtype != object for array in saved.arrays.values())
        assert all(name.startswith(("carry", "fitted", "block")) for name in saved.arrays)
        # Another seed's keys would be another state; the seed itself is in the request.
        assert saved.header["specification"]["request"]["seed"] == 5


@pytest.mark.parametrize("local_steps", [1, 3])
def test_sums_of_the_sites_gradients_can_be_run_longer(
    model: Any, three_sites: Any, tmp_path: Path, local_steps: int
) -> None:
    method = consortia.stale_sgld(0.01, batch_size=3, workers=3, local_steps=local_steps)
    options: dict[str, Any] = {"chains": 1, "progress": False}
    whole = consortia.sample(model, three_sites, method, rounds=90, warmup=30, **options)
    consortia.sample(
        model, three_sites, method, rounds=60, warmup=30, store=tmp_path / "run", **options
    )
    longer = consortia.resume(tmp_path / "run", model, three_sites, method, rounds=90)
    for name, values in whole.posterior.data_vars.items():
        np.testing.assert_array_equal(longer.posterior[name], values)


def test_asynchronous_workers_that_are_weighted_by_their_shares_cannot_be_run_longer(
    model: Any, three_sites: Any, tmp_path: Path
) -> None:
    method = consortia.stale_sgld(step_size=0.01, batch_size=3, workers=3, aggregate="each")
    options: dict[str, Any] = {"chains": 1, "rounds": 60, "progress": False}
    before = consortia.sample(model, three_sites, method, store=tmp_path / "run", **options)
    with refused(argument="rounds", match="another density"):
        consortia.resume(tmp_path / "run", model, three_sites, method, rounds=90)
    assert_same(before, consortia.open_run(tmp_path / "run"))


@pytest.mark.usefixtures("x64")
def test_double_precision_resumes_too_and_is_told_from_single(
    model: Any, three_sites: Any, cut: Any, tmp_path: Path
) -> None:
    method = ALGORITHMS["fa_hmc"].factory(**ALGORITHMS["fa_hmc"].example)
    whole = consortia.sample(model, three_sites, method, progress=False, **LENGTH)
    cut(12)
    with pytest.raises(Cut):
        consortia.sample(
            model, three_sites, method, store=tmp_path / "run", progress=False, **LENGTH
        )
    cut(None)
    with (
        jax.enable_x64(False),
        pytest.raises(consortia.errors.StoreError, match="JAX_ENABLE_X64=1"),
    ):
        consortia.resume(tmp_path / "run", model, three_sites, method, progress=False)
    assert_same(
        whole, consortia.resume(tmp_path / "run", model, three_sites, method, progress=False)
    )
