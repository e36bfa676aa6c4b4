"""`huffman`: Huffman codes of the gaps' magnitudes, with their lower bits as extra bits.

A gap's symbol is its leading bit's place and the bit below, as in Deflate's distances: few symbols, so the table costs
tens of bytes, and the extra bits are close to uniform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import Reader, join, varint
from sparsewire.kernels import Array, Bytes

from ..contract import Context, IndexCodec

# By symbol: the number of extra bits, and the gap if they are all 0.
_SYMBOL = np.arange(128, dtype=np.uint64)
_EXTRA = (np.maximum(_SYMBOL // 2, 1) - 1).astype(np.uint8)
_LEAD = np.where(_SYMBOL < 2, _SYMBOL, 2 | _SYMBOL & 1) << _EXTRA


@dataclass(frozen=True)
class Huffman(IndexCodec):
    """Huffman codes of the gaps' magnitudes; the section has the table."""

    id = "huffman"
    wire_id = 4

    def encode(self, indices: Array, ctx: Context) -> tuple[bytes, Array]:
        if not indices.size:
            return b"", indices
        gaps = kernels.gaps(indices)
        symbols, extra = kernels.gap_symbols(gaps)
        lengths = kernels.huffman_lengths(np.bincount(symbols))
        stream = kernels.huffman_encode(symbols, lengths)
        table = kernels.pack_bits(lengths.astype(np.uint32), 4)
        rest = kernels.pack_uneven(gaps, extra)
        return join(bytes([lengths.size]), table, varint(stream.size), stream, rest), indices

    def decode(self, body: memoryview, ctx: Context) -> Array:
        table, stream, rest = self._streams(body, ctx)
        if not ctx.count:
            return kernels.from_gaps(table.astype(np.uint32), ctx.numel).astype(kernels.index_dtype(ctx.numel))
        symbols = kernels.huffman_decode(stream, table, ctx.count)
        if symbols.max() > 127:
            raise ValueError("a Huffman symbol is out of range")
        return kernels.from_gaps(_LEAD[symbols] | kernels.unpack_uneven(rest, _EXTRA[symbols]), ctx.numel)

    def estimate(self, indices: Array, ctx: Context) -> int:
        if not indices.size:
            return 0
        symbols, extra = kernels.gap_symbols(kernels.gaps(indices))
        counts = np.bincount(symbols)
        bits = int((counts * kernels.huffman_lengths(counts)).sum()) + int(extra.sum(dtype=np.int64))
        return bits // 8 + counts.size // 2 + 5

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        _, stream, rest = self._streams(body, ctx)
        return {"table": len(body) - stream.size - rest.size, "symbols": stream.size, "extra": rest.size}

    def _streams(self, body: memoryview, ctx: Context) -> tuple[Bytes, Bytes, Bytes]:
        reader = Reader(body)
        if not ctx.count:
            return reader.bytes(0), reader.bytes(0), reader.rest()
        size = reader.byte()
        table = kernels.unpack_bits(reader.bytes((size + 1) // 2), 4, size).astype(np.uint8)
        return table, reader.bytes(reader.varint()), reader.rest()
