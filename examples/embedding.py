"""A recommender with sparse embedding tables for users and items; each step has gradients for few of their rows.

python examples/embedding.py                           starts two ranks on this machine
torchrun --nproc-per-node 2 examples/embedding.py      the same, started by torchrun

The tables' gradients are sparse already: `nonzero` sends all their entries, so the selection loses nothing, and they
are never made dense. `memory=none`, because a residual would add every row that was ever used to each later step. The
gradients of the small network after the tables are sent dense.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from sparsewire.torch import attach

USERS, ITEMS, WIDTH = 20_000, 10_000, 16
SCHEME = "nonzero | indices=rice | values=half | memory=none"


class Recommender(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = torch.nn.Embedding(USERS, WIDTH, sparse=True)
        self.items = torch.nn.Embedding(ITEMS, WIDTH, sparse=True)
        self.net = torch.nn.Sequential(torch.nn.Linear(2 * WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([self.users(user), self.items(item)], 1)).squeeze(1)


def clicks(random: torch.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Some users and items are much more frequent than others; users with odd numbers like items with odd numbers."""
    user, item = ((torch.rand(count, generator=random) ** 6 * top).long() for top in (USERS, ITEMS))
    return user, item, (user % 2 == item % 2).float()


def main(rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()  # torch 2.13 warns unless one chooses
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    torch.manual_seed(0)
    net = Recommender()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.3)
    link = attach(model, SCHEME, exclude=["net.*"])

    random = torch.Generator().manual_seed(rank)
    pairs = 0
    for step in range(60):
        user, item, liked = clicks(random, 512)
        loss = binary_cross_entropy_with_logits(model(user, item), liked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pairs += (user.unique().numel() + item.unique().numel()) * (8 + 4 * WIDTH)
        if rank == 0 and step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.3f}")

    sent, dense = link.stats()["bytes_sent"], link.stats()["bytes_dense"]
    link.detach()
    if rank == 0:
        print(f"sent {sent / 1e6:.2f} MB, the network included")
        print(f"as rows with an index each, the tables alone would be {pairs / 1e6:.2f} MB: {pairs / sent:.1f}x more")
        print(f"as dense tensors, all would be {dense / 1e6:.0f} MB: {dense / sent:.0f}x more")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(main, (2, f"file://{folder}/store"), nprocs=2)
