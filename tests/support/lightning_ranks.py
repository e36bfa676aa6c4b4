"""The script that a rank of Lightning runs for tests/torch/test_lightning.py: trainings, and the facts about them."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

from host_ranks import MOMENTUM_SCHEME, RANKS, SCHEME, same_bits, write_facts

WITHOUT = "resumed without residuals"


def module(adam: bool = False) -> Any:
    import torch
    from lightning.pytorch import LightningModule

    class Net(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            if not adam:
                return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            self.betas: list[list[float]] = []  # of each step's groups
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            optimizer.register_step_post_hook(lambda one, *_: self.betas.append(first_betas(one)))
            return optimizer

    return Net()


def first_betas(optimizer: Any) -> list[float]:
    return [group["betas"][0] for group in optimizer.param_groups]


def batches() -> Any:
    import torch

    random = torch.Generator().manual_seed(1)
    x, y = torch.randn(128, 32, generator=random), torch.randint(8, (128,), generator=random)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)


def precision(scaler: Any) -> Any:
    """16-mixed but for the autocast: in float32 a power of two as the loss scale changes no bit."""
    from contextlib import nullcontext

    from lightning.pytorch.plugins import MixedPrecision

    class Scaled(MixedPrecision):
        def forward_context(self) -> Any:
            return nullcontext()

    return Scaled("16-mixed", "cpu", scaler)


def fit(
    epochs: int,
    *more: Any,
    path: Path | None = None,
    settings: dict[str, Any] | None = None,
    net: Any = None,
    scheme: str | None = MOMENTUM_SCHEME,
    **options: Any,
) -> tuple[Any, Any, Any]:
    """(the trainer, its callback, the weights afterwards): four batches per rank and epoch, two steps."""
    from lightning.pytorch import Trainer

    from sparsewire.torch.lightning import SparsewireCallback

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    quiet |= {"logger": False, "enable_checkpointing": bool(more)}
    callback = SparsewireCallback(scheme, warmup_steps=1, **(settings or {}))
    options = {"strategy": "ddp", "devices": RANKS, **quiet, **options}
    trainer = Trainer(
        accelerator="cpu", max_epochs=epochs, accumulate_grad_batches=2, callbacks=[callback, *more], **options
    )
    net = net or module()
    trainer.fit(net, batches(), ckpt_path=path, **({"weights_only": True} if path else {}))
    return trainer, callback, net.state_dict()


def scaled(weights: dict[str, Any]) -> dict[str, Any]:
    import torch

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1)
    _, callback, found = fit(4, plugins=[precision(scaler)])
    facts = {"scaled equals unscaled": same_bits(found, weights), "last scale": callback.link.state_dict()["scale"]}
    own = torch.amp.GradScaler("cpu")
    callback = fit(1, plugins=[precision(scaler)], settings={"scaler": own})[1]
    return facts | {"own scaler": callback.link.averager.settings.scale.__self__ is own}


def with_adam(folder: Path) -> dict[str, Any]:
    """Saved after half of the steps, and resumed; and the β1 of every step's groups."""
    net = module(adam=True)
    weights = fit(4, net=net, scheme=SCHEME)[2]
    fit(2, net=module(adam=True), scheme=SCHEME)[0].save_checkpoint(folder / "adam.ckpt")
    resumed = fit(4, net=module(adam=True), scheme=SCHEME, path=folder / "adam.ckpt")[2]
    return {"betas": net.betas, "resumed with Adam": same_bits(resumed, weights)}


def edited(path: Path, edit: Any) -> Path:
    """A copy of the checkpoint with other sparsewire states, written by rank 0."""
    import os

    import torch
    import torch.distributed as dist

    if os.environ["RANK"] == "0":
        checkpoint = torch.load(path, weights_only=True)
        edit(checkpoint["callbacks"])
        torch.save(checkpoint, path.with_name("edited.ckpt"))
    dist.barrier()
    return path.with_name("edited.ckpt")


def third_rank(callbacks: dict[str, Any]) -> None:
    states = callbacks["SparsewireCallback"]["ranks"]
    states[:] = [state | {"rank": rank, "world_size": 3} for rank, state in enumerate([*states, states[1]])]


