"""Runs that have not ended are opened in a few steps, however many variables they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import insides
import numpy as np
import pytest
import xarray
import zarr

from consortia.store.runs import LENGTHS_MAX


def written(path: Path, lengths: list[int]) -> None:
    """Write a group of variables of these lengths, v0 holding zeros, v1 ones, and so on."""
    root = zarr.open_group(path, mode="w", zarr_format=3).create_group("posterior")
    for number, length in enumerate(lengths):
        root.create_array(
            f"v{number}",
            data=np.full((2, length), number, np.float32),
            dimension_names=("chain", "draw"),
        )
    root.create_array("draw", data=np.arange(max(lengths)), dimension_names=("draw",))
    root.create_array("chain", data=np.arange(2), dimension_names=("chain",))


def test_variables_of_one_length_are_opened_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "draws", [12] * 20 + [10] * 20)  # a write was cut short
    opened = []
    plain = xarray.open_zarr

    def counted(*arguments: Any, **options: Any) -> Any:
        opened.append(options)
        return plain(*arguments, **options)

    monkeypatch.setattr(xarray, "open_zarr", counted)
    found = insides.open_group(tmp_path / "draws", "posterior", 10)
    assert len(opened) == 3  # what has no draws, and one for each length
    assert found.sizes == {"chain": 2, "draw": 10}
    assert len(found.data_vars) == 40
    for number in range(40):
        np.testing.assert_array_equal(found[f"v{number}"], np.full((2, 10), number))


def test_more_lengths_than_a_cut_write_leaves_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "draws", list(range(10, 11 + LENGTHS_MAX)))
    with pytest.raises(ValueError, match="lengths"):
        insides.open_group(tmp_path / "draws", "posterior", 10)
