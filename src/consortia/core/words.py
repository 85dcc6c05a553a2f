"""Quantities in words: seconds and bytes."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a time in words of two units at most.

    Example:
        >>> duration(200.0)
        '3 min 20 s'
    """
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, hours = round(seconds) // 60, round(seconds) // 3600
    if hours < 2:
        return f"{minutes} min {round(seconds) % 60} s"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"


def size(count: float) -> str:
    """Return a number of bytes in words, to three places.

    Example:
        >>> size(2.5e6)
        '2.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if round(count) < 1000:
            return f"{count:.0f} {unit}" if count >= 100 else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
