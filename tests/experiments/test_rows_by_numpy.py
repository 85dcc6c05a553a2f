"""Rows found a second time in NumPy alone; the package reads the letters of a public set."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest

import consortia
from experiments import claims, pages

# --- DE-SGLD: 5,000 rows in two dimensions at 100 agents ------------------------------------------

AGENTS, PRIOR = 100, 10.0
ALL, IDENTITY = np.full((AGENTS, AGENTS), 1 / AGENTS), np.eye(AGENTS)
RING = (IDENTITY + np.roll(IDENTITY, 1, axis=0) + np.roll(IDENTITY, -1, axis=0)) / 3


@functools.cache
def rows():
    """Return features (agents, 50, 2) and responses (agents, 50)."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=2) * np.sqrt(PRIOR)
    x = rng.normal(size=(5000, 2))
    y = x @ truth + rng.normal(size=5000)
    order = rng.permutation(5000).reshape(AGENTS, 50)
    return x[order], y[order]


def forces():
    """Return H (agents, 2, 2) and b (agents, 2) of the agents' gradients Hx − b."""
    x, y = rows()
    prior = np.eye(2) / (PRIOR * AGENTS)
    return np.einsum("nri,nrj->nij", x, x) + prior, np.einsum("nri,nr->ni", x, y)


def wasserstein(mean, covariance, other_mean, other_covariance) -> float:
    values, axes = np.linalg.eigh(other_covariance)
    root = axes @ np.diag(np.sqrt(values)) @ axes.T
    middle = np.linalg.eigvalsh(root @ covariance @ root)
    traces = np.trace(covariance + other_covariance) - 2 * np.sqrt(np.maximum(middle, 0)).sum()
    return float(np.sqrt(((mean - other_mean) ** 2).sum() + max(traces, 0.0)))


@functools.cache
def slack() -> dict[str, float]:
    """Return the least ratios of the lemmas' bounds to what 300 runs of 40 iterations find."""
    h, b = forces()
    whole, pull = h.sum(axis=0), b.sum(axis=0)
    mode, cov = np.linalg.solve(whole, pull), np.linalg.inv(whole)
    values = np.linalg.eigvalsh(h)
    strong, smooth, n, d = values.min(), values.max(), AGENTS, 2
    lowest = 0.5 * np.einsum("ni,ni->", b, np.linalg.solve(h, b[..., None])[..., 0])
    c1 = np.sqrt(2 * smooth * lowest) * (1 + 2 * (smooth + strong) / strong)
    rng, least = np.random.default_rng(6), dict.fromkeys("2456", np.inf)
    for weights in (ALL, RING):
        spectrum = np.linalg.eigvalsh(weights)
        gap = max(abs(spectrum[0]), abs(spectrum[-2]))
        for step in (0.001, 0.005):
            d2 = 4 * smooth**2 * n * mode @ mode
            d2 += 8 * smooth**2 * c1**2 * step**2 * n / (1 - gap) ** 2
            d2 += 4 * smooth**2 * d * n / (strong * (1 + spectrum[0] - step * smooth))
            d2 += 4 * (((h @ mode) - b) ** 2).sum()
            room = strong * (1 - step * smooth / 2)
            first = 4 * smooth**2 * d2 * step / (n * (1 - gap) ** 2)
            last = 8 * d / (1 - gap**2)
            fifth = step * (step / room + (1 + step * smooth) ** 2 / room**2)
            fifth *= first + smooth**2 * last
            x, euler = np.zeros((300, n, 2)), np.zeros((300, 2))
            for k in range(1, 41):
                noise = np.sqrt(2 * step) * rng.normal(size=x.shape)
                slope = np.einsum("nij,cnj->cni", h, x) - b
                euler = euler - step / n * (euler @ whole - pull) + noise.mean(axis=1)
                x = np.einsum("nm,cmi->cni", weights, x) - step * slope + noise
                if k == 1:
                    continue
                average = x.mean(axis=1)
                slope = np.einsum("nij,cnj->cni", h, x) - b
                apart = (average @ whole - pull) / n - slope.mean(axis=1)
                bound6 = (1 - strong * step) ** k * np.sqrt(mode @ mode + np.trace(cov))
                bound6 += 1.65 * smooth / strong * np.sqrt(step * d / n)
                away = wasserstein(euler.mean(axis=0), np.cov(euler.T), mode, cov)
                ratios = {
                    "2": d2 / (slope**2).sum(axis=(1, 2)).mean(),
                    "4": step * (first + last) / (apart**2).sum(axis=1).mean(),
                    "5": fifth / ((average - euler) ** 2).sum(axis=1).mean(),
                    "6": bound6 / away,
                }
                least = {name: min(least[name], float(ratios[name])) for name in least}
    return least


def agent_path(weights, step: float, length: int) -> np.ndarray:
    """Return the first agent's W₂ after each iteration with batches of 25 rows, by moments."""
    x, y = rows()
    h, b = forces()
    whole = h.sum(axis=0)
    target = np.linalg.solve(whole, b.sum(axis=0)), np.linalg.inv(whole)
    each, pulls = np.einsum("nri,nrj->nrij", x, x), x * y[..., None]
    matrix = np.kron(weights, np.eye(2))
    for n in range(AGENTS):
        matrix[2 * n : 2 * n + 2, 2 * n : 2 * n + 2] -= step * h[n]
    mean, cov, path = np.zeros(2 * AGENTS), np.zeros((2 * AGENTS, 2 * AGENTS)), []
    for _ in range(length):
        at = mean.reshape(AGENTS, 2)
        own = cov.reshape(AGENTS, 2, AGENTS, 2)[np.arange(AGENTS), :, np.arange(AGENTS)]
        slopes = np.einsum("nrij,nj->nri", each, at) - pulls
        second = np.einsum("nri,nrj->nij", slopes, slopes)
        second += np.einsum("nrij,njk,nrkl->nil", each, own, each)
        sums, total = slopes.sum(axis=1), each.sum(axis=1)
        squares = np.einsum("ni,nj->nij", sums, sums) + total @ own @ total
        batch = 50 / 25 * second - squares / 25
        mean = matrix @ mean + step * b.ravel()
        cov = matrix @ cov @ matrix.T + 2 * step * np.eye(2 * AGENTS)
        for n in range(AGENTS):
            cov[2 * n : 2 * n + 2, 2 * n : 2 * n + 2] += step**2 * batch[n]
        path.append(wasserstein(mean[:2], cov[:2, :2], *target))
    return np.array(path)


def arrived(weights, step: float, length: int) -> int:
    """Return the first iteration within a tenth of the end of the path."""
    path = agent_path(weights, step, length)
    return int(np.argmax(path <= 1.1 * path[-1])) + 1


