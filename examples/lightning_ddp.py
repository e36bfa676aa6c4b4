"""Lightning's Trainer with compressed gradients, stopped and resumed from Lightning's own checkpoint.

python examples/lightning_ddp.py                       Lightning starts the second rank itself
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from sparsewire.torch.lightning import SparsewireCallback

STEPS = 160  # five epochs


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def trainer(epochs: int, callback: SparsewireCallback) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(
        strategy="ddp", accelerator="cpu", devices=2, max_epochs=epochs, callbacks=[callback],
        enable_checkpointing=False, **quiet,
    )  # fmt: skip


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(4096, 32)
    data = DataLoader(TensorDataset(x, (x @ torch.randn(32, 8)).argmax(1)), batch_size=64)

    # The trainer knows its optimizer and its steps; here the whole run is longer than the first trainer's part.
    first = trainer(2, SparsewireCallback(total_steps=STEPS))
    first.fit(Net(), data)
    first.save_checkpoint(folder / "two.ckpt")  # every rank calls it; it holds both ranks' residuals

    callback = SparsewireCallback()
    second = trainer(5, callback)
    second.fit(Net(), data, ckpt_path=folder / "two.ckpt", weights_only=True)
    if second.is_global_zero:
        stats = callback.link.stats()
        sent, dense = stats["bytes_sent"], stats["bytes_dense"]
        print(
            f"loss after 2 epochs {first.callback_metrics['loss']:.3f}, after 5 {second.callback_metrics['loss']:.3f}"
        )
        print(f"step {stats['steps']}; since resuming, sent {sent / 1e6:.2f} MB instead of {dense / 1e6:.1f} MB: "
              f"{dense / sent:.0f}x less")  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    if "SPARSEWIRE_EXAMPLE" in os.environ:  # the second rank, which Lightning starts with this script
        main(Path(os.environ["SPARSEWIRE_EXAMPLE"]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            os.environ["SPARSEWIRE_EXAMPLE"] = temporary
            main(Path(temporary))
