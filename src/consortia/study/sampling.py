"""The tables of a study file that say how it is sampled, how long, and what is made of it."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from consortia.algorithms.registry import ALGORITHMS, explain_missing
from consortia.core.contract import Method
from consortia.errors import wrong
from consortia.run.specification import CHAINS
from consortia.study.options import called, check_options, given
from consortia.study.tables import Table


class AlgorithmTable(Table):
    """The algorithm; all other keys are arguments of its function in `consortia`.

    A step size is a number, an array with one value a round, or a table that names a function of
    `consortia.schedules`: ``{ schedule = "polynomial", initial = 0.1, offset = 10, power = 0.4 }``;
    a latency one of `consortia.latency`: ``{ model = "exponential", server_cost = 0.1 }``.
    """

    model_config = ConfigDict(extra="allow")
    name: str = Field(description=f"one of {', '.join(ALGORITHMS)}")
    _method: Method = PrivateAttr()

    @model_validator(mode="after")
    def _make(self) -> AlgorithmTable:
        if self.name not in ALGORITHMS:
            raise wrong("algorithm.name", f" = {self.name!r}: {explain_missing(self.name)}")
        factory = ALGORITHMS[self.name].factory
        options = given(self.model_extra)
        check_options("algorithm", factory, options)
        self._method = called("algorithm", factory, options)
        return self


class Run(Table):
    """Length of the run."""

    rounds: int = Field(
        0,
        ge=1,
        description="iterations after the warm-up; optional if the algorithm stops by itself",
    )
    chains: int = Field(CHAINS, ge=1, description="independent chains")
    seed: int = Field(0, ge=0, description="equal seeds give equal draws")
    thin: int = Field(1, ge=1, description="keep one draw in this many")
    warmup: int = Field(0, ge=0, description="iterations before the first recorded one")
    predict: bool | None = Field(
        None,
        description="have the sites send gradient and Hessian of their log-likelihood at some 14 "
        "points before the run, so that its bias can be predicted although no process has all "
        "rows. Needed over Flower only, where these are messages of the kind fit",
    )
    precondition: bool | None = Field(
        None,
        description="run an approximate algorithm in coordinates in which the posterior is about "
        "equally wide in every direction, by the diagonal of the sites' summed curvature at "
        "the mode; see consortia.preconditioned. Not over Flower",
    )
    verify: bool | None = Field(
        None,
        description="after the run: sample the exact posterior with few_rounds and compare, as "
        "`consortia run --verify` does; over Flower that is a separate study, which each "
        "site's policy permits or not",
    )
    loo: bool | None = Field(
        None,
        description="after the run: estimate how well the model predicts rows that are left out "
        "(PSIS-LOO, WAIC), and the posterior without each site, as `consortia run --loo` "
        "does; over Flower that is a separate study, which each site's policy permits or not",
    )
    secure_sums: bool | None = Field(
        None,
        description="between institutions, with three sites or more, answers that are summed leave "
        "a site masked, so that the server learns only the sum over the sites. false: it sees each "
        "site's answers, if every site's policy permits that",
    )
    bias_target: list[float] | None = Field(
        None,
        min_length=2,
        max_length=2,
        description="with algorithm.step_size = 'none': the largest predicted bias accepted "
        "when settings are chosen: of the means, in posterior standard deviations, and of the "
        "standard deviations, as a fraction; [0.05, 0.05] by default",
    )
    cost: float | Literal["messages", "bytes", "gradients"] | None = Field(
        None,
        description="what an independent draw should cost least of, when settings are chosen: "
        "'messages', 'bytes', 'gradients' of a site, or a number for time: how many gradients of "
        "all rows of a site take as long as a message; 30 by default",
    )
    keep: Literal["draws", "moments"] = Field(
        "draws",
        description="draws: all of them; moments: means, variances and up to 1,000 evenly spaced "
        "draws a chain",
    )


class Stop(Table):
    """Condition for stopping before all rounds are run; see `consortia.stop_when`."""

    rhat: float | None = Field(
        None, gt=1, description="stop once the largest R-hat is at most this"
    )
    ess: float | None = Field(None, ge=1, description="and the smallest ESS at least this")
    budget: float | None = Field(None, gt=0, description="or stop after this many seconds")
    every: int = Field(100, ge=4, description="kept draws between two checks of the rule")

    @model_validator(mode="after")
    def _some(self) -> Stop:
        if self.rhat is None and self.ess is None and self.budget is None:
            raise ValueError("give at least one of rhat, ess and budget")
        return self


class Reference(Table):
    """Reference for the result: the same model on the pooled data, if one process has them."""

    method: Literal["nuts"] = Field("nuts", description="NUTS by BlackJAX (extra: reference)")
    draws: int = Field(1000, ge=4, description="kept draws per chain")
    warmup: int = Field(1000, ge=20, description="draws used for adaptation")
    chains: int = Field(4, ge=1, description="independent chains")
    seed: int = Field(0, ge=0, description="seed")


class Output(Table):
    """Files that are written besides the draws."""

    name: str | None = Field(
        default=None,
        pattern=r"^\w[\w.-]*$",
        description="the directory under runs/; the study file's name by default",
    )
    figure: bool = Field(default=True, description="draw posterior.png (extra: plots)")
