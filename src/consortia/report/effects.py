"""Results of a run in the terms of its question: a sentence first, then effects and priors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consortia.core import parameters
from consortia.data.writing import truth_of
from consortia.diagnostics.figures.canvas import Plot, drawing
from consortia.diagnostics.figures.forest import forest_figure
from consortia.diagnostics.verdict import Severity
from consortia.errors import InputError
from consortia.models.regression.estimates import Estimates, estimates_of, places_near_one
from consortia.models.regression.families import FAMILIES
from consortia.models.regression.formula import parse
from consortia.models.regression.heterogeneity import SiteEffects, Varying, site_effects
from consortia.models.regression.margins import MarginalEffects
from consortia.models.regression.priors import Prior, read_prior
from consortia.report.run_report import RunReport, by_weight

LEVEL = 0.95
SURE = 0.975
"""A direction is reported only above this posterior probability."""

HUGE = 1e6
"""Numbers from which on thousands are written as a power of ten."""

MOST_STATED = 3
REGRESSIONS = {"bernoulli": "logistic", "binomial": "logistic", "gaussian": "linear"} | {
    name: name.capitalize() for name in ("cox", "poisson", "weibull")
}
"""Adjectives of a regression, by its family, where that is another word."""

NOUNS = {
    "odds ratio": "odds",
    "rate ratio": "rate",
    "hazard ratio": "hazard",
    "ratio of means": "mean",
    "ratio of medians": "median",
}
"""Quantity that a ratio is of."""

MOST_DRAWN = 40
"""Lines of a forest plot."""

SLOPES, CONSTANT = "coefficients", "intercept"
IN_SD, LOG_SD = "effects_in_sd", "log_sd"
"""Variables of a regression, and those of one with levels and slopes by site."""

LEVEL_NAME = re.compile(r"(.+)\[(.+)\]")
"""The coefficient of a level: its factor and its name."""

PRIOR_DRAWS = 4000
"""Draws of the priors whose intervals a table shows: the ends of 95 % intervals are then good to
0.04 sd. Chosen, not measured."""

MARGINAL_DRAWS = 1000
"""Draws for which the mean of every row is computed: each costs a pass over the rows, and an
average is good to 0.03 sd. Chosen, not measured."""


@dataclass(frozen=True)
class Response:
    """Response that is modelled, from the record of a run."""

    name: str  # of the response; of two levels with the event
    family: str
    effect: str | None  # what exp(coefficient) is; None where a coefficient is a difference
    priors: Mapping[str, str]  # in words, by the name of the parameter
    notes: tuple[str, ...]  # what the user should know
    # the level that the others of a factor are compared with, by factor
    references: Mapping[str, str] = field(default_factory=dict)
    binary: frozenset[str] = frozenset()  # columns of 0 and 1

    @property
    def words(self) -> str:
        """The response as a sentence has it: its event, without the words of a formula."""
        return in_words(self.name)

    @property
    def regression(self) -> str:
        """The regression in words, such as "logistic regression"."""
        return f"{REGRESSIONS.get(self.family, self.family.replace('_', ' '))} regression"

    def against(self, name: str) -> str:
        """Return the reference of a coefficient of a level; "" of another one."""
        matched = LEVEL_NAME.fullmatch(name)
        return self.references.get(matched[1], "") if matched else ""


def plainly(text: str, response: Response | None) -> str:
    """Return a text in which the response is written as in a sentence."""
    return text if response is None else text.replace(response.name, response.words)


DEATH = ("death", "dead", "died")
EVENTS = ("event", "status", "d", "delta", "censor", "cens")
"""Columns of an event, and of deaths, by whatever they are called."""

COMPARED = re.compile(r"(?:I\()?\s*`?(.+?)`?\s*(==?|!=|>=?|<=?)\s*(.+?)\s*\)?")
SIGNS = {"=": "", "==": "", "!=": "other than ", ">": "above ", "<": "below "}
SIGNS |= {">=": "at least ", "<=": "at most "}


def in_words(name: str) -> str:
    """Return a response, or its event, without the words of a formula."""
    if name.startswith("Surv("):
        words = in_words(parse(f"{name} ~ 1").response[1].text)
        return "the event" if words in EVENTS else words
    matched = COMPARED.fullmatch(name)
    if matched is None:
        return "death" if name.lower() in DEATH else name
    column, sign, value = matched.groups()
    value = value.strip("'\"")
    if sign in ("=", "==") and (truth_of(value) or value == "1"):
        return in_words(column)
    if sign in ("=", "==") and value.lower() in DEATH:
        return "death"
    return f"{column} {SIGNS[sign]}{value}"


def response_of(report: RunReport) -> Response | None:
    """Return a regression's response; None of another model."""
    model, settings = report.settings.get("model"), report.fitted_settings
    if settings.get("family") in FAMILIES:
        notes = tuple(map(str, settings.get("notes", ())))
        named = str(settings.get("formula", "")).partition("~")[0].strip() or "the response"
        family = str(settings["family"])
        priors = {str(name): str(text) for name, text in settings.get("priors", {}).items()}
        effect = FAMILIES[family].effect
        levels = settings.get("levels", {})
        first = {str(factor): str(names[0]) for factor, names in levels.items() if names}
        event = str(settings.get("event", named))
        return Response(event, family, effect, priors, notes, first, _binary(settings))
    ready = {"logistic_regression": "bernoulli", "linear_regression": "gaussian"}
    kind = model.get("kind") if isinstance(model, Mapping) else None
    if kind not in ready:
        return None
    data = report.settings.get("data", {})
    name = "y" if not isinstance(data, Mapping) else str(data.get("target", "y"))
    return Response(name, ready[kind], FAMILIES[ready[kind]].effect, {}, ())


