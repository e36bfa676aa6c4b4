"""Schemes with a name. A preset is a function from texts to a scheme's text; slots given after it replace its own.

deepreduce(values=fit_poly) | memory=none
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from .errors import SchemeError
from .registry import nearest

PRESETS: dict[str, Callable[..., str]] = {}


def expand(name: str, settings: Mapping[str, str]) -> str:
    """The scheme that a preset stands for, with these settings."""
    known = list(inspect.signature(PRESETS[name]).parameters)
    for key, value in settings.items():
        if key not in known or not value:
            raise SchemeError(f"{name} takes settings by name, not {key!r}{nearest(key, known)}")
    return PRESETS[name](**settings)
