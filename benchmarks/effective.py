"""What a user asks: effective draws a CPU second, and the time to a thousand, cold and warm.

Six problems, each a function of NumPyro, sampled here from one site and by the libraries that
sample rows of one machine. NumPyro takes the function; BlackJAX and nutpie take the same
log-density, compiled by JAX. The effective size is the smallest bulk one over all coordinates, of
four chains. Cold is the first run of a process, with what is compiled in it; warm is a later one.
A loss is shown as what it is, a ratio below one. From 100,000 rows on chains are shorter, and one
warm run is measured: a run of NUTS takes minutes there, and its rate is that of a longer one.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats

import consortia
from benchmarks.measure import Row
from consortia.core.target import Target, parameters_of

NAME = "effective"
CHAINS, WANTED = 4, 1000
DRAWS = {"full": 1000, "quick": 300, "tiny": 50}
MANY_ROWS, DRAWS_OF_MANY = 100_000, 200
SHARE = {"full": 1.0, "quick": 0.05, "tiny": 0.01}
"""Of the rows of a problem."""

PAIRS = {"full": 3, "quick": 1, "tiny": 1}
PROBLEMS = {"full": 6, "quick": 6, "tiny": 1}
"""So many, the last of them."""


@dataclass(frozen=True)
class Problem:
    """A function of NumPyro and its rows."""

    name: str
    model: Callable[..., None]
    rows: dict[str, np.ndarray]


def problems(share: float) -> Iterator[Problem]:
    """The six problems, with a share of the rows of those that have many."""
    import numpyro
    import numpyro.distributions as dist

    rng = np.random.default_rng(0)

    def design(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(max(int(rows * share), 100), columns)).astype(np.float32)
        return x, x @ rng.normal(0, 0.3, columns).astype(np.float32)

    def logistic(x: Any, y: Any) -> None:
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        level = numpyro.sample("level", dist.Normal(0, 2))
        numpyro.sample("obs", dist.Bernoulli(logits=level + x @ beta), obs=y)

    data = consortia.datasets.load("breast_cancer")
    rows = consortia.datasets.standardise(data.train)[0]
    yield Problem("logistic, breast cancer × 31", logistic, {"x": rows["x"], "y": rows["y"]})
    x, eta = design(100_000, 50)
    y = rng.random(len(x)) < 1 / (1 + np.exp(-eta))
    yield Problem(f"logistic, {len(x):,} × 50", logistic, {"x": x, "y": y.astype(np.int32)})

    def linear(x: Any, y: Any) -> None:
        beta = numpyro.sample("beta", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
        sd = numpyro.sample("sd", dist.HalfNormal(2))
        numpyro.sample("obs", dist.Normal(x @ beta, sd), obs=y)

    x, eta = design(1_000_000, 10)
    y = (eta + rng.normal(size=len(x))).astype(np.float32)
    yield Problem(f"linear, {len(x):,} × 10", linear, {"x": x, "y": y})

    def poisson(x: Any, group: Any, y: Any) -> None:
        level, slope = (numpyro.sample(name, dist.Normal(0, 1)) for name in ("level", "slope"))
        spread = numpyro.sample("spread", dist.HalfNormal(1))
        own = numpyro.sample("own", dist.Normal(0, 1).expand([25]).to_event(1))
        rate = jnp.exp(level + slope * x + spread * own[group])
        numpyro.sample("obs", dist.Poisson(rate), obs=y)

    group = rng.integers(0, 25, 1000).astype(np.int32)
    covariate = rng.normal(size=1000).astype(np.float32)
    rate = np.exp(0.5 + 0.3 * covariate + 0.5 * rng.normal(size=25)[group])
    columns = {"x": covariate, "group": group, "y": rng.poisson(rate).astype(np.int32)}
    yield Problem("Poisson, 1,000 rows in 25 groups", poisson, columns)

    def schools(effect: Any, error: Any, school: Any) -> None:
        mean, spread = (
            numpyro.sample("mean", dist.Normal(0, 5)),
            numpyro.sample("spread", dist.HalfCauchy(5)),
        )
        own = numpyro.sample("own", dist.Normal(0, 1).expand([8]).to_event(1))
        numpyro.sample("obs", dist.Normal(mean + spread * own[school], error), obs=effect)

    columns = {
        "effect": np.float32([28, 8, -3, 7, -1, 1, 18, 12]),
        "error": np.float32([15, 10, 16, 11, 9, 11, 10, 18]),
        "school": np.arange(8, dtype=np.int32),
    }
    yield Problem("eight schools", schools, columns)

    def student(x: Any, y: Any) -> None:
        beta = numpyro.sample("beta", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
        sd, freedom = (
            numpyro.sample("sd", dist.HalfNormal(2)),
            numpyro.sample("freedom", dist.Gamma(2, 0.1)),
        )
        numpyro.sample("obs", dist.StudentT(freedom, x @ beta, sd), obs=y)

    x = rng.normal(size=(1000, 5)).astype(np.float32)
    y = (x.sum(axis=1) + rng.standard_t(4, size=1000)).astype(np.float32)
    yield Problem("Student t, 1,000 × 5", student, {"x": x, "y": y})


Sampler = Callable[[int], np.ndarray]
"""From a seed to draws, (chains, draws, coordinates)."""


def ours(problem: Problem, method: Any, draws: int) -> Sampler:
    """The library, one site."""
    sites = consortia.Sites.from_list([problem.rows])
    model = consortia.from_numpyro(problem.model, sites)
    ends = isinstance(method, consortia.few_rounds)
    options = {} if ends else {"draws": draws, "warmup": draws}

    def run(seed: int) -> np.ndarray:
        tree = consortia.sample(
            model, sites, method, chains=CHAINS, seed=seed, progress=False, **options
        )
        found = [np.asarray(one) for one in tree["posterior"].data_vars.values()]
        return np.concatenate([one.reshape(*one.shape[:2], -1) for one in found], axis=-1)

    return run


def numpyro_sampler(problem: Problem, draws: int) -> Sampler:
    """NUTS of NumPyro, chains vectorised, as on one device."""
    from numpyro.infer import MCMC, NUTS

    kept = {name: jnp.asarray(values) for name, values in problem.rows.items()}
    mcmc = MCMC(
        NUTS(problem.model),
        num_warmup=draws,
        num_samples=draws,
        num_chains=CHAINS,
        chain_method="vectorized",
        jit_model_args=True,  # else each run compiles anew
        progress_bar=False,
    )

    def run(seed: int) -> np.ndarray:
        mcmc.run(jax.random.PRNGKey(seed), **kept)
        found = [np.asarray(one) for one in mcmc.get_samples(group_by_chain=True).values()]
        return np.concatenate([one.reshape(*one.shape[:2], -1) for one in found], axis=-1)

    return run


def density_of(problem: Problem) -> tuple[Callable[[Any], Any], np.ndarray]:
    """Return the log-density of flat positions, and where it starts."""
    sites = consortia.Sites.from_list([problem.rows])
    model = consortia.from_numpyro(problem.model, sites)
    start = parameters_of(model, None, jax.random.key(0))
    target = Target(model, start)
    batch = {name: jnp.asarray(values) for name, values in problem.rows.items()}

    def density(position: Any) -> Any:
        parameters = target.unravel(position)
        return model.log_prior(parameters) + model.log_likelihood(parameters, batch).sum()

    return density, target.flat(start)


def blackjax_sampler(problem: Problem, draws: int) -> Sampler:
    """NUTS of BlackJAX with its window adaptation, chains vectorised."""
    import blackjax

    density, start = density_of(problem)

    def chain(key: Any) -> Any:
        adapting, drawing = jax.random.split(key)
        adaptation = blackjax.window_adaptation(blackjax.nuts, density)
        (state, parameters), _ = adaptation.run(adapting, jnp.asarray(start), num_steps=draws)
        kernel = blackjax.nuts(density, **parameters)

        def step(state: Any, key: Any) -> Any:
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(drawing, draws))[1]

    chains = jax.jit(jax.vmap(chain))
    return lambda seed: np.asarray(chains(jax.random.split(jax.random.key(seed), CHAINS)))


def nutpie_sampler(problem: Problem, draws: int) -> Sampler:
    """NUTS of nutpie, with the density compiled by JAX."""
    import nutpie
    from nutpie import compiled_pyfunc

    density, start = density_of(problem)
    both = jax.jit(jax.value_and_grad(density))
    size = len(start)

    def make_density() -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        def value(position: np.ndarray) -> tuple[float, np.ndarray]:
            found, gradient = both(jnp.asarray(position, jnp.float32))
            return float(found), np.asarray(gradient, np.float64)

        return value

    compiled = compiled_pyfunc.from_pyfunc(
        ndim=size,
        make_logp_fn=make_density,
        make_expand_fn=lambda *_: lambda position: {"position": position},
        expanded_dtypes=[np.dtype(np.float64)],
        expanded_shapes=[(size,)],
        expanded_names=["position"],
    )

    def run(seed: int) -> np.ndarray:
        tree = nutpie.sample(
            compiled, draws=draws, tune=draws, chains=CHAINS, cores=1, seed=seed, progress_bar=False
        )
        return np.asarray(tree.posterior["position"])

    return run


PEERS = {"NumPyro": numpyro_sampler, "BlackJAX": blackjax_sampler, "nutpie": nutpie_sampler}


def smallest(draws: np.ndarray) -> float:
    """Return the smallest bulk effective size over coordinates."""
    found = array_stats.ess(draws, chain_axis=0, draw_axis=1, method="bulk")
    return float(np.min(found))


@dataclass(frozen=True)
class Figures:
    """Effective draws a CPU second of each warm run, and CPU seconds of compiling."""

    rates: np.ndarray
    compiling: float

    @property
    def seconds(self) -> tuple[float, float]:
        """CPU seconds to a thousand effective draws, warm and cold."""
        warm = WANTED / float(np.median(self.rates))
        return warm, warm + self.compiling


def measured(sampler: Sampler, pairs: int) -> Figures:
    """Run a sampler, once cold and then warm."""
    spent, sizes = [], []
    for seed in range(pairs + 1):
        began = time.process_time()
        draws = sampler(seed)
        spent.append(time.process_time() - began)
        sizes.append(smallest(draws))
    warm = np.asarray(spent[1:])
    return Figures(np.asarray(sizes[1:]) / warm, max(spent[0] - float(np.median(warm)), 0.0))


def rows(scale: str) -> Iterator[Row]:
    """A row for each problem, method and peer, as it is measured."""
    for problem in list(problems(SHARE[scale]))[-PROBLEMS[scale] :]:
        draws, pairs = DRAWS[scale], PAIRS[scale]
        if len(next(iter(problem.rows.values()))) >= MANY_ROWS:
            draws, pairs = DRAWS_OF_MANY, 1
        methods = {
            "few_rounds": consortia.few_rounds(effective_size=float(WANTED)),
            "federated_hmc": consortia.federated_hmc(),
        }
        own = {name: measured(ours(problem, one, draws), pairs) for name, one in methods.items()}
        for peer, make in PEERS.items():
            if importlib.util.find_spec(peer.lower()) is None:
                yield Row(NAME, f"{problem.name}: beside {peer}", skipped=f"no {peer}")
                continue
            theirs = measured(make(problem, draws), pairs)
            for name, one in own.items():
                yield beside(problem.name, name, one, peer, theirs)


def beside(problem: str, method: str, own: Figures, peer: str, theirs: Figures) -> Row:
    """Return the row of a method beside a peer; above one the method is faster."""
    ratios = own.rates / theirs.rates
    warm, cold = zip(own.seconds, theirs.seconds, strict=True)
    return Row(
        NAME,
        f"{problem}: ESS a CPU second, {method} / {peer}",
        float(np.median(ratios)),
        float(ratios.min()),
        float(ratios.max()),
        len(ratios),
        detail=f"{np.median(own.rates):.3g} / {np.median(theirs.rates):.3g} a second; to "
        f"{WANTED:,}: warm {warm[0]:.3g} / {warm[1]:.3g} s, cold {cold[0]:.3g} / {cold[1]:.3g} s",
    )
