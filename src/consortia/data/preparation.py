"""Preparation of a data set before it is dealt out: scaling, intercepts, splits."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, overload

import numpy as np

from consortia.core import arguments
from consortia.data.partition import read_seed
from consortia.data.received import expect
from consortia.data.sites import read_rows
from consortia.errors import InputError, wrong

Arrays = dict[str, np.ndarray]
PyTree = Any

MOST_LEVELS = 20
"""Whole numbers within this of one another are levels, of which mean and spread say little."""


MOMENT_MAX = 1e150
"""Means and sums of squares beyond it are of no use: squares of them are not finite."""

_PLAIN = (bool, int, float)


@dataclass(frozen=True)
class Moments:
    """Moments of the columns of some rows, from which statistics with other rows follow.

    No row is among it, unless there is but one.
    """

    rows: int  # n
    mean: Any  # x̄, float64 (columns,), or a scalar of values without columns; so are the next two
    squares: Any  # Σ_i (x_i − x̄)²
    constant: Any  # whether all rows are equal
    value: Any  # their value where they are, else 0
    # whether all are integers within `MOST_LEVELS` of one another, as indices, categories and yes
    # or no are
    levels: Any

    @classmethod
    def of(cls, values: np.ndarray) -> Moments:
        """Return the moments of rows (rows, columns) or values (rows,)."""
        mean = values.mean(axis=0, dtype=np.float64)
        squares = np.square(values - mean).sum(axis=0, dtype=np.float64)
        constant = (values == values[:1]).all(axis=0)
        value = np.where(constant, np.asarray(values[0], np.float64), 0.0)
        whole = (values == np.round(values)).all(axis=0)
        levels = whole & (values.max(axis=0) - values.min(axis=0) <= MOST_LEVELS)
        return cls(len(values), mean, squares, constant, value, levels)

    def plain(self) -> list[Any]:
        """Return plain values, from which ``Moments(*values)`` has the same bits again."""
        arrays = (self.mean, self.squares, self.constant, self.value, self.levels)
        return [self.rows, *(np.asarray(array).tolist() for array in arrays)]

    @staticmethod
    def check_plain(values: Any, rows: int, columns: int | None) -> None:
        """Refuse what is not `plain` of so many rows and columns; None: of values without columns.

        Raises:
            ValueError: with what is wrong.
        """
        expect(isinstance(values, list) and len(values) == 6, "the moments are not six values")
        right = type(values[0]) is int and values[0] == rows
        expect(right, "the moments are not those of the rows")
        shape = () if columns is None else (columns,)
        for part, kinds in zip(values[1:], ("fi", "fi", "b", "fi", "b"), strict=True):
            flat = [part] if columns is None else part
            right = isinstance(flat, list) and all(type(value) in _PLAIN for value in flat)
            expect(right, "the moments are not numbers")
            array = np.asarray(part)
            right = array.shape == shape and array.dtype.kind in kinds
            expect(right, "the moments are not those of the columns")
            finite = array.dtype.kind == "b" or (np.abs(array) <= MOMENT_MAX).all()
            expect(bool(finite), f"the moments are not finite, or beyond {MOMENT_MAX:g}")
        expect(not (np.asarray(values[2]) < 0).any(), "a sum of squares is negative")

    def __add__(self, other: Moments) -> Moments:
        r"""Return the moments of both parts together.

        .. math:: \bar x = \bar x_1 + \frac{n_2}{n} \delta, \quad
                  S = S_1 + S_2 + \frac{n_1 n_2}{n} \delta^2, \quad \delta = \bar x_2 - \bar x_1

        Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
        sample variances" (1979).
        """
        n, delta = self.rows + other.rows, np.subtract(other.mean, self.mean)
        both = np.logical_and(self.constant, other.constant)
        constant = both & np.equal(self.value, other.value)
        return Moments(
            n,
            self.mean + delta * (other.rows / n),
            np.add(self.squares, other.squares) + delta**2 * (self.rows * other.rows / n),
            constant,
            np.where(constant, self.value, 0.0),
            np.logical_and(self.levels, other.levels),
        )

    @property
    def measured(self) -> np.ndarray:
        """True for columns that `standardise` changes of itself: constant ones, and no levels."""
        return np.asarray(np.logical_or(np.logical_not(self.levels), self.constant))

    @property
    def lower_of_two(self) -> float | None:
        """The lower of two consecutive integers that are all values; None of other values.

        Of integers with a mean between c and c + 1 only these two have so small a variance.
        """
        low = float(np.floor(self.mean))
        share = self.mean - low
        is_two = np.isclose(self.squares, self.rows * share * (1 - share))
        return low if self.levels and not self.constant and is_two else None

    @property
    def centre(self) -> np.ndarray:
        """The mean; of a constant column its value."""
        # Rounding in the mean leaves a constant column with a scale near 0 instead of 0.
        return np.where(self.constant, self.value, self.mean)

    @property
    def sd(self) -> np.ndarray:
        """Standard deviations, Σ over n; of a constant column 0."""
        return np.where(self.constant, 0.0, np.sqrt(np.divide(self.squares, self.rows)))


def moments_of_all(parts: Iterable[Sequence[Any]]) -> Moments:
    """Return the moments of all sites' rows from each one's `Moments.plain`, in this order.

    Whatever process has which rows, the result has the same bits.
    """
    return reduce(operator.add, (Moments(*part) for part in parts))


@overload
def standardise(
    train: Arrays, test: None = None, *, columns: Sequence[int] | None = None
) -> tuple[Arrays, None]: ...
@overload
def standardise(
    train: Arrays, test: Arrays, *, columns: Sequence[int] | None = None
) -> tuple[Arrays, Arrays]: ...
def standardise(
    train: Arrays, test: Arrays | None = None, *, columns: Sequence[int] | None = None
) -> tuple[Arrays, Arrays | None]:
    r"""Centre and scale columns of x by the train rows' statistics.

    .. math:: x_{ij} \leftarrow (x_{ij} - \bar x_j) / s_j, \qquad
              s_j^2 = \tfrac1n \sum_i (x_{ij} - \bar x_j)^2

    A constant column becomes 0, so add an intercept afterwards (`with_intercept`). The statistics
    are those of all train rows together; sites that may not pool agree on them by their `Moments`.

    Args:
        train: dict with x, (rows, features).
        test: the same for other rows, or None.
        columns: indices of the columns to be changed. When None all but those of integers
            within 20 of one another: indices of sites, categories, yes or no.

    Returns:
        train and test with x in float32 where it was, else float64; other entries unchanged.

    Raises:
        InputError: no x, x not (rows, features), or other columns in test than in train.

    Example:
        >>> train, _ = standardise({"x": np.array([[0.5], [1.5], [40.0]])})
        >>> abs(float(train["x"].mean())) < 1e-6
        True
    """
    moments = Moments.of(features(train, "train"))
    changed = moments.measured
    if columns is not None:
        count = len(changed)
        chosen = [arguments.whole("columns", column, 0, count - 1) for column in columns]
        changed = np.isin(np.arange(count), chosen)
    scaled = standardised(train, moments, "train", changed)
    return scaled, None if test is None else standardised(test, moments, "test", changed)


def standardised(
    arrays: Arrays, moments: Moments, where: str, changed: Sequence[bool] | np.ndarray
) -> Arrays:
    """Return the arrays with these columns of x centred and scaled, see `standardise`."""
    values = features(arrays, where)
    columns = len(moments.centre)
    if values.shape[1] != columns:
        raise wrong(where, f": x has {values.shape[1]} columns, but train has {columns}.")
    dtype = np.float32 if values.dtype == np.float32 else np.float64
    scaled = (values - moments.centre) / units(moments)
    return {**arrays, "x": np.where(np.asarray(changed), scaled, values).astype(dtype)}


def units(moments: Moments) -> np.ndarray:
    """Return the columns' divisors: their standard deviations, 1 where that is 0."""
    return np.where(moments.sd == 0, 1.0, moments.sd)


