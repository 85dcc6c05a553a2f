"""A study in plain sentences, for whoever answers for a site's data."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from consortia.data.mending import rows_text
from consortia.diagnostics.site_sums import LEFT_OUT
from consortia.federation.governance.proposal import proposed_messages
from consortia.federation.governance.terms import MASKED, PLAIN, StudyTerms
from consortia.run.sandwich import SAMPLES
from consortia.run.verification import EXACT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consortia.federation.governance.declared import Declared
    from consortia.study.build import Study
    from consortia.study.used_rows import RowChoices

MORE = "docs/threat-model.md"

SENT = {
    "description": "Once: how many rows you have, the names and types of the columns, the least "
    "and the largest response, and a code of your rows that only you can check.",
    "moments": "Once: of each column the mean and the spread, of a formula in two digits; if three "
    "sites have keys they are masked, so that the server learns those of all sites together, and "
    "of yours where the values lie, to half a standard deviation. With them leave the "
    "names of the levels of its factors, the numbers of missing values, and which words and "
    "numbers may be codes for them, with the number of their rows. Recommended: ask for the study "
    "with a table [registered], in which no site tells any of this.",
    "fit": "Before the rounds: sums over all your rows that describe the shape of their "
    "likelihood (a best value, slopes, curvatures).",
    "setup": "Once for each chain: a sum over all your rows at the place where the chain starts.",
    "round": "In each round and for each chain: a place that was computed from all your rows, or "
    "a sum over them.",
    "query": "At each question of the server, one of these answers.",
}
"""Each kind of message in one sentence."""

EXACTLY = (
    ". EXACT, at places that the server chooses: without noise such sums tell how many of your "
    "rows share a pattern and, where a row stands out, its values. Few studies need it: ask the "
    "coordinator why, or ask for the study without `gradients = true` (studies with sampling "
    "weights always need it)"
)
"""Added to an answer that leaves with all its digits."""

SUMS = {
    MASKED: "Each answer leaves you masked: the server learns the sum over all sites and not "
    "yours, unless all other sites help it. Many sums can still tell rows, and how many share a "
    "pattern, of all sites together; not whose they are. Your policy needs the keys of all sites "
    "for it (consortia site key).",
    PLAIN: "The server sees each answer of your site separately. Recommended: ask for the study "
    "without run.secure_sums = false, with which it learns the sum over all sites alone.",
}
"""Treatment of answers that are sums, by the study's terms."""

AFTER = {
    EXACT: "with which the draws are compared",
    LEFT_OUT: "which takes the draws and asks how well each of your rows is predicted without it, "
    "of which the sum leaves you, and what the result is without your site",
}
"""Purpose of each method that is run after a study."""


def sentences(
    study: Study,
    terms: StudyTerms,
    *,
    rows: int | None = None,
    columns: int | None = None,
    numbers: Sequence[Declared] = (),
    choices: RowChoices | None = None,
    before: str = "",
    ends: str = "",
) -> list[tuple[str, str]]:
    """Return pairs of a heading and a text; no data are read.

    Args:
        study: the study.
        terms: what it requires.
        rows: of the site's file, where it was read.
        columns: of it, the response included.
        numbers: of the study, and of those that are run after it, what their messages hold.
        choices: rows and values of the site's file that the study uses, where it was read.
        before: what differs from studies that the site has answered before, where that is known.
        ends: how probable it is that the run ends early, where answers are measured.
    """
    pairs = [
        ("Study", study.title or study.name),
        ("Your data", _data(study)),
        ("Model", _model(study)),
        (
            "Method",
            f"{terms.algorithm} draws values of the model's parameters that fit the rows of all "
            f"sites together; {_law(study)}.",
        ),
        ("Length", _length(study, terms)),
        *([("Early end", ends)] if ends else []),
    ]
    chosen = [*_chosen(study, choices), *_nonlinear(study)]
    pairs[3:3] = [("Before", before)] if before else []
    pairs[3:3] = _under("Look at", chosen)
    pairs += [
        (
            "Then",
            f"{_after(study, part)}: your site sends at most {declared.exchanges:,} messages.",
        )
        for part, declared in zip(study.besides, terms.besides, strict=True)
        if not part.imputation  # of the imputations the first stands for all
    ]
    leaving = [f"{SENT[kind]} ({kind}; {MORE}#messages)" for kind in terms.leaving]
    pairs += _under("Leaves you", leaving)
    pairs += dict.fromkeys(  # once each: imputations have the same functions
        ("", f"{text} ({name}){EXACTLY * (name in part.exact)}")
        for part in terms.every
        for name, text in part.answers
    )
    return [*pairs, *_under("A patient", _of_a_patient(terms, rows, columns, numbers))]


