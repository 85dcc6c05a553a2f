"""Families of responses: their likelihood given the linear predictor, and what is theirs beside it.

η is the linear predictor with its offset, (..., rows), or (..., rows, classes − 1) of a categorical
response; ``aux`` holds the family's own parameters on their natural scale, (..., k) each. Leading
axes are those of several points. Everything is written over an array namespace: NumPy evaluates it
at once, JAX compiles it. Of every family that has rows stand here ℓ = log p(y | η), ∂ℓ/∂η and
∂²ℓ/∂η².
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from consortia.core.arguments import unknown
from consortia.core.arrays import (
    Array,
    constant,
    log_sigmoid,
    logsumexp,
    namespace,
    sigmoid,
    softplus,
    special,
    sum_rows,
    sums_of_groups,
)
from consortia.errors import wrong
from consortia.runtime.late import jax

PyTree = Any

Own = Mapping[str, Array]
Slopes = tuple[Array, Array]
"""First and second derivative by η, elementwise."""

Likelihood = Callable[[Array, PyTree, Own], Array]
Response = Literal["number", "two", "count", "share", "positive", "ordered", "levels", "time"]


class Auxiliary(NamedTuple):
    """A parameter of a family that is bounded below."""

    name: str  # on its natural scale
    lower: float  # its bound
    prior: str  # in words; ``{sd}`` is the standard deviation of the response


class Family(NamedTuple):
    """A family of responses."""

    name: str  # as the user writes it
    link: str  # of the mean, in words
    response: Response  # what a response is; see `consortia.models.regression.question`
    log_likelihood: Likelihood  # ℓ of η, batch and the family's own parameters, (..., rows)
    slopes: Callable[[Array, PyTree, Own], Slopes] | None  # ∂ℓ/∂η and ∂²ℓ/∂η², likewise
    # the mean (..., rows) or the classes' probabilities (..., rows, classes), likewise
    predict: Likelihood | None
    # responses of a NumPy generator, likewise; (rows,)
    draw: Callable[[np.random.Generator, np.ndarray, PyTree, Mapping[str, Any]], np.ndarray]
    auxiliaries: tuple[Auxiliary, ...] = ()  # its bounded parameters
    effect: str | None = None  # what exp(coefficient) is; None where a coefficient is a difference
    logarithmic: bool = False  # whether the mean is exp(η) times something
    # the log-likelihood of a site's rows, of η, batch and mask, (...), where there is none of a row
    of_site: Callable[[Array, PyTree, Array], Array] | None = None
    # parts of that, (..., rows), whose gradients are the scores of rows
    parts_of_site: Callable[[Array, PyTree, Array], Array] | None = None
    event: Callable[[Array], Array] | None = None  # P(y = 1), of η, where ``predict`` has classes

    @property
    def base(self) -> str:
        """The name without a link."""
        return self.name.partition("(")[0]

    @property
    def classes(self) -> bool:
        """True if each level of the response has a probability."""
        return self.response in ("ordered", "levels")

    @property
    def integrable(self) -> bool:
        """True if levels of groups can be integrated out: each row has one η and one likelihood."""
        return self.of_site is None and self.response != "levels"

    @property
    def takes(self) -> tuple[str, ...]:
        """The columns beside the formula that only some families have."""
        return ("exposure",) * (self.effect == RATE) + ("trials",) * (self.base == "binomial")


STIRLING = 64.0
"""Value from which the first terms of Stirling's series are exact to 1e-8."""


def _of(batch: PyTree, name: str, like: Array) -> Array:
    """Return a column of the rows, (rows,), in the library and type of η."""
    return namespace(like).asarray(batch[name]).astype(like.dtype)


def _y(batch: PyTree, like: Array) -> Array:
    return _of(batch, "y", like)


# --- measured numbers ----------------------------------------------------------------------------


def _gaussian(eta: Array, batch: PyTree, aux: Own) -> Array:
    z = (_y(batch, eta) - eta) / aux["sigma"]
    return -0.5 * z**2 - namespace(eta).log(aux["sigma"]) - 0.5 * math.log(2 * math.pi)


def _gaussian_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    precision = 1 / aux["sigma"] ** 2 + 0 * eta
    return (_y(batch, eta) - eta) * precision, -precision


def _student(eta: Array, batch: PyTree, aux: Own) -> Array:
    xp, nu, sigma = namespace(eta), aux["nu"], aux["sigma"]
    z = (_y(batch, eta) - eta) / sigma
    # A difference of logarithms of Γ would be noise where ν is large.
    constant = -special(eta).betaln(nu / 2, 0.5) - 0.5 * xp.log(nu)
    return constant - xp.log(sigma) - (nu + 1) / 2 * xp.log1p(z**2 / nu)


