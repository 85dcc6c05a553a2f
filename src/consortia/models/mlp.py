"""A fully connected network with ReLU or SELU activations, for classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from consortia.core import arguments
from consortia.core.model import Model
from consortia.errors import wrong
from consortia.models._shared import (
    Array,
    PyTree,
    as_features,
    log_class_probability,
    log_normal_density,
    wrong_classes,
)
from consortia.runtime.late import jax, jnp

ACTIVATIONS = ("relu", "selu")


@arguments.hinted
def mlp(
    features: int,
    hidden: Sequence[int] = (512, 512),
    classes: int = 10,
    *,
    prior_scale: float = 1.0,
    activation: str = "relu",
) -> Model:
    r"""Return a Bayesian fully connected network, with ReLU or SELU activations and a softmax.

    .. math:: h_0 = x_i, \quad h_l = \max(0, W_l h_{l-1} + b_l), \quad
              P(y_i = k) \propto e^{t_{ik}}, \quad t_i = W_L h_{L-1} + b_L, \quad
              W_l, b_l \sim N(0, s^2 I)

    with L − 1 hidden layers. Densities are normalised and at full scale. The posterior has very
    many modes that give the same predictions (units can change places), so R-hat and ESS belong to
    the predictions, not to the weights. The parameters are a dict of, for l = 1, ..., L,

    - ``weights_l``: W_l, (width of layer l, width of layer l − 1);
    - ``biases_l``: b_l, (width of layer l,).

    A batch is ``dict(x=(rows, features), y=(rows,))`` with labels 0, ..., classes − 1 of any bool,
    integer or floating type; `consortia.predict` gives the probabilities, (rows, classes).

    Args:
        features: columns of x.
        hidden: widths of the hidden layers, the first one first.
        classes: classes >= 2.
        prior_scale: s, the standard deviation of the normal prior of every weight and bias.
        activation: of the hidden layers, "relu" as above or "selu".

    Returns:
        The model. Each chain starts at weights of its own, N(0, 2 / width of layer l − 1), and
        zero biases: at zero weights no gradient reaches the hidden layers, and draws of the prior
        saturate the softmax.

    Raises:
        InputError: no hidden layer, a width < 1, ``features`` < 1, ``classes`` < 2, a scale that
            is not a finite number > 0.

    Example:
        >>> import jax
        >>> model = mlp(784, hidden=(32, 16))
        >>> {name: leaf.shape for name, leaf in model.init(jax.random.key(0)).items()}
        ... # doctest: +NORMALIZE_WHITESPACE
        {'biases_1': (32,), 'weights_1': (32, 784), 'biases_2': (16,), 'weights_2': (16, 32),
         'biases_3': (10,), 'weights_3': (10, 16)}

    Source: the start is that of He, Zhang, Ren, Sun, "Delving deep into rectifiers" (2015),
    equation 10.
    """
    features = arguments.whole("features", features, 1)
    classes = arguments.whole("classes", classes, 2)
    scale = arguments.positive("prior_scale", prior_scale)
    between = getattr(jax.nn, arguments.one_of("activation", activation, ACTIVATIONS))
    widths = (features, *_check_hidden(hidden), classes)
    layers = range(1, len(widths))

    def init(key: Array) -> dict[str, Any]:
        parameters = {}
        for layer, layer_key in zip(layers, jax.random.split(key, len(layers)), strict=True):
            shape = (widths[layer], widths[layer - 1])
            spread = math.sqrt(2 / widths[layer - 1])
            parameters[f"biases_{layer}"] = jnp.zeros(shape[:1])
            parameters[f"weights_{layer}"] = spread * jax.random.normal(layer_key, shape)
        return parameters

    def scores(params: PyTree, batch: PyTree) -> Array:
        values = as_features(batch["x"], params["weights_1"])
        for layer in layers:
            values = values @ params[f"weights_{layer}"].T + params[f"biases_{layer}"][None, :]
            if layer < len(layers):
                values = between(values)
        return values

    def log_prior(params: PyTree) -> Array:
        leaves = [jnp.sum(log_normal_density(params[name], scale)) for name in sorted(params)]
        return sum(leaves[1:], start=leaves[0])

    def log_likelihood(params: PyTree, batch: PyTree) -> Array:
        return log_class_probability(scores(params, batch), batch["y"])

    def predict(params: PyTree, batch: PyTree) -> Array:
        return jax.nn.softmax(scores(params, batch), axis=-1)

    check = partial(wrong_classes, features=features, classes=classes)
    return Model(log_prior, log_likelihood, init, predict=predict, check=check)


def _check_hidden(hidden: Sequence[int]) -> list[int]:
    """Return the widths of the hidden layers; refuse what is none."""
    if not isinstance(hidden, Sequence) or not hidden:
        raise wrong("hidden", f" is {hidden!r}: give the widths of the hidden layers, (512, 512).")
    return [arguments.whole(f"hidden[{i}]", width, 1) for i, width in enumerate(hidden)]
