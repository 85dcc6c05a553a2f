"""The way from the call of `sample` to its loop over rounds can be read in an afternoon."""

from __future__ import annotations

import sys

import numpy as np

import consortia
from consortia.run.loop import RunLoop

MAX_MODULES = 12


def test_sample_passes_few_modules_on_its_way_to_the_loop(monkeypatch) -> None:
    passed: list[str] = []
    execute = RunLoop.execute

    def noted(loop: RunLoop) -> object:
        frame = sys._getframe(1)
        while frame is not None:
            passed.append(frame.f_globals.get("__name__", ""))
            frame = frame.f_back
        return execute(loop)

    monkeypatch.setattr(RunLoop, "execute", noted)
    rows = {"x": np.ones((4, 1), np.float32), "y": np.float32([1, 2, 3, 2])}
    consortia.sample(
        consortia.models.linear_regression(1),
        consortia.Sites.from_list([rows, rows]),
        consortia.fa_ld(0.01, local_steps=2),
        **{"rounds": 4, "chains": 1, "progress": False, "on_divergence": "ignore"},
    )
    own = {name for name in passed if name.startswith("consortia.")}
    print(*reversed(list(dict.fromkeys(name for name in passed if name in own))), sep="\n")
    assert {"consortia.run.sampling", "consortia.run.execution"} <= own
    assert len(own) + 1 <= MAX_MODULES  # and that of the loop
