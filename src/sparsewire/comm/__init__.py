"""The `Communicator` of ranks that are threads of one process, processes of torch.distributed or processes of MPI.

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
    from .torch import TorchCommunicator

__all__ = ["Communicator", "MPICommunicator", "ThreadCommunicator", "TorchCommunicator", "run_ranks"]


def __getattr__(name: str) -> object:
    """Import torch and mpi4py only for those who ask: both are slow, and MPI starts itself when imported."""
    if name == "TorchCommunicator":
        from .torch import TorchCommunicator

        return TorchCommunicator
    if name == "MPICommunicator":
        from .mpi import MPICommunicator

        return MPICommunicator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
