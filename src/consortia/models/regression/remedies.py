"""Remedies for values that a family cannot have: what is done about them in that family.

Only a customary code is proposed as a missing value: with complete cases anything else would leave
out exactly the rows in question, such as all deaths of the first day.
"""

from __future__ import annotations

import numpy as np

from consortia.data.codes import CODE
from consortia.data.mending import key, mend, text

COUNTED = "which the flow of participants counts"


def remedies(part: str, kind: str, expression: str, wrong: np.ndarray, more: str = "") -> str:
    """Return sentences on what to do about values, each with what is to be written.

    Args:
        part: of the model: response, event, start, exposure, trials or weights.
        kind: of response that the family takes.
        expression: the values' own, as the formula has it.
        wrong: the values that cannot be.
        more: the expression that goes with it: the stop of a start, the trials of a response.
    """
    name = kind if part == "response" else part
    sentences = _of_part(name, expression, wrong, more)
    condition = {
        "time": f"{expression} > 0",
        "start": f"0 <= {expression} < {more}",
        "count": f"{expression} >= 0" if (wrong < 0).any() else "",
        "share": f"0 < {expression} < 1",
        "positive": f"{expression} > 0",
        "exposure": f"{expression} > 0",
        "trials": f"{expression} > 0",
        "weights": f"{expression} >= 0",
    }.get(name, "")
    if condition:
        lead = "or " if sentences else ""
        sentences.append(f"{lead}leave these rows out: [data] keep = {text(condition)}, {COUNTED}")
    return "; ".join(sentences)


def _of_part(name: str, of: str, wrong: np.ndarray, more: str) -> list[str]:
    """Advise on values that are kept."""
    sentences = []
    if name == "time":
        if (wrong == 0).any():
            sentences.append(
                f"where {of} is in whole days counted from 0, write {of} + 0.5 for {of}"
            )
        if (wrong < 0).any():
            sentences.append("a negative time ends before it begins: correct its dates")
    elif name == "start":
        if (wrong >= 0).any():
            sentences.append(
                f"where start and stop are one day, write {more} + 0.5 for {more}, and correct "
                "what starts after its stop"
            )
        if (wrong < 0).any():
            sentences.append("count all times from the first start")
    elif name == "count":
        shares = bool(((wrong > 0) & (wrong < 1)).all())
        if more and shares:
            sentences.append(f"of shares of {more} write I({of} * {more}) for {of}")
        elif shares:
            sentences.append("shares are of family 'beta', or of 'binomial' with trials")
        elif (wrong != np.round(wrong)).any():
            sentences.append(
                "a count is an integer: round it at the site, or use a family of numbers, such as "
                "'gamma', with exposure instead of a rate"
            )
    elif name == "share":
        if (wrong > 1).any():
            sentences.append(f"of percentages write I({of} / 100)")
        if np.isin(wrong, (0, 1)).any():
            sentences.append(
                f"of 0 and 1 write I(({of} * 99 + 0.5) / 100), or count successes: family "
                "'binomial' with trials"
            )
    elif name == "positive":
        if (wrong == 0).any():
            sentences.append(
                f"of 0 below a limit of detection write {of} plus half of the limit; where 0 is "
                f"its own kind, model I({of} > 0) as well"
            )
    elif name in ("two", "event"):
        code = np.unique(wrong)[-1]
        sentences.append(f"name the value that is the event: {of} == {code:g}")
    elif name == "exposure":
        sentences.append("an exposure is the time or the population of a count")
    elif name == "trials":
        sentences.append("trials are the number of attempts")
    return sentences


def missing_code(site: str, column: str, value: float) -> str:
    """Return the line that makes a customary code missing; "" of any other value."""
    if not CODE.fullmatch(f"{value:g}"):
        return ""
    line = mend(site, "missing_values", f"{key(column)} = [{value:g}]")
    return f"where {value:g} stands for a missing value: {line}"
