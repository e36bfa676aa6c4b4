"""The native kernels, where they are built, for every instruction set of the machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsewire import kernels

native = kernels.native()


needs_native = pytest.mark.skipif(native is None, reason="the extension is not built here")


ISAS = native.isas() if native else []


@pytest.fixture(autouse=True, scope="module")
def _restore_isa() -> Any:
    before = native.isa() if native else ""
    yield
    if native:
        native.set_isa(before)


def plain(result: Any) -> Any:
    """A result as something `==` compares bit for bit."""
    if isinstance(result, np.ndarray):
        return result.dtype.str, result.shape, result.tobytes()
    return tuple(map(plain, result)) if isinstance(result, (tuple, list)) else result
