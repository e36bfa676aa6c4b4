"""Optimizers behind a memory: what each kind is, and what it sees within `step()`."""

from .fit import Fit, check_follow_rate, fit_optimizers
from .owners import NOT_GIVEN, Behind, Given, check_owned, only_optimizers, read_optimizers

__all__ = [
    "NOT_GIVEN", "Behind", "Fit", "Given", "check_follow_rate", "check_owned", "fit_optimizers", "only_optimizers",
    "read_optimizers",
]  # fmt: skip
