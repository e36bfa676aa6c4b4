"""What a codec is: one base class per slot."""

from .base import SLOTS, Codec, Context, text
from .coding import ByteCodec, IndexCodec, ValueCodec
from .terms import Entries, Feedback, Terms, set_product
from .training import ExchangeCodec, LinearMemory, Memory, Select, State, Transform

__all__ = [
    "SLOTS",
    "ByteCodec",
    "Codec",
    "Context",
    "Entries",
    "ExchangeCodec",
    "Feedback",
    "IndexCodec",
    "LinearMemory",
    "Memory",
    "Select",
    "State",
    "Terms",
    "Transform",
    "ValueCodec",
    "set_product",
    "text",
]
