"""Arrays from .npy and .npz files that nobody vouches for."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import InputError
from ..kernels import Array


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a .npz by name; the one array of a .npy under the empty name."""
    try:
        arrays = _load(path)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged file makes NumPy and zipfile raise a dozen kinds
        raise InputError(f"{path} is not a .npy or .npz file of plain arrays ({_first_line(error)})") from None
    if not arrays:
        raise InputError(f"{path} holds no arrays")
    return arrays


def _load(path: Path) -> dict[str, Array]:
    with open(path, "rb") as file:
        found = np.load(file, allow_pickle=False)
        if not isinstance(found, np.lib.npyio.NpzFile):
            return {"": found}
        return {name: found[name] for name in found.files}


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
