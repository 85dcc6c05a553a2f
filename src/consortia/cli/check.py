"""``consortia check STUDY.toml``: the plan, cost and bias of a run before it starts."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Chains, Json, Rounds, Seed, StudyFile

if TYPE_CHECKING:
    from consortia.core.contract import Plan
    from consortia.study.build import Built, Study

TIMED_SECONDS = 3.0


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
        typer.Option("--time", help="Run for some seconds on this machine to say how long it is."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Validate a study; print its plan, cost and predicted bias, without running it."""
    with reported(as_json):
        from consortia.study.build import load_study

        given = load_study(study).with_run(seed=seed, chains=chains, rounds=rounds)
        built = given.build()
        plan = plan_of(given, built)
        costs = cost(given, built, plan)
        if time:
            costs |= seconds(given, built)
        prediction = None
        if bias:
            from consortia.theory.bias import predict_bias

            prediction = predict_bias(built.model, built.sites, built.algorithm)
        if as_json:
            found = {"study": str(study), "plan": dict(plan.lines), "notes": plan.warnings}
            typer.echo(json.dumps(found | {"cost": costs, "bias": _plain(prediction)}, indent=1))
            return
        _show(given, plan, costs, prediction, built.labels)


def plan_of(study: Study, built: Built) -> Plan:
    """Return the plan of a study's run, with all checks that a run makes; nothing is sampled."""
    from consortia.run.sampling import sample

    found: list[Plan] = []

    def on_plan(plan: Plan) -> None:
        found.append(plan)
        raise _Planned

    with contextlib.suppress(_Planned):
        sample(
            built.model,
            built.sites,
            built.algorithm,
            **study.run.model_dump(),
            stop=built.stop,
            progress=False,
            on_plan=on_plan,
        )
    return found[0]


def cost(study: Study, built: Built, plan: Plan) -> dict[str, Any]:
    """Return what the whole run will cost, of the longest rounds that it may have."""
    import numpy as np

    from consortia.core.start import starting_parameters
    from consortia.core.target import Target
    from consortia.engines.mailbox import servers_of
    from consortia.run.plan import cost_of
    from consortia.store.accumulators import keep_moments

    run = study.run
    start = starting_parameters(built.model, None, run.seed, 1)[0]
    algorithm = built.algorithm.build(Target(built.model, start))
    chains = run.chains * servers_of(algorithm)
    done = run.warmup + run.rounds
    whole = cost_of(plan, built.algorithm, built.sites, chains, done, done)
    draws = run.rounds * algorithm.draws.per_iteration // run.thin
    kept = draws if run.keep == "draws" else min(draws, keep_moments().draws)
    target = Target(built.model, start)
    copies = 1 + (len(built.sites) if algorithm.draws.agents else 0)
    whole["iterations"] = whole.pop("iterations_run")
    whole["draws"], whole["draws_kept"] = draws * chains, kept * chains
    whole["bytes_of_draws"] = (
        kept * chains * target.dimension * np.dtype(target.dtype).itemsize * copies
    )
    return whole


def seconds(study: Study, built: Built) -> dict[str, Any]:
    """Return the iterations a second on this machine, once compiled, and the run's seconds."""
    from consortia.run.sampling import sample
    from consortia.run.stopping import stop_when

    run = study.run
    warmup = run.warmup if built.algorithm.adapts else 0
    options: dict[str, Any] = {"chains": run.chains, "seed": run.seed, "progress": False}
    options |= {"thin": run.thin, "warmup": warmup}
    parts = (built.model, built.sites, built.algorithm)
    stop = stop_when(budget=TIMED_SECONDS / 3, every=4)
    sample(*parts, rounds=run.rounds, stop=stop, **options)  # compiles
    stop = stop_when(budget=TIMED_SECONDS, every=4)
    record = sample(*parts, rounds=run.rounds, stop=stop, **options).attrs
    rate = record["iterations_run"] / record["seconds"]
    return {"iterations_per_second": rate, "seconds": (run.warmup + run.rounds) / rate}


# --- what is printed -----------------------------------------------------------------------------


def _show(study: Study, plan: Plan, costs: dict[str, Any], prediction: Any, labels: Any) -> None:
    from rich.markup import escape
    from rich.table import Table

    from consortia.report.terminal import console_of, plan_panel

    console = console_of()
    console.print(plan_panel(study.title or study.name, plan))
    stops = " at most: the study has a [stop]" if study.stop else ""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    for label, value in cost_lines(costs):
        table.add_row(label, escape(value))
    console.print(f"[bold]Cost of the whole run[/]{stops}", table)
    if prediction is not None:
        lines = prediction.lines([_labelled(name, labels) for name in prediction.names])
        console.print("", "[bold]Predicted bias[/]", *map(escape, lines), sep="\n")
    console.print("", "The study can be run: consortia run " + escape(str(study.path)), sep="\n")


def cost_lines(costs: dict[str, Any]) -> list[tuple[str, str]]:
    """Return label and value of each cost."""
    draws = f"{costs['draws']:,}"
    if costs["draws_kept"] < costs["draws"]:
        draws += f", at most {costs['draws_kept']:,} kept"
    lines = [
        ("rounds", f"{costs['iterations']:,}, {costs['communication_rounds']:,} of communication"),
        ("bytes", f"{costs['bytes_up']:,} up, {costs['bytes_down']:,} down, all chains"),
        ("gradients", f"{costs['gradients']:,} of a site, {costs['row_gradients']:,} rows"),
        ("draws", f"{draws}, {costs['bytes_of_draws'] / 1e6:,.1f} MB"),
    ]
    if "seconds" in costs:
        lines.append(
            (
                "time",
                f"about {costs['seconds']:,.0f} s here, at {costs['iterations_per_second']:,.0f} "
                "rounds a second; compilation, diagnostics and the reference come on top",
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


def _plain(prediction: Any) -> Any:
    if prediction is None:
        return None
    values = {
        name: None if (array := getattr(prediction, name)) is None else array.tolist()
        for name in ("mean", "sd", "shift", "sd_ratio")
    }
    texts = {name: getattr(prediction, name) for name in ("reason", "basis", "notes", "names")}
    return texts | values | {"gaussian": prediction.gaussian}
