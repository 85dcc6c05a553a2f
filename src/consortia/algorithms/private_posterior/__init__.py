r"""A posterior under differential privacy, in a few messages.

Every row's gradient and curvature are clipped and rounded to integers, the sites add discrete
Gaussian noise to their sums, and the server takes Newton steps from what it receives. The last
message has most of the budget: at θ near the mode it gives g = ∇(−log L)(θ) + N, with noise N of
known variance, and the curvature A. With those of the prior added, H = A + A₀, the result is

.. math:: \mathrm{N}\bigl(\theta - H^{-1} g,\; H^{-1} + H^{-1}\,\mathrm{Cov}(N)\,H^{-1}\bigr)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from consortia.algorithms.private_posterior.stages import DRAWS, MOST_ROWS, STAGES, default_clip
from consortia.core import arguments
from consortia.core.contract import Claims, Cost
from consortia.core.privacy import loss_of
from consortia.core.queries import Conversation, Conversing, Known, SiteFunction, Size
from consortia.errors import InputError, wrong

UNITS = ("row",)


@dataclass(frozen=True, kw_only=True)
class PrivatePosterior(Conversation):
    r"""A Gaussian posterior whose messages are (ε, δ) differentially private.

    **Samples** a normal distribution around the posterior's mode, widened by the known variance of
    the noise that protects the rows. It approximates the posterior, better with more rows; the
    attribute ``wider`` says how much wider its intervals are than without noise.

    **Draw**: θ, independent of all others.

    **Step size**: none.

    Two data sets are neighbours if one row is an empty row in the other (`consortia.core.privacy`).
    The guarantee holds for all messages of the run together. It does not cover what the sites send
    beforehand: numbers of rows, names of columns, the least and largest response, and moments and
    levels of a formula or of data.standardise; scale columns by published numbers instead. A site's
    ledger adds up what was spent on the same rows, over runs and studies. The accountant is that of
    dp-accounting, for Rényi divergences: the extra ``privacy``.

    Args:
        epsilon: ε, .001 to 10⁵.
        delta: δ, smaller than one over the number of rows.
        unit: what is protected; a row.
        clip: Euclidean norm to which the gradient of each row is clipped; 1.25 √d when None,
            for columns with a standard deviation of about one. Clipping of many rows biases the
            result, and a large value widens it; the share of clipped rows is reported with noise.
        honest: share of the sites that are trusted to add noise, with an engine that reveals sums
            only. If None, each site's messages are protected by its own noise alone, and the noise
            of the sum is √S times as large with S sites.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> PrivatePosterior(epsilon=1.0, delta=1e-6).name
        'private_posterior'

    Source: ours; discrete Gaussian noise after Canonne, Kamath, Steinke (2020).
    """

    epsilon: float
    delta: float
    unit: str = "row"
    clip: float | None = None
    honest: float | None = None

    name = "private_posterior"
    step_size = None
    most_rounds = 1
    most_messages = len(STAGES)
    needs_rows = True
    claims = Claims(
        samples="a normal approximation of the posterior, widened by the noise of the messages",
        bias="O(1/n), and that of clipped rows; all messages are differentially private",
        draw="an independent draw of the normal",
        step_size="none",
        source="ours; discrete Gaussian noise after Canonne, Kamath, Steinke (2020)",
    )

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise wrong("unit", f" is {self.unit!r}, expected 'row'.")
        arguments.keep(
            self,
            epsilon=arguments.number("epsilon", self.epsilon, 1e-3, 1e5),
            delta=arguments.number("delta", self.delta, 1e-30, 0.1),
            clip=None if self.clip is None else arguments.positive("clip", self.clip, 1e9),
            honest=arguments.optional_number("honest", self.honest, 0.01, 1.0),
        )

    @property
    def functions(self) -> Mapping[str, SiteFunction]:  # type: ignore[override]
        """Clipped sums with noise, of each stage."""
        from consortia.algorithms.private_posterior.stages import functions_of

        return functions_of(loss_of(self.epsilon, self.delta), self.clip, self.honest)

    def usual_messages(self, dimension: int) -> int:
        """Return the number of stages."""
        return len(STAGES)

    def message_sizes(self, dimension: int) -> Mapping[str, Size]:
        """Return the sizes of gradients, and of gradients with curvatures."""
        triangle = dimension * (dimension + 1) // 2
        return {
            stage.name: Size(dimension + 2, dimension + 1 + stage.curved * triangle)
            for stage in STAGES
        }

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse sites whose integers could overflow, and a δ that protects nobody.

        Raises:
            InputError: the same.
            MissingExtraError: the accountant is not installed.
        """
        loss_of(self.epsilon, self.delta)  # a missing accountant is named before any query
        if int(sizes.sum()) > MOST_ROWS:
            raise InputError(
                f"private_posterior: there are {int(sizes.sum()):,} rows, more than {MOST_ROWS:,}: "
                "sums of 32-bit integers would not be exact."
            )
        if self.delta * int(sizes.sum()) >= 1:
            raise InputError(
                f"private_posterior: delta is {self.delta:g} with {int(sizes.sum()):,} rows: one "
                "row could be published unchanged. Give a delta well below one over their number."
            ).at("delta")

    def cost(self, sizes: np.ndarray, dimension: int) -> Cost:
        """Return one gradient a site and message."""
        return Cost(len(STAGES) * len(sizes), len(STAGES) * int(sizes.sum()))

    def converse(self, known: Known) -> Conversing:
        """Yield the queries of all stages, and independent draws."""
        from consortia.algorithms.private_posterior.algorithm import converse

        clip = default_clip(known.target.dimension) if self.clip is None else self.clip
        return converse(known, self.functions, clip=clip, delta=self.delta, honest=self.honest)


private_posterior = PrivatePosterior

__all__ = ["DRAWS", "PrivatePosterior", "private_posterior"]