def sooner() -> float:
    return arrived(ALL, 0.001, 130) / arrived(ALL, 0.009, 40)


def fastest() -> float:
    complete, *others = (arrived(weights, 0.008, 60) for weights in (ALL, RING, IDENTITY))
    return min(others) / complete


def rate_apart() -> float:
    h, _ = forces()
    rates = []
    for weights in (ALL, RING, IDENTITY):
        matrix = np.kron(weights, np.eye(2))
        for n in range(AGENTS):
            matrix[2 * n : 2 * n + 2, 2 * n : 2 * n + 2] -= 0.008 * h[n]
        rates.append(np.abs(np.linalg.eigvalsh(matrix)).max())
    return float(min(rates[1:]) - rates[0])


# --- stale gradients: x' = x − a x_τ + N(0, 2a), the average of x² from the start N(0, 1) ---------

DELAYS = np.array([1, 2, 5, 10, 20])


def average_error(a: float, tau: int, length: int) -> tuple[float, float]:
    """Return bias and variance of the average, by the matrix of all covariances."""
    answers = np.zeros((length + 1, length + 1))  # to the start, then to each noise
    answers[0, 0] = 1.0
    for at in range(length):
        answers[at + 1] = answers[at] - a * answers[max(at - tau, 0)]
        answers[at + 1, at + 1] = np.sqrt(2 * a)
    covariance = answers[1:] @ answers[1:].T
    return float(np.trace(covariance) / length - 1), float(2 * (covariance**2).sum() / length**2)


def least_ratio() -> float:
    """Return the least MSE at τ = 1 over that at τ = 3, L = 500 τ."""
    found = []
    for tau in (1, 3):
        tries = np.geomspace(0.6, 1.6, 7) * 0.1 / (tau + 0.15)
        errors = (average_error(a, tau, 500 * tau) for a in tries)
        found.append(min(bias**2 + variance for bias, variance in errors))
    return found[0] / found[1]


@functools.cache
def least_by_delay() -> tuple[np.ndarray, np.ndarray]:
    """Return the least MSE at L = 500 τ and the step that has it, for τ = 1, 2, 5, 10 and 20."""
    found = []
    for tau in DELAYS:
        tries = np.log(np.geomspace(0.7, 1.4, 5) * 0.09 / (tau + 0.15))
        errors = np.log([by_lags(float(np.exp(log)), tau, 500 * tau) for log in tries])
        bent, slope, level = np.polyfit(tries, errors, 2)
        found.append((np.exp(level - slope**2 / (4 * bent)), np.exp(-slope / (2 * bent))))
    errors, steps = np.array(found).T
    return errors, steps


def by_lags(a: float, tau: int, length: int) -> float:
    """Return the mean square error of the average of x², lag by lag while there is correlation."""
    start, answer = np.ones(length + 1), np.zeros(length + 1)
    answer[1] = 1.0
    for at in range(length):
        start[at + 1] = start[at] - a * start[max(at - tau, 0)]
        if at:
            answer[at + 1] = answer[at] - a * answer[max(at - tau, 0)]
    answer, start = answer[1:], start[1:]
    total, bias = 0.0, 0.0
    for lag in range(int(4 / a)):
        part = slice(0, length - lag)
        covariance = start[part] * start[lag:] + 2 * a * np.cumsum(answer[part] * answer[lag:])
        total += (1 if lag == 0 else 2) * (covariance**2).sum()
        bias = bias if lag else float(covariance.mean() - 1)
    return float(2 * total / length**2 + bias**2)


def exponent_by_delay(of: int) -> float:
    """Return the exponent of τ in the least MSE (0) or in the step that has it (1)."""
    return float(np.polyfit(np.log(DELAYS), np.log(least_by_delay()[of]), 1)[0])


def splitting(h: float, tau: int) -> np.ndarray:
    """Return covariances of position with position along lags, friction 1 and curvature 1."""
    size = 2 + tau
    drift, calm = np.eye(size), np.eye(size)
    drift[0, 1], calm[1, 1] = h / 2, np.exp(-h / 2)
    kick = np.eye(size)
    kick[1, 0 if tau == 0 else size - 1] -= h
    shift = np.eye(size)
    if tau:  # the position half a step on is kept for τ updates
        shift[2:, :] = 0.0
        shift[2, 0] = 1.0
        shift[3:, 2:-1] = np.eye(tau - 1)
    matrix = drift @ calm @ kick @ calm @ drift
    if tau:
        # the gradient is of the oldest place; the newest comes in afterwards
        matrix[2:] = (shift @ drift)[2:]
    noise = np.zeros(size)
    noise[:2] = (drift @ calm)[:2, 1] * np.sqrt(2 * h)
    wide = np.eye(size**2) - np.kron(matrix, matrix)
    covariance = np.linalg.solve(wide, np.outer(noise, noise).ravel()).reshape(size, size)
    lags, column = [], covariance[:, 0]
    for _ in range(400):
        lags.append(column[0])
        column = matrix @ column
    return np.array(lags)


def bias_exponent(tau: int) -> float:
    biases = [abs(splitting(h, tau)[0] - 1) for h in (0.01, 0.04)]
    return float(np.log(biases[1] / biases[0]) / np.log(4))


def length_exponent() -> float:
    """Return the exponent of L in the least MSE of order 2; 400 lags are all that count."""
    least = []
    for length in (64_000, 1_024_000):
        errors = []
        for h in np.geomspace(0.15, 0.6, 40):
            lags = splitting(h, 0)
            weights = 2 * (1 - np.arange(400) / length)
            weights[0] = 1.0
            errors.append((lags[0] - 1) ** 2 + 2 * (weights @ lags**2) / length)
        least.append(min(errors))
    return float(np.log(least[1] / least[0]) / np.log(16))


def unequal(part: int) -> float:
    """Return bias (0) or variance (1) of four servers over its bound; τ = 1, 500 updates each."""
    steps, length = np.array([0.08, 0.04, 0.02, 0.01]), 500
    errors = np.array([average_error(h, 1, length) for h in steps])[:, part]
    times = length * steps
    total, mean = times.sum(), times.mean()
    if part == 0:
        constant = (np.abs(errors) / (1 / times + 2 * steps)).max()
        bound = constant * (1 / mean + times.max() / mean * 2 * steps.max())
        return float(times @ np.abs(errors) / total / bound)
    constant = (errors / (1 / times + steps**2)).max()
    bound = constant * (1 / total + ((times * steps) ** 2).sum() / total**2)
    return float(times**2 @ errors / total**2 / bound)


