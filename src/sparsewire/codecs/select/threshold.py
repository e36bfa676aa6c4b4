"""`threshold`: every entry of at least a given magnitude, or of the magnitude that a sample says is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.kernels import Array
from sparsewire.kernels.device import Dense

from ..contract import Context, Select

SAMPLE = 65_536


@dataclass(frozen=True)
class Threshold(Select):
    """Entries with |x| ≥ `value`; or about a `ratio` of them, by the magnitudes of a random sample.

    Zeros are sent only where `value` is 0: one that is too small for the dtype counts as its smallest number.
    """

    id = "threshold"
    wire_id = 3
    on_device = True

    value: float | None = None
    ratio: float | None = None

    def check(self) -> None:
        self.expect((self.value is None) != (self.ratio is None), "give value or ratio, one of them")
        self.expect(self.value is None or self.value >= 0, "value is at least 0")
        self.expect(self.ratio is None or 0 < self.ratio <= 1, "ratio lies in 0 < ratio ≤ 1 (or 0% < … ≤ 100%)")

    def pick(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        edge = self._sampled(x, ctx) if self.value is None else kernels.magnitude_edge(self.value, x.dtype)
        return kernels.of(x).threshold(x, edge)

    def _sampled(self, x: Dense, ctx: Context) -> Any:
        """The edge, which stays on the device where x lies on one."""
        assert self.ratio is not None
        if x.size == 0:
            return 0
        where, count = None, min(x.size, SAMPLE)
        if x.size > SAMPLE:
            where = (kernels.random_bits(ctx.key, 0, SAMPLE) % np.uint64(x.size)).astype(np.int64)
        rank = min(count - 1, int((1 - self.ratio) * count))
        # Zeros are never wanted, however many there are; and NaN in the sample must not let nothing through.
        least, most = 1, kernels.magnitude_edge(np.inf, x.dtype)
        if not kernels.on_host(x):
            return x.sampled_edge(where, rank, least, most)
        sample = x if where is None else x[where]
        return min(max(int(np.partition(kernels.magnitude_bits(sample), rank)[rank]), least), most)
