"""The collectives of a torch process group by the group's own methods.

The functions of torch.distributed accept only groups that torch made itself and keeps in a registry. The methods take
the same path to the engine and also exist on a backend that a user made, and on Python subclasses of `ProcessGroup`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from sparsewire.errors import CommError

T = TypeVar("T")
CPU = torch.device("cpu")
OPS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "bor": dist.ReduceOp.BOR}
# Torch 2.13 renamed both; a subclass of ProcessGroup may have overridden either name, or neither.
ALL_GATHER = ("all_gather_single", "_allgather_base")
ALL_TO_ALL = ("all_to_all_single", "alltoall_base")


def default_group() -> Any:
    """The group of all processes, which `init_process_group` makes."""
    if not dist.is_initialized():
        raise CommError("torch.distributed has no process group: call init_process_group first")
    return dist.group.WORLD


def all_gather(target: torch.Tensor, source: torch.Tensor, group: Any) -> None:
    options = _options(distributed_c10d.AllgatherOptions())
    method = _own_method(group, ALL_GATHER)
    if method is not None:
        _wait(method(target, source, options))
    else:
        rows = list(target.view(-1, source.numel()).unbind())
        _wait(group.allgather([rows], [source], options))


def all_to_all(target: torch.Tensor, source: torch.Tensor, to: list[int], of: list[int], group: Any) -> None:
    """Sends `to[rank]` elements of the source to each rank and receives `of[rank]` elements of the target."""
    _wait(_all_to_all(target, source, to, of, _options(distributed_c10d.AllToAllOptions()), group))


def start_all_to_all(target: torch.Tensor, source: torch.Tensor, to: list[int], of: list[int], group: Any) -> dist.Work:
    """The same, which begins and is not waited for."""
    work: dist.Work = _all_to_all(target, source, to, of, distributed_c10d.AllToAllOptions(), group)
    return work


def _all_to_all(
    target: torch.Tensor, source: torch.Tensor, to: list[int], of: list[int], options: Any, group: Any
) -> Any:
    method = _own_method(group, ALL_TO_ALL) or group.alltoall_base
    return method(target, source, of, to, options)


def all_reduce(tensor: torch.Tensor, op: str, group: Any) -> None:
    options = _options(dist.AllreduceOptions())
    options.reduceOp = OPS[op]
    _wait(group.allreduce([tensor], options))


def start_all_reduce(tensor: torch.Tensor, op: str, group: Any) -> dist.Work:
    """Begins the reduction and does not wait for it."""
    options = dist.AllreduceOptions()
    options.reduceOp = OPS[op]
    work: dist.Work = group.allreduce([tensor], options)
    return work


def broadcast(tensor: torch.Tensor, root: int, group: Any) -> None:
    options = _options(distributed_c10d.BroadcastOptions())
    options.rootRank, options.rootTensor = root, 0
    _wait(group.broadcast([tensor], options))


def send(tensor: torch.Tensor, peer: int, tag: int, group: Any) -> None:
    _wait(group.send([tensor], peer, tag))


def recv(tensor: torch.Tensor, peer: int, tag: int, group: Any) -> None:
    _wait(group.recv([tensor], peer, tag))


def rank_in(group: Any) -> int:
    """This process's rank in the group.

    A wrapper may tell the size of the group that it wraps and have its own rank 0, as torchft's do: then the wrapped
    group is asked.
    """
    if not hasattr(group, "rank"):
        raise CommError("this process is not a member of the group")
    while _overrides(group, "size") and not _overrides(group, "rank"):
        if not hasattr(group, "parent"):
            raise CommError(f"{type(group).__name__} does not know its rank: pass TorchCommunicator(group, rank=…)")
        group = group.parent
    return int(group.rank())


def global_ranks(group: Any) -> list[int] | None:
    """The ranks of the group in the world, or None for a group that torch does not know."""
    known = distributed_c10d._world.pg_group_ranks
    return dist.get_process_group_ranks(group) if dist.is_initialized() and group in known else None


def default_device(group: Any) -> torch.device:
    """The device of the engine's buffers: the CPU if the engine can, else the accelerator in use."""
    devices = _device_types(group)
    if "cpu" in devices:
        return CPU
    return torch.device(devices[0], torch.get_device_module(devices[0]).current_device())


def _device_types(group: Any) -> list[str]:
    if global_ranks(group) is not None:
        return [pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")]
    names = [device.type for device in getattr(group, "_device_types", [])]
    return names or (["cuda"] if "nccl" in _backend_name(group) else ["cpu"])


def _backend_name(group: Any) -> str:
    name = getattr(group, "getBackendName", None) or group.name
    with suppress(RuntimeError):  # a subclass without an engine of its own has no name
        return str(name()).lower()
    return ""


def _own_method(group: Any, names: tuple[str, str]) -> Any:
    """The first of these methods that the group implements itself; a subclass inherits methods that do not work."""
    is_subclass = isinstance(group, dist.ProcessGroup) and type(group) is not dist.ProcessGroup
    usable = (name for name in names if (_overrides(group, name) if is_subclass else hasattr(group, name)))
    return next((getattr(group, name) for name in usable), None)


def _overrides(group: Any, name: str) -> bool:
    inherited = getattr(dist.ProcessGroup, name, None)
    return isinstance(group, dist.ProcessGroup) and getattr(type(group), name, None) is not inherited


def _options(options: T) -> T:
    """Of torch 2.7 and later: the caller waits at once, so NCCL needs no stream of its own."""
    if hasattr(options, "asyncOp"):
        options.asyncOp = False
    return options


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()
