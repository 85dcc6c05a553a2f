"""A study's run from its plan to its report: sampled, summarised, drawn and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consortia.errors import InputError, MissingExtraError
from consortia.store.durable import replace_file, writing
from consortia.study.reference import left_away, reference_of, stored
from consortia.study.runs import LEFT_OUT

if TYPE_CHECKING:
    from consortia.models.regression.estimates import Estimates
    from consortia.models.regression.heterogeneity import SiteEffects
    from consortia.models.regression.margins import MarginalEffects
    from consortia.report.run_report import RunReport
    from consortia.run.verification import Verification
    from consortia.study.build import Built, Study
    from consortia.study.reference import Aside

ESTIMATES, FOREST = "estimates.txt", "forest.png"
GO_ON = "interrupted; resume it with: consortia resume {}"


def sample_and_report(
    study: Study,
    built: Built,
    directory: Path,
    begin: Callable[..., Any],
    *,
    request: Callable[[], None],
    reference: bool,
    quiet: bool,
    aside: Aside | None = None,
    verify: Callable[[Any], Verification | None] | None = None,
    leave_out: Callable[[Any], str | None] | None = None,
) -> bool:
    """Sample, compare, write and show; return False if the run was interrupted.

    Args:
        study: the study.
        built: its objects.
        directory: of the run.
        begin: `consortia.study.runs.beginning`, or `consortia.resume` of the directory.
        request: called before the sampler is compiled: writes what a resumed run is made from.
        reference: sample the study's reference too.
        aside: a process that is at it already.
        verify: compares the finished run with an exact sampler, see
            `consortia.study.runs.compared_over`; or None.
        leave_out: says what is known of rows and sites that are left out.
        quiet: print errors only.
    """
    from consortia.report.terminal import console_of, plan_panel

    console = console_of(quiet=quiet)

    def on_plan(plan: Any) -> None:
        if built.regression is not None:
            console.print(str(built.regression), markup=False, highlight=False)
        console.print(plan_panel(study.title or study.name, plan))
        request()

    tree = begin(built.model, built.sites, built.algorithm, progress=not quiet, on_plan=on_plan)
    check = None if verify is None else verify(tree)
    without: str | None = None
    skipped: list[str] = []
    if leave_out is not None:
        try:
            without = leave_out(tree)
        except InputError as error:  # of the draws: the run itself is as good as without it
            skipped = [f"leaving out rows and sites: {error}"]
    if tree is None:
        return True
    if without is not None:
        with writing(directory):
            replace_file(directory / LEFT_OUT, [f"{without}\n".encode()])
    given = (study, built, directory, tree, console)
    return _report(
        *given, reference=reference, aside=aside, check=check, without=without, skipped=skipped
    )


def _report(
    study: Study,
    built: Built,
    directory: Path,
    tree: Any,
    console: Any,
    *,
    reference: bool,
    aside: Aside | None,
    check: Verification | None,
    without: str | None,
    skipped: list[str],
) -> bool:
    """Write reference, summary and figure of a run; return False if it was interrupted."""
    from consortia.report.run_report import REFERENCE, report_of
    from consortia.report.tables import text_of
    from consortia.report.terminal import report_tables

    interrupted = tree.attrs["state"] == "interrupted"
    if "posterior" not in tree.children:
        console.print("no draw was kept")
        console.print(GO_ON.format(directory), soft_wrap=True)
        return False

    compared, stein, skipped = None, None, [*built.skipped, *skipped]
    if check is not None:
        stein = check.stein
        skipped += check.skipped
        _keep_verification(directory, check)
    if check is not None and check.reference is not None:
        compared = stored(directory / REFERENCE, check.reference, built)
    elif study.reference is None:
        pass  # none is wanted
    elif why := left_away(built, wanted=reference):
        skipped.append(f"reference: {why}")
    elif interrupted:
        skipped.append("reference: the run was interrupted")
    else:
        with console.status("sampling the reference: NUTS on the pooled data ..."):
            try:
                compared = reference_of(study, built, directory / REFERENCE, aside)
            except MissingExtraError as error:
                skipped.append(f"reference: {error}")
            except KeyboardInterrupt:
                interrupted = True
                skipped.append("reference: interrupted")
    figure = _figure_wanted(study, skipped)
    margins = _margins_of(built, tree, skipped)
    report = report_of(
        tree,
        name=directory.name,
        title=study.title or study.name,
        model=built.model,
        algorithm=built.algorithm,
        held_out=built.held_out,
        labels=built.labels,
        reference=compared,
        skipped=tuple(skipped),
        stein=stein,
    )
    with writing(directory):
        replace_file(directory / "summary.txt", [text_of(report).encode()])
        replace_file(directory / "summary.json", [report.json().encode()])
    console.print(report_tables(report))
    if without is not None:
        console.print(f"\n{without}\n", markup=False, highlight=False)
    if built.regression is not None and built.regression.names:
        effects: list[Estimates | SiteEffects] = [built.regression.estimates(tree)]
        if built.regression.differs_by_site:
            effects.append(built.regression.by_site(tree))
        text = "\n\n".join(map(str, effects))
        written = text
        if margins is not None:
            text, written = f"{text}\n\n{margins.over_all}", f"{text}\n\n{margins}"
        (directory / ESTIMATES).write_text(f"{written}\n", encoding="utf-8")
        console.print(text, markup=False, highlight=False)
        if figure:
            path = effects[-1].forest(directory / FOREST, study.title or study.name)
            console.print(f"forest plot: {path}", soft_wrap=True)
    if figure:  # the table does not wait for it
        _draw(report, directory)
    console.print(
        f"written to {directory}: {', '.join(sorted(p.name for p in directory.iterdir()))}"
    )
    if interrupted:
        console.print(GO_ON.format(directory), soft_wrap=True)
        return False
    console.print(f"view it with: consortia report {directory}", soft_wrap=True)
    return True


def _margins_of(built: Built, tree: Any, skipped: list[str]) -> MarginalEffects | None:
    from consortia.report.effects import MARGINAL_DRAWS

    if built.regression is None or not built.regression.has_margins:
        return None
    try:
        return built.regression.marginal_effects(tree, draws=MARGINAL_DRAWS)
    except InputError as error:  # of rows beside which there are none: the run is as good without
        skipped.append(f"marginal effects: {error}")
        return None


def _keep_verification(directory: Path, check: Verification) -> None:
    from consortia.report.run_report import VERIFICATION

    stein = None if check.stein is None else check.stein.plain()
    content = {"stein": stein, "skipped": list(check.skipped)}
    with writing(directory):
        replace_file(directory / VERIFICATION, [json.dumps(content, indent=1).encode()])


def _figure_wanted(study: Study, skipped: list[str]) -> bool:
    from consortia.diagnostics.figures.canvas import skip_docstrings

    if not study.output.figure:
        skipped.append("figure: output.figure = false")
        return False
    try:
        skip_docstrings()
    except MissingExtraError as error:
        skipped.append(f"figure: {error}")
        return False
    return True


def _draw(report: RunReport, directory: Path) -> None:
    from consortia.report.document import write_figures

    with writing(directory):
        write_figures(report, directory)
