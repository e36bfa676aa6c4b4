"""`counted`: the bytes that kernels read from and write to a device's memory.

Of torch's operations: each reads its arguments and writes its results once, wherever caches may help. Taking and
placing entries counts the entries. What an operation such as `topk` does within itself is not seen. Of Triton kernels:
what their loads and stores touch, where Triton's interpreter runs them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from sparsewire.kernels import device

FREE = {"empty", "empty_like", "detach", "alias", "new_empty", "empty_strided", "lift_fresh"}
OVERWRITES = {"copy_", "fill_", "zero_"}  # which do not read what they write to
TRITON = ("triton_energy", "triton_select", "triton_step")  # the modules that launch kernels
MAKES = {"zeros", "full", "arange", "zeros_like", "ones", "scalar_tensor"}


@dataclass
class Bytes:
    """Bytes read and written."""

    read: int = 0
    written: int = 0

    @property
    def moved(self) -> int:
        return self.read + self.written


class TensorTraffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what torch's operations move meanwhile."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = Bytes()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::").split(".")[0]
        if name not in FREE and not func.is_view:
            self._add(name, [tensor for arg in args for tensor in _tensors(arg)], _tensors(out))
        return out

    def _add(self, name: str, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        if name == "index":
            self.bytes.read += sum(map(_size, (*given[1:], *made)))
            self.bytes.written += sum(map(_size, made))
        elif name in ("index_put_", "index_put"):
            self.bytes.read += sum(map(_size, given[1:]))
            self.bytes.written += _size(given[-1])
        else:
            self.bytes.read += sum(map(_size, given[name in OVERWRITES :])) if name not in MAKES else 0
            self.bytes.written += sum(map(_size, made))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for item in value for one in _tensors(item)] if isinstance(value, list | tuple) else []


def _size(tensor: torch.Tensor) -> int:
    """Of a tensor that is expanded, what there is in memory."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or not size else 1
    return count * tensor.element_size()


@contextmanager
def counted() -> Iterator[Bytes]:
    """Counts torch's operations and, under `TRITON_INTERPRET=1`, Triton's kernels."""
    with TensorTraffic() as traffic:
        if os.environ.get("TRITON_INTERPRET") == "1":
            with _interpreted(traffic.bytes):
                yield traffic.bytes
        else:
            yield traffic.bytes


@contextmanager
def _interpreted(count: Bytes) -> Iterator[None]:
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    modules = [importlib.import_module(f"{device.__name__}.{name}") for name in TRITON]
    launch, memory = modules[0].launch, interpreter._interpreter

    def uncounted(*args: Any, **constants: Any) -> None:
        with _disable_current_modes():  # the interpreter copies its arguments
            launch(*args, **constants)

    interpreter._interpreter = _Memory(memory, count)
    for module in modules:
        module.launch = uncounted  # type: ignore[attr-defined]
    try:
        yield
    finally:
        interpreter._interpreter = memory
        for module in modules:
            module.launch = launch  # type: ignore[attr-defined]


class _Memory:
    """The memory that Triton's interpreter loads from and stores to."""

    def __init__(self, memory: Any, count: Bytes) -> None:
        self._memory, self._count = memory, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def load(self, places: Any, mask: Any, other: Any, dtype: Any) -> Any:
        loaded = self._memory.load(places, mask, other, dtype)
        self._count.read += int(mask.sum()) * loaded.itemsize
        return loaded

    def store(self, places: Any, value: Any, mask: Any) -> Any:
        self._count.written += int(mask.sum()) * value.itemsize
        return self._memory.store(places, value, mask)

    def atomic_rmw(self, op: Any, places: Any, value: Any, mask: Any, order: Any) -> Any:
        moved = int(mask.sum()) * value.itemsize
        self._count.read += moved
        self._count.written += moved
        return self._memory.atomic_rmw(op, places, value, mask, order)
