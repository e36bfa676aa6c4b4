"""Scenes of a link between replicas that FSDP2 has sharded: against native HSDP, on every kind of model."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_ranks import Stage, same_bits

from sparsewire.torch import attach

LOSSLESS = "nonzero | values=raw | memory=none"
WIDTH = 48
POLICIES = {
    "": (None, None),
    "bf16": (torch.bfloat16, torch.float32),
    "all bf16": (torch.bfloat16, torch.bfloat16),
    "fp16": (None, torch.float16),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.inner(self.norm(x)))


class Net(nn.Module):
    """`head` has 5 rows and `gate` one: shards are uneven, and some are empty."""

    def __init__(self, unused: bool = False) -> None:
        super().__init__()
        self.first, self.head, self.gate = nn.Linear(20, WIDTH), nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 1)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.reentrant = False
        self.sometimes = nn.Linear(WIDTH, WIDTH) if unused else None

    def forward(self, x: torch.Tensor, step: int = 0) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=True) if self.reentrant else block(hidden)
        if self.sometimes is not None and step % 2 == 0:
            hidden = hidden + self.sometimes(hidden)
        return self.head(hidden) * torch.sigmoid(self.gate(hidden))


@lru_cache
def mesh_of(replicas: int, shards: int) -> DeviceMesh:
    return init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))


def build(mesh: DeviceMesh, *, native: bool = False, policy: str = "", unused: bool = False, checkpointed: bool = False,
          compiled: bool = False, frozen: bool = False, seed: int = 7) -> nn.Module:  # fmt: skip
    """A net in FSDP units: on both dimensions of the mesh, or on that of the shards alone."""
    torch.manual_seed(seed)
    model, where = Net(unused), mesh if native else mesh["shard"]
    parameters, reduced = POLICIES[policy]
    settings = {"mesh": where, "mp_policy": MixedPrecisionPolicy(param_dtype=parameters, reduce_dtype=reduced)}
    model.blocks[0].inner.requires_grad_(not frozen)
    if checkpointed:
        model.blocks = nn.ModuleList(checkpoint_wrapper(block) for block in model.blocks)
    for block in model.blocks:
        if compiled:
            block.compile(backend="eager")
        fully_shard(block, **settings)
    return fully_shard(model, **settings)


def backward(stage: Stage, model: nn.Module, step: int, micro: int = 0, factor: float = 1.0) -> torch.Tensor:
    stage.seed(step, micro)
    x = torch.randn(6, 20)
    loss = F.mse_loss(model(x, step).float(), torch.ones(6, 5))
    (loss * factor).backward()
    return loss.detach()


def accumulate_by_sync(stage: Stage, model: nn.Module, step: int) -> None:
    model.set_requires_gradient_sync(False)
    backward(stage, model, step, 0)
    model.set_requires_gradient_sync(True)
    backward(stage, model, step, 1)


def accumulate_by_reducing(stage: Stage, model: nn.Module, step: int) -> None:
    for micro in range(3):
        model.set_requires_all_reduce(micro == 2)
        backward(stage, model, step, micro)


def accumulate_by_exchanging(stage: Stage, model: nn.Module, step: int) -> None:
    for micro in range(2):
        backward(stage, model, step, micro)


def clip(stage: Stage, model: nn.Module, step: int) -> None:
    backward(stage, model, step)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    assert norm.full_tensor() > 0.05


def sum_up(stage: Stage, model: nn.Module, step: int) -> None:
    """As torchtitan: sums everywhere, and the loss is divided beforehand."""
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    backward(stage, model, step, factor=1 / stage.size)


def force_sum(stage: Stage, model: nn.Module, step: int) -> None:
    for module in model.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)
    backward(stage, model, step)


def use_twice(stage: Stage, model: nn.Module, step: int) -> None:
    stage.seed(step)
    loss = sum(F.mse_loss(model(torch.randn(6, 20), step).float(), torch.ones(6, 5)) for _ in range(2))
    loss.backward()


STEPS: dict[str, Callable[[Stage, nn.Module, int], Any]] = {
    "plain": backward,
    "sync": accumulate_by_sync,
    "reduce": accumulate_by_reducing,
    "exchange": accumulate_by_exchanging,
    "clip": clip,
    "sum": sum_up,
    "force sum": force_sum,
    "twice": use_twice,
}


def equals_hsdp(
    stage: Stage, replicas: int, shards: int, step: str = "plain", exchanges: int = 1, whole: bool = False,
    steps: int = 3, **settings: Any,
) -> None:  # fmt: skip
    """With everything sent, weights are those of native HSDP, to the bit."""
    mesh = mesh_of(replicas, shards)
    plain, wired = build(mesh, native=True, **settings), build(mesh, **settings)
    if settings.get("unused"):
        plain.set_reduce_scatter_unused_params(True)
    used = [plain, torch.compile(wired, backend="eager") if whole else wired]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in (plain, wired)]

    def both(number: int) -> None:
        for model, optimizer in zip(used, optimizers, strict=True):
            STEPS[step](stage, model, number)
            optimizer.step()
            optimizer.zero_grad()
        assert_same_shards(plain, wired)

    with quiet():
        with attach(used[1], LOSSLESS, optimizer=optimizers[1], replicas=mesh["replicate"]) as link:
            for number in range(steps):
                both(number)
            assert link.step == exchanges * steps
        both(steps)  # dense, without a link


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """torch.compile looks at `.grad` of tensors that have none, and warns of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
        yield


def assert_same_shards(one: nn.Module, other: nn.Module) -> None:
    theirs = dict(other.named_parameters())
    for name, parameter in one.named_parameters():
        assert same_bits(parameter.to_local().detach(), theirs[name].to_local().detach()), name


def assert_same_replicas(stage: Stage, model: nn.Module) -> None:
    for parameter in model.parameters():
        whole = parameter.detach().full_tensor()
        assert all(same_bits(part, whole) for part in stage.everyones(whole))
