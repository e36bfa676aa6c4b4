"""The settings of `benchmarks/federated.py`: who has which images, and the rules by which server and clients speak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sparsewire.lab.tasks.task import Data, Part

SHARDS = 2  # of images sorted by their class, that a client has where they are not spread evenly


@dataclass(frozen=True)
class Setting:
    """Clients, how many of them take part in a round, and whether each has two classes only."""

    clients: int
    take_part: int
    classes: bool
    rounds: int = 400
    local_steps: int = 10
    batch: int = 20

    @property
    def what(self) -> str:
        spread = "two classes each" if self.classes else "images spread evenly"
        return f"{self.take_part} of {self.clients} clients, {spread}"

    def parts(self, data: Data, seed: int) -> list[Part]:
        """What each client has."""
        x, y = data.train
        draw = torch.Generator().manual_seed(seed)
        if not self.classes:
            return [(x[some], y[some]) for some in torch.randperm(len(x), generator=draw).chunk(self.clients)]
        shards = torch.argsort(y, stable=True).chunk(SHARDS * self.clients)
        dealt = torch.randperm(len(shards), generator=draw).chunk(self.clients)
        return [_joined([shards[i] for i in mine.tolist()], x, y) for mine in dealt]


def _joined(shards: Sequence[torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> Part:
    some = torch.cat([*shards])
    return x[some], y[some]


SETTINGS = {
    "classes10": Setting(10, 4, True),
    "even10": Setting(10, 4, False),
    "classes100": Setting(100, 10, True, rounds=200),
    "even100": Setting(100, 10, False, rounds=200),
}


@dataclass(frozen=True)
class Rule:
    """Schemes up and down, and further settings of the server."""

    up: str
    down: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    matrices_only: bool = False

    def dense(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        return [name for name, shape in shapes.items() if self.matrices_only and len(shape) < 2]


def _stc(ratio: float) -> str:
    return f"topk({ratio}) | indices=best | values=sign_mean | memory=residual"


RULES = {
    "FedAvg": Rule("fedavg", "fedavg"),
    "STC": Rule("stc(ratio=0.01)", "stc(ratio=0.01)"),
    "SBC": Rule("sbc(level=2)", "nonzero | indices=best | values=distinct | memory=none"),
    "DeepReduce": Rule("deepreduce_fl", "deepreduce_fl", matrices_only=True),
    "ours": Rule(_stc(0.0133), _stc(0.02), {"mean": "sqrt"}),
}
