"""State of sharded replicas in a `torch.distributed.checkpoint` folder: buffers are DTensors, which DCP reshards.

    replica00001.buffers.NAME.residual          a buffer of a whole parameter, in the shards of that replica
    rank00003.plain, rank00003.means.NAME.…     all else, as `dcp` has it of any link

A rank reads the shards that it will hold, of the replicas that it takes over from: with another number of shards or
replicas, too, no rank reads a whole model. A rank's checksum covers its buffers only where shards and replicas are as
many as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sparsewire.core.files import PathLike
from sparsewire.core.statefile import reading
from sparsewire.errors import InputError
from sparsewire.training.nodes.shards import ShardGrid
from sparsewire.training.residuals.gain import widest
from sparsewire.training.residuals.reshard import givers, position, share_of
from sparsewire.training.settings import real_shape
from sparsewire.training.together import together

from ..tensors import local, to_arrays
from .dcp import Tensors, digest, flatten, read_entries, read_states

if TYPE_CHECKING:
    from ..fsdp.link import FsdpLink

State = dict[str, Any]
Buffers = dict[str, dict[str, Any]]


def to_entries(link: FsdpLink) -> Tensors:
    """This rank's entries: its buffers as shards of whole ones, and the rest of its state."""
    state = link.state_dict()
    buffers = state.pop("buffers")
    kept = {name: {buffer: str(x.dtype).removeprefix("torch.") for buffer, x in kinds.items()}
            for name, kinds in buffers.items()}  # fmt: skip
    own = {f"{name}.{buffer}": x for name, kinds in buffers.items() for buffer, x in kinds.items()}
    entries = flatten({**state, "sharded": kept, "buffers digest": digest("", own)})
    replica = link.grid.place(link.comm.rank)[0]
    for name, kinds in buffers.items():
        for buffer, x in kinds.items():
            entries[_key(replica, name, buffer)] = _sharded(link.parameters[name], x)
    return entries


def load(link: FsdpLink, path: PathLike, saved: Mapping[str, Any], ranks: Sequence[int]) -> Any:
    """This rank's state out of the folder, ready for `take_over`. Every rank calls it."""
    rest = read_states(link, path, saved, ranks)
    alike, _ = together(link.gather, lambda: (_check(path, rest), None))
    same = [link.grid.facts(rank) for rank in range(link.grid.size)] == [state.get("nodes") for state in rest]
    replicas = 1 + max(int((state.get("nodes") or {"machine": state["rank"]})["machine"]) for state in rest)
    replica, shard = link.grid.place(link.comm.rank)
    wanted = [replica] if same else givers(replica, replicas, len(link.grid.machines))
    targets, _ = together(link.gather, lambda: (_targets(link, path, alike, wanted), None))
    flat = {_key(giver, *key): x for giver, kinds in targets.items() for key, x in kinds.items()}
    read_entries(link, path, {key: x for key, x in flat.items() if key in saved})

    def ready() -> tuple[Any, None]:
        with reading(path):
            buffers = [_buffers(targets.get(giver, {})) for giver in range(replicas)]
            if same:
                mine = rest[link.comm.rank]
                return link.read_state(_with_own(mine, _only(buffers[replica], mine["sharded"]))), None
            made = share_of(buffers, replica, len(link.grid.machines))
            return link.read_state(_moved(link, rest, made, shard)), None

    return together(link.gather, ready)[0]


# --- entries ---


def _key(replica: int, name: str, buffer: str) -> str:
    return f"replica{replica:05d}.buffers.{name}.{buffer}"


def _sharded(parameter: Any, flat: torch.Tensor) -> torch.Tensor:
    """A flat shard as one of a tensor that is sharded like the parameter; complex numbers are pairs."""
    from torch.distributed.tensor import DTensor

    shape = torch.Size(real_shape(parameter))
    part = flat.view(local(parameter).shape[:1] + shape[1:])
    stride = torch.empty(shape, device="meta").stride()
    made: torch.Tensor = DTensor.from_local(
        part, parameter.device_mesh, parameter.placements, run_check=False, shape=shape, stride=stride
    )
    return made


