"""The kernels that are timed and counted, with what they must move at least, and the targets in multiples of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from sparsewire.kernels.device import DenseKernels

RANKS = 4


@dataclass(frozen=True)
class Case:
    """A kernel's call, the least bytes that it has to move, and how many times that it may move."""

    name: str
    run: Callable[[], object]
    least: int
    target: float | None = None


def cases(kernels: DenseKernels, size: int, k: int, device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    """Every dense-sized kernel of a step, on numbers that are the same everywhere."""
    draw = torch.Generator().manual_seed(1)
    x, residual = (torch.randn(size, generator=draw) for _ in range(2))
    x, residual, velocity = x.to(dtype).to(device), residual.to(device), torch.zeros(size, device=device)
    out = torch.empty_like(x)
    entries = [tuple(part.clone() for part in kernels.topk(x.roll(at), k)) for at in range(RANKS)]
    indices, values = entries[0]
    one, wide, pair = x.nbytes, residual.nbytes, k * 8
    edge, wider = (int(found[1].abs().min().view(torch.int32)) for found in (
        kernels.topk(x, k), kernels.topk_sum(residual, x, min(3 * k, size))
    ))  # fmt: skip
    yield Case("topk of gradient", lambda: kernels.topk(x, k), one + pair, 3.2)
    yield Case("pick: topk of gradient + residual", lambda: kernels.topk_sum(residual, x, k), one + wide + pair, 3.2)
    known = kernels.remembered_edge(x)
    kernels.topk_sum(residual, x, k, remembered=known)
    again = lambda: kernels.topk_sum(residual, x, k, remembered=known)  # noqa: E731
    yield Case("pick, the last step's edge known", again, one + wide + pair, 1.1)
    wide_scan = lambda: kernels.candidates(residual, x, min(4 * k, size), wider)  # noqa: E731
    yield Case("candidates at an edge, 3 k of them", wide_scan, one + wide + 3 * pair)
    yield Case("threshold", lambda: kernels.threshold(x, edge), one + pair)
    yield Case("keep", lambda: kernels.compensate(residual, x, indices, values), one + 2 * wide, 1.05)

    def keep_velocity() -> None:
        kernels.compensate(
            residual, x, indices, values, velocity=velocity, momentum=0.9, lead=0.9, mask=True
        )  # fmt: skip

    yield Case("keep with a velocity", keep_velocity, one + 4 * wide)
    mean = lambda: kernels.compensate_mean(residual, x, indices, values, entries, 0.1)  # noqa: E731
    yield Case(f"keep with a share of the mean of {RANKS} ranks", mean, one + 2 * wide + RANKS * pair, 1.05)
    yield Case(f"accumulate {RANKS} ranks", lambda: kernels.accumulate(out, entries, 0.25), one + RANKS * pair, 1.1)
    yield Case("all_finite", lambda: kernels.all_finite(x), one)
    yield Case("has_gradient", lambda: kernels.has_gradient(x), one)
    yield Case("gather", lambda: kernels.gather(x, indices), 3 * pair // 2)
