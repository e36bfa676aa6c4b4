"""`qsgd`: stochastic rounding to a few levels of each bucket's norm (Alistarh et al., arXiv 1610.02132).

Where this differs from the paper: the norm is the bucket's largest magnitude instead of its Euclidean norm (a smaller
error, and no sum whose order could matter), and the codes have a fixed width instead of Elias'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import Reader, array, join
from sparsewire.core.sparse import work_dtype
from sparsewire.kernels import Array

from ..contract import Context, ValueCodec
from . import codes as packing


@dataclass(frozen=True)
class QSGD(ValueCodec):
    """Unbiased rounding to 2^bits − 1 signed levels of each bucket's norm; non-finite values become NaN."""

    id = "qsgd"
    wire_id = 4

    bits: int = 7
    bucket: int = 512

    def check(self) -> None:
        self.expect(2 <= self.bits <= 16, "bits lies in 2 … 16")
        self.expect(1 <= self.bucket <= 2**24, "bucket lies in 1 … 2**24")

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        codes, norms = kernels.quantize(values, self.bits, self.bucket, ctx.own_key)
        approx = kernels.dequantize(codes, norms, self.bits, self.bucket)
        return join(packing.pack(codes, self.bits, ctx), norms), approx

    def decode(self, body: memoryview, ctx: Context) -> Array:
        reader = Reader(body)
        codes = packing.unpack(reader.take(packing.size(self.bits, ctx)), self.bits, ctx)
        norms = array(reader.take(reader.left), work_dtype(ctx.dtype).str)
        if norms.size and not (np.isfinite(norms).all() and (norms >= 0).all()):
            raise ValueError("a norm is non-finite or negative")
        return kernels.dequantize(codes, norms, self.bits, self.bucket)

    def size_limit(self, ctx: Context) -> int:
        return packing.size(self.bits, ctx) + -(-ctx.count // self.bucket) * work_dtype(ctx.dtype).itemsize

    def item_size(self, ctx: Context) -> int:
        return packing.item_size(self.bits, ctx)

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        codes = len(Reader(body).take(packing.size(self.bits, ctx)))
        return {"codes": codes, "norms": len(body) - codes}
