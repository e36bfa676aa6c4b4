"""State in a `torch.distributed.checkpoint` folder: every rank's entries have its rank in their keys.

    rank00003.plain                       JSON, as bytes: what is no tensor
    rank00003.residuals.NAME
    rank00003.sparse.NAME.indices, .values

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
from .checkpoint import State, deal
from .link import Link

Tensors = dict[str, torch.Tensor]
_PLAIN = re.compile(r"rank(\d{5,})\.plain\Z")


def save_dcp(link: Link, path: str | os.PathLike[str]) -> None:
    """Writes all ranks' states to a folder of their own. Every rank calls it, with a folder that all of them see."""
    from torch.distributed import checkpoint as dcp

    if (Path(path) / ".metadata").exists() and not _ranks(_metadata(path)):
        raise InputError(f"{path} holds another checkpoint, which would be lost: give sparsewire a folder of its own")
    dcp.save(_flatten(link.state_dict()), checkpoint_id=path, process_group=link._hook.group)


def load_dcp(link: Link, path: str | os.PathLike[str]) -> None:
    """Goes on from the folder, whatever number of ranks wrote it. Every rank calls it."""
    from torch.distributed import checkpoint as dcp

    rank, size = link.comm.rank, link.comm.size
    saved = _metadata(path)
    ranks = _ranks(saved)
    if ranks != list(range(len(ranks))) or not ranks:
        raise InputError(f"{path} holds the sparsewire states of ranks {ranks}, but those of all ranks are needed")
    wanted = [rank] if len(ranks) == size else ranks
    prefixes = tuple(_prefix(one) for one in wanted)
    tensors = {key: torch.empty(kept.size, dtype=kept.properties.dtype)
               for key, kept in saved.items() if key.startswith(prefixes)}  # fmt: skip
    dcp.load(tensors, checkpoint_id=path, process_group=link._hook.group)
    states = [_unflatten(tensors, one) for one in wanted]
    link.load_state_dict(states[0] if len(ranks) == size else deal(states, size)[rank])


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
    sparse = state["sparse_residuals"]
    plain = {name: kept for name, kept in state.items() if name not in ("residuals", "sparse_residuals")}
    plain["sparse"] = {name: {"shape": kept["shape"], "dtype": kept["dtype"]} for name, kept in sparse.items()}
    tensors = {"plain": torch.frombuffer(bytearray(json.dumps(plain).encode()), dtype=torch.uint8)}
    tensors |= {f"residuals.{name}": kept for name, kept in state["residuals"].items()}
    tensors |= {f"sparse.{name}.{part}": kept[part] for name, kept in sparse.items() for part in ("indices", "values")}
    return {_prefix(state["rank"]) + key: tensor for key, tensor in tensors.items()}


def _unflatten(tensors: Mapping[str, torch.Tensor], rank: int) -> State:
    mine = {key.removeprefix(_prefix(rank)): kept for key, kept in tensors.items() if key.startswith(_prefix(rank))}
    plain = json.loads(mine["plain"].numpy().tobytes())
    residuals = {key.removeprefix("residuals."): kept for key, kept in mine.items() if key.startswith("residuals.")}
    sparse = {name: {**facts, "indices": mine[f"sparse.{name}.indices"], "values": mine[f"sparse.{name}.values"]}
              for name, facts in plain.pop("sparse").items()}  # fmt: skip
    return {**plain, "residuals": residuals, "sparse_residuals": sparse}