def _under(heading: str, texts: list[str]) -> list[tuple[str, str]]:
    """Return pairs of heading and string; all but the first heading are empty."""
    return [("" if number else heading, text) for number, text in enumerate(texts)]


def _after(study: Study, part: Study) -> str:
    """State the purpose of a study that is run after another."""
    name = part.method.name
    if part.imputation is not None:
        return (
            f"if values are missing at a site, {len(study.imputed)} runs of the same model, each "
            f"with missing values drawn anew there, by {name}; in each"
        )
    if part.model != study.model:
        return f"{_model(part)} It is compared with the one above, by a run of {name} too"
    text = f"another run of the same model on your rows, by {name}, {AFTER[name]}"
    return text if part.compare is None else f"{text}; and one of the other model, to compare them"


def _data(study: Study) -> str:
    data, question = study.data, study.model.question
    if data.files is None:
        return f"the published data set {data.dataset}, which one machine divides among sites."
    if question is not None:
        other = None if study.compare is None else study.compare.question
        wanted = question.described
        columns = (*question.columns, *(() if other is None else other.columns))
        columns += () if wanted is None else wanted.columns
        columns += () if question.persons is None else (question.persons,)
        kept = None if study.asked is None else study.asked.keep
        columns += () if kept is None else kept.columns
        used = ", ".join(map(repr, dict.fromkeys(columns)))
        text = f"one file of each of {len(data.files)} sites; it uses the columns {used} of yours."
        if data.keep is not None:
            text += f" It takes the rows of which {data.keep} is true, and no other."
        if wanted is not None:
            text += (
                " Before the run it tells who your participants are: numbers of rows by level, "
                "means and spreads, missing values, events and follow-up, none of fewer rows than "
                f"{wanted.cells} or the minimum_pattern_rows of your policy, whichever is larger."
            )
            if wanted.treated is not None:
                text += f" So do means of the rows of which {wanted.treated} is true, and weighted."
        return text
    text = (
        f"one file of each of {len(data.files)} sites. The column {data.target!r} is the response; "
        "every other column of your file is used as a feature: take out what the study does not "
        "need, names and numbers of patients above all."
    )
    if data.standardise:
        text += " Features are centred and scaled by the means and spreads of all sites' rows."
    return text


def _model(study: Study) -> str:
    model, question = study.model, study.model.question
    if question is not None:
        text = f"The regression {model.formula}, family {question.family.name}."
        if question.tells_levels:
            return text + " What your site adds of its own is estimated, and the server sees it."
        if any(question.stays(group) for group in question.parsed.groups):
            return text + " What your site, or a group in it, adds of its own stays with you."
        return text
    if model.kind is None:
        return (
            f"code of the coordinator, {model.factory}: it runs on your machine, with your "
            "rights. Have somebody read it who can."
        )
    from consortia.study.model import MODELS

    first = (inspect.getdoc(MODELS[model.kind]) or model.kind).splitlines()[0]
    first = first.removeprefix("Return ")
    text = first[:1].upper() + first[1:].removesuffix(".") + "."
    scale = model.settings.get("prior_scale")
    if isinstance(scale, (int, float)):
        text += (
            f" Before any data each coefficient is taken to be normal around 0 with a standard "
            f"deviation of {scale:g}."
        )
    return text


def _chosen(study: Study, choices: RowChoices | None) -> list[str]:
    """List the rows that a study leaves out, and the values that it replaces."""
    if choices is None:
        sites = ", ".join(map(repr, study.harmonise))
        text = f"The study changes values of {sites} before they are used: [harmonise] lists them; "
        text += "give --data FILE to have the rows counted. A change of few rows is about these."
        return [text] if study.harmonise else []
    texts = []
    if choices.used < choices.given:
        texts.append(
            f"{rows_text(choices.given - choices.used)} of your {choices.given:,} are left out: "
            "those with a missing value, and those that data.keep and data.require leave out. "
            "Another study that uses them tells what they are, unless they are many."
        )
    for column, value, to, rows in choices.changes:
        taken = f"is taken for {to}" if to else "counts as missing"
        texts.append(f"In {column} the value {value} {taken}: {rows_text(rows)} of yours.")
    return texts


def _nonlinear(study: Study) -> list[str]:
    """Return the expressions of a formula, any of which may be about few rows."""
    if study.model.question is None:
        return []
    factors = study.model.question.parsed.factors.values()
    terms = [factor.text for factor in factors if factor.column is None and factor.kind == "plain"]
    if not terms:
        return []
    return [
        f"The formula computes {', '.join(terms)}: ask what for. A curve that is steep somewhere "
        "may be about one patient; your site measures that, and refuses."
    ]


