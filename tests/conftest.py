"""What every test shares: the hypothesis profile, and one quiet import of sparsewire.

Warnings are errors here, and without the extension the import warns once: that belongs to
tests/package/test_package.py.
"""

from __future__ import annotations

import os
import warnings

import pytest
from hypothesis import HealthCheck, settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    import sparsewire
    from sparsewire.codecs import registry

from torch_pool import ranks, two_by_three, two_by_two  # noqa: F401

settings.register_profile(
    "sparsewire",
    deadline=None,
    max_examples=20,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("sparsewire")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`values=failing`, a codec that raises, for one test."""
    from toy_values import Failing

    monkeypatch.setattr(registry, "_added", {slot: dict(known) for slot, known in registry._added.items()})
    sparsewire.register(Failing)
