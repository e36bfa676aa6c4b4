"""Calls of the kernels of a memory and of the reference with the same arguments, and results that `==` compares."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from kernel_dense import Args

from sparsewire.core.sparse import from_bfloat16, to_bfloat16
from sparsewire.kernels import device, reference

torch = pytest.importorskip("torch")
modes = pytest.importorskip("torch.utils._python_dispatch")
WAITING = {"aten::nonzero", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::masked_select"}


class Waits(modes.TorchDispatchMode):  # type: ignore[misc]
    """Counts the operations whose result the host has to wait for; copies between devices are not seen on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.name().split(".")[0] in WAITING
        return func(*args, **(kwargs or {}))


def on_device(value: Any) -> Any:
    """Arrays as tensors of the same memory."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return type(value)(map(on_device, value)) if isinstance(value, (tuple, list)) else value


def plain(value: Any) -> Any:
    """A result as something `==` compares bit for bit, but for the bits of NaN."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        same = np.where(np.isnan(value), value.dtype.type(np.nan), value) if value.dtype.kind == "f" else value
        return value.dtype.str, value.shape, same.tobytes()
    if hasattr(value, "read"):
        return value.read()
    return tuple(map(plain, value)) if isinstance(value, (tuple, list)) else value


def expected(name: str, args: Args) -> Any:
    """What the reference returns and leaves in its arguments."""
    args = copy.deepcopy(args)
    return plain(getattr(reference, name)(*args)), plain(args)


def given_back(module: str, name: str, args: Args) -> Any:
    """The same of the kernels for a memory; those with an edge are `candidates`."""
    args = copy.deepcopy(args)
    theirs = args if module == "host" else on_device(args)
    call = getattr(device.load(module), name)
    if (name == "topk" and len(args) == 3) or (name == "topk_sum" and len(args) == 6):
        result = plain(reaching(device.load(module), name, theirs))
    else:
        result = plain(call(*theirs))
    return (bool(call(*theirs)) if name == "all_finite" else result), plain(theirs)


def reaching(module: Any, name: str, args: Args) -> Any:
    residual, rest = (None, args) if name == "topk" else (args[0], args[1:])
    x, k, *factors, edge = rest
    found = module.candidates(residual, x, k, edge, *factors)
    return found.indices[: int(found.count[0])], found.values[: int(found.count[0])]


def half(numbers: np.ndarray, dtype: str) -> tuple[Any, np.ndarray]:
    """A tensor of half precision, and its numbers in float32."""
    if dtype == "float16":
        return torch.from_numpy(numbers.astype(np.float16)), numbers.astype(np.float16).astype(np.float32)
    bits = to_bfloat16(numbers.astype(np.float32))
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16), from_bfloat16(bits)
