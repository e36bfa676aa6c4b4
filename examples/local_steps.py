"""Ranks that train alone and meet every ten optimizer steps: one line, `local_steps`, and no DDP around the model.

python examples/local_steps.py                         starts two ranks on this machine
torchrun --nproc-per-node 2 examples/local_steps.py    the same, started by torchrun
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from sparsewire.torch import local_steps

TRAINING = 1500  # images; the rest is for testing
STEPS, EVERY = 240, 10


def build() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 512), torch.nn.BatchNorm1d(512), torch.nn.ReLU(), torch.nn.Linear(512, 10)]
    return torch.nn.Sequential(*layers)


def train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, rank: int
) -> None:
    """A plain loop on one rank's part of the images."""
    random = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        batch = torch.randint(TRAINING // 2, (32,), generator=random) * 2 + rank % 2
        loss = cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 80 == 79:
            print(f"step {step + 1}: loss {loss.item():.3f}")


def main(rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)

    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    with local_steps(model, optimizer, every=EVERY, total_steps=STEPS) as link:
        train(model, optimizer, x, y, rank)

    total = torch.stack([parameter.detach().double().sum() for parameter in model.parameters()]).sum()
    everyones = [torch.zeros_like(total) for _ in range(size)]
    dist.all_gather(everyones, total)
    if rank == 0:
        model.eval()
        accuracy = (model(x[TRAINING:]).argmax(1) == y[TRAINING:]).float().mean().item()
        stats = link.stats()
        print(f"test accuracy {accuracy:.1%} after {stats['rounds']} rounds")
        print(f"all ranks have the same weights: {len(set(map(float, everyones))) == 1}")
        sent, dense = stats["bytes_sent"], stats["bytes_dense"]
        print(f"sent {sent / 1e6:.2f} MB; gradients in every step are {dense / 1e6:.2f} MB: {dense / sent:.0f}x less")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(main, (2, f"file://{folder}/store"), nprocs=2)
