"""A DDP model whose gradients travel compressed: one line, `attach`.

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

SCHEME = "topk(1%) | indices=rice | values=qsgd(bits=7) | memory=residual"


def main(rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)

    link = attach(model, SCHEME, warmup_steps=10)
    random = torch.Generator().manual_seed(rank)
    for step in range(120):
        batch = torch.randint(1500, (32,), generator=random)  # the rest is for testing
        loss = cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 40 == 39:
            print(f"step {step + 1}: loss {loss.item():.3f}")

    stats = link.stats()
    link.detach()
    if rank == 0:
        right = (net(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
        sent, dense = stats["bytes_sent"], stats["bytes_dense"]
        print(f"test accuracy {right:.1%}")
        print(f"sent {sent / 1e6:.1f} MB instead of {dense / 1e6:.1f} MB: {dense / sent:.0f}x less")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(main, (2, f"file://{folder}/store"), nprocs=2)
