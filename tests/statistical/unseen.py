"""Posteriors that were GOOD and wrong, and their siblings, with laws by importance sampling.

Each log-density takes x of shape (d,) in JAX and (d, N) in NumPy, with rows in columns, so that the
reference shares nothing with the run but the formula itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln as log_gamma
from scipy import optimize, special, stats
from statistical.compared import effective

import consortia

LEVELS = (0.005, 0.025, 0.25, 0.5, 0.75, 0.975, 0.995)
CHUNK = 10_000
LARGEST_SD, LARGEST_QUANTILE, ERRORS = 0.07, 0.2, 3.0
"""By how much a spread may be off, and a quantile in sds, beyond so many Monte Carlo errors."""


class Law(NamedTuple):
    """Weighted points of a posterior, in double precision.

    Attributes:
        points: (n, d).
        weights: their shares.
    """

    points: np.ndarray
    weights: np.ndarray

    @property
    def effective(self) -> float:
        """Effective number of the points."""
        return float(1 / np.sum(self.weights**2))


class Unseen(NamedTuple):
    """A posterior.

    Attributes:
        log_prior: of x, and the module of arrays.
        log_likelihood: of x, a row and the module.
        prior: draws of the prior, (n, d), of a generator and n.
        sites: rows.
        start: of the run.
        heavy: parameters without a standard deviation.
        straight: maps points u to x where the reference is sampled in u; None: x itself.
        straight_prior: log-density of the prior of u.
    """

    log_prior: Callable[[Any, Any], Any]
    log_likelihood: Callable[[Any, Any, Any], Any]
    prior: Callable[[np.random.Generator, int], np.ndarray]
    sites: list[dict[str, np.ndarray]]
    start: np.ndarray
    heavy: tuple[int, ...] = ()
    straight: Callable[[np.ndarray], np.ndarray] | None = None
    straight_prior: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def model(self) -> consortia.Model:
        """The model of one vector x."""
        return consortia.Model(
            lambda p: self.log_prior(p["x"], jnp),
            lambda p, rows: self.log_likelihood(p["x"], rows, jnp),
            {"x": jnp.asarray(self.start, jnp.float32)},
        )

    def run(self, seed: int, method: Any = None) -> Any:
        """Sample it."""
        shards = [{n: np.asarray(v, np.float32) for n, v in site.items()} for site in self.sites]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return consortia.sample(
                self.model,
                consortia.Sites.from_list(shards),
                method or consortia.few_rounds(),
                chains=4,
                seed=seed,
                progress=False,
            )

    def height(self, x: np.ndarray) -> np.ndarray:
        """Log-density of points (n, d), in double precision."""
        parts = [self._height(part) for part in np.array_split(x, max(len(x) // CHUNK, 1))]
        return np.concatenate(parts)

    def _height(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            total = np.asarray((self.straight_prior or _of_numpy(self.log_prior))(x.T), float)
            x = self.straight(x) if self.straight else x
            for site in self.sites:
                rows = {
                    n: np.asarray(v, np.float32).astype(float)[:, None] for n, v in site.items()
                }
                total = total + np.sum(self.log_likelihood(x.T, rows, np), axis=0)
        return np.where(np.isfinite(total), total, -np.inf)

    def law(self, seed: int = 0, size: int = 100_000) -> Law:
        """Weigh points of a mixture that is drawn around all modes and refitted."""
        rng = np.random.default_rng(seed)
        known = [self.prior(rng, size)]
        heights = [self.height(known[0])]
        centres, scales = self._modes(known[0], heights[0], rng)
        shares = np.full(len(centres), 1 / len(centres))
        modes = centres, scales
        for _ in range(4):
            points, density = _drawn(shares, centres, scales, size, rng)
            height = self.height(points)
            weight = np.exp(height - density - (height - density).max())
            weight /= weight.sum()
            centres, scales, shares = _refitted(points, weight, rng)
            # a small mode stays, whatever was resampled
            centres, scales = (
                np.concatenate([centres, modes[0]]),
                np.concatenate([scales, modes[1]]),
            )
            shares = np.append(shares, np.full(len(modes[0]), 0.3 / len(modes[0])))
        points, density = _drawn(shares, centres, scales, 3 * size, rng)
        height = self.height(points) - density
        weight = np.exp(height - height.max())
        points = self.straight(points) if self.straight else points
        return Law(points, weight / weight.sum())

    def _modes(
        self, drawn: np.ndarray, heights: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        best = drawn[np.argsort(-heights)[:20]]
        spread = drawn[rng.integers(len(drawn), size=20)]
        ends, scales = [], []
        for start in [*best, *spread]:
            end = optimize.minimize(
                lambda x: (
                    -min(float(self.height(x[None])[0]), 1e9)
                    if np.isfinite(self.height(x[None])[0])
                    else 1e12
                ),
                start,
                method="BFGS",
            )
            ends.append((end.fun, end.x, end.hess_inv))
        top = min(value for value, _, _ in ends)
        kept: list[np.ndarray] = []
        for value, x, scale in sorted(ends, key=lambda end: end[0]):
            if value > top + 25 or not np.all(np.isfinite(scale)):
                continue
            root = np.sqrt(np.maximum(np.diag(scale), 1e-12))
            if all(np.abs((x - other) / root).max() > 1 for other in kept):
                kept.append(x)
                scales.append(scale + 1e-10 * np.eye(len(x)))
        return np.array(kept), np.array(scales)


def _of_numpy(log_prior: Callable[[Any, Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: log_prior(x, np)


def _drawn(
    shares: np.ndarray, centres: np.ndarray, scales: np.ndarray, size: int, rng: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Draw from a mixture of t of 3 degrees, and return its log-density, up to a constant."""
    d, freedom = centres.shape[1], 3.0
    roots = np.linalg.cholesky(2.0 * scales)
    which = rng.choice(len(shares), size, p=shares / shares.sum())
    noise = (
        rng.standard_normal((size, d)) / np.sqrt(rng.chisquare(freedom, size) / freedom)[:, None]
    )
    points = centres[which] + np.einsum("nij,nj->ni", roots[which], noise)
    total = np.full(size, -np.inf)
    for share, centre, root in zip(shares / shares.sum(), centres, roots, strict=True):
        z = np.linalg.solve(root, (points - centre).T)
        height = -(freedom + d) / 2 * np.log1p((z**2).sum(axis=0) / freedom)
        height += np.log(share + 1e-300) - np.log(np.diag(root)).sum()
        total = np.logaddexp(total, height)
    return points, total


