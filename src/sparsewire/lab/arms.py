"""An arm is one way to train the same network: plain DDP, compressed by sparsewire, or one of torch's own hooks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from ..torch import attach, falling_ratio, prune
from ..torch.link import Link
from .worker import wire_bytes

ONE_BUCKET = 10_000  # MB


def mlp(sizes: Sequence[int], seed: int) -> nn.Sequential:
    """A multi-layer perceptron; the seed gives every rank and every arm the same weights."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for width, following in itertools.pairwise(sizes):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Arm:
    """A DDP model with its communication hook and optimizer, and the loss, time and bytes of each step.

    settings: `hook` is "none", "fp16", "powersgd" or "sparsewire"; for the last, the rest are attach's arguments, but
    that `fitted` says whether the optimizer is one of them (true), and `falling` has falling_ratio's arguments.
    With any hook, `pruned` is the share of the weights that is pruned first.
    """

    def __init__(self, module: nn.Module, settings: Mapping[str, Any], rate: float, momentum: float = 0.0) -> None:
        rest = dict(settings)
        hook, pruned = rest.pop("hook"), rest.pop("pruned", None)
        if pruned is not None:
            prune(module, pruned)
        # PowerSGD aborts on gloo with more than one bucket: its collectives run from callbacks, in any order.
        self.model = DDP(module, bucket_cap_mb=ONE_BUCKET) if hook == "powersgd" else DDP(module)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=momentum)
        self.link: Link | None = self._attach(**rest) if hook == "sparsewire" else None
        _register(self.model, hook)
        self.dense_bytes = sum(4 * parameter.numel() for parameter in module.parameters())
        self.clear()

    def _attach(self, fitted: bool = True, falling: tuple[int, float] | None = None, **rest: Any) -> Link:
        if falling is not None:
            rest["ratio_schedule"] = falling_ratio(*falling)
        return attach(self.model, optimizer=self.optimizer if fitted else None, **rest)

    def clear(self) -> None:
        """Discards the measurements of the steps so far."""
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.bytes: list[int] = []
        self.handed: list[int] = []  # bytes that the link passes to the communicator, without TCP's headers
        self._before = self._stages()

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        sent, handed, start = wire_bytes(), self._handed(), time.perf_counter()
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(float(loss.detach()))
        now = wire_bytes()
        self.handed.append(self._handed() - handed)
        self.bytes.append(self._estimate(self.handed[-1]) if now is None or sent is None else now - sent)

    def report(self) -> dict[str, Any]:
        """Per step: loss, seconds, bytes sent by this rank; mean seconds of each of the link's stages; its nodes."""
        steps = max(1, len(self.seconds))
        stages = {name: (spent - self._before.get(name, 0.0)) / steps for name, spent in self._stages().items()}
        nodes = {} if self.link is None else self.link.stats().get("nodes", {})
        return {"loss": self.losses, "seconds": self.seconds, "bytes": self.bytes, "stages": stages, "nodes": nodes}

    def close(self) -> None:
        if self.link is not None:
            self.link.detach()

    def _stages(self) -> dict[str, float]:
        return {} if self.link is None else dict(self.link.stats()["seconds"])

    def _handed(self) -> int:
        return 0 if self.link is None else int(self.link.stats()["bytes_sent"])

    def _estimate(self, handed: int) -> int:
        """Where the kernel has no count: the bytes of a ring all_reduce, or of one message to each other rank."""
        others = dist.get_world_size() - 1
        if self.link is None:
            return 2 * others * self.dense_bytes // (others + 1)
        return others * handed


def _register(model: DDP, hook: str) -> None:
    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
