"""What a user is told once in a process, however many trainings there are."""

from __future__ import annotations

import logging
import warnings

from sparsewire.errors import AccuracyWarning

logger = logging.getLogger("sparsewire")
_said: set[str] = set()


def say_once(text: str) -> None:
    """A line in the log."""
    if text not in _said:
        _said.add(text)
        logger.warning(text)


def warn_once(text: str) -> None:
    """A warning of a combination that costs accuracy."""
    if text not in _said:
        _said.add(text)
        warnings.warn(text, AccuracyWarning, stacklevel=4)
