"""Between a device and the host: the only functions by which arrays cross.

What comes down is queued as soon as it is asked for (`later`), on a stream of its own and into pinned memory; reading
any of it waits once, for all that a thread has queued. What goes up is copied through pinned memory and never waits.
CPU tensors, on which the device path can be forced, cross by the same functions, so that what crosses can be counted.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..reference import Array
from .torch_base import work_dtype

PINNED = ("cuda", "xpu")  # devices that copy while the host goes on, if the host's memory is pinned


@dataclass
class Counts:
    """What has crossed, and how often the host has waited for a device."""

    waits: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    down: list[int] = field(default_factory=list)  # the bytes of each array, while somebody watches

    def stats(self) -> dict[str, int]:
        return {"waits": self.waits, "bytes_down": self.bytes_down, "bytes_up": self.bytes_up}


class _Thread(threading.local):
    """What a thread has counted and queued."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.queued: list[weakref.ref[Later]] = []
        self.streams: dict[torch.device, Any] = {}


_here = _Thread()
_watching: list[Counts] = []


@contextmanager
def watched() -> Iterator[Counts]:
    """Counts what crosses meanwhile, on any thread."""
    counts = Counts()
    _watching.append(counts)
    try:
        yield counts
    finally:
        _watching.remove(counts)


def counted() -> Counts:
    """What this thread has counted."""
    return _here.counts


def _everyone() -> list[Counts]:
    return [_here.counts, *_watching]


def note_wait() -> None:
    """The host waits for a device: for arrays, or for the number of entries that a selection has found."""
    for counts in _everyone():
        counts.waits += 1


class Later:
    """Arrays on their way to the host."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors: Sequence[Tensor] = tensors  # held until they have been copied
        self._copies = [self._queue(tensor) for tensor in tensors]
        self._event = _mark(tensors)
        self._landed: list[Array] | None = None

    def _queue(self, tensor: Tensor) -> Tensor:
        nbytes = tensor.numel() * tensor.element_size()
        for counts in _everyone():
            counts.bytes_down += nbytes
            if counts in _watching:
                counts.down.append(nbytes)
        if tensor.device.type not in PINNED:
            return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
        engine, stream = torch.get_device_module(tensor.device), _stream(tensor.device)
        stream.wait_stream(engine.current_stream(tensor.device))
        with engine.stream(stream):
            return _copy(_pinned(tensor), tensor.detach())

    def read(self) -> list[Array]:
        """The arrays, in their work dtype. The host waits once for all that this thread has queued."""
        if self._landed is None:
            _land(self)
        assert self._landed is not None
        return self._landed

    def land(self) -> None:
        """Takes the copies; another thread may have done so already."""
        if self._landed is not None:
            return
        if self._event is not None:
            self._event.synchronize()
        self._landed = [_array(copy) for copy in self._copies]
        self._tensors, self._copies = (), []


def _pinned(like: Tensor) -> Tensor:
    """Memory of the host that a device copies to by itself; torch keeps it for the next one."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


def _copy(out: Tensor, tensor: Tensor) -> Tensor:
    """On the current stream, while the host goes on."""
    return out.copy_(tensor, non_blocking=True)


def _land(asked: Later) -> None:
    note_wait()
    queued, _here.queued = _here.queued, []
    waiting = [later for later in (ref() for ref in queued) if later is not None]
    if asked not in waiting:  # it was queued on another thread
        waiting.append(asked)
    for later in reversed(waiting):  # the last of a stream ends last
        later.land()


def _mark(tensors: Sequence[Tensor]) -> Any:
    """An event behind the copies."""
    device = next((tensor.device for tensor in tensors if tensor.device.type in PINNED), None)
    if device is None:
        return None
    event = torch.get_device_module(device).Event()
    event.record(_stream(device))
    return event


def _stream(device: torch.device) -> Any:
    """This thread's stream for copies."""
    if device not in _here.streams:
        _here.streams[device] = torch.get_device_module(device).Stream(device=device)
    return _here.streams[device]


def _array(copy: Tensor) -> Array:
    if copy.dtype in (torch.bfloat16, torch.float16):
        copy = copy.to(work_dtype(copy))
    array: Array = copy.numpy()
    return array


def later(*tensors: Tensor) -> Later:
    """Sends tensors to the host, and does not wait for them."""
    made = Later(tensors)
    _here.queued.append(weakref.ref(made))
    return made


def down(*tensors: Tensor) -> list[Array]:
    """Tensors as arrays of the host."""
    return later(*tensors).read()


def up(array: Array | Tensor, device: torch.device) -> Tensor:
    """An array of the host as a tensor on the device; a tensor is there already."""
    if isinstance(array, Tensor):
        return array
    for counts in _everyone():
        counts.bytes_up += array.nbytes
    host = torch.from_numpy(array if array.flags.writeable else array.copy())
    if device.type not in PINNED:
        return host.to(device)
    pinned = _pinned(host).copy_(host)
    return _copy(torch.empty(host.shape, dtype=host.dtype, device=device), pinned)