def _binary(settings: Mapping[str, Any]) -> frozenset[str]:
    """Return the columns in which the sites' descriptions count 0 and 1 and nothing else."""
    values: dict[str, set[str]] = {}
    for site in settings.get("participants", {}).get("sites", {}).values():
        for name, (counts, rest) in site.get("levels", {}).items():
            values.setdefault(str(name), set()).update(counts, ["other levels"] * bool(rest))
    return frozenset(name for name, levels in values.items() if levels == {"0", "1"})


def _columns(
    report: RunReport, name: str, *, sampled: bool = False
) -> tuple[list[str], np.ndarray] | None:
    """Return names and draws (chain, draw, column) of a variable, or None without it.

    They are in the units of the columns, or as they were sampled, and repeated in proportion to
    their weights.
    """
    posterior = (report.tree if sampled else report.shown)["posterior"]
    if name not in posterior.data_vars:
        return None
    variable = posterior[name]
    values = by_weight(np.asarray(variable, float), parameters.draw_weights(report.tree))
    axes = [np.asarray(variable.get_index(dim)).astype(str) for dim in variable.dims[2:]]
    names = [", ".join(labels) for labels in itertools.product(*axes)]
    return names, values.reshape(*values.shape[:2], -1)


def estimates(report: RunReport) -> Estimates | None:
    """Return the effects of a regression, in the units of the columns; None of another model."""
    response, slopes = response_of(report), _columns(report, SLOPES)
    if response is None or slopes is None:
        return None
    names, values = slopes
    return estimates_of({SLOPES: values}, {SLOPES: [names]}, response.effect, LEVEL)


def by_site(report: RunReport) -> SiteEffects | None:
    """Return the differences between sites; None without any, or where the draws lack them.

    Without the study, as of a run between institutions, it is made from the levels and slopes by
    site that the server has drawn, and no row is needed: the record has their indices.
    """
    if report.regression is not None:
        regression = report.regression
        return regression.by_site(report.tree, LEVEL) if regression.differs_by_site else None
    response, blocks = response_of(report), report.fitted_settings.get("between", ())
    draws = {
        name: columns[1].reshape(-1, columns[1].shape[-1]).T
        for name in (SLOPES, IN_SD, LOG_SD)
        if (columns := _columns(report, name, sampled=name != SLOPES)) is not None
    }
    if response is None or not blocks or not {IN_SD, LOG_SD} <= draws.keys():
        return None
    varying = []
    for term, slope, spread_index, columns in blocks:
        spread = np.exp(draws[LOG_SD][spread_index])
        common = np.zeros(len(spread)) if slope is None else draws[SLOPES][slope]
        deviations = zip(report.record["sites"], spread * draws[IN_SD][columns], strict=True)
        varying.append(Varying(term, common, spread, dict(deviations)))
    return site_effects(varying, response.effect, LEVEL, seed=0)


