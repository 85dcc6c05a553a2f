"""Families of responses: their likelihood given the linear predictor, and what is theirs beside it.

η is the linear predictor with its offset, (rows,), or (rows, classes − 1) of a categorical
response; ``own`` holds the family's own parameters on their natural scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, gammaln, log_ndtr

from consortia.errors import InputError
from consortia.models._shared import Array, PyTree, two_classes

Own = Mapping[str, Array]
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
    # of η, batch and the family's own parameters, (rows,)
    log_likelihood: Callable[[Array, PyTree, Own], Array]
    # the mean (rows,) or the classes' probabilities (rows, classes), likewise
    predict: Callable[[Array, PyTree, Own], Array] | None
    # responses of a NumPy generator, likewise; (rows,)
    draw: Callable[[np.random.Generator, np.ndarray, PyTree, Mapping[str, Any]], np.ndarray]
    auxiliaries: tuple[Auxiliary, ...] = ()  # its bounded parameters
    effect: str | None = None  # what exp(coefficient) is; None where a coefficient is a difference
    logarithmic: bool = False  # whether the mean is exp(η) times something
    # the log-likelihood of a site's rows, of η, batch and mask, a scalar, where there is none of
    # a row
    of_site: Callable[[Array, PyTree, Array], Array] | None = None

    @property
    def base(self) -> str:
        """The name without a link."""
        return self.name.partition("(")[0]


STIRLING = 64.0
"""Value from which the first terms of Stirling's series are exact to 1e-8."""


def _y(batch: PyTree, like: Array) -> Array:
    return jnp.asarray(batch["y"]).astype(like.dtype)


# --- measured numbers ----------------------------------------------------------------------------


def _gaussian(eta: Array, batch: PyTree, own: Own) -> Array:
    z = (_y(batch, eta) - eta) / own["sigma"]
    return -0.5 * z**2 - jnp.log(own["sigma"]) - 0.5 * math.log(2 * math.pi)


def _student(eta: Array, batch: PyTree, own: Own) -> Array:
    nu, sigma = own["nu"], own["sigma"]
    z = (_y(batch, eta) - eta) / sigma
    # A difference of logarithms of Γ would be noise where ν is large.
    constant = -betaln(nu / 2, 0.5) - 0.5 * jnp.log(nu)
    return constant - jnp.log(sigma) - (nu + 1) / 2 * jnp.log1p(z**2 / nu)


def _gamma(eta: Array, batch: PyTree, own: Own) -> Array:
    k, log_y = own["shape"], jnp.log(_y(batch, eta))
    apart = log_y - eta
    # Terms of size k log k would cancel to a rest that in 32 bits is noise where k is large.
    return _gamma_constant(k) - k * (jnp.expm1(apart) - apart) - log_y


def _gamma_constant(k: Array) -> Array:
    """Return k log k - k - log Γ(k), by Stirling's series where k is large."""
    large, small = jnp.maximum(k, STIRLING), jnp.minimum(k, STIRLING)
    series = 0.5 * jnp.log(large / (2 * math.pi)) - 1 / (12 * large)
    return jnp.where(k > STIRLING, series, small * (jnp.log(small) - 1) - gammaln(small))


def _lognormal(eta: Array, batch: PyTree, own: Own) -> Array:
    log_y = jnp.log(_y(batch, eta))
    z = (log_y - eta) / own["sigma"]
    return -0.5 * z**2 - jnp.log(own["sigma"]) - 0.5 * math.log(2 * math.pi) - log_y


def _beta(eta: Array, batch: PyTree, own: Own) -> Array:
    phi, y = own["phi"], _y(batch, eta)
    a, b = phi * jax.nn.sigmoid(eta), phi * jax.nn.sigmoid(-eta)
    return -betaln(a, b) + (a - 1) * jnp.log(y) + (b - 1) * jnp.log1p(-y)


# --- counts --------------------------------------------------------------------------------------


