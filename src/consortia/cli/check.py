"""``consortia check STUDY.toml``: the plan, cost and bias of a run before it starts."""

from __future__ import annotations

import contextlib
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortia.cli.exits import BAD, reported
from consortia.cli.options import Chains, Code, Json, Rounds, Seed, StudyFile
from consortia.core.printable import printable
from consortia.errors import InputError

if TYPE_CHECKING:
    from consortia.core.contract import Plan
    from consortia.study.build import Built, Study

TIMED_SECONDS = 3.0
"""Time for which `--time` runs a study, after a third of it that compiles; chosen, not measured."""

SHOWN = 5
"""Settings that a table of `check` has."""

INTEGRATE = (
    "The sites' levels and slopes are parameters of the run. Without `integrate = false` each site "
    "integrates its own out, which takes fewer messages."
)


class _Planned(BaseException):
    """Ends `consortia.sample` where the sampler would be compiled."""


def check(
    study: StudyFile,
    seed: Seed = None,
    chains: Chains = None,
    rounds: Rounds = None,
    bias: Annotated[
        bool, typer.Option("--bias/--no-bias", help="Predict the bias, from the posterior's mode.")
    ] = True,
    time: Annotated[
        bool,
        typer.Option(
            "--time", help="Time some rounds on this machine and estimate how long the run takes."
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw bias against messages of the methods that could do it: FILE.png or .svg.",
        ),
    ] = None,
    code: Code = False,
    as_json: Json = False,
) -> None:
    """Validate a study; print its plan, cost and predicted bias, without running it.

    A study may name a function of its own for the model, a factory: it is code, it runs with your
    rights. One that you have not run before is run with --code only.
    """
    with reported(quiet=as_json):
        from consortia.diagnostics.figures.canvas import check_picture
        from consortia.models.regression.construction import integrable
        from consortia.study.build import load_study
        from consortia.study.code import WARNING, may_run

        if plot is not None:
            check_picture(plot)
        given = load_study(study).with_run(seed=seed, chains=chains, rounds=rounds)
        if not may_run(*given.code, code=code):
            left_out = (
                f"the factory {given.model.factory} was not run, so there is no plan, cost or "
                f"bias: {WARNING}. Read it, then pass --code."
            )
            if as_json:
                typer.echo(json.dumps({"study": str(study), "left_out": left_out}))
            else:
                typer.echo(f"{study} is a study; {printable(left_out)}")
            return
        built = given.build()
        plan = plan_of(given, built, bias=bias)
        if built.regression is not None and integrable(built.regression.specification):
            plan = replace(plan, warnings=(*plan.warnings, INTEGRATE))
        built = replace(built, algorithm=plan.details.get("method", built.algorithm))
        costs = cost(given, built, plan)
        if time:
            costs |= seconds(given, built, costs["iterations"])
        verdict = prediction = None
        if bias:
            from consortia.diagnostics.verdict import Severity, judge, readings_in
            from consortia.theory.bias import predict_bias

            prediction = plan.details["prediction"]
            if prediction.open:  # perhaps since it is not predicted by default
                prediction = predict_bias(built.model, built.rows, built.algorithm)
            of_all_chains = given.run.rounds * given.run.chains
            doubts = readings_in({"settings": built.metadata.settings}, "doubts")
            kept = costs["draws_kept"] or None
            verdict = judge(prediction, rounds=of_all_chains, draws=kept, doubts=doubts)
        drawn = [] if plot is None else compared(built, given.run.chains, plot)
        if as_json:
            answer: dict[str, Any] = {"study": str(study), "plan": dict(plan.lines)}
            answer |= {"notes": plan.warnings}
            if built.regression is not None:
                answer |= {"regression": dict(built.regression.metadata.settings)}
            answer |= {"cost": costs, "bias": None if prediction is None else prediction.plain()}
            if tried := plan.details.get("tried"):
                answer["settings"] = [setting.plain() for setting in tried[:SHOWN]]
            typer.echo(json.dumps(answer | (verdict.plain() if verdict else {}), indent=1))
        else:
            if built.regression is not None:
                typer.echo(str(built.regression))
            _show(given, plan, costs, prediction, built, verdict)
            for line in drawn:
                typer.echo(printable(line))
    if verdict is not None and verdict.severity is Severity.BAD:
        raise typer.Exit(BAD)