def _student_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    nu, sigma = aux["nu"], aux["sigma"]
    z = (_y(batch, eta) - eta) / sigma
    weight = (nu + 1) / (nu + z**2)
    return weight * z / sigma, -weight * (nu - z**2) / (nu + z**2) / sigma**2


def _gamma(eta: Array, batch: PyTree, aux: Own) -> Array:
    xp, k = namespace(eta), aux["shape"]
    log_y = xp.log(_y(batch, eta))
    apart = log_y - eta
    # Terms of size k log k would cancel to a rest that in 32 bits is noise where k is large.
    return _gamma_constant(k) - k * (xp.expm1(apart) - apart) - log_y


def _gamma_constant(k: Array) -> Array:
    """Return k log k - k - log Γ(k), by Stirling's series where k is large."""
    xp = namespace(k)
    large, small = xp.maximum(k, STIRLING), xp.minimum(k, STIRLING)
    series = 0.5 * xp.log(large / (2 * math.pi)) - 1 / (12 * large)
    exact = small * (xp.log(small) - 1) - special(k).gammaln(small)
    return xp.where(k > STIRLING, series, exact)


def _gamma_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    xp, k = namespace(eta), aux["shape"]
    ratio = xp.exp(xp.log(_y(batch, eta)) - eta)
    return k * (ratio - 1), -k * ratio


def _in_logarithms(batch: PyTree, like: Array) -> PyTree:
    return {**batch, "y": namespace(like).log(_y(batch, like))}


def _lognormal(eta: Array, batch: PyTree, aux: Own) -> Array:
    of_logarithms = _in_logarithms(batch, eta)
    return _gaussian(eta, of_logarithms, aux) - of_logarithms["y"]


def _lognormal_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    return _gaussian_slopes(eta, _in_logarithms(batch, eta), aux)


def _beta(eta: Array, batch: PyTree, aux: Own) -> Array:
    xp, phi, y = namespace(eta), aux["phi"], _y(batch, eta)
    a, b = phi * sigmoid(eta), phi * sigmoid(-eta)
    return -special(eta).betaln(a, b) + (a - 1) * xp.log(y) + (b - 1) * xp.log1p(-y)


def _beta_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    xp, phi, y, of = namespace(eta), aux["phi"], _y(batch, eta), special(eta)
    p, rest = sigmoid(eta), sigmoid(-eta)
    score = xp.log(y) - xp.log1p(-y) - of.digamma(phi * p) + of.digamma(phi * rest)
    along = phi * p * rest  # da/dη = −db/dη
    curvature = of.polygamma(1, phi * p) + of.polygamma(1, phi * rest)
    return along * score, along * (rest - p) * score - along**2 * curvature


# --- counts --------------------------------------------------------------------------------------


def _bernoulli(eta: Array, batch: PyTree, aux: Own) -> Array:
    return -softplus((1 - 2 * _y(batch, eta)) * eta)


def _bernoulli_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    p = sigmoid(eta)
    return _y(batch, eta) - p, p * (p - 1)


def _ways(y: Array, n: Array) -> Array:
    """Return the logarithm of how many orders y of n trials can have."""
    gammaln = special(y).gammaln
    return gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1)


def _binomial(eta: Array, batch: PyTree, aux: Own) -> Array:
    y, n = _y(batch, eta), _of(batch, "trials", eta)
    return _ways(y, n) + y * eta - n * softplus(eta)


def _binomial_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    p, n = sigmoid(eta), _of(batch, "trials", eta)
    return _y(batch, eta) - n * p, n * p * (p - 1)


class Link(NamedTuple):
    """A link of a probability p that is not the logit."""

    text: str  # its name in words
    log_p: Callable[[Array], Array]  # log p, of η
    log_rest: Callable[[Array], Array]  # log(1 − p), of η
    slopes_p: Callable[[Array], Slopes]  # first and second derivative of log p
    slopes_rest: Callable[[Array], Slopes]  # the same of log(1 − p)
    effect: str | None  # what exp(coefficient) is; None where a coefficient is a difference


def _log_ndtr(eta: Array) -> Array:
    return special(eta).log_ndtr(eta)


def _mills(eta: Array) -> Slopes:
    """Return the derivatives of log Φ(η): the inverse Mills ratio λ, and −λ(η + λ)."""
    log_density = -0.5 * eta**2 - 0.5 * math.log(2 * math.pi)
    ratio = namespace(eta).exp(log_density - _log_ndtr(eta))
    return ratio, -ratio * (eta + ratio)


