"""What travels dense: arrays averaged in place, all in one all_reduce per number type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.comm import Communicator
from sparsewire.kernels import Array

BLOCK = 2**17  # elements that several passes go over while they are in a core's cache


def average_dense(arrays: Sequence[Array], comm: Communicator) -> bool:
    """Puts the means in the arrays' places; whether they are finite. Every rank gives the same arrays in one order."""
    kinds = sorted({(array.dtype.str, kernels.on_host(array)) for array in arrays})
    groups = [[array for array in arrays if (array.dtype.str, kernels.on_host(array)) == kind] for kind in kinds]
    finite = [_average(group, comm) for group in groups]
    return all(finite)


def average_in_place(array: Array, comm: Communicator) -> bool:
    """Puts the mean over the ranks in a flat array's place; whether it is finite."""
    if not kernels.on_host(array):
        return _average_on_device(array, comm)
    comm.all_reduce_in_place(array)
    if comm.size == 1:
        return kernels.all_finite(array, threads=kernels.threads)
    finite = True
    for start in range(0, array.size, BLOCK):
        block = array[start : start + BLOCK]
        with np.errstate(all="ignore"):
            block /= block.dtype.type(comm.size)
        finite = kernels.all_finite(block) and finite
    return finite


def _average_on_device(array: Any, comm: Communicator) -> bool:
    """By the model's own engine where the array lies, or through the host."""
    if comm.engine is not None:
        comm.engine.sum(array.tensor)
        array /= comm.size
        return bool(kernels.of(array).all_finite(array))
    mean = kernels.to_host(array)
    finite = average_in_place(mean, comm)
    array[:] = mean
    return finite


def _average(arrays: Sequence[Array], comm: Communicator) -> bool:
    if len(arrays) == 1 and (not kernels.on_host(arrays[0]) or arrays[0].flags.c_contiguous):
        return average_in_place(arrays[0], comm)
    mean, start = _side_by_side(arrays), 0
    finite = average_in_place(mean, comm)
    for array in arrays:
        array[:] = mean[start : start + array.size]
        start += array.size
    return finite


def _side_by_side(arrays: Sequence[Any]) -> Array:
    if kernels.on_host(arrays[0]):
        return np.concatenate(arrays)
    joined: Array = arrays[0].joined(arrays)
    return joined
