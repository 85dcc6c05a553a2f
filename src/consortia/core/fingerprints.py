"""Fingerprints by which a stored run knows its model, its data and its algorithm again."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import platform
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consortia.core import trees
from consortia.errors import RankError
from consortia.runtime.late import jax

if TYPE_CHECKING:
    from consortia.core.target import Target

ROWS = 2
"""Rows of the batch with which a model's functions are traced."""

ADDRESS = re.compile(r"0x[0-9a-f]+")


def of_model(target: Target, shard: Any) -> str:
    """Return the SHA-256 of what the model computes: its density as JAX traces it, with constants.

    Names of Python objects do not count, so that the same model made again, in another process, is
    known; another version of JAX may trace it otherwise. A model that NumPy evaluates says itself
    what decides its density.
    """
    if target.model.host is not None:
        return target.model.host.digest
    digest = hashlib.sha256(str(target.structure).encode())
    batch = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (ROWS, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype)
        ),
        shard,
    )
    # Functions of this call alone: JAX would return what it traced of the model's own before, also
    # where something that they close over has changed since.
    prior, likelihood = target.model.log_prior, target.model.log_likelihood
    if prior is not None:
        _trace(digest, jax.make_jaxpr(lambda parameters: prior(parameters))(target.structure))
    of_site = target.model.site_log_likelihood
    if of_site is not None:
        mask = jax.ShapeDtypeStruct((ROWS,), bool)
        whole = jax.make_jaxpr(lambda parameters, rows, mask: of_site(parameters, rows, mask))
        _trace(digest, whole(target.structure, batch, mask))
    else:
        traced = jax.make_jaxpr(lambda parameters, rows: likelihood(parameters, rows))
        _trace(digest, traced(target.structure, batch))
    return digest.hexdigest()


def of_value(value: Any) -> str:
    """Return the SHA-256 of a value: numbers, text, arrays, containers, functions, objects.

    A function counts by its code, its defaults and what it closes over, not by its address.
    """
    digest = hashlib.sha256()
    _value(digest, value)
    return digest.hexdigest()


def of_processor() -> str:
    """Return 12 digits for the kind of processor, for which programs are compiled."""
    kind = platform.machine() + platform.processor()
    flags = Path("/proc/cpuinfo")  # only Linux has the file
    if flags.exists():
        lines = flags.read_text().splitlines()
        kind += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(kind.encode()).hexdigest()[:12]


def of_values(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of each value, by its name."""
    return {name: of_value(value) for name, value in values.items()}


def check_same(digests: Mapping[int, dict[str, str]], kind: str) -> None:
    """Refuse to run where processes have other values than the first of them.

    Args:
        digests: `of_values` of each process, by its number.
        kind: what a process is called: ``"rank"`` or ``"process"``.

    Raises:
        RankError: with the processes that differ, and in which values.
    """
    unlike = []
    first = min(digests, default=0)
    for number, values in digests.items():
        both = digests[first] | values
        differ = [name for name in both if values.get(name) != digests[first].get(name)]
        if differ:
            unlike.append(f"{kind} {number} in {', '.join(differ)}")
    if unlike:
        raise RankError(
            f"the processes of this job run different studies. Different from {kind} "
            f"{first}: {'; '.join(unlike)}. Start all of them with the same study file, data and "
            "arguments."
        )


# --- traced functions ----------------------------------------------------------------------------


def _trace(digest: Any, traced: Any) -> None:
    # Without colour, which JAX gives its text at a terminal and in a notebook.
    text = traced.jaxpr.pretty_print(use_color=False)
    digest.update(ADDRESS.sub("", text).encode())
    _constants(digest, traced)


def _constants(digest: Any, value: Any) -> None:
    """Add the constants of a traced function, and of those inside; their text may be cut short."""
    if isinstance(value, (tuple, list)):
        for item in value:
            _constants(digest, item)
        return
    for constant in getattr(value, "consts", ()):
        _value(digest, constant)
    inner = getattr(value, "jaxpr", value)
    for equation in getattr(inner, "eqns", ()):
        for operand in equation.invars:
            if hasattr(operand, "val"):
                _value(digest, operand.val)
        for name in sorted(equation.params):
            _constants(digest, equation.params[name])


# --- values --------------------------------------------------------------------------------------


def _value(digest: Any, value: Any) -> None:
    digest.update(f"{type(value).__name__}\0".encode())
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        digest.update(repr(value).encode())
    elif isinstance(value, (np.ndarray, np.generic)) or trees.is_jax(value):
        array = np.asarray(value)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    elif isinstance(value, (tuple, list)):
        for item in value:
            _value(digest, item)
    elif isinstance(value, (dict, types.MappingProxyType)):
        for key in sorted(value, key=repr):
            _value(digest, (key, value[key]))
    elif isinstance(value, (set, frozenset)):
        for item in sorted(value, key=repr):
            _value(digest, item)
    elif isinstance(value, functools.partial):
        _value(digest, (value.func, value.args, value.keywords))
    elif isinstance(value, types.MethodType):
        _value(digest, (value.__func__, value.__self__))
    elif isinstance(value, types.FunctionType):
        _function(digest, value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _value(digest, (field.name, getattr(value, field.name)))
    elif hasattr(value, "digest") and isinstance(value.digest, str):
        digest.update(value.digest.encode())
    else:
        digest.update(ADDRESS.sub("", repr(value)).encode())


def _function(digest: Any, function: types.FunctionType) -> None:
    digest.update(f"{function.__module__}.{function.__qualname__}\0".encode())
    _code(digest, function.__code__)
    _value(digest, function.__defaults__)
    _value(digest, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        _value(digest, cell.cell_contents)


def _code(digest: Any, code: types.CodeType) -> None:
    digest.update(code.co_code)
    digest.update(" ".join(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _code(digest, constant)
        else:
            _value(digest, constant)
