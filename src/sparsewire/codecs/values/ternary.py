"""`ternary`: −s, 0 or s, at random so that the expectation is right (TernGrad; Wen et al., arXiv 1705.07878)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.kernels import Array

from ..contract import Context, ValueCodec
from . import sums
from .qsgd import QSGD

LEVELS = QSGD(bits=2, bucket=2**24)  # three levels of the largest magnitude, which is s


@dataclass(frozen=True)
class Ternary(ValueCodec):
    """Unbiased rounding to −s, 0 and s of values that are clipped at `clip` standard deviations (0: not at all)."""

    id = "ternary"
    wire_id = 15

    clip: float = 2.5

    def check(self) -> None:
        self.expect(0 <= self.clip < 2**32, "clip lies in 0 ≤ clip < 2**32")

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        return LEVELS.encode(self._clipped(values), ctx)

    def _clipped(self, values: Array) -> Array:
        """The deviation is measured from zero, as gradients' means are small; finite values only."""
        if not (self.clip and values.size and kernels.all_finite(values)):
            return values
        top = np.abs(values).max()
        if top == 0:
            return values
        limit = min(1.0, self.clip * sums.mean(np.square(values / top)) ** 0.5) * top
        return np.clip(values, -limit, limit).astype(values.dtype, copy=False)

    def decode(self, body: memoryview, ctx: Context) -> Array:
        return LEVELS.decode(body, ctx)

    def size_limit(self, ctx: Context) -> int:
        return LEVELS.size_limit(ctx)

    def item_size(self, ctx: Context) -> int:
        return LEVELS.item_size(ctx)

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        return LEVELS.parts(body, ctx)