def _mills_of_rest(eta: Array) -> Slopes:
    first, second = _mills(-eta)
    return -first, second


def _log_of_minimum(eta: Array) -> Array:
    """Return log(1 − exp(−e^η)); far down it is η − e^η/2."""
    xp = namespace(eta)
    low = eta < LOW
    inside = xp.where(low, LOW, eta)
    return xp.where(low, eta - xp.exp(eta) / 2, xp.log(-xp.expm1(-xp.exp(inside))))


LOW = -10.0
"""η below which the complementary log-log link is expanded."""


def _slopes_of_minimum(eta: Array) -> Slopes:
    xp = namespace(eta)
    size = xp.minimum(xp.exp(eta), 700.0 if eta.dtype.itemsize == 8 else 80.0)
    first = size / xp.expm1(size)
    first = xp.where(eta < LOW, 1 - size / 2, first)
    second = xp.where(eta < LOW, -size / 2, first * (1 - size - first))
    return first, second


def _slopes_of_hazard(eta: Array) -> Slopes:
    size = namespace(eta).exp(eta)
    return -size, -size


LINKS = {
    "probit": Link("probit", _log_ndtr, lambda eta: _log_ndtr(-eta), _mills, _mills_of_rest, None),
    "cloglog": Link(
        "complementary log-log",
        _log_of_minimum,
        lambda eta: -namespace(eta).exp(eta),
        _slopes_of_minimum,
        _slopes_of_hazard,
        "hazard ratio",
    ),
}


def _linked(base: str, name: str) -> Family:
    """Return the family bernoulli or binomial with another link, ``"bernoulli(probit)"``."""
    link = LINKS[name]

    def log_likelihood(eta: Array, batch: PyTree, aux: Own) -> Array:
        xp, y = namespace(eta), _y(batch, eta)
        if base == "bernoulli":
            return xp.where(y > 0, link.log_p(eta), link.log_rest(eta))
        n = _of(batch, "trials", eta)
        seen = xp.where(y > 0, y * link.log_p(eta), 0.0)
        return _ways(y, n) + seen + xp.where(n > y, (n - y) * link.log_rest(eta), 0.0)

    def slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
        xp, y = namespace(eta), _y(batch, eta)
        n = 1 if base == "bernoulli" else _of(batch, "trials", eta)
        parts = zip(link.slopes_p(eta), link.slopes_rest(eta), strict=True)
        first, second = (
            xp.where(y > 0, y * seen, 0.0) + xp.where(n > y, (n - y) * rest, 0.0)
            for seen, rest in parts
        )
        return first, second

    def predict(eta: Array, batch: PyTree, aux: Own) -> Array:
        xp = namespace(eta)
        p = xp.exp(link.log_p(eta))
        if base == "bernoulli":
            return xp.stack([xp.exp(link.log_rest(eta)), p], axis=-1)
        return p * _of(batch, "trials", eta)

    def draw(rng: Any, eta: np.ndarray, batch: PyTree, aux: Mapping[str, Any]) -> np.ndarray:
        p = np.clip(np.exp(link.log_p(np.asarray(eta, float))), 0, 1)
        return rng.binomial(1 if base == "bernoulli" else np.asarray(batch["trials"], np.int64), p)

    kind: Response = "two" if base == "bernoulli" else "count"
    return Family(
        f"{base}({name})",
        link.text,
        kind,
        log_likelihood,
        slopes,
        predict,
        draw,
        effect=link.effect,
        event=(lambda eta: namespace(eta).exp(link.log_p(eta))) if kind == "two" else None,
    )


def _poisson(eta: Array, batch: PyTree, aux: Own) -> Array:
    y = _y(batch, eta)
    return y * eta - namespace(eta).exp(eta) - special(y).gammaln(y + 1)


def _poisson_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    mean = namespace(eta).exp(eta)
    return _y(batch, eta) - mean, -mean


def _negative_binomial(eta: Array, batch: PyTree, aux: Own) -> Array:
    xp, y, phi = namespace(eta), _y(batch, eta), aux["phi"]
    # In 32 bits log Γ(y + φ) - log Γ(φ) is off by .9 at φ = 10⁶, and by 150 at 10⁸.
    ways = -special(eta).betaln(phi, y + 1) - xp.log(phi + y)
    return ways + _log_zero_negative_binomial(eta, aux) - y * softplus(xp.log(phi) - eta)


def _negative_binomial_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    y, phi = _y(batch, eta), aux["phi"]
    apart = eta - namespace(eta).log(phi)
    p, rest = sigmoid(apart), sigmoid(-apart)
    return y * rest - phi * p, -(phi + y) * p * rest


