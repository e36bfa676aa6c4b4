"""A script that ends without `detach()`, for benchmarks/faults.py: `faults_exit.py KIND WHERE STORE RANK`.

All names are the script's own, as in the README: what a function holds is freed when it returns, and that gives the
link's thread the time to become idle before the interpreter ends.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from sparsewire.torch import attach, falling_ratio, local_steps

STEPS, LOCAL, PLAIN = 10, "local_steps", "plain DDP"

kind, where, store, rank = sys.argv[1:]
dist.init_process_group("gloo", init_method=store, rank=int(rank), world_size=2)
torch.manual_seed(0)
model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
model = model if where == LOCAL else DDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
if where == LOCAL:
    rounds = local_steps(model, optimizer, "topk(5%)", every=2, overlap=1)
elif where == "auto":
    link = attach(model, "auto", dense_below=1, optimizer=optimizer)
elif where != PLAIN:
    link = attach(
        model, "topk(1%) | indices=rice | values=qsgd(bits=7) | memory=dgc(momentum=0.9)", optimizer=optimizer,
        select_per="model", ratio_schedule=falling_ratio(STEPS, 0.01),
    )  # fmt: skip
for _ in range(STEPS):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
if kind == "destroy":
    dist.destroy_process_group()
if kind == "raise":
    raise ValueError("at the end")
if kind == "exit 1":
    sys.exit(1)
