"""Value codecs: the values of the entries ⇄ bytes. A codec's module is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .centroid import Centroid
    from .chain import Chain
    from .deflate import Deflate
    from .dexp import FitDExp
    from .distinct import Distinct
    from .entropy import Entropy
    from .fit import FitPoly
    from .half import BFloat16, Half
    from .mean import Mean, SignMean
    from .qsgd import QSGD
    from .quantile import Quantile
    from .range_float import RangeFloat
    from .raw import RawValues
    from .ternary import Ternary
    from .zstd import Zstd

HOMES = {
    "BFloat16": "half",
    "Centroid": "centroid",
    "Chain": "chain",
    "Deflate": "deflate",
    "Distinct": "distinct",
    "Entropy": "entropy",
    "FitDExp": "dexp",
    "FitPoly": "fit",
    "Half": "half",
    "Mean": "mean",
    "QSGD": "qsgd",
    "Quantile": "quantile",
    "RangeFloat": "range_float",
    "RawValues": "raw",
    "SignMean": "mean",
    "Ternary": "ternary",
    "Zstd": "zstd",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"{__name__} has no {name!r}")
    return getattr(importlib.import_module(f".{HOMES[name]}", __name__), name)
