"""`consortia.regression`: from a formula and tables at the sites to a model and its rows.

Every site sends what its rows are like: the levels of factors, means and squares of numbers, how
many values miss (`consortia.data.columns.TableFacts`). From this all agree on the columns, and each
makes its own: they are those that one table of all rows would have given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from consortia.core import arguments
from consortia.core.arguments import unknown
from consortia.core.arrays import VALUES_AT_ONCE
from consortia.core.contract import Method
from consortia.core.faults import Faults
from consortia.core.fingerprints import of_value
from consortia.data.columns import Table, TableError, TableFacts, as_levels, coded_levels, rows_of
from consortia.data.description import SiteDescription, Wanted
from consortia.data.facts import Gatherer, Gathering, SiteFacts
from consortia.data.facts import rows_of as rows_elsewhere
from consortia.data.sites import Sites, check_finite, of_common_types, read_rows, site_names
from consortia.data.tables import read_table
from consortia.errors import InputError, wrong
from consortia.models.regression.agreement import Answers, agree, readings_of
from consortia.models.regression.density import Density
from consortia.models.regression.design import group_names, site_rows, template
from consortia.models.regression.earlier import earlier_of, fitted_run, flat_labels
from consortia.models.regression.evaluation import model_of
from consortia.models.regression.families import FAMILIES, family_of
from consortia.models.regression.formula import SITE, Factor, expression, parse
from consortia.models.regression.model import Regression
from consortia.models.regression.participants import described
from consortia.models.regression.question import IMPUTATIONS, Question, levels_given
from consortia.models.regression.registration import Registration
from consortia.models.regression.specification import Specification
from consortia.models.regression.unlike import Located, Place
from consortia.store.metadata import recorded

MOST_INTEGRATED = 3
"""Levels and slopes of a group that the rule of `integrated` has nodes for."""

AT_ONE_OWNER = b"consortia: processes of one owner"
"""Key of the digests of groups where no process keeps a secret from another."""

MOST_NODES = 150
"""Nodes of a rule along a dimension, at most."""

COLLINEAR, COLLINEAR_NAMED = 1e-9, 8
"""Smallest eigenvalue of the columns' correlations, below which they are called collinear; of so
many at most the names are given."""


@arguments.hinted
def regression(
    formula: str,
    sites: Any,
    *,
    family: str = "gaussian",
    missing: str = "refuse",
    prior: Mapping[str, str] | None = None,
    levels: Mapping[str, Sequence[Any]] | None = None,
    weights: str | None = None,
    weights_are: str = "frequency",
    ties: str = "efron",
    persons: str | None = None,
    exposure: str | None = None,
    trials: str | None = None,
    breaks: Sequence[float] | None = None,
    integrate: bool | None = None,
    nodes: int | None = None,
    evaluate: str = "auto",
    imputations: int = IMPUTATIONS,
    imputation_seed: int = 0,
    algorithm: Method | None = None,
    engine: Gatherer | None = None,
    harmonise: Mapping[str, Mapping[str, Any]] | None = None,
    describe: Mapping[str, Any] | None = None,
    keep: str | None = None,
    prior_from: Any = None,
    summaries: Mapping[str, Any] | None = None,
) -> Regression:
    r"""Return the model of a formula and the rows it needs, from tables that stay at their sites.

    To agree on columns sites send levels, means, squares and counts: `data.columns.TableFacts`.

    Args:
        formula: ``response ~ terms``, in the words of `consortia.models.regression.formula`.
        sites: one table a site: a dict of names to tables, or a list of them. A table is a path
            (.csv, .xlsx, .sav, .dta, .rds, .sql, .parquet and others), a DataFrame or a dict.
        family: one of gaussian, student, bernoulli, binomial (both perhaps with another link:
            "bernoulli(probit)", "binomial(cloglog)"), poisson, negative_binomial, gamma, beta,
            zero_inflated_poisson, zero_inflated_negative_binomial, lognormal, ordinal,
            categorical, weibull, piecewise_exponential, cox (stratified by site).
        missing: ``"refuse"`` missing values, use only ``"complete"`` rows, keep all rows with an
            ``"indicator"`` (the mean in place of a missing number, with a column that marks it; a
            missing level is a level), or ``"impute"`` values several times at each site.
        prior: by the name of a coefficient, of a term, or "coefficients", "intercept", "sd" and so
            on: "normal(0, 1)"; defaults are wide (`consortia.models.regression.priors`).
        levels: by column, the reference first; sites are not queried for the levels given here.
        weights: column or expression that multiplies each row's log-likelihood.
        weights_are: "frequency", or "sampling", for draws with the spread of a sandwich estimator.
        ties: with cox, "efron" or "breslow".
        persons: with Surv(start, stop, event), the column of persons, each of whom counts once.
        exposure: with counts, column or expression of the time or the number at risk.
        trials: with binomial, column or expression of the number of trials.
        breaks: with piecewise_exponential; None: the quintiles of an exponential of the mean time.
        integrate: integrate the levels of ``(1 + x | site)`` out at the sites, three effects at
            most; None where possible. Groups in a site always are; `Regression.levels_of` draws.
        nodes: of the quadrature, along each dimension; when None as many as the posterior needs.
        evaluate: how `few_rounds` computes log-densities: "auto" (sums over rows, NumPy, or of many
            rows or sites compiled programs) or "compiled", as all other methods do.
        imputations: number of imputations of the missing values.
        imputation_seed: seed of the imputed values.
        algorithm: what will be sampled with, where ``engine`` runs several processes.
        engine: where every process reads its own sites only; in this process when None.
        harmonise: by site, what is changed in its table as it is read, as in a study file.
        describe: what sites send of their participants: ``cells`` (5), the smallest count that is
            sent; ``times``, ``by`` a column, ``event`` codes, ``causes`` by code; ``treated``.
        keep: expression that is true of the rows to be analysed, such as ``"service > 0"``.
        prior_from: an earlier run of the formula, or a dict of ``run``, ``weight``, ``robust``.
        summaries: by site without rows: ``estimate`` with ``covariance``, or ``profile``.

    Returns:
        The model, its rows, and what gives results in the user's terms.

    Raises:
        InputError: the formula, a table or an argument cannot be used, or the sites disagree.

    Example:
        >>> import numpy as np
        >>> table = {"x": np.arange(8.0), "arm": list("abababab"), "y": np.arange(8.0)}
        >>> regression("y ~ x + arm", {"oslo": table, "lima": table}).names
        ('x', 'arm[b]')
    """
    options: dict[str, Any] = {"missing": missing, "levels": levels, "describe": describe}
    options |= {"weights": weights, "weights_are": weights_are, "ties": ties, "exposure": exposure}
    options |= {"trials": trials, "persons": persons, "integrate": integrate, "nodes": nodes}
    options |= {"imputations": imputations, "imputation_seed": imputation_seed, "keep": keep}
    question = question_of(formula, family, evaluate=evaluate, **options)
    sent = _read_sites(question, sites, harmonise, engine, algorithm)
    earlier = _earlier(prior_from, formula, family)
    return assembled(sent, prior, breaks, None, earlier, summaries)


class Sent(NamedTuple):
    """Facts that all sites have sent, and the tables that are in this process."""

    question: Question
    facts: Sequence[SiteFacts]  # of each site
    names: Sequence[str]
    read: Mapping[int, Table]  # by the site's index


def kept_rows(keep: str | None) -> Factor | None:
    """Return the expression that is true of the rows to be analysed, or None.

    Raises:
        InputError: it holds anything but arithmetic of columns.
    """
    if keep is None:
        return None
    if not isinstance(keep, str):
        raise wrong("keep", f" is {keep!r}: give an expression of columns, such as 'age >= 18'.")
    return expression(keep)


def _earlier(given: Any, formula: str, family: str) -> Registration | None:
    """Return levels and units of an earlier run of a formula, with its posterior as the prior.

    None where there is none.

    Args:
        given: as `regression` takes it.
        formula: of the run.
        family: likewise.

    Raises:
        InputError: it is a run of another formula, or its posterior cannot be a prior.
    """
    if given is None:
        return None
    given = dict(given) if isinstance(given, dict) else {"run": given}
    run, weight, robust = given.pop("run", None), given.pop("weight", 1.0), given.pop("robust", 0.0)
    if given or run is None:
        raise wrong("prior_from", f": give run, weight and robust, not {sorted(given)}.")
    arguments.positive("prior_from.weight", weight)
    tree, settings = fitted_run(run)
    then = settings.get("formula"), settings.get("family")
    if then != (formula, family) or "agreed" not in settings:
        raise InputError(
            f"prior_from: the run is of {then[0]!r}, family {then[1]!r}, and this is "
            f"{formula!r}, {family!r}: take a run of the same."
        ).at("prior_from")
    name = str(run) if isinstance(run, (str, Path)) else str(recorded(tree, "title") or "a run")
    return replace(
        Registration.read(settings["agreed"]), earlier=earlier_of(tree, name, weight, robust)
    )


def _read_sites(
    question: Question,
    sites: Any,
    harmonise: Mapping[str, Mapping[str, Any]] | None,
    engine: Gatherer | None,
    algorithm: Method | None,
) -> Sent:
    """Read the tables that are here, and return what all sites send."""
    tables, names = _tables(sites)
    changes: Mapping[str, Any] = {}
    if harmonise is not None:
        from consortia.data.harmonisation import read_harmonisations  # it needs pydantic

        changes = read_harmonisations(harmonise, names)
    question = replace(question, harmonise=changes)
    read: dict[int, Table] = {}

    def contribute(index: int) -> SiteFacts:
        name = names[index]
        read[index] = read_table(
            tables[index], f"site {name!r}", site=name, harmonise=changes.get(name)
        )
        return contribution(question, read[index], name, key=AT_ONE_OWNER)

    if engine is not None and algorithm is None:
        raise wrong("algorithm", " is missing: with an engine it decides who reads which site.")
    facts = gathered(question, names, contribute, read, engine or Gatherer(), algorithm)
    return Sent(question, facts, names, read)


def question_of(
    formula: str,
    family: str,
    *,
    missing: str = "refuse",
    levels: Mapping[str, Sequence[Any]] | None = None,
    integrate: bool | None = None,
    nodes: int | None = None,
    imputations: int = IMPUTATIONS,
    imputation_seed: int = 0,
    describe: Mapping[str, Any] | None = None,
    weights_are: str = "frequency",
    ties: str = "efron",
    persons: str | None = None,
    evaluate: str = "auto",
    keep: str | None = None,
    **extra: str | None,
) -> Question:
    """Return the request to every site, checked as far as it can be without data.

    Raises:
        InputError: an argument cannot be used.
    """
    of, parsed = family_of(family), parse(formula)
    if parsed.survival != (of.response == "time"):
        what = "needs Surv(time, event) ~ ..." if of.response == "time" else "is of no time"
        raise wrong("formula", f" {formula!r}: family {family!r} {what}.")
    given = {name: text for name, text in extra.items() if text is not None}
    for name in ("exposure", "trials"):
        if name in given and name not in of.takes:
            bases = dict.fromkeys(each.base for each in FAMILIES.values() if name in each.takes)
            raise wrong(name, f" is for family {' or '.join(bases)}, not {family!r}.")
    if "trials" in of.takes and "trials" not in given:
        raise InputError(
            f"trials is missing: family {family!r} needs the column of trials; a response of 0 and "
            "1 is of family 'bernoulli'."
        ).at("trials")
    if of.classes and parsed.response[0].column is None:
        raise wrong("formula", f" {formula!r}: the response of {family!r} is a column.")
    if family != "cox" and ties != "efron":
        raise wrong("ties", f"={ties!r} is for family 'cox': family {family!r} has none.")
    factors = {name: expression(text) for name, text in given.items()}
    if integrate is not None:
        integrate = arguments.flag("integrate", integrate)
    if nodes is not None:
        arguments.whole("nodes", nodes, 2, MOST_NODES)
    if integrate and not any(group.by == SITE for group in parsed.groups):
        raise wrong("integrate", f": the formula needs (1 | {SITE}), perhaps with slopes.")
    wanted = None if describe is None else Wanted.read(describe)
    asked = Question(parsed, of, missing, levels_given(levels), factors, bool(integrate))
    asked = replace(asked, imputations=imputations, imputation_seed=imputation_seed, ties=ties)
    asked = replace(asked, weights_are=weights_are, evaluate=evaluate, persons=persons)
    asked = replace(asked, nodes=nodes, described=wanted, keep=kept_rows(keep))
    if integrate is None:
        asked = _integrated_by_default(asked)
    _check_weights(asked)
    _check_parts(formula, family, asked)
    _check_integrated(family, asked)
    _check_outcome(formula, asked)
    return asked


def _check_parts(formula: str, family: str, question: Question) -> None:
    """Refuse what does not go together in a formula, its family and what stands beside them."""
    parsed, of, wanted = question.parsed, question.family, question.described
    if wanted is not None and wanted.times and of.response != "time":
        raise wrong("describe.times", f": family {family!r} has no follow-up.")
    for name in question.levels:
        if name not in question.columns:
            raise InputError(
                f"levels: {name!r} is not a column of the formula: "
                f"{unknown(name, question.columns)}."
            ).at("levels")
    if len({(g.by, g.kind) for g in parsed.groups}) > len({g.by for g in parsed.groups}):
        raise wrong("formula", f" {formula!r}: one column is in two kinds of group terms.")
    if parsed.strata and of.of_site is None:
        raise InputError(
            f"formula {formula!r}: strata(...) needs family 'cox', with a baseline of each."
        ).at("formula")
    if parsed.entry is not None and question.imputes:
        raise InputError(
            "missing='impute': the imputation does not support rows that start after 0: give "
            "missing='complete'."
        ).at("missing")
    if parsed.entry is None and question.persons is not None:
        raise InputError(
            f"persons {question.persons!r}: it is for Surv(start, stop, event), where a person has "
            "several rows; of other repeated rows write (1 | ...) of the column."
        ).at("persons")
    if parsed.entry is None or wanted is None or not wanted.times or question.persons is not None:
        return
    raise InputError(
        "describe.times: curves of Surv(start, stop, event) need persons, the column of the person "
        "of each interval."
    ).at("describe.times")


def _integrated_by_default(question: Question) -> Question:
    """Return a question whose sites integrate their levels and slopes out, where they can."""
    integrated = replace(question, integrated=True, by_default=True)
    staying = [group for group in question.parsed.groups if integrated.stays(group)]
    possible = question.family.integrable and not question.imputes
    few = sum(len(group.inside) for group in staying) <= MOST_INTEGRATED
    of_sites = any(group.by == SITE for group in staying)
    return integrated if possible and few and of_sites else question


def integrable(spec: Specification) -> bool:
    """Return True if sites could integrate out the levels that a run has as parameters."""
    asked = spec.question
    inside = [name for group in asked.parsed.groups if group.by == SITE for name in group.inside]
    width = sum(max(len(spec.levels.get(name, ())) - 1, 1) for name in inside)
    return width <= MOST_INTEGRATED and _integrated_by_default(asked).integrated > asked.integrated


def _check_integrated(family: str, question: Question) -> None:
    """Refuse levels that cannot be integrated out at the sites, or that nothing is known of."""
    parsed, of = question.parsed, question.family
    if of.of_site and any(group.by == SITE and "" in group.inside for group in parsed.groups):
        raise InputError(
            f"formula: (1 | {SITE}): family {family!r} has a baseline of each site, with "
            f"its level: leave it out, or write (0 + x | {SITE}) for a slope of each site. A "
            "frailty of sites goes with family 'piecewise_exponential' or 'weibull'."
        ).at("formula")
    staying = {group.by: f"(... | {group.by})" for group in parsed.groups if question.stays(group)}
    if staying and not of.integrable:
        hint = ""
        if of.response == "time":
            hint = (
                "; weibull and piecewise_exponential do, and with ten breaks at quantiles of the "
                "times of events the latter has nearly the coefficients of cox"
            )
        raise InputError(
            f"formula: {next(iter(staying.values()))} is integrated out at the sites, which family "
            f"{family!r} does not allow{hint}."
        ).at("formula")
    if staying and question.imputes:
        raise InputError(
            f"missing='impute': {next(iter(staying.values()))} is integrated out at the sites, "
            f"given rows of one imputation. Write (1 | {SITE}) without integrate=True, or give "
            "missing='complete'."
        ).at("missing")
    if question.nodes is not None and not staying:
        raise wrong("nodes", " has no effect: the formula integrates nothing out. Leave it out.")
    most = [group for group in parsed.groups if question.stays(group)]
    if sum(len(group.inside) for group in most) > MOST_INTEGRATED:
        raise InputError(
            f"formula: {MOST_INTEGRATED} levels and slopes of a group can be integrated out at the "
            "sites, not more: leave a slope out."
        ).at("formula")
    if len(staying) > 1:
        raise InputError(
            f"formula: {' and '.join(staying.values())} are both integrated out at the sites: one "
            "kind of groups can be. Write shared(...) for the kind with fewer groups, which are "
            "then parameters: the server sees their labels and effects."
        ).at("formula")


def _check_weights(question: Question) -> None:
    """Refuse weights of a sample, and clusters, of models without robust standard errors."""
    parsed = question.parsed
    if question.samples and "weights" not in question.extra:
        raise wrong("weights_are", "='sampling': give weights, the column of them.")
    if not question.robust:
        return
    what = "weights_are='sampling'" if question.samples else f"cluster({parsed.cluster})"
    if parsed.groups or any(factor.kind == "smooth" for factor in parsed.factors.values()):
        raise InputError(
            f"{what}: formula {parsed.text!r} has levels or smooths with their own standard "
            "deviation, which have no robust standard errors here: leave them out, or write site "
            "as a term."
        ).at("weights")
    if question.imputes:
        raise InputError(
            f"{what}: missing values cannot be imputed where the spread is a sandwich's: give "
            "missing='complete'."
        ).at("missing")


def _check_outcome(formula: str, question: Question) -> None:
    """Refuse a response that is in a term too."""
    outcome = {factor.column for factor in question.parsed.response} - {None}
    for column in question.parsed.columns:
        if column in outcome:
            raise InputError(
                f"formula {formula!r}: {column!r} is the response and in a term too: take it "
                "out of the terms."
            ).at("formula")


def contribution(
    question: Question,
    table: Table,
    site: str,
    least: int = 1,
    cells: int = 1,
    key: bytes | None = None,
) -> SiteFacts:
    """Return a site's facts on its table for all processes.

    ``least`` and ``key`` are as of `Question.facts`; a number about participants is of ``cells``
    rows or more.
    """
    of_table, parsed = question.facts(table, site, least, key), question.parsed
    kept = question.kept(table, site)
    arrays = dict.fromkeys(question.columns, ((), "<f8"))
    numbers = set(question.numbers)
    if not question.levels_of_response(kept):
        numbers |= {name for factor in parsed.response for name in factor.columns}
    held = {
        name: column.values if name in numbers and column.kind != "text" else coded_levels(column)
        for name, column in kept.items()
    }
    known = of_value((held, {name: column.missing for name, column in kept.items()}))
    participants = None
    if question.described is not None:
        participants = described(question, question.described, table, kept, site, cells)
    return SiteFacts(rows_of(kept), arrays, known, table=of_table, described=participants)


def gathered(
    question: Question,
    names: Sequence[str],
    contribute: Callable[[int], SiteFacts],
    read: Mapping[int, Table],
    engine: Gatherer,
    algorithm: Any,
    same: Callable[[], Mapping[str, Any]] = dict,
) -> list[SiteFacts]:
    """Return the facts of all sites.

    ``contribute`` reads the site of an index, whose table is then in ``read``; ``same`` makes what
    all processes must have been given, by name.

    Raises:
        InputError: tables cannot be used; with what is wrong with each, and what those that can be
            read write unlike one another.
    """
    tables: dict[int, TableFacts] = {}

    def contributed(index: int) -> SiteFacts:
        try:
            facts = contribute(index)
        except TableError as error:
            if error.known is not None:
                tables[index] = error.known
            raise
        if facts.table is not None:
            tables[index] = facts.table
        return facts

    try:
        return engine.gather_facts(Gathering(names, algorithm, contributed, same=same))[0]
    except InputError as error:
        faults = Faults()
        facts_here = {index: asdict(table) for index, table in tables.items()}
        parts = engine.allgather(lambda: facts_here)
        every = {int(i): table for part in parts for i, table in part.items()}
        known = {names[index]: TableFacts.read(every[index]) for index in sorted(every)}
        with faults.noted():
            Answers(question, known).kinds(_locator(names, read))
        if not faults:
            raise
        message = f"{error}\n{faults}"
        faults.take(error)
        raise faults.joined(InputError(message)) from error


def assembled(
    sent: Sent,
    prior: Mapping[str, str] | None,
    breaks: Sequence[float] | None,
    imputation: int | None = None,
    registered: Registration | None = None,
    summaries: Mapping[str, Any] | None = None,
) -> Regression:
    """Return the regression of all sites, with the rows of those that have been read here.

    Where values are imputed the rows are those of all imputations, or of the ``imputation``. Where
    the study is ``registered``, nothing of the facts decides what the columns are.
    """
    agreed = _agreed(sent, breaks, registered)
    if sent.question.by_default and len(agreed.staying) > MOST_INTEGRATED:  # a slope of each level
        question = replace(sent.question, integrated=False, by_default=False)
        sent = sent._replace(question=question)
        agreed = _agreed(sent, breaks, registered)
    question, facts, names, read = sent
    if prior is not None and not isinstance(prior, Mapping):
        raise wrong("prior", f" is {prior!r}: give a dict, such as {{'age': 'normal(0, 1)'}}.")
    earlier = None if registered is None else registered.earlier
    density = Density(agreed, dict(prior or {}), earlier, summaries)
    if len(agreed.staying) > MOST_INTEGRATED:
        raise InputError(
            f"formula: ({agreed.blocks[agreed.staying[1]].factor} | {agreed.grouping}) has a slope "
            f"of each level: {MOST_INTEGRATED} levels and slopes can be integrated out at a site."
        ).at("formula")
    density.priors, density.correlation_prior  # noqa: B018 - refuse what they cannot read
    model = model_of(density)

    def completed(imputation: int | None) -> Sites:
        rows = {
            index: site_rows(agreed, table, names[index], imputation)
            for index, table in read.items()
        }
        empty = template(agreed)
        parts = [
            read_rows(rows[index], f"site {name!r}")
            if index in rows
            else rows_elsewhere(empty, facts[index].rows)
            for index, name in enumerate(names)
        ]
        for index in rows:
            check_finite(names[index], parts[index])
        more = () if imputation is None else (imputation,)
        digests = {i: of_value((f.digest, agreed.digest, *more)) for i, f in enumerate(facts)}
        return Sites.of_rows(
            tuple(names), of_common_types(names, parts), digests, set(digests) - set(rows)
        )

    sites: Sites | tuple[Sites, ...] = ()
    if agreed.imputed and imputation is None:
        sites = tuple(completed(number) for number in range(question.imputations))
    else:
        sites = completed(imputation if agreed.imputed else None)
    notes, first = agreed.notes, sites if isinstance(sites, Sites) else sites[0]
    if earlier is not None:
        notes += (f"the prior is {earlier}",)
    notes += tuple(str(sent) for sent in density.site_estimates)
    if not first.elsewhere:
        notes += _collinear(agreed, first)
    groups = {}
    if agreed.grouping not in (None, SITE):
        groups = {names[i]: group_names(agreed, table, names[i]) for i, table in read.items()}
    kept = {names[i]: question.kept(table, names[i]) for i, table in read.items()}
    descriptions = _descriptions(sent, kept)
    if agreed.imputed and imputation is not None:
        kept = {name: question.imputed(t, name, imputation) for name, t in kept.items()}
    made = Regression(agreed, density, model, sites, notes, groups, kept, descriptions)
    if earlier is not None:
        shapes = {name: np.shape(values) for name, values in density.start.items()}
        earlier.check(flat_labels(shapes, made.metadata.labels))
    return made


def _agreed(
    sent: Sent, breaks: Sequence[float] | None, registered: Registration | None
) -> Specification:
    """Return the formula as all sites use it: as registered, or as their facts have it."""
    question, facts, names, read = sent
    if registered is not None:
        rows = [site_facts.rows for site_facts in facts]
        agreed = registered.specification(question, names, breaks)
        of_sites = {site: f.table for site, f in zip(names, facts, strict=True) if f.table}
        readings = tuple(readings_of(of_sites))
        counted = () if any(site_facts.unread for site_facts in facts) else tuple(rows)
        left_out = Answers(question, of_sites).left_out(dict(zip(names, rows, strict=True)))
        notes = (*agreed.notes, *left_out)
        return replace(agreed, rows=counted, readings=readings, notes=notes)
    return agree(question, facts, names, breaks, _locator(names, read))


def _locator(names: Sequence[str], read: Mapping[int, Table]) -> Located:
    """Return the function that finds a level of a site in the tables that are here."""
    return lambda site, *at: place_of(read.get(names.index(site)), site, *at)


def _descriptions(sent: Sent, kept: Mapping[str, Table]) -> dict[str, SiteDescription]:
    """Return each site's description of its participants, or what those here would send."""
    question, facts, names, read = sent
    if question.described is not None:
        every = {
            name: site_facts.described
            for name, site_facts in zip(names, facts, strict=True)
            if site_facts.described is not None
        }
        wanted = question.described
        for name, description in every.items():
            counts = description.followup
            if counts is not None and not counts.fits(len(wanted.times), len(wanted.kinds)):
                raise InputError(f"site {name!r} counts at other times.").at(site=name)
        return every
    if len(read) < len(names):
        return {}
    return {
        names[index]: described(question, Wanted(cells=1), table, kept[names[index]], names[index])
        for index, table in sorted(read.items())
    }


