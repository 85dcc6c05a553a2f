"""A policy to begin with: it permits one study as it is, and lists what can be added."""

from __future__ import annotations

import math

from consortia.core.queries import LEEWAY
from consortia.errors import InputError
from consortia.federation.governance.policy import (
    MAXIMUM_POSITION,
    MAXIMUM_REFUSALS,
    MAXIMUM_STEP,
    MINIMUM_PATTERN_ROWS,
    MINIMUM_ROWS_CHANGED,
    TWO_SITES,
)
from consortia.federation.governance.terms import (
    BEFORE_PHASES,
    KINDS,
    MASKED,
    PLAIN,
    StudyTerms,
)

PARAMETERS_PER_ROW, RUNS = 0.33, 3
"""Limits in a proposal. DataSHIELD, too, permits a third of a parameter a row."""

MINIMUM_ROWS = 50
"""Limit in a proposal. A statistic of fewer rows says much of each."""

APPS = """\
# The Flower app that brings the code; others are not unpacked by `consortia flower node`.
apps = ["{app}"]

"""


AGREED = """\
# The study has two sites, each of which can compute the other's messages: that is agreed to.
two_sites = true

"""


KEYS = """
# Public keys of coordinator and sites, which sign all that they send. Of answers the server learns
# the sum over these sites. Compare each key with its owner, by telephone.
{keys}"""

NO_KEYS = """
# NEEDED: public keys of the coordinator and of all sites, as `consortia site key` prints them
# (`consortia site check --identities FILE` writes them here). They sign all that they send, and of
# answers the server learns the sum over these sites. Without them nothing is answered.
# coordinator = "..."
# [identities]
# SITE = "..."
"""

LONGER = """ A run that needs more ends there, without a result: it is for you
# to say whether it may ask more."""

SEEN = """\
# The study says run.secure_sums = false: the server sees the answers of this site by themselves.
# RECOMMENDED: ask for the study without that line, and then remove this one.
secure_sums = false

"""


def proposed(
    terms: StudyTerms,
    app: str | None = None,
    rows: int = MINIMUM_ROWS,
    *,
    two_sites: bool = False,
    numbers: int | None = None,
    per_value: float | None = None,
    keys: str = "",
) -> str:
    """Return the text of a ``site-policy.toml`` that permits a study and nothing else.

    Args:
        terms: what the study requires.
        app: hash of the Flower app that runs it.
        rows: fewest rows of the site.
        two_sites: a study of two sites is agreed to.
        numbers: most that depend on rows in the messages of a run, where the site's file was read.
        per_value: the same of a run of each study, for each value that the file holds.
        keys: lines with the public keys of all.

    Raises:
        InputError: the study has two sites, and that was not agreed to.
    """
    if terms.sites == 2 and not two_sites:
        raise InputError(f"{TWO_SITES} (or give --two-sites).").at("two_sites")
    every = terms.every
    studies = ", ".join(f'"{part.study}"' for part in every)
    models = ", ".join(dict.fromkeys(f'"{part.model}"' for part in every))
    algorithms = ", ".join(dict.fromkeys(f'"{part.algorithm}"' for part in every))
    rounds, chains = max(part.rounds for part in every), max(part.chains for part in every)
    most = max(map(proposed_messages, every))
    apps = "" if app is None else APPS.format(app=app)
    agreed = AGREED if terms.sites == 2 else ""
    agreed += SEEN if any(part.sums == PLAIN for part in every) else ""
    several = any(part.usual is not None for part in every)
    usual = f", {LEEWAY} times those of a usual run" if several else ""
    ends = LONGER if several else ""
    return f"""\
# What this site permits. It is checked before data are read; what is not permitted is refused.

# The study, with all that decides what is computed, and the code of its model.
studies = [{studies}]
models = [{models}]
algorithms = [{algorithms}]

{apps}{agreed}# Most rounds of a run, the warm-up included, and chains: each asks in every message.
maximum_rounds = {rounds}
maximum_chains = {chains}

# Fewest rows of the site, and most parameters of the model for each of them.
minimum_rows = {rows}
maximum_parameters_per_row = {PARAMETERS_PER_ROW}

# Fewest rows that share a pattern of categorical columns: exact sums over rows tell their number.
minimum_pattern_rows = {MINIMUM_PATTERN_ROWS}

# Questions of a run that are answered{usual}; each counts once however
# often it is sent.{ends} And runs in the ledger, interrupted ones included.
maximum_messages = {most}
maximum_runs = {RUNS * len(every)}

{_list_functions(every)}{_limit_numbers(numbers, per_value)}
# Fewest rows that may have come or gone between two runs: the difference of two runs tells a row.
minimum_rows_changed = {MINIMUM_ROWS_CHANGED}

{_privacy(every)}{_settled(every)}
# Positions at which the site may be queried: how far from the prior's centre, and how far from
# the last time, in standard deviations of the prior. Far out a gradient is a sum over a few rows.
maximum_position = {MAXIMUM_POSITION}
maximum_step = {MAXIMUM_STEP}

# Each place of a run has one answer; after so many refusals nothing more of a run is answered.
maximum_answers = 1
maximum_refusals = {MAXIMUM_REFUSALS}

{_list_kinds(terms)}
# Further limits:
# maximum_bytes = 100_000    # of a message
# maximum_norm = 1e6         # of an array of a message
# maximum_points = {chains}        # positions in a message
# minimum_batch = 32         # rows of a minibatch
# [noise]                    # least gradient_noise, temperature, private_momentum
{_ask_keys(every, keys)}"""


