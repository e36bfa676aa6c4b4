"""Ranks begin with the weights of rank 0."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from sparsewire.comm import Communicator
from sparsewire.errors import CommMismatch
from sparsewire.training.together import together

from .engine import open_comm
from .trees import Tree, on_devices

CHANNEL = "weights"


def broadcast(tree: Tree, comm: Communicator | None = None, timeout: float | None = None) -> Tree:
    """The tree with rank 0's numbers in all arrays, where they were. Every rank calls it, with the same arguments:
    `params = broadcast(params)`, before `tx.init(params)`.

    comm: the ranks; None: the processes of jax.distributed. Whatever is no array stays this rank's own.

    >>> broadcast({"w": np.ones(2, np.float32)})
    {'w': Array([1., 1.], dtype=float32)}
    """
    ranks = open_comm(comm, timeout)
    leaves, structure = jax.tree_util.tree_flatten(tree)
    places = [place for place, leaf in enumerate(leaves) if _is_array(leaf)]
    facts = [[list(leaves[place].shape), str(leaves[place].dtype)] for place in places]
    together(lambda data: list(map(bytes, ranks.all_gather(data, CHANNEL))), lambda: _same(ranks, facts))
    views = [np.ascontiguousarray(leaves[place]) for place in places]
    packed = b"".join(view.tobytes() for view in views) if ranks.rank == 0 else None
    theirs, start = memoryview(ranks.broadcast(packed)), 0
    for place, view in zip(places, views, strict=True):
        part = np.frombuffer(theirs[start : start + view.nbytes], view.dtype).reshape(view.shape)
        leaves[place] = on_devices(part, leaves[place])
        start += view.nbytes
    return jax.tree_util.tree_unflatten(structure, leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) or (
        isinstance(leaf, jax.Array) and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)
    )


def _same(comm: Communicator, facts: list[Any]) -> tuple[None, None]:
    """Raises where this rank's arrays are not those of rank 0."""
    first = json.loads(comm.broadcast(json.dumps(facts).encode() if comm.rank == 0 else None))
    if facts != first:
        pair = next((pair for pair in zip(facts, first, strict=False) if pair[0] != pair[1]), (len(facts), len(first)))
        raise CommMismatch(f"the tree has {pair[0]} where rank 0's has {pair[1]}: every rank gives the same tree")
    return None, None


def check_same(comm: Communicator, arrays: Mapping[str, Any]) -> None:
    """Refuses weights that differ between ranks: means of gradients would never make them equal."""
    digest = 0
    for array in arrays.values():
        digest = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"", digest)
    heard = [bytes(part) for part in comm.all_gather(digest.to_bytes(4, "little"), CHANNEL)]
    for rank, theirs in enumerate(heard):
        if theirs != heard[0]:
            raise CommMismatch(
                f"the weights of rank {rank} are not those of rank 0: write params = sparsewire.jax.broadcast(params) "
                "before tx.init(params)"
            )
