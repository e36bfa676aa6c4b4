"""Replicas of torchft whose gradients are sent compressed; one of them is killed, started again, and catches up.

python examples/torchft_ddp.py          starts a lighthouse and three replicas on this machine
"""

import logging
import os
import subprocess
import sys
import time
from datetime import timedelta

import torch
from sklearn.datasets import load_digits
from torch.distributed import TCPStore
from torch.nn.functional import cross_entropy
from torchft import DistributedDataParallel, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from sparsewire.torch.torchft import CompressedManager

TRAINING = 1500  # images; the rest is for testing
STEPS, KILLED_AT = 600, 60


def replica(place: int) -> None:
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    network = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    sgd = torch.optim.SGD(network.parameters(), lr=0.2)

    def load(state: dict) -> None:
        network.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = CompressedManager(
        total_steps=STEPS,
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        load_state_dict=load,
        state_dict=lambda: {"model": network.state_dict(), "optimizer": sgd.state_dict()},
        min_replica_size=2,
        replica_id=f"replica{place}",
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
    )
    model, optimizer = DistributedDataParallel(manager, network), Optimizer(manager, sgd)
    chance = torch.Generator().manual_seed(place)
    while manager.current_step() < STEPS:
        batch = torch.randint(TRAINING, (32,), generator=chance)
        optimizer.zero_grad()
        loss = cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        if manager.current_step() % 10 == 0:
            print(f"step {manager.current_step()}: loss {loss.item():.3f}", flush=True)
        time.sleep(0.02)  # as if the model were large: the killed replica has time to come back
    accuracy = (network(x[TRAINING:]).argmax(1) == y[TRAINING:]).float().mean().item()
    weights = sum(parameter.double().sum() for parameter in network.parameters()).item()
    stats = manager.stats()
    print(f"test accuracy {accuracy:.1%}, sum of weights {weights!r}, "
          f"{stats['bytes_dense'] / stats['bytes_sent']:.0f}x fewer bytes", flush=True)  # fmt: skip
    manager.shutdown(wait=False)


def start(place: int, address: str) -> subprocess.Popen:
    environment = os.environ | {"TORCHFT_LIGHTHOUSE": address, "GLOO_SOCKET_IFNAME": "lo", "RUST_LOG": "error"}
    command = [sys.executable, __file__, str(place)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def main() -> None:
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=500, heartbeat_timeout_ms=2000)
    address = f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"
    replicas = [start(place, address) for place in range(3)]
    for line in replicas[2].stdout:
        if int(line.split()[1].rstrip(":")) >= KILLED_AT:
            break
    replicas[2].kill()
    print(f"replica 2 was killed after {line.strip()}")
    replicas[2].wait()
    replicas[2] = start(2, address)
    for place, process in enumerate(replicas):
        lines = process.communicate(timeout=120)[0].splitlines()
        print(f"replica {place}: first {lines[0]}; {lines[-1]}")
    lighthouse.shutdown()


if __name__ == "__main__":
    logging.disable(logging.INFO)
    if len(sys.argv) > 1:
        replica(int(sys.argv[1]))
    else:
        os.environ.setdefault("RUST_LOG", "error")
        main()