def _bernoulli(eta: Array, batch: PyTree, own: Own) -> Array:
    return -jax.nn.softplus((1 - 2 * _y(batch, eta)) * eta)


def _binomial(eta: Array, batch: PyTree, own: Own) -> Array:
    y, n = _y(batch, eta), jnp.asarray(batch["trials"]).astype(eta.dtype)
    ways = gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1)
    return ways + y * eta - n * jax.nn.softplus(eta)


class Link(NamedTuple):
    """A link of a probability p that is not the logit."""

    text: str  # its name in words
    log_p: Callable[[Array], Array]  # log p, of η
    log_rest: Callable[[Array], Array]  # log(1 − p), of η
    effect: str | None  # what exp(coefficient) is; None where a coefficient is a difference


def _log_of_minimum(eta: Array) -> Array:
    """Return log(1 − exp(−e^η)); far down it is η − e^η/2."""
    low = eta < LOW
    inside = jnp.where(low, LOW, eta)
    return jnp.where(low, eta - jnp.exp(eta) / 2, jnp.log(-jnp.expm1(-jnp.exp(inside))))


LOW = -10.0
"""η below which the complementary log-log link is expanded."""

LINKS = {
    "probit": Link("probit", log_ndtr, lambda eta: log_ndtr(-eta), None),
    "cloglog": Link(
        "complementary log-log", _log_of_minimum, lambda eta: -jnp.exp(eta), "hazard ratio"
    ),
}


def _linked(base: str, name: str) -> Family:
    """Return the family bernoulli or binomial with another link, ``"bernoulli(probit)"``."""
    link = LINKS[name]

    def log_likelihood(eta: Array, batch: PyTree, own: Own) -> Array:
        y = _y(batch, eta)
        if base == "bernoulli":
            return jnp.where(y > 0, link.log_p(eta), link.log_rest(eta))
        n = jnp.asarray(batch["trials"]).astype(eta.dtype)
        ways = gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1)
        seen = jnp.where(y > 0, y * link.log_p(eta), 0.0)
        return ways + seen + jnp.where(n > y, (n - y) * link.log_rest(eta), 0.0)

    def predict(eta: Array, batch: PyTree, own: Own) -> Array:
        p = jnp.exp(link.log_p(eta))
        if base == "bernoulli":
            return jnp.stack([jnp.exp(link.log_rest(eta)), p], axis=-1)
        return p * jnp.asarray(batch["trials"]).astype(eta.dtype)

    def draw(rng: Any, eta: np.ndarray, batch: PyTree, own: Mapping[str, Any]) -> np.ndarray:
        p = np.clip(np.exp(np.asarray(link.log_p(jnp.asarray(eta)), float)), 0, 1)
        return rng.binomial(1 if base == "bernoulli" else np.asarray(batch["trials"], np.int64), p)

    kind: Response = "two" if base == "bernoulli" else "count"
    return Family(
        f"{base}({name})", link.text, kind, log_likelihood, predict, draw, effect=link.effect
    )


def _poisson(eta: Array, batch: PyTree, own: Own) -> Array:
    y = _y(batch, eta)
    return y * eta - jnp.exp(eta) - gammaln(y + 1)


def _negative_binomial(eta: Array, batch: PyTree, own: Own) -> Array:
    y, phi = _y(batch, eta), own["phi"]
    apart = eta - jnp.log(phi)  # log(mean / φ)
    # In 32 bits log Γ(y + φ) - log Γ(φ) is off by .9 at φ = 10⁶, and by 150 at 10⁸.
    ways = -betaln(phi, y + 1) - jnp.log(phi + y)
    return ways - phi * jax.nn.softplus(apart) - y * jax.nn.softplus(-apart)


