"""A small network over ten clients on Fashion-MNIST, convolutional or not, by five methods.

    python examples/fashion_networks.py [--network cnn|mlp] [--rows 6000] [--passes 500]
        [--chains 2] [--methods fa_ld ...]

Needs the extra ``flax`` and the data set (`consortia.datasets.load`). The classes are dealt out
unevenly (Dirichlet, 0.5). No draw is kept: predictions at the test rows are averaged over them, so
that the memory does not grow with the run. Prints accuracy, expected calibration error and log
score of the averaged predictions, seconds of the processor, and the most memory that the process
has held.
"""

import argparse
import math
import resource
import time

import flax.linen as nn
import numpy as np

import consortia
from consortia.diagnostics.predictive import scores

CLIENTS, TEST_ROWS, BATCH = 10, 2000, 32


class Convolutional(nn.Module):
    """Two strided convolutions and a layer of scores: 9,098 weights."""

    @nn.compact
    def __call__(self, x):
        """Return the scores of ten classes, (rows, 10)."""
        x = x.reshape(-1, 28, 28, 1)
        for width in (8, 16):
            x = nn.relu(nn.Conv(width, (3, 3), strides=(2, 2))(x))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class Perceptron(nn.Module):
    """One layer of 32 units, and a layer of scores: 25,450 weights."""

    @nn.compact
    def __call__(self, x):
        """Return the scores of ten classes, (rows, 10)."""
        return nn.Dense(10)(nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1))))


NETWORKS = {"cnn": (Convolutional(), 6e-5), "mlp": (Perceptron(), 1e-5)}
"""With the step of Langevin dynamics that each takes."""


def methods(step: float, passes: int) -> dict:
    """Return five methods, each with rounds for about so many steps of Langevin dynamics."""
    options = {"batch_size": BATCH}
    return {
        # the arguments of these two have h' = η²/2, and h/2, as the step of Langevin dynamics
        "fa_ld": (consortia.fa_ld(math.sqrt(2 * step), 5, **options), passes // 5),
        "fa_hmc": (consortia.fa_hmc(math.sqrt(2 * step) / 2, 5, 1, **options), passes // 5),
        "dsgld": (consortia.dsgld(2 * step, 5, **options), passes // 5),
        "de_sgld": (consortia.de_sgld(step, "ring", **options), passes),
        # stale gradients are stable to a fifth of it; a step takes one client's gradient, not ten
        "stale_sgld": (consortia.stale_sgld(step / 6, BATCH, workers=CLIENTS), 6 * passes),
    }


def main() -> None:
    """Sample by every method, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=list(NETWORKS), default="cnn")
    parser.add_argument("--rows", type=int, default=6000, help="of training, at all clients")
    parser.add_argument("--passes", type=int, default=500, help="steps of a method")
    parser.add_argument("--chains", type=int, default=2, help="of each method")
    parser.add_argument("--methods", nargs="*", default=list(methods(1, 10)), help="all by default")
    given = parser.parse_args()
    network, step = NETWORKS[given.network]
    data = consortia.datasets.load("fashion_mnist")
    order = np.random.default_rng(0).permutation(len(data.rows["y"]))[: given.rows]
    train = {name: np.asarray(column)[order] for name, column in data.rows.items()}
    test = {name: np.asarray(column)[:TEST_ROWS] for name, column in data.test.items()}
    scale = 255.0 if train["x"].max() > 1 else 1.0
    train["x"], test["x"] = (part["x"].astype(np.float32) / scale for part in (train, test))
    sites = consortia.partition.dirichlet(train, CLIENTS, concentration=0.5, seed=0)
    model = consortia.from_flax(network, sites, prior={"*bias": "normal(0, 1)", "*": "fan_in(1.4)"})
    print(
        f"{len(order)} rows at {CLIENTS} clients of {min(sites.sizes)} to {max(sites.sizes)} rows"
    )
    print(f"{'method':12}{'accuracy':>9}{'ECE':>8}{'log score':>11}{'CPU s':>9}{'MiB':>7}")
    for name in given.methods:
        method, rounds = methods(step, given.passes)[name]
        began = time.process_time()
        tree = consortia.sample(
            model,
            sites,
            method,
            rounds=rounds // 2,
            warmup=rounds - rounds // 2,
            chains=given.chains,
            thin=max(1, rounds // 100),
            keep=consortia.keep_predictions(test),
            progress=False,
            on_divergence="ignore",
        )
        found = scores(np.asarray(tree["predictions"]["mean"]), test["y"])
        seconds = time.process_time() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{name:12}{found['accuracy']:9.3f}{found['ece']:8.3f}{-found['nll_per_row']:11.3f}"
            f"{seconds:9.1f}{memory:7.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
