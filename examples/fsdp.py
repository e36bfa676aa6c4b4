"""A model that FSDP2 shards within each replica, and compressed gradients between the replicas: one line, `attach`.

python examples/fsdp.py                         starts two replicas of two shards on this machine
torchrun --nproc-per-node 4 examples/fsdp.py    the same, started by torchrun
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from sparsewire.torch import attach

TRAINING, STEPS = 1500, 240  # images, of which the rest is for testing; optimizer steps


def build() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(512, 10))


def main(rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    model = build()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["shard"])  # with the whole mesh FSDP would average the replicas itself
    fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)

    random = torch.Generator().manual_seed(rank)
    with attach(model, optimizer=optimizer, total_steps=STEPS, replicas=mesh["replicate"]) as link:
        for step in range(STEPS):
            batch = torch.randint(TRAINING // size, (16,), generator=random) * size + rank
            loss = cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 80 == 79:
                print(f"step {step + 1}: loss {loss.item():.3f}")
        stats = link.stats()

    total = torch.stack([parameter.detach().double().sum().full_tensor() for parameter in model.parameters()]).sum()
    everyones = [torch.zeros_like(total) for _ in range(size)]
    dist.all_gather(everyones, total)
    with torch.no_grad():
        accuracy = (model(x[TRAINING:]).argmax(1) == y[TRAINING:]).float().mean().item()  # every rank gathers shards
    if rank == 0:
        print(f"test accuracy {accuracy:.1%}")
        print(f"all replicas have the same weights: {len(set(map(float, everyones))) == 1}")
        sent, dense = stats["bytes_sent"], stats["bytes_dense"]
        print(f"this shard sent {sent / 1e6:.2f} MB instead of {dense / 1e6:.2f} MB: {dense / sent:.0f}x less")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(main, (4, f"file://{folder}/store"), nprocs=4)
