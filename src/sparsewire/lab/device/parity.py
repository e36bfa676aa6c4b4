"""Parity: every kernel of a device against the host's, bit for bit, on numbers that are awkward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from sparsewire.core.sparse import from_bfloat16, to_bfloat16
from sparsewire.kernels import Array, magnitude_edge
from sparsewire.kernels import device as kernels

SIZES = (1, 63, 4096, 4097, 100_003)
Row = tuple[str, str | None]  # what was compared, and what is wrong


def arrays() -> Iterator[tuple[str, Array]]:
    """Random, tied, denormal, not finite, −0.0, empty."""
    draw = np.random.default_rng(5)
    yield "empty", np.zeros(0, np.float32)
    for size in SIZES:
        yield f"random, {size}", draw.normal(size=size).astype(np.float32)
    size = SIZES[-1]
    yield "tied", draw.integers(-2, 3, size).astype(np.float32)
    yield "denormal", draw.integers(-9, 10, size).astype(np.float32) * np.float32(1e-45)
    yield "one number", np.full(size, -0.25, np.float32)
    yield "zeros", np.where(draw.integers(0, 2, size) == 0, -0.0, 0.0).astype(np.float32)
    yield "not finite", draw.choice([np.inf, -np.inf, 1.0, -0.0], size).astype(np.float32)
    yield "float64", draw.normal(size=size)


def check(device: torch.device) -> list[Row]:
    """A row for each array and dtype."""
    rows = [(name, _wrong(x, torch.from_numpy(x), device)) for name, x in arrays()]
    for dtype in (torch.bfloat16, torch.float16):
        x = np.random.default_rng(6).normal(size=SIZES[-1]).astype(np.float32)
        wide = from_bfloat16(to_bfloat16(x)) if dtype == torch.bfloat16 else x.astype(np.float16).astype(np.float32)
        rows.append((str(dtype).removeprefix("torch."), _wrong(wide, torch.from_numpy(wide).to(dtype), device)))
    return rows


def _wrong(x: Array, stored: torch.Tensor, device: torch.device) -> str | None:
    """The kernels whose results differ, or fail."""
    wrong = []
    for name, call in CALLS.items():
        try:
            with np.errstate(all="ignore"):
                theirs = _run(call, x.copy(), kernels.load("host"), lambda array: array, x)
            tensor = stored.clone().to(device)
            mine = _run(call, tensor, kernels.of(tensor), lambda array: torch.from_numpy(array).to(device), x)
            if not all(map(_same, mine, theirs)):
                wrong.append(name)
        except Exception as error:
            wrong.append(f"{name} ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})")
    return ", ".join(wrong) or None


Call = Callable[[Any, Any, Callable[[Array], Any], Array], Sequence[Any]]


def _run(call: Call, x: Any, module: Any, put: Callable[[Array], Any], like: Array) -> list[Array]:
    return [_array(part) for part in call(module, x, put, like)]


def _array(value: Any) -> Array:
    if isinstance(value, torch.Tensor):
        value = value.cpu().numpy()
    return np.asarray(value.read() if hasattr(value, "read") else value)


def _same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


# --- calls: (kernels, x, what puts an array beside x, x on the host) → results and what was written ---------------


def _k(like: Array) -> int:
    return -(-like.size // 20)


def _beside(like: Array) -> Array:
    return np.roll(like, 7) * like.dtype.type(0.5)


def _entries(like: Array) -> tuple[Array, Array]:
    entries: tuple[Array, Array] = kernels.load("host").topk(np.where(np.isfinite(like), like, 1), _k(like))
    return entries


def _topk(module: Any, x: Any, put: Any, like: Array) -> Sequence[Any]:
    return module.topk(x, _k(like))


def _topk_sum(module: Any, x: Any, put: Any, like: Array) -> Sequence[Any]:
    return module.topk_sum(put(_beside(like)), x, _k(like), 0.9, 1.5)


def _candidates(module: Any, x: Any, put: Any, like: Array) -> Sequence[Any]:
    edge = magnitude_edge(1.0, like.dtype)
    found = module.candidates(put(_beside(like)), x, _k(like), edge)
    count = int(found.count[0])
    return found.indices[:count], found.values[:count]


def _threshold(module: Any, x: Any, put: Any, like: Array) -> Sequence[Any]:
    return module.threshold(x, magnitude_edge(1.0, like.dtype))


def _compensate(module: Any, x: Any, put: Any, like: Array) -> Sequence[Any]:
    residual, velocity = put(_beside(like)), put(_beside(like))
    module.compensate(residual, x, *map(put, _entries(like)), 1.0, 1.9, velocity, 0.9, 0.81, True)
    return residual, velocity


def _compensate_mean(module: Any, x: Any, put: Any, like: Array) -> Sequence[Any]:
    residual, entries = put(_beside(like)), tuple(map(put, _entries(like)))
    energies = module.compensate_mean(residual, x, *entries, [entries, entries], 0.3)
    return residual, energies


def _accumulate(module: Any, x: Any, put: Any, like: Array) -> Sequence[Any]:
    out, other = put(like.copy()), put(_beside(like))
    parts = [tuple(map(put, _entries(like))), module.topk(other, _k(like))]
    module.accumulate(out, parts, 0.5)
    return [out]


def _numbers(module: Any, x: Any, put: Any, like: Array) -> Sequence[Any]:
    places = put(_entries(like)[0])
    return [
        module.all_finite(x), module.has_gradient(x), module.largest(x), module.energy(x), module.gather(x, places)
    ]  # fmt: skip


CALLS: dict[str, Call] = {
    "topk": _topk,
    "topk_sum": _topk_sum,
    "candidates": _candidates,
    "threshold": _threshold,
    "compensate": _compensate,
    "compensate_mean": _compensate_mean,
    "accumulate": _accumulate,
    "flags and sums": _numbers,
}
