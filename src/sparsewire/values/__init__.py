"""Numbers ⇄ bytes."""

from .chain import Chain
from .deflate import Deflate
from .dexp import FitDExp
from .entropy import Entropy
from .fit import FitPoly
from .half import BFloat16, Half
from .qsgd import QSGD
from .quantile import Quantile
from .raw import RawValues
from .zstd import Zstd

__all__ = [
    "QSGD",
    "BFloat16",
    "Chain",
    "Deflate",
    "Entropy",
    "FitDExp",
    "FitPoly",
    "Half",
    "Quantile",
    "RawValues",
    "Zstd",
]
