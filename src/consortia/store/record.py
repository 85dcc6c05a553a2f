"""The types of what a run directory says of its run; who made it is not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Json

from consortia.store.ending import RunEnd

Count = Annotated[int, Field(ge=0, lt=2**63)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=100_000)]
Numbers = Json[list[Annotated[float, Field(allow_inf_nan=False)]]]


class _Typed(BaseModel):
    """Known entries are of these types; others may be anything."""

    model_config = ConfigDict(strict=True, extra="allow")


class Windows(_Typed):
    """Staleness over windows of a run, each row of one server."""

    edges: list[Count] = Field(min_length=2)
    mean: list[list[Number | None]]
    largest: list[list[Count]]


class Record(_Typed):
    """The record of a run, as `consortia.store.results.plain_attributes` made it."""

    algorithm: Text | None = None
    samples: Text | None = None
    state: Text | None = None
    title: Text | None = None
    graph: Text | None = None
    engine: Text | None = None
    end: RunEnd | None = Field(None, strict=False)
    stopped: Text | None = None
    chains: Count | None = None
    rounds: Count | None = None
    warmup: Count | None = None
    thin: Count | None = None
    iterations_run: Count | None = None
    communication_rounds: Count | None = None
    bytes_up: Count | None = None
    bytes_down: Count | None = None
    bytes_sent: Count | None = None
    gradients: Count | None = None
    row_gradients: Count | None = None
    divergences: Count | None = None
    workers: Count | None = None
    servers: Count | None = None
    seconds: Number | None = None
    sites: Json[list[Text]] | None = None
    site_rows: Json[list[Count]] | None = None
    processes: Json[list[Text]] | None = None
    devices: Json[list[Text]] | None = None
    resumed_at: Json[list[Count]] | None = None
    dropped_gradients: Json[list[list[Count]]] | None = None
    staleness_windows: Json[Windows] | None = None
    site_noise_inflation: Numbers | None = None


class SiteStatus(_Typed):
    """Answers of one site so far."""

    name: Text
    answered: Number | None
    waiting: Number | None


class Status(_Typed):
    """Progress of a run."""

    written: Number
    state: Text
    algorithm: Text
    rounds: Count
    of: Count
    warmup: Count
    draws: Count
    seconds: Number
    rounds_per_second: Number | None
    seconds_left: Number | None
    bytes_up: Count
    bytes_down: Count
    sites: list[SiteStatus]


class RunRequest(_Typed):
    """The scalar arguments of a run."""

    rounds: Count
    chains: Count
    seed: Count
    thin: Count
    warmup: Count


class Rule(BaseModel):
    """A stopping rule; ``all_coordinates`` is of runs of version 0.2."""

    model_config = ConfigDict(strict=True, extra="forbid")
    rhat: Number | None
    ess: Number | None
    budget: Number | None
    every: Count
    all_coordinates: bool = False


class Described(_Typed):
    """An algorithm, a model or data, by its fingerprint."""

    fingerprint: str


class Algorithm(Described):
    """The algorithm, with its parameters as plain values."""

    name: str
    parameters: dict[str, Any]


class Model(Described):
    """The model."""

    dimension: Count


class Data(Described):
    """The data."""

    sites: Count
    rows: Count


class Rounding(_Typed):
    """Settings on which the bits of a run depend."""

    x64: bool
    versions: dict[str, str]
    devices: list[Count] = Field([1, 1], min_length=2, max_length=2)


class Kept(_Typed):
    """Statistics that are kept instead of draws."""

    kind: str
    covariance: str | None = None
    draws: Count | None = None


class Specification(_Typed):
    """Everything that decides a run's draws."""

    request: RunRequest
    stop: Rule | None
    algorithm: Algorithm
    model: Model
    data: Data
    rounding: Rounding
    keep: Kept | None = None


def _is_ending(value: list[str]) -> list[str]:
    kind, _ = value
    RunEnd(kind)
    return value


class Header(_Typed):
    """The header of a checkpoint."""

    done: Count
    kept: Count
    number: Count
    stride: Annotated[int, Field(ge=1)]
    seconds: Number
    ended: Annotated[list[str], AfterValidator(_is_ending)] | None
    resumed_at: list[Count]
    draws: dict[str, Count]
    record: dict[str, Any]
    specification: Specification


def fits(model: type[BaseModel], values: Mapping[str, Any]) -> bool:
    """Return True if the values are of these types."""
    try:
        model.model_validate(values)
    except (pydantic.ValidationError, RecursionError):
        return False
    return True
