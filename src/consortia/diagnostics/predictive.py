"""Predictions averaged over the posterior, and scores of them on held-out data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from consortia.core import arguments, trees
from consortia.core.arrays import VALUES_AT_ONCE, logsumexp
from consortia.core.model import Model
from consortia.core.parameters import (
    draw_weights,
    draws_to_pytree,
    sampled_draws,
    structure_of,
    variables,
)
from consortia.core.predictions import log_sum, weighted_sum
from consortia.errors import InputError, wrong
from consortia.runtime.late import PyTree, float_type, jax

BATCH_ROWS = 4096
# Values (draws × dimension) on the device at once: 16 MiB of float32.
BLOCK_VALUES = 2**22
# The smallest normal float32: a softmax in single precision cannot return less without being 0.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)


@arguments.hinted
def predict(
    tree: Any,
    model: Model,
    new_rows: PyTree,
    *,
    batch_rows: int = BATCH_ROWS,
    max_draws: int | None = None,
) -> Any:
    r"""Return the posterior predictive mean of ``model.predict`` at new rows.

    .. math:: \bar p(z) = \sum_s w_s\, \mathrm{predict}(\theta_s, z), \qquad \sum_s w_s = 1

    over all kept draws of all chains, with equal weights, or with the step weights where the step
    size varied. For class probabilities this is the posterior predictive distribution. Draws are
    run through one after the other, so that no array of draws × rows is ever held.

    Args:
        tree: result of a run.
        model: the model that was sampled, with ``predict``.
        new_rows: pytree of arrays with a leading row axis, as one site's data.
        batch_rows: rows predicted at once.
        max_draws: use this many draws at most, evenly spaced over the pooled chains.

    Returns:
        `xarray.DataArray`, float64, of dimensions ("row",) or ("row", "class"); its attributes
        ``draws`` and ``weights``: how many draws were averaged, and how they were weighted.

    Raises:
        InputError: the model has no ``predict``, the rows disagree in number, the result is of
            another model, or an option is out of range.

    Example:
        >>> import consortia, numpy as np
        >>> model = consortia.models.linear_regression(1)
        >>> rows = {"x": np.ones((4, 1), np.float32), "y": np.float32([1, 2, 3, 2])}
        >>> draws = {"coefficients": np.ones((1, 3, 1), np.float32)}
        >>> consortia.predict(draws, model, {"x": rows["x"]}).values
        array([1., 1., 1., 1.])
    """
    if model.predict is None:
        raise InputError(
            "Model.predict is None: there is nothing to average. Give the model "
            "predict=(params, batch) -> (rows, ...), e.g. dataclasses.replace(model, predict=...); "
            "the draws stay valid."
        ).at("model")
    passage = (tree, model, new_rows, batch_rows, max_draws)
    if model.host is not None:
        return _over_draws(_sums, np.add, model.host.predict, *passage)
    return _over_draws(weighted_sum, np.add, model.predict, *passage)


def log_predictive_density(
    tree: Any,
    model: Model,
    rows: PyTree,
    *,
    batch_rows: int = BATCH_ROWS,
    max_draws: int | None = None,
) -> Any:
    r"""Return the log posterior predictive density of each held-out row.

    .. math:: \log \sum_s w_s\, p(z_i \mid \theta_s), \qquad \sum_s w_s = 1

    Args:
        tree: result of a run.
        model: the model that was sampled.
        rows: held-out data with its responses, a pytree as one site's data.
        batch_rows: rows looked at at once.
        max_draws: use this many draws at most, evenly spaced over the pooled chains.

    Returns:
        `xarray.DataArray`, float64 (row,), in nats; its sum is the log score of the rows.

    Raises:
        InputError: as `predict`.

    Example:
        >>> import consortia, numpy as np
        >>> model = consortia.models.linear_regression(1)
        >>> rows = {"x": np.ones((4, 1), np.float32), "y": np.float32([1, 2, 3, 2])}
        >>> draws = {"coefficients": np.ones((1, 3, 1), np.float32)}
        >>> consortia.diagnostics.log_predictive_density(draws, model, rows).values.round(3)
        array([-0.919, -1.419, -2.919, -1.419])
    """
    passage = (tree, model, rows, batch_rows, max_draws)
    if model.host is not None:
        return _over_draws(_log_sums, np.logaddexp, model.host.log_likelihood, *passage)
    return _over_draws(log_sum, np.logaddexp, model.log_likelihood, *passage)


def _sums(function: Any, draws: PyTree, weights: np.ndarray, rows: PyTree) -> np.ndarray:
    """Return Σ_s w_s f(θ_s), by NumPy."""
    return np.tensordot(weights, function(draws, rows), axes=1)


def _log_sums(function: Any, draws: PyTree, weights: np.ndarray, rows: PyTree) -> np.ndarray:
    """Return log Σ_s w_s exp f(θ_s), by NumPy."""
    with np.errstate(divide="ignore"):  # repeated draws have no weight
        return logsumexp(function(draws, rows) + np.log(weights)[:, None], axis=0)


# --- scores --------------------------------------------------------------------------------------


def scores(probabilities: Any, labels: Any) -> dict[str, float]:
    """Return all scores of class probabilities: accuracy, Brier, ECE, NLL in all and per row.

    Args:
        probabilities: (row, class), or (row,) for the probability of class 1 of two.
        labels: integers 0 … classes − 1, (row,).

    Returns:
        accuracy, brier, ece, nll (in nats, summed) and nll_per_row, a number each.

    Raises:
        InputError: shapes do not fit, a label is not a class, or a number not a probability.

    Example:
        >>> scores([[0.9, 0.1], [0.4, 0.6]], [0, 1])["accuracy"]
        1.0
    """
    total = negative_log_likelihood(probabilities, labels)
    return {
        "accuracy": accuracy(probabilities, labels),
        "brier": brier(probabilities, labels),
        "ece": expected_calibration_error(probabilities, labels),
        "nll": total,
        "nll_per_row": total / len(np.asarray(labels)),
    }


def accuracy(probabilities: Any, labels: Any) -> float:
    """Return the share of rows whose most probable class is the label; the first wins a tie.

    Args:
        probabilities: (row, class), or (row,) for the probability of class 1 of two.
        labels: integers 0 … classes − 1, (row,).

    Returns:
        A number from 0 to 1.

    Raises:
        InputError: shapes do not fit, a label is not a class, or a number not a probability.

    Example:
        >>> accuracy([[0.9, 0.1], [0.4, 0.6]], [0, 0])
        0.5
    """
    table, classes = _checked(probabilities, labels)
    return float(np.mean(table.argmax(axis=1) == classes))


def brier(probabilities: Any, labels: Any) -> float:
    r"""Return the Brier score, summed over the classes and averaged over the rows; between 0 and 2.

    .. math:: \frac1n \sum_i \sum_k (p_{ik} - 1[y_i = k])^2

    With two classes this is *twice* the score (p − y)² that is common for binary outcomes.
    (Brier 1950; the definition of the FA-HMC experiments.)

    Args:
        probabilities: (row, class), or (row,) for the probability of class 1 of two.
        labels: integers 0 … classes − 1, (row,).

    Returns:
        A number from 0 to 2.

    Raises:
        InputError: shapes do not fit, a label is not a class, or a number not a probability.

    Example:
        >>> round(brier([0.1, 0.8], [0, 1]), 3)
        0.05
    """
    table, classes = _checked(probabilities, labels)
    error = table.copy()
    error[np.arange(len(classes)), classes] -= 1
    return float(np.mean(np.sum(error**2, axis=1)))


def negative_log_likelihood(
    probabilities: Any, labels: Any, *, smallest: float = SMALLEST_PROBABILITY
) -> float:
    r"""Return −Σ_i log p_{i, y_i}, in nats, *summed* over the rows.

    Args:
        probabilities: (row, class), or (row,) for the probability of class 1 of two.
        labels: integers (row,).
        smallest: smaller probabilities count as this one; the default, 1.2e-38, keeps every
            probability that single precision can hold, so that only exact zeros are changed.

    Returns:
        A number of nats, 0 or more.

    Raises:
        InputError: shapes do not fit, a label is not a class, or a number not a probability.

    Example:
        >>> round(negative_log_likelihood([0.1, 0.8], [0, 1]), 4)
        0.3285
    """
    table, classes = _checked(probabilities, labels)
    return float(-np.sum(np.log(np.maximum(table[np.arange(len(classes)), classes], smallest))))


def expected_calibration_error(probabilities: Any, labels: Any, *, bins: int = 15) -> float:
    r"""Return the expected calibration error of the most probable class.

    .. math:: \sum_b \frac{n_b}{n} \left|\mathrm{accuracy}_b - \mathrm{confidence}_b\right|

    over equally wide bins of the confidence, ((b−1)/B, b/B]. (Guo et al. 2017, eq. 3.)

    Args:
        probabilities: (row, class), or (row,) for the probability of class 1 of two.
        labels: integers 0 … classes − 1, (row,).
        bins: how many equally wide bins of the confidence.

    Returns:
        A number from 0 to 1.

    Raises:
        InputError: shapes do not fit, a label is not a class, or a number not a probability.

    Example:
        >>> round(expected_calibration_error([0.1, 0.8], [0, 1]), 3)
        0.15
    """
    confidence, observed, share = calibration_curve(probabilities, labels, bins=bins)
    filled = share > 0
    return float(np.sum(share[filled] * np.abs(observed[filled] - confidence[filled])))


def calibration_curve(
    probabilities: Any, labels: Any, *, bins: int = 15
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the reliability diagram of the most probable class.

    Args:
        probabilities: (row, class), or (row,) for the probability of class 1 of two.
        labels: integers (row,).
        bins: how many equally wide bins ((b−1)/B, b/B] of the confidence.

    Returns:
        Mean confidence, accuracy and share of the rows of each bin, (bins,) each; the first two
        are NaN in an empty bin.

    Raises:
        InputError: shapes do not fit, a label is not a class, or a number not a probability.

    Example:
        >>> confidence, observed, share = calibration_curve([0.1, 0.8], [0, 1], bins=2)
        >>> share
        array([0., 1.])
    """
    table, classes = _checked(probabilities, labels)
    arguments.whole("bins", bins, 1)
    confidence = table.max(axis=1)
    correct = table.argmax(axis=1) == classes
    edges = np.arange(1, bins) / bins
    bin_index = np.searchsorted(edges, confidence, side="left")
    count = np.bincount(bin_index, minlength=bins)
    filled = np.where(count > 0, count, np.nan)
    return (
        np.bincount(bin_index, weights=confidence, minlength=bins) / filled,
        np.bincount(bin_index, weights=correct, minlength=bins) / filled,
        count / len(classes),
    )


