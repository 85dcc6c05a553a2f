"""Count of the row-dependent numbers in the messages of a run, from shapes alone."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from consortia.core.model import Model
from consortia.core.queries import LEEWAY, Conversation
from consortia.core.start import starting_parameters
from consortia.core.target import Target
from consortia.engines.messages.pooled import numbers_of
from consortia.engines.messages.stages import Stage, Stages
from consortia.engines.phases import site_arrays
from consortia.run.conversation import usual_messages
from consortia.runtime.late import jax, jnp

if TYPE_CHECKING:
    from consortia.core.contract import Method
    from consortia.study.build import Study

ROWS, SITES = 2, 2
"""Sizes of the made-up data that shapes are found with; no shape of a message depends on them."""


class Declared(NamedTuple):
    """Numbers that depend on rows, in the messages of one site."""

    usual: int  # in those after which a run has ended as a rule
    proposed: int  # in those that a proposed policy permits
    most: int  # in all that a run may ever send


def declared_of(study: Study, file: Path, index: int) -> list[Declared]:
    """Return the numbers of a study and of those that are run after it, at a site.

    The description and the moments of columns are among them. Copies of the file stand for the
    other sites.

    Raises:
        InputError: the file cannot be used.
    """
    names = study.data.site_names
    files, counts, targets = dict.fromkeys(range(len(names)), file), [], {}
    for studied in (study, *study.besides):
        key = studied.model.model_dump_json()
        if key not in targets:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                model = studied.of_copies(names[index]).build(files=files).model
            parameters = starting_parameters(model, None, 0, 1)[0]
            targets[key] = Target(model, parameters)
        rounds, dimension = studied.run.warmup + studied.run.rounds, targets[key].dimension
        sent = declared_numbers(studied.method, dimension, studied.run.chains, rounds, targets[key])
        facts = studied.contribution(file, index)
        described = facts.numbers
        if studied.registered is None:  # of masked moments
            described += numbers_of(facts, studied.summed)
        counts.append(
            Declared(*(described + more for more in (sent.usual, sent.proposed, sent.most)))
        )
    return counts


def declared_numbers(
    method: Method, dimension: int, chains: int, rounds: int, target: Target | None = None
) -> Declared:
    """Count the numbers that a site sends, its description left out; nothing is computed.

    Args:
        method: of the study.
        dimension: parameters of the model.
        chains: of the run.
        rounds: iterations, the warm-up included.
        target: the posterior, where its model may need more queries, and larger ones.
    """
    if isinstance(method, Conversation):
        agreement = 2  # whether the log-density at the start, and its gradient, are finite
        usual = min(method.usual_messages(dimension), method.most_messages)
        sizes = method.message_sizes(dimension)
        if target is not None:
            usual, sizes = usual_messages(method, target), method.sizes_of(target)
        each = max((size.up for size in sizes.values()), default=0)
        most = max((size.up for size in method.declared_sizes(dimension).values()), default=0)
        proposed = min(LEEWAY * usual, method.most_messages)
        counts = usual * each, proposed * each, method.most_messages * most
        return Declared(*(agreement + count for count in counts))
    stages = _stages(method, dimension, chains)
    fitted = _size(stages.fit.after.node) if stages.fit.phases else 0
    once = 2 * chains + fitted + _numbers(stages.fit) + _numbers(stages.setup)
    sent = once + rounds * _numbers(stages.rounds)
    return Declared(sent, sent, sent)


def _stages(method: Method, dimension: int, chains: int) -> Stages:
    """Return the stages of a method over made-up data of as many columns as parameters."""
    from consortia.data.sites import Sites

    zeros = jnp.zeros(dimension)
    model = Model(lambda at: -at @ at, lambda at, rows: rows["x"] @ at, zeros)
    rows = {"x": np.ones((ROWS, dimension), np.float32)}
    sites = Sites.from_list([rows] * SITES)
    target = Target(model, zeros)
    arrays = site_arrays(model, sites, method, np.array([0]))
    return Stages(target, sites, method, chains, arrays)


def _numbers(stage: Stage) -> int:
    """Return the numbers of the messages of a stage, repetitions included."""
    total = 0
    for phase, sent in zip(stage.phases, stage.sent, strict=True):
        if phase.local is not None:
            total += phase.repeat * _size((sent.outbox, sent.info))
    return total


def _size(tree: object) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
