"""``consortia register STUDY.toml``: levels and scales of a formula, into the study file."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortia.cli.exits import reported
from consortia.cli.options import Json, StudyFile
from consortia.errors import InputError

if TYPE_CHECKING:
    from consortia.models.regression.registration import Registration
    from consortia.study.build import Study

NOT_HERE = (
    "where the rows of the sites are not here, take the bounds of a data dictionary (--dictionary "
    "COLUMNS.csv), or what the sites agreed on in an earlier run (--run DIR)"
)


def register(
    study: StudyFile,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="An earlier run of the same formula: take the levels and scales on which its "
            "sites agreed.",
        ),
    ] = None,
    prior_from: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="An earlier run of the same formula: use its posterior as the prior.",
        ),
    ] = None,
    propensity: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Run of the treatment model: write only the weights it gives."
        ),
    ] = None,
    dictionary: Annotated[
        Path | None,
        typer.Option(metavar="COLUMNS.csv", help="Column, low and high of numbers, levels."),
    ] = None,
    weight: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Weight of each row behind that prior.")
    ] = 1.0,
    robust: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Share of the ordinary prior that is mixed with it."),
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Write levels and scales into a study that has none; print the digest for its protocol.

    They are those of an earlier run, of a data dictionary, or, in two digits, of the sites' files
    where all are here. Of a study that is registered nothing is written. With --prior-from the
    study also states a mixture of normal laws that is fitted to the run's draws, in place of the
    prior; its sites may be others. With --propensity it states the weights that follow from a run
    of who was treated.
    """
    with reported(quiet=False):
        from consortia.federation.governance import terms_of
        from consortia.store.durable import replace_file
        from consortia.study.build import load_study, study_of
        from consortia.study.dictionary import read_dictionary, registration_of

        given, earlier = load_study(study), run or prior_from
        options = {"--run": run, "--prior-from": prior_from, "--dictionary": dictionary}
        if propensity is not None:
            if any(options.values()):
                raise InputError(f"register: --propensity excludes {', '.join(options)}.")
            given = _weighted(given, study, propensity)
        if given.registered is not None and any(options.values()):
            option = next(name for name, value in options.items() if value)
            raise InputError(
                f"{study} already has a table [registered]: remove it, or omit {option}."
            )
        if sum(value is not None for value in options.values()) > 1:
            raise InputError(f"register: give one of {', '.join(options)}.")
        if given.registered is None and propensity is None:
            if dictionary is not None:
                known = registration_of(given, read_dictionary(dictionary))
            elif earlier is not None:
                known = _of_run(given, earlier, any_sites=run is None)
            else:
                known = _of_files(given)
            stated = known if prior_from is None else _with_prior(known, prior_from, weight, robust)
            made = f"{study.read_text(encoding='utf-8').rstrip()}\n\n{stated.toml()}"
            study_of(tomllib.loads(made), study)  # refuses it before anything is written
            replace_file(study, [made.encode()])
            given = load_study(study)
        digest = terms_of(given).study
        if as_json:
            typer.echo(json.dumps({"study": str(study), "digest": digest}))
            return
        weights = "the weights of its rows, which each site computes"
        levels = "the levels and scales of its formula; no site is queried for them"
        typer.echo(f"{study} states {levels if propensity is None else weights}.")
        if prior := given.registered and given.registered.registration.earlier:
            typer.echo(f"Its prior is {prior}. With a k-hat above 0.7 run all sites anew.")
        typer.echo(
            "For the protocol; everybody with this study gets the same hash (title, comments and "
            "order of the file do not count):"
        )
        typer.echo(f"SHA-256 {digest}")


def _weighted(given: Study, study: Path, run: Path) -> Study:
    """Write the weights that follow from a run of who was treated; return the study with them."""
    from consortia.store.durable import replace_file
    from consortia.study.build import load_study, study_of
    from consortia.study.propensity import weights_of, with_weights

    if not given.awaits_weights:
        raise InputError(
            "register --propensity: it takes a study with [propensity] that has no weights yet."
        )
    weights = weights_of(given.propensity, given.model.formula, run)
    text = with_weights(study.read_text(encoding="utf-8"), weights)
    study_of(tomllib.loads(text), study)  # refuses it before anything is written
    replace_file(study, [text.encode()])
    return load_study(study)


def _of_files(study: Study) -> Registration:
    """Return levels and units of the sites, whose files are all here, in two digits."""
    from consortia.models.regression.registration import Registration
    from consortia.study.dictionary import rounded

    if study.model.formula is None or study.data.files is None:
        raise InputError("register: the study needs model.formula and data.files.")
    try:
        built = study.build()
    except InputError as error:
        raise InputError(f"{error}\nregister: {NOT_HERE}.") from error
    assert built.regression is not None
    return rounded(Registration.of(built.regression.specification))


def _with_prior(known: Registration, run: Path, weight: float, robust: float) -> Registration:
    """Return levels and units with the posterior of an earlier run as the prior."""
    from dataclasses import replace

    from consortia.models.regression.earlier import earlier_of
    from consortia.store.runs import open_run

    return replace(known, earlier=earlier_of(open_run(run), str(run), weight, robust))


def _of_run(study: Study, run: Path, *, any_sites: bool) -> Registration:
    """Return the levels and units of an earlier run of the same formula, perhaps of other sites.

    Raises:
        InputError: the run is of another one, or of none.
    """
    from consortia.store.runs import read_record
    from consortia.study.registered import Registered

    settings = read_record(run)[1].get("metadata", {}).get("settings", {})
    then, files = settings.get("model", {}), settings.get("data", {}).get("files")
    agreed = settings.get("regression", {}).get("agreed")
    now = study.model_dump(exclude_none=True)["model"]
    differing: dict[str, Any] = {}
    for name in ("formula", "family", "missing", "levels", "weights", "exposure", "trials"):
        if then.get(name) != now.get(name):
            differing[f"model.{name}"] = then.get(name)
    if files != study.data.files and not any_sites:
        differing["data.files"] = files
    if agreed is None or differing:
        listed = ", ".join(f"{name} {value!r}" for name, value in differing.items()) or "no formula"
        raise InputError(f"{run} belongs to another study ({listed}): give a run of this study.")
    return Registered.model_validate(agreed).registration
