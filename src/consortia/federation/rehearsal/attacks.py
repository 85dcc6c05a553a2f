"""A server that lies, and one that only looks, at a site in a study."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from consortia.algorithms.fa_hmc import FAHMC, Report
from consortia.core import random, start
from consortia.core.prior import prior_scale
from consortia.core.queries import Conversation
from consortia.core.target import Target
from consortia.engines import rng
from consortia.engines.local import LocalEngine
from consortia.engines.messages.envelope import Envelope
from consortia.federation.governance.gate import LEDGER
from consortia.federation.governance.ledger import SETTLED, verify
from consortia.federation.rehearsal.reading import NEAR, by_cuts, from_minibatches, rows_read
from consortia.federation.rehearsal.stage import Stage
from consortia.runtime.late import jax, jnp
from consortia.study.build import Built, Study
from consortia.surrogates.mode_search import CANDIDATES

MOST_ASKED, FAR = 12, 9.9
"""Questions of a lying server, and how far out in prior standard deviations: as far as a policy
permits."""

ATTACKED = {"derivatives": CANDIDATES, "log_densities": 2000}
"""Site functions that it asks, the first that the study queries, and the points of a question."""

STEEP = 2e5
"""Slope at which the likelihood is a step for all that a file's digits can tell."""


@dataclass(frozen=True)
class Reading:
    """Result of an attack."""

    rows: int  # that were read, every feature within `reading.NEAR`
    messages: int  # questions that were answered
    refused: str = ""  # what the site said to the first that was not; "" where all were answered
    error: float = float("nan")  # median error of a feature, where all rows are guessed; else NaN


class Refused(Exception):  # noqa: N818
    """The site has refused a question; the text is what it said."""


def is_logistic(study: Study) -> bool:
    """Return True where rows can be read by `reading`."""
    options = study.model.options
    return study.model.kind == "logistic_regression" and options.get("intercept") is True


def sends_gradients(study: Study) -> bool:
    """Return True where a site sends exact gradients."""
    method = study.method
    return isinstance(method, FAHMC) and bool(method.debias) and method.gradient_noise == 0


def moves_once(study: Study) -> bool:
    """Return True where a message holds one gradient of a minibatch and common noise."""
    method = study.method
    return (
        isinstance(method, FAHMC)
        and method.leapfrog_steps == method.local_steps == 1
        and method.batch_size is not None
        and method.replace
        and not method.debias
        and method.gradient_noise == 0
        and method.momentum_correlation == 1
        and method.temperature == 1
    )


def lying_server(stage: Stage, name: str, built: Built, steep: float) -> Reading:
    """Ask a site for gradients at positions of the server's choice; return what is read.

    Each question stands at the next place of the run; where all are used, at the last again.
    """
    stage.run(lambda request: request.kind == "round" and request.site == name)
    first = stage.halted_at
    assert first is not None
    weight, precision, x = _of_site(stage, name, built)
    position, gradient = (_key(first, "inbox", field) for field in Report._fields)
    asked = 0

    def gradients(positions: np.ndarray) -> np.ndarray:
        nonlocal asked
        chains, answers = stage.terms.chains, []
        for begin in range(0, len(positions), chains):
            part = positions[begin : begin + chains]
            block = np.zeros(first.arrays[position].shape, first.arrays[position].dtype)
            block.reshape(chains, -1)[: len(part)] = part
            zero = np.zeros_like(first.arrays[gradient])
            iteration = min(asked, stage.terms.rounds - 1)
            label = (first.label[0], iteration, *first.label[2:])
            arrays = {position: block, gradient: zero}
            answer = stage.ask(name, replace(first, label=label, arrays=arrays))
            if answer.kind != "round":
                raise Refused(str(answer.values["reason"]).partition(";")[0])
            asked += 1
            sent = answer.arrays[_key(answer, "outbox", "gradient")]
            answers.append(sent.reshape(chains, -1)[: len(part)].astype(float))
        return np.concatenate(answers)

    recovered: list[np.ndarray] = []
    ends = (float(x[:, 0].min()) - 1, float(x[:, 0].max()) + 1)
    refused = ""
    try:
        by_cuts(
            gradients,
            recovered,
            features=x.shape[1],
            weight=weight,
            precision=precision,
            steep=steep,
            ends=ends,
        )
    except Refused as error:
        refused = str(error)
    return Reading(rows_read(np.array(recovered), x), asked, refused)