def spoil_second(callbacks: dict[str, Any]) -> None:
    for kept in residuals(callbacks["SparsewireCallback"]["ranks"][1]).values():
        kept.fill_(float("nan"))


def refusal_of_damage(middle: Path) -> str:
    try:
        fit(4, path=edited(middle, spoil_second))
    except ValueError as error:
        return str(error)
    return ""


def refusal() -> str:
    from lightning.pytorch.strategies import SingleDeviceStrategy

    try:
        fit(1, strategy=SingleDeviceStrategy("cpu"), devices=1)
    except ValueError as error:
        return str(error)
    return ""


def chosen() -> dict[str, Any]:
    """Everything left to the callback: what it makes of the trainer's optimizer, steps and clipping."""
    net, seen = module(), []
    net.on_train_batch_start = lambda *_: seen.append(net.trainer.gradient_clip_val) if len(seen) < 2 else None
    trainer, callback, _ = fit(40, net=net, scheme=None, settings={"dense_below": 100}, gradient_clip_val=0.5)
    clipped = [callback.link.settings.clip_norm, seen, trainer.gradient_clip_val]
    refused = []
    for options, settings in (({"gradient_clip_algorithm": "value"}, {}), ({}, {"clip_norm": 1.0})):
        try:
            fit(1, scheme=None, settings=settings, gradient_clip_val=0.5, **options)
        except ValueError as error:
            refused.append(str(error))
    return {"recipe": repr(callback.link.recipe), "clipped": clipped, "clipping refused": refused}


def residuals(state: dict[str, Any]) -> dict[str, Any]:
    return {name: buffers["residual"] for name, buffers in state["buffers"].items()}


def main(folder: Path) -> dict[str, Any]:
    import threading

    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    keeper = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    trainer, callback, weights = fit(4, keeper, logger=CSVLogger(folder, "logs", ""))
    facts: dict[str, Any] = {"steps": callback.link.stats()["steps"]}
    trainer.save_checkpoint(folder / "last.ckpt")
    middle = folder / "epoch=1.ckpt"
    switched_off = fit(1, settings={"optimizer": None})[1].link
    facts["fitted"] = [callback.link._fit.optimizers == trainer.optimizers, switched_off._fit is not None]
    facts["resumed"] = same_bits(fit(4, path=middle)[2], weights)
    with warnings.catch_warnings(record=True) as caught:
        without = edited(middle, lambda callbacks: callbacks.pop("SparsewireCallback"))
        facts[WITHOUT] = same_bits(fit(4, path=without)[2], weights)
    facts["warnings"] = " ".join(str(warning.message) for warning in caught)

    states, last = (
        torch.load(path, weights_only=True)["callbacks"]["SparsewireCallback"]["ranks"]
        for path in (middle, folder / "last.ckpt")
    )
    facts["ranks in checkpoint"] = [state["rank"] for state in states]
    facts["ranks are equal"] = same_bits(residuals(states[0]), residuals(states[1]))
    facts["steps in the last checkpoint"] = [state["step"] for state in last]

    link = fit(2, path=edited(middle, third_rank))[1].link  # at its end already: loads, and takes no step
    mine = [states[0], states[1]] if link.comm.rank == 0 else [states[1]]
    shares = {name: sum(residuals(state)[name] * (2 / 3) for state in mine) for name in residuals(states[0])}
    facts["resharded"] = all(
        torch.allclose(kept, shares[name], atol=1e-6) for name, kept in residuals(link.state_dict()).items()
    )
    facts["resharded"] = facts["resharded"] and link.step == 4
    facts["damaged"] = refusal_of_damage(middle)
    facts |= scaled(weights)
    facts |= with_adam(folder)
    facts |= chosen()
    facts["comm_threads"] = sum(thread.name == "sparsewire-comm" for thread in threading.enumerate())
    facts["refused"] = refusal()
    return facts


if __name__ == "__main__":
    write_facts(sys.argv[1], main(Path(sys.argv[1])))
