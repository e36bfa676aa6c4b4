"""The rest of a step in torch's operations: what is kept, means, flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .torch_base import blocks, check_sizes, compensated, work_dtype

# (residual, x, decay, gain, velocity, momentum, lead): a step in place as if nothing was sent
DensePass = Callable[[Tensor, Tensor, float, float, Tensor | None, float, float], None]


def total(residual: Tensor, x: Tensor, decay: float = 1.0, gain: float = 1.0) -> Tensor:
    out = torch.empty_like(residual)
    for at in blocks(x.numel()):
        out[at] = compensated(residual[at], x[at], decay, gain)
    return out


def keep_all(
    residual: Tensor, x: Tensor, decay: float, gain: float, velocity: Tensor | None, momentum: float, lead: float
) -> None:
    for at in blocks(x.numel()):
        rest = compensated(residual[at], x[at], decay, gain)
        if velocity is not None:
            velocity[at] = _moved(velocity[at], x[at], momentum)
            rest += velocity[at] * lead
        residual[at] = rest


def compensate(
    residual: Tensor, x: Tensor, indices: Tensor, sent: Tensor, decay: float = 1.0, gain: float = 1.0,
    velocity: Tensor | None = None, momentum: float = 0.0, lead: float = 0.0, mask: bool = False,
    dense_pass: DensePass = keep_all,
) -> None:  # fmt: skip
    """In one pass: what the entries that were sent will be is computed before it, and written after it."""
    check_sizes(x, residual, velocity)
    places = indices.long()
    kept = compensated(residual[places], x[places], decay, gain) + sent * -1.0
    moved = None if velocity is None else _moved(velocity[places], x[places], momentum)
    dense_pass(residual, x, decay, gain, velocity, momentum, lead)
    if velocity is not None and moved is not None:
        moved = torch.zeros_like(moved) if mask else moved
        velocity[places] = moved
        kept = kept + moved * lead
    residual[places] = kept


def _moved(velocity: Tensor, x: Tensor, momentum: float) -> Tensor:
    return velocity * momentum + x.to(velocity.dtype)


def accumulate(out: Tensor, parts: Sequence[tuple[Tensor, Tensor]], scale: float) -> None:
    out.zero_()
    if out.dtype == work_dtype(out):
        for indices, values in parts:
            scatter_add(out, indices, values, scale)
    elif parts:
        _write_rounded(out, parts, scale)


def _write_rounded(out: Tensor, parts: Sequence[tuple[Tensor, Tensor]], scale: float) -> None:
    """Sums in float32, rounded once. Every part's entries are written with the sum of all parts there, in their order:
    where several parts have an entry, they write the same number."""
    for indices, _ in parts:
        sums = torch.zeros(indices.numel(), dtype=torch.float32, device=out.device)
        for places, values in parts:
            sums = _plus_at(sums, indices.long(), places.long(), values * scale)
        out[indices.long()] = sums.to(out.dtype)


def _plus_at(sums: Tensor, wanted: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """The sums of the wanted entries, with the values of those that are among the places."""
    if not places.numel():
        return sums
    at = torch.searchsorted(places, wanted).clamp_(max=places.numel() - 1)
    return torch.where(places[at] == wanted, sums + values[at], sums)


def scatter_add(out: Tensor, indices: Tensor, values: Tensor, scale: float = 1.0) -> None:
    places = indices.long()
    out[places] = out[places] + values * scale


def gather(x: Tensor, indices: Tensor) -> Tensor:
    return x[indices.long()].to(work_dtype(x))


def gather_sum(residual: Tensor, x: Tensor, indices: Tensor, decay: float = 1.0, gain: float = 1.0) -> Tensor:
    places = indices.long()
    return compensated(residual[places], x[places], decay, gain)


def all_finite(x: Tensor) -> Tensor:
    return torch.isfinite(largest(x))


def has_gradient(x: Tensor) -> Tensor:
    return x.any()


def largest(x: Tensor) -> Tensor:
    """A minimum and a maximum of numbers with NaN are NaN."""
    if not x.numel():
        return torch.zeros((), dtype=work_dtype(x), device=x.device)
    low, high = x.aminmax()
    most = torch.maximum(high, -low).abs().to(work_dtype(x))
    return torch.where(torch.isfinite(most), most, torch.inf)
