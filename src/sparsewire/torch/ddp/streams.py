"""Order on accelerators, where work is queued on streams and a future is done before its tensor is.

The hook marks where the gradient's own stream stands, the communication thread's copies run on a stream of their own
behind that mark, and the future knows its device, so that DDP's stream waits for the copies. On the CPU none of this is
needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from sparsewire.planning.auto import StepTimer


def future_on(device: torch.device) -> torch.futures.Future[torch.Tensor]:
    return torch.futures.Future(devices=None if device.type == "cpu" else [device])


def mark(device: torch.device) -> Any:
    """An event on the stream that the caller works on; None on the CPU."""
    if device.type == "cpu":
        return None
    engine = torch.get_device_module(device)
    event = engine.Event()
    event.record(engine.current_stream(device))
    return event


class DeviceTimer:
    """The time of a device, as events on the stream that the caller works on: what is queued there has an end that the
    host's clock does not see."""

    def __init__(self, device: torch.device) -> None:
        self._engine, self._device = torch.get_device_module(device), device

    def __call__(self) -> Any:
        event = self._engine.Event(enable_timing=True)
        event.record(self._engine.current_stream(self._device))
        return event

    @staticmethod
    def elapsed(begun: Any, ended: Any) -> float:
        """Seconds between two events, which the host waits for."""
        begun.synchronize()
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1e3


def step_timer(devices: Iterable[torch.device]) -> StepTimer:
    """By the host's clock, or by events where all gradients lie on one device."""
    kinds = set(devices)
    if len(kinds) != 1 or (device := kinds.pop()).type == "cpu":
        return StepTimer()
    timer = DeviceTimer(device)
    return StepTimer(timer, timer.elapsed)


class Streams:
    """One stream per device."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def behind(self, event: Any, device: torch.device) -> AbstractContextManager[Any]:
        """Work in this context runs on the device's stream, after the event."""
        if device.type == "cpu":
            return nullcontext()
        engine = torch.get_device_module(device)
        if device not in self._streams:
            self._streams[device] = engine.Stream(device=device)
        self._streams[device].wait_event(event)
        return engine.stream(self._streams[device])
