"""The one table of algorithms, read by the documentation, the command line and the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from consortia.algorithms.decentralized.hmc import decentralized_exact_hmc, decentralized_hmc
from consortia.algorithms.decentralized.ula import decentralized_ula
from consortia.algorithms.fa_hmc import fa_hmc, fa_ld
from consortia.algorithms.federated_hmc import federated_hmc
from consortia.algorithms.few_rounds import few_rounds
from consortia.algorithms.gossip import de_sghmc, de_sgld
from consortia.algorithms.private_posterior import private_posterior
from consortia.algorithms.stale import stale_sghmc, stale_sgld, stale_sgnht
from consortia.algorithms.travelling import dsgld, fsgld
from consortia.core.arguments import unknown
from consortia.core.contract import Claims, Method


@dataclass(frozen=True)
class Entry:
    """An algorithm by its name: its factory, its engines and an example."""

    factory: Callable[..., Method]  # the public function or class that makes it
    engines: tuple[str, ...]  # engines that run it
    example: dict[str, Any]  # arguments with which it runs, for tests and documentation
    sites: int | None = None  # number of sites that the example is for; any number when None

    @property
    def claims(self) -> Claims:
        """The sampled law and its bias, with the arguments of the example."""
        return self.factory(**self.example).claims


ALL, NO_FLOWER = ("local", "mpi", "flower"), ("local", "mpi")
"""Engines of a method; without Flower, which takes seconds a message, where messages are many."""

ALGORITHMS: dict[str, Entry] = {
    "few_rounds": Entry(few_rounds, ALL, {"proposals": 600, "effective_size": 100.0}),
    "private_posterior": Entry(
        private_posterior, ALL, {"epsilon": 9e4, "delta": 1e-4, "clip": 9.0}
    ),
    "fa_hmc": Entry(fa_hmc, ALL, {"step_size": 0.02, "leapfrog_steps": 3, "local_steps": 2}),
    "fa_ld": Entry(fa_ld, ALL, {"step_size": 0.02, "local_steps": 2}),
    "dsgld": Entry(dsgld, ALL, {"step_size": 0.01, "local_steps": 3}),
    "fsgld": Entry(fsgld, ALL, {"step_size": 0.01, "local_steps": 3}),
    "de_sgld": Entry(
        de_sgld, NO_FLOWER, {"step_size": 0.02, "mixing": "ring", "averaged_noise": False}
    ),
    "de_sghmc": Entry(de_sghmc, NO_FLOWER, {"step_size": 0.05, "friction": 4.0, "mixing": "ring"}),
    "stale_sgld": Entry(
        stale_sgld, NO_FLOWER, {"step_size": 0.01, "batch_size": 4, "workers": 3}, sites=1
    ),
    "stale_sghmc": Entry(
        stale_sghmc,
        NO_FLOWER,
        {"step_size": 0.05, "friction": 2.0, "batch_size": 4, "workers": 3},
        sites=1,
    ),
    "stale_sgnht": Entry(
        stale_sgnht,
        NO_FLOWER,
        {"step_size": 0.05, "friction": 2.0, "batch_size": 4, "workers": 3},
        sites=1,
    ),
    "federated_hmc": Entry(
        federated_hmc, ALL, {"step_size": 0.05, "leapfrog_steps": 2, "mass_matrix": "identity"}
    ),
    "decentralized_hmc": Entry(
        decentralized_hmc, NO_FLOWER, {"step_size": 0.05, "mixing": "path", "gossip_rounds": 2}
    ),
    "decentralized_exact_hmc": Entry(
        decentralized_exact_hmc, ALL, {"step_size": 0.05, "mixing": "path", "leapfrog_steps": 2}
    ),
    "decentralized_ula": Entry(
        decentralized_ula,
        NO_FLOWER,
        {"step_size": 0.05, "mixing": "ring", "consensus": (0.4, 0.01, 230.0)},
    ),
}


@dataclass(frozen=True)
class Setting:
    """A method that stands under another name: settings of an algorithm here."""

    algorithm: str  # its name in `ALGORITHMS`
    arguments: dict[str, Any]  # what makes it so, by name
    how: str  # what it is, and what differs from its paper; "" where nothing does


SETTINGS: dict[str, Setting] = {
    "sgld": Setting(
        "stale_sgld",
        {"workers": 1},
        "SGLD (Welling, Teh 2011): one worker, whose gradients are fresh. The paper's step is 2h.",
    ),
    "sghmc": Setting(
        "stale_sghmc",
        {"workers": 1},
        "SGHMC (Chen, Fox, Guestrin 2014): one worker, whose gradients are fresh. The paper's "
        "momentum factor is 1 - Bh.",
    ),
    "sgnht": Setting(
        "stale_sgnht",
        {"workers": 1},
        "SGNHT (Ding et al. 2014): one worker, whose gradients are fresh.",
    ),
    "fedavg": Setting(
        "fa_ld",
        {"temperature": 0.0},
        "FedAvg (McMahan et al. 2017): without noise the local steps are gradient descent, with a "
        "learning rate of step_size ** 2 / 2 for the loss U_c / w_c. All sites take part. It finds "
        "a mode and samples nothing.",
    ),
    "svrg_ld": Setting(
        "fa_ld",
        {"debias": True, "batch_size": 4},
        "SVRG-LD (Dubey et al. 2016) at every site: a minibatch's gradient less its gradient at "
        "an anchor, with the same rows, and one full gradient there a round. local_steps is the "
        "epoch, the anchor the average of the round before. Unequal sites then add no bias.",
    ),
    "saga_ld": Setting(
        "fa_ld",
        {"debias": True, "batch_size": 4, "keep_gradients": True},
        "SAGA-LD (Dubey et al. 2016) at every site: a minibatch's gradient less what is kept of "
        "its rows, and the mean of what is kept. A round begins with a full gradient, as in "
        "svrg_ld, and from there on the gradient of a row is kept as of its last visit.",
    ),
    "sgld_cv": Setting(
        "de_sgld",
        {"mixing": "complete", "batch_size": 4, "control_variate": [0.0]},
        "SGLD-CV (Baker et al. 2019) at every site: a minibatch's gradient less its gradient at a "
        "point that stays, with the same rows, and the site's exact gradient there. "
        "control_variate is that point, all parameters in the model's order: a mode, which "
        "temperature = 0.0 finds (see d_sg). svrg_ld takes a new point every round.",
    ),
    "d_sg": Setting(
        "de_sgld",
        {"temperature": 0.0},
        "D-SG, decentralized stochastic gradient descent: without noise it finds a mode, up to an "
        'error of the order of the step; correction = "extra" removes that error.',
    ),
    "d_asg": Setting(
        "de_sgld",
        {"temperature": 0.0, "momentum": 0.8},
        "D-ASG, accelerated D-SG: without noise, with a momentum.",
    ),
    "psgld": Setting(
        "stale_sgld",
        {"workers": 1, "adaptation": 0.99},
        "pSGLD (Li et al. 2016): a preconditioner that adapts along the chain, without the term "
        "for its changes, as in the paper's experiments. The paper's step is 2h/n and its λ is "
        "floor/n. The draws stay too wide as the step falls; those of adaptation = 1 do not, "
        "and have an exact law. A fixed preconditioner, from the curvatures of all sites, is "
        "`precondition = true`, consortia.preconditioned.",
    ),
}
"""Names that people look for, and what they are here."""

SETTINGS["dsgd"] = SETTINGS["d_sg"]

GONE = {
    "surrogate_hmc": "surrogate_hmc was removed: use few_rounds, which needs fewer messages and "
    "has the same law",
}
"""Advice on methods that are no longer here, by their names."""


def advice_on(name: str) -> str | None:
    """Return the advice on a method that has another name here, or is gone; None: unknown."""
    if name not in SETTINGS:
        return GONE.get(name)
    setting = SETTINGS[name]
    given = ", ".join(f"{key}={value!r}" for key, value in setting.arguments.items())
    return f"{name} is {setting.algorithm} with {given}; see `consortia algorithms {name}`"


def explain_missing(name: str) -> str:
    """Return the end of a message on a name that is not in `ALGORITHMS`."""
    return advice_on(name) or unknown(name, ALGORITHMS)
