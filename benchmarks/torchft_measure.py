"""One replica of the torchft measurements: step times of plain allreduces, or DiLoCo on a transformer.

python benchmarks/torchft_measure.py OUT NAME LIGHTHOUSE SCHEME steps ELEMENTS STEPS
python benchmarks/torchft_measure.py OUT NAME LIGHTHOUSE SCHEME diloco DATA ROUNDS OUTER_MOMENTUM
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torchft.local_sgd import DiLoCo
from torchft_replica import make_manager

from sparsewire.lab.tasks.task import evaluate, loss_of
from sparsewire.lab.tasks.texts import Transformer, shakespeare

EVERY = 20  # local steps a round
BATCH = 16
SEED = 11


def step_times(manager: Any, elements: int, steps: int) -> dict[str, Any]:
    """The median of whole steps (quorum, allreduce, decision) after three that warm up."""
    gradient, seconds = torch.randn(elements), []
    for _ in range(steps + 3):
        tensor = gradient.clone()
        begin = time.perf_counter()
        manager.start_quorum()
        manager.allreduce(tensor).wait()
        assert manager.should_commit()
        seconds.append(time.perf_counter() - begin)
    return {"median_ms": 1000 * statistics.median(seconds[3:]), "bytes_dense": 4 * elements * len(seconds)}


def train(manager: Any, data: Path, rounds: int, momentum: float, place: int) -> dict[str, Any]:
    """DiLoCo with AdamW inside; with momentum 0 the outer rate is 1, as SparseLoCo has it."""
    torch.manual_seed(SEED)
    texts = shakespeare(data)
    model = Transformer(texts)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rate = {"lr": 0.7, "momentum": momentum, "nesterov": True} if momentum else {"lr": 1.0}
    outer = torch.optim.SGD(model.parameters(), **rate)
    chance = torch.Generator().manual_seed(SEED + place)
    with DiLoCo(manager, [model], inner, outer, EVERY):
        while manager.current_step() < rounds:
            picks = torch.randint(len(texts.train[0]), (BATCH,), generator=chance)
            inner.zero_grad()
            loss_of(model, (texts.train[0][picks], texts.train[1][picks])).backward()
            inner.step()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {
        "test_loss": evaluate(model, texts.test, "loss"),
        "parameters": parameters,
        "bytes_dense": 4 * parameters * rounds,
    }


def main() -> None:
    out, name, lighthouse, scheme, what, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    manager, _store = make_manager(lighthouse, name, scheme, False, dict, lambda state: None, init_sync=False)
    if what == "steps":
        facts = step_times(manager, int(rest[0]), int(rest[1]))
    else:
        facts = train(manager, Path(rest[0]), int(rest[1]), float(rest[2]), int(name[-1]))
    facts["bytes_sent"] = facts["bytes_dense"] if scheme == "dense" else manager.stats()["bytes_sent"]
    Path(out).write_text(json.dumps(facts))
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
