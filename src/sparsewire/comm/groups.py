"""New groups of torch.distributed, with all ranks of another one or some of them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from sparsewire.errors import CommError, CommTimeout

from .background import within

MARGIN = 2.0  # seconds beyond a group's own limit: a store that is stopped or cut off answers no call at all

_made: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()  # how many groups were made from this one


def new_group(
    parent: dist.ProcessGroup, ranks: Sequence[int], call: str, timeout: datetime.timedelta | None = None
) -> dist.ProcessGroup:
    """A group of some of the parent's ranks, given as those of the world; by default it waits as long as the parent.

    Every rank of the parent calls it as often as the others, with the ranks of the group that it will be in. The group
    is gloo's whatever the parent's backend is, as what we exchange is in host memory; only MPI, which has no store for
    ranks to meet in, has groups of its own.
    """
    limit = timeout or timeout_of(parent)

    def make() -> dist.ProcessGroup:
        part, backend = len(ranks) < dist.get_world_size(), "mpi" if dist.get_backend(parent) == "mpi" else "gloo"
        with _own_name(parent, ranks[0]) if part else nullcontext():
            return dist.new_group(list(ranks), timeout=limit, backend=backend, use_local_synchronization=part)

    return _made_within(limit, make, len(ranks), call)


def new_part(parent: dist.ProcessGroup, parts: Sequence[Sequence[int]], call: str) -> dist.ProcessGroup | None:
    """This rank's one of several groups with the parent's own backends, whose `parts` hold each of its ranks once.

    Every rank of the parent calls it with the same parts, as ranks of the world. If the parent is the whole world, all
    ranks make all groups, in one order: an engine that splits its communicators needs them all. None where such an
    engine would need ranks that the parent has not.
    """
    limit, rank, size = timeout_of(parent), dist.get_rank(), dist.get_world_size(parent)
    whole = size == dist.get_world_size()
    settings: Any = {"timeout": limit, "backend": dist.get_backend_config(parent)}
    (own,) = (list(ranks) for ranks in parts if rank in ranks)
    if not whole and getattr(dist.group.WORLD, "bound_device_id", None) is not None:
        return None

    def make() -> dist.ProcessGroup:
        if whole:
            made = [dist.new_group(list(ranks), **settings) for ranks in parts]
            return next(group for group, ranks in zip(made, parts, strict=True) if rank in ranks)
        with _own_name(parent, own[0]):
            return dist.new_group(own, use_local_synchronization=True, **settings)

    return _made_within(limit, make, size, call)


def _made_within(
    limit: datetime.timedelta, make: Callable[[], dist.ProcessGroup], ranks: int, call: str
) -> dist.ProcessGroup:
    """What torch makes within the limit and a little more."""
    try:
        return within(limit.total_seconds() + MARGIN, make, "new_group")
    except (RuntimeError, CommTimeout) as error:
        late = any(word in str(error).lower() for word in ("timeout", "timed out", "no answer"))
        raise (CommTimeout if late else CommError)(
            f"{call}: not all of {ranks} ranks have come ({error}); every rank of the model must call {call}"
        ) from error


def init_group(timeout: float, backend: str = "gloo", **settings: Any) -> None:
    """`dist.init_process_group(backend, timeout=…, **settings)`, which ends within the timeout and a few seconds.

    Gloo waits five times its timeout for a rank that is lost while they connect. After a failure call it again with
    another store (`init_method`): the addresses of this attempt stay in the one that it had.
    """
    limit = datetime.timedelta(seconds=timeout)
    try:
        within(timeout + MARGIN, lambda: dist.init_process_group(backend, timeout=limit, **settings), "init_group")
    except (RuntimeError, CommTimeout) as error:
        raise CommTimeout(
            f"init_group: not all ranks have come within {timeout:g} s ({error}); call it again among those that are "
            "left, with another init_method"
        ) from None


def drop(group: dist.ProcessGroup) -> None:
    """Destroys the group, unless the user has destroyed all of them, and maybe made others, meanwhile."""
    if dist.is_initialized() and group in distributed_c10d._world.pg_map:
        dist.destroy_process_group(group)


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


def devices_of(group: dist.ProcessGroup | None) -> list[str]:
    """The kinds of devices whose tensors the group has a backend for."""
    return [pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")]


def timeout_of(group: dist.ProcessGroup) -> datetime.timedelta:
    """How long the group's collectives wait for a rank."""
    devices = devices_of(group)
    backend = group._get_backend(torch.device("cpu" if "cpu" in devices else devices[0]))
    timeout = getattr(getattr(backend, "options", None), "_timeout", None)
    return timeout or distributed_c10d.default_pg_timeout
