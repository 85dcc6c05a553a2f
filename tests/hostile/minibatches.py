"""A server that only looks: it solves for rows from minibatches whose row numbers it knows."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from consortia.core import random, start
from consortia.core.target import Target
from consortia.engines import rng
from consortia.engines.flower.envelope import Envelope
from consortia.engines.local import LocalEngine
from consortia.federation.rehearsal.attacks import _of_site
from consortia.federation.rehearsal.reading import NEAR
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import Built


class Looked(NamedTuple):
    rows: int  # that were read, every feature within `NEAR`
    error: float  # median error of a feature, where all rows are guessed


EVALUATIONS = 30
"""Most evaluations of the least squares."""

CLIPPED = 4.0
"""Bound of the features that least squares begin with, in the units of the model."""


def from_minibatches(
    positions: np.ndarray, gradients: np.ndarray, numbers: np.ndarray, rows: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return features (rows, features) and labels (rows,) from gradients of known minibatches.

    Each gradient is an equation in the rows of its minibatch; many are solved by least squares,
    first for each row's share of a gradient, then for the rows themselves.

    Args:
        positions: (m, d), where the gradients were taken.
        gradients: (m, d), of the likelihood, Σ_batch (σ(t_i) − y_i) (x_i, 1) · n_c/B.
        numbers: (m, B), the rows of each.
        rows: n_c.
        size: B.
    """
    from scipy.optimize import least_squares
    from scipy.special import expit

    d = positions.shape[1]
    features = d - 1
    design = np.zeros((len(numbers), rows))
    for row, which in zip(design, numbers, strict=True):
        np.add.at(row, which, rows / size)
    shares = np.linalg.lstsq(design, gradients, rcond=None)[0]
    labels = (shares[:, -1] < 0).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        start = np.clip(np.nan_to_num(shares[:, :-1] / shares[:, -1:]), -CLIPPED, CLIPPED)

    def padded(flat: np.ndarray) -> np.ndarray:
        return np.column_stack([flat.reshape(rows, features), np.ones(rows)])

    def residuals(flat: np.ndarray) -> np.ndarray:
        x = padded(flat)
        return ((design * (expit(positions @ x.T) - labels)) @ x - gradients).ravel()

    def jacobian(flat: np.ndarray) -> np.ndarray:
        x = padded(flat)
        chance = expit(positions @ x.T)
        slope = design * chance * (1 - chance)
        made = np.zeros((len(positions), d, rows, features))
        for k in range(features):
            made[..., k] = (slope * positions[:, [k]])[:, None, :] * x.T[None]
            made[:, k, :, k] += design * (chance - labels)
        return made.reshape(-1, rows * features)

    solved = least_squares(residuals, start.ravel(), jacobian, max_nfev=EVALUATIONS)
    return solved.x.reshape(rows, features), labels


def looking_server(stage: Stage, name: str, built: Built) -> Looked:
    """Run the study honestly; return what its messages tell, with the row numbers of the seed."""
    stage.run()
    weight, precision, x = _of_site(stage, name, built)
    rounds = [sent for sent in stage.log[name] if sent.request.kind == "round"]
    index, chains = stage.names.index(name), stage.terms.chains
    drawn = _drawn(stage, built, index)
    positions, gradients, numbers = [], [], []
    for sent in rounds:
        noise, shared = drawn(sent.request.label[1])
        size = noise.shape[-1]
        which = random.below(jnp.asarray(noise), jnp.int32(len(x)))
        (inbox,), (outbox,) = (_arrays(part) for part in (sent.request, sent.answer))
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
    return Looked(near, float(np.median(gaps)))


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
        drawn = rng.once_randomness(phase, keys, counter, rng.Source(layout, weights))
        noise: Any = drawn.noise
        return noise.first[index], drawn.shared

    return lambda iteration: at(jnp.int32(iteration))


def _arrays(message: Envelope) -> list[np.ndarray]:
    return [message.arrays[key] for key in sorted(message.arrays) if "box" in key]
