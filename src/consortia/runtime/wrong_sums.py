"""Sums that one version of jaxlib computes wrongly on processors, and what avoids them.

Sums over an axis of products of 32 bits, fused with what follows, as ``y - jnp.sum(x * w, axis=1)``
of a log-likelihood at many points, are off by as much as themselves, from some 32,000 results on.
Older and newer versions were tried and compute them rightly.
"""

import functools
import os
import sys
from importlib.metadata import PackageNotFoundError, version

from consortia.errors import InputError

VERSION = "0.10.2"
OPTION = "--xla_cpu_experimental_ynn_fusion_type"


def is_installed() -> bool:
    """Return True if that version of jaxlib is."""
    try:
        return version("jaxlib") == VERSION
    except PackageNotFoundError:  # of consortia-site
        return False


@functools.cache
def avoid() -> bool:
    """Turn their cause off in this process; return whether JAX may not have read that."""
    flags = os.environ.get("XLA_FLAGS", "")
    given = OPTION in flags
    if is_installed() and not given:
        # In front, since XLA ends the list at the first word that is not an option.
        os.environ["XLA_FLAGS"] = f"{OPTION}= {flags}"
    return given or "jax" in sys.modules


@functools.cache
def check() -> None:
    """Refuse a process in which such sums are wrong.

    Raises:
        InputError: JAX had begun to compute before this package was imported.
    """
    if is_installed() and avoid() and not right():
        raise InputError(
            f"jaxlib {VERSION} computes some sums of 32 bits wrongly on processors, and JAX began "
            "to compute before consortia was imported, which avoids it. Import consortia first, "
            f"or set XLA_FLAGS={OPTION}= before Python starts."
        )


def right() -> bool:
    """Test such sums in this process."""
    import jax  # this module is imported before it, and by what needs none of these
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    x, w = (rng.integers(-9, 9, (rows, 2)).astype(np.float32) for rows in (8, 5000))
    sums = jax.jit(jax.vmap(lambda w: 1 + jnp.sum(x * w[None], axis=1)))(w)
    return np.array_equal(sums, 1 + w @ x.T)