def _law(study: Study) -> str:
    if study.model.question is None or not study.model.question.robust:
        return f"their law is {study.method.claims.samples}"
    return (
        f"they are drawn {SAMPLES}, for which your site sends the sum over its rows of products "
        "of scores, once"
    )


def _length(study: Study, terms: StudyTerms) -> str:
    run = study.run
    if terms.usual is not None:
        return (
            f"{terms.chains} chains side by side: your site usually sends {terms.usual:,} "
            f"messages, and at most {terms.exchanges:,}. Under the proposed policy a run ends "
            f"after {proposed_messages(terms):,}, also one that then has no result yet: its "
            "coordinator may ask you for more."
        )
    warmup = f", {run.warmup} of them to warm up" if run.warmup else ""
    return (
        f"{terms.rounds:,} rounds{warmup}, {terms.chains} chains side by side: your site sends at "
        f"most {terms.exchanges:,} messages."
    )


def _of_a_patient(
    terms: StudyTerms, rows: int | None, columns: int | None, numbers: Sequence[Declared]
) -> list[str]:
    """Explain an observer's possible knowledge of one patient."""
    parameters: dict[str, Any] = dict(terms.parameters)
    alone = any(part.sums != MASKED for part in terms.every)
    texts = [
        "No row leaves you, but all that leaves is computed from your rows"
        + (", and the server sees all of it. " if alone else ". ")
        + "What a row has in common with few others, or with none, can show."
    ]
    noise = float(parameters.get("gradient_noise") or 0)
    private = parameters.get("momentum_correlation")
    if parameters.get("batch_size") is not None:
        texts.append(
            f"Each message is of {parameters['batch_size']} rows that your site draws from a "
            "secret of its own: the server does not know which."
        )
    if noise > 0:
        texts.append(
            f"Noise of variance {noise:g}, drawn from a secret of your site, is added to all that "
            "is sent. How much one patient changes it is not bounded: no privacy budget is claimed."
        )
    elif terms.noisy:
        texts.append(
            f"Noise that only your site knows is added to what {', '.join(terms.noisy)} sends. It "
            "leaves the result exact. No privacy budget is claimed."
        )
    elif private is None or private == 1:
        texts.append("Nothing of what is sent is hidden by noise that only your site knows.")
    texts += [_of_rows(part) for part in terms.every if not part.measured][:1]
    if terms.measured:
        texts.append(
            "Before each answer your site measures, on its own rows, how many of them all answers "
            "so far settle, and refuses where they are more than the policy permits (proposed: 0)."
        )
    texts += [SUMS[part] for part in dict.fromkeys(part.sums for part in terms.every) if part]
    texts += [
        f"The server sees each message of {name} separately: {why}."
        for name, why in dict.fromkeys((part.algorithm, part.apart) for part in terms.every)
        if why
    ]
    if terms.sites == 2:
        texts.append(
            "There are two sites: the other one can compute your messages from its own and the "
            "average. Do not take part without agreeing to that."
        )
    if rows is not None and columns is not None and numbers:
        texts.append(_of_numbers(terms, rows * columns, numbers))
    else:
        texts.append("Give --data FILE to compare the numbers sent with those of your rows.")
    texts.append(
        "The published draws say a little of each patient, too. `consortia site rehearse` tries "
        "all this on your own rows and tells in numbers what is read."
    )
    return texts


def _of_rows(terms: StudyTerms) -> str:
    """Name the unknowns of a method that is not measured, and the remedy."""
    text = (
        f"How many of your rows the messages of {terms.algorithm} settle CANNOT be measured here: "
        "whoever holds them may know any row."
    )
    if terms.usual is None:
        return f"{text} Recommended: ask for the same study with few_rounds, which is measured."
    return f"{text} Recommended: ask for another family, of which it can be measured."


def _of_numbers(terms: StudyTerms, held: int, numbers: Sequence[Declared]) -> str:
    """Compare the number of row-dependent numbers in all messages with those in the rows."""
    first = numbers[0]
    usual = sum(declared.usual for declared in numbers)
    text = f"Your file holds {held:,} numbers. All messages together hold {usual:,} that depend on "
    text += "them" if terms.usual is None else "them usually"
    if first.proposed > first.usual:
        text += f", and a run stops at {first.proposed:,} under the policy that is proposed"
    times = usual / held
    return f"{text}: " + (
        f"{times:,.1f} times as many as your rows hold. They would be enough to read every row, "
        "were each exact and independent of the others."
        if times >= 1
        else "fewer than your rows hold."
    )
