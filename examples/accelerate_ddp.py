"""A training loop with Accelerate and compressed gradients: gradient accumulation, saving and resuming.

python examples/accelerate_ddp.py                              starts two ranks on this machine
torchrun --nproc-per-node 2 examples/accelerate_ddp.py         the same, started by torchrun

On CPU, `accelerate launch --cpu --num_processes 2` starts one process, not two: docs/guides/accelerate.md.
"""

import os
import shutil
import tempfile
from typing import Any

import torch
from accelerate import Accelerator, debug_launcher
from accelerate.utils import broadcast_object_list
from torch.nn.functional import cross_entropy

from sparsewire.torch.accelerate import attach_accelerate

STEPS = 60  # of two batches each


def train(accelerator: Accelerator, model: Any, optimizer: Any, batches: range) -> float:
    torch.manual_seed(1)
    teacher = torch.randn(32, 8)
    for batch in batches:
        random = torch.Generator().manual_seed(1000 * batch + accelerator.process_index)
        x = torch.randn(64, 32, generator=random)
        with accelerator.accumulate(model):
            loss = cross_entropy(model(x), (x @ teacher).argmax(1))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
    link = attach_accelerate(accelerator, model, total_steps=STEPS)  # the accelerator knows the optimizer

    folder = broadcast_object_list([tempfile.mkdtemp() if accelerator.is_main_process else ""])[0]
    before = train(accelerator, model, optimizer, range(60))
    accelerator.save_state(folder)  # every rank's residuals with it
    once = train(accelerator, model, optimizer, range(60, 120))
    accelerator.load_state(folder)
    again = train(accelerator, model, optimizer, range(60, 120))

    stats = link.stats()
    sent, dense = stats["bytes_sent"], stats["bytes_dense"]
    link.detach()
    if accelerator.is_main_process:
        print(f"loss after 30 steps {before:.3f}, after 60 {once:.3f}")
        print(f"loss after resuming at 30 and training again {again:.3f}, the same: {once == again}")
        print(f"sent {sent / 1e6:.2f} MB instead of {dense / 1e6:.1f} MB: {dense / sent:.0f}x less")
        shutil.rmtree(folder)
    accelerator.end_training()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # two ranks share this machine's cores
    if "RANK" in os.environ:
        main()
    else:
        debug_launcher(main, num_processes=2)