def _with_zeros(
    counts: Callable[[Array, PyTree, Own], Array], log_zero: Callable[[Array, Own], Array]
) -> Callable[[Array, PyTree, Own], Array]:
    r"""Return the log-likelihood of counts that are zero besides, with the odds ω.

    .. math:: \log\frac{\omega [y = 0] + p(y)}{1 + \omega}

    Args:
        counts: log p(y).
        log_zero: log p(0).
    """

    def log_likelihood(eta: Array, batch: PyTree, own: Own) -> Array:
        odds = own["zero_odds"]
        zero = jnp.logaddexp(jnp.log(odds), log_zero(eta, own))
        return jnp.where(_y(batch, eta) > 0, counts(eta, batch, own), zero) - jnp.log1p(odds)

    return log_likelihood


_zero_inflated_poisson = _with_zeros(_poisson, lambda eta, own: -jnp.exp(eta))
_zero_inflated_negative_binomial = _with_zeros(
    _negative_binomial,
    lambda eta, own: -own["phi"] * jax.nn.softplus(eta - jnp.log(own["phi"])),
)


def _mean_with_zeros(eta: Array, batch: PyTree, own: Own) -> Array:
    return jnp.exp(eta) / (1 + own["zero_odds"])


# --- classes -------------------------------------------------------------------------------------


def _ordinal(eta: Array, batch: PyTree, own: Own) -> Array:
    """Return log(σ(c_y − η) − σ(c_{y−1} − η)), with c_{−1} = −∞ and the last c = ∞."""
    cuts = own["thresholds"]
    y, last = jnp.asarray(batch["y"]).astype(jnp.int32), cuts.shape[0]
    upper = jnp.where(y < last, cuts[jnp.minimum(y, last - 1)] - eta, 0.0)
    lower = jnp.where(y > 0, cuts[jnp.maximum(y - 1, 0)] - eta, 0.0)
    inside = (y > 0) & (y < last)
    # σ(u) − σ(l) = σ(u) σ(−l) (1 − exp(l − u))
    apart = jnp.where(inside, upper - lower, 1.0)
    return (
        jnp.where(y < last, jax.nn.log_sigmoid(upper), 0.0)
        + jnp.where(y > 0, jax.nn.log_sigmoid(-lower), 0.0)
        + jnp.where(inside, jnp.log(-jnp.expm1(-apart)), 0.0)
    )


def _ordinal_probabilities(eta: Array, batch: PyTree, own: Own) -> Array:
    below = jax.nn.sigmoid(own["thresholds"][None, :] - eta[:, None])
    ends = jnp.ones_like(below[:, :1])
    return jnp.diff(jnp.concatenate([0 * ends, below, ends], axis=1), axis=1)


def _scores(eta: Array) -> Array:
    return jnp.concatenate([jnp.zeros_like(eta[:, :1]), eta], axis=1)


def _categorical(eta: Array, batch: PyTree, own: Own) -> Array:
    scores = _scores(eta)
    y = jnp.asarray(batch["y"]).astype(jnp.int32)
    chosen = y[:, None] == jnp.arange(scores.shape[1], dtype=jnp.int32)[None, :]
    return jnp.sum(jnp.where(chosen, scores, 0.0), axis=1) - jax.nn.logsumexp(scores, axis=1)


# --- times to an event ---------------------------------------------------------------------------


def _weibull(eta: Array, batch: PyTree, own: Own) -> Array:
    """Return d log h(t) − H(t), with h(t) = k t^{k−1} e^η; times are in units of their mean."""
    k, log_t = own["shape"], jnp.log(_y(batch, eta))
    event = jnp.asarray(batch["event"]).astype(eta.dtype)
    unit = jnp.asarray(batch["log_unit"]).astype(eta.dtype)
    hazard = jnp.log(k) + (k - 1) * (log_t - unit) - unit + eta
    lived = jnp.exp(k * (log_t - unit) + eta)
    if "start" in batch:  # H(t) − H(start)
        start = jnp.asarray(batch["start"]).astype(eta.dtype)
        log_start = jnp.log(jnp.where(start > 0, start, 1.0))
        lived = lived - jnp.where(start > 0, jnp.exp(k * (log_start - unit) + eta), 0.0)
    return event * hazard - lived


