"""The one table of algorithms, read by the documentation, the command line and the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from consortia.algorithms.decentralized import decentralized_hmc, decentralized_ula
from consortia.algorithms.federated_averaging import fa_hmc, fa_ld
from consortia.algorithms.federated_hmc import federated_hmc
from consortia.algorithms.gossip import de_sghmc, de_sgld
from consortia.algorithms.stale import stale_sghmc, stale_sgld, stale_sgnht
from consortia.algorithms.travelling import dsgld, fsgld


@dataclass(frozen=True)
class Entry:
    """What a user should know of an algorithm before using it.

    Attributes:
        factory: the public function that makes it.
        samples: the density of its draws, in words.
        bias: order of the stationary bias, and where it comes from.
        draw: what one draw is.
        step_size: drift, noise variance, and the step h' of the equal SGLD update.
        source: paper and algorithm number.
        engines: engines that run it.
        example: arguments with which it runs, for tests and documentation.
        sites: number of sites that the example is for; any number when None.
    """

    factory: Callable[..., Any]
    samples: str
    bias: str
    draw: str
    step_size: str
    source: str
    engines: tuple[str, ...]
    example: dict[str, Any]
    sites: int | None = None


_FEDERATED_AVERAGING = "Liang, Zhang, Deng, Song, Lin (2024)"
_TRAVELLING = "El Mekkaoui, Mesquita, Blomstedt, Kaski (2021)"
_STALE = "Chen, Ding, Li, Zhang, Carin (2016)"
_DECENTRALIZED = "Kungurtsev, Cobb, Javidi, Jalaian (2023)"
_GOSSIP = "Gürbüzbalaban, Gao, Hu, Zhu (2021)"

ALGORITHMS: dict[str, Entry] = {
    "fa_hmc": Entry(
        factory=fa_hmc,
        samples="a law near the posterior (no Metropolis test)",
        bias="mean O((K eta)^2 T) with unlike sites (debias=True removes it on Gaussian targets), "
        "variance O(eta^2)",
        draw="the weighted average of the sites, one a round",
        step_size="eta: drift eta^2/2, noise variance eta^2, h' = eta^2/2",
        source=f"{_FEDERATED_AVERAGING}, algorithms 1-3, B.1, B.2",
        engines=("local", "mpi", "flower"),
        example={"step_size": 0.02, "leapfrog_steps": 3, "local_steps": 2},
    ),
    "fa_ld": Entry(
        factory=fa_ld,
        samples="a law near the posterior (no Metropolis test)",
        bias="mean O(eta^2 (T - 1)) with unlike sites, variance O(eta^2)",
        draw="the weighted average of the sites, one a round",
        step_size="eta: drift eta^2/2, noise variance eta^2, h' = eta^2/2",
        source=f"{_FEDERATED_AVERAGING}, algorithm 3 with K = 1",
        engines=("local", "mpi", "flower"),
        example={"step_size": 0.02, "local_steps": 2},
    ),
    "dsgld": Entry(
        factory=dsgld,
        samples="a law between the posterior and a mixture of local posteriors",
        bias="variance: the spread of the sites' pulls, growing with T, and that of the "
        "minibatches, O(h); mean O(h T) with unlike curvatures",
        draw="the position after each visit, or after each update (record='updates')",
        step_size="h: drift h/2, noise variance h, h' = h/2",
        source=f"{_TRAVELLING}, equations 3 and 4, after Ahn, Shahbaba, Welling (2014)",
        engines=("local", "mpi", "flower"),
        example={"step_size": 0.01, "local_steps": 3},
    ),
    "fsgld": Entry(
        factory=fsgld,
        samples="a law near the posterior, the nearer the better the surrogates",
        bias="variance O(h) from minibatches, often many times the posterior's; mean and the rest "
        "in the measure of the surrogates' error",
        draw="the position after each visit, or after each update (record='updates')",
        step_size="h: drift h/2, noise variance h, h' = h/2",
        source=f"{_TRAVELLING}, equation 5, algorithm 1",
        engines=("local", "mpi", "flower"),
        example={"step_size": 0.01, "local_steps": 3},
    ),
    "de_sgld": Entry(
        factory=de_sgld,
        samples="the average: a law near the posterior; a single agent: a law that is far too wide",
        bias="in W2: average O(eta), growing with the disagreement of unlike agents; an agent "
        "O(sqrt(eta)) (correction='extra', noise='common', averaged_noise=True: O(eta^2) for both)",
        draw="the plain average of the agents, one an iteration (draws='agents' adds each agent's)",
        step_size="eta: drift eta, noise variance 2 eta at each agent, h' = eta",
        source=f"{_GOSSIP}, equation 2",
        engines=("local", "mpi"),
        example={"step_size": 0.02, "mixing": "ring", "averaged_noise": False},
    ),
    "de_sghmc": Entry(
        factory=de_sghmc,
        samples="the average: a law near the posterior; a single agent: a law that is far too wide",
        bias="in W2: average O(eta), growing with the disagreement of unlike agents; an agent more "
        "(correction='extra', noise='common': as the average)",
        draw="the plain average of the agents, one an iteration (draws='agents' adds each agent's)",
        step_size="eta: a step in time, position moves eta v; h' = eta^2 where friction = 1/eta",
        source=f"{_GOSSIP}, equations 20 and 21",
        engines=("local", "mpi"),
        example={"step_size": 0.05, "friction": 4.0, "mixing": "ring"},
    ),
    "stale_sgld": Entry(
        factory=stale_sgld,
        samples="a law near the posterior, too wide by stale gradients",
        bias="variance O(h lambda (tau + 1/2)), tau = W - 1 on average, and that of minibatches",
        draw="the server's position after each accepted update",
        step_size="h: drift h, noise variance 2h, h' = h",
        source=f"{_STALE}, sections 3 and 4",
        engines=("local", "mpi"),
        example={"step_size": 0.01, "batch_size": 4, "workers": 3},
        sites=1,
    ),
    "stale_sghmc": Entry(
        factory=stale_sghmc,
        samples="a law near the posterior, too wide by stale gradients",
        bias="variance O(h^2) with fresh exact gradients, lambda tau h / B with stale ones "
        "(extrapolate=True removes most of it), h V / (2 B) with noise V (subtract_noise=V)",
        draw="the server's position after each accepted update",
        step_size="h: a step in time, position moves h q; h' = h^2 where friction = 1/h",
        source=f"{_STALE}, algorithm 1; the splitting of Chen, Ding, Carin (2015)",
        engines=("local", "mpi"),
        example={"step_size": 0.05, "friction": 2.0, "batch_size": 4, "workers": 3},
        sites=1,
    ),
    "stale_sgnht": Entry(
        factory=stale_sgnht,
        samples="a law near the posterior with the right temperature of the momenta",
        bias="no closed form; the thermostat takes up most of what noise and, with "
        "thermostat='elementwise', staleness add",
        draw="the server's position after each accepted update",
        step_size="h: a step in time, position moves h q; h' = h^2 where friction = 1/h",
        source=f"Ding et al. (2014), with stale gradients as in {_STALE}",
        engines=("local", "mpi"),
        example={"step_size": 0.05, "friction": 2.0, "batch_size": 4, "workers": 3},
        sites=1,
    ),
    "federated_hmc": Entry(
        factory=federated_hmc,
        samples="the posterior (Metropolis test on the summed log-density)",
        bias="none, however unlike the sites are; every site answers in every round",
        draw="the position after a trajectory (K of them a round with force='surrogate')",
        step_size="epsilon of the leapfrog, learned when left out; with one step drift "
        "epsilon^2/2, noise variance epsilon^2, h' = epsilon^2/2",
        source="Duane, Kennedy, Pendleton, Roweth (1987); the federated form is ours",
        engines=("local", "mpi", "flower"),
        example={"step_size": 0.05, "leapfrog_steps": 2, "mass_matrix": "identity"},
    ),
    "decentralized_hmc": Entry(
        factory=decentralized_hmc,
        samples="a law near the posterior (variant='exact': the posterior; variant='published': "
        "its square, standard deviations 0.707 times too small)",
        bias="mean exact on Gaussian targets, variance O(epsilon^2); an agent also by what the "
        "agents disagree",
        draw="the plain average of the agents, one an iteration (draws='agents' adds each agent's)",
        step_size="epsilon: drift epsilon^2/(2m), noise variance epsilon^2/m of the average of m "
        "agents, h' = epsilon^2/(2m)",
        source=f"{_DECENTRALIZED}; variants 'corrected' and 'exact' are ours",
        engines=("local", "mpi"),
        example={"step_size": 0.05, "mixing": "path", "gossip_rounds": 2},
    ),
    "decentralized_ula": Entry(
        factory=decentralized_ula,
        samples="a law near the posterior (noise='published': its m-th power, standard deviations "
        "1/sqrt(m) times too small)",
        bias="mean O(alpha) with unlike agents, large on networks that mix slowly; variance "
        "O(alpha)",
        draw="the plain average of the agents, one an iteration (draws='agents' adds each agent's)",
        step_size="alpha_0, about 20 times the first step alpha_t; h' = alpha_t",
        source=f"Parayil, Bai, George, Gurram (2020), with the constants of {_DECENTRALIZED}",
        engines=("local", "mpi"),
        example={"step_size": 0.05, "mixing": "ring", "consensus": (0.4, 0.01, 230.0)},
    ),
}