def _zero_inflated(counts: Family, log_zero: Callable[[Array, Own], Array]) -> Family:
    r"""Return the family of counts that are zero besides, with the odds ω.

    .. math:: \log\frac{\omega [y = 0] + p(y)}{1 + \omega}

    A zero is one of the counts with a probability that scales its derivatives.

    Args:
        counts: the family of p(y).
        log_zero: log p(0).
    """

    def log_likelihood(eta: Array, batch: PyTree, aux: Own) -> Array:
        xp, odds = namespace(eta), aux["zero_odds"]
        zero = xp.logaddexp(xp.log(odds), log_zero(eta, aux))
        of_count = counts.log_likelihood(eta, batch, aux)
        return xp.where(_y(batch, eta) > 0, of_count, zero) - xp.log1p(odds)

    def slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
        assert counts.slopes is not None
        xp = namespace(eta)
        first, second = counts.slopes(eta, batch, aux)
        share = sigmoid(log_zero(eta, aux) - xp.log(aux["zero_odds"]))
        share = xp.where(_y(batch, eta) > 0, 1.0, share)
        return share * first, share * second + share * (1 - share) * first**2

    def predict(eta: Array, batch: PyTree, aux: Own) -> Array:
        return namespace(eta).exp(eta) / (1 + aux["zero_odds"])

    def draw(rng: Any, eta: np.ndarray, batch: PyTree, aux: Mapping[str, Any]) -> np.ndarray:
        values = counts.draw(rng, eta, batch, aux)
        share = aux["zero_odds"] / (1 + aux["zero_odds"])
        return np.where(rng.random(values.shape) < share, 0, values)

    return counts._replace(
        name=f"zero_inflated_{counts.name}",
        link="log of the mean without the further zeros",
        log_likelihood=log_likelihood,
        slopes=slopes,
        predict=predict,
        draw=draw,
        auxiliaries=(*counts.auxiliaries, ZERO_ODDS),
    )


def _log_zero_poisson(eta: Array, aux: Own) -> Array:
    return -namespace(eta).exp(eta)


def _log_zero_negative_binomial(eta: Array, aux: Own) -> Array:
    xp, phi = namespace(eta), aux["phi"]
    # Not softplus: φ multiplies its rounding, which at φ = 10¹⁶ is larger than the likelihood.
    return -phi * xp.logaddexp(eta - xp.log(phi), 0.0)


# --- classes -------------------------------------------------------------------------------------


def _ends(eta: Array, batch: PyTree, aux: Own) -> tuple[Array, Array, Array, int]:
    """Return c_y − η, c_{y−1} − η, y, and the index of the last class."""
    xp, cuts = namespace(eta), aux["thresholds"]
    y, last = xp.asarray(batch["y"]).astype(xp.int32), cuts.shape[-1]
    upper = xp.where(y < last, cuts[..., xp.minimum(y, last - 1)] - eta, 0.0)
    lower = xp.where(y > 0, cuts[..., xp.maximum(y - 1, 0)] - eta, 0.0)
    return upper, lower, y, last


def _ordinal(eta: Array, batch: PyTree, aux: Own) -> Array:
    """Return log(σ(c_y − η) − σ(c_{y−1} − η)), with c_{−1} = −∞ and the last c = ∞."""
    xp = namespace(eta)
    upper, lower, y, last = _ends(eta, batch, aux)
    inside = (y > 0) & (y < last)
    # σ(u) − σ(l) = σ(u) σ(−l) (1 − exp(l − u))
    apart = xp.where(inside, upper - lower, 1.0)
    return (
        xp.where(y < last, log_sigmoid(upper), 0.0)
        + xp.where(y > 0, log_sigmoid(-lower), 0.0)
        + xp.where(inside, xp.log(-xp.expm1(-apart)), 0.0)
    )


def _ordinal_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    xp = namespace(eta)
    upper, lower, y, last = _ends(eta, batch, aux)
    below = xp.where(y > 0, sigmoid(lower), 0.0)
    above = xp.where(y < last, sigmoid(-upper), 0.0)  # 1 − σ(u)
    return below - above, -below * (1 - below) - above * (1 - above)


def _ordinal_probabilities(eta: Array, batch: PyTree, aux: Own) -> Array:
    xp = namespace(eta)
    below = sigmoid(aux["thresholds"][..., None, :] - eta[..., None])
    ends = xp.ones_like(below[..., :1])
    return xp.diff(xp.concatenate([0 * ends, below, ends], axis=-1), axis=-1)