def place_of(table: Table | None, site: str, column: str, level: str) -> Place:
    """Find the first place of a level: the file and the line where the rows are here."""
    elsewhere = Place(f"site {site!r}", level)
    if table is None or column not in table or (source := table[column].source) is None:
        return elsewhere
    places = np.flatnonzero(as_levels(table[column]) == level)
    if not len(places):
        return elsewhere
    first = int(places[0])
    given = table[column].given
    return Place(source.row(first), level if given is None else str(given[first]))


def _tables(sites: Any) -> tuple[list[Any], tuple[str, ...]]:
    """Return the tables and the names of the sites."""
    if isinstance(sites, Mapping):
        names: list[str] | None = [str(name) for name in sites]
        tables = list(sites.values())
    elif isinstance(sites, Sequence) and not isinstance(sites, str):
        tables = list(sites)
        stems = [Path(path).stem for path in tables if isinstance(path, (str, Path))]
        names = stems if len(stems) == len(tables) else None
    else:
        hint = ""
        if hasattr(sites, "groupby"):
            hint = " Of one table with a column of the sites: dict(list(table.groupby('COLUMN')))."
        raise InputError(
            f"sites is a {type(sites).__name__}: give a dict of names to tables, or a list of them."
            f"{hint}"
        ).at("sites")
    if not tables:
        raise wrong("sites", " is empty: give at least one table.")
    return tables, site_names(names, len(tables))


