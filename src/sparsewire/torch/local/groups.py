"""The ranks that meet: a process group, or a communicator that the user made."""

from __future__ import annotations

import torch.distributed as dist

from sparsewire.comm import Communicator
from sparsewire.errors import CommError, InputError
from sparsewire.training.failures import GivenGroup
from sparsewire.training.settings import is_positive

from ..group import CommGroup

Group = CommGroup | GivenGroup


def open_group(group: dist.ProcessGroup | Communicator | None, timeout: float | None, call: str) -> Group:
    """A process group gets one of its own beside it; a communicator is used as it is."""
    if isinstance(group, Communicator):
        if timeout is not None:
            raise InputError("timeout= is for process groups; a communicator has a timeout of its own")
        return GivenGroup(group)
    if not dist.is_initialized():
        raise CommError("torch.distributed has no process group: call init_process_group first, or pass group=")
    own = group if group is not None else dist.group.WORLD
    assert own is not None
    return CommGroup(own, timeout if is_positive(timeout) else None, call)
