"""`chunk_topk`: the k entries of largest magnitude of every chunk, as SparseLoCo selects (arXiv 2508.15706)."""

from __future__ import annotations

from dataclasses import dataclass

from sparsewire import kernels
from sparsewire.kernels import Array

from ..contract import Context, Select, Terms


@dataclass(frozen=True)
class ChunkTopK(Select):
    """The k largest of each `chunk` elements of the flat tensor; of a shorter last chunk as large a share, rounded up.

    Ties go to the lowest index. NaN and inf count as the largest.
    """

    id = "chunk_topk"
    wire_id = 6

    k: int = 64
    chunk: int = 4096

    def check(self) -> None:
        self.expect(1 <= self.k <= self.chunk <= 2**24, "1 ≤ k ≤ chunk ≤ 2**24")

    def pick(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        return kernels.chunk_topk(x, self.k, self.chunk, threads=kernels.threads)

    def pick_sum(self, terms: Terms, x: Array, ctx: Context) -> tuple[Array, Array]:
        return kernels.chunk_topk_sum(
            terms.residual, x, self.k, self.chunk, terms.decay, terms.gain, threads=kernels.threads
        )
