"""Runs of a study: sampled, compared with an exact sampler and another model, rows left out."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consortia.errors import InputError
from consortia.store.durable import replace_file, writing
from consortia.store.runs import REQUEST

if TYPE_CHECKING:
    from consortia.run.verification import Verification
    from consortia.study.build import Built, Study

STUDY, COMMAND = REQUEST
COMPARED, LEFT_OUT = "compare", "left-out.txt"
"""Entries of the directory of a run: the run of another model, and rows and sites left out."""

TWO_MODELS = ("model", "compare")
"""Names of compared models: of their tables in the study file."""


def beginning(
    study: Study, built: Built, directory: Path, engine: Any, *, anyway: bool = False
) -> Callable[..., Any]:
    """Return `consortia.sample` with the study's options, without the objects."""
    from consortia.run.sampling import sample

    options = study.run_options
    more = {"stop": built.stop, "engine": engine, "store": directory, "metadata": built.metadata}
    more["on_divergence"] = "warn" if anyway else "raise"
    return functools.partial(sample, **options, **more)


def compared_over(
    built: Built, engine: Any, *, quiet: bool
) -> Callable[[Any], Verification | None]:
    """Return the comparison of a run with an exact sampler over an engine, if the run has ended.

    Raises:
        InputError: values are imputed, so that there is no one posterior to compare with; or
            weights are those of a sample, so that there is none.
    """
    built.model.check_posterior("verify")
    if built.imputations:
        raise InputError(
            "verify: with model.missing = 'impute' each imputation has its own posterior: use "
            "an exact algorithm, such as few_rounds, or compare with missing = 'complete'."
        ).at("verify")
    from consortia.run.verification import verify

    def compared(tree: Any) -> Verification | None:
        if not has_ended(tree, engine):
            return None
        return verify(tree, built.model, built.rows, engine=engine, progress=not quiet)

    return compared


def has_ended(tree: Any, engine: Any) -> bool:
    """Return True if a run is finished, which only the root knows; in all processes."""
    return all(engine.allgather(lambda: tree.attrs["state"] == "finished" if engine.root else True))


def left_out_over(
    study: Study, built: Built, directory: Path, engine: Any, *, quiet: bool
) -> Callable[[Any], str | None]:
    """Return the function that leaves out single rows, and sites, of a run over an engine.

    The engine's processes hold the rows; all of them call it. The model of ``[compare]`` is sampled
    beside the run.

    Raises:
        InputError: values are imputed, so that there is no one likelihood.
    """
    if built.imputations:
        raise InputError(
            "loo: with model.missing = 'impute' each imputation has its own likelihood: omit "
            "--loo, or compare with missing = 'complete'."
        ).at("loo")
    from consortia.diagnostics.influence import leave_one_site_out
    from consortia.diagnostics.left_out import loo

    other = study.compared

    def without(tree: Any) -> str | None:
        if not has_ended(tree, engine):
            return None
        given = (tree, built.model, built.rows)
        labels = None if built.regression is None else built.regression.labels
        compared = {"the model": given}
        if other is not None:
            other_built = other.build(engine)
            drawn = sample_beside(other, other_built, directory / COMPARED, engine, quiet=quiet)
            second = (drawn, other_built.model, other_built.rows)
            compared = dict(zip(TWO_MODELS, (given, second), strict=True))
        rows = loo(compared, engine=engine)
        return f"{rows}\n\n{leave_one_site_out(*given, labels=labels, engine=engine)}"

    return without


def sample_beside(study: Study, built: Built, directory: Path, engine: Any, *, quiet: bool) -> Any:
    """Return the result of a study whose run is kept within another's directory.

    A run that is there already is resumed, and returned as it is where it has ended.

    Raises:
        KeyboardInterrupt: it was interrupted; `consortia resume` of the other continues it.
    """
    from consortia.run.sampling import resume
    from consortia.store.runs import holds_run

    begin = beginning(study, built, directory, engine)
    if any(engine.allgather(lambda: engine.root and holds_run(directory))):
        begin = functools.partial(resume, directory, engine=engine)
    tree = begin(built.model, built.sites, built.algorithm, progress=not quiet)
    if not has_ended(tree, engine):
        raise KeyboardInterrupt
    return tree


def keep_request(
    directory: Path, source: Path, options: dict[str, Any], text: str | None = None
) -> None:
    """Write the study, or a ``text`` in its place, and the options of the command to a run."""
    with writing(directory):
        content = source.read_bytes() if text is None else text.encode()
        replace_file(directory / STUDY, [content])
        command = {"study": str(source.resolve()), **options}
        replace_file(directory / COMMAND, [json.dumps(command, indent=1).encode()])
