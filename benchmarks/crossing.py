"""Who evaluates a formula: NumPy beside compiled programs, on both sides of where one is chosen.

Each in a process of its own: CPU seconds of a first and of a second call of `sample` with
`few_rounds`, and the memory above what the process held before. A linear regression, which needs
sums over its rows alone, stands beside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchmarks.environment import run_python
from benchmarks.measure import Row

NAME = "crossing"
ROWS = {"full": (20_000, 100_000, 500_000), "quick": (20_000, 100_000), "tiny": (1000,)}

PROGRAM = """
import json, resource, sys
import numpy as np, pandas as pd
import consortia
from consortia.models.regression import evaluation

rows, family, evaluate = int(sys.argv[1]), sys.argv[2], sys.argv[3]
evaluation.MOST_ROWS = 10**9  # NumPy insists, too
rng = np.random.default_rng(0)
x = rng.normal(size=(rows, 10)).astype(np.float32)
eta = x @ np.linspace(-0.5, 0.5, 10)
noise = rng.normal(size=rows) if family == "gaussian" else rng.logistic(size=rows)
y = eta + noise if family == "gaussian" else (eta + noise > 0).astype(int)
table = pd.DataFrame(x, columns=[f"x{k}" for k in range(10)]).assign(y=y)
tables = {f"s{k}": table[k::5].reset_index(drop=True) for k in range(5)}
formula = "y ~ " + " + ".join(table.columns[:10])
made = consortia.regression(formula, tables, family=family, evaluate=evaluate)

def used():
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime + now.ru_stime, now.ru_maxrss

figures = []
for seed in (1, 2):
    before = used()
    tree = consortia.sample(
        made.model, made.sites, consortia.few_rounds(), seed=seed, progress=False
    )
    figures.append(used()[0] - before[0])
    if seed == 1:
        memory = (used()[1] - before[1]) / 1024
print(json.dumps([*figures, memory, tree.attrs["evaluation"]]))
"""


def rows(scale: str) -> Iterator[Row]:
    """The figures, size by size."""
    ways = (("bernoulli", "auto"), ("bernoulli", "compiled"), ("gaussian", "auto"))
    for count in ROWS[scale]:
        for family, evaluate in ways:
            _, printed = run_python("-c", PROGRAM, str(count), family, evaluate)
            first, second, memory, way = json.loads(printed.splitlines()[-1])
            what = f"{family}, {count:,} rows × 10, {way}: CPU s of the first call"
            detail = f"second call {second:.2f}; {memory:,.0f} MB above the process before"
            yield Row(NAME, what, first, first, first, 1, detail=detail)
