"""The distance of two Gaussian laws."""

from __future__ import annotations

from typing import Any

import numpy as np

from consortia.errors import InputError


def gaussian_wasserstein2(mean_a: Any, cov_a: Any, mean_b: Any, cov_b: Any) -> float:
    r"""Return the 2-Wasserstein distance of two Gaussian laws, in closed form.

    .. math:: W_2^2 = \|m_a - m_b\|^2
              + \operatorname{tr}\!\big(A + B - 2\,(B^{1/2} A B^{1/2})^{1/2}\big)

    Args:
        mean_a: (d,), or a number for d = 1.
        cov_a: covariance (d, d), or the variances (d,) of a diagonal one.
        mean_b: as ``mean_a``.
        cov_b: as ``cov_a``.

    Returns:
        W₂, not its square.

    Raises:
        InputError: shapes that do not fit, or a covariance that is not positive semidefinite.

    Example:
        >>> gaussian_wasserstein2(0.0, 1.0, 3.0, 25.0)
        5.0
    """
    m_a, m_b, a, b = (
        np.atleast_1d(np.asarray(value, np.float64)) for value in (mean_a, mean_b, cov_a, cov_b)
    )
    d = m_a.size
    if m_a.shape != (d,) or m_b.shape != (d,) or any(c.shape not in ((d,), (d, d)) for c in (a, b)):
        raise InputError(
            f"gaussian_wasserstein2: means of shapes {m_a.shape}, {m_b.shape} and covariances of "
            f"shapes {a.shape}, {b.shape}: give (d,) and (d, d) or (d,)."
        ).at("mean_a")
    for name, c in (("cov_a", a), ("cov_b", b)):
        if c.ndim == 2 and not np.allclose(c, c.T, rtol=1e-6, atol=1e-12):
            raise InputError(f"gaussian_wasserstein2: {name} is not symmetric.").at(name)
        values = c if c.ndim == 1 else np.linalg.eigvalsh(c)
        if not np.all(np.isfinite(values)) or values.min() < -1e-10 * max(1.0, values.max()):
            raise InputError(
                f"gaussian_wasserstein2: {name} is not a covariance (smallest eigenvalue "
                f"{values.min():.3g})."
            ).at(name)
    shift = float(np.sum((m_a - m_b) ** 2))
    if a.ndim == b.ndim == 1:
        return float(np.sqrt(shift + np.sum((np.sqrt(a) - np.sqrt(b)) ** 2)))
    a, b = (np.diag(c) if c.ndim == 1 else c for c in (a, b))
    values, vectors = np.linalg.eigh(b)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ a @ root), 0)).sum()
    squared = shift + np.trace(a) + np.trace(b) - 2 * cross
    return float(np.sqrt(max(squared, 0.0)))