def _limit_numbers(numbers: int | None, per_value: float | None) -> str:
    """Propose a limit on numbers that depend on rows."""
    limit = "# maximum_numbers = 100_000  # give --data FILE to have this run's"
    if numbers is not None:
        limit = f"maximum_numbers = {numbers}"
    budget = "# maximum_numbers_per_value = 10"
    if per_value is not None:
        budget = f"maximum_numbers_per_value = {_rounded_up(RUNS * per_value)}"
    return f"""\
# Numbers that depend on your rows, in all messages of a run together; and in all runs and studies
# of the same rows, for each value that these hold. Rows are known by digests that stay with you.
{limit}
{budget}
"""


def _list_functions(every: tuple[StudyTerms, ...]) -> str:
    """Limit how often each function of a conversation answers."""
    counts: dict[str, int] = {}
    for terms in every:
        most = proposed_messages(terms) - BEFORE_PHASES
        for name, usual in terms.queried.items():
            limit = most if usual is None else min(LEEWAY * usual, most)
            counts[name] = max(limit, counts.get(name, 0))
    if not counts:
        return ""
    listed = ", ".join(f"{name} = {count}" for name, count in counts.items())
    return f"""\
# Functions that may answer, and most answers of each in a run; `consortia site check --study` says
# what each tells.
functions = {{ {listed} }}

"""


def _list_kinds(terms: StudyTerms) -> str:
    """Return the kinds of messages that may leave, and what each is."""
    kinds = "\n".join(f"#   {kind}: {KINDS[kind]}" for kind in terms.leaving)
    names = ", ".join(f'"{kind}"' for kind in terms.leaving)
    return f"""\
# Kinds of messages that may leave:
{kinds}
messages = [{names}]
"""


def _ask_keys(every: tuple[StudyTerms, ...], keys: str) -> str:
    """Return the public keys, or what is to be done where secure sums need them."""
    if keys:
        return KEYS.format(keys=keys)
    return NO_KEYS if any(part.sums == MASKED for part in every) else ""


def _privacy(every: tuple[StudyTerms, ...]) -> str:
    """Propose the terms of differential privacy: the budget of one run."""
    private = [part.parameters for part in every if "epsilon" in part.parameters]
    if not private:
        return ""
    return f"""\
# Epsilon of differential privacy that all runs of the same rows may cost together, at this delta.
maximum_epsilon = {sum(part["epsilon"] for part in private):g}
delta = {min(part["delta"] for part in private):g}

"""


def _settled(every: tuple[StudyTerms, ...]) -> str:
    """Propose a limit on rows that answers settle."""
    unknown = ", ".join(dict.fromkeys(f'"{part.algorithm}"' for part in every if not part.measured))
    text = """\
# Rows of which all answers together may settle a value, to a tenth of its column's
# standard deviation. Your site measures that on its own rows, before each answer.
maximum_settled_rows = 0
"""
    if unknown:
        text += f"""\
# Of these methods it CANNOT be measured: their messages may tell any of your rows. Without this
# line they are refused; `consortia site rehearse` tries the attacks that are known.
unmeasured = [{unknown}]
"""
    return f"""{text}
# The coordinator learns if one of the last two limits ended a run, but not which rows it was.
tell_refusals = true
"""


def _rounded_up(value: float) -> float:
    """Return a number that is not smaller, of two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit) * unit:.6g}")


def proposed_messages(terms: StudyTerms) -> int:
    """Return the messages that a proposal permits of a run."""
    if terms.usual is None:
        return terms.exchanges
    usual = terms.usual - terms.before
    return min(terms.exchanges, BEFORE_PHASES + LEEWAY * usual)
