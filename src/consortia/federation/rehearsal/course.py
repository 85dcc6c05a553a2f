"""The rehearsal: each attack as things were without a site's limits, and with them."""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

import consortia
from consortia.core import start, trees
from consortia.core.parameters import join, sampled_draws, variables
from consortia.core.target import Target
from consortia.diagnostics import rhat_and_ess
from consortia.errors import SiteRefusedError, WarmupError
from consortia.federation.governance.declared import declared_of
from consortia.federation.governance.early_end import FAR_OUT, early_end, far_out
from consortia.federation.governance.policy import load_policy
from consortia.federation.governance.proposal import proposed
from consortia.federation.governance.terms import MASKED, terms_of
from consortia.federation.rehearsal import attacks
from consortia.federation.rehearsal.membership import FALSE_ALARMS, found_out, most_draws
from consortia.federation.rehearsal.reading import NEAR
from consortia.federation.rehearsal.stage import Stage
from consortia.federation.rehearsal.week import days
from consortia.runtime.late import jax, jnp
from consortia.study.build import Built, Study, load_study

WITHOUT = {
    "maximum_position": "1e300",
    "maximum_step": "1e300",
    "maximum_answers": "1000000",
    "maximum_refusals": "1000000",
    "maximum_messages": "1000000000",
    "maximum_settled_rows": "1000000000",
    "minimum_pattern_rows": "1",
}
"""Limits of a policy that permits what sites without these limits did."""

RUNS, DECIDED, SITE_RUNS = 5, 2, 15
"""Honest runs with independent noise, so many that all end early and are enough, and runs of all
sites together: two runs of a study of twelve sites take 36 CPU seconds."""

MOST_ROWS = 2000
"""Rows up to which the membership test holds all draws of all rows."""


@dataclass(frozen=True)
class Finding:
    """One attack."""

    attack: str  # its name
    sentence: str  # what it comes to, in words
    # the same as plain values; none where it was not tried
    numbers: dict[str, float | int | str] = field(default_factory=dict)
    refused: bool = False  # an honest run would end without a result

    @property
    def known(self) -> bool:
        """False where it was not tried, so that nothing is known of what it reads."""
        return bool(self.numbers)


class Rehearsal(NamedTuple):
    """Study that an attack is tried on."""

    path: Path  # the study file
    study: Study  # what is in it
    built: Built  # the same with the site's own rows at every site
    files: dict[str, Path]  # of all sites by name, each the site's own
    name: str  # of the site
    before: str  # text of a policy without limits on requests
    policy: str  # of the one under which the site would take part
    folder: Path  # for what sites keep
    given: bool  # the policy is the site's, not a proposed one

    @property
    def rows(self) -> np.ndarray:
        """The features of the site, (rows, features)."""
        rows = self.built.rows.site(list(self.files).index(self.name))
        return np.asarray(rows["x"], np.float64)

    def stage(self, part: str, policy: str, *, private: bool = True) -> Stage:
        """Return the study in one process, with a folder of its own."""
        given = self.path, self.files, self.folder / part, policy, self.name
        return Stage(*given, private=private)


