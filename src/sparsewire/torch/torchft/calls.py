"""`Calls`: the tensors of a torchft step, each with an averager of its own.

Torchft waits for the mean of one tensor before it hands over the next, and gives no names. So every call of `allreduce`
is a training of one tensor, known by its place in the step, and all of them count, or none does, when torchft has
decided about the step. DiLoCo's fragments take turns: a fragment's calls are apart from those of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sparsewire.comm import Communicator
from sparsewire.errors import InputError
from sparsewire.kernels.scratch import BufferPool
from sparsewire.training.averager import Averager
from sparsewire.training.layout import Slice
from sparsewire.training.residuals.saved import Saved
from sparsewire.training.schedule import Settings

from ..ddp.bucket import Bucket


@dataclass(frozen=True)
class Kind:
    """What a call's tensor must be like in every step."""

    size: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.size} elements of {str(self.dtype).removeprefix('torch.')}"


class Calls:
    """The averagers of a manager by the name of a call, such as "fragment 0, call 2"."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._staging = settings, BufferPool()
        self._averagers: dict[str, Averager] = {}
        self._kinds: dict[str, Kind] = {}  # of steps that counted
        self._saved: dict[str, Mapping[str, Any]] = {}  # loaded, for calls that have not come yet
        self._step: list[tuple[Averager, bool, bool]] = []  # this step's: averager, participates, finite
        self._new: dict[str, Kind] = {}

    def check(self, name: str, tensor: torch.Tensor) -> None:
        """Raises for a tensor that differs from what this call had in earlier steps."""
        kind = Kind(tensor.numel(), tensor.dtype)
        known = self._kinds.get(name, kind)
        if kind != known:
            raise InputError(
                f"{name} of this step has {kind}, in earlier steps {known}: tensors are known by their order, so every "
                "step must reduce the same ones; use torchft's DistributedDataParallel, or a manager for each model"
            )
        self._new[name] = kind

    def mean(self, name: str, flat: torch.Tensor, comm: Communicator, step: int, participates: bool) -> None:
        """The mean over all ranks takes the place of the numbers; no residual moves before `settle`.

        A rank that does not participate sends zeros, and nothing of what it has not sent before.
        """
        averager = (
            self._averager(name, flat, comm) if participates else Averager(comm, self._settings, {name: flat.numel()})
        )
        averager.step = step
        self._step.append((averager, participates, False))
        bucket = Bucket(flat, flat, (Slice(name, 0, flat.numel()),), True)
        averager.put_buffers([bucket.as_buffer(self._staging)])
        finite = averager.write_means(averager.prepare())
        self._step[-1] = averager, participates, finite

    def settle(self, counted: bool) -> None:
        """Ends the step. Residuals move if it counted and was finite in all of its tensors, on all ranks."""
        step, self._step = self._step, []
        new, self._new = self._new, {}
        finite = all(finite for _, _, finite in step)
        if counted:
            self._kinds |= new
        for averager, participates, _ in step:
            if counted and finite and participates:
                averager.settle(True)
            else:
                averager.abandon()

    def clear(self) -> None:
        """Forgets what was not sent: another replica's model takes the place of the one that it belongs to."""
        self.settle(False)
        self._averagers, self._saved = {}, {}

    def seconds(self) -> dict[str, float]:
        """The seconds of all calls by stage."""
        total: dict[str, float] = {}
        for averager in self._averagers.values():
            for stage, seconds in averager.clock.seconds.items():
                total[stage] = total.get(stage, 0.0) + seconds
        return total

    def state_dict(self) -> dict[str, Any]:
        """What was not sent, by call."""
        return {**self._saved, **{name: averager.state_dict() for name, averager in self._averagers.items()}}

    def load_state_dict(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Goes on from these, which `check_calls` has seen. Their sizes are checked when their tensors come."""
        self.clear()
        self._kinds, self._saved = {}, dict(states)

    def _averager(self, name: str, flat: torch.Tensor, comm: Communicator) -> Averager:
        averager = self._averagers.get(name)
        if averager is None:
            averager = Averager(comm, self._settings, {name: flat.numel()})
            if name in self._saved:
                here = {"rank": comm.rank, "world_size": comm.size}  # ranks are a quorum's, residuals a replica's
                averager.load_state_dict({**self._saved[name], **here})
                del self._saved[name]
            self._averagers[name] = averager
        elif averager.comm is not comm:
            averager.connect(comm)
        return averager


def check_calls(states: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuses saved states that no averager could go on from, whatever their tensors are."""
    for state in states.values():
        Saved.read(state, state["scale"])
