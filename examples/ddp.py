"""A DDP model whose gradients are sent compressed: one line, `attach`. The same model is trained plain for comparison.

python examples/ddp.py                                 starts two ranks on this machine
torchrun --nproc-per-node 2 examples/ddp.py            the same, started by torchrun
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from sparsewire.torch import attach

TRAINING = 1500  # images; the rest is for testing
STEPS = 240


def build() -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()]
    return DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(512, 10)))


def train(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, rank: int
) -> float:
    """Trains for some steps; the accuracy on the test images."""
    random = torch.Generator().manual_seed(rank)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, STEPS)
    for step in range(STEPS):
        batch = torch.randint(TRAINING, (32,), generator=random)
        loss = cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if rank == 0 and step % 80 == 79:
            print(f"step {step + 1}: loss {loss.item():.3f}")
    return (model.module(x[TRAINING:]).argmax(1) == y[TRAINING:]).float().mean().item()


def main(rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)

    model = build()
    plain = train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), x, y, rank)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    link = attach(model, optimizer=optimizer, total_steps=STEPS)
    compressed = train(model, optimizer, x, y, rank)

    stats = link.stats()
    link.detach()
    if rank == 0:
        sent, dense = stats["bytes_sent"], stats["bytes_dense"]
        print(stats["recipe"])
        print(f"test accuracy {compressed:.1%} compressed, {plain:.1%} plain")
        print(f"sent {sent / 1e6:.1f} MB instead of {dense / 1e6:.1f} MB: {dense / sent:.0f}x less")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(main, (2, f"file://{folder}/store"), nprocs=2)