def _scores(eta: Array) -> Array:
    xp = namespace(eta)
    return xp.concatenate([xp.zeros_like(eta[..., :1]), eta], axis=-1)


def _chosen(eta: Array, batch: PyTree, count: int) -> Array:
    """Mark each row's class, (rows, classes). The gradient of a gather is a scatter."""
    xp = namespace(eta)
    y = xp.asarray(batch["y"]).astype(xp.int32)
    return y[:, None] == xp.arange(count, dtype=xp.int32)[None, :]


def _categorical(eta: Array, batch: PyTree, aux: Own) -> Array:
    xp, scores = namespace(eta), _scores(eta)
    chosen = _chosen(eta, batch, scores.shape[-1])
    return xp.sum(xp.where(chosen, scores, 0.0), axis=-1) - logsumexp(scores, axis=-1)


def _softmax(eta: Array, batch: PyTree, aux: Own) -> Array:
    scores = _scores(eta)
    return namespace(eta).exp(scores - logsumexp(scores, axis=-1)[..., None])


def _categorical_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    """Return the gradient, (..., rows, k), and the second derivatives, (..., rows, k, k)."""
    xp = namespace(eta)
    p = _softmax(eta, batch, aux)[..., 1:]
    chosen = _chosen(eta, batch, p.shape[-1] + 1)[:, 1:].astype(eta.dtype)
    second = p[..., :, None] * p[..., None, :] - p[..., None] * xp.eye(p.shape[-1], dtype=eta.dtype)
    return chosen - p, second


# --- times to an event ---------------------------------------------------------------------------


def _weibull_parts(eta: Array, batch: PyTree, aux: Own) -> tuple[Array, Array]:
    """Return log h(t) and the hazard lived through, H(t) − H(start)."""
    xp, k = namespace(eta), aux["shape"]
    log_t, unit = xp.log(_y(batch, eta)), _of(batch, "log_unit", eta)
    hazard = xp.log(k) + (k - 1) * (log_t - unit) - unit + eta
    lived = xp.exp(k * (log_t - unit) + eta)
    if "start" in batch:
        start = _of(batch, "start", eta)
        log_start = xp.log(xp.where(start > 0, start, 1.0))
        lived = lived - xp.where(start > 0, xp.exp(k * (log_start - unit) + eta), 0.0)
    return hazard, lived


def _weibull(eta: Array, batch: PyTree, aux: Own) -> Array:
    """Return d log h(t) − H(t), with h(t) = k t^{k−1} e^η; times are in units of their mean."""
    hazard, lived = _weibull_parts(eta, batch, aux)
    return _of(batch, "event", eta) * hazard - lived


def _weibull_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    _, lived = _weibull_parts(eta, batch, aux)
    return _of(batch, "event", eta) - lived, -lived


def _piecewise(eta: Array, batch: PyTree, aux: Own) -> Array:
    """Return d (λ_j + η) − Σ_j t_j exp(λ_j + η), the hazard being exp(λ_j + η) in interval j."""
    xp, hazards = namespace(eta), aux["log_hazard"]
    at = xp.asarray(batch["interval"]).astype(xp.int32)
    chosen = at[:, None] == xp.arange(hazards.shape[-1], dtype=xp.int32)[None, :]
    log_hazard = xp.sum(xp.where(chosen, hazards[..., None, :], 0.0), axis=-1) + eta
    return _of(batch, "event", eta) * log_hazard - _lived(eta, batch, aux)


def _lived(eta: Array, batch: PyTree, aux: Own) -> Array:
    xp = namespace(eta)
    edges = np.concatenate([[0.0], aux["breaks"], [np.inf]])[None]
    begin, width = (xp.asarray(of, eta.dtype) for of in (edges[:, :-1], np.diff(edges)))
    spent = xp.clip(_y(batch, eta)[:, None] - begin, 0, width)
    if "start" in batch:
        spent = spent - xp.clip(_of(batch, "start", eta)[:, None] - begin, 0, width)
    return xp.exp(eta) * (xp.exp(aux["log_hazard"]) @ spent.T)


def _piecewise_slopes(eta: Array, batch: PyTree, aux: Own) -> Slopes:
    lived = _lived(eta, batch, aux)
    return _of(batch, "event", eta) - lived, -lived


class AtRisk(NamedTuple):
    """Parts of Cox's likelihood."""

    event: Array  # 1 of a row with an event
    last: Array
    weight: Array  # w of each row, or 1
    tie_weight: Array  # the mean of w over the events of a row's time
    shifted: Array  # η less its largest value
    sizes: Array  # e^η likewise
    inside: Array  # the sum of w e^η over the rows at risk of each event, 1 of other rows


