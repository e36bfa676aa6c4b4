"""`FsdpLink` connects a sharded model to its replicas: FSDP's hook and the communication thread over an `Averager`.

1. FSDP reduces a unit's gradients over the shards and calls the hook. This rank's shards are copied, without padding,
   and queued; the tensor is zeroed, so what FSDP does with it next adds nothing to `.grad`.
2. On the communication thread the averager exchanges them with the ranks that have the same shards in other replicas.
3. At the end of backward, behind FSDP's own callback, which still calls hooks, the step is finished, and the means are
   added to `.grad`: divided, cast and accumulated as FSDP would have done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from sparsewire.codecs.transform import Fourier
from sparsewire.core.statefile import reading
from sparsewire.errors import InputError, SparsewireError
from sparsewire.training.averager import Averager
from sparsewire.training.checkpoints import fits
from sparsewire.training.layout import Slice
from sparsewire.training.nodes.shards import ShardGrid
from sparsewire.training.recipe import Recipe
from sparsewire.training.schedule import Settings

from ..ddp.bucket import Bucket
from ..ddp.comm_thread import at_the_end_of_backward
from ..ddp.link import Link
from ..optimizers import Fit
from ..tensors import local, to_arrays, to_tensors
from .hook import FsdpHook
from .private import ShardSpan, Unit
from .replicas import ReplicaGroup

NESTED = (
    "a backward that ran within another, as checkpoint(…, use_reentrant=True) around a unit has it, has no end where "
    "all means are there: write use_reentrant=False"
)


@dataclass(frozen=True)
class Reduced:
    """A unit's shards on their way: where each belongs, their copy, and the promise of the means in it."""

    unit: Unit
    places: list[ShardSpan]
    copy: torch.Tensor
    promise: torch.futures.Future[torch.Tensor]

    def add(self, replicas: int) -> None:
        """Adds the means to `.grad`, as FSDP would have done with them."""
        divisor, start = self.unit.divisor(self.copy.dtype, replicas), 0
        for place in self.places:
            mean = self.copy[start : (start := start + place.size)]
            gradient = place.gradient
            gradient += (mean if divisor == 1 else mean / divisor).to(gradient.device, gradient.dtype)


class FsdpLink(Link):
    """Made by `attach(model, …, replicas=…)`: as any link, on all shards of all replicas."""

    _group: ReplicaGroup

    def __init__(
        self, names: dict[torch.Tensor, str], group: ReplicaGroup, settings: Settings, hook: FsdpHook,
        fit: Fit | None = None, fourier: Fourier | None = None, recipe: Recipe | None = None,
    ) -> None:  # fmt: skip
        self._reduced: list[Reduced] = []  # in this backward
        self._in_round: set[str] = set()  # units that have come since the last exchange
        self._copies: dict[str, torch.Tensor] = {}  # free ones, by unit
        self._backward: int | None = None  # autograd's number of the one that has not ended
        super().__init__(names, group, settings, hook, fit, fourier, recipe)

    def _make_averager(self, settings: Settings) -> Averager:
        sizes = {name: _numel(local(parameter)) for parameter, name in self._names.items()}
        return Averager(self._group.across, settings, {name: size for name, size in sizes.items() if size})

    # --- what users call ---

    @property
    def grid(self) -> ShardGrid:
        """Which ranks hold which shards of which replica."""
        return self._group.grid

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The sharded parameters by name."""
        return {name: parameter for parameter, name in self._names.items()}

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        return self._group.process_group

    def stats(self) -> dict[str, Any]:
        """As of any link; bytes are those between this shard's replicas."""
        return {**super().stats(), "replicas": self._group.across.size, "shards": self._group.inside.size}

    def state_dict(self) -> dict[str, Any]:
        return to_tensors(self.grid.labelled(self.averager.state_dict(), self.comm.rank))

    def read_state(self, state: Mapping[str, Any]) -> Any:
        with reading():
            arrays = to_arrays(state)
            if not fits(self, arrays):
                raise InputError("this is the state of another shard or replica; load(link, folder) picks or reshards")
            return self.averager.read_state(self.grid.unlabelled(arrays))

    # --- what the hook calls, on autograd's thread ---

    def take(self, unit: Unit, reduced: torch.Tensor) -> None:
        """Copies a unit's shards for the communication thread and zeroes what FSDP will add to `.grad`."""
        self._begin_backward()
        if unit.name in self._in_round:  # a module that was used twice: its units come twice
            self._end_round()
        places = unit.places(reduced.numel())
        copy = self._copy(unit, places, reduced)
        reduced.zero_()
        bucket = Bucket(copy, _numbers(copy), self._slices(places, copy), is_last=False)
        self._in_round.add(unit.name)
        self._reduced.append(Reduced(unit, places, copy, self._comm_thread.put(bucket)))

    def _begin_backward(self) -> None:
        backward = torch._C._current_graph_task_id()
        if self._backward is None:
            self._backward = backward
            at_the_end_of_backward(self._end_backward)
        elif self._backward != backward:
            raise SparsewireError(f"{NESTED}; if the last backward raised an error, detach and attach again")

    def _copy(self, unit: Unit, places: list[ShardSpan], reduced: torch.Tensor) -> torch.Tensor:
        size, copy = sum(place.size for place in places), self._copies.pop(unit.name, None)
        if copy is None or (copy.numel(), copy.dtype, copy.device) != (size, reduced.dtype, reduced.device):
            copy = reduced.new_empty(size)
        start = 0
        for place in places:
            copy[start : (start := start + place.size)] = reduced[place.start : place.start + place.size]
        return copy

    def _slices(self, places: list[ShardSpan], copy: torch.Tensor) -> tuple[Slice, ...]:
        """Shards as parts of whole parameters; those without elements are left out, in all replicas alike."""
        slices, start, width, shard = [], 0, 1 + copy.is_complex(), self._group.inside.rank
        for place in places:
            stop, bounds = start + place.size * width, self.grid.bounds_of[place.name]
            if place.size:
                slices.append(Slice(place.name, start, stop, bounds[-1], bounds[shard]))
            start = stop
        return tuple(slices)

    def _end_round(self) -> None:
        """Everything that has come is finished as one step."""
        self._in_round.clear()
        nothing = torch.empty(0)
        self._comm_thread.put(Bucket(nothing, nothing, (), is_last=True)).wait()

    def _end_backward(self) -> None:
        self._backward = None
        reduced, self._reduced = self._reduced, []
        if reduced and reduced[-1].unit.is_nested:
            raise InputError(NESTED)
        self._end_round()
        for part in reduced:
            part.promise.wait()
        if self._comm_thread.error is not None:
            raise self._comm_thread.error
        for part in reduced:
            part.add(self._group.across.size)
            self._copies[part.unit.name] = part.copy
        self._watch.note()


def _numel(tensor: torch.Tensor) -> int:
    return tensor.numel() * (1 + tensor.is_complex())


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor).view(-1) if tensor.is_complex() else tensor
