"""Ranks of torch.distributed in a group of their own, which a rank that fails leaves at once."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from sparsewire.comm import TorchCommunicator, background
from sparsewire.comm.groups import new_group

GRACE = 2.0  # seconds that sockets may take to close


class OwnGroup(TorchCommunicator):
    """All ranks. Every rank makes it."""

    def __init__(self, timeout: float) -> None:
        world = dist.group.WORLD
        assert world is not None
        own = new_group(world, range(dist.get_world_size()), "attach", timedelta(seconds=timeout))
        super().__init__(own)
        self._owns_group = True

    def tell(self, error: BaseException) -> None:
        """Closes the sockets, so that the others' collectives end."""
        background.start(self.close, "sparsewire-leaves").join(GRACE)
