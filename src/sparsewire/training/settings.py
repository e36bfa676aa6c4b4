"""What a host is told of a training, read and checked: each refusal names the setting and what it should be.

Tensors are anything with a `shape` and a `dtype`: torch's, NumPy's, JAX's or TensorFlow's.
"""

from __future__ import annotations

import fnmatch
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from sparsewire.codecs.scheme import Scheme, Spec
from sparsewire.codecs.scheme import scheme as read_scheme
from sparsewire.errors import InputError, SchemeError, SparsewireError
from sparsewire.frames.codec import decode, encode

from .schedule import Ratios, SchemeSchedule, Settings, is_whole

Exclude = Iterable[str] | Callable[[str, Any], bool]
PROBE = np.linspace(-1, 1, 64, dtype=np.float32)


class TensorLike(Protocol):
    """A tensor of any framework."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


class LossScaler(Protocol):
    """What multiplies the loss, as torch's GradScaler does."""

    def get_scale(self) -> float: ...


def dtype_name(tensor: TensorLike) -> str:
    """The name of a tensor's dtype without its framework's.

    >>> dtype_name(np.zeros(3, np.float32))
    'float32'
    """
    return str(tensor.dtype).removeprefix("<dtype: '").removesuffix("'>").rpartition(".")[2]


def real_shape(tensor: TensorLike) -> tuple[int, ...]:
    """A tensor's shape in real numbers, of which a complex one has two.

    >>> real_shape(np.zeros((3, 4), np.complex64))
    (3, 4, 2)
    """
    shape = tuple(int(size) for size in tensor.shape)
    return (*shape, 2) if dtype_name(tensor).startswith("complex") else shape


def real_sizes(tensors: Mapping[str, TensorLike]) -> dict[str, int]:
    """How many real numbers each tensor has."""
    return {name: math.prod(real_shape(tensor)) for name, tensor in tensors.items()}


def read_settings(
    tensors: Mapping[str, TensorLike],
    scheme: Spec,
    select_per: str,
    dense_below: int,
    exclude: Exclude,
    warmup_steps: int,
    ratio_schedule: Ratios | None,
    scaler: LossScaler | None,
    seed: int,
    on_step: Callable[[dict[str, Any]], None] | None,
    timeout: float | None,
    clip_norm: float | None,
    nodes: int | str | None = None,
) -> Settings:
    """The settings of a training of these tensors, checked as far as this rank can check them alone."""
    if not is_whole(dense_below) or dense_below < 0:
        raise InputError(f"dense_below is a number of elements, 0 or more, not {dense_below!r}")
    if not is_whole(seed):
        raise InputError(f"seed is a whole number, not {seed!r}")
    if on_step is not None and not callable(on_step):
        raise InputError(f"on_step is a function of a dict, or None, not {on_step!r}")
    if scaler is not None and not hasattr(scaler, "get_scale"):
        raise InputError(f"scaler is a GradScaler, or None, not {scaler!r}")
    if not is_positive(clip_norm):
        raise InputError(f"clip_norm is a number above 0, or None, not {clip_norm!r}")
    if not is_positive(timeout):
        raise InputError(f"timeout is a number of seconds above 0, or None, not {timeout!r}")
    schedule = SchemeSchedule(usable(read_scheme(scheme)), warmup_steps, ratio_schedule)
    names = excluded(tensors, exclude)
    scale = None if scaler is None else scaler.get_scale
    shapes = {name: real_shape(tensor) for name, tensor in tensors.items()}
    return Settings(
        schedule,
        names,
        int(dense_below),
        select_per,
        int(seed),
        on_step,
        scale,
        clip_norm=clip_norm,
        nodes=nodes,
        shapes=shapes,
    )


def is_positive(value: Any) -> bool:
    """A number above 0, or None, which is no limit."""
    if value is None:
        return True
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


def usable(scheme: Scheme) -> Scheme:
    """Refuses what would fail, or send nothing, at the first step."""
    if scheme.select.takes_nothing:
        raise SchemeError(f"{scheme.select} selects nothing: give k=1 or more, or a ratio")
    try:
        decode(encode(PROBE, scheme))
    except SparsewireError as error:
        raise SchemeError(f"the scheme {scheme} does not work here: {error}") from error
    return scheme


def excluded(tensors: Mapping[str, TensorLike], exclude: Exclude) -> frozenset[str]:
    """The names that patterns or a function pick; a pattern that picks none is an error."""
    if callable(exclude):
        return frozenset(name for name, tensor in tensors.items() if exclude(name, tensor))
    patterns = _patterns(exclude)
    for pattern in patterns:
        if not fnmatch.filter(tensors, pattern):
            raise InputError(f"exclude={pattern!r} matches no parameter; there are {', '.join(list(tensors)[:8])}, …")
    return frozenset(name for name in tensors if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def _patterns(exclude: Any) -> list[str]:
    patterns = [exclude] if isinstance(exclude, str) else list(exclude) if isinstance(exclude, Iterable) else [exclude]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"exclude is a list of name patterns or a function of name and parameter, not {exclude!r}")
    return patterns
