"""An all_gather by messages from each rank to every other, which all leave at once.

Gloo's own goes round a ring: each of its ranks − 1 rounds ends when a thread of every rank has had a core, which takes
longer than the bytes where ranks share cores. Here there is one round, of as many bytes. Several may be on their way.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .process_group import CPU, global_ranks

TAG, TAGS = 0x53570000, 2**16  # those of other messages are below


def is_direct(group: Any, device: torch.device) -> bool:
    """Whether this is gloo's own group, whose messages need no thread of the engine."""
    plain = type(group) is dist.ProcessGroup and device == CPU and global_ranks(group) is not None
    return plain and "gloo" in dist.get_backend_config(group).split("cpu:")[-1].split(",")[0]


def start_gather(target: torch.Tensor, source: torch.Tensor, rank: int, number: int, group: Any) -> list[dist.Work]:
    """Begins to fill the target with every rank's source. Both stay as they are until the works have ended; a number
    comes again after many."""
    tag, rows = TAG + number % TAGS, target.view(-1, source.numel())
    rows[rank].copy_(source)
    peers = [(rank + place) % len(rows) for place in range(1, len(rows))]
    works = [group.recv([rows[peer]], peer, tag) for peer in peers]
    return works + [group.send([source], peer, tag) for peer in peers]


def wait(works: list[dist.Work], group: Any) -> None:
    for work in works:
        work.wait()
