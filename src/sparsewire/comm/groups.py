"""New groups of torch.distributed, with all ranks of another one or some of them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..errors import CommError, CommTimeout

_made: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()  # how many groups were made from this one


def new_group(
    parent: dist.ProcessGroup, ranks: Sequence[int], call: str, timeout: datetime.timedelta | None = None
) -> dist.ProcessGroup:
    """A group of some of the parent's ranks, given as those of the world; by default it waits as long as the parent.

    Every rank of the parent calls it as often as the others, with the ranks of the group that it will be in.
    """
    part = len(ranks) < dist.get_world_size()
    limit = timeout or _timeout_of(parent)
    try:
        with _own_name(parent, ranks[0]) if part else nullcontext():
            return dist.new_group(
                list(ranks), timeout=limit, backend=dist.get_backend(parent), use_local_synchronization=part
            )
    except RuntimeError as error:
        late = "timeout" in str(error).lower() or "timed out" in str(error).lower()
        raise (CommTimeout if late else CommError)(
            f"{call}: not all of {len(ranks)} ranks have come ({error}); every rank of the model must call {call}"
        ) from error


@contextmanager
def _own_name(parent: dist.ProcessGroup, first: int) -> Iterator[None]:
    """A name for a new group of some ranks that is the same on each and was never used.

    Torch up to 2.13 hashes in how many groups the rank is in: ranks in different numbers of groups never meet, and a
    name that comes again finds the addresses of the group before (github.com/pytorch/pytorch/pull/189073).
    """
    _made[parent] = _made.get(parent, 0) + 1
    torchs = distributed_c10d._process_group_name
    name = f"{parent.group_name}-sparsewire-{_made[parent]}-{first}"
    setattr(distributed_c10d, "_process_group_name", lambda *_, **__: name)  # noqa: B010 (its type is not public)
    try:
        yield
    finally:
        distributed_c10d._process_group_name = torchs


def _timeout_of(group: dist.ProcessGroup) -> datetime.timedelta | None:
    options = getattr(group, "_get_backend", lambda device: None)(torch.device("cpu"))
    return getattr(getattr(options, "options", None), "_timeout", None)
