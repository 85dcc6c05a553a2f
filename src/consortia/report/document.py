"""A run, or several side by side, as one HTML file that needs nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from consortia.core.version import __version__
from consortia.errors import InputError, StoreError
from consortia.report import plots, short_names, systems
from consortia.report.judgement import HEADLINES, Judgement, Level, judge, verdict
from consortia.report.subject import Subject, load_run
from consortia.report.tables import Table, cost_table, parameter_table, score_table, side_by_side

EXPLANATIONS = {
    Level.GOOD: "Convergence, number of draws and bias were looked at, and nothing speaks against "
    "it.",
    Level.UNKNOWN: "What can be seen from the draws is fine, but they cannot show bias: compare "
    "with a reference, or with a method that is exact.",
    Level.CARE: "Something below is not as it should be; the cards say what, and what to do.",
    Level.BAD: "Something below is wrong; the cards say what, and what to do.",
}


@dataclass(frozen=True)
class Part:
    """A section of the page."""

    key: str
    title: str
    texts: tuple[str, ...] = ()
    plots: tuple[plots.Plot, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    source: str | None = None


@dataclass(frozen=True)
class Chapter:
    """All sections of one run."""

    key: str
    name: str
    lead: str
    level: Level
    judgements: list[Judgement]
    parts: list[Part] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        return HEADLINES[self.level]

    @property
    def explanation(self) -> str:
        """The verdict in two lines."""
        return EXPLANATIONS[self.level]


def write_report(
    runs: str | os.PathLike[str] | Subject | Sequence[str | os.PathLike[str] | Subject],
    output: str | os.PathLike[str],
) -> Path:
    """Writes a report of one run, or of several side by side, as one HTML file.

    The verdict comes first: convergence, number of draws, predicted and measured bias in plain
    words. Then intervals, traces, ranks, predictions, the network and how it behaved, and the cost.
    The file holds its figures and styles; it asks no network for anything.

    Args:
        runs: run directories (finished or not), or what `consortia.report.subject.subject_of` makes
            of results in memory.
        output: the HTML file; one that is there is written over.

    Returns:
        Its path.

    Raises:
        StoreError: a directory holds no run, or no draw yet; or the file cannot be written.
        MissingExtraError: ArviZ's plots are not installed.
    """
    given = [runs] if isinstance(runs, (str, os.PathLike, Subject)) else list(runs)
    if not given:
        raise InputError("runs is empty: give at least one run directory.")
    plots.check_plots()
    subjects = [run if isinstance(run, Subject) else load_run(run) for run in given]
    text = page(_told_apart(subjects))
    target = Path(output)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{str(target)!r} cannot be written: {error}.") from error
    return target


def page(subjects: Sequence[Subject]) -> str:
    """The HTML of a report."""
    import jinja2

    folder = resources.files("consortia.report") / "page"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((folder / "report.html.jinja").read_text(encoding="utf-8"))
    several = len(subjects) > 1
    chapters = [_chapter(subject, f"run-{place}") for place, subject in enumerate(subjects)]
    return template.render(
        css=(folder / "report.css").read_text(encoding="utf-8"),
        version=__version__,
        title=" · ".join(subject.name for subject in subjects)
        if several
        else subjects[0].report.title,
        runs=chapters,
        comparison=_comparison(subjects, chapters) if several else None,
    )


def _told_apart(subjects: Sequence[Subject]) -> list[Subject]:
    """The runs with a number behind names that occur twice."""
    from dataclasses import replace

    names = [subject.name for subject in subjects]
    return [
        replace(subject, name=f"{subject.name} ({names[: place + 1].count(subject.name)})")
        if names.count(subject.name) > 1
        else subject
        for place, subject in enumerate(subjects)
    ]


def _comparison(subjects: Sequence[Subject], chapters: Sequence[Chapter]) -> dict[str, Any]:
    columns, rows = side_by_side(
        subjects, [chapter.headline for chapter in chapters], [c.judgements for c in chapters]
    )
    forest = plots.forest(subjects)
    words = "The same numbers of every run"
    if forest is None:
        words += "; they have no parameter in common whose intervals could be compared."
    else:
        words += (
            ", then the intervals of the parameters that all of them have. Runs of one posterior "
            "should agree."
        )
    return {"columns": columns, "rows": rows, "forest": forest, "words": words}


def _chapter(subject: Subject, key: str) -> Chapter:
    found = judge(subject)
    chapter = Chapter(key, subject.name, _lead(subject), verdict(found), found)
    for part in _parts(subject):
        if part.plots or part.tables or part.notes or part.source:
            chapter.parts.append(
                Part(
                    f"{key}-{part.key}",
                    part.title,
                    part.texts,
                    part.plots,
                    part.tables,
                    part.notes,
                    part.source,
                )
            )
    return chapter


def _lead(subject: Subject) -> str:
    record = subject.record
    chains = f"{subject.chains} chain{'s' if subject.chains > 1 else ''}"
    sites, number = len(record.get("sites", ())), len(subject.report.table)
    where = f" over {sites} site{'s' if sites != 1 else ''}" if sites else ""
    return (
        f"{record.get('algorithm', 'a sampler')}{where}, {chains} of {subject.draws:,} kept draws, "
        f"{number} parameter{'s' if number != 1 else ''}. It samples "
        f"{record.get('samples', 'a law that is not recorded')}."
    )


def _notes(subject: Subject) -> tuple[str, ...]:
    notes = [note for note in subject.report.table.notes if not note.startswith("shift =")]
    if "moments" in subject.tree.children:
        count = subject.tree["moments"].attrs["draws"]
        notes.append(
            f"All numbers are of {subject.draws:,} evenly spaced draws a chain; means and "
            f"variances of all {count:,} are in the group `moments` of the run."
        )
    return tuple(notes)


def _predicted_lines(subject: Subject) -> tuple[str, ...]:
    if subject.prediction is None:
        return ()
    if subject.places is None:
        return tuple(subject.prediction.lines())
    names = dict(zip(subject.places.tolist(), short_names(subject.report.table), strict=True))
    return tuple(subject.prediction.lines([names[place] for place in range(len(names))]))


def _parts(subject: Subject) -> list[Part]:
    _, which = plots.chosen(subject)
    bias, calibration = plots.bias(subject), plots.predictions(subject)
    over_time, network = systems.over_time(subject), systems.network(subject)
    scores = score_table(subject)
    return [
        Part(
            "posterior",
            "The posterior",
            (f"Where the parameters are, and how sure the data make us. Shown: {which}.",),
            tuple(plot for plot in (plots.forest([subject]),) if plot),
            (parameter_table(subject),),
            _notes(subject),
        ),
        Part(
            "bias",
            "Bias, predicted and measured",
            (
                "What the method's oracle says it will do on this posterior, beside what it did "
                "against the reference.",
            ),
            tuple(plot for plot in (bias,) if plot),
            (),
            _predicted_lines(subject),
        ),
        Part(
            "traces",
            "Traces",
            (
                "Every chain in its order, a colour each: they should look like one band of noise. "
                "A chain that drifts or sits still has not found the posterior."
                + (
                    " The dashed line is the reference's mean."
                    if subject.reference is not None
                    else ""
                ),
            ),
            tuple(plots.traces(subject)),
        ),
        Part(
            "ranks",
            "Ranks",
            (
                "The draws of all chains are ranked together; if the chains agree, each has its "
                "fair share of low and high ranks and its line stays within the grey band 19 times "
                "of 20. Draws are thinned first, as far as they depend on one another.",
            ),
            tuple(plots.ranks(subject)),
        ),
        Part(
            "predictions",
            "Predictions",
            (f"On {subject.report.held_out_rows:,} rows that no site has seen.",),
            tuple(plot for plot in (calibration,) if plot),
            () if scores is None else (scores,),
        ),
        Part(
            "network",
            "The network",
            (systems.words(subject),),
            tuple(plot for plot in (network, over_time) if plot),
        ),
        Part(
            "cost",
            "What it cost",
            ("In all chains together; an effective draw is worth as much as an independent one.",),
            (),
            (cost_table(subject),),
            tuple(f"Not done: {line}" for line in subject.report.skipped),
            subject.study,
        ),
    ]
