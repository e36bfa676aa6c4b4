"""Step times of FSDP2 between replicas: native HSDP, which all-reduces dense, and `attach(…, replicas=…)`.

sudo .venv/bin/python benchmarks/fsdp.py [--rates 100mbit 1gbit] [--json docs/results/fsdp.json]

Two replicas of two shards, a network namespace for each replica: only what travels between replicas is on the limited
link. 25M parameters in six units, SGD with momentum, one thread a rank; what is compressed goes by the recipe of a run
of 10,000 steps. "replicas alone" exchanges nothing between them: what a step costs without a network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsewire.lab.net.launch import launch_ranks
from sparsewire.lab.net.network import Network
from sparsewire.lab.net.worker import Worker

SIDE, LAYERS, BATCH, TOTAL = 2048, 6, 16, 10_000
WARMUP = 2
METHODS = {"native HSDP": None, "replicas alone": None, "recipe, 0.2 %": {}, "recipe, 1 %": {"ratio": 0.01}}


def build(native: bool) -> Any:
    """The model, and the mesh that it is on."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    layers = [nn.Sequential(nn.Linear(SIDE, SIDE, bias=False), nn.ReLU()) for _ in range(LAYERS)]
    for layer in layers:
        fully_shard(layer, mesh=mesh if native else mesh["shard"])
    return fully_shard(nn.Sequential(*layers), mesh=mesh if native else mesh["shard"]), mesh


def step_times(worker: Worker, method: str, steps: int) -> dict[str, Any]:
    """The median of whole steps; bytes that a step handed to the engine for the other replica, on this rank."""
    from sparsewire.torch import attach

    settings = METHODS[method]
    model, mesh = build(native=method == "native HSDP")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    link = None
    if settings is not None:
        link = attach(model, optimizer=optimizer, total_steps=TOTAL, replicas=mesh["replicate"], **settings)
    seconds, x = [], torch.randn(BATCH, SIDE)
    for _ in range(WARMUP + steps):
        begin = time.perf_counter()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    shard = sum(parameter.to_local().numel() for parameter in model.parameters())
    sent = 4 * shard if method == "native HSDP" else 0
    facts = {"seconds": statistics.median(seconds[WARMUP:]), "bytes": sent, "all": seconds}
    if link is not None:
        facts["bytes"] = link.stats()["bytes_sent"] // (WARMUP + steps)
        link.detach()
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rows = []
    for rate in args.rates:
        for method in METHODS:
            with Network(2, rate, per_node=2) as endpoints:
                order = {"method": method, "steps": args.steps}
                ranks = launch_ranks("fsdp:step_times", order, endpoints)
            row = {"rate": rate, "method": method, "seconds": max(rank["seconds"] for rank in ranks),
                   "bytes": max(rank["bytes"] for rank in ranks), "all": ranks[0]["all"]}  # fmt: skip
            rows.append(row)
            print(f"{rate:9}{method:16}{row['seconds']:8.3f} s a step {row['bytes'] / 1e6:8.2f} MB a rank", flush=True)
    if args.json:
        facts = {"parameters": LAYERS * SIDE**2, "replicas": 2, "shards": 2, "torch": torch.__version__}
        Path(args.json).write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
