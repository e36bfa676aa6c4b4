"""Torch's own methods of sending fewer bytes: its DDP hooks for half precision and PowerSGD, and post-local SGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel as DDP

from .jax_hook import trained_by_optax
from .keras_hook import trained_by_keras

Optimizer = torch.optim.Optimizer
ONE_BUCKET = 10_000  # MB


def alone(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Every rank by itself: what a step takes without any exchange."""
    return module, optimizer


def none(module: nn.Module, optimizer: Optimizer) -> tuple[DDP, Optimizer]:
    return DDP(module), optimizer


def fp16(module: nn.Module, optimizer: Optimizer) -> tuple[DDP, Optimizer]:
    model = DDP(module)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return model, optimizer


def bf16(module: nn.Module, optimizer: Optimizer) -> tuple[DDP, Optimizer]:
    """Under another name, as torch refuses its own hook without a GPU, though gloo adds up bfloat16."""
    model = DDP(module)
    model.register_comm_hook(None, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))
    return model, optimizer


def powersgd(module: nn.Module, optimizer: Optimizer, rank: int = 4, start: int = 2) -> tuple[DDP, Optimizer]:
    """On gloo it aborts with more than one bucket: its collectives run from callbacks, in any order."""
    model = DDP(module, bucket_cap_mb=ONE_BUCKET)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=start)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return model, optimizer


def post_local(module: nn.Module, optimizer: Optimizer, every: int = 10, start: int = 2) -> tuple[DDP, Optimizer]:
    """Every rank alone after `start` steps; weights are averaged every `every` steps."""
    from torch.distributed.optim import PostLocalSGDOptimizer  # its import takes a second

    model = DDP(module)
    state = post_localSGD_hook.PostLocalSGDState(None, None, start, False)  # type: ignore[no-untyped-call]
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    return model, PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=every, warmup_steps=start))


HOOKS: dict[str, Callable[..., tuple[nn.Module, Any]]] = {
    "alone": alone, "none": none, "fp16": fp16, "bf16": bf16, "powersgd": powersgd, "post_local": post_local,
    "keras": trained_by_keras, "jax": trained_by_optax,
}  # fmt: skip
