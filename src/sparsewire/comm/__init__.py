"""The `Communicator` of ranks that are threads of one process, processes of torch.distributed, of MPI or of
TensorFlow's cluster.

>>> from sparsewire.comm import run_ranks
>>> run_ranks(2, lambda comm: [bytes(part) for part in comm.all_gather(b"ab"[: comm.rank + 1])])
[[b'a', b'ab'], [b'a', b'ab']]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import Communicator
from .threads import ThreadCommunicator, run_ranks

if TYPE_CHECKING:
    from .mpi import MPICommunicator
    from .tensorflow import TensorFlowCommunicator
    from .torch import TorchCommunicator

__all__ = ["Communicator", "MPICommunicator", "TensorFlowCommunicator", "ThreadCommunicator", "TorchCommunicator",
           "run_ranks"]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import an engine only for those who ask: all of them are slow, and MPI starts itself when imported."""
    if name == "TorchCommunicator":
        from .torch import TorchCommunicator

        return TorchCommunicator
    if name == "MPICommunicator":
        from .mpi import MPICommunicator

        return MPICommunicator
    if name == "TensorFlowCommunicator":
        from .tensorflow import TensorFlowCommunicator

        return TensorFlowCommunicator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
