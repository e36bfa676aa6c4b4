"""`half` and `bfloat16`: two bytes a number, to nearest even. A finite number stays finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparsewire.core.binary import join
from sparsewire.core.sparse import load, store, work_dtype
from sparsewire.kernels import Array

from ..contract import Context, ValueCodec
from .raw import read


@dataclass(frozen=True)
class TwoBytes(ValueCodec):
    """Values in a type of two bytes, whose name is `format`."""

    format: ClassVar[str]

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        stored = store(values, self.format)
        return join(stored), self._loaded(load(stored, self.format), ctx)

    def decode(self, body: memoryview, ctx: Context) -> Array:
        return self._loaded(read(body, self.format, ctx.count), ctx)

    @staticmethod
    def _loaded(values: Array, ctx: Context) -> Array:
        with np.errstate(invalid="ignore"):
            return values.astype(work_dtype(ctx.dtype), copy=False)

    def size_limit(self, ctx: Context) -> int:
        return 2 * ctx.count

    def item_size(self, ctx: Context) -> int:
        return 2


@dataclass(frozen=True)
class Half(TwoBytes):
    """IEEE half precision: 11 significant bits, up to 65504."""

    id = "half"
    wire_id = 2
    format = "float16"


@dataclass(frozen=True)
class BFloat16(TwoBytes):
    """bfloat16: 8 significant bits, the range of float32."""

    id = "bfloat16"
    wire_id = 3
    format = "bfloat16"
