"""Schemes with a name. A preset is a function from texts to a scheme's text; slots given after it replace its own.

deepreduce(values=fit_poly) | memory=none
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from . import registry
from .contract import SLOTS
from .errors import SchemeError


def deepreduce(ratio: str = "1%", indices: str = "bloom(fpr=0.001, policy=p2)", values: str = "raw") -> str:
    """DeepReduce (arXiv 2102.03112): top-k with indices and values compressed apart, and error feedback."""
    return f"topk({ratio}) | indices={indices} | values={values} | memory=residual"


def skcompress(ratio: str = "1%", levels: str = "16") -> str:
    """SKCompress as a special case of DeepReduce: Huffman-coded gaps, quantile buckets entropy-coded."""
    return f"topk({ratio}) | indices=huffman | values=quantile(levels={levels}) | memory=residual"


PRESETS: dict[str, Callable[..., str]] = {"deepreduce": deepreduce, "skcompress": skcompress}


def expand(name: str, settings: Mapping[str, str]) -> str:
    """The scheme that a preset stands for, with these settings."""
    known = list(inspect.signature(PRESETS[name]).parameters)
    for key, value in settings.items():
        if key not in known or not value:
            raise SchemeError(f"{name} takes settings by name, not {key!r}{registry.nearest(key, known)}")
    return PRESETS[name](**settings)


def local_settings(spec: Any) -> dict[str, Any]:
    """What a preset says of training with local steps: every, outer, mean, mask_momentum, as far as it says them."""
    return {}


def list_codecs() -> dict[str, list[str]]:
    """The names that schemes may use: codecs by slot, and presets.

    >>> "rice" in list_codecs()["indices"], "deepreduce" in list_codecs()["presets"]
    (True, True)
    """
    return {**{slot: list(registry.codecs(slot)) for slot in SLOTS}, "presets": list(PRESETS)}
