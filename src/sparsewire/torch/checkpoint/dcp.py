"""State in a `torch.distributed.checkpoint` folder: every rank's entries have its rank in their keys.

    rank00003.plain                              JSON, as bytes: what is no tensor, and a checksum of all
    rank00003.buffers.NAME.residual              a dense buffer
    rank00003.buffers.NAME.residual.indices      rows of a tensor with sparse gradients, and .values

All entries are tensors: other objects would be pickled. torch.distributed.checkpoint is imported when it is used, as
that takes a second.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from sparsewire.core.files import PathLike
from sparsewire.core.statefile import reading
from sparsewire.errors import InputError
from sparsewire.training.checkpoints import fits
from sparsewire.training.nodes.shards import ShardGrid
from sparsewire.training.together import together

from ..ddp.link import Link
from .files import State, read_own

Tensors = dict[str, torch.Tensor]
TENSOR = "$tensor"
_PLAIN = re.compile(r"rank(\d{5,})\.plain\Z")


def save_dcp(link: Link, path: PathLike) -> None:
    """Writes all ranks' states to a folder of their own. Every rank calls it, with a folder that all of them see.

    torch's writer replaces what is in the folder file by file: give every step a folder of its own, if a save that is
    killed shall leave the one before.
    """
    from torch.distributed import checkpoint as dcp

    state, _ = together(link.gather, lambda: (_to_save(link, path), None))
    dcp.save(state, checkpoint_id=path, process_group=link.process_group)


def load_dcp(link: Link, path: PathLike) -> None:
    """Goes on from the folder, whatever number of ranks wrote it. Every rank calls it.

    All ranks go on, or all raise the error of the first that cannot, and stay as they are.
    """
    (saved, ranks), _ = together(link.gather, lambda: (_saved(path), None))
    if isinstance(link.grid, ShardGrid):
        from . import dcp_shards

        link.take_over(dcp_shards.load(cast(Any, link), path, saved, ranks))
        return
    states = read_states(link, path, saved, [link.comm.rank] if len(ranks) == link.comm.size else ranks)
    (), alike = together(link.gather, lambda: ((), _fits(link, path, states[0])))
    if len(states) < len(ranks) and not all(alike):  # the ranks are on other machines than they were
        states = read_states(link, path, saved, ranks)
    ready, _ = together(link.gather, lambda: (_read(link, path, states), None))
    link.take_over(ready)


def _to_save(link: Link, path: PathLike) -> Tensors:
    if (Path(path) / ".metadata").exists() and not _ranks(_metadata(path)):
        raise InputError(f"{path} holds another checkpoint, which would be lost: give sparsewire a folder of its own")
    if isinstance(link.grid, ShardGrid):
        from . import dcp_shards

        return dcp_shards.to_entries(cast(Any, link))
    return flatten(link.state_dict())


def _saved(path: PathLike) -> tuple[dict[str, Any], list[int]]:
    """All entries of the folder, and the ranks that have some."""
    saved = _metadata(path)
    ranks = _ranks(saved)
    if ranks != list(range(len(ranks))) or not ranks:
        raise InputError(f"{path} holds the sparsewire states of ranks {ranks}, but those of all ranks are needed")
    return saved, ranks


def read_states(link: Link, path: PathLike, saved: Mapping[str, Any], ranks: Sequence[int]) -> list[State]:
    """Some ranks' states. torch's reader is a collective, which fails on all ranks or on none."""

    def empty() -> tuple[Tensors, None]:
        prefixes = tuple(prefix(rank) for rank in ranks)
        with reading(path):
            return {key: torch.empty(kept.size, dtype=kept.properties.dtype)
                    for key, kept in saved.items() if key.startswith(prefixes)}, None  # fmt: skip

    tensors, _ = together(link.gather, empty)
    read_entries(link, path, tensors)

    def states() -> tuple[list[State], None]:
        with reading(path):
            return [unflatten(tensors, rank) for rank in ranks], None

    return together(link.gather, states)[0]


def read_entries(link: Link, path: PathLike, tensors: Tensors) -> None:
    """Fills the tensors with the folder's entries of these keys."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        dcp.load(tensors, checkpoint_id=path, process_group=link.process_group)
    except (CheckpointException, Exception) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _fits(link: Link, path: PathLike, state: State) -> bool:
    with reading(path):
        return fits(link, state)


def _read(link: Link, path: PathLike, states: Sequence[State]) -> Any:
    with reading(path):
        return read_own(link, states)


def _metadata(path: PathLike) -> dict[str, Any]:
    if not (Path(path) / ".metadata").exists():
        raise InputError(f"{path} holds no torch.distributed.checkpoint")
    from torch.distributed import checkpoint as dcp

    with reading(path):
        return dict(dcp.FileSystemReader(path).read_metadata().state_dict_metadata)


def _ranks(keys: Iterable[str]) -> list[int]:
    return sorted(int(match[1]) for key in keys if (match := _PLAIN.match(key)))


def prefix(rank: int) -> str:
    return f"rank{rank:05d}."


def flatten(state: State) -> Tensors:
    """Tensors with the path to them as key; everything else in one JSON text with the same nesting, and checksums."""
    tensors: Tensors = {}
    plain = json.dumps(_split(state, "", tensors))
    text = json.dumps({"state": plain, "digest": digest(plain, tensors)})
    packed = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return {prefix(state["rank"]) + key: tensor for key, tensor in {"plain": packed, **tensors}.items()}


def digest(plain: str, tensors: Tensors) -> str:
    """Of one rank's entries: torch's files have no checksum."""
    digest = hashlib.blake2b(plain.encode(), digest_size=16)
    for key, tensor in sorted(tensors.items()):
        digest.update(f"\0{key}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _split(value: Any, path: str, tensors: Tensors) -> Any:
    """The value with its tensors moved out; where one was there is its key."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return {TENSOR: path}
    if isinstance(value, Mapping):
        return {key: _split(inner, f"{path}.{key}" if path else key, tensors) for key, inner in value.items()}
    return value


def unflatten(tensors: Mapping[str, torch.Tensor], rank: int) -> State:
    mine = {key.removeprefix(prefix(rank)): kept for key, kept in tensors.items() if key.startswith(prefix(rank))}
    text = json.loads(mine.pop("plain").numpy().tobytes())
    if digest(text["state"], mine) != text["digest"]:
        raise InputError(f"the state of rank {rank} does not match its checksum, so bytes of it have changed")
    state: State = _join(json.loads(text["state"]), mine)
    return state


def _join(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(value, Mapping):
        return value
    if set(value) == {TENSOR}:
        return tensors[value[TENSOR]]
    return {key: _join(inner, tensors) for key, inner in value.items()}
