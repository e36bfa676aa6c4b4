"""Order on accelerators, where work is queued on streams and a future is done before its tensor is.

The hook marks where the gradient's own stream stands, the communication thread's copies run on a stream of their own
behind that mark, and the future knows its device, so that DDP's stream waits for the copies. On the CPU none of this is
needed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


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
