"""The model's own engine, for what travels dense from gradients on devices.

Frames are bytes of the host and travel over gloo, in a group of the communication thread's own. Dense steps and dense
parameters are added up where they lie, by the group that DDP was given (NCCL, or whatever it is), if all ranks have
their gradients on devices of one kind.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
import torch.distributed as dist

from sparsewire.comm.torch import TorchCommunicator, translate
from sparsewire.errors import CommError, CommTimeout

from ..group import SLICE, CommGroup
from .device_path import DevicePath

CHANNEL = "device"
PAUSE = 0.0005  # seconds between looks at a collective on an accelerator


class ModelEngine:
    """Adds up tensors of devices over the ranks. Waiting ends when another rank says that it fails, and with the
    group's timeout, whatever the engine's own is."""

    def __init__(self, comm: TorchCommunicator, group: CommGroup) -> None:
        self._comm, self._group = comm, group

    def sum(self, tensor: torch.Tensor) -> None:
        """In the tensor's own memory; what is queued behind it sees the sum."""
        if tensor.numel():
            self.wait("all_reduce", self._comm.start_all_reduce(tensor), tensor.device)

    def wait(self, call: str, work: dist.Work, device: torch.device) -> None:
        """Until a collective has ended; the current stream goes on behind it."""
        if device.type == "cpu":
            self._group.wait(work, call)
        else:
            self._await(call, work)

    def _await(self, call: str, work: dist.Work) -> None:
        limit, start = self._group.timeout, time.monotonic()
        look = start + SLICE.total_seconds()  # when to ask the store, which is in another process, what the others say
        while not work.is_completed():
            now = time.monotonic()
            if now > start + limit:
                raise CommTimeout(f"{call}: the model's own engine has not ended it within {limit:g} s")
            if now > look:
                look = now + SLICE.total_seconds()
                if self._group.failed:
                    raise CommError(f"{call}: another rank has left")
            time.sleep(PAUSE)
        try:
            work.wait()
        except RuntimeError as error:
            raise translate(call, error) from error


def engine_for(
    group: CommGroup, model: dist.ProcessGroup | None, parameters: Iterable[torch.Tensor]
) -> ModelEngine | None:
    """The model's engine, if it can take the gradients of all ranks. Every rank calls it."""
    kind = agreed_kind(group.comm, parameters)
    return ModelEngine(group.comm if kind == "cpu" else group.comm.beside(model), group) if kind else None


def agreed_kind(comm: TorchCommunicator, parameters: Iterable[torch.Tensor]) -> str:
    """The kind of device that all buckets of all ranks stay on, "" if there is none. Every rank calls it."""
    mine = DevicePath().kind(parameter.device for parameter in parameters)
    kinds = {bytes(kind) for kind in comm.all_gather(mine.encode(), CHANNEL)}
    return mine if len(kinds) == 1 else ""
