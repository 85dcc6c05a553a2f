"""Who was analysed, in a report: the flow of rows, Table 1, events and follow-up, and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consortia.data.description import ALL, SiteDescription
from consortia.diagnostics.figures.canvas import MUTED, SERIES, Plot, axes_of, drawing
from consortia.models.regression.curves import Curve, Curves, curves
from consortia.models.regression.participants import BALANCE, Line, TableOne, table_one
from consortia.report.run_report import RunReport
from consortia.report.tables import Table


def participants(report: RunReport) -> tuple[TableOne, Curves | None] | None:
    """Return the sites' descriptions of their participants; None of a run that requested none.

    It is in the record of the run, so that neither study nor rows are needed.
    """
    settings = report.fitted_settings
    entry = settings.get("participants")
    if not isinstance(entry, Mapping):
        return None
    reported = {name: SiteDescription.read(_lists(site)) for name, site in entry["sites"].items()}
    followed = {name: site.followup for name, site in reported.items() if site.followup}
    drawn = None
    if followed and entry.get("times"):
        drawn = curves(followed, entry["times"], entry["kinds"])
    keep, persons = (str(settings.get(name, "")) for name in ("keep", "persons"))
    factors = [*map(str, settings.get("levels") or ())]
    return table_one(reported, entry["rows"], keep, persons, factors), drawn


def _lists(value: Any) -> Any:
    """Return plain values with lists in the place of tuples, as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _lists(entry) for key, entry in value.items()}
    return [_lists(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def participant_tables(table_one: TableOne) -> list[Table]:
    """Return the flow of rows, the missing values, and Table 1, by site and overall."""
    parts = {
        f"Flow of {table_one.unit}": table_one.flow,
        f"Missing values, in {table_one.unit} read": _gaps(table_one.missing),
        f"Table 1: analysed {table_one.unit} by site": table_one.lines,
    }
    if table_one.balance:
        parts["Balance: s" + BALANCE[1:]] = table_one.balance
    heads = ("", *table_one.columns)
    return [
        Table(caption, heads, tuple((table_one.named(line), *line.cells) for line in lines))
        for caption, lines in parts.items()
    ]


def _gaps(lines: Sequence[Line]) -> list[Line]:
    """Return the columns in which values are missing, and one line of all others."""
    gaps = [line for line in lines if {*line.cells} != {"0"}]
    if len(gaps) < len(lines):
        gaps.append(Line(f"all {'other ' * bool(gaps)}columns", "", ("0",) * len(lines[0].cells)))
    return gaps


def curves_table(drawn: Curves) -> Table:
    """Return the estimates at the agreed times."""
    several = len(drawn.kinds) > 1
    heads = ["", "at risk", "follow-up ended", *drawn.kinds, "no event", "95 % interval"]
    heads += [f"incidence of {kind}" for kind in drawn.kinds] if several else []
    rows = []
    for name, curve in drawn.strata.items():
        for j, time in enumerate(curve.times):
            first = f"{time:g}" if name == ALL else f"{name}, {time:g}"
            counts = [curve.at_risk[j], curve.ended[j], *curve.events[j].tolist()]
            cells = [f"{curve.survival[j]:.3f}", f"{curve.lower[j]:.3f} to {curve.upper[j]:.3f}"]
            cells += [f"{value:.3f}" for value in curve.incidence[j]] if several else []
            rows.append((first, *(f"{count:,}" for count in counts), *cells))
    return Table("Kaplan–Meier at the agreed times", tuple(heads), tuple(rows))


def curves_plots(drawn: Curves) -> list[Plot]:
    """Return the curves of no event, and of several causes those of their incidence.

    A single time does not make a curve: it is in the table alone.
    """
    if all(len(curve.times) < 2 for curve in drawn.strata.values()):
        return []
    shown = [_survival_plot(drawn)]
    if len(drawn.kinds) > 1:
        shown.append(_incidence_plot(drawn))
    return shown


def _survival_plot(drawn: Curves) -> Plot:
    with drawing():
        figure, axes = axes_of(6.0, 3.4)
        for colour, (name, curve) in zip(SERIES * 7, drawn.strata.items(), strict=False):
            label = None if name == ALL else name
            _step(axes, curve, curve.survival, 1.0, colour, label)
            axes.fill_between(
                [0, *curve.times], [1, *curve.lower], [1, *curve.upper], step="post", alpha=0.15,
                color=colour, linewidth=0,
            )  # fmt: skip
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("time")
        axes.set_ylabel("probability of no event")
        if len(drawn.strata) > 1:
            axes.legend()
    text = "Kaplan–Meier, with 95 % intervals, at the times on which the sites agreed."
    left = ""
    if drawn.without:
        left = (
            f" Not shown: {', '.join(drawn.without)}, because a cell is too small to be reported."
        )
    return Plot(figure, f"{text} The numbers are in the table.", f"{text}{left}")


def _incidence_plot(drawn: Curves) -> Plot:
    lines = ("-", "--", ":", "-.")
    with drawing():
        figure, axes = axes_of(6.0, 3.4)
        for colour, (name, curve) in zip(SERIES * 7, drawn.strata.items(), strict=False):
            for index, kind in enumerate(drawn.kinds):
                label = kind if name == ALL else f"{kind}, {name}"
                shade = SERIES[index % len(SERIES)] if name == ALL else colour
                _step(axes, curve, curve.incidence[:, index], 0.0, shade, label, lines[index % 4])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("time")
        axes.set_ylabel("cumulative incidence")
        axes.legend()
        axes.tick_params(labelcolor=MUTED)
    text = "Cumulative incidence of each cause in the presence of the others (Aalen–Johansen)."
    return Plot(figure, f"{text} The numbers are in the table.", text)


def _step(
    axes: Any, curve: Curve, values: Any, start: float, colour: str, label: str | None,
    line: str = "-",
) -> None:  # fmt: skip
    axes.step([0, *curve.times], [start, *values], where="post", color=colour, label=label, ls=line)
