"""`threshold`: every entry of at least a given magnitude, or of the magnitude that a sample says is wanted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import kernels
from ..contract import Context, Select
from ..kernels import Array

SAMPLE = 65_536


@dataclass(frozen=True)
class Threshold(Select):
    """Entries with |x| ≥ `value`; or about a `ratio` of them, by the magnitudes of a random sample."""

    id = "threshold"
    wire_id = 3

    value: float | None = None
    ratio: float | None = None

    def check(self) -> None:
        self.expect((self.value is None) != (self.ratio is None), "give value or ratio, one of them")
        self.expect(self.value is None or self.value >= 0, "value is at least 0")
        self.expect(self.ratio is None or 0 < self.ratio <= 1, "ratio lies in 0 < ratio ≤ 1 (or 0% < … ≤ 100%)")

    def pick(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        low = self.value if self.value is not None else self._sampled(x, ctx)
        return kernels.threshold(x, low, threads=kernels.threads)

    def _sampled(self, x: Array, ctx: Context) -> float:
        assert self.ratio is not None
        if x.size == 0:
            return 0.0
        sample = np.abs(x)
        if x.size > SAMPLE:
            sample = np.abs(x[kernels.random_bits(ctx.key, 0, SAMPLE) % np.uint64(x.size)])
        rank = min(sample.size - 1, int((1 - self.ratio) * sample.size))
        edge = float(np.partition(sample, rank)[rank])
        # Zeros are never wanted, however many there are; and NaN in the sample must not let nothing through.
        return max(edge, float(np.finfo(x.dtype).smallest_subnormal)) if np.isfinite(edge) else np.inf
