"""Strict numerics for every test, and the fixtures that all of them share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

# Before JAX starts; an explicit choice, say of a GPU, stands.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def x64() -> Iterator[None]:
    """Run the test in double precision; compiled functions of the two precisions never mix."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def require_data() -> Callable[[str], Path]:
    """Return a function from a data set's name to its folder; it skips the test if it is absent."""

    def folder_of(name: str) -> Path:
        root = os.environ.get("CONSORTIA_DATA")
        if root is None:
            pytest.skip(f"needs the data set {name}: CONSORTIA_DATA is not set")
        folder = Path(root) / name
        if not folder.is_dir():
            pytest.skip(f"needs the data set {name}, which CONSORTIA_DATA lacks")
        return folder

    return folder_of