def lying_queries(stage: Stage, name: str, built: Built) -> Reading:
    """Ask a site for sums at positions far out in all directions; return what is settled."""
    stage.run(lambda request: request.kind == "query" and request.site == name)
    first, method = stage.halted_at, stage.study.method
    assert first is not None
    assert isinstance(method, Conversation)
    name_of = next(name for name in ATTACKED if name in stage.terms.queried)
    index = sorted(method.functions).index(name_of)
    target = Target(built.model, start.starting_parameters(built.model, None, 0, 1)[0])
    scale = prior_scale(target, np.zeros(target.dimension))
    rng = np.random.default_rng(0)
    refused, asked = "", 0
    for asked in range(MOST_ASKED):
        half = rng.uniform(-FAR, FAR, (ATTACKED[name_of] // 2, target.dimension))
        away = np.concatenate([half, -half])  # around the centre: it does not seem to move
        arrays = {"reference": scale.centre, "points": scale.centre + away * scale.sd}
        question = replace(
            first,
            label=(first.label[0], asked, index, 0),
            values={"function": name_of},
            arrays={key: values.astype(target.dtype) for key, values in arrays.items()},
        )
        answer = stage.ask(name, question)
        if answer.kind != "query":
            refused = str(answer.values["reason"]).partition(";")[0]
            break
    else:
        asked += 1
    settled = settled_rows(stage, name)
    return Reading(int(settled[-1].split()[0]) if settled else 0, asked, refused)


def settled_rows(stage: Stage, name: str) -> list[str]:
    """Read from a site's ledger the number of rows settled at each answer."""
    ledger = stage.folder / name / LEDGER
    entries = verify(ledger).entries if ledger.exists() else ()
    return [entry.details[SETTLED] for entry in entries if SETTLED in entry.details]


def looking_server(stage: Stage, name: str, built: Built) -> Reading:
    """Run the study honestly; return what its messages tell, with the row numbers of the seed."""
    stage.run()
    weight, precision, x = _of_site(stage, name, built)
    rounds = [message for message in stage.log[name] if message.request.kind == "round"]
    index, chains = stage.names.index(name), stage.terms.chains
    drawn = _drawn(stage, built, index)
    positions, gradients, numbers = [], [], []
    for message in rounds:
        noise, shared = drawn(message.request.label[1])
        size = noise.shape[-1]
        which = random.below(jnp.asarray(noise), jnp.int32(len(x)))
        (inbox,), (outbox,) = (_arrays(part) for part in (message.request, message.answer))
        here, there = (np.float64(array).reshape(chains, -1) for array in (inbox, outbox))
        step, momentum = float(shared.step_size.reshape(-1)[0]), np.float64(shared.momentum)
        force = 2 * (here + step * momentum.reshape(chains, -1) - there) / step**2
        positions.append(here)
        gradients.append(weight * force - weight * precision * here)
        numbers.append(np.asarray(which).reshape(chains, size))
    rows_of_each = np.concatenate(numbers)
    read, _ = from_minibatches(
        np.concatenate(positions),
        np.concatenate(gradients),
        rows_of_each,
        len(x),
        rows_of_each.shape[1],
    )
    gaps = np.abs(read - x)  # the server knows which guess is of which row
    near = int((gaps.max(axis=1) <= NEAR).sum())
    return Reading(near, len(rounds), error=float(np.median(gaps)))


def _of_site(stage: Stage, name: str, built: Built) -> tuple[float, float, np.ndarray]:
    """Return of a site w_c, the precision of the prior, and the features."""
    index = stage.names.index(name)
    target = Target(built.model, start.starting_parameters(built.model, None, 0, 1)[0])
    scale = prior_scale(target, np.zeros(target.dimension))
    weight = built.algorithm.site_weights(np.asarray(built.rows.sizes))[index]
    x = np.asarray(built.rows.site(index)["x"], np.float64)
    return float(weight), float(scale.sd[0] ** -2), x


def _drawn(stage: Stage, built: Built, index: int) -> Any:
    """Draw a round from the seed: words of a site's minibatches, and the shared numbers."""
    seed, run = stage.study.run.seed, stage.study.run
    target = Target(built.model, start.starting_parameters(built.model, None, seed, 1)[0])
    phase = built.algorithm.build(target).phases[0]
    layout = LocalEngine(block=1).layout(target, built.rows, built.algorithm, run.chains)
    keys = rng.stage_keys((phase,), rng.ROUND, jnp.asarray(random.base_key(seed)), layout)[0]
    weights = jnp.ones(layout.nodes) / layout.nodes

    @jax.jit
    def at(iteration: Any) -> Any:
        counter = rng.Counter(iteration, jnp.int32(run.warmup))
        randomness = rng.once_randomness(phase, keys, counter, rng.Source(layout, weights))
        noise: Any = randomness.noise
        return noise.first[index], randomness.shared

    return lambda iteration: at(jnp.int32(iteration))


def _key(message: Envelope, box: str, field: str) -> str:
    """Return the name in a message of a field of `fa_hmc.Report`."""
    return next(key for key in message.arrays if key.startswith(box) and key.endswith(field))


def _arrays(message: Envelope) -> list[np.ndarray]:
    return [message.arrays[key] for key in sorted(message.arrays) if "box" in key]
