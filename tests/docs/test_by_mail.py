"""The study by mail, word for word, where none of the extras is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "by-mail.md"
CELL = re.compile(r"```\{code-cell\} ipython3\n(?::tags: [^\n]*\n)?(.*?)```", re.DOTALL)

EXTRAS = (
    *("blackjax", "docx", "dp_accounting", "equinox", "flax", "flwr", "h5netcdf", "h5py", "jinja2"),
    *("matplotlib", "mpi4py", "numpyro", "openpyxl", "pyarrow", "pymc", "pyreadstat", "ray"),
    *("rdata", "sqlalchemy", "torch", "torchax"),
)
"""Modules that extras bring; some stand in an environment of the tests."""

WITHOUT = f"""
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec

def found_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {EXTRAS} else find_spec(name, path, target)

PathFinder.find_spec = found_spec
"""


@pytest.mark.slow
def test_the_tutorial_by_mail_needs_no_extra(tmp_path: Path) -> None:
    cells = CELL.findall(PAGE.read_text(encoding="utf-8"))
    assert len(cells) > 12
    assert any("consortia letter answer" in cell for cell in cells)
    last = 'print("folders:", *(path.name for path in Path().iterdir() if path.is_dir()))'
    script = tmp_path / "page.py"
    script.write_text("\n".join([WITHOUT, *cells, last]), encoding="utf-8")
    made = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env={**os.environ}, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (line,) = (line for line in made.stdout.splitlines() if line.startswith("folders:"))
    assert {"north", "south", "west", "post", "coordinator", "keys"} <= {*line.split()}
    assert "GOOD" in made.stdout
