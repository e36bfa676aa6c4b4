"""Saving and resuming: buffers are per rank, so every rank has its own file (`sparsewire.training.checkpoints`).

With the same number of ranks, on machines as before where `nodes` are, each goes on exactly where it was. Otherwise the
buffers are resharded so that their mean over the ranks stays: that is what was not sent to the model yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsewire.core.files import PathLike
from sparsewire.training import checkpoints
from sparsewire.training.checkpoints import NAME, Training
from sparsewire.training.nodes.grid import Grid

from ..tensors import to_arrays, to_tensors

State = dict[str, Any]


def save(link: Training, folder: PathLike, name: str = NAME) -> Path:
    """Writes this rank's state to a file of its own, whole or not at all. Every rank calls it, at the same step.

    When it returns, all ranks have written theirs, and the set that was saved before is removed; an error on any rank
    is one on all of them, and leaves that set. Two links in one folder need two names. After `detach` each rank writes
    its file without the others, and earlier sets stay.
    """
    return checkpoints.save(link, lambda: to_arrays(link.state_dict()), folder, name)


def load(link: Training, folder: PathLike, name: str = NAME) -> None:
    """Goes on from the complete set of files with the latest step in the folder, whatever number of ranks wrote it.

    Every rank calls it. All ranks go on from the set, or all raise the error of the first that cannot, and stay as they
    are.
    """
    checkpoints.load(link, folder, name)


def reshard(saved: Sequence[Mapping[str, Any]], size: int, nodes: int | Grid | None = None) -> list[State]:
    """All ranks' states as those of `size` ranks; the mean of the buffers over the ranks stays.

    nodes: with which they will attach: ranks on each machine, or a link's `grid`.

    >>> import torch
    >>> facts = {"world_size": 3, "step": 7, "scale": 1.0}
    >>> old = [{"rank": rank, "buffers": {"w": {"residual": torch.ones(2)}}, **facts} for rank in range(3)]
    >>> [new["buffers"]["w"]["residual"].tolist() for new in reshard(old, 1)]
    [[1.0, 1.0]]
    """
    return [to_tensors(state) for state in checkpoints.reshard([to_arrays(state) for state in saved], size, nodes)]


def read_own(link: Training, saved: Sequence[Mapping[str, Any]]) -> Any:
    """This rank's state out of those of all ranks, or its share of them, ready for the link's `take_over`."""
    return link.read_state(checkpoints.own_state(link, [to_arrays(state) for state in saved]))
