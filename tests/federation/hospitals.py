"""A study of the three hospitals, with the method that a test is about."""

from __future__ import annotations

from pathlib import Path

HOSPITALS = Path(__file__).resolve().parents[2] / "examples" / "three_hospitals"
NAMES = ("north", "south", "west")


def study(algorithm: str = 'name = "few_rounds"', *, rounds: int = 60, chains: int = 4) -> str:
    """Return the study file, with the lines of its algorithm."""
    return f"""
[data]
files = ["north.csv", "south.csv", "west.csv"]
target = "ill"
[model]
kind = "logistic_regression"
intercept = true
[algorithm]
{algorithm}
[run]
rounds = {rounds}
chains = {chains}
seed = 1
"""
