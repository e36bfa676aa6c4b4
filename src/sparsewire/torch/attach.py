"""`attach`: switches compression on for a DDP model."""

from __future__ import annotations

import datetime
import fnmatch
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from ..averager import Settings
from ..comm import Communicator
from ..comm.torch import TorchCommunicator
from ..errors import CommMismatch, InputError, SparsewireError
from ..schedule import Schedule, SchemeSchedule
from ..scheme import Spec
from ..scheme import scheme as read_scheme
from .hook import Socket, sparsewire_hook
from .link import Link

SOCKET = "_sparsewire_socket"
_made: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()  # groups of couriers by the models' groups


def attach(
    model: DistributedDataParallel,
    scheme: Spec,
    *,
    select_per: str = "parameter",
    dense_below: int = 1024,
    exclude: Iterable[str] | Callable[[str, torch.nn.Parameter], bool] = (),
    warmup_steps: int = 0,
    ratio_schedule: Schedule | None = None,
    scaler: torch.amp.GradScaler | None = None,
    seed: int = 0,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    timeout: float | None = None,
) -> Link:
    """Compresses the model's gradients from the next backward on. Every rank calls it, with the same arguments.

    scheme: string, dict or `Scheme`, e.g. "topk(1%) | indices=rice | values=qsgd(bits=7) | memory=residual".
    select_per: "parameter", or "bucket" to let parameters in one DDP bucket compete for the selection.
    dense_below, exclude: parameters smaller than this, or whose name matches a pattern (or for which a function of
        name and parameter is true), travel dense, all in one all_reduce.
    warmup_steps: dense steps at the beginning. ratio_schedule: a function of the step after them, or (until, ratio)
        pairs such as `dgc_schedule` gives; None or beyond the last pair: the scheme's own ratio.
    scaler: the GradScaler that the loss goes through, if one does: residuals then follow its scale as it changes.
    seed: for everything random. on_step: called after each step with a dict, on the courier's thread.
    timeout: seconds that a collective may wait for a rank; by default as long as the model's own process group.
    """
    if not isinstance(model, DistributedDataParallel):
        raise InputError(f"attach needs a model wrapped in DistributedDataParallel, not {type(model).__name__}")
    if select_per not in ("parameter", "bucket"):
        raise InputError(f"select_per is 'parameter' or 'bucket', not {select_per!r}")
    socket = _socket(model)
    named = dict(model.module.named_parameters())
    schedule = SchemeSchedule(read_scheme(scheme), warmup_steps, ratio_schedule)
    settings = Settings(schedule, _excluded(named, exclude), dense_below, select_per == "bucket", seed, on_step)
    comm, close = _communicator(model.process_group, timeout)
    try:
        _agree(comm, settings, named)
    except BaseException:
        close(False)
        raise
    return Link({parameter: name for name, parameter in named.items()}, comm, settings, socket, close, scaler)


def _socket(model: DistributedDataParallel) -> Socket:
    """The model's hook; registered once, as DDP allows no second."""
    socket = getattr(model, SOCKET, None)
    if socket is None:
        socket = Socket(model.process_group)
        model.register_comm_hook(socket, sparsewire_hook)
        setattr(model, SOCKET, socket)
    if socket.link is not None:
        raise SparsewireError("the model has a link already; call its detach() first")
    return socket


def _excluded(
    named: dict[str, torch.nn.Parameter], exclude: Iterable[str] | Callable[[str, torch.nn.Parameter], bool]
) -> frozenset[str]:
    if callable(exclude):
        return frozenset(name for name, parameter in named.items() if exclude(name, parameter))
    patterns = [exclude] if isinstance(exclude, str) else list(exclude)
    for pattern in patterns:
        if not fnmatch.filter(named, pattern):
            raise InputError(f"exclude={pattern!r} matches no parameter; there are {', '.join(list(named)[:8])}, …")
    return frozenset(name for name in named if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def _communicator(group: dist.ProcessGroup, timeout: float | None) -> tuple[Communicator, Callable[[bool], None]]:
    """A process group of the courier's own, and how to end it: collectives of two threads must not mix."""
    ranks = dist.get_process_group_ranks(group)
    part = len(ranks) < dist.get_world_size()
    with _own_name(group) if part else nullcontext():
        own = dist.new_group(
            ranks,
            timeout=datetime.timedelta(seconds=timeout) if timeout else _timeout_of(group),
            backend=dist.get_backend(group),
            use_local_synchronization=part,
        )
    comm = TorchCommunicator(own)

    def close(in_order: bool) -> None:
        if in_order:
            comm.barrier()
        comm.close()
        if dist.is_initialized():
            dist.destroy_process_group(own)

    return comm, close


@contextmanager
def _own_name(group: dist.ProcessGroup) -> Iterator[None]:
    """A name for a new group of some ranks that is the same on each and was never used.

    Torch up to 2.13 hashes in how many groups the rank is in: ranks in different numbers of groups never meet, and a
    name that comes again finds the addresses of the group before (github.com/pytorch/pytorch/pull/189073).
    """
    _made[group] = _made.get(group, 0) + 1
    torchs = distributed_c10d._hash_ranks_to_str
    distributed_c10d._hash_ranks_to_str = lambda *_: f"{group.group_name}-sparsewire-{_made[group]}"
    try:
        yield
    finally:
        distributed_c10d._hash_ranks_to_str = torchs


def _timeout_of(group: dist.ProcessGroup) -> datetime.timedelta | None:
    options = getattr(group, "_get_backend", lambda device: None)(torch.device("cpu"))
    return getattr(getattr(options, "options", None), "_timeout", None)


def _agree(comm: Communicator, settings: Settings, named: dict[str, torch.nn.Parameter]) -> None:
    """Ranks with different schemes would misread each other: better an error now, on all of them."""
    shapes = [(name, tuple(parameter.shape)) for name, parameter in named.items()]
    schedule = settings.schedule.schedule
    facts = (str(settings.schedule.scheme), settings.schedule.warmup_steps, None if callable(schedule) else schedule,
             settings.dense_below, settings.by_bucket, settings.seed, sorted(settings.dense_names), shapes)  # fmt: skip
    digest = f"{settings.schedule.scheme} ({zlib.crc32(repr(facts).encode()):08x})".encode()
    heard = [bytes(message) for message in comm.all_gather(digest, "agree")]
    for rank, message in enumerate(heard):
        if message != heard[0]:
            raise CommMismatch(f"rank {rank} attached with {message.decode()}, rank 0 with {heard[0].decode()}")