# --- FA-HMC: clients N(2, 1) and N(0, 4) of even weights, algorithms 3 and B.2 --------------------

MEANS, CURVATURES = np.array([2.0, 0.0]), np.array([1.0, 0.25])
CENTRE, SPREAD = 1.6, 1.6


def federated_round(theta, anchor, momenta, step: float, leapfrogs: int, *, debias: bool):
    """Return the average after T iterations, one common momentum each."""
    own = np.full(2, theta)
    gradients = CURVATURES * (anchor - MEANS)
    mend = gradients.mean() - gradients if debias else 0.0
    for momentum in momenta:
        p = np.full(2, momentum)
        for _ in range(leapfrogs):
            p = p - step / 2 * (CURVATURES * (own - MEANS) + mend)
            own = own + step * p
            p = p - step / 2 * (CURVATURES * (own - MEANS) + mend)
    return own.mean()


def one_round(step: float, leapfrogs: int, debias: bool):
    """Return the matrix of (θ, anchor), the constant and the momenta's variance of a round."""
    run = functools.partial(federated_round, step=step, leapfrogs=leapfrogs, debias=debias)
    still = np.zeros(10)
    base = run(0.0, 0.0, still)
    alpha, back = run(1.0, 0.0, still) - base, run(0.0, 1.0, still) - base
    push = sum((run(0.0, 0.0, unit) - base) ** 2 for unit in np.eye(10))
    return np.array([[alpha, back], [1.0, 0.0]]), base, push


def settled(step: float, leapfrogs: int, *, debias: bool) -> tuple[float, float]:
    """Return mean and variance in the long run."""
    matrix, base, push = one_round(step, leapfrogs, debias)
    mean = np.linalg.solve(np.eye(2) - matrix, [base, 0.0])
    wide = np.eye(4) - np.kron(matrix, matrix)
    return float(mean[0]), float(np.linalg.solve(wide, [push, 0.0, 0.0, 0.0])[0])


def arrival(step: float, *, debias: bool) -> float:
    """Return the rounds from 6 to W₂² < 10⁻⁴, of steps that end there too."""
    mean, variance = settled(step, 10, debias=debias)
    if (mean - CENTRE) ** 2 + (np.sqrt(variance) - np.sqrt(SPREAD)) ** 2 >= 1e-4:
        return np.inf
    matrix, base, push = one_round(step, 10, debias)
    mean, cov = np.full(2, 6.0), np.zeros((2, 2))
    for k in range(1, 600):
        mean = matrix @ mean + [base, 0.0]
        cov = matrix @ cov @ matrix.T + np.diag([push, 0.0])
        if (mean[0] - CENTRE) ** 2 + (np.sqrt(cov[0, 0]) - np.sqrt(SPREAD)) ** 2 < 1e-4:
            return k
    return np.inf


def error_gain() -> float:
    errors = []
    for debias in (False, True):
        mean, variance = settled(0.02, 10, debias=debias)
        errors.append(np.hypot(mean - CENTRE, np.sqrt(variance) - np.sqrt(SPREAD)))
    return float(errors[0] / errors[1])


def mean_left() -> float:
    return abs(settled(0.02, 10, debias=True)[0] - CENTRE)


def rounds_gain() -> float:
    steps = np.geomspace(0.008, 0.05, 80)
    plain, mended = (min(arrival(h, debias=debias) for h in steps) for debias in (False, True))
    return plain / mended


def bias_at_rest() -> float:
    return abs(settled(0.5, 5, debias=False)[0] - CENTRE) / np.sqrt(SPREAD)


# --- FA-HMC, section 5.1: clients that meet every T leapfrog steps of trajectories of 100 ---------

ETA, STEPS, NOISE, SHEET = 0.01, 100, 100.0, 1000
LEVELS = (np.arange(200) + 0.5) / 200


def mode_of(x, y):
    """Return the mode of a logistic posterior with a standard normal prior, and P(y = 1) there."""
    mode = np.zeros(x.shape[1])
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ mode))
        hessian = (x.T * (p * (1 - p))) @ x + np.eye(len(mode))
        mode -= np.linalg.solve(hessian, x.T @ (p - y) + mode)
    return mode, p


@functools.cache
def logistic_clients(d: int, rows: int, seed: int | None = None):
    """Return curvatures (20, d, d) and modes (20, d) around the mode of all rows.

    With a seed the rows are those of the sheet, drawn in its order.
    """
    rng = np.random.default_rng(5 if seed is None else seed)
    first, second = (d, (rows, d)) if seed is None else ((rows, d), d)
    truth, x = rng.normal(size=first), rng.normal(size=second)
    if seed is not None:
        truth, x = x, truth
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.uniform(size=rows) < 1 / (1 + np.exp(-x @ truth))
    (mode, p), slopes, modes = mode_of(x, y), [], []
    for part in np.arange(rows).reshape(20, -1):
        own = 20 * (x[part].T * (p * (1 - p))[part]) @ x[part] + np.eye(d)
        slopes.append(own)
        modes.append(-np.linalg.solve(own, 20 * x[part].T @ (p - y)[part] + mode))
    return np.array(slopes), np.array(modes)


def window_of(every: int, noise: float, d: int, rows: int, seed: int | None = None):
    """Return matrix, constant and covariance of (θ, p) from an average to the next."""
    slopes, modes = logistic_clients(d, rows, seed)
    count, eye = len(slopes), np.eye(d)
    leap = np.zeros((count, 2 * d, 2 * d))
    half = -ETA / 2 * slopes
    leap[:, :d, :d] = leap[:, d:, d:] = eye + ETA * half
    leap[:, :d, d:], leap[:, d:, :d] = ETA * eye, half @ (2 * eye + ETA * half)
    kick = np.block([[-(ETA**2) / 2 * eye, 0 * eye], [-ETA / 2 * eye, -ETA / 2 * eye]])
    power, wide = np.tile(np.eye(2 * d), (count, 1, 1)), np.zeros((2 * d, 2 * d))
    for _ in range(every):
        pushed = power @ kick
        wide += noise * np.tensordot(pushed, pushed, ((0, 2), (0, 2))) / count**2
        power = leap @ power
    centres = np.concatenate([modes, 0 * modes], axis=1)[..., None]
    return power.mean(axis=0), ((np.eye(2 * d) - power) @ centres).mean(axis=0)[:, 0], wide


