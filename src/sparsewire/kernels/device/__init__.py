"""The dense-sized kernels of a step for the memory where a tensor lives: one contract, three implementations.

`of(x)` gives the native ones for a NumPy array, those of Triton for a CUDA or ROCm tensor where `triton` is installed,
and those of torch's operations for any other tensor. All are held to the bits of `kernels.reference`. A training's
arrays on a device are of `array.DeviceArray`, for which entries are NumPy arrays of the host (`staged`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from .contract import Candidates, Dense, DenseKernels, Energies, Energy, Entries

__all__ = [
    "Candidates",
    "Dense",
    "DenseKernels",
    "Energies",
    "Energy",
    "Entries",
    "landed",
    "load",
    "of",
    "on_host",
    "to_host",
    "trimmed",
]


def of(x: Dense) -> DenseKernels:
    """The kernels for the memory that `x` lies in.

    >>> of(np.zeros(3, np.float32)).NAME
    'host'
    """
    if isinstance(x, np.ndarray):
        return load("host")
    if not on_host(x):
        return load("staged")
    return load("triton_ops" if x.is_cuda and _has_triton() else "torch_ops")


def on_host(x: Any) -> bool:
    """Whether a training's array lies in the host's memory, not in a `DeviceArray`."""
    return not getattr(x, "on_device", False)


def to_host(x: Dense) -> Any:
    """A training's array as one of the host: itself, or a copy of all of it."""
    return x if on_host(x) else x.host()


def landed(entries: Sequence[Entries]) -> list[Entries]:
    """Selected entries as arrays of the host, which waits once for those that lie on a device; and once more before,
    if it does not know the number of some."""
    entries = [pair[1].sized() if hasattr(pair[1], "sized") else pair for pair in entries]
    if all(isinstance(values, np.ndarray) for _, values in entries):
        return list(entries)
    later = importlib.import_module(".crossing", __name__).later
    waiting = [None if isinstance(pair[1], np.ndarray) else later(*pair) for pair in entries]
    return [pair if on_way is None else tuple(on_way.read()) for pair, on_way in zip(entries, waiting, strict=True)]


def trimmed(found: Sequence[Candidates], expected: Sequence[int]) -> list[Entries]:
    """The entries that are used of candidates, on the host: with their numbers cross as many as are expected of each,
    and then what there is beyond that."""
    if all(isinstance(one.values, np.ndarray) for one in found):
        return [(one.indices, one.values) for one in found]
    later = importlib.import_module(".crossing", __name__).later
    pairs = list(zip(found, expected, strict=True))
    waiting = [later(one.count, one.indices[:most], one.values[:most]) for one, most in pairs]
    heads = [one.read() for one in waiting]
    counts = [int(count[0]) for count, _, _ in heads]
    rest = iter(landed([
        (one.indices[most:count], one.values[most:count])
        for (one, most), count in zip(pairs, counts, strict=True) if count > most
    ]))  # fmt: skip
    return [
        (indices[:count], values[:count]) if count <= most else _behind((indices, values), next(rest))
        for (_, indices, values), (_, most), count in zip(heads, pairs, counts, strict=True)
    ]


def _behind(first: Entries, second: Entries) -> Entries:
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])


@functools.cache
def _has_triton() -> bool:
    """Whether there is a Triton whose histogram takes a mask: 3.4 or later."""
    if importlib.util.find_spec("triton") is None:
        return False
    major, minor = importlib.import_module("triton").__version__.split(".")[:2]
    return (int(major), int(minor)) >= (3, 4)


@functools.cache
def load(name: str) -> DenseKernels:
    """The module of kernels of that name: `host`, `torch_ops` or `triton_ops`."""
    return cast(DenseKernels, importlib.import_module(f".{name}", __name__))
