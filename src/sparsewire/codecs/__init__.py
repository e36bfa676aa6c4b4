"""Codecs, schemes made of them, and the base classes that authors of codecs import.

`from sparsewire.codecs import ValueCodec, Context` is the documented path for codecs from outside; an exchange's base
class is `sparsewire.exchange.Exchange`.
"""

from .contract import (
    SLOTS,
    ByteCodec,
    Codec,
    Context,
    ExchangeCodec,
    Feedback,
    IndexCodec,
    LinearMemory,
    Memory,
    Select,
    State,
    Terms,
    Transform,
    ValueCodec,
)  # fmt: skip

__all__ = [
    "SLOTS", "ByteCodec", "Codec", "Context", "ExchangeCodec", "Feedback", "IndexCodec", "LinearMemory", "Memory",
    "Select", "State", "Terms", "Transform", "ValueCodec",
]  # fmt: skip
