"""The policy of a site: the file ``site-policy.toml``, read before the site touches data.

    # this study, and nothing else
    studies = ["4a1f..."]
    maximum_rounds = 12_000
    minimum_rows = 50

Every key is a limit, and what a study requires must be within all of them. Unknown keys are
refused, so that a misspelt limit is not taken for a missing one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from consortia.core.arguments import read_toml, unknown
from consortia.errors import InputError, PolicyError
from consortia.federation.governance.terms import KINDS, MASKED, PLAIN, StudyTerms
from consortia.study.explanation import explained_at

ANY = "any"
MAXIMUM_POSITION, MAXIMUM_STEP, MAXIMUM_REFUSALS = 10.0, 10.0, 3
"""Defaults of a policy that leaves them out."""

MINIMUM_PATTERN_ROWS, MINIMUM_ROWS_CHANGED = 3, 10
"""Defaults of a policy that leaves them out."""

Key = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Hash = Annotated[str, Field(pattern=r"^([0-9a-f]{64}|any)$")]


TWO_SITES = (
    "the study has two sites: each can compute the other's message from its own and the average. "
    "Set two_sites = true in the policy if both sites accept this"
)


class Noise(BaseModel):
    """Noise that a study must declare, whatever else it is.

    **What it does.** Between institutions a site draws it from a secret of its own: neither the
    server nor another site can compute it and take it away. It covers all that is sent, gradients
    too. So it bounds what one message says of a row; many messages say more.

    **What it does not.** No privacy budget (ε, δ) is computed. In a simulation in one machine all
    random numbers follow from the study's seed, and whoever has that can remove the noise.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    gradient_noise: float | None = Field(
        default=None,
        gt=0,
        description="least value of the algorithm's gradient_noise, the variance per coordinate "
        "of the Gaussian noise that a site adds to each gradient; algorithms without it are "
        "refused",
    )
    temperature: float | None = Field(
        default=None,
        gt=0,
        description="least value of the algorithm's temperature, the factor of the variance of "
        "the noise that moves a chain; algorithms without it are refused",
    )
    private_momentum: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="least value of 1 - momentum_correlation, the part of that noise's variance "
        "that a site draws by itself; algorithms without it are refused",
    )


