r"""One posterior of several completed data sets: a run of each, their draws one after the other.

.. math:: p(\theta \mid z) \approx \frac{1}{m} \sum_k p(\theta \mid z, \tilde z_k),

with the missing values :math:`\tilde z_k` drawn given the known ones z: a mixture, of which equally
many draws of each run are draws. To average the m likelihoods would give another law.

Source: Rubin, "Multiple Imputation for Nonresponse in Surveys" (1987), chapter 3; Zhou and Reiter,
"A note on Bayesian inference after multiple imputation" (2010).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consortia.core.parameters import IMPUTATION
from consortia.data.sites import Sites
from consortia.engines.contract import Engine
from consortia.engines.local import LocalEngine
from consortia.errors import InputError, wrong
from consortia.run.finishing import diagnosed
from consortia.store.ending import RunEnd
from consortia.store.runs import RunStore, read_record

FOLDER = "imputations"
"""Folder of a run's directory, with the run of each imputation."""

REQUEST = "imputation_request"
"""Attribute of the whole with the arguments of its runs."""

SUMS = (
    *("iterations_run", "communication_rounds", "bytes_up", "bytes_down", "bytes_sent"),
    *("gradients", "row_gradients", "divergences", "seconds"),
)
"""Attributes of a run that are summed over the imputations."""

Sampled = Callable[[int, int, Path | None], Any]
"""A function of the number of an imputation, a seed and a directory: the result of a run."""


def engines_of(engine: Engine | tuple[Engine, ...] | None, count: int) -> tuple[Engine, ...]:
    """Return the engine of each of several imputations.

    Raises:
        InputError: there are more or fewer.
    """
    if not isinstance(engine, tuple):
        return (LocalEngine() if engine is None else engine,) * count
    if len(engine) != count:
        raise InputError(
            f"engine is a tuple of {len(engine)}, there are {count} imputations: give one engine "
            "for all, or one of each."
        ).at("engine")
    return engine


def one_engine(engine: Engine | tuple[Engine, ...] | None) -> Engine:
    """Return the engine of a run of one data set.

    Raises:
        InputError: there are several.
    """
    if isinstance(engine, tuple):
        raise InputError(
            "engine is a tuple, but sites is not (it is one where values are imputed): give one."
        ).at("engine")
    return LocalEngine() if engine is None else engine


def seed_of(seed: int, number: int) -> int:
    """Return the seed of the run of an imputation, from that of all."""
    return int(np.random.default_rng((seed, number)).integers(2**62))


def check_imputations(sites: Sequence[Any], keep: Any, engine: Any) -> None:
    """Refuse what are no completed rows of the same sites, and what cannot be done with them."""
    if len(sites) < 2 or not all(isinstance(imputation, Sites) for imputation in sites):
        raise InputError(
            "sites is a tuple: give what consortia.regression(..., missing='impute') has as sites, "
            "two imputations or more."
        ).at("sites")
    if len({imputation.names for imputation in sites}) > 1:
        raise wrong("sites", ": the imputations are not of the same sites.")
    if keep != "draws":
        raise wrong("keep", ": with imputations all draws are kept: leave it out.")
    if isinstance(engine, Engine) and engine.name == "flower":
        raise InputError(
            "engine: over Flower each imputation is a separate run of a separate study: give a "
            "tuple with the engine of each, as the app of a study does."
        ).at("engine")


def request_of(path: Any) -> dict[str, Any] | None:
    """Return the arguments of the runs in a directory; None where it has no imputations."""
    stored = read_record(path)[0].get(REQUEST)
    return None if stored is None else dict(json.loads(stored))


def pooled(
    count: int,
    request: Mapping[str, Any],
    run: Sampled,
    *,
    engine: Engine,
    store: Any,
    existing: bool = False,
) -> Any:
    """Return the draws of the runs of all imputations.

    Args:
        count: of imputations.
        request: the arguments of the runs, plain values; ``seed`` is that of all.
        run: samples one of them, or resumes it.
        engine: what runs the sites.
        store: directory of the whole, or None.
        existing: runs of some imputations may be there.

    Returns:
        As `consortia.sample`; the draws have a coordinate "imputation". Where one was interrupted,
        those of the imputations before it.

    Raises:
        StoreError: the directory holds something else.
    """
    writer = None if store is None else RunStore(store, existing=existing)
    engine.barrier()  # all have looked at the directory before one writes
    path, kept = None if writer is None else writer.path, engine.root and writer is not None
    begun = {"imputations": count, REQUEST: dict(request)}
    try:
        if writer is not None and kept:
            writer.claim(existing=existing)
            writer.begin(begun, {})
        trees: list[Any] = []
        for number in range(count):
            seed = seed_of(request["seed"], number)
            folder = None if path is None else path / FOLDER / str(number)
            trees.append(run(number, seed, folder))
            # only the root knows how a run ended
            ended = engine.allgather(lambda: _ended(trees[-1]) if engine.root else True)
            if not all(ended):
                break
        if not engine.root:
            return None
        finished = [tree for tree in trees if _ended(tree)]
        record = dict(trees[-1].attrs) | begun | {"seed": request["seed"]}
        record |= {name: sum(tree.attrs[name] for tree in trees) for name in SUMS if name in record}
        record.pop("specification", None)
        state = RunEnd(record["end"]).state
        if writer is None:
            return diagnosed(None, record, _together(finished), state)
        draws = min((tree["posterior"].sizes["draw"] for tree in finished), default=1)
        writer.begin(begun, {}, draws)  # one file an imputation
        for groups in _parts(finished):
            writer.append(groups)
        return diagnosed(writer, record, {}, state)
    finally:
        if writer is not None:
            writer.release()


def _together(trees: Sequence[Any]) -> dict[str, Any]:
    """Return the groups of all runs in memory."""
    import xarray  # heavy, and only wanted here

    parts = list(_parts(trees))
    together: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    return {
        name: xarray.concat([part[name] for part in parts], dim="draw", **together)
        for name in (parts[0] if parts else ())
    }


def _ended(tree: Any) -> bool:
    """Return True if a run was not interrupted."""
    return RunEnd(tree.attrs["end"]).state == "finished"


def _parts(trees: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the groups of draws of each run, as many draws of one as of the others."""
    if not trees:
        return
    count = min(tree["posterior"].sizes["draw"] for tree in trees)
    for number, tree in enumerate(trees):
        groups = {name: group.to_dataset() for name, group in tree.children.items()}
        yield {
            name: group.isel(draw=slice(0, count)).assign_coords(
                {"draw": number * count + np.arange(count), IMPUTATION: ("draw", [number] * count)}
            )
            for name, group in groups.items()
            if "draw" in group.dims
        }