def _piecewise(eta: Array, batch: PyTree, own: Own) -> Array:
    """Return d (λ_j + η) − Σ_j t_j exp(λ_j + η), the hazard being exp(λ_j + η) in interval j."""
    hazards = own["log_hazard"]
    event = jnp.asarray(batch["event"]).astype(eta.dtype)
    times = jnp.asarray(batch["intervals"]).astype(eta.dtype)
    at = jnp.asarray(batch["interval"]).astype(jnp.int32)
    chosen = at[:, None] == jnp.arange(hazards.shape[0], dtype=jnp.int32)[None, :]
    log_hazard = jnp.sum(jnp.where(chosen, hazards[None, :], 0.0), axis=1) + eta
    return event * log_hazard - jnp.exp(eta) * (times @ jnp.exp(hazards))


def _cox(eta: Array, batch: PyTree, mask: Array) -> Array:
    r"""Return the log partial likelihood of one site, ties after Efron (1977).

    .. math:: \sum_{i: d_i = 1} \Bigl[\eta_i - \log\Bigl(\sum_{j: t_j \ge t_i} e^{\eta_j} -
              f_i \sum_{j: t_j = t_i, d_j = 1} e^{\eta_j}\Bigr)\Bigr]

    with f = 0, 1/m, ..., (m − 1)/m for m events at one time. Rows stand in the order of falling
    times; ``last`` is the index of the last one with a row's time. With strata, or rows that start
    later than 0, the first sum is over rows of the same stratum that had started, s_j < t_i.
    """
    event = jnp.where(mask, jnp.asarray(batch["event"]).astype(eta.dtype), 0)
    last = jnp.asarray(batch["last"]).astype(jnp.int32)
    share = jnp.asarray(batch["tie_share"]).astype(eta.dtype)
    largest = jax.lax.stop_gradient(jnp.max(jnp.where(mask, eta, -jnp.inf)))
    size = jnp.where(mask, jnp.exp(eta - largest), 0)
    at_risk = _started(size, last, batch, mask) if "first" in batch else jnp.cumsum(size)[last]
    tied = jax.ops.segment_sum(event * size, last, eta.shape[0])[last]
    inside = jnp.where(event > 0, at_risk - share * tied, 1)
    return jnp.sum(event * (eta - largest - jnp.log(inside)))


def _started(size: Array, last: Array, batch: PyTree, mask: Array) -> Array:
    """Return the sum of sizes over the rows at risk at each row's time.

    It is a difference of sums over all rows of larger times and over those that start later, each
    in twice the digits: few rows may be at risk of many.
    """
    first, late, later = (
        jnp.asarray(batch[name]).astype(jnp.int32) for name in ("first", "late", "later")
    )
    stops = _precise_sums(size)
    starts = _precise_sums(jnp.where(mask, size[late], 0))
    high, low = (
        (stop[last + 1] - start[later]) + (start[first] - stop[first])  # each of nearly equal sums
        for stop, start in zip(stops, starts, strict=True)
    )
    return high + low


def _precise_sums(values: Array) -> tuple[Array, Array]:
    """Return the sums of the first 0, 1, ... values, and what each lacks by rounding."""

    def add(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        (a, less), (b, more) = left, right
        total = a + b
        own = total - a
        lost = (a - (total - own)) + (b - own)
        return total, less + more + lost

    high, low = jax.lax.associative_scan(add, (values, jnp.zeros_like(values)))
    none = jnp.zeros_like(values[:1])
    return jnp.concatenate([none, high]), jnp.concatenate([none, low])


# --- draws ---------------------------------------------------------------------------------------


def _expit(eta: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(eta, -700, 700)))


def _exp(eta: np.ndarray) -> np.ndarray:
    return np.exp(np.clip(eta, -30, 30))  # NumPy draws no counts beyond about 10¹⁸


