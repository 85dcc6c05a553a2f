"""A small problem on three unequal sites, and every registered algorithm in several settings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import consortia
from consortia.algorithms.registry import ALGORITHMS

# What to add to an entry's example, where its factory takes the argument.
SETTINGS: dict[str, dict[str, Any]] = {
    "example": {},
    "minibatch": {"batch_size": 3},
    "everything": {
        "batch_size": 3,
        "debias": True,
        "momentum_correlation": 0.3,
        "gradient_noise": 0.5,
        "temperature": 0.8,
        "mass_matrix": ((2.0, 0.3, 0.0), (0.3, 1.0, 0.1), (0.0, 0.1, 0.7)),
        "step_size": tuple((0.05 / (1 + 0.1 * np.arange(200))).tolist()),
    },
}


class Case(NamedTuple):
    """One algorithm of the registry with one set of arguments."""

    name: str
    arguments: dict[str, Any]

    def method(self, **changed: Any) -> Any:
        """A new value from the factory."""
        return ALGORITHMS[self.name].factory(**(self.arguments | changed))


def cases() -> Iterator[Any]:
    """Every entry with its example, and with the settings that its factory can take."""
    for name, entry in ALGORITHMS.items():
        signature = inspect.signature(entry.factory).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.values())
        for label, added in SETTINGS.items():
            if takes_any or set(added) <= set(signature):
                yield pytest.param(Case(name, entry.example | added), id=f"{name}-{label}")


def pytest_generate_tests(metafunc: Any) -> None:
    """Every test that asks for a ``case`` runs over the registry."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", list(cases()))


@pytest.fixture(scope="session")
def model() -> consortia.Model:
    """Logistic regression with three parameters; one object, so that programs are shared."""
    return consortia.models.logistic_regression(2, intercept=True)


@pytest.fixture(scope="session")
def sites() -> consortia.Sites:
    """Three sites of 4, 7 and 12 rows that disagree."""
    rng = np.random.default_rng(3)
    shards = []
    for rows, slope in ((4, 1.0), (7, -0.5), (12, 2.0)):
        x = rng.normal(size=(rows, 2))
        y = (rng.uniform(size=rows) < 1 / (1 + np.exp(-slope * x[:, 0]))).astype(np.int32)
        shards.append({"x": x.astype(np.float32), "y": y})
    return consortia.Sites.from_list(shards, names=["north", "east", "south"])


@pytest.fixture
def double() -> Iterator[None]:
    """Double precision for a test whose tolerance speaks of rounding."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def positions() -> Any:
    """``tree -> (chains, draws, d)``, the draws of every parameter side by side."""

    def flat(tree: Any) -> np.ndarray:
        posterior = tree["posterior"]
        parts = [np.asarray(posterior[name]) for name in sorted(posterior.data_vars)]
        chains, draws = parts[0].shape[:2]
        return np.concatenate([part.reshape(chains, draws, -1) for part in parts], axis=-1)

    return flat


@pytest.fixture
def draws_of(model: consortia.Model, sites: consortia.Sites, positions: Any) -> Any:
    """``(method, **arguments of sample) -> (chains, draws, d)`` on the small problem."""

    def run(method: Any, **arguments: Any) -> np.ndarray:
        options: dict[str, Any] = {"rounds": 23, "progress": False} | arguments
        return positions(consortia.sample(model, sites, method, **options))

    return run
