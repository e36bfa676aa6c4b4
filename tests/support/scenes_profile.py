"""Scenes of a link's profile and trace."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from scenes_attach import backward, build, descend
from torch_ranks import Stage

from sparsewire.torch import attach
from sparsewire.torch.ddp.link import Link

SCHEME = "topk(10%) | memory=residual"


def _train(stage: Stage, model: Any, first: int, count: int) -> float:
    start = time.perf_counter()
    for step in range(first, first + count):
        backward(stage, model, step)
        descend(model.module)
    return time.perf_counter() - start


def _linked(stage: Stage, scheme: str = SCHEME, **settings: Any) -> tuple[Any, Link]:
    model = stage.ddp(build(), bucket_cap_mb=0.005)
    return model, attach(model, scheme, dense_below=16, **settings)


def parts_add_up(stage: Stage, **settings: Any) -> dict[str, Any]:
    """The parts are those of the wall clock: no more than all steps took, and most of it."""
    model, link = _linked(stage, **settings)
    spent = _train(stage, model, 0, 6)
    found: dict[str, Any] = link.stats()["profile"]
    link.detach()
    parts = [found[name] for name in ("compute", "work", "wait", "wire")]
    assert all(part >= 0 for part in [*parts, *found["hidden"].values()])
    assert abs(sum(parts) - found["step"]) < 1e-9
    assert 0 < found["step"] <= spent
    assert found["compute"] > 0 and found["work"] > 0
    assert found["hidden"]["work"] <= found["compute"] + 1e-9
    return found


def traces(stage: Stage, folder: str, steps: int, **settings: Any) -> list[dict[str, Any]]:
    """The events of this rank's trace, checked for their order."""
    model, link = _linked(stage, **settings)
    path = Path(folder, f"rank{stage.rank}.json")
    _train(stage, model, 0, 2)
    if stage.rank == 0:  # nobody else takes part
        link.trace(path, steps=steps)
    _train(stage, model, 2, steps + 3)
    link.detach()
    if stage.rank:
        assert not path.exists()
        return []
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    _check_order([event for event in events if event["ph"] == "X"])
    return events


def _check_order(spans: list[dict[str, Any]]) -> None:
    """Events of a track begin in their order, and each lies within or behind the one before."""
    for track in (0, 1):
        open_until: list[float] = []
        last = 0.0
        for span in (span for span in spans if span["tid"] == track):
            start, end = span["ts"], span["ts"] + span["dur"]
            assert start >= last and span["dur"] >= 0
            last = start
            while open_until and open_until[-1] <= start + 1:  # microseconds
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1, (span, open_until)
            open_until.append(end)


def trace_ends_with_the_link(stage: Stage, folder: str) -> int:
    """At `detach` what there is of a trace is written."""
    model, link = _linked(stage)
    path = Path(folder, f"cut{stage.rank}.json")
    link.trace(path, steps=100)
    assert json.loads(path.read_text())["traceEvents"] == []
    _train(stage, model, 0, 4)
    link.detach()
    return sum(event["name"] == "select" for event in json.loads(path.read_text())["traceEvents"])