def _draw_ordinal(rng: Any, eta: np.ndarray, batch: PyTree, own: Mapping[str, Any]) -> np.ndarray:
    latent = eta + rng.logistic(size=eta.shape)
    return np.sum(latent[:, None] > own["thresholds"][None, :], axis=1)


def _draw_zeros(rng: Any, counts: np.ndarray, own: Mapping[str, Any]) -> np.ndarray:
    share = own["zero_odds"] / (1 + own["zero_odds"])
    return np.where(rng.random(counts.shape) < share, 0, counts)


def _draw_poisson(rng: Any, eta: np.ndarray, batch: PyTree, own: Mapping[str, Any]) -> np.ndarray:
    return rng.poisson(_exp(eta))


def _draw_negative_binomial(
    rng: Any, eta: np.ndarray, batch: PyTree, own: Mapping[str, Any]
) -> np.ndarray:
    mean = rng.gamma(own["phi"], _exp(eta) / own["phi"])
    return rng.poisson(np.minimum(mean, 1e15))


def _draw_levels(rng: Any, eta: np.ndarray, batch: PyTree, own: Mapping[str, Any]) -> np.ndarray:
    scores = np.concatenate([np.zeros_like(eta[:, :1]), eta], axis=1)
    return np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)


def _draw_weibull(rng: Any, eta: np.ndarray, batch: PyTree, own: Mapping[str, Any]) -> np.ndarray:
    log_t = (np.log(rng.exponential(size=eta.shape)) - eta) / own["shape"]
    return _exp(log_t + np.asarray(batch["log_unit"]))


def _no_draw(rng: Any, eta: np.ndarray, batch: PyTree, own: Mapping[str, Any]) -> np.ndarray:
    raise InputError("family 'cox' says nothing of when events are: nothing can be simulated.")


def _no_rows(eta: Array, batch: PyTree, own: Own) -> Array:
    raise InputError("family 'cox' has no likelihood of a row.")


def _draw_piecewise(rng: Any, eta: np.ndarray, batch: PyTree, own: Mapping[str, Any]) -> np.ndarray:
    hazards, breaks = _exp(np.asarray(own["log_hazard"])), np.asarray(batch["breaks"])
    left = np.concatenate([[0.0], breaks])
    reached = np.concatenate([[0.0], np.cumsum(np.diff(left) * hazards[:-1])])
    wanted = rng.exponential(size=eta.shape) / _exp(eta)
    place = np.searchsorted(reached, wanted, side="right") - 1
    return left[place] + (wanted - reached[place]) / hazards[place]


SIGMA = Auxiliary("sigma", 0.0, "exponential(1 / {sd})")
PHI = Auxiliary("phi", 0.0, "inverse_gamma(0.4, 0.3)")
ZERO_ODDS = Auxiliary("zero_odds", 0.0, "half_cauchy(1)")
RATE = "rate ratio"

