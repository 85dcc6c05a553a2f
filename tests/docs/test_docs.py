"""What the documentation says of code is so: its blocks run, and give the numbers beside them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "decentralized-hmc.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_blocks_on_decentralized_hmc_run_and_give_the_numbers_beside_them() -> None:
    names: dict[str, object] = {}
    checked = 0
    for block in blocks():
        for line in block.splitlines():
            said = re.search(r"\S.*  # (\d\.\d+)", line)
            if said is None:
                exec(line, names)
                continue
            value = float(np.ravel(eval(line, names))[0])
            digits = len(said[1].split(".")[1])
            assert value == pytest.approx(float(said[1]), abs=0.5 * 10.0**-digits)
            checked += 1
    assert checked >= 1
