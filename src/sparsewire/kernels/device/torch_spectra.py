"""Fourier and cosine transforms of rows in torch's operations, and the norms of entries of several numbers.

Coefficients are laid out as `sparsewire.codecs.transform` does it. Norms have the bits of `reference.row_norms`. How a
Fourier transform rounds is its library's: `fft` has the bits of a host whose Fourier transforms torch computes on the
same device, and `dct` differs from that in its last bits, as NumPy multiplies complex numbers in an order of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .torch_base import blocks, work_dtype
from .torch_step import largest

RESCUE = 2.0**20  # more than what a sum over a chunk may exceed its largest number by
Rows = Callable[[Tensor, Tensor], None]  # from rows into rows


def transform(kind: str, x: Tensor, out: Tensor, chunks: int) -> None:
    """The coefficients of flat chunks, into `out`."""
    _rescued({"fft": _fft, "dct": _dct}[kind], x, out, chunks)


def inverse(kind: str, coefficients: Tensor, out: Tensor, chunks: int) -> None:
    """The flat chunks that have these coefficients, into `out`."""
    _rescued({"fft": _fft_inverse, "dct": _dct_inverse}[kind], coefficients, out, chunks)


def _rescued(change: Rows, x: Tensor, out: Tensor, chunks: int) -> None:
    """A linear map; of smaller numbers, by a power of two, where sums may overflow. Nobody waits to know that."""
    most = largest(x)
    risky = torch.isfinite(most) & (most > torch.finfo(out.dtype).max / RESCUE)
    factor = torch.where(risky, RESCUE, 1.0).to(out.dtype)
    change((x.to(out.dtype) / factor).view(chunks, -1), out.view(chunks, -1))
    out *= factor


def _fft(rows: Tensor, out: Tensor) -> None:
    parts = torch.view_as_real(torch.fft.rfft(rows, out.shape[1], norm="ortho")).reshape(len(rows), -1)
    torch.mul(parts[:, :-2], 2**0.5, out=out)
    out[:, 0], out[:, 1] = parts[:, 0], parts[:, -2]


def _fft_inverse(given: Tensor, out: Tensor) -> None:
    length = given.shape[1]
    parts = torch.zeros(len(given), length + 2, dtype=given.dtype, device=given.device)
    torch.mul(given, 0.5**0.5, out=parts[:, :-2])
    parts[:, 0], parts[:, -2] = given[:, 0], given[:, 1]
    parts[:, 1] = 0
    spectra = torch.view_as_complex(parts.view(len(given), -1, 2))
    out.copy_(torch.fft.irfft(spectra, length, norm="ortho")[:, : out.shape[1]])


def _dct(rows: Tensor, out: Tensor) -> None:
    length = rows.shape[1]
    mixed = torch.cat([rows[:, ::2], rows[:, 1::2].flip(1)], 1)
    turned = torch.fft.rfft(mixed, length, norm="ortho") * _turns(length, rows)
    out[:, : length // 2 + 1] = turned.real
    out[:, length // 2 + 1 :] = -turned.imag[:, 1 : (length + 1) // 2].flip(1)


def _dct_inverse(given: Tensor, out: Tensor) -> None:
    length = given.shape[1]
    imaginary = torch.zeros(len(given), length // 2 + 1, dtype=given.dtype, device=given.device)
    imaginary[:, 1:] = -given[:, (length + 1) // 2 :].flip(1)
    spectra = torch.complex(given[:, : length // 2 + 1].contiguous(), imaginary) / _turns(length, given)
    mixed, half = torch.fft.irfft(spectra, length, norm="ortho"), (length + 1) // 2
    out[:, ::2], out[:, 1::2] = mixed[:, :half], mixed[:, half:].flip(1)


def _turns(length: int, like: Tensor) -> Tensor:
    """√2 · exp(−iπk/2n) for the frequencies k of a Fourier transform; 1 for k = 0."""
    angles = torch.arange(length // 2 + 1, dtype=torch.float64, device=like.device) * (-0.5 * math.pi / length)
    turns = torch.polar(torch.full_like(angles, 2**0.5), angles)
    turns[0] = 1
    return turns.to(torch.complex128 if like.dtype == torch.float64 else torch.complex64)


def tiles(matrix: Tensor, height: int, width: int) -> Tensor:
    """Tile after tile, row after row, flat; the matrix is made of whole tiles."""
    grid = matrix.reshape(matrix.shape[0] // height, height, matrix.shape[1] // width, width)
    return grid.transpose(1, 2).reshape(-1)


def put_tiles(matrix: Tensor, flat: Tensor, height: int, width: int) -> None:
    """The inverse of `tiles`, into a matrix."""
    grid = flat.view(matrix.shape[0] // height, matrix.shape[1] // width, height, width)
    matrix.copy_(grid.transpose(1, 2).reshape(matrix.shape))


def turned(flat: Tensor, height: int, width: int) -> Tensor:
    """Every tile transposed."""
    return flat.view(-1, height, width).transpose(1, 2).reshape(-1)


def row_norms(x: Tensor, width: int) -> Tensor:
    """As `reference.row_norms`."""
    rows = x.view(-1, width)
    out = torch.empty(len(rows), dtype=work_dtype(x), device=x.device)
    for at in blocks(len(rows)):
        out[at] = _norms(rows[at], out.dtype)
    return out


def _norms(rows: Tensor, kind: torch.dtype) -> Tensor:
    peak = rows.abs().amax(1)
    finite = torch.isfinite(peak)
    norm = (_wide_norms if kind == torch.float64 else _float32_norms)(rows, peak, finite)
    norm = torch.maximum(norm, peak).clamp_(max=torch.finfo(kind).max)
    return torch.where(finite, norm, torch.where(peak.isnan(), torch.nan, torch.inf))


def _float32_norms(rows: Tensor, peak: Tensor, finite: Tensor) -> Tensor:
    """Squares are exact in float64: fused with the sum or not, it is the same."""
    total = torch.zeros_like(peak, dtype=torch.float64)
    for column in rows.unbind(1):
        wide = column.double()
        total.addcmul_(wide, wide)
    within = (total >= 2.0**-100) & (total <= 2.0**100)
    return torch.where(within, _root(total.float()), _root(total).float())


def _wide_norms(rows: Tensor, peak: Tensor, finite: Tensor) -> Tensor:
    """Rows are scaled by a power of two that their largest number tells."""
    exponent = torch.frexp(torch.where(finite, peak, 0.0)).exponent.long()
    half = exponent.div(2, rounding_mode="floor")
    total = torch.zeros_like(peak)
    for column in rows.unbind(1):
        scaled = column.abs() * _power(-half) * _power(half - exponent)
        total = total + scaled * scaled
    return _root(total) * _power(half) * _power(exponent - half)


def _root(x: Tensor) -> Tensor:
    """The square root, rounded to the nearest. On the CPU torch calls a vector library that may be off by one bit.
    There float32 is taken from float64, and that gets one step of Newton's method, with the square of the root in two
    numbers (Dekker's product)."""
    if x.device.type != "cpu":
        return x.sqrt()
    if x.dtype == torch.float32:
        return x.double().sqrt().float()
    root = x.sqrt()
    high = root * (2.0**27 + 1)
    high = high - (high - root)
    low, square = root - high, root * root
    rest = ((high * high - square) + 2 * (high * low)) + low * low
    better = root + ((x - square) - rest) / (2 * root)
    return torch.where((root > 0) & torch.isfinite(better), better, root)


def _power(exponent: Tensor) -> Tensor:
    """2 to an integer, exactly."""
    return ((exponent + 1023) << 52).view(torch.float64)
