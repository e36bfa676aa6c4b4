"""The kernels on tensors give what the reference gives: same bits, same dtypes."""

from __future__ import annotations

import numpy as np
import pytest
from device_kernels import Waits, expected, given_back, half, on_device, plain
from hypothesis import given, settings
from kernel_rows import WRITERS, Args

from sparsewire import kernels
from sparsewire.kernels import device, reference

torch = pytest.importorskip("torch")
KERNELS = ["host", "torch_ops"]
NAMES = ["accumulate", "all_finite", "compensate", "compensate_mean", "energy", "scatter_add", "threshold", "topk",
         "topk_sum"]  # fmt: skip
EXAMPLES = settings(max_examples=40, deadline=None)


@pytest.mark.parametrize("module", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_kernels_of_a_memory_are_the_reference(name: str, module: str) -> None:
    @EXAMPLES
    @given(args=WRITERS[name])
    def law(args: Args) -> None:
        assert given_back(module, name, args) == expected(name, args)

    law()


@pytest.mark.parametrize("block", [1, 64, 1024])
def test_blocks_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsewire.kernels.device.torch_base.BLOCK", block)
    rng = np.random.default_rng(block)
    residual, x, velocity = rng.integers(-3, 4, (3, 2100)).astype(np.float32)
    entries = reference.topk_sum(residual, x, 50)
    rows: list[tuple[str, Args]] = [("topk_sum", (residual, x, k)) for k in (0, 1, 7, 1050, 2100)]
    rows += [
        ("compensate", (residual, x, *entries, 0.9, 1.5, velocity, 0.9, 0.81, True)),
        ("compensate_mean", (residual, x, *entries, [entries], 0.5)),
        ("energy", (x,)),
        ("threshold", (x, reference.magnitude_edge(2.0, np.dtype(np.float32)))),
    ]
    for name, args in rows:
        assert given_back("torch_ops", name, args) == expected(name, args), name


@pytest.mark.parametrize("module", KERNELS)
def test_sums_and_gathers_round_every_product_and_sum(module: str) -> None:
    rng = np.random.default_rng(4)
    residual, x = rng.normal(size=(2, 700)).astype(np.float32)
    places = np.sort(rng.choice(700, 90, replace=False)).astype(np.int32)
    whole = np.float32(0.9) * residual + np.float32(1.5) * x
    assert given_back(module, "total", (residual, x, 0.9, 1.5))[0] == plain(whole)
    assert given_back(module, "gather", (x, places))[0] == plain(x[places])
    assert given_back(module, "gather_sum", (residual, x, places, 0.9, 1.5))[0] == plain(whole[places])


@pytest.mark.parametrize("module", KERNELS)
@pytest.mark.parametrize(
    ("numbers", "most"), [([], 0), ([-3, 2], 3), ([1, 4, -2], 4), ([1, np.nan], np.inf), ([-np.inf], np.inf)]
)
def test_the_largest_magnitude(numbers: list[float], most: float, module: str) -> None:
    x = np.array(numbers, np.float32)
    assert given_back(module, "largest", (x,))[0] == plain(np.array(most, np.float32))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_half_precision_gradient_counts_as_its_float32_numbers(dtype: str) -> None:
    x, wide = half(np.random.default_rng(1).normal(size=3000), dtype)
    residual = np.random.default_rng(2).normal(size=3000).astype(np.float32)
    module = device.load("torch_ops")
    assert plain(module.topk(x, 50)) == plain(reference.topk(wide, 50))
    theirs = module.topk_sum(torch.from_numpy(residual), x, 50, 0.9, 1.5)
    assert plain(theirs) == plain(reference.topk_sum(residual, wide, 50, 0.9, 1.5))
    entries = reference.topk_sum(residual, wide, 50)
    kept, velocity = residual.copy(), residual.copy()
    mine = torch.from_numpy(residual.copy()), torch.from_numpy(residual.copy())
    reference.compensate(kept, wide, *entries, 0.9, 1.5, velocity, 0.9, 0.81, True)
    module.compensate(mine[0], x, *on_device(entries), 0.9, 1.5, mine[1], 0.9, 0.81, True)
    assert plain(mine) == plain((kept, velocity))
    assert module.energy(x).read() == reference.energy(wide)
    assert bool(module.has_gradient(x)) and bool(module.all_finite(x))


def test_a_mean_in_half_precision_is_rounded_once() -> None:
    rng = np.random.default_rng(0)
    parts = [(np.sort(rng.choice(300, 100, replace=False)), rng.normal(size=100).astype(np.float32)) for _ in range(4)]
    wide, out = np.empty(300, np.float32), torch.empty(300, dtype=torch.bfloat16)
    reference.accumulate(wide, parts, 1 / 3)
    device.load("torch_ops").accumulate(out, on_device(parts), 1 / 3)
    assert torch.equal(out, torch.from_numpy(wide).to(torch.bfloat16))


def test_only_a_threshold_waits_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsewire.kernels.device.torch_base.BLOCK", 64)
    x, module = torch.randn(1000), device.load("torch_ops")
    with Waits() as waits:
        entries = module.topk_sum(x, x, 50)
        module.compensate(x.clone(), x, *entries)
        module.compensate_mean(x.clone(), x, *entries, [entries], 0.5)
        module.accumulate(x.clone(), [entries, entries], 0.5)
        module.accumulate(x.half(), [entries, entries], 0.5)
        assert module.energy(x) and module.all_finite(x).shape == module.has_gradient(x).shape == ()
        assert waits.count == 0
        module.threshold(x, reference.magnitude_edge(1.0, np.dtype(np.float32)))
    assert waits.count == 1


def test_kernels_are_those_of_the_memory() -> None:
    assert kernels.of(np.zeros(1, np.float32)).NAME == "host"
    assert kernels.of(torch.zeros(1)).NAME == "torch"
