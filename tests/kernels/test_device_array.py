"""The verbs of an array on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from sparsewire.kernels.device.array import DeviceArray  # noqa: E402


class Divisors(TorchDispatchMode):  # type: ignore[misc]
    """What tensors are divided by meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().startswith("aten::div_"):
            self.seen.append(args[1])
        return func(*args, **(kwargs or {}))


def test_a_mean_is_divided_by_a_number_that_lies_on_the_device() -> None:
    """By one of the host, CUDA multiplies with the rounded 1 / divisor: for three ranks that is another bit."""
    numbers = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    array = DeviceArray(torch.from_numpy(numbers.copy()))
    with Divisors() as divisors:
        array /= 3
    (divisor,) = divisors.seen
    assert isinstance(divisor, torch.Tensor) and divisor.device == array.tensor.device
    assert array.tensor.numpy().tobytes() == (numbers / np.float32(3)).tobytes()
