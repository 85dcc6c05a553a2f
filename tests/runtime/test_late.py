"""JAX is imported when something of it is first used, and what is known before agrees with it."""

from __future__ import annotations

import subprocess
import sys

import jax
import numpy as np
import pytest

from consortia.runtime import late

SCRIPT = """
import sys
import numpy as np
from consortia.runtime import late

done = []
late.when_loaded(lambda: done.append("first"))
late.when_loaded(lambda: done.append("second"))
before = [late.float_type()] + [late.width_of(np.dtype(kind)) for kind in sys.argv[1:]]
assert not late.is_loaded() and not done
late.jnp.zeros(1)
assert late.is_loaded() and done == ["first", "second"]
assert before == [late.float_type()] + [late.width_of(np.dtype(kind)) for kind in sys.argv[1:]]
late.when_loaded(lambda: done.append("third"))
print(*before, *done)
"""
KINDS = ("bool", "int8", "int32", "int64", "uint64", "float16", "float32", "float64", "complex128")


@pytest.mark.parametrize("wide", ["", "0", "1", "True"])
def test_the_width_is_that_of_jax_before_it_is_loaded(wide, monkeypatch):
    monkeypatch.delenv("JAX_ENABLE_X64", raising=False)
    if wide:
        monkeypatch.setenv("JAX_ENABLE_X64", wide)
    outcome = subprocess.run(
        [sys.executable, "-c", SCRIPT, *KINDS], capture_output=True, text=True, check=False
    )
    with jax.enable_x64(wide in ("1", "True")):
        wanted = [jax.dtypes.canonicalize_dtype(kind) for kind in ("float64", *KINDS)]
    assert outcome.stdout.split() == [*map(str, wanted), "first", "second", "third"], outcome.stderr


def test_what_waits_for_jax_uses_it_in_order_and_however_much_it_is():
    code = """
from consortia.runtime import late
for wide in [False] * 2000 + [True]:  # as each site of many rehearsals does
    late.set_width(wide=wide)
seen = []
late.when_loaded(lambda: seen.append(late.jax.config.jax_enable_x64))
late.jnp.zeros(1)
print(late.jnp.zeros(1).dtype, *seen)
"""
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert outcome.stdout.split() == ["float64", "True"], outcome.stderr


def test_the_width_is_that_of_jax_afterwards(x64):
    assert late.float_type() == np.float64
    assert [late.width_of(np.dtype(kind)) for kind in KINDS] == [np.dtype(kind) for kind in KINDS]


def test_a_width_that_is_set_before_jax_is_loaded_holds_afterwards(monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "0")
    code = """
from consortia.runtime import late
late.set_width(wide=True)
print(late.float_type(), late.is_loaded())
late.jnp.zeros(1)
print(late.float_type(), late.jnp.zeros(1).dtype)
late.set_width(wide=False)
print(late.float_type(), late.jnp.zeros(1).dtype)
"""
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    wanted = ["float64", "False", "float64", "float64", "float32", "float32"]
    assert outcome.stdout.split() == wanted, outcome.stderr


def test_a_setting_that_jax_cannot_read_is_an_error_of_the_command(monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "perhaps")
    code = "from consortia.runtime.late import jax; jax.devices"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "InputError: JAX cannot start: " in outcome.stderr
