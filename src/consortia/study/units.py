"""Factors between the units in which hospitals write one quantity.

The ratio of two sites' means says roughly which: patients differ by some tenths. Where two factors
are as near, 88.42 and 100, only the name of the column decides, or nobody.
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import NamedTuple

from consortia.data.writing import loosely

GENERAL = (7, 10, 12, 24, 30.4375, 60, 100, 365.25, 1000, 1e6)
"""Factors of times, and powers of ten."""

DECIMAL = (10, 100, 1000, 1e6)

NEAR = 0.25
"""Logarithm of the ratio of two sites' means to a factor, at most: so far sites differ."""

DECIDED = 1.5
"""So many times as far lies the second nearest factor, at least."""

SAME = (59.48,)
"""Factors of laboratories that no ratio of means tells from one of times."""


class Analyte(NamedTuple):
    """A quantity that laboratories report in two units, whose ratio is not a power of ten."""

    name: str
    words: str  # a regular expression of the words of a column's name
    factor: float | None  # of ``units`` in 1 of ``other``; None: they differ by more than a factor
    units: str
    other: str


LABORATORY = (
    Analyte("creatinine", r"s?[ck]reat?|[ck]reatinin\w*", 88.42, "µmol/L", "mg/dL"),
    Analyte("glucose", r"glu[ck]os\w*|gluc?|gly[ck]a?emi\w*|glicemi\w*", 18.016, "mg/dL", "mmol/L"),
    Analyte("cholesterol", r"t?chol|chole?st\w*|colest\w*|[lh]dl\w*", 38.67, "mg/dL", "mmol/L"),
    Analyte("triglycerides", r"trig\w*|tg", 88.57, "mg/dL", "mmol/L"),
    Analyte("bilirubin", r"[td]?bili\w*", 17.1, "µmol/L", "mg/dL"),
    Analyte("urea", r"urea|uree|harnstoff", 6.006, "mg/dL", "mmol/L"),
    Analyte("uric acid", r"uric|urate?|harnsaure|urico", 59.48, "µmol/L", "mg/dL"),
    Analyte("lactate", r"la[ck]t[ai]t\w*", 9.009, "mg/dL", "mmol/L"),
    Analyte("cortisol", r"[ck]ortisol", 27.59, "nmol/L", "µg/dL"),
    Analyte("haemoglobin", r"ha?emoglobin\w*|hamoglobin\w*|hgb|hb", 16.11, "g/L", "mmol/L"),
    Analyte("HbA1c", r"hba1c?|a1c", None, "mmol/mol", "%"),
)
"""Source: the table of conversions in chapter 17 of the AMA Manual of Style, 11th edition."""


def usual_factor(column: str, ratio: float) -> tuple[float, str] | None:
    """Find the factor between two units that a ratio of means and a column's name decide.

    Return it with words for it, or None where no factor is near, or others are nearly as near.
    """
    larger = max(ratio, 1 / ratio)
    plain = "".join(c for c in unicodedata.normalize("NFKD", loosely(column)) if c.isascii())
    words = re.split(r"[\W_]+", plain)
    known = [a for a in LABORATORY if any(re.fullmatch(rf"(?:{a.words})\d*", w) for w in words)]
    for analyte in known:
        if analyte.factor is None:
            return None
        if _apart(analyte.factor, larger) < NEAR:
            text = f" ({analyte.name}, {analyte.factor:g} {analyte.units} in 1 {analyte.other})"
            return _directed(analyte.factor, ratio), text
    rivals = [a.factor for a in LABORATORY if a.factor is not None and not known]
    nearest, second = sorted(
        [*(DECIMAL if known else GENERAL), *(r for r in rivals if r not in SAME)],
        key=lambda factor: _apart(factor, larger),
    )[:2]
    far = _apart(nearest, larger)
    decided = far < NEAR and nearest not in rivals and DECIDED * far < _apart(second, larger)
    return (_directed(nearest, ratio), "") if decided else None


def _directed(factor: float, ratio: float) -> float:
    return factor if ratio > 1 else 1 / factor


def _apart(first: float, second: float) -> float:
    return abs(math.log(first / second))
