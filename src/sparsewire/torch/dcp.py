"""State in a `torch.distributed.checkpoint` folder: every rank's entries have its rank in their keys.

    rank00003.plain                              JSON, as bytes: what is no tensor
    rank00003.buffers.NAME.residual              a dense buffer
    rank00003.buffers.NAME.residual.indices      rows of a tensor with sparse gradients, and .values

All entries are tensors: other objects would be pickled. torch.distributed.checkpoint is imported when it is used, as
that takes a second.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError
from .checkpoint import State, fits, own_state
from .link import Link

Tensors = dict[str, torch.Tensor]
TENSOR = "$tensor"
_PLAIN = re.compile(r"rank(\d{5,})\.plain\Z")


def save_dcp(link: Link, path: str | os.PathLike[str]) -> None:
    """Writes all ranks' states to a folder of their own. Every rank calls it, with a folder that all of them see."""
    from torch.distributed import checkpoint as dcp

    if (Path(path) / ".metadata").exists() and not _ranks(_metadata(path)):
        raise InputError(f"{path} holds another checkpoint, which would be lost: give sparsewire a folder of its own")
    dcp.save(_flatten(link.state_dict()), checkpoint_id=path, process_group=link._hook.group)


def load_dcp(link: Link, path: str | os.PathLike[str]) -> None:
    """Goes on from the folder, whatever number of ranks wrote it. Every rank calls it."""
    saved = _metadata(path)
    ranks = _ranks(saved)
    if ranks != list(range(len(ranks))) or not ranks:
        raise InputError(f"{path} holds the sparsewire states of ranks {ranks}, but those of all ranks are needed")
    states = _states(link, path, saved, [link.comm.rank] if len(ranks) == link.comm.size else ranks)
    alike = link.comm.all_gather(b"fits" if fits(link, states[0]) else b"", "load")
    if len(states) < len(ranks) and not all(map(len, alike)):  # the ranks are on other machines than they were
        states = _states(link, path, saved, ranks)
    link.load_state_dict(own_state(link, states))


def _states(link: Link, path: str | os.PathLike[str], saved: Mapping[str, Any], ranks: Iterable[int]) -> list[State]:
    from torch.distributed import checkpoint as dcp

    prefixes = tuple(_prefix(one) for one in ranks)
    tensors = {key: torch.empty(kept.size, dtype=kept.properties.dtype)
               for key, kept in saved.items() if key.startswith(prefixes)}  # fmt: skip
    dcp.load(tensors, checkpoint_id=path, process_group=link._hook.group)
    return [_unflatten(tensors, one) for one in ranks]


def _metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    if not (Path(path) / ".metadata").exists():
        raise InputError(f"{path} holds no torch.distributed.checkpoint")
    from torch.distributed import checkpoint as dcp

    return dict(dcp.FileSystemReader(path).read_metadata().state_dict_metadata)


def _ranks(keys: Iterable[str]) -> list[int]:
    return sorted(int(match[1]) for key in keys if (match := _PLAIN.match(key)))


def _prefix(rank: int) -> str:
    return f"rank{rank:05d}."


def _flatten(state: State) -> Tensors:
    """Tensors with the path to them as key; everything else in one JSON text with the same nesting."""
    tensors: Tensors = {}
    plain = _split(state, "", tensors)
    text = torch.frombuffer(bytearray(json.dumps(plain).encode()), dtype=torch.uint8)
    return {_prefix(state["rank"]) + key: tensor for key, tensor in {"plain": text, **tensors}.items()}


def _split(value: Any, path: str, tensors: Tensors) -> Any:
    """The value with its tensors moved out; where one was there is its key."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return {TENSOR: path}
    if isinstance(value, Mapping):
        return {key: _split(inner, f"{path}.{key}" if path else key, tensors) for key, inner in value.items()}
    return value


def _unflatten(tensors: Mapping[str, torch.Tensor], rank: int) -> State:
    mine = {key.removeprefix(_prefix(rank)): kept for key, kept in tensors.items() if key.startswith(_prefix(rank))}
    state: State = _join(json.loads(mine["plain"].numpy().tobytes()), mine)
    return state


def _join(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(value, Mapping):
        return value
    if set(value) == {TENSOR}:
        return tensors[value[TENSOR]]
    return {key: _join(inner, tensors) for key, inner in value.items()}