def _collinear(agreed: Specification, sites: Sites) -> tuple[str, ...]:
    """Return a sentence on columns of which one follows from the others, where all are here."""
    count = len(agreed.names)
    if count < 2:
        return ()
    parts = [shard["x"][:, :count] for shard in sites.shards]
    mean = np.sum([part.sum(axis=0, dtype=np.float64) for part in parts], axis=0) / sites.rows
    products = np.zeros((count, count))
    for part in parts:
        for at in range(0, len(part), VALUES_AT_ONCE):
            centred = part[at : at + VALUES_AT_ONCE] - mean * agreed.has_intercept
            products += centred.T @ centred
    size = np.sqrt(np.diag(products))
    vary = size > 1e-9 * np.sqrt(sites.rows) * np.abs(mean)  # a constant is left with rounding
    correlations = products[np.ix_(vary, vary)] / np.outer(size[vary], size[vary])
    values, vectors = np.linalg.eigh(correlations)
    if values.size == 0 or values[0] > COLLINEAR:
        return ()
    large = np.abs(vectors[:, values <= COLLINEAR]).max(axis=1) > 0.05
    names = [name for name, some in zip(agreed.names, vary, strict=True) if some]
    collinear = [name for name, is_large in zip(names, large, strict=True) if is_large]
    text = ", ".join(collinear[:COLLINEAR_NAMED])
    if len(collinear) > COLLINEAR_NAMED:
        text += f" and {len(collinear) - COLLINEAR_NAMED} others"
    return (f"{text} are collinear: what each of them does is known from the priors only",)