def at_risk(eta: Array, batch: PyTree, mask: Array) -> AtRisk:
    """Return who is at risk of each event of a site's rows."""
    xp = namespace(eta)
    event = xp.where(mask, _of(batch, "event", eta), 0)
    last = xp.asarray(batch["last"]).astype(xp.int32)
    share = _of(batch, "tie_share", eta)
    weight, tie_weight = (
        _of(batch, name, eta) if name in batch else xp.ones_like(share)
        for name in ("weight", "tie_weight")
    )
    shifted = eta - constant(xp.max(xp.where(mask, eta, -xp.inf), axis=-1, keepdims=True))
    sizes = xp.where(mask, xp.exp(shifted), 0)
    weighted = weight * sizes
    if "first" in batch:
        at_risk = _started(weighted, last, batch, mask)
    else:
        at_risk = xp.cumsum(weighted, axis=-1)[..., last]
    tied = sums_of_groups(event * weighted, last, eta.shape[-1])[..., last]
    inside = xp.where(event > 0, at_risk - share * tied, 1)
    return AtRisk(event, last, weight, tie_weight, shifted, sizes, inside)


def _cox(eta: Array, batch: PyTree, mask: Array) -> Array:
    r"""Return the log partial likelihood of one site, ties after Efron (1977).

    .. math:: \sum_{i: d_i = 1} \Bigl[w_i \eta_i - \bar w_i \log\Bigl(\sum_{j: t_j \ge t_i}
              w_j e^{\eta_j} - f_i \sum_{j: t_j = t_i, d_j = 1} w_j e^{\eta_j}\Bigr)\Bigr]

    with f = 0, 1/m, ..., (m − 1)/m for m events at one time, w̄ the mean of their weights. After
    Breslow f is 0. Rows stand in the order of falling times; ``last`` is the index of the last one
    with a row's time. With strata, or rows that start later than 0, the first sum is over rows of
    the same stratum that had started, s_j < t_i.
    """
    xp, at = namespace(eta), at_risk(eta, batch, mask)
    return sum_rows(at.event * (at.weight * at.shifted - at.tie_weight * xp.log(at.inside)))


def _cox_parts(eta: Array, batch: PyTree, mask: Array) -> Array:
    r"""Return :math:`w_i\,\partial \ell / \partial w_i` of each row of a site, (..., rows).

    Their sum is ℓ and a constant, and their gradients are the score residuals of Lin and Wei
    (1989). Events at which a row is at risk are those from ``since`` to before ``until``.
    """
    xp, at = namespace(eta), at_risk(eta, batch, mask)
    since, until = (xp.asarray(batch[name]).astype(xp.int32) for name in ("since", "until"))
    rows, count = eta.shape[-1], _of(batch, "tie_count", eta)
    hazard = at.event * at.tie_weight / at.inside
    lived = sum(sums[..., until] - sums[..., since] for sums in _precise_sums(hazard))
    tied = sums_of_groups(_of(batch, "tie_share", eta) * hazard, at.last, rows)[..., at.last]
    logs = sums_of_groups(at.event * xp.log(at.inside), at.last, rows)[..., at.last] / count
    seen = at.event * (at.shifted - logs)
    return xp.where(mask, at.weight * (seen - at.sizes * (lived - at.event * tied)), 0)


def _started(size: Array, last: Array, batch: PyTree, mask: Array) -> Array:
    """Return the sum of sizes over the rows at risk at each row's time.

    It is a difference of sums over all rows of larger times and over those that start later, each
    in twice the digits: few rows may be at risk of many.
    """
    xp = namespace(size)
    first, late, later = (
        xp.asarray(batch[name]).astype(xp.int32) for name in ("first", "late", "later")
    )
    stops = _precise_sums(size)
    starts = _precise_sums(xp.where(mask, size[..., late], 0))
    high, low = (
        # each of nearly equal sums
        (stop[..., last + 1] - start[..., later]) + (start[..., first] - stop[..., first])
        for stop, start in zip(stops, starts, strict=True)
    )
    return (high + low).astype(size.dtype)


def _precise_sums(values: Array) -> tuple[Array, Array]:
    """Return the sums of the first 0, 1, ... values, and what each lacks by rounding."""
    xp = namespace(values)
    none = xp.zeros_like(values[..., :1])
    if xp is np:
        wide = np.cumsum(values, axis=-1, dtype=np.longdouble)
        return np.concatenate([none, wide], axis=-1), np.zeros(1 + values.shape[-1])

    def add(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        (a, less), (b, more) = left, right
        total = a + b
        rest = total - a
        lost = (a - (total - rest)) + (b - rest)
        return total, less + more + lost

    axis = values.ndim - 1
    high, low = jax.lax.associative_scan(add, (values, xp.zeros_like(values)), axis=axis)
    return xp.concatenate([none, high], axis=-1), xp.concatenate([none, low], axis=-1)


# --- draws ---------------------------------------------------------------------------------------


def _expit(eta: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(eta, -700, 700)))


