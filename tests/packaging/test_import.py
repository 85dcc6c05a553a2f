"""What `import consortia` loads, and what it does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

import consortia

RESULTS = {
    "arviz",
    "arviz_base",
    "arviz_stats",
    "blackjax",
    "flwr",
    "matplotlib",
    "mpi4py",
    "networkx",
    "pandas",
    "pooch",
    "pydantic",
    "rich",
    "scipy",
    "sklearn",
    "typer",
    "xarray",
    "zarr",
}
"""What has no part in drawing: loaded with the first result, file, graph, figure or command."""
HEAVY = RESULTS | {"jax", "numpy"}


def loaded(code: str) -> set[str]:
    """Return the names of the top-level modules that a process has loaded after some code."""
    listing = f"{code}\nimport sys; print(*sys.modules)"
    outcome = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in outcome.stdout.split()}


def test_the_import_alone_loads_nothing_heavy():
    assert not loaded("import consortia; consortia.__version__") & HEAVY


def test_all_that_samples_loads_jax_and_nothing_of_results_files_and_figures():
    found = loaded("from consortia import *")
    assert not found & RESULTS
    assert {"jax", "numpy"} <= found


def test_every_public_name_is_there_and_of_the_stub():
    assert {"fa_hmc", "sample", "graphs", "__version__"} <= set(consortia.__all__)
    assert set(consortia.__all__) <= set(dir(consortia))
    for name in consortia.__all__:
        assert getattr(consortia, name) is not None


def test_a_module_of_the_package_is_an_attribute_and_another_name_is_not():
    assert consortia.errors.InputError.__name__ == "InputError"
    with pytest.raises(AttributeError, match="has no attribute 'nowhere'"):
        _ = consortia.nowhere
