"""The hook that FSDP calls for each unit once the unit's gradients are reduced over the shards."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from sparsewire.errors import InputError, SparsewireError

from ..ddp.hook import HookState
from .private import Unit


class FsdpHook(HookState):
    """One for all units of a model: links may come and go, the hook stays.

    Without a link it averages over the replicas dense, so that these stay alike.
    """

    def __init__(self, units: Sequence[Unit], replicas: dist.ProcessGroup) -> None:
        super().__init__(replicas)
        self._partial: dict[str, torch.Tensor] = {}  # of micro-steps, by unit
        self._check_free(units)
        for unit in units:
            unit.listen(partial(self._reduced, unit))

    @staticmethod
    def _check_free(units: Sequence[Unit]) -> None:
        for unit in units:
            owner = getattr(getattr(unit.hook, "func", None), "__self__", None)
            if unit.hook is not None and not isinstance(owner, FsdpHook):
                raise InputError(f"{unit.name or 'the model'} has an all-reduce hook already: leave "
                                 "set_all_reduce_hook out, attach sets its own")  # fmt: skip
            if isinstance(owner, FsdpHook) and owner.link is not None:
                raise SparsewireError("the model has a link already; call its detach() first")

    def _reduced(self, unit: Unit, reduced: torch.Tensor) -> None:
        """What FSDP does with the tensor next: it divides, casts and adds it to `.grad`."""
        if not unit.is_last_micro_step:
            self._keep(unit, reduced)
            return
        if unit.name in self._partial:
            reduced += self._partial.pop(unit.name)
        link: Any = self.link  # an FsdpLink
        if link is not None:
            link.take(unit, reduced)
        else:
            assert self.group is not None
            replicas = dist.get_world_size(self.group)
            dist.all_reduce(reduced, group=self.group)
            reduced /= replicas * unit.divisor(reduced.dtype, replicas) / unit.divisor(reduced.dtype, 1)

    def _keep(self, unit: Unit, reduced: torch.Tensor) -> None:
        """The gradient of a micro-step waits for the last one's, as in FSDP's own HSDP."""
        if unit.name in self._partial:
            self._partial[unit.name] += reduced
        else:
            self._partial[unit.name] = reduced.clone()
        reduced.zero_()