def margins(report: RunReport) -> tuple[MarginalEffects | None, str]:
    """Return the effects on the mean response, or None, and why rows do not allow them, or ""."""
    regression = report.regression
    if regression is None or not regression.has_margins:
        return None, ""
    try:
        return regression.marginal_effects(report.tree, level=LEVEL, draws=MARGINAL_DRAWS), ""
    except InputError as error:
        return None, f"Not done: {error}"


def effects_forest(shown: Estimates) -> Plot:
    """Return the forest plot of the effects."""
    with drawing():
        figure = forest_figure({"": shown.blocks[""][:MOST_DRAWN]}, shown.effect, shown.level)
    return Plot(
        figure,
        f"Forest plot of {len(shown)} {shown.effect}s; the numbers are in the table.",
        f"The median of each {shown.effect} and its {100 * shown.level:.0f} % interval"
        + (", on a logarithmic axis" if shown.effect != "difference" else "")
        + "; the line marks the absence of an effect.",
    )


def site_forest(site_effects: SiteEffects) -> Plot:
    """Return the forest plot by site, with the common effect and a new site's."""
    with drawing():
        figure = forest_figure(site_effects.blocks, site_effects.effect, site_effects.level)
    return Plot(
        figure,
        f"Forest plot by site of {', '.join(site_effects.terms)}; the numbers are in the table.",
        "Circles: sites. Diamonds: the common effect and, dashed, the prediction for a new site.",
    )


# --- one sentence --------------------------------------------------------------------------------


def interpretation(report: RunReport) -> str:
    """Interpret a run for a reader without statistics, or say why not; "" of no regression.

    It states the effects whose direction is sure, the surest first, and no cause.
    """
    response, effects = response_of(report), estimates(report)
    if response is None or effects is None:
        return ""
    if report.verdict.severity is Severity.BAD:
        return "This run is not reliable, so no effect is stated here."
    sides = np.maximum(effects.above, 1 - effects.above)
    unknown = known_from_prior(report)
    rows = [row for row in np.argsort(-sides, kind="stable") if not _of_site(effects.names[row])]
    rows = [row for row in rows if unknown.get(effects.names[row]) != "all"]
    about = [row for row in rows if _is_of(effects.names[row], question_of(report))]
    stated = [row for row in rows if sides[row] >= SURE and row not in about]
    others = len(rows) - len(stated) - len(about)
    shown = [*about, *stated[:MOST_STATED]]
    if not rows:
        return _from_prior(unknown, response).lstrip()
    if not shown:
        return (
            f"None of the columns has a clear association with {_what(response)}: every "
            f"{100 * LEVEL:.0f} % interval includes {'no effect' if response.effect else '0'}."
            + _between(report, response)
            + _from_prior(unknown, response)
        )
    first, *more = (
        _stated(effects, row, response) if sides[row] >= SURE else _open(effects, row, response)
        for row in shown
    )
    text = f"{first[0].upper()}{first[1:]}" + "".join(f"; {clause}" for clause in more) + "."
    text += _between(report, response)
    rest = len(stated) - MOST_STATED
    if rest > 0:
        text += f" {rest} more {'have' if rest > 1 else 'has'} a clear direction, in the table."
    if others > 0:
        effect = "the other effect" if others == 1 else f"the other {others} effects"
        text += f" For {effect} the direction is not clear."
    return text + _from_prior(unknown, response)


def _from_prior(unknown: Mapping[str, str], response: Response) -> str:
    """Describe what only the prior tells; "" where the rows say something of all."""
    every = {name: what for name, what in unknown.items() if not _of_site(name)}
    text = ""
    for name, what in every.items():
        which = "The effect" if what == "all" else "The largest size of the effect"
        text += f" {which} of {_who(name, response)} is known from the prior only."
    return text


def question_of(report: RunReport) -> str | None:
    """Return the column that the study is about, as its file says; None where it does not."""
    named = report.settings.get("question")
    return None if named is None else str(named)


def _is_of(name: str, column: str | None) -> bool:
    """Return True if a coefficient is of a column by itself."""
    matched = LEVEL_NAME.fullmatch(name)
    return column is not None and (matched[1] if matched else name) in (column, f"C({column})")