def _exp(eta: np.ndarray) -> np.ndarray:
    return np.exp(np.clip(eta, -30, 30))  # NumPy draws no counts beyond about 10¹⁸


def _draw_ordinal(rng: Any, eta: np.ndarray, batch: PyTree, aux: Mapping[str, Any]) -> np.ndarray:
    latent = eta + rng.logistic(size=eta.shape)
    return np.sum(latent[:, None] > aux["thresholds"][None, :], axis=1)


def _draw_poisson(rng: Any, eta: np.ndarray, batch: PyTree, aux: Mapping[str, Any]) -> np.ndarray:
    return rng.poisson(_exp(eta))


def _draw_negative_binomial(
    rng: Any, eta: np.ndarray, batch: PyTree, aux: Mapping[str, Any]
) -> np.ndarray:
    mean = rng.gamma(aux["phi"], _exp(eta) / aux["phi"])
    return rng.poisson(np.minimum(mean, 1e15))


def _draw_levels(rng: Any, eta: np.ndarray, batch: PyTree, aux: Mapping[str, Any]) -> np.ndarray:
    scores = np.concatenate([np.zeros_like(eta[:, :1]), eta], axis=1)
    return np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)


def _draw_weibull(rng: Any, eta: np.ndarray, batch: PyTree, aux: Mapping[str, Any]) -> np.ndarray:
    unit = np.asarray(batch["log_unit"])
    began = np.asarray(batch.get("start", 0.0)) * np.exp(-unit)
    lived = _exp(eta) * began ** aux["shape"]  # a time is later than its row's start
    log_t = (np.log(lived + rng.exponential(size=eta.shape)) - eta) / aux["shape"]
    return _exp(log_t + unit)


def _no_draw(rng: Any, eta: np.ndarray, batch: PyTree, aux: Mapping[str, Any]) -> np.ndarray:
    raise wrong("family", " 'cox' has no model of event times and cannot be simulated.")


CUMULATIVE = "cumulative_hazard"
"""Name of the baseline Λ at the end of a row's follow-up, where it was drawn."""


def _no_event(eta: Array, batch: PyTree, aux: Own) -> Array:
    if CUMULATIVE not in aux:
        raise wrong("family", " 'cox' has no likelihood of a row.")
    return -aux[CUMULATIVE] * namespace(eta).exp(eta)


def _draw_piecewise(rng: Any, eta: np.ndarray, batch: PyTree, aux: Mapping[str, Any]) -> np.ndarray:
    hazards, left = _exp(np.asarray(aux["log_hazard"])), np.concatenate([[0.0], aux["breaks"]])
    reached = np.concatenate([[0.0], np.cumsum(np.diff(left) * hazards[:-1])])
    start = np.asarray(batch.get("start", 0.0))
    at = np.searchsorted(left, start, side="right") - 1
    began = reached[at] + (start - left[at]) * hazards[at]
    wanted = began + rng.exponential(size=eta.shape) / _exp(eta)
    interval = np.searchsorted(reached, wanted, side="right") - 1
    return left[interval] + (wanted - reached[interval]) / hazards[interval]


SIGMA = Auxiliary("sigma", 0.0, "exponential(1 / {sd})")
PHI = Auxiliary("phi", 0.0, "inverse_gamma(0.4, 0.3)")
ZERO_ODDS = Auxiliary("zero_odds", 0.0, "half_cauchy(1)")
RATE = "rate ratio"