def _check(path: PathLike, rest: Sequence[State]) -> dict[tuple[str, str], str]:
    """The buffers that any rank has saved, and their dtypes."""
    with reading(path):
        if any("sharded" not in state for state in rest):
            raise InputError("this is the state of replicas that were not sharded: load it with a link as saved it")
        if len({(position(state), state["scale"]) for state in rest}) > 1:
            raise InputError("the states were saved at different steps")
        return {(name, buffer): dtype for state in rest for name, kinds in state["sharded"].items()
                for buffer, dtype in kinds.items()}  # fmt: skip


def _targets(
    link: FsdpLink, path: PathLike, kept: Mapping[tuple[str, str], str], wanted: Sequence[int]
) -> dict[int, dict[tuple[str, str], torch.Tensor]]:
    """Shards to read into, for each replica that is read; zeros, where nothing was saved."""
    with reading(path):
        for name, _ in kept:
            if name not in link.parameters:
                raise InputError(f"the state has {name!r}, which the model has not")

    def shard(name: str, dtype: str) -> torch.Tensor:
        parameter = link.parameters[name]
        numel = local(parameter).numel() * (1 + parameter.is_complex())
        return _sharded(parameter, torch.zeros(numel, dtype=getattr(torch, dtype)))

    return {giver: {key: shard(key[0], dtype) for key, dtype in kept.items()} for giver in wanted}


def _buffers(targets: Mapping[tuple[str, str], torch.Tensor]) -> Buffers:
    """Flat buffers by name, without those of which this rank has no element."""
    buffers: Buffers = {}
    for (name, buffer), x in targets.items():
        if local(x).numel():
            buffers.setdefault(name, {})[buffer] = local(x).reshape(-1).numpy()
    return buffers


# --- states ---


def _only(buffers: Buffers, kept: Mapping[str, Any]) -> Buffers:
    return {name: {buffer: buffers[name][buffer] for buffer in kinds} for name, kinds in kept.items()}


def _with_own(state: State, buffers: Buffers) -> State:
    """A rank's state as it was saved."""
    own = {f"{name}.{buffer}": torch.from_numpy(x) for name, kinds in buffers.items() for buffer, x in kinds.items()}
    if digest("", own) != state["buffers digest"]:
        raise InputError(f"the state of rank {state['rank']} does not match its checksum, so bytes of it have changed")
    return {**to_arrays(state), "buffers": buffers}


def _moved(link: FsdpLink, rest: Sequence[State], buffers: Buffers, shard: int) -> State:
    """The state of this rank's shard, where others had been cut otherwise."""
    rank, first = link.comm.rank, to_arrays(rest[0])
    rates = {name: rate for state in rest for name, rate in state.get("rates", {}).items() if name in buffers}
    means = _cut_means(link, [to_arrays(state) for state in rest], buffers, shard)
    return {**first, "rank": rank, "world_size": link.grid.size, "nodes": link.grid.facts(rank), "buffers": buffers,
            "means": means, "rates": rates, "gain": widest(rest)}  # fmt: skip


def _cut_means(link: FsdpLink, rest: Sequence[State], buffers: Buffers, shard: int) -> State:
    """The last step's means, which all replicas have alike, between this shard's bounds."""
    first = sorted((state for state in rest if (state.get("nodes") or {"machine": state["rank"]})["machine"] == 0),
                   key=lambda state: int((state.get("nodes") or {"part": 0})["part"]))  # fmt: skip
    shapes = {name: real_shape(parameter) for name, parameter in link.parameters.items()}
    before = ShardGrid.chunked(1, len(first), shapes).bounds_of
    means: State = {}
    for name in buffers:
        parts = [
            (part["means"][name], before[name][place]) for place, part in enumerate(first) if name in part["means"]
        ]
        if parts:
            low, high = link.grid.bounds_of[name][shard : shard + 2]
            indices = np.concatenate([mean["indices"].astype(np.int64) + start for mean, start in parts])
            inside = (low <= indices) & (indices < high)
            values = np.concatenate([mean["values"] for mean, _ in parts])[inside]
            kind = parts[0][0]["indices"].dtype
            means[name] = {**parts[0][0], "indices": (indices[inside] - low).astype(kind), "values": values}
    return means