FAMILIES: dict[str, Family] = {
    one.name: one
    for one in (
        Family(
            "gaussian",
            "identity",
            "number",
            _gaussian,
            lambda eta, batch, own: eta,
            lambda rng, eta, batch, own: rng.normal(eta, own["sigma"]),
            (SIGMA,),
        ),
        Family(
            "student",
            "identity",
            "number",
            _student,
            lambda eta, batch, own: eta,
            lambda rng, eta, batch, own: eta + own["sigma"] * rng.standard_t(own["nu"], eta.shape),
            (SIGMA, Auxiliary("nu", 1.0, "gamma(2, 0.1)")),
        ),
        Family(
            "bernoulli",
            "logit",
            "two",
            _bernoulli,
            lambda eta, batch, own: two_classes(eta),
            lambda rng, eta, batch, own: rng.binomial(1, _expit(eta)),
            effect="odds ratio",
        ),
        Family(
            "binomial",
            "logit",
            "count",
            _binomial,
            lambda eta, batch, own: (
                jax.nn.sigmoid(eta) * jnp.asarray(batch["trials"]).astype(eta.dtype)
            ),
            lambda rng, eta, batch, own: rng.binomial(
                np.asarray(batch["trials"], np.int64), _expit(eta)
            ),
            effect="odds ratio",
        ),
        *(_linked(base, link) for base in ("bernoulli", "binomial") for link in LINKS),
        Family(
            "poisson",
            "log",
            "count",
            _poisson,
            lambda eta, batch, own: jnp.exp(eta),
            _draw_poisson,
            effect=RATE,
            logarithmic=True,
        ),
        Family(
            "negative_binomial",
            "log",
            "count",
            _negative_binomial,
            lambda eta, batch, own: jnp.exp(eta),
            _draw_negative_binomial,
            (PHI,),
            effect=RATE,
            logarithmic=True,
        ),
        Family(
            "gamma",
            "log",
            "positive",
            _gamma,
            lambda eta, batch, own: jnp.exp(eta),
            lambda rng, eta, batch, own: rng.gamma(own["shape"], _exp(eta) / own["shape"]),
            (Auxiliary("shape", 0.0, "gamma(2, 0.1)"),),
            "ratio of means",
            True,
        ),
        Family(
            "lognormal",
            "log of the median",
            "positive",
            _lognormal,
            lambda eta, batch, own: jnp.exp(eta + own["sigma"] ** 2 / 2),
            lambda rng, eta, batch, own: _exp(rng.normal(eta, own["sigma"])),
            (Auxiliary("sigma", 0.0, "exponential(1)"),),
            "ratio of medians",
            True,
        ),
        Family(
            "zero_inflated_poisson",
            "log of the mean without the further zeros",
            "count",
            _zero_inflated_poisson,
            _mean_with_zeros,
            lambda rng, eta, batch, own: _draw_zeros(rng, _draw_poisson(rng, eta, batch, own), own),
            (ZERO_ODDS,),
            RATE,
            True,
        ),
        Family(
            "zero_inflated_negative_binomial",
            "log of the mean without the further zeros",
            "count",
            _zero_inflated_negative_binomial,
            _mean_with_zeros,
            lambda rng, eta, batch, own: _draw_zeros(
                rng, _draw_negative_binomial(rng, eta, batch, own), own
            ),
            (PHI, ZERO_ODDS),
            RATE,
            True,
        ),
        Family(
            "beta",
            "logit",
            "share",
            _beta,
            lambda eta, batch, own: jax.nn.sigmoid(eta),
            lambda rng, eta, batch, own: rng.beta(
                own["phi"] * _expit(eta), own["phi"] * _expit(-eta)
            ),
            (Auxiliary("phi", 0.0, "gamma(2, 0.1)"),),
            "odds ratio",
        ),
        Family(
            "ordinal",
            "cumulative logit",
            "ordered",
            _ordinal,
            _ordinal_probabilities,
            _draw_ordinal,
            effect="odds ratio",
        ),
        Family(
            "categorical",
            "logit against the first level",
            "levels",
            _categorical,
            lambda eta, batch, own: jax.nn.softmax(_scores(eta), axis=1),
            _draw_levels,
            effect="odds ratio",
        ),
        Family(
            "weibull",
            "log of the hazard",
            "time",
            _weibull,
            None,
            _draw_weibull,
            (Auxiliary("shape", 0.0, "half_normal(2)"),),
            "hazard ratio",
            True,
        ),
        Family(
            "piecewise_exponential",
            "log of the hazard",
            "time",
            _piecewise,
            None,
            _draw_piecewise,
            (),
            "hazard ratio",
            True,
        ),
        Family(
            "cox",
            "log of the hazard, each site with a baseline of its own",
            "time",
            _no_rows,
            None,
            _no_draw,
            effect="hazard ratio",
            of_site=_cox,
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
