"""The verbs of an array on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from sparsewire.codecs.contract import Context  # noqa: E402
from sparsewire.codecs.select import Threshold  # noqa: E402
from sparsewire.kernels.device import (  # noqa: E402
    Candidates,
    crossing,
    landed,
    torch_select,
    trimmed,
)
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


def numbers(*values: float) -> DeviceArray:
    return DeviceArray(torch.tensor(values, dtype=torch.float32))


def test_zeros_of_a_dense_mean_are_in_no_sum() -> None:
    out = numbers(-0.0, 1.0, -0.0, 2.0)
    out.add_nonzero(numbers(0.0, 3.0, -0.0, -2.0), 0.5)
    assert str(out.tensor.tolist()) == "[-0.0, 2.5, -0.0, 1.0]"


def test_a_change_is_undone_where_all_was_zero_and_nobody_waits() -> None:
    used, unused = numbers(0.0, 1.0), numbers(-0.0, 0.0)
    with crossing.watched() as seen:
        for x in (used, unused):
            x.change_if_used(lambda x: x.__iadd__(numbers(2.0, 2.0)))
    assert str([used.tensor.tolist(), unused.tensor.tolist()]) == "[[2.0, 3.0], [-0.0, 0.0]]"
    assert not seen.waits


@pytest.mark.parametrize(("expected", "waits"), [([3, 5], 1), ([9, 5], 1), ([2, 5], 2), ([0, 0], 2)])
def test_candidates_cross_with_their_number_as_far_as_they_were_expected(expected: list[int], waits: int) -> None:
    found = [
        Candidates(torch.arange(10, dtype=torch.int32), torch.arange(10.0), torch.tensor([count])) for count in (3, 4)
    ]
    with crossing.watched() as seen:
        entries = trimmed(found, expected)
    assert [(indices.tolist(), values.tolist()) for indices, values in entries] == [
        ([0, 1, 2], [0.0, 1.0, 2.0]), ([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0]),
    ]  # fmt: skip
    assert seen.waits == waits


@pytest.mark.parametrize("select", [Threshold(ratio=0.01), Threshold(value=2.5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_threshold_has_the_hosts_entries_and_waits_twice_for_several_tensors(select: Threshold, dtype: Any) -> None:
    arrays = [np.random.default_rng(size).normal(size=size).astype(dtype) for size in (70_000, 300, 1)]
    pairs = [(x, Context("float32", x.size, key=x.size)) for x in arrays]
    with crossing.watched() as seen:
        found = landed([select.pick(DeviceArray(torch.from_numpy(x)), ctx) for x, ctx in pairs])
    for (indices, values), (x, ctx) in zip(found, pairs, strict=True):
        expected, numbers = select.pick(x, ctx)
        assert indices.dtype == expected.dtype and indices.tobytes() == expected.tobytes()
        assert values.tobytes() == numbers.tobytes()
    assert seen.waits == 2


def test_devices_that_do_not_list_flags_have_the_same_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = torch.tensor([False, True, True, False, True])
    places = torch_select._places(flags, 3)

    def missing(*args: Any, **settings: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(torch, "nonzero_static", missing)
    assert torch_select._places(flags, 3).tolist() == places.tolist() == [1, 2, 4]
