"""A small study of irises at three sites, as a file, and the command line in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from consortia.cli.commands import app

DATA = """
[data]
dataset = "iris"
test_share = 0.2
standardise = true
dtype = "float32"

[partition]
kind = "iid"
sites = 3

[model]
kind = "softmax_regression"

[algorithm]
name = "fa_hmc"
step_size = 0.1
leapfrog_steps = 2
local_steps = 2
"""
STUDY = f"""
title = "Irises at three gardens"
{DATA}
[run]
rounds = 40
chains = 2
thin = 2
"""
NO_FIGURE = "\n[output]\nfigure = false\n"


def invoke(*arguments: str | Path, answers: str | None = None) -> Any:
    """Run ``consortia`` with these arguments; what it asks is answered with these lines."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=answers)
