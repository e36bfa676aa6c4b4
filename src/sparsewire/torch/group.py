"""The process group of a communication thread: collectives of two threads must not mix."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import torch.distributed as dist
from torch.distributed import distributed_c10d

from sparsewire.comm import Communicator, background
from sparsewire.comm.groups import drop, new_group, timeout_of
from sparsewire.comm.torch import TorchCommunicator, translate
from sparsewire.errors import CommError
from sparsewire.training.failures import Failures

SLICE = datetime.timedelta(seconds=1)  # of waiting, between looks at what the others say
GRACE = 2.0  # seconds: a collective that has begun cannot be ended; after these the group is left to itself


class CommGroup:
    """A group of its own with the ranks of another; every rank makes it.

    A rank that fails says so in the group's store and leaves: its sockets close, the others' collectives fail at once,
    and they find there who failed first, and why.
    """

    def __init__(
        self, group: dist.ProcessGroup, timeout: float | None, call: str = "attach", ranks: Sequence[int] | None = None
    ) -> None:
        """`ranks`: some of the group's, as those of the world; by default all of them."""
        limit = datetime.timedelta(seconds=timeout) if timeout else None
        own = new_group(group, dist.get_process_group_ranks(group) if ranks is None else ranks, call, limit)
        self.comm = TorchCommunicator(own)
        self.timeout = timeout_of(own).total_seconds()
        self._failures = Failures(self.comm.rank, distributed_c10d._get_process_group_store(own))
        self._group: dist.ProcessGroup | None = own

    @property
    def everyone(self) -> Communicator:
        """All ranks that must agree."""
        return self.comm

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """torch's own; None once it is closed."""
        return self._group

    def close(self) -> None:
        """In order: after all ranks have come this far."""
        try:
            if self._group is not None:
                self.comm.barrier()
        except CommError as error:
            raise self.fail(error)  # noqa: B904 - a peer's failure hides the engine's error
        self.leave()

    @property
    def failed(self) -> bool:
        """Whether another rank says that it fails."""
        return self._failures.any

    def wait(self, work: dist.Work, call: str = "all_reduce") -> None:
        """Until it has ended, or another rank says that it fails: of several all_reduces on their way gloo may leave
        one waiting for sockets that are closed."""
        while not self._is_done(work, call):
            if self._failures.any:
                raise CommError(f"{call}: another rank has left")

    def _is_done(self, work: dist.Work, call: str) -> bool:
        try:
            return work.wait(SLICE)
        except RuntimeError as error:
            if work.is_completed():
                raise translate(call, error) from error
            return False

    def fail(self, error: BaseException) -> BaseException:
        """Tells the others and leaves; the error to raise here, which is that of the rank that failed first."""
        error = self._failures.first(error)
        self.leave()
        return error

    def tell(self, error: BaseException) -> None:
        """Writes down, for the others, that this rank fails; unless one of them was first."""
        self._failures.tell(error)

    def leave(self) -> None:
        """Closes the sockets, which the last reference to the group does, once all of its collectives have ended."""
        own, self._group = self._group, None
        if own is not None:
            drop(own)
        del own
        background.start(self.comm.close, "sparsewire-leaves").join(GRACE)