def plan_of(study: Study, built: Built, *, bias: bool = True) -> Plan:
    """Return the plan of a study's run, with all checks that a run makes; nothing is sampled."""
    from consortia.diagnostics.verdict import Severity
    from consortia.run.sampling import sample

    plans: list[Plan] = []

    def on_plan(plan: Plan) -> None:
        plans.append(plan)
        raise _Planned

    # What is predicted is shown with the verdict.
    with contextlib.suppress(_Planned), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=Severity.BAD.forecast)
        sample(
            built.model,
            built.sites,
            built.algorithm,
            **study.run_options,
            stop=built.stop,
            progress=False,
            on_divergence="warn" if bias else "ignore",
            on_plan=on_plan,
        )
    return plans[0]


def compared(built: Built, chains: int, path: Path) -> list[str]:
    """Draw bias against messages of the methods that could sample the posterior.

    Returns:
        Where it is, and which methods are left out and why, in lines.

    Raises:
        InputError: the posterior has no mode, too many parameters, or no likelihood of rows, which
            the laws need.
    """
    from consortia.algorithms.few_rounds import FewRounds
    from consortia.core.target import Target
    from consortia.diagnostics.figures.comparison import draw_comparison
    from consortia.run.conversation import usual_messages
    from consortia.theory import comparison
    from consortia.theory.bias import Problem
    from consortia.theory.tuning import BiasTarget

    if built.model.site_log_likelihood is not None:
        raise InputError(
            "--plot: the laws of approximate methods need a likelihood of rows, and this model has "
            "one of whole sites (levels that are integrated out, or cox). few_rounds and "
            "federated_hmc sample it exactly."
        )
    problem, study = Problem(built.model, built.rows), None
    curves, reasons = comparison.curves(
        Problem(built.model, built.rows, from_mode=True), BiasTarget(), chains
    )
    exact = {
        "few_rounds": float(usual_messages(FewRounds(), Target(built.model, problem.start))),
        "federated_hmc": comparison.exact_messages(problem, chains),
    }
    with contextlib.suppress(InputError):  # what is exact, or has no law, has no point
        study = comparison.point(built.algorithm, problem, chains)
    draw_comparison(curves, exact, path, study=study)
    left_out = (f"  without {name}: {reason}" for name, reason in reasons.items())
    return [f"Bias against messages: {path}", *left_out]


def cost(study: Study, built: Built, plan: Plan) -> dict[str, Any]:
    """Estimate the cost of the whole run, with the longest rounds that it may have."""
    import numpy as np

    from consortia.core.queries import Conversation
    from consortia.core.start import starting_parameters
    from consortia.core.target import Target
    from consortia.engines.mailbox import servers_of
    from consortia.run.plan import cost_of
    from consortia.store.accumulators import keep_moments
    from consortia.theory.tuning import completed

    run, times = study.run, max(built.imputations, 1)
    if isinstance(built.algorithm, Conversation):  # its points and draws are not known
        messages, up, down = plan.whole
        whole = {"iterations": messages, "communication_rounds": messages, "bytes_up": up}
        whole |= {"bytes_down": down, "bytes_sent": up + down, "gradients": 0, "row_gradients": 0}
        whole |= {"draws": 0, "draws_kept": 0, "bytes_of_draws": 0}
        return {name: times * value for name, value in whole.items()}
    start = starting_parameters(built.model, None, run.seed, 1)[0]
    target = Target(built.model, start)
    algorithm = completed(built.algorithm, target.dimension).build(target)
    chains, done = run.chains * servers_of(algorithm), run.warmup + run.rounds
    whole = cost_of(plan, built.algorithm, target, built.rows, chains, done, done)
    draws = run.rounds * algorithm.draws.per_iteration // run.thin
    kept = draws if run.keep == "draws" else min(draws, keep_moments().draws_kept(target, chains))
    copies = 1 + (len(built.rows) if algorithm.draws.agents else 0)
    whole["iterations"] = whole.pop("iterations_run")
    whole["draws"], whole["draws_kept"] = draws * chains, kept * chains
    whole["bytes_of_draws"] = (
        kept * chains * target.dimension * np.dtype(target.dtype).itemsize * copies
    )
    return {name: times * value for name, value in whole.items()}