POISSON = Family(
    "poisson",
    "log",
    "count",
    _poisson,
    _poisson_slopes,
    lambda eta, batch, aux: namespace(eta).exp(eta),
    _draw_poisson,
    effect=RATE,
    logarithmic=True,
)
NEGATIVE_BINOMIAL = POISSON._replace(
    name="negative_binomial",
    log_likelihood=_negative_binomial,
    slopes=_negative_binomial_slopes,
    draw=_draw_negative_binomial,
    auxiliaries=(PHI,),
)
WEIBULL = Family(
    "weibull",
    "log of the hazard",
    "time",
    _weibull,
    _weibull_slopes,
    None,
    _draw_weibull,
    (Auxiliary("shape", 0.0, "half_normal(2)"),),
    "hazard ratio",
    True,
)

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "gaussian",
            "identity",
            "number",
            _gaussian,
            _gaussian_slopes,
            lambda eta, batch, aux: eta,
            lambda rng, eta, batch, aux: rng.normal(eta, aux["sigma"]),
            (SIGMA,),
        ),
        Family(
            "student",
            "identity",
            "number",
            _student,
            _student_slopes,
            lambda eta, batch, aux: eta,
            lambda rng, eta, batch, aux: eta + aux["sigma"] * rng.standard_t(aux["nu"], eta.shape),
            (SIGMA, Auxiliary("nu", 1.0, "gamma(2, 0.1)")),
        ),
        Family(
            "bernoulli",
            "logit",
            "two",
            _bernoulli,
            _bernoulli_slopes,
            lambda eta, batch, aux: namespace(eta).stack([sigmoid(-eta), sigmoid(eta)], axis=-1),
            lambda rng, eta, batch, aux: rng.binomial(1, _expit(eta)),
            effect="odds ratio",
            event=sigmoid,
        ),
        Family(
            "binomial",
            "logit",
            "count",
            _binomial,
            _binomial_slopes,
            lambda eta, batch, aux: sigmoid(eta) * _of(batch, "trials", eta),
            lambda rng, eta, batch, aux: rng.binomial(
                np.asarray(batch["trials"], np.int64), _expit(eta)
            ),
            effect="odds ratio",
        ),
        *(_linked(base, link) for base in ("bernoulli", "binomial") for link in LINKS),
        POISSON,
        NEGATIVE_BINOMIAL,
        Family(
            "gamma",
            "log",
            "positive",
            _gamma,
            _gamma_slopes,
            lambda eta, batch, aux: namespace(eta).exp(eta),
            lambda rng, eta, batch, aux: rng.gamma(aux["shape"], _exp(eta) / aux["shape"]),
            (Auxiliary("shape", 0.0, "gamma(2, 0.1)"),),
            "ratio of means",
            True,
        ),
        Family(
            "lognormal",
            "log of the median",
            "positive",
            _lognormal,
            _lognormal_slopes,
            lambda eta, batch, aux: namespace(eta).exp(eta + aux["sigma"] ** 2 / 2),
            lambda rng, eta, batch, aux: _exp(rng.normal(eta, aux["sigma"])),
            (Auxiliary("sigma", 0.0, "exponential(1)"),),
            "ratio of medians",
            True,
        ),
        _zero_inflated(POISSON, _log_zero_poisson),
        _zero_inflated(NEGATIVE_BINOMIAL, _log_zero_negative_binomial),
        Family(
            "beta",
            "logit",
            "share",
            _beta,
            _beta_slopes,
            lambda eta, batch, aux: sigmoid(eta),
            lambda rng, eta, batch, aux: rng.beta(
                aux["phi"] * _expit(eta), aux["phi"] * _expit(-eta)
            ),
            (Auxiliary("phi", 0.0, "gamma(2, 0.1)"),),
            "odds ratio",
        ),
        Family(
            "ordinal",
            "cumulative logit",
            "ordered",
            _ordinal,
            _ordinal_slopes,
            _ordinal_probabilities,
            _draw_ordinal,
            effect="odds ratio",
        ),
        Family(
            "categorical",
            "logit against the first level",
            "levels",
            _categorical,
            _categorical_slopes,
            _softmax,
            _draw_levels,
            effect="odds ratio",
        ),
        WEIBULL,
        WEIBULL._replace(
            name="piecewise_exponential",
            log_likelihood=_piecewise,
            slopes=_piecewise_slopes,
            draw=_draw_piecewise,
            auxiliaries=(),
        ),
        Family(
            "cox",
            "log of the hazard, each site with its own baseline",
            "time",
            _no_event,
            None,
            None,
            _no_draw,
            effect="hazard ratio",
            of_site=_cox,
            parts_of_site=_cox_parts,
        ),
    )
}
"""The families, by name."""

ALIASES = {
    "normal": "gaussian",
    "logistic": "bernoulli",
    "negbinomial": "negative_binomial",
    "cumulative": "ordinal",
    "multinomial": "categorical",
}
"""Other names that people know for the families; they are refused with ours."""


def family_of(name: str) -> Family:
    """Look a family up by its name.

    Raises:
        InputError: none has it.
    """
    if name in ALIASES:
        raise wrong("family", f" {name!r}: it is called {ALIASES[name]!r} here.")
    if name not in FAMILIES:
        raise wrong("family", f" is {name!r}: {unknown(str(name), FAMILIES)}.")
    return FAMILIES[name]
