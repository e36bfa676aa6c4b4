"""What a rank of benchmarks/faults.py does: it trains, one of them meets its fault, and each tells what came of it."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch._dynamo  # by DDP and optimizers anyhow: forked ranks have it already
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sparsewire.comm.torch import TorchCommunicator
from sparsewire.errors import SparsewireError
from sparsewire.torch import attach, local_steps

BASE = "topk(5%) | indices=rice | values=qsgd(bits=7) | memory=residual"
EXCHANGES = {
    "allgather": "allgather",
    "root": "root",
    "reduce_scatter direct": "reduce_scatter(route=direct)",
    "reduce_scatter log": "reduce_scatter(route=log)",
    "shared pool": "shared(support=pool)",
    "shared leader": "shared(support=leader)",
    "sketch": "sketch",
}
LOCAL, NODES, AUTO = "local_steps", "nodes", "auto"
STEPS, AT = 8, 4  # optimizer steps, and the one with the fault


@dataclass(frozen=True)
class Trial:
    """One training: what goes wrong, in which exchange, on which rank and at which collective of the step."""

    fault: str
    exchange: str
    nth: int
    timeout: float
    address: str
    port: int
    folder: str

    @property
    def size(self) -> int:
        return 4 if self.exchange in (NODES, "reduce_scatter log") else 3

    @property
    def victim(self) -> int:
        return self.nth % self.size

    @property
    def tick(self) -> int:
        """The collective at whose beginning it comes, of the first few of its step."""
        return self.nth // self.size % 3


@dataclass
class Found:
    """What a rank saw: when its fault or its error came (seconds of one clock), and its weights by step."""

    begun: float = field(default_factory=time.monotonic)
    faulted: float = 0.0
    ended: float = 0.0
    error: str = ""
    weights: dict[str, str] = field(default_factory=dict)


def play(trial: Trial, rank: int) -> Found:
    torch.set_num_threads(1)
    found = Found()
    try:
        connect(trial, rank)
        (train_local if trial.exchange == LOCAL else train)(trial, rank, found)
    except (SparsewireError, ValueError) as error:
        found.error = f"{type(error).__name__}: {error}"
    found.ended = time.monotonic()
    return found


def connect(trial: Trial, rank: int) -> None:
    """Rank 0 keeps the store, as it does where torchrun or the environment say where it is."""
    method, limit = f"tcp://{trial.address}:{trial.port}", timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=trial.size, timeout=limit)


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(1000 * rank + step))


def settings_of(trial: Trial, rank: int) -> tuple[str, dict[str, Any]]:
    other = trial.fault == "mismatch" and rank == trial.victim
    scheme = BASE.replace("5%", "7%") if other else BASE
    if trial.exchange == AUTO:
        return "auto", {"timeout": trial.timeout, "dense_below": 7 if other else 1}
    if trial.exchange == NODES:
        return scheme, {"timeout": trial.timeout, "nodes": 2, "dense_below": 1}
    how = EXCHANGES.get(trial.exchange, "allgather")
    return f"{scheme} | exchange={how}", {"timeout": trial.timeout, "dense_below": 1}


def train(trial: Trial, rank: int, found: Found) -> None:
    scheme, settings = settings_of(trial, rank)
    model = DDP(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found.faulted = time.monotonic() if trial.fault == "mismatch" else 0.0
    with attach(model, scheme, optimizer=optimizer, **settings):
        for step in range(STEPS):
            data = meet_fault(trial, rank, step, found, batch(rank, step))
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            found.weights[str(step)] = digest(model)


def train_local(trial: Trial, rank: int, found: Found) -> None:
    """Two steps to a round: the fault comes before the third meeting. Weights are compared after each of them."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheme, _ = settings_of(trial, rank)
    found.faulted = time.monotonic() if trial.fault == "mismatch" else 0.0
    with local_steps(model, optimizer, scheme, every=2, timeout=trial.timeout) as link:
        for step in range(STEPS):
            data = meet_fault(trial, rank, step, found, batch(rank, step))
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            if step % 2:
                found.weights[str(link.round)] = digest(model)


def digest(model: nn.Module) -> str:
    """Of all bits, so that weights that are not finite compare, too."""
    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.detach().numpy().tobytes())
    return whole.hexdigest()


def meet_fault(trial: Trial, rank: int, step: int, found: Found, data: torch.Tensor) -> torch.Tensor:
    if step != AT or trial.fault == "mismatch":
        return data
    found.faulted = time.monotonic()  # for the others, about when the victim's step begins
    if rank != trial.victim:
        return data
    if trial.fault == "NaN":
        return data * float("nan")
    if trial.fault == "raise":
        raise ValueError("no such file")
    at_collective(trial.tick, FAULTS[trial.fault])
    return data


def at_collective(tick: int, fault: Callable[[], None]) -> None:
    """The fault comes at the beginning of a collective of ours, on whichever thread that is."""
    call, left = TorchCommunicator._call, [tick]

    def counted(comm: TorchCommunicator, name: str, *args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            fault()
        return call(comm, name, *args, **kwargs)

    TorchCommunicator._call = counted  # type: ignore[method-assign]


def cut_off() -> None:
    """Takes the rank's own link down: nothing is closed, nothing comes any more."""
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)


FAULTS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "link down": cut_off,
}
