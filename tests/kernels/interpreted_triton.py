"""The Triton kernels give the reference's bits; `test_triton` runs this file with TRITON_INTERPRET=1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from device_kernels import Waits, expected, given_back, half, on_device, plain, reaching
from hypothesis import given, settings
from kernel_rows import WRITERS, Args

from sparsewire.kernels import device, reference
from sparsewire.lab.device.traffic import counted

# The interpreter computes with NumPy, which warns of what is not finite.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
TRITON = device.load("triton_ops")
EXAMPLES = settings(max_examples=12, deadline=None)
TINY = np.float32(1e-45)
SPECIAL = {
    "random": np.random.default_rng(0).normal(size=300),
    "tied": np.random.default_rng(1).integers(-2, 3, 300),
    "one number": np.full(300, -0.25),
    "denormal": np.random.default_rng(2).integers(-9, 10, 300).astype(np.float32) * TINY,
    "not finite": np.random.default_rng(3).choice([np.nan, np.inf, -np.inf, 1.0, -0.0], 300),
    "zeros": np.array([-0.0, 0.0, -0.0] * 100),
    "empty": np.zeros(0),
    "one element": np.array([-0.0]),
}


@pytest.fixture(params=[128, 1024], autouse=True)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsewire.kernels.device.triton_base.BLOCK", request.param)
    monkeypatch.setattr("sparsewire.kernels.device.triton_energy.BLOCKS", request.param // 128)
    monkeypatch.setattr("sparsewire.kernels.device.triton_select.PROGRAMS", 3)
    if request.param == 128:  # small arrays are sampled as well
        monkeypatch.setattr("sparsewire.kernels.device.triton_select.SPAN", 32)
        monkeypatch.setattr("sparsewire.kernels.device.triton_select.PART", 4)


@pytest.mark.parametrize("name", ["accumulate", "all_finite", "compensate", "threshold", "topk", "topk_sum"])
def test_triton_kernels_are_the_reference(name: str) -> None:
    @EXAMPLES
    @given(args=WRITERS[name])
    def law(args: Args) -> None:
        assert given_back("triton_ops", name, args) == expected(name, args)

    law()


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3])
def test_special_numbers(kind: str, share: float) -> None:
    x = SPECIAL[kind].astype(np.float32)
    residual, k = np.roll(x, 1), int(np.ceil(share * x.size))
    edge = reference.magnitude_edge(float(TINY) * 3, x.dtype)
    rows: list[tuple[str, Args]] = [
        ("topk", (x, k)),
        ("topk", (x, k, edge)),
        ("topk_sum", (residual, x, k)),
        ("topk_sum", (residual, x, k, 0.9, 1.5, edge)),
        ("threshold", (x, edge)),
        ("all_finite", (x,)),
        ("compensate", (residual, x, *reference.topk_sum(residual, x, k))),
    ]
    for name, args in rows:
        assert given_back("triton_ops", name, args) == expected(name, args), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_half_precision_gradient_counts_as_its_float32_numbers(dtype: str) -> None:
    x, wide = half(np.random.default_rng(1).normal(size=600), dtype)
    residual = np.random.default_rng(2).normal(size=600).astype(np.float32)
    assert plain(TRITON.topk(x, 50)) == plain(reference.topk(wide, 50))
    entries = reference.topk_sum(residual, wide, 50, 0.9, 1.5)
    assert plain(TRITON.topk_sum(torch.from_numpy(residual), x, 50, 0.9, 1.5)) == plain(entries)
    edge = reference.magnitude_edge(1.5, wide.dtype)
    assert plain(reaching(TRITON, "topk", (x, 300, edge))) == plain(reference.topk(wide, 300, edge))
    assert plain(TRITON.threshold(x, edge)) == plain(reference.threshold(wide, edge))
    kept, velocity = residual.copy(), residual.copy()
    mine = torch.from_numpy(residual.copy()), torch.from_numpy(residual.copy())
    reference.compensate(kept, wide, *entries, 0.9, 1.5, velocity, 0.9, 0.81, True)
    TRITON.compensate(mine[0], x, *on_device(entries), 0.9, 1.5, mine[1], 0.9, 0.81, True)
    assert plain(mine) == plain((kept, velocity))
    assert bool(TRITON.all_finite(x))
    x[-1] = torch.inf
    assert not bool(TRITON.all_finite(x))


def test_only_a_threshold_waits_and_once() -> None:
    x = torch.randn(600)
    with Waits() as waits:
        indices, values = TRITON.topk_sum(x, x, 50)
        TRITON.compensate(x.clone(), x, indices, values)
        TRITON.compensate_mean(x.clone(), x, indices, values, [(indices, values)], 0.5)
        TRITON.all_finite(x)
        assert waits.count == 0
        TRITON.threshold(x, reference.magnitude_edge(1.0, np.dtype(np.float32)))
    assert waits.count == 1


@pytest.mark.parametrize("share", [0.01, 0.3])
def test_a_remembered_edge_changes_no_result(share: float) -> None:
    """Whether it fits, is too high, too low, or unknown; over steps whose numbers grow and shrink."""
    draw = np.random.default_rng(4)
    remembered = TRITON.remembered_edge(torch.zeros(1))
    assert remembered is not None
    for scale in (1.0, 1.01, 30.0, 1e-3, 0.0, float("nan"), 1.0):
        x, residual = (scale * draw.normal(size=500).astype(np.float32) for _ in range(2))
        x, residual, k = x.astype(np.float32), residual.astype(np.float32), int(share * 500)
        mine = TRITON.topk_sum(torch.from_numpy(residual), torch.from_numpy(x), k, 0.9, 1.5, remembered)
        assert plain(mine) == plain(reference.topk_sum(residual, x, k, 0.9, 1.5)), scale


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_numbers_with_an_edge(kind: str) -> None:
    x = SPECIAL[kind].astype(np.float32)
    k, remembered = -(-x.size // 10), TRITON.remembered_edge(torch.zeros(1))
    for _ in range(2):
        assert plain(TRITON.topk(torch.from_numpy(x), k, remembered)) == plain(reference.topk(x, k))


def test_with_an_edge_the_gradient_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsewire.kernels.device.triton_base.BLOCK", 4096)
    x, residual = (np.random.default_rng(seed).normal(size=1 << 14).astype(np.float32) for seed in (1, 2))
    remembered, k = TRITON.remembered_edge(torch.zeros(1)), x.size // 100
    TRITON.topk_sum(torch.from_numpy(residual), torch.from_numpy(x), k, remembered=remembered)
    with counted() as traffic:
        TRITON.topk_sum(torch.from_numpy(residual), torch.from_numpy(x), k, remembered=remembered)
    assert 2 * x.nbytes <= traffic.read < 3 * x.nbytes


# --- energies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["compensate_mean", "energy"])
def test_energies_are_the_reference(name: str) -> None:
    test_triton_kernels_are_the_reference(name)


@pytest.mark.parametrize("kind", SPECIAL)
def test_energies_of_special_numbers(kind: str) -> None:
    x = np.resize(SPECIAL[kind], 5 * SPECIAL[kind].size).astype(np.float32)  # of several blocks, the last one cut
    residual, k = np.roll(x, 1), -(-x.size // 10)
    entries = reference.topk_sum(residual, x, k)
    for name, args in (
        ("compensate_mean", (residual, x, *entries, [entries, reference.topk(x, k), entries], 1 / 3)),
        ("energy", (x,)),
    ):
        assert given_back("triton_ops", name, args) == expected(name, args), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_energies_of_half_precision(dtype: str) -> None:
    x, wide = half(np.random.default_rng(1).normal(size=1700), dtype)
    residual = np.random.default_rng(2).normal(size=1700).astype(np.float32)
    entries, mine = reference.topk_sum(residual, wide, 50), torch.from_numpy(residual.copy())
    energies = reference.compensate_mean(residual, wide, *entries, [entries], 0.5)
    measured = TRITON.compensate_mean(mine, x, *on_device(entries), on_device([entries]), 0.5)
    assert (measured.read(), plain(mine)) == (energies, plain(residual))
    assert TRITON.energy(x).read() == reference.energy(wide)


def test_energies_cost_no_pass_of_their_own() -> None:
    x, nothing = torch.randn(1 << 12), (torch.empty(0, dtype=torch.int32), torch.empty(0))
    residual = x.clone()
    with counted() as traffic:
        TRITON.compensate_mean(residual, x, *nothing, [], 0.5)
    assert traffic.moved == 3 * x.nbytes + x.numel() // 512 * 8
