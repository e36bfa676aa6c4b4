"""Small trainings with local steps, each rank a thread: for tests/test_local*.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from sparsewire.comm import Communicator, run_ranks
from sparsewire.torch import LocalLink, local_steps

SIZE = 3
EXACT = "nonzero | values=raw | memory=none"
SPARSE = "topk(10%) | indices=rice | values=qsgd(bits=5) | memory=residual"
MAKES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "fused": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9, fused=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
T = TypeVar("T")
_drawing = threading.Lock()  # torch's generator is one for all threads


def build(seed: int = 0, norm: bool = True) -> nn.Sequential:
    with _drawing:
        torch.manual_seed(seed)
        layers = [nn.Linear(8, 16), nn.BatchNorm1d(16) if norm else nn.Identity(), nn.Tanh(), nn.Linear(16, 3)]
    return nn.Sequential(*layers)


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(1000 * rank + step))


def descend(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """One optimizer step on a loss that has a minimum."""
    optimizer.zero_grad()
    (model(x) - x[:, :3]).square().mean().backward()
    optimizer.step()


class Run:
    """One rank's training. `seed` differs where ranks should start unequal."""

    def __init__(
        self, comm: Communicator, scheme: str | None = SPARSE, *, optimizer: str = "momentum", norm: bool = True,
        seed: int = 0, **settings: Any,
    ) -> None:  # fmt: skip
        self.rank, self.step, self.model = comm.rank, 0, build(seed, norm)
        self.optimizer = MAKES[optimizer](self.model.parameters())
        self.link: LocalLink = local_steps(self.model, self.optimizer, scheme, group=comm, **settings)

    def train(self, until: int) -> None:
        while self.step < until:
            descend(self.model, self.optimizer, batch(self.rank, self.step))
            self.step += 1

    def bits(self) -> bytes:
        return bits(self.model)


def bits(model: nn.Module) -> bytes:
    """Everything floating in the model."""
    floating = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
    return b"".join(tensor.contiguous().numpy().tobytes() for tensor in floating)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def on_ranks(fn: Callable[[Communicator], T], size: int = SIZE) -> list[T]:
    return run_ranks(size, fn, timeout=30)


def trained(until: int, size: int = SIZE, **settings: Any) -> list[Run]:
    """Every rank's run after some steps, the link detached."""

    def fn(comm: Communicator) -> Run:
        run = Run(comm, **settings)
        run.train(until)
        run.link.detach()
        return run

    return on_ranks(fn, size)
