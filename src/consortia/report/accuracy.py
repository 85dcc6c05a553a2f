"""Accuracy of the predictions of a run: calibration, and how well they tell rows apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from consortia.diagnostics.figures.canvas import RULE, SERIES, Plot, axes_of, cut, drawing
from consortia.report.run_report import HeldOutScores, RunReport

GROUPS = 10
"""Number of groups of equally many rows, by their probability of the event."""

LEAST_OF_GROUP = 8
"""Rows of a group."""

Side = tuple[HeldOutScores, str, str, str]
"""Predictions, colour, marker and name."""


@contextmanager
def _diagonal(ends: tuple[float, float], x: str, y: str, legend: str) -> Iterator[Any]:
    """Give axes with a dashed diagonal, on which both are equal; then write labels and legend."""
    with drawing():
        _, axes = axes_of(4.2, 3.2)
        axes.plot(ends, ends, color=RULE, linewidth=0.8, linestyle="--")
        yield axes
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.legend(loc=legend, fontsize=9)


def shown_rows(report: RunReport) -> str:
    """Describe the predicted rows in a sentence; "" where there are none."""
    if report.scores is not None:
        return f"On {report.held_out_rows:,} rows that no site has seen."
    if report.fitted is None or report.fitted.event is None:
        return ""
    return (
        f"On {len(report.fitted.event):,} of the rows to which the model was fitted: predictions "
        "for new rows are less accurate (test_share in [data] holds rows out)."
    )


def predictions(report: RunReport) -> Plot | None:
    """Return the calibration of a classifier, or predicted against observed of a regression."""
    sides, observed = _sides(report)
    if not sides:
        return None
    run_scores = sides[-1][0]
    if run_scores.event is not None and observed is not None:
        return _calibration_of_events(sides, observed)
    if report.scores is None:
        return None
    if run_scores.curve is not None:
        x, y = "probability of the predicted class", "share of correct predictions"
        with _diagonal((0, 1), x, y, "lower right") as axes:
            _calibration(axes, sides, report.held_out_rows)
        for handle in axes.get_legend().legend_handles:
            handle.set_sizes([40])
        return Plot(
            axes.figure,
            "Calibration curve: share of correct predictions against their predicted "
            f"probability; calibration error {run_scores.values['ece']:.3f}.",
            "On the dashed line the predicted probabilities are calibrated. Mark sizes show "
            "numbers of rows, bars 90 % intervals.",
        )
    if run_scores.means is None or observed is None:
        return None
    every = np.concatenate([observed, run_scores.means])
    ends = every.min(), every.max()
    with _diagonal(ends, "predicted mean", "observed", "upper left") as axes:
        for scores, colour, marker, label in sides:
            axes.plot(scores.means, observed, marker, color=colour, markersize=3.5, label=label)
    return Plot(
        axes.figure,
        f"Observed against predicted; RMSE {run_scores.values['rmse']:.3g}.",
        "On the dashed line the predicted mean equals the observed value.",
    )


def roc(report: RunReport) -> Plot | None:
    """Return the receiver operating characteristic of the event; None without both outcomes."""
    sides, observed = _sides(report)
    if not sides or sides[-1][0].event is None or observed is None or np.ptp(observed) == 0:
        return None
    rates = "false positive rate", "true positive rate"
    with _diagonal((0, 1), *rates, "lower right") as axes:
        for scores, colour, _, label in sides:
            assert scores.event is not None  # as of the last of them
            wrong, right = above_thresholds(observed != 0, scores.event)
            area = np.trapezoid(right, wrong)
            axes.plot(wrong, right, color=colour, label=f"{label}: AUC {area:.3f}")
    return Plot(
        axes.figure,
        f"Receiver operating characteristic; area under the curve {area:.3f}.",
        f"How well the probabilities discriminate: in {100 * area:.0f} % of pairs of an event and "
        f"a non-event, the event has the higher one (AUC {area:.3f}); 50 % would be chance.",
    )


def above_thresholds(event: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of the others and of the events at or above each score, from none on."""
    order = np.argsort(-score, kind="stable")
    last = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)  # of equal scores
    events = np.cumsum(event[order])[last]
    others = last + 1 - events
    return tuple(np.append(0, count / count[-1]) for count in (others, events))  # type: ignore[return-value]


def _sides(report: RunReport) -> tuple[list[Side], np.ndarray | None]:
    """Return whose predictions are shown, the run's own last, and what was observed."""
    scores, observed = report.scores, report.observed
    if scores is None:
        scores, observed = report.fitted, report.fitted_observed
    if scores is None:
        return [], None
    sides: list[Side] = [(scores, SERIES[0], "o", cut(report.name))]
    if report.scores is not None and report.reference_scores is not None:
        sides.insert(0, (report.reference_scores, SERIES[1], "D", "reference"))
    return sides, None if observed is None else np.asarray(observed)


def _calibration_of_events(sides: Sequence[Side], observed: np.ndarray) -> Plot:
    """Return observed shares of events by groups of rows with like probabilities."""
    x, y = "predicted probability of the event", "observed share of events"
    with _diagonal((0, 1), x, y, "upper left") as axes:
        for scores, colour, marker, label in sides:
            assert scores.event is not None
            order = np.argsort(scores.event, kind="stable")
            groups = np.array_split(order, max(1, min(GROUPS, len(order) // LEAST_OF_GROUP)))
            predicted = np.array([scores.event[group].mean() for group in groups])
            seen = np.array([observed[group].mean() for group in groups])
            low, high = _wilson(seen, np.array([len(group) for group in groups]))
            axes.vlines(predicted, low, high, color=colour, linewidth=0.9, alpha=0.6)
            axes.plot(predicted, seen, marker, color=colour, markersize=5, label=label)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
    return Plot(
        axes.figure,
        f"Calibration: observed share of events against predicted probability, in {len(groups)} "
        "groups of rows.",
        f"Rows in {len(groups)} groups by predicted probability: the dashed line is perfect "
        "calibration. Bars are 90 % intervals.",
    )


def _calibration(axes: Any, sides: Sequence[Side], rows: int) -> None:
    """Draw the share of right predictions against their probability; the last side with bars."""
    least, lowest = 1.0, 1.0
    for number, (scores, colour, marker, label) in enumerate(sides, start=1):
        assert scores.curve is not None
        filled = scores.curve[2] > 0
        confidence, correct, share = (values[filled] for values in scores.curve)
        least, lowest = min(least, confidence.min()), min(lowest, correct.min())
        axes.plot(confidence, correct, color=colour, linewidth=1.2, zorder=2)
        axes.scatter(
            confidence,
            correct,
            s=18 + 260 * share,
            color=colour,
            marker=marker,
            alpha=0.8,
            label=label,
            zorder=3,
        )
        if number == len(sides):
            low, high = _wilson(correct, share * rows)
            axes.vlines(confidence, low, high, color=colour, linewidth=0.9, alpha=0.6)
            lowest = min(lowest, low.min())
    axes.set_xlim(least - 0.03, 1.02)
    axes.set_ylim(lowest - 0.05, 1.05)


def _wilson(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Wilson's 90 % interval of a binomial share."""
    z2 = 1.645**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = np.sqrt(z2 * (share * (1 - share) / count + z2 / (4 * count**2))) / (1 + z2 / count)
    return middle - half, middle + half
