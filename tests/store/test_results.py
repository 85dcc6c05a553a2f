"""Recorded arrays as a dataset."""

from __future__ import annotations

import numpy as np
import pytest

from consortia.store.results import dataset_of


@pytest.mark.parametrize("over", [("chain", "draw"), ("chain", "draw", "agent")])
def test_the_layout_is_that_of_arviz(over: tuple[str, ...]) -> None:
    arviz = pytest.importorskip("arviz_base")
    rng = np.random.default_rng(0)
    sizes = (2, 5, 3)[: len(over)]
    arrays = {
        "slope": rng.normal(size=(*sizes, 3, 4)).astype(np.float32),
        "scale": rng.normal(size=sizes),
        "counts": rng.integers(9, size=(*sizes, 1)),
    }
    coordinates = {"chain": np.arange(2), "draw": np.arange(10, 15)}
    theirs = arviz.dict_to_dataset(
        arrays, sample_dims=over, check_conventions=False, coords=coordinates
    )
    theirs.attrs.clear()
    ours = dataset_of(arrays, coordinates, over)
    assert ours.identical(theirs)
    assert list(ours.coords) == list(theirs.coords)
