"""The model's variables: their names, which are the same on all ranks and after `load_model`, and rank 0's values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from sparsewire.comm import Communicator
from sparsewire.errors import InputError
from sparsewire.training.settings import Exclude, excluded


def named_variables(model: Any) -> dict[str, Any]:
    """The trainable variables by number and name. Paths hold counters of the process, and may repeat."""
    if not model.built:
        raise InputError("the model has no variables yet: write model.build(input_shape) before attach")
    named = {f"{number}:{variable.name}": variable for number, variable in enumerate(model.trainable_variables)}
    if not named:
        raise InputError("the model has no trainable variables")
    return named


def dense_names(named: Mapping[str, Any], exclude: Exclude) -> frozenset[str]:
    """The names of those whose paths are excluded."""
    paths = excluded({variable.path: variable for variable in named.values()}, exclude)
    return frozenset(name for name, variable in named.items() if variable.path in paths)


def take_over(variables: Iterable[Any], comm: Communicator) -> None:
    """Rank 0's values for all ranks, in one message."""
    known = list(variables)
    arrays = [np.asarray(keras.ops.convert_to_numpy(variable.value), order="C") for variable in known]
    mine = b"".join(array.tobytes() for array in arrays) if comm.rank == 0 else None
    given, start = comm.broadcast(mine), 0
    if len(given) != sum(array.nbytes for array in arrays):
        raise InputError(f"the variables have {sum(array.nbytes for array in arrays)} bytes, rank 0's {len(given)}")
    for variable, array in zip(known, arrays, strict=True):
        value = np.frombuffer(given, array.dtype, array.size, start).reshape(array.shape).copy()
        start += array.nbytes
        if comm.rank:
            variable.assign(value)
