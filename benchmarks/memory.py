"""What a link takes in memory per parameter: resident memory of a rank before `attach` and after some steps.

    python benchmarks/memory.py [--parameters 96000000] [--json FILE]

Two gloo ranks on this machine, layers of 4M parameters. The C library keeps some freed memory for itself; run with
MALLOC_MMAP_THRESHOLD_=1000000 to see what is really in use.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP

from sparsewire.torch import attach

SIDE, STEPS = 2000, 4
CASES = [("topk(1%)", "float32"), ("topk(1%)", "bfloat16"), ("nonzero | values=raw", "float32")]


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def train(model: DDP, steps: int, dtype: torch.dtype) -> None:
    for _ in range(steps):
        model(torch.randn(4, SIDE).to(dtype)).float().square().mean().backward()
        model.zero_grad(set_to_none=False)


def measure(rank: int, scheme: str, dtype: str, parameters: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    kind = getattr(torch, dtype)
    layers = [torch.nn.Linear(SIDE, SIDE, bias=False) for _ in range(max(1, parameters // SIDE**2))]
    model = DDP(torch.nn.Sequential(*layers).to(kind))
    train(model, 3, kind)
    before = resident()
    with attach(model, scheme, optimizer=None):
        train(model, STEPS, kind)
        taken = (resident() - before) / (len(layers) * SIDE**2)
    if rank == 0:
        Path(folder, "taken").write_text(str(taken))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parameters", type=int, default=96_000_000)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for scheme, dtype in CASES:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(measure, (scheme, dtype, args.parameters, folder), 2)
            rows.append({"scheme": scheme, "dtype": dtype, "bytes": float(Path(folder, "taken").read_text())})
        print(f"{scheme:24}{dtype:12}{rows[-1]['bytes']:6.2f} bytes a parameter", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps({"parameters": args.parameters, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
