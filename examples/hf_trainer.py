"""Hugging Face's Trainer with compressed gradients: a small Llama learns a made-up language, is saved and resumed.

python examples/hf_trainer.py                                   starts two ranks on this machine, with torchrun
torchrun --nproc-per-node 2 examples/hf_trainer.py              the same

Needs `pip install transformers accelerate`; nothing is downloaded.
"""

import os
import shutil
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments

from sparsewire.torch.hf import SparsewireCallback

WORDS, LENGTH = 512, 32


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """A language in which every word but the first follows from the one before it."""
    torch.manual_seed(0)
    following = torch.randperm(WORDS)
    words = torch.randint(WORDS, (count, 1))
    for _ in range(LENGTH - 1):
        words = torch.cat([words, following[words[:, -1:]]], 1)
    return [{"input_ids": line, "labels": line} for line in words]


def trainer(output: str, data: list[dict[str, torch.Tensor]]) -> tuple[Trainer, SparsewireCallback]:
    torch.manual_seed(0)
    small = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **small))
    args = TrainingArguments(
        output, use_cpu=True, max_steps=120, save_steps=60, logging_steps=20, per_device_train_batch_size=16,
        learning_rate=2e-3, ddp_find_unused_parameters=False, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    made = Trainer(model, args, train_dataset=data)
    made.remove_callback(PrinterCallback)
    compression = SparsewireCallback(made)
    made.add_callback(compression)
    return made, compression


def main() -> None:
    torch.set_num_threads(1)
    output = f"{tempfile.gettempdir()}/sparsewire-example-{os.environ['MASTER_PORT']}"  # the same on both ranks
    data = sentences(2048)
    first, compression = trainer(output, data)
    first.train()
    losses = [entry["loss"] for entry in first.state.log_history if "loss" in entry]
    weights, stats = first.model.state_dict(), compression.link.stats()

    second, _ = trainer(output, data)
    second.train(resume_from_checkpoint=f"{output}/checkpoint-60")
    same = all(torch.equal(weights[name], value) for name, value in second.model.state_dict().items())
    if dist.get_rank() == 0:
        sent, dense = stats["bytes_sent"], stats["bytes_dense"]
        print(f"{dist.get_world_size()} ranks, {stats['steps']} steps: loss {losses[0]:.3f} … {losses[-1]:.3f}")
        print(f"resumed at step 60, the same weights at the end: {same}")
        print(f"sent {sent / 1e6:.1f} MB instead of {dense / 1e6:.1f} MB: {dense / sent:.0f}x less")
        shutil.rmtree(output)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # two ranks share this machine's cores
        command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
        sys.exit(subprocess.run([sys.executable, "-m", *command]).returncode)
