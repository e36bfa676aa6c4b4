"""What `attach` is given, checked before anything is sent: each refusal names the setting and what it should be."""

from __future__ import annotations

import fnmatch
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from sparsewire.codecs.scheme import Scheme, Spec
from sparsewire.codecs.scheme import scheme as read_scheme
from sparsewire.errors import InputError, SchemeError, SparsewireError
from sparsewire.frames.codec import decode, encode
from sparsewire.training.schedule import Ratios, SchemeSchedule, Settings, is_whole

Exclude = Iterable[str] | Callable[[str, torch.nn.Parameter], bool]
COMPILED = "_orig_mod"  # what torch.compile calls the module that it wraps
WRAPPED = (COMPILED, "_forward_module")  # the latter by Lightning Fabric
PROBE = np.linspace(-1, 1, 64, dtype=np.float32)


def find_ddp(model: torch.nn.Module) -> DistributedDataParallel:
    """The DDP model, which torch.compile or Lightning Fabric may have wrapped."""
    inner: Any = model
    while not isinstance(inner, DistributedDataParallel):
        found = next((name for name in WRAPPED if name in getattr(inner, "_modules", ())), None)
        if found is None:
            raise InputError(f"attach needs a model wrapped in DistributedDataParallel, not {type(model).__name__}")
        inner = inner._modules[found]
    return inner


def named_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Names as the plain module has them, whatever of it is compiled."""
    return {plain(name): parameter for name, parameter in module.named_parameters()}


def plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != COMPILED)


def read_settings(
    named: Mapping[str, torch.nn.Parameter],
    scheme: Spec,
    select_per: str,
    dense_below: int,
    exclude: Exclude,
    warmup_steps: int,
    ratio_schedule: Ratios | None,
    scaler: torch.amp.GradScaler | None,
    seed: int,
    on_step: Callable[[dict[str, Any]], None] | None,
    timeout: float | None,
    clip_norm: float | None,
    nodes: int | str | None = None,
) -> Settings:
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
    names = excluded(named, exclude)
    scale = None if scaler is None else scaler.get_scale
    shapes = {name: (*parameter.shape, *(2,) * parameter.is_complex()) for name, parameter in named.items()}
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


def is_positive(timeout: Any) -> bool:
    if timeout is None:
        return True
    number = isinstance(timeout, numbers.Real) and not isinstance(timeout, bool)
    return number and math.isfinite(timeout) and timeout > 0


def usable(scheme: Scheme) -> Scheme:
    """Refuses what would fail, or send nothing, at the first step."""
    if scheme.select.takes_nothing:
        raise SchemeError(f"{scheme.select} selects nothing: give k=1 or more, or a ratio")
    try:
        decode(encode(PROBE, scheme))
    except SparsewireError as error:
        raise SchemeError(f"the scheme {scheme} does not work here: {error}") from error
    return scheme


def excluded(named: Mapping[str, torch.nn.Parameter], exclude: Exclude) -> frozenset[str]:
    """The names that patterns or a function pick; a pattern that picks none is an error."""
    if callable(exclude):
        return frozenset(name for name, parameter in named.items() if exclude(name, parameter))
    patterns = _patterns(exclude)
    for pattern in patterns:
        if not fnmatch.filter(named, pattern):
            raise InputError(f"exclude={pattern!r} matches no parameter; there are {', '.join(list(named)[:8])}, …")
    return frozenset(name for name in named if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def _patterns(exclude: Any) -> list[str]:
    patterns = [exclude] if isinstance(exclude, str) else list(exclude) if isinstance(exclude, Iterable) else [exclude]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"exclude is a list of name patterns or a function of name and parameter, not {exclude!r}")
    return patterns
