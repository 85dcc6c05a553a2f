"""Pictures of a report: what is written beside an axis can be read."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from consortia.report.plots import Intervals, _forest

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    ("low", "high"), [(0.0891, 0.1049), (-0.00123, -0.00019), (1234.1, 1236.9), (-1.0, 2.0)]
)
def test_labels_of_an_axis_do_not_overlap(low: float, high: float) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    ends = np.linspace(low, high, 4)[:, None]
    figure = _forest({"run": Intervals(ends, ends.mean(axis=0))}, [0], ["age"])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    labels = [label for label in figure.axes[1].get_xticklabels() if label.get_text()]
    boxes = [label.get_window_extent(canvas.get_renderer()) for label in labels]
    inside = [box for box in boxes if figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1]
    assert len(inside) >= 2
    digit = boxes[0].width / len(labels[0].get_text())
    assert all(right.x0 - left.x1 > digit for left, right in pairwise(inside))
