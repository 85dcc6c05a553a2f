"""Peak memory of a regression of many rows, and of a large network beside a bare loop.

Each is measured in a process of its own, which says the most that it ever held. Rows lie in a file
that is mapped into memory, or in an array: of an array that can be changed `Sites` makes a copy,
and both are there while it does, twice the rows' bytes, so that only the first has a gate.
"""

from __future__ import annotations

import json
import tempfile

from benchmarks.environment import run_python
from benchmarks.measure import Gate, Row

NAME = "memory"
ROWS = {"full": (10**5, 10**6, 10**7), "quick": (10**5, 10**6), "tiny": (10**4,)}
WEIGHTS = {"full": (10**6, 10**7), "quick": (10**6,), "tiny": (10**4,)}
COLUMNS = 10
ALLOWED, FIXED = 1.3, 400e6
"""Of the rows' bytes, and bytes besides: the libraries, and compiling."""

PEAK = """
import json, resource, sys, time
def report(**figures):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"peak": peak * (1 if sys.platform == "darwin" else 1024), **figures}))
"""
MANY_ROWS = """
import numpy as np, consortia
x, y = (np.load(f"{folder}/{{name}}.npy", mmap_mode={mode}) for name in "xy")
size, d = x.nbytes + y.nbytes, {columns}
sites = consortia.Sites.from_list([{{"x": x, "y": y}}])
del x, y
model = consortia.models.linear_regression(d)
method = consortia.federated_hmc(step_size=1e-4, leapfrog_steps=2, mass_matrix="identity")
consortia.sample(model, sites, method, draws=5, chains=1, on_divergence="ignore", progress=False)
report(rows=size)
"""
FILES = """
import numpy as np
rng = np.random.default_rng(0)
x = rng.standard_normal(({rows}, {columns}), np.float32)
np.save("{folder}/x.npy", x)
np.save("{folder}/y.npy", x.sum(axis=1) + rng.standard_normal({rows}, np.float32))
report()
"""
HELD = {"in a mapped file": "r", "in an array": None}
"""How NumPy reads the rows, by where they lie then."""

NETWORK = """
import jax, jax.numpy as jnp, numpy as np, consortia
width, rounds = {width}, 20
rng = np.random.default_rng(0)
x, y = rng.standard_normal((64, 100), np.float32), rng.standard_normal(64, np.float32)
def log_prior(p):
    return -0.5 * sum(jnp.sum(one ** 2) for one in p.values())
def log_likelihood(p, rows):
    return -0.5 * (rows["y"] - jnp.tanh(rows["x"] @ p["in"]) @ p["out"]) ** 2
start = {{"in": jnp.zeros((100, width)), "out": jnp.zeros(width)}}
"""
LIBRARY = """
model = consortia.Model(log_prior, log_likelihood, start)
sites = consortia.Sites.from_list([{"x": x, "y": y}])
def run(seed):
    return consortia.sample(model, sites, consortia.fa_ld(1e-3, 1), draws=rounds, chains=1,
        seed=seed, keep="moments", on_divergence="ignore", progress=False)
"""
LOOP = """
rows = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
force = jax.grad(lambda p: log_prior(p) + log_likelihood(p, rows).sum())
def step(p, key):
    keys = dict(zip(p, jax.random.split(key, len(p))))
    new = {k: v + 5e-7 * g + 1e-3 * jax.random.normal(keys[k], v.shape)
           for (k, v), g in zip(p.items(), force(p).values())}
    return new, None
@jax.jit
def chain(p, key):
    return jax.lax.scan(step, p, jax.random.split(key, rounds))[0]
def run(seed):
    return jax.block_until_ready(chain(start, jax.random.key(seed)))
"""
TIMED = """
run(0)
began = time.process_time()
run(1)
report(seconds=(time.process_time() - began) / rounds)
"""


def figures_of(program: str) -> dict[str, float]:
    """Run a program in a process of its own, and return its figures."""
    _, printed = run_python("-c", PEAK + program)
    return json.loads(printed.splitlines()[-1])


def rows(scale: str) -> list[Row]:
    """Peak memory by rows, and of networks time and memory beside a loop without a library."""
    found = []
    for count in ROWS[scale]:
        with tempfile.TemporaryDirectory() as folder:
            options = {"rows": count, "columns": COLUMNS, "folder": folder}
            figures_of(FILES.format(**options))
            for where, mode in HELD.items():
                made = figures_of(MANY_ROWS.format(**options, mode=repr(mode)))
                ratio = made["peak"] / (ALLOWED * made["rows"] + FIXED)
                what = f"peak memory / (1.3 × rows + 400 MB), {count:,} rows × {COLUMNS} {where}"
                detail = f"{made['peak'] / 1e6:,.0f} MB, rows {made['rows'] / 1e6:,.0f} MB"
                gate = Gate("<=", 1.0) if mode else None
                found.append(Row(NAME, what, ratio, ratio, ratio, 1, gate, detail))
    for weights in WEIGHTS[scale]:
        problem = NETWORK.format(width=weights // 101)
        ours, bare = (figures_of(problem + part + TIMED) for part in (LIBRARY, LOOP))
        for what, key, unit in (("time of a step", "seconds", 1e3), ("peak memory", "peak", 1e-6)):
            ratio = ours[key] / bare[key]
            absolute = f"{ours[key] * unit:.3g} / {bare[key] * unit:.3g} "
            absolute += "ms" if key == "seconds" else "MB"
            text = f"{what}, fa_ld keeping moments / bare loop, {weights:,} weights"
            found.append(Row(NAME, text, ratio, ratio, ratio, 1, detail=absolute))
    return found
