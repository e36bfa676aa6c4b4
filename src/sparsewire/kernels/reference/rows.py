"""Entries of several numbers."""

from __future__ import annotations

import numpy as np

from .base import Array


def row_norms(out: Array, x: Array, width: int) -> None:
    """The Euclidean norm of every `width` numbers into `out`; at least the largest magnitude among them.

    Squares are added in float64 in the order of the numbers; float64 rows are first scaled by a power of two. The root
    of a sum in 2^−100 … 2^100 of float32 rows is taken in float32. A finite row has a finite norm; otherwise the norm
    is infinite, or NaN if a number is.
    """
    if width < 1 or x.size % width:
        raise ValueError(f"{x.size} numbers are not rows of {width}")
    if out.size != x.size // width:
        raise ValueError("the output does not fit the rows")
    if not x.size:
        return
    rows = np.abs(x.reshape(-1, width)).astype(np.float64)
    peak = rows.max(axis=1)
    finite = np.isfinite(peak)
    exponent = np.where(finite, np.frexp(np.where(finite, peak, 0.0))[1], 0) if x.dtype == np.float64 else 0 * finite
    half = exponent // 2
    down, rest = np.ldexp(1.0, -half), np.ldexp(1.0, half - exponent)
    total = np.zeros(peak.size)
    with np.errstate(all="ignore"):
        for column in rows.T:
            scaled = column * down * rest
            total += scaled * scaled
        norm = np.sqrt(total) * np.ldexp(1.0, half) * np.ldexp(1.0, exponent - half)
        if x.dtype == np.float32:
            norm = np.where((total >= 2.0**-100) & (total <= 2.0**100), np.sqrt(total.astype(np.float32)), norm)
        norm = np.minimum(np.maximum(norm, peak), float(np.finfo(x.dtype).max))
        out[:] = np.where(finite, norm, np.where(np.isnan(peak), np.nan, np.inf))


def half_spectra(out: Array, norms: Array, spectra: Array, rows: int, apart: bool = False) -> bool:
    """Half spectra of real rows of an even length n, flat: n/2 + 1 complex numbers each, of an orthonormal transform.

    Into `out` the n/2 entries of two numbers that each row has: first its two real coefficients, of frequency 0 and of
    the highest, then the others times √2, for in half a spectrum one stands for two. Into `norms` the entries' norms,
    as `row_norms` has them. Returns whether all are finite. `apart`: out and norms are more than caches hold.
    """
    if rows < 1 or spectra.size != out.size + 2 * rows or out.size != 2 * norms.size or norms.size % rows:
        raise ValueError(f"{out.size} numbers and {norms.size} norms do not fit {rows} half spectra of {spectra.size}")
    given, rows_out = spectra.reshape(rows, -1), out.reshape(rows, -1)
    with np.errstate(all="ignore"):
        np.multiply(given[:, :-2], out.dtype.type(2**0.5), out=rows_out)
    if rows_out.size:
        rows_out[:, 0], rows_out[:, 1] = given[:, 0], given[:, -2]
    row_norms(norms, out, 2)
    return bool(np.isfinite(norms).all())
