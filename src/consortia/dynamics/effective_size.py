r"""Bulk effective sample size of one chain, inside a compiled program.

The rank-normalised split-chain statistic of `consortia.diagnostics`, for a number of draws that is
known only when the program runs: the draws fill the front of an array, and the rest is masked.

Source: Vehtari, Gelman, Simpson, Carpenter, Bürkner, "Rank-normalization, folding, and
localization: an improved R-hat" (2021).
"""

from __future__ import annotations

from jaxtyping import Float, Int

from consortia.runtime.late import Array, jax, jnp


def bulk_ess(draws: Float[Array, "n d"], count: Int[Array, ""]) -> Array:
    """Return the bulk effective sample size of each coordinate.

    Args:
        draws: (slots, d), of which the first ``count`` count.
        count: int32, at least 8 for a meaningful answer.

    Returns:
        (d,); 0 where the chain did not move.
    """
    slots = draws.shape[0]
    half = count // 2
    place = jnp.arange(slots, dtype=jnp.int32)
    halves = jnp.stack([place < half, (place >= count - half) & (place < count)])
    halves = halves.astype(draws.dtype)
    length = jnp.maximum(half, 2).astype(draws.dtype)

    def of_coordinate(values: Array) -> Array:
        scores = _normal_scores(values, halves.sum(axis=0) > 0, 2 * length)
        means = halves @ scores / length
        deviations = halves * (scores[None] - means[:, None])
        spectrum = jnp.fft.rfft(deviations, 2 * slots, axis=-1)
        power = jnp.mean(spectrum.real**2 + spectrum.imag**2, axis=0)
        covariance = jnp.fft.irfft(power, 2 * slots)[:slots].astype(draws.dtype) / length
        return _from_covariance(covariance, means, length)

    return jax.vmap(of_coordinate, in_axes=1)(draws)


def _normal_scores(values: Array, valid: Array, size: Array) -> Array:
    """Return Φ⁻¹((rank − 3/8) / (size + 1/4)) among valid values; ties share a mean rank."""
    ordered = jnp.sort(jnp.where(valid, values, jnp.inf))
    below, up_to = (jnp.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    rank = (below + up_to + 1).astype(values.dtype) / 2
    share = (rank - 0.375) / (size + 0.25)
    return jnp.where(valid, jax.scipy.special.ndtri(jnp.where(valid, share, 0.5)), 0)


def _from_covariance(covariance: Array, means: Array, length: Array) -> Array:
    """Return autocorrelations summed over Geyer's initial positive and monotone pairs."""
    within = covariance[0] * length / (length - 1)
    pooled = covariance[0] + (means[0] - means[1]) ** 2 / 2
    correlation = (1 - (within - covariance) / pooled).at[0].set(1)
    pairs = correlation[: 2 * (correlation.size // 2)].reshape(-1, 2)
    sums = pairs.sum(axis=1)
    last = jnp.maximum(1, (length.astype(jnp.int32) - 1) // 2) - 1
    place = jnp.arange(sums.size, dtype=jnp.int32)
    end = jnp.argmin((sums > 0) & (place < last)).astype(jnp.int32)
    monotone = jax.lax.cummin(sums)
    even = pairs[end, 0]
    rest = jnp.where((sums[end] >= 0) | (even > 0), even, 0)
    time = -1 + 2 * jnp.sum(jnp.where(place < end, monotone, 0)) + rest
    total = 2 * length
    return jnp.where(pooled > 0, total / jnp.maximum(time, 1 / jnp.log10(total)), 0)
