r"""Differential privacy of answers: what noise costs, and what it buys.

Two data sets are *neighbours* if one row of one site is an empty row in the other, which adds
nothing to a sum: the number of rows is public, and a row's part is not. A sum of vectors of
integers whose Euclidean norms are at most Δ, with discrete Gaussian noise of standard deviation σ
added to each number, has the *loss* (Δ/σ)². Losses of all answers add up to m², and all answers
together are as private as one Gaussian mechanism of noise multiplier 1/m: their Rényi divergence of
order α is at most α m²/2 (Canonne, Kamath, Steinke 2020). The accountant of dp-accounting makes an
(ε, δ) of it; its name for our neighbours is "replace special".
"""

from __future__ import annotations

import functools
import hashlib
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortia.errors import require_extra

NOISE_MULTIPLIERS = (1e-3, 1e6)
"""Below and above those of any ε that a method takes."""

TOLERANCE = 1e-9
"""Absolute error of a noise multiplier."""

ORDERS = 1 + np.geomspace(1e-3, 1e5, 401)
"""Orders α of Rényi divergences; 4,001 lower ε by 2e-3 of it at most."""


@dataclass(frozen=True)
class Privacy:
    """Noise that sites add to integers of an answer, summed over their rows."""

    sensitivity: int  # Δ, the largest Euclidean norm of a row's part, over all arrays together
    sd: float  # σ of the noise in the sum over the sites that a row is protected by
    share: float  # part of a run's budget that the answer costs; those of a run are at most 1
    # share of the sites that add their noise, where only sums are seen; None: each answer is seen
    # by itself, so that every site adds all of the noise
    honest: float | None = None

    def site_sd(self, sites: int) -> float:
        """Return the standard deviation of the noise that each site adds."""
        if self.honest is None:
            return self.sd
        return self.sd / math.sqrt(max(math.floor(self.honest * sites), 1))

    def total_variance(self, sites: int) -> float:
        """Return the variance of the noise in the sum of all sites, if all are honest."""
        return sites * self.site_sd(sites) ** 2

    @property
    def loss(self) -> float:
        """(Δ/σ)²."""
        return (self.sensitivity / self.sd) ** 2


def epsilon_of(loss: float, delta: float) -> float:
    """Return the ε of answers whose losses add up to L, by the accountant of dp-accounting.

    Raises:
        MissingExtraError: dp-accounting is not installed.
    """
    if not loss:
        return 0.0
    accounting, accountant = _accounting()
    ours = accountant()
    ours.compose(accounting.GaussianDpEvent(1 / math.sqrt(loss)))
    return float(ours.get_epsilon(delta))


@functools.cache
def loss_of(epsilon: float, delta: float) -> float:
    """Return the most that losses may add up to for (ε, δ).

    Raises:
        MissingExtraError: dp-accounting is not installed.
    """
    accounting, accountant = _accounting()
    multiplier = accounting.calibrate_dp_mechanism(
        accountant,
        accounting.GaussianDpEvent,
        epsilon,
        delta,
        accounting.ExplicitBracketInterval(*NOISE_MULTIPLIERS),
        tol=TOLERANCE,
    )
    return 1 / multiplier**2


def _accounting() -> tuple[Any, Callable[[], Any]]:
    """Return dp-accounting, and what makes an accountant of our neighbours."""
    with require_extra("privacy", "differential privacy needs the extra privacy"):
        import dp_accounting  # takes a second, and few runs need it
        from dp_accounting import rdp
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    return dp_accounting, lambda: rdp.RdpAccountant(ORDERS, relation)


# --- noise ---------------------------------------------------------------------------------------


class SecretNoise:
    """Random numbers that nobody can compute who lacks their key: the keystream of ChaCha20.

    An ε is worth nothing where the noise follows from what others know, such as a run's seed.

    Args:
        key: from a site's secret and the question; fresh from the operating system when None, and
            kept nowhere. A stored run keeps answers, so that resuming it needs no noise again.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key, self._counter = fresh_key() if key is None else key, 0

    def random(self, shape: int | tuple[int, ...]) -> np.ndarray:
        """Return numbers uniform on [0, 1), multiples of 2⁻⁵³."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        self._counter += 1
        nonce = bytes(8) + self._counter.to_bytes(8, "little")  # the first half counts blocks
        cipher = Cipher(algorithms.ChaCha20(self._key, nonce), None).encryptor()
        words = cipher.update(bytes(8 * math.prod(np.atleast_1d(shape).tolist())))
        return ((np.frombuffer(words, "<u8") >> np.uint64(11)) * 2.0**-53).reshape(shape)

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw normal numbers of up to 8.5 standard deviations (Box and Muller)."""
        radius, angle = self.random((2, *shape))
        return np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)

    def geometric(self, chance: float, shape: tuple[int, ...]) -> np.ndarray:
        """Draw the number of trials until a success of this probability, at least 1."""
        failures = np.floor(np.log1p(-self.random(shape)) / math.log1p(-chance))
        return failures.astype(np.int64) + 1


Dither = SecretNoise | np.random.Generator
"""Numbers by which a site rounds: its own, or of a query where one machine plays all sites."""


def fresh_key() -> bytes:
    """Return a key from the operating system."""
    return secrets.token_bytes(32)


def simulated_generator(
    function: str, arrays: Mapping[str, np.ndarray], site: int
) -> np.random.Generator:
    """Return the generator of how a site rounds where one machine plays all sites.

    It follows from the query, so that it is the same in every engine, and protects nothing.
    """
    digest = hashlib.sha256(function.encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return np.random.default_rng([int(digest.hexdigest(), 16), site])


def with_noise(
    privacy: Privacy, answer: dict[str, np.ndarray], sites: int, rng: SecretNoise
) -> dict[str, np.ndarray]:
    """Return an answer of integers with the noise of one of the sites."""
    sd = privacy.site_sd(sites)
    return {
        name: answer[name] + discrete_gaussian(rng, sd, answer[name].shape)
        for name in sorted(answer)
    }


def discrete_gaussian(
    rng: SecretNoise, sd: float, shape: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    r"""Return integers k with probabilities proportional to exp(-k²/(2σ²)).

    A discrete Laplace of scale t = ⌊σ⌋ + 1 is accepted with probability
    exp(-(|k| - σ²/t)²/(2σ²)) (Canonne, Kamath, Steinke 2020, algorithm 3), many at once, in
    double precision: a probability may be off by 1e-16.
    """
    count = math.prod(shape)
    scale = math.floor(sd) + 1
    accepted = np.zeros(0, np.int64)
    while accepted.size < count:
        size = 2 * (count - accepted.size) + 16
        # The difference of two geometric numbers is a discrete Laplace.
        two = rng.geometric(-math.expm1(-1 / scale), (2, size))
        drawn = two[0] - two[1]
        log_accepted = -((np.abs(drawn) - sd**2 / scale) ** 2) / (2 * sd**2)
        accepted = np.concatenate([accepted, drawn[np.log(rng.random(size)) < log_accepted]])
    return accepted[:count].reshape(shape)
