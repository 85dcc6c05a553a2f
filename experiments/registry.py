"""The one table of the experiments, read by ``consortia experiments``, the documents and the tests.

It imports nothing but the standard library: listing the experiments loads no program.
"""

from __future__ import annotations

from typing import NamedTuple


class Experiment(NamedTuple):
    """A program that repeats a published figure or table.

    Attributes:
        paper: its folder.
        name: its module.
        repeats: what it repeats.
        data: names of the data sets of `consortia.datasets` that it needs; none where it makes its
            own, or uses scikit-learn's.
        optional: data that it can do without; it says so.
    """

    paper: str
    name: str
    repeats: str
    data: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What runs it, from the root of the source tree."""
        return f"python -m experiments.{self.paper}.{self.name}"


SCALES = {
    "quick": "seconds, to see that it runs",
    "laptop": "minutes",
    "paper": "the paper's own numbers",
}
"""What ``--scale`` takes, and what it means."""

EXPERIMENTS = (
    Experiment(
        "fa_hmc",
        "logistic",
        "Liang et al. (2024), section 5.1, figure 1: marginal error of FA-HMC and FA-LD",
    ),
    Experiment(
        "fa_hmc",
        "dimension",
        "Liang et al. (2024), section 5.2, figure 2: rounds to W2² < 0.1 against the dimension",
    ),
    Experiment(
        "fa_hmc",
        "fashion_mnist",
        "Liang et al. (2024), section 5.3, figures 3 and 4: softmax regression on Fashion-MNIST",
        data=("fashion_mnist",),
    ),
    Experiment(
        "fa_hmc",
        "neural_network",
        "Liang et al. (2024), section 5.4, figure 5: a network on Fashion-MNIST",
        data=("fashion_mnist",),
    ),
    Experiment(
        "fa_hmc",
        "images",
        "Liang et al. (2024), section 5.5, figures 6 and 7: KMNIST and CIFAR-2",
        data=("kmnist", "cifar2"),
    ),
    Experiment("fsgld", "gradients", "El Mekkaoui et al. (2021), figure 1: variance of gradients"),
    Experiment(
        "fsgld", "gaussian_mean", "El Mekkaoui et al. (2021), figures 2, 3 and 4: a Gaussian mean"
    ),
    Experiment(
        "fsgld",
        "metric_learning",
        "El Mekkaoui et al. (2021), figure 5: metric learning",
        data=("isolet",),
    ),
    Experiment(
        "fsgld",
        "neural_network",
        "El Mekkaoui et al. (2021), table 1: networks on unlike shards",
        optional=("susy",),
    ),
    Experiment(
        "de_sgld",
        "networks",
        "Gürbüzbalaban et al. (2021), figures 2 and 3: DE-SGLD and DE-SGHMC on three networks",
    ),
    Experiment(
        "de_sgld",
        "settings",
        "Gürbüzbalaban et al. (2021), figure 4: batch size, step size and network",
    ),
    Experiment(
        "de_sgld",
        "correction",
        "Gürbüzbalaban et al. (2021), and corrections: EXTRA, common and averaged noise",
    ),
    Experiment(
        "de_sgld",
        "logistic",
        "Gürbüzbalaban et al. (2021), Bayesian logistic regression on three networks",
    ),
    Experiment(
        "stale_gradients",
        "impact",
        "Chen et al. (2016), section 5.1, figure 1: staleness and the error of an average",
    ),
    Experiment(
        "stale_gradients",
        "speedup",
        "Chen et al. (2016), section 5.1, figure 2: variance with more workers on a9a",
        data=("a9a",),
    ),
    Experiment(
        "stale_gradients",
        "logistic",
        "Chen et al. (2016), section 5.2: more workers and servers, logistic regression on a9a",
        data=("a9a",),
    ),
    Experiment(
        "stale_gradients",
        "lenet",
        "Chen et al. (2016), section 5.2: more workers and servers, LeNet on MNIST",
        data=("mnist",),
    ),
    Experiment(
        "stale_gradients",
        "cifar",
        "Chen et al. (2016), section 5.2: more workers and servers, two classes of CIFAR-10",
        data=("cifar2",),
    ),
    Experiment(
        "decentralized",
        "linear",
        "Kungurtsev et al. (2023), appendix 2: linear regression on Boston housing, four agents",
        data=("boston",),
    ),
    Experiment(
        "decentralized",
        "logistic",
        "Kungurtsev et al. (2023), appendix 2: softmax regression on MNIST, partial views and a "
        "ring",
        data=("mnist",),
    ),
    Experiment(
        "decentralized",
        "neural_network",
        "Kungurtsev et al. (2023), appendix 2: a network on MNIST, two agents with unlike digits",
        data=("mnist",),
    ),
)