def rehearsed(
    study: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    site: str | None = None,
    policy: str | os.PathLike[str] | None = None,
    week: bool = False,
) -> Iterator[Finding]:
    """Try the known attacks on a site's own rows; yield what each comes to.

    Copies of the file stand for the other sites, whose rows the site has not.

    Args:
        study: the study file.
        data: the site's own file.
        site: the site's name in the study; by default the file's.
        policy: under which the site would take part; the one that is proposed when None.
        week: run several ordinary studies of the file, too, one after the other.

    Raises:
        InputError: the study has no such site, or its file or policy cannot be used.
    """
    path, file = Path(study), Path(data).resolve()
    loaded = load_study(path)
    names, name = loaded.data.site_names, site or file.stem
    index = loaded.data.index_of(name)
    terms = terms_of(loaded)
    before = _without(text := proposed(terms, two_sites=True, rows=1))
    if policy is not None:
        load_policy(policy)
        text = Path(policy).read_text(encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        built = loaded.of_copies(name).build(files=dict.fromkeys(range(len(names)), file))
    yield _count(loaded, built, file, index)
    with tempfile.TemporaryDirectory() as folder:
        more = before, text, Path(folder), policy is not None
        rehearsal = Rehearsal(path, loaded, built, dict.fromkeys(names, file), name, *more)
        honest = _honest(rehearsal, measured=terms.measured)
        yield honest
        if week:
            yield from _week(rehearsal)
        if honest.refused and not honest.numbers["answers"]:
            return  # nothing is answered there, whoever asks
        if terms.measured:
            yield _lying_queries(rehearsal)
        else:
            yield _lying(rehearsal)
            yield _looking(rehearsal)
    yield _membership(loaded, built, index)


def _without(text: str) -> str:
    """Return the text of a policy without the limits on requests."""
    text = re.sub(r"^functions = .*$", "", text, flags=re.MULTILINE)
    for key, value in WITHOUT.items():
        text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
    return text


def _count(study: Study, built: Built, file: Path, index: int) -> Finding:
    """Compare the number of numbers in the messages with that in the rows."""
    rows = int(built.rows.sizes[index])
    leaves = trees.leaves_of(built.rows.site(index))
    columns = sum(int(np.prod(leaf.value.shape[1:], dtype=int)) for leaf in leaves)
    d = Target(built.model, start.starting_parameters(built.model, None, 0, 1)[0]).dimension
    sent = declared_of(study, file, index)[0]
    unknowns = rows * columns
    word = "more" if sent.usual >= unknowns else "fewer"
    return Finding(
        "equations against unknowns",
        f"all messages of a run together hold {sent.usual:,} numbers that depend on your rows, and "
        f"at most {sent.most:,} where no policy stops it; your rows hold {rows} × {columns} = "
        f"{unknowns:,}. The messages hold {word} numbers than the rows"
        + (": were each exact, they could settle every row." if word == "more" else "."),
        {
            "equations": sent.usual,
            "most_equations": sent.most,
            "unknowns": unknowns,
            "rows": rows,
            "parameters": d,
        },
    )


def _honest(on: Rehearsal, *, measured: bool) -> Finding:
    """Count the rows that an honest run settles, as the site measures it."""
    attack = "an honest run"
    if not measured:
        name = on.study.method.name
        text = f"not measured: how many rows the messages of {name} settle is not known"
        return Finding(attack, f"{text}. Any of your rows may be among them.")
    courses, most_runs = list[_Course](), max(min(RUNS, SITE_RUNS // len(on.files)), DECIDED)
    while len(courses) < most_runs and not _is_decided(courses):
        courses.append(_course(on, f"honest{len(courses)}"))
    worst = max(courses, key=lambda course: (bool(course.refused), course.settled, course.noise))
    ended, runs = sum(bool(course.refused) for course in courses), len(courses)
    chance, most = early_end(ended, runs)
    text = (
        f"all answers together settle {worst.statement or 'no row, for none has left'}. Of a "
        "settled row the server knows a value to a tenth of its column's standard deviation."
    )
    if worst.noise > 1:
        text += f" So that no more is settled it adds up to {worst.noise:g} times its usual noise."
    text += f"{_helped(on)} Of {runs} runs with noise of their own {ended} end early: the "
    text += f"probability is about {chance:.2f}, at most {most:.2f} (95 %)."
    if worst.refused:
        text += (
            f" Such a run ends early, without a result: {worst.refused}{_advice(on, worst.refused)}"
        )
    return Finding(
        attack,
        text,
        {
            "answers": worst.answers,
            "settled": worst.settled,
            "noise": worst.noise,
            "runs": runs,
            "ended_early": ended,
            "probability": chance,
            "probability_at_most": most,
        },
        refused=ended > 0,
    )


class _Course(NamedTuple):
    """Course of one honest run."""

    answers: int  # that left the site
    statement: str  # rows that they settle, in words
    noise: float  # times the usual
    refused: str  # why it ended early; "" where it did not

    @property
    def settled(self) -> int:
        """Rows that its answers settle."""
        return int(self.statement.split()[0]) if self.statement else 0


def _course(on: Rehearsal, part: str) -> _Course:
    """Run the study once, with secrets of its own."""
    stage, refused, noise = on.stage(part, on.policy), "", 1.0
    try:
        tree = stage.run()
        noise = json.loads(tree.attrs.get("site_noise", "{}")).get(on.name, 1.0)
    except (SiteRefusedError, WarmupError) as error:
        refused = str(error)
    statements = attacks.settled_rows(stage, on.name)
    return _Course(len(statements), statements[-1] if statements else "", noise, refused)


def _is_decided(courses: list[_Course]) -> bool:
    """Return True once a run was refused before any answer, or each of some ended early."""
    early = [course for course in courses if course.refused]
    return len(early) == len(courses) >= DECIDED or any(not course.answers for course in early)


def _advice(on: Rehearsal, refused: str) -> str:
    """Name what to change so that no patient's values far out end a run."""
    if "maximum_settled_rows" not in refused:
        return ""
    away, _ = far_out(on.study, on.files[on.name], on.name)
    far = [f"{name} ({most:.1f})" for name, most in away.items() if most > FAR_OUT]
    columns = f" Farthest out, in standard deviations: {', '.join(far)}." * bool(far)
    return (
        f" A patient with values far out decides sums over rows.{columns} Ask the coordinator for "
        "log() of a skewed column, for data.keep, which leaves such rows out at all sites, or for "
        "fewer terms; more rows help."
    )


def _week(on: Rehearsal) -> Iterator[Finding]:
    """Run the ordinary studies of a week; say how each ends, and what is settled so far."""
    folder = on.folder / "week"
    folder.mkdir()
    policy = on.policy if on.given else None
    account, caveat = "The answers of all studies on all versions of your rows together", ""
    if on.study.model.question is None:
        account = "The answers of all studies on one version of your rows, at most,"
        caveat = " What differences between versions tell is not measured, only refused."
    under = "your policy" if on.given else "the policy that is proposed for it, with more runs"
    for day in days(on.path, on.files[on.name], on.name, list(on.files), folder, policy):
        attack = f"a week, {day.title}"
        if day.untried:
            yield _untried(attack, day.untried)
            continue
        yield Finding(
            attack,
            f"{day.answers} answers leave under {under}. {account} so far settle {day.settled} of "
            f"them.{caveat}{f' Refused: {day.refused}' if day.refused else ''}",
            {"answers": day.answers, "settled": day.settled, "refused": day.refused},
        )


def _untried(attack: str, why: str) -> Finding:
    return Finding(attack, f"not tried: {why}")


def _helped(on: Rehearsal) -> str:
    """Return the parts of secure sums that the rehearsal skips."""
    if terms_of(on.study).sums != MASKED:
        return ""
    return (
        " Your answers leave masked: this is so, here and below, where all other sites help the "
        "server; else it has the sums over all sites."
    )


def _lying_queries(on: Rehearsal) -> Finding:
    """Try a server that asks for sums where a likelihood is a step."""
    free = attacks.lying_queries(on.stage("free", on.before), on.name, on.built)
    bound = attacks.lying_queries(on.stage("bound", on.policy), on.name, on.built)
    return Finding(
        "a server that lies",
        f"it asks for sums where single rows decide. Without limits on what is settled "
        f"{free.messages} answers settle {free.rows} of your rows. Under the policy it has "
        f"{bound.messages} answers, which settle {bound.rows}"
        + (f"; then: {bound.refused}." if bound.refused else "."),
        {
            "settled_before": free.rows,
            "messages_before": free.messages,
            "settled_after": bound.rows,
            "messages_after": bound.messages,
            "refused": bound.refused,
        },
    )


def _lying(on: Rehearsal) -> Finding:
    attack = "a server that lies"
    if not (attacks.is_logistic(on.study) and attacks.sends_gradients(on.study)):
        return _untried(
            attack,
            "it reads rows of logistic regression with an intercept from gradients that are sent "
            "unchanged (debias = true without gradient_noise).",
        )
    x, name, built = on.rows, on.name, on.built
    free = attacks.lying_server(on.stage("free", on.before), name, built, attacks.STEEP)
    steep = attacks.lying_server(on.stage("steep", on.policy), name, built, attacks.STEEP)
    limit = load_policy(on.folder / "steep" / name / "site-policy.toml").maximum_position
    farthest = max(1 - float(x[:, 0].min()), 1 + float(x[:, 0].max()))  # cuts go one beyond
    flat = attacks.lying_server(on.stage("flat", on.policy), name, built, limit / farthest)
    return Finding(
        attack,
        f"without limits on queries it reads {free.rows} of {len(x)} patients with "
        f"{free.messages} messages. Under the policy it reads {steep.rows}"
        + (f", with {steep.messages} answers before: {steep.refused}" if steep.refused else "")
        + f". A server that keeps within the limits reads {flat.rows} with {flat.messages} "
        "messages.",
        {
            "rows": len(x),
            "read_before": free.rows,
            "messages_before": free.messages,
            "read_after": steep.rows,
            "messages_after": steep.messages,
            "refused": steep.refused,
            "read_within_limits": flat.rows,
        },
    )


def _looking(on: Rehearsal) -> Finding:
    attack = "a server that only observes"
    if not (attacks.is_logistic(on.study) and attacks.moves_once(on.study)):
        return _untried(
            attack,
            "it reads rows of logistic regression with an intercept from single steps with "
            "minibatches (fa_ld, local_steps = 1, batch_size, no noise of the sites' own).",
        )
    x = on.rows
    guess = float(np.median(np.abs(x - np.median(x, axis=0))))
    from_seed = on.stage("seed", on.before, private=False)
    known = attacks.looking_server(from_seed, on.name, on.built)
    secret = attacks.looking_server(on.stage("secret", on.policy), on.name, on.built)
    return Finding(
        attack,
        "where row numbers follow from the seed it guesses a feature with a median error of "
        f"{known.error:.2g} and reads {known.rows} of {len(x)} patients; with row numbers that "
        f"only the site knows the error is {secret.error:.2g} and it reads {secret.rows}. Always "
        f"guessing the median is wrong by {guess:.2g}.",
        {
            "rows": len(x),
            "error_before": known.error,
            "read_before": known.rows,
            "error_after": secret.error,
            "read_after": secret.rows,
            "error_of_guessing": guess,
        },
    )


def _membership(study: Study, built: Built, index: int) -> Finding:
    """Measure how well the draws tell who took part."""
    attack = "who took part, from the draws alone"
    if built.model.site_log_likelihood is not None:
        return _untried(
            attack,
            "levels are integrated out, and no row has a likelihood of its own given the draws. "
            "Whoever has the draws and all other patients may find out who took part.",
        )
    run = study.run_options | {"keep": "draws"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = consortia.sample(built.model, built.rows, built.algorithm, **run, progress=False)
    target = Target(built.model, start.starting_parameters(built.model, None, 0, 1)[0])
    positions = join(sampled_draws(tree), variables(target.structure), leading=2)
    every = built.rows.site(index)
    rows = trees.map_leaves(lambda leaf: leaf[:MOST_ROWS], every)
    flat = positions.reshape(-1, target.dimension)
    if built.model.host is not None:
        values = built.model.host.log_likelihood(target.layout.params(flat), rows)
    else:
        of_rows = jax.jit(lambda at: jax.lax.map(lambda p: target.log_likelihood(p, rows), at))
        values = of_rows(jnp.asarray(flat, target.dtype))
    ess = rhat_and_ess(positions)[1]
    effective = ess if np.isfinite(ess) else float(len(flat))  # too few to be judged
    likelihoods = np.asarray(values, np.float64)
    chance, even = found_out(likelihoods, effective), most_draws(likelihoods)
    return Finding(
        attack,
        f"worst case: somebody who knows every other patient and has the {effective:.0f} effective "
        f"draws. At {100 * FALSE_ALARMS:g} % false alarms they detect a typical patient's "
        f"participation with probability {np.median(chance):.2f}, the most exposed patient's with "
        f"{chance.max():.2f} (guessing: {FALSE_ALARMS:g}). No test is stronger; it concerns the "
        "result, whatever the sites send: with enough draws anybody is detected. The probability "
        f"is 0.5 for the most exposed with {even:,.1f} effective draws; means and intervals reveal "
        "at most what the draws reveal. Copies of your file stood for the other sites.",
        {
            "draws": effective,
            "median": float(np.median(chance)),
            "largest": float(chance.max()),
            "draws_at_half": even,
            "false_alarms": FALSE_ALARMS,
            "near": NEAR,
        },
    )
