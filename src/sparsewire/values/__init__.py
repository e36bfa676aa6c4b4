"""Numbers ⇄ bytes."""

from .chain import Chain
from .deflate import Deflate
from .half import BFloat16, Half
from .qsgd import QSGD
from .raw import RawValues
from .zstd import Zstd

__all__ = ["QSGD", "BFloat16", "Chain", "Deflate", "Half", "RawValues", "Zstd"]
