"""What a selection of nothing leaves to be told: that a tensor is not finite. Not for schemes."""

from __future__ import annotations

from dataclasses import dataclass

from sparsewire import kernels
from sparsewire.kernels import Array
from sparsewire.kernels.device import landed

from ..contract import Context, Select


@dataclass(frozen=True)
class NotFinite(Select):
    """One entry that is not finite, if there is one: enough for all ranks to see that the step is not finite."""

    id = "not_finite"
    on_device = True

    def pick(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        found = kernels.of(x).topk(x, min(1, x.size))  # NaN and inf are the largest
        ((indices, values),) = landed([found])
        finite = bool(kernels.all_finite(values))
        return (indices[:0], values[:0]) if finite else (indices, values)