class Policy(BaseModel):
    """The limits that a site sets."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    studies: list[Hash] = Field(
        [],
        description="hashes of permitted studies: a study file with all that decides what is "
        "computed, and the code of its model; left out, any study of the models below",
    )
    models: list[Hash] = Field(
        [],
        description="hashes of permitted models: the table [model] and the code of its factory; "
        "left out, the model of any study above. One of both must be given; 'any' permits all",
    )
    apps: list[Hash] = Field(
        [],
        description="hashes of permitted Flower apps, the code that a server sends; looked at by "
        "`consortia flower node`, before an app is unpacked, and needed there; 'any' permits all",
    )
    algorithms: list[str] | None = Field(
        None, min_length=1, description="names of permitted algorithms; left out, all"
    )
    messages: list[str] = Field(
        ["description", "setup", "fit", "round", "query"],
        description="kinds of messages that may leave: "
        + "; ".join(f"{kind}: {text}" for kind, text in KINDS.items()),
    )
    maximum_rounds: int = Field(ge=1, description="most iterations of a run, the warm-up included")
    minimum_rows: int = Field(ge=1, description="fewest rows that the site must have")
    minimum_level_rows: int = Field(
        3,
        ge=1,
        description="fewest rows of a level of a factor whose name goes to the server; rarer "
        "ones must be in the study's model.levels",
    )
    minimum_pattern_rows: int = Field(
        MINIMUM_PATTERN_ROWS,
        ge=1,
        description="fewest rows that share a pattern of covariates: of all columns together where "
        "all are categorical, else a value of a column that has two, or the rows that do not have "
        "a column's most frequent value; DataSHIELD's nfilter.tab",
    )
    own_levels: bool = Field(
        True,
        description="false: no study of a formula in which this site's own level or slopes are "
        "parameters of the run, of which the server has draws; with integrate = true they are not",
    )
    minimum_batch: int | None = Field(
        None,
        ge=1,
        description="fewest rows that a gradient may be computed from. Which rows they are only "
        "the site knows; a message about a batch of 1 can still reveal a row",
    )
    maximum_parameters_per_row: float | None = Field(
        None,
        gt=0,
        description="most parameters of the model for each row of the site: with many, messages "
        "hold the rows",
    )
    two_sites: bool = Field(
        False,
        description="take part in a study of two sites, in which the other one can compute this "
        "site's messages from its own and the average",
    )
    maximum_chains: int | None = Field(
        None, ge=1, description="most chains of a run: each asks at a position of its own"
    )
    maximum_points: int | None = Field(
        None, ge=1, description="most positions in a message, of all chains together"
    )
    maximum_position: float = Field(
        MAXIMUM_POSITION,
        gt=0,
        description="farthest that a position may be from the prior's centre, in any parameter, in "
        "standard deviations of the prior: far out a gradient is a sum over few rows",
    )
    maximum_step: float = Field(
        MAXIMUM_STEP,
        gt=0,
        description="farthest that a chain may move between two rounds, in the same unit",
    )
    maximum_answers: int = Field(
        1,
        ge=1,
        description="different questions that are answered at one place of a run (stage, "
        "iteration, phase, repetition); a question that is sent again has its answer "
        "again. Runs that continue without a site and are resumed need 2",
    )
    tell_refusals: bool = Field(
        False,
        description="tell the coordinator by name if maximum_settled_rows or minimum_rows_changed "
        "ended a run, so that the study can be corrected; which rows it was stays at the site",
    )
    maximum_refusals: int = Field(
        MAXIMUM_REFUSALS,
        ge=1,
        description="refusals of a run after which nothing more of it is answered; one that "
        "depends on rows counts for three. A larger number opens it again",
    )
    maximum_bytes: int | None = Field(
        None, ge=1, description="largest message; a few times the bytes of a chain's parameters"
    )
    maximum_norm: float | None = Field(
        None, gt=0, description="largest Euclidean norm of an array of a message"
    )
    functions: dict[str, Annotated[int, Field(ge=0)]] | None = Field(
        None,
        description="most answers of a run by each function of a conversation, by its name; one "
        "that is left out is not answered. Without this key all that the study names",
    )
    maximum_messages: int | None = Field(
        None,
        ge=1,
        description="most questions of a run that are answered; one that is sent again, after a "
        "restart, is counted once",
    )
    maximum_numbers: int | None = Field(
        None,
        ge=1,
        description="most numbers that depend on rows in all messages of a run together, of "
        "every kind; as many as the rows hold may settle them",
    )
    maximum_numbers_per_value: float | None = Field(
        None,
        gt=0,
        description="the same over all runs and studies of the same rows, for each value that "
        "these hold in the columns of the study; rows are known again by digests that stay at the "
        "site",
    )
    maximum_epsilon: float | None = Field(
        None,
        gt=0,
        description="most epsilon that all answers of algorithms with differential privacy may "
        "cost together, over all runs and studies of the same rows, at the delta below",
    )
    delta: float = Field(1e-6, gt=0, lt=1, description="delta of maximum_epsilon")
    minimum_rows_changed: int = Field(
        MINIMUM_ROWS_CHANGED,
        ge=1,
        description="fewest rows by which the data of a run may differ from those of an earlier "
        "run with most of the same rows: the difference of two runs says what one row is",
    )
    maximum_settled_rows: int | None = Field(
        None,
        ge=0,
        description="most rows that all answers may settle together, a value in each to a "
        "tenth of its column's standard deviation; the site measures it before each answer. "
        "Studies of which it cannot be measured are refused, but for the algorithms in unmeasured",
    )
    unmeasured: list[str] = Field(
        [],
        description="names of algorithms that are permitted although it is not known how many rows "
        "their messages settle",
    )
    maximum_runs: int | None = Field(
        None,
        ge=1,
        description="most runs that the ledger may hold; a server starts as many as it likes",
    )
    versions: list[str] | None = Field(
        None,
        min_length=1,
        description="permitted versions of consortia; whatever stands here, that of the server "
        "must be the one that is installed at the site",
    )
    secure_sums: bool = Field(
        True,
        description="with three sites or more, answers that are sums leave masked only, so that "
        "the server learns the sum over the sites; false: also studies with run.secure_sums = "
        "false, in which it sees the answers of this site",
    )
    coordinator: Key | None = Field(
        None,
        description="public key of the coordinator, whose messages alone are answered; as "
        "`consortia site key` prints it",
    )
    identities: dict[str, Key] = Field(
        {},
        description="public keys of all sites, this one included, by their names; they sign what "
        "they send, and secure sums are with these sites and no other",
    )
    noise: Noise = Noise()
    _digest: str = PrivateAttr("")

    @model_validator(mode="after")
    def _consistent(self) -> Policy:
        if not self.studies and not self.models:
            raise ValueError(
                "give studies or models: without a hash nothing is permitted "
                "(`consortia site check POLICY --study STUDY.toml` prints both)"
            )
        if bool(self.identities) != (self.coordinator is not None):
            raise ValueError("identities and coordinator go together: give the keys of all")
        for kind in self.messages:
            if kind not in KINDS:
                raise ValueError(f"messages: {kind!r}: {unknown(kind, KINDS)}")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return self._digest

    def permits(self, terms: StudyTerms, app: str | None = None) -> None:
        """Check that all a study requires is within the policy.

        Args:
            terms: its requirements.
            app: hash of the Flower app that runs it, where that is known.

        Raises:
            PolicyError: it is not; the message has every reason.
        """
        from consortia.core.version import __version__

        unmet = []
        for study_terms in terms.every:
            unmet += [*self._of_study(study_terms), *self._of_parameters(study_terms.parameters)]
        if app is not None and app not in self.apps and ANY not in self.apps:
            unmet.append(("apps", f"the app {app} is not in the list"))
        if terms.version != __version__:
            unmet.append(
                ("versions", f"the server runs consortia {terms.version}, the site {__version__}")
            )
        elif self.versions is not None and terms.version not in self.versions:
            unmet.append(("versions", f"consortia {terms.version} is not among {self.versions}"))
        if unmet:
            raise forbidden("this study", unmet)

    def check_keys(self, terms: StudyTerms) -> None:
        """Check that the keys are there that sums need which nobody can take apart.

        Raises:
            PolicyError: they are not.
        """
        if self.identities or not any(study_terms.sums == MASKED for study_terms in terms.every):
            return
        text = (
            "answers of this study leave as sums that nobody can take apart, which needs the "
            "public keys of all sites and of the coordinator in the policy: each makes its own "
            "with `consortia site key`. Or the study says run.secure_sums = false, and each "
            "policy permits that"
        )
        raise forbidden("this study", [("identities", text)])

    def permits_rows(
        self, rows: int, parameters: int | None = None, cell: int | None = None
    ) -> None:
        """Check that the site has rows enough, in all and of each pattern.

        Args:
            rows: of the site.
            parameters: of the model; None before it is built.
            cell: rows that share the rarest pattern of covariates; None before they are known.

        Raises:
            PolicyError: it has fewer.
        """
        unmet = []
        if rows < self.minimum_rows:
            unmet.append(("minimum_rows", f"it needs {self.minimum_rows} rows, but has {rows}"))
        most = self.maximum_parameters_per_row
        if parameters is not None and most is not None and parameters > most * rows:
            text = f"there are {parameters} parameters for {rows} rows, more than {most:g} a row"
            unmet.append(("maximum_parameters_per_row", text))
        if cell is not None and cell < self.minimum_pattern_rows:
            text = (
                "a pattern of the categorical columns, a value of one that has two, or the rows "
                f"without a column's most frequent value, has fewer rows ({cell}) than "
                f"{self.minimum_pattern_rows}: exact sums over the rows would tell that number. "
                "Merge rare levels, or take the column out of the study"
            )
            unmet.append(("minimum_pattern_rows", text))
        if unmet:
            raise forbidden("this study", unmet, of_rows=True)

    def _of_study(self, terms: StudyTerms) -> Iterator[tuple[str, str]]:
        if self.studies and terms.study not in self.studies and ANY not in self.studies:
            yield "studies", f"the study {terms.study} is not in the list"
        if self.models and terms.model not in self.models and ANY not in self.models:
            yield "models", f"the model {terms.model} is not in the list"
        if self.algorithms is not None and terms.algorithm not in self.algorithms:
            yield "algorithms", f"{terms.algorithm} is none of {', '.join(self.algorithms)}"
        if kinds := [kind for kind in terms.messages if kind not in self.messages]:
            yield "messages", f"it sends messages of the kind {', '.join(kinds)}"
        limits = self.functions
        missing = [name for name in terms.queried if limits is not None and not limits.get(name)]
        if missing:
            text = f"it queries {', '.join(missing)}, which the policy does not permit"
            yield "functions", text
        if terms.own_levels and not self.own_levels:
            text = "a level of this site is a parameter of it: the study needs integrate = true"
            yield "own_levels", text
        unmeasured = not terms.measured and terms.algorithm not in self.unmeasured
        if self.maximum_settled_rows is not None and unmeasured:
            text = f"how many rows the messages of {terms.algorithm} settle is not known"
            yield "unmeasured", text
        if terms.rounds > self.maximum_rounds:
            yield "maximum_rounds", f"it has {terms.rounds} rounds, more than {self.maximum_rounds}"
        if terms.sums == PLAIN and self.secure_sums:
            text = "the study says run.secure_sums = false: the server sees this site's answers"
            yield "secure_sums", text
        if terms.sites == 2 and not self.two_sites:
            yield "two_sites", TWO_SITES
        if self.maximum_chains is not None and terms.chains > self.maximum_chains:
            yield "maximum_chains", f"it has {terms.chains} chains, more than {self.maximum_chains}"

    def _of_parameters(self, parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        batch = parameters.get("batch_size")
        if self.minimum_batch is not None and batch is not None and batch < self.minimum_batch:
            yield "minimum_batch", f"batch_size is {batch}, smaller than {self.minimum_batch}"
        declared = {name: parameters.get(name) for name in ("gradient_noise", "temperature")}
        shared = parameters.get("momentum_correlation")
        declared["private_momentum"] = None if shared is None else 1 - shared
        for name, least in self.noise.model_dump(exclude_none=True).items():
            value = declared[name]
            if value is None:
                yield f"noise.{name}", f"the algorithm has no {name}"
            elif value < least:
                yield f"noise.{name}", f"{name} is {value:g}, less than {least:g}"


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Read and check a policy.

    Raises:
        InputError: there is no such file, it is not TOML, or a key is unknown, missing or wrong;
            the message has every one of them.
    """
    content, given = read_toml(path := Path(path), "policy")
    try:
        policy = Policy.model_validate(given)
    except pydantic.ValidationError as error:
        lines = [f"{path}: {_explained(item)}" for item in error.errors()]
        key = ".".join(part for part in error.errors()[0]["loc"] if isinstance(part, str))
        raise InputError("\n".join(lines)).at(key, file=str(path)) from None
    policy._digest = hashlib.sha256(content).hexdigest()
    return policy


def forbidden(what: str, broken: list[tuple[str, str]], *, of_rows: bool = False) -> PolicyError:
    """Return the error of what a policy forbids, with (key, reason) of each rule.

    ``of_rows``: it depends on rows, so that not even the keys may leave the site.
    """
    reasons = "; ".join(f"{rule}: {reason}" for rule, reason in broken)
    return PolicyError(
        f"the site's policy forbids {what}: {reasons}. Only who is responsible for the site may "
        "change the policy.",
        rules=tuple(rule for rule, _ in broken),
        of_rows=of_rows,
    )


def _explained(error: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors as a sentence with the dotted key."""
    location = [part for part in error["loc"] if isinstance(part, str)]
    table: Any = Noise if location[:1] == ["noise"] and len(location) > 1 else Policy
    if error["type"] == "string_pattern_mismatch":
        key, value = ".".join(location), error["input"]
        return f"{key}: {value!r} is not a hash, which has 64 digits 0-9 and a-f (or write 'any')."
    return explained_at(location, error, table)