@functools.cache
def meeting(every: int, noise: float = NOISE, d: int = 40, rows: int = 40):
    """Return bias, sd and the posterior's sd of all averages; ``every`` divides 100."""
    slopes, eye = logistic_clients(d, rows)[0], np.eye(d)
    window, shift, wide = window_of(every, noise, d, rows)
    matrix, moved, added, path = np.eye(2 * d), np.zeros(2 * d), np.zeros((2 * d, 2 * d)), []
    for _ in range(STEPS // every):
        added = window @ added @ window.T + wide
        matrix, moved = window @ matrix, window @ moved + shift
        path.append((matrix, moved, added))
    fresh = np.diag(np.repeat([0.0, 1.0], d))
    whole, mean = matrix[:d, :d], np.linalg.solve(eye - matrix[:d, :d], moved[:d])
    covariance = (matrix @ fresh @ matrix.T + added)[:d, :d]
    for _ in range(30):
        covariance, whole = covariance + whole @ covariance @ whole.T, whole @ whole
    fresh[:d, :d] = covariance
    means = [(matrix[:d, :d] @ mean + moved[:d]) for matrix, moved, _ in path]
    squares = [np.diag(matrix @ fresh @ matrix.T + added)[:d] for matrix, _, added in path]
    sd = np.sqrt(np.mean(squares, axis=0) + np.var(means, axis=0))
    return np.mean(means, axis=0), sd, np.sqrt(np.diag(np.linalg.inv(slopes.mean(axis=0))))


def expected_error(law, draws: float = np.inf) -> float:
    """Return the marginal error to expect of so many independent draws."""
    bias, sd, target = law
    score, cdf, density = np.array([normal(level) for level in LEVELS]).T
    centre = np.abs(bias[:, None] + (sd - target)[:, None] * score)
    if np.isinf(draws):
        return float(centre.mean())
    wide = sd[:, None] * np.sqrt(cdf * (1 - cdf) / draws) / density
    ratio = centre / wide
    folded = centre * (2 * np.vectorize(statistics.NormalDist().cdf)(ratio) - 1)
    folded += wide * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2)
    return float(folded.mean())


def normal(level: float) -> tuple[float, float, float]:
    score = statistics.NormalDist().inv_cdf(level)
    return score, level, statistics.NormalDist().pdf(score)


def rounds_to(every: int, error: float) -> float:
    """Return the rounds of independent trajectories that come down to an error."""
    law = meeting(every)
    if expected_error(law) >= error:
        return np.inf
    low, high = 0.0, 20.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        above = expected_error(law, np.exp(middle)) > error
        low, high = (middle, high) if above else (low, middle)
    return float(np.exp(low)) * STEPS / every


def fewest_rounds() -> int:
    return min((1, 10, 50, 100), key=lambda every: rounds_to(every, 0.1012))


def hundred_over_fifty() -> float:
    over = [rounds_to(100, error) / rounds_to(50, error) for error in (0.1012, 0.11)]
    return over[0] / over[1]


