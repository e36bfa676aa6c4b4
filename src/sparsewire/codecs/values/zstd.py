"""`zstd`: Zstandard on the shuffled bytes; needs the `zstandard` package (extra `[zstd]`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparsewire.errors import SparsewireError

from .deflate import Shuffled


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise SparsewireError("values=zstd needs the zstandard package: pip install 'sparsewire[zstd]'") from None
    return zstandard


@dataclass(frozen=True)
class Zstd(Shuffled):
    """Zstandard, `level` 1 (fast) to 19 (small)."""

    id = "zstd"
    wire_id = 6

    level: int = 1

    def check(self) -> None:
        self.expect(1 <= self.level <= 19, "level lies in 1 … 19")

    def squeeze(self, data: bytes) -> bytes:
        return bytes(_zstandard().ZstdCompressor(level=self.level).compress(data))

    def expand(self, data: memoryview, limit: int) -> bytes:
        zstandard = _zstandard()
        try:
            facts = zstandard.get_frame_parameters(data)
            if facts.content_size > limit or facts.window_size > max(2 * limit, 2**20):
                raise ValueError("the zstd frame is longer than the frame says")
            return bytes(zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False))
        except zstandard.ZstdError as error:
            raise ValueError(f"not a zstd frame: {error}") from None
