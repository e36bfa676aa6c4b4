"""What a codec is: one base class per slot."""

from .base import SLOTS, Codec, Context, text
from .coding import ByteCodec, IndexCodec, ValueCodec
from .training import Exchange, Feedback, LinearMemory, Memory, Select, State, Terms, Transform, entry_norms

__all__ = [
    "SLOTS",
    "ByteCodec",
    "Codec",
    "Context",
    "Exchange",
    "Feedback",
    "IndexCodec",
    "LinearMemory",
    "Memory",
    "Select",
    "State",
    "Terms",
    "Transform",
    "ValueCodec",
    "entry_norms",
    "text",
]
