"""Steps of several arms in turns, so that what else the machine does meets all of them: for scripts on slow links."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from sparsewire.errors import SparsewireError
from sparsewire.lab import measure
from sparsewire.lab.net.launch import launch_ranks
from sparsewire.lab.net.network import obstacle
from sparsewire.lab.net.ranks import Endpoint
from sparsewire.lab.net.stopping import stoppable
from sparsewire.lab.net.worker import Worker
from sparsewire.lab.tasks.task import mlp
from sparsewire.lab.tasks.workloads import BATCH
from sparsewire.lab.train.arms import Arm, seeded
from sparsewire.torch.ddp.link import Link

CANNOT = 77
PLAIN = "plain DDP"
PARTS = ("compute", "work", "wait", "wire")


def guarded(script: str, work: Callable[[], list[dict[str, Any]]]) -> tuple[int, list[dict[str, Any]]]:
    """(exit status, results); an error or an obstacle is said, and the namespaces are removed whatever happens."""
    problem = obstacle() or (None if measure.has("torch") else "torch is not installed")
    if problem:
        print(f"{script}: {problem}", file=sys.stderr)
        return CANNOT, []
    try:
        with stoppable():
            return 0, work()
    except SparsewireError as error:
        print(f"{script}: {error}", file=sys.stderr)
        return 2, []
    except KeyboardInterrupt:
        return 130, []


def time_arms(
    sizes: Sequence[int],
    arms: Mapping[str, Mapping[str, Any]],
    endpoints: Sequence[Endpoint],
    warmup: int | Mapping[str, int],
    steps: int | Mapping[str, int],
    rounds: int = 1,
    limit: float = 600.0,
) -> dict[str, Any]:
    """Step times, bytes and stages of every arm; warmup and steps are for all arms, or by the arm's name.

    An arm's settings are those of `Arm`, and the momentum of its SGD.
    """
    first, counted = ({name: n if isinstance(n, int) else n[name] for name in arms} for n in (warmup, steps))
    order = {"arms": arms, "sizes": sizes, "batch": BATCH, "warmup": first, "steps": counted, "rounds": rounds}
    total = sum(first.values()) + rounds * sum(counted.values())
    with measure.progress(total) as advance:
        found = launch_ranks(
            "interleaved:time_steps", order, endpoints, lambda event: advance(event["arm"]), limit=limit
        )
    facts = {"ranks": len(endpoints), "batch": BATCH, "parameters": found[0]["parameters"]}
    rows = {name: _row([one["arms"][name] for one in found]) for name in arms}
    return {"machine": measure.machine(), **facts, "arms": rows}


def _row(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the steps of the mean over the ranks, which all end a step at the same time."""
    by_step = [statistics.fmean(step) for step in zip(*(report["seconds"] for report in reports), strict=True)]
    names = reports[0]["stages"]
    stages = {name: 1e3 * statistics.fmean(report["stages"].get(name, 0.0) for report in reports) for name in names}
    sent = statistics.fmean(statistics.median(report["bytes"]) for report in reports)
    row = {"step_ms": 1e3 * statistics.median(by_step), "all_ms": [1e3 * step for step in by_step], "bytes": sent}
    told = {name: reports[0][name] for name in ("nodes", "auto")}
    cpu = 1e3 * statistics.fmean(report["cpu"] for report in reports)
    return {**row, "stages_ms": stages, **told, "profile_ms": split(reports), "cpu_ms": cpu}


def split(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Milliseconds a step, means over the ranks. The rank that comes last to a collective waits for nobody."""
    if not reports[0]["profile"]:
        return {}
    found = {part: statistics.fmean(_per_step(one["profile"], one["profile"][part]) for one in reports)
             for part in PARTS}  # fmt: skip
    for part in ("work", "wait", "wire"):
        found[f"hidden {part}"] = statistics.fmean(
            _per_step(one["profile"], one["profile"]["hidden"][part]) for one in reports
        )
    for thread in ("compute", "communication"):
        queued = (_per_step(one["profile"], one["profile"]["queued"].get(thread, 0.0)) for one in reports)
        found[f"{thread} queued"] = statistics.fmean(queued)
    steps = list(zip(*(one["calls"] for one in reports), strict=True))
    by_call = [list(zip(*ranks, strict=True)) for ranks in steps] or [[]]  # auto's dense steps are not told
    found["collectives"] = 1e3 * statistics.fmean(sum(map(statistics.fmean, calls)) for calls in by_call)
    found["by the last"] = 1e3 * statistics.fmean(sum(map(min, calls)) for calls in by_call)
    found["number of collectives"] = statistics.fmean(map(len, by_call))
    return found


def _per_step(profile: Mapping[str, Any], seconds: float) -> float:
    return 1e3 * seconds / max(1, profile["steps"])


# --- the job of a rank -----------------------------------------------------------------------------------------


def time_steps(
    worker: Worker, arms: Mapping[str, Mapping[str, Any]], sizes: Sequence[int], batch: int, warmup: dict[str, int],
    steps: dict[str, int], rounds: int,
) -> dict[str, Any]:  # fmt: skip
    """Times the arms interleaved: in each round `steps` of each, after `warmup` steps that are not counted."""
    made = {name: _arm(sizes, **settings) for name, settings in arms.items()}
    links = {name: arm.link for name, arm in made.items() if isinstance(arm.link, Link)}
    draw = torch.Generator().manual_seed(worker.rank)
    x, y = torch.randn(batch, sizes[0], generator=draw), torch.randint(sizes[-1], (batch,), generator=draw)
    for name, arm in made.items():
        _run(worker, name, arm, warmup[name], x, y)
        arm.clear()
    for link in links.values():
        link.profile.history = []
    cpu = dict.fromkeys(made, 0.0)
    for _ in range(rounds):
        for name, arm in made.items():
            before = time.process_time()
            _run(worker, name, arm, steps[name], x, y)
            cpu[name] += (time.process_time() - before) / (rounds * steps[name])
    found = {name: {**arm.report(), "calls": [], "cpu": cpu[name]} for name, arm in made.items()}
    for name, link in links.items():
        found[name]["calls"] = link.profile.history
    for arm in made.values():
        arm.close()
    return {"parameters": next(iter(made.values())).dense_bytes // 4, "arms": found}


def _arm(sizes: Sequence[int], momentum: float = 0.0, **settings: Any) -> Arm:
    return Arm(seeded(partial(mlp, sizes), 0), settings, rate=0.01, momentum=momentum)


def _run(worker: Worker, name: str, arm: Arm, steps: int, x: torch.Tensor, y: torch.Tensor) -> None:
    dist.barrier()  # all ranks have finished the previous arm
    if isinstance(arm.link, Link):
        arm.link.profile.forget()
    for _ in range(steps):
        arm.step(x, y)
        worker.emit(arm=name, seconds=arm.seconds[-1])