def seconds(study: Study, built: Built, iterations: int) -> dict[str, Any]:
    """Return the iterations a second on this machine, once compiled, and the run's seconds."""
    from consortia.core.contract import Adaptive
    from consortia.core.queries import Conversation
    from consortia.run.sampling import sample
    from consortia.run.stopping import stop_when

    run = study.run
    learns = isinstance(built.algorithm, Adaptive) and built.algorithm.adapts
    warmup = run.warmup if learns else 0
    options: dict[str, Any] = {"chains": run.chains, "seed": run.seed, "progress": False}
    options["on_divergence"] = "ignore"
    options |= {"thin": run.thin, "warmup": warmup}
    parts = (built.model, built.rows, built.algorithm)
    stop = stop_when(budget=TIMED_SECONDS / 3, every=4)
    sample(*parts, rounds=run.rounds, stop=stop, **options)  # compiles
    stop = stop_when(budget=TIMED_SECONDS, every=4)
    record = sample(*parts, rounds=run.rounds, stop=stop, **options).attrs
    queries = isinstance(built.algorithm, Conversation)
    rate = record["communication_rounds" if queries else "iterations_run"] / record["seconds"]
    return {"iterations_per_second": rate, "seconds": iterations / rate}


# --- what is printed -----------------------------------------------------------------------------


def _show(
    study: Study, plan: Plan, costs: dict[str, Any], prediction: Any, built: Built, verdict: Any
) -> None:
    from rich.markup import escape

    from consortia.core.queries import Conversation
    from consortia.report.terminal import (
        console_of,
        grid_of,
        plan_panel,
        settings_table,
        verdict_text,
    )

    console = console_of()
    console.print(plan_panel(study.title or study.name, plan))
    if tried := plan.details.get("tried"):
        console.print(settings_table(tried[:SHOWN]))
    heading, remark = "Cost of the whole run", ""
    if study.stop:
        remark = " at most: the study has a [stop]"
    elif isinstance(study.method, Conversation):
        heading, remark = "Typical cost", " (the run stops when it has enough draws)"
    console.print(f"[bold]{heading}[/]{remark}", grid_of(cost_lines(costs)))
    if prediction is not None:
        # what is predicted has other names than natural quantities, but for those of ready models
        natural = built.model.natural is not None and study.model.kind is None
        names = () if natural else [_labelled(name, built.labels) for name in prediction.names]
        lines = prediction.lines(names)
        console.print("", "[bold]Bias of the method[/]", *map(escape, lines), sep="\n")
    if verdict is not None:
        console.print("", verdict_text(verdict), sep="\n")
        if prediction.diverges:
            console.print("`consortia run` refuses these settings; --anyway runs them.")
            return
    console.print("", "Run it with: consortia run " + escape(str(study.path)), sep="\n")


def cost_lines(costs: dict[str, Any]) -> list[tuple[str, str]]:
    """Return label and value of each cost."""
    draws = f"{costs['draws']:,}"
    if costs["draws_kept"] < costs["draws"]:
        draws += f", at most {costs['draws_kept']:,} kept"
    lines = [
        ("messages", f"{costs['communication_rounds']:,} each way, warm-up included"),
        ("bytes", f"{costs['bytes_up']:,} up, {costs['bytes_down']:,} down, all chains"),
    ]
    if costs["draws"]:  # what a conversation computes and draws is not known before
        lines += [
            ("gradients", f"{costs['gradients']:,} of a site, {costs['row_gradients']:,} rows"),
            ("draws", f"{draws}, {costs['bytes_of_draws'] / 1e6:,.1f} MB"),
        ]
    if "seconds" in costs:
        lines.append(
            (
                "time",
                f"about {costs['seconds']:,.0f} s here, at {costs['iterations_per_second']:,.0f} "
                "rounds a second; compilation, diagnostics and the reference take more time",
            )
        )
    return lines


def _labelled(name: str, labels: Any) -> str:
    """Return the name of a coordinate with the study's labels in the place of indices."""
    variable, _, inside = name.partition("[")
    places = inside.removesuffix("]").split(", ") if inside else []
    axes = zip(range(-1, -len(places) - 1, -1), reversed(labels.get(variable, ())), strict=False)
    for axis, words in axes:
        if words is not None and int(places[axis]) < len(words):
            places[axis] = words[int(places[axis])]
    return f"{variable}[{', '.join(places)}]" if places else variable
