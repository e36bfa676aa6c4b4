"""The `Communicator` of ranks: threads of one process, or processes of torch.distributed, of MPI, of TensorFlow's
cluster or of jax.distributed.

>>> from sparsewire.comm import run_ranks
>>> run_ranks(2, lambda comm: [bytes(part) for part in comm.all_gather(b"ab"[: comm.rank + 1])])
[[b'a', b'ab'], [b'a', b'ab']]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .base import Communicator
from .threads import ThreadCommunicator, run_ranks

if TYPE_CHECKING:
    from .jax import JaxCommunicator
    from .mpi import MPICommunicator
    from .tensorflow import TensorFlowCommunicator
    from .torch import TorchCommunicator

__all__ = ["Communicator", "JaxCommunicator", "MPICommunicator", "TensorFlowCommunicator", "ThreadCommunicator",
           "TorchCommunicator", "run_ranks"]  # fmt: skip

# Engines whose packages are imported only for those who ask: all are slow, and MPI starts itself when imported.
ENGINES = {
    "JaxCommunicator": "jax",
    "MPICommunicator": "mpi",
    "TensorFlowCommunicator": "tensorflow",
    "TorchCommunicator": "torch",
}


def __getattr__(name: str) -> object:
    if name in ENGINES:
        return getattr(importlib.import_module(f".{ENGINES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
