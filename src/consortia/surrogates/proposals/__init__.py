"""Densities to draw proposals from, learnt from points at which the log-posterior is known.

A regression of the log-posterior, in coordinates that straighten it, is followed as far as it
predicts; a mixture of t distributions covers what it does not know. All is NumPy, at the server.
"""

from __future__ import annotations

FEW_PARAMETERS = 14
"""Up to which a regression has enough points to predict, and an exploration is wide."""
