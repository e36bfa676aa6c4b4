"""The stages of the values slot, one after the other: numbers to bytes, then bytes to fewer bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparsewire.errors import SchemeError
from sparsewire.kernels import Array

from ..contract import ByteCodec, Codec, Context, ValueCodec
from .raw import RawValues

NOTED = 2**26  # bytes that are expanded for `notes`


@dataclass(frozen=True)
class Chain:
    """`qsgd+deflate`: a value codec (`raw` if the first stage is a byte codec) and byte codecs behind it."""

    stages: tuple[Codec, ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise SchemeError("values needs at least one codec")
        for stage in self.stages[1:]:
            if not isinstance(stage, ByteCodec):
                raise SchemeError(f"values={self}: only byte codecs (deflate, zstd) can follow another, not {stage}")

    @property
    def source(self) -> ValueCodec:
        return self.stages[0] if isinstance(self.stages[0], ValueCodec) else RawValues()

    @property
    def squeezers(self) -> list[ByteCodec]:
        return [stage for stage in self.stages if isinstance(stage, ByteCodec)]

    @property
    def reorders(self) -> bool:
        return self.source.reorders

    def order(self, values: Array) -> Array:
        return self.source.order(values)

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        ctx = self._facts(ctx)
        body, approx = self.source.encode(values, ctx)
        for depth, stage in enumerate(self.squeezers):
            body = stage.compress(body, self._item_size(depth, ctx))
        return body, approx

    def decode(self, body: memoryview, ctx: Context) -> Array:
        ctx = self._facts(ctx)
        return self.source.decode(self._expand(body, ctx), ctx)

    def _expand(self, body: memoryview, ctx: Context) -> memoryview:
        limit = self.source.size_limit(ctx)
        for depth, stage in reversed(list(enumerate(self.squeezers))):
            # Inner stages may have grown what they could not shrink: by far less than this.
            slack = depth * (limit // 8 + 1024)
            body = memoryview(stage.decompress(body, self._item_size(depth, ctx), limit + slack))
        return body

    def _item_size(self, depth: int, ctx: Context) -> int:
        return 1 if depth else self.source.item_size(ctx)

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        return {} if self.squeezers else self.source.parts(body, ctx)

    def notes(self, body: memoryview, ctx: Context) -> Mapping[str, float]:
        """None where much would have to be expanded only to be looked at: few bytes may claim any size."""
        ctx = self._facts(ctx)
        if self.squeezers and self.source.size_limit(ctx) > NOTED:
            return {}
        return self.source.notes(self._expand(body, ctx), ctx)

    def _facts(self, ctx: Context) -> Context:
        packed = not self.squeezers
        return ctx if ctx.packed == packed else replace(ctx, packed=packed)

    def to_dict(self) -> object:
        stages = [stage.to_dict() for stage in self.stages]
        return stages if len(stages) > 1 else stages[0]

    def __str__(self) -> str:
        return "+".join(map(str, self.stages))
