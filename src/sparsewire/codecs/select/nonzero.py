"""`nonzero`: every entry that is not zero, for gradients that are sparse by nature."""

from __future__ import annotations

from dataclasses import dataclass

from sparsewire import kernels
from sparsewire.kernels import Array

from ..contract import Context, Select


@dataclass(frozen=True)
class Nonzero(Select):
    """All entries but +0 and −0."""

    id = "nonzero"
    wire_id = 4
    on_device = True

    def pick(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        return kernels.of(x).threshold(x, 1)
