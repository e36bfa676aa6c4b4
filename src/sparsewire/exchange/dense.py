"""What travels dense: arrays averaged in place, all in one all_reduce per number type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsewire.comm import Communicator
from sparsewire.kernels import Array


def average_dense(arrays: Sequence[Array], comm: Communicator) -> bool:
    """Puts the means in the arrays' places; whether they are finite. Every rank gives the same arrays in one order."""
    kinds = sorted({array.dtype.str for array in arrays})
    finite = [_average([array for array in arrays if array.dtype.str == kind], comm) for kind in kinds]
    return all(finite)


def _average(arrays: Sequence[Array], comm: Communicator) -> bool:
    mean = comm.all_reduce(np.concatenate(arrays)) / arrays[0].dtype.type(comm.size)
    start = 0
    for array in arrays:
        array[:] = mean[start : start + array.size]
        start += array.size
    return bool(np.isfinite(mean).all())