@functools.cache
def chain_rounds(every: int, error: float, chains: int = 6, d: int = 100) -> float:
    """Return the rounds until a chain's own draws come down to an error, by simulation."""
    single = window_of(every, NOISE, d, d, SHEET)
    window, shift, wide = single
    apart = max(1, 10 // every)  # rounds between two draws
    for _ in range(apart - 1):
        wide = single[0] @ wide @ single[0].T + single[2]
        window, shift = single[0] @ window, single[0] @ shift + single[1]
    values, axes = np.linalg.eigh(wide)
    root = axes * np.sqrt(np.maximum(values, 0))
    rng, z, draws = np.random.default_rng(every), np.zeros((chains, 2 * d)), []
    fresh, count = STEPS // (every * apart), 200_000 // (every * apart)
    for at in range(count):
        if at % fresh == 0:
            z[:, d:] = rng.normal(size=(chains, d))
        z = z @ window.T + shift + rng.normal(size=z.shape) @ root.T
        draws.append(z[:, :d])
    return crossing(np.array(draws[len(draws) // 20 :]), error, of_normal) * apart


def crossing(kept, error: float, target) -> float:
    """Return the draws (n, chains, d) of a chain that come down to an error, by geometric mean.

    ``target`` returns the n quantiles (n, d) of each coordinate at levels (n,).
    """
    numbers = np.unique(np.geomspace(20, len(kept), 24).astype(int))
    errors = []
    for n in numbers:
        away = np.sort(kept[:n], axis=0) - target((np.arange(n) + 0.5) / n)[:, None]
        errors.append(np.abs(away).mean(axis=(0, 2)))
    falling = -np.log(np.minimum.accumulate(errors, axis=0))
    logs = [np.interp(-np.log(error), path, np.log(numbers), right=np.inf) for path in falling.T]
    return float(np.exp(np.mean(logs)))


def of_normal(levels, d: int = 100):
    """Return quantiles of the sheet's posterior if it were normal around its mode."""
    sd = np.sqrt(np.diag(np.linalg.inv(logistic_clients(d, d, SHEET)[0].mean(axis=0))))
    return np.array([normal(level)[0] for level in levels])[:, None] * sd


@functools.cache
def sheet_rows(d: int):
    """Return the sheet's rows, (20, rows, d), their labels (20, rows, 1), and the mode."""
    rng = np.random.default_rng(SHEET)
    x, truth = rng.normal(size=(d, d)), rng.normal(size=d)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.uniform(size=d) < 1 / (1 + np.exp(-x @ truth))
    return x.reshape(20, -1, d), y.reshape(20, -1, 1), mode_of(x, y)[0]


@functools.cache
def logistic_draws(every: int, rounds: int, chains: int = 12, d: int = 100):
    """Return averages (rounds, chains, d) less the mode, every gradient that of the logit."""
    x, y, mode = sheet_rows(d)
    rng, back = np.random.default_rng(every), np.ascontiguousarray(x.transpose(0, 2, 1))
    theta, draws = np.tile(mode[:, None], (20, 1, chains)), []
    p = np.zeros_like(theta)

    def kick(at, share: float):
        noise = rng.standard_normal(at.shape, np.float32) * np.float32(math.sqrt(NOISE * share))
        return 20 * (back @ (1 / (1 + np.exp(-(x @ at))) - y)) + at + noise

    for at in range(rounds):
        if at * every % STEPS == 0:
            p[:] = rng.normal(size=(d, chains))
        p -= ETA / 2 * kick(theta, 1)
        for left in range(every)[::-1]:
            theta += ETA * p
            p -= ETA * kick(theta, 0.5) if left else ETA / 2 * kick(theta, 1)
        theta[:], p[:] = theta.mean(axis=0), p.mean(axis=0)
        draws.append((theta[0] - mode[:, None]).T)
    return np.array(draws[5 * STEPS // every :])


@functools.cache
def posterior_draws(d: int = 100, chains: int = 400, kept: int = 50):
    """Return sorted draws (n, d) of the sheet's posterior less its mode, by HMC of all rows."""
    x, y, mode = sheet_rows(d)
    x, y, rng = x.reshape(-1, d), y.reshape(-1), np.random.default_rng(3)

    def slope(at):
        return (1 / (1 + np.exp(-at @ x.T)) - y) @ x + at

    def energy(at, p):
        logits = at @ x.T
        return (np.logaddexp(0, logits) - y * logits).sum(axis=1) + ((at**2 + p**2) / 2).sum(axis=1)

    at, draws = mode + rng.normal(size=(chains, d)), []
    for number in range(20 + kept):
        p = rng.normal(size=at.shape)
        before, moved, leaps = energy(at, p), at, rng.integers(4, 9)
        p = p - 0.1 * slope(moved)
        for left in range(leaps)[::-1]:
            moved = moved + 0.2 * p
            p = p - (0.2 if left else 0.1) * slope(moved)
        taken = np.log(rng.uniform(size=chains)) < before - energy(moved, p)
        at = np.where(taken[:, None], moved, at)
        draws += [at - mode] * (number >= 20)
    return np.sort(np.concatenate(draws), axis=0)


def of_posterior(levels):
    draws = posterior_draws()
    return draws[(levels * len(draws)).astype(int)]


def hundred_rounds(error: float) -> float:
    """Return rounds to an error at T = 100 over those at T = 50.

    The bias at T = 100 is .082 of ε = .1012, so that a normal law around the mode, .019 from the
    posterior, would do for neither.
    """
    hundred, fifty = logistic_draws(100, 900), logistic_draws(50, 1000)
    return crossing(hundred, error, of_posterior) / crossing(fifty, error, of_posterior)


def iterations_over_steps() -> float:
    """Return ME of ten whole trajectories of each client over that of ten leapfrog steps."""
    slopes, modes = logistic_clients(40, 40)
    values, axes = np.linalg.eigh(slopes)
    angle = STEPS * np.arccos(1 - ETA**2 * values / 2)
    push = np.sin(angle) / np.sqrt(values * (1 - ETA**2 * values / 4))

    def matrices(diagonal):
        return (axes * diagonal[:, None]) @ axes.transpose(0, 2, 1)

    powers = [matrices(np.cos(angle) ** j).mean(axis=0) for j in range(11)]
    pushed = [matrices(np.cos(angle) ** j * push).mean(axis=0) for j in range(10)]
    still = (modes - np.einsum("nij,nj->ni", matrices(np.cos(angle) ** 10), modes)).mean(axis=0)
    covariance, whole = sum(one @ one.T for one in pushed), powers[10]
    mean = np.linalg.solve(np.eye(40) - whole, still)
    for _ in range(30):
        covariance, whole = covariance + whole @ covariance @ whole.T, whole @ whole
    law = mean, np.sqrt(np.diag(covariance)), meeting(10, 0.0)[2]
    return expected_error(law) / expected_error(meeting(10, 0.0))


# --- FA-HMC, appendix K: noise that grows with the gradient, moment by moment --------------------


def noisy_round(first, second, h, leapfrogs: int, noise, *, grows: bool, mean: float, refresh: int):
    """Return E x and E x² after T = 10 iterations at two clients and their average."""
    means, slopes = (mean * 20.0, mean * 1.0), (1.0, 0.25)
    mx, xx, across = [first, first], [second, second], second
    for _ in range(10):
        mp, xp, pp = [0.0, 0.0], [0.0, 0.0], [refresh, refresh]
        both, crossed = refresh, [0.0, 0.0]  # E p p', and E p x' by whose momentum it is
        for half in range(2 * leapfrogs):
            a = [h / 2 * slope for slope in slopes]
            b = [a[c] * means[c] for c in (0, 1)]
            both = (
                both - a[1] * crossed[0] + b[1] * mp[0] - a[0] * crossed[1] + a[0] * a[1] * across
                - a[0] * b[1] * mx[0] + b[0] * mp[1] - b[0] * a[1] * mx[1] + b[0] * b[1]
            )  # fmt: skip
            crossed = [crossed[c] - a[c] * across + b[c] * mx[1 - c] for c in (0, 1)]
            for c in (0, 1):
                force = xx[c] - 2 * means[c] * mx[c] + means[c] ** 2
                spread = h**2 / 4 * noise * (refresh + (slopes[c] ** 2 * force if grows else 0))
                pp[c] += a[c] ** 2 * xx[c] + b[c] ** 2 - 2 * a[c] * xp[c] + spread
                pp[c] += 2 * b[c] * mp[c] - 2 * a[c] * b[c] * mx[c]
                xp[c] += b[c] * mx[c] - a[c] * xx[c]
                mp[c] += b[c] - a[c] * mx[c]
            if half % 2 == 0:
                across = across + h * sum(crossed) + h**2 * both
                crossed = [part + h * both for part in crossed]
                for c in (0, 1):
                    xx[c] += 2 * h * xp[c] + h**2 * pp[c]
                    xp[c] += h * pp[c]
                    mx[c] += h * mp[c]
    return sum(mx) / 2, (sum(xx) + 2 * across) / 4


def rounds_exponent() -> float:
    """Return the exponent of d with growing noise over that with bounded noise, d = 10 and 60."""
    slopes = []
    for grows in (True, False):
        counts = []
        for d in (10, 60):
            first, second, number = 10.5, 10.5**2, 0
            while (first - 16.2) ** 2 + (np.sqrt(max(second - first**2, 0)) - 1.6**0.5) ** 2 >= (
                0.1 / d
            ):
                first, second = noisy_round(
                    first, second, 0.02 / d**0.25, 5, 100.0, grows=grows, mean=1.0, refresh=1
                )
                number += 1
            counts.append(number)
        slopes.append(np.log(counts[1] / counts[0]) / np.log(6))
    return float(slopes[0] / slopes[1])


def noise_exponent() -> float:
    """Return the exponent of K in the noise at which E x² neither grows nor falls."""
    limits = []
    for leapfrogs in (5, 25):
        low, high = 100.0, 1e5
        while high / low > 1.001:
            noise = (low * high) ** 0.5
            _, square = noisy_round(
                0.0, 1.0, 0.2 / leapfrogs, leapfrogs, noise, grows=True, mean=0.0, refresh=0
            )
            low, high = (noise, high) if square < 1 else (low, noise)
        limits.append(low)
    return float(np.log(limits[1] / limits[0]) / np.log(5))


# --- FSGLD, figure 1: three shards of ten tosses, five of them a gradient, by counts of ones ------


def wider(surrogates: str) -> float:
    """Return the sd of the gradient's estimate at θ = ½ over that of SGLD."""
    ones = np.array([1.0, 5.0, 9.0])
    a, b = ones + 1, 11 - ones
    pulls = {
        "none": 0 * ones,
        "anchored": 2 * ones - 2 * (10 - ones),
        "moments": (a / 12 - 0.5) / (a * b / 12**2 / 13),
        "laplace": (ones / 10 - 0.5) / (ones * (10 - ones) / 1000),
    }[surrogates]
    counts = np.arange(6)

    def moments(chances, shifts):
        ways = np.array([math.comb(5, k) for k in counts])
        chances = np.array(chances)[:, None]
        weights = ways * chances**counts * (1 - chances) ** (5 - counts) / len(chances)
        values = 30 / 5 * (4 * counts - 10) + np.array(shifts)[:, None]
        mean = (weights * values).sum()
        return np.sqrt((weights * (values - mean) ** 2).sum())

    return float(moments(ones / 10, pulls.sum() - 3 * pulls) / moments([0.5], [0.0]))


# --- FSGLD, algorithm 1: steps that fall within a visit ------------------------------------------


def falling_within() -> float:
    """Return the variance over the posterior's where h falls to 0 in each visit of 100 updates."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(-6, 6, (10, 2))
    rows = [centre + rng.normal(size=(200, 2)) for centre in centres]
    spread = np.mean([x.var(axis=0, ddof=1).mean() for x in rows]) / 10 * (1 - 10 / 200)
    variance = 0.0
    for step in np.tile(2e-4 * (1 - (np.arange(100) + 0.5) / 100), 20):
        kept = 1 - step / 2 * 2001
        variance = kept**2 * variance + step + (step / 2 * 2000) ** 2 * spread
    return float(variance * 2001)


# --- FSGLD(100): a visit forgets where it began, and ends at the posterior's mean whatever shard --


def slope_ratio() -> float:
    rng = np.random.default_rng(7)
    means = rng.uniform(-6, 6, (10, 1))
    slopes = []
    for centres in (means, np.full_like(means, means.mean())):
        draws = centres[rng.integers(10, size=(400, 2000))][..., 0]
        draws = draws + 0.07 * rng.normal(size=draws.shape)
        count = np.unique(np.geomspace(200, 2000, 15).astype(int))
        running = np.cumsum(draws, axis=1)[:, count - 1] / count
        error = ((running - means.mean()) ** 2).mean(axis=0)
        slopes.append(np.polyfit(np.log(count), np.log(error), 1)[0])
    return float(slopes[0] / slopes[1])


# --- FSGLD, figure 5: letters of unlike shards, a logistic regression on squared projections ------


def letter_pairs(seed: int):
    """Return features and labels of ten shards of 1,000 pairs, and of 1,000 test pairs."""
    rng, rows = np.random.default_rng(seed), consortia.datasets.load("isolet").rows
    x, y = np.asarray(rows["x"], float), np.asarray(rows["y"])
    axes = np.linalg.eigh(x.T @ x)[1][:, -10:]
    letters = rng.permutation(np.unique(y))

    def squares(chosen):
        first, second = [], []
        for similar in np.arange(1000) < 500:
            a, b = (rng.choice(chosen),) * 2 if similar else rng.choice(chosen, 2, replace=False)
            both = np.flatnonzero(y == a), np.flatnonzero(y == b)
            i, j = rng.choice(both[0], 2, replace=False) if similar else map(rng.choice, both)
            first.append(i)
            second.append(j)
        return ((x[first] - x[second]) @ axes) ** 2

    parts = np.array([squares(part) for part in (*np.array_split(letters, 10), letters)])
    parts *= -0.1 / parts[:10].mean(axis=(0, 1))
    features = np.concatenate([parts, np.ones((11, 1000, 1))], axis=2)
    return features[:10], features[10], np.where(np.arange(1000) < 500, 1.0, -1.0)


def late_spreads(repeats: int = 30, visits: int = 400) -> float:
    """Return the sd of the late test score over the repetitions, FSGLD (anchored) over DSGLD."""
    data = [letter_pairs(1000 + seed) for seed in range(repeats)]
    z, test, sign = np.array([d[0] for d in data]), np.array([d[1] for d in data]), data[0][2]
    prior = np.append(np.full(10, 0.01), 1.0)
    mode = np.zeros((repeats, 11))
    for _ in range(20):
        p = 1 / (1 + np.exp(sign * np.einsum("rsni,ri->rsn", z, mode)))
        slopes = np.einsum("rsn,rsni->rsi", p * sign, z)
        curves = np.einsum("rsn,rsni,rsnj->rsij", p * (1 - p), z, z)
        whole = curves.sum(axis=1) + np.diag(prior)
        step = np.linalg.solve(whole, (slopes.sum(axis=1) - prior * mode)[..., None])
        mode = mode + step[..., 0]
    rng, each = np.random.default_rng(5), np.arange(repeats)
    theta, total = np.stack([mode, mode]), np.zeros((2, repeats))
    for visit in range(visits):
        shard = rng.integers(10, size=repeats)
        constant = slopes.sum(axis=1) - 10 * slopes[each, shard]
        matrix = curves.sum(axis=1) - 10 * curves[each, shard]
        for _ in range(10):
            batch = rng.integers(1000, size=(repeats, 256))
            rows, signs = z[each[:, None], shard[:, None], batch], sign[batch]
            p = 1 / (1 + np.exp(signs * (rows @ theta[..., None])[..., 0]))
            drift = 10 * 1000 / 256 * ((p * signs)[:, :, None] @ rows)[:, :, 0] - prior * theta
            drift[1] += constant - (matrix @ (theta[1] - mode)[..., None])[..., 0]
            theta = theta + 5e-4 * drift + np.sqrt(1e-3) * rng.normal(size=theta.shape)
        if visit >= visits // 2 and visit % 10 == 0:
            total -= np.logaddexp(0, -sign * (test @ theta[..., None])[..., 0]).mean(axis=2)
    dsgld, anchored = total.std(axis=1)
    return anchored / dsgld


# --- FSGLD, table 1: the network at the printed settings, with the published surrogates -----------

WIDTHS, PRINTED_STEP = (18, 18, 18, 8, 2), 1e-4


def forward(theta, x):
    """Return layers, their inputs and p(y) of networks (n, d) next to each other."""
    layers, at = [], 0
    for wide, narrow in itertools.pairwise(WIDTHS):
        weights = theta[:, at : at + wide * narrow].reshape(-1, wide, narrow)
        at += wide * narrow
        layers.append((weights, theta[:, None, at : at + narrow]))
        at += narrow
    inputs = [x]
    for weights, bias in layers[:-1]:
        inputs.append(np.maximum(inputs[-1] @ weights + bias, 0))
    scores = inputs[-1] @ layers[-1][0] + layers[-1][1]
    odds = np.exp(scores - scores.max(axis=2, keepdims=True))
    return layers, inputs, odds / odds.sum(axis=2, keepdims=True)


def backward(layers, inputs, back, power: int = 1):
    """Return the sum over rows of the gradients that ``back`` begins, to this power."""
    parts = []
    for (weights, _), into in zip(layers[::-1], inputs[::-1], strict=True):
        slopes = into.transpose(0, 2, 1) ** power @ back**power
        parts += [(back**power).sum(axis=1), slopes.reshape(len(back), -1)]
        back = (back @ weights.transpose(0, 2, 1)) * (into > 0)
    return np.concatenate(parts[::-1], axis=1)


def network_gradient(theta, x, y):
    """Return the gradients of −log p(y), summed over the rows, of networks (n, d)."""
    layers, inputs, p = forward(theta, x)
    return backward(layers, inputs, p - np.eye(2)[y])


def network_curvature(theta, x):
    """Return the diagonals of the second derivatives, which of ReLU units are Fisher's."""
    layers, inputs, p = forward(theta, x)
    seeds = [np.sqrt(p[:, :, k, None]) * (p - np.eye(2)[k]) for k in (0, 1)]
    return sum(backward(layers, inputs, seed, power=2) for seed in seeds)


def drawn_network(rng):
    return np.concatenate(
        [
            np.append(rng.normal(size=wide * narrow) * np.sqrt(2 / wide), np.zeros(narrow))
            for wide, narrow in itertools.pairwise(WIDTHS)
        ]
    )


def unlike_shards(rng, shards: int, rows: int, like: float = 0.5, steep: float = np.inf):
    """Return features and labels of shards whose share of label 1 is Beta(like, like).

    The last shard is balanced; ``steep`` is that of labels as odds, infinite of certain ones.
    """
    x = rng.normal(size=(6 * shards * rows, 18))
    score = np.tanh(x @ rng.normal(size=(18, 20)) / 2) @ rng.normal(size=20)
    label = score > 0
    if steep < np.inf:
        label = rng.uniform(size=len(x)) < 1 / (1 + np.exp(-steep * score / score.std()))
    ones = np.append(rng.binomial(rows, rng.beta(like, like, shards - 1)), rows // 2)
    pools = [iter(np.flatnonzero(label)), iter(np.flatnonzero(~label))]
    chosen = [[next(pools[int(k >= n)]) for k in range(rows)] for n in ones]
    return x[np.array(chosen)], (np.arange(rows) < ones[:, None]).astype(int)


@functools.cache
def spreads(visits: int = 150) -> tuple[float, float]:
    """Return sds over repetitions, FSGLD (anchored) over DSGLD, of six unlike, four like sets.

    All chains start where federated averaging ends, as in the study, and the surrogates refer to
    that. The start matters: on unlike sets the ratio was 0.94 from a mode of pooled batches, which
    DSGLD hardly leaves, and 2.7 from a drawn network, where anchored surrogates do not fit.
    """
    h, m, count, size = 1e-7, 50, 30, 1000
    given = [(k, 0.5) for k in range(6)] + [(k, 100.0) for k in range(6, 10)]
    data = [unlike_shards(np.random.default_rng(k), count + 1, size, f, 4.0) for k, f in given]
    x, y = np.array([d[0] for d in data]), np.array([d[1] for d in data])
    rng, sets = np.random.default_rng(8), np.arange(len(data))

    def slope(theta, shard, rows):
        parts = sets[:, None], shard, rng.integers(size, size=(len(sets), rows))
        return count * size / rows * network_gradient(theta, x[parts], y[parts]) + theta

    mode = np.array([drawn_network(rng) for _ in data])
    shards = np.arange(count)[:, None]
    for _ in range(300):  # rounds of federated averaging, of ten local steps
        local = np.repeat(mode, count, axis=0)
        for _ in range(10):
            parts = np.repeat(sets, count)[:, None], np.tile(shards, (len(sets), 1))
            parts = *parts, rng.integers(size, size=(len(local), m))
            pull = count * size / m * network_gradient(local, x[parts], y[parts]) + local
            local = local - 5e-7 * pull
        mode = local.reshape(len(sets), count, -1).mean(axis=1)
    pulls, bends = (
        np.stack([f(mode, x[:, s], *(y[:, s],) * g) for s in range(count)])
        for f, g in ((network_gradient, 1), (network_curvature, 0))
    )
    theta, total = np.stack([mode, mode]), np.zeros((2, len(sets)))
    for visit in range(visits):
        shard = rng.integers(count, size=len(sets))
        pull = pulls.sum(axis=0) - count * pulls[shard, sets]
        bend = bends.sum(axis=0) - count * bends[shard, sets]
        for _ in range(40):
            state = rng.bit_generator.state
            drift = []
            for at in theta:
                rng.bit_generator.state = state  # both visit the same rows
                drift.append(slope(at, shard[:, None], m))
            drift[1] += pull + bend * (theta[1] - mode)
            noise = np.sqrt(h) * rng.normal(size=theta.shape)
            theta = theta - h / 2 * np.array(drift) + noise
        if visit >= visits // 5 and visit % 5 == 0:
            held = sets[:, None], np.arange(size), y[:, -1]
            total += [np.log(forward(at, x[:, -1])[2][held]).mean(axis=1) for at in theta]
    groups = (slice(0, 6), slice(6, 10))
    return tuple(float(total[1, g].std() / total[0, g].std()) for g in groups)


def run_away(chains: int = 3, shards: int = 30, rows: int = 1000) -> float:
    """Return the share of chains that leave 10⁶ behind within ten visits.

    No score of such weights has a spread. Moments are of 3,000 local SGLD draws after 1,000.
    """
    ended = 0
    for seed in range(chains):
        rng = np.random.default_rng(seed)
        x, y = unlike_shards(rng, shards, rows)
        start = drawn_network(rng)
        each, theta = np.arange(shards)[:, None], np.tile(start, (shards, 1))
        total, square = np.zeros_like(theta), np.zeros_like(theta)
        for k in range(4000):
            batch = rng.integers(rows, size=(shards, 50))
            slope = rows / 50 * network_gradient(theta, x[each, batch], y[each, batch])
            slope += 0.01 * (theta - start)
            noise = np.sqrt(PRINTED_STEP) * rng.normal(size=theta.shape)
            theta = theta - PRINTED_STEP / 2 * slope + noise
            if k >= 1000:
                total, square = total + theta, square + theta**2
        mean = total / 3000
        precision = 1 / np.maximum(square / 3000 - mean**2, 1e-10)
        at, far = start, False
        for _ in range(10):
            shard = rng.integers(shards)
            for _ in range(0 if far else 40):
                batch = rng.integers(rows, size=50)
                slope = network_gradient(at[None], x[shard, batch][None], y[shard, batch][None])[0]
                slope = shards * rows / 50 * slope + at
                pulls = precision * (at - mean)
                slope += pulls.sum(axis=0) - shards * pulls[shard]
                noise = np.sqrt(PRINTED_STEP) * rng.normal(size=len(at))
                at = at - PRINTED_STEP / 2 * slope + noise
            far = far or bool(np.abs(at).max() > 1e6)
        ended += far
    return ended / chains


CHECKS: dict[tuple[str, str], tuple[Callable[[], float], float, float]] = {
    ("de-sgld", "lemma2"): (lambda: slack()["2"], 1200.0, 1250.0),
    ("de-sgld", "lemma4"): (lambda: slack()["4"], 2.2e6, 3.0e6),
    ("de-sgld", "lemma5"): (lambda: slack()["5"], 2.5e8, 3.3e8),
    ("de-sgld", "lemma6"): (lambda: slack()["6"], 1.08, 1.16),
    ("de-sgld", "fig4b-sooner"): (sooner, 16.9, 17.1),
    ("de-sgld", "fig4c-fastest"): (fastest, 0.79, 0.81),
    ("de-sgld", "fig4c-rate"): (rate_apart, 0.165, 0.167),
    ("stale-gradients", "thm3-delay"): (lambda: exponent_by_delay(0), -0.11, -0.07),
    ("stale-gradients", "thm3-step"): (lambda: exponent_by_delay(1), -0.95, -0.87),
    ("stale-gradients", "thm3-alike"): (least_ratio, 1.15, 1.25),
    ("stale-gradients", "thm2-order2"): (lambda: bias_exponent(0), 1.99, 2.01),
    ("stale-gradients", "thm2-order2-stale"): (lambda: bias_exponent(1), 1.01, 1.03),
    ("stale-gradients", "cor5-order2"): (length_exponent, -0.81, -0.79),
    ("stale-gradients", "thm6-unequal"): (lambda: unequal(0), 0.2, 0.5),
    ("stale-gradients", "thm7-unequal"): (lambda: unequal(1), 0.9, 1.0),
    ("fa-hmc", "sync-a"): (lambda: expected_error(meeting(10, 0.0)), 0.0012, 0.0022),
    ("fa-hmc", "sync-b"): (lambda: expected_error(meeting(10)), 0.0035, 0.0045),
    ("fa-hmc", "sync-d"): (lambda: expected_error(meeting(10, NOISE, 10, 1000)), 0.0015, 0.0035),
    ("fa-hmc", "sync-reach"): (lambda: expected_error(meeting(50)), 0.02, 0.101),
    ("fa-hmc", "sync-best"): (fewest_rounds, 49, 71),
    ("fa-hmc", "sync-gain"): (lambda: rounds_to(1, 0.1012) / rounds_to(50, 0.1012), 40, 60),
    ("fa-hmc", "sync-hundred"): (hundred_over_fifty, 1.05, 2.0),
    ("fa-hmc", "sampled-readings"): (iterations_over_steps, 50, 500),
    ("fa-hmc", "rounds-best"): (lambda: hundred_rounds(0.1012), 0.7, 1.0),
    ("fa-hmc", "rounds-gain"): (
        lambda: chain_rounds(1, 0.1012) / chain_rounds(50, 0.1012),
        30,
        80,
    ),
    ("fa-hmc", "rounds-hundred"): (
        lambda: hundred_rounds(0.1012) / hundred_rounds(0.11),
        1.05,
        1.3,
    ),
    ("fa-hmc", "b2-error"): (error_gain, 12.8, 13.0),
    ("fa-hmc", "b2-mean"): (mean_left, -1e-9, 1e-9),
    ("fa-hmc", "b2-rounds"): (rounds_gain, 4.6, 5.4),
    ("fa-hmc", "remark42"): (bias_at_rest, 0.529, 0.531),
    ("fa-hmc", "appk-dimension"): (rounds_exponent, 0.97, 1.0),
    ("fa-hmc", "appk-leapfrogs"): (noise_exponent, 0.99, 1.02),
    ("fsgld", "fig3b-as-fast"): (slope_ratio, 0.8, 1.2),
    ("fsgld", "fig1-dsgld"): (lambda: wider("none"), 1.644, 1.646),
    ("fsgld", "fig1-fsgld"): (lambda: wider("anchored"), 0.756, 0.758),
    ("fsgld", "fig1-moments"): (lambda: wider("moments"), 1.580, 1.582),
    ("fsgld", "fig1-laplace"): (lambda: wider("laplace"), 2.704, 2.706),
    ("fsgld", "alg1-steps"): (falling_within, 4.7, 4.95),
    ("fsgld", "fig5-spread"): (late_spreads, 0.45, 0.95),
    ("fsgld", "table1-spread"): (run_away, 0.99, 1.01),
    ("fsgld", "spread-unlike"): (lambda: spreads()[0], 0.15, 0.8),
    ("fsgld", "spread-alike"): (lambda: spreads()[1], 0.97, 1.05),
}
"""By paper and claim: a second implementation, and between what its number must be."""

LONG = {
    ("fsgld", "fig5-spread"),
    ("fsgld", "table1-spread"),
    ("fsgld", "spread-unlike"),
    ("fsgld", "spread-alike"),
    ("fa-hmc", "rounds-gain"),
    ("fa-hmc", "rounds-best"),
    ("fa-hmc", "rounds-hundred"),
}
"""Those that take longer than a second or two."""


def test_every_row_that_is_checked_is_a_row_with_a_finding():
    rows_of = {
        (name, claim.id): finding
        for name in claims.PAPERS
        for _, claim, finding, _ in pages.rows(claims.read(name))
    }
    assert all(rows_of[name] is not None for name in CHECKS)


@pytest.mark.parametrize(
    "of",
    [pytest.param(of, marks=[pytest.mark.slow] * (of in LONG)) for of in CHECKS],
    ids=lambda of: "-".join(of),
)
def test_a_second_implementation_finds_the_same(of, require_data):
    if of == ("fsgld", "fig5-spread"):
        require_data("isolet")
    compute, low, high = CHECKS[of]
    assert low < compute() < high
