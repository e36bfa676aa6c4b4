"""`half` and `bfloat16`: two bytes a number, to nearest even. A finite number stays finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..binary import join
from ..contract import Context, ValueCodec
from ..kernels import Array
from ..sparse import load, store, work_dtype
from .raw import read


@dataclass(frozen=True)
class TwoBytes(ValueCodec):
    """What the two share: the format's name and its largest number."""

    format: ClassVar[str]
    largest: ClassVar[float]

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        # An infinity that the receivers would see must come from the gradient, never from rounding.
        safe = np.where(np.isinf(values), values, np.clip(values, -self.largest, self.largest))
        stored = store(safe.astype(values.dtype, copy=False), self.format)
        return join(stored), load(stored, self.format).astype(values.dtype)

    def decode(self, body: memoryview, ctx: Context) -> Array:
        return read(body, self.format, ctx.count).astype(work_dtype(ctx.dtype), copy=False)

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
    largest = 65504.0


@dataclass(frozen=True)
class BFloat16(TwoBytes):
    """bfloat16: 8 significant bits, the range of float32."""

    id = "bfloat16"
    wire_id = 3
    format = "bfloat16"
    largest = float.fromhex("0x1.fep127")
