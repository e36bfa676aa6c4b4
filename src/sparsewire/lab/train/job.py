"""The job of a cell that ranks run: trains a workload by one method, and measures every step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..net.worker import Worker
from ..tasks.task import Part, Task, evaluate
from ..tasks.workloads import WORKLOADS
from .arms import Arm, seeded


def train_cell(
    worker: Worker, workload: str, arm: dict[str, Any], data: str, seed: int, steps: int, warmup: int, batch: int,
    tests: int, learning_rate: float,
) -> dict[str, Any]:  # fmt: skip
    """Batches are drawn with replacement; the rate falls as the task says. Tests on the way are rank 0's, untimed, on
    the validation part; the score is that of the test part."""
    task = WORKLOADS[workload].task
    loaded = task.load(Path(data))
    module = seeded(lambda: task.model(loaded), seed)
    task.prepare(module)
    made = Arm(module.train(), arm, optimizer=lambda model: task.optimizer(model, learning_rate))
    draws, (x, y) = torch.Generator().manual_seed(1000 * seed + worker.rank), loaded.train
    due = {round((turn + 1) * steps / (tests + 1)) for turn in range(tests)} - {0, steps}
    history = []
    for step in range(steps):
        if step == warmup:
            made.clear_stages()
        if step in due:
            history.append([step, _tested(worker, made, loaded.valid, task)])
        _set_rate(made, task, learning_rate, step / steps)
        chosen = torch.randint(len(x), (batch,), generator=draws)
        made.step(x[chosen], y[chosen])
        worker.emit(step=step + 1, loss=made.losses[-1], seconds=made.seconds[-1])
    ended = _ended(made)
    history.append([steps, _tested(worker, made, loaded.valid, task)])
    return {**ended, "history": history, "score": _tested(worker, made, loaded.test, task)}


def _set_rate(arm: Arm, task: Task, rate: float, done: float) -> None:
    for group in arm.optimizer.param_groups:
        group["lr"] = group.get("share", 1.0) * task.rate_at(rate, done)


def _tested(worker: Worker, arm: Arm, part: Part, task: Task) -> float | None:
    """The score of rank 0's weights, for which the others wait."""
    if not task.score:
        return None
    score = evaluate(arm.module, part, task.score) if worker.rank == 0 else None
    arm.module.train()
    dist.barrier()
    return score


def _ended(arm: Arm) -> dict[str, Any]:
    """Ends the training and returns what was measured; the weights are final then."""
    stages, stats = arm.mean_stages(), {} if arm.link is None else arm.link.stats()
    arm.close()
    return {
        "parameters": arm.dense_bytes // 4,
        "loss": arm.losses,
        "seconds": arm.seconds,
        "parts": arm.parts,
        "sent": arm.bytes,
        "received": arm.received,
        "stages": stages,
        "link": json.loads(json.dumps(stats, default=str)),
    }
