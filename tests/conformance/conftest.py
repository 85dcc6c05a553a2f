"""A small problem on three unequal sites, and every registered algorithm in several settings."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np
import pytest
from parity.problem import SHARING

import consortia
from consortia.algorithms.registry import ALGORITHMS
from consortia.core.queries import Conversation

# What to add to an entry's example, where its factory takes the arguments. ``private`` uses numbers
# of both kinds at every node; ``everything`` turns on whatever can change a run.
PRIVATE: dict[str, Any] = {"batch_size": 3, "momentum_correlation": 0.3}
EVERYTHING: dict[str, Any] = PRIVATE | {
    "debias": True,
    "gradient_noise": 0.5,
    "temperature": 0.8,
    "mass_matrix": ((2.0, 0.3, 0.0), (0.3, 1.0, 0.1), (0.0, 0.1, 0.7)),
    "step_size": tuple((0.05 / (1 + 0.1 * np.arange(250))).tolist()),
}


SLOW = {"few_rounds", "private_posterior", *SHARING}
"""Algorithms whose phases and exchanges are another one's; their tests that compile are slow.

few_rounds and private_posterior are conversations; their own tests have what is their own.
"""

COMPILE_NOTHING = "test_values"


class Case(NamedTuple):
    """One algorithm of the registry with one set of arguments."""

    name: str
    arguments: dict[str, Any]

    def method(self, **changed: Any) -> Any:
        """A new value from the factory."""
        return ALGORITHMS[self.name].factory(**(self.arguments | changed))

    def other(self, value: float) -> Any:
        """A value with another step size; where there is none another angle, K or clip."""
        known = inspect.signature(ALGORITHMS[self.name].factory).parameters
        name = next((n for n in ("step_size", "trajectory_angle") if n in known), None)
        if name is None:
            return self.method(**({"clip": 16.0} if "clip" in known else {"proposals": 640}))
        return self.method(**{name: value})

    def stepping(self) -> None:
        """Skip the test where the method has no step size."""
        if "step_size" not in inspect.signature(ALGORITHMS[self.name].factory).parameters:
            pytest.skip("it has no step size")


def richest(name: str, wanted: dict[str, Any]) -> Case:
    """An entry's example with all of these arguments that its factory takes."""
    entry = ALGORITHMS[name]
    arguments = dict(entry.example)
    for key, value in wanted.items():
        try:
            entry.factory(**arguments | {key: value})
        except TypeError:  # it has no such argument, nor has whom it hands its options on to
            continue
        arguments[key] = value
    return Case(name, arguments)


PRIVATELY = [richest(name, PRIVATE) for name in ALGORITHMS]
RICHEST = [richest(name, EVERYTHING) for name in ALGORITHMS]


def pytest_generate_tests(metafunc: Any) -> None:
    """A test that asks for one of these names runs over the registry.

    ``mostly_slow`` is for what is the same code in every algorithm: one of them is quick.
    """
    quick = metafunc.module.__name__.endswith(COMPILE_NOTHING)
    few = getattr(metafunc.module, "QUICK", ALGORITHMS)

    def parameter(case: Case, settings: str, slow: bool = False) -> Any:
        slow = slow or (case.name in SLOW and not quick) or case.name not in few
        marks = [pytest.mark.slow] if slow else []
        return pytest.param(case, id=f"{case.name}-{settings}", marks=marks)

    plain = [Case(name, entry.example) for name, entry in ALGORITHMS.items()]
    examples = [parameter(case, "example") for case in plain]
    private = [parameter(case, "private") for case in PRIVATELY]
    rich = [parameter(case, "everything") for case in RICHEST]
    choices = {"example": examples, "private": private, "rich": rich, "case": examples + rich}
    choices["mostly_slow"] = [
        *(parameter(case, "example", case.name != "fa_hmc") for case in plain),
        *(parameter(case, "everything", slow=True) for case in RICHEST),
    ]
    for name, values in choices.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values)


def _case_of(item: Any) -> str | None:
    """Name and settings of the algorithm that a test runs on."""
    parameters = getattr(item, "callspec", None) and item.callspec.params
    cases = [value for value in (parameters or {}).values() if isinstance(value, Case)]
    return f"{cases[0].name} {sorted(cases[0].arguments)}" if cases else None


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Tests of one algorithm run in a row and in one process, so that they share its programs."""
    places = [place for place, item in enumerate(items) if _case_of(item)]
    chosen = sorted((items[place] for place in places), key=_case_of)
    for place, item in zip(places, chosen, strict=True):
        items[place] = item
        item.add_marker(pytest.mark.xdist_group(_case_of(item).split()[0]))


@pytest.fixture
def with_rounds(request: Any) -> None:
    """Skip the test where the method is a conversation, which has no rounds and no warm-up."""
    cases = [one for one in request.node.callspec.params.values() if isinstance(one, Case)]
    if any(isinstance(case.method(), Conversation) for case in cases):
        pytest.skip("tests/run/test_conversation.py has what is a conversation's own")


@pytest.fixture(scope="session")
def model() -> consortia.Model:
    """Logistic regression with three parameters; one object, so that programs are shared."""
    return consortia.models.logistic_regression(2, intercept=True)


@pytest.fixture(scope="session")
def three_sites() -> consortia.Sites:
    """Three sites of 4, 7 and 12 rows that disagree."""
    rng = np.random.default_rng(3)
    shards = []
    for rows, slope in ((4, 1.0), (7, -0.5), (12, 2.0)):
        x = rng.normal(size=(rows, 2))
        y = (rng.uniform(size=rows) < 1 / (1 + np.exp(-slope * x[:, 0]))).astype(np.int32)
        shards.append({"x": x.astype(np.float32), "y": y})
    return consortia.Sites.from_list(shards, names=["north", "east", "south"])


@pytest.fixture(scope="session")
def one_site(three_sites: consortia.Sites) -> consortia.Sites:
    """The same rows in one place."""
    shards = three_sites.shards
    rows = {name: np.concatenate([shard[name] for shard in shards]) for name in ("x", "y")}
    return consortia.Sites.from_list([rows], names=["all"])


@pytest.fixture
def sites(request: Any, three_sites: consortia.Sites, one_site: consortia.Sites) -> consortia.Sites:
    """The sites that the test's algorithm is for."""
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    cases = [value for value in parameters.values() if isinstance(value, Case)]
    alone = any(ALGORITHMS[case.name].sites == 1 for case in cases)
    return one_site if alone else three_sites


@pytest.fixture(scope="session")
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
        options: dict[str, Any] = {"rounds": 23, "chains": 2, "progress": False} | arguments
        return positions(consortia.sample(model, sites, method, **options))

    return run


@pytest.fixture(scope="session")
def kept() -> dict[Any, np.ndarray]:
    """What `usual` has run, by method."""
    return {}


@pytest.fixture
def usual(draws_of: Any, kept: dict[Any, np.ndarray]) -> Any:
    """``method -> (chains, draws, d)`` of 23 rounds, run once for all tests of an algorithm."""

    def run(method: Any) -> np.ndarray:
        if method not in kept:
            kept[method] = draws_of(method)
            kept[method].setflags(write=False)
        return kept[method]

    return run