def _between(report: RunReport, response: Response) -> str:
    """Describe the spread of an effect that differs by site; "" where none does."""
    effects, text = by_site(report), ""
    if effects is None:
        return text
    for term in effects.terms:
        rows = {row.kind: row for row in effects.rows if row.term == term}
        if "common" not in rows:
            continue
        common, new = rows["common"], rows["new site"]
        middle, low, high = numbers([common.median, common.lower, common.upper], effects)
        lowest, highest = numbers([new.lower, new.upper], effects)
        text += (
            f" The effect of {_who(term, response)} may differ between sites: the common "
            f"{effects.effect} is {middle} ({low} to {high}), and that of a new site is expected "
            f"between {lowest} and {highest}."
        )
    return text


def _of_site(name: str) -> bool:
    return name.startswith("site[")


def _what(response: Response) -> str:
    if response.effect is None:
        return response.name
    of = f"a higher {response.words}" if response.family == "ordinal" else response.words
    return f"the {NOUNS.get(response.effect, 'odds')} of {of}"


def _moved(way: str, response: Response) -> str:
    """Return higher odds, or a higher rate."""
    what = _what(response).removeprefix("the ")
    return f"{'' if what.startswith('odds') else 'a '}{way} {what}"


def _stated(shown: Estimates, row: int, response: Response) -> str:
    """Return one effect in words."""
    moved = _moved("higher" if shown.above[row] > 0.5 else "lower", response)
    return f"{_who(shown.names[row], response)} goes with {moved} ({_interval(shown, row)})"


def _open(shown: Estimates, row: int, response: Response) -> str:
    """Return one effect of open direction in words."""
    above = shown.above[row]
    way = "higher" if above > 0.5 else "lower"
    return (
        f"whether {_who(shown.names[row], response)} goes with "
        f"{_moved('higher or lower', response)} is not clear ({_interval(shown, row)}; {way} with "
        f"probability {max(above, 1 - above):.2f})"
    )


def _interval(shown: Estimates, row: int) -> str:
    middle, low, high = numbers([shown.median[row], shown.lower[row], shown.upper[row]], shown)
    return f"{shown.effect} {middle}, {100 * LEVEL:.0f} % interval {low} to {high}"


def _who(name: str, response: Response) -> str:
    """Name the columns of an effect in words, with the level that it is against."""
    *rest, column = name.split(", ")  # of a categorical response the level comes first
    matched = LEVEL_NAME.fullmatch(column)
    number = f"{column} 1, against 0," if column in response.binary else f"each unit of {column}"
    who = f"{matched[1]} {matched[2]}" if matched else number
    if reference := response.against(column):
        who += f", against {reference},"
    return who if not rest else f"for {', '.join(rest)}, {who}"


def numbers(values: Sequence[float], of: Estimates | SiteEffects) -> list[str]:
    """Return effects with three digits; ratios near 1 with as many as tell them from it."""
    places = None if of.effect == "difference" else places_near_one(values)
    return [number(x) if places is None or abs(x) >= HUGE else f"{x:.{places}f}" for x in values]


def number(value: float) -> str:
    """Return a number with three digits, its zeros kept; as a power of ten where it is huge."""
    if value == 0 or not np.isfinite(value) or abs(value) >= HUGE:
        return f"{value:.3g}"
    places = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{places}f}" if places <= 6 else f"{value:.2e}"


# --- priors --------------------------------------------------------------------------------------

AS_PRIOR = 0.9
"""Share of the prior's reach from which on a posterior's is as long, for want of rows."""

SEPARATED = 0.4
"""Share of the prior's width that a posterior has at least where rows bound one side of it."""

MOVED = 0.1
"""Standard deviations from which on the move of a mean by the priors is stated."""

MOST_WIDER = 2.0
"""Factor on a variance without priors from which on rows tell less than these."""

FEWEST_A_COLUMN = 20
"""Draws for each column from which on a precision is estimated."""


@dataclass(frozen=True)
class PriorBeside:
    """A prior beside what the data made of it, on the scale of the link."""

    name: str  # of the parameter
    words: str  # the prior
    prior: np.ndarray  # its 2.5, 50 and 97.5 % points
    posterior: np.ndarray  # likewise
    # move of the mean without normal priors, in sds; inf where these tell more than the rows
    without: float


