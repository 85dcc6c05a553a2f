"""A mixing matrix as a value: neighbour lists and weights, however many agents there are."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np

from consortia.errors import InputError

Array = np.ndarray

MOST_DENSE = 64
"""Up to this many agents a matrix without structure is applied as a dense one."""

MOST_ROLLS = 8
"""A circulant matrix with more diagonals than this is applied in another form."""

MOST_PADDING = 4
"""Neighbour lists are padded to the longest unless that takes this many times their length."""

TOLERANCE = 1e-6
"""Largest distance of the sum of a row or a column from one."""

MOST_EIGENVALUES = 2000
"""Up to this many agents all eigenvalues are computed."""

MOST_AT_ONCE = 500
"""Number of agents up to which the plan of a run computes them."""


class MixingMatrix:
    r"""A doubly stochastic matrix W: agent i's average is :math:`\sum_j W_{ij} x_j`.

    Rows and columns sum to one and no entry is negative. It is stored row by row without its
    zeros, never changes, and compares and hashes by its content. ``numpy.asarray`` makes it dense.

    Attributes:
        agents: number of agents N.
        links: number of ordered pairs of different agents with W_ij > 0: messages a multiplication.
        form: how it is applied to the agents' positions: ``"roll"`` (shifts of the agents, for
            rings and other circulant matrices), ``"mean"`` (a sum over all agents), ``"dense"``
            (N × N, small networks only), ``"slots"`` (neighbour lists padded to equal length) or
            ``"edges"`` (a sum over a list of links, where some agent has far more than the others).

    Raises:
        InputError: an entry is negative or not finite, or a row or column does not sum to one.

    Example:
        >>> MixingMatrix.of([[0.5, 0.5], [0.5, 0.5]])
        MixingMatrix(2 agents, 2 links, form='roll')
    """

    def __init__(self, rows: Array, columns: Array, values: Array, agents: int) -> None:
        rows, columns = np.asarray(rows, np.int64), np.asarray(columns, np.int64)
        values = np.asarray(values, np.float64)
        _check_entries(rows, columns, values, agents)
        order = np.lexsort((columns, rows))
        order = order[values[order] != 0.0]
        self.agents = agents
        self.rows = _frozen(rows[order].astype(np.int32))
        self.columns = _frozen(columns[order].astype(np.int32))
        self.values = _frozen(values[order])
        _check_sums(self)
        self.links = int(np.count_nonzero(self.rows != self.columns))
        content = (np.int64(agents), self.rows, self.columns, self.values)
        self.digest = hashlib.sha256(b"".join(part.tobytes() for part in content)).hexdigest()

    @classmethod
    def of(cls, matrix: Any, name: str = "mixing") -> MixingMatrix:
        """Return a mixing matrix from one, a dense array (N, N) or a SciPy sparse matrix.

        Raises:
            InputError: not square, not finite, a negative entry, or a row or column (named) that
                does not sum to one.
        """
        if isinstance(matrix, MixingMatrix):
            return matrix
        if hasattr(matrix, "tocoo"):
            entries = matrix.tocoo()
            shape = _square(entries.shape, name)
            entries.sum_duplicates()
            return cls(entries.row, entries.col, entries.data, shape)
        try:
            dense = np.asarray(matrix, np.float64)
        except (TypeError, ValueError):
            raise InputError(
                f"{name} is {type(matrix).__name__}: give consortia.graphs.mixing_matrix(...), an "
                "array (agents, agents) or a SciPy sparse matrix."
            ).at(name) from None
        agents = _square(dense.shape, name)
        rows, columns = np.nonzero(dense)  # NaN is not zero, so it stays to be refused
        return cls(rows, columns, dense[rows, columns], agents)

    # --- as a value -----------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MixingMatrix) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"MixingMatrix({self.agents} agents, {self.links} links, form={self.form!r})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the dense matrix, (agents, agents)."""
        dense = np.zeros((self.agents, self.agents), np.float64 if dtype is None else dtype)
        dense[self.rows, self.columns] = self.values
        return dense

    # --- how it is applied ----------------------------------------------------------------------

    @cached_property
    def form(self) -> str:
        """See the class."""
        if self.circulant is not None and len(self.circulant[0]) <= MOST_ROLLS:
            return "roll"
        if self.constant is not None:
            return "mean"
        if self.agents <= MOST_DENSE:
            return "dense"
        longest = int(np.max(np.diff(self._starts)))
        return "slots" if longest * self.agents <= MOST_PADDING * len(self.values) else "edges"

    @cached_property
    def circulant(self) -> tuple[Array, Array] | None:
        """Shifts o and weights with W_{i, i+o} the same for all i (modulo N), or None."""
        per_row = np.diff(self._starts)
        if np.any(per_row != per_row[0]):
            return None
        shape = (self.agents, int(per_row[0]))
        shifts = ((self.columns.astype(np.int64) - self.rows) % self.agents).reshape(shape)
        order = np.argsort(shifts, axis=1)
        shifts = np.take_along_axis(shifts, order, axis=1)
        weights = np.take_along_axis(self.values.reshape(shape), order, axis=1)
        if np.any(shifts != shifts[0]) or np.any(weights != weights[0]):
            return None
        return shifts[0], weights[0]

    @cached_property
    def constant(self) -> float | None:
        """b of W = (1 − N b) I + b 11ᵀ, or None when the weights of others differ."""
        if self.links != self.agents * (self.agents - 1) or not self.links:
            return None
        others = self.values[self.rows != self.columns]
        return None if np.any(others != others[0]) else float(others[0])

    def slots(self) -> tuple[Array, Array]:
        """Return lists of neighbours padded to equal length: agents and weights, (agents, slots).

        Padding points to the agent itself, with weight zero. The agent's own weight is left out:
        it is one minus the rest.
        """
        other = self.rows != self.columns
        rows, columns, values = self.rows[other], self.columns[other], self.values[other]
        per_row = np.bincount(rows, minlength=self.agents)
        longest = int(per_row.max(initial=0))
        slot = np.arange(len(values)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
        numbers = np.repeat(np.arange(self.agents, dtype=np.int32)[:, None], longest, axis=1)
        weights = np.zeros((self.agents, longest))
        numbers[rows, slot] = columns
        weights[rows, slot] = values
        return numbers, weights

    def neighbours(self, agent: int) -> Array:
        """Return the other agents whose positions this one averages."""
        mine = self.columns[self._starts[agent] : self._starts[agent + 1]]
        return mine[mine != agent]

    # --- the network ----------------------------------------------------------------------------

    @cached_property
    def symmetric(self) -> bool:
        """True if W = Wᵀ, to rounding."""
        difference = self.sparse() - self.sparse().T
        return difference.nnz == 0 or float(np.max(np.abs(difference.data))) < 1e-12

    @cached_property
    def component_of(self) -> Array:
        """Number of the connected component of each agent, (agents,)."""
        from scipy.sparse.csgraph import connected_components

        return connected_components(self.sparse(), directed=False)[1]

    @property
    def components(self) -> int:
        """Number of connected components; one for a usable network."""
        return int(self.component_of.max()) + 1

    @cached_property
    def smallest_eigenvalue(self) -> float:
        """λ_N, the smallest eigenvalue (the smallest real part when W is not symmetric)."""
        return float(self._extreme_eigenvalues[0])

    @cached_property
    def second_modulus(self) -> float:
        """γ̄, the largest modulus of an eigenvalue beside the 1 of the constant vectors."""
        return float(self._extreme_eigenvalues[1])

    @property
    def spectral_gap(self) -> float:
        """1 − γ̄: disagreement shrinks at least by γ̄ in one multiplication; 0 if disconnected."""
        return 0.0 if self.components > 1 else 1.0 - self.second_modulus

    @property
    def spectrum_is_cheap(self) -> bool:
        """True if the eigenvalues take less than a second: of few agents, or circulant."""
        return self.agents <= MOST_AT_ONCE or self.circulant is not None

    def sparse(self) -> Any:
        """Return a SciPy sparse array (agents, agents)."""
        from scipy.sparse import csr_array

        shape = (self.agents, self.agents)
        return csr_array((self.values, self.columns, self._starts), shape=shape)

    def summary(self) -> dict[str, Any]:
        """Return plain values that identify the matrix, for the record of a run."""
        return {
            "agents": self.agents,
            "links": self.links,
            "form": self.form,
            "components": self.components,
            "sha256": self.digest,
        }

    # --- inside ---------------------------------------------------------------------------------

    @cached_property
    def _starts(self) -> Array:
        return np.searchsorted(self.rows, np.arange(self.agents + 1))

    @cached_property
    def _extreme_eigenvalues(self) -> tuple[float, float]:
        """(smallest real part, second largest modulus)."""
        if self.agents == 1:
            return 1.0, 0.0
        if self.circulant is not None:
            row = np.zeros(self.agents)
            row[self.circulant[0]] = self.circulant[1]
            values = np.fft.fft(row)
        elif self.agents <= MOST_EIGENVALUES:
            dense = np.asarray(self)
            values = np.linalg.eigvalsh(dense) if self.symmetric else np.linalg.eigvals(dense)
        else:
            return self._extreme_by_iteration()
        moduli = np.sort(np.abs(values))
        return float(np.min(values.real)), float(moduli[-2])

    def _extreme_by_iteration(self) -> tuple[float, float]:
        from scipy.sparse import linalg

        if not self.symmetric:
            values = linalg.eigs(self.sparse(), k=2, which="LM", return_eigenvectors=False)
            lowest = linalg.eigs(self.sparse(), k=1, which="SR", return_eigenvectors=False)
            return float(lowest[0].real), float(np.sort(np.abs(values))[0])
        largest = linalg.eigsh(self.sparse(), k=2, which="LA", return_eigenvectors=False)
        lowest = linalg.eigsh(self.sparse(), k=1, which="SA", return_eigenvectors=False)
        return float(lowest[0]), float(max(np.min(largest), -lowest[0]))


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array


def _square(shape: tuple[int, ...], name: str) -> int:
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise InputError(
            f"{name} has shape {shape}: it must be (agents, agents). Of a graph "
            "consortia.graphs.mixing_matrix makes one."
        ).at(name)
    return int(shape[0])


def _check_entries(rows: Array, columns: Array, values: Array, agents: int) -> None:
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0.0))
    if bad.size:
        i, j, value = rows[bad[0]], columns[bad[0]], values[bad[0]]
        raise InputError(
            f"mixing: the weight of agent {j} at agent {i} is {value:g}; weights must be finite "
            "and not negative" + (" (lower delta)." if i == j else ".")
        ).at("mixing")


def _check_sums(matrix: MixingMatrix) -> None:
    for what, index in (("row", matrix.rows), ("column", matrix.columns)):
        sums = np.bincount(index, weights=matrix.values, minlength=matrix.agents)
        worst = int(np.argmax(np.abs(sums - 1.0)))
        if abs(sums[worst] - 1.0) > TOLERANCE:
            raise InputError(
                f"mixing is not doubly stochastic: {what} {worst} sums to {sums[worst]:.8g}. Every "
                "row and every column must sum to one; consortia.graphs.mixing_matrix makes such "
                "a matrix from a graph."
            ).at("mixing")
