"""What is done to a data set before it is dealt out: scaling, intercepts, splits."""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from consortia.errors import InputError
from consortia.partition import read_seed
from consortia.sites import read_rows

Arrays = dict[str, np.ndarray]
PyTree = Any


@overload
def standardise(train: Arrays, test: None = None) -> tuple[Arrays, None]: ...
@overload
def standardise(train: Arrays, test: Arrays) -> tuple[Arrays, Arrays]: ...
def standardise(train: Arrays, test: Arrays | None = None) -> tuple[Arrays, Arrays | None]:
    r"""Centre and scale the columns of x by the train rows' statistics.

    .. math:: x_{ij} \leftarrow (x_{ij} - \bar x_j) / s_j, \qquad
              s_j^2 = \tfrac1n \sum_i (x_{ij} - \bar x_j)^2

    A constant column becomes 0, so add an intercept afterwards (`with_intercept`). The statistics
    are those of all train rows together: sites that may not pool would have to agree on them.

    Args:
        train: dict with x, (rows, features).
        test: the same for other rows, or None.

    Returns:
        train and test with x in float32 where it was, else float64; other entries unchanged.

    Raises:
        InputError: no x, x not (rows, features), or other columns in test than in train.
    """
    x = _features(train, "train")
    mean = x.mean(axis=0, dtype=np.float64)
    scale = x.std(axis=0, dtype=np.float64)
    # Rounding in the mean leaves a constant column with a scale near 0 instead of 0.
    constant = (x == x[:1]).all(axis=0)
    mean = np.where(constant, x[0], mean)
    scale = np.where(constant, 1.0, scale)

    def scaled(arrays: Arrays, where: str) -> Arrays:
        values = _features(arrays, where)
        if values.shape[1:] != x.shape[1:]:
            raise InputError(
                f"{where}: x has {values.shape[1]} columns, but train has {x.shape[1]}."
            )
        dtype = np.float32 if values.dtype == np.float32 else np.float64
        return {**arrays, "x": ((values - mean) / scale).astype(dtype)}

    return scaled(train, "train"), None if test is None else scaled(test, "test")


def with_intercept(arrays: Arrays) -> Arrays:
    """The arrays with a column of ones, of the same type, behind the columns of x."""
    x = _features(arrays, "arrays")
    return {**arrays, "x": np.concatenate([x, np.ones((len(x), 1), x.dtype)], axis=1)}


def images_to_rows(arrays: Arrays, *, scale: float = 1 / 255, intercept: bool = True) -> Arrays:
    """Images (rows, ...) as rows of scaled pixels, float32 (rows, pixels) or (rows, pixels + 1).

    Args:
        arrays: dict with x, (rows, ...).
        scale: factor of the pixels; 1/255 takes 0..255 to 0..1.
        intercept: put a column of ones behind the pixels.

    Raises:
        InputError: no x, or a scale that is not a finite number > 0.
    """
    if "x" not in arrays:
        raise InputError(f"arrays has no x; the keys are {', '.join(arrays)}.")
    if not 0 < scale < np.inf:
        raise InputError(f"scale is {scale}: give a finite number > 0.")
    images = np.asarray(arrays["x"])
    pixels = int(np.prod(images.shape[1:]))
    x = np.ones((len(images), pixels + intercept), np.float32)
    np.multiply(images.reshape(len(images), pixels), np.float32(scale), out=x[:, :pixels])
    return {**arrays, "x": x}


def train_test_split(arrays: PyTree, *, test_share: float, seed: int) -> tuple[PyTree, PyTree]:
    """Two random parts of the rows, both in the original order.

    Args:
        arrays: pytree of arrays (rows, ...).
        test_share: share of the rows that go to the second part, 0 < share < 1.
        seed: non-negative integer.

    Returns:
        The train rows and the test rows.

    Raises:
        InputError: a share outside (0, 1), or one that leaves a part without a row.
    """
    data = read_rows(arrays, "`arrays`")
    if not 0 < test_share < 1:
        raise InputError(f"test_share is {test_share}: give a number between 0 and 1.")
    count = round(test_share * data.rows)
    if not 0 < count < data.rows:
        raise InputError(
            f"test_share={test_share} of {data.rows} rows leaves one part empty: change the share."
        )
    order = np.random.default_rng(read_seed(seed)).permutation(data.rows)
    return data.take(np.sort(order[count:])), data.take(np.sort(order[:count]))


def _features(arrays: Arrays, where: str) -> np.ndarray:
    if "x" not in arrays:
        raise InputError(f"{where} has no x; the keys are {', '.join(arrays)}.")
    x = np.asarray(arrays["x"])
    if x.ndim != 2 or len(x) == 0:
        raise InputError(
            f"{where}: x has shape {x.shape}, not (rows, features); images: images_to_rows."
        )
    return x