def _refitted(
    points: np.ndarray, weight: np.ndarray, rng: Any, components: int = 24
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit components around resampled points: centres and covariances of what is nearest."""
    own = np.minimum(weight, 10 * np.sort(weight)[-200:].mean())
    own = np.sqrt(own) if 1 / np.sum(weight**2) < 200 else own
    own = own / own.sum()
    drawn = points[rng.choice(len(points), 20_000, p=own)]
    unit = np.quantile(drawn, 0.84, axis=0) - np.quantile(drawn, 0.16, axis=0) + 1e-12
    centres = drawn[rng.integers(len(drawn), size=components)]
    for _ in range(8):
        away = (((drawn[:, None] - centres) / unit) ** 2).sum(axis=2)
        nearest = away.argmin(axis=1)
        centres = np.array(
            [
                drawn[nearest == k].mean(axis=0) if (nearest == k).any() else centres[k]
                for k in range(components)
            ]
        )
    d = points.shape[1]
    kept, scales, shares = [], [], []
    for k in range(components):
        part = drawn[nearest == k]
        if len(part) > 5 * d:
            kept.append(centres[k])
            scales.append(np.cov(part.T).reshape(d, d) + 1e-6 * np.diag(unit**2))
            shares.append(len(part) / len(drawn))
    whole = np.cov(drawn.T).reshape(d, d)
    middle = np.median(drawn, axis=0)
    return (
        np.array([*kept, middle]),
        np.array([*scales, 2 * whole + 1e-9 * np.diag(unit**2)]),
        np.array([*shares, 0.1]),
    )


def wrong(case: Unseen, law: Law, tree: Any) -> list[str]:
    """Say what of a run's draws is off by more than the limits and its Monte Carlo error."""
    draws = np.asarray(tree["posterior"]["x"], float)
    sizes, faults = effective(draws), list[str]()
    for i in range(draws.shape[-1]):
        x, order = draws[..., i].ravel(), np.argsort(law.points[:, i])
        values, below = law.points[order, i], np.cumsum(law.weights[order])
        size = min(sizes[i], x.size)
        if i in case.heavy:
            sd = (np.interp(0.84, below, values) - np.interp(0.16, below, values)) / 2
        else:
            away = law.points[:, i] - law.weights @ law.points[:, i]
            variance = law.weights @ away**2
            sd = np.sqrt(variance)
            peaked = min(law.weights @ away**4 / variance**2 - 1, size)
            ratio = x.std() / sd - 1
            far_off = abs(ratio) > LARGEST_SD + ERRORS * np.sqrt(peaked / size) / 2
            if law.effective > 1000 and far_off:
                faults.append(f"sd of {i} {1 + ratio:.2f}")
        for level in LEVELS:
            at = np.interp(level, below, values)
            error = ERRORS * np.sqrt(level * (1 - level) * (1 / size + 1 / law.effective))
            # the band of quantiles that chance permits, and the limit beyond it
            low, high = (
                np.interp(np.clip(level + s * error, 1e-4, 1 - 1e-4), below, values)
                for s in (-1, 1)
            )
            drawn = np.quantile(x, level)
            allowed = LARGEST_QUANTILE * sd
            if i in case.heavy and level not in (0.25, 0.5, 0.75):
                allowed = max(allowed, 0.15 * abs(at))
            if not low - allowed <= drawn <= high + allowed:
                share = (x <= at).mean()
                faults.append(f"q{level} of {i} {drawn:.3g} for {at:.3g} ({share:.4f} below)")
    return faults


# --- the cases -----------------------------------------------------------------------------------


def normal(x: Any, mean: Any, sd: Any, of: Any) -> Any:
    return -0.5 * ((x - mean) / sd) ** 2 - of.log(sd)


def softplus(x: Any, of: Any) -> Any:
    return of.logaddexp(0.0 * x, x)


def bernoulli(y: Any, eta: Any, of: Any) -> Any:
    return y * eta - softplus(eta, of)


def gamma(x: Any, of: Any) -> Any:
    return special.gammaln(x) if of is np else log_gamma(x)


def cut(table: dict[str, np.ndarray], *sizes: int) -> list[dict[str, np.ndarray]]:
    ends = np.cumsum(sizes)[:-1]
    parts = {name: np.split(np.asarray(values), ends) for name, values in table.items()}
    return [{name: parts[name][i] for name in table} for i in range(len(sizes))]


def normals(centre: Any, sd: Any) -> Callable[[np.random.Generator, int], np.ndarray]:
    centre, sd = np.broadcast_arrays(np.asarray(centre, float), np.asarray(sd, float))
    return lambda rng, n: centre + sd * rng.standard_normal((n, len(sd)))


def independent(centre: Any, sd: Any) -> dict[str, Any]:
    """The prior of independent normal parameters, and its draws."""
    centre, sd = np.broadcast_arrays(np.asarray(centre, float), np.asarray(sd, float))

    def log_prior(x: Any, of: Any) -> Any:
        return sum(
            normal(x[i], float(m), float(s), np)
            if of is np
            else -0.5 * ((x[i] - float(m)) / float(s)) ** 2
            for i, (m, s) in enumerate(zip(centre, sd, strict=True))
        )

    return {"log_prior": log_prior, "prior": normals(centre, sd)}


def contradicting(gap: float, seed: int, rows: tuple[int, int] = (8, 8)) -> Unseen:
    """Errors t(3) of two sites that contradict one another."""
    rng = np.random.default_rng(seed)
    near, far = rng.normal(0, 1, rows[0]), gap + rng.normal(0, 1, rows[1])
    return Unseen(
        **independent([gap / 2], [20.0]),
        log_likelihood=lambda x, r, of: -2 * of.log1p((r["y"] - x[0]) ** 2 / 3),
        sites=[{"y": near}, {"y": far}],
        start=np.zeros(1),
    )


def direction(sd: float = 3.0, seed: int = 5) -> Unseen:
    """A direction with a normal prior."""
    y = np.random.default_rng(seed).vonmises(2.5, 2.0, 30)
    return Unseen(
        **independent([0.0], [sd]),
        log_likelihood=lambda x, r, of: 2 * of.cos(r["y"] - x[0]),
        sites=cut({"y": y}, 12, 10, 8),
        start=np.zeros(1),
    )


def square(seed: int = 12) -> Unseen:
    """y ~ N(t², s), with s."""
    y = 4 + np.random.default_rng(seed).normal(size=40)
    return Unseen(
        log_prior=lambda x, of: -0.5 * (x[0] - 0.4) ** 2 - of.exp(2 * x[1]) / 8 + x[1],
        prior=normals([0.4, 0.0], [1.0, 1.0]),
        log_likelihood=lambda x, r, of: -0.5 * ((r["y"] - x[0] ** 2) * of.exp(-x[1])) ** 2 - x[1],
        sites=cut({"y": y}, 20, 12, 8),
        start=np.array([0.5, 0.0]),
    )


def absorption(seed: int = 3) -> Unseen:
    """One compartment; ka and ke may change places: log ka, log ke, log V, log s."""
    rng = np.random.default_rng(seed)
    t = np.tile([0.5, 1, 2, 3, 4, 6, 8, 12], 3).astype(float)
    curve = 5 * 1.2 / (1.2 - 0.4) * (np.exp(-0.4 * t) - np.exp(-1.2 * t))
    y = curve * np.exp(rng.normal(0, 0.25, t.size))

    def log_likelihood(x: Any, r: Any, of: Any) -> Any:
        ka, ke = of.exp(x[0]), of.exp(x[1])
        gap = ka - ke
        gap = of.where(of.abs(gap) < 1e-4, 1e-4, gap)
        rise = (of.exp(-ke * r["t"]) - of.exp(-ka * r["t"])) / gap
        mean = x[2] + x[0] + of.log(of.maximum(rise, 1e-30))
        return -0.5 * ((of.log(r["y"]) - mean) * of.exp(-x[3])) ** 2 - x[3]

    return Unseen(
        **independent([0.0, -0.7, 1.6, -1.0], [1.0, 1.0, 1.0, 1.0]),
        log_likelihood=log_likelihood,
        sites=cut({"t": t, "y": y}, 8, 8, 8),
        start=np.array([0.0, -1.0, 1.0, 0.0]),
    )


def change_point(seed: int = 4, effect: float = 0.8) -> Unseen:
    """A step at an unknown time; beyond the times of the rows the prior alone tells its height."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, 10, 45)
    y = effect * (t > 7) + rng.normal(size=45)
    return Unseen(
        **independent([5.0, 0.0], [4.0, 2.0]),
        log_likelihood=lambda x, r, of: (
            -0.5 * (r["y"] - x[1] / (1 + of.exp(-(r["t"] - x[0]) / 0.3))) ** 2
        ),
        sites=cut({"t": t, "y": y}, 20, 15, 10),
        start=np.array([5.0, 0.0]),
    )


def counts(seed: int = 8) -> Unseen:
    """Negative binomial of Poisson counts: the size has no upper bound but its prior's."""
    y = np.random.default_rng(seed).poisson(4.0, 60)

    def log_likelihood(x: Any, r: Any, of: Any) -> Any:
        m, k = x[0], x[1]
        both = of.logaddexp(m, k)
        terms = gamma(r["y"] + of.exp(k), of) - gamma(of.exp(k), of)
        return terms + of.exp(k) * (k - both) + r["y"] * (m - both)

    return Unseen(
        **independent([0.0, 2.0], [2.0, 2.0]),
        log_likelihood=log_likelihood,
        sites=cut({"y": y}, 30, 20, 10),
        start=np.array([1.0, 1.0]),
    )


def separated(freedom: float) -> Unseen:
    """Separation with t priors of the slopes (1: Cauchy), as a plain log-density."""
    rng = np.random.default_rng(6)
    arm, x = rng.integers(0, 2, 50), rng.normal(size=50)
    y = (rng.uniform(size=50) < special.expit(x - 1)).astype(float)
    y[arm == 1] = 1
    y[:3] = arm[:3] = 0
    law = stats.t(freedom, 0, 2.5)

    def straight(u: np.ndarray) -> np.ndarray:
        effect = np.sign(u[:, 1]) * law.isf(special.ndtr(-np.minimum(np.abs(u[:, 1]), 30)))
        return np.column_stack([u[:, 0], effect, u[:, 2]])

    def tail(b: Any, of: Any) -> Any:
        return -(freedom + 1) / 2 * of.log1p((b / 2.5) ** 2 / freedom)

    return Unseen(
        log_prior=lambda b, of: -0.5 * (b[0] / 10) ** 2 + tail(b[1], of) + tail(b[2], of),
        prior=normals([0, 0, 0], [2, 1, 2]),
        log_likelihood=lambda b, r, of: bernoulli(
            r["y"], b[0] + b[1] * r["arm"] + b[2] * r["x"], of
        ),
        sites=cut({"y": y, "arm": arm, "x": x}, 25, 15, 10),
        start=np.zeros(3),
        heavy=(1,) if freedom <= 2 else (),
        straight=straight,
        straight_prior=lambda u: -0.5 * (u[0] / 10) ** 2 - u[1] ** 2 / 2 + tail(u[2], np),
    )


def contradicting_cauchy() -> Unseen:
    """A location with a Cauchy prior and few rows of Cauchy errors."""
    y = np.array([-1.0, 0.3, 0.6, 12.0, 12.4, 13.1])
    return Unseen(
        log_prior=lambda x, of: -of.log1p((x[0] / 5) ** 2),
        prior=normals([6.0], [8.0]),
        log_likelihood=lambda x, r, of: -of.log1p((r["y"] - x[0]) ** 2),
        sites=cut({"y": y}, 3, 2, 1),
        start=np.zeros(1),
    )


def labels(gap: float = 2.0, seed: int = 5) -> Unseen:
    """Two means of a mixture whose priors alone tell them apart, and its share."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([rng.normal(gap, 1, 25), rng.normal(-gap, 1, 20)])[rng.permutation(45)]

    def log_likelihood(x: Any, r: Any, of: Any) -> Any:
        one = -0.5 * (r["y"] - x[0]) ** 2 - softplus(-x[2], of)
        return of.logaddexp(one, -0.5 * (r["y"] - x[1]) ** 2 - softplus(x[2], of))

    return Unseen(
        **independent([0.5, -0.2, 0.0], [2.0, 2.0, 1.0]),
        log_likelihood=log_likelihood,
        sites=cut({"y": y}, 20, 15, 10),
        start=np.array([0.5, -0.5, 0.0]),
    )


def two_lines(seed: int = 9) -> Unseen:
    """A mixture of two regressions through the origin with their intercepts: a, b, a', b'."""
    rng = np.random.default_rng(seed)
    x, which = rng.normal(size=60), rng.random(60) < 0.4
    y = np.where(which, 1.0 + 1.5 * x, -0.5 - 1.0 * x) + 0.5 * rng.normal(size=60)

    def log_likelihood(p: Any, r: Any, of: Any) -> Any:
        one = np.log(0.4) - 2 * (r["y"] - p[0] - p[1] * r["x"]) ** 2
        return of.logaddexp(one, np.log(0.6) - 2 * (r["y"] - p[2] - p[3] * r["x"]) ** 2)

    return Unseen(
        **independent([0.0] * 4, [2.0] * 4),
        log_likelihood=log_likelihood,
        sites=cut({"x": x, "y": y}, 25, 20, 15),
        start=np.array([0.1, 0.1, -0.1, -0.1]),
    )


def one_of_ten(seed: int = 2) -> Unseen:
    """A direction beside nine coefficients of a regression."""
    rng = np.random.default_rng(seed)
    table = {f"x{i}": rng.normal(size=80) for i in range(8)}
    eta = 0.3 + sum((-1) ** i * 0.2 * table[f"x{i}"] for i in range(8))
    table |= {"y": eta + rng.normal(size=80), "w": rng.vonmises(2.5, 2.0, 80)}

    def log_likelihood(p: Any, r: Any, of: Any) -> Any:
        mean = p[1] + sum(p[2 + i] * r[f"x{i}"] for i in range(8))
        return -0.5 * (r["y"] - mean) ** 2 + 0.6 * of.cos(r["w"] - p[0])

    return Unseen(
        **independent(np.zeros(10), [3.0, *[1.0] * 9]),
        log_likelihood=log_likelihood,
        sites=cut(table, 35, 25, 20),
        start=np.zeros(10),
    )


def product(seed: int = 1) -> Unseen:
    """Counts with a scale times slopes: a, log s, b."""
    rng = np.random.default_rng(seed)
    table = {f"x{i}": rng.normal(size=100) for i in range(3)}
    eta = 0.5 + 0.6 * (0.8 * table["x0"] - 0.5 * table["x1"])
    table["y"] = rng.poisson(np.exp(eta)).astype(float)

    def log_likelihood(p: Any, r: Any, of: Any) -> Any:
        eta = p[0] + of.exp(p[1]) * sum(p[2 + i] * r[f"x{i}"] for i in range(3))
        return r["y"] * eta - of.exp(eta)

    return Unseen(
        log_prior=lambda p, of: (
            -0.5 * (p[0] / 2) ** 2
            - 0.5 * of.exp(2 * p[1])
            + p[1]
            - 0.5 * (p[2] ** 2 + p[3] ** 2 + p[4] ** 2)
        ),
        prior=normals(np.zeros(5), [1.0] * 5),
        log_likelihood=log_likelihood,
        sites=cut(table, 30, 25, 20, 15, 10),
        start=np.array([0.0, 0.0, 0.1, 0.1, 0.1]),
    )


def far_exponent(seed: int = 3) -> Unseen:
    """Two exponentials whose rates may change places: y = exp(−a t) + exp(−b t)."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, 4, 45)
    y = np.exp(-0.4 * t) + np.exp(-2.0 * t) + 0.1 * rng.normal(size=45)
    return Unseen(
        **independent([-0.5, 0.2], [1.0, 1.0]),
        log_likelihood=lambda x, r, of: (
            -50 * (r["y"] - of.exp(-of.exp(x[0]) * r["t"]) - of.exp(-of.exp(x[1]) * r["t"])) ** 2
        ),
        sites=cut({"t": t, "y": y}, 20, 15, 10),
        start=np.array([0.0, -0.1]),
    )


def frequency(seed: int = 6) -> Unseen:
    """A frequency of few rows: side lobes."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, 6, 18)
    y = np.sin(2.3 * t) + 1.2 * rng.normal(size=18)
    return Unseen(
        **independent([2.0], [2.0]),
        log_likelihood=lambda x, r, of: -0.35 * (r["y"] - of.sin(x[0] * r["t"])) ** 2,
        sites=cut({"t": t, "y": y}, 8, 6, 4),
        start=np.array([1.0]),
    )


def hidden_unit(seed: int = 4) -> Unseen:
    """A unit a tanh(b x): both signs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=40)
    y = 1.5 * np.tanh(1.2 * x) + rng.normal(size=40)
    return Unseen(
        **independent([0.3, 0.3], [2.0, 2.0]),
        log_likelihood=lambda p, r, of: -0.5 * (r["y"] - p[0] * of.tanh(p[1] * r["x"])) ** 2,
        sites=cut({"x": x, "y": y}, 18, 12, 10),
        start=np.array([0.5, 0.5]),
    )


