"""An arm trains a network by one method: plain DDP, compressed by sparsewire, or by one of torch's own hooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sparsewire.torch import attach, falling_ratio, local_steps, prune
from sparsewire.torch.ddp.link import Link
from sparsewire.torch.local.link import LocalLink

from ..net.worker import BYTES_RECEIVED, BYTES_SENT, wire_bytes
from ..tasks.task import loss_of
from .hooks import HOOKS

PARTS = ("forward", "backward", "update")  # of a step, on the thread that trains


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The seed gives every rank and every arm the same weights."""
    torch.manual_seed(seed)
    return make()


class Arm:
    """A model with its link or hook and its optimizer, and the loss, time and bytes of each step.

    settings: `hook` is one of HOOKS, "sparsewire" or "local"; the rest are its arguments, for the last two those of
    `attach` and `local_steps`, but that `fitted` says whether attach is given the optimizer (true), `falling` has
    falling_ratio's arguments, and `views` says whether gradients are views of DDP's buckets. With any hook, `pruned` is
    the share of the weights that is pruned first.
    optimizer: makes it; by default SGD.
    """

    def __init__(
        self, module: nn.Module, settings: Mapping[str, Any], rate: float = 0.0, momentum: float = 0.0,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    ) -> None:  # fmt: skip
        rest = dict(settings)
        hook, pruned = rest.pop("hook"), rest.pop("pruned", None)
        if pruned is not None:
            prune(module, pruned)
        self.module, self.model = module, module
        self.optimizer = optimizer(module) if optimizer else torch.optim.SGD(module.parameters(), rate, momentum)
        self.link: Link | LocalLink | None = None
        if hook == "local":
            self.link = local_steps(module, self.optimizer, **rest)
        elif hook == "sparsewire":
            self.link = self._attach(**rest)
        else:
            self.model, self.optimizer = HOOKS[hook](module, self.optimizer, **rest)
            self.link = getattr(self.optimizer, "link", None)
        self.dense_bytes = sum(4 * parameter.numel() for parameter in module.parameters())
        self.clear()

    def _attach(
        self, fitted: bool = True, falling: tuple[int, float] | None = None, views: bool = False, **rest: Any
    ) -> Link:
        self.model = DDP(self.module, gradient_as_bucket_view=views)
        if falling is not None:
            rest["ratio_schedule"] = falling_ratio(*falling)
        known = fitted and isinstance(self.optimizer, torch.optim.Optimizer)
        return attach(self.model, optimizer=self.optimizer if known else None, **rest)

    def clear(self) -> None:
        """Discards the measurements of the steps so far."""
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.parts: dict[str, list[float]] = {name: [] for name in PARTS}
        self.bytes: list[int] = []
        self.received: list[int] = []
        self.handed: list[int] = []  # bytes that the link passes to the communicator, without TCP's headers
        self.clear_stages()
        if isinstance(self.link, Link):
            self.link.profile.clear()

    def clear_stages(self) -> None:
        """Discards the link's stages of the steps so far."""
        self._before, self._since = self._stages(), len(self.seconds)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        sent, received, handed = wire_bytes(BYTES_SENT), wire_bytes(BYTES_RECEIVED), self._handed()
        stamps = [time.perf_counter()]
        self.optimizer.zero_grad()
        loss = loss_of(self.model, (x, y))
        stamps.append(time.perf_counter())
        torch.autograd.backward(loss)
        stamps.append(time.perf_counter())
        self.optimizer.step()
        stamps.append(time.perf_counter())
        for name, start, end in zip(PARTS, stamps, stamps[1:], strict=False):
            self.parts[name].append(end - start)
        self.seconds.append(stamps[-1] - stamps[0])
        self.losses.append(float(loss.detach()))
        self.handed.append(self._handed() - handed)
        self.bytes.append(self._counted(BYTES_SENT, sent))
        self.received.append(self._counted(BYTES_RECEIVED, received))

    def report(self) -> dict[str, Any]:
        """Per step: loss, seconds, bytes sent by this rank; mean seconds of each of the link's stages; what its stats
        say of nodes and of `auto`."""
        stats = {} if self.link is None else self.link.stats()
        return {
            "loss": self.losses, "seconds": self.seconds, "bytes": self.bytes, "stages": self.mean_stages(),
            "nodes": stats.get("nodes", {}), "auto": stats.get("auto", {}), "profile": stats.get("profile", {}),
        }  # fmt: skip

    def mean_stages(self) -> dict[str, float]:
        steps = max(1, len(self.seconds) - self._since)
        return {name: (spent - self._before.get(name, 0.0)) / steps for name, spent in self._stages().items()}

    def close(self) -> None:
        if self.link is not None:
            self.link.detach()

    def _stages(self) -> dict[str, float]:
        return {} if self.link is None else dict(self.link.stats()["seconds"])

    def _handed(self) -> int:
        return 0 if self.link is None else int(self.link.stats()["bytes_sent"])

    def _counted(self, field: int, before: int | None) -> int:
        """Since then. Where the kernel has no count: the bytes of a ring all_reduce, or of one message to each other
        rank."""
        now = wire_bytes(field)
        if now is not None and before is not None:
            return now - before
        others = dist.get_world_size() - 1
        return 2 * others * self.dense_bytes // (others + 1) if self.link is None else others * self.handed[-1]
