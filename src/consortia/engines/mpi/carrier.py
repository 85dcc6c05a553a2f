"""What moves the packed arrays of a stage's phases between ranks."""

from __future__ import annotations

import numpy as np

from consortia.core.contract import Mean, Mix, Sum
from consortia.engines.mpi.communicator import Communicator
from consortia.engines.mpi.pieces import Carrier, Stage
from consortia.errors import InputError


def carrier_of(stage: Stage, communicator: Communicator) -> Carrier:
    """Allreduce for averages and sums, a neighbourhood collective for gossip."""
    networks = {
        index: communicator.network(around.links) for index, around in stage.neighbourhoods.items()
    }

    def carry(index: int, own: list[np.ndarray], result: list[np.ndarray]) -> None:
        exchange = stage.phases[index].exchange
        if isinstance(exchange, Mix):
            networks[index](own, result)
        elif isinstance(exchange, Mean | Sum):
            for part, into in zip(own, result, strict=True):
                communicator.total(part, into)
        else:
            name = type(exchange).__name__
            raise InputError(f"the MPI engine cannot carry out a {name} here.")

    return carry
