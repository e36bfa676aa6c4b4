"""Ray Train with compressed gradients, saved in Ray's checkpoints and resumed.

python examples/ray_train.py                  starts Ray on this machine, with two workers

Needs `pip install "ray[train]"`. The lines for sparsewire are `attach` after `prepare_model`, `load`, `save`, `detach`.
"""

import os
import sys
import tempfile
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch.nn.functional import cross_entropy

from sparsewire.torch import Link, attach, load, save

STEPS = 120


def train(config: dict[str, int]) -> None:
    """What each worker runs."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    teacher = torch.randn(32, 8)
    net = torch.nn.Sequential(torch.nn.Linear(32, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
    model = prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    link = attach(model, optimizer=optimizer, total_steps=STEPS)
    resume(net, optimizer, link)

    rank = ray.train.get_context().get_world_rank()
    for step in range(link.step, config["steps"]):
        x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = cross_entropy(model(x), (x @ teacher).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(net, optimizer, link, loss.item())
    link.detach()


def resume(net: torch.nn.Module, optimizer: torch.optim.Optimizer, link: Link) -> None:
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(f"{folder}/model.pt", weights_only=True)
            load(link, folder)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


def report(net: torch.nn.Module, optimizer: torch.optim.Optimizer, link: Link, loss: float) -> None:
    """Every worker saves its own residuals; Ray puts the files of all workers into one checkpoint."""
    facts = {name: value for name, value in link.stats().items() if name not in ("seconds", "recipe")}
    with tempfile.TemporaryDirectory() as folder:
        save(link, folder)
        if link.comm.rank == 0:
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/model.pt")
        ray.train.report({"loss": loss, **facts}, checkpoint=Checkpoint.from_directory(folder))


def fit(steps: int, folder: str) -> dict[str, Any]:
    """A run of the same name goes on from its last checkpoint."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"steps": steps},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="example", storage_path=folder),
    )
    metrics = trainer.fit().metrics
    assert metrics is not None
    return metrics


def main() -> None:
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    ray.init(num_cpus=2, log_to_driver=False, runtime_env={"env_vars": {"GLOO_SOCKET_IFNAME": interface}})
    with tempfile.TemporaryDirectory() as folder:
        first, second = fit(STEPS // 2, folder), fit(STEPS, folder)
    ray.shutdown()
    sent, dense = (first[name] + second[name] for name in ("bytes_sent", "bytes_dense"))
    print(
        f"loss after {first['steps']} steps {first['loss']:.3f}, resumed, after {second['steps']} {second['loss']:.3f}"
    )
    print(f"sent {sent / 1e6:.2f} MB instead of {dense / 1e6:.1f} MB: {dense / sent:.0f}x less")


if __name__ == "__main__":
    main()
