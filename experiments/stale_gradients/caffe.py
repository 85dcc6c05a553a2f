"""The two networks of section 5.2 as Caffe's examples define them, as Bayesian models.

- LeNet (``examples/mnist/lenet_train_test.prototxt``): convolution 20@5x5, maxima 2x2/2,
  convolution 50@5x5, maxima 2x2/2, 500 units with ReLU, 10 scores; pixels divided by 256; weights
  start uniform with variance 1/fan-in. 431,080 parameters.
- Cifar10-quick (``examples/cifar10/cifar10_quick_train_test.prototxt``): convolution 32@5x5,
  maxima 3x3/2 then ReLU, convolution 32@5x5, ReLU, averages 3x3/2, convolution 64@5x5, ReLU,
  averages 3x3/2, 64 units, C scores; all convolutions padded by 2; pixels less the mean image, not
  scaled; weights start normal with standard deviations .0001, .01, .01, .1, .1. 145,578 parameters
  with C = 10.

Biases start at zero. The length of a pooled side is rounded up, and a window that overhangs the
image takes the maximum or the average of the pixels that are there. Images are (rows, columns,
channels) here and channels come first in Caffe, which permutes the weights of the first fully
connected layer and changes nothing else. Every weight and bias has a prior N(0, 1).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import consortia

Array = jax.Array
Parameters = dict[str, Array]

MOST_ROWS = 250
"""Rows that pass through a network at once; a sum over all images need not fit into memory."""


def lenet(copies: float = 1.0) -> consortia.Model:
    """LeNet on batches ``dict(x=(rows, 28, 28, 1) pixels of 0 to 255, y=(rows,))``.

    Args:
        copies: how many images each row stands for; its log-likelihood is multiplied by it.
    """
    shapes = {
        "conv1": (5, 5, 1, 20),
        "conv2": (5, 5, 20, 50),
        "ip1": (4 * 4 * 50, 500),
        "ip2": (500, 10),
    }

    def start(key: Array, shape: tuple[int, ...]) -> Array:
        bound = math.sqrt(3 / math.prod(shape[:-1]))
        return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

    def scores(params: Parameters, x: Array) -> Array:
        x = x / 256
        x = pooled(convolved(params, "conv1", x, 0), 2, "max")
        x = pooled(convolved(params, "conv2", x, 0), 2, "max")
        return connected(params, "ip2", jax.nn.relu(connected(params, "ip1", x)))

    return _model(shapes, start, scores, copies)


SPREADS = {"conv1": 1e-4, "conv2": 0.01, "conv3": 0.01, "ip1": 0.1, "ip2": 0.1}


def cifar10_quick(mean_image: np.ndarray, classes: int = 10, copies: float = 1.0) -> Any:
    """Cifar10-quick on batches ``dict(x=(rows, 32, 32, 3) pixels of 0 to 255, y=(rows,))``.

    Args:
        mean_image: of the training images, (32, 32, 3).
        classes: C; the examples have 10.
        copies: as in `lenet`.
    """
    shapes = {
        "conv1": (5, 5, 3, 32),
        "conv2": (5, 5, 32, 32),
        "conv3": (5, 5, 32, 64),
        "ip1": (4 * 4 * 64, 64),
        "ip2": (64, classes),
    }
    spreads = {shapes[name]: spread for name, spread in SPREADS.items()}
    mean = jnp.asarray(mean_image, jnp.float32)[None]

    def start(key: Array, shape: tuple[int, ...]) -> Array:
        return spreads[shape] * jax.random.normal(key, shape)

    def scores(params: Parameters, x: Array) -> Array:
        x = x - mean
        x = jax.nn.relu(pooled(convolved(params, "conv1", x, 2), 3, "max"))
        x = pooled(jax.nn.relu(convolved(params, "conv2", x, 2)), 3, "average")
        x = pooled(jax.nn.relu(convolved(params, "conv3", x, 2)), 3, "average")
        return connected(params, "ip2", connected(params, "ip1", x))

    return _model(shapes, start, scores, copies)


# --- layers ----------------------------------------------------------------------------------


def convolved(params: Parameters, name: str, x: Array, padding: int) -> Array:
    """A convolution with stride 1, zeros around the image.

    As one matrix product over patches: XLA's own convolution is twenty times slower inside a
    compiled loop on a CPU.
    """
    weights = params[f"{name}_weights"]
    size, channels = weights.shape[0], weights.shape[-1]
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    rows, columns = (length - size + 1 for length in x.shape[1:3])
    patches = jnp.concatenate([x[:, :, j : j + columns] for j in range(size)], axis=-1)
    patches = jnp.concatenate([patches[:, i : i + rows] for i in range(size)], axis=-1)
    y = patches.reshape(-1, patches.shape[-1]) @ weights.reshape(-1, channels)
    return (y + params[f"{name}_biases"][None]).reshape(x.shape[0], rows, columns, channels)


def connected(params: Parameters, name: str, x: Array) -> Array:
    """A fully connected layer."""
    return x.reshape(x.shape[0], -1) @ params[f"{name}_weights"] + params[f"{name}_biases"][None]


def pooled(x: Array, size: int, kind: str) -> Array:
    """Maxima or averages over windows with stride 2, the length of a side rounded up."""
    windows = [math.ceil((length - size) / 2) + 1 for length in x.shape[1:3]]
    over = [
        (0, max(2 * (count - 1) + size - length, 0))
        for count, length in zip(windows, x.shape[1:3], strict=True)
    ]
    outside = -jnp.inf if kind == "max" else 0.0

    def views(values: Array) -> list[Array]:
        values = jnp.pad(values, ((0, 0), *over, (0, 0)), constant_values=outside)
        ends = [2 * (count - 1) + 1 for count in windows]
        return [
            values[:, i : i + ends[0] : 2, j : j + ends[1] : 2]
            for i in range(size)
            for j in range(size)
        ]

    if kind == "max":
        return functools.reduce(jnp.maximum, views(x))
    return sum(views(x)) / sum(views(jnp.ones((1, *x.shape[1:3], 1), x.dtype)))


# --- the model -------------------------------------------------------------------------------


def _model(
    shapes: dict[str, tuple[int, ...]],
    start: Callable[[Array, tuple[int, ...]], Array],
    scores: Callable[[Parameters, Array], Array],
    copies: float,
) -> consortia.Model:
    def init(key: Array) -> Parameters:
        keys = jax.random.split(key, len(shapes))
        weights = {
            f"{name}_weights": start(own, shape)
            for own, (name, shape) in zip(keys, shapes.items(), strict=True)
        }
        return weights | {f"{name}_biases": jnp.zeros(shape[-1]) for name, shape in shapes.items()}

    def log_prior(params: Parameters) -> Array:
        leaves = [-0.5 * jnp.sum(leaf**2) for leaf in params.values()]
        return sum(leaves[1:], start=leaves[0])

    def all_scores(params: Parameters, batch: Any) -> Array:
        x = jnp.asarray(batch["x"])
        if len(x) <= MOST_ROWS:
            return scores(params, x.astype(jnp.float32))
        each = jax.lax.map(
            lambda row: scores(params, row[None].astype(jnp.float32))[0], x, batch_size=MOST_ROWS
        )
        return each

    def log_likelihood(params: Parameters, batch: Any) -> Array:
        t = all_scores(params, batch)
        labels = jnp.asarray(batch["y"]).astype(jnp.int32)[:, None]
        chosen = labels == jnp.arange(t.shape[1], dtype=jnp.int32)[None]
        return copies * (jnp.sum(jnp.where(chosen, t, 0.0), axis=1) - jax.nn.logsumexp(t, axis=1))

    def predict(params: Parameters, batch: Any) -> Array:
        return jax.nn.softmax(all_scores(params, batch), axis=1)

    return consortia.Model(log_prior, log_likelihood, init, predict=predict)
