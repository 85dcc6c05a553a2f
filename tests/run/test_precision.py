"""Single precision, named where it is the reason why a run has failed."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from consortia.core.start import starting_parameters
from consortia.errors import WarmupError
from consortia.models.regression.construction import regression
from consortia.run.checks import explain_precision

RNG = np.random.default_rng(0)
X = RNG.normal(size=200)


def explained(y: np.ndarray, family: str, *, x64: bool = False) -> str:
    with jax.enable_x64(x64):
        made = regression("y ~ x", {"a": {"y": y, "x": X}}, family=family)
        error = WarmupError("few_rounds: no family was reached. Give a proper prior.")
        start = starting_parameters(made.model, None, 0, 1)[0]
        explain_precision(error, made.model, made.rows, start)
    return str(error)


@pytest.mark.parametrize(
    ("y", "family", "said"),
    [
        (RNG.poisson(1e6 * np.exp(0.1 * X)), "poisson", "32 bits round the log-density by about"),
        (3e6 + RNG.normal(size=200), "gaussian", "32 bits round values of 'y'"),
    ],
)
def test_32_bits_are_named_where_they_are_the_reason(y, family, said):
    text = explained(y, family)
    assert text.startswith(f"few_rounds: no family was reached. The reason: {said}")
    assert "JAX_ENABLE_X64=1" in text
    assert "proper prior" not in text


@pytest.mark.parametrize(
    ("y", "family"),
    [(RNG.poisson(3 * np.exp(0.1 * X)), "poisson"), (60 + RNG.normal(size=200), "gaussian")],
)
def test_another_reason_stays_as_it_is(y, family):
    assert explained(y, family) == "few_rounds: no family was reached. Give a proper prior."


def test_with_64_bits_there_is_nothing_to_explain():
    y = 3e6 + RNG.normal(size=200)
    assert "proper prior" in explained(y, "gaussian", x64=True)