def with_intercept(arrays: Arrays) -> Arrays:
    """Return the arrays with a column of ones, of the same type, behind the columns of x.

    Args:
        arrays: dict with x, (rows, features).

    Returns:
        The same with x, (rows, features + 1).

    Raises:
        InputError: there is no x, or it is not (rows, features).

    Example:
        >>> rows = {"x": np.array([[1.0], [3.0]])}
        >>> with_intercept(rows)["x"]
        array([[1., 1.],
               [3., 1.]])
    """
    x = features(arrays, "arrays")
    return {**arrays, "x": np.concatenate([x, np.ones((len(x), 1), x.dtype)], axis=1)}


def images_to_rows(arrays: Arrays, *, scale: float = 1 / 255, intercept: bool = True) -> Arrays:
    """Return images (rows, ...) as rows of scaled pixels, float32 (rows, pixels [+ 1]).

    Args:
        arrays: dict with x, (rows, ...).
        scale: factor of the pixels; 1/255 takes 0..255 to 0..1.
        intercept: put a column of ones behind the pixels.

    Returns:
        The arrays with x, (rows, pixels).

    Raises:
        InputError: no x, or a scale that is not a finite number > 0.

    Example:
        >>> images_to_rows({"x": np.full((2, 4, 4), 255, np.uint8)})["x"].shape
        (2, 17)
    """
    if "x" not in arrays:
        raise wrong("arrays", f" has no x; the keys are {', '.join(arrays)}.")
    scale = arguments.positive("scale", scale)
    images = np.asarray(arrays["x"])
    pixels = int(np.prod(images.shape[1:]))
    x = np.ones((len(images), pixels + intercept), np.float32)
    np.multiply(images.reshape(len(images), pixels), np.float32(scale), out=x[:, :pixels])
    return {**arrays, "x": x}


def train_test_split(arrays: PyTree, *, test_share: float, seed: int) -> tuple[PyTree, PyTree]:
    """Return two random parts of the rows, both in the original order.

    Args:
        arrays: pytree of arrays (rows, ...).
        test_share: share of the rows that go to the second part, 0 < share < 1.
        seed: non-negative integer.

    Returns:
        The train rows and the test rows.

    Raises:
        InputError: a share outside (0, 1), or one that leaves a part without a row.

    Example:
        >>> rows = {"x": np.zeros((10, 1)), "y": np.arange(10)}
        >>> train, test = train_test_split(rows, test_share=0.3, seed=0)
        >>> len(train["y"]), len(test["y"])
        (7, 3)
    """
    data = read_rows(arrays, "`arrays`")
    test_share = arguments.positive("test_share", test_share, below=1.0)
    count = round(test_share * data.rows)
    if not 0 < count < data.rows:
        raise InputError(
            f"test_share={test_share} of {data.rows} rows leaves one part empty: change the share."
        ).at("test_share")
    order = np.random.default_rng(read_seed(seed)).permutation(data.rows)
    return data.take(np.sort(order[count:])), data.take(np.sort(order[:count]))


def features(arrays: Arrays, where: str) -> np.ndarray:
    """Return the array x of some rows, (rows, features).

    Raises:
        InputError: there is none, or it has another shape.
    """
    if "x" not in arrays:
        raise wrong(where, f" has no x; the keys are {', '.join(arrays)}.")
    x = np.asarray(arrays["x"])
    if x.ndim != 2 or len(x) == 0:
        raise InputError(
            f"{where}: x has shape {x.shape}, not (rows, features); images: images_to_rows."
        ).at(where)
    return x