def priors_beside(report: RunReport) -> list[PriorBeside]:
    """Return the prior and the posterior of every coefficient whose prior is recorded."""
    response, slopes = response_of(report), _columns(report, SLOPES)
    if response is None or not response.priors or slopes is None:
        return []
    names, values = slopes
    constants = _columns(report, CONSTANT, sampled=True) or ([], values[..., :0])
    known: dict[int, Prior] = {}
    for index, name in enumerate([*names, *([CONSTANT] * len(constants[0]))]):
        of_classes = response.priors.get(name.partition(", ")[2])  # which have one in common
        try:
            known[index] = read_prior(name, response.priors.get(name, of_classes))
        except InputError:  # a record is not trusted; its words may be none of ours
            continue
    without = _moves_without(np.concatenate([values, constants[1]], axis=-1), known)
    rng, points, priors = np.random.default_rng(0), (0.025, 0.5, 0.975), []
    for index, name in enumerate(names):
        if index in known:
            drawn = np.quantile(known[index].draw(rng, (PRIOR_DRAWS,), -np.inf), points)
            posterior = np.quantile(values[..., index], points)
            priors.append(PriorBeside(name, str(known[index]), drawn, posterior, without[index]))
    return priors


def _moves_without(values: np.ndarray, known: Mapping[int, Prior]) -> np.ndarray:
    """Estimate how far each mean moves without normal priors, in sds; inf where these tell more.

    The precision of a Gaussian posterior is that of the rows and of the priors together. Where
    draws are too few for it, nothing is known: NaN.
    """
    draws = values.reshape(-1, values.shape[-1])
    mean, sd = draws.mean(axis=0), draws.std(axis=0)
    if len(draws) < FEWEST_A_COLUMN * len(sd) or not sd.all():
        return np.full(len(sd), np.nan)
    of_priors, pull = np.zeros(len(sd)), np.zeros(len(sd))
    for index, prior in known.items():
        if prior.form == "normal":
            centre, scale = prior.arguments
            of_priors[index] = (sd[index] / scale) ** 2
            pull[index] = of_priors[index] * (mean[index] - centre) / sd[index]
    together = np.linalg.pinv(np.corrcoef(draws.T).reshape(len(sd), -1), hermitian=True)
    strengths, directions = np.linalg.eigh(together - np.diag(of_priors))
    rows = directions / np.maximum(strengths, 1e-9) @ directions.T  # their covariance alone
    return np.where(np.diag(rows) < MOST_WIDER, rows @ pull, np.inf)


def moved_by_priors(priors: Sequence[PriorBeside]) -> str:
    """Describe what normal priors do to the estimates; "" where they move none."""
    moved = [prior for prior in priors if MOVED <= abs(prior.without) < np.inf]
    moved.sort(key=lambda prior: (_of_site(prior.name), -abs(prior.without)))
    weak = [prior.name for prior in priors if np.isinf(prior.without)]
    text = "The priors move estimates: without them, by a normal approximation, " if moved else ""
    for index, prior in enumerate(moved[:MOST_STATED]):
        size, way = f"{abs(prior.without):.1f}", "higher" if prior.without > 0 else "lower"
        if index == 0:
            text += f"the mean of {prior.name} is {size} standard deviations {way}"
        else:
            text += f", that of {prior.name} {size} {way}"
    if moved:
        rest = len(moved) - MOST_STATED
        text += f"; {rest} more in the table. " if rest > 0 else ". "
    if weak:
        text += (
            f"Of {', '.join(weak)} the data tell less than the priors: only a run with wider "
            "priors shows how far these move them."
        )
    return text.rstrip()


def known_from_prior(report: RunReport) -> dict[str, str]:
    """Find the coefficients that the rows do not bound: "all" of one, or its largest "size".

    An empty cell of a product leaves a coefficient as the prior has it; words of one outcome alone
    (complete separation) leave its direction, and the prior how far it goes.
    """
    extents = {}
    for coefficient in priors_beside(report):
        low, middle, high = coefficient.prior
        reach = (coefficient.posterior[2] - middle) / (high - middle)
        below = (middle - coefficient.posterior[0]) / (middle - low)
        width = (coefficient.posterior[2] - coefficient.posterior[0]) / (high - low)
        if min(reach, below) >= AS_PRIOR:
            extents[coefficient.name] = "all"
        elif max(reach, below) >= AS_PRIOR and width >= SEPARATED:
            extents[coefficient.name] = "size"
    return extents
