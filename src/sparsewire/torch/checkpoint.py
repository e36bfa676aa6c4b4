"""Saving and resuming: buffers are per rank, so every rank has its own file.

With the same number of ranks, on machines as before where `nodes` are, each goes on exactly where it was. Otherwise the
buffers are dealt out again so that their mean over the ranks stays: that is what training still owes the model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch

from .. import round_states
from ..comm import Communicator
from ..errors import InputError
from ..grid import Grid
from ..scheme import scheme
from .tensors import to_arrays, to_tensors

State = dict[str, Any]
NAME = "sparsewire"


class Saved(Protocol):
    """What can be saved: a `Link`, a `LocalLink`."""

    comm: Communicator

    @property
    def attached(self) -> bool: ...

    @property
    def grid(self) -> Grid: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


_savers: WeakValueDictionary[Path, Saved] = WeakValueDictionary()  # who wrote which file in this process


def save(link: Saved, folder: str | os.PathLike[str], name: str = NAME) -> Path:
    """Writes this rank's state as `NAME-RANK-of-SIZE.pt`; whole or not at all. Every rank calls it.

    Two links in one folder need two names.
    """
    state = link.state_dict()
    path = Path(folder).resolve() / f"{name}-{state['rank']:05d}-of-{state['world_size']:05d}.pt"
    other, _savers[path] = _savers.get(path, link), link
    if other is not link and other.attached:
        _savers[path] = other
        raise InputError(f"{path} holds another link's state; give each a name of its own: save(link, folder, name=…)")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        torch.save(state, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def load(link: Saved, folder: str | os.PathLike[str], name: str = NAME) -> None:
    """Goes on from the complete set of files with the latest step in the folder, whatever number of ranks wrote it.

    Every rank calls it; unless all of them find their part of one set, none goes on.
    """
    try:
        state, size = _mine(Path(folder), link, name)
        found = f"step {state['step']}, saved by {size} ranks"
    except BaseException:
        link.comm.all_gather(b"nothing that it can use", "load")
        raise
    heard = [bytes(message).decode() for message in link.comm.all_gather(found.encode(), "load")]
    for rank, other in enumerate(heard):
        if other != found:
            raise InputError(f"{folder}: this rank finds {found}; another rank, {rank}, finds {other}")
    link.load_state_dict(state)


def deal(saved: Sequence[Mapping[str, Any]], size: int, nodes: int | Grid | None = None) -> list[State]:
    """All ranks' states as those of `size` ranks; the mean of the buffers over the ranks stays.

    nodes: with which they will attach: ranks on each machine, or a link's `grid`.

    >>> facts = {"world_size": 3, "step": 7, "scale": 1.0}
    >>> old = [{"rank": rank, "buffers": {"w": {"residual": torch.ones(2)}}, **facts} for rank in range(3)]
    >>> [new["buffers"]["w"]["residual"].tolist() for new in deal(old, 1)]
    [[1.0, 1.0]]
    """
    arrays = [to_arrays(state) for state in saved]
    if not isinstance(nodes, Grid):
        nodes = Grid.even(size, nodes, scheme(arrays[0]["scheme"]).transform.width) if nodes else None
    return [to_tensors(state) for state in round_states.deal(arrays, size, nodes)]


def own_state(link: Saved, saved: Sequence[State]) -> State:
    """This rank's state as it was saved, or its share of those of all ranks."""
    mine = next((state for state in saved if fits(link, state)), None)
    return mine if mine is not None else deal(saved, link.comm.size, link.grid)[link.comm.rank]


def fits(link: Saved, state: Mapping[str, Any]) -> bool:
    """Whether this rank can go on from the state as it is."""
    rank, grid = link.comm.rank, link.grid
    return (state["rank"], state["world_size"], state.get("nodes")) == (rank, grid.size, grid.facts(rank))


def _mine(folder: Path, link: Saved, name: str) -> tuple[Mapping[str, Any], int]:
    """This rank's state out of the newest usable set, and how many ranks wrote it."""
    newest = max(_usable(folder, link, name), key=lambda files: int(_read(files[0])["step"]))
    states_found = [_read(path) for path in newest]
    return own_state(link, states_found), int(states_found[0]["world_size"])


def _read(path: Path) -> State:
    state: State = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    return state


def _usable(folder: Path, link: Saved, name: str) -> list[list[Path]]:
    """Of each set this rank's file if that is all it needs, otherwise all of them.

    Where every machine has a disk of its own, this rank's file is all that it sees of its set.
    """
    pattern, sets = re.compile(re.escape(name) + r"-(\d+)-of-(\d+)\.pt\Z"), dict[int, dict[int, Path]]()
    for path in folder.glob(f"{name}-*.pt") if folder.is_dir() else ():
        if match := pattern.match(path.name):
            sets.setdefault(int(match[2]), {})[int(match[1])] = path
    file = sets.get(link.comm.size, {}).get(link.comm.rank)
    own = [[file]] if file is not None and fits(link, _read(file)) else []
    others = (files for n, files in sets.items() if not (own and n == link.comm.size) and set(files) == set(range(n)))
    whole = [[files[rank] for rank in sorted(files)] for files in others]
    if not (whole or own):
        raise InputError(f"{folder} holds no complete set of {name}-RANK-of-SIZE.pt files")
    return own + whole
