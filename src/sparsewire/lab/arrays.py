"""Reads arrays from .npy and .npz files, which may be damaged or something else altogether."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from sparsewire.core import host
from sparsewire.errors import InputError, SparsewireError
from sparsewire.kernels import Array

NPY, ZIP = b"\x93NUMPY", b"PK"
UNKNOWN_TYPE = "has a number type that NumPy does not store; save x.astype('float32') instead"


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a .npz by name; the one array of a .npy under the empty name."""
    with open(path, "rb") as file:
        if not file.read(len(NPY)).startswith((NPY, ZIP)):
            raise InputError(f"{path} is not a .npy or .npz file")
        file.seek(0)
        try:
            arrays = _read(file)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # a damaged file makes NumPy and zipfile raise a dozen kinds
            raise InputError(f"{path} is damaged, or does not hold plain arrays ({_reason(error)})") from None
    if not arrays:
        raise InputError(f"{path} holds no arrays")
    return {name: _checked(array, f"{path}[{name}]" if name else str(path)) for name, array in arrays.items()}


def load_gradients(paths: Iterable[Path]) -> dict[str, Array]:
    """The arrays of several files by name (for a .npy, the file's); all of them can be measured on.

    Arrays of fewer than two elements are left out where a file has others: a scale's gradient, the number of a step.
    """
    gradients: dict[str, Array] = {}
    for path in dict.fromkeys(paths):
        arrays = load_arrays(path)
        for key, array in ({key: array for key, array in arrays.items() if array.size > 1} or arrays).items():
            name = key or path.stem
            if name in gradients:
                name = _apart(path, key)
            gradients[name] = measurable(array, name)
    return gradients


def _apart(path: Path, key: str) -> str:
    """A name with its file; the number of a step, as in `layer.weight@3`, stays at the end."""
    name, _, step = key.rpartition("@")
    if name and step.isdecimal():
        return f"{path}[{name}]@{step}"
    return f"{path}[{key}]" if key else str(path)


def measurable(array: Array, name: str) -> Array:
    """The array, if it can be measured on."""
    try:
        tensor = host.to_host(array)
    except SparsewireError as error:
        raise InputError(f"{name}: {error}") from None
    assert isinstance(tensor, host.Dense)
    if tensor.flat.size < 2 or not np.isfinite(tensor.flat).all():
        raise InputError(f"{name}: a gradient to measure on has two or more elements, all of them finite")
    return array


def _read(file: Any) -> dict[str, Any]:
    loaded = np.load(file, allow_pickle=False)
    return dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else {"": loaded}


def _checked(array: Any, name: str) -> Array:
    if not isinstance(array, np.ndarray):  # NumPy gives other files of an archive as bytes
        raise InputError(f"{name} is not an array: the archive is not a .npz file")
    if array.dtype.kind == "V" and array.dtype.fields is None and array.dtype.itemsize != 2:  # two bytes: bfloat16
        raise InputError(f"{name} {UNKNOWN_TYPE}")
    return array


def _reason(error: Exception) -> str:
    if "pickle" in str(error):
        return "Python objects are never loaded"
    return (str(error) or type(error).__name__).splitlines()[0]
