"""`run_length`: the bitmap's run lengths, starting with a run of zeros; for entries in runs (embedding rows).

The zeros' and the ones' lengths alternate in the bitmap; here they are two sequences, as their sizes differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparsewire import kernels
from sparsewire.core.binary import Reader, join, varint
from sparsewire.kernels import Array

from ..contract import Context, IndexCodec
from .rice import read_rice_body, rice_body

BLOCK = 64


@dataclass(frozen=True)
class RunLength(IndexCodec):
    """Lengths of the runs of zeros and of ones, Rice-coded."""

    id = "run_length"
    wire_id = 3

    def encode(self, indices: Array, ctx: Context) -> tuple[bytes, Array]:
        if not indices.size:
            return b"", indices
        zeros, ones = kernels.run_lengths(indices)
        zeros[1:] -= zeros.dtype.type(1)
        first = rice_body(zeros, BLOCK)
        return join(varint(zeros.size), varint(len(first)), first, rice_body(ones - ones.dtype.type(1), BLOCK)), indices

    def decode(self, body: memoryview, ctx: Context) -> Array:
        runs, first, second = self._streams(body, ctx)
        wide = kernels.index_dtype(ctx.numel).itemsize == 8
        zeros = read_rice_body(first, runs, BLOCK, wide)
        ones = read_rice_body(second, runs, BLOCK, wide)
        unit = zeros.dtype.type(1)
        if runs and (int(ones.max()) > ctx.count or int(zeros.max()) > ctx.numel):
            raise ValueError("a run is longer than the tensor")
        zeros[1:] += unit
        return kernels.from_run_lengths(zeros, ones + unit, ctx.numel, ctx.count)

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        _, first, second = self._streams(body, ctx)
        return {"zeros": len(first), "ones": len(second)}

    def _streams(self, body: memoryview, ctx: Context) -> tuple[int, memoryview, memoryview]:
        reader = Reader(body)
        if not ctx.count:
            return 0, reader.take(0), reader.take(reader.left)
        runs = reader.varint()
        if runs > ctx.count:
            raise ValueError(f"{runs} runs of {ctx.count} entries")
        return runs, reader.take(reader.varint()), reader.take(reader.left)
