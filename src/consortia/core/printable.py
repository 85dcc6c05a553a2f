"""Text that others wrote, as it may be shown: nothing in it steers a terminal or turns a line."""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"
"""Format characters that words of some scripts, and composed pictures, are written with."""

UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Categories of characters that are shown as their codes: control, direction, half pairs."""


def printable(text: str, *, lines: bool = False, most: int | None = None) -> str:
    r"""Return a text with the codes of its control characters in their place.

    Args:
        text: of anybody.
        lines: leave ends of lines and tabs as they are.
        most: characters after which it is cut short, or None.

    Example:
        >>> print(printable("north\x1b]0;owned\x07"))
        north\x1b]0;owned\x07
    """
    kept = "\n\t" if lines else ""
    if most is not None and len(text) > most:
        text = f"{text[:most]} ..."
    if text.isprintable():
        return text
    codes = {
        ord(symbol): _code(symbol)
        for symbol in set(text).difference(kept, JOINERS)
        if unicodedata.category(symbol) in UNSEEN
    }
    return text.translate(codes) if codes else text


def is_printable(text: str) -> bool:
    """Return True if `printable` leaves a text of one line as it is."""
    return text.isprintable() or printable(text) == text


def _code(symbol: str) -> str:
    """Return the code, beyond ASCII as TOML reads it."""
    number = ord(symbol)
    if number < 127:
        return repr(symbol)[1:-1]
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