def rmse(predicted: Any, observed: Any) -> float:
    """Return the root mean squared error of predicted means, in the units of the response.

    Args:
        predicted: one a row, of any shape.
        observed: of the same shape.

    Returns:
        A number, 0 or more.

    Raises:
        InputError: the shapes differ, or there are no rows.

    Example:
        >>> rmse([1.0, 2.0], [1.0, 4.0]) == 2**0.5
        True
    """
    a, b = np.asarray(predicted, dtype=np.float64), np.asarray(observed, dtype=np.float64)
    if a.shape != b.shape or not a.size:
        raise InputError(
            f"predicted has shape {a.shape}, observed {b.shape}: give one prediction per row."
        ).at("predicted")
    return float(np.sqrt(np.mean((a - b) ** 2)))


def _checked(probabilities: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    table = np.asarray(probabilities, dtype=np.float64)
    if table.ndim == 1:
        table = np.stack([1 - table, table], axis=1)
    classes = np.asarray(labels)
    if table.ndim != 2 or classes.shape != table.shape[:1] or not table.size:
        raise InputError(
            f"probabilities have shape {np.shape(probabilities)}, labels {classes.shape}: give "
            "probabilities (row, class) and one label per row."
        ).at("probabilities")
    whole = classes.astype(np.int64)
    if np.any(whole != classes) or whole.min() < 0 or whole.max() >= table.shape[1]:
        raise InputError(
            f"labels lie between {classes.min()} and {classes.max()}; for {table.shape[1]} classes "
            f"they are the integers 0 to {table.shape[1] - 1}."
        ).at("labels")
    if not np.all((table >= -1e-6) & (table <= 1 + 1e-6)):
        raise InputError(
            "probabilities: some are not between 0 and 1 (or not finite). Give what `predict` "
            "returned for a classifier, not logits."
        ).at("probabilities")
    return table, whole


# --- the passage over rows and draws -------------------------------------------------------------


def _over_draws(
    reduce: Callable[..., Any],
    combine: np.ufunc,
    function: Callable[..., Any],
    tree: Any,
    model: Model,
    rows: PyTree,
    batch_rows: int,
    max_draws: int | None,
) -> Any:
    """Return ``reduce`` over all draws for all rows, in blocks of both; (row, ...) in float64.

    Every block has the same shape: the last one is filled up with repeated rows, which are cut
    off, and with repeated draws of weight 0. Blocks are combined in float64 on the host.
    """
    arguments.whole("batch_rows", batch_rows, 1)
    draws, weights, weighted = _pooled(tree, model, max_draws)
    used = len(weights)
    leaves = [leaf.value for leaf in trees.leaves_of(rows)]
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in leaves}
    if len(lengths) != 1 or 0 in lengths:
        raise InputError(
            "new_rows: the arrays have "
            f"{', '.join(map(str, sorted(lengths))) or 'no'} rows; give arrays with one common, "
            "non-empty leading row axis, as one site's data."
        ).at("new_rows")
    total_rows = lengths.pop()
    dimension = sum(leaf.value.size for leaf in trees.leaves_of(draws)) // used
    each = min(total_rows, batch_rows) if model.host is not None else dimension
    most = VALUES_AT_ONCE if model.host is not None else BLOCK_VALUES
    draw_blocks = _blocks(used, max(1, most // each))

    results = []
    for row_index, row_count in _blocks(total_rows, batch_rows):
        batch = trees.map_leaves(lambda leaf, index=row_index: np.asarray(leaf)[index], rows)
        total: np.ndarray | None = None
        for draw_index, draw_count in draw_blocks:
            block = trees.map_leaves(lambda leaf, index=draw_index: leaf[index], draws)
            share = np.where(np.arange(len(draw_index)) < draw_count, weights[draw_index], 0)
            if total is None and model.host is None:  # every later block has the same shapes
                _check_output(function, block, batch, len(row_index))
            part = reduce(function, block, share.astype(float_type()), batch)
            part = np.asarray(part, dtype=np.float64)
            total = part if total is None else combine(total, part)
        assert total is not None
        results.append(total[:row_count])
    import xarray

    values = np.concatenate(results)
    dims = ("row", "class", *(f"output_{i}" for i in range(2, values.ndim)))[: values.ndim]
    attrs = {"draws": used, "weights": "step sizes" if weighted else "equal"}
    return xarray.DataArray(values, dims=dims, attrs=attrs)


def _pooled(tree: Any, model: Model, max_draws: int | None) -> tuple[PyTree, np.ndarray, bool]:
    """Return the pooled draws as the model's pytree with a leading axis, and their weights."""
    arrays = sampled_draws(tree)
    step_weights = draw_weights(tree)
    chains, draws = next(iter(arrays.values())).shape[:2]
    if chains * draws == 0:
        raise wrong("posterior", ": there are no draws to average.")
    arguments.optional_whole("max_draws", max_draws, 1)
    used = chains * draws if max_draws is None else min(max_draws, chains * draws)
    picked = (2 * np.arange(used) + 1) * (chains * draws) // (2 * used)
    dtype = float_type()
    pooled = {
        name: array.reshape(chains * draws, *array.shape[2:])[picked].astype(dtype)
        for name, array in arrays.items()
    }
    weights = np.ones(draws) if step_weights is None else step_weights
    weights = np.broadcast_to(weights, (chains, draws)).ravel()[picked]
    structure = structure_of(model.init)
    model_names = {part.name for part in variables(structure)}
    more = [name for name in arrays if name not in model_names]
    if more:
        raise InputError(
            f"posterior: the result has the variable{'s' * (len(more) > 1)} {', '.join(more)}, "
            f"the model has {', '.join(sorted(model_names))} only. Give the model that was sampled."
        ).at("posterior")
    parameters = draws_to_pytree(structure, pooled)
    return parameters, weights / weights.sum(), step_weights is not None


def _blocks(total: int, largest: int) -> list[tuple[np.ndarray, int]]:
    """Return indices of equally long blocks, the last filled up by repetition, and lengths."""
    length = -(-total // -(-total // largest))
    return [
        (np.minimum(np.arange(first, first + length), total - 1), min(length, total - first))
        for first in range(0, total, length)
    ]


def _check_output(function: Callable[..., Any], draws: PyTree, rows: PyTree, count: int) -> None:
    draw = jax.tree.map(lambda leaf: leaf[0], draws)
    shape = jax.eval_shape(function, draw, rows)
    sizes = getattr(shape, "shape", None)
    if not sizes or sizes[0] != count:
        raise InputError(
            f"the model returned shape {sizes} for {count} rows: `predict` and `log_likelihood` "
            "return an array with one entry a row."
        ).at("model")
