"""`best`: the codec with the smallest section for these indices; the section names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sparsewire import kernels
from sparsewire.kernels import Array

from ..contract import Context, IndexCodec
from .bitmap import Bitmap
from .elias_fano import EliasFano
from .huffman import Huffman
from .raw import RawIndices
from .rice import Rice
from .run_length import RunLength

# Where sizes are equal, the first, which is the fastest, is taken. A frame has the chosen codec's id alone, so that the
# settings here are part of the format.
CANDIDATES: tuple[IndexCodec, ...] = (Rice(block=32), EliasFano(), Bitmap(), Huffman(), RunLength(), RawIndices())

CHUNK, CHUNKS = 256, 16


def _sampled(indices: Array, ctx: Context) -> tuple[Array, Context]:
    """A sample of the gaps in contiguous chunks, so that choosing costs little beside encoding."""
    if indices.size <= 2 * CHUNK * CHUNKS:
        return indices, ctx
    starts = np.linspace(0, indices.size - CHUNK, CHUNKS).astype(np.int64)
    gaps = kernels.gaps(indices)[(starts[:, None] + np.arange(CHUNK)).ravel()]
    numel = int(gaps.sum(dtype=np.uint64)) + gaps.size
    facts = replace(ctx, numel=numel, count=gaps.size)
    return kernels.from_gaps(gaps, numel), facts


@dataclass(frozen=True)
class Best(IndexCodec):
    """The smallest of the lossless codecs, by their own estimates."""

    id = "best"
    wire_id = 7

    def encode(self, indices: Array, ctx: Context) -> tuple[bytes, Array]:
        sample, facts = _sampled(indices, ctx)
        codec = min(CANDIDATES, key=lambda codec: codec.estimate(sample, facts))
        body, realised = codec.encode(indices, ctx)
        return bytes([codec.wire_id]) + body, realised

    def decode(self, body: memoryview, ctx: Context) -> Array:
        return self.chosen(body).decode(body[1:], ctx)

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        codec = self.chosen(body)
        inner = codec.parts(body[1:], ctx) or {"body": len(body) - 1}
        return {"choice": 1, **{f"{codec.id}.{name}": size for name, size in inner.items()}}

    @staticmethod
    def chosen(body: memoryview) -> IndexCodec:
        for codec in CANDIDATES:
            if len(body) and codec.wire_id == body[0]:
                return codec
        raise ValueError("'best' names no codec that it chooses from")
