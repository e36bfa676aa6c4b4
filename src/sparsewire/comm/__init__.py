"""The `Communicator` of ranks: threads of one process, or processes of torch.distributed, MPI or jax.distributed.

>>> from sparsewire.comm import run_ranks
>>> run_ranks(2, lambda comm: [bytes(part) for part in comm.all_gather(b"ab"[: comm.rank + 1])])
[[b'a', b'ab'], [b'a', b'ab']]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import Communicator
from .threads import ThreadCommunicator, run_ranks

if TYPE_CHECKING:
    from .jax import JaxCommunicator
    from .mpi import MPICommunicator
    from .torch import TorchCommunicator

__all__ = ["Communicator", "JaxCommunicator", "MPICommunicator", "ThreadCommunicator", "TorchCommunicator", "run_ranks"]


def __getattr__(name: str) -> object:
    """Import torch, mpi4py and jax only for those who ask: all are slow, and MPI starts itself when imported."""
    if name == "TorchCommunicator":
        from .torch import TorchCommunicator

        return TorchCommunicator
    if name == "MPICommunicator":
        from .mpi import MPICommunicator

        return MPICommunicator
    if name == "JaxCommunicator":
        from .jax import JaxCommunicator

        return JaxCommunicator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
