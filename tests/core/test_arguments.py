"""What a keyword that nobody knows is answered with."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import consortia
from consortia import datasets, graphs, latency, models, partition, schedules
from consortia.algorithms.registry import ALGORITHMS
from consortia.core.arguments import hinted, unknown
from consortia.errors import KeywordError
from tests.refusals import refused

CALLS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "Model": (consortia.Model, "loglikelihood", "log_likelihood"),
    "Sites.from_list": (consortia.Sites.from_list, "name", "names"),
    "LocalEngine": (consortia.LocalEngine, "device", "devices"),
    "MPIEngine": (consortia.MPIEngine, "deadlin", "deadline"),
    "sample": (consortia.sample, "round", "rounds"),
    "resume": (consortia.resume, "round", "rounds"),
    "summary": (consortia.summary, "quantile_probabilities", "probabilities"),
    "predict": (consortia.predict, "draws", "max_draws"),
    "verify": (consortia.verify, "engin", "engine"),
    "preconditioned": (consortia.preconditioned, "scale", "scales"),
    "regression": (consortia.regression, "familly", "family"),
    "keep_moments": (consortia.keep_moments, "covarince", "covariance"),
    "stop_when": (consortia.stop_when, "r_hat", "rhat"),
    "partition.iid": (partition.iid, "n_sites", "sites"),
    "partition.dirichlet": (partition.dirichlet, "concentraton", "concentration"),
    "datasets.load": (datasets.load, "downloads", "download"),
    "graphs.ring": (graphs.ring, "agent", "agents"),
    "latency.lognormal": (latency.lognormal, "spred", "spread"),
    "schedules.polynomial": (schedules.polynomial, "off", "offset"),
    "models.logistic_regression": (models.logistic_regression, "feature", "features"),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_keyword_is_answered_with_the_nearest_known_one(name):
    function, given, meant = CALLS[name]
    with refused(KeywordError, argument=given, match=rf"'{meant}'\?"):
        function(**{given: 1})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_so_is_one_of_every_algorithm(name):
    entry = ALGORITHMS[name]
    known = next(iter(entry.example))
    with refused(KeywordError, argument=f"{known}s", match=rf"'{known}'\?"):
        entry.factory(**{f"{known}s": 1})


@pytest.mark.parametrize(
    ("call", "words", "argument"),
    [
        (lambda: consortia.sample(object(), consortia.few_rounds()),
         "sample: algorithm missing: write sample(model, sites, algorithm).", "algorithm"),
        (lambda: consortia.resume(model=object(), algorithm=consortia.few_rounds()),
         "path and sites missing", "path"),
        (lambda: consortia.private_posterior(),
         "write private_posterior(epsilon=..., delta=...)", "epsilon"),
        (lambda: consortia.Model(init=0.0), "log_prior and log_likelihood missing", "log_prior"),
        (lambda: consortia.loo(), "results missing", "results"),
        (lambda: consortia.loo(1, 2), "write loo(results, engine=...).", "engine"),
        (lambda: consortia.sample(1, 2, 3, 100, 7),
         "write sample(model, sites, algorithm, rounds=..., draws=...).", "rounds"),
        (lambda: consortia.private_posterior(1.0),
         "private_posterior(epsilon=..., delta=...).", "epsilon"),
        (lambda: graphs.ring(5, 2), "write ring(agents).", None),
        (lambda: consortia.loo({}, results={}), "twice", "results"),
    ],
)  # fmt: skip
def test_an_argument_that_is_missing_or_unnamed_is_named_with_how_the_function_is_called(
    call, words, argument
):
    with refused(KeywordError, argument=argument, match=re.escape(words)):
        call()


def test_values_without_a_name_that_a_function_collects_are_not_counted():
    @hinted
    def collects(first, *others, named=0):
        return first, others, named

    assert collects(1, 2, 3, named=4) == (1, (2, 3), 4)


def test_a_graph_in_the_place_of_its_matrix_is_answered_with_how_one_is_made():
    with refused(argument="mixing"):
        consortia.de_sgld(0.1, graphs.ring(5))


def test_a_long_list_of_names_ends_with_how_many_more_there_are() -> None:
    names = [f"n{index:02d}" for index in range(20)]
    assert unknown("x", names).endswith("n14, n15 and 4 more")
    assert unknown("x", names[:16]).endswith("n14, n15")
