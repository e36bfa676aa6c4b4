"""Scenes of a link whose training runs away, and goes dense for a while."""

from __future__ import annotations

import logging
from typing import Any

import torch
from scenes_attach import Plain, build
from scenes_recipe import said
from torch_ranks import Stage

from sparsewire.torch import attach
from sparsewire.training import guard

SCHEME = "topk(10%) | values=raw | memory=residual"
BURST, CHECK, DENSE = range(20, 29), 31, 4  # steps of large gradients, the check behind them, dense steps


def _backward(stage: Stage, model: Any, step: int) -> list[torch.Tensor]:
    """The gradients of a step; rank 1's are large in the burst."""
    draw = torch.Generator().manual_seed(100 * step + stage.rank)
    model.zero_grad()
    scale = 1e5 if step in BURST and stage.rank == 1 else 1.0
    kind = next(model.parameters()).dtype
    (scale * model(torch.randn(4, 20, generator=draw, dtype=kind)).square().mean()).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def goes_dense(stage: Stage, dtype: str) -> tuple[list[dict[str, Any]], int, list[str]]:
    """All ranks at once; the phase's first step sends what waits, its others are plain DDP's; then all is sparse."""
    guard.DENSE_STEPS, usual = DENSE, guard.DENSE_STEPS
    lines: list[str] = []
    handler, logger = logging.Handler(logging.WARNING), logging.getLogger("sparsewire")
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    wired, plain = (stage.ddp(module.to(kind)) for module in (Plain(), Plain()))
    plain.module.load_state_dict(wired.module.state_dict())
    try:
        with attach(wired, SCHEME, dense_below=100, on_divergence="dense", optimizer=None) as link:
            for step in range(CHECK + DENSE + 3):
                mine, theirs = _backward(stage, wired, step), _backward(stage, plain, step)
                alike = all(torch.allclose(a, b, rtol=0.05, atol=1e-3) for a, b in zip(mine, theirs, strict=True))
                assert alike == (CHECK + 1 < step <= CHECK + DENSE), step
                assert step != CHECK + 1 or not link.averager.states.unsent()
            found = link.stats()["guard"]
    finally:
        guard.DENSE_STEPS = usual
        logger.removeHandler(handler)
    return found["alarms"], found["dense_until"], [line for line in lines if "diverge" in line]


class HalfGradient(torch.autograd.Function):
    """The identity, whose gradient is rounded to float16: larger numbers than that has become infinite."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.half().to(gradient.dtype)


def scaled_training(stage: Stage, loss_factor: float, steps: int) -> tuple[float, list[str], list[str]]:
    """A training in mixed precision with the usual line: its last loss scale, the guard's reasons, and warnings."""
    model, scaler = stage.ddp(build()), torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9)

    def train() -> list[str]:
        with attach(model, optimizer=optimizer, total_steps=100, dense_below=100, scaler=scaler) as link:
            for number in range(steps):
                optimizer.zero_grad()
                stage.seed(number)
                loss = HalfGradient.apply(model(torch.randn(6, 20))).square().sum() * loss_factor
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            return [alarm["reason"] for alarm in link.stats()["guard"]["alarms"]]

    reasons, lines = said(train)
    return scaler.get_scale(), reasons, [line for line in lines if line.startswith("step ")]
