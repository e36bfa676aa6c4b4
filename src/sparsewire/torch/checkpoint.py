"""Saving and resuming: residuals are per rank, so every rank has its own file.

With the same number of ranks each goes on exactly where it was. With another number the residuals are dealt out again
so that their sum, which is what training still owes the model, stays: old rank i's go to new rank i mod size.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError
from ..leftover import add
from ..sparse import Sparse
from .link import Link
from .residuals import sparse_from, sparse_state

State = dict[str, Any]
_FILE = re.compile(r"sparsewire-(\d+)-of-(\d+)\.pt\Z")


def save(link: Link, folder: str | os.PathLike[str]) -> Path:
    """Writes this rank's state as `sparsewire-RANK-of-SIZE.pt`; whole or not at all. Every rank calls it."""
    state = link.state_dict()
    path = Path(folder) / f"sparsewire-{state['rank']:05d}-of-{state['world_size']:05d}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        torch.save(state, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def load(link: Link, folder: str | os.PathLike[str]) -> None:
    """Goes on from the newest complete set of files in the folder, whatever number of ranks wrote it.

    Every rank calls it; unless all of them find their part of one set, none goes on.
    """
    try:
        state = _mine(Path(folder), link)
        found = f"step {state['step']}, saved by {state['saved_by']} ranks"
    except Exception:
        link.comm.all_gather(b"nothing that it can use", "load")
        raise
    heard = [bytes(message).decode() for message in link.comm.all_gather(found.encode(), "load")]
    for rank, other in enumerate(heard):
        if other != found:
            raise InputError(f"{folder}: this rank finds {found}; another rank, {rank}, finds {other}")
    link.load_state_dict(state)


def _mine(folder: Path, link: Link) -> State:
    states = [torch.load(path, weights_only=True, map_location="cpu") for path in _newest(folder, link)]
    size = int(states[0]["world_size"])
    state = states[0] if size == link.comm.size else deal(states, link.comm.size)[link.comm.rank]
    return {**state, "saved_by": size}


def deal(states: Sequence[State], size: int) -> list[State]:
    """All ranks' states as those of `size` ranks; the sum of the residuals stays.

    >>> facts = {"world_size": 3, "step": 7, "scale": 1.0, "sparse_residuals": {}}
    >>> old = [{"rank": rank, "residuals": {"w": torch.ones(2)}, **facts} for rank in range(3)]
    >>> [new["residuals"]["w"].tolist() for new in deal(old, 2)]
    [[2.0, 2.0], [1.0, 1.0]]
    """
    ordered = sorted(states, key=lambda state: state["rank"])
    if [state["rank"] for state in ordered] != list(range(ordered[0]["world_size"])):
        raise InputError(f"the states of all {ordered[0]['world_size']} ranks are needed, one each")
    if len({state["step"] for state in ordered}) > 1:
        raise InputError("the states were saved at different steps")
    return [_dealt(ordered, rank, size) for rank in range(size)]


def _dealt(states: Sequence[State], rank: int, size: int) -> State:
    residuals: dict[str, torch.Tensor] = {}
    sparse: dict[str, Sparse] = {}
    for state in states[rank::size]:
        for name, kept in state["residuals"].items():
            residuals[name] = residuals[name] + kept if name in residuals else kept.clone()
        for name, kept in state["sparse_residuals"].items():
            one = sparse_from(kept)
            sparse[name] = add(sparse[name], one) if name in sparse else one
    return {
        **states[0],
        "rank": rank,
        "world_size": size,
        "residuals": residuals,
        "sparse_residuals": {name: sparse_state(kept) for name, kept in sparse.items()},
    }


def _newest(folder: Path, link: Link) -> list[Path]:
    """This rank's file if its world size wrote the newest set, otherwise all files of that set.

    Where every machine has a disk of its own, this rank's file is all that it sees of its set.
    """
    sets: dict[int, dict[int, Path]] = {}
    for path in folder.glob("sparsewire-*.pt") if folder.is_dir() else ():
        if match := _FILE.match(path.name):
            sets.setdefault(int(match[2]), {})[int(match[1])] = path
    mine, size = link.comm.rank, link.comm.size
    usable = {n: files for n, files in sets.items() if set(files) == set(range(n)) or (n == size and mine in files)}
    if not usable:
        raise InputError(f"{folder} holds no complete set of sparsewire-RANK-of-SIZE.pt files")
    newest = max(usable, key=lambda n: max(path.stat().st_mtime_ns for path in usable[n].values()))
    files = usable[newest]
    return [files[mine]] if newest == size else [files[rank] for rank in sorted(files)]