def emax(seed: int = 3) -> Unseen:
    """A saturating curve whose half dose may lie beyond all doses: e0, log emax, log ed50."""
    rng = np.random.default_rng(seed)
    dose = np.tile([0.0, 1.0, 2.0, 4.0], 12)
    y = 0.5 + 2 * dose / (dose + 6.0) + 0.4 * rng.normal(size=48)

    def log_likelihood(p: Any, r: Any, of: Any) -> Any:
        curve = of.exp(p[1]) * r["dose"] / (r["dose"] + of.exp(p[2]))
        return -3.125 * (r["y"] - p[0] - curve) ** 2

    return Unseen(
        **independent([0.0, 0.0, 1.0], [2.0, 1.5, 1.5]),
        log_likelihood=log_likelihood,
        sites=cut({"dose": dose, "y": y}, 20, 16, 12),
        start=np.zeros(3),
    )


CASES: dict[str, Callable[[], Unseen]] = {
    "sites that contradict one another": lambda: contradicting(25.0, 13),
    "the same, one of nine rows": lambda: contradicting(18.0, 13, (8, 9)),
    "the same, near": lambda: contradicting(8.0, 14),
    "a direction": direction,
    "a direction, wide prior": lambda: direction(6.0),
    "a square and a scale": square,
    "rates that change places": absorption,
    "two exponentials": far_exponent,
    "a change point": change_point,
    "a change point, weak": lambda: change_point(5, 0.4),
    "counts without overdispersion": counts,
    "separation, cauchy": lambda: separated(1.0),
    "separation, t(3)": lambda: separated(3.0),
    "cauchy rows and prior": contradicting_cauchy,
    "labels": labels,
    "labels, near": lambda: labels(1.0, 6),
    "two lines": two_lines,
    "a direction of ten parameters": one_of_ten,
    "a scale times slopes": product,
    "a frequency": frequency,
    "a hidden unit": hidden_unit,
    "a half dose beyond all doses": emax,
}
"""Posteriors by name."""
